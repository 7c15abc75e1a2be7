/* launch.c - puts a kernel on a stream. In: a loaded code, a grid, the kernel's
 * parameters. Out: a launch. */
#include "nvidia.h"
#include "runtime/base/arithmetic.h"

dil_status cuda_launch(const cuda_run *r, const cuda_code *code, int32_t entry,
                       int64_t blocks, int32_t threads, int32_t shared,
                       void *parameters) {
  const cuda_driver *driver = r->device->driver;
  void *arguments[] = {parameters};
  if (blocks <= 0) return DIL_OK;
  return cuda_check(driver,
                    driver->launch(code->function[entry],
                                   (unsigned)minimum(blocks, INT32_MAX), 1, 1,
                                   (unsigned)threads, 1, 1, (unsigned)shared,
                                   r->stream, arguments, NULL),
                    "launch a kernel");
}
