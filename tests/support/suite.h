/* suite.h - how a program of tests ends. */
#ifndef DIL_TESTS_SUPPORT_SUITE_H
#define DIL_TESTS_SUPPORT_SUITE_H

#include <check.h>
#include <stdbool.h>

/* Runs and frees the suite; 0 when no test failed, for main to return.
 * CK_FORK_GETENV: a process a test, unless the environment says otherwise. */
int suite_run(Suite *suite, enum fork_status processes);

/* Whether all is wanted of which `make check` does a part (`make check-long`). */
bool suite_is_long(void);

#endif
