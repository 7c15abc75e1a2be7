/* test_score_form.c - the forms of score chains: which chains have one, and
 * that a form has the chain's value at every pair. */
#include "compiler/plan/plan.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

static arena *memory;
static diag *messages;

static void open_memory(void) {
  memory = arena_new();
  messages = diag_new(memory);
}
static void close_memory(void) {
  arena_free(memory);
}

/* The form of a pattern's only chain; *of is its plan. */
static score_form form_of(const char *statements, plan **of) {
  char *text = arena_print(memory,
                           "pattern p { heads 4; head_dim 8; dtype f32; "
                           "input slope : f32[H]; input w : f32[M]; %s "
                           "branch { } }",
                           statements);
  program *p =
      program_parse(memory, messages, "p.dil", text, strlen(text), NULL, 0);
  ck_assert_ptr_nonnull(p);
  *of = plan_make(memory, messages, p->pattern[0], 0);
  ck_assert_ptr_nonnull(*of);
  ck_assert_int_eq((*of)->table.chain_count, 1);
  return (*of)->form[0];
}

/* An element of either input, which may be infinite. */
static value read_input(void *context, int32_t index, const int32_t *at) {
  (void)context;
  return (value){.real = 0.25 * at[0] - index};
}

static double chain_at(const plan *p, expr_point point) {
  for (expr **x = p->chain[0]; *x; x++)
    point.s = expr_eval(*x, &point, true).real;
  return point.s;
}

static double tree_at(const expr *e, const expr_point *point) {
  if (!e) return 0;
  value x = expr_eval(e, point, true);
  return e->type == TYPE_F32 ? x.real : (double)x.integer;
}

static double form_at(const score_form *f, const expr_point *point) {
  double away = point->j - point->i, distance = point->j;
  if (f->kind == SCORE_CAPPED) return f->cap * tanh(f->rate * point->s);
  if (f->distance != DISTANCE_KEY)
    distance = f->distance == DISTANCE_SIZE ? fabs(away) : away;
  return point->s + tree_at(f->slope, point) * distance +
         tree_at(f->row, point);
}

static const struct {
  const char *statements;
  score_kind kind;
  score_distance distance;
  bool slope, row;
} forms[] = {
    {"score s - slope[h] * (i - j);", SCORE_LINEAR, DISTANCE_AWAY, true, false},
    {"causal; score s - slope[h] * abs(i - j);", SCORE_LINEAR, DISTANCE_AWAY,
     true, false},
    {"window 0, 8; score s + abs(j - i) * 0.5;", SCORE_LINEAR, DISTANCE_AWAY,
     true, false},
    {"score s - (h + 1) * 0.125 * abs(i - j);", SCORE_LINEAR, DISTANCE_SIZE,
     true, false},
    {"score s + 0.5 * j - 0.25 * i;", SCORE_LINEAR, DISTANCE_KEY, true, true},
    {"score s + 0.5 * (i + j) - i / 2.0;", SCORE_LINEAR, DISTANCE_KEY, true,
     false},
    {"score s + i % 3; score h - -s;", SCORE_LINEAR, DISTANCE_KEY, false, true},
    {"score 30 * tanh(s / 30);", SCORE_CAPPED, DISTANCE_KEY, false, false},
    {"score tanh(0.5 * s) * 7;", SCORE_CAPPED, DISTANCE_KEY, false, false},
};

START_TEST(a_form_is_its_chain) {
  plan *p;
  score_form f = form_of(forms[_i].statements, &p);
  ck_assert_int_eq(f.kind, forms[_i].kind);
  ck_assert_int_eq(f.distance, forms[_i].distance);
  ck_assert_int_eq(f.slope != NULL, forms[_i].slope);
  ck_assert_int_eq(f.row != NULL, forms[_i].row);
  bool causal = strstr(forms[_i].statements, "causal") != NULL;
  bool later = strstr(forms[_i].statements, "window") != NULL;
  for (int32_t i = 0; i < 9; i++)
    for (int32_t j = later ? i : 0; j < (causal ? i + 1 : 9); j++) {
      expr_point point = {.h = (i + j) % 4,
                          .i = i,
                          .j = j,
                          .B = 1,
                          .N = 9,
                          .M = 9,
                          .s = 0.75 * i - j,
                          .input = read_input};
      ck_assert_double_eq_tol(form_at(&f, &point), chain_at(p, point), 1e-9);
    }
}
END_TEST

/* Not linear; linear with another factor of s; an addend of the row that may be
 * infinite, or is not known; integers that wrap. */
static const char *const others[] = {
    "score s + w[j];",
    "score s + i * j;",
    "score 0.5 * s - slope[h] * (i - j);",
    "score slope[h] * s;",
    "score s + slope[h] * i;",
    "score s + 0.1 * M;",
    "score s + (i - j) * 1000000;",
    "score s + (i - j) / 8;",
    "score s + abs(i - 2 * j);",
    "score s > 3 ? s : 0.5 * s;",
    "score -30 * tanh(s / 30);",
    "score 30 * tanh(s / 30) - slope[h] * (i - j);",
    "score slope[h] * tanh(s);",
};

START_TEST(other_chains_have_none) {
  plan *p;
  ck_assert_int_eq(form_of(others[_i], &p).kind, SCORE_ANY);
}
END_TEST

START_TEST(without_scores_there_is_none) {
  plan *p;
  ck_assert_int_eq(form_of("causal;", &p).kind, SCORE_ANY);
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

int main(void) {
  Suite *suite = suite_create("score_form");
  TCase *tests = tcase_create("forms");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_add_loop_test(tests, a_form_is_its_chain, 0, COUNT(forms));
  tcase_add_loop_test(tests, other_chains_have_none, 0, COUNT(others));
  tcase_add_test(tests, without_scores_there_is_none);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
