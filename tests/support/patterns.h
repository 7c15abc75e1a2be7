/* patterns.h - expressions and patterns built in C, for the suites that test
 * what a pattern means without the front end; and a small random source. */
#ifndef DIL_TESTS_SUPPORT_PATTERNS_H
#define DIL_TESTS_SUPPORT_PATTERNS_H

#include "compiler/front/program.h"
#include <stdarg.h>

/* ---- patterns.c: what a test takes, dropped whole when it ends -------------- */

extern arena *memory;
/* For tcase_add_checked_fixture. */
void open_memory(void);
void close_memory(void);
/* An empty one in its place: for tests of many rounds. */
arena *fresh_memory(void);

/* ---- random numbers: splitmix64 ------------------------------------------ */

static inline uint64_t random_bits(uint64_t *state) {
  uint64_t x = *state += 0x9E3779B97F4A7C15;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

/* low..high, both inclusive */
static inline int64_t random_in(uint64_t *state, int64_t low, int64_t high) {
  return low + (int64_t)(random_bits(state) % (uint64_t)(high - low + 1));
}

static inline bool random_chance(uint64_t *state, int percent) {
  return random_in(state, 0, 99) < percent;
}

/* ---- trees --------------------------------------------------------------- */

static inline expr *make_expr(arena *a, expr_op op, expr_type type,
                              int32_t count, ...) {
  expr *e = ARENA_NEW(a, expr);
  e->op = op;
  e->type = type;
  e->count = count;
  e->arg = ARENA_ARRAY(a, expr *, count);
  va_list list;
  va_start(list, count);
  for (int32_t k = 0; k < count; k++) e->arg[k] = va_arg(list, expr *);
  va_end(list);
  return e;
}

static inline expr *make_int(arena *a, int64_t x) {
  expr *e = make_expr(a, EXPR_INT, TYPE_I32, 0);
  e->integer = x;
  return e;
}

static inline expr *make_real(arena *a, double x) {
  expr *e = make_expr(a, EXPR_REAL, TYPE_F32, 0);
  e->real = x;
  return e;
}

static inline expr *make_leaf(arena *a, expr_op op) {
  return make_expr(a, op, op == EXPR_S_ ? TYPE_F32 : TYPE_I32, 0);
}

/* A number of one or two arguments; f32 when one of them is. */
static inline expr *make_number(arena *a, expr_op op, expr *x, expr *y) {
  bool real = x->type == TYPE_F32 || (y && y->type == TYPE_F32) ||
              (op >= EXPR_EXP && op <= EXPR_TANH);
  return make_expr(a, op, real ? TYPE_F32 : TYPE_I32, y ? 2 : 1, x, y);
}

/* int(x) of a float. */
static inline expr *make_whole(arena *a, expr *x) {
  return make_expr(a, EXPR_TO_INT, TYPE_I32, 1, x);
}

static inline expr *make_condition(arena *a, expr_op op, expr *x, expr *y) {
  return make_expr(a, op, TYPE_CONDITION, y ? 2 : 1, x, y);
}

static inline expr *make_input(arena *a, int32_t index, expr_type type,
                               expr *first, expr *second) {
  expr *e = make_expr(a, EXPR_INPUT, type, second ? 2 : 1, first, second);
  e->integer = index;
  return e;
}

/* ---- patterns.c: patterns ------------------------------------------------- */

/* f32, softmax, `branches` branches of the whole sequence with dilation 1,
 * all heads, no windows. */
pattern *make_pattern(arena *a, int64_t heads, int64_t kv_heads,
                      int64_t head_dim, int64_t value_dim,
                      int32_t branches);
/* The phases by their definition; after kinds and dilations are set. */
void set_phases(arena *a, pattern *p);

enum { DOC, SLOPE, KEPT, GIVEN_COUNT, GIVEN_BLOCK = 3 };
/* input doc : i32[B, M], slope : f32[H], kept : u8[H, nb, nb] of blocks of
 * GIVEN_BLOCK. */
void add_inputs(arena *a, pattern *p);

void add_mask(arena *a, branch *b, expr *mask);
void add_score(arena *a, branch *b, expr *score);
void add_keep(arena *a, keeps *level, int64_t block, keep one);

/* Anything the language has but `keep top`, `keep mass` and, where `scores`
 * is no, scores; conditions in about half of them. */
pattern *random_pattern(arena *a, uint64_t *state, bool scores);
/* Sinks of a pattern that has none, and whether input SLOPE has a gradient. */
void random_sinks(arena *a, uint64_t *state, pattern *p);
void random_gradient(uint64_t *state, pattern *p);

#endif
