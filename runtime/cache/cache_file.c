/* cache_file.c - one entry of the cache as one file, in and out.
 *
 * A file is [header][key][label][witness][value]. The header has the sizes of
 * all parts and the SHA-256 of everything but the digest itself, so that no
 * changed byte and no cut goes unseen. What is read is first copied: nobody can
 * change it after it was checked. */
#define OPENSSL_SUPPRESS_DEPRECATED /* the one-shot form loads providers */
#include "cache.h"
#include "runtime/base/file_limit.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/sha.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define ENTRY_MAGIC "dilcache"
enum { ENTRY_VERSION = 1, KEY_MAX = 1 << 24, TEXT_MAX = 1 << 16 };

typedef struct cache_header {
  uint8_t digest[CACHE_DIGEST]; /* SHA-256 of all that follows */
  char magic[8];
  uint32_t version, header_size;
  uint64_t key_size, label_size, witness_size, value_size;
  int64_t made;
  double seconds;
} cache_header;

void cache_digest(const void *bytes, size_t size,
                  uint8_t digest[CACHE_DIGEST]) {
  SHA256_CTX state;
  SHA256_Init(&state);
  SHA256_Update(&state, bytes, size);
  SHA256_Final(digest, &state);
}

void cache_name(const uint8_t digest[CACHE_DIGEST], char name[CACHE_NAME]) {
  static const char hex[] = "0123456789abcdef";
  int at = 0;
  for (int i = 0; i < 16; i++) {
    name[at++] = hex[digest[i] >> 4];
    name[at++] = hex[digest[i] & 15];
  }
  strcpy(name + at, ".kernel");
}

/* ---- witnesses ----------------------------------------------------------- */

/* "SIZE SECONDS PATH\n" for each file; false when one cannot be looked at. */
static bool write_witness(const char *const *path, char *text, size_t size) {
  size_t used = 0;
  *text = 0;
  for (int i = 0; i < CACHE_WITNESS_MAX && path[i]; i++) {
    struct stat file;
    if (strchr(path[i], '\n') || stat(path[i], &file)) return false;
    int length = snprintf(text + used, size - used, "%lld %lld %s\n",
                          (long long)file.st_size,
                          (long long)file.st_mtim.tv_sec, path[i]);
    if (length < 0 || (size_t)length >= size - used) return false;
    used += (size_t)length;
  }
  return true;
}

/* Returns whether each file is still what it was. */
static bool witness_holds(const cache_entry *e, char path[PATH_MAX]) {
  const char *at = e->witness, *end = at + e->witness_size;
  while (at < end) {
    const char *line_end = memchr(at, '\n', (size_t)(end - at));
    long long bytes, seconds;
    int skipped = 0;
    struct stat file;
    if (!line_end || sscanf(at, "%lld %lld %n", &bytes, &seconds, &skipped) < 2)
      return false;
    snprintf(path, PATH_MAX, "%.*s", (int)(line_end - at - skipped),
             at + skipped);
    if (stat(path, &file) || file.st_size != bytes ||
        file.st_mtim.tv_sec != seconds)
      return false;
    at = line_end + 1;
  }
  return true;
}

/* ---- reading ------------------------------------------------------------- */

static dil_status entry_refused(const char *name, const char *why) {
  return dil_fail(DIL_ENVIRONMENT, "cache entry %s: %s", name, why);
}

static dil_status entry_failed(const char *doing, const char *name) {
  int kept = errno;
  dil_fail(DIL_ENVIRONMENT, "cannot %s cache entry %s: %s", doing, name,
           strerror(kept));
  errno = kept;
  return DIL_ENVIRONMENT;
}

/* Checks the file's owner and kind before a byte of it is read. */
static dil_status check_entry_file(const char *name, const struct stat *file,
                                   bool read_only) {
  uid_t me = geteuid();
  if (!S_ISREG(file->st_mode))
    return entry_refused(name, "it is not a plain file");
  if (file->st_uid != me && !(read_only && file->st_uid == 0))
    return entry_refused(name, "it is another user's");
  if (file->st_mode & (S_IWGRP | S_IWOTH))
    return entry_refused(name, "others may write to it");
  if (file->st_size < (off_t)sizeof(cache_header) ||
      file->st_size > CACHE_VALUE_MAX + KEY_MAX)
    return entry_refused(name, "its size is not that of an entry");
  return DIL_OK;
}

static dil_status read_image(int file, const char *name, cache_entry *e) {
  e->image = malloc(e->image_size);
  if (!e->image)
    return dil_fail(DIL_MEMORY, "no memory to read cache entry %s", name);
  for (size_t done = 0; done < e->image_size;) {
    ssize_t count = read(file, e->image + done, e->image_size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return entry_failed("read", name);
    if (count == 0) return entry_refused(name, "it is cut short");
    done += (size_t)count;
  }
  return DIL_OK;
}

/* Sizes first, so that the digest is over what they say. */
static dil_status check_image(const char *name, cache_entry *e) {
  cache_header h;
  uint8_t digest[CACHE_DIGEST];
  memcpy(&h, e->image, sizeof h);
  if (memcmp(h.magic, ENTRY_MAGIC, sizeof h.magic) ||
      h.version != ENTRY_VERSION || h.header_size != sizeof h)
    return entry_refused(name, "it is no entry of this version");
  if (h.key_size > KEY_MAX || h.label_size > TEXT_MAX ||
      h.witness_size > TEXT_MAX || h.value_size > CACHE_VALUE_MAX ||
      sizeof h + h.key_size + h.label_size + h.witness_size + h.value_size !=
          e->image_size)
    return entry_refused(name, "its sizes do not add up");
  cache_digest(e->image + sizeof h.digest, e->image_size - sizeof h.digest,
               digest);
  if (memcmp(digest, h.digest, sizeof digest))
    return entry_refused(name, "it is damaged");
  e->key = e->image + sizeof h;
  e->label = e->key + h.key_size;
  e->witness = e->label + h.label_size;
  e->value = e->witness + h.witness_size;
  e->key_size = h.key_size;
  e->label_size = h.label_size;
  e->witness_size = h.witness_size;
  e->value_size = h.value_size;
  e->seconds = h.seconds;
  e->made = h.made;
  return DIL_OK;
}

/* The key belongs to the name, and the compiler is the one it was. */
static dil_status check_meaning(const char *name, const cache_entry *e) {
  uint8_t digest[CACHE_DIGEST];
  char expected[CACHE_NAME], path[PATH_MAX];
  cache_digest(e->key, e->key_size, digest);
  cache_name(digest, expected);
  if (strcmp(name, expected)) return entry_refused(name, "it is another key's");
  if (witness_holds(e, path)) return DIL_OK;
  dil_fail(DIL_ENVIRONMENT, "cache entry %s: '%s' is not the one that made it",
           name, path);
  errno = ESTALE;
  return DIL_ENVIRONMENT;
}

/* Use is what eviction goes by; the kernel's own access times may be off. */
static void mark_used(int file, const struct stat *before) {
  enum { OFTEN = 60 };
  struct timespec now[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
  if (time(NULL) - before->st_atim.tv_sec > OFTEN) futimens(file, now);
}

dil_status cache_file_read(int folder, const char *name, bool read_only,
                           cache_entry *entry) {
  *entry = (cache_entry){0};
  struct stat found;
  int file = openat(folder, name,
                    O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return entry_failed("open", name);
  dil_status status = fstat(file, &found)
                          ? entry_failed("look at", name)
                          : check_entry_file(name, &found, read_only);
  entry->image_size = (size_t)found.st_size;
  if (!status) status = read_image(file, name, entry);
  if (!status) status = check_image(name, entry);
  if (!status) status = check_meaning(name, entry);
  if (!status && !read_only) mark_used(file, &found);
  close(file);
  if (!status) return DIL_OK;
  free(entry->image);
  *entry = (cache_entry){0};
  if (errno == ENOENT) errno = EIO; /* only a missing file is that */
  return status;
}

/* ---- writing ------------------------------------------------------------- */

static dil_status make_image(const char *name, const void *key,
                             size_t key_size, const cache_value *v,
                             cache_entry *e) {
  char witness[CACHE_WITNESS_MAX * 512];
  const char *label = v->label ? v->label : "";
  if (!write_witness(v->witness, witness, sizeof witness))
    return entry_refused(name, "what made it cannot be looked at");
  cache_header h = {.magic = ENTRY_MAGIC,
                    .version = ENTRY_VERSION,
                    .header_size = sizeof h,
                    .key_size = key_size,
                    .label_size = strlen(label),
                    .witness_size = strlen(witness),
                    .value_size = v->size,
                    .made = time(NULL),
                    .seconds = v->seconds};
  if (key_size > KEY_MAX || h.label_size > TEXT_MAX ||
      v->size > (size_t)CACHE_VALUE_MAX)
    return entry_refused(name, "it is too large to keep");
  e->image_size = sizeof h + key_size + h.label_size + h.witness_size + v->size;
  char *at = e->image = malloc(e->image_size);
  if (!at) return dil_fail(DIL_MEMORY, "no memory to keep a kernel");
  at = (char *)mempcpy(at, &h, sizeof h);
  at = (char *)mempcpy(at, key, key_size);
  at = (char *)mempcpy(at, label, h.label_size);
  at = (char *)mempcpy(at, witness, h.witness_size);
  memcpy(at, v->bytes, v->size);
  cache_digest(e->image + sizeof h.digest, e->image_size - sizeof h.digest,
               (uint8_t *)e->image);
  return DIL_OK;
}

static dil_status write_image(int file, const char *name,
                              const cache_entry *e) {
  for (size_t done = 0; done < e->image_size;) {
    ssize_t count = write(file, e->image + done, e->image_size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return entry_failed("write", name);
    done += (size_t)count;
  }
  return fsync(file) ? entry_failed("sync", name) : DIL_OK;
}

/* A name that no other writer takes, of this process or of another: by its
 * beginning cache_file_is_stale knows whose it is. */
static void temporary_name(char name[CACHE_NAME]) {
  static atomic_uint number;
  snprintf(name, CACHE_NAME, "%ld-%u.temporary", (long)getpid(),
           atomic_fetch_add(&number, 1));
}

static dil_status write_aside(int folder, const char *aside, const char *name,
                              const cache_entry *e) {
  int file = openat(folder, aside,
                    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return entry_failed("make", name);
  flock(file, LOCK_EX | LOCK_NB); /* until the file has its name */
  dil_status status = write_image(file, name, e);
  if (!status && renameat(folder, aside, folder, name))
    status = entry_failed("name", name);
  if (status) unlinkat(folder, aside, 0);
  if (close(file) && !status) status = entry_failed("write", name);
  return status;
}

dil_status cache_file_write(int folder, const char *name, const void *key,
                            size_t key_size, const cache_value *value,
                            int64_t *bytes) {
  cache_entry e = {0};
  char aside[CACHE_NAME];
  file_limit limit;
  temporary_name(aside);
  dil_status status = make_image(name, key, key_size, value, &e);
  file_limit_begin(&limit);
  if (!status) status = write_aside(folder, aside, name, &e);
  file_limit_end(&limit);
  if (!status && fsync(folder))
    status = entry_failed("sync the folder of", name);
  *bytes = (int64_t)e.image_size;
  free(e.image);
  return status;
}
