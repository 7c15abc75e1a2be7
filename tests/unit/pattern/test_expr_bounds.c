/* test_expr_bounds.c - bounds of expressions over boxes: they hold every value
 * of thousands of random trees, narrow with the box, and are sharp for the
 * conditions that patterns are made of. */
#include "tests/support/random_expr.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

static expr_box any_box(tree_maker *m) {
  static const int32_t corners[] = {0,  0,   1,         -5,
                                    60, 126, INT32_MAX - 9, INT32_MIN};
  int32_t i = corners[random_in(&m->state, 0, 7)];
  int32_t j = corners[random_in(&m->state, 0, 7)];
  return (expr_box){.point = tree_point(0, 0),
                    .i0 = i,
                    .i1 = i + (int32_t)random_in(&m->state, 0, 7),
                    .j0 = j,
                    .j1 = j + (int32_t)random_in(&m->state, 0, 7),
                    .range = tree_range};
}

static void check_value(const expr *e, interval in, const expr_point *point,
                        bool wide) {
  value v = expr_eval(e, point, wide);
  double number = e->type == TYPE_F32 ? v.real : (double)v.integer;
  bool inside = isnan(number) ? in.nan : in.low <= number && number <= in.high;
  if (inside) return;
  char *text = tree_text(e);
  ck_abort_msg("%s at i %d j %d wide %d: %.17g is not in [%.17g, %.17g] nan %d",
               text, point->i, point->j, wide, number, in.low, in.high,
               in.nan);
}

static void check_box(const expr *e, const expr_box *box) {
  interval in = expr_bounds(e, box);
  ck_assert(in.low <= in.high);
  if (e->type == TYPE_CONDITION) ck_assert(in.low >= 0 && in.high <= 1);
  for (int64_t i = box->i0; i <= box->i1; i++)
    for (int64_t j = box->j0; j <= box->j1; j++) {
      expr_point point = tree_point((int32_t)i, (int32_t)j);
      check_value(e, in, &point, false);
      check_value(e, in, &point, true);
    }
}

START_TEST(bounds_hold_every_value) {
  tree_maker m = {memory, 77, false};
  for (int k = 0; k < 12000; k++) {
    if (k % 500 == 0) m.memory = fresh_memory();
    m.exact = k % 2;
    expr_type type = (expr_type)random_in(&m.state, TYPE_CONDITION, TYPE_F32);
    expr *e = tree_random(&m, type, (int)random_in(&m.state, 1, 5));
    expr_box box = any_box(&m);
    check_box(e, &box);
  }
}
END_TEST

static bool is_within(interval small, interval large) {
  return large.low <= small.low && small.high <= large.high &&
         (large.nan || !small.nan);
}

START_TEST(bounds_narrow_with_the_box) {
  tree_maker m = {memory, 5, true};
  for (int k = 0; k < 4000; k++) {
    if (k % 500 == 0) m.memory = fresh_memory();
    expr *e = tree_random(&m, TYPE_CONDITION, 4);
    expr_box large = any_box(&m), small = large;
    small.i0 = (int32_t)random_in(&m.state, large.i0, large.i1);
    small.i1 = (int32_t)random_in(&m.state, small.i0, large.i1);
    small.j0 = (int32_t)random_in(&m.state, large.j0, large.j1);
    small.j1 = (int32_t)random_in(&m.state, small.j0, large.j1);
    ck_assert(is_within(expr_bounds(e, &small), expr_bounds(e, &large)));
  }
}
END_TEST

/* Bounds that are right but never sharp would make every tile partial. */
START_TEST(bounds_are_sharp_where_it_counts) {
  expr *i = make_leaf(memory, EXPR_I_), *j = make_leaf(memory, EXPR_J_);
  expr_box box = {.point = tree_point(0, 0), .i0 = 128, .i1 = 191, .j0 = 64,
                  .j1 = 127};
  expr *gap = make_number(memory, EXPR_ABS,
                          make_number(memory, EXPR_SUB, i, j), NULL);
  interval in = expr_bounds(gap, &box);
  ck_assert_double_eq(in.low, 1);
  ck_assert_double_eq(in.high, 127);
  expr *block = make_number(memory, EXPR_DIV, i, make_int(memory, 64));
  in = expr_bounds(block, &box);
  ck_assert_double_eq(in.low, 2);
  ck_assert_double_eq(in.high, 2);
  expr *hash = make_expr(memory, EXPR_HASH, TYPE_I32, 1, block);
  in = expr_bounds(hash, &box);
  ck_assert_double_eq(in.low, in.high);
  expr_point inside = tree_point(190, 0);
  ck_assert_double_eq(in.low, (double)expr_eval(hash, &inside, false).integer);
  expr *half = make_number(memory, EXPR_MUL, i, make_real(memory, -0.5));
  in = expr_bounds(make_whole(memory, half), &box);
  ck_assert_double_eq(in.low, -96);
  ck_assert_double_eq(in.high, -64);
  expr *row = make_number(memory, EXPR_SUB, i,
                          make_number(memory, EXPR_SUB,
                                      make_leaf(memory, EXPR_M_),
                                      make_leaf(memory, EXPR_N_)));
  in = expr_bounds(row, &box); /* M - N is 2 */
  ck_assert_double_eq(in.low, 126);
  ck_assert_double_eq(in.high, 189);
  expr *rest = make_number(memory, EXPR_MOD, i, make_int(memory, 128));
  in = expr_bounds(rest, &box);
  ck_assert_double_eq(in.low, 0);
  ck_assert_double_eq(in.high, 63);
}
END_TEST

/* ---- the suite ----------------------------------------------------------- */

static Suite *bounds_suite(void) {
  Suite *suite = suite_create("bounds");
  TCase *tests = tcase_create("bounds");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, bounds_hold_every_value);
  tcase_add_test(tests, bounds_narrow_with_the_box);
  tcase_add_test(tests, bounds_are_sharp_where_it_counts);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  return suite_run(bounds_suite(), CK_FORK_GETENV);
}
