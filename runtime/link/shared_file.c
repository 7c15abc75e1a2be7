/* shared_file.c - makes and finds the file in which ranks meet. In: a path that
 * all ranks know. Out: the mapped file. A file of an earlier job, whose rank 0
 * has ended, is replaced. */
#include "shared_file.h"
#include "runtime/base/clock.h"
#include "runtime/base/process.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = "dilmeet1";

static shared_file *shared_file_map(int file, size_t size) {
  void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return at == MAP_FAILED ? NULL : at;
}

/* The running process that has this entry, or 0. */
static int shared_file_process(const shared_file *b, int32_t rank) {
  int pid = atomic_load(&b->entry[rank].pid);
  char state = pid ? process_state(pid) : 0;
  return state && state != 'Z' ? pid : 0;
}

shared_file *shared_file_open(const char *path, int32_t ranks, size_t size,
                              bool odd) {
  struct stat about;
  int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  shared_file *b = NULL;
  if (file >= 0 && !fstat(file, &about) && about.st_uid == geteuid() &&
      (odd ? about.st_size >= (off_t)size : about.st_size == (off_t)size))
    b = shared_file_map(file, size);
  if (file >= 0) close(file);
  if (!b ||
      (!memcmp(b->magic, magic, sizeof magic) && (b->ranks != ranks) == odd))
    return b;
  munmap(b, size);
  return NULL;
}

void shared_file_spoil(shared_file *b, const char *why) {
  int came = atomic_load(&b->came);
  while (came >= 0 && came < b->ranks)
    if (atomic_compare_exchange_weak(&b->came, &came, -2 * RANKS_MOST)) {
      came = -1;
      snprintf(b->reason, sizeof b->reason, "%s", why);
      atomic_store(&b->state, FAILED);
    }
}

/* Returns whether the file is an earlier job's, or empty, so that it may go. */
static bool shared_file_is_old(const char *path) {
  char begin[sizeof magic];
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  ssize_t length = file >= 0 ? read(file, begin, sizeof begin) : -1;
  if (file >= 0) close(file);
  return length == 0 || (length == (ssize_t)sizeof begin &&
                         !memcmp(begin, magic, sizeof magic));
}

/* Gives the file its public name by link(2), over an earlier job's file. False:
 * a running rank 0 has the name (*taken), or another failure (errno). */
static bool shared_file_name(const char *aside, const char *path, int32_t ranks,
                             size_t size, int *taken) {
  while (link(aside, path)) {
    if (errno != EEXIST) return false;
    shared_file *b = shared_file_open(path, ranks, size, false);
    *taken = b ? shared_file_process(b, 0) : 0;
    if (b) munmap(b, size);
    errno = EEXIST;
    if (*taken || !shared_file_is_old(path)) return false;
    if (unlink(path) && errno != ENOENT) return false;
  }
  return true;
}

shared_file *shared_file_make(const char *path, int32_t ranks, size_t size,
                              int *taken) {
  char aside[4096];
  shared_file *b = NULL;
  if (snprintf(aside, sizeof aside, "%s.%d", path, (int)getpid()) >=
      (int)sizeof aside)
    return NULL;
  int file = open(aside, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file >= 0 && !ftruncate(file, (off_t)size))
    b = shared_file_map(file, size);
  if (file >= 0) close(file);
  if (!b) return NULL;
  memcpy(b->magic, magic, sizeof magic);
  b->ranks = ranks;
  atomic_store(&b->entry[0].pid, (int)getpid());
  bool named = shared_file_name(aside, path, ranks, size, taken);
  int why = errno;
  unlink(aside);
  errno = why;
  if (named) return b;
  munmap(b, size);
  return NULL;
}

/* Takes this rank's entry in the file. NULL: there is no file; or its rank 0
 * has ended, as in an earlier job's file; or process *taken has the entry. */
static shared_file *shared_file_find(const char *path, int32_t rank,
                                     int32_t ranks, size_t size, int *taken) {
  int nobody = 0;
  shared_file *b = shared_file_open(path, ranks, size, false);
  *taken = 0;
  if (!b) return NULL;
  bool led = shared_file_process(b, 0) != 0;
  if (led && atomic_compare_exchange_strong(&b->entry[rank].pid, &nobody,
                                            (int)getpid()))
    return b;
  if (led) *taken = shared_file_process(b, rank);
  munmap(b, size);
  return NULL;
}

/* Rank 0 unlinks a file as soon as all have met, so an entry that stays taken
 * for SURE seconds is not an earlier job's. */
shared_file *shared_file_await(const char *path, int32_t rank, int32_t ranks,
                               double end, size_t size, int *taken) {
  enum { SURE = 2 }; /* seconds */
  double free_at = clock_seconds();
  shared_file *b = NULL;
  while (!b && clock_seconds() < end) {
    b = shared_file_find(path, rank, ranks, size, taken);
    shared_file *odd =
        b || *taken ? NULL : shared_file_open(path, ranks, sizeof *odd, true);
    if (odd && shared_file_process(odd, 0))
      *taken = -1; /* rank 0 counts other ranks */
    if (odd) munmap(odd, sizeof *odd);
    if (!*taken)
      free_at = clock_seconds();
    else if (clock_seconds() > free_at + SURE)
      return NULL;
    if (!b) clock_rest(INT64_MAX);
  }
  return b;
}
