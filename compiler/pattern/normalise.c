/* normalise.c - masks that say what a branch can say.
 *
 * In: a checked pattern. Out: the same attention with segments and dilations in
 * place of the mask terms `i / S == j / S` and `i % r == c && j % r == c` (c of
 * the head alone). Where one branch's mask is a list of such with `||` between
 * them, each becomes a branch of a union. A kernel then never visits what a
 * mask would have hidden. What is no such term stays a mask. A branch with
 * sinks keeps its rows; the sinks of one that selects every row become the
 * pattern's. A union of lists of keys and other branches becomes a softmax of
 * branches that share no pair (part_keys.c). */
#include "pattern.h"
#include "runtime/base/arithmetic.h"

/* Tiles of queries fill well within these (see walk_fills_tiles). */
enum { TERMS = 16, PERIOD_MOST = 64, ROWS_LEAST = 32 };

/* The facts that are known of a conjunction's pairs. */
typedef struct lifted {
  int64_t segment;        /* 0: none */
  int64_t dilation;       /* of either side; 0: no such term */
  int64_t within;         /* x % within % dilation; 0: x % dilation */
  expr *phase[2];         /* of rows, of keys */
} lifted;

typedef struct terms {
  int32_t count;          /* TERMS + 1: too many */
  expr *term[TERMS];
} terms;

/* ---- terms --------------------------------------------------------------- */

static void flatten(expr *e, expr_op op, terms *list) {
  if (e->op == op) {
    for (int32_t i = 0; i < e->count; i++) flatten(e->arg[i], op, list);
  } else if (list->count < TERMS) {
    list->term[list->count++] = e;
  } else {
    list->count = TERMS + 1;
  }
}

static bool is_constant(const expr *e) {
  return e->op == EXPR_INT && e->integer > 0;
}

/* `x / S` for a position x; 0: it is not. */
static int64_t quotient_of(const expr *e, expr_op position) {
  bool is = e->op == EXPR_DIV && e->arg[0]->op == position &&
            is_constant(e->arg[1]);
  return is ? e->arg[1]->integer : 0;
}

static bool take_segment(const expr *e, lifted *to) {
  int64_t s = quotient_of(e->arg[0], EXPR_I_);
  int64_t other = quotient_of(e->arg[1], EXPR_J_);
  if (!s) {
    s = quotient_of(e->arg[1], EXPR_I_);
    other = quotient_of(e->arg[0], EXPR_J_);
  }
  if (!s || s != other || (to->segment && to->segment != s)) return false;
  to->segment = s;
  return true;
}

static bool is_of_head(const expr *e) {
  static const expr_op others[] = {EXPR_B_, EXPR_I_,    EXPR_J_, EXPR_S_,
                                   EXPR_N_, EXPR_BATCH, EXPR_M_, EXPR_INPUT};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (expr_uses(e, others[i])) return false;
  return e->type == TYPE_I32;
}

/* `x % r == c` or `x % S % r == c`. */
static bool take_residue(const expr *x, expr *c, lifted *to) {
  if (x->op != EXPR_MOD || !is_constant(x->arg[1]) || !is_of_head(c))
    return false;
  int64_t dilation = x->arg[1]->integer, within = 0;
  const expr *inner = x->arg[0];
  if (inner->op == EXPR_MOD && is_constant(inner->arg[1])) {
    within = inner->arg[1]->integer;
    inner = inner->arg[0];
  }
  bool first = !to->dilation;
  int32_t side = inner->op == EXPR_J_;
  if ((inner->op != EXPR_I_ && !side) || to->phase[side]) return false;
  if (!first && (to->dilation != dilation || to->within != within))
    return false;
  to->dilation = dilation;
  to->within = within;
  to->phase[side] = c;
  return true;
}

static bool take_term(const expr *e, lifted *to) {
  if (e->op != EXPR_EQ) return false;
  return take_segment(e, to) || take_residue(e->arg[0], e->arg[1], to) ||
         take_residue(e->arg[1], e->arg[0], to);
}

/* ---- what a branch can say ----------------------------------------------- */

static int32_t value_at(const expr *e, int32_t head) {
  expr_point point = {.h = head};
  return (int32_t)expr_eval(e, &point, false).integer;
}

/* Residues count from where a segment begins, and every head has one. */
static bool is_dilation(const lifted *x, const branch *b) {
  int64_t r = x->dilation, s = x->segment;
  if (!r) return true;
  if (!x->phase[0] || !x->phase[1] || !expr_same(x->phase[0], x->phase[1]))
    return false;
  if (x->within != s && (s % r || x->within % r)) return false;
  for (int32_t h = b->head_first; h <= b->head_last; h++) {
    int32_t phase = value_at(x->phase[0], h);
    if (phase < 0 || phase >= r) return false;
  }
  return true;
}

static bool is_branch(const lifted *x, const branch *b) {
  bool plain = !b->segment && b->dilation == 1 && !b->keeps[0].count &&
               !b->keeps[1].count && !b->sink_count;
  return plain && x->segment && is_dilation(x, b);
}

/* All terms of a conjunction. */
static bool lift_all(expr *e, const branch *b, lifted *to) {
  terms list = {0};
  flatten(e, EXPR_AND, &list);
  if (list.count > TERMS) return false;
  *to = (lifted){0};
  for (int32_t i = 0; i < list.count; i++)
    if (!take_term(list.term[i], to)) return false;
  return is_branch(to, b);
}

static bool fills_tiles(const lifted *x, int32_t count) {
  int64_t period = 1, shortest = INT64_MAX;
  for (int32_t i = 0; i < count; i++) {
    if (x[i].dilation > PERIOD_MOST) return false;
    if (x[i].dilation) period = least_multiple(period, x[i].dilation);
    if (x[i].segment < shortest) shortest = x[i].segment;
  }
  return period <= PERIOD_MOST && shortest / period >= ROWS_LEAST;
}

/* `b` without the masks, where `x` says what one of them said. */
static branch branch_of(arena *a, const pattern *p, const branch *b,
                        const lifted *x, expr **mask, int32_t count) {
  branch out = *b;
  out.segment = x->segment;
  out.mask = mask;
  out.mask_count = count;
  if (!x->dilation) return out;
  out.dilation = x->dilation;
  out.phase_kind = PHASE_EXPR;
  out.phase_expr = x->phase[0];
  out.phase = ARENA_ARRAY(a, int32_t, p->heads);
  for (int32_t h = 0; h < p->heads; h++)
    out.phase[h] =
        (int32_t)floor_mod(value_at(x->phase[0], h), x->dilation);
  return out;
}

/* ---- patterns ------------------------------------------------------------ */

/* The conjunction of a branch's masks; false: none, or too many terms. */
static bool terms_of(const branch *b, terms *list) {
  *list = (terms){0};
  for (int32_t m = 0; m < b->mask_count; m++)
    flatten(b->mask[m], EXPR_AND, list);
  return list->count && list->count <= TERMS;
}

/* Segment and residues out of a conjunction; the rest stays. */
static bool lift_branch(arena *a, const pattern *p, branch *b) {
  terms list;
  lifted x = {0};
  if (!terms_of(b, &list)) return false;
  expr **rest = ARENA_ARRAY(a, expr *, list.count);
  int32_t count = 0;
  for (int32_t i = 0; i < list.count; i++)
    if (!take_term(list.term[i], &x)) rest[count++] = list.term[i];
  if (count == list.count || !is_branch(&x, b) || !fills_tiles(&x, 1))
    return false;
  *b = branch_of(a, p, b, &x, rest, count);
  return true;
}

/* The only branch becomes several, one for each part of the one `||`. */
static bool lift_union(arena *a, pattern *p) {
  const branch *b = &p->branch[0];
  terms list, parts = {0};
  lifted x[TERMS];
  int32_t at = 0;
  if (p->branch_count > 1 || p->dropout > 0 || !terms_of(b, &list))
    return false;
  while (at < list.count && list.term[at]->op != EXPR_OR) at++;
  if (at == list.count) return false;
  flatten(list.term[at], EXPR_OR, &parts);
  if (parts.count > TERMS) return false;
  for (int32_t i = 0; i < parts.count; i++)
    if (!lift_all(parts.term[i], b, &x[i])) return false;
  if (!fills_tiles(x, parts.count)) return false;
  expr **rest = ARENA_ARRAY(a, expr *, list.count);
  for (int32_t i = 0, count = 0; i < list.count; i++)
    if (i != at) rest[count++] = list.term[i];
  branch *made = ARENA_ARRAY(a, branch, parts.count);
  for (int32_t i = 0; i < parts.count; i++)
    made[i] = branch_of(a, p, b, &x[i], rest, list.count - 1);
  p->branch = made;
  p->branch_count = parts.count;
  p->combine = DIL_COMBINE_UNION;
  return true;
}

static bool selects_all(const pattern *p, const branch *b) {
  return !b->segment && b->dilation == 1 && b->head_first == 0 &&
         b->head_last == p->heads - 1;
}

/* True when the branch gave the pattern its sinks; where the gradient is
 * detached, the two have other gradients. */
static bool raise_sinks(arena *a, pattern *p, branch *b) {
  if (b->sink_count == 0 || p->detached || !selects_all(p, b)) return false;
  expr **all = ARENA_ARRAY(a, expr *, p->sink_count + b->sink_count);
  for (int32_t k = 0; k < p->sink_count; k++) all[k] = p->sink[k];
  for (int32_t k = 0; k < b->sink_count; k++)
    all[p->sink_count + k] = b->sink[k];
  p->sink = all;
  p->sink_count += b->sink_count;
  b->sink_count = 0;
  return true;
}

const pattern *pattern_normalise(arena *a, const pattern *p) {
  /* Others count the branches that select a row, with keys or without. */
  if (p->combine != DIL_COMBINE_SOFTMAX && p->combine != DIL_COMBINE_UNION)
    return p;
  pattern *out = ARENA_NEW(a, pattern);
  *out = *p;
  bool any = false;
  out->branch = ARENA_ARRAY(a, branch, p->branch_count);
  for (int32_t b = 0; b < p->branch_count; b++) {
    out->branch[b] = p->branch[b];
    any |= raise_sinks(a, out, &out->branch[b]);
  }
  if (p->grid.axes) return any ? out : p; /* has all that masks could say */
  if (lift_union(a, out)) return out;
  any |= pattern_part_keys(a, out);
  for (int32_t b = 0; b < p->branch_count; b++)
    any |= lift_branch(a, out, &out->branch[b]);
  any |= pattern_cut(a, out);
  return any ? out : p;
}
