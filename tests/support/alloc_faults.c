/* alloc_faults.c - see alloc_faults.h. Thread-safe: the pool's workers
 * allocate, too. */
#include "alloc_faults.h"
#include "compiler/front/program.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_llong left = INT64_MAX; /* calls before the one that fails */
static atomic_bool ever;
static atomic_llong calls;
static _Atomic(const char *) fired;

void faults_arm(int64_t n, bool for_ever) {
  atomic_store(&fired, NULL);
  atomic_store(&ever, for_ever);
  atomic_store(&left, n);
}

const char *faults_disarm(void) {
  atomic_store(&left, INT64_MAX);
  return atomic_load(&fired);
}

int64_t faults_calls(void) { return atomic_load(&calls); }

static bool allocation_fails(const char *name) {
  atomic_fetch_add(&calls, 1);
  long long n = atomic_fetch_sub(&left, 1);
  bool now = atomic_load(&ever) ? n <= 1 : n == 1;
  const char *none = NULL;
  if (now) atomic_compare_exchange_strong(&fired, &none, name);
  if (now && getenv("FAULTS_TRAP")) raise(SIGTRAP); /* for a debugger */
  if (now) errno = ENOMEM;
  return now;
}

/* Memory of an arena lacks wherever it is taken, not only where it grows. */
void *__real_arena_take(arena *a, size_t count, size_t size);
void *__wrap_arena_take(arena *a, size_t count, size_t size);
void *__wrap_arena_take(arena *a, size_t count, size_t size) {
  if (allocation_fails("arena_take")) arena_lack(a);
  return __real_arena_take(a, count, size);
}

/* ---- what is alive ------------------------------------------------------- */

enum { LIVE_MAX = 1 << 16 };
static void *live[LIVE_MAX]; /* open addressing; 1: was taken once */
static int64_t live_count;
static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;
#define GONE ((void *)1)

static void **find_live(void *p, bool free_place) {
  size_t at = ((uintptr_t)p >> 4) * 0x9E3779B97F4A7C15u >> 48;
  for (;; at = (at + 1) % LIVE_MAX) {
    if (live[at] == p || !live[at]) return &live[at];
    if (free_place && live[at] == GONE) return &live[at];
  }
}

static void *note_taken(void *p) {
  if (!p) return p;
  pthread_mutex_lock(&live_lock);
  *find_live(p, true) = p;
  live_count++;
  pthread_mutex_unlock(&live_lock);
  return p;
}

static void note_freed(void *p) {
  pthread_mutex_lock(&live_lock);
  void **place = find_live(p, false);
  live_count -= *place == p;
  if (*place == p) *place = GONE; /* else libc's own, as of open_memstream */
  pthread_mutex_unlock(&live_lock);
}

int64_t faults_live(void) {
  pthread_mutex_lock(&live_lock);
  int64_t count = live_count;
  pthread_mutex_unlock(&live_lock);
  return count;
}

/* ---- the functions ------------------------------------------------------- */

#define WRAP(result, name, parameters)      \
  result __real_##name parameters;          \
  result __wrap_##name parameters;          \
  result __wrap_##name parameters

WRAP(void *, malloc, (size_t size)) {
  return allocation_fails("malloc") ? NULL : note_taken(__real_malloc(size));
}
WRAP(void *, calloc, (size_t count, size_t size)) {
  return allocation_fails("calloc") ? NULL
                                    : note_taken(__real_calloc(count, size));
}
WRAP(void *, realloc, (void *old, size_t size)) {
  if (allocation_fails("realloc")) return NULL;
  if (old) note_freed(old);
  return note_taken(__real_realloc(old, size));
}
WRAP(void *, aligned_alloc, (size_t alignment, size_t size)) {
  return allocation_fails("aligned_alloc")
             ? NULL
             : note_taken(__real_aligned_alloc(alignment, size));
}
WRAP(int, posix_memalign, (void **out, size_t alignment, size_t size)) {
  if (allocation_fails("posix_memalign")) return ENOMEM;
  int error = __real_posix_memalign(out, alignment, size);
  if (!error) note_taken(*out);
  return error;
}
WRAP(char *, strdup, (const char *text)) {
  return allocation_fails("strdup") ? NULL : note_taken(__real_strdup(text));
}
WRAP(void, free, (void *p)) {
  if (p) note_freed(p);
  __real_free(p);
}
WRAP(void *, mmap,
     (void *at, size_t size, int access, int flags, int file, off_t offset)) {
  if (allocation_fails("mmap")) return MAP_FAILED;
  void *p = __real_mmap(at, size, access, flags, file, offset);
  return p == MAP_FAILED ? p : note_taken(p);
}
WRAP(int, munmap, (void *at, size_t size)) {
  note_freed(at);
  return __real_munmap(at, size);
}
WRAP(int, mprotect, (void *at, size_t size, int access)) {
  return allocation_fails("mprotect") ? -1 : __real_mprotect(at, size, access);
}
WRAP(int, pthread_create,
     (pthread_t *thread, const pthread_attr_t *attributes,
      void *(*start)(void *), void *argument)) {
  if (allocation_fails("pthread_create")) return EAGAIN;
  return __real_pthread_create(thread, attributes, start, argument);
}
WRAP(FILE *, open_memstream, (char **text, size_t *length)) {
  return allocation_fails("open_memstream")
             ? NULL
             : __real_open_memstream(text, length);
}
