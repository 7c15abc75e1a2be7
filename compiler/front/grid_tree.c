/* grid_tree.c - a grid in expressions over i and j. In: a scope with a grid,
 * and the reach of a branch. Out: coordinates, blocks of cells, and the masks
 * and the window of positions that the reach stands for. Back ends and counts
 * know these alone; the oracle has the reach by its definition. */
#include "checker.h"
#include "runtime/base/arithmetic.h"
#include <string.h>

#define apply operand_apply_two

static operand whole(span at, int64_t integer) {
  return operand_integer(at, integer);
}

/* ---- coordinates --------------------------------------------------------- */

/* i / 128, or i % 6144 / 128 of an inner axis. */
operand grid_coordinate(const scope *s, span at, expr_op position,
                        int32_t axis) {
  int64_t stride = grid_stride(s->grid, axis);
  operand x = operand_leaf(s, at, position, TYPE_I32);
  if (axis)
    x = apply(s, at, EXPR_MOD, x, whole(at, stride * s->grid->extent[axis]));
  return stride > 1 ? apply(s, at, EXPR_DIV, x, whole(at, stride)) : x;
}

static operand extent_operand(const scope *s, span at, int32_t axis) {
  if (s->grid->extent[axis]) return whole(at, s->grid->extent[axis]);
  operand keys = operand_leaf(s, at, EXPR_M_, TYPE_I32);
  return apply(s, at, EXPR_DIV, keys, whole(at, dil_grid_plane(s->grid)));
}

/* ---- blocks of cells ----------------------------------------------------- */

static operand blocks_of_axis(const scope *s, span at, int32_t axis) {
  operand more = apply(s, at, EXPR_ADD, extent_operand(s, at, axis),
                       whole(at, s->cell[axis] - 1));
  return apply(s, at, EXPR_DIV, more, whole(at, s->cell[axis]));
}

operand grid_blocks(const scope *s, span at) {
  operand all = blocks_of_axis(s, at, 0);
  for (int32_t a = 1; a < s->grid->axes; a++)
    all = apply(s, at, EXPR_MUL, all, blocks_of_axis(s, at, a));
  return all;
}

operand grid_block(const scope *s, span at, expr_op position) {
  operand all = whole(at, 0);
  for (int32_t a = 0; a < s->grid->axes; a++) {
    operand mine = apply(s, at, EXPR_DIV, grid_coordinate(s, at, position, a),
                         whole(at, s->cell[a]));
    if (a) all = apply(s, at, EXPR_MUL, all, blocks_of_axis(s, at, a));
    all = a ? apply(s, at, EXPR_ADD, all, mine) : mine;
  }
  return all;
}

/* ---- masks --------------------------------------------------------------- */

typedef struct speller {
  const scope *s;
  branch *b;
  span at;
  int32_t count;
  expr *mask[5 * GRID_AXES];
} speller;

static void say(speller *w, operand condition) {
  if (condition.wrong) return;
  w->mask[w->count++] =
      expr_fold(w->s->c->arena, operand_tree(w->s, &condition));
}

static void say_compare(speller *w, expr_op op, operand a, operand b) {
  say(w, apply(w->s, w->at, op, a, b));
}

static operand size_of(const speller *w, operand a) {
  return operand_apply(w->s, w->at, EXPR_ABS, &a, 1);
}

/* A coordinate among the cells of its residue. */
static operand residue_cell(const speller *w, expr_op position, int32_t axis) {
  int64_t r = w->b->reach.dilation[axis];
  operand x = grid_coordinate(w->s, w->at, position, axis);
  return r > 1 ? apply(w->s, w->at, EXPR_DIV, x, whole(w->at, r)) : x;
}

static operand residue_of(const speller *w, expr_op position, int32_t axis) {
  return apply(w->s, w->at, EXPR_MOD,
               grid_coordinate(w->s, w->at, position, axis),
               whole(w->at, w->b->reach.dilation[axis]));
}

/* The last cell of the query's residue: (extent - 1 - residue) / dilation. */
static operand residue_last(const speller *w, int32_t axis) {
  const scope *s = w->s;
  int64_t r = w->b->reach.dilation[axis];
  operand last = apply(s, w->at, EXPR_SUB, extent_operand(s, w->at, axis),
                       whole(w->at, 1));
  if (r == 1) return last;
  last = apply(s, w->at, EXPR_SUB, last, residue_of(w, EXPR_I_, axis));
  return apply(s, w->at, EXPR_DIV, last, whole(w->at, r));
}

/* The window is around the query, or around the cell nearest to it whose window
 * fits. Where no window fits, all cells of the residue are in it. */
static operand kernel_middle(const speller *w, int32_t axis) {
  int64_t k = w->b->reach.kernel[axis];
  operand high = apply(w->s, w->at, EXPR_SUB, residue_last(w, axis),
                       whole(w->at, (k - 1) / 2));
  operand inner = apply(w->s, w->at, EXPR_MIN, residue_cell(w, EXPR_I_, axis),
                        high);
  return apply(w->s, w->at, EXPR_MAX, inner, whole(w->at, k / 2));
}

static void say_kernel(speller *w, int32_t axis) {
  int64_t k = w->b->reach.kernel[axis];
  bool causal = w->b->reach.causal[axis];
  if (k == DIL_ENDLESS) return;
  operand middle = causal ? residue_cell(w, EXPR_I_, axis)
                          : kernel_middle(w, axis);
  operand apart = apply(w->s, w->at, EXPR_SUB, residue_cell(w, EXPR_J_, axis),
                        middle);
  if (!causal && k % 2) {
    say_compare(w, EXPR_LE, size_of(w, apart), whole(w->at, k / 2));
    return;
  }
  int64_t back = causal ? k - 1 : k / 2;
  say_compare(w, EXPR_GE, apart, whole(w->at, -back));
  if (!causal) say_compare(w, EXPR_LE, apart, whole(w->at, (k - 1) / 2));
}

/* A window and causality, in cells. */
static void say_window(speller *w, int32_t axis) {
  const grid_reach *r = &w->b->reach;
  int64_t left = r->left[axis];
  int64_t right = r->causal[axis] ? 0 : r->right[axis];
  operand apart = apply(w->s, w->at, EXPR_SUB,
                        grid_coordinate(w->s, w->at, EXPR_J_, axis),
                        grid_coordinate(w->s, w->at, EXPR_I_, axis));
  if (left == right && left != DIL_ENDLESS) {
    say_compare(w, EXPR_LE, size_of(w, apart), whole(w->at, left));
    return;
  }
  if (left != DIL_ENDLESS) say_compare(w, EXPR_GE, apart, whole(w->at, -left));
  if (right != DIL_ENDLESS)
    say_compare(w, EXPR_LE, apart, whole(w->at, right));
}

/* ---- the window of positions --------------------------------------------- */

/* Cells that an axis reaches back, or ahead, at most. */
static int64_t axis_most(const scope *s, const grid_reach *r, int32_t axis,
                         bool ahead) {
  int64_t extent = s->grid->extent[axis];
  int64_t most = extent ? extent - 1 : DIL_ENDLESS;
  most = minimum(most, ahead ? r->right[axis] : r->left[axis]);
  if (ahead && r->causal[axis]) return 0;
  int64_t k = r->kernel[axis];
  return k == DIL_ENDLESS ? most : minimum(most, (k - 1) * r->dilation[axis]);
}

static int64_t positions_most(const scope *s, const grid_reach *r, bool ahead) {
  int64_t sum = 0;
  for (int32_t a = 0; a < s->grid->axes; a++) {
    int64_t cells = axis_most(s, r, a, ahead);
    if (cells > COUNT_MAX) return DIL_ENDLESS;
    sum += cells * grid_stride(s->grid, a);
  }
  return sum > COUNT_MAX ? DIL_ENDLESS : sum;
}

/* A mask that a let has switched off. */
static bool is_always(const expr *e) {
  return e && e->op == EXPR_TRUTH && e->integer != 0;
}

void grid_spell(const scope *s, branch *b) {
  scope inner = scope_at(s, CONTEXT_MASK, "a grid");
  speller w = {.s = &inner, .b = b, .at = b->at};
  for (int32_t a = 0; a < s->grid->axes; a++) {
    if (b->reach.dilation[a] > 1)
      say_compare(&w, EXPR_EQ, residue_of(&w, EXPR_I_, a),
                  residue_of(&w, EXPR_J_, a));
    say_kernel(&w, a);
    say_window(&w, a);
  }
  b->left = positions_most(s, &b->reach, false);
  b->right = positions_most(s, &b->reach, true);
  expr **all = ARENA_ARRAY(s->c->arena, expr *, w.count + b->mask_count);
  memcpy(all, w.mask, (size_t)w.count * sizeof *all);
  b->reach.mask_count = w.count;
  for (int32_t k = 0; k < b->mask_count; k++)
    if (!is_always(b->mask[k])) all[w.count++] = b->mask[k];
  b->mask = all;
  b->mask_count = w.count;
}
