/* test_expr.c - the meaning of expressions: known values, folding, and text
 * that reads back as the same tree. */
#include "tests/support/random_expr.h"
#include "tests/support/suite.h"
#include <check.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static value value_of(const expr *e, bool wide) {
  expr_point point = tree_point(4, -3);
  return expr_eval(e, &point, wide);
}

/* ---- known values -------------------------------------------------------- */

static const struct {
  expr_op op;
  int64_t a, b, result;
} integers[] = {
    {EXPR_ADD, INT32_MAX, 1, INT32_MIN},
    {EXPR_SUB, INT32_MIN, 1, INT32_MAX},
    {EXPR_MUL, 65536, 65536, 0},
    {EXPR_MUL, INT32_MIN, -1, INT32_MIN},
    {EXPR_MUL, 123456789, 987654321, -67153019},
    {EXPR_DIV, -1, 2, -1},
    {EXPR_DIV, 7, -2, -4},
    {EXPR_DIV, -7, -2, 3},
    {EXPR_DIV, 5, 0, 0},
    {EXPR_DIV, INT32_MIN, -1, INT32_MIN},
    {EXPR_MOD, -1, 5, 4},
    {EXPR_MOD, 7, -3, -2},
    {EXPR_MOD, -7, -3, -1},
    {EXPR_MOD, 6, -3, 0},
    {EXPR_MOD, 5, 0, 0},
    {EXPR_MOD, INT32_MIN, -1, 0},
    {EXPR_MIN, -3, 2, -3},
    {EXPR_MAX, -3, 2, 2},
};

START_TEST(integers_wrap_and_floor) {
  expr *e = make_number(memory, integers[_i].op,
                        make_int(memory, integers[_i].a),
                        make_int(memory, integers[_i].b));
  ck_assert_int_eq(value_of(e, false).integer, integers[_i].result);
  ck_assert_int_eq(value_of(e, true).integer, integers[_i].result);
}
END_TEST

START_TEST(unary_integers) {
  expr *least = make_int(memory, INT32_MIN), *five = make_int(memory, -5);
  ck_assert_int_eq(
      value_of(make_number(memory, EXPR_NEG, least, NULL), false).integer,
      INT32_MIN);
  ck_assert_int_eq(
      value_of(make_number(memory, EXPR_ABS, least, NULL), false).integer,
      INT32_MIN);
  ck_assert_int_eq(
      value_of(make_number(memory, EXPR_ABS, five, NULL), false).integer, 5);
  ck_assert_int_eq(
      value_of(make_number(memory, EXPR_FLOOR, five, NULL), false).integer,
      -5);
}
END_TEST

START_TEST(leaves_are_read_from_the_point) {
  static const struct { expr_op op; int64_t result; } leaves[] = {
      {EXPR_B_, 1}, {EXPR_H_, 5}, {EXPR_I_, 4},  {EXPR_J_, -3},
      {EXPR_N_, 9}, {EXPR_M_, 11}, {EXPR_BATCH, 2}};
  for (size_t k = 0; k < sizeof leaves / sizeof *leaves; k++)
    ck_assert_int_eq(
        value_of(make_leaf(memory, leaves[k].op), false).integer,
        leaves[k].result);
  ck_assert_double_eq(value_of(make_leaf(memory, EXPR_S_), true).real, 0.75);
}
END_TEST

static const struct {
  double x;
  int64_t result;
} wholes[] = {{2.5, 2}, {-2.5, -3}, {-0.0, 0}, {-0.0625, -1}, {7, 7},
              {1e-42, 0}, {-1e-42, -1}, {2147483520, 2147483520},
              {2147483648, INT32_MAX}, {-2147483648, INT32_MIN},
              {3e9, INT32_MAX}, {-3e9, INT32_MIN}, {INFINITY, INT32_MAX},
              {-INFINITY, INT32_MIN}, {NAN, 0}};

START_TEST(int_floors_and_saturates) {
  expr *e = make_whole(memory, make_real(memory, wholes[_i].x));
  ck_assert_int_eq(value_of(e, false).integer, wholes[_i].result);
  ck_assert_int_eq(value_of(e, true).integer, wholes[_i].result);
  ck_assert_int_eq(expr_fold(memory, e)->op, EXPR_INT);
  ck_assert_int_eq(expr_fold(memory, e)->integer, wholes[_i].result);
}
END_TEST

/* In f32 0.7 * 90 is 63, in float64 it is less. */
START_TEST(int_is_the_same_in_scores) {
  expr *product = make_number(memory, EXPR_MUL, make_real(memory, 0.7),
                              make_int(memory, 90));
  ck_assert_double_lt(value_of(product, true).real, 63);
  expr *e = make_whole(memory, product);
  ck_assert_int_eq(value_of(e, true).integer, 63);
  ck_assert_int_eq(expr_fold(memory, e)->integer, 63);
  expr *j = make_leaf(memory, EXPR_J_); /* -3 */
  e = make_number(memory, EXPR_MUL, make_real(memory, 0.7),
                  make_number(memory, EXPR_ADD, j, make_int(memory, 93)));
  ck_assert_int_eq(value_of(make_whole(memory, e), true).integer, 63);
}
END_TEST

static double real_of(expr_op op, double a, double b, bool wide) {
  return value_of(make_number(memory, op, make_real(memory, a),
                              make_real(memory, b)),
                  wide).real;
}

START_TEST(floats_round_once_or_stay_wide) {
  ck_assert_double_eq(value_of(make_real(memory, 0.1), true).real, 0.1);
  ck_assert_double_eq(value_of(make_real(memory, 0.1), false).real,
                      (double)0.1f);
  ck_assert_double_eq(real_of(EXPR_ADD, 16777216, 1, false), 16777216);
  ck_assert_double_eq(real_of(EXPR_ADD, 16777216, 1, true), 16777217);
  volatile float third = 1.0f / 3.0f;
  ck_assert_double_eq(real_of(EXPR_DIV, 1, 3, false), (double)third);
  ck_assert_double_eq(real_of(EXPR_DIV, 1, 3, true), 1.0 / 3.0);
  ck_assert(isinf(real_of(EXPR_MUL, 1e38, 10, false)));
  ck_assert_double_eq(real_of(EXPR_MUL, 1e38, 10, true), 1e39);
  ck_assert(isinf(real_of(EXPR_DIV, 1, 0, false)));
  ck_assert(isnan(real_of(EXPR_DIV, 0, 0, false)));
}
END_TEST

START_TEST(float_modulo_floors) {
  ck_assert_double_eq(real_of(EXPR_MOD, 5.5, 2, false), 1.5);
  ck_assert_double_eq(real_of(EXPR_MOD, -5.5, 2, false), 0.5);
  ck_assert_double_eq(real_of(EXPR_MOD, 5.5, -2, true), -0.5);
  ck_assert(isnan(real_of(EXPR_MOD, 5.5, 0, false)));
}
END_TEST

/* f32 results agree with what the machine computes in float. */
START_TEST(f32_operations_are_ieee) {
  uint64_t state = 1;
  for (int k = 0; k < 20000; k++) {
    uint32_t bits[2] = {(uint32_t)random_bits(&state),
                        (uint32_t)random_bits(&state)};
    float a, b;
    memcpy(&a, &bits[0], 4), memcpy(&b, &bits[1], 4);
    if (isnan(a) || isnan(b)) continue;
    const float expected[4] = {a + b, a - b, a * b, a / b};
    for (int op = 0; op < 4; op++) {
      double result = real_of(EXPR_ADD + op, a, b, false);
      if (isnan(expected[op]))
        ck_assert(isnan(result));
      else
        ck_assert_double_eq(result, (double)expected[op]);
    }
  }
}
END_TEST

static bool truth_of(expr_op op, expr *a, expr *b) {
  return value_of(make_condition(memory, op, a, b), false).integer != 0;
}

START_TEST(nan_compares_as_in_c) {
  expr *nan = make_number(memory, EXPR_DIV, make_real(memory, 0),
                          make_real(memory, 0));
  expr *one = make_real(memory, 1);
  for (expr_op op = EXPR_EQ; op <= EXPR_GE; op++) {
    ck_assert_int_eq(truth_of(op, nan, one), op == EXPR_NE);
    ck_assert_int_eq(truth_of(op, one, nan), op == EXPR_NE);
    ck_assert_int_eq(truth_of(op, nan, nan), op == EXPR_NE);
  }
  for (expr_op op = EXPR_MIN; op <= EXPR_MAX; op++) {
    ck_assert(isnan(value_of(make_number(memory, op, nan, one), true).real));
    ck_assert(isnan(value_of(make_number(memory, op, one, nan), true).real));
  }
}
END_TEST

START_TEST(mixed_comparison_promotes) {
  expr *whole_number = make_int(memory, 16777217);
  expr *real = make_real(memory, 16777216);
  ck_assert(truth_of(EXPR_EQ, whole_number, real));
  expr *equal = make_condition(memory, EXPR_EQ, whole_number, real);
  ck_assert_int_eq(value_of(equal, true).integer, 0);
}
END_TEST

/* hash(3, -2, 7) worked out step by step from the definition */
START_TEST(hash_follows_its_definition) {
  const int64_t arguments[3] = {3, -2, 7};
  uint32_t x = 0x9E3779B9u;
  for (int k = 0; k < 3; k++) {
    x = x ^ (uint32_t)arguments[k];
    x = x ^ (x >> 16);
    x = (uint32_t)((uint64_t)x * 0x7FEB352Du % 4294967296u);
    x = x ^ (x >> 15);
    x = (uint32_t)((uint64_t)x * 0x846CA68Bu % 4294967296u);
    x = x ^ (x >> 16);
  }
  expr *e = make_expr(memory, EXPR_HASH, TYPE_I32, 3, make_int(memory, 3),
                      make_int(memory, -2), make_int(memory, 7));
  ck_assert_int_eq(value_of(e, false).integer, x / 2);
  ck_assert_int_eq(expr_fold(memory, e)->integer, x / 2);
}
END_TEST

START_TEST(choice_promotes_to_its_type) {
  expr *e = make_expr(memory, EXPR_CHOOSE, TYPE_F32, 3,
                      make_condition(memory, EXPR_LT,
                                     make_leaf(memory, EXPR_J_),
                                     make_int(memory, 0)),
                      make_int(memory, 16777217), make_real(memory, 0.5));
  ck_assert_double_eq(value_of(e, true).real, 16777217);
  ck_assert_double_eq(value_of(e, false).real, 16777216);
}
END_TEST

START_TEST(inputs_outside_read_zero) {
  expr *e = make_input(memory, 0, TYPE_I32, make_leaf(memory, EXPR_J_), NULL);
  ck_assert_int_eq(value_of(e, false).integer, 0);
  e = make_input(memory, 1, TYPE_F32, make_leaf(memory, EXPR_B_), NULL);
  ck_assert_double_eq(value_of(e, false).real, (double)-1e30f);
}
END_TEST

/* ---- folding ------------------------------------------------------------- */

START_TEST(constants_fold_in_64_bits) {
  expr *large = make_number(memory, EXPR_MUL, make_int(memory, 3000000000),
                            make_int(memory, 1000));
  expr *e = expr_fold(memory, make_number(memory, EXPR_DIV, large,
                                          make_int(memory, 1000000)));
  ck_assert_int_eq(e->op, EXPR_INT);
  ck_assert_int_eq(e->integer, 3000000);
  e = expr_fold(memory, make_condition(memory, EXPR_GT, large,
                                       make_int(memory, 5)));
  ck_assert_int_eq(e->op, EXPR_TRUTH);
  ck_assert_int_eq(e->integer, 1);
}
END_TEST

START_TEST(floats_fold_where_both_roundings_agree) {
  expr *half = expr_fold(memory, make_number(memory, EXPR_DIV,
                                             make_real(memory, 1),
                                             make_int(memory, 2)));
  ck_assert_int_eq(half->op, EXPR_REAL);
  ck_assert_double_eq(half->real, 0.5);
  /* 0.7f * 0.7f in f32 is not the f32 nearest 0.7 * 0.7 */
  expr *apart = make_number(memory, EXPR_MUL, make_real(memory, 0.7),
                            make_real(memory, 0.7));
  ck_assert_double_ne(value_of(apart, false).real,
                      (double)(float)value_of(apart, true).real);
  ck_assert_int_eq(expr_fold(memory, apart)->op, EXPR_MUL);
}
END_TEST

START_TEST(rounding_an_integer_folds_away) {
  expr *i = make_leaf(memory, EXPR_I_);
  ck_assert(expr_fold(memory, make_number(memory, EXPR_CEIL, i, NULL)) == i);
  expr *half = make_number(memory, EXPR_MUL, i, make_real(memory, 0.5));
  expr *floored = make_number(memory, EXPR_FLOOR, half, NULL);
  ck_assert_int_eq(expr_fold(memory, floored)->op, EXPR_FLOOR);
}
END_TEST

START_TEST(known_sides_of_conditions_fold) {
  expr *unknown = make_condition(memory, EXPR_LT, make_leaf(memory, EXPR_I_),
                                 make_leaf(memory, EXPR_J_));
  expr *yes = make_condition(memory, EXPR_LT, make_int(memory, 1),
                             make_int(memory, 2));
  expr *no = make_condition(memory, EXPR_NOT, yes, NULL);
  expr *e = expr_fold(memory, make_condition(memory, EXPR_AND, yes, unknown));
  ck_assert(expr_same(e, unknown));
  e = expr_fold(memory, make_condition(memory, EXPR_AND, unknown, no));
  ck_assert_int_eq(e->op, EXPR_TRUTH);
  ck_assert_int_eq(e->integer, 0);
  e = expr_fold(memory, make_condition(memory, EXPR_OR, no, unknown));
  ck_assert(expr_same(e, unknown));
}
END_TEST

static void check_folded(const expr *e, const expr *folded) {
  for (int32_t i = -2; i < 3; i++)
    for (int wide = 0; wide < 2; wide++) {
      expr_point point = tree_point(i, 3 - 2 * i);
      value before = expr_eval(e, &point, wide);
      value after = expr_eval(folded, &point, wide);
      if (e->type != TYPE_F32)
        ck_assert_int_eq(before.integer, after.integer);
      else if (!isnan(before.real))
        ck_assert_double_eq(before.real, after.real);
      else
        ck_assert(isnan(after.real));
    }
}

/* Wherever 64-bit constants do not leave 32 bits, folding changes nothing. */
static bool stays_narrow(const expr *e) {
  if (e->op == EXPR_INT && e->integer != (int32_t)e->integer) return false;
  for (int32_t k = 0; k < e->count; k++)
    if (!stays_narrow(e->arg[k])) return false;
  return true;
}

static bool folds_narrow(const expr *e) {
  if (!stays_narrow(expr_fold(memory, (expr *)e))) return false;
  for (int32_t k = 0; k < e->count; k++)
    if (!folds_narrow(e->arg[k])) return false;
  return true;
}

START_TEST(folding_keeps_values) {
  tree_maker m = {memory, 11, false};
  int checked = 0;
  for (int k = 0; k < 5000; k++) {
    if (k % 250 == 0) m.memory = fresh_memory();
    expr_type type = (expr_type)random_in(&m.state, TYPE_CONDITION, TYPE_F32);
    expr *e = tree_random(&m, type, 4), *folded = expr_fold(memory, e);
    ck_assert(expr_same(expr_fold(memory, folded), folded));
    if (!folds_narrow(e)) continue;
    check_folded(e, folded);
    checked++;
  }
  ck_assert_int_gt(checked, 3000);
}
END_TEST

/* ---- printing ------------------------------------------------------------ */

#define LEAF(op) make_leaf(memory, EXPR_##op)
#define TWO(op, a, b) make_number(memory, EXPR_##op, a, b)

static void check_text(const expr *e, const char *expected) {
  char *text = tree_text(e);
  ck_assert_str_eq(text, expected);
  free(text);
}

START_TEST(printing_uses_the_fewest_parentheses) {
  expr *i = LEAF(I_), *j = LEAF(J_), *two = make_int(memory, 2);
  check_text(TWO(SUB, i, TWO(SUB, j, two)), "i - (j - 2)");
  check_text(TWO(SUB, TWO(SUB, i, j), two), "i - j - 2");
  check_text(TWO(MUL, TWO(ADD, i, j), two), "(i + j) * 2");
  check_text(TWO(ADD, TWO(MUL, i, j), TWO(MOD, i, two)), "i * j + i % 2");
  check_text(make_number(memory, EXPR_NEG, TWO(MUL, i, j), NULL), "-(i * j)");
  check_text(TWO(SUB, i, make_int(memory, -3)), "i - -3");
  check_text(make_number(memory, EXPR_NEG, make_int(memory, -3), NULL),
             "-(-3)");
  check_text(make_number(memory, EXPR_ABS, TWO(SUB, i, j), NULL),
             "abs(i - j)");
  check_text(make_input(memory, 2, TYPE_I32, LEAF(B_), i), "table[b, i]");
  check_text(make_expr(memory, EXPR_HASH, TYPE_I32, 2, i, j), "hash(i, j)");
}
END_TEST

START_TEST(printing_conditions) {
  expr *i = LEAF(I_), *j = LEAF(J_);
  expr *less = make_condition(memory, EXPR_LE, i, j);
  expr *same = make_condition(memory, EXPR_EQ, i, j);
  expr *either = make_condition(memory, EXPR_OR, less, same);
  check_text(make_condition(memory, EXPR_AND, either, less),
             "(i <= j || i == j) && i <= j");
  check_text(make_condition(memory, EXPR_NOT, less, NULL), "!(i <= j)");
  expr *choice = make_expr(memory, EXPR_CHOOSE, TYPE_I32, 3, less, i, j);
  check_text(TWO(ADD, choice, i), "(i <= j ? i : j) + i");
  check_text(make_expr(memory, EXPR_CHOOSE, TYPE_I32, 3, less, i, choice),
             "i <= j ? i : i <= j ? i : j");
}
END_TEST

START_TEST(printed_floats_read_back) {
  static const struct { double x; const char *text; } floats[] = {
      {0.5, "0.5"},      {2, "2.0"},          {100, "100.0"},
      {-0.0, "-0.0"},    {1e30, "1.0e+30"},   {1.25e-10, "1.25e-10"},
      {INFINITY, "inf"}, {-INFINITY, "-inf"}, {0.1, "0.1"}};
  for (size_t k = 0; k < sizeof floats / sizeof *floats; k++)
    check_text(make_real(memory, floats[k].x), floats[k].text);
  uint64_t state = 3;
  for (int k = 0; k < 2000; k++) {
    uint64_t bits = random_bits(&state);
    double x;
    memcpy(&x, &bits, sizeof x);
    if (!isfinite(x)) continue;
    char *text = tree_text(make_real(memory, x));
    ck_assert_double_eq(strtod(text, NULL), x);
    ck_assert_ptr_nonnull(strchr(text, '.'));
    free(text);
  }
}
END_TEST

/* The front end's tree of a printed expression; NULL where it refuses it, for
 * a constant divisor of 0 or a constant that does not fit. */
static const expr *read_back(const char *text) {
  const char *whole_text = arena_print(
      memory,
      "pattern p { heads 8; head_dim 4; dtype f32; input whole : i32[8];"
      " input part : f32[8]; input table : i32[4, 8];"
      " score %s; branch { } }", text);
  diag *d = diag_new(memory);
  program *all = program_parse(memory, d, "text", whole_text,
                               strlen(whole_text), NULL, 0);
  return all ? all->pattern[0]->branch[0].score[0] : NULL;
}

START_TEST(printed_trees_read_back) {
  tree_maker m = {memory, 123, false};
  int same = 0;
  for (int k = 0; k < 4000; k++) {
    if (k % 100 == 0) m.memory = fresh_memory();
    expr_type type = random_chance(&m.state, 50) ? TYPE_F32 : TYPE_I32;
    expr *e = expr_fold(memory, tree_random(&m, type, 4));
    char *text = tree_text(e);
    const expr *again = read_back(text);
    if (again && stays_narrow(e) && !expr_same(e, again))
      ck_abort_msg("%s reads back as %s", text, tree_text(again));
    same += again != NULL && expr_uses(again, EXPR_I_);
    free(text);
  }
  ck_assert_int_gt(same, 1000);
}
END_TEST

/* ---- the suite ----------------------------------------------------------- */

static Suite *expr_suite(void) {
  Suite *suite = suite_create("expr");
  TCase *tests = tcase_create("expr");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(tests, integers_wrap_and_floor, 0,
                      sizeof integers / sizeof *integers);
  tcase_add_test(tests, unary_integers);
  tcase_add_test(tests, leaves_are_read_from_the_point);
  tcase_add_loop_test(tests, int_floors_and_saturates, 0,
                      sizeof wholes / sizeof *wholes);
  tcase_add_test(tests, int_is_the_same_in_scores);
  tcase_add_test(tests, floats_round_once_or_stay_wide);
  tcase_add_test(tests, float_modulo_floors);
  tcase_add_test(tests, f32_operations_are_ieee);
  tcase_add_test(tests, nan_compares_as_in_c);
  tcase_add_test(tests, mixed_comparison_promotes);
  tcase_add_test(tests, hash_follows_its_definition);
  tcase_add_test(tests, choice_promotes_to_its_type);
  tcase_add_test(tests, inputs_outside_read_zero);
  tcase_add_test(tests, constants_fold_in_64_bits);
  tcase_add_test(tests, floats_fold_where_both_roundings_agree);
  tcase_add_test(tests, rounding_an_integer_folds_away);
  tcase_add_test(tests, known_sides_of_conditions_fold);
  tcase_add_test(tests, folding_keeps_values);
  tcase_add_test(tests, printing_uses_the_fewest_parentheses);
  tcase_add_test(tests, printing_conditions);
  tcase_add_test(tests, printed_floats_read_back);
  tcase_add_test(tests, printed_trees_read_back);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  return suite_run(expr_suite(), CK_FORK_GETENV);
}
