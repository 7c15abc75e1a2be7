/* plan_slopes.c - the derivatives that a backward plan's code computes.
 *
 * In: the score chains and sinks of a plan. Out: for each expression of a chain
 * its derivative by the score before it, and for all expressions those by each
 * element of an input with a gradient that they read; in the table what these
 * reads have in common. */
#include "planner.h"

static bool has_read(const plan_slopes *s, int32_t step, const expr *element) {
  for (int32_t i = 0; i < s->read_count; i++)
    if (s->read[i].step == step && expr_same(s->read[i].element, element))
      return true;
  return false;
}

static int32_t count_inputs(const expr *x) {
  int32_t count = x->op == EXPR_INPUT;
  for (int32_t k = 0; k < x->count; k++) count += count_inputs(x->arg[k]);
  return count;
}

/* The reads in x, a part of expression `step`. */
static void find_reads(const planner *pl, expr *const *chain, int32_t step,
                       const expr *x, plan_slopes *s) {
  const dil_input *inputs = pl->plan->pattern->input;
  if (x->op == EXPR_INPUT && inputs[x->integer].gradient &&
      !has_read(s, step, x)) {
    expr *slope = expr_derivative(pl->arena, chain[step], x);
    bool paired = expr_uses(x, EXPR_J_);
    if (slope) s->read[s->read_count++] = (plan_read){step, x, slope, paired};
  }
  for (int32_t k = 0; k < x->count; k++)
    find_reads(pl, chain, step, x->arg[k], s);
}

/* Of `count` expressions, in which `s` occurs where they are a chain. */
static plan_slopes slopes_of(const planner *pl, expr *const *list,
                             int32_t count) {
  static const expr score = {.op = EXPR_S_, .type = TYPE_F32};
  int32_t reads = 0;
  for (int32_t k = 0; k < count; k++) reads += count_inputs(list[k]);
  plan_slopes s = {.slope = ARENA_ARRAY(pl->arena, expr *, count + 1),
                   .read = ARENA_ARRAY(pl->arena, plan_read, reads + 1)};
  for (int32_t k = 0; k < count; k++) {
    s.slope[k] = expr_derivative(pl->arena, list[k], &score);
    find_reads(pl, list, k, list[k], &s);
  }
  return s;
}

/* ---- what tells the elements of an input apart --------------------------- */

static const struct {
  expr_op variable;
  uint8_t bit;
} parters[] = {{EXPR_I_, DIL_APART_I},
               {EXPR_H_, DIL_APART_H},
               {EXPR_B_, DIL_APART_B},
               {EXPR_J_, DIL_APART_J}};
enum { PARTERS = sizeof parters / sizeof *parters };

/* Returns whether x has one value in a call. */
static bool is_constant(const expr *x) {
  if (x->op == EXPR_INPUT || x->op == EXPR_S_) return false;
  for (int32_t n = 0; n < PARTERS; n++)
    if (x->op == parters[n].variable) return false;
  for (int32_t k = 0; k < x->count; k++)
    if (!is_constant(x->arg[k])) return false;
  return true;
}

/* Returns whether x is a variable, moved by a constant, as `row` is. */
static bool is_moved(const expr *x, expr_op variable) {
  if (x->op == variable) return true;
  if (x->op != EXPR_ADD && x->op != EXPR_SUB) return false;
  return (is_moved(x->arg[0], variable) && is_constant(x->arg[1])) ||
         (x->op == EXPR_ADD && is_constant(x->arg[0]) &&
          is_moved(x->arg[1], variable));
}

/* The index of a read that is this variable; -1: none is. */
static int32_t index_of(const expr *read, expr_op variable) {
  for (int32_t k = 0; k < read->count; k++)
    if (is_moved(read->arg[k], variable)) return k;
  return -1;
}

/* The variables by which two reads of an input tell elements apart: where each is
 * the same index of both, in the same place. */
static uint8_t apart_of(const expr *read, const expr *other) {
  uint8_t apart = 0;
  for (int32_t n = 0; n < PARTERS; n++) {
    int32_t k = index_of(read, parters[n].variable);
    if (k >= 0 && expr_same(read->arg[k], other->arg[k])) apart |= parters[n].bit;
  }
  return apart;
}

/* Says of inputs how their gradients come about. `first`: of each input the read
 * that was seen first, or NULL. */
static void mark_reads(const planner *pl, const plan_slopes *s, bool sinks,
                       const expr **first) {
  dil_input *inputs = (dil_input *)pl->plan->table.inputs;
  for (int32_t i = 0; i < s->read_count; i++) {
    const expr *read = s->read[i].element;
    dil_input *in = &inputs[read->integer];
    if (!first[read->integer]) first[read->integer] = read;
    in->in_scores |= !sinks;
    in->in_sinks |= sinks;
    in->apart &= apart_of(first[read->integer], read);
  }
}

static void mark_inputs(const planner *pl) {
  const plan *p = pl->plan;
  const dil_table *t = &p->table;
  const expr *first[DIL_INPUT_MAX] = {NULL};
  dil_input *inputs = (dil_input *)t->inputs;
  for (int32_t i = 0; i < t->input_count; i++)
    inputs[i].apart = DIL_APART_ALL | DIL_APART_J;
  for (int32_t c = 0; c < t->chain_count; c++)
    mark_reads(pl, &p->slopes[c], false, first);
  mark_reads(pl, &p->sinks, true, first);
  for (int32_t b = 0; b < t->branch_count; b++)
    mark_reads(pl, &p->branch_sinks[b], true, first);
}

static int32_t chain_length(expr *const *chain) {
  int32_t count = 0;
  while (chain[count]) count++;
  return count;
}

void plan_direct(planner *pl, dil_direction direction) {
  plan *p = pl->plan;
  const pattern *of = p->pattern;
  p->direction = direction;
  if (direction == DIL_FORWARD) return;
  int32_t chains = p->table.chain_count;
  p->slopes = ARENA_ARRAY(pl->arena, plan_slopes, chains);
  for (int32_t c = 0; c < chains; c++)
    p->slopes[c] = slopes_of(pl, p->chain[c], chain_length(p->chain[c]));
  p->sinks = slopes_of(pl, of->sink, of->sink_count);
  p->branch_sinks = ARENA_ARRAY(pl->arena, plan_slopes, of->branch_count);
  for (int32_t b = 0; b < of->branch_count; b++)
    p->branch_sinks[b] =
        slopes_of(pl, of->branch[b].sink, of->branch[b].sink_count);
  mark_inputs(pl);
}
