/* command_run.c - `dil run FILE`: one call on arrays or random numbers. */
#include "gradient_setup.h"
#include "session.h"

static dil_status write_arrays(session *t, const options *o) {
  call_setup *b = &t->setup;
  if (o->seen[OPTION_STREAM]) return call_setup_publish(b);
  dil_status status = o->out ? call_write_wide(b, o->out, &b->call.o) : DIL_OK;
  if (!status && o->lse) status = dil_npy_write(o->lse, &b->call.lse);
  if (!status) status = call_choices_write(b);
  if (status || !o->backward) return status;
  return gradient_setup_write(b, &t->backward);
}

static dil_status run_session(session *t, const options *o) {
  int32_t repeat = o->seen[OPTION_REPEAT] ? (int32_t)o->repeat : 1;
  double budget = o->check ? ACCURACY_BUDGET : 0;
  bool with_peak = o->json || o->seen[OPTION_REPEAT];
  dil_status status = DIL_OK;
  progress bar;
  progress_start(&bar, "running", 0, repeat);
  if (bar.shown) session_watch(t, &bar.watch);
  for (int32_t i = 0; !status && i < repeat; i++) {
    status = session_run(t, repeat, with_peak);
    progress_round(&bar);
  }
  session_watch(t, NULL);
  progress_end(&bar);
  if (!status) status = session_leave(t, budget);
  if (status || !session_is_reporter(t)) return status;
  status = session_finish(t, budget);
  return status ? status : write_arrays(t, o);
}

/* Processes that were started together, and that no link joins: each does all of
 * it. The second of them says so. */
static dil_status note_company(const session *t) {
  launch l;
  if (t->ranks.job) return DIL_OK;
  dil_status status = launch_read(&l);
  if (!status && l.rank == 1 && l.ranks > 1)
    message_note("this is one of %lld processes (%s) that each run all of it: "
                 "a topology with `link process`, `link mpi` or `link nccl` "
                 "joins them",
                 (long long)l.ranks, l.ranks_by);
  return status;
}

dil_status command_run(arena *a, const options *o) {
  session t;
  dil_status status = o->library
                          ? session_open_library(a, o, &t)
                          : session_open(a, o, 0, options_force(o), -1, &t);
  if (!status) status = note_company(&t);
  if (!status) status = run_session(&t, o);
  message_compiled(o, &t.compilation, status);
  if (!status && session_is_reporter(&t))
    (o->json ? report_json : report_text)(&t.report, stdout);
  if (!status && !session_is_good(&t)) {
    if (o->json) session_print_accuracy(&t, stderr);
    status = DIL_MISMATCH;
  }
  session_free(&t);
  return status;
}
