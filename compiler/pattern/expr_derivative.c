/* expr_derivative.c - derivatives of score expressions as expressions.
 *
 * In: a typed tree and the leaf that it is derived by. Out: a folded tree over
 * the same operators, or NULL. Parts that are 0 vanish while the tree is made.
 * A factor that may be infinite is kept from a part that is exactly 0 by `?:`:
 * sqrt(max(s, 0)) is flat below 0, and sqrt's own slope there is not. */
#include "expr.h"
#include <math.h>

typedef struct derivation {
  arena *memory;
  const expr *leaf;
} derivation;

/* The rules of ops.def: the derivative of `e` when those of its arguments are
 * `da` and `db`; NULL stands for 0. */
typedef expr *derive(const derivation *d, const expr *e, expr *da, expr *db);

/* ---- trees --------------------------------------------------------------- */

static expr *real(const derivation *d, double x) {
  expr *e = ARENA_NEW(d->memory, expr);
  *e = (expr){.op = EXPR_REAL, .type = TYPE_F32, .real = x};
  return e;
}

static expr *tree(const derivation *d, expr_op op, expr_type type,
                  const expr *const *arg, int32_t count) {
  expr *e = ARENA_NEW(d->memory, expr);
  *e = (expr){.op = op, .type = type, .count = count};
  e->arg = ARENA_ARRAY(d->memory, expr *, count);
  for (int32_t k = 0; k < count; k++) e->arg[k] = (expr *)arg[k];
  return e;
}

static expr *unary(const derivation *d, expr_op op, const expr *x) {
  return tree(d, op, TYPE_F32, &x, 1);
}

static expr *binary(const derivation *d, expr_op op, const expr *x,
                    const expr *y) {
  return tree(d, op, TYPE_F32, (const expr *[]){x, y}, 2);
}

static expr *compare(const derivation *d, expr_op op, const expr *x,
                     const expr *y) {
  return tree(d, op, TYPE_CONDITION, (const expr *[]){x, y}, 2);
}

static expr *either(const derivation *d, const expr *x, const expr *y) {
  return tree(d, EXPR_OR, TYPE_CONDITION, (const expr *[]){x, y}, 2);
}

static bool is_real_constant(const expr *e, double x) {
  return e->op == EXPR_REAL && e->real == x;
}

/* ---- parts, of which NULL is 0 ------------------------------------------- */

static expr *choose(const derivation *d, expr *condition, expr *x, expr *y) {
  if (x == NULL && y == NULL) return NULL;
  if (x && y && expr_same(x, y)) return x;
  if (x == NULL) x = real(d, 0);
  if (y == NULL) y = real(d, 0);
  return tree(d, EXPR_CHOOSE, TYPE_F32, (const expr *[]){condition, x, y}, 3);
}

static expr *negative(const derivation *d, expr *x) {
  if (x == NULL) return NULL;
  return x->op == EXPR_NEG ? x->arg[0] : unary(d, EXPR_NEG, x);
}

static expr *sum(const derivation *d, expr *x, expr *y) {
  if (x == NULL || y == NULL) return x ? x : y;
  return binary(d, EXPR_ADD, x, y);
}

static expr *difference(const derivation *d, expr *x, expr *y) {
  if (x == NULL || y == NULL) return x ? x : negative(d, y);
  return binary(d, EXPR_SUB, x, y);
}

/* Returns whether e is finite whatever the score and the inputs are, values
 * beyond f32 apart. */
static bool is_bounded(const expr *e) {
  if (e->type != TYPE_F32) return true;
  if (e->op == EXPR_S_ || e->op == EXPR_INPUT) return false;
  if (e->op == EXPR_REAL) return isfinite(e->real);
  if (e->op == EXPR_EXP || e->op == EXPR_LOG) return false;
  if (e->op == EXPR_DIV || e->op == EXPR_MOD)
    return e->arg[1]->count == 0 && is_bounded(e->arg[1]) &&
           is_bounded(e->arg[0]);
  for (int32_t k = e->op == EXPR_CHOOSE; k < e->count; k++)
    if (!is_bounded(e->arg[k])) return false;
  return true;
}

/* The factor is not looked at where the part is 0, nor the other way round. */
static expr *guarded(const derivation *d, const expr *factor, expr *part,
                     expr *result) {
  if (!is_bounded(factor) && part->count > 0)
    result = choose(d, compare(d, EXPR_EQ, part, real(d, 0)), NULL, result);
  if (!is_bounded(part) && factor->count > 0)
    result = choose(d, compare(d, EXPR_EQ, factor, real(d, 0)), NULL, result);
  return result;
}

static expr *product(const derivation *d, const expr *factor, expr *part) {
  if (part == NULL) return NULL;
  if (is_real_constant(part, 1) && factor->type == TYPE_F32)
    return (expr *)factor;
  if (is_real_constant(part, -1)) return unary(d, EXPR_NEG, factor);
  return guarded(d, factor, part, binary(d, EXPR_MUL, factor, part));
}

static expr *is_infinite(const derivation *d, const expr *x) {
  return compare(d, EXPR_EQ, binary(d, EXPR_DIV, real(d, 1), x), real(d, 0));
}

/* 1 / divisor is a factor that is 0 where the divisor is infinite. */
static expr *quotient(const derivation *d, expr *part, const expr *divisor) {
  if (part == NULL) return NULL;
  expr *result = binary(d, EXPR_DIV, part, divisor);
  bool plain = (divisor->op == EXPR_REAL && divisor->real != 0) ||
               (divisor->op == EXPR_INT && divisor->integer != 0);
  if (plain || part->count == 0) return result;
  if (!is_bounded(part) && !is_bounded(divisor))
    result = choose(d, is_infinite(d, divisor), NULL, result);
  return choose(d, compare(d, EXPR_EQ, part, real(d, 0)), NULL, result);
}

/* ---- the rules ----------------------------------------------------------- */

static expr *derive_none(const derivation *d, const expr *e, expr *da,
                         expr *db) {
  (void)d, (void)e, (void)da, (void)db;
  return NULL;
}

static expr *derive_leaf(const derivation *d, const expr *e, expr *da,
                         expr *db) {
  (void)da, (void)db;
  return expr_same(e, d->leaf) ? real(d, 1) : NULL;
}

static expr *derive_sum(const derivation *d, const expr *e, expr *da,
                        expr *db) {
  (void)e;
  return sum(d, da, db);
}

static expr *derive_difference(const derivation *d, const expr *e, expr *da,
                               expr *db) {
  (void)e;
  return difference(d, da, db);
}

static expr *derive_product(const derivation *d, const expr *e, expr *da,
                            expr *db) {
  return sum(d, product(d, e->arg[1], da), product(d, e->arg[0], db));
}

static expr *derive_quotient(const derivation *d, const expr *e, expr *da,
                             expr *db) {
  expr *turns = binary(d, EXPR_DIV, e, e->arg[1]);
  return difference(d, quotient(d, da, e->arg[1]), product(d, turns, db));
}

static expr *derive_modulo(const derivation *d, const expr *e, expr *da,
                           expr *db) {
  expr *turns = unary(d, EXPR_FLOOR,
                      binary(d, EXPR_DIV, e->arg[0], e->arg[1]));
  return difference(d, da, product(d, turns, db));
}

static expr *derive_negative(const derivation *d, const expr *e, expr *da,
                             expr *db) {
  (void)e, (void)db;
  return negative(d, da);
}

static expr *derive_choice(const derivation *d, const expr *e, expr *da,
                           expr *db) {
  return choose(d, e->arg[0], da, db);
}

static expr *derive_size(const derivation *d, const expr *e, expr *da,
                         expr *db) {
  const expr *x = e->arg[0];
  (void)db;
  expr *below = choose(d, compare(d, EXPR_LT, x, real(d, 0)),
                       negative(d, da), NULL);
  return choose(d, compare(d, EXPR_GT, x, real(d, 0)), da, below);
}

/* `op` holds where the first argument is the result alone; one that is NaN is
 * the result, too. */
static expr *derive_extreme(const derivation *d, const expr *e, expr_op op,
                            expr *da, expr *db) {
  const expr *x = e->arg[0], *y = e->arg[1];
  if (da && db && expr_same(da, db)) return da;
  expr *both = sum(d, da, db);
  if (both == NULL) return NULL;
  expr *first =
      either(d, compare(d, op, x, y), compare(d, EXPR_NE, x, x));
  expr *half = product(d, real(d, 0.5), both);
  expr *rest = choose(d, compare(d, EXPR_EQ, x, y), half, db);
  return choose(d, first, da, rest);
}

static expr *derive_least(const derivation *d, const expr *e, expr *da,
                          expr *db) {
  return derive_extreme(d, e, EXPR_LT, da, db);
}

static expr *derive_most(const derivation *d, const expr *e, expr *da,
                         expr *db) {
  return derive_extreme(d, e, EXPR_GT, da, db);
}

static expr *derive_exp(const derivation *d, const expr *e, expr *da,
                        expr *db) {
  (void)db;
  return product(d, e, da);
}

static expr *derive_log(const derivation *d, const expr *e, expr *da,
                        expr *db) {
  (void)db;
  return quotient(d, da, e->arg[0]);
}

static expr *derive_sqrt(const derivation *d, const expr *e, expr *da,
                         expr *db) {
  (void)db;
  if (da == NULL) return NULL;
  return quotient(d, product(d, real(d, 0.5), da), e);
}

static expr *derive_tanh(const derivation *d, const expr *e, expr *da,
                         expr *db) {
  (void)db;
  expr *square = binary(d, EXPR_MUL, e, e);
  return product(d, binary(d, EXPR_SUB, real(d, 1), square), da);
}

static derive *const rules[EXPR_OP_COUNT] = {
#define OP(id, text, arguments, rule, derivative) derive_##derivative,
#include "ops.def"
#undef OP
};

static expr *derivative_of(const derivation *d, const expr *e) {
  if (e->type != TYPE_F32) return NULL;
  bool chooses = e->op == EXPR_CHOOSE, leaf = e->op == EXPR_INPUT;
  const expr *a = e->count && !leaf ? e->arg[chooses] : NULL;
  const expr *b = e->count > 1 && !leaf ? e->arg[1 + chooses] : NULL;
  return rules[e->op](d, e, a ? derivative_of(d, a) : NULL,
                      b ? derivative_of(d, b) : NULL);
}

expr *expr_derivative(arena *a, const expr *e, const expr *leaf) {
  const derivation d = {a, leaf};
  expr *derivative = derivative_of(&d, e);
  if (derivative) derivative = expr_fold(a, derivative);
  return derivative && is_real_constant(derivative, 0) ? NULL : derivative;
}
