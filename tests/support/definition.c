/* definition.c - calls with made-up tensors, and the definition of attention
 * written out a second time for the oracle to be held to: every (branch, key)
 * pair is listed and judged by the formulas of the language reference, in long
 * double. */
#include "definition.h"
#include "runtime/base/random.h"
#include <math.h>

/* ---- calls --------------------------------------------------------------- */

static dil_tensor new_tensor(arena *a, dil_dtype dtype, int32_t rank,
                             int64_t w, int64_t x, int64_t y, int64_t z) {
  const int64_t shape[DIL_RANK_MAX] = {w, x, y, z};
  dil_tensor made = dil_tensor_make(NULL, dtype, rank, shape);
  size_t count = (size_t)dil_tensor_count(&made);
  made.data = ARENA_ARRAY(a, char, count *dil_dtype_size(dtype) + 1);
  return made;
}

static void fill_randomly(const dil_tensor *x, uint64_t *state, double size) {
  for (int64_t e = 0; e < dil_tensor_count(x); e++)
    dil_element_write(x->data, x->dtype, e,
                      size * (double)random_in(state, -1000, 1000) / 1000);
}

static int64_t index_of(const dil_tensor *x, int64_t a, int64_t b, int64_t c,
                        int64_t d) {
  return a * x->stride[0] + b * x->stride[1] + c * x->stride[2] +
         d * (x->rank > 3 ? x->stride[3] : 0);
}

double sample_element(const dil_tensor *x, int64_t a, int64_t b, int64_t c,
                      int64_t d) {
  return dil_element_read(x->data, x->dtype, index_of(x, a, b, c, d));
}

void sample_set(const dil_tensor *x, int64_t a, int64_t b, int64_t c, int64_t d,
                double number) {
  dil_element_write(x->data, x->dtype, index_of(x, a, b, c, d), number);
}

dil_call *sample_call(arena *a, const pattern *p, int64_t B, int64_t N,
                      int64_t M, uint64_t seed) {
  dil_call *call = ARENA_NEW(a, dil_call);
  call->size = sizeof *call;
  call->q = new_tensor(a, p->dtype, 4, B, N, p->heads, p->head_dim);
  call->k = new_tensor(a, p->dtype, 4, B, M, p->kv_heads, p->head_dim);
  call->v = new_tensor(a, p->dtype, 4, B, M, p->kv_heads, p->value_dim);
  call->o = new_tensor(a, p->dtype, 4, B, N, p->heads, p->value_dim);
  if (pattern_has_lse(p))
    call->lse = new_tensor(a, DIL_F32, 3, B, p->heads, N, 0);
  fill_randomly(&call->q, &seed, 2);
  fill_randomly(&call->k, &seed, 2);
  fill_randomly(&call->v, &seed, 2);
  call->seed = random_bits(&seed);
  return call;
}

void sample_lengths(arena *a, dil_call *call, uint64_t *state) {
  int64_t B = call->q.shape[0];
  int32_t *lengths = ARENA_ARRAY(a, int32_t, B);
  for (int64_t b = 0; b < B; b++)
    lengths[b] = (int32_t)random_in(state, 0, call->k.shape[1]);
  call->lengths = lengths;
}

dil_backward_call *sample_backward(arena *a, const pattern *p,
                                   const dil_call *call, uint64_t seed) {
  dil_backward_call *back = ARENA_NEW(a, dil_backward_call);
  int64_t B = call->q.shape[0], N = call->q.shape[1];
  back->size = sizeof *back;
  back->forward = *call;
  back->output = new_tensor(a, p->dtype, 4, B, N, p->heads, p->value_dim);
  fill_randomly(&back->output, &seed, 1);
  if (!pattern_has_lse(p)) return back;
  back->lse = new_tensor(a, DIL_F32, 3, B, p->heads, N, 0);
  fill_randomly(&back->lse, &seed, 1);
  return back;
}

void sample_inputs(arena *a, const pattern *p, dil_call *call,
                   uint64_t *state) {
  int64_t B = call->q.shape[0], M = call->k.shape[1];
  int64_t blocks = (M + GIVEN_BLOCK - 1) / GIVEN_BLOCK;
  dil_tensor *inputs = ARENA_ARRAY(a, dil_tensor, GIVEN_COUNT);
  inputs[DOC] = new_tensor(a, DIL_I32, 2, B, M, 0, 0);
  inputs[SLOPE] = new_tensor(a, DIL_F32, 1, p->heads, 0, 0, 0);
  inputs[KEPT] = new_tensor(a, DIL_U8, 3, p->heads, blocks, blocks, 0);
  for (int32_t k = 0; k < GIVEN_COUNT; k++)
    for (int64_t e = 0; e < dil_tensor_count(&inputs[k]); e++)
      dil_element_write(inputs[k].data, inputs[k].dtype, e,
                        (double)random_in(state, 0, 2) / (k == SLOPE ? 4 : 1));
  call->inputs = inputs;
  call->input_count = GIVEN_COUNT;
}

static double declared_element(const dil_input *input, uint64_t *state) {
  if (input->dtype == DIL_I32) return (double)random_in(state, -1, 5);
  if (input->dtype == DIL_U8) return (double)random_in(state, 0, 1);
  return (double)random_in(state, -64, 64) / 64;
}

void sample_declared(arena *a, const pattern *p, dil_call *call,
                     uint64_t *state) {
  const expr_point sizes = {.B = (int32_t)call->q.shape[0],
                            .N = (int32_t)call->q.shape[1],
                            .M = (int32_t)call->k.shape[1]};
  dil_tensor *inputs = ARENA_ARRAY(a, dil_tensor, p->input_count);
  for (int32_t k = 0; k < p->input_count; k++) {
    const dil_input *input = &p->input[k];
    int64_t shape[DIL_RANK_MAX] = {0};
    for (int32_t axis = 0; axis < input->rank; axis++)
      shape[axis] = expr_eval(p->dimension[k][axis], &sizes, false).integer;
    inputs[k] = new_tensor(a, input->dtype, input->rank, shape[0], shape[1],
                           shape[2], shape[3]);
    for (int64_t e = 0; e < dil_tensor_count(&inputs[k]); e++)
      dil_element_write(inputs[k].data, input->dtype, e,
                        declared_element(input, state));
  }
  call->inputs = inputs;
  call->input_count = p->input_count;
}

/* ---- the definition, once more ------------------------------------------- */

static int64_t wrap_around(int64_t x, int64_t m) {
  return (x % m + m) % m;
}

value sample_input(void *call_of, int32_t index, const int32_t *at) {
  const dil_call *call = call_of;
  const dil_tensor *x = &call->inputs[index];
  int64_t place[DIL_RANK_MAX] = {0};
  for (int32_t axis = 0; axis < x->rank; axis++) {
    if (at[axis] < 0 || at[axis] >= x->shape[axis]) return (value){0, 0};
    place[axis] = at[axis];
  }
  double number =
      dil_element_read(x->data, x->dtype,
                       place[0] * x->stride[0] + place[1] * x->stride[1] +
                           place[2] * x->stride[2]);
  return (value){(int64_t)number, number};
}

static expr_point point_of(const definition *c, int64_t j, double s) {
  return (expr_point){.b = (int32_t)c->b,
                      .h = (int32_t)c->h,
                      .i = (int32_t)c->t,
                      .j = (int32_t)j,
                      .B = (int32_t)c->call->q.shape[0],
                      .N = (int32_t)c->call->q.shape[1],
                      .M = (int32_t)c->M,
                      .s = s,
                      .input = sample_input,
                      .context = (void *)c->call};
}

static bool level_keeps(const definition *c, const keeps *level, int64_t j) {
  if (level->count == 0) return true;
  expr_point point = point_of(c, j, 0);
  for (int32_t k = 0; k < level->count; k++)
    if (expr_eval(level->keep[k].condition, &point, false).integer) return true;
  return false;
}

static bool selects_position(const branch *b, int64_t h, int64_t t) {
  if (b->phase_kind == PHASE_EACH) return true;
  int64_t s = b->segment;
  int64_t inside = s ? wrap_around(t, s) : t;
  return wrap_around(inside, b->dilation) == b->phase[h];
}

/* A row before position 0 lies in no segment. */
static bool definition_selects(const definition *c, const branch *b) {
  if (c->h < b->head_first || c->h > b->head_last) return false;
  return (c->t >= 0 || !b->segment) && selects_position(b, c->h, c->t);
}

bool definition_reaches(const definition *c, const branch *b, int64_t j) {
  if (c->h < b->head_first || c->h > b->head_last) return false;
  if (!selects_position(b, c->h, c->t) || !selects_position(b, c->h, j))
    return false;
  double s = (double)b->segment;
  if (s > 0 && floor((double)j / s) != floor((double)c->t / (double)s))
    return false;
  if (b->phase_kind == PHASE_EACH &&
      wrap_around(c->t - b->shift, b->dilation) != wrap_around(j, b->dilation))
    return false;
  if (b->causal && j > c->t) return false;
  if (b->left != DIL_ENDLESS && j - c->t < -b->left) return false;
  if (b->right != DIL_ENDLESS && j - c->t > b->right) return false;
  expr_point point = point_of(c, j, 0);
  for (int32_t k = 0; k < b->mask_count; k++)
    if (!expr_eval(b->mask[k], &point, false).integer) return false;
  return level_keeps(c, &b->keeps[0], j) && level_keeps(c, &b->keeps[1], j);
}

static double plain_score(const definition *c, const branch *b, int64_t j) {
  const pattern *p = c->p;
  int64_t n = c->t - c->M + c->call->q.shape[1];
  int64_t kv = c->h / (p->heads / p->kv_heads);
  long double sum = 0;
  for (int64_t d = 0; d < p->head_dim; d++)
    sum += (long double)sample_element(&c->call->q, c->b, n, c->h, d) *
           sample_element(&c->call->k, c->b, j, kv, d);
  double scale = p->scale_kind == SCALE_RUNTIME ? c->call->scale
                 : p->scale_kind == SCALE_FIXED ? p->scale
                                                : 1 / sqrt((double)p->head_dim);
  double s = (double)(scale * sum);
  for (int32_t k = 0; k < b->score_count; k++) {
    expr_point point = point_of(c, j, s);
    s = expr_eval(b->score[k], &point, true).real;
  }
  return s;
}

/* The random word of a row (side 0) or a key (side 1). */
static uint32_t side_word(const definition *c, int64_t at, uint32_t side) {
  uint32_t counter[4] = {(uint32_t)at, (uint32_t)c->h, (uint32_t)c->b, side};
  uint32_t key[2] = {(uint32_t)(c->call->seed & 0xFFFFFFFF),
                     (uint32_t)(c->call->seed >> 32)};
  uint32_t out[4];
  dil_philox(counter, key, out);
  return out[0];
}

static long double weight_survives(const definition *c, int64_t j) {
  if (!c->call->train || c->p->dropout == 0) return 1;
  uint64_t u = side_word(c, c->t, 0) ^ side_word(c, j, 1);
  u = u * 0x7feb352d % (UINT64_C(1) << 32);
  u = (u ^ u >> 15) * 0x846ca68b % (UINT64_C(1) << 32);
  bool dropped = u < (uint64_t)(c->p->dropout * 4294967296.0);
  return dropped ? 0 : 1 / (1 - (long double)c->p->dropout);
}

typedef struct listed {
  int64_t j; /* -1: a sink, which has no value */
  double score;
} listed;

static int list_sinks(const definition *c, expr *const *sink, int32_t count,
                      listed *to) {
  for (int32_t k = 0; k < count; k++) {
    expr_point point = point_of(c, 0, 0);
    value v = expr_eval(sink[k], &point, true);
    bool real = sink[k]->type == TYPE_F32;
    to[k] = (listed){-1, real ? v.real : (double)v.integer};
  }
  return count;
}

/* The keys of branches first..last, in `union` each key once, and the sinks of
 * the softmax over them. */
static int list_keys(const definition *c, int32_t first, int32_t last,
                     listed *to) {
  int count = list_sinks(c, c->p->sink, c->p->sink_count, to);
  for (int32_t k = first; k <= last; k++) {
    const branch *b = &c->p->branch[k];
    if (definition_selects(c, b))
      count += list_sinks(c, b->sink, b->sink_count, to + count);
  }
  for (int64_t j = 0; j < c->M; j++)
    for (int32_t k = first; k <= last; k++) {
      const branch *b = &c->p->branch[k];
      if (!definition_reaches(c, b, j)) continue;
      to[count++] = (listed){j, plain_score(c, b, j)};
      if (c->p->combine == DIL_COMBINE_UNION) break;
    }
  return count;
}

static long double attend(const definition *c, const listed *keys, int count,
                          long double *o) {
  const pattern *p = c->p;
  int64_t kv = c->h / (p->heads / p->kv_heads);
  long double most = -INFINITY, sum = 0;
  bool bad = false;
  for (int k = 0; k < count; k++) {
    bad = bad || isnan(keys[k].score) || keys[k].score == INFINITY;
    if (keys[k].score > most) most = keys[k].score;
  }
  for (int64_t d = 0; d < p->value_dim; d++) o[d] = bad ? NAN : 0;
  if (bad) return NAN;
  if (most == -INFINITY) return -INFINITY;
  for (int k = 0; k < count; k++) sum += expl(keys[k].score - most);
  for (int k = 0; k < count; k++) {
    if (keys[k].j < 0) continue;
    long double w =
        expl(keys[k].score - most) / sum * weight_survives(c, keys[k].j);
    for (int64_t d = 0; d < p->value_dim && w > 0; d++)
      o[d] += w * sample_element(&c->call->v, c->b, keys[k].j, kv, d);
  }
  return most + logl(sum);
}

long double definition_row(arena *a, const definition *c, long double *o) {
  const pattern *p = c->p;
  int64_t most = c->M * p->branch_count + p->sink_count + 1;
  for (int32_t k = 0; k < p->branch_count; k++) most += p->branch[k].sink_count;
  listed *keys = ARENA_ARRAY(a, listed, most);
  int32_t last = p->branch_count - 1;
  if (p->combine == DIL_COMBINE_SOFTMAX || p->combine == DIL_COMBINE_UNION)
    return attend(c, keys, list_keys(c, 0, last, keys), o);
  long double part[64], lse = NAN;
  int serving = 0;
  for (int64_t d = 0; d < p->value_dim; d++) o[d] = 0;
  for (int32_t k = 0; k <= last; k++) {
    const branch *b = &p->branch[k];
    if (b->head_first > c->h || c->h > b->head_last) continue;
    long double own = attend(c, keys, list_keys(c, k, k, keys), part);
    serving++, lse = own;
    for (int64_t d = 0; d < p->value_dim; d++)
      o[d] +=
          p->combine == DIL_COMBINE_MEAN ? part[d] / p->branch_count : part[d];
  }
  return serving == 1 ? lse : NAN;
}
