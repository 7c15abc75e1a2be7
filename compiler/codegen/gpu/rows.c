/* rows.c - compiles templates/rows.cu for a chip: the kernels that ranks of a
 * ring use besides attention. They do not depend on a plan. Out: one code. */
#include "gpu.h"
#include <stdlib.h>

dil_status rows_compile(int32_t arch, const gpu_cubin_cache *cubins,
                        dil_cuda_code *code) {
  source_text text = {0};
  *code = (dil_cuda_code){.family = "rows",
                          .arch = arch,
                          .lenient = true,
                          .variant = "rows"};
  put_template(&text, "templates/rows.cu");
  dil_status status = nvrtc_compile(&text, code, NULL, NULL, cubins);
  free(text.text);
  return status;
}
