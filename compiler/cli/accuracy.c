/* accuracy.c - compares a call's outputs with the oracle, row by row. In: a
 * call setup after a run. Out: the errors of o and lse, their bounds, and the
 * worst place when they are exceeded.
 *
 * The bounds are those of the storage type. Only where they are exceeded is it
 * asked how much the rounding of scores explains (rounding.c). */
#include "accuracy.h"
#include "rounding.h"
#include "compiler/oracle/oracle.h"
#include "runtime/base/documents.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"
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
double accuracy_bound(const call_setup *b) {
  bool cuda = b->options->device.word == DEVICE_CUDA;
  if (cuda && b->pattern->dtype == DIL_F32)
    return b->pattern->fast ? 2e-3 : 1e-5;
  return bounds[b->pattern->dtype].output;
}

typedef struct row_result {
  accuracy_sum output;
  double lse_error;
  rounding explained; /* by the rounding of the row's scores */
  bool torn, nan;     /* the lse, as in accuracy_sum */
  accuracy_element worst_lse;
} row_result;

typedef struct accuracy_work {
  const call_setup *setup;
  const accuracy *accuracy;
  row_result *row;
  progress *progress;
} accuracy_work;

/* The value of `number` once it is stored: its class decides whether a result
 * must equal it. */
static double stored_number(dil_dtype dtype, double number) {
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
static void take_worst(accuracy_element *worst, accuracy_element place) {
  if (!same_class(worst->got, worst->want)) return;
  bool tears = !same_class(place.got, place.want);
  if (tears || fabs(place.got - place.want) >= fabs(worst->got - worst->want))
    *worst = place;
}

/* ---- rows ---------------------------------------------------------------- */

static int64_t total_rows(const call_setup *b) {
  return b->size[CALL_B] * b->size[CALL_N] * b->pattern->heads;
}

int64_t accuracy_sample(int64_t total, int64_t count, int64_t index) {
  if (count >= total) return index;
  uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), 0, 0};
  uint32_t key[2] = {0x64696C, 0}, out[4];
  dil_philox(counter, key, out);
  double stretch = (double)total / (double)count;
  int64_t chosen = (int64_t)(((double)index + out[0] * 0x1p-32) * stretch);
  return chosen < total ? chosen : total - 1;
}

accuracy_element accuracy_row(const call_setup *b, int64_t rows,
                              int64_t index) {
  int64_t row = accuracy_sample(total_rows(b), rows, index);
  int64_t heads = b->pattern->heads, N = b->size[CALL_N];
  return (accuracy_element){
      .b = row / heads / N, .n = row / heads % N, .h = row % heads};
}

static int64_t accuracy_row_start(const dil_tensor *x, int64_t b, int64_t n,
                                  int64_t h) {
  return b * x->stride[0] + n * x->stride[1] + h * x->stride[2];
}

void accuracy_compare(const dil_tensor *x, accuracy_element at,
                      const double *want, accuracy_sum *r) {
  int64_t base = accuracy_row_start(x, at.b, at.n, at.h);
  for (at.d = 0; at.d < x->shape[3]; at.d++) {
    at.got = dil_element_read(x->data, x->dtype, base + at.d);
    at.want = want[at.d];
    if (!same_class(at.got, stored_number(x->dtype, at.want)))
      r->torn = true;
    else if (isfinite(at.got)) {
      double off = rounding_beyond_storage(x->dtype, at.got, at.want);
      r->difference += off * off;
      r->reference += at.want * at.want;
    } else {
      r->nan |= isnan(at.got);
      continue;
    }
    take_worst(&r->worst, at);
  }
}

static void compare_lse(const call_setup *b, accuracy_element at, double want,
                        row_result *r) {
  const dil_tensor *lse = &b->call.lse;
  if (!lse->data) return;
  at.d = -1;
  at.want = want;
  at.got =
      ((const float *)
           lse->data)[at.b * lse->stride[0] + at.h * lse->stride[1] + at.n];
  if (!same_class(at.got, stored_number(DIL_F32, want)))
    r->torn = true;
  else if (isfinite(want))
    r->lse_error = fabs(at.got - want);
  else {
    r->nan |= isnan(want);
    return;
  }
  take_worst(&r->worst_lse, at);
}

static void compare_row(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const accuracy_work *c = context;
  accuracy_element at = accuracy_row(c->setup, c->accuracy->rows, index);
  double output[DIL_HEAD_DIM_MAX], lse;
  oracle_row(c->setup->pattern, &c->setup->call, at.b, at.n, at.h, output,
             &lse);
  row_result *r = &c->row[index];
  accuracy_compare(&c->setup->call.o, at, output, &r->output);
  compare_lse(c->setup, at, lse, r);
  progress_add(c->progress, 1);
}

static void explain_row(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const accuracy_work *c = context;
  const call_setup *b = c->setup;
  bool gpu = b->options->device.word == DEVICE_CUDA;
  accuracy_element at = accuracy_row(b, c->accuracy->rows, index);
  dil_call call = b->call;
  int64_t number = at.b, n = at.n;
  bool packed = documents_given(&call);
  if (packed && !call_packed_row(b, at.n, &call, &number)) return;
  if (packed) {
    n -= b->call.packed.queries[number];
    call.q.stride[0] = call.k.stride[0] = call.v.stride[0] = 0;
  }
  expr_point point = call_setup_point(b, number);
  c->row[index].explained = rounding_of_row(
      b->pattern, &call, &point, n, at.h, dot_error_of(b->pattern, gpu));
  progress_add(c->progress, 1);
}

/* ---- the comparison ------------------------------------------------------ */

/* Measured seconds of a check: for a pair kept, and for each element of it read
 * and multiplied. */
#define PAIR_SECONDS    30e-9
#define ELEMENT_SECONDS 0.7e-9
#define NORMAL_SECONDS  50e-9 /* an element that has to be made */

double accuracy_looks(const call_setup *b) {
  double rows = (double)b->size[CALL_B] * (double)b->size[CALL_N], looks = 0;
  for (int32_t i = 0; i < b->pattern->branch_count; i++) {
    const branch *br = &b->pattern->branch[i];
    int64_t segment = br->segment ? br->segment : b->size[CALL_M];
    if (segment > b->size[CALL_M]) segment = b->size[CALL_M];
    looks += rows * (double)segment * (br->head_last - br->head_first + 1);
  }
  return looks;
}

int64_t accuracy_rows(const call_setup *b, double pairs, double budget) {
  const pattern *p = b->pattern;
  bool made = call_has_rows(b);
  int64_t total = total_rows(b), least = made ? 64 : 1000;
  double elements = (double)(p->head_dim + p->value_dim);
  double each = made ? ELEMENT_SECONDS : NORMAL_SECONDS;
  double seconds = accuracy_looks(b) * ACCURACY_LOOK_SECONDS +
                   pairs * (PAIR_SECONDS + elements * each);
  if (seconds <= budget) return total;
  int64_t rows = (int64_t)((double)total * budget / seconds);
  return rows < least ? (total < least ? total : least) : rows;
}

/* The error that the rounding of the row's own scores does not explain. */
static double row_unexplained(const row_result *r) {
  return fmax(0, sqrt(r->output.difference) - r->explained.output);
}
static double unexplained_lse(const row_result *r) {
  return r->lse_error - r->explained.lse;
}

/* Errors of all rows, and the rows that are farthest off: for the output, and
 * for the lse. False: a row is torn, and both are the first such row. */
static bool find_worst(const accuracy_work *c, const row_result **worst,
                       const row_result **worst_lse) {
  *worst = *worst_lse = c->row;
  for (int64_t i = 0; i < c->accuracy->rows; i++) {
    const row_result *r = &c->row[i];
    if (r->torn || r->output.torn) {
      *worst = *worst_lse = r;
      return false;
    }
    if (row_unexplained(r) > row_unexplained(*worst)) *worst = r;
    if (unexplained_lse(r) > unexplained_lse(*worst_lse)) *worst_lse = r;
  }
  return true;
}

/* The relative L2 norms of all rows' errors: whole, and unexplained. */
static void sum_rows(const accuracy_work *c, accuracy *v) {
  double difference = 0, reference = 0, beyond = 0;
  v->nan_rows = 0;
  for (int64_t i = 0; i < v->rows; i++) {
    const row_result *r = &c->row[i];
    difference += r->output.difference;
    reference += r->output.reference;
    beyond += row_unexplained(r) * row_unexplained(r);
    v->nan_rows += r->nan || r->output.nan;
  }
  v->rel_error = difference > 0 ? sqrt(difference / reference) : 0;
  v->unexplained = beyond > 0 ? sqrt(beyond / reference) : 0;
}

static void decide_accuracy(const accuracy_work *c, accuracy *v) {
  const call_setup *b = c->setup;
  const row_result *worst, *worst_lse;
  bool whole = find_worst(c, &worst, &worst_lse);
  sum_rows(c, v);
  v->lse_error = worst_lse->lse_error;
  v->lse_bound = bounds[b->pattern->dtype].lse + worst_lse->explained.lse;
  v->bound = accuracy_bound(b);
  bool output_good = v->unexplained <= v->bound &&
                     v->rel_error <= fmax(v->bound, ACCURACY_EXPLAINED);
  v->torn = !whole;
  v->good = whole && output_good && v->lse_error <= v->lse_bound;
  bool lse_place =
      whole ? output_good
            : same_class(worst->output.worst.got, worst->output.worst.want);
  v->worst = lse_place ? worst_lse->worst_lse : worst->output.worst;
  if (!b->call.lse.data) v->lse_error = NAN;
}

/* Outputs that still lie where they were computed. */
static dil_status bring_rows(const accuracy_work *c) {
  const call_setup *b = c->setup;
  dil_status status = DIL_OK;
  for (int64_t i = 0; b->bring && i < c->accuracy->rows && !status; i++) {
    accuracy_element at = accuracy_row(b, c->accuracy->rows, i);
    status = b->bring(b->owner, at.b, at.n, at.h);
  }
  return status;
}

static dil_status each_row(accuracy_work *c, const char *what,
                           void (*work)(void *, int64_t, int32_t)) {
  progress bar;
  c->progress = &bar;
  progress_start(&bar, what, c->accuracy->rows, 1);
  dil_status status =
      dil_threads_run(c->setup->threads, c->accuracy->rows, work, c);
  progress_end(&bar);
  return status;
}

dil_status accuracy_check(const call_setup *b, double pairs, double budget,
                          accuracy *v) {
  *v = (accuracy){.total = total_rows(b), .good = true};
  v->rows = accuracy_rows(b, pairs, budget);
  dil_status status = choice_accuracy_check(b->pattern, &b->call, budget,
                                            &v->chosen);
  if (status || v->rows == 0) return status;
  accuracy_work c = {b, v, calloc((size_t)v->rows, sizeof(row_result)), NULL};
  if (!c.row) return dil_fail(DIL_MEMORY, "no memory to check the result");
  status = bring_rows(&c);
  if (!status) status = each_row(&c, "checking", compare_row);
  if (!status) decide_accuracy(&c, v);
  if (!status && !v->good && !v->torn) {
    status = each_row(&c, "judging", explain_row);
    if (!status) decide_accuracy(&c, v);
  }
  free(c.row);
  return status;
}

bool accuracy_is_good(const accuracy *v) {
  return v->good && (!v->chosen.total || v->chosen.good);
}

static void print_element(const accuracy_element *at, FILE *out) {
  fprintf(out, "  %s at batch row %lld, query %lld, head %lld",
          at->d < 0 ? "lse" : "output", (long long)at->b, (long long)at->n,
          (long long)at->h);
  if (at->d >= 0) fprintf(out, ", element %lld", (long long)at->d);
  fprintf(out, ": got %.9g, the oracle has %.9g\n", at->got, at->want);
}

void accuracy_print(const accuracy *v, FILE *out) {
  fprintf(out, "%-8s%lld of %lld rows compared", v->good ? "good" : "BAD",
          (long long)v->rows, (long long)v->total);
  if (v->nan_rows)
    fprintf(out, ", %lld of them NaN in both", (long long)v->nan_rows);
  fprintf(out, "; output error %.2g", v->rel_error);
  if (v->unexplained < v->rel_error && v->rel_error > v->bound)
    fprintf(out, ", %.2g beyond the rounding of scores", v->unexplained);
  fprintf(out, " (at most %.2g)", v->bound);
  if (!isnan(v->lse_error))
    fprintf(out, ", lse %.2g (at most %.2g)", v->lse_error, v->lse_bound);
  fputc('\n', out);
  if (!v->good) print_element(&v->worst, out);
  choice_accuracy_print(&v->chosen, out);
}
