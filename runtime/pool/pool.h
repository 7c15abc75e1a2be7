/* pool.h - memory of a device that is checked out for a while and comes back.
 *
 * Two blocks that are out never share memory. What comes back is kept for the
 * next request of about its size, within a bound, and goes back to the device
 * when it is needed elsewhere or has lain idle. Thread-safe. */
#ifndef DIL_RUNTIME_POOL_POOL_H
#define DIL_RUNTIME_POOL_POOL_H

#include "runtime/dilrt.h"
#include "runtime/observe/log.h"
#include <stdbool.h>

#pragma GCC visibility push(default) /* dilrt-cuda.so has use for it */

typedef struct pool pool;

/* The source of a pool's memory. On a device with streams, a block that is
 * given back may still be at work there: `mark` and its kin say until when. All
 * four are NULL where memory is free as soon as it is given back. */
typedef struct pool_source {
  const char *name;      /* "cpu", "cuda:0": for messages; borrowed */
  dil_status (*take)(void *user, int64_t bytes, void **memory);
  void (*give)(void *user, void *memory, int64_t bytes); /* waits if need be */
  /* Notes where `stream` stands, in *event: a new one when that is NULL. */
  dil_status (*mark)(void *user, void *stream, void **event);
  bool (*passed)(void *user, void *event);
  dil_status (*follow)(void *user, void *stream, void *event); /* waits there */
  void (*forget)(void *user, void *event);
  /* Which stream a handle is, POOL_NO_STREAM when that cannot be told; NULL:
   * the handle itself says. */
  uint64_t (*identify)(void *user, void *stream);
  void *user;
} pool_source;

#define POOL_NO_STREAM UINT64_MAX

typedef struct pool_options {
  int64_t max;           /* bytes held, in use or not; 0: no bound */
  int64_t idle;          /* nanoseconds that a kept block may lie; 0: no end */
  bool plain;            /* counts nothing */
  bool off;              /* keeps nothing */
  log_target log;        /* hears of leaks */
} pool_options;
/* From DIL_POOL_MAX (bytes), DIL_POOL_IDLE (seconds) and DIL_POOL (on, plain,
 * off).
 * DIL_USAGE when one of them cannot be followed. */
dil_status dil_pool_options_read(pool_options *options);

typedef struct pool_stats {
  int64_t held;          /* bytes taken from the device: in use and cached */
  int64_t in_use, cached, peak; /* peak: of in_use */
  int64_t requested;     /* bytes asked for, of those in use */
  int64_t takes, fresh, releases; /* blocks: given out, made, given up */
} pool_stats;
/* Of all that was given out, the part that had been used before. */
double pool_reuse_rate(const pool_stats *stats);
/* Of the bytes in use, the part that nobody asked for. */
double pool_fragmentation(const pool_stats *stats);

dil_status dil_pool_new(const pool_source *source, const pool_options *options,
                        pool **made);
/* A block that is still out is a leak: the log reports it, and it stays
 * untouched. */
void dil_pool_free(pool *p);
void dil_pool_read_stats(pool *p, pool_stats *stats);

/* ---- blocks -------------------------------------------------------------- */

typedef struct pool_block pool_block;

/* A block of at least `bytes`, for work on `stream` from now on. DIL_MEMORY:
 * the device has none, or the bound is reached. */
dil_status dil_pool_take_block(pool *p, int64_t bytes, void *stream,
                               pool_block **block);
/* After the last work was put on the stream that it was taken for. */
void dil_pool_give_block(pool *p, pool_block *block);
void *dil_pool_memory(const pool_block *block);

/* ---- memory of the host, by its address ---------------------------------- */

enum { POOL_ALIGNMENT = 64 };

/* The host's hooks; NULL: the C library's aligned_alloc and free. */
typedef struct pool_host {
  dil_allocate_hook allocate;
  dil_release_hook release;
  void *user;
} pool_host;
/* A pool of the host's memory; NULL for either: hooks or options without any.
 * NULL: no memory. */
pool *pool_new_host(const pool_host *host, const pool_options *options);
/* Of such a pool: at least `bytes`, aligned to POOL_ALIGNMENT, whatever stands
 * in it; NULL, with the text of the failure, where there is none. */
void *pool_take(pool *p, int64_t bytes);
void pool_give(pool *p, void *memory);

#pragma GCC visibility pop

#endif
