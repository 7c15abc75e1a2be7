/* check_each.c - `phase each;`: rows of every residue see the keys of their
 * own.
 *
 * In: checked branches, and which of them say `phase each`. Out: r branches in
 * place of such a one with dilation r, one for each phase. A row is selected by
 * one of them, so that they count as the one branch that was written. */
#include "checker.h"
#include <string.h>

bool check_says_each(checker *c, const statement *phase) {
  const term *t = phase ? phase->args.first : NULL;
  return t && t->kind == TERM_NAME && strcmp(t->name, "each") == 0 &&
         !symbol_find(c, SYMBOL_LET, t->name);
}

static void each_set_phase(const scope *s, branch *b, int64_t phase) {
  expr *e = ARENA_NEW(s->c->arena, expr);
  *e = (expr){.op = EXPR_INT, .type = TYPE_I32, .at = b->at, .integer = phase};
  b->phase_kind = PHASE_EXPR;
  b->phase_expr = e;
  b->phase = ARENA_ARRAY(s->c->arena, int32_t, s->heads);
  for (int64_t h = 0; h < s->heads; h++) b->phase[h] = (int32_t)phase;
}

/* The phases that a row of a segment can have. */
static int64_t each_phases(const branch *b) {
  bool whole = b->segment == 0 || b->segment > b->dilation;
  return whole ? b->dilation : b->segment;
}

static int64_t each_count(const pattern *p, const bool *each) {
  int64_t count = 0;
  for (int32_t b = 0; b < p->branch_count; b++)
    count += each[b] ? each_phases(&p->branch[b]) : 1;
  return count;
}

/* The first branch that becomes several; NULL: there is none. */
static const branch *each_first(const pattern *p, const bool *each) {
  for (int32_t b = 0; b < p->branch_count; b++)
    if (each[b] && p->branch[b].dilation > 1) return &p->branch[b];
  return NULL;
}

static bool each_refuse(const scope *s, const pattern *p, const bool *each,
                        bool split) {
  const branch *b = each_first(p, each);
  int64_t count = each_count(p, each);
  if (p->combine == DIL_COMBINE_MEAN || p->combine == DIL_COMBINE_SUM)
    check_error(s->c, b->at, "it stands for a branch of each phase",
                "`phase each` cannot stand beside `combine %s`",
                pattern_combine_text(p->combine));
  else if (split)
    check_error(s->c, b->at, "it stands for a branch of each phase",
                "`phase each` cannot stand beside `heads split`");
  else if (count > DIL_BRANCH_MAX)
    check_error(s->c, b->at, "a branch of each phase counts as one",
                "with `phase each` the pattern has %lld branches, at most %d",
                (long long)count, DIL_BRANCH_MAX);
  else
    return false;
  return true;
}

/* `phase branch` means the branch's number in the file. */
static void each_fill(const scope *s, pattern *p, const bool *each,
                      branch *to) {
  for (int32_t k = 0; k < p->branch_count; k++) {
    branch b = p->branch[k];
    if (!each[k]) {
      if (b.phase_kind == PHASE_BRANCH) each_set_phase(s, &b, k % b.dilation);
      *to++ = b;
      continue;
    }
    for (int64_t phase = 0; phase < each_phases(&b); phase++) {
      each_set_phase(s, &b, phase);
      *to++ = b;
      b.name = NULL;
    }
  }
}

void check_every_phase(const scope *s, pattern *p, const bool *each, bool split) {
  if (!each_first(p, each) || each_refuse(s, p, each, split)) return;
  if (s->heads < 0) return;
  int64_t count = each_count(p, each);
  branch *made = ARENA_ARRAY(s->c->arena, branch, count);
  each_fill(s, p, each, made);
  p->branch = made;
  p->branch_count = (int32_t)count;
}
