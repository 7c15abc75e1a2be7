/* cost_expr.c - what masks and scores take on a processor, by their operations.
 *
 * In: the expressions of a branch and the shape of a call. Out: vector cycles
 * a pair, elements of inputs a pair, scalar work a key, and the time to bound
 * the masks over one box of a walk. Parts that see neither key nor score are
 * computed ahead of the loop over keys and cost nothing here. */
#include "cost.h"
#include <math.h>

/* Of one operation. A cycle is that of a vector with two multiply-adds. */
static const struct {
  double cycles;  /* on a vector of lanes */
  double seconds; /* of scalar code that bounds it over a box */
} operations[EXPR_OP_COUNT] = {
    [EXPR_ADD] = {0.35, 1.2e-9},  [EXPR_SUB] = {0.35, 1.2e-9},
    [EXPR_MUL] = {0.5, 2.5e-9},   [EXPR_DIV] = {6, 2.5e-9},
    [EXPR_MOD] = {6, 2.5e-9},     [EXPR_NEG] = {0.35, 1.2e-9},
    [EXPR_EQ] = {0.35, 1.2e-9},   [EXPR_NE] = {0.35, 1.2e-9},
    [EXPR_LT] = {0.35, 1.2e-9},   [EXPR_LE] = {0.35, 1.2e-9},
    [EXPR_GT] = {0.35, 1.2e-9},   [EXPR_GE] = {0.35, 1.2e-9},
    [EXPR_AND] = {0.35, 1.2e-9},  [EXPR_OR] = {0.35, 1.2e-9},
    [EXPR_NOT] = {0.35, 1.2e-9},  [EXPR_CHOOSE] = {0.35, 1.2e-9},
    [EXPR_ABS] = {0.35, 1.2e-9},  [EXPR_MIN] = {0.35, 1.2e-9},
    [EXPR_MAX] = {0.35, 1.2e-9},  [EXPR_EXP] = {10, 0},
    [EXPR_LOG] = {10, 0},         [EXPR_SQRT] = {5, 0},
    [EXPR_TANH] = {10, 0},        [EXPR_FLOOR] = {0.35, 1.2e-9},
    [EXPR_CEIL] = {0.35, 1.2e-9}, [EXPR_TO_INT] = {1.5, 2.5e-9},
    [EXPR_INPUT] = {0, 20e-9},
};

/* A hash mixes each of its arguments. */
static const double HASH_CYCLES = 2.5, HASH_SECONDS = 1.2e-9;
/* Divisors that are constants, and powers of two among them; of floats. */
static const double DIVIDE_CONSTANT = 2.5, DIVIDE_SHIFT = 0.35,
                    DIVIDE_FLOAT = 2;
/* Where all rows share a key's part it is scalar: a cycle's worth, and an
 * element with its bounds. */
static const double SCALAR_SECONDS = 0.4e-9, SCALAR_INPUT = 1.5e-9;
/* Larger inputs do not stay in a core's cache. */
static const double CACHE_BYTES = 1 << 20;

enum { SEES_ROW = 1, SEES_KEY = 2, SEES_SCORE = 4 };

static bool is_power(const expr *e) {
  return e->op == EXPR_INT && e->integer > 0 &&
         (e->integer & (e->integer - 1)) == 0;
}

static double divide_cycles(const expr *e) {
  if (e->type == TYPE_F32) return DIVIDE_FLOAT;
  if (is_power(e->arg[1])) return DIVIDE_SHIFT;
  return e->arg[1]->op == EXPR_INT ? DIVIDE_CONSTANT : operations[e->op].cycles;
}

static double operation_cycles(const expr *e) {
  if (e->op == EXPR_HASH) return HASH_CYCLES * e->count;
  if (e->op == EXPR_DIV || e->op == EXPR_MOD) return divide_cycles(e);
  return operations[e->op].cycles;
}

/* ---- inputs -------------------------------------------------------------- */

static expr_point sizes_of(const cost_case *c) {
  return (expr_point){
      .B = (int32_t)c->B, .N = (int32_t)c->N, .M = (int32_t)c->M};
}

static double input_dimension(const pattern *p, const cost_case *c,
                              int64_t input, int32_t axis) {
  expr_point sizes = sizes_of(c);
  return (double)expr_eval(p->dimension[input][axis], &sizes, false).integer;
}

double cost_input_count(const pattern *p, const cost_case *c, int64_t input) {
  double count = 1;
  for (int32_t axis = 0; axis < p->input[input].rank; axis++)
    count *= input_dimension(p, c, input, axis);
  return count;
}

/* An element that is another one for each row and each key: the lines of a
 * large input are fetched from memory. */
static double fetched_bytes(const pattern *p, const cost_case *c, const expr *e,
                            int32_t moving) {
  double size = (double)dil_dtype_size(p->input[e->integer].dtype);
  bool large = cost_input_count(p, c, e->integer) * size > CACHE_BYTES;
  return moving > 1 && large ? size : 0;
}

/* ---- work a pair --------------------------------------------------------- */

typedef struct cost_walk {
  const pattern *pattern;
  const cost_case *shape;
  cost_work work;
} cost_walk;

static unsigned leaf_sees(expr_op op) {
  return op == EXPR_I_   ? SEES_ROW
         : op == EXPR_J_ ? SEES_KEY
         : op == EXPR_S_ ? SEES_SCORE
                         : 0;
}

/* moving: indices of an input that see a row or a key. */
static void charge_node(cost_walk *w, const expr *e, unsigned sees,
                        int32_t moving) {
  cost_work *to = &w->work;
  bool input = e->op == EXPR_INPUT;
  if (!(sees & (SEES_KEY | SEES_SCORE))) return;
  if (sees == SEES_KEY && !w->shape->rows) {
    to->key_seconds +=
        input ? SCALAR_INPUT : operation_cycles(e) * SCALAR_SECONDS;
    return;
  }
  to->cycles += operation_cycles(e);
  if (!input) return;
  to->gathered++;
  to->fetched += fetched_bytes(w->pattern, w->shape, e, moving);
}

static unsigned walk_expr(cost_walk *w, const expr *e) {
  unsigned sees = leaf_sees(e->op);
  int32_t moving = 0;
  for (int32_t i = 0; i < e->count; i++) {
    unsigned one = walk_expr(w, e->arg[i]);
    moving += one != 0;
    sees |= one;
  }
  if (e->op == EXPR_INPUT) w->work.inputs |= UINT64_C(1) << e->integer;
  charge_node(w, e, sees, moving);
  return sees;
}

/* The conditions of a branch: its masks, then its keeps. */
static void each_condition(const branch *b,
                           void (*visit)(void *context, const expr *e),
                           void *context) {
  for (int32_t i = 0; i < b->mask_count; i++) visit(context, b->mask[i]);
  for (int32_t level = 0; level < 2; level++)
    for (int32_t i = 0; i < b->keeps[level].count; i++)
      visit(context, b->keeps[level].keep[i].condition);
}

static void work_of(void *context, const expr *e) {
  walk_expr(context, e);
}

cost_work cost_masks(const pattern *p, const cost_case *c, const branch *b) {
  cost_walk w = {.pattern = p, .shape = c};
  each_condition(b, work_of, &w);
  return w.work;
}

cost_work cost_scores(const pattern *p, const cost_case *c, const branch *b) {
  cost_walk w = {.pattern = p, .shape = c};
  for (int32_t i = 0; i < b->score_count; i++) walk_expr(&w, b->score[i]);
  return w.work;
}

/* ---- bounds over a box --------------------------------------------------- */

typedef struct bounding {
  const pattern *pattern;
  const cost_case *shape;
  expr_box box;
  double seconds;
} bounding;

/* Elements that are looked at: the run time sums up those of whole blocks along
 * the last axis, and none of longer runs along another one. */
static double looked_at(const bounding *x, const expr *e) {
  enum { BLOCK = 64 };
  double most = 1;
  int32_t moving = 0;
  for (int32_t i = 0; i < e->count; i++) {
    interval index = expr_bounds(e->arg[i], &x->box);
    double last = input_dimension(x->pattern, x->shape, e->integer, i) - 1;
    double extent = fmin(index.high, last) - fmax(index.low, 0) + 1;
    double rest = i + 1 < e->count ? 0 : BLOCK + extent / BLOCK;
    moving += index.high > index.low;
    most = fmax(most, extent <= BLOCK ? extent : rest);
  }
  return moving > 1 ? 0 : most;
}

static void bound_expr(bounding *x, const expr *e) {
  for (int32_t i = 0; i < e->count; i++) bound_expr(x, e->arg[i]);
  x->seconds += operations[e->op].seconds;
  if (e->op == EXPR_HASH) x->seconds += HASH_SECONDS * e->count;
  if (e->op == EXPR_INPUT) x->seconds += COST_ELEMENT_SECONDS * looked_at(x, e);
}

static void bound_condition(void *context, const expr *e) {
  bound_expr(context, e);
}

double cost_bound(const pattern *p, const cost_case *c, const branch *b) {
  bounding x = {.pattern = p,
                .shape = c,
                .box = {.point = sizes_of(c),
                        .i1 = COST_TILE_ROWS - 1,
                        .j1 = c->tile_keys - 1}};
  each_condition(b, bound_condition, &x);
  return x.seconds;
}
