/* session.c - a session of `run` or `bench`: makes a kernel of a file, runs and
 * times it. In: options. Out: a report with times and, when the caller wants
 * it, the comparison with the oracle. */
#include "session.h"
#include "gradient_setup.h"
#include "compiler/analysis/cost.h"
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
  return dil_fail(DIL_USAGE, "%s has no effect with --device %s", useless,
                  on_cuda(o) ? "cuda" : "oracle");
}

static dil_status check_backward_options(const options *o) {
  dil_status status = gradient_setup_check(o);
  if (status || !o->backward || !o->seen[OPTION_STREAM]) return status;
  return dil_fail(DIL_USAGE, "--backward cannot be used with --stream: chunks "
                             "of a call have no gradients in this build");
}

dil_sizes session_sizes(const session *s) {
  const int64_t *size = s->setup.size;
  return (dil_sizes){size[CALL_B], size[CALL_N], size[CALL_M]};
}

dil_context *session_context(const session *s) {
  return s->way->on_cuda ? s->cuda.context : s->setup.context;
}

const dil_call *session_call(const session *s) {
  return s->way->on_cuda ? &s->cuda.call : &s->setup.call;
}

dil_status session_load(const session *s, kernel_code *code,
                        dil_kernel **made) {
  dil_sizes sizes = session_sizes(s);
  *made = NULL;
  dil_status status = dil_kernel_make(session_context(s), &code->source, made);
  if (!status) status = dil_kernel_prepare(*made, &sizes);
  kernel_code_free_cubins(code);
  if (!status) return DIL_OK;
  dil_kernel_free(*made);
  *made = NULL;
  return status;
}

static void describe_report(session *s, const options *o) {
  const compilation *c = &s->compilation;
  report *r = &s->report;
  r->kernel = c->kernel ? c->kernel->name : c->pattern->name;
  r->device = on_oracle(o) ? "oracle" : on_cuda(o) ? "cuda" : "cpu";
  r->isa = c->isa;
  r->force = s->request.force;
  r->planned = c->plan != NULL;
  if (r->planned) r->plan_hash = plan_hash(c->plan);
  r->threads = dil_threads_count(s->setup.threads);
}

/* Checkpoints (--state) exist for rings of ranks and for streamed calls. */
static dil_status check_state(const options *o, bool on_ranks) {
  bool stream = o->seen[OPTION_STREAM];
  bool resumes = o->seen[OPTION_RESUME] || o->seen[OPTION_EVERY];
  if (o->seen[OPTION_SHRINK] && !on_ranks)
    return dil_fail(DIL_USAGE, "--shrink needs a topology of several devices");
  if (!o->state && !resumes) return DIL_OK;
  if (!on_ranks && !stream)
    return dil_fail(DIL_USAGE, "--state, --every and --resume need a topology "
                               "of several devices, or --stream");
  if (!o->state)
    return dil_fail(DIL_USAGE, "--every and --resume need --state PREFIX");
  if (stream && o->seen[OPTION_REPEAT])
    return dil_fail(DIL_USAGE, "--state keeps one streamed run: --repeat "
                    "cannot be used with it");
  return DIL_OK;
}

static session_way_id choose_way(const session *s, const options *o) {
  bool ranks = s->compilation.topology && !on_oracle(o);
  if (o->backward)
    return on_oracle(o) ? SESSION_ORACLE_BACKWARD
           : ranks      ? SESSION_RANKS_BACKWARD
           : on_cuda(o) ? SESSION_CUDA_BACKWARD
                        : SESSION_CPU_BACKWARD;
  if (on_oracle(o)) return SESSION_ORACLE;
  if (o->seen[OPTION_STREAM]) return SESSION_STREAM;
  if (s->compilation.topology) return SESSION_RANKS;
  return on_cuda(o) ? SESSION_CUDA : SESSION_CPU;
}

dil_status session_open(arena *a, const options *o, int32_t index,
                        unsigned force, int64_t seq, session *s) {
  *s = (session){.compilation = {.arena = a, .diag = diag_new(a)}};
  s->report =
      (report){.compile_seconds = NAN, .open_seconds = NAN, .workspace = NAN};
  s->request = command_request(o, index);
  s->request.force = force;
  s->request.device = on_cuda(o) ? KNOB_CUDA : on_oracle(o) ? 0 : KNOB_CPU;
  s->request.last = on_cuda(o)             ? STAGE_plan
                    : !on_oracle(o)        ? STAGE_schedule
                    : s->request.from_plan ? STAGE_plan
                                           : STAGE_place;
  dil_status status = check_device(o);
  if (!status) status = check_backward_options(o);
  if (!status) status = driver_compile(&s->request, &s->compilation);
  if (status) return status;
  status = call_setup_open(a, o, s->compilation.pattern, &s->setup);
  s->has_setup = true;
  if (!status) describe_report(s, o);
  session_way_id id = choose_way(s, o);
  if (!status) status = check_state(o, session_ways[id].on_ranks);
  if (!status && !session_ways[id].fills_call)
    status = call_setup_tensors(&s->setup, seq);
  if (status) return status;
  s->way = &session_ways[id];
  return s->way->open(s, o, seq);
}

/* ---- a kernel of a library ----------------------------------------------- */

static session_way_id library_way(const options *o) {
  if (o->backward)
    return on_cuda(o) ? SESSION_CUDA_LIBRARY_BACKWARD
                      : SESSION_LIBRARY_BACKWARD;
  return on_cuda(o) ? SESSION_CUDA_LIBRARY : SESSION_LIBRARY;
}

dil_status session_open_library(arena *a, const options *o, session *s) {
  *s = (session){.compilation = {.arena = a, .diag = diag_new(a)}};
  s->report =
      (report){.compile_seconds = NAN, .open_seconds = NAN, .workspace = NAN};
  s->way = &session_ways[library_way(o)];
  if (o->seen[OPTION_STREAM])
    return dil_fail(DIL_USAGE, "--stream cannot be used with --library");
  dil_status status = check_state(o, false);
  if (!status) status = gradient_setup_check(o);
  if (!status) status = session_library_read(&s->library, o, &s->compilation);
  if (!status) {
    if (!on_cuda(o)) s->compilation.isa = s->library.isa;
    status = call_setup_open(a, o, s->compilation.pattern, &s->setup);
    s->has_setup = true;
  }
  if (!status) status = call_setup_tensors(&s->setup, -1);
  if (status) return status;
  describe_report(s, o);
  s->report.kernel = s->library.facts.name;
  s->report.planned = true;
  s->report.plan_hash = strtoull(s->library.facts.plan_hash, NULL, 16);
  return s->way->open(s, o, -1);
}

void session_watch(session *s, dil_watch *watch) {
  s->setup.call.watch = s->cuda.call.watch = watch;
}

static bool is_on_ranks(const session *s) {
  return s->way && s->way->on_ranks;
}

bool session_is_reporter(const session *s) {
  return !is_on_ranks(s) || session_ranks_is_reporter(&s->ranks);
}

dil_status session_leave(session *s, double budget) {
  return is_on_ranks(s) ? session_ranks_leave(&s->ranks, budget) : DIL_OK;
}

void session_settle(const session *s) {
  kernel_code_wait(&s->code);
}

void session_free(session *s) {
  dil_kernel_free(s->kernel);
  kernel_code_free(&s->code);
  if (s->way && s->way->free) s->way->free(s);
  if (s->has_setup) call_setup_free(&s->setup);
  free(s->seconds);
  free(s->share);
}

/* ---- timing -------------------------------------------------------------- */

/* Each measurement of the peak takes this long. */
#define PEAK_SECONDS 0.01

static dil_status make_time_room(session *s, int32_t limit) {
  if (s->seconds) return DIL_OK;
  s->seconds = calloc((size_t)limit, sizeof *s->seconds);
  s->share = calloc((size_t)limit, sizeof *s->share);
  if (s->seconds && s->share) return DIL_OK;
  return dil_fail(DIL_MEMORY, "no memory for %d times", limit);
}

dil_status session_run(session *s, int32_t limit, bool with_peak) {
  double peak = NAN;
  dil_status status = make_time_room(s, limit);
  if (!status && with_peak && s->way->peak)
    status = s->way->peak(s, PEAK_SECONDS, &peak);
  if (!status) status = s->way->run(s, &s->seconds[s->runs]);
  if (status) return status;
  s->share[s->runs] = 1 / s->seconds[s->runs] / peak;
  s->runs++;
  return DIL_OK;
}

static int by_number(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Sorts the numbers; NaN when there are none. */
static double median_number(double *number, int32_t count) {
  if (count == 0) return NAN;
  qsort(number, (size_t)count, sizeof *number, by_number);
  return (number[(count - 1) / 2] + number[count / 2]) / 2;
}

dil_status session_finish(session *s, double budget) {
  report *r = &s->report;
  call_setup *b = &s->setup;
  cover_count count;
  dil_status status = s->way->collect ? s->way->collect(s) : DIL_OK;
  if (!status) status = call_choices_take(b);
  if (status) return status;
  measure_pairs(b, &count);
  r->flops = s->way->backward ? cost_gradient_flops(b->pattern, count.pairs)
                              : cost_flops(b->pattern, count.pairs);
  r->backward = s->way->backward;
  r->estimated = count.estimated;
  r->share = median_number(s->share, s->runs) * r->flops;
  r->seconds = median_number(s->seconds, s->runs);
  if (!(budget > 0)) return status;
  status = call_setup_complete(b);
  if (!status) status = accuracy_check(b, count.pairs, budget, &s->accuracy);
  if (!status) r->accuracy = &s->accuracy;
  bool rows_good = !status && accuracy_is_good(&s->accuracy);
  if (!rows_good || !s->way->backward) return status;
  if (s->way->on_ranks) s->backward.forward = b->call;
  status = gradient_setup_complete(b, &s->backward);
  if (status) return status;
  status = gradient_accuracy_check(b, &s->backward, count.pairs, budget,
                                   &s->gradients);
  if (!status) r->gradients = &s->gradients;
  return status;
}

bool session_is_good(const session *s) {
  const report *r = &s->report;
  return (!r->accuracy || accuracy_is_good(r->accuracy)) &&
         (!r->gradients || r->gradients->good);
}

void session_print_accuracy(const session *s, FILE *out) {
  if (s->report.accuracy) accuracy_print(s->report.accuracy, out);
  if (s->report.gradients) gradient_accuracy_print(s->report.gradients, out);
}

dil_status session_time(const session *s, dil_kernel *timed, double *seconds) {
  return s->way->backward ? dil_kernel_backward_time(
                                timed, session_backward_call(s), seconds)
                          : dil_kernel_time(timed, session_call(s), seconds);
}
