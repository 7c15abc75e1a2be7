/* usage.c - checks of the arguments that a host gives: see usage.h. */
#include "usage.h"
#include "runtime/base/status.h"
#include "runtime/call.h"
#include <stdarg.h>
#include <string.h>

/* No struct of ours will ever be that large: a greater size is garbage. */
enum { STRUCT_MAX = 4096 };
/* No processor addresses more bytes: a greater extent is a mistake. */
#define MEMORY_MAX ((int64_t)1 << 56)

dil_status dil_usage_given(const char *name, const void *pointer, ...) {
  va_list rest;
  va_start(rest, pointer);
  while (name && pointer) {
    name = va_arg(rest, const char *);
    if (name) pointer = va_arg(rest, const void *);
  }
  va_end(rest);
  return name ? dil_fail(DIL_USAGE, "there is no %s", name) : DIL_OK;
}

dil_status dil_usage_list(const char *name, int64_t count, int64_t most,
                          const void *list) {
  if (count < 0 || count > most)
    return dil_fail(DIL_USAGE, "there must be 0 to %lld %s, got %lld",
                    (long long)most, name, (long long)count);
  if (!count || list) return DIL_OK;
  return dil_fail(DIL_USAGE, "the list of %s is NULL, and its count is %lld",
                  name, (long long)count);
}

bool usage_offset(const void *start, uint64_t offset, void **there) {
  uintptr_t address;
  if (offset > MEMORY_MAX ||
      __builtin_add_overflow((uintptr_t)start, offset, &address))
    return false;
  *there = (void *)address;
  return true;
}

dil_status dil_usage_bytes(const char *name, const void *start, int64_t bytes) {
  void *end;
  if (bytes >= 0 && usage_offset(start, (uint64_t)bytes, &end)) return DIL_OK;
  return dil_fail(DIL_USAGE, "%s must have 0 to %lld bytes, got %lld", name,
                  (long long)MEMORY_MAX, (long long)bytes);
}

dil_status dil_usage_sizes(const dil_sizes *s) {
  dil_status status = dil_usage_given("sizes", s, NULL);
  if (status) return status;
  bool fits = s->batch >= 0 && s->batch <= INT32_MAX && s->queries >= 0 &&
              s->queries <= DIL_LENGTH_MAX && s->keys >= 0 &&
              s->keys <= DIL_LENGTH_MAX;
  if (fits) return DIL_OK;
  return dil_fail(DIL_USAGE, "batch %lld, queries %lld and keys %lld must be "
                  "within 0 and %d", (long long)s->batch,
                  (long long)s->queries, (long long)s->keys, DIL_LENGTH_MAX);
}

/* ---- structs that open with their size ----------------------------------- */

dil_status dil_struct_read(void *to, size_t known, const void *from,
                           const char *name) {
  size_t size;
  dil_status status = dil_usage_given(name, from, NULL);
  if (status) return status;
  memcpy(&size, from, sizeof size);
  if (size < sizeof size || size > STRUCT_MAX)
    return dil_fail(DIL_USAGE, "%s is not initialised: its size is %zu", name,
                    size);
  for (size_t i = known; i < size; i++)
    if (((const char *)from)[i])
      return dil_fail(DIL_USAGE, "%s has %zu bytes and sets what this version "
                      "of dil, which knows %zu, does not have", name, size,
                      known);
  memset(to, 0, known);
  memcpy(to, from, size < known ? size : known);
  return DIL_OK;
}

void dil_struct_write(void *to, const void *from, size_t known) {
  size_t size, head = sizeof size;
  memcpy(&size, to, sizeof size);
  if (size > known) size = known;
  if (size > head)
    memcpy((char *)to + head, (const char *)from + head, size - head);
}
