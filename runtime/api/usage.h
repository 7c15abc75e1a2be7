/* usage.h - the one place that checks the arguments that a host gives.
 *
 * Every function of dilrt.h and dil.h asks here before it uses what the host
 * gave. In: pointers, counts, sizes and structs. Out: DIL_OK, or DIL_USAGE with
 * a text that names the argument, its value and what was expected. These
 * functions read nothing behind a pointer, but for a struct as far as its size
 * says. */
#ifndef DIL_RUNTIME_API_USAGE_H
#define DIL_RUNTIME_API_USAGE_H

#include "runtime/dilrt.h"
#include <stdbool.h>

#pragma GCC visibility push(default) /* the compiler's functions use it too */

/* Pairs of a name and a pointer, NULL after the last. DIL_USAGE, "there is no
 * NAME", for the first pointer that is NULL. */
dil_status dil_usage_given(const char *name, const void *pointer, ...)
    __attribute__((sentinel));
/* `count` elements, 0 to `most`; a list may be NULL where it has none. */
dil_status dil_usage_list(const char *name, int64_t count, int64_t most,
                          const void *list);
/* `bytes` from `start` on, which may be NULL: from 0 to the size of memory. */
dil_status dil_usage_bytes(const char *name, const void *start, int64_t bytes);
/* Sizes of a call, within what kernels count with. */
dil_status dil_usage_sizes(const dil_sizes *sizes);

/* Copies a host's struct, whose first field is its size, into one of `known`
 * bytes: what it lacks is 0. DIL_USAGE, with `name`, for a size that no struct
 * has. The same for a larger struct that sets more than this version knows. */
dil_status dil_struct_read(void *to, size_t known, const void *from,
                           const char *name);
/* Copies as much of `from` to a host's struct as its size allows; the size
 * stays. */
void dil_struct_write(void *to, const void *from, size_t known);

#pragma GCC visibility pop

/* Finds the address `offset` bytes from `start`; false where no memory can be
 * there. */
bool usage_offset(const void *start, uint64_t offset, void **there);

#endif
