/* session_ways.c - the ways to run a session's call, one row of a table each: a
 * kernel on the processor or a GPU, ranks of a topology, chunks, a library, and
 * the oracle.
 *
 * In: a session with a compilation and a call. Out: runs of the call and their
 * seconds, and what a way adds to the report. */
#include "session.h"
#include "compiler/oracle/oracle.h"
#include "runtime/base/documents.h"
#include "runtime/base/status.h"

/* The wall clock, and the seconds that the context has spent on loading
 * compilers. */
typedef struct clocks {
  double start, opening;
} clocks;

static clocks read_clocks(const session *s) {
  dil_stats stats = DIL_STATS_INIT;
  bool known = !dil_context_stats(session_context(s), &stats);
  return (clocks){message_clock(), known ? stats.open_seconds : 0};
}

/* Splits the time to get the code: loading the compiler, and the rest. */
static void split_times(session *s, clocks before) {
  clocks now = read_clocks(s);
  s->report.open_seconds = now.opening - before.opening;
  s->report.compile_seconds = now.start - before.start - s->report.open_seconds;
}

/* ---- a kernel ------------------------------------------------------------ */

/* Makes the kernel of the session's compilation and times that. */
static dil_status new_kernel(session *s) {
  clocks before = read_clocks(s);
  code_request request = driver_code_request(&s->compilation,
                                             session_context(s));
  request.lazy = request.full_sequences_only = true;
  dil_status status = driver_code(&s->compilation, &request, &s->code);
  if (!status) status = session_load(s, &s->code, &s->kernel);
  split_times(s, before);
  return status;
}

/* Makes the kernel with the tuned schedule of the wisdom file, or without it
 * where no kernel can have that schedule. */
static dil_status open_made_kernel(session *s, const options *o, int64_t seq) {
  (void)seq;
  compilation *c = &s->compilation;
  char text[KNOBS_TEXT];
  bool recalled = !o->no_wisdom &&
                  driver_apply_wisdom(c, session_context(s), s->setup.size);
  dil_status status = new_kernel(s);
  if (recalled && (status == DIL_INPUT || status == DIL_UNSUPPORTED)) {
    message_note(WISDOM_LOST, knobs_text(&c->knobs, text), dil_last_error());
    driver_drop_knobs(c);
    recalled = false;
    status = new_kernel(s);
  }
  s->report.knobs = c->knobs;
  s->report.recalled = recalled;
  if (status) return status;
  s->report.variant = s->variant;
  if (s->way->on_cuda) s->report.isa = s->code.chip;
  dil_stats stats = DIL_STATS_INIT;
  status = dil_context_stats(session_context(s), &stats);
  s->report.kept = stats.cache_hits > 0;
  if (status) return status;
  return dil_kernel_call_variant(s->kernel, &s->setup.call, s->variant,
                                 sizeof s->variant);
}

static dil_status open_cuda_kernel(session *s, const options *o, int64_t seq) {
  dil_status status = session_cuda_context(o, &s->cuda.context);
  if (!status) status = open_made_kernel(s, o, seq);
  return status ? status : session_cuda_open(&s->cuda, s->setup.pattern, &s->setup.call);
}

static dil_status run_kernel(session *s, double *seconds) {
  return dil_kernel_time(s->kernel, session_call(s), seconds);
}

static dil_status measure_cpu_peak(session *s, double seconds, double *rate) {
  const char *isa = s->compilation.isa;
  return isa ? measure_peak(&s->setup, isa, seconds, rate) : DIL_OK;
}

static dil_status measure_cuda_peak(session *s, double seconds, double *rate) {
  return session_cuda_peak(&s->cuda, &s->compilation, seconds, rate);
}

/* The memory that documents take depends on their lengths, which sizes do not tell. */
static dil_status collect_workspace(session *s) {
  dil_sizes sizes = session_sizes(s);
  int64_t bytes;
  if (documents_given(&s->setup.call)) return DIL_OK;
  dil_status status = dil_kernel_workspace(s->kernel, &sizes, &bytes);
  if (!status) s->report.workspace = (double)bytes;
  return status;
}

static dil_status fetch_from_cuda(session *s) {
  return session_cuda_fetch(&s->cuda, &s->setup.call);
}

static dil_status collect_cuda_kernel(session *s) {
  dil_status status = collect_workspace(s);
  return status ? status : fetch_from_cuda(s);
}

static void free_cuda(session *s) {
  session_cuda_free(&s->cuda);
}

/* ---- ranks --------------------------------------------------------------- */

/* Makes the ranks of a topology and all their code. */
static dil_status open_ranks(session *s, const options *o, int64_t seq) {
  clocks before = read_clocks(s);
  dil_status status =
      session_ranks_open(&s->ranks, &s->compilation, &s->setup, seq);
  split_times(s, before);
  s->report.isa =
      o->device.word == DEVICE_CUDA ? s->ranks.code.chip : s->compilation.isa;
  return status;
}

static dil_status run_ranks(session *s, double *seconds) {
  return session_ranks_run(&s->ranks, seconds);
}

static dil_status collect_ranks(session *s) {
  session_ranks_tell(&s->ranks, &s->report);
  return session_ranks_fetch(&s->ranks, &s->setup);
}

static void free_ranks(session *s) {
  session_ranks_free(&s->ranks);
}

/* ---- chunks -------------------------------------------------------------- */

static dil_status open_stream(session *s, const options *o, int64_t seq) {
  (void)seq;
  clocks before = read_clocks(s);
  dil_status status =
      session_stream_open(&s->stream, &s->compilation, &s->setup);
  split_times(s, before);
  s->report.isa =
      o->device.word == DEVICE_CUDA ? s->stream.code.chip : s->compilation.isa;
  return status;
}

static dil_status run_stream(session *s, double *seconds) {
  return session_stream_run(&s->stream, seconds);
}

static dil_status collect_stream(session *s) {
  session_stream_tell(&s->stream, &s->report);
  return DIL_OK;
}

static void free_stream(session *s) {
  session_stream_free(&s->stream);
}

/* ---- a kernel of a library ----------------------------------------------- */

static dil_status open_library_way(session *s, const options *o, int64_t seq) {
  (void)seq;
  dil_status status = session_library_load(&s->library, o, session_context(s));
  DLDevice device = {kDLCPU, 0};
  if (s->way->on_cuda) device = (DLDevice){kDLCUDA, (int32_t)o->device.number};
  if (!status) session_library_set_call(&s->library, s->setup.pattern,
                                        session_call(s), device);
  return status;
}

static dil_status run_library(session *s, double *seconds) {
  double start = message_clock();
  dil_status status = session_library_run(&s->library);
  if (!status && s->way->on_cuda)
    status = dil_context_wait(s->cuda.context, NULL);
  *seconds = message_clock() - start;
  return status;
}

/* A library loads its GPU code in its first call, so that call is not timed. */
static dil_status open_cuda_library(session *s, const options *o, int64_t seq) {
  double seconds;
  dil_status status = session_cuda_context(o, &s->cuda.context);
  if (!status) status = session_cuda_open(&s->cuda, s->setup.pattern, &s->setup.call);
  if (!status) status = open_library_way(s, o, seq);
  return status ? status : run_library(s, &seconds);
}

static void free_library(session *s) {
  session_library_free(&s->library);
  if (s->way->on_cuda) free_cuda(s);
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

static dil_status open_oracle(session *s, const options *o, int64_t seq) {
  (void)o;
  (void)seq;
  return oracle_check(s->setup.pattern, &s->setup.call);
}

static dil_status run_oracle(session *s, double *seconds) {
  const call_setup *b = &s->setup;
  int64_t rows = b->size[CALL_B] * b->size[CALL_N] * b->pattern->heads;
  double start = message_clock();
  progress bar;
  oracle_work work = {b, &bar};
  dil_status status = b->call.made ? oracle_choose(b->pattern, &b->call,
                                                   ORACLE_NUMBERS, b->call.made)
                                   : DIL_OK;
  if (status) return status;
  progress_start(&bar, "oracle", rows, 1);
  status = dil_threads_run(b->threads, rows, oracle_one, &work);
  progress_end(&bar);
  *seconds = message_clock() - start;
  return status;
}

/* ---- the table ----------------------------------------------------------- */

const session_way session_ways[SESSION_WAY_COUNT] = {
    [SESSION_CPU] = {.open = open_made_kernel,
                     .run = run_kernel,
                     .peak = measure_cpu_peak,
                     .collect = collect_workspace},
    [SESSION_CUDA] = {.on_cuda = true,
                      .open = open_cuda_kernel,
                      .run = run_kernel,
                      .peak = measure_cuda_peak,
                      .collect = collect_cuda_kernel,
                      .free = free_cuda},
    [SESSION_RANKS] = {.fills_call = true,
                       .on_ranks = true,
                       .open = open_ranks,
                       .run = run_ranks,
                       .collect = collect_ranks,
                       .free = free_ranks},
    [SESSION_STREAM] = {.open = open_stream,
                        .run = run_stream,
                        .collect = collect_stream,
                        .free = free_stream},
    [SESSION_LIBRARY] = {.open = open_library_way,
                         .run = run_library,
                         .peak = measure_cpu_peak,
                         .free = free_library},
    [SESSION_CUDA_LIBRARY] = {.on_cuda = true,
                              .open = open_cuda_library,
                              .run = run_library,
                              .collect = fetch_from_cuda,
                              .free = free_library},
    [SESSION_ORACLE] = {.open = open_oracle, .run = run_oracle},
    [SESSION_CPU_BACKWARD] = {.backward = true,
                              .forward = SESSION_CPU,
                              .open = session_backward_open,
                              .run = session_backward_run,
                              .peak = measure_cpu_peak,
                              .collect = session_backward_collect,
                              .free = session_backward_free},
    [SESSION_CUDA_BACKWARD] = {.backward = true,
                               .forward = SESSION_CUDA,
                               .on_cuda = true,
                               .open = session_backward_open,
                               .run = session_backward_run,
                               .peak = measure_cuda_peak,
                               .collect = session_backward_collect,
                               .free = session_backward_free},
    [SESSION_LIBRARY_BACKWARD] = {.backward = true,
                                  .forward = SESSION_LIBRARY,
                                  .open = session_backward_open_library,
                                  .run = session_backward_library,
                                  .peak = measure_cpu_peak,
                                  .collect = session_backward_collect,
                                  .free = session_backward_free},
    [SESSION_CUDA_LIBRARY_BACKWARD] = {.backward = true,
                                       .forward = SESSION_CUDA_LIBRARY,
                                       .on_cuda = true,
                                       .open = session_backward_open_library,
                                       .run = session_backward_library,
                                       .collect = session_backward_collect,
                                       .free = session_backward_free},
    [SESSION_RANKS_BACKWARD] = {.backward = true,
                                .forward = SESSION_RANKS,
                                .fills_call = true,
                                .on_ranks = true,
                                .open = session_backward_open_ranks,
                                .run = run_ranks,
                                .collect = collect_ranks,
                                .free = session_backward_free},
    [SESSION_ORACLE_BACKWARD] = {.backward = true,
                                 .forward = SESSION_ORACLE,
                                 .open = session_backward_open,
                                 .run = session_backward_oracle,
                                 .collect = session_backward_collect,
                                 .free = session_backward_free},
};
