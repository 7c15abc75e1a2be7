/* gradient_laws.c - laws of gradients that need no reference. In: a pattern and
 * a backward call with its results. Out: "" or the law that is broken. Sums are
 * in float64 over numbers as they are stored. */
#include "gradients.h"
#include "definition.h"
#include <math.h>

/* Both sides of a law, and the sum of the sizes of all terms. */
typedef struct law_sums {
  double left[DIL_HEAD_DIM_MAX], right[DIL_HEAD_DIM_MAX];
  double size[DIL_HEAD_DIM_MAX];
} law_sums;

/* A batch row and a key/value head. */
typedef struct law_place {
  const pattern *p;
  const dil_backward_call *call;
  int64_t b, kv;
} law_place;

typedef const char *law_check(const law_place *at, double tolerance);

/* ---- sums ---------------------------------------------------------------- */

static double element(const dil_tensor *x, int64_t b, int64_t n, int64_t h,
                      int64_t d) {
  return sample_element(x, b, n, h, d);
}

/* The term of a product in which a factor of 0 hides what the other is. */
static double term(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }

static void add_left(law_sums *sums, int64_t d, double x) {
  sums->left[d] += x;
  sums->size[d] += fabs(x);
}

static void add_right(law_sums *sums, int64_t d, double x) {
  sums->right[d] += x;
  sums->size[d] += fabs(x);
}

static const char *law_text(const law_sums *sums, int64_t count,
                            double tolerance, const law_place *at,
                            const char *law) {
  static char text[300];
  for (int64_t d = 0; d < count; d++) {
    double off = fabs(sums->left[d] - sums->right[d]);
    if (off <= tolerance * sums->size[d]) continue;
    snprintf(text, sizeof text,
             "%s: %.9g and %.9g (terms of %.3g) in batch row %d, key/value "
             "head %d, element %d", law, sums->left[d], sums->right[d],
             sums->size[d], (int)at->b, (int)at->kv, (int)d);
    return text;
  }
  return "";
}

/* ---- rows ---------------------------------------------------------------- */

static int64_t group_of(const pattern *p) { return p->heads / p->kv_heads; }

static int64_t key_count(const law_place *at) {
  const dil_call *call = &at->call->forward;
  return call->lengths ? call->lengths[at->b] : call->k.shape[1];
}

static double scale_of(const law_place *at) {
  const pattern *p = at->p;
  return p->scale_kind == SCALE_RUNTIME ? at->call->forward.scale
         : p->scale_kind == SCALE_FIXED ? p->scale
                                        : 1 / sqrt((double)p->head_dim);
}

/* Of all queries of the group: number k is row k / group. */
static int64_t query_count(const law_place *at) {
  return at->call->forward.q.shape[1] * group_of(at->p);
}

static int64_t row_of(const law_place *at, int64_t k) {
  return k / group_of(at->p);
}

static int64_t head_of(const law_place *at, int64_t k) {
  return at->kv * group_of(at->p) + k % group_of(at->p);
}

static double row_lse(const law_place *at, int64_t k) {
  return element(&at->call->forward.lse, at->b, head_of(at, k), row_of(at, k),
                 0);
}

static double row_dlse(const law_place *at, int64_t k) {
  if (!at->call->lse.data) return 0;
  return element(&at->call->lse, at->b, head_of(at, k), row_of(at, k), 0);
}

/* dO . o */
static double row_product(const law_place *at, int64_t k) {
  double sum = 0;
  int64_t n = row_of(at, k), h = head_of(at, k);
  for (int64_t d = 0; d < at->p->value_dim; d++)
    sum += term(element(&at->call->forward.o, at->b, n, h, d),
                element(&at->call->output, at->b, n, h, d));
  return sum;
}

/* ---- sinks --------------------------------------------------------------- */

static double sink_weights(const law_place *at, int64_t k, expr *const *sink,
                           int32_t count) {
  const dil_call *call = &at->call->forward;
  int64_t M = key_count(at), N = call->q.shape[1];
  const expr_point point = {.b = (int32_t)at->b,
                            .h = (int32_t)head_of(at, k),
                            .i = (int32_t)(row_of(at, k) + M - N),
                            .B = (int32_t)call->q.shape[0],
                            .N = (int32_t)N,
                            .M = (int32_t)M,
                            .input = sample_input,
                            .context = (void *)call};
  double sum = 0, lse = row_lse(at, k);
  for (int32_t s = 0; s < count; s++) {
    value v = expr_eval(sink[s], &point, true);
    bool real = sink[s]->type == TYPE_F32;
    sum += exp((real ? v.real : (double)v.integer) - lse);
  }
  return sum;
}

static bool selects_row(const law_place *at, const branch *b, int64_t k) {
  int64_t h = head_of(at, k), N = at->call->forward.q.shape[1];
  int64_t t = row_of(at, k) + key_count(at) - N;
  if (h < b->head_first || h > b->head_last || (b->segment && t < 0))
    return false;
  if (b->phase_kind == PHASE_EACH) return true;
  int64_t inside = b->segment ? t % b->segment : t;
  return ((inside - b->phase[h]) % b->dilation) == 0;
}

/* What part of a row's weights its sinks have. */
static double row_sinks(const law_place *at, int64_t k) {
  const pattern *p = at->p;
  double sum = sink_weights(at, k, p->sink, p->sink_count);
  for (int32_t index = 0; index < p->branch_count; index++) {
    const branch *b = &p->branch[index];
    if (selects_row(at, b, k))
      sum += sink_weights(at, k, b->sink, b->sink_count);
  }
  return sum;
}

/* ---- the laws ------------------------------------------------------------ */

static const char *check_scores(const law_place *at, double tolerance) {
  const dil_backward_call *c = at->call;
  law_sums sums = {0};
  if (!c->dq.data || !c->dk.data) return "";
  for (int64_t k = 0; k < query_count(at); k++)
    for (int64_t d = 0; d < at->p->head_dim; d++) {
      int64_t n = row_of(at, k), h = head_of(at, k);
      add_left(&sums, 0, term(element(&c->dq, at->b, n, h, d),
                              element(&c->forward.q, at->b, n, h, d)));
    }
  for (int64_t j = 0; j < c->dk.shape[1]; j++)
    for (int64_t d = 0; d < at->p->head_dim; d++)
      add_right(&sums, 0, term(element(&c->dk, at->b, j, at->kv, d),
                               element(&c->forward.k, at->b, j, at->kv, d)));
  return law_text(&sums, 1, tolerance, at, "sum dq . q = sum dk . k");
}

static const char *check_outputs(const law_place *at, double tolerance) {
  const dil_backward_call *c = at->call;
  law_sums sums = {0};
  if (!c->dv.data) return "";
  for (int64_t j = 0; j < c->dv.shape[1]; j++)
    for (int64_t d = 0; d < at->p->value_dim; d++)
      add_left(&sums, 0, term(element(&c->dv, at->b, j, at->kv, d),
                              element(&c->forward.v, at->b, j, at->kv, d)));
  for (int64_t k = 0; k < query_count(at); k++)
    add_right(&sums, 0, row_product(at, k));
  return law_text(&sums, 1, tolerance, at, "sum dv . v = sum dO . o");
}

static bool is_joint(const pattern *p) {
  return p->combine == DIL_COMBINE_SOFTMAX || p->combine == DIL_COMBINE_UNION;
}

static const char *check_values(const law_place *at, double tolerance) {
  const dil_backward_call *c = at->call;
  law_sums sums = {0};
  bool drops = c->forward.train && at->p->dropout > 0;
  if (!c->dv.data || !c->forward.lse.data || drops || !is_joint(at->p))
    return "";
  for (int64_t k = 0; k < query_count(at); k++) {
    if (row_lse(at, k) == -INFINITY) continue;
    double sinks = row_sinks(at, k);
    for (int64_t d = 0; d < at->p->value_dim; d++) {
      double given =
          element(&c->output, at->b, row_of(at, k), head_of(at, k), d);
      add_right(&sums, d, given);
      add_right(&sums, d, -term(sinks, given));
    }
  }
  for (int64_t j = 0; j < c->dv.shape[1]; j++)
    for (int64_t d = 0; d < at->p->value_dim; d++)
      add_left(&sums, d, element(&c->dv, at->b, j, at->kv, d));
  return law_text(&sums, at->p->value_dim, tolerance, at,
                  "sum dv = sum dO (1 - P of sinks)");
}

/* Whether every step of every chain has the derivative 1. */
static bool shifts_scores(const pattern *p) {
  arena *a = arena_new();
  const expr s = {.op = EXPR_S_, .type = TYPE_F32};
  bool shifts = true;
  for (int32_t b = 0; b < p->branch_count; b++)
    for (int32_t k = 0; k < p->branch[b].score_count; k++) {
      const expr *d = expr_derivative(a, p->branch[b].score[k], &s);
      shifts &= d && d->op == EXPR_REAL && d->real == 1;
    }
  arena_free(a);
  return shifts;
}

/* What dS of a row sums to: dlse - d sinks. */
static double row_slopes(const law_place *at, int64_t k) {
  if (!pattern_has_lse(at->p)) return 0;
  if (row_lse(at, k) == -INFINITY) return 0;
  double delta = row_product(at, k) - row_dlse(at, k);
  double sinks = pattern_has_sinks(at->p) ? row_sinks(at, k) : 0;
  return row_dlse(at, k) + sinks * delta;
}

/* The sum of the sizes of the numbers that cancel in a row's dS. */
static double row_size(const law_place *at, int64_t k) {
  int64_t n = row_of(at, k), h = head_of(at, k);
  double size = 0;
  bool none = pattern_has_lse(at->p) && row_lse(at, k) == -INFINITY;
  for (int64_t d = 0; d < at->p->value_dim && !none; d++)
    size += fabs(term(element(&at->call->forward.o, at->b, n, h, d),
                      element(&at->call->output, at->b, n, h, d)));
  return none ? 0 : size + fabs(row_dlse(at, k));
}

static const char *check_keys(const law_place *at, double tolerance) {
  const dil_backward_call *c = at->call;
  law_sums sums = {0};
  bool apart = !is_joint(at->p) || at->p->detached;
  bool known = c->forward.lse.data || !pattern_has_lse(at->p);
  if (!c->dk.data || !known || !shifts_scores(at->p) ||
      (apart && pattern_has_sinks(at->p)))
    return "";
  for (int64_t k = 0; k < query_count(at); k++) {
    double slopes = scale_of(at) * row_slopes(at, k);
    double size = fabs(scale_of(at)) * row_size(at, k);
    for (int64_t d = 0; d < at->p->head_dim; d++) {
      double q =
          element(&c->forward.q, at->b, row_of(at, k), head_of(at, k), d);
      add_right(&sums, d, term(slopes, q));
      sums.size[d] += fabs(term(size, q));
    }
  }
  for (int64_t j = 0; j < c->dk.shape[1]; j++)
    for (int64_t d = 0; d < at->p->head_dim; d++)
      add_left(&sums, d, element(&c->dk, at->b, j, at->kv, d));
  return law_text(&sums, at->p->head_dim, tolerance, at,
                  "sum dk = scale sum q (dlse - d sinks)");
}

/* Returns false where the output of some row is NaN, and with it the gradients of
 * that row and of the keys that it sees: no law says anything of these. Callers
 * compare o with the oracle before. Where dO is 0, the gradients are 0. */
static bool outputs_are_defined(const law_place *at) {
  for (int64_t k = 0; k < query_count(at); k++)
    if (isnan(row_product(at, k))) return false;
  return true;
}

const char *gradient_laws(const pattern *p, const dil_backward_call *call,
                          double tolerance) {
  static law_check *const laws[] = {check_scores, check_outputs, check_values,
                                    check_keys};
  law_place at = {.p = p, .call = call};
  for (at.b = 0; at.b < call->forward.q.shape[0]; at.b++)
    for (at.kv = 0; at.kv < p->kv_heads; at.kv++) {
      if (!outputs_are_defined(&at)) continue;
      for (size_t k = 0; k < sizeof laws / sizeof *laws; k++) {
        const char *broken = laws[k](&at, tolerance);
        if (broken[0]) return broken;
      }
    }
  return "";
}
