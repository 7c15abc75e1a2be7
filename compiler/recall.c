/* recall.c - which remembered schedule a call takes. In: an open trial, or a
 * compilation for any shape. Out: its knobs, from the file of wisdom; what is
 * wrong with that file is a warning, once. */
#include "trial.h"
#include <string.h>

/* ---- names --------------------------------------------------------------- */

/* The model of the processor, as the system says it. */
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

static const char *device_name(const trial *t) {
  arena *a = t->compilation.arena;
  const dil_cuda_facts *gpu = dil_context_facts(trial_context(t));
  if (gpu) return arena_print(a, "cuda %s sm_%d", gpu->name, gpu->arch);
  return arena_print(a, "cpu %s %s", processor_name(a), t->compilation.isa);
}

void recall_key(const trial *t, wisdom_key *key) {
  key->device = device_name(t);
  key->pattern = wisdom_pattern(t->compilation.arena, t->compilation.pattern);
  for (int32_t i = 0; i < BIND_SIZE_COUNT; i++)
    key->size[i] = wisdom_class(t->binding.size[i]);
}

/* ---- the file ------------------------------------------------------------ */

static void warn_of(const compilation *c, const char *path, const wisdom *w) {
  static bool told;
  if (!w->bad_count || told) return;
  told = true;
  const char *more = w->bad_count > 1
                         ? arena_print(c->arena, ", and %d more",
                                       w->bad_count - 1)
                         : "";
  diag_report(c->diag, SEVERITY_WARNING, (span){0}, NULL,
              "wisdom in '%s' line %d is ignored: %s%s", path, w->bad_line,
              w->reason, more);
}

/* False: there is nothing to remember, or nobody wants to. */
static bool read_wisdom(compilation *c, const options *o, wisdom *w) {
  const char *path = wisdom_path(c->arena);
  bool scheduled = c->kernel && c->kernel->schedule;
  if (o->no_wisdom || !path || scheduled || c->plan->force) return false;
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
  driver_turn(c, &r->knobs);
  return true;
}

bool recall(trial *t, const options *o) {
  wisdom w;
  wisdom_key key;
  if (!read_wisdom(&t->compilation, o, &w)) return false;
  recall_key(t, &key);
  return take(&t->compilation, wisdom_find(&w, &key));
}

/* ---- any shape ----------------------------------------------------------- */

static bool ends_in(const char *text, const char *end) {
  size_t length = strlen(text), size = strlen(end);
  return length > size && !strcmp(text + length - size, end) &&
         text[length - size - 1] == ' ';
}

static double work_of(const wisdom_record *r) {
  double work = 1;
  for (int32_t i = 0; i < 3; i++) work *= (double)r->key.size[i];
  return work;
}

bool recall_any(compilation *c, const options *o, const char *chip) {
  wisdom w;
  const wisdom_record *best = NULL;
  if (!read_wisdom(c, o, &w)) return false;
  uint64_t meaning = wisdom_pattern(c->arena, c->pattern);
  for (int32_t i = 0; i < w.count; i++) {
    const wisdom_record *r = &w.record[i];
    if (r->key.pattern == meaning && ends_in(r->key.device, chip) &&
        (!best || work_of(r) >= work_of(best)))
      best = r;
  }
  return take(c, best);
}

void recall_undo(compilation *c) {
  knobs none = {0};
  char text[KNOBS_TEXT];
  message_note("the remembered schedule %s cannot be had: %s",
               knobs_text(&c->knobs, text), dil_last_error());
  driver_turn(c, &none);
}
