/* cache.h - what was made once, kept: in memory, and on disk for the next
 * process.
 *
 * An entry is a value (bytes) under a key (text that says everything the value
 * follows from). Nothing here ever fails a run: what cannot be read is made
 * anew, what cannot be written is not kept; the log says why, once. All
 * functions may be called from any thread. */
#ifndef DIL_RUNTIME_CACHE_CACHE_H
#define DIL_RUNTIME_CACHE_CACHE_H

#include "runtime/dilrt.h"
#include "runtime/observe/log.h"
#include <stdbool.h>
#include <time.h>

enum {
  CACHE_WITNESS_MAX = 4,    /* files that a value depends on */
  CACHE_DIGEST = 32,        /* bytes of SHA-256 */
  CACHE_NAME = 40           /* of an entry's file, its end included */
};
#define CACHE_VALUE_MAX (INT64_C(256) << 20)

typedef enum cache_mode { CACHE_ON, CACHE_READ_ONLY, CACHE_OFF } cache_mode;

typedef struct cache_options {
  cache_mode mode;
  const char *folder;   /* NULL: memory alone. Made when it is not there */
  int64_t disk_max;     /* bytes of all entries on disk */
  int64_t memory_max;   /* bytes of all values in memory */
  log_target log;       /* gets messages about entries that cannot be used */
} cache_options;

/* A value of the cache. `witness`: the compiler's own files; the entry is stale
 * when one of them has changed. */
typedef struct cache_value {
  void *bytes;          /* from dil_cache_get: malloced, the caller's */
  size_t size;
  double seconds;       /* that making it took */
  /* Of dil_cache_put alone: for people, "longnet avx512 tiles"; paths, NULL
   * ends. */
  const char *label;
  const char *witness[CACHE_WITNESS_MAX];
} cache_value;

typedef struct cache_stats {
  int64_t memory_hits, disk_hits, misses;
  int64_t refused;      /* entries that were damaged, stale or not ours */
  int64_t writes, write_failures, evictions;
  int64_t memory_bytes, disk_bytes; /* disk: -1 when not looked at yet */
  double seconds_saved; /* of making, less those of reading */
} cache_stats;

typedef struct dil_cache dil_cache;

/* ---- cache.c ------------------------------------------------------------- */

/* DIL_MEMORY alone: a folder that is not fit is left out, with a warning. */
dil_status cache_new(const cache_options *options, dil_cache **cache);
/* Options from DIL_CACHE (on, ro, off), DIL_CACHE_DIR, XDG_CACHE_HOME, HOME
 * and DIL_CACHE_MAX_SIZE; `folder` has room for PATH_MAX. DIL_USAGE when one
 * of them cannot be followed. */
dil_status cache_options_read(cache_options *options, char *folder);
void cache_free(dil_cache *cache);

#pragma GCC visibility push(default) /* the compiler has use for these */
/* Returns whether there is a value; NULL as the cache has none. */
bool dil_cache_get(dil_cache *cache, const void *key, size_t key_size,
                   cache_value *value);
void dil_cache_put(dil_cache *cache, const void *key, size_t key_size,
                   const cache_value *value);
#pragma GCC visibility pop
void cache_read_stats(dil_cache *cache, cache_stats *stats);

/* ---- cache_context.c ----------------------------------------------------- */

/* The context's own, with options from the environment; it ends with the
 * context. DIL_USAGE when the environment cannot be followed. */
DIL_API dil_status dil_context_cache(dil_context *context, dil_cache **cache);

/* ---- cache_folder.c: the directory, and who may have written to it ------- */

/* Opens the folder, makes it when `make`. -1 with dil_fail's text: it is a
 * link, not a directory, another user's, or others may write to it. With
 * `read_only` the superuser's is good too. errno ENOENT: there is none. */
int cache_folder_open(const char *path, bool make, bool read_only);

typedef struct cache_file {
  char name[CACHE_NAME];
  int64_t bytes;
  struct timespec used; /* last */
  bool temporary;       /* of a writer that is at work, or did not finish */
} cache_file;
/* All files of the folder that are named as ours are, least recently used
 * first. `*files` is malloced. */
dil_status cache_folder_list(int folder, cache_file **files, int32_t *count);
/* Returns whether a temporary file is nobody's: its process has ended and holds
 * no lock on it, or it is older than an hour. */
bool cache_file_is_stale(int folder, const cache_file *file);
/* Where there are more than `max` bytes of entries, removes the least recently
 * used ones until `low` bytes are left. In any case stale temporary files go.
 * `*bytes` are left, `*removed` entries went. */
dil_status cache_folder_trim(int folder, int64_t max, int64_t low,
                             int64_t *bytes, int32_t *removed);

/* ---- cache_file.c: one entry, one file ----------------------------------- */

typedef struct cache_entry {
  char *image;          /* malloced: the whole file */
  size_t image_size;
  const char *key, *label, *witness, *value; /* in image */
  size_t key_size, label_size, witness_size, value_size;
  double seconds;
  int64_t made;         /* seconds since 1970 */
} cache_entry;

void cache_digest(const void *bytes, size_t size, uint8_t digest[CACHE_DIGEST]);
/* The name of the file under which a key is kept. */
void cache_name(const uint8_t digest[CACHE_DIGEST], char name[CACHE_NAME]);
/* Reads and checks one file. DIL_ENVIRONMENT with the reason: it is not there
 * (errno ENOENT), stale (errno ESTALE), not ours, not a plain file, cut short
 * or damaged. */
dil_status cache_file_read(int folder, const char *name, bool read_only,
                           cache_entry *entry);
/* Written aside, synced, renamed, the folder synced. */
dil_status cache_file_write(int folder, const char *name, const void *key,
                            size_t key_size, const cache_value *value,
                            int64_t *bytes);

#endif
