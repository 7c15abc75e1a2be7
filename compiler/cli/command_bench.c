/* command_bench.c - `dil bench FILE...`: kernels timed in turn, each beside
 * the peak of this machine, and some rows of each checked. Every file is run
 * with each --force, so that variants meet the same seconds. */
#include "session.h"

enum { BENCH_QUERIES = 8192, BENCH_RUNS = 9 };
#define BENCH_BUDGET 0.25 /* seconds of the oracle, for each kernel */

typedef struct bench_state {
  const options *options;
  int32_t count;
  session *session; /* [count] */
  arena **arena;
} bench_state;

static dil_status open_sessions(bench_state *b) {
  const options *o = b->options;
  int32_t forces = o->force.count ? o->force.count : 1;
  for (int32_t i = 0; i < o->file_count * forces; i++) {
    session *t = &b->session[b->count];
    unsigned force = o->force.count ? o->force.set[i % forces] : 0;
    b->arena[b->count++] = arena_new();
    dil_status status =
        session_open(b->arena[i], o, i / forces, force, BENCH_QUERIES, t);
    message_compiled(o, &t->compilation, status);
    if (status) return status;
  }
  for (int32_t i = 0; i < b->count; i++) session_settle(&b->session[i]);
  return DIL_OK;
}

/* One run of each that is not counted, then rounds of one run each. */
static dil_status run_bench_rounds(bench_state *b) {
  const options *o = b->options;
  int32_t runs = o->seen[OPTION_REPEAT] ? (int32_t)o->repeat : BENCH_RUNS;
  dil_status status = DIL_OK;
  progress bar;
  progress_start(&bar, "timing", 0, (runs + 1) * b->count);
  for (int32_t round = 0; round <= runs; round++)
    for (int32_t i = 0; !status && i < b->count; i++) {
      session_watch(&b->session[i], bar.shown ? &bar.watch : NULL);
      status = session_run(&b->session[i], runs, round > 0);
      session_watch(&b->session[i], NULL);
      if (round == 0) b->session[i].runs = 0;
      progress_round(&bar);
    }
  progress_end(&bar);
  return status;
}

static dil_status finish_sessions(bench_state *b) {
  bool good = true;
  if (!b->options->json) report_heading(stdout);
  for (int32_t i = 0; i < b->count; i++) {
    session *t = &b->session[i];
    dil_status status = session_finish(t, BENCH_BUDGET);
    if (status) return status;
    (b->options->json ? report_json : report_row)(&t->report, stdout);
    if (!session_is_good(t)) session_print_accuracy(t, stderr);
    good &= session_is_good(t);
  }
  return good ? DIL_OK : DIL_MISMATCH;
}

dil_status command_bench(arena *a, const options *o) {
  int32_t most = o->file_count * (o->force.count ? o->force.count : 1);
  bench_state b = {o, 0, ARENA_ARRAY(a, session, most),
                   ARENA_ARRAY(a, arena *, most)};
  dil_status status = open_sessions(&b);
  if (!status) {
    status = run_bench_rounds(&b);
    if (!status) status = finish_sessions(&b);
    if (status && status != DIL_MISMATCH)
      message_error(status, NULL, "%s", dil_last_error());
  }
  for (int32_t i = 0; i < b.count; i++) {
    session_free(&b.session[i]);
    arena_free(b.arena[i]);
  }
  return status;
}
