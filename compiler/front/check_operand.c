/* check_operand.c - one operator at a time: the types that it wants, the
 * constant that it gives, or the node of the tree that it becomes.
 *
 * Integer constants are computed here, in 64 bits, and must fit in 32 where
 * they meet a run-time value. Float constants of compile-time contexts are
 * computed in float64; in the others they stay trees, whose every operation
 * is a rounding that all targets repeat. */
#include "checker.h"
#include "compiler/pattern/expr_rules.h"
#include <math.h>
#include <stdlib.h>

int32_t operator_arguments(expr_op op) {
  static const int8_t arguments[] = {
#define OP(id, text, arguments, rule, derivative) [EXPR_##id] = arguments,
#include "compiler/pattern/ops.def"
#undef OP
  };
  return arguments[op];
}

operand operand_wrong(span at) { return (operand){.wrong = true, .at = at}; }

operand operand_integer(span at, int64_t integer) {
  return (operand){.known = true, .type = TYPE_I32, .at = at,
                   .integer = integer};
}

static operand known_real(span at, double real) {
  return (operand){.known = true, .type = TYPE_F32, .at = at, .real = real};
}

static operand known_truth(span at, bool truth) {
  return (operand){.known = true, .type = TYPE_CONDITION, .at = at,
                   .integer = truth};
}

operand operand_leaf(const scope *s, span at, expr_op op, expr_type type) {
  expr *leaf = ARENA_NEW(s->c->arena, expr);
  *leaf = (expr){.op = op, .type = type, .at = at};
  return (operand){.type = type, .at = at, .tree = leaf, .size = 1};
}

const char *operand_integer_hint(const operand *o) {
  return o->type == TYPE_F32 ? "`int(x)` is the integer at or below x" : NULL;
}

static const char *operand_kind(const operand *o) {
  static const char *const kinds[] = {[TYPE_CONDITION] = "a condition",
                                      [TYPE_I32] = "an integer",
                                      [TYPE_F32] = "a float"};
  return kinds[o->type];
}

const char *operand_text(const scope *s, const operand *o) {
  if (!o->known || o->type == TYPE_CONDITION) return operand_kind(o);
  if (o->type == TYPE_F32) {
    bool whole = floor(o->real) == o->real && fabs(o->real) < 1e5;
    return arena_print(s->c->arena, whole ? "%.1f" : "%g", o->real);
  }
  return arena_print(s->c->arena, "%lld", (long long)o->integer);
}

/* ---- trees --------------------------------------------------------------- */

static expr *constant_tree(const scope *s, const operand *o) {
  static const expr_op ops[] = {[TYPE_CONDITION] = EXPR_TRUTH,
                                [TYPE_I32] = EXPR_INT,
                                [TYPE_F32] = EXPR_REAL};
  expr *e = ARENA_NEW(s->c->arena, expr);
  *e = (expr){.op = ops[o->type], .type = o->type, .at = o->at,
              .integer = o->integer, .real = o->real};
  return e;
}

expr *operand_tree(const scope *s, const operand *o) {
  if (!o->known) return o->tree;
  if (o->type == TYPE_I32 && o->integer != (int32_t)o->integer)
    check_error(s->c, o->at, "integers are of 32 bits at run time",
                "%lld does not fit in 32 bits", (long long)o->integer);
  if (o->type == TYPE_F32 && isfinite(o->real) && !isfinite((float)o->real))
    check_error(s->c, o->at, "`inf` is a constant", "%g does not fit in f32",
                o->real);
  return constant_tree(s, o);
}

operand operand_join(const scope *s, operand node, const operand *args,
                     int32_t count) {
  expr *e = node.tree;
  e->count = count;
  e->arg = ARENA_ARRAY(s->c->arena, expr *, count);
  for (int32_t i = 0; i < count; i++) {
    e->arg[i] = operand_tree(s, &args[i]);
    node.size += args[i].known ? 1 : args[i].size;
    if (node.size <= TREE_MAX) continue;
    check_error(s->c, node.at, "`mask a && b` may be two masks",
                "expression has more than %d operations", TREE_MAX);
    return operand_wrong(node.at);
  }
  return node;
}

/* ---- types --------------------------------------------------------------- */

static bool wants_number(const scope *s, expr_op op, const operand *arg) {
  if (arg->type != TYPE_CONDITION) return true;
  const char *hint = expr_rule_of(op) == RULE_COMPARE
                         ? "`a < b < c` is written `a < b && b < c`"
                         : "`c ? 1 : 0` makes a number of a condition";
  check_error(s->c, arg->at, hint, "'%s' takes a number, got a condition",
              expr_op_text(op));
  return false;
}

static bool wants_condition(const scope *s, expr_op op, const operand *arg) {
  if (arg->type == TYPE_CONDITION) return true;
  check_error(s->c, arg->at, "`x != 0` makes a condition of a number",
              "'%s' takes a condition, got %s", expr_op_text(op),
              operand_text(s, arg));
  return false;
}

static bool wants_integer(const scope *s, expr_op op, const operand *arg) {
  if (arg->type == TYPE_I32) return true;
  check_error(s->c, arg->at, operand_integer_hint(arg),
              "'%s' takes an integer, got %s", expr_op_text(op),
              operand_text(s, arg));
  return false;
}

static bool wants_sides_alike(const scope *s, span at, const operand *args) {
  bool first = args[1].type == TYPE_CONDITION;
  bool second = args[2].type == TYPE_CONDITION;
  if (first == second) return true;
  check_error(s->c, at, "both are numbers, or both are conditions",
              "'?:' chooses between %s and %s", operand_kind(&args[1]),
              operand_kind(&args[2]));
  return false;
}

static bool wants_inexact(const scope *s, span at, expr_op op) {
  bool exact = s->context & CONTEXT_EXACT;
  if (!exact && !s->whole) return true;
  check_error(s->c, at,
              exact ? "its last bit may differ between machines, and every one "
                      "must keep the same pairs"
                    : "its last bit may differ between machines, and every one "
                      "must read the same element",
              "'%s' cannot stand in %s", expr_op_text(op),
              exact ? s->what : "int()");
  return false;
}

static bool types_fit(const scope *s, span at, expr_op op, const operand *args,
                      int32_t count) {
  expr_rule rule = expr_rule_of(op);
  if (rule == RULE_FLOAT && !wants_inexact(s, at, op)) return false;
  if (rule == RULE_CHOOSE)
    return wants_condition(s, op, &args[0]) && wants_sides_alike(s, at, args);
  for (int32_t i = 0; i < count; i++) {
    bool fits = rule == RULE_LOGIC  ? wants_condition(s, op, &args[i])
                : rule == RULE_HASH ? wants_integer(s, op, &args[i])
                                    : wants_number(s, op, &args[i]);
    if (!fits) return false;
  }
  return true;
}

static expr_type operator_type(expr_op op, const operand *args, int32_t count) {
  switch (expr_rule_of(op)) {
  case RULE_COMPARE:
  case RULE_LOGIC: return TYPE_CONDITION;
  case RULE_FLOAT: return TYPE_F32;
  case RULE_HASH:
  case RULE_WHOLE: return TYPE_I32;
  default: break;
  }
  int32_t first = op == EXPR_CHOOSE;
  for (int32_t i = first; i < count; i++)
    if (args[i].type == TYPE_F32) return TYPE_F32;
  return args[first].type;
}

/* ---- constants ----------------------------------------------------------- */

static bool is_zero(const operand *o) {
  return o->known && (o->type == TYPE_I32   ? o->integer == 0
                      : o->type == TYPE_F32 ? o->real == 0
                                            : false);
}

/* false on overflow; b is not zero under / and %. */
static bool integer_apply(expr_op op, int64_t a, int64_t b, int64_t *x) {
  switch (op) {
  case EXPR_ADD: return !__builtin_add_overflow(a, b, x);
  case EXPR_SUB: return !__builtin_sub_overflow(a, b, x);
  case EXPR_MUL: return !__builtin_mul_overflow(a, b, x);
  case EXPR_NEG: return !__builtin_sub_overflow(0, a, x);
  case EXPR_ABS: *x = a; return a >= 0 || !__builtin_sub_overflow(0, a, x);
  case EXPR_MIN: *x = a < b ? a : b; return true;
  case EXPR_MAX: *x = a > b ? a : b; return true;
  case EXPR_DIV:
  case EXPR_MOD:
    if (a == INT64_MIN && b == -1) return false;
    *x = op == EXPR_DIV ? expr_floor_div(a, b) : expr_floor_mod(a, b);
    return true;
  default: abort();
  }
}

static bool integer_compare(expr_op op, int64_t a, int64_t b) {
  switch (op) {
  case EXPR_EQ: return a == b;
  case EXPR_NE: return a != b;
  case EXPR_LT: return a < b;
  case EXPR_LE: return a <= b;
  case EXPR_GT: return a > b;
  default: return a >= b;
  }
}

static bool truth_apply(expr_op op, bool a, bool b) {
  return op == EXPR_NOT ? !a : op == EXPR_AND ? a && b : a || b;
}

/* Computes the operation in float64; integers become floats first. */
static operand real_apply(const scope *s, span at, expr_op op, expr_type type,
                          const operand *args, int32_t count) {
  operand wide[3];
  for (int32_t i = 0; i < count; i++)
    wide[i] = args[i].type == TYPE_I32
                  ? known_real(args[i].at, (double)args[i].integer)
                  : args[i];
  expr *arg[3], e = {.op = op, .type = type, .count = count, .arg = arg};
  for (int32_t i = 0; i < count; i++) arg[i] = constant_tree(s, &wide[i]);
  const expr_point nowhere = {0};
  value v = expr_eval(&e, &nowhere, true);
  return type == TYPE_CONDITION ? known_truth(at, v.integer)
                                : known_real(at, v.real);
}

static operand hash_apply(span at, const operand *args, int32_t count) {
  uint32_t x = EXPR_HASH_START;
  for (int32_t i = 0; i < count; i++)
    x = expr_hash_step(x, (uint32_t)(uint64_t)args[i].integer);
  return operand_integer(at, x >> 1);
}

static operand choose_apply(span at, expr_type type, const operand *args) {
  operand chosen = args[args[0].integer ? 1 : 2];
  if (type == TYPE_F32 && chosen.type == TYPE_I32)
    return known_real(at, (double)chosen.integer);
  chosen.at = at;
  return chosen;
}

static operand known_apply(const scope *s, span at, expr_op op, expr_type type,
                           const operand *args, int32_t count, bool real) {
  int64_t a = args[0].integer, b = args[count - 1].integer, x;
  if (op == EXPR_CHOOSE) return choose_apply(at, type, args);
  if (op == EXPR_HASH) return hash_apply(at, args, count);
  if (real) return real_apply(s, at, op, type, args, count);
  if (expr_rule_of(op) == RULE_LOGIC)
    return known_truth(at, truth_apply(op, a, b));
  if (expr_rule_of(op) == RULE_COMPARE)
    return known_truth(at, integer_compare(op, a, b));
  if (integer_apply(op, a, b, &x)) return operand_integer(at, x);
  if (count > 1)
    check_error(s->c, at, NULL, "%lld %s %lld does not fit in 64 bits",
                (long long)a, expr_op_text(op), (long long)b);
  else
    check_error(s->c, at, NULL, "'%s' of %lld does not fit in 64 bits",
                expr_op_text(op), (long long)a);
  return operand_wrong(at);
}

/* int() of a float: of constants it is one at once, in every context. */
static operand whole_apply(const scope *s, span at, const operand *arg) {
  operand call = operand_leaf(s, at, EXPR_TO_INT, TYPE_I32);
  operand result = operand_join(s, call, arg, 1);
  if (result.wrong) return result;
  const expr *folded = expr_fold(s->c->arena, result.tree);
  return folded->op == EXPR_INT ? operand_integer(at, folded->integer) : result;
}

/* ---- one operator -------------------------------------------------------- */

/* An integer is itself. */
static bool is_rounding(expr_op op) {
  expr_rule rule = expr_rule_of(op);
  return rule == RULE_ROUND || rule == RULE_WHOLE;
}

operand operand_apply(const scope *s, span at, expr_op op, const operand *args,
                      int32_t count) {
  bool known = true, real = expr_rule_of(op) == RULE_FLOAT, divided = false;
  for (int32_t i = 0; i < count; i++) {
    if (args[i].wrong) return operand_wrong(at);
    known &= args[i].known;
    real |= args[i].type == TYPE_F32;
    divided |= args[i].divided;
  }
  if (!types_fit(s, at, op, args, count)) return operand_wrong(at);
  bool divides = op == EXPR_DIV || op == EXPR_MOD;
  if (divides && is_zero(&args[1])) {
    check_error(s->c, args[1].at, NULL, "division by zero");
    return operand_wrong(at);
  }
  expr_type type = operator_type(op, args, count);
  if (op == EXPR_TO_INT && real) return whole_apply(s, at, args);
  if (is_rounding(op) && type == TYPE_I32) return args[0];
  if (!known || (real && (s->whole || !(s->context & CONTEXT_FIXED))))
    return operand_join(s, operand_leaf(s, at, op, type), args, count);
  operand result = known_apply(s, at, op, type, args, count, real);
  result.divided = type == TYPE_I32 && (divided || op == EXPR_DIV);
  return result;
}
