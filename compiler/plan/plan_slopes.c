/* plan_slopes.c - the derivatives that a backward plan's code computes.
 *
 * In: the score chains of a plan. Out: for each expression its derivative by the
 * score before it, and by each element of an input with a gradient that it
 * reads. */
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
    if (slope) s->read[s->read_count++] = (plan_read){step, x, slope};
  }
  for (int32_t k = 0; k < x->count; k++)
    find_reads(pl, chain, step, x->arg[k], s);
}

static plan_slopes slopes_of_chain(const planner *pl, expr *const *chain) {
  static const expr score = {.op = EXPR_S_, .type = TYPE_F32};
  int32_t steps = 0, reads = 0;
  for (; chain[steps]; steps++) reads += count_inputs(chain[steps]);
  plan_slopes s = {.slope = ARENA_ARRAY(pl->arena, expr *, steps + 1),
                   .read = ARENA_ARRAY(pl->arena, plan_read, reads + 1)};
  for (int32_t step = 0; step < steps; step++) {
    s.slope[step] = expr_derivative(pl->arena, chain[step], &score);
    find_reads(pl, chain, step, chain[step], &s);
  }
  return s;
}

void plan_direct(planner *pl, dil_direction direction) {
  plan *p = pl->plan;
  p->direction = direction;
  if (direction == DIL_FORWARD) return;
  int32_t count = p->table.chain_count;
  p->slopes = ARENA_ARRAY(pl->arena, plan_slopes, count);
  for (int32_t c = 0; c < count; c++)
    p->slopes[c] = slopes_of_chain(pl, p->chain[c]);
}
