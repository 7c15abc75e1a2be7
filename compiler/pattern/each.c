/* each.c - `phase each` in other words, for kernels and counts without it.
 *
 * In: a pattern. Out: the same attention, with a branch of each phase, or a mask
 * `(i - j) % r == c`, in place of what a branch says. */
#include "pattern.h"
#include <string.h>

/* `(i - j) % dilation == shift`. */
static expr *residue_mask(arena *a, span at, int64_t dilation, int64_t shift) {
  expr *behind =
      expr_pair(a, EXPR_SUB, TYPE_I32, expr_leaf(a, EXPR_I_, 0, at),
                expr_leaf(a, EXPR_J_, 0, at));
  expr *residue = expr_pair(a, EXPR_MOD, TYPE_I32, behind,
                            expr_leaf(a, EXPR_INT, dilation, at));
  return expr_pair(a, EXPR_EQ, TYPE_CONDITION, residue,
                   expr_leaf(a, EXPR_INT, shift, at));
}

/* ---- a branch of each phase ---------------------------------------------- */

/* The phases that a row of a segment can have. */
static int64_t phases_of(const branch *b) {
  if (!branch_has_each(b)) return 1;
  bool whole = b->segment == 0 || b->segment > b->dilation;
  return whole ? b->dilation : b->segment;
}

static void set_phase(arena *a, const pattern *p, branch *b, int64_t phase) {
  b->phase_kind = PHASE_EXPR;
  b->phase_expr = expr_leaf(a, EXPR_INT, phase, b->at);
  b->phase = ARENA_ARRAY(a, int32_t, p->heads);
  for (int64_t h = 0; h < p->heads; h++) b->phase[h] = (int32_t)phase;
}

/* A branch of each phase selects a row once, so that they count as one branch.
 * `phase branch` means the branch's number in the file. */
static void spell_branch(arena *a, const pattern *p, int32_t index,
                         pattern *to) {
  branch b = p->branch[index];
  if (b.phase_kind == PHASE_BRANCH) set_phase(a, p, &b, b.phase[0]);
  bool each = branch_has_each(&b);
  for (int64_t x = 0, count = phases_of(&b); x < count; x++) {
    if (each) set_phase(a, p, &b, x);
    to->branch[to->branch_count++] = b;
    b.name = NULL;
  }
}

const pattern *pattern_spell_each(arena *a, const pattern *p, int32_t most) {
  int64_t count = 0;
  bool any = false, shifted = false;
  for (int32_t b = 0; b < p->branch_count; b++) {
    count += phases_of(&p->branch[b]);
    any |= branch_has_each(&p->branch[b]);
    shifted |= branch_has_each(&p->branch[b]) && p->branch[b].shift;
  }
  if (!any) return p;
  bool apart = p->combine == DIL_COMBINE_MEAN || p->combine == DIL_COMBINE_SUM;
  if (count > most || shifted || apart) return NULL;
  pattern *out = ARENA_NEW(a, pattern);
  *out = *p;
  out->branch_count = 0;
  out->branch = ARENA_ARRAY(a, branch, count);
  for (int32_t b = 0; b < p->branch_count; b++) spell_branch(a, p, b, out);
  return out;
}

/* ---- a mask in place of a shift ------------------------------------------ */

const pattern *pattern_spell_shifts(arena *a, const pattern *p) {
  pattern *out = ARENA_NEW(a, pattern);
  bool any = false;
  *out = *p;
  out->branch = ARENA_ARRAY(a, branch, p->branch_count);
  for (int32_t k = 0; k < p->branch_count; k++) {
    branch *b = &out->branch[k];
    *b = p->branch[k];
    if (!branch_has_each(b) || !b->shift) continue;
    any = true;
    expr **mask = ARENA_ARRAY(a, expr *, b->mask_count + 1);
    if (b->mask_count)
      memcpy(mask, b->mask, (size_t)b->mask_count * sizeof *mask);
    mask[b->mask_count++] =
        residue_mask(a, b->at, b->dilation, b->shift);
    b->mask = mask;
    b->dilation = 1;
    b->phase_kind = PHASE_CYCLE;
  }
  return any ? out : p;
}
