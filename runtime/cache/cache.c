/* cache.c - values by their keys: the latest in memory, all on disk.
 *
 * In: keys and values. Out: values that were put before, by this process or
 * another. The lock covers memory alone; files are safe by how they are
 * written and read. */
#include "cache.h"
#include "runtime/base/clock.h"
#include "runtime/base/environment.h"
#include "runtime/base/status.h"
#include "runtime/observe/metrics.h"
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUCKETS = 256 }; /* by the first byte of the digest */

typedef struct kept {
  struct kept *next;              /* of the bucket */
  struct kept *newer, *older;     /* by use */
  uint8_t digest[CACHE_DIGEST];
  double seconds;
  size_t key_size, value_size;
  char bytes[];                   /* key, value */
} kept;

struct dil_cache {
  cache_options options;
  int folder;                     /* -1: memory alone */
  pthread_mutex_t lock;           /* of all below */
  kept *bucket[BUCKETS];
  kept *newest, *oldest;
  cache_stats stats;
  bool warned_read, warned_write; /* the log has said it */
};

/* ---- options ------------------------------------------------------------- */

static const char *const mode_words[] = {"on", "ro", "off"};

/* The XDG base directory specification has relative paths passed over. */
static const char *absolute_path(const char *name) {
  const char *path = environment_text(name);
  return path && *path == '/' ? path : NULL;
}

static dil_status find_folder(cache_options *o, char *folder) {
  const char *own = environment_text("DIL_CACHE_DIR");
  const char *shared = absolute_path("XDG_CACHE_HOME");
  const char *home = absolute_path("HOME");
  int length = own      ? snprintf(folder, PATH_MAX, "%s", own)
               : shared ? snprintf(folder, PATH_MAX, "%s/dil", shared)
               : home   ? snprintf(folder, PATH_MAX, "%s/.cache/dil", home)
                        : 0;
  if (length >= PATH_MAX)
    return dil_fail(DIL_USAGE, "the path of the cache is longer than %d bytes",
                    PATH_MAX - 1);
  o->folder = length ? folder : NULL;
  return DIL_OK;
}

dil_status cache_options_read(cache_options *options, char *folder) {
  const char *word = environment_text("DIL_CACHE");
  int32_t mode = CACHE_ON;
  *options = (cache_options){.disk_max = INT64_C(1) << 30,
                             .memory_max = INT64_C(64) << 20};
  dil_status status =
      word ? environment_word("DIL_CACHE", word, mode_words, 3, &mode) : DIL_OK;
  options->mode = (cache_mode)mode;
  if (!status)
    status = environment_bytes("DIL_CACHE_MAX_SIZE", &options->disk_max);
  return status ? status : find_folder(options, folder);
}

/* ---- the cache ----------------------------------------------------------- */

static void open_folder(dil_cache *c) {
  const log_target *log = &c->options.log;
  bool read_only = c->options.mode == CACHE_READ_ONLY;
  if (!c->options.folder) {
    LOG(log, DIL_LOG_WARNING, "kernels are kept in memory alone: neither "
                              "DIL_CACHE_DIR nor HOME says where else");
    return;
  }
  c->folder = cache_folder_open(c->options.folder, !read_only, read_only);
  if (c->folder < 0 && !(read_only && errno == ENOENT))
    LOG(log, DIL_LOG_WARNING, "kernels are kept in memory alone: %s",
        dil_last_error());
  c->options.folder = NULL; /* borrowed until here */
}

dil_status cache_new(const cache_options *options, dil_cache **cache) {
  dil_cache *c = calloc(1, sizeof *c);
  *cache = c;
  if (!c) return dil_fail(DIL_MEMORY, "no memory for a cache");
  c->options = *options;
  c->folder = -1;
  c->stats.disk_bytes = -1;
  pthread_mutex_init(&c->lock, NULL);
  if (c->options.mode != CACHE_OFF) open_folder(c);
  return DIL_OK;
}

void cache_free(dil_cache *cache) {
  if (!cache) return;
  for (kept *k = cache->newest, *older; k; k = older) {
    older = k->older;
    free(k);
  }
  if (cache->folder >= 0) close(cache->folder);
  pthread_mutex_destroy(&cache->lock);
  free(cache);
}

void cache_read_stats(dil_cache *cache, cache_stats *stats) {
  pthread_mutex_lock(&cache->lock);
  *stats = cache->stats;
  pthread_mutex_unlock(&cache->lock);
}

/* One number of this cache and of the process. */
#define COUNT(cache, field, amount)                  \
  do {                                               \
    (cache)->stats.field += (amount);                \
    metric_add(METRIC_cache_##field, (amount));      \
  } while (0)

static void count_saved(dil_cache *c, double seconds) {
  c->stats.seconds_saved += seconds;
  metric_add_seconds(METRIC_cache_saved, seconds);
}

/* ---- memory (under the lock) --------------------------------------------- */

static void unlink_use(dil_cache *c, kept *k) {
  if (k->newer) k->newer->older = k->older;
  else c->newest = k->older;
  if (k->older) k->older->newer = k->newer;
  else c->oldest = k->newer;
}

static void link_newest(dil_cache *c, kept *k) {
  k->newer = NULL;
  k->older = c->newest;
  if (c->newest) c->newest->newer = k;
  else c->oldest = k;
  c->newest = k;
}

static kept *cache_find_kept(dil_cache *c, const uint8_t *digest,
                             const void *key, size_t key_size) {
  kept *k = c->bucket[digest[0]];
  while (k && (memcmp(k->digest, digest, CACHE_DIGEST) ||
               k->key_size != key_size || memcmp(k->bytes, key, key_size)))
    k = k->next;
  return k;
}

static void cache_drop_kept(dil_cache *c, kept *k) {
  kept **link = &c->bucket[k->digest[0]];
  while (*link != k) link = &(*link)->next;
  *link = k->next;
  unlink_use(c, k);
  COUNT(c, memory_bytes, -(int64_t)k->value_size);
  free(k);
}

static void cache_keep(dil_cache *c, const uint8_t *digest, const void *key,
                       size_t key_size, const cache_value *v) {
  if ((int64_t)v->size > c->options.memory_max) return;
  kept *k = cache_find_kept(c, digest, key, key_size);
  if (k) cache_drop_kept(c, k);
  k = malloc(sizeof *k + key_size + v->size);
  if (!k) return; /* the next call asks the disk, or makes it anew */
  *k = (kept){.next = c->bucket[digest[0]],
              .seconds = v->seconds,
              .key_size = key_size,
              .value_size = v->size};
  memcpy(k->digest, digest, CACHE_DIGEST);
  memcpy(k->bytes, key, key_size);
  memcpy(k->bytes + key_size, v->bytes, v->size);
  c->bucket[digest[0]] = k;
  link_newest(c, k);
  COUNT(c, memory_bytes, (int64_t)v->size);
  while (c->stats.memory_bytes > c->options.memory_max) {
    cache_drop_kept(c, c->oldest);
    COUNT(c, evictions, 1);
  }
}

/* ---- getting ------------------------------------------------------------- */

static bool copy_value(const void *bytes, size_t size, double seconds,
                       cache_value *value) {
  *value = (cache_value){.bytes = malloc(size ? size : 1),
                         .size = size,
                         .seconds = seconds};
  if (value->bytes) memcpy(value->bytes, bytes, size);
  return value->bytes != NULL;
}

static bool cache_get_kept(dil_cache *c, const uint8_t *digest, const void *key,
                           size_t key_size, cache_value *value) {
  pthread_mutex_lock(&c->lock);
  kept *k = cache_find_kept(c, digest, key, key_size);
  bool found = k && copy_value(k->bytes + k->key_size, k->value_size,
                               k->seconds, value);
  if (found) {
    unlink_use(c, k);
    link_newest(c, k);
    COUNT(c, memory_hits, 1);
    count_saved(c, value->seconds);
  }
  pthread_mutex_unlock(&c->lock);
  return found;
}

/* A value that is not there is a miss; one that cannot be used is reported, and
 * once a cache aloud. */
static void note_refused(dil_cache *c) {
  if (errno == ENOENT) return;
  pthread_mutex_lock(&c->lock);
  COUNT(c, refused, 1);
  bool first = !c->warned_read;
  c->warned_read = true;
  pthread_mutex_unlock(&c->lock);
  LOG(&c->options.log, first ? DIL_LOG_WARNING : DIL_LOG_INFO,
      "%s; the kernel is made anew", dil_last_error());
}

static bool get_file(dil_cache *c, const uint8_t *digest, const void *key,
                     size_t key_size, cache_value *value) {
  char name[CACHE_NAME];
  cache_entry e;
  double start = clock_seconds();
  cache_name(digest, name);
  if (cache_file_read(c->folder, name, c->options.mode == CACHE_READ_ONLY,
                      &e)) {
    note_refused(c);
    return false;
  }
  bool same = e.key_size == key_size && !memcmp(e.key, key, key_size);
  bool found = same && copy_value(e.value, e.value_size, e.seconds, value);
  free(e.image);
  if (!found) return false;
  pthread_mutex_lock(&c->lock);
  cache_keep(c, digest, key, key_size, value);
  COUNT(c, disk_hits, 1);
  count_saved(c, value->seconds - (clock_seconds() - start));
  pthread_mutex_unlock(&c->lock);
  LOG(&c->options.log, DIL_LOG_DEBUG, "cache entry %s read: %zu bytes", name,
      value->size);
  return true;
}

bool dil_cache_get(dil_cache *cache, const void *key, size_t key_size,
                   cache_value *value) {
  uint8_t digest[CACHE_DIGEST];
  if (!cache || cache->options.mode == CACHE_OFF) return false;
  cache_digest(key, key_size, digest);
  if (cache_get_kept(cache, digest, key, key_size, value)) return true;
  if (cache->folder >= 0 && get_file(cache, digest, key, key_size, value))
    return true;
  pthread_mutex_lock(&cache->lock);
  COUNT(cache, misses, 1);
  pthread_mutex_unlock(&cache->lock);
  return false;
}

/* ---- putting ------------------------------------------------------------- */

static int64_t at_least(int64_t bytes) { return bytes < 0 ? 0 : bytes; }

/* Room for what was added, by what this process knows of the folder. */
static void cache_make_room(dil_cache *c, int64_t added) {
  enum { KEPT_PERCENT = 90 }; /* so that not every write has to trim */
  pthread_mutex_lock(&c->lock);
  int64_t bytes = c->stats.disk_bytes;
  if (bytes >= 0) COUNT(c, disk_bytes, added);
  bool look = bytes < 0 || bytes + added > c->options.disk_max;
  pthread_mutex_unlock(&c->lock);
  if (!look) return;
  int32_t removed = 0;
  int64_t max = c->options.disk_max;
  if (cache_folder_trim(c->folder, max, max / 100 * KEPT_PERCENT, &bytes,
                        &removed)) {
    LOG(&c->options.log, DIL_LOG_WARNING, "%s", dil_last_error());
    return;
  }
  pthread_mutex_lock(&c->lock);
  metric_add(METRIC_cache_disk_bytes, bytes - at_least(c->stats.disk_bytes));
  c->stats.disk_bytes = bytes;
  COUNT(c, evictions, removed);
  pthread_mutex_unlock(&c->lock);
}

static void note_written(dil_cache *c, dil_status status, const char *name) {
  pthread_mutex_lock(&c->lock);
  if (status) COUNT(c, write_failures, 1);
  else COUNT(c, writes, 1);
  bool first = status && !c->warned_write;
  c->warned_write |= first;
  pthread_mutex_unlock(&c->lock);
  if (status)
    LOG(&c->options.log, first ? DIL_LOG_WARNING : DIL_LOG_INFO,
        "%s; the kernel is not kept on disk", dil_last_error());
  else
    LOG(&c->options.log, DIL_LOG_DEBUG, "cache entry %s written", name);
}

void dil_cache_put(dil_cache *cache, const void *key, size_t key_size,
                   const cache_value *value) {
  uint8_t digest[CACHE_DIGEST];
  char name[CACHE_NAME];
  int64_t bytes = 0;
  if (!cache || cache->options.mode == CACHE_OFF) return;
  cache_digest(key, key_size, digest);
  pthread_mutex_lock(&cache->lock);
  cache_keep(cache, digest, key, key_size, value);
  pthread_mutex_unlock(&cache->lock);
  if (cache->folder < 0 || cache->options.mode == CACHE_READ_ONLY) return;
  cache_name(digest, name);
  dil_status status = cache_file_write(cache->folder, name, key, key_size,
                                       value, &bytes);
  note_written(cache, status, name);
  if (!status) cache_make_room(cache, bytes);
}
