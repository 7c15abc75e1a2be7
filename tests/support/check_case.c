/* check_case.c - see check_case.h. */
#include "check_case.h"
#include <check.h>
#include <string.h>

call_setup bound;
static options given;

void close_call(void) {
  call_setup_free(&bound);
  close_memory();
}

const pattern *parse_pattern(const char *text) {
  const program *p = program_parse(memory, diag_new(memory), "test", text,
                                   strlen(text), NULL, 0);
  ck_assert_msg(p && p->pattern_count == 1, "the pattern is not accepted");
  return p->pattern[0];
}

dil_status open_call(const char *text, int argc, char **argv) {
  ck_assert_int_eq(options_read(memory, VERB_run, argc, argv, &given), DIL_OK);
  ck_assert_int_eq(call_setup_open(memory, &given, parse_pattern(text), &bound),
                   DIL_OK);
  return call_setup_tensors(&bound, -1);
}
