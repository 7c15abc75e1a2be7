/* peak.c - compiles templates/peak.cu, which measures how fast a chip
 * multiplies matrices of the type that a plan's kernels multiply. In: a plan
 * and a chip. Out: one code, with the operations that a thread block does in
 * one round. */
#include "gpu.h"
#include <stdlib.h>

/* The operations of one thread block of 256 threads in one round by mma.sync;
 * see templates/peak.cu. */
static int32_t general_operations(bool wide) {
  enum { PRODUCTS = 16 };
  return PRODUCTS * 2 * 8 * 16 * 8 * (wide ? 8 : 16);
}

/* Which way through the template. */
static void put_ways(source_text *text, const gpu_fast *chosen) {
  const gpu_fast *fast;
  for (int32_t i = 0; (fast = gpu_fast_row(i)); i++)
    put(text, "#define %s %d\n", fast->peak_macro, fast == chosen);
}

dil_status peak_compile(const plan *p, int32_t arch,
                        const gpu_cubin_cache *cubins, dil_cuda_code *code) {
  static const int element[DIL_DTYPE_COUNT] = {
      [DIL_F32] = 0, [DIL_BF16] = 1, [DIL_F16] = 2};
  const gpu_fast *fast = gpu_fast_of(arch);
  dil_dtype dtype = p->table.dtype;
  source_text text = {0};
  *code = (dil_cuda_code){.family = "peak",
                          .arch = arch,
                          .threads = fast ? fast->peak_threads : 256,
                          .shared = fast ? fast->peak_shared : 0};
  code->knob[CUDA_PEAK_OPERATIONS] =
      (fast ? fast->peak_operations : general_operations)(dtype == DIL_F32);
  snprintf(code->variant, sizeof code->variant, "peak %s",
           dtype == DIL_F32 ? "tf32" : dil_dtype_name(dtype));
  put(&text, "#define ELEMENT %d\n", element[dtype]);
  put_ways(&text, fast);
  put_template(&text, "templates/peak.cu");
  dil_status status = nvrtc_compile(&text, code, NULL, NULL, cubins);
  free(text.text);
  return status;
}
