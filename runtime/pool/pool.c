/* pool.c - blocks in classes of size, kept from use to use.
 *
 * In: sizes and streams. Out: blocks. There are eight classes for each power
 * of two, so that at most an eighth of a block is not asked for. The two levels
 * of TLSF (Masmano et al. 2004) divide sizes so, but blocks of a pool are
 * neither split nor joined. A request takes a kept block of its class or of one
 * little above. The last work of that block is of the same stream, or is done;
 * where there is no room for a new one, the stream waits for it. */
#include "pool.h"
#include "runtime/base/environment.h"
#include "runtime/base/status.h"
#include "runtime/observe/metrics.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  LEAST_BITS = 12,          /* the smallest class: 4 KiB */
  STEPS = 8,                /* classes for each power of two */
  MOST_BITS = 46,
  CLASSES = (MOST_BITS - LEAST_BITS) * STEPS,
  CLASSES_ABOVE = 4,        /* a block half as large again may serve */
  LOOKED_AT = 8             /* blocks of a class, for one that is free */
};

struct pool_block {
  pool_block *next, *before;     /* of its class while kept; else of all out */
  pool_block *newer, *older;     /* of all kept */
  void *memory, *stream, *event; /* event: of the last give; NULL: none yet */
  uint64_t identity;             /* of the stream */
  int64_t bytes, requested;
  int64_t given;                 /* when, by clock_coarse */
};

struct pool {
  pool_source source;
  pool_host host;                /* of a pool of the host's memory */
  pool_options options;
  pthread_mutex_t lock;          /* of all below */
  pool_block *kept[CLASSES];
  pool_block *newest, *oldest;   /* of all kept */
  pool_block *out;
  int64_t held;
  pool_stats stats;
};

/* ---- options and statistics ---------------------------------------------- */

dil_status dil_pool_options_read(pool_options *options) {
  static const char *const words[] = {"on", "plain", "off"};
  const char *word = environment_text("DIL_POOL");
  int64_t seconds = 10;
  int32_t which = 0;
  *options = (pool_options){0};
  dil_status status =
      word ? environment_word("DIL_POOL", word, words, 3, &which) : DIL_OK;
  if (!status) status = environment_bytes("DIL_POOL_MAX", &options->max);
  if (!status) status = environment_count("DIL_POOL_IDLE", 1 << 30, &seconds);
  options->plain = which == 1;
  options->off = which == 2;
  options->idle = seconds * INT64_C(1000000000);
  return status;
}

double pool_reuse_rate(const pool_stats *s) {
  return s->takes ? 1 - (double)s->fresh / (double)s->takes : 0;
}

double pool_fragmentation(const pool_stats *s) {
  return s->in_use ? 1 - (double)s->requested / (double)s->in_use : 0;
}

void dil_pool_read_stats(pool *p, pool_stats *stats) {
  pthread_mutex_lock(&p->lock);
  *stats = p->stats;
  stats->held = p->held;
  pthread_mutex_unlock(&p->lock);
}

/* A block changes hands: `sign` 1 out, -1 back. */
static void count_use(pool *p, const pool_block *b, int sign) {
  if (p->options.plain) return;
  p->stats.in_use += sign * b->bytes;
  p->stats.requested += sign * b->requested;
  if (p->stats.in_use > p->stats.peak) p->stats.peak = p->stats.in_use;
  p->stats.takes += sign > 0;
  metric_add(METRIC_pool_in_use_bytes, sign * b->bytes);
  metric_add(METRIC_pool_requested_bytes, sign * b->requested);
  metric_at_least(METRIC_pool_peak_bytes, p->stats.peak);
  if (sign > 0) metric_add(METRIC_pool_takes, 1);
}

static void pool_count_kept(pool *p, const pool_block *b, int sign) {
  if (p->options.plain) return;
  p->stats.cached += sign * b->bytes;
  metric_add(METRIC_pool_cached_bytes, sign * b->bytes);
}

/* ---- classes ------------------------------------------------------------- */

/* The class of blocks that hold `bytes`; CLASSES: there is none so large. */
static int32_t class_of(int64_t bytes) {
  if (bytes <= 1 << LEAST_BITS) return 0;
  uint64_t last = (uint64_t)bytes - 1;
  int bits = 63 - __builtin_clzll(last);
  if (bits >= MOST_BITS) return CLASSES;
  return (bits - LEAST_BITS) * STEPS + (int)(last >> (bits - 3) & 7) + 1;
}

static int64_t bytes_of_class(int32_t class) {
  return (int64_t)(STEPS + class % STEPS)
         << (class / STEPS + LEAST_BITS - 3);
}

static int64_t clock_coarse(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* ---- lists (under the lock) ---------------------------------------------- */

static void block_list_add(pool_block **first, pool_block *b) {
  b->before = NULL;
  b->next = *first;
  if (b->next) b->next->before = b;
  *first = b;
}

static void block_list_remove(pool_block **first, pool_block *b) {
  if (b->before) b->before->next = b->next;
  else *first = b->next;
  if (b->next) b->next->before = b->before;
}

static void pool_keep(pool *p, pool_block *b) {
  block_list_add(&p->kept[class_of(b->bytes)], b);
  b->newer = NULL;
  b->older = p->newest;
  if (b->older) b->older->newer = b;
  else p->oldest = b;
  p->newest = b;
  pool_count_kept(p, b, 1);
}

static void pool_unkeep(pool *p, pool_block *b) {
  block_list_remove(&p->kept[class_of(b->bytes)], b);
  if (b->newer) b->newer->older = b->older;
  else p->newest = b->older;
  if (b->older) b->older->newer = b->newer;
  else p->oldest = b->newer;
  pool_count_kept(p, b, -1);
}

/* Gives a kept block back to the device. */
static void pool_release(pool *p, pool_block *b) {
  pool_unkeep(p, b);
  if (b->event) p->source.forget(p->source.user, b->event);
  p->source.give(p->source.user, b->memory, b->bytes);
  p->held -= b->bytes;
  p->stats.releases += !p->options.plain;
  free(b);
}

static void pool_release_all(pool *p) {
  while (p->oldest) pool_release(p, p->oldest);
}

/* One block at a time, so that no call pays for many. */
static void pool_release_idle(pool *p) {
  pool_block *b = p->oldest;
  if (b && p->options.idle && clock_coarse() - b->given > p->options.idle)
    pool_release(p, b);
}

/* ---- taking -------------------------------------------------------------- */

static uint64_t identity_of(const pool *p, void *stream) {
  if (!p->source.identify) return (uint64_t)(uintptr_t)stream;
  return p->source.identify(p->source.user, stream);
}

static bool is_ready(const pool *p, const pool_block *b, uint64_t stream) {
  return !p->source.mark || !b->event ||
         (b->identity == stream && stream != POOL_NO_STREAM) ||
         p->source.passed(p->source.user, b->event);
}

/* A kept block that can serve; with `wait`, one that the stream has to wait
 * for is good too. */
static pool_block *pool_find_kept(const pool *p, int32_t class, uint64_t stream,
                                  bool wait) {
  int32_t last = class + CLASSES_ABOVE;
  for (int32_t c = class; c <= last && c < CLASSES; c++) {
    int32_t looked = 0;
    for (pool_block *b = p->kept[c]; b && looked < LOOKED_AT;
         b = b->next, looked++)
      if (wait || is_ready(p, b, stream)) return b;
  }
  return NULL;
}

static bool pool_fits(const pool *p, int64_t bytes) {
  return !p->options.max || bytes <= p->options.max - p->held;
}

/* Room for so many bytes under the bound, the oldest blocks first. */
static bool pool_make_room(pool *p, int64_t bytes) {
  while (!pool_fits(p, bytes) && p->oldest) pool_release(p, p->oldest);
  return pool_fits(p, bytes);
}

static dil_status over_bound(const pool *p, int64_t bytes) {
  return dil_fail(DIL_MEMORY,
                  "%lld bytes more than the %lld in use on %s would be above "
                  "DIL_POOL_MAX, %lld",
                  (long long)bytes, (long long)p->held, p->source.name,
                  (long long)p->options.max);
}

/* From the device; where that has none, after giving back all that is kept. */
static dil_status pool_take_memory(pool *p, int64_t bytes, void **memory) {
  dil_status status = p->source.take(p->source.user, bytes, memory);
  if (status != DIL_MEMORY || !p->oldest) return status;
  LOG(&p->options.log, DIL_LOG_INFO,
      "%s is short of memory: the pool gives back what it keeps",
      p->source.name);
  pool_release_all(p);
  return p->source.take(p->source.user, bytes, memory);
}

static dil_status make_block(pool *p, int64_t bytes, pool_block **made) {
  if (!pool_make_room(p, bytes)) return over_bound(p, bytes);
  pool_block *b = calloc(1, sizeof *b);
  if (!b) return dil_fail(DIL_MEMORY, "no memory for a block of a pool");
  dil_status status = pool_take_memory(p, bytes, &b->memory);
  if (status) {
    free(b);
    return status;
  }
  b->bytes = bytes;
  p->held += bytes;
  p->stats.fresh += !p->options.plain;
  *made = b;
  return DIL_OK;
}

/* A kept block for the stream, behind the work that it was given back after. */
static dil_status pool_reuse(pool *p, pool_block *b, void *stream,
                             uint64_t identity) {
  bool behind = !is_ready(p, b, identity);
  dil_status status =
      behind ? p->source.follow(p->source.user, stream, b->event) : DIL_OK;
  if (status) return status;
  pool_unkeep(p, b);
  if (!p->options.plain) metric_add(METRIC_pool_reuses, 1);
  return DIL_OK;
}

/* One that is ready; else a new one; else, at the bound, one to wait for. */
static dil_status take_locked(pool *p, int32_t class, void *stream,
                              pool_block **block) {
  int64_t bytes = bytes_of_class(class);
  uint64_t identity = identity_of(p, stream);
  pool_block *b = pool_find_kept(p, class, identity, false);
  if (!b && !pool_fits(p, bytes)) b = pool_find_kept(p, class, identity, true);
  *block = b;
  dil_status status =
      b ? pool_reuse(p, b, stream, identity) : make_block(p, bytes, block);
  if (!status) (*block)->identity = identity;
  return status;
}

dil_status dil_pool_take_block(pool *p, int64_t bytes, void *stream,
                               pool_block **block) {
  int32_t class = class_of(bytes);
  *block = NULL;
  if (bytes < 0 || class >= CLASSES)
    return dil_fail(DIL_MEMORY, "%lld bytes are more than there can be",
                    (long long)bytes);
  pthread_mutex_lock(&p->lock);
  dil_status status = take_locked(p, class, stream, block);
  if (status) *block = NULL;
  else {
    (*block)->stream = stream;
    (*block)->requested = bytes;
    block_list_add(&p->out, *block);
    count_use(p, *block, 1);
  }
  pthread_mutex_unlock(&p->lock);
  return status;
}

void *dil_pool_memory(const pool_block *block) { return block->memory; }

/* ---- giving back --------------------------------------------------------- */

void dil_pool_give_block(pool *p, pool_block *b) {
  if (!b) return;
  pthread_mutex_lock(&p->lock);
  block_list_remove(&p->out, b);
  count_use(p, b, -1);
  b->given = clock_coarse();
  pool_keep(p, b);
  /* Where nobody can tell when it is free, nobody may have it. */
  if (p->source.mark &&
      p->source.mark(p->source.user, b->stream, &b->event)) {
    LOG(&p->options.log, DIL_LOG_WARNING, "%s: %s", p->source.name,
        dil_last_error());
    pool_release(p, b);
  } else if (p->options.off) {
    pool_release(p, b);
  }
  pool_release_idle(p);
  pthread_mutex_unlock(&p->lock);
}

/* ---- the pool ------------------------------------------------------------ */

dil_status dil_pool_new(const pool_source *source, const pool_options *options,
                        pool **made) {
  pool *p = calloc(1, sizeof *p);
  *made = p;
  if (!p) return dil_fail(DIL_MEMORY, "no memory for a pool");
  p->source = *source;
  p->options = *options;
  pthread_mutex_init(&p->lock, NULL);
  return DIL_OK;
}

static void report_leaks(const pool *p) {
  enum { SHOWN = 8 };
  int64_t count = 0;
  for (const pool_block *b = p->out; b; b = b->next)
    if (count++ < SHOWN)
      LOG(&p->options.log, DIL_LOG_WARNING,
          "%s: %lld bytes at %p were not given back", p->source.name,
          (long long)b->requested, b->memory);
  if (count > SHOWN)
    LOG(&p->options.log, DIL_LOG_WARNING, "%s: nor were %lld other blocks",
        p->source.name, (long long)(count - SHOWN));
}

void dil_pool_free(pool *p) {
  if (!p) return;
  report_leaks(p);
  pool_release_all(p);
  for (pool_block *b = p->out, *next; b; b = next) {
    next = b->next;
    free(b);
  }
  pthread_mutex_destroy(&p->lock);
  free(p);
}

/* ---- memory of the host -------------------------------------------------- */

static dil_status host_take(void *user, int64_t bytes, void **memory) {
  const pool_host *h = user;
  *memory = h->allocate ? h->allocate(h->user, (size_t)bytes, POOL_ALIGNMENT)
                        : aligned_alloc(POOL_ALIGNMENT, (size_t)bytes);
  if (*memory) return DIL_OK;
  return dil_fail(DIL_MEMORY, "no memory for %lld bytes of scratch",
                  (long long)bytes);
}

static void host_give(void *user, void *memory, int64_t bytes) {
  const pool_host *h = user;
  if (h->release) h->release(h->user, memory, (size_t)bytes);
  else free(memory);
}

pool *pool_new_host(const pool_host *host, const pool_options *options) {
  pool *p;
  pool_source source = {.name = "cpu", .take = host_take, .give = host_give};
  if (dil_pool_new(&source, options ? options : &(pool_options){0}, &p))
    return NULL;
  if (host) p->host = *host;
  p->source.user = &p->host;
  return p;
}

/* A line before what the user sees says which block it is. */
void *pool_take(pool *p, int64_t bytes) {
  pool_block *b;
  if (bytes > INT64_MAX - POOL_ALIGNMENT ||
      dil_pool_take_block(p, bytes + POOL_ALIGNMENT, NULL, &b))
    return NULL;
  memcpy(b->memory, &b, sizeof b);
  return (char *)b->memory + POOL_ALIGNMENT;
}

void pool_give(pool *p, void *memory) {
  pool_block *b;
  if (!memory) return;
  memcpy(&b, (char *)memory - POOL_ALIGNMENT, sizeof b);
  dil_pool_give_block(p, b);
}
