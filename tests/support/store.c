/* store.c - see store.h. A value is a file that is named by its key's hash of
 * 128 bits, written aside and renamed, so that no reader sees half of it. */
#include "store.h"
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char *store_folder(void) {
  const char *folder = getenv("DIL_TEST_STORE");
  return folder && *folder ? folder : NULL;
}

bool store_is_open(void) {
  return store_folder() != NULL;
}

static void store_path(const char *kind, const void *key, size_t key_size,
                       char path[PATH_MAX]) {
  XXH128_hash_t hash = XXH3_128bits(key, key_size);
  snprintf(path, PATH_MAX, "%s/%s-%016llx%016llx", store_folder(), kind,
           (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}

static bool store_read(int file, stored *found) {
  struct stat about;
  if (fstat(file, &about) != 0) return false;
  found->size = (size_t)about.st_size;
  found->bytes = malloc(found->size + 1);
  if (found->bytes == NULL) abort();
  size_t done = 0;
  while (done < found->size) {
    ssize_t more = read(file, (char *)found->bytes + done, found->size - done);
    if (more <= 0) abort();
    done += (size_t)more;
  }
  return true;
}

bool store_find(const char *kind, const void *key, size_t key_size,
                stored *found) {
  char path[PATH_MAX];
  if (!store_is_open()) return false;
  store_path(kind, key, key_size, path);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  bool whole = store_read(file, found);
  close(file);
  return whole;
}

void store_put(const char *kind, const void *key, size_t key_size,
               const void *bytes, size_t size) {
  char path[PATH_MAX], aside[PATH_MAX + 32];
  if (!store_is_open()) return;
  store_path(kind, key, key_size, path);
  snprintf(aside, sizeof aside, "%s.XXXXXX", path);
  int file = mkstemp(aside);
  if (file < 0) abort();
  if (write(file, bytes, size) != (ssize_t)size || close(file) != 0) abort();
  if (rename(aside, path) != 0) abort();
}
