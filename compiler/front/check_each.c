/* check_each.c - `phase each;`: rows of every residue see the keys of their
 * own, or with `each - c` those of the residue that is c less.
 *
 * In: a phase statement. Out: whether it says so, and the branch's shift. */
#include "checker.h"
#include "runtime/base/arithmetic.h"
#include <string.h>

static bool is_each(checker *c, const term *t) {
  return t && t->kind == TERM_NAME && strcmp(t->name, "each") == 0 &&
         !symbol_find(c, SYMBOL_LET, t->name);
}

/* `each - c` and `each + c`. */
static bool is_shifted(checker *c, const term *t) {
  return t && t->kind == TERM_OPERATOR && t->count == 2 &&
         (t->op == EXPR_SUB || t->op == EXPR_ADD) && is_each(c, t->first);
}

bool check_phase_each(const scope *s, const statement *phase, branch *b) {
  const term *t = phase ? phase->args.first : NULL;
  scope inner = scope_at(s, CONTEXT_CONSTANT, "the shift of phases");
  int64_t shift = 0;
  if (!is_each(s->c, t) && !is_shifted(s->c, t)) return false;
  b->phase_kind = PHASE_EACH;
  if (t->kind == TERM_OPERATOR)
    check_count(&inner, t->first->next, 0, COUNT_MAX,
                "`each - 3` sees keys of the residue that is 3 less", &shift);
  if (t->kind == TERM_OPERATOR && t->op == EXPR_ADD) shift = -shift;
  b->shift = floor_mod(shift, b->dilation);
  return true;
}
