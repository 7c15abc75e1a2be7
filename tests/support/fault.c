/* fault.c - the wrapped calls: counted, passed on, or failed. In: what
 * fault_set says. Out: errors of malloc, errno of the rest. */
#include "fault.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_int counts[FAULT_CALL_COUNT];
static int planned = -1, planned_at, planned_error;
static fault_way planned_way;
static bool planned_ever;

void fault_clear(void) {
  planned = -1;
  for (int i = 0; i < FAULT_CALL_COUNT; i++) atomic_store(&counts[i], 0);
}

void fault_set(fault_call call, int at, fault_way way, int error, bool ever) {
  fault_clear();
  planned_at = at;
  planned_way = way;
  planned_error = error;
  planned_ever = ever;
  planned = (int)call;
}

int fault_count(fault_call call) { return atomic_load(&counts[call]); }

const char *fault_name(fault_call call) {
  static const char *const names[] = {
#define X(name) #name,
      FAULT_CALLS(X)
#undef X
  };
  return names[call];
}

/* Whether this call goes wrong. */
static bool fault_strikes(fault_call call) {
  int number = atomic_fetch_add(&counts[call], 1);
  if (planned != (int)call) return false;
  if (number != planned_at && !(planned_ever && number > planned_at))
    return false;
  if (planned_way == FAULT_KILL) raise(SIGKILL);
  if (planned_way == FAULT_STOP) return raise(SIGSTOP) != 0;
  if (planned_way == FAULT_ERROR) errno = planned_error;
  return true;
}

/* ---- memory -------------------------------------------------------------- */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);

void *__wrap_malloc(size_t size) {
  return fault_strikes(FAULT_malloc) ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size) {
  return fault_strikes(FAULT_calloc) ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size) {
  return fault_strikes(FAULT_realloc) ? NULL : __real_realloc(memory, size);
}

/* ---- files --------------------------------------------------------------- */

int __real_open(const char *path, int flags, ...);
int __real_openat(int folder, const char *path, int flags, ...);
ssize_t __real_read(int file, void *bytes, size_t size);
ssize_t __real_write(int file, const void *bytes, size_t size);
int __real_fsync(int file);
int __real_rename(const char *old, const char *new);
int __real_renameat(int from, const char *old, int to, const char *new);
int __wrap_open(const char *path, int flags, ...);
int __wrap_openat(int folder, const char *path, int flags, ...);
ssize_t __wrap_read(int file, void *bytes, size_t size);
ssize_t __wrap_write(int file, const void *bytes, size_t size);
int __wrap_fsync(int file);
int __wrap_rename(const char *old, const char *new);
int __wrap_renameat(int from, const char *old, int to, const char *new);

static mode_t mode_of(int flags, va_list arguments) {
  return flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
}

int __wrap_open(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return fault_strikes(FAULT_open) ? -1 : __real_open(path, flags, mode);
}

int __wrap_openat(int folder, const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return fault_strikes(FAULT_openat) ? -1
                                     : __real_openat(folder, path, flags, mode);
}

ssize_t __wrap_read(int file, void *bytes, size_t size) {
  if (!fault_strikes(FAULT_read)) return __real_read(file, bytes, size);
  if (planned_way == FAULT_SHORT)
    return __real_read(file, bytes, size > 1 ? size / 2 : size);
  return -1;
}

ssize_t __wrap_write(int file, const void *bytes, size_t size) {
  if (!fault_strikes(FAULT_write)) return __real_write(file, bytes, size);
  if (planned_way == FAULT_SHORT)
    return __real_write(file, bytes, size > 1 ? size / 2 : size);
  return -1;
}

int __wrap_fsync(int file) {
  return fault_strikes(FAULT_fsync) ? -1 : __real_fsync(file);
}

int __wrap_rename(const char *old, const char *new) {
  return fault_strikes(FAULT_rename) ? -1 : __real_rename(old, new);
}

int __wrap_renameat(int from, const char *old, int to, const char *new) {
  return fault_strikes(FAULT_renameat) ? -1
                                       : __real_renameat(from, old, to, new);
}
