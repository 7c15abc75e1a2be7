/* pool.c - scratch memory kept from run to run.
 *
 * In: sizes. Out: blocks. What comes back is kept; a request takes the smallest
 * kept block that holds it, and where none does the largest kept one gives way
 * to a new block, so that as many blocks live as ever were out at once. */
#include "pool.h"
#include <pthread.h>
#include <stdlib.h>

/* Stands in the first bytes of the memory that was allocated. */
typedef struct block {
  struct block *next; /* among the kept ones */
  int64_t bytes;      /* of the user's part */
} block;

enum { HEAD = POOL_ALIGNMENT };
_Static_assert(sizeof(block) <= HEAD, "a block's head fits before it");

struct pool {
  pool_source source;
  pthread_mutex_t lock;
  block *kept;
  int64_t held, in_use, peak; /* bytes */
  int64_t takes, fresh;
};

static void *allocate(const pool *p, size_t size) {
  return p->source.allocate
             ? p->source.allocate(p->source.user, size, POOL_ALIGNMENT)
             : aligned_alloc(POOL_ALIGNMENT, size);
}

static void release(const pool *p, block *b) {
  if (p->source.release)
    p->source.release(p->source.user, b, HEAD + (size_t)b->bytes);
  else
    free(b);
}

pool *pool_new(const pool_source *source) {
  pool *p = calloc(1, sizeof *p);
  if (!p) return NULL;
  if (source) p->source = *source;
  pthread_mutex_init(&p->lock, NULL);
  return p;
}

void pool_free(pool *p) {
  if (!p) return;
  for (block *b = p->kept, *next; b; b = next) {
    next = b->next;
    release(p, b);
  }
  pthread_mutex_destroy(&p->lock);
  free(p);
}

/* Where the smallest kept block of that many bytes hangs; NULL: none is. */
static block **find_kept(pool *p, int64_t bytes) {
  block **best = NULL;
  for (block **at = &p->kept; *at; at = &(*at)->next)
    if ((*at)->bytes >= bytes && (!best || (*at)->bytes < (*best)->bytes))
      best = at;
  return best;
}

static void drop_largest(pool *p) {
  block **most = &p->kept;
  for (block **at = &p->kept; *at; at = &(*at)->next)
    if ((*at)->bytes > (*most)->bytes) most = at;
  block *b = *most;
  if (!b) return;
  *most = b->next;
  p->held -= b->bytes;
  release(p, b);
}

static block *make_block(pool *p, int64_t bytes) {
  drop_largest(p);
  block *b = bytes > INT64_MAX - 2 * HEAD
                 ? NULL
                 : allocate(p, HEAD + (size_t)bytes);
  if (!b) return NULL;
  b->bytes = bytes;
  p->held += bytes;
  p->fresh++;
  return b;
}

void *pool_take(pool *p, int64_t bytes) {
  if (bytes < 0 || bytes > INT64_MAX - HEAD) return NULL;
  bytes = (bytes + HEAD - 1) / HEAD * HEAD;
  pthread_mutex_lock(&p->lock);
  block **kept = find_kept(p, bytes);
  block *b = kept ? *kept : make_block(p, bytes);
  if (kept) *kept = b->next;
  if (b) {
    p->takes++;
    p->in_use += b->bytes;
    if (p->in_use > p->peak) p->peak = p->in_use;
  }
  pthread_mutex_unlock(&p->lock);
  return b ? (char *)b + HEAD : NULL;
}

void pool_give(pool *p, void *memory) {
  if (!memory) return;
  block *b = (block *)((char *)memory - HEAD);
  pthread_mutex_lock(&p->lock);
  b->next = p->kept;
  p->kept = b;
  p->in_use -= b->bytes;
  pthread_mutex_unlock(&p->lock);
}

void pool_stats(pool *p, dil_stats *stats) {
  pthread_mutex_lock(&p->lock);
  stats->pool_bytes = p->held;
  stats->pool_in_use = p->in_use;
  stats->pool_peak = p->peak;
  stats->pool_takes = p->takes;
  stats->pool_fresh = p->fresh;
  pthread_mutex_unlock(&p->lock);
}
