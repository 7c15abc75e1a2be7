/* check_branch.c - branches, and what they inherit from their pattern.
 *
 * A pattern's statement means what it would mean in front of each branch's
 * own: phase and block are replaced by the branch's, windows intersect, causal
 * is either's, masks all hold, scores run in order, keeps of one level unite
 * and the two levels intersect. An inherited `S` is the branch's block. Sinks
 * are not inherited: the pattern's count once a row. */
#include "checker.h"
#include "runtime/base/arithmetic.h"
#include <math.h>
#include <string.h>

/* The masks, scores and keeps of one level, for one block size. */
typedef struct keep_level {
  bool checked;
  int64_t block, query_block, cell[GRID_AXES];
  int32_t mask_count, score_count;
  expr **mask, **score;
  keeps keeps;
} keep_level;

typedef struct builder {
  checker *c;
  const scope *sizes;      /* the pattern's */
  pattern *pattern;
  const statement *block;  /* the pattern's statements */
  const clauses *own;
  keep_level inherited; /* of the block size last seen */
} builder;

/* ---- keep ---------------------------------------------------------------- */

static void check_keep(const scope *s, pattern *p, const statement *given,
                       keep *k) {
  scope inner = scope_at(s, CONTEXT_KEEP, "keep");
  k->at = given->at;
  if (s->block == SIZE_UNKNOWN)
    check_error(s->c, given->at, "`block 64;` cuts positions into blocks of 64",
                "'keep' needs a block");
  if (s->block <= 0 || s->query_block <= 0) return;
  k->kind = given->choice == WORD_TOP    ? KEEP_TOP
            : given->choice == WORD_MASS ? KEEP_MASS
                                         : KEEP_EXPR;
  if (given->choice == WORD_FROM) {
    k->condition = check_keep_from(&inner, p, given, k);
  } else if (k->kind == KEEP_EXPR) {
    k->condition = check_condition(&inner, argument(given, 0));
  } else {
    check_choice_numbers(&inner, p, given, k);
  }
}

/* ---- levels -------------------------------------------------------------- */

static int32_t count_statements(const statement *block, word w) {
  int32_t count = 0;
  for (; block; block = block->next) count += block->word == w;
  return count;
}

static keep_level check_level(const scope *s, pattern *p,
                              const statement *block) {
  arena *a = s->c->arena;
  scope mask = scope_at(s, CONTEXT_MASK, "mask");
  scope score = scope_at(s, CONTEXT_SCORE, "score");
  keep_level l = {.checked = true, .block = s->block,
                  .query_block = s->query_block};
  memcpy(l.cell, s->cell, sizeof s->cell);
  l.mask = ARENA_ARRAY(a, expr *, count_statements(block, WORD_MASK));
  l.score = ARENA_ARRAY(a, expr *, count_statements(block, WORD_SCORE));
  l.keeps.keep = ARENA_ARRAY(a, keep, count_statements(block, WORD_KEEP));
  for (const statement *given = block; given; given = given->next) {
    if (given->word == WORD_MASK)
      l.mask[l.mask_count++] = check_condition(&mask, argument(given, 0));
    if (given->word == WORD_SCORE)
      l.score[l.score_count++] = check_number(&score, argument(given, 0));
    if (given->word == WORD_KEEP)
      check_keep(s, p, given, &l.keeps.keep[l.keeps.count++]);
  }
  if (!l.keeps.count) return l;
  l.keeps.block = s->block;
  l.keeps.query_block = s->query_block;
  memcpy(l.keeps.cell, s->cell, sizeof s->cell);
  return l;
}

static expr **join_exprs(arena *a, expr **first, int32_t first_count,
                         expr **second, int32_t second_count) {
  expr **all = ARENA_ARRAY(a, expr *, first_count + second_count);
  if (first_count)
    memcpy(all, first, (size_t)first_count * sizeof *all);
  if (second_count)
    memcpy(all + first_count, second, (size_t)second_count * sizeof *all);
  return all;
}

static void set_levels(builder *w, branch *b, const scope *s,
                       const statement *block) {
  if (!w->inherited.checked || w->inherited.block != s->block ||
      w->inherited.query_block != s->query_block ||
      memcmp(w->inherited.cell, s->cell, sizeof s->cell) != 0)
    w->inherited = check_level(s, w->pattern, w->block);
  keep_level over = w->inherited, own = check_level(s, w->pattern, block);
  b->mask_count = over.mask_count + own.mask_count;
  b->mask = join_exprs(w->c->arena, over.mask, over.mask_count, own.mask,
                       own.mask_count);
  b->score_count = over.score_count + own.score_count;
  b->score = join_exprs(w->c->arena, over.score, over.score_count, own.score,
                        own.score_count);
  b->keeps[0] = over.keeps;
  b->keeps[1] = own.keeps;
}

/* ---- sinks --------------------------------------------------------------- */

expr **check_sinks(const scope *s, const statement *block, int32_t *count) {
  scope sink = scope_at(s, CONTEXT_SINK, "sink");
  expr **list = ARENA_ARRAY(s->c->arena, expr *,
                            count_statements(block, WORD_SINK));
  *count = 0;
  for (const statement *given = block; given; given = given->next)
    if (given->word == WORD_SINK)
      list[(*count)++] = check_number(&sink, argument(given, 0));
  return list;
}

/* ---- window -------------------------------------------------------------- */

int64_t check_window_bound(const scope *s, const term *t) {
  scope inner = scope_at(s, CONTEXT_CONSTANT, "a window bound");
  operand o = check_term(&inner, t);
  bool endless = o.type == TYPE_F32 && o.real == INFINITY;
  if (o.wrong || endless) return DIL_ENDLESS;
  int64_t bound = DIL_ENDLESS;
  check_count(&inner, t, 0, COUNT_MAX, "`inf` cannot be a bound", &bound);
  return bound;
}

static void narrow_window(const scope *s, const statement *window, branch *b) {
  if (!window) return;
  if (!argument(window, 1)) {
    check_error(s->c, window->at,
                "`window 128, 0;` reaches 128 keys back, `window 128, 128;` "
                "both ways",
                "'window' has one bound, and needs two");
    return;
  }
  int64_t left = check_window_bound(s, argument(window, 0));
  int64_t right = check_window_bound(s, argument(window, 1));
  if (left < b->left) b->left = left;
  if (right < b->right) b->right = right;
}

/* ---- phases -------------------------------------------------------------- */

/* The phase of a branch for head h. `cycle` is the rule of LongNet (Ding et al.
 * 2023, arXiv 2307.02486): head h has phase h modulo the dilation. */
static int64_t branch_phase(const scope *s, const branch *b, int32_t index,
                            int64_t h) {
  int64_t r = b->dilation;
  const expr_point point = {.h = (int32_t)h};
  switch (b->phase_kind) {
  case PHASE_CYCLE: return h % r;
  case PHASE_BLOCK: return h / ((s->heads + r - 1) / r);
  case PHASE_BRANCH: return index % r;
  case PHASE_KV: return h / (s->heads / s->kv_heads) % r;
  case PHASE_EACH: return 0;
  case PHASE_EXPR: break;
  }
  return floor_mod(expr_eval(b->phase_expr, &point, false).integer, r);
}

static phase_kind phase_kind_of(const statement *phase) {
  if (!phase) return PHASE_CYCLE;
  switch (phase->choice) {
  case WORD_CYCLE: return PHASE_CYCLE;
  case WORD_BLOCK: return PHASE_BLOCK;
  case WORD_BRANCH: return PHASE_BRANCH;
  case WORD_KV: return PHASE_KV;
  default: return PHASE_EXPR;
  }
}

static void set_phases(const scope *s, const statement *phase, branch *b,
                       int32_t index) {
  scope inner = scope_at(s, CONTEXT_PHASE, "phase");
  if (!check_phase_each(s, phase, b)) b->phase_kind = phase_kind_of(phase);
  if (b->phase_kind == PHASE_EXPR) {
    b->phase_expr = check_integer(&inner, argument(phase, 0));
    if (!b->phase_expr) return;
  }
  if (s->heads < 0 || s->kv_heads < 0 || s->heads % s->kv_heads) return;
  b->phase = ARENA_ARRAY(s->c->arena, int32_t, s->heads);
  for (int64_t h = 0; h < s->heads; h++)
    b->phase[h] = (int32_t)branch_phase(s, b, index, h);
}

/* ---- one branch ---------------------------------------------------------- */

static void check_segment(const scope *s, const term *t, branch *b) {
  scope inner = scope_at(s, CONTEXT_CONSTANT, "segment");
  check_count(&inner, t, 1, COUNT_MAX,
              "without `segment` a branch is the whole sequence",
              &b->segment);
}

static void check_dilation(const scope *s, const term *t, branch *b) {
  scope inner = scope_at(s, CONTEXT_CONSTANT, "dilation");
  check_count(&inner, t, 1, COUNT_MAX,
              "`dilation 1` takes every token of the segment", &b->dilation);
  b->dilation_at = t->at;
}

static void check_head_range(const scope *s, const statement *range,
                             branch *b) {
  b->head_last = s->heads > 0 ? (int32_t)s->heads - 1 : 0;
  if (!range || s->heads < 0) return;
  int64_t first = 0, last = 0;
  scope inner = scope_at(s, CONTEXT_CONSTANT, "the first head");
  bool good = check_count(&inner, argument(range, 0), 0, s->heads - 1, NULL,
                          &first);
  inner.what = "the last head";
  good &= check_count(&inner, argument(range, 1), 0, s->heads - 1, NULL,
                      &last);
  if (!good) return;
  if (first > last)
    check_error(s->c, argument(range, 0)->at,
                "a range includes both of its ends",
                "heads %lld..%lld is an empty range", (long long)first,
                (long long)last);
  b->head_first = (int32_t)first;
  b->head_last = (int32_t)last;
}

/* s is the pattern's; the branch may bring its own block. */
static scope branch_scope(const builder *w, const statement *block) {
  scope s = *w->sizes;
  if (block) check_block(&s, block);
  return s;
}

/* `shared kv` of a branch wants a choice of the branch. */
static void check_shared(const builder *w, const branch *b,
                         const statement *own) {
  bool chooses = branch_choice(b) != NULL;
  if (own && !chooses)
    check_error(w->c, own->at, "`keep top 16 by mean;` chooses",
                "'shared kv' has no choice of blocks to share");
}

/* The common end of a `branch` statement and of a pair of the shorthand; block
 * is NULL for a pair. */
static void branch_finish(builder *w, branch *b, const statement *block,
                          const clauses *own, int32_t index) {
  scope s = branch_scope(w, own->of[WORD_BLOCK]);
  const statement *phase = own->of[WORD_PHASE];
  b->left = b->right = DIL_ENDLESS;
  set_levels(w, b, &s, block);
  if (s.grid) {
    if (check_reach(&s, w->own, own, b)) grid_spell(&s, b);
  } else {
    b->causal = w->own->of[WORD_CAUSAL] || own->of[WORD_CAUSAL];
    narrow_window(&s, w->own->of[WORD_WINDOW], b);
    narrow_window(&s, own->of[WORD_WINDOW], b);
  }
  check_keys(&s, w->pattern, own->of[WORD_KEYS], b);
  b->sink = check_sinks(&s, block, &b->sink_count);
  b->shared = w->own->of[WORD_SHARED] || own->of[WORD_SHARED];
  check_shared(w, b, own->of[WORD_SHARED]);
  if (!phase) phase = w->own->of[WORD_PHASE];
  set_phases(&s, phase, b, index);
}

static void check_branch_name(builder *w, const statement *given,
                              int32_t index) {
  if (!given->name) return;
  check_reserved(w->c, given->name, given->name_at);
  for (int32_t k = 0; k < index; k++)
    if (w->pattern->branch[k].name == given->name)
      check_error(w->c, given->name_at, NULL,
                  "branch '%s' is declared twice", given->name);
}

static void check_branch(builder *w, const statement *given, branch *b,
                         int32_t index) {
  clauses own;
  clauses_collect(w->c, given->child, &own);
  const statement *segment = own.of[WORD_SEGMENT];
  const statement *dilation = own.of[WORD_DILATION];
  const statement *range = own.of[WORD_HEADS];
  b->name = given->name;
  b->at = given->name ? given->name_at : given->at;
  check_branch_name(w, given, index);
  if (segment) check_segment(w->sizes, argument(segment, 0), b);
  check_beside_grid(w->sizes, given->child, false);
  if (dilation && dilation->choice != WORD_GRID)
    check_dilation(w->sizes, argument(dilation, 0), b);
  check_head_range(w->sizes, range, b);
  if (range && w->own->of[WORD_SPLIT])
    check_error(w->c, range->at, "`heads split` deals the heads out by itself",
                "a branch of `heads split` has no heads of its own");
  for (const statement *in = given->child; in; in = in->next)
    if (in->word == WORD_SCORE && w->pattern->combine == DIL_COMBINE_UNION)
      check_error(w->c, in->at, "in the pattern it scores all branches alike",
                  "a branch of a union has no score of its own");
  branch_finish(w, b, given->child, &own, index);
}

/* ---- all branches -------------------------------------------------------- */

static void check_branch_lists(builder *w) {
  const statement *segments = w->own->of[WORD_SEGMENTS];
  const statement *dilations = w->own->of[WORD_DILATIONS];
  const statement *either = segments ? segments : dilations;
  if (!either) return;
  if (w->own->of[WORD_BRANCH])
    check_error(w->c, either->at, "`branch { segment ...; dilation ...; }`",
                "'%s' cannot stand beside 'branch'", word_text(either->word));
  else if (!segments || !dilations)
    check_error(w->c, either->at, NULL, "'%s' needs '%s'",
                word_text(either->word),
                segments ? "dilations" : "segments");
  else if (segments->args.count != dilations->args.count)
    check_error(w->c, dilations->at, NULL,
                "segments has %d values, dilations %d",
                segments->args.count, dilations->args.count);
}

static int32_t branch_count(const builder *w) {
  const statement *segments = w->own->of[WORD_SEGMENTS];
  const statement *dilations = w->own->of[WORD_DILATIONS];
  if (w->own->of[WORD_BRANCH]) return count_statements(w->block, WORD_BRANCH);
  if (!segments || !dilations) return 0;
  return segments->args.count < dilations->args.count ? segments->args.count
                                                      : dilations->args.count;
}

static void check_pairs(builder *w) {
  const term *segment = argument(w->own->of[WORD_SEGMENTS], 0);
  const term *dilation = argument(w->own->of[WORD_DILATIONS], 0);
  const clauses none = {0};
  for (int32_t k = 0; k < w->pattern->branch_count; k++) {
    branch *b = &w->pattern->branch[k];
    b->at = segment->at;
    check_segment(w->sizes, segment, b);
    check_dilation(w->sizes, dilation, b);
    check_head_range(w->sizes, NULL, b);
    branch_finish(w, b, NULL, &none, k);
    segment = segment->next;
    dilation = dilation->next;
  }
}

/* H / G heads each, and one more for the first H mod G; with more branches
 * than heads the last have none. */
static void split_heads(const builder *w) {
  int64_t heads = w->sizes->heads, count = w->pattern->branch_count, first = 0;
  if (!w->own->of[WORD_SPLIT] || heads < 0) return;
  for (int64_t k = 0; k < count; k++) {
    int64_t share = heads / count + (k < heads % count);
    w->pattern->branch[k].head_first = (int32_t)first;
    w->pattern->branch[k].head_last = (int32_t)(first + share - 1);
    first += share;
  }
}

/* In a union a key has one score, whichever branches reach it; a score that
 * reads a block size has as many as there are sizes. */
static void check_union_scores(const builder *w) {
  const pattern *p = w->pattern;
  if (p->combine != DIL_COMBINE_UNION) return;
  for (int32_t b = 1; b < p->branch_count; b++)
    for (int32_t k = 0; k < p->branch[b].score_count; k++) {
      const expr *first = p->branch[0].score[k], *other = p->branch[b].score[k];
      if (p->branch[b].score_count != p->branch[0].score_count) return;
      if (!first || !other || expr_same(first, other)) continue;
      check_error(w->c, other->at, "write the number in place of the block",
                  "this score differs between the branches of a union");
      return;
    }
}

void check_branches(const scope *s, pattern *p, const statement *block,
                    const clauses *own) {
  builder w = {.c = s->c, .sizes = s, .pattern = p, .block = block,
               .own = own};
  check_branch_lists(&w);
  p->branch_count = branch_count(&w);
  if (p->branch_count > DIL_BRANCH_MAX) {
    check_error(s->c, p->at, NULL,
                "pattern '%s' has %d branches, at most %d", p->name,
                p->branch_count, DIL_BRANCH_MAX);
    p->branch_count = DIL_BRANCH_MAX;
  }
  p->branch = ARENA_ARRAY(s->c->arena, branch, p->branch_count);
  for (int32_t k = 0; k < p->branch_count; k++) p->branch[k].dilation = 1;
  if (own->of[WORD_BRANCH]) {
    int32_t k = 0;
    for (const statement *b = block; b && k < p->branch_count; b = b->next)
      if (b->word == WORD_BRANCH) check_branch(&w, b, &p->branch[k], k), k++;
  } else if (p->branch_count) {
    check_pairs(&w);
  }
  split_heads(&w);
  check_union_scores(&w);
  check_choices(s, p, own->of[WORD_SHARED]);
}
