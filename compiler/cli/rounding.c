/* rounding.c - how far f32 rounding of scores may take a row of o and its lse
 * from the definition.
 *
 * Each score is moved by its rounding: a sum q . k of D products by
 * 2^-24 (sqrt(D) + 4) times the sum of their sizes, as rounding errors of
 * random sign add up, by what a device truncates, which adds up in full, and by
 * the errors of the products themselves; each rewriting by a few units of its
 * result. The softmax sees differences of
 * scores alone, so the largest score stands still, and the others move by their
 * rounding and its. What the weights then gain draws the output towards their
 * values: by independent errors, hence the root of the sum of squares, and no
 * further than to the farthest of these values. Usual scores stand still, too:
 * the bounds of a storage type cover their rounding. */
#include "rounding.h"
#include "compiler/analysis/cover.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/random.h"
#include <math.h>
#include <string.h>

#define TRUNCATION 0x1p-23 /* relative error of a truncated sum */
#define NOTICED   0x1p-20 /* a weight that gains less draws nowhere */
#define USUAL     16 /* scores up to this size are within a type's own bounds */

/* One softmax of a row: of all branches, or of one. */
typedef struct rounding_state {
  const pattern *pattern;
  const dil_call *call;
  expr_point point;
  int64_t h, t;
  int32_t first, last; /* branches */
  double scale;
  dot_error exactness;
  const double *q;
  double top, top_error; /* the largest score and how far it may move */
  double weights;        /* sum of exp(s - top) */
  double least;          /* the same with all but the top moved down */
  double gained;         /* by weights whose scores are moved up */
  double most;           /* the largest of their moves */
  double square;         /* sum of (gain * distance)^2 */
  double farthest;       /* distance of a value that gains */
  bool stands;           /* the top has been met, which does not move */
  bool spoiled;          /* a score is NaN or +inf: the row has no bound */
  double *output;        /* [value_dim] */
} rounding_state;

enum { SINK = -1 }; /* a key whose value is 0 */
typedef struct key_score {
  int64_t j;           /* or SINK */
  double s, error;
} key_score;

typedef void take_key(rounding_state *state, key_score key);

/* ---- scores -------------------------------------------------------------- */

static void read_rounded_row(const dil_call *call, const dil_tensor *x,
                             const int64_t at[3], int64_t count, double *to) {
  int64_t start =
      at[0] * x->stride[0] + at[1] * x->stride[1] + at[2] * x->stride[2];
  if (!x->data)
    dil_normal_row(call, x, start, count, to);
  else
    for (int64_t d = 0; d < count; d++)
      to[d] = dil_element_read(x->data, x->dtype, start + d);
}

static void read_key_row(const rounding_state *state, const dil_tensor *x,
                         int64_t j, int64_t count, double *to) {
  const pattern *p = state->pattern;
  const dil_call_pages *pages = &state->call->pages;
  int64_t kv = state->h / (p->heads / p->kv_heads), b = state->point.b;
  if (j == SINK) {
    memset(to, 0, (size_t)count * sizeof *to);
    return;
  }
  if (pages->number) {
    b = pages->number[b * pages->stride + j / x->shape[1]];
    j %= x->shape[1];
  }
  read_rounded_row(state->call, x, (int64_t[]){b, j, kv}, count, to);
}

/* The score of the key at the point, its product given; `made` grows to the
 * largest number on the way. */
static double rewrite_score(rounding_state *state, const branch *br, double s,
                            double *made) {
  state->point.s = s;
  for (int32_t i = 0; i < br->score_count; i++) {
    value v = expr_eval(br->score[i], &state->point, true);
    s = br->score[i]->type == TYPE_F32 ? v.real : (double)v.integer;
    if (isfinite(s)) *made = fmax(*made, fabs(s));
    state->point.s = s;
  }
  return s;
}

/* Returns the distance of two scores; equal infinities have none. */
static double score_distance(double a, double b) {
  return a == b || isnan(a) || isnan(b) ? 0 : fabs(a - b);
}

static key_score rounded_score(rounding_state *state, const branch *br,
                               int64_t j) {
  int64_t count = state->pattern->head_dim;
  double key[count], sum = 0, sizes = 0, squares = 0, made = 0;
  read_key_row(state, &state->call->k, j, count, key);
  for (int64_t d = 0; d < count; d++) {
    double product = state->q[d] * key[d];
    sum += product;
    sizes += fabs(product);
    squares += product * product;
  }
  double s = state->scale * sum, steps = sqrt((double)count) + 4;
  double error = fabs(state->scale) *
                 ((ROUNDING_ADDITION * steps + state->exactness.sum) * sizes +
                  state->exactness.product * sqrt(squares));
  key_score all = {j, rewrite_score(state, br, s, &made), error};
  bool usual = fmax(fabs(state->scale) * sizes, made) <= USUAL;
  if (usual) all.error = 0;
  if (usual || br->score_count == 0 || !isfinite(error)) return all;
  double up = rewrite_score(state, br, s + error, &made);
  double down = rewrite_score(state, br, s - error, &made);
  all.error = fmax(score_distance(all.s, up), score_distance(all.s, down));
  all.error += made * ROUNDING_REWRITING;
  return all;
}

double rounding_beyond_storage(dil_dtype dtype, double stored, double right) {
  bool coarse = dtype == DIL_F16 && fabs(right) < 0x1p-14;
  return fmax(fabs(stored - right) - (coarse ? 0x1p-25 : 0), 0);
}

double rounding_of_dot(dot_error exactness, int64_t count, double sizes) {
  double steps = sqrt((double)count) + 4;
  return sizes *
         (ROUNDING_ADDITION * steps + exactness.sum + exactness.product);
}

/* ---- keys ---------------------------------------------------------------- */

static void take_branch_keys(rounding_state *state, int32_t index,
                             take_key *take) {
  const pattern *p = state->pattern;
  const branch *br = &p->branch[index];
  int64_t M = state->point.M, t = state->t;
  int64_t low = br->segment ? floor_div(t, br->segment) * br->segment : 0;
  int64_t high = br->segment && low + br->segment < M ? low + br->segment : M;
  for (int64_t j = low < 0 ? high : low; j < high; j++) {
    if (!pattern_reaches(p, index, state->h, t, j, &state->point)) continue;
    state->point.h = (int32_t)state->h;
    state->point.i = (int32_t)t;
    state->point.j = (int32_t)j;
    key_score key = rounded_score(state, br, j);
    if (isnan(key.s) || key.s == INFINITY) state->spoiled = true;
    if (isfinite(key.s)) take(state, key);
  }
}

/* Sinks are keys of the row; their expressions round as scores do. */
static void take_sinks(rounding_state *state, expr *const *sink, int32_t count,
                       take_key *take) {
  state->point.h = (int32_t)state->h;
  state->point.i = (int32_t)state->t;
  for (int32_t i = 0; i < count; i++) {
    value v = expr_eval(sink[i], &state->point, true);
    double s = sink[i]->type == TYPE_F32 ? v.real : (double)v.integer;
    double error = fabs(s) <= USUAL ? 0 : fabs(s) * ROUNDING_REWRITING;
    if (isnan(s) || s == INFINITY) state->spoiled = true;
    if (isfinite(s)) take(state, (key_score){SINK, s, error});
  }
}

static bool selects_row(const rounding_state *state, const branch *br) {
  int64_t t = state->t, inside = br->segment ? t % br->segment : t;
  if (t < 0 && br->segment) return false;
  if (branch_has_each(br)) return true;
  return floor_mod(inside - br->phase[state->h], br->dilation) == 0;
}

static void take_branches(rounding_state *state, take_key *take) {
  const pattern *p = state->pattern;
  const branch *all = p->branch;
  take_sinks(state, p->sink, p->sink_count, take);
  for (int32_t i = state->first; i <= state->last; i++) {
    if (all[i].head_first > state->h || state->h > all[i].head_last) continue;
    take_branch_keys(state, i, take);
    if (selects_row(state, &all[i]))
      take_sinks(state, all[i].sink, all[i].sink_count, take);
  }
}

static void take_top(rounding_state *state, key_score key) {
  if (key.s <= state->top) return;
  state->top = key.s;
  state->top_error = key.error;
}

static void take_value(rounding_state *state, key_score key) {
  int64_t count = state->pattern->value_dim;
  double v[count], weight = exp(key.s - state->top);
  read_key_row(state, &state->call->v, key.j, count, v);
  state->weights += weight;
  for (int64_t d = 0; d < count; d++) state->output[d] += weight * v[d];
}

static double key_distance(const rounding_state *state, int64_t j) {
  int64_t count = state->pattern->value_dim;
  double v[count], square = 0;
  read_key_row(state, &state->call->v, j, count, v);
  for (int64_t d = 0; d < count; d++)
    square += (v[d] - state->output[d]) * (v[d] - state->output[d]);
  return sqrt(square);
}

/* A weight this small beside the largest may be lost, as may its part of a sum:
 * numbers below the least normal f32 have few digits, or become 0. Weights that are
 * stored as f16 have steps of 2^-24 below 2^-14: a row shows it whose larger weights
 * dropout takes. */
typedef struct weight_loss { double below, most; } weight_loss;
static const weight_loss loss_of_f32 = {0x1p-100, 0x1p-126};
static const weight_loss loss_of_f16 = {0x1p-14, 0x1p-25};

static void take_loss(rounding_state *state, key_score key) {
  const weight_loss *loss =
      state->pattern->dtype == DIL_F16 ? &loss_of_f16 : &loss_of_f32;
  double weight = exp(key.s - state->top);
  if (key.j == SINK || weight == 0 || weight >= loss->below) return;
  double far = key_distance(state, key.j);
  double pull = far > 0 ? fmin(weight, loss->most) * far : 0;
  state->square += pull * pull;
}

/* The first key with the top score stands still. Others with the same score
 * move as all do. */
static void take_gain(rounding_state *state, key_score key) {
  double below = key.s - state->top;
  bool is_top = below == 0 && !state->stands;
  state->stands |= is_top;
  double error = is_top ? 0 : key.error + state->top_error;
  double weight = exp(below);
  double gain = error < 1 ? weight * expm1(error) : exp(below + error) - weight;
  state->least += exp(below - error);
  if (!(gain > 0)) return;
  double far = key_distance(state, key.j), pull = far > 0 ? gain * far : 0;
  state->gained += gain;
  state->most = fmax(state->most, error);
  state->square += pull * pull;
  if (gain > NOTICED) state->farthest = fmax(state->farthest, far);
}

/* ---- a row --------------------------------------------------------------- */

/* Of one softmax: its sums start anew. */
static rounding rounding_of_softmax(rounding_state *state) {
  const pattern *p = state->pattern;
  double output[p->value_dim];
  state->output = output;
  memset(output, 0, sizeof output);
  state->top = -INFINITY;
  state->weights = state->least = state->gained = 0;
  state->square = state->farthest = state->most = 0;
  state->stands = false;
  take_branches(state, take_top);
  if (state->spoiled || state->top == -INFINITY) return (rounding){0, 0};
  take_branches(state, take_value);
  for (int32_t d = 0; d < p->value_dim; d++) output[d] /= state->weights;
  take_branches(state, take_gain);
  take_branches(state, take_loss);
  double drawn = ROUNDING_SURENESS * sqrt(state->square) / state->least;
  drawn = state->farthest > 0 ? fmin(drawn, state->farthest) : drawn;
  double kept = state->call->train ? 1 - p->dropout : 1;
  double more = fmin(log1p(state->gained / state->weights), state->most);
  return (rounding){drawn / kept, state->top_error + more};
}

static double scale_of_call(const pattern *p, const dil_call *call) {
  return p->scale_kind == SCALE_RUNTIME ? call->scale : p->scale;
}

/* Processors multiply exactly, and so do GPUs with elements of 16 bits. A GPU's
 * matrix product truncates the sum of its 8 (tf32) or 16 products and of what
 * came before: by up to a unit of the last place, and always towards 0. */
dot_error dot_error_of(const pattern *p, bool gpu) {
  if (!gpu) return (dot_error){0, 0};
  bool f32 = p->dtype == DIL_F32;
  int64_t depth = f32 ? 8 : 16, steps = (p->head_dim + depth - 1) / depth;
  if (f32 && !p->fast) steps *= 3; /* products of a pair's high and low parts */
  double product = !f32 ? 0 : p->fast ? 0x1p-10 : 0x1p-20;
  return (dot_error){product, (double)steps * TRUNCATION};
}

rounding rounding_of_row(const pattern *p, const dil_call *call,
                         const expr_point *point, int64_t n, int64_t h,
                         dot_error exactness) {
  bool apart = p->combine == DIL_COMBINE_MEAN || p->combine == DIL_COMBINE_SUM;
  double q[p->head_dim], square = 0;
  rounding_state state = {.pattern = p,
                          .call = call,
                          .point = *point,
                          .h = h,
                          .t = n + point->M - point->N,
                          .last = p->branch_count - 1,
                          .scale = scale_of_call(p, call),
                          .exactness = exactness,
                          .q = q};
  read_rounded_row(call, &call->q, (int64_t[]){point->b, n, h}, p->head_dim, q);
  if (!apart) return rounding_of_softmax(&state);
  rounding all = {0, 0};
  for (int32_t i = 0; i < p->branch_count; i++) {
    state.first = state.last = i;
    rounding one = rounding_of_softmax(&state);
    square += one.output * one.output;
    all.lse = fmax(all.lse, one.lse);
  }
  double share = p->combine == DIL_COMBINE_MEAN ? p->branch_count : 1;
  all.output = sqrt(square) / share;
  return all;
}
