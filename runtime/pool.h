/* pool.h - scratch memory of a context: blocks that are checked out for one
 * run and come back. Two blocks that are out never share memory. */
#ifndef DIL_POOL_H
#define DIL_POOL_H

#include "rt.h"

typedef struct pool pool;

/* Where the pool gets its memory; the hooks NULL: aligned_alloc and free. */
typedef struct pool_source {
  dil_allocate_hook allocate;
  dil_release_hook release;
  void *user;
} pool_source;

enum { POOL_ALIGNMENT = 64 };

pool *pool_new(const pool_source *source); /* NULL: no memory */
/* Everything that was taken is given back by then. */
void pool_free(pool *p);
/* At least `bytes`, aligned to POOL_ALIGNMENT, whatever stands in it; NULL:
 * there is no memory. Thread-safe, as is pool_give. */
void *pool_take(pool *p, int64_t bytes);
void pool_give(pool *p, void *memory);
/* Fills the fields of `stats` that begin with pool_. */
void pool_stats(pool *p, dil_stats *stats);

#endif
