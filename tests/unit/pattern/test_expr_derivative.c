/* test_expr_derivative.c - derivatives three times: as trees, by the dual
 * numbers of the oracle, by central differences; on random trees over all
 * operators, at the kinks, and where a factor is infinite. */
#include "compiler/oracle/oracle_dual.h"
#include "tests/support/patterns.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

/* ---- places -------------------------------------------------------------- */

enum { TABLE = 6 };
static double table[TABLE];

/* Input 0 is f32[TABLE], input 1 i32[TABLE]. */
static value read_table(void *context, int32_t index, const int32_t *at) {
  (void)context;
  if (at[0] < 0 || at[0] >= TABLE) return (value){0};
  return index ? (value){.integer = at[0] * 5 % TABLE}
               : (value){.real = table[at[0]]};
}

static expr_point place_at(double s, int32_t i, int32_t j) {
  return (expr_point){.b = 1, .h = 2, .i = i, .j = j, .B = 2, .N = 7, .M = 9,
                      .s = s, .input = read_table};
}

static expr *score(void) { return make_leaf(memory, EXPR_S_); }
static expr *number(double x) { return make_real(memory, x); }
static expr *one(expr_op op, expr *x) {
  return make_number(memory, op, x, NULL);
}
static expr *two(expr_op op, expr *x, expr *y) {
  return make_number(memory, op, x, y);
}
static expr *choice(expr *condition, expr *x, expr *y) {
  return make_expr(memory, EXPR_CHOOSE, TYPE_F32, 3, condition, x, y);
}
static expr *element(expr *index) {
  return make_input(memory, 0, TYPE_F32, index, NULL);
}

static double symbolic_slope(const expr *e, const expr *leaf,
                             const expr_point *point) {
  const expr *derivative = expr_derivative(memory, e, leaf);
  if (derivative == NULL) return 0;
  ck_assert_int_eq(derivative->type, TYPE_F32);
  return expr_eval(derivative, point, true).real;
}

static dual dual_by_score(const expr *e, const expr_point *point) {
  return dual_eval(e, &(dual_point){.point = *point, .slope = 1});
}

/* ---- at one place -------------------------------------------------------- */

static void check_slope(const expr *e, double s, double right) {
  expr_point point = place_at(s, 3, 4);
  double slope = symbolic_slope(e, score(), &point);
  double other = dual_by_score(e, &point).slope;
  ck_assert_msg(fabs(slope - right) <= 1e-14 * (1 + fabs(right)),
                "tree: %.17g, not %.17g", slope, right);
  ck_assert_msg(fabs(other - right) <= 1e-14 * (1 + fabs(right)),
                "dual: %.17g, not %.17g", other, right);
}

START_TEST(every_operator_has_its_rule) {
  expr *s = score(), *three = number(3);
  check_slope(s, 2, 1);
  check_slope(two(EXPR_ADD, s, s), 2, 2);
  check_slope(two(EXPR_SUB, three, s), 2, -1);
  check_slope(two(EXPR_MUL, s, two(EXPR_MUL, s, s)), 2, 12);
  check_slope(two(EXPR_DIV, s, three), 2, 1.0 / 3);
  check_slope(two(EXPR_DIV, three, s), 2, -0.75);
  check_slope(two(EXPR_MOD, s, three), 7, 1);
  check_slope(two(EXPR_MOD, number(7), s), 3, -2);
  check_slope(one(EXPR_NEG, s), 2, -1);
  check_slope(one(EXPR_EXP, two(EXPR_MUL, s, number(2))), 0.5, 2 * exp(1));
  check_slope(one(EXPR_LOG, s), 4, 0.25);
  check_slope(one(EXPR_SQRT, s), 4, 0.25);
  check_slope(one(EXPR_TANH, s), 0.5, 1 - tanh(0.5) * tanh(0.5));
  check_slope(one(EXPR_FLOOR, s), 2.5, 0);
  check_slope(one(EXPR_CEIL, s), 2.5, 0);
  check_slope(two(EXPR_MUL, s, make_whole(memory, s)), 2.5, 2);
  check_slope(two(EXPR_MUL, s, make_leaf(memory, EXPR_I_)), 2.5, 3);
}
END_TEST

START_TEST(kinks_follow_their_rules) {
  expr *s = score(), *zero = number(0), *nan = number(NAN);
  check_slope(one(EXPR_ABS, s), 0, 0);
  check_slope(one(EXPR_ABS, s), -0.0, 0);
  check_slope(one(EXPR_ABS, s), 1e-300, 1);
  check_slope(one(EXPR_ABS, s), -1e-300, -1);
  for (expr_op op = EXPR_MIN; op <= EXPR_MAX; op++) {
    double below = op == EXPR_MIN;
    check_slope(two(op, s, zero), 0, 0.5);
    check_slope(two(op, zero, s), 0, 0.5);
    check_slope(two(op, s, zero), -1, below);
    check_slope(two(op, zero, s), 1, 1 - below);
    check_slope(two(op, s, s), 5, 1);
    check_slope(two(op, s, two(EXPR_MUL, s, number(3))), 0, 2);
    check_slope(two(op, s, zero), NAN, 1);
    check_slope(two(op, zero, s), NAN, 1);
    check_slope(two(op, s, nan), 5, 0);
    check_slope(two(op, nan, s), 5, 0);
  }
  check_slope(two(EXPR_MOD, s, number(2)), 4, 1);
  check_slope(two(EXPR_MOD, number(4), s), 2, -2);
  expr *above = make_condition(memory, EXPR_GE, s, zero);
  check_slope(choice(above, two(EXPR_MUL, s, number(2)), zero), 0, 2);
  check_slope(choice(above, two(EXPR_MUL, s, number(2)), zero), -1, 0);
}
END_TEST

START_TEST(infinite_factors_stay_outside) {
  expr *s = score(), *zero = number(0), *nan = two(EXPR_DIV, zero, zero);
  expr *above = make_condition(memory, EXPR_GT, s, zero);
  check_slope(choice(above, one(EXPR_SQRT, s), zero), -1, 0);
  check_slope(choice(above, s, two(EXPR_MUL, s, nan)), 1, 1);
  check_slope(one(EXPR_SQRT, two(EXPR_MAX, s, zero)), -1, 0);
  check_slope(one(EXPR_SQRT, one(EXPR_ABS, s)), 0, 0);
  check_slope(one(EXPR_LOG, two(EXPR_MAX, s, zero)), -1, 0);
  check_slope(two(EXPR_MIN, s, one(EXPR_EXP, s)), 1000, 1);
  check_slope(one(EXPR_TANH, one(EXPR_EXP, s)), 1000, 0);
  check_slope(one(EXPR_EXP, one(EXPR_NEG, one(EXPR_EXP, s))), 1000, 0);
  check_slope(two(EXPR_DIV, two(EXPR_MAX, s, zero), zero), -1, 0);
}
END_TEST

START_TEST(reads_of_inputs) {
  expr *i = make_leaf(memory, EXPR_I_), *j = make_leaf(memory, EXPR_J_);
  expr *s = score(), *at_i = element(i), *at_j = element(j);
  for (int k = 0; k < TABLE; k++) table[k] = k + 2;
  /* s t[i] + t[j] t[j] */
  expr *e = two(EXPR_ADD, two(EXPR_MUL, s, at_i),
                two(EXPR_MUL, at_j, element(j)));
  const expr_point point = place_at(1.5, 3, 4);
  ck_assert_double_eq(symbolic_slope(e, element(i), &point), 1.5);
  ck_assert_double_eq(symbolic_slope(e, at_j, &point), 12);
  ck_assert_double_eq(symbolic_slope(e, s, &point), 5);
  dual_point at = {.point = point, .read = at_j};
  ck_assert_double_eq(dual_eval(e, &at).slope, 6); /* the node, not its like */
  expr *whole = make_input(memory, 1, TYPE_I32, i, NULL);
  ck_assert_ptr_null(expr_derivative(memory, two(EXPR_MUL, s, whole), whole));
  ck_assert_double_eq(symbolic_slope(two(EXPR_MUL, s, whole), s, &point), 3);
}
END_TEST

/* ---- the form of the trees ----------------------------------------------- */

static const dil_input inputs[2] = {{.name = "t"}, {.name = "n"}};

static void check_text(const expr *e, const expr *leaf, const char *right) {
  char *text;
  size_t length;
  const expr *derivative = expr_derivative(memory, e, leaf);
  if (right == NULL) {
    ck_assert_ptr_null(derivative);
    return;
  }
  ck_assert_ptr_nonnull(derivative);
  FILE *out = open_memstream(&text, &length);
  expr_print(derivative, inputs, out);
  fclose(out);
  ck_assert_str_eq(text, right);
  free(text);
}

START_TEST(zeros_and_ones_vanish) {
  expr *s = score(), *i = make_leaf(memory, EXPR_I_), *read = element(i);
  check_text(two(EXPR_ADD, s, read), s, "1.0");
  check_text(two(EXPR_ADD, s, read), read, "1.0");
  check_text(two(EXPR_MUL, s, read), s, "t[i]");
  check_text(two(EXPR_SUB, number(1), two(EXPR_MUL, s, read)), s, "-t[i]");
  check_text(two(EXPR_MUL, number(3), number(2)), s, NULL);
  check_text(read, s, NULL);
  check_text(two(EXPR_MUL, s, number(0)), read, NULL);
  check_text(one(EXPR_EXP, s), s, "exp(s)");
  check_text(two(EXPR_MUL, s, i), s, "i * 1.0");
  expr *above = make_condition(memory, EXPR_LT, i, make_int(memory, 4));
  check_text(choice(above, s, number(-INFINITY)), s, "i < 4 ? 1.0 : 0.0");
  check_text(choice(above, s, two(EXPR_ADD, s, read)), s, "1.0");
  check_text(two(EXPR_MIN, s, two(EXPR_ADD, s, read)), s, "1.0");
  expr *cap = two(EXPR_MUL, number(50),
                  one(EXPR_TANH, two(EXPR_DIV, s, number(50))));
  check_text(cap, s,
             "50.0 * ((1.0 - tanh(s / 50.0) * tanh(s / 50.0)) * 0.02)");
}
END_TEST

/* ---- random trees -------------------------------------------------------- */

static expr *any_tree(uint64_t *state, int depth);

static expr *any_leaf(uint64_t *state) {
  static const double constants[] = {0.5, 2, -1.5, 3, 0.25, -1};
  switch (random_in(state, 0, 5)) {
  case 0:
  case 1: return score();
  case 2: return element(make_leaf(memory, EXPR_I_));
  case 3: return element(make_leaf(memory, EXPR_J_));
  case 4: return number(constants[random_in(state, 0, 5)]);
  default: return two(EXPR_SUB, make_leaf(memory, EXPR_I_),
                      make_leaf(memory, EXPR_J_));
  }
}

static expr *any_tree(uint64_t *state, int depth) {
  static const expr_op pairs[] = {EXPR_ADD, EXPR_SUB, EXPR_MUL, EXPR_DIV,
                                  EXPR_MOD, EXPR_MIN, EXPR_MAX};
  static const expr_op singles[] = {EXPR_NEG, EXPR_ABS,   EXPR_EXP, EXPR_LOG,
                                    EXPR_SQRT, EXPR_TANH, EXPR_FLOOR,
                                    EXPR_CEIL};
  if (depth == 0) return any_leaf(state);
  expr *x = any_tree(state, depth - 1);
  int64_t kind = random_in(state, 0, 9);
  if (kind < 4) return one(singles[random_in(state, 0, 7)], x);
  expr *y = any_tree(state, depth - 1);
  if (kind == 4 && x->type == y->type && x->type == TYPE_F32)
    return choice(make_condition(memory, EXPR_LT, any_leaf(state), score()), x,
                  y);
  return two(pairs[random_in(state, 0, 6)], x, y);
}

/* The nodes that read the table at the same place as `leaf`. */
static double dual_slope(const expr *e, const expr *top, const expr *leaf,
                         const expr_point *point) {
  double slope = 0;
  if (leaf->op == EXPR_S_) return dual_by_score(top, point).slope;
  if (e->op == EXPR_INPUT && expr_same(e, leaf))
    return dual_eval(top, &(dual_point){.point = *point, .read = e}).slope;
  for (int32_t k = 0; k < e->count; k++)
    slope += dual_slope(e->arg[k], top, leaf, point);
  return slope;
}

static double moved_value(const expr *e, const expr *leaf, expr_point point,
                          double step) {
  double *x = leaf->op == EXPR_S_ ? &point.s : &table[point.i];
  double here = *x;
  *x = here + step;
  double moved = expr_eval(e, &point, true).real;
  *x = here;
  return moved;
}

static double difference_slope(const expr *e, const expr *leaf,
                               const expr_point *point, double step) {
  return (moved_value(e, leaf, *point, step) -
          moved_value(e, leaf, *point, -step)) / (2 * step);
}

static bool near(double a, double b, double tolerance) {
  return fabs(a - b) <= tolerance * (1 + fabs(a) + fabs(b));
}

/* Whether differences of two steps say the same: no kink, no jump lies between. */
static bool compare_slopes(const expr *e, const expr *leaf,
                           const expr_point *point) {
  double here = expr_eval(e, point, true).real;
  double again = dual_by_score(e, point).value;
  ck_assert(here == again || (isnan(here) && isnan(again)));
  double slope = dual_slope(e, e, leaf, point);
  if (!isfinite(here) || !isfinite(slope) || fabs(slope) > 1e6) return false;
  double is = symbolic_slope(e, leaf, point);
  ck_assert_msg(near(is, slope, 1e-9), "tree %.17g, dual %.17g", is, slope);
  double wide = difference_slope(e, leaf, point, 0x1p-14);
  double narrow = difference_slope(e, leaf, point, 0x1p-15);
  if (!near(wide, narrow, 1e-6)) return false;
  ck_assert_msg(near(narrow, slope, 1e-5), "differences %.17g, dual %.17g",
                narrow, slope);
  return true;
}

START_TEST(random_trees_agree) {
  uint64_t state = 5;
  int compared = 0, sloped = 0;
  for (int k = 0; k < 4000; k++) {
    if (k % 100 == 0) fresh_memory();
    for (int x = 0; x < TABLE; x++)
      table[x] = (double)random_in(&state, -3000, 3000) / 1000;
    double s = (double)random_in(&state, -3000, 3000) / 1000;
    const expr_point point = place_at(s, (int32_t)random_in(&state, 0, 2),
                                      (int32_t)random_in(&state, 3, 5));
    expr *e = any_tree(&state, 1 + k % 4), *i = make_leaf(memory, EXPR_I_);
    if (e->type != TYPE_F32) continue;
    compared += compare_slopes(e, score(), &point);
    compared += compare_slopes(e, element(i), &point);
    sloped += symbolic_slope(e, score(), &point) != 0;
  }
  ck_assert_int_gt(compared, 4000);
  ck_assert_int_gt(sloped, 1500);
}
END_TEST

/* A score that is NaN leaves a slope of exactly 0 in both, or in none. */
START_TEST(random_trees_agree_on_nan) {
  uint64_t state = 6;
  int flat = 0;
  for (int k = 0; k < 12000; k++) {
    if (k % 100 == 0) fresh_memory();
    for (int x = 0; x < TABLE; x++)
      table[x] = (double)random_in(&state, -3, 3);
    const expr_point point = place_at(NAN, 1, 4);
    expr *e = any_tree(&state, 1 + k % 4);
    if (e->type != TYPE_F32) continue;
    double is = symbolic_slope(e, score(), &point);
    double slope = dual_by_score(e, &point).slope;
    bool same = is == slope || near(is, slope, 1e-9);
    ck_assert_msg(isnan(is) ? isnan(slope) : same,
                  "case %d: tree %.17g, dual %.17g", k, is, slope);
    flat += is == 0;
  }
  ck_assert_int_gt(flat, 1000);
}
END_TEST

static int reads_of(const expr *e, const expr *leaf) {
  int count = e->op == EXPR_INPUT && expr_same(e, leaf);
  for (int32_t k = 0; k < e->count; k++) count += reads_of(e->arg[k], leaf);
  return count;
}

/* Scores and inputs are infinite, or so large that what follows from them is:
 * where the value is a number or infinite, both have the same slope, or none. */
START_TEST(random_trees_agree_at_infinities) {
  static const double far[] = {INFINITY, -INFINITY, 1e200, -1e200, 800, -800};
  uint64_t state = 7;
  int flat = 0, sloped = 0;
  for (int k = 0; k < 20000; k++) {
    if (k % 100 == 0) fresh_memory();
    for (int x = 0; x < TABLE; x++)
      table[x] = k % 3 ? (double)random_in(&state, -3, 3)
                       : far[random_in(&state, 0, 5)];
    const expr_point point = place_at(far[k % 6], 1, 4);
    expr *e = any_tree(&state, 1 + k % 4), *i = make_leaf(memory, EXPR_I_);
    if (e->type != TYPE_F32 || isnan(expr_eval(e, &point, true).real))
      continue;
    const expr *const leaves[] = {score(), element(i)};
    for (int n = 0; n < 1 + (reads_of(e, leaves[1]) == 1); n++) {
      double is = symbolic_slope(e, leaves[n], &point);
      double slope = dual_slope(e, e, leaves[n], &point);
      bool finite = isfinite(is) && isfinite(slope);
      bool same = is == slope || (finite && near(is, slope, 1e-9));
      ck_assert_msg(isnan(is) ? isnan(slope) : same,
                    "case %d, leaf %d: tree %.17g, dual %.17g", k, n, is,
                    slope);
      flat += is == 0;
      sloped += is != 0;
    }
  }
  ck_assert_int_gt(flat, 1000);
  ck_assert_int_gt(sloped, 1000);
}
END_TEST

/* ---- the suite ----------------------------------------------------------- */

static Suite *expr_derivative_suite(void) {
  Suite *suite = suite_create("expr_derivative");
  TCase *tests = tcase_create("expr_derivative");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, every_operator_has_its_rule);
  tcase_add_test(tests, kinks_follow_their_rules);
  tcase_add_test(tests, infinite_factors_stay_outside);
  tcase_add_test(tests, reads_of_inputs);
  tcase_add_test(tests, zeros_and_ones_vanish);
  tcase_add_test(tests, random_trees_agree);
  tcase_add_test(tests, random_trees_agree_on_nan);
  tcase_add_test(tests, random_trees_agree_at_infinities);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  return suite_run(expr_derivative_suite(), CK_FORK_GETENV);
}
