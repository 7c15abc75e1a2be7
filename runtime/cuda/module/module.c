/* module.c - the one symbol of dilrt-cuda.so: its table of functions. */
#include "interface.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/ring/ring_cuda.h"

DIL_API const dil_cuda_module *dil_cuda_module_init(void);
const dil_cuda_module *dil_cuda_module_init(void) {
  static const dil_cuda_module table = {
      .version = DIL_INTERFACE,
      .open = device_open,
      .close = device_close,
      .facts = device_facts,
      .devices = device_count,
      .enter = cuda_enter,
      .leave = cuda_leave,
      .take = device_take,
      .give = device_give,
      .upload = device_upload,
      .download = device_download,
      .fill = device_fill,
      .kernel = kernel_new,
      .kernel_free = kernel_free,
      .run = kernel_run,
      .variants = kernel_variants,
      .backward = kernel_backward,
      .backward_workspace = kernel_backward_workspace,
      .saved = kernel_saved_bytes,
      .backward_time = kernel_backward_time,
      .backward_describe = kernel_backward_describe,
      .backward_estimate = kernel_backward_estimate,
      .states = kernel_states,
      .begin = kernel_begin,
      .advance = kernel_advance,
      .finish = kernel_finish,
      .opens = kernel_opens,
      .open_shard = kernel_open,
      .workspace = kernel_workspace,
      .estimate = kernel_estimate,
      .pool = device_pool,
      .wait = device_wait,
      .time = kernel_time,
      .peak = peak_measure,
      .ring = ring_cuda_new,
      .normal = ring_cuda_normal,
      .transfer = cuda_transfer_new};
  return &table;
}
