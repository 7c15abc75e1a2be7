/* wisdom_apply.c - applies a tuned schedule. In: a compilation, a device, and
 * the size of a call or none. Out: the compilation with knobs of the file. */
#include "wisdom_apply.h"
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

static const char *device_name(const compilation *c,
                               const dil_context *context) {
  const dil_cuda_facts *gpu = dil_context_facts(context);
  if (gpu) return arena_print(c->arena, "cuda %s sm_%d", gpu->name, gpu->arch);
  return arena_print(c->arena, "cpu %s %s", processor_name(c->arena), c->isa);
}

void recall_key(const compilation *c, const dil_context *context,
                const int64_t size[3], wisdom_key *key) {
  key->device = device_name(c, context);
  key->pattern = wisdom_pattern(c->arena, c->pattern);
  for (int32_t i = 0; i < 3; i++) key->size[i] = wisdom_class(size[i]);
}

/* ---- the file ------------------------------------------------------------ */

static void warn_of(const compilation *c, const char *path, const wisdom *w) {
  static atomic_flag told = ATOMIC_FLAG_INIT;
  if (!w->bad_count || atomic_flag_test_and_set(&told)) return;
  const char *more = w->bad_count > 1
                         ? arena_print(c->arena, ", and %d more",
                                       w->bad_count - 1)
                         : "";
  diag_report(c->diag, SEVERITY_WARNING, (span){0}, NULL,
              "wisdom in '%s' line %d is ignored: %s%s", path, w->bad_line,
              w->reason, more);
}

/* False: the file has no record, or the compilation takes none. */
static bool read_wisdom(compilation *c, wisdom *w) {
  const char *path = wisdom_path(c->arena);
  bool scheduled = c->kernel && c->kernel->schedule;
  if (!path || scheduled || c->plan->force) return false;
  if (wisdom_read(c->arena, path, w)) {
    diag_report(c->diag, SEVERITY_WARNING, (span){0}, NULL,
                "wisdom is ignored: %s", dil_last_error());
    return false;
  }
  warn_of(c, path, w);
  return w->count > 0;
}

static bool take(compilation *c, const wisdom_record *r) {
  if (!r || !r->knobs.given) return false;
  driver_apply_knobs(c, &r->knobs);
  return true;
}

/* ---- any shape ----------------------------------------------------------- */

/* Whether `end` is the whole of `text` or its last words. */
static bool ends_in(const char *text, const char *end) {
  size_t length = strlen(text), size = strlen(end);
  if (length < size || strcmp(text + length - size, end)) return false;
  return length == size || text[length - size - 1] == ' ';
}

static double work_of(const wisdom_record *r) {
  double work = 1;
  for (int32_t i = 0; i < 3; i++) work *= (double)r->key.size[i];
  return work;
}

/* The record with the largest product of sizes; the last of equal ones. */
static const wisdom_record *find_any(const wisdom *w, uint64_t meaning,
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

/* ---- for a compilation --------------------------------------------------- */

bool recall(compilation *c, const dil_context *context,
            const int64_t size[3]) {
  static const int64_t none[3];
  wisdom w;
  wisdom_key key;
  if (!read_wisdom(c, &w)) return false;
  recall_key(c, context, size ? size : none, &key);
  return take(c, size ? wisdom_find(&w, &key)
                      : find_any(&w, key.pattern, key.device));
}

bool recall_chip(compilation *c, const char *chip) {
  wisdom w;
  if (!read_wisdom(c, &w)) return false;
  return take(c, find_any(&w, wisdom_pattern(c->arena, c->pattern), chip));
}

void recall_undo(compilation *c) {
  knobs none = {0};
  driver_apply_knobs(c, &none);
}
