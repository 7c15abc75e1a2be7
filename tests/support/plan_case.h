/* plan_case.h - what the suites of plans share: a memory and messages for each
 * test, and patterns and plans made in them. */
#ifndef DIL_TESTS_SUPPORT_PLAN_CASE_H
#define DIL_TESTS_SUPPORT_PLAN_CASE_H

#include "compiler/plan/plan.h"
#include "patterns.h"

/* Of the test that runs, in `memory`. */
extern diag *messages;
/* A fixture, with close_memory(): memory and messages. */
void open_plans(void);

/* Of four heads of 8 in f32; the suite fails where the statements are wrong. */
const pattern *pattern_of(const char *statements);
plan *plan_of(const char *statements, unsigned force);
/* The text of a plan, and of all messages so far. */
const char *printed(const plan *p);
const char *complaints(void);

#endif
