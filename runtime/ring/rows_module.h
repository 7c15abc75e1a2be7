/* rows_module.h - dilrt-nccl.so, opened when ranks on GPUs first ask for it. */
#ifndef DIL_RUNTIME_RING_ROWS_MODULE_H
#define DIL_RUNTIME_RING_ROWS_MODULE_H

#include "runtime/link/nccl/rows_link.h"

/* Opens the module once and returns its table, or the reason of failure. */
dil_status rows_module_open(const dil_nccl_module **module);

#endif
