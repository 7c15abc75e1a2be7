/* random_expr.c - random expressions, and a place to evaluate them in. Leaves
 * lie where arithmetic has its corners: around 0, at the ends of 32 bits, NaN
 * and infinities among the inputs. */
#include "random_expr.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- inputs: 0 is i32[8], 1 is f32[8], 2 is i32[4, 8] -------------------- */

enum { LONG = 8, SHORT = 4 };
static const int32_t whole[LONG] = {3, -7, INT32_MAX, 0, INT32_MIN, 2, 2, 64};
static const float part[LONG] = {0.5f, -1e30f, 0, NAN, -0.0f, 1e-40f, 7, -2};
const dil_input tree_inputs[3] = {
    {.name = "whole"}, {.name = "part"}, {.name = "table"}};

static value read_input(void *context, int32_t index, const int32_t *at) {
  (void)context;
  int32_t last = index == 2 ? at[1] : at[0];
  bool inside = last >= 0 && last < LONG;
  if (index == 2) inside = inside && at[0] >= 0 && at[0] < SHORT;
  if (!inside) return (value){0, 0};
  if (index == 1) return (value){.real = part[last]};
  return (value){.integer = index == 0 ? whole[last] : 10 * at[0] + last};
}

interval tree_range(void *context, int32_t index, int32_t axis,
                    const int32_t *at, int32_t first, int32_t last) {
  bool outside = first < 0 || last >= LONG;
  interval all = {outside ? 0 : INFINITY, outside ? 0 : -INFINITY, false};
  for (int64_t x = first < 0 ? 0 : first; x <= last && x < LONG; x++) {
    int32_t spot[DIL_RANK_MAX];
    memcpy(spot, at, sizeof spot);
    spot[axis] = (int32_t)x;
    value v = read_input(context, index, spot);
    double number = index == 1 ? v.real : (double)v.integer;
    all.nan = all.nan || isnan(number);
    all.low = fmin(all.low, number);
    all.high = fmax(all.high, number);
  }
  return all.low <= all.high ? all : (interval){0, 0, true};
}

expr_point tree_point(int32_t i, int32_t j) {
  return (expr_point){.b = 1, .h = 5, .i = i, .j = j, .B = 2, .N = 9, .M = 11,
                      .s = 0.75, .input = read_input};
}

char *tree_text(const expr *e) {
  char *text;
  size_t length;
  FILE *out = open_memstream(&text, &length);
  expr_print(e, tree_inputs, out);
  fclose(out);
  return text;
}


/* ---- random trees -------------------------------------------------------- */

static expr *any_integer_leaf(tree_maker *m) {
  static const int64_t constants[] = {0,  1,  -1, 2,   3,         -3,       8,
                                      64, 10, -7, 100, INT32_MAX, INT32_MIN};
  static const expr_op leaves[] = {EXPR_I_, EXPR_J_, EXPR_I_, EXPR_J_,
                                   EXPR_H_, EXPR_B_, EXPR_N_, EXPR_M_};
  if (random_chance(&m->state, 45))
    return make_int(m->memory, constants[random_in(&m->state, 0, 12)]);
  return make_leaf(m->memory, leaves[random_in(&m->state, 0, 7)]);
}

static expr *any_real_leaf(tree_maker *m) {
  static const double constants[] = {0,    1,    -1,  0.5,   0.1,     -2.75,
                                     3e38, 1e-3, 100, 1e-42, INFINITY};
  if (random_chance(&m->state, 10) && !m->exact)
    return make_leaf(m->memory, EXPR_S_);
  return make_real(m->memory, constants[random_in(&m->state, 0, 10)]);
}

static expr *any_input(tree_maker *m, expr_type type, int depth) {
  expr *first = tree_random(m, TYPE_I32, depth);
  if (type == TYPE_F32) return make_input(m->memory, 1, type, first, NULL);
  if (random_chance(&m->state, 50))
    return make_input(m->memory, 0, type, first, NULL);
  return make_input(m->memory, 2, type, first, tree_random(m, TYPE_I32, depth));
}

static expr *any_choice(tree_maker *m, expr_type type, int depth) {
  expr *arm[2];
  for (int k = 0; k < 2; k++) arm[k] = tree_random(m, type, depth);
  if (type == TYPE_F32 && random_chance(&m->state, 30))
    arm[0] = tree_random(m, TYPE_I32, depth);
  return make_expr(m->memory, EXPR_CHOOSE, type, 3,
                   tree_random(m, TYPE_CONDITION, depth), arm[0], arm[1]);
}

static expr *any_number(tree_maker *m, expr_type type, int depth) {
  static const expr_op both[] = {EXPR_ADD, EXPR_SUB, EXPR_MUL, EXPR_DIV,
                                 EXPR_MOD, EXPR_MIN, EXPR_MAX};
  static const expr_op one[] = {EXPR_NEG, EXPR_ABS, EXPR_FLOOR, EXPR_CEIL};
  expr *a = tree_random(m, type, depth);
  if (random_chance(&m->state, 25))
    return make_number(m->memory, one[random_in(&m->state, 0, 3)], a, NULL);
  if (type == TYPE_F32 && !m->exact && random_chance(&m->state, 20))
    return make_number(m->memory, EXPR_EXP + (int)random_in(&m->state, 0, 3), a,
                       NULL);
  bool mixed = type == TYPE_F32 && random_chance(&m->state, 30);
  expr *b = tree_random(m, mixed ? TYPE_I32 : type, depth);
  return make_number(m->memory, both[random_in(&m->state, 0, 6)], a, b);
}

static expr *any_whole(tree_maker *m, int depth) {
  tree_maker inside = *m;
  inside.exact = true;
  expr *x = tree_random(&inside, TYPE_F32, depth);
  m->state = inside.state;
  return make_whole(m->memory, x);
}

static expr *any_condition(tree_maker *m, int depth) {
  if (depth > 0 && random_chance(&m->state, 40)) {
    expr_op op = EXPR_AND + (int)random_in(&m->state, 0, 2);
    expr *a = tree_random(m, TYPE_CONDITION, depth - 1);
    bool alone = op == EXPR_NOT;
    return make_condition(
        m->memory, op, a,
        alone ? NULL : tree_random(m, TYPE_CONDITION, depth - 1));
  }
  expr_type type = random_chance(&m->state, 30) ? TYPE_F32 : TYPE_I32;
  return make_condition(m->memory, EXPR_EQ + (int)random_in(&m->state, 0, 5),
                        tree_random(m, type, depth - 1),
                        tree_random(m, TYPE_I32, depth - 1));
}

expr *tree_random(tree_maker *m, expr_type type, int depth) {
  if (type == TYPE_CONDITION) return any_condition(m, depth);
  if (depth <= 0 || random_chance(&m->state, 15))
    return type == TYPE_F32 ? any_real_leaf(m) : any_integer_leaf(m);
  int64_t kind = random_in(&m->state, 0, 99);
  if (kind < 10) return any_input(m, type, depth - 1);
  if (kind < 20) return any_choice(m, type, depth - 1);
  if (kind < 28 && type == TYPE_I32)
    return make_expr(m->memory, EXPR_HASH, TYPE_I32, 2,
                     tree_random(m, TYPE_I32, depth - 1),
                     tree_random(m, TYPE_I32, depth - 1));
  if (kind < 36 && type == TYPE_I32) return any_whole(m, depth - 1);
  return any_number(m, type, depth - 1);
}
