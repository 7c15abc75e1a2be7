/* tune.c - races the schedules of a call, see tune.h. In: an open session with
 * the compiler's choice. Out: medians, and the one to remember. Half of the
 * time goes into making kernels, in the order of their predictions; then those
 * that are left run in turn, so that all meet the same seconds. */
#include "tune.h"
#include "compiler/analysis/cost.h"
#include "runtime/cuda/chips.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_LEAST = 4, ROUNDS_MOST = 25, ROUNDS_COMPARED = 3 };
/* A candidate is dropped when its first run is far behind the best one, or its
 * quickest run is behind the best median: a busy machine slows any run. */
static const double FAR_BEHIND = 1.6, BEHIND = 1.1;
/* Another schedule is taken when it needs at most this share of the time of the
 * compiler's own. */
static const double WORTH = 0.99;
/* Of the budget, for predictions at most. */
static const double COUNTING = 0.2;
/* Seconds that the oracle may take over the winner. */
static const double CHECK_SECONDS = 0.5;

/* ---- candidates ---------------------------------------------------------- */

static int32_t cpu_candidates(arena *a, gpu_candidate **list) {
  static const int32_t keys[] = {32, 48, 64, 96, 112, 128};
  enum { COUNT = sizeof keys / sizeof *keys };
  *list = ARENA_ARRAY(a, gpu_candidate, COUNT);
  for (int32_t i = 0; i < COUNT; i++) {
    (*list)[i].knobs.given = 1u << KNOB_TILE_KEYS;
    (*list)[i].knobs.value[KNOB_TILE_KEYS][0] = keys[i];
  }
  return COUNT;
}

static dil_status list_candidates(session *t, gpu_candidate **list,
                                  int32_t *count) {
  arena *a = t->compilation.arena;
  const gpu_backend *gpu;
  if (!t->way->on_cuda) {
    *count = cpu_candidates(a, list);
    return DIL_OK;
  }
  dil_status status = gpu_backend_open(&gpu);
  if (status) return status;
  /* its knobs do nothing for a call that the fast family leaves to others */
  int32_t arch = dil_context_arch(session_context(t));
  const char *fast = cuda_chip_fast(arch);
  bool taken = fast && strstr(t->variant, fast);
  gpu_request request = {.common = {t->compilation.plan},
                         .arch = arch,
                         .only = taken ? NULL : "general"};
  *list = ARENA_ARRAY(a, gpu_candidate, GPU_CANDIDATES_MAX);
  *count = gpu->candidates(&request, *list, GPU_CANDIDATES_MAX);
  return DIL_OK;
}

/* ---- predictions --------------------------------------------------------- */

/* The counts of cover for a tile, made once. */
typedef struct counted {
  int32_t rows, keys;
  cover_count count;
} counted;

typedef struct tune_model {
  const session *session;
  double until;      /* by the clock: no candidate is predicted later */
  counted *known;    /* [known_count], room for each candidate */
  int32_t known_count;
} tune_model;

/* NULL: there is no time left to count. */
static const cover_count *model_count(tune_model *f, int32_t rows,
                                      int32_t keys) {
  for (int32_t i = 0; i < f->known_count; i++)
    if (f->known[i].rows == rows && f->known[i].keys == keys)
      return &f->known[i].count;
  if (message_clock() > f->until) return NULL;
  counted *c = &f->known[f->known_count++];
  *c = (counted){.rows = rows, .keys = keys};
  call_setup planned = f->session->setup; /* as it runs, see normalise.c */
  planned.pattern = f->session->compilation.plan->pattern;
  measure_cover(&planned, rows, keys, &c->count);
  return &c->count;
}

static double predict_candidate(tune_model *f, const gpu_candidate *c) {
  const call_setup *b = &f->session->setup;
  cost_gpu_case spot = {
      .facts = dil_context_facts(f->session->cuda.context),
      .code = &c->code,
      .count = model_count(f, c->code.tile_rows, c->code.tile_keys),
      .B = b->size[CALL_B],
      .N = b->size[CALL_N],
      .M = b->size[CALL_M],
      .dedup = cuda_is_fast(c->code.family),
      .parts = c->knobs.value[KNOB_PARTS][0]};
  const pattern *p = f->session->compilation.plan->pattern;
  return spot.count ? cost_gpu_seconds(p, &spot) : INFINITY;
}

/* Only differences matter: the peak is any. */
static double predict_candidate_cpu(tune_model *f, const gpu_candidate *c) {
  const call_setup *b = &f->session->setup;
  int32_t keys = c->knobs.value[KNOB_TILE_KEYS][0];
  cost_case spot = {.count = model_count(f, COST_TILE_ROWS, keys),
                    .tile_keys = keys,
                    .B = b->size[CALL_B],
                    .N = b->size[CALL_N],
                    .M = b->size[CALL_M],
                    .dedup = f->session->compilation.plan->table.dedup,
                    .threads = dil_threads_count(b->threads),
                    .peak = 1e11};
  const pattern *p = f->session->compilation.plan->pattern;
  return spot.count ? cost_seconds(p, &spot) : INFINITY;
}

static int by_prediction(const void *x, const void *y) {
  const tune_candidate *a = x, *b = y;
  if (a->predicted != b->predicted)
    return (a->predicted > b->predicted) - (a->predicted < b->predicted);
  return a->order - b->order;
}

/* Counting the pairs of a mask may take long: a part of the budget is enough,
 * and a candidate without a prediction comes last. */
static dil_status gather_candidates(session *t, double seconds,
                                    tune_search *s) {
  arena *a = t->compilation.arena;
  gpu_candidate *list;
  int32_t count;
  dil_status status = list_candidates(t, &list, &count);
  if (status) return status;
  tune_model f = {t, message_clock() + seconds * COUNTING,
                  ARENA_ARRAY(a, counted, count), 0};
  s->count = count + 1;
  s->candidate = ARENA_ARRAY(a, tune_candidate, s->count);
  for (int32_t i = 0; i < count; i++) {
    tune_candidate *c = &s->candidate[i + 1];
    c->knobs = list[i].knobs;
    c->order = i;
    c->predicted = t->way->on_cuda ? predict_candidate(&f, &list[i])
                                   : predict_candidate_cpu(&f, &list[i]);
  }
  qsort(s->candidate + 1, (size_t)count, sizeof *s->candidate, by_prediction);
  return DIL_OK;
}

/* ---- the race ------------------------------------------------------------ */

typedef struct race {
  tune_search *search;
  double start, seconds, best; /* best: of all single runs */
  progress bar;
  int64_t shown;               /* milliseconds on the bar */
  int32_t first;               /* candidate of those being compiled */
} race;

static double race_seconds(race *r) {
  double now = message_clock() - r->start;
  int64_t shown = (int64_t)(1000 * fmin(now, r->seconds));
  if (shown > r->shown) progress_add(&r->bar, shown - r->shown);
  r->shown = shown;
  return now;
}

static void drop_candidate(tune_candidate *c) {
  dil_kernel_free(c->kernel);
  c->kernel = NULL;
}

static int by_seconds(const void *x, const void *y) {
  double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}

static double candidate_quickest(const tune_candidate *c) {
  double least = c->seconds[0];
  for (int32_t i = 1; i < c->runs; i++) least = fmin(least, c->seconds[i]);
  return least;
}

static double candidate_median(const tune_candidate *c) {
  double sorted[ROUNDS_MOST + 1];
  memcpy(sorted, c->seconds, (size_t)c->runs * sizeof *sorted);
  qsort(sorted, (size_t)c->runs, sizeof *sorted, by_seconds);
  return (sorted[(c->runs - 1) / 2] + sorted[c->runs / 2]) / 2;
}

static dil_status run_candidate(race *r, tune_candidate *c) {
  double seconds;
  dil_status status = session_time(r->search->session, c->kernel, &seconds);
  if (status) return status;
  c->seconds[c->runs++] = seconds;
  c->median = candidate_median(c);
  r->best = fmin(r->best, seconds);
  return DIL_OK;
}

/* Its code, in a thread of its own: what cannot be had is no failure of the
 * search. */
static void compile_candidate(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const race *r = context;
  tune_candidate *c = &r->search->candidate[r->first + index];
  code_request request =
      driver_code_request(&c->made, session_context(r->search->session));
  request.full_sequences_only = true;
  c->status = driver_code(&c->made, &request, &c->code);
  if (c->status) snprintf(c->reason, sizeof c->reason, "%s", dil_last_error());
}

static dil_status compile_some(race *r, int32_t count) {
  tune_search *s = r->search;
  for (int32_t i = r->first; i < r->first + count; i++) {
    tune_candidate *c = &s->candidate[i];
    c->made = s->session->compilation;
    c->seconds = ARENA_ARRAY(c->made.arena, double, ROUNDS_MOST + 1);
    driver_apply_knobs(&c->made, &c->knobs);
  }
  return dil_threads_run(s->session->setup.threads, count, compile_candidate,
                         r);
}

/* A kernel of that code, and its first runs, of which one does not count. */
static dil_status load_one(race *r, tune_candidate *c) {
  tune_search *s = r->search;
  dil_sizes sizes = session_sizes(s->session);
  if (!c->status) c->status = session_load(s->session, &c->code, &c->kernel);
  if (c->status == DIL_MEMORY || c->status == DIL_ENVIRONMENT) return c->status;
  if (c->status) {
    s->refused++;
    return DIL_OK;
  }
  s->made++;
  dil_status status =
      dil_kernel_variant(c->kernel, &sizes, c->variant, sizeof c->variant);
  if (!status) status = run_candidate(r, c);
  c->runs = 0;
  if (!status) status = run_candidate(r, c);
  if (!status && c != s->candidate && c->median > FAR_BEHIND * r->best)
    drop_candidate(c);
  return status;
}

static dil_status make_all(race *r) {
  tune_search *s = r->search;
  dil_status status = DIL_OK;
  int32_t batch = dil_threads_count(s->session->setup.threads);
  for (int32_t i = 0; i < s->count; i++) s->candidate[i].median = NAN;
  for (r->first = 0; r->first < s->count && !status; r->first += batch) {
    int32_t count = s->count - r->first < batch ? s->count - r->first : batch;
    if (r->first && race_seconds(r) >= r->seconds / 2) break;
    status = compile_some(r, count);
    for (int32_t i = 0; i < count && !status; i++)
      status = load_one(r, &s->candidate[r->first + i]);
  }
  return status;
}

static const tune_candidate *best_of(const tune_search *s) {
  const tune_candidate *best = &s->candidate[0];
  double own = best->median * WORTH;
  for (int32_t i = 1; i < s->count; i++) {
    const tune_candidate *c = &s->candidate[i];
    double bar = best == s->candidate ? own : best->median;
    if (c->kernel && c->median < bar) best = c;
  }
  return best;
}

static void drop_behind(tune_search *s) {
  double best = best_of(s)->median;
  for (int32_t i = 1; i < s->count; i++)
    if (s->candidate[i].kernel &&
        candidate_quickest(&s->candidate[i]) > BEHIND * best)
      drop_candidate(&s->candidate[i]);
}

static dil_status run_race(race *r) {
  tune_search *s = r->search;
  dil_status status = DIL_OK;
  for (int32_t round = 1; round < ROUNDS_MOST && !status; round++) {
    if (round >= ROUNDS_LEAST && race_seconds(r) >= r->seconds) break;
    for (int32_t i = 0; i < s->count && !status; i++)
      if (s->candidate[i].kernel) status = run_candidate(r, &s->candidate[i]);
    if (round >= ROUNDS_COMPARED) drop_behind(s);
    race_seconds(r);
  }
  return status;
}

/* ---- the winner ---------------------------------------------------------- */

/* Runs the winner once more, both ways where it has two, and compares its
 * outputs with the oracle. */
static dil_status check_winner(tune_search *s) {
  session *t = s->session;
  double seconds;
  dil_kernel *own = t->kernel;
  dil_status status =
      dil_kernel_time(s->best->kernel, session_call(t), &seconds);
  t->kernel = s->best->kernel;
  if (!status && t->way->backward)
    status = session_time(t, s->best->kernel, &seconds);
  if (!status) status = session_finish(t, CHECK_SECONDS);
  t->kernel = own;
  if (status || session_is_good(t)) return status;
  return DIL_MISMATCH;
}

dil_status tune_run(session *t, double seconds, tune_search *s) {
  *s = (tune_search){.session = t};
  race r = {.search = s,
            .start = message_clock(),
            .seconds = seconds,
            .best = INFINITY};
  dil_status status = gather_candidates(t, seconds, s);
  if (status) return status;
  progress_start(&r.bar, "tuning", (int64_t)(1000 * seconds), 1);
  status = make_all(&r);
  if (!status) status = run_race(&r);
  progress_end(&r.bar);
  if (status) return status;
  s->best = best_of(s);
  return check_winner(s);
}

void tune_free(tune_search *s) {
  for (int32_t i = 0; i < s->count; i++) {
    drop_candidate(&s->candidate[i]);
    kernel_code_free(&s->candidate[i].code);
  }
}
