/* cache_context.c - a context's own cache of kernels, opened when a compiler
 * first asks for it. In: the environment. Out: the cache, or the reason why
 * the environment cannot be followed. */
#include "cache.h"
#include "runtime/api/context.h"
#include <limits.h>

static void add_stats(dil_cache *cache, dil_stats *out) {
  cache_stats s;
  cache_read_stats(cache, &s);
  int64_t hits = s.memory_hits + s.disk_hits;
  out->cache_hits = hits;
  out->cache_misses = s.misses;
  out->cache_refused = s.refused;
  out->cache_evictions = s.evictions;
  out->cache_hit_rate =
      hits ? (double)hits / (double)(hits + s.misses) : 0;
  out->cache_memory_bytes = s.memory_bytes;
  out->cache_disk_bytes = s.disk_bytes < 0 ? 0 : s.disk_bytes;
  out->cache_seconds_saved = s.seconds_saved;
}

static dil_status open_cache(dil_context *c) {
  cache_options wanted;
  char folder[PATH_MAX];
  dil_status status = cache_options_read(&wanted, folder);
  if (status) return status;
  wanted.log = c->log;
  status = cache_new(&wanted, &c->cache.cache);
  if (status) return status;
  c->cache.free = cache_free;
  c->cache.stats = add_stats;
  return DIL_OK;
}

dil_status dil_context_cache(dil_context *context, dil_cache **cache) {
  pthread_mutex_lock(&context->cache.lock);
  dil_status status = context->cache.cache ? DIL_OK : open_cache(context);
  *cache = context->cache.cache;
  pthread_mutex_unlock(&context->cache.lock);
  return status;
}
