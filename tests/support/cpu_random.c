/* cpu_random.c - makes the expressions of cpu_random.h. */
#include "cpu_random.h"
#include <math.h>

static uint32_t state;

uint32_t random_below(uint32_t count) {
  state = state * 1664525u + 1013904223u;
  return (uint32_t)(((uint64_t)state * count) >> 32);
}

void random_seed(uint32_t seed) {
  state = seed;
}

arena *random_memory;
bool random_scores;
bool random_sizes;

expr *random_node(expr_op op, expr_type type, int count) {
  expr *e = ARENA_NEW(random_memory, expr);
  e->op = op;
  e->type = type;
  e->count = count;
  e->arg = ARENA_ARRAY(random_memory, expr *, count + 1);
  return e;
}

const dil_input random_inputs[INPUTS] = {
    {.name = "a", .dtype = DIL_I32, .rank = 1},
    {.name = "c", .dtype = DIL_U8, .rank = 2},
    {.name = "d", .dtype = DIL_F32, .rank = 2},
    {.name = "e", .dtype = DIL_BF16, .rank = 1},
    {.name = "f", .dtype = DIL_F16, .rank = 3},
};

static expr *make_input(int index, int depth) {
  expr *e = random_node(EXPR_INPUT, index < 2 ? TYPE_I32 : TYPE_F32,
                        random_inputs[index].rank);
  e->integer = index;
  for (int k = 0; k < e->count; k++) e->arg[k] = random_word(depth - 1);
  return e;
}

static expr *make_integer(void) {
  static const int64_t some[] = {
      0, 1, 2, 3, 5, 7, 16, 64, 100, -1, -3, -8, INT32_MAX, INT32_MIN, 1 << 20};
  expr *e = random_node(EXPR_INT, TYPE_I32, 0);
  e->integer = some[random_below(15)];
  return e;
}

/* int(x): s may not stand in it. */
static expr *make_whole(int depth) {
  expr *e = random_node(EXPR_TO_INT, TYPE_I32, 1);
  bool scores = random_scores;
  random_scores = false;
  e->arg[0] = random_real(depth);
  random_scores = scores;
  return e;
}

static expr *make_float(void) {
  static const double some[] = {0,    1,     -1,    0.5,      1.0 / 3,
                                1e10, -2.75, 1e-40, INFINITY, 3};
  expr *e = random_node(EXPR_REAL, TYPE_F32, 0);
  e->real = some[random_below(10)];
  return e;
}

expr *random_word(int depth) {
  static const expr_op leaf[] = {EXPR_B_, EXPR_H_,    EXPR_I_, EXPR_J_, EXPR_I_,
                                 EXPR_J_, EXPR_BATCH, EXPR_N_, EXPR_M_};
  static const expr_op binary[] = {EXPR_ADD, EXPR_SUB, EXPR_MUL, EXPR_DIV,
                                   EXPR_MOD, EXPR_MIN, EXPR_MAX, EXPR_SUB,
                                   EXPR_DIV, EXPR_MOD};
  static const expr_op unary[] = {EXPR_NEG, EXPR_ABS, EXPR_FLOOR, EXPR_CEIL};
  uint32_t kind = depth <= 0 ? random_below(2) : 2 + random_below(10);
  if (kind == 0) return make_integer();
  if (kind == 1 || (random_sizes && kind < 4))
    return random_node(
        leaf[random_sizes ? 6 + random_below(3) : random_below(9)], TYPE_I32,
        0);
  if (kind == 2) return make_input((int)random_below(2), depth);
  if (kind == 6) return make_whole(depth - 1);
  int count = kind == 3   ? 3
              : kind == 4 ? 1
              : kind == 5 ? 1 + (int)random_below(3)
                          : 2;
  expr *e = random_node(kind == 3   ? EXPR_CHOOSE
                        : kind == 4 ? unary[random_below(4)]
                        : kind == 5 ? EXPR_HASH
                                    : binary[random_below(10)],
                        TYPE_I32, count);
  for (int k = 0; k < count; k++)
    e->arg[k] =
        kind == 3 && k == 0 ? random_truth(depth - 1) : random_word(depth - 1);
  return e;
}

expr *random_number(int depth) {
  return random_below(3) == 0 ? random_word(depth) : random_real(depth);
}

expr *random_real(int depth) {
  static const expr_op binary[] = {EXPR_ADD, EXPR_SUB, EXPR_MUL, EXPR_DIV,
                                   EXPR_MOD, EXPR_MIN, EXPR_MAX};
  static const expr_op unary[] = {EXPR_NEG, EXPR_ABS, EXPR_FLOOR, EXPR_CEIL};
  if (depth <= 0)
    return random_scores && random_below(2) == 0
               ? random_node(EXPR_S_, TYPE_F32, 0)
               : make_float();
  uint32_t kind = random_below(8);
  if (kind == 0 && !random_sizes)
    return make_input(2 + (int)random_below(3), depth);
  int count = kind == 1 ? 3 : kind == 2 ? 1 : 2;
  expr *e = random_node(kind == 1   ? EXPR_CHOOSE
                        : kind == 2 ? unary[random_below(4)]
                                    : binary[random_below(7)],
                        TYPE_F32, count);
  for (int k = 0; k < count; k++)
    e->arg[k] = kind == 1 && k == 0 ? random_truth(depth - 1)
                                    : random_number(depth - 1);
  e->arg[count - 1] = random_real(depth - 1); /* or it would be an integer */
  return e;
}

expr *random_truth(int depth) {
  static const expr_op order[] = {EXPR_EQ, EXPR_NE, EXPR_LT,
                                  EXPR_LE, EXPR_GT, EXPR_GE};
  uint32_t kind = depth <= 0 ? 0 : random_below(6);
  if (kind == 1) {
    expr *e = random_node(EXPR_NOT, TYPE_CONDITION, 1);
    e->arg[0] = random_truth(depth - 1);
    return e;
  }
  if (kind == 2 && random_below(4) == 0) {
    expr *e = random_node(EXPR_TRUTH, TYPE_CONDITION, 0);
    e->integer = random_below(2);
    return e;
  }
  if (kind == 3) {
    expr *e = random_node(EXPR_CHOOSE, TYPE_CONDITION, 3);
    for (int k = 0; k < 3; k++) e->arg[k] = random_truth(depth - 1);
    return e;
  }
  bool logic = kind > 3;
  expr *e = random_node(logic ? (random_below(2) ? EXPR_AND : EXPR_OR)
                              : order[random_below(6)],
                        TYPE_CONDITION, 2);
  for (int k = 0; k < 2; k++)
    e->arg[k] = logic ? random_truth(depth - 1) : random_number(depth - 1);
  return e;
}
