/* suite.h - how a program of tests ends. */
#ifndef DIL_TESTS_SUPPORT_SUITE_H
#define DIL_TESTS_SUPPORT_SUITE_H

#include <check.h>
#include <stdbool.h>

/* A sanitizer's build, in which times and memory mean little. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* Runs and frees the suite; 0 when no test failed, for main to return.
 * CK_FORK_GETENV: a process a test, unless the environment says otherwise. */
int suite_run(Suite *suite, enum fork_status processes);

/* Whether all is wanted of which `make check` does a part (`make check-long`). */
bool suite_is_long(void);

#endif
