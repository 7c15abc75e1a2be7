/* module.h - finds and opens loadable parts, such as dil-cpu.so. */
#ifndef DIL_RUNTIME_BASE_MODULE_H
#define DIL_RUNTIME_BASE_MODULE_H

#include "runtime/dilrt.h"
#include <stdbool.h>

#pragma GCC visibility push(default)

/* Opens the loadable part `file` ("dil-cpu.so") and finds `symbol` in it. Looks
 * in DIL_MODULE_DIR alone when that is set, else beside the program, in its
 * build folder, in ../lib/dil and ../lib beside it, beside this library, and
 * in a folder `dil` beside or above it.
 * Tried once a process: DIL_ENVIRONMENT with the same reason ever after.
 * Thread-safe; what is opened stays open. */
dil_status dil_module_open(const char *file, const char *symbol,
                           void **address);
/* Finds the path of such a file; nothing is opened. */
enum { DIL_PATH_MAX = 4096 };
dil_status dil_module_find(const char *file, char path[DIL_PATH_MAX]);

#pragma GCC visibility pop
#endif
