/* pieces.c - branches in place of masks that windows, ranges and residues say.
 *
 * In: a pattern. Out: the same attention, with pieces in place of the branches
 * whose masks can be read (pieces_read.c). Pieces of a branch have no pair in
 * common (pieces_part.c), so that `softmax` counts a key once. A piece of
 * residues modulo r becomes a branch with `phase each`. */
#include "pieces.h"
#include <string.h>

/* ---- branches ------------------------------------------------------------ */

static void add_mask(branch *b, expr *e) { b->mask[b->mask_count++] = e; }

/* `x op integer` becomes a mask of the branch. */
static void add_compare(arena *a, branch *b, expr *x, expr_op op,
                        int64_t integer) {
  add_mask(b, expr_pair(a, op, TYPE_CONDITION, x,
                        expr_leaf(a, EXPR_INT, integer, b->at)));
}

static void add_range(arena *a, branch *b, expr_op position,
                      const position_range *range) {
  expr *x = expr_leaf(a, position, 0, b->at);
  if (range->first > 0) add_compare(a, b, x, EXPR_GE, range->first);
  if (range->end > 0) add_compare(a, b, x, EXPR_LT, range->end);
}

/* Windows hold the row itself; one that does not is a mask, which the plan
 * takes for a window (pair_bounds_take). */
static void add_distances(arena *a, branch *b, int64_t left, int64_t right) {
  expr *behind = expr_pair(a, EXPR_SUB, TYPE_I32,
                           expr_leaf(a, EXPR_I_, 0, b->at),
                           expr_leaf(a, EXPR_J_, 0, b->at));
  if (right < 0) add_compare(a, b, behind, EXPR_GE, -right);
  if (left < 0) add_compare(a, b, behind, EXPR_LE, left);
}

static branch branch_of(arena *a, const branch *b, const piece *p) {
  enum { BOUNDS = 8 };
  const pair_bounds *x = &p->pairs;
  branch out = *b;
  out.left = x->left < 0 ? 0 : x->left;
  if (x->right < 0) out.right = 0;
  else if (!b->causal) out.right = x->right;
  out.head_first = p->head_first;
  out.head_last = p->head_last;
  out.mask = ARENA_ARRAY(a, expr *, p->rest_count + BOUNDS);
  out.mask_count = 0;
  add_range(a, &out, EXPR_J_, &x->keys);
  add_range(a, &out, EXPR_I_, &x->rows);
  add_distances(a, &out, x->left, x->right);
  for (int32_t i = 0; i < p->rest_count; i++) add_mask(&out, p->rest[i]);
  return out;
}

/* The branch with phase x of every head. */
static void branch_set_phase(arena *a, const pattern *p, branch *b, int64_t x) {
  b->phase_kind = PHASE_EXPR;
  b->phase_expr = expr_leaf(a, EXPR_INT, x, b->at);
  b->phase = ARENA_ARRAY(a, int32_t, p->heads);
  for (int32_t h = 0; h < p->heads; h++) b->phase[h] = (int32_t)x;
}

typedef struct branch_list {
  int32_t count;
  branch of[DIL_BRANCH_MAX];
} branch_list;

static bool list_add(branch_list *to, const branch *b) {
  if (to->count == DIL_BRANCH_MAX) return false;
  to->of[to->count++] = *b;
  return true;
}

static bool list_add_piece(arena *a, const pattern *p, const branch *b,
                           const piece *one, branch_list *to) {
  branch made = branch_of(a, b, one);
  if (one->each == 1) return list_add(to, &made);
  made.dilation = one->each;
  made.phase_kind = PHASE_EACH;
  made.phase = ARENA_ARRAY(a, int32_t, p->heads);
  made.shift = one->shift;
  return list_add(to, &made);
}

/* A branch may have pieces of residues where it has none of its own. */
static bool takes_each(const branch *b, const pieces *p) {
  for (int32_t i = 0; i < p->count; i++)
    if (p->of[i].each > 1 && b->dilation > 1) return false;
  return true;
}

/* Reads the masks of a branch. */
static void pieces_read(arena *a, const branch *b, pieces *p) {
  int64_t right = b->causal && b->right > 0 ? 0 : b->right;
  *p = (pieces){.count = 1,
                .of = {{.pairs = {.left = b->left, .right = right},
                        .each = 1,
                        .head_first = b->head_first,
                        .head_last = b->head_last}}};
  for (int32_t m = 0; m < b->mask_count; m++) pieces_and(a, p, b->mask[m]);
}

/* Parts pieces that have the same other conditions, or residues beside them. */
static bool pieces_settle(pieces *p) {
  for (int32_t i = 0; i < p->count; i++)
    if (p->of[i].rest_count != p->of[0].rest_count && p->of[i].each == 1)
      return false;
  return pieces_part(p);
}

static bool is_plain(const branch *b) {
  return !b->keeps[0].count && !b->keeps[1].count && !b->sink_count;
}

/* A branch's own sinks are of all rows of its heads. */
static bool keeps_sinks(const branch *b, const piece *p) {
  return !b->sink_count ||
         (p->head_first == b->head_first && p->head_last == b->head_last);
}

/* The pieces of a branch; false: it stays as it is. A choice of blocks does not
 * ask masks, so that they must not become windows, residues or heads. */
static bool pieces_of(arena *a, const branch *b, pieces *p) {
  if (branch_choice(b)) return false;
  pieces_read(a, b, p);
  if (p->full || !p->count || !takes_each(b, p)) return false;
  if (p->count == 1)
    return pieces_part(p) && keeps_sinks(b, &p->of[0]) &&
           (p->of[0].rest_count < b->mask_count || p->of[0].each > 1);
  return is_plain(b) && pieces_settle(p);
}

/* The pieces of a union, where each of its branches selects all rows. */
static bool pieces_of_union(arena *a, const pattern *p, pieces *all) {
  pieces *one = ARENA_NEW(a, pieces);
  *all = (pieces){0};
  for (int32_t i = 0; i < p->branch_count && !all->full; i++) {
    const branch *b = &p->branch[i];
    if (!is_plain(b) || b->segment || b->dilation > 1) return false;
    pieces_read(a, b, one);
    pieces_append(all, one);
  }
  return !all->full && all->count && pieces_settle(all);
}

/* False: more branches than there may be. */
static bool list_add_branch(arena *a, const pattern *p, int32_t index,
                            branch_list *to, bool *changed) {
  branch b = p->branch[index];
  pieces *cut = ARENA_NEW(a, pieces);
  if (b.phase_kind == PHASE_BRANCH && b.dilation > 1)
    branch_set_phase(a, p, &b, b.phase[0]);
  if (!pieces_of(a, &b, cut)) return list_add(to, &b);
  *changed = true;
  for (int32_t i = 0; i < cut->count; i++) {
    if (!list_add_piece(a, p, &b, &cut->of[i], to)) return false;
    b.name = NULL;
  }
  return true;
}

/* ---- patterns ------------------------------------------------------------ */

/* `mean` and `sum` have a softmax for each branch, `gradient detached` a share.
 * A share of `heads split` is that of the branch's number. */
static bool is_cuttable(const pattern *p) {
  bool apart = p->combine == DIL_COMBINE_MEAN || p->combine == DIL_COMBINE_SUM;
  if (p->detached || (p->branch_count > 1 && apart)) return false;
  for (int32_t b = 0; b < p->branch_count; b++)
    if (p->branch[b].head_first > p->branch[b].head_last) return false;
  return true;
}

static bool list_fill(arena *a, const pattern *p, branch_list *made) {
  bool changed = false;
  for (int32_t b = 0; b < p->branch_count; b++)
    if (!list_add_branch(a, p, b, made, &changed)) return false;
  return changed;
}

/* The branches of a union, which counts a key once, become pieces together. */
static bool list_fill_union(arena *a, const pattern *p, branch_list *made) {
  pieces *all = ARENA_NEW(a, pieces);
  if (!pieces_of_union(a, p, all)) return false;
  branch whole = p->branch[0];
  whole.name = NULL;
  whole.causal = false;
  for (int32_t i = 0; i < all->count; i++)
    if (!list_add_piece(a, p, &whole, &all->of[i], made)) return false;
  return true;
}

bool pattern_cut(arena *a, pattern *p) {
  if (!is_cuttable(p)) return false;
  branch_list *made = ARENA_NEW(a, branch_list);
  made->count = 0;
  bool unites = p->combine == DIL_COMBINE_UNION && p->branch_count > 1;
  if (!(unites ? list_fill_union : list_fill)(a, p, made)) return false;
  p->branch = ARENA_ARRAY(a, branch, made->count);
  memcpy(p->branch, made->of, (size_t)made->count * sizeof *made->of);
  p->branch_count = made->count;
  p->combine = DIL_COMBINE_SOFTMAX;
  return true;
}
