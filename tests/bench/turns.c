/* turns.c - a call that is timed in turn with another program's. In: the
 * options of `dil bench`, one file, and on standard input a number a line. Out:
 * `ready` once the kernel is made; for each number n a line of n times in
 * seconds, the first after all code is made; at the end the report of the runs,
 * as JSON. */
#include "compiler/cli/session.h"
#include <stdlib.h>

enum { RUNS_MOST = 4096, QUERIES = 8192 };
#define CHECK_SECONDS 0.25 /* of the oracle */

static dil_status take_turn(session *t, long count) {
  dil_status status = DIL_OK;
  for (long i = 0; i < count && t->runs < RUNS_MOST && !status; i++) {
    status = session_run(t, RUNS_MOST, false);
    if (!status) printf("%s%.9g", i ? " " : "", t->seconds[t->runs - 1]);
  }
  putchar('\n');
  fflush(stdout);
  return status;
}

static dil_status take_turns(session *t) {
  char line[32];
  dil_status status = DIL_OK;
  puts("ready");
  fflush(stdout);
  session_settle(t);
  while (!status && fgets(line, sizeof line, stdin))
    status = take_turn(t, strtol(line, NULL, 10));
  if (!status) status = session_finish(t, CHECK_SECONDS);
  if (!status) report_json(&t->report, stdout);
  return status;
}

int main(int argc, char **argv) {
  arena *a = arena_new();
  options o;
  session t;
  dil_status status = options_read(a, VERB_bench, argc, argv, &o);
  if (status) return (int)status;
  status = session_open(a, &o, 0, options_force(&o), QUERIES, &t);
  if (!status) status = take_turns(&t);
  message_compiled(&o, &t.compilation, status);
  session_free(&t);
  arena_free(a);
  return (int)status;
}
