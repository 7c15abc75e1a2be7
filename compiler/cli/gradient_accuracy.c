/* gradient_accuracy.c - compares a call's gradients with the oracle. In: a call
 * after a run both ways, whose o and lse are checked. Out: the errors of dq, dk
 * and dv on sampled rows, of the gradients of inputs in all elements, and their
 * bounds.
 *
 * The bound of rows is that of the storage type, as for o. The terms of a
 * gradient cancel more than those of an output do: where the bound is exceeded,
 * it is asked what the rounding of each pair explains (rounding_of_pair), with
 * a sign of its own for each. An input's gradient sums so many pairs that its
 * own size says nothing, and is always judged by its pairs. */
#include "gradient_accuracy.h"
#include "rounding.h"
#include "compiler/oracle/oracle.h"
#include "runtime/base/status.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct gradient_work {
  const call_setup *setup;
  const dil_backward_call *call;
  oracle_forward forward;
  pair_rounding rounds;
  bool judging;
  int64_t rows, total; /* of the rows under way */
  struct row_errors *row;
  double *sums, *squares; /* of inputs, [workers][elements] */
  oracle_shared *shared;  /* beside the squares */
  int64_t elements;
  progress *progress;
} gradient_work;

/* As of outputs; but in f32 the rounding of scores counts, too: gradients take
 * P as it is, where an output is divided by the sum of P. */
static double gradient_bound(const call_setup *b) {
  return accuracy_bound(b) * (b->pattern->dtype == DIL_F32 ? 2 : 1);
}

static oracle_scatter scatter_of(const gradient_work *w) {
  return (oracle_scatter){.judge = rounding_of_pair, .context = &w->rounds};
}

/* ---- rows of dq, dk and dv ------------------------------------------------
 */

/* A row of one or two gradients, what rounding explains of it, and the square of
 * what rounding makes of a row of 0. */
typedef struct row_errors {
  accuracy_sum sum[2];
  double explained[2], noise[2];
} row_errors;

/* The row of a tensor [B, N, H, D] with that number. */
static accuracy_element element_place(const gradient_work *w,
                                      const dil_tensor *x, int64_t index) {
  int64_t row = accuracy_sample(w->total, w->rows, index);
  int64_t heads = x->shape[2], N = x->shape[1];
  return (accuracy_element){
      .b = row / heads / N, .n = row / heads % N, .h = row % heads};
}

static void compare_query(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const gradient_work *w = context;
  double dq[DIL_HEAD_DIM_MAX];
  oracle_scatter scatter = scatter_of(w);
  accuracy_element at = element_place(w, &w->call->dq, index);
  const int64_t place[3] = {at.b, at.n, at.h};
  row_errors *r = &w->row[index];
  *r = (row_errors){0};
  oracle_gradient_query(w->setup->pattern, w->call, w->forward, place, dq,
                        w->judging ? &scatter : NULL);
  accuracy_compare(&w->call->dq, at, dq, &r->sum[0]);
  r->explained[0] = sqrt(scatter.dq);
  r->noise[0] = scatter.dq_noise;
  progress_add(w->progress, 1);
}

static void compare_key(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const gradient_work *w = context;
  double dk[DIL_HEAD_DIM_MAX], dv[DIL_HEAD_DIM_MAX];
  oracle_scatter scatter = scatter_of(w);
  accuracy_element at = element_place(w, &w->call->dk, index);
  const int64_t place[3] = {at.b, at.n, at.h};
  row_errors *r = &w->row[index];
  *r = (row_errors){0};
  oracle_gradient_key(w->setup->pattern, w->call, w->forward, place, dk, dv,
                      w->judging ? &scatter : NULL);
  accuracy_compare(&w->call->dk, at, dk, &r->sum[0]);
  accuracy_compare(&w->call->dv, at, dv, &r->sum[1]);
  r->explained[0] = sqrt(scatter.dk);
  r->explained[1] = sqrt(scatter.dv);
  r->noise[0] = scatter.dk_noise;
  progress_add(w->progress, 1);
}

static dil_status work_on_each(gradient_work *w, const char *what,
                               int64_t count,
                               void (*work)(void *, int64_t, int32_t)) {
  progress bar;
  w->progress = &bar;
  progress_start(&bar, what, count, 1);
  dil_status status = dil_threads_run(w->setup->threads, count, work, w);
  progress_end(&bar);
  return status;
}

/* No error is a share of a gradient that is 0 but for rounding. A gradient below
 * this share of what rounding explains is the oracle's own rounding; one within
 * the noise may all come from the run's o, which f32 has rounded and the oracle
 * takes. */
static const double NOTHING = 1e-6;

static void decide_rows(const gradient_work *w, int32_t part,
                        gradient_error *e) {
  double difference = 0, reference = 0, explained = 0, noise = 0;
  double beyond = 0, farthest = -1;
  e->torn = false;
  for (int64_t i = 0; i < w->rows && !e->torn; i++) {
    const accuracy_sum *sum = &w->row[i].sum[part];
    double rest = sqrt(sum->difference) - w->row[i].explained[part];
    e->torn = sum->torn;
    if (e->torn || rest > farthest) e->worst = sum->worst;
    farthest = fmax(farthest, rest);
    difference += sum->difference;
    reference += sum->reference;
    explained += w->row[i].explained[part] * w->row[i].explained[part];
    noise += w->row[i].noise[part];
    beyond += rest > 0 ? rest * rest : 0;
  }
  e->unexplained = beyond > 0 ? sqrt(beyond / reference) : 0;
  bool zero = reference <= fmax(NOTHING * NOTHING * explained, noise);
  if (zero) e->rel_error = e->unexplained;
  else e->rel_error = difference > 0 ? sqrt(difference / reference) : 0;
  e->bound = gradient_bound(w->setup);
  e->good = !e->torn && e->unexplained <= e->bound &&
            e->rel_error <= fmax(e->bound, ACCURACY_EXPLAINED);
}

/* One or two gradients of the same rows. */
typedef struct row_check {
  int64_t rows, total;
  void (*compare)(void *work, int64_t index, int32_t worker);
  gradient_error *error;
  int32_t parts;
} row_check;

static bool decide_parts(gradient_work *w, const row_check *c) {
  bool settled = true;
  for (int32_t i = 0; i < c->parts; i++) {
    decide_rows(w, i, &c->error[i]);
    settled &= c->error[i].good || c->error[i].torn;
  }
  return settled;
}

static dil_status check_rows(gradient_work *w, const row_check *c) {
  for (int32_t i = 0; i < c->parts; i++) {
    c->error[i].rows = c->rows;
    c->error[i].total = c->total;
    c->error[i].good = true;
  }
  if (c->rows == 0) return DIL_OK;
  w->rows = c->rows;
  w->total = c->total;
  w->judging = false;
  w->row = calloc((size_t)c->rows, sizeof *w->row);
  if (!w->row) return dil_fail(DIL_MEMORY, "no memory to check the gradients");
  dil_status status = work_on_each(w, "checking", c->rows, c->compare);
  if (!status && !decide_parts(w, c)) {
    w->judging = true;
    status = work_on_each(w, "judging", c->rows, c->compare);
    if (!status) decide_parts(w, c);
  }
  free(w->row);
  return status;
}

/* ---- inputs ---------------------------------------------------------------
 */

static int64_t input_elements(const pattern *p, const dil_backward_call *call) {
  int64_t sum = 0;
  for (int32_t i = 0; i < p->input_count; i++)
    if (p->input[i].gradient) sum += dil_tensor_count(&call->inputs[i]);
  return sum;
}

/* The parts of `array` that belong to each input. */
static void split_inputs(const gradient_work *w, double *array,
                         double *inputs[DIL_INPUT_MAX]) {
  const pattern *p = w->setup->pattern;
  for (int32_t i = 0; i < DIL_INPUT_MAX; i++) {
    bool wanted = i < p->input_count && p->input[i].gradient;
    inputs[i] = wanted ? array : NULL;
    if (wanted) array += dil_tensor_count(&w->call->inputs[i]);
  }
}

static void add_row_inputs(void *context, int64_t index, int32_t worker) {
  const gradient_work *w = context;
  int64_t heads = w->setup->pattern->heads, N = w->setup->size[CALL_N];
  const int64_t at[3] = {index / heads / N, index / heads % N, index % heads};
  double *inputs[DIL_INPUT_MAX];
  oracle_scatter scatter = scatter_of(w);
  split_inputs(w, w->sums + worker * w->elements, inputs);
  split_inputs(w, w->squares + worker * w->elements, scatter.inputs);
  for (int32_t i = 0; i < DIL_INPUT_MAX; i++)
    if (scatter.inputs[i])
      scatter.shared[i] = w->shared + (scatter.inputs[i] - w->squares);
  oracle_gradient_inputs(w->setup->pattern, w->call, w->forward, at, inputs,
                         &scatter);
  progress_add(w->progress, 1);
}

static void add_workers(const gradient_work *w, int32_t workers) {
  for (int32_t i = 1; i < workers; i++)
    for (int64_t e = 0; e < w->elements; e++) {
      w->sums[e] += w->sums[i * w->elements + e];
      w->squares[e] += w->squares[i * w->elements + e];
    }
}

/* Returns an element's error as a part of its bound: 1 is just at the bound. */
static double bound_nearness(const gradient_error *e) {
  return e->bound > 0 ? e->difference / e->bound : e->difference > 0 ? 2 : 0;
}

static void decide_input(const dil_tensor *x, const double *want,
                         const double *square, gradient_error *e) {
  e->good = true;
  for (int64_t n = 0; n < e->total; n++) {
    double got = dil_element_read(x->data, x->dtype, n);
    gradient_error one = *e;
    one.worst = (accuracy_element){.n = n, .got = got, .want = want[n]};
    one.torn = isfinite(got) != isfinite(want[n]);
    one.difference = isfinite(got) && !one.torn ? fabs(got - want[n]) : 0;
    one.bound = 2 * rounding_unit[x->dtype] * fabs(want[n]) + sqrt(square[n]);
    if (one.torn || one.difference > one.bound) one.good = false;
    if (one.torn || bound_nearness(&one) > bound_nearness(e)) *e = one;
    if (e->torn) return;
  }
}

static void decide_inputs(const gradient_work *w, gradient_accuracy *v) {
  const pattern *p = w->setup->pattern;
  double *want[DIL_INPUT_MAX], *squares[DIL_INPUT_MAX];
  split_inputs(w, w->sums, want);
  split_inputs(w, w->squares, squares);
  int32_t at = 3;
  for (int32_t i = 0; i < p->input_count; i++)
    if (p->input[i].gradient) {
      gradient_error *e = &v->error[at++];
      e->rows = e->total;
      decide_input(&w->call->inputs[i], want[i], squares[i], e);
    }
}

static dil_status check_input_gradients(gradient_work *w,
                                        gradient_accuracy *v) {
  int32_t workers = dil_threads_count(w->setup->threads);
  const int64_t *size = w->setup->size;
  int64_t rows = size[CALL_B] * size[CALL_N] * w->setup->pattern->heads;
  size_t count = (size_t)(workers * w->elements);
  w->judging = w->rounds.inputs = true;
  w->sums = calloc(count + 1, sizeof *w->sums);
  w->squares = calloc(count + 1, sizeof *w->squares);
  dil_status status = DIL_OK;
  w->shared = calloc(count + 1, sizeof *w->shared);
  if (!w->sums || !w->squares || !w->shared)
    status = dil_fail(DIL_MEMORY, "no memory to check the gradients");
  if (!status)
    status = work_on_each(w, "checking inputs", rows, add_row_inputs);
  if (!status) {
    add_workers(w, workers);
    decide_inputs(w, v);
  }
  free(w->sums);
  free(w->squares);
  free(w->shared);
  return status;
}

/* ---- how much is checked --------------------------------------------------
 */

/* Measured seconds: for a pair of weight above 0, each of its elements, and a
 * row that a key asks whether it sees it. */
#define PAIR_SECONDS    250e-9
#define ELEMENT_SECONDS 1.5e-9
#define ROW_SECONDS     400e-9
/* The sums of inputs may take this many times the budget. */
#define INPUT_PATIENCE 20

static double whole_seconds(const call_setup *b, double pairs) {
  double elements = (double)(b->pattern->head_dim + b->pattern->value_dim);
  return accuracy_looks(b) * ACCURACY_LOOK_SECONDS +
         pairs * (PAIR_SECONDS + elements * ELEMENT_SECONDS);
}

/* Softmaxes of a branch are computed anew for each row that a key meets. */
static double key_seconds(const gradient_work *w, double pairs) {
  const call_setup *b = w->setup;
  const pattern *p = b->pattern;
  double keys = (double)(b->size[CALL_B] * b->size[CALL_M] * p->kv_heads);
  double rows = (double)(b->size[CALL_N] * (p->heads / p->kv_heads));
  double whole = whole_seconds(b, pairs);
  bool again = w->forward == ORACLE_DEFINED || p->detached;
  double softmaxes = again ? whole * (double)b->size[CALL_N] / 4 : 0;
  return keys > 0 ? rows * ROW_SECONDS + (whole + softmaxes) / keys : 0;
}

static int64_t rows_within(int64_t total, double each, double budget) {
  enum { LEAST = 16 };
  if ((double)total * each <= budget) return total;
  int64_t rows = (int64_t)(budget / each);
  return rows < LEAST ? (total < LEAST ? total : LEAST) : rows;
}

static row_check check_queries(const gradient_work *w, double pairs,
                               double budget, gradient_accuracy *v) {
  const call_setup *b = w->setup;
  int64_t total = b->size[CALL_B] * b->size[CALL_N] * b->pattern->heads;
  double whole = whole_seconds(b, pairs);
  double each_row = total ? whole / (double)total : 0;
  return (row_check){rows_within(total, each_row, budget), total, compare_query,
                     &v->error[0], 1};
}

static row_check check_keys(const gradient_work *w, double pairs, double budget,
                            gradient_accuracy *v) {
  const call_setup *b = w->setup;
  int64_t total = b->size[CALL_B] * b->size[CALL_M] * b->pattern->kv_heads;
  return (row_check){rows_within(total, key_seconds(w, pairs), budget), total,
                     compare_key, &v->error[1], 2};
}

/* ---- all of it ------------------------------------------------------------
 */

static void name_errors(const pattern *p, const dil_backward_call *call,
                        gradient_accuracy *v) {
  static const char *const names[] = {"dq", "dk", "dv"};
  for (v->count = 0; v->count < 3; v->count++)
    v->error[v->count].name = names[v->count];
  for (int32_t i = 0; i < p->input_count; i++)
    if (p->input[i].gradient)
      v->error[v->count++] =
          (gradient_error){.name = p->input[i].name,
                           .is_input = true,
                           .good = true,
                           .total = dil_tensor_count(&call->inputs[i])};
}

dil_status gradient_accuracy_check(const call_setup *b,
                                   const dil_backward_call *call, double pairs,
                                   double budget, gradient_accuracy *v) {
  const pattern *p = b->pattern;
  *v = (gradient_accuracy){.saved = call->forward.lse.data != NULL};
  bool gpu = b->options->device.word == DEVICE_CUDA;
  /* Kernels then make each branch's lse and o again, from 16-bit weights where
   * the elements have 16 bits. */
  bool remade = !v->saved || p->detached;
  gradient_work w = {.setup = b,
                     .call = call,
                     .forward = v->saved ? ORACLE_SAVED : ORACLE_DEFINED,
                     .rounds = {.p = p,
                                .exactness = dot_error_of(p, gpu),
                                .stored = remade,
                                .remade = remade},
                     .elements = input_elements(p, call)};
  name_errors(p, call, v);
  dil_status status = oracle_check_backward(p, call);
  row_check queries = check_queries(&w, pairs, budget, v);
  row_check keys = check_keys(&w, pairs, budget, v);
  if (!status) status = check_rows(&w, &queries);
  if (!status) status = check_rows(&w, &keys);
  bool affordable = whole_seconds(b, pairs) <= INPUT_PATIENCE * budget;
  if (!status && w.elements && affordable)
    status = check_input_gradients(&w, v);
  v->good = true;
  for (int32_t i = 0; i < v->count; i++) v->good &= v->error[i].good;
  return status;
}

/* ---- what it says ---------------------------------------------------------
 */

double gradient_accuracy_error(const gradient_accuracy *v) {
  double most = 0;
  for (int32_t i = 0; i < v->count; i++)
    if (!v->error[i].is_input) most = fmax(most, v->error[i].rel_error);
  return most;
}

static void print_error_place(const gradient_error *e, FILE *out) {
  const accuracy_element *at = &e->worst;
  if (e->is_input)
    fprintf(out, "  %s at element %lld", e->name, (long long)at->n);
  else
    fprintf(out, "  %s at batch row %lld, %s %lld, head %lld, element %lld",
            e->name, (long long)at->b, strcmp(e->name, "dq") ? "key" : "query",
            (long long)at->n, (long long)at->h, (long long)at->d);
  fprintf(out, ": got %.9g, the oracle has %.9g\n", at->got, at->want);
}

static void print_input_error(const gradient_error *e, FILE *out) {
  if (e->rows == 0 && e->total > 0)
    fprintf(out, "%-8snot compared: the oracle would sum all pairs for it\n",
            e->name);
  else
    fprintf(out,
            "%-8s%s: max difference %.2g (at most %.2g) of %lld "
            "element%s\n",
            e->name, e->good ? "good" : "BAD", e->difference, e->bound,
            (long long)e->total, e->total == 1 ? "" : "s");
}

static void print_rows(const gradient_error *e, FILE *out) {
  fprintf(out, "%-8s%s: %lld of %lld rows compared, error %.2g", e->name,
          e->good ? "good" : "BAD", (long long)e->rows, (long long)e->total,
          e->rel_error);
  if (e->unexplained < e->rel_error && e->rel_error > e->bound)
    fprintf(out, ", %.2g beyond rounding", e->unexplained);
  fprintf(out, " (at most %.2g)\n", e->bound);
}

void gradient_accuracy_print(const gradient_accuracy *v, FILE *out) {
  fprintf(out, "saved   the oracle takes %s\n",
          v->saved ? "the run's own o and lse, compared above"
                   : "no o and lse: branches have their own softmax");
  for (int32_t i = 0; i < v->count; i++) {
    const gradient_error *e = &v->error[i];
    (e->is_input ? print_input_error : print_rows)(e, out);
    if (!e->good) print_error_place(e, out);
  }
}

struct json_t *gradient_accuracy_json(const gradient_accuracy *v) {
  json_t *all = json_object();
  for (int32_t i = 0; i < v->count; i++) {
    const gradient_error *e = &v->error[i];
    double error = e->is_input ? e->difference : e->rel_error;
    bool known = e->rows > 0 || e->total == 0;
    json_t *one = json_pack("{s:b, s:I, s:I}", "good", (int)e->good, "checked",
                            (json_int_t)e->rows, "total", (json_int_t)e->total);
    json_object_set_new(one, e->is_input ? "difference" : "rel_error",
                        known && isfinite(error) ? json_real(error)
                                                 : json_null());
    json_object_set_new(one, "bound",
                        known ? json_real(e->bound) : json_null());
    json_object_set_new(all, e->name, one);
  }
  return all;
}
