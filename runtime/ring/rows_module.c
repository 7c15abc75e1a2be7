/* rows_module.c - opens dilrt-nccl.so; see rows_module.h. */
#include "rows_module.h"
#include "interface.h"
#include "runtime/base/module.h"
#include "runtime/base/status.h"

dil_status rows_module_open(const dil_nccl_module **module) {
  void *symbol;
  dil_status status =
      dil_module_open("dilrt-nccl.so", DIL_NCCL_SYMBOL, &symbol);
  if (status) return status;
  *module = ((dil_nccl_init)symbol)();
  if ((*module)->version == DIL_INTERFACE) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT,
                  "dilrt-nccl.so is of another version of dil");
}
