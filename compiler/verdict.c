/* verdict.c - compares a call's outputs with the oracle, row by row. In: a
 * binding after a run. Out: a verdict with the errors, their bounds, and the
 * worst place when they are exceeded. */
#include "verdict.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  double output, lse;
} bounds[DIL_DTYPE_COUNT] = {
    [DIL_F32] = {2e-6, 2e-5},
    [DIL_BF16] = {4e-3, 1e-4},
    [DIL_F16] = {1e-3, 1e-4},
};

/* On a GPU f32 is summed from tf32 products, three a product or, where the
 * pattern says so, one. */
static double output_bound(const binding *b) {
  bool cuda = b->options->device.word == DEVICE_CUDA;
  if (cuda && b->pattern->dtype == DIL_F32)
    return b->pattern->fast ? 2e-3 : 1e-5;
  return bounds[b->pattern->dtype].output;
}

typedef struct row_result {
  double difference, reference; /* sums of squares */
  double lse_error, score;
  bool torn; /* a NaN or infinity on one side only */
  bool nan;  /* a NaN on both */
  verdict_place worst, worst_lse;
} row_result;

typedef struct checker {
  const binding *binding;
  const verdict *verdict;
  row_result *row;
  progress *progress;
} checker;

/* What `number` is once stored: its class decides what must be met exactly. */
static double stored(dil_dtype dtype, double number) {
  switch (dtype) {
  case DIL_BF16:
    return dil_bf16_to_f32(dil_f32_to_bf16((float)number));
  case DIL_F16:
    return dil_f16_to_f32(dil_f32_to_f16((float)number));
  default:
    return (float)number;
  }
}

/* Both finite, or the same NaN or infinity. */
static bool same_class(double got, double want) {
  if (isfinite(got) || isfinite(want)) return isfinite(got) && isfinite(want);
  return isnan(got) == isnan(want) && (isnan(got) || got == want);
}

/* The first that tears, or else the farthest off. */
static void take_worst(verdict_place *worst, verdict_place place) {
  if (!same_class(worst->got, worst->want)) return;
  bool tears = !same_class(place.got, place.want);
  if (tears || fabs(place.got - place.want) >= fabs(worst->got - worst->want))
    *worst = place;
}

/* ---- scores -------------------------------------------------------------- */

static int64_t row_start(const dil_tensor *x, int64_t b, int64_t n, int64_t h) {
  return b * x->stride[0] + n * x->stride[1] + h * x->stride[2];
}

/* A row of q or k of a call whose tensors have no data. */
static void make_row(const dil_call *call, const dil_tensor *x, int64_t start,
                     int64_t count, float *to) {
  double made[DIL_HEAD_DIM_MAX];
  dil_normal_row(call, x, start, count, made);
  for (int64_t d = 0; d < count; d++) to[d] = (float)made[d];
}

static void read_row(const dil_call *call, const dil_tensor *x, int64_t start,
                     int64_t count, float *to) {
  const uint16_t *half = (const uint16_t *)x->data + start;
  if (!x->data) make_row(call, x, start, count, to);
  else if (x->dtype == DIL_F32)
    memcpy(to, (const float *)x->data + start, (size_t)count * sizeof *to);
  else if (x->dtype == DIL_BF16)
    for (int64_t d = 0; d < count; d++) to[d] = dil_bf16_to_f32(half[d]);
  else
    for (int64_t d = 0; d < count; d++) to[d] = dil_f16_to_f32(half[d]);
}

static double dot(const float *a, const float *b, int64_t count) {
  double sum[4] = {0};
  int64_t d = 0;
  for (; d + 4 <= count; d += 4)
    for (int64_t i = 0; i < 4; i++)
      sum[i] += (double)a[d + i] * (double)b[d + i];
  for (; d < count; d++) sum[0] += (double)a[d] * (double)b[d];
  return sum[0] + sum[1] + sum[2] + sum[3];
}

/* What the scores of a row ask of the bounds. */
typedef struct heights {
  double product; /* the largest finite |scale * q . k| */
  double top;     /* the largest score, all of them rewritten */
  double made;    /* the largest number on the way to it */
} heights;

static double finite_or(double number, double other) {
  return isfinite(number) ? number : other;
}

/* One key's scores, from scale * q . k to the last rewriting. What lies below
 * the top weighs nothing: a -1e9 in place of a mask forgives no error. */
static void take_key(heights *most, const branch *br, expr_point *point) {
  double made = finite_or(fabs(point->s), 0);
  most->product = fmax(most->product, made);
  for (int32_t i = 0; i < br->score_count; i++) {
    value v = expr_eval(br->score[i], point, true);
    point->s = br->score[i]->type == TYPE_F32 ? v.real : (double)v.integer;
    made = fmax(made, finite_or(fabs(point->s), 0));
  }
  if (!(finite_or(point->s, -INFINITY) > most->top)) return;
  most->top = point->s;
  most->made = made;
}

static void take_branch(heights *most, const binding *b, int32_t index,
                        verdict_place at, const float *q) {
  const pattern *p = b->pattern;
  const branch *br = &p->branch[index];
  expr_point point = binding_point(b, at.b);
  int64_t M = point.M, t = at.n + M - point.N;
  int64_t low = br->segment ? floor_div(t, br->segment) * br->segment : 0;
  int64_t high = br->segment && low + br->segment < M ? low + br->segment : M;
  double scale = p->scale_kind == SCALE_RUNTIME ? b->call.scale : p->scale;
  float key[DIL_HEAD_DIM_MAX];
  for (int64_t j = low < 0 ? high : low; j < high; j++) {
    if (!pattern_reaches(p, index, at.h, t, j, &point)) continue;
    int64_t kv = at.h / (p->heads / p->kv_heads);
    read_row(&b->call, &b->call.k, row_start(&b->call.k, at.b, j, kv),
             p->head_dim, key);
    point.h = (int32_t)at.h;
    point.i = (int32_t)t;
    point.j = (int32_t)j;
    point.s = scale * dot(q, key, p->head_dim);
    take_key(most, br, &point);
  }
}

/* The largest finite |scale * q . k| over the keys that the row sees, or what
 * its softmax's largest score went through, if that is more. */
static double largest_score(const binding *b, verdict_place at) {
  const pattern *p = b->pattern;
  bool apart = p->combine == DIL_COMBINE_MEAN || p->combine == DIL_COMBINE_SUM;
  float q[DIL_HEAD_DIM_MAX];
  read_row(&b->call, &b->call.q, row_start(&b->call.q, at.b, at.n, at.h),
           p->head_dim, q);
  heights most = {0, -INFINITY, 0};
  double largest = 0;
  for (int32_t i = 0; i < p->branch_count; i++) {
    if (at.h < p->branch[i].head_first || at.h > p->branch[i].head_last)
      continue;
    if (apart) most = (heights){0, -INFINITY, 0};
    take_branch(&most, b, i, at, q);
    if (apart) largest = fmax(largest, fmax(most.product, most.made));
  }
  return fmax(largest, fmax(most.product, most.made));
}

/* ---- rows ---------------------------------------------------------------- */

static int64_t total_rows(const binding *b) {
  return b->size[BIND_B] * b->size[BIND_N] * b->pattern->heads;
}

verdict_place verdict_row(const binding *b, int64_t rows, int64_t index) {
  int64_t row = index, total = total_rows(b);
  if (rows < total) {
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), 0, 0};
    uint32_t key[2] = {0x64696C, 0}, out[4];
    dil_philox(counter, key, out);
    double stretch = (double)total / (double)rows;
    row = (int64_t)(((double)index + out[0] * 0x1p-32) * stretch);
    if (row >= total) row = total - 1;
  }
  int64_t heads = b->pattern->heads, N = b->size[BIND_N];
  return (verdict_place){
      .b = row / heads / N, .n = row / heads % N, .h = row % heads};
}

static void compare_output(const binding *b, verdict_place at,
                           const double *want, row_result *r) {
  const dil_tensor *o = &b->call.o;
  int64_t base = row_start(o, at.b, at.n, at.h);
  for (at.d = 0; at.d < b->pattern->value_dim; at.d++) {
    at.got = dil_element_read(o->data, o->dtype, base + at.d);
    at.want = want[at.d];
    if (!same_class(at.got, stored(b->pattern->dtype, at.want)))
      r->torn = true;
    else if (isfinite(at.got)) {
      r->difference += (at.got - at.want) * (at.got - at.want);
      r->reference += at.want * at.want;
    } else {
      r->nan |= isnan(at.got);
      continue;
    }
    take_worst(&r->worst, at);
  }
}

static void compare_lse(const binding *b, verdict_place at, double want,
                        row_result *r) {
  const dil_tensor *lse = &b->call.lse;
  if (!lse->data) return;
  at.d = -1;
  at.want = want;
  at.got =
      ((const float *)
           lse->data)[at.b * lse->stride[0] + at.h * lse->stride[1] + at.n];
  if (!same_class(at.got, stored(DIL_F32, want)))
    r->torn = true;
  else if (isfinite(want))
    r->lse_error = fabs(at.got - want);
  else {
    r->nan |= isnan(want);
    return;
  }
  take_worst(&r->worst_lse, at);
}

static void check_row(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const checker *c = context;
  verdict_place at = verdict_row(c->binding, c->verdict->rows, index);
  double output[DIL_HEAD_DIM_MAX], lse;
  oracle_row(c->binding->pattern, &c->binding->call, at.b, at.n, at.h, output,
             &lse);
  row_result *r = &c->row[index];
  compare_output(c->binding, at, output, r);
  compare_lse(c->binding, at, lse, r);
  r->score = largest_score(c->binding, at);
  progress_add(c->progress, 1);
}

/* ---- the verdict --------------------------------------------------------- */

/* Measured seconds of a check: for a pair looked at, for a pair kept, and for
 * each element of it read and multiplied. */
#define LOOK_SECONDS    12e-9
#define PAIR_SECONDS    30e-9
#define ELEMENT_SECONDS 0.7e-9
#define NORMAL_SECONDS  50e-9 /* an element that has to be made */

static double look_count(const binding *b) {
  double rows = (double)b->size[BIND_B] * (double)b->size[BIND_N], looks = 0;
  for (int32_t i = 0; i < b->pattern->branch_count; i++) {
    const branch *br = &b->pattern->branch[i];
    int64_t segment = br->segment ? br->segment : b->size[BIND_M];
    if (segment > b->size[BIND_M]) segment = b->size[BIND_M];
    looks += rows * (double)segment * (br->head_last - br->head_first + 1);
  }
  return looks;
}

int64_t verdict_rows(const binding *b, double pairs, double budget) {
  const pattern *p = b->pattern;
  bool made = bind_has_rows(b);
  int64_t total = total_rows(b), least = made ? 64 : 1000;
  double elements = (double)(2 * p->head_dim + p->value_dim);
  double each = made ? ELEMENT_SECONDS : NORMAL_SECONDS;
  double seconds = look_count(b) * LOOK_SECONDS +
                   pairs * (PAIR_SECONDS + elements * each);
  if (seconds <= budget) return total;
  int64_t rows = (int64_t)((double)total * budget / seconds);
  return rows < least ? (total < least ? total : least) : rows;
}

static void sum_rows(const binding *b, const checker *c, verdict *v) {
  double difference = 0, reference = 0;
  bool torn = false;
  const row_result *worst = c->row, *worst_lse = c->row;
  for (int64_t i = 0; i < v->rows; i++) {
    const row_result *r = &c->row[i];
    difference += r->difference;
    reference += r->reference;
    v->lse_error = fmax(v->lse_error, r->lse_error);
    v->largest_score = fmax(v->largest_score, r->score);
    v->nan_rows += r->nan;
    if (r->torn && !torn) worst = worst_lse = r;
    torn |= r->torn;
    if (torn) continue;
    if (r->difference > worst->difference) worst = r;
    if (r->lse_error > worst_lse->lse_error) worst_lse = r;
  }
  double factor = fmax(1, v->largest_score / 16);
  v->bound = output_bound(b) * factor;
  v->lse_bound = bounds[b->pattern->dtype].lse * factor;
  v->rel_error = difference > 0 ? sqrt(difference / reference) : 0;
  bool output_good = v->rel_error <= v->bound;
  v->good = !torn && output_good && v->lse_error <= v->lse_bound;
  bool lse_place =
      torn ? same_class(worst->worst.got, worst->worst.want) : output_good;
  v->worst = lse_place ? worst_lse->worst_lse : worst->worst;
  if (!b->call.lse.data) v->lse_error = NAN;
}

/* Outputs that still lie where they were computed. */
static dil_status bring_rows(const checker *c) {
  const binding *b = c->binding;
  dil_status status = DIL_OK;
  for (int64_t i = 0; b->bring && i < c->verdict->rows && !status; i++) {
    verdict_place at = verdict_row(b, c->verdict->rows, i);
    status = b->bring(b->owner, at.b, at.n, at.h);
  }
  return status;
}

dil_status verdict_make(const binding *b, double pairs, double budget,
                        verdict *v) {
  *v = (verdict){.total = total_rows(b), .good = true};
  v->rows = verdict_rows(b, pairs, budget);
  if (v->rows == 0) return DIL_OK;
  progress bar;
  checker c = {b, v, calloc((size_t)v->rows, sizeof(row_result)), &bar};
  if (!c.row) return dil_fail(DIL_MEMORY, "no memory to check the result");
  dil_status status = bring_rows(&c);
  progress_start(&bar, "checking", v->rows);
  if (!status) status = dil_threads_run(b->threads, v->rows, check_row, &c);
  progress_end(&bar);
  if (!status) sum_rows(b, &c, v);
  free(c.row);
  return status;
}

static void print_place(const verdict_place *at, FILE *out) {
  fprintf(out, "  %s at batch row %lld, query %lld, head %lld",
          at->d < 0 ? "lse" : "output", (long long)at->b, (long long)at->n,
          (long long)at->h);
  if (at->d >= 0) fprintf(out, ", element %lld", (long long)at->d);
  fprintf(out, ": got %.9g, the oracle has %.9g\n", at->got, at->want);
}

void verdict_print(const verdict *v, FILE *out) {
  fprintf(out, "%-8s%lld of %lld rows compared", v->good ? "good" : "BAD",
          (long long)v->rows, (long long)v->total);
  if (v->nan_rows)
    fprintf(out, ", %lld of them NaN in both", (long long)v->nan_rows);
  fprintf(out, "; output error %.2g (at most %.2g)", v->rel_error, v->bound);
  if (!isnan(v->lse_error))
    fprintf(out, ", lse %.2g (at most %.2g)", v->lse_error, v->lse_bound);
  fputc('\n', out);
  if (!v->good) print_place(&v->worst, out);
}
