/* backend.c - opens the back ends. In: a module's file. Out: its table, of this
 * build of dil, or a status with the reason. */
#include "cpu_backend.h"
#include "gpu_backend.h"
#include "interface.h"
#include "runtime/base/module.h"
#include "runtime/base/status.h"

/* The table of a loaded module; its first member is a `backend`. */
static dil_status backend_open(const char *module, const void **opened) {
  void *symbol;
  dil_status status = dil_module_open(module, BACKEND_SYMBOL, &symbol);
  if (status) return status;
  const backend *found = ((backend_init)symbol)();
  *opened = found;
  if (found && found->version == DIL_INTERFACE) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "%s is of another version of dil", module);
}

dil_status cpu_backend_open(const cpu_backend **opened) {
  const void *table = NULL;
  dil_status status = backend_open("dil-cpu.so", &table);
  *opened = table;
  return status;
}

dil_status gpu_backend_open(const gpu_backend **opened) {
  const void *table = NULL;
  dil_status status = backend_open("dil-gpu.so", &table);
  *opened = table;
  return status;
}
