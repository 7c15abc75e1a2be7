/* check_warn.c - warns of legal patterns that are surely unwanted: rows that no
 * branch selects, branches that never select any, the same branch twice, a
 * dilation above its segment, segments that torchscale would misplace, inputs
 * that nothing reads, scores that drop `s` or are never finite, positions for
 * rows. In: a pattern without errors and its
 * statements. Masks and keeps are taken as written: `dil explain` counts the
 * pairs they leave. */
#include "checker.h"
#include "runtime/base/arithmetic.h"
#include <math.h>
#include <string.h>

enum {
  TRIES = 1 << 22,   /* positions times branches that are counted, a pattern */
  HEAD_LEAST = 4096, /* positions of a head that are counted in any case */
  HEADS_BACK = 64,   /* earlier heads that may have the same rows */
  GAPS_TOLD = 3,
};

static void warn_at(checker *c, span at, const char *hint, const char *text) {
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
  if (a->block != b->block || a->query_block != b->query_block ||
      a->count != b->count) return false;
  for (int32_t i = 0; i < a->count; i++) {
    const keep *x = &a->keep[i], *y = &b->keep[i];
    if (x->kind != y->kind || !expr_same(x->condition, y->condition))
      return false;
  }
  return true;
}

static bool rows_same(const branch *a, const branch *b) {
  if (a->segment != b->segment || a->dilation != b->dilation ||
      a->head_first != b->head_first || a->head_last != b->head_last ||
      branch_has_each(a) != branch_has_each(b) || a->shift != b->shift)
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
         exprs_same(a->sink, a->sink_count, b->sink, b->sink_count) &&
         keeps_same(&a->keeps[0], &b->keeps[0]) &&
         keeps_same(&a->keeps[1], &b->keeps[1]);
}

static void warn_same(checker *c, const pattern *p) {
  for (int32_t k = 1; k < p->branch_count; k++)
    for (int32_t first = 0; first < k; first++) {
      if (!branches_same(&p->branch[first], &p->branch[k])) continue;
      warn_at(c, p->branch[k].at, NULL,
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
    if (!is_false(k->keep[i].condition))
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
    warn_at(c, p->branch[k].at, why,
            arena_print(c->arena, "%s can never select anything",
                        branch_text(c, p, k)));
  }
}

/* ---- rows that no branch selects ----------------------------------------- */

static bool branch_serves(const branch *b, int32_t h) {
  return h >= b->head_first && h <= b->head_last;
}

static bool branch_selects(const branch *b, int32_t h, int64_t t) {
  int64_t inside = b->segment ? t % b->segment : t;
  return branch_serves(b, h) &&
         (branch_selects_all(b) || inside % b->dilation == b->phase[h]);
}

/* The positions repeat after this many. */
static int64_t pattern_period(const pattern *p, int32_t h) {
  int64_t period = 1;
  for (int32_t k = 0; k < p->branch_count; k++) {
    const branch *b = &p->branch[k];
    if (!branch_serves(b, h)) continue;
    bool divides = b->segment == 0 || b->segment % b->dilation == 0;
    period = least_multiple(period, divides ? b->dilation : b->segment);
  }
  return period;
}

static bool is_position_selected(const pattern *p, int32_t h, int64_t t) {
  for (int32_t k = 0; k < p->branch_count; k++)
    if (branch_selects(&p->branch[k], h, t)) return true;
  return false;
}

static bool is_head_whole(const pattern *p, int32_t h) {
  for (int32_t k = 0; k < p->branch_count; k++)
    if (branch_serves(&p->branch[k], h) && branch_selects_all(&p->branch[k]))
      return true;
  return false;
}

/* The rows that no branch selects, of one head or of several alike. */
typedef struct gap {
  int64_t missing, of;
  bool repeats;         /* of every `of` rows; else of the first positions */
  int32_t first, last, heads;
} gap;

/* Takes its share of *tries: a longer period is counted in part, and nothing
 * where none is left. */
static gap gap_count(const pattern *p, int32_t h, int64_t *tries) {
  gap g = {.of = pattern_period(p, h), .repeats = true};
  int64_t most = *tries / (p->heads - h);
  if (is_head_whole(p, h)) return g;
  if (most < HEAD_LEAST) most = HEAD_LEAST;
  if (most > *tries) most = *tries;
  if (g.of > most) g.of = most, g.repeats = false;
  for (int64_t t = 0; t < g.of; t++)
    g.missing += !is_position_selected(p, h, t);
  *tries -= g.of;
  return g;
}

static bool heads_same(const pattern *p, int32_t h, int32_t other) {
  for (int32_t k = 0; k < p->branch_count; k++) {
    const branch *b = &p->branch[k];
    if (branch_serves(b, h) != branch_serves(b, other)) return false;
    if (branch_serves(b, h) && b->phase[h] != b->phase[other]) return false;
  }
  return true;
}

static gap gap_of(const pattern *p, const gap *gaps, int32_t h,
                  int64_t *tries) {
  for (int32_t back = 1; back <= h && back <= HEADS_BACK; back++)
    if (heads_same(p, h, h - back)) return gaps[h - back];
  return gap_count(p, h, tries);
}

static bool gap_same(const gap *a, const gap *b) {
  return a->missing == b->missing && a->of == b->of &&
         a->repeats == b->repeats;
}

/* Puts head h to the heads with the same gap; false: there is no room. */
static bool gap_join(gap *groups, int32_t *count, const gap *g, int32_t h) {
  int32_t k = 0;
  while (k < *count && !gap_same(&groups[k], g)) k++;
  if (k == GAPS_TOLD) return false;
  if (k == *count) {
    groups[(*count)++] = *g;
    groups[k].first = h;
  }
  groups[k].last = h;
  groups[k].heads++;
  return true;
}

static const char *gap_text(arena *a, const gap *g) {
  const char *rows =
      !g->repeats ? arena_print(a, "%lld of the first %lld positions",
                                (long long)g->missing, (long long)g->of)
      : g->missing == g->of
          ? "any row"
          : arena_print(a, "%lld of every %lld rows", (long long)g->missing,
                        (long long)g->of);
  if (g->heads == 1) return arena_print(a, "%s in head %d", rows, g->first);
  const char *some = g->last - g->first + 1 == g->heads
                         ? ""
                         : arena_print(a, "%d of ", g->heads);
  return arena_print(a, "%s in %sheads %d..%d", rows, some, g->first, g->last);
}

/* One warning a pattern, for all heads. */
static void warn_gaps(checker *c, const pattern *p) {
  gap *gaps = ARENA_ARRAY(c->arena, gap, p->heads), groups[GAPS_TOLD];
  int64_t tries = TRIES / p->branch_count;
  int32_t count = 0, more = 0, untold = 0;
  for (int32_t h = 0; h < p->heads; h++) {
    gaps[h] = gap_of(p, gaps, h, &tries);
    untold += gaps[h].of == 0;
    if (gaps[h].missing) more += !gap_join(groups, &count, &gaps[h], h);
  }
  if (count == 0) return;
  const char *text = "no branch selects";
  for (int32_t k = 0; k < count; k++)
    text = arena_print(c->arena, "%s%s %s", text, k ? "," : "",
                       gap_text(c->arena, &groups[k]));
  if (more)
    text = arena_print(c->arena, "%s, others in %d more head%s", text, more,
                       more == 1 ? "" : "s");
  if (untold)
    text = arena_print(c->arena, "%s; heads that were not looked at: %d", text,
                       untold);
  warn_at(c, p->at,
          "their output is 0; a branch with `dilation 1` covers every row",
          text);
}

static void warn_uncovered(checker *c, const pattern *p) {
  for (int32_t h = 0; h < p->heads; h++) {
    bool served = false;
    for (int32_t k = 0; k < p->branch_count; k++)
      served |= branch_serves(&p->branch[k], h);
    if (served) continue;
    warn_at(c, p->at, "its output is 0",
            arena_print(c->arena, "no branch serves head %d", h));
    return;
  }
  warn_gaps(c, p);
}

/* ---- a dilation above its segment ---------------------------------------- */

static void warn_dilation(checker *c, const pattern *p) {
  for (int32_t k = 0; k < p->branch_count; k++) {
    const branch *b = &p->branch[k];
    if (!b->segment || b->dilation <= b->segment || why_nothing(c, b)) continue;
    warn_at(
        c, b->dilation_at,
        "a segment has one selected token at most; a head whose phase is not "
        "below the segment has none",
        arena_print(c->arena, "dilation %lld is above its segment of %lld",
                    (long long)b->dilation, (long long)b->segment));
  }
}

/* ---- segments that torchscale misplaces ---------------------------------- */

/* `phase block` is for weights that torchscale trained. Its code lengthens a
 * segment to a multiple of the dilation, and then cuts the rows as if it had
 * not. */
static void warn_misplaced(checker *c, const pattern *p) {
  for (int32_t k = 0; k < p->branch_count; k++) {
    const branch *b = &p->branch[k];
    if (b->phase_kind != PHASE_BLOCK || b->dilation > b->segment ||
        b->segment % b->dilation == 0)
      continue;
    long long segment = (long long)b->segment;
    warn_at(c, b->dilation_at,
            "dil computes the formula of the paper; torchscale misplaces the "
            "rows of such a branch behind its first segment",
            arena_print(c->arena,
                        "dilation %lld does not divide its segment of %lld: "
                        "torchscale computes something else from position "
                        "%lld on",
                        (long long)b->dilation, segment, segment));
  }
}

/* ---- inputs -------------------------------------------------------------- */

static bool term_has(const term *t, term_kind kind, const char *name) {
  if (t->kind == kind && !strcmp(t->name, name)) return true;
  for (const term *arg = t->first; arg; arg = arg->next)
    if (term_has(arg, kind, name)) return true;
  return false;
}

/* `keep top 4 by NAME;` */
static bool chooses_by(const statement *s, const char *input) {
  return s->word == WORD_KEEP && s->child && s->child->word == WORD_INPUT &&
         !strcmp(s->child->name, input);
}

static bool block_reads(const statement *block, const char *input) {
  for (const statement *s = block; s; s = s->next) {
    if (s->word == WORD_KEEP && s->choice == WORD_FROM &&
        !strcmp(s->name, input))
      return true;
    if (s->word == WORD_KEYS && !strcmp(s->name, input)) return true;
    if (chooses_by(s, input)) return true;
    term_kind kind = s->word == WORD_FROM ? TERM_NAME : TERM_INDEX;
    for (const term *t = s->args.first; t; t = t->next)
      if (term_has(t, kind, input)) return true;
    if (block_reads(s->child, input)) return true;
  }
  return false;
}

static void warn_inputs(checker *c, const statement *block) {
  for (const statement *s = block; s; s = s->next)
    if (s->word == WORD_INPUT && !s->child && !block_reads(block, s->name))
      warn_at(
          c, s->name_at,
          "a call has to bring it all the same; a `mask`, `score`, `keep` or "
          "`sink` reads inputs",
          arena_print(c->arena, "nothing reads input '%s'", s->name));
}

/* ---- scores -------------------------------------------------------------- */

static bool is_infinity(const expr *e, bool positive) {
  return e->op == EXPR_REAL && isinf(e->real) &&
         (e->real > 0) == positive;
}

/* Infinite or NaN for every pair and every `s`. */
static bool is_never_finite(const expr *e) {
  switch (e->op) {
  case EXPR_REAL: return !isfinite(e->real);
  case EXPR_ADD:
  case EXPR_SUB:
  case EXPR_MUL:
    return is_never_finite(e->arg[0]) || is_never_finite(e->arg[1]);
  case EXPR_NEG:
  case EXPR_ABS:
  case EXPR_DIV: return is_never_finite(e->arg[0]);
  case EXPR_CHOOSE:
    return is_never_finite(e->arg[1]) && is_never_finite(e->arg[2]);
  case EXPR_MIN:
  case EXPR_MAX:
    return is_infinity(e->arg[0], e->op == EXPR_MAX) ||
           is_infinity(e->arg[1], e->op == EXPR_MAX);
  default: return false;
  }
}

/* `made` has the expressions of the score statements, in their order. */
static void warn_scores(checker *c, const statement *block,
                        expr *const *made) {
  for (const statement *s = block; s; s = s->next) {
    if (s->word != WORD_SCORE) continue;
    const term *t = argument(s, 0);
    if (is_never_finite(*made++))
      warn_at(c, t->at, "`c ? s : -inf` hides the pairs for which c is false",
              "this score is never finite");
    else if (!term_has(t, TERM_NAME, "s"))
      warn_at(c, t->at, "`s + ...` adds to scale * (q . k), which is lost here",
              "this score drops s");
  }
}

/* A branch's scores are the pattern's, then its own. */
static void warn_all_scores(checker *c, const pattern *p,
                            const statement *block) {
  int32_t inherited = 0, k = 0;
  for (const statement *s = block; s; s = s->next)
    inherited += s->word == WORD_SCORE;
  warn_scores(c, block, p->branch[0].score);
  for (const statement *s = block; s; s = s->next)
    if (s->word == WORD_BRANCH) {
      warn_scores(c, s->child, p->branch[k].score + inherited);
      k++;
    }
}

/* ---- positions where rows are counted ------------------------------------ */

static bool is_of_position(const expr *e) {
  if (e->op == EXPR_I_) return true;
  if (e->op != EXPR_ADD && e->op != EXPR_SUB) return false;
  return is_of_position(e->arg[0]) ||
         (e->op == EXPR_ADD && is_of_position(e->arg[1]));
}

/* `i`, or `i` plus something. M and N may make a row of it; with j it is a
 * distance. */
static bool is_position(const expr *e) {
  return is_of_position(e) && !expr_uses(e, EXPR_J_) &&
         !expr_uses(e, EXPR_M_) && !expr_uses(e, EXPR_N_);
}

static void warn_position(checker *c, const pattern *p, const expr *e) {
  for (int32_t k = 0; k < e->count; k++) {
    warn_position(c, p, e->arg[k]);
    if (e->op != EXPR_INPUT || !is_position(e->arg[k]) ||
        p->dimension[e->integer][k]->op != EXPR_N_)
      continue;
    warn_at(c, e->arg[k]->at, "`row` is 0 .. N - 1; `i` is row + M - N",
            arena_print(c->arena,
                        "'i' is a position, but the index of input '%s' is "
                        "one of N rows",
                        p->input[e->integer].name));
  }
}

/* A statement that branches inherit is warned of once: diag knows it. */
static void warn_positions(checker *c, const pattern *p, const branch *b) {
  for (int32_t k = 0; k < b->sink_count; k++) warn_position(c, p, b->sink[k]);
  for (int32_t k = 0; k < b->mask_count; k++) warn_position(c, p, b->mask[k]);
  for (int32_t k = 0; k < b->score_count; k++) warn_position(c, p, b->score[k]);
  for (int level = 0; level < 2; level++)
    for (int32_t k = 0; k < b->keeps[level].count; k++)
      warn_position(c, p, b->keeps[level].keep[k].condition);
}

void check_warnings(checker *c, const pattern *p, const statement *block) {
  warn_nothing(c, p);
  warn_same(c, p);
  warn_uncovered(c, p);
  warn_dilation(c, p);
  warn_misplaced(c, p);
  warn_inputs(c, block);
  warn_all_scores(c, p, block);
  for (int32_t k = 0; k < p->sink_count; k++) warn_position(c, p, p->sink[k]);
  for (int32_t k = 0; k < p->branch_count; k++)
    warn_positions(c, p, &p->branch[k]);
}
