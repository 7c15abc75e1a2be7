/* cache_folder.c - the directory of the cache: whether it can be trusted, what
 * is in it, and what goes when it is full.
 *
 * In: a path. Out: a descriptor that everything else goes through, so that a
 * directory that is put in its place later is never looked at. */
#include "cache.h"
#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- opening ------------------------------------------------------------- */

static int folder_refused(const char *path, const char *why) {
  int kept = errno;
  dil_fail(DIL_ENVIRONMENT, "cache folder '%s': %s", path, why);
  errno = kept;
  return -1;
}

/* The folder and those above it that are not there, for this user alone. */
static int make_folder(const char *path) {
  char part[PATH_MAX];
  size_t length = strlen(path);
  if (length >= sizeof part) {
    errno = ENAMETOOLONG;
    return -1;
  }
  for (size_t i = 1; i <= length; i++) {
    if (path[i] != '/' && path[i]) continue;
    memcpy(part, path, i);
    part[i] = 0;
    if (mkdir(part, 0700) && errno != EEXIST) return -1;
  }
  return 0;
}

static int check_cache_folder(int folder, const char *path, bool read_only) {
  struct stat found;
  const char *why = NULL;
  if (fstat(folder, &found)) why = strerror(errno);
  else if (found.st_uid != geteuid() && !(read_only && found.st_uid == 0))
    why = "it is another user's";
  else if (found.st_mode & (S_IWGRP | S_IWOTH))
    why = "others may write to it (chmod go-w would mend that)";
  if (!why) return folder;
  close(folder);
  errno = EPERM;
  return folder_refused(path, why);
}

int cache_folder_open(const char *path, bool make, bool read_only) {
  enum { FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };
  int folder = open(path, FLAGS);
  if (folder < 0 && errno == ENOENT && make) {
    if (make_folder(path)) return folder_refused(path, strerror(errno));
    folder = open(path, FLAGS);
  }
  if (folder >= 0) return check_cache_folder(folder, path, read_only);
  struct stat found;
  int kept = errno;
  bool link = !lstat(path, &found) && S_ISLNK(found.st_mode);
  errno = kept;
  return folder_refused(path, link ? "it is a symbolic link" : strerror(errno));
}

/* ---- listing ------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end) {
  size_t length = strlen(name), size = strlen(end);
  return length >= size && !strcmp(name + length - size, end);
}

static bool is_cache_name(const char *name) {
  return strlen(name) < CACHE_NAME &&
         (ends_with(name, ".kernel") || ends_with(name, ".temporary"));
}

typedef struct listing {
  cache_file *file;
  int32_t count, room;
} listing;

static bool add_entry_file(listing *l, int folder, const char *name) {
  struct stat found;
  if (fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW))
    return true; /* gone */
  if (l->count == l->room) {
    int32_t room = l->room ? 2 * l->room : 64;
    cache_file *grown = realloc(l->file, (size_t)room * sizeof *grown);
    if (!grown) return false;
    l->file = grown;
    l->room = room;
  }
  cache_file *f = &l->file[l->count++];
  *f = (cache_file){.bytes = S_ISREG(found.st_mode) ? found.st_size : 0,
                    .used = found.st_atim,
                    .temporary = ends_with(name, ".temporary")};
  if (found.st_mtim.tv_sec > f->used.tv_sec) f->used = found.st_mtim;
  strcpy(f->name, name);
  return true;
}

static int by_use(const void *left, const void *right) {
  const cache_file *a = left, *b = right;
  if (a->used.tv_sec != b->used.tv_sec)
    return a->used.tv_sec < b->used.tv_sec ? -1 : 1;
  if (a->used.tv_nsec != b->used.tv_nsec)
    return a->used.tv_nsec < b->used.tv_nsec ? -1 : 1;
  return strcmp(a->name, b->name);
}

dil_status cache_folder_list(int folder, cache_file **files, int32_t *count) {
  listing l = {0};
  int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *directory = again >= 0 ? fdopendir(again) : NULL;
  *files = NULL;
  *count = 0;
  if (!directory) {
    if (again >= 0) close(again);
    return dil_fail(DIL_ENVIRONMENT, "cannot list the cache: %s",
                    strerror(errno));
  }
  bool room = true;
  for (const struct dirent *d; room && (d = readdir(directory));)
    if (is_cache_name(d->d_name)) room = add_entry_file(&l, folder, d->d_name);
  closedir(directory);
  if (!room) {
    free(l.file);
    return dil_fail(DIL_MEMORY, "no memory to list the cache");
  }
  if (l.count) qsort(l.file, (size_t)l.count, sizeof *l.file, by_use);
  *files = l.file;
  *count = l.count;
  return DIL_OK;
}

/* ---- trimming ------------------------------------------------------------ */

static int64_t bytes_of_entries(const cache_file *files, int32_t count) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < count; i++)
    if (!files[i].temporary) bytes += files[i].bytes;
  return bytes;
}

/* A process of another container cannot be seen here, but its lock can. */
static bool is_locked(int folder, const char *name) {
  int file = openat(folder, name,
                    O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  bool locked = file < 0 || flock(file, LOCK_EX | LOCK_NB);
  if (file >= 0) close(file);
  return locked;
}

bool cache_file_is_stale(int folder, const cache_file *file) {
  enum { WRITERS_TAKE = 3600 }; /* seconds; none is at work longer */
  if (!file->temporary) return false;
  if (time(NULL) - file->used.tv_sec > WRITERS_TAKE) return true;
  char *end;
  long writer = strtol(file->name, &end, 10);
  if (*end != '-' || writer < 1 || writer > INT_MAX) return false;
  char state = process_state((int)writer);
  return (!state || state == 'Z') && !is_locked(folder, file->name);
}

dil_status cache_folder_trim(int folder, int64_t max, int64_t low,
                             int64_t *bytes, int32_t *removed) {
  cache_file *files;
  int32_t count;
  *removed = 0;
  *bytes = 0;
  dil_status status = cache_folder_list(folder, &files, &count);
  if (status) return status;
  *bytes = bytes_of_entries(files, count);
  int64_t wanted = *bytes > max ? low : *bytes;
  for (int32_t i = 0; i < count; i++) {
    const cache_file *f = &files[i];
    bool goes = f->temporary ? cache_file_is_stale(folder, f)
                             : *bytes > wanted;
    if (!goes || unlinkat(folder, f->name, 0)) continue;
    if (f->temporary) continue;
    *bytes -= f->bytes;
    ++*removed;
  }
  free(files);
  return DIL_OK;
}
