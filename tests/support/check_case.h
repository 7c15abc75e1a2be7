/* check_case.h - what the suites of `--check` share: a `dil run` of a pattern and
 * options, up to its tensors. */
#ifndef DIL_TESTS_SUPPORT_CHECK_CASE_H
#define DIL_TESTS_SUPPORT_CHECK_CASE_H

#include "compiler/cli/call_setup.h"
#include "patterns.h"

/* The call of the test that runs. */
extern call_setup bound;
/* A fixture, with its memory. */
void close_call(void);
/* The only pattern of a text; the suite fails where it has none. */
const pattern *parse_pattern(const char *text);
/* Makes `bound` of the words of a command line. The status is that of its
 * tensors. */
dil_status open_call(const char *text, int argc, char **argv);

#endif
