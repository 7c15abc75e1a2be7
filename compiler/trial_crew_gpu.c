/* trial_crew_gpu.c - what ranks on GPUs share: the code of the plan and of what
 * they do with rows, and which devices there are. In: a compilation. Out: a
 * crew_gpu. */
#include "command.h"
#include "driver.h"
#include "keep.h"
#include "trial_crew.h"
#include "trial_cuda.h"
#include <stdlib.h>

static dil_status count_devices(trial_crew *t, const options *o,
                                const topology *on) {
  int32_t count = 0;
  dil_status status = dil_cuda_module_open(&t->gpu.cuda);
  if (!status) status = t->gpu.cuda->devices(&count);
  if (status) return status;
  t->gpu.first = (int32_t)o->device.number;
  t->gpu.devices = count - t->gpu.first;
  if (t->gpu.devices > on->devices) t->gpu.devices = (int32_t)on->devices;
  if (t->gpu.devices < 1)
    return dil_fail(DIL_USAGE, "there is no device cuda:%d, of %d",
                    t->gpu.first, count);
  bool here = !trial_crew_is_job(on) || trial_crew_in_file(on);
  if (t->gpu.devices < on->devices && on->link == LINK_NCCL && here)
    return dil_fail(DIL_UNSUPPORTED, "topology '%s' is linked by NCCL, which "
                    "wants a GPU for each rank: %lld ranks, %d GPU%s", on->name,
                    (long long)on->devices, t->gpu.devices,
                    t->gpu.devices == 1 ? "" : "s");
  if (t->gpu.devices < on->devices && here)
    message_note("%lld ranks share %d GPU%s", (long long)on->devices,
                 t->gpu.devices, t->gpu.devices == 1 ? "" : "s");
  return DIL_OK;
}

static dil_status check_topology(const topology *on) {
  if (on->link == LINK_MPI)
    return dil_fail(DIL_UNSUPPORTED, "topology '%s' is linked by MPI, which "
                    "moves memory of the host: say `link nccl` or `link "
                    "thread` for GPUs", on->name);
  return DIL_OK;
}

dil_status trial_crew_gpu(trial_crew *t, compilation *c, const options *o) {
  dil_status status = check_topology(c->topology);
  if (!status) status = trial_cuda_context(o, &t->context);
  if (!status) status = count_devices(t, o, c->topology);
  if (!status) status = driver_source(c, t->context, &t->from);
  if (!status)
    status = keep_beside(c, dil_context_arch(t->context), KEEP_ROWS,
                         &t->gpu.rows);
  t->gpu.codes = t->from.codes;
  t->gpu.code_count = t->from.code_count;
  t->gpu.dimension = t->from.dimension;
  t->gpu.context = t->from.context;
  return status;
}

void trial_crew_gpu_free(trial_crew *t) {
  free(t->gpu.rows.cubin);
  dil_context_free(t->context);
}
