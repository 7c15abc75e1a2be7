/* part_keys.c - branches of a union that see the keys of lists, by themselves.
 *
 * In: a pattern whose branches are united, some of them by `keys NAME`. Out: the
 * same attention by `softmax`: a branch leaves out the pairs of the branches
 * before it, so that each pair stands in one branch. Branches of lists come last
 * in this order. Each then has a pass of its own, which walks its list. */
#include "pattern.h"
#include <string.h>

/* Each branch asks those before it, and each list has a pass of its own. */
enum { OTHERS_MOST = 4, LISTED_MOST = 4 };

/* ---- lists --------------------------------------------------------------- */

bool pattern_is_key_list(const pattern *p, const expr *mask) {
  static const expr_op names[] = {EXPR_B_, EXPR_H_, EXPR_J_};
  const expr *read = mask->op == EXPR_NE ? mask->arg[0] : NULL;
  if (!read || read->op != EXPR_INPUT || !p->input[read->integer].keys ||
      mask->arg[1]->op != EXPR_INT || mask->arg[1]->integer)
    return false;
  for (int32_t axis = 0; axis < read->count; axis++)
    if (read->arg[axis]->op != names[3 - read->count + axis]) return false;
  return true;
}

int32_t pattern_key_list(const pattern *p, const branch *b) {
  bool whole = b->segment == 0 && b->dilation == 1 && !p->grid.axes;
  for (int32_t m = 0; whole && m < b->mask_count; m++)
    if (pattern_is_key_list(p, b->mask[m])) return m;
  return -1;
}

/* ---- the pairs of a branch as a condition -------------------------------- */

typedef struct condition {
  arena *arena;
  span at;
  expr *all; /* NULL: no term yet */
} condition;

static void take(condition *c, expr *term) {
  c->all = c->all ? expr_pair(c->arena, EXPR_AND, TYPE_CONDITION, c->all, term)
                  : term;
}

static expr *number(const condition *c, int64_t x) {
  return expr_leaf(c->arena, EXPR_INT, x, c->at);
}

static expr *name(const condition *c, expr_op leaf) {
  return expr_leaf(c->arena, leaf, 0, c->at);
}

static expr *integer(const condition *c, expr_op op, expr *left, expr *right) {
  return expr_pair(c->arena, op, TYPE_I32, left, right);
}

static void take_compare(condition *c, expr_op op, expr *left, expr *right) {
  take(c, expr_pair(c->arena, op, TYPE_CONDITION, left, right));
}

static void take_window(condition *c, const branch *b) {
  int64_t right = b->causal && b->right > 0 ? 0 : b->right;
  expr *behind = integer(c, EXPR_SUB, name(c, EXPR_I_), name(c, EXPR_J_));
  if (b->left != DIL_ENDLESS) take_compare(c, EXPR_LE, behind, number(c, b->left));
  if (right != DIL_ENDLESS) take_compare(c, EXPR_GE, behind, number(c, -right));
}

static void take_segment(condition *c, const branch *b) {
  if (!b->segment) return;
  take_compare(c, EXPR_EQ,
               integer(c, EXPR_DIV, name(c, EXPR_I_), number(c, b->segment)),
               integer(c, EXPR_DIV, name(c, EXPR_J_), number(c, b->segment)));
}

static void take_heads(condition *c, const pattern *p, const branch *b) {
  expr *h = name(c, EXPR_H_);
  if (b->head_first > 0) take_compare(c, EXPR_GE, h, number(c, b->head_first));
  if (b->head_last < p->heads - 1)
    take_compare(c, EXPR_LE, h, number(c, b->head_last));
}

static void take_keeps(condition *c, const keeps *level) {
  expr *any = NULL;
  for (int32_t k = 0; k < level->count; k++) {
    expr *one = level->keep[k].condition;
    any = any ? expr_pair(c->arena, EXPR_OR, TYPE_CONDITION, any, one) : one;
  }
  if (any) take(c, any);
}

/* The pairs of an undilated branch. */
static expr *pairs_of(arena *a, const pattern *p, const branch *b) {
  condition c = {.arena = a, .at = b->at};
  take_heads(&c, p, b);
  take_window(&c, b);
  take_segment(&c, b);
  for (int32_t m = 0; m < b->mask_count; m++) take(&c, b->mask[m]);
  for (int32_t level = 0; level < 2; level++) take_keeps(&c, &b->keeps[level]);
  if (c.all) return c.all;
  expr *always = expr_leaf(a, EXPR_TRUTH, 1, b->at);
  always->type = TYPE_CONDITION;
  return always;
}

/* ---- where a condition does not hold ------------------------------------- */

static expr_op opposite_of(expr_op op) {
  switch (op) {
  case EXPR_EQ: return EXPR_NE;
  case EXPR_NE: return EXPR_EQ;
  case EXPR_LT: return EXPR_GE;
  case EXPR_GE: return EXPR_LT;
  case EXPR_LE: return EXPR_GT;
  case EXPR_GT: return EXPR_LE;
  case EXPR_AND: return EXPR_OR;
  case EXPR_OR: return EXPR_AND;
  default: return op;
  }
}

/* The opposite, as comparisons where it can be: pieces.c reads these. */
static expr *opposite(arena *a, expr *e) {
  expr_op op = opposite_of(e->op);
  bool compares = op != e->op && op != EXPR_AND && op != EXPR_OR;
  if (compares && e->arg[0]->type != TYPE_F32 && e->arg[1]->type != TYPE_F32)
    return expr_pair(a, op, TYPE_CONDITION, e->arg[0], e->arg[1]);
  if (!compares && op != e->op)
    return expr_pair(a, op, TYPE_CONDITION, opposite(a, e->arg[0]),
                     opposite(a, e->arg[1]));
  expr *out = ARENA_NEW(a, expr);
  *out = (expr){.op = EXPR_NOT, .type = TYPE_CONDITION, .at = e->at, .count = 1,
                .arg = ARENA_ARRAY(a, expr *, 1)};
  out->arg[0] = e;
  return out;
}

/* ---- patterns ------------------------------------------------------------ */

static bool share_heads(const branch *a, const branch *b) {
  return a->head_first <= b->head_last && b->head_first <= a->head_last;
}

/* Adds a mask that leaves out the pairs of another branch. */
static void leave_out(arena *a, const pattern *p, branch *b, const branch *other) {
  if (!share_heads(b, other)) return;
  expr **all = ARENA_ARRAY(a, expr *, b->mask_count + 1);
  if (b->mask_count)
    memcpy(all, b->mask, (size_t)b->mask_count * sizeof *all);
  all[b->mask_count++] = expr_fold(a, opposite(a, pairs_of(a, p, other)));
  b->mask = all;
}

/* Whether branch `other` comes before `b`: lists come last. */
static bool comes_before(const pattern *p, int32_t other, int32_t b) {
  bool mine = pattern_key_list(p, &p->branch[b]) >= 0;
  bool its = pattern_key_list(p, &p->branch[other]) >= 0;
  return its == mine ? other < b : mine;
}

static bool can_part(const pattern *p) {
  int32_t others = 0;
  for (int32_t b = 0; b < p->branch_count; b++) {
    const branch *one = &p->branch[b];
    if (one->dilation > 1 || branch_choice(one)) return false;
    others += pattern_key_list(p, one) < 0;
  }
  return p->combine == DIL_COMBINE_UNION && p->branch_count > 1 &&
         others < p->branch_count && others <= OTHERS_MOST &&
         p->branch_count - others <= LISTED_MOST;
}

bool pattern_part_keys(arena *a, pattern *p) {
  if (!can_part(p)) return false;
  branch *made = ARENA_ARRAY(a, branch, p->branch_count);
  for (int32_t b = 0; b < p->branch_count; b++) {
    made[b] = p->branch[b];
    for (int32_t other = 0; other < p->branch_count; other++)
      if (other != b && comes_before(p, other, b))
        leave_out(a, p, &made[b], &p->branch[other]);
  }
  p->branch = made;
  p->combine = DIL_COMBINE_SOFTMAX;
  return true;
}
