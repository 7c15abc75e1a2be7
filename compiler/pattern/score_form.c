/* score_form.c - finds the form of a score chain; see score_form.h.
 *
 * In: the trees of a chain. Out: its linear form, made of a coefficient for
 * each position, or its cap. Integers that may wrap are no linear form. */
#include "score_form.h"
#include <math.h>

/* number * factor; NULL is a factor of 1. */
typedef struct coefficient {
  double number;
  expr *factor;
} coefficient;

/* s * score + i * i + j * j + size * |i - j| + rest. The rest has neither s nor
 * j; NULL is 0. */
typedef struct linear {
  double s;
  coefficient i, j, size;
  expr *rest;
} linear;

typedef struct form_search {
  arena *memory;
  const score_pairs *pairs;
  linear score; /* of the chain's expressions so far */
} form_search;

/* ---- trees --------------------------------------------------------------- */

static expr *form_number(form_search *f, double x) {
  expr *e = ARENA_NEW(f->memory, expr);
  *e = (expr){.op = EXPR_REAL, .type = TYPE_F32, .real = x};
  return e;
}

static expr *form_tree(form_search *f, expr_op op, expr *x, expr *y) {
  expr *e = ARENA_NEW(f->memory, expr);
  *e = (expr){.op = op, .type = TYPE_F32, .count = 2};
  e->arg = ARENA_ARRAY(f->memory, expr *, 2);
  e->arg[0] = x;
  e->arg[1] = y;
  return e;
}

static expr *form_product(form_search *f, expr *x, expr *y) {
  if (!x || !y) return x ? x : y;
  return form_tree(f, EXPR_MUL, x, y);
}

/* A coefficient as a tree; NULL: it is 0. */
static expr *form_coefficient(form_search *f, coefficient k) {
  if (k.number == 0) return NULL;
  if (!k.factor) return form_number(f, k.number);
  if (k.number == 1) return k.factor;
  return form_tree(f, EXPR_MUL, form_number(f, k.number), k.factor);
}

static bool form_is_constant(const expr *e, double *number) {
  *number = e->op == EXPR_INT ? (double)e->integer : e->real;
  return e->op == EXPR_INT || (e->op == EXPR_REAL && isfinite(e->real));
}

static bool form_is_free(const expr *e) {
  return !expr_uses(e, EXPR_S_) && !expr_uses(e, EXPR_I_) &&
         !expr_uses(e, EXPR_J_);
}

/* ---- sums and products --------------------------------------------------- */

static bool form_is_alike(coefficient a, coefficient b) {
  if (!a.factor || !b.factor) return a.factor == b.factor;
  return expr_same(a.factor, b.factor);
}

static coefficient form_plus(form_search *f, coefficient a, coefficient b) {
  if (a.number == 0) return b;
  if (b.number == 0) return a;
  if (form_is_alike(a, b)) return (coefficient){a.number + b.number, a.factor};
  return (coefficient){1, form_tree(f, EXPR_ADD, form_coefficient(f, a),
                                    form_coefficient(f, b))};
}

static linear form_sum(form_search *f, const linear *a, const linear *b) {
  linear sum = {.s = a->s + b->s,
                .i = form_plus(f, a->i, b->i),
                .j = form_plus(f, a->j, b->j),
                .size = form_plus(f, a->size, b->size)};
  sum.rest = a->rest ? a->rest : b->rest;
  if (a->rest && b->rest) sum.rest = form_tree(f, EXPR_ADD, a->rest, b->rest);
  return sum;
}

static coefficient form_times(form_search *f, coefficient a, coefficient b) {
  return (coefficient){a.number * b.number,
                       form_product(f, a.factor, b.factor)};
}

/* Multiplies by a coefficient. False: the score would get a factor that is no
 * number. */
static bool form_scale(form_search *f, coefficient by, linear *x) {
  if (x->s != 0 && by.factor) return false;
  x->s *= by.number;
  x->i = form_times(f, x->i, by);
  x->j = form_times(f, x->j, by);
  x->size = form_times(f, x->size, by);
  if (x->rest) x->rest = form_product(f, form_coefficient(f, by), x->rest);
  return true;
}

/* ---- integers ------------------------------------------------------------ */

enum { FORM_FAR = 1 << 29 }; /* positions are below it */

static bool form_is_plain(const expr *e) {
  bool leaf = e->op == EXPR_INT || e->op == EXPR_I_ || e->op == EXPR_J_ ||
              e->op == EXPR_H_;
  if (e->count == 0) return leaf;
  for (int32_t k = 0; k < e->count; k++)
    if (!form_is_plain(e->arg[k])) return false;
  return true;
}

static interval form_bounds(const expr *e, int32_t head) {
  expr_box box = {.point = {.h = head, .N = 1, .M = 1, .B = 1},
                  .i0 = -FORM_FAR,
                  .i1 = FORM_FAR,
                  .j0 = -FORM_FAR,
                  .j1 = FORM_FAR};
  return expr_bounds(e, &box);
}

/* Whether a sum or product of positions is the same in integers as in
 * numbers. */
static bool form_is_exact(const form_search *f, const expr *e) {
  if (e->type == TYPE_F32) return true;
  if (!form_is_plain(e)) return false;
  for (int32_t h = 0; h < f->pairs->heads; h++) {
    interval x = form_bounds(e, h);
    if (x.low <= INT32_MIN && x.high >= INT32_MAX) return false;
  }
  return true;
}

/* ---- linear forms -------------------------------------------------------- */

static bool form_linear(form_search *f, expr *e, linear *out);

static bool form_of_product(form_search *f, expr *e, linear *out) {
  bool first = form_is_free(e->arg[0]);
  expr *factor = e->arg[!first], *other = e->arg[first];
  coefficient by = {1, factor};
  if (!form_is_free(factor) || !form_linear(f, other, out)) return false;
  if (form_is_constant(factor, &by.number))
    by.factor = NULL;
  else
    by.number = 1;
  return form_scale(f, by, out);
}

/* |i - j|, whose sign windows may settle. */
static bool form_of_size(form_search *f, expr *e, linear *out) {
  linear x;
  if (!form_linear(f, e->arg[0], &x)) return false;
  if (x.s != 0 || x.rest || x.size.number != 0 || x.i.factor || x.j.factor ||
      fabs(x.i.number) != 1 || x.j.number != -x.i.number)
    return false;
  *out = (linear){0};
  if (f->pairs->right <= 0)
    out->i.number = 1, out->j.number = -1;
  else if (f->pairs->left <= 0)
    out->i.number = -1, out->j.number = 1;
  else
    out->size.number = 1;
  return true;
}

static bool form_of_sum(form_search *f, expr *e, double sign, linear *out) {
  linear a, b;
  if (!form_linear(f, e->arg[0], &a) || !form_linear(f, e->arg[1], &b) ||
      !form_scale(f, (coefficient){sign, NULL}, &b))
    return false;
  *out = form_sum(f, &a, &b);
  return true;
}

static bool form_of_quotient(form_search *f, expr *e, linear *out) {
  double by;
  if (e->type != TYPE_F32 || !form_is_constant(e->arg[1], &by) || by == 0 ||
      !form_linear(f, e->arg[0], out))
    return false;
  return form_scale(f, (coefficient){1 / by, NULL}, out);
}

static bool form_of_operator(form_search *f, expr *e, linear *out) {
  switch (e->op) {
  case EXPR_S_:
    *out = f->score;
    return true;
  case EXPR_I_:
    *out = (linear){.i.number = 1};
    return true;
  case EXPR_J_:
    *out = (linear){.j.number = 1};
    return true;
  case EXPR_ADD:
    return form_of_sum(f, e, 1, out);
  case EXPR_SUB:
    return form_of_sum(f, e, -1, out);
  case EXPR_MUL:
    return form_of_product(f, e, out);
  case EXPR_DIV:
    return form_of_quotient(f, e, out);
  case EXPR_ABS:
    return form_of_size(f, e, out);
  case EXPR_NEG:
    return form_linear(f, e->arg[0], out) &&
           form_scale(f, (coefficient){-1, NULL}, out);
  default:
    return false;
  }
}

static bool form_linear(form_search *f, expr *e, linear *out) {
  if (!form_is_free(e) && form_is_exact(f, e) && form_of_operator(f, e, out))
    return true;
  *out = (linear){.rest = e};
  return !expr_uses(e, EXPR_S_) && !expr_uses(e, EXPR_J_);
}

/* Whether a row's addend is finite in every row of every head, whatever the
 * call. */
static bool form_is_finite(const form_search *f, const expr *e) {
  static const expr_op unknown[] = {EXPR_INPUT, EXPR_B_, EXPR_BATCH, EXPR_N_,
                                    EXPR_M_};
  const double most = 1e30;
  for (size_t k = 0; k < sizeof unknown / sizeof *unknown; k++)
    if (expr_uses(e, unknown[k])) return false;
  for (int32_t h = 0; h < f->pairs->heads; h++) {
    interval x = form_bounds(e, h);
    if (x.nan || x.low < -most || x.high > most) return false;
  }
  return true;
}

static expr *form_row_position(form_search *f) {
  expr *e = ARENA_NEW(f->memory, expr);
  *e = (expr){.op = EXPR_I_, .type = TYPE_I32};
  return e;
}

/* The form of s + what positions and the row add. */
static bool form_finish(form_search *f, const linear *x, score_form *out) {
  coefficient i = x->i, slope = x->j;
  out->distance = DISTANCE_KEY;
  if (x->s != 1) return false;
  if (x->size.number != 0) {
    if (i.number != 0 || slope.number != 0) return false;
    out->distance = DISTANCE_SIZE;
    slope = x->size;
  } else if (slope.number != 0 && i.number == -slope.number &&
             form_is_alike(i, slope)) {
    out->distance = DISTANCE_AWAY;
    i.number = 0;
  }
  out->row = x->rest;
  if (i.number != 0) {
    expr *part = form_product(f, form_coefficient(f, i), form_row_position(f));
    out->row = x->rest ? form_tree(f, EXPR_ADD, part, x->rest) : part;
  }
  if (out->row && !form_is_finite(f, out->row)) return false;
  out->slope = form_coefficient(f, slope);
  out->kind = SCORE_LINEAR;
  return true;
}

/* ---- caps ---------------------------------------------------------------- */

/* rate * s */
static bool form_rate(const expr *e, double *rate) {
  double by = 1;
  *rate = 1;
  if (e->op == EXPR_S_) return true;
  if (e->op == EXPR_DIV && e->arg[0]->op == EXPR_S_) {
    if (!form_is_constant(e->arg[1], &by)) return false;
    *rate = 1 / by;
    return true;
  }
  if (e->op != EXPR_MUL) return false;
  int32_t k = e->arg[0]->op == EXPR_S_;
  if (!form_is_constant(e->arg[k], rate)) return false;
  return e->arg[!k]->op == EXPR_S_;
}

static bool form_capped(const expr *e, score_form *out) {
  const float least = 1e-6f, most = 1e6f;
  if (e->op != EXPR_MUL) return false;
  int32_t k = e->arg[0]->op == EXPR_TANH;
  if (e->arg[!k]->op != EXPR_TANH || !form_is_constant(e->arg[k], &out->cap) ||
      !form_rate(e->arg[!k]->arg[0], &out->rate))
    return false;
  if (out->cap < least || out->cap > most || out->rate < least ||
      out->rate > most)
    return false;
  out->kind = SCORE_CAPPED;
  return true;
}

score_form score_form_of(arena *a, expr *const *chain,
                         const score_pairs *pairs) {
  form_search f = {.memory = a, .pairs = pairs, .score = {.s = 1}};
  score_form out = {0};
  if (!chain[0]) return out;
  if (!chain[1] && form_capped(chain[0], &out)) return out;
  for (int32_t n = 0; chain[n]; n++) {
    linear next;
    if (!form_linear(&f, chain[n], &next)) return (score_form){0};
    f.score = next;
  }
  out = (score_form){0};
  return form_finish(&f, &f.score, &out) ? out : (score_form){0};
}
