/* pieces.c - masks that windows, ranges of keys and residues say.
 *
 * In: a pattern. Out: the same attention, with pieces in place of the branches
 * whose masks can be read. A mask is read as a disjunction of conjunctions of
 * terms: windows (`i - j < w`), ranges of keys (`j < c`) and residues
 * (`i % r == j % r`). Each conjunction is a piece. Pieces of a branch have no
 * pair in common, so that `softmax` counts a key once: what a wider piece holds
 * is cut out of the range of keys of a narrower one. A piece of residues modulo
 * r becomes r branches, one for each residue. */
#include "pattern.h"
#include <string.h>

/* EACH_MOST: residues that become branches of their own. */
enum { PIECES = 16, TERMS = 16, EACH_MOST = 32 };

typedef struct piece {
  int64_t left, right; /* -left <= j - i <= right; DIL_ENDLESS: no bound */
  key_range keys;
  int64_t each; /* i % each == j % each; 1: any pair */
  int32_t rest_count;
  expr *rest[TERMS]; /* conditions that stay masks */
} piece;

typedef struct pieces {
  bool full; /* there were more than fit */
  int32_t count;
  piece of[PIECES];
} pieces;

/* ---- terms --------------------------------------------------------------- */

/* What a side of a comparison is. A distance of two positions never
 * overflows. */
typedef enum side_kind {
  SIDE_OTHER,
  SIDE_NUMBER,
  SIDE_I,
  SIDE_J,
  SIDE_BEHIND,
  SIDE_AHEAD,
  SIDE_APART
} side_kind;

static side_kind side_of(const expr *e) {
  if (e->op == EXPR_INT) return SIDE_NUMBER;
  if (e->op == EXPR_I_) return SIDE_I;
  if (e->op == EXPR_J_) return SIDE_J;
  if (e->op == EXPR_ABS) {
    side_kind inner = side_of(e->arg[0]);
    return inner == SIDE_BEHIND || inner == SIDE_AHEAD ? SIDE_APART
                                                       : SIDE_OTHER;
  }
  if (e->op != EXPR_SUB) return SIDE_OTHER;
  side_kind left = side_of(e->arg[0]), right = side_of(e->arg[1]);
  if (left == SIDE_I && right == SIDE_J) return SIDE_BEHIND;
  return left == SIDE_J && right == SIDE_I ? SIDE_AHEAD : SIDE_OTHER;
}

/* A comparison as low <= x <= high of one side x. */
typedef struct bounded {
  side_kind x;
  int64_t low, high;
} bounded;

static void bounded_negate(bounded *b, side_kind x) {
  int64_t low = b->low == INT64_MIN ? INT64_MAX : -b->low;
  b->low = b->high == INT64_MAX ? INT64_MIN : -b->high;
  b->high = low;
  b->x = x;
}

/* `x op c`, as bounds of x. */
static bool bounded_take(expr_op op, int64_t c, bounded *b) {
  b->low = INT64_MIN;
  b->high = INT64_MAX;
  switch (op) {
  case EXPR_LT:
    b->high = c - 1;
    return true;
  case EXPR_LE:
    b->high = c;
    return true;
  case EXPR_GT:
    b->low = c + 1;
    return true;
  case EXPR_GE:
    b->low = c;
    return true;
  case EXPR_EQ:
    b->low = b->high = c;
    return true;
  default:
    return false;
  }
}

static expr_op mirrored(expr_op op) {
  switch (op) {
  case EXPR_LT:
    return EXPR_GT;
  case EXPR_LE:
    return EXPR_GE;
  case EXPR_GT:
    return EXPR_LT;
  case EXPR_GE:
    return EXPR_LE;
  default:
    return op;
  }
}

/* False: the condition bounds no position or distance by a constant. */
static bool bounded_read(const expr *e, bounded *b) {
  if (e->count != 2) return false;
  side_kind x = side_of(e->arg[0]), y = side_of(e->arg[1]);
  if (x == SIDE_I && y == SIDE_J) {
    b->x = SIDE_BEHIND;
    return bounded_take(e->op, 0, b);
  }
  if (x == SIDE_J && y == SIDE_I) {
    b->x = SIDE_AHEAD;
    return bounded_take(e->op, 0, b);
  }
  if (y == SIDE_NUMBER && x > SIDE_NUMBER) {
    b->x = x;
    return bounded_take(e->op, e->arg[1]->integer, b);
  }
  b->x = y;
  return x == SIDE_NUMBER && y > SIDE_NUMBER &&
         bounded_take(mirrored(e->op), e->arg[0]->integer, b);
}

static bool keys_take(const bounded *b, key_range *keys) {
  key_range narrow = *keys;
  if (b->low > narrow.first) narrow.first = b->low;
  if (b->high < INT64_MAX && (!narrow.end || b->high + 1 < narrow.end))
    narrow.end = b->high + 1;
  if (b->high < 0 || (narrow.end && narrow.first >= narrow.end)) return false;
  *keys = narrow;
  return true;
}

bool key_range_take(const expr *e, key_range *range) {
  bounded b;
  return bounded_read(e, &b) && b.x == SIDE_J && keys_take(&b, range);
}

/* A window holds the row itself, or its predicate stays a mask. */
static bool window_take(bounded b, piece *p) {
  if (b.x == SIDE_APART && b.low <= 0) {
    if (b.high < 0) return false;
    b.low = b.high == INT64_MAX ? INT64_MIN : -b.high;
  } else if (b.x == SIDE_BEHIND) {
    bounded_negate(&b, SIDE_AHEAD);
  } else if (b.x != SIDE_AHEAD) {
    return false;
  }
  if (b.low > 0 || b.high < 0) return false;
  if (b.low > INT64_MIN && -b.low < p->left) p->left = -b.low;
  if (b.high < p->right) p->right = b.high;
  return true;
}

/* `x % r` of a term, with r > 1; 0: it is none. */
static int64_t modulus_of(const expr *e) {
  bool is =
      e->op == EXPR_MOD && e->arg[1]->op == EXPR_INT && e->arg[1]->integer > 1;
  return is ? e->arg[1]->integer : 0;
}

static bool is_zero(const expr *e) {
  return e->op == EXPR_INT && e->integer == 0;
}

/* `i % r == j % r` or `(i - j) % r == 0`. */
static int64_t each_of(const expr *e) {
  if (e->op != EXPR_EQ) return 0;
  const expr *x = e->arg[0], *y = e->arg[1];
  if (is_zero(x)) {
    x = y;
    y = e->arg[0];
  }
  int64_t r = modulus_of(x);
  if (!r) return 0;
  side_kind a = side_of(x->arg[0]);
  if (is_zero(y)) return a == SIDE_BEHIND || a == SIDE_AHEAD ? r : 0;
  if (modulus_of(y) != r) return 0;
  side_kind b = side_of(y->arg[0]);
  return (a == SIDE_I && b == SIDE_J) || (a == SIDE_J && b == SIDE_I) ? r : 0;
}

static bool each_take(const expr *e, piece *p) {
  int64_t r = each_of(e);
  if (!r || r > EACH_MOST || (p->each > 1 && p->each != r)) return false;
  p->each = r;
  return true;
}

/* ---- reading ------------------------------------------------------------- */

static void piece_and(piece *p, expr *e, bool *full) {
  bounded b;
  if (each_take(e, p)) return;
  if (bounded_read(e, &b) &&
      (b.x == SIDE_J ? keys_take(&b, &p->keys) : window_take(b, p)))
    return;
  if (p->rest_count == TERMS)
    *full = true;
  else
    p->rest[p->rest_count++] = e;
}

static void pieces_append(pieces *to, const pieces *from) {
  to->full |= from->full || to->count + from->count > PIECES;
  if (to->full) return;
  memcpy(to->of + to->count, from->of, (size_t)from->count * sizeof *to->of);
  to->count += from->count;
}

/* Narrows all pieces by a condition. */
static void pieces_and(arena *a, pieces *p, expr *e) {
  if (e->op == EXPR_AND) {
    for (int32_t i = 0; i < e->count && !p->full; i++)
      pieces_and(a, p, e->arg[i]);
  } else if (e->op == EXPR_OR) {
    pieces *given = ARENA_NEW(a, pieces), *one = ARENA_NEW(a, pieces);
    *given = *p;
    p->count = 0;
    for (int32_t i = 0; i < e->count && !p->full; i++) {
      *one = *given;
      pieces_and(a, one, e->arg[i]);
      pieces_append(p, one);
    }
  } else {
    for (int32_t i = 0; i < p->count; i++) piece_and(&p->of[i], e, &p->full);
  }
}

/* ---- pieces without common pairs ----------------------------------------- */

static int64_t end_of(const piece *p) {
  return p->keys.end ? p->keys.end : DIL_ENDLESS;
}

static bool has_rest(const piece *p, const expr *e) {
  for (int32_t i = 0; i < p->rest_count; i++)
    if (expr_same(p->rest[i], e)) return true;
  return false;
}

/* Returns whether each pair of p in the keys of `wide` is one of `wide`. */
static bool is_within(const piece *p, const piece *wide) {
  for (int32_t i = 0; i < wide->rest_count; i++)
    if (!has_rest(p, wide->rest[i])) return false;
  return p->left <= wide->left && p->right <= wide->right &&
         p->each % wide->each == 0;
}

static bool is_wider(const piece *a, const piece *b) {
  if (a->left != b->left) return a->left > b->left;
  if (a->right != b->right) return a->right > b->right;
  return a->rest_count < b->rest_count;
}

static void pieces_sort(pieces *p) {
  for (int32_t i = 1; i < p->count; i++) {
    piece one = p->of[i];
    int32_t at = i;
    for (; at && is_wider(&one, &p->of[at - 1]); at--)
      p->of[at] = p->of[at - 1];
    p->of[at] = one;
  }
}

/* Takes keys out of piece i. The keys before and behind them stay: piece i, a
 * new piece, or both. */
static void piece_cut(pieces *p, int32_t i, const piece *cut) {
  piece before = p->of[i], behind = p->of[i];
  if (cut->keys.first < end_of(&before)) before.keys.end = cut->keys.first;
  if (cut->keys.end > behind.keys.first) behind.keys.first = cut->keys.end;
  bool first = cut->keys.first > before.keys.first;
  bool second = cut->keys.end && behind.keys.first < end_of(&behind);
  if (first && second) {
    p->of[i] = before;
    if (p->count == PIECES)
      p->full = true;
    else
      p->of[p->count++] = behind;
  } else if (first || second) {
    p->of[i] = first ? before : behind;
  } else {
    p->of[i] = p->of[--p->count];
  }
}

/* The first piece that has keys of piece i, among those before it; -1: none. */
static int32_t pieces_meeting(const pieces *p, int32_t i) {
  for (int32_t k = 0; k < i; k++)
    if (p->of[k].keys.first < end_of(&p->of[i]) &&
        p->of[i].keys.first < end_of(&p->of[k]))
      return k;
  return -1;
}

/* False: some two pieces have pairs in common that no range of keys tells. */
static bool pieces_part(pieces *p) {
  pieces_sort(p);
  for (int32_t i = 1; i < p->count && !p->full;) {
    int32_t k = pieces_meeting(p, i);
    if (k < 0) {
      i++;
      continue;
    }
    if (!is_within(&p->of[i], &p->of[k])) return false;
    piece_cut(p, i, &p->of[k]);
  }
  return !p->full;
}

/* ---- branches ------------------------------------------------------------ */

static expr *number_make(arena *a, int64_t integer, span at) {
  expr *e = ARENA_NEW(a, expr);
  *e = (expr){.op = EXPR_INT, .type = TYPE_I32, .at = at, .integer = integer};
  return e;
}

static expr *key_compare(arena *a, expr_op op, int64_t integer, span at) {
  expr *key = ARENA_NEW(a, expr), *e = ARENA_NEW(a, expr);
  *key = (expr){.op = EXPR_J_, .type = TYPE_I32, .at = at};
  *e = (expr){.op = op, .type = TYPE_CONDITION, .at = at, .count = 2};
  e->arg = ARENA_ARRAY(a, expr *, 2);
  e->arg[0] = key;
  e->arg[1] = number_make(a, integer, at);
  return e;
}

static branch branch_of(arena *a, const branch *b, const piece *p) {
  branch out = *b;
  out.left = p->left;
  out.right = b->causal ? b->right : p->right;
  out.mask = ARENA_ARRAY(a, expr *, p->rest_count + 2);
  out.mask_count = 0;
  if (p->keys.first > 0)
    out.mask[out.mask_count++] = key_compare(a, EXPR_GE, p->keys.first, b->at);
  if (p->keys.end > 0)
    out.mask[out.mask_count++] = key_compare(a, EXPR_LT, p->keys.end, b->at);
  for (int32_t i = 0; i < p->rest_count; i++)
    out.mask[out.mask_count++] = p->rest[i];
  return out;
}

/* The branch with phase x of every head. */
static void branch_set_phase(arena *a, const pattern *p, branch *b, int64_t x) {
  b->phase_kind = PHASE_EXPR;
  b->phase_expr = number_make(a, x, b->at);
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
  for (int64_t x = 0; x < one->each; x++) {
    branch_set_phase(a, p, &made, x);
    if (!list_add(to, &made)) return false;
  }
  return true;
}

/* A branch may have pieces of residues where it has none of its own, and
 * residues count from where its segments begin. */
static bool takes_each(const branch *b, const pieces *p) {
  for (int32_t i = 0; i < p->count; i++)
    if (p->of[i].each > 1 &&
        (b->dilation > 1 || b->segment % p->of[i].each || b->sink_count))
      return false;
  return true;
}

/* Reads the masks of a branch. */
static void pieces_read(arena *a, const branch *b, pieces *p) {
  *p = (pieces){.count = 1,
                .of = {{.left = b->left,
                        .right = b->causal && b->right > 0 ? 0 : b->right,
                        .each = 1}}};
  for (int32_t m = 0; m < b->mask_count; m++) pieces_and(a, p, b->mask[m]);
}

/* Parts pieces that have the same other conditions. */
static bool pieces_settle(pieces *p) {
  for (int32_t i = 0; i < p->count; i++)
    if (p->of[i].rest_count != p->of[0].rest_count) return false;
  return pieces_part(p);
}

static bool is_plain(const branch *b) {
  return !b->keeps[0].count && !b->keeps[1].count && !b->sink_count;
}

/* The pieces of a branch; false: it stays as it is. */
static bool pieces_of(arena *a, const branch *b, pieces *p) {
  pieces_read(a, b, p);
  if (p->full || !takes_each(b, p)) return false;
  if (p->count == 1) return p->of[0].rest_count < b->mask_count;
  return is_plain(b) && pieces_settle(p);
}

/* The pieces of a union, where each of its branches selects all rows. */
static bool pieces_of_union(arena *a, const pattern *p, pieces *all) {
  pieces *one = ARENA_NEW(a, pieces);
  *all = (pieces){0};
  for (int32_t i = 0; i < p->branch_count && !all->full; i++) {
    const branch *b = &p->branch[i];
    if (!is_plain(b) || b->segment || b->dilation > 1 || b->head_first ||
        b->head_last < p->heads - 1)
      return false;
    pieces_read(a, b, one);
    pieces_append(all, one);
  }
  return !all->full && pieces_settle(all);
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
