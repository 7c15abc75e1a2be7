/* row_copy.h - copies rows within the host's memory, by several threads, and
 * converts them between float types on the way. */
#ifndef DIL_RUNTIME_RING_ROW_COPY_H
#define DIL_RUNTIME_RING_ROW_COPY_H

#include "route.h"
#include "runtime/pool/threads.h"

/* Copies all rows. The tensors have 3 or 4 dimensions and the same shape. */
dil_status row_copy(dil_threads *threads, const dil_tensor *from,
                    const dil_tensor *to);
/* Copies the rows of a route. They come from [B, M, Hkv, D], where a row's
 * number is its position, to a chunk whose first row has position `first`. */
dil_status row_copy_route(dil_threads *threads, const route *r,
                          const dil_tensor *from, const dil_tensor *to,
                          int64_t first);
/* Writes rows begin..end-1 of a route's list, of one batch row, in the layout
 * of a message (route.h) and in this dtype. */
dil_status row_copy_pack(dil_threads *threads, const route *r,
                         const dil_tensor *k, const dil_tensor *v, int64_t b,
                         int64_t begin, int64_t end, dil_dtype dtype,
                         void *message);

#endif
