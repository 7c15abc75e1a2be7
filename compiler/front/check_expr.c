/* check_expr.c - walks a term: names, inputs and calls are looked up here,
 * operators applied in check_operand.c. Recursion is bounded by NESTING_MAX.
 * Below stand what statements want of a term: a condition, a number, or a
 * constant of a range. */
#include "checker.h"
#include <math.h>
#include <string.h>

/* ---- names --------------------------------------------------------------- */

static int32_t input_find(const scope *s, const char *name) {
  if (!s->pattern) return -1;
  for (int32_t i = 0; i < pattern_reads(s->pattern); i++)
    if (s->pattern->input[i].name == name) return i;
  return -1;
}

static const char *name_meant(const scope *s, const char *name) {
  static const word phases[] = {WORD_CYCLE, WORD_BLOCK, WORD_BRANCH, WORD_KV};
  int32_t count;
  if (ast_habit(name)) return ast_habit(name);
  if (s->context == CONTEXT_PHASE && strcmp(name, "each") == 0)
    return "`phase each;`, or `phase each - 3;` for a residue that is 3 less";
  const char **lets = symbol_names(s->c, SYMBOL_LET, &count);
  const char **names = ARENA_ARRAY(s->c->arena, const char *,
                                   count + BUILTIN_MAX + DIL_INPUT_MAX + 5);
  if (count) memcpy(names, lets, (size_t)count * sizeof *names);
  count += builtin_names(names + count);
  for (int32_t i = 0; s->pattern && i < s->pattern->input_count; i++)
    names[count++] = s->pattern->input[i].name;
  for (int32_t i = 0; s->context == CONTEXT_PHASE && i < 4; i++)
    names[count++] = word_text(phases[i]);
  if (s->context == CONTEXT_PHASE) names[count++] = "each";
  const char *hint = check_meant(s->c, name, names, count);
  return hint ? hint
              : arena_print(s->c->arena,
                            "a constant is declared first: `let %s = ...;`",
                            name);
}

static operand unknown_name(const scope *s, const term *t) {
  if (input_find(s, t->name) >= 0)
    check_error(s->c, t->at,
                arena_print(s->c->arena, "`%s[...]` reads one element",
                            t->name),
                "'%s' is an input and needs an index", t->name);
  else
    check_error(s->c, t->at, name_meant(s, t->name), "unknown name '%s'",
                t->name);
  return operand_wrong(t->at);
}

/* A let or an input hides the names of the language that are not reserved. */
static operand name_operand(const scope *s, const term *t) {
  operand result;
  const symbol *let = symbol_find(s->c, SYMBOL_LET, t->name);
  if (!let && input_find(s, t->name) < 0 && builtin_name(s, t, &result))
    return result;
  if (!let) return unknown_name(s, t);
  result = *(const operand *)let->meaning;
  result.at = t->at;
  return result;
}

/* ---- inputs and calls ---------------------------------------------------- */

static operand unknown_input(const scope *s, const term *t) {
  const char *names[DIL_INPUT_MAX];
  int32_t count = s->pattern ? s->pattern->input_count : 0;
  for (int32_t i = 0; i < count; i++) names[i] = s->pattern->input[i].name;
  const char *hint = check_meant(s->c, t->name, names, count);
  if (!hint)
    hint = "an input is declared first: `input slope : f32[H];`";
  check_error(s->c, t->name_at, hint, "'%s' is not an input", t->name);
  return operand_wrong(t->at);
}

static bool input_fits(const scope *s, const term *t, const dil_input *input,
                       const operand *args) {
  if (!(s->context & CONTEXT_ROW)) {
    check_error(s->c, t->at,
                "inputs are known only at run time: in mask, score, keep and "
                "sink",
                "input '%s' cannot stand in %s", t->name, s->what);
    return false;
  }
  if (t->count != input->rank) {
    check_error(s->c, t->at, NULL, "input '%s' has %d dimension%s, got %d",
                t->name, input->rank, input->rank == 1 ? "" : "s", t->count);
    return false;
  }
  for (int32_t i = 0; i < t->count; i++) {
    if (args[i].wrong) return false;
    if (args[i].type == TYPE_I32) continue;
    check_error(s->c, args[i].at, operand_integer_hint(&args[i]),
                "an index must be an integer, got %s",
                operand_text(s, &args[i]));
    return false;
  }
  return true;
}

static operand input_operand(const scope *s, const term *t,
                             const operand *args) {
  int32_t index = input_find(s, t->name);
  if (index < 0) return unknown_input(s, t);
  const dil_input *input = &s->pattern->input[index];
  if (!input_fits(s, t, input, args)) return operand_wrong(t->at);
  bool integer = !dil_dtype_is_real(input->dtype);
  operand read = operand_leaf(s, t->at, EXPR_INPUT,
                              integer ? TYPE_I32 : TYPE_F32);
  read.tree->integer = index;
  return operand_join(s, read, args, t->count);
}

static operand call_operand(const scope *s, const term *t,
                            const operand *args) {
  operand result;
  if (builtin_call(s, t, args, &result)) return result;
  const char *names[BUILTIN_MAX];
  int32_t count = builtin_functions(names);
  const char *hint = ast_habit(t->name);
  if (!hint) hint = check_meant(s->c, t->name, names, count);
  if (input_find(s, t->name) >= 0) hint = "an input is read with [ ]";
  check_error(s->c, t->name_at, hint, "unknown function '%s'", t->name);
  return operand_wrong(t->at);
}

/* ---- terms --------------------------------------------------------------- */

operand check_term(const scope *s, const term *t) {
  if (t->kind == TERM_INT) return operand_integer(t->at, t->integer);
  if (t->kind == TERM_REAL)
    return (operand){.known = true, .type = TYPE_F32, .at = t->at,
                     .real = t->real};
  if (t->kind == TERM_NAME) return name_operand(s, t);
  operand *args = ARENA_ARRAY(s->c->arena, operand, t->count);
  int32_t count = 0;
  scope inside = *s;
  inside.whole |= is_whole_call(t);
  for (const term *arg = t->first; arg; arg = arg->next)
    args[count++] = check_term(&inside, arg);
  if (t->kind == TERM_INDEX) return input_operand(s, t, args);
  if (t->kind == TERM_CALL) return call_operand(s, t, args);
  return operand_apply(s, t->at, t->op, args, count);
}

static expr *folded_tree(const scope *s, const operand *o) {
  return expr_fold(s->c->arena, operand_tree(s, o));
}

expr *check_condition(const scope *s, const term *t) {
  operand o = check_term(s, t);
  if (o.wrong) return NULL;
  if (o.type == TYPE_CONDITION) return folded_tree(s, &o);
  check_error(s->c, t->at, "`x != 0` makes a condition of a number",
              "%s must be a condition, got %s", s->what, operand_text(s, &o));
  return NULL;
}

expr *check_number(const scope *s, const term *t) {
  operand o = check_term(s, t);
  if (o.wrong) return NULL;
  if (o.type != TYPE_CONDITION) return folded_tree(s, &o);
  check_error(s->c, t->at, "`c ? s : -inf` chooses by a condition",
              "%s must be a number, got a condition", s->what);
  return NULL;
}

expr *check_integer(const scope *s, const term *t) {
  operand o = check_term(s, t);
  if (o.wrong) return NULL;
  if (o.type == TYPE_I32) return folded_tree(s, &o);
  check_error(s->c, t->at, operand_integer_hint(&o),
              "%s must be an integer, got %s", s->what, operand_text(s, &o));
  return NULL;
}

/* ---- constants ----------------------------------------------------------- */

bool check_count(const scope *s, const term *t, int64_t low, int64_t high,
                 const char *hint, int64_t *result) {
  operand o = check_term(s, t);
  if (o.wrong) return false;
  if (o.type != TYPE_I32)
    check_error(s->c, t->at, NULL, "%s must be an integer, got %s", s->what,
                operand_text(s, &o));
  else if (o.integer < low)
    check_error(s->c, t->at, hint, "%s must be at least %lld, got %lld",
                s->what, (long long)low, (long long)o.integer);
  else if (o.integer > high)
    check_error(s->c, t->at, NULL, "%s must be at most %lld, got %lld",
                s->what, (long long)high, (long long)o.integer);
  else {
    *result = o.integer;
    return true;
  }
  return false;
}

bool check_real(const scope *s, const term *t, double *result) {
  operand o = check_term(s, t);
  if (o.wrong) return false;
  double real = o.type == TYPE_F32 ? o.real : (double)o.integer;
  if (o.type == TYPE_CONDITION)
    check_error(s->c, t->at, NULL, "%s must be a number, got a condition",
                s->what);
  else if (o.divided)
    check_error(s->c, t->at, "`1.0 / 8` divides floats",
                "%s is an integer division, which gives %lld", s->what,
                (long long)o.integer);
  else if (!isfinite(real))
    check_error(s->c, t->at, NULL, "%s must be finite, got %g", s->what,
                isnan(real) ? NAN : real);
  else {
    *result = real;
    return true;
  }
  return false;
}

/* ---- statements ---------------------------------------------------------- */

scope scope_at(const scope *s, term_context at, const char *what) {
  scope inner = *s;
  inner.context = at;
  inner.what = what;
  return inner;
}

const term *argument(const statement *s, int32_t index) {
  const term *t = s->args.first;
  while (index-- > 0) t = t->next;
  return t;
}
