/* session.c - a session of `run` or `bench`: makes a kernel of a file, runs and
 * times it. In: options. Out: a report with times and, when the caller wants
 * it, the comparison with the oracle. */
#include "session.h"
#include "compiler/analysis/cost.h"
#include "compiler/api/wisdom_apply.h"
#include "compiler/oracle/oracle.h"
#include "runtime/base/status.h"
#include <math.h>
#include <stdlib.h>

static bool on_oracle(const options *o) {
  return o->device.word == DEVICE_ORACLE;
}

static bool on_cuda(const options *o) {
  return o->device.word == DEVICE_CUDA;
}

/* Refuses options that the oracle, or a GPU, does not use. */
static dil_status check_device(const options *o) {
  bool cpu = !on_oracle(o) && !on_cuda(o);
  const char *useless = !cpu && o->seen[OPTION_CPU]             ? "--cpu"
                        : on_oracle(o) && o->seen[OPTION_FORCE] ? "--force"
                        : on_oracle(o) && o->seen[OPTION_STREAM]
                            ? "--stream"
                        : on_oracle(o) && o->seen[OPTION_TOPOLOGY]
                            ? "--topology"
                            : NULL;
  if (!useless) return DIL_OK;
  return dil_fail(DIL_USAGE, "%s says nothing to --device %s", useless,
                  on_cuda(o) ? "cuda" : "oracle");
}

dil_sizes session_sizes(const session *t) {
  const int64_t *size = t->setup.size;
  return (dil_sizes){size[CALL_B], size[CALL_N], size[CALL_M]};
}

dil_context *session_context(const session *t) {
  return t->on_cuda ? t->cuda.context : t->setup.context;
}

const dil_call *session_call(const session *t) {
  return t->on_cuda ? &t->cuda.call : &t->setup.call;
}

dil_status session_load(const session *t, dil_kernel_source *from,
                        dil_kernel **made) {
  dil_sizes sizes = session_sizes(t);
  *made = NULL;
  dil_status status = dil_kernel_make(session_context(t), from, made);
  if (!status) status = dil_kernel_prepare(*made, &sizes);
  driver_source_free(from);
  if (!status) return DIL_OK;
  dil_kernel_free(*made);
  *made = NULL;
  return status;
}

/* The wall clock, and the seconds that the context has spent on loading
 * compilers. */
typedef struct clocks {
  double start, opening;
} clocks;

static clocks read_clocks(const session *t) {
  dil_stats stats = DIL_STATS_INIT;
  bool known = !dil_context_stats(session_context(t), &stats);
  return (clocks){message_clock(), known ? stats.open_seconds : 0};
}

/* Splits the time to get the code: loading the compiler, and the rest. */
static void split_times(session *t, clocks before) {
  clocks now = read_clocks(t);
  t->report.open_seconds = now.opening - before.opening;
  t->report.compile_seconds = now.start - before.start - t->report.open_seconds;
}

/* Makes the kernel of the session's compilation and times that. */
static dil_status new_kernel(session *t) {
  dil_kernel_source from;
  clocks before = read_clocks(t);
  t->compilation.early = t->compilation.whole = true;
  dil_status status = driver_source(&t->compilation, session_context(t), &from);
  if (!status) status = session_load(t, &from, &t->kernel);
  split_times(t, before);
  return status;
}

/* Makes the kernel with the tuned schedule of the wisdom file, or without it
 * where no kernel can have that schedule. */
static dil_status make_session_kernel(session *t, const options *o) {
  compilation *c = &t->compilation;
  dil_sizes sizes = session_sizes(t);
  char text[KNOBS_TEXT];
  bool recalled = !o->no_wisdom && recall(c, session_context(t), t->setup.size);
  dil_status status = new_kernel(t);
  if (recalled && (status == DIL_INPUT || status == DIL_UNSUPPORTED)) {
    message_note(RECALL_LOST, knobs_text(&c->knobs, text), dil_last_error());
    recall_undo(c);
    recalled = false;
    status = new_kernel(t);
  }
  t->report.knobs = c->knobs;
  t->report.recalled = recalled;
  if (status) return status;
  t->report.variant = t->variant;
  if (t->on_cuda) t->report.isa = c->chip;
  dil_stats stats = DIL_STATS_INIT;
  status = dil_context_stats(session_context(t), &stats);
  t->report.kept = stats.cache_hits > 0;
  if (status) return status;
  return dil_kernel_variant(t->kernel, &sizes, t->variant, sizeof t->variant);
}

static dil_status open_cuda(session *t, const options *o) {
  t->on_cuda = true;
  return session_cuda_context(o, &t->cuda.context);
}

static dil_status make_cuda(session *t, const options *o) {
  dil_status status = open_cuda(t, o);
  if (!status) status = make_session_kernel(t, o);
  return status ? status : session_cuda_open(&t->cuda, &t->setup.call);
}

/* Makes the ranks of a topology and all their code. */
static dil_status make_crew(session *t, const options *o, int64_t seq) {
  clocks before = read_clocks(t);
  t->on_crew = true;
  dil_status status =
      session_ranks_open(&t->crew, &t->compilation, &t->setup, seq);
  split_times(t, before);
  t->report.isa = on_cuda(o) ? t->compilation.chip : t->compilation.isa;
  return status;
}

static dil_status make_stream(session *t, const options *o) {
  clocks before = read_clocks(t);
  t->on_stream = true;
  dil_status status =
      session_stream_open(&t->stream, &t->compilation, &t->setup);
  split_times(t, before);
  t->report.isa = on_cuda(o) ? t->compilation.chip : t->compilation.isa;
  return status;
}

static void describe_report(session *t, const options *o) {
  const compilation *c = &t->compilation;
  report *r = &t->report;
  r->kernel = c->kernel ? c->kernel->name : c->pattern->name;
  r->device = on_oracle(o) ? "oracle" : on_cuda(o) ? "cuda" : "cpu";
  r->isa = c->isa;
  r->force = t->request.force;
  r->planned = c->plan != NULL;
  if (r->planned) r->plan_hash = plan_hash(c->plan);
  r->threads = dil_threads_count(t->setup.threads);
}

/* Checkpoints (--state) exist for rings of ranks and for streamed calls. */
static dil_status check_state(const options *o, bool on_ranks) {
  bool stream = o->seen[OPTION_STREAM];
  bool resumes = o->seen[OPTION_RESUME] || o->seen[OPTION_EVERY];
  if (o->seen[OPTION_SHRINK] && !on_ranks)
    return dil_fail(DIL_USAGE, "--shrink wants a topology of several devices");
  if (!o->state && !resumes) return DIL_OK;
  if (!on_ranks && !stream)
    return dil_fail(DIL_USAGE, "--state, --every and --resume want a topology "
                    "of several devices, or --stream");
  if (!o->state)
    return dil_fail(DIL_USAGE, "--every and --resume want --state PREFIX");
  if (stream && o->seen[OPTION_REPEAT])
    return dil_fail(DIL_USAGE, "--state keeps one streamed run: --repeat "
                    "cannot be used with it");
  return DIL_OK;
}

dil_status session_open(arena *a, const options *o, int32_t index,
                        unsigned force, int64_t seq, session *t) {
  *t = (session){.compilation = {.arena = a, .diag = diag_new(a)}};
  t->report = (report){.compile_seconds = NAN,
                       .open_seconds = NAN,
                       .workspace = NAN};
  t->request = command_request(o, index);
  t->request.force = force;
  t->request.device = on_cuda(o) ? KNOB_CUDA : on_oracle(o) ? 0 : KNOB_CPU;
  t->request.last = on_cuda(o)             ? STAGE_plan
                    : !on_oracle(o)        ? STAGE_schedule
                    : t->request.from_plan ? STAGE_plan
                                           : STAGE_place;
  dil_status status = check_device(o);
  if (!status) status = driver_compile(&t->request, &t->compilation);
  if (status) return status;
  status = call_setup_open(a, o, t->compilation.pattern, &t->setup);
  t->bound = true;
  if (!status) describe_report(t, o);
  bool stream = o->seen[OPTION_STREAM];
  bool on_ranks = t->compilation.topology && !on_oracle(o) && !stream;
  if (!status) status = check_state(o, on_ranks);
  if (!status && on_ranks) return make_crew(t, o, seq);
  if (!status) status = call_setup_tensors(&t->setup, seq);
  if (status) return status;
  if (on_oracle(o)) return oracle_check(t->setup.pattern, &t->setup.call);
  if (stream) return make_stream(t, o);
  return on_cuda(o) ? make_cuda(t, o) : make_session_kernel(t, o);
}

/* ---- a kernel of a library ----------------------------------------------- */

/* A library loads its GPU code in its first call, so that call is not timed. */
static dil_status warm_library(session *t) {
  dil_status status = session_library_run(&t->library);
  return status ? status : dil_context_wait(t->cuda.context, NULL);
}

static dil_status load_library(session *t, const options *o) {
  bool gpu = on_cuda(o);
  DLDevice device = {gpu ? kDLCUDA : kDLCPU,
                     gpu ? (int32_t)o->device.number : 0};
  dil_status status = gpu ? open_cuda(t, o) : DIL_OK;
  if (!status && gpu) status = session_cuda_open(&t->cuda, &t->setup.call);
  if (!status)
    status = session_library_load(&t->library, o,
                                  gpu ? t->cuda.context : t->setup.context);
  if (!status)
    session_library_set_call(&t->library, gpu ? &t->cuda.call : &t->setup.call,
                             device);
  if (!status && gpu) status = warm_library(t);
  return status;
}

dil_status session_open_library(arena *a, const options *o, session *t) {
  *t = (session){.compilation = {.arena = a, .diag = diag_new(a)}};
  t->report = (report){.compile_seconds = NAN,
                       .open_seconds = NAN,
                       .workspace = NAN};
  t->on_library = true;
  if (o->seen[OPTION_STREAM])
    return dil_fail(DIL_USAGE, "--stream cannot be used with --library");
  dil_status status = check_state(o, false);
  if (!status) status = session_library_read(&t->library, o, &t->compilation);
  if (!status) {
    if (!on_cuda(o)) t->compilation.isa = t->library.isa;
    status = call_setup_open(a, o, t->compilation.pattern, &t->setup);
    t->bound = true;
  }
  if (!status) status = call_setup_tensors(&t->setup, -1);
  if (status) return status;
  describe_report(t, o);
  t->report.kernel = t->library.facts.name;
  t->report.planned = true;
  t->report.plan_hash = strtoull(t->library.facts.plan_hash, NULL, 16);
  return load_library(t, o);
}

void session_watch(session *t, dil_watch *watch) {
  t->setup.call.watch = t->cuda.call.watch = watch;
}

bool session_is_reporter(const session *t) {
  return !t->on_crew || session_ranks_is_reporter(&t->crew);
}

dil_status session_leave(session *t, double budget) {
  return t->on_crew ? session_ranks_leave(&t->crew, budget) : DIL_OK;
}

void session_free(session *t) {
  if (t->on_library) session_library_free(&t->library);
  dil_kernel_free(t->kernel);
  driver_drop(&t->compilation);
  if (t->on_cuda) session_cuda_free(&t->cuda);
  if (t->on_crew) session_ranks_free(&t->crew);
  if (t->on_stream) session_stream_free(&t->stream);
  if (t->bound) call_setup_free(&t->setup);
  free(t->seconds);
  free(t->share);
}

/* ---- the oracle as a device ---------------------------------------------- */

typedef struct oracle_work {
  const call_setup *setup;
  progress *bar;
} oracle_work;

static void oracle_one(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const oracle_work *w = context;
  const call_setup *b = w->setup;
  int64_t heads = b->pattern->heads, N = b->size[CALL_N];
  oracle_store(b->pattern, &b->call, index / heads / N, index / heads % N,
               index % heads);
  progress_add(w->bar, 1);
}

static dil_status run_oracle(const call_setup *b) {
  int64_t rows = b->size[CALL_B] * b->size[CALL_N] * b->pattern->heads;
  progress bar;
  oracle_work work = {b, &bar};
  progress_start(&bar, "oracle", rows, 1);
  dil_status status = dil_threads_run(b->threads, rows, oracle_one, &work);
  progress_end(&bar);
  return status;
}

/* ---- timing -------------------------------------------------------------- */

#define PEAK_SECONDS 0.01

static dil_status make_time_room(session *t, int32_t limit) {
  if (t->seconds) return DIL_OK;
  t->seconds = calloc((size_t)limit, sizeof *t->seconds);
  t->share = calloc((size_t)limit, sizeof *t->share);
  if (t->seconds && t->share) return DIL_OK;
  return dil_fail(DIL_MEMORY, "no memory for %d times", limit);
}

static dil_status time_session(session *t, double *seconds) {
  call_setup *b = &t->setup;
  double start = message_clock();
  dil_status status = DIL_OK;
  if (t->kernel)
    return dil_kernel_time(t->kernel, t->on_cuda ? &t->cuda.call : &b->call,
                           seconds);
  if (t->on_crew) return session_ranks_run(&t->crew, seconds);
  if (t->on_stream) return session_stream_run(&t->stream, seconds);
  status = t->on_library ? session_library_run(&t->library) : run_oracle(b);
  if (!status && t->on_library && t->on_cuda)
    status = dil_context_wait(t->cuda.context, NULL);
  *seconds = message_clock() - start;
  return status;
}

dil_status session_run(session *t, int32_t limit, bool with_peak) {
  double peak = NAN;
  dil_status status = make_time_room(t, limit);
  bool processor = (t->kernel || t->on_library) && !t->on_cuda;
  if (!status && with_peak && processor && t->compilation.isa)
    status = measure_peak(&t->setup, t->compilation.isa, PEAK_SECONDS, &peak);
  if (!status && with_peak && t->on_cuda && t->kernel)
    status = session_cuda_peak(&t->cuda, &t->compilation, PEAK_SECONDS, &peak);
  if (!status) status = time_session(t, &t->seconds[t->runs]);
  if (status) return status;
  t->share[t->runs] = 1 / t->seconds[t->runs] / peak;
  t->runs++;
  return DIL_OK;
}

static int by_seconds(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Sorts the numbers; NaN when there are none. */
static double median_of(double *number, int32_t count) {
  if (count == 0) return NAN;
  qsort(number, (size_t)count, sizeof *number, by_seconds);
  return (number[(count - 1) / 2] + number[count / 2]) / 2;
}

static dil_status measure_workspace(session *t) {
  dil_sizes sizes = session_sizes(t);
  int64_t bytes;
  dil_status status = dil_kernel_workspace(t->kernel, &sizes, &bytes);
  if (!status) t->report.workspace = (double)bytes;
  return status;
}

dil_status session_finish(session *t, double budget) {
  report *r = &t->report;
  call_setup *b = &t->setup;
  cover_count count;
  measure_pairs(b, &count);
  r->flops = cost_flops(b->pattern, count.pairs);
  r->estimated = count.estimated;
  r->share = median_of(t->share, t->runs) * r->flops;
  r->seconds = median_of(t->seconds, t->runs);
  dil_status status = DIL_OK;
  if (t->kernel) status = measure_workspace(t);
  if (t->on_crew) session_ranks_tell(&t->crew, r);
  if (t->on_crew) status = session_ranks_fetch(&t->crew, &t->setup);
  if (t->on_stream) session_stream_tell(&t->stream, r);
  if (!status && t->on_cuda) status = session_cuda_fetch(&t->cuda, &b->call);
  if (status || !(budget > 0)) return status;
  status = call_setup_complete(b);
  if (!status) status = accuracy_check(b, count.pairs, budget, &t->accuracy);
  if (!status) r->accuracy = &t->accuracy;
  return status;
}
