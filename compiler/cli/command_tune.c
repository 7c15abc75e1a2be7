/* command_tune.c - `dil tune FILE --seq N,...`: the best schedule of each
 * length on this device, found by running them, and remembered; and `dil tune
 * --list`. */
#include "tune.h"
#include "runtime/base/status.h"
#include <jansson.h>
#include <stdlib.h>

enum { SHOWN = 5 };
#define TUNE_BUDGET 30.0 /* seconds of a length */

/* ---- remembered schedules ------------------------------------------------ */

static const char *knobs_words(const knobs *k, char text[KNOBS_TEXT]) {
  return k->given ? knobs_text(k, text) : "the compiler's choice";
}

/* null: the compiler's choice. */
static json_t *knobs_json(const knobs *k) {
  char text[KNOBS_TEXT];
  return k->given ? json_string(knobs_text(k, text)) : json_null();
}

/* The kernel, device and sizes: the keys that every object begins with. */
static json_t *subject_json(const char *name, const char *device,
                            const int64_t size[3]) {
  return json_pack("{s:o, s:o, s:I, s:I, s:I}", "kernel", diag_json(name),
                   "device", diag_json(device), "batch", (json_int_t)size[0],
                   "queries", (json_int_t)size[1], "keys", (json_int_t)size[2]);
}

static void print_record(const wisdom_record *r, bool json) {
  char time[QUANTITY_TEXT], text[KNOBS_TEXT];
  if (json) {
    json_t *o = subject_json(r->name, r->key.device, r->key.size);
    json_object_set_new(o, "schedule", knobs_json(&r->knobs));
    json_object_set_new(o, "seconds", json_real(r->seconds));
    message_json(o);
    return;
  }
  printf("%s on %s, about %lld x %lld queries, %lld keys: %s, %s\n", r->name,
         r->key.device, (long long)r->key.size[0], (long long)r->key.size[1],
         (long long)r->key.size[2], quantity_time(r->seconds, time),
         knobs_words(&r->knobs, text));
}

static dil_status list_records(arena *a, const options *o, const char *path) {
  wisdom w;
  dil_status status = wisdom_read(a, path, &w);
  if (status) return message_error(status, NULL, "%s", dil_last_error());
  if (!o->json)
    printf("%s: %d record%s\n", path, w.count, w.count == 1 ? "" : "s");
  for (int32_t i = 0; i < w.count; i++) print_record(&w.record[i], o->json);
  if (w.bad_count)
    fprintf(stderr, "dil: warning: line %d is ignored: %s\n", w.bad_line,
            w.reason);
  return DIL_OK;
}

static dil_status find_path(arena *a, const char **path) {
  *path = wisdom_path(a);
  if (*path) return DIL_OK;
  return message_error(DIL_USAGE, "DIL_WISDOM=FILE says where",
                       "there is no place to remember schedules");
}

/* ---- one length ---------------------------------------------------------- */

/* Candidates that ran to the end come first, by their medians. */
static int by_median(const void *x, const void *y) {
  const tune_candidate *a = *(const tune_candidate *const *)x;
  const tune_candidate *b = *(const tune_candidate *const *)y;
  if (!a->kernel || !b->kernel) return !a->kernel - !b->kernel;
  return (a->median > b->median) - (a->median < b->median);
}

static void print_candidate(const tune_search *s, const tune_candidate *c) {
  char time[QUANTITY_TEXT], text[KNOBS_TEXT];
  printf("  %10s  %s (%s)%s\n", quantity_time(c->median, time),
         knobs_words(&c->knobs, text), c->variant,
         c == s->best ? ", taken" : "");
}

static json_t *candidate_json(const tune_search *s, const tune_candidate *c) {
  return json_pack("{s:o, s:o, s:f, s:b}", "schedule", knobs_json(&c->knobs),
                   "variant", diag_json(c->variant), "seconds", c->median,
                   "taken", c == s->best);
}

/* One object: all that ran to the end, the quickest first. */
static void print_tune_json(const tune_search *s, const wisdom_key *key,
                            const tune_candidate **order, const char *path) {
  json_t *o = subject_json(s->session->report.kernel, key->device,
                           s->session->setup.size);
  json_t *list = json_array();
  for (int32_t i = 0; i < s->count; i++)
    if (order[i]->kernel)
      json_array_append_new(list, candidate_json(s, order[i]));
  json_object_set_new(o, "schedules", json_integer(s->count));
  json_object_set_new(o, "run", json_integer(s->made));
  json_object_set_new(o, "refused", json_integer(s->refused));
  json_object_set_new(o, "schedule", knobs_json(&s->best->knobs));
  json_object_set_new(o, "seconds", json_real(s->best->median));
  json_object_set_new(o, "candidates", list);
  json_object_set_new(o, "remembered_in", diag_json(path));
  message_json(o);
}

static const tune_candidate **sort_candidates(arena *a, const tune_search *s) {
  const tune_candidate **order =
      ARENA_ARRAY(a, const tune_candidate *, s->count);
  for (int32_t i = 0; i < s->count; i++) order[i] = &s->candidate[i];
  qsort(order, (size_t)s->count, sizeof *order, by_median);
  return order;
}

static void print_search(const tune_search *s, const wisdom_key *key,
                         const tune_candidate **order) {
  const session *t = s->session;
  printf("%s on %s, %lld x %lld queries, %lld keys: %d of %d schedules run, "
         "%d refused\n",
         t->report.kernel, key->device, (long long)t->setup.size[CALL_B],
         (long long)t->setup.size[CALL_N], (long long)t->setup.size[CALL_M],
         s->made, s->count, s->refused);
  for (int32_t i = 0; i < s->count && i < SHOWN; i++)
    if (order[i]->kernel) print_candidate(s, order[i]);
  int32_t own = 0;
  while (order[own] != s->candidate) own++;
  if (own >= SHOWN) print_candidate(s, s->candidate);
}

static dil_status remember_winner(arena *a, const options *o,
                                  const tune_search *s, const char *path) {
  wisdom_record record = {.knobs = s->best->knobs,
                          .seconds = s->best->median,
                          .name = s->session->compilation.pattern->name};
  const session *t = s->session;
  wisdom_query query = driver_wisdom_query(&t->compilation);
  wisdom_apply_key(&query, session_context(t), t->setup.size, &record.key);
  const tune_candidate **order = sort_candidates(a, s);
  if (!o->json) print_search(s, &record.key, order);
  dil_status status = wisdom_add(a, path, &record);
  if (!status && o->json) print_tune_json(s, &record.key, order, path);
  return status;
}

static dil_status check_tunable(const session *t) {
  const kernel *k = t->compilation.kernel;
  if (!k || !k->schedule) return DIL_OK;
  return dil_fail(DIL_USAGE, "kernel '%s' has a schedule, which leaves nothing "
                             "to search: tune one without", k->name);
}

static dil_status tune_length(arena *a, const options *o, const char *path) {
  session t;
  tune_search search = {0};
  double budget = o->seen[OPTION_BUDGET] ? o->budget : TUNE_BUDGET;
  dil_status status = session_open(a, o, 0, 0, -1, &t);
  if (!status) status = check_tunable(&t);
  if (!status) status = tune_run(&t, budget, &search);
  if (!status) status = remember_winner(a, o, &search, path);
  bool wrong = status == DIL_MISMATCH;
  if (wrong) session_print_accuracy(&t, stderr);
  message_compiled(o, &t.compilation, wrong ? DIL_OK : status);
  tune_free(&search);
  session_free(&t);
  return status;
}

/* ---- the command --------------------------------------------------------- */

static dil_status check_tune_options(const options *o) {
  if (!o->sizes.count)
    return message_error(DIL_USAGE, NULL, "`dil tune` needs --seq N,...");
  if (o->device.word == DEVICE_ORACLE)
    return message_error(DIL_USAGE, NULL, "the oracle has no schedules");
  if (o->seen[OPTION_BUDGET] && !(o->budget > 0))
    return message_error(DIL_USAGE, NULL, "--budget must be above 0, got %g",
                         o->budget);
  return DIL_OK;
}

dil_status command_tune(arena *a, const options *o) {
  const char *path;
  dil_status status = o->list ? DIL_OK : check_tune_options(o);
  if (!status) status = find_path(a, &path);
  if (!status && o->list) return list_records(a, o, path);
  if (!status && wisdom_probe(a, path))
    status = message_error(DIL_ENVIRONMENT, NULL, "%s", dil_last_error());
  for (int32_t i = 0; i < o->sizes.count && !status; i++) {
    options one = *o;
    arena *own = arena_new();
    one.seq = o->sizes.number[i];
    one.seen[OPTION_SEQ] = one.no_wisdom = true;
    status = tune_length(own, &one, path);
    arena_free(own);
  }
  if (!status && !o->json) printf("remembered in %s\n", path);
  return status;
}
