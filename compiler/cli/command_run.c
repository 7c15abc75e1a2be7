/* command_run.c - `dil run FILE`: one call on arrays or random numbers. */
#include "session.h"

/* The output in float32, whatever the pattern stores. */
static dil_status write_output(binding *b, const char *path) {
  dil_tensor wide = b->call.o;
  dil_status status = DIL_OK;
  if (wide.dtype != DIL_F32) {
    status = bind_reserve(b, DIL_F32, 4, wide.shape, &wide);
    if (!status) status = bind_convert(b, &b->call.o, &wide);
  }
  return status ? status : dil_npy_write(path, &wide);
}

static dil_status write_arrays(binding *b, const options *o) {
  if (o->seen[OPTION_STREAM]) return binding_publish(b);
  dil_status status = o->out ? write_output(b, o->out) : DIL_OK;
  if (!status && o->lse) status = dil_npy_write(o->lse, &b->call.lse);
  return status;
}

static dil_status run_trial(trial *t, const options *o) {
  int32_t repeat = o->seen[OPTION_REPEAT] ? (int32_t)o->repeat : 1;
  double budget = o->check ? VERDICT_BUDGET : 0;
  bool with_peak = o->json || o->seen[OPTION_REPEAT];
  dil_status status = DIL_OK;
  progress bar;
  progress_start(&bar, "running", 0, repeat);
  if (bar.shown) trial_watch(t, &bar.watch);
  for (int32_t i = 0; !status && i < repeat; i++) {
    status = trial_run(t, repeat, with_peak);
    progress_round(&bar);
  }
  trial_watch(t, NULL);
  progress_end(&bar);
  if (!status) status = trial_part(t, budget);
  if (status || !trial_speaks(t)) return status;
  status = trial_finish(t, budget);
  return status ? status : write_arrays(&t->binding, o);
}

/* Processes that were started together, and that no link joins: each does all of
 * it. The second of them says so. */
static dil_status note_company(const trial *t) {
  launch l;
  if (t->on_crew && t->crew.job) return DIL_OK;
  dil_status status = launch_read(&l);
  if (!status && l.rank == 1 && l.ranks > 1)
    message_note("one of %lld processes (%s) that each run all of it: a topology "
                 "with `link process`, `link mpi` or `link nccl` joins them",
                 (long long)l.ranks, l.ranks_by);
  return status;
}

dil_status command_run(arena *a, const options *o) {
  trial t;
  dil_status status = o->library
                          ? trial_open_library(a, o, &t)
                          : trial_open(a, o, 0, options_force(o), -1, &t);
  if (!status) status = note_company(&t);
  if (!status) status = run_trial(&t, o);
  message_compiled(o, &t.compilation, status);
  if (!status && trial_speaks(&t))
    (o->json ? report_json : report_text)(&t.report, stdout);
  if (!status && t.report.verdict && !t.verdict.good) {
    if (o->json) verdict_print(&t.verdict, stderr);
    status = DIL_MISMATCH;
  }
  trial_free(&t);
  return status;
}
