/* wisdom_apply.c - finds a tuned schedule. In: a kernel, a device, and the size
 * of a call or none. Out: knobs of the file. */
#include "wisdom_apply.h"
#include "runtime/base/status.h"
#include "runtime/cuda.h"
#include <stdatomic.h>
#include <string.h>

/* ---- names --------------------------------------------------------------- */

/* The processor's model name from /proc/cpuinfo. */
static const char *processor_name(arena *a) {
  char line[256];
  const char *name = NULL;
  FILE *in = fopen("/proc/cpuinfo", "re");
  while (in && !name && fgets(line, sizeof line, in)) {
    const char *colon = strstr(line, ": ");
    if (strncmp(line, "model name", 10) || !colon) continue;
    name = arena_copy(a, colon + 2, strcspn(colon + 2, "\t\n"));
  }
  if (in) fclose(in);
  return name ? name : "unknown";
}

static const char *device_name(const wisdom_query *q,
                               const dil_context *context) {
  const dil_cuda_facts *gpu = dil_context_facts(context);
  if (gpu) return arena_print(q->arena, "cuda %s sm_%d", gpu->name, gpu->arch);
  return arena_print(q->arena, "cpu %s %s", processor_name(q->arena), q->isa);
}

enum { FEW_QUERIES = 64 };

void wisdom_apply_key(const wisdom_query *q, const dil_context *context,
                      const int64_t size[3], wisdom_key *key) {
  key->device = device_name(q, context);
  key->pattern = wisdom_pattern(q->arena, q->pattern, q->direction);
  for (int32_t i = 0; i < 3; i++) key->size[i] = wisdom_class(size[i]);
  /* A row of such calls has the same bits alone or in a batch. */
  if (size[1] > 0 && size[1] < FEW_QUERIES) key->size[0] = 0;
}

/* ---- the file ------------------------------------------------------------ */

static void wisdom_warn(const wisdom_query *q, const char *path,
                        const wisdom *w) {
  static atomic_flag told = ATOMIC_FLAG_INIT;
  if (!w->bad_count || atomic_flag_test_and_set(&told)) return;
  const char *more = w->bad_count > 1
                         ? arena_print(q->arena, ", and %d more",
                                       w->bad_count - 1)
                         : "";
  diag_report(q->diag, SEVERITY_WARNING, (span){0}, NULL,
              "wisdom in '%s' line %d is ignored: %s%s", path, w->bad_line,
              w->reason, more);
}

/* False: the file has no record, or the kernel takes none. */
static bool wisdom_records(const wisdom_query *q, wisdom *w) {
  const char *path = wisdom_path(q->arena);
  if (!path || !q->free) return false;
  if (wisdom_read(q->arena, path, w)) {
    diag_report(q->diag, SEVERITY_WARNING, (span){0}, NULL,
                "wisdom is ignored: %s", dil_last_error());
    return false;
  }
  wisdom_warn(q, path, w);
  return w->count > 0;
}

static bool wisdom_take(const wisdom_record *r, knobs *k) {
  if (!r || !r->knobs.given) return false;
  *k = r->knobs;
  return true;
}

/* ---- any shape ----------------------------------------------------------- */

/* Returns whether `end` is the whole of `text` or its last words. */
static bool ends_in(const char *text, const char *end) {
  size_t length = strlen(text), size = strlen(end);
  if (length < size || strcmp(text + length - size, end)) return false;
  return length == size || text[length - size - 1] == ' ';
}

static double work_of(const wisdom_record *r) {
  double work = 1;
  for (int32_t i = 0; i < 3; i++)
    work *= r->key.size[i] ? (double)r->key.size[i] : 1;
  return work;
}

/* The record with the largest product of sizes; the last of equal ones. */
static const wisdom_record *wisdom_find_any(const wisdom *w, uint64_t meaning,
                                     const char *device) {
  const wisdom_record *best = NULL;
  for (int32_t i = 0; i < w->count; i++) {
    const wisdom_record *r = &w->record[i];
    if (r->key.pattern == meaning && ends_in(r->key.device, device) &&
        (!best || work_of(r) >= work_of(best)))
      best = r;
  }
  return best;
}

/* ---- for a kernel -------------------------------------------------------- */

bool wisdom_apply(const wisdom_query *q, const dil_context *context,
                  const int64_t size[3], knobs *k) {
  static const int64_t none[3];
  wisdom w;
  wisdom_key key;
  if (!wisdom_records(q, &w)) return false;
  wisdom_apply_key(q, context, size ? size : none, &key);
  return wisdom_take(size ? wisdom_find(&w, &key)
                          : wisdom_find_any(&w, key.pattern, key.device),
                     k);
}

bool wisdom_apply_chip(const wisdom_query *q, const char *chip, knobs *k) {
  wisdom w;
  if (!wisdom_records(q, &w)) return false;
  uint64_t meaning = wisdom_pattern(q->arena, q->pattern, q->direction);
  return wisdom_take(wisdom_find_any(&w, meaning, chip), k);
}
