/* plan_case.c - see plan_case.h. */
#include "plan_case.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

diag *messages;

void open_plans(void) {
  open_memory();
  messages = diag_new(memory);
}

const pattern *pattern_of(const char *statements) {
  char *text = arena_print(
      memory, "pattern p { heads 4; head_dim 8; dtype f32; %s }", statements);
  program *p = program_parse(memory, messages, "p.dil", text, strlen(text),
                             NULL, 0);
  ck_assert_ptr_nonnull(p);
  return p->pattern[0];
}

plan *plan_of(const char *statements, unsigned force) {
  return plan_make(memory, messages, pattern_of(statements), force);
}

const char *printed(const plan *p) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  plan_print(p, out);
  fclose(out);
  const char *copy = arena_copy(memory, text, length);
  free(text);
  return copy;
}

const char *complaints(void) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  diag_print(messages, out, false);
  fclose(out);
  const char *copy = arena_copy(memory, text, length);
  free(text);
  return copy;
}
