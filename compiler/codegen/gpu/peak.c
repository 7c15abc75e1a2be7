/* peak.c - compiles templates/peak.cu, which measures how fast a chip
 * multiplies matrices of the type that a plan's kernels multiply. In: a plan
 * and a chip. Out: one code, with the operations that a thread block does in
 * one round. */
#include "gpu.h"
#include <stdlib.h>

/* Shared memory on Hopper, bytes: both operands have rows of 128 bytes. */
enum { HOPPER_SHARED = (64 + 256) * 128, PRODUCTS = 16 };

/* The operations of one thread block in one round; see templates/peak.cu. */
static int64_t operations_of(bool hopper, bool wide) {
  int64_t depth = wide ? 8 : 16;
  return hopper ? PRODUCTS * 2 * 64 * 256 * depth
                : PRODUCTS * 2 * 8 * 16 * 8 * depth;
}

dil_status peak_compile(const plan *p, int32_t arch, const gpu_shelf *shelf,
                        dil_cuda_code *code) {
  static const int element[DIL_DTYPE_COUNT] = {
      [DIL_F32] = 0, [DIL_BF16] = 1, [DIL_F16] = 2};
  bool hopper = arch == 90;
  dil_dtype dtype = p->table.dtype;
  source_text text = {0};
  *code = (dil_cuda_code){.family = "peak",
                          .arch = arch,
                          .threads = hopper ? 128 : 256,
                          .shared = hopper ? HOPPER_SHARED : 0};
  code->knob[CUDA_PEAK_OPERATIONS] =
      (int32_t)operations_of(hopper, dtype == DIL_F32);
  snprintf(code->variant, sizeof code->variant, "peak %s",
           dtype == DIL_F32 ? "tf32" : dil_dtype_name(dtype));
  put(&text, "#define ELEMENT %d\n#define HOPPER %d\n", element[dtype], hopper);
  put_template(&text, "templates/peak.cu");
  dil_status status = nvrtc_compile(&text, code, NULL, NULL, shelf);
  free(text.text);
  return status;
}
