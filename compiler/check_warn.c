/* check_warn.c - what is legal and surely unwanted in a pattern: rows that no
 * branch selects, branches that never select any, the same branch twice. In:
 * a pattern without errors. Masks and keeps are taken as written: what they
 * leave is a question for `dil explain`. */
#include "checker.h"

enum { ROWS_TRIED = 1 << 20 }; /* looked at for uncovered ones, a pattern */

static void warn(checker *c, span at, const char *hint, const char *text) {
  diag_report(c->diag, SEVERITY_WARNING, at, hint, "%s", text);
}

static const char *branch_text(checker *c, const pattern *p, int32_t index) {
  const char *name = p->branch[index].name;
  return name ? arena_print(c->arena, "branch '%s'", name)
              : arena_print(c->arena, "branch %d", index);
}

/* ---- the same branch twice ----------------------------------------------- */

static bool exprs_same(expr **a, int32_t a_count, expr **b, int32_t b_count) {
  if (a_count != b_count) return false;
  for (int32_t i = 0; i < a_count; i++)
    if (!expr_same(a[i], b[i])) return false;
  return true;
}

static bool keeps_same(const keeps *a, const keeps *b) {
  if (a->block != b->block || a->count != b->count) return false;
  for (int32_t i = 0; i < a->count; i++) {
    const keep *x = &a->keep[i], *y = &b->keep[i];
    if (x->kind != y->kind || x->amount != y->amount) return false;
    if (x->kind == KEEP_EXPR && !expr_same(x->condition, y->condition))
      return false;
  }
  return true;
}

static bool rows_same(const branch *a, const branch *b) {
  if (a->segment != b->segment || a->dilation != b->dilation ||
      a->head_first != b->head_first || a->head_last != b->head_last)
    return false;
  for (int32_t h = a->head_first; h <= a->head_last; h++)
    if (a->phase[h] != b->phase[h]) return false;
  return true;
}

static bool branches_same(const branch *a, const branch *b) {
  return rows_same(a, b) && a->causal == b->causal && a->left == b->left &&
         a->right == b->right &&
         exprs_same(a->mask, a->mask_count, b->mask, b->mask_count) &&
         exprs_same(a->score, a->score_count, b->score, b->score_count) &&
         keeps_same(&a->keeps[0], &b->keeps[0]) &&
         keeps_same(&a->keeps[1], &b->keeps[1]);
}

static void warn_same(checker *c, const pattern *p) {
  for (int32_t k = 1; k < p->branch_count; k++)
    for (int32_t first = 0; first < k; first++) {
      if (!branches_same(&p->branch[first], &p->branch[k])) continue;
      warn(c, p->branch[k].at, NULL,
           arena_print(c->arena, "%s is the same as %s",
                       branch_text(c, p, k), branch_text(c, p, first)));
      break;
    }
}

/* ---- branches that select nothing ---------------------------------------- */

/* A phase at or beyond the segment's end is never reached. */
static bool selects_head(const branch *b, int32_t h) {
  return b->segment == 0 || b->phase[h] < b->segment;
}

static bool is_false(const expr *e) {
  return e->op == EXPR_TRUTH && e->integer == 0;
}

static bool keeps_nothing(const keeps *k) {
  for (int32_t i = 0; i < k->count; i++)
    if (k->keep[i].kind != KEEP_EXPR || !is_false(k->keep[i].condition))
      return false;
  return k->count > 0;
}

static const char *why_nothing(checker *c, const branch *b) {
  for (int32_t m = 0; m < b->mask_count; m++)
    if (is_false(b->mask[m])) return "a mask of it is never true";
  if (keeps_nothing(&b->keeps[0]) || keeps_nothing(&b->keeps[1]))
    return "its keeps are never true";
  if (b->head_first > b->head_last)
    return "there are fewer heads than branches to split them over";
  for (int32_t h = b->head_first; h <= b->head_last; h++)
    if (selects_head(b, h)) return NULL;
  return arena_print(c->arena,
                     "its phase is %d or more, beyond a segment of %lld",
                     (int32_t)b->segment, (long long)b->segment);
}

static void warn_nothing(checker *c, const pattern *p) {
  for (int32_t k = 0; k < p->branch_count; k++) {
    const char *why = why_nothing(c, &p->branch[k]);
    if (!why) continue;
    warn(c, p->branch[k].at, why,
         arena_print(c->arena, "%s can never select anything",
                     branch_text(c, p, k)));
  }
}

/* ---- rows that no branch selects ----------------------------------------- */

static bool serves(const branch *b, int32_t h) {
  return h >= b->head_first && h <= b->head_last;
}

static bool selects(const branch *b, int32_t h, int64_t t) {
  int64_t inside = b->segment ? t % b->segment : t;
  return serves(b, h) && inside % b->dilation == b->phase[h];
}

/* The positions repeat after this many. */
static int64_t period_of(const pattern *p, int32_t h) {
  int64_t period = 1;
  for (int32_t k = 0; k < p->branch_count; k++) {
    const branch *b = &p->branch[k];
    if (!serves(b, h)) continue;
    bool divides = b->segment == 0 || b->segment % b->dilation == 0;
    period = least_multiple(period, divides ? b->dilation : b->segment);
  }
  return period;
}

static bool is_selected(const pattern *p, int32_t h, int64_t t) {
  for (int32_t k = 0; k < p->branch_count; k++)
    if (selects(&p->branch[k], h, t)) return true;
  return false;
}

/* The first row of head h that no branch selects, among *tries; -1 when there
 * is none. */
static int64_t first_uncovered(const pattern *p, int32_t h, int32_t *tries) {
  for (int32_t k = 0; k < p->branch_count; k++)
    if (serves(&p->branch[k], h) && p->branch[k].dilation == 1) return -1;
  int64_t period = period_of(p, h);
  for (int64_t t = 0; t < period && *tries > 0; t++, (*tries)--)
    if (!is_selected(p, h, t)) return t;
  return -1;
}

static bool is_served(const pattern *p, int32_t h) {
  for (int32_t k = 0; k < p->branch_count; k++)
    if (serves(&p->branch[k], h)) return true;
  return false;
}

/* One warning a pattern, for the first head that lacks rows. */
static void warn_uncovered(checker *c, const pattern *p) {
  int32_t tries = ROWS_TRIED;
  for (int32_t h = 0; h < p->heads; h++) {
    if (!is_served(p, h)) {
      warn(c, p->at, "its output is 0",
           arena_print(c->arena, "no branch serves head %d", h));
      return;
    }
    int64_t t = first_uncovered(p, h, &tries);
    if (t < 0) continue;
    warn(c, p->at,
         "its output is 0; a branch with `dilation 1` covers every row",
         arena_print(c->arena, "no branch selects row %lld in head %d",
                     (long long)t, h));
    return;
  }
}

void check_warnings(checker *c, const pattern *p) {
  warn_nothing(c, p);
  warn_same(c, p);
  warn_uncovered(c, p);
}
