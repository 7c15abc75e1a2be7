/* gradients.c - backward calls for the suites of kernels. In: a tested pattern
 * and a shape. Out: tensors in guarded memory, the oracle's gradients, and what
 * is wrong with those of a run. */
#include "gradients.h"
#include "gpu.h"
#include "runtime/base/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEED_OUTPUT = 40, SEED_LSE = 41 }; /* streams of dil_normal */

static void *must_allocate(void *memory) {
  if (memory == NULL) abort();
  return memory;
}

double gradient_bound(const pattern *p) {
  static const double bounds[DIL_DTYPE_COUNT] = {
      [DIL_F32] = 1e-5, [DIL_BF16] = 1.5e-2, [DIL_F16] = 2e-3};
  return bounds[p->dtype];
}

/* ---- places -------------------------------------------------------------- */

static double element_at(const dil_tensor *x, const int64_t *at) {
  return dil_element_read(x->data, x->dtype, tensor_index(x, at));
}

static void set_element(const dil_tensor *x, const int64_t *at,
                        double number) {
  dil_element_write(x->data, x->dtype, tensor_index(x, at), number);
}

/* ---- what a run is given ------------------------------------------------- */

static bool has_no_pairs(const data *d, int64_t b, int64_t n, int64_t h) {
  const pattern *p = d->pattern;
  int64_t row = (b * p->heads + h) * d->shape.queries + n;
  return pattern_has_lse(p) && d->lse[row] == -INFINITY;
}

static bool spoils_rows(const gradient_data *g) {
  return gpu_computes() && !g->forward->shape.clean && !pattern_has_sinks(g->forward->pattern);
}

static void fill_output(gradient_data *g, const gradient_shape *shape) {
  const dil_tensor *x = &g->call.output;
  int64_t at[DIL_RANK_MAX] = {0};
  uint64_t element = 0;
  bool more = dil_tensor_count(x) > 0;
  for (; more; more = tensor_next(x, at)) {
    double number = dil_normal(shape->call.seed, SEED_OUTPUT, element++);
    if (shape->element) number = shape->element(at, number);
    if (spoils_rows(g) && has_no_pairs(g->forward, at[0], at[1], at[2]))
      number = at[3] % 3 == 2 ? INFINITY : NAN;
    set_element(x, at, number);
  }
}

static void make_output(gradient_data *g, const gradient_shape *shape) {
  const dil_tensor *o = &g->forward->call.o;
  g->call.output = guard_tensor(&g->output, o->dtype, o->shape,
                                shape->layout[GRADIENT_OUTPUT],
                                !shape->call.at_start);
  fill_output(g, shape);
  guard_protect(&g->output);
}

static void make_lse(gradient_data *g, const gradient_shape *shape) {
  const dil_tensor *lse = &g->forward->call.lse;
  int64_t at[DIL_RANK_MAX] = {0};
  if (lse->data == NULL || shape->without_dlse) return;
  size_t size = (size_t)dil_tensor_count(lse) * sizeof(float);
  g->lse = guard_new(size, !shape->call.at_start);
  g->call.lse = dil_tensor_make(g->lse.bytes, DIL_F32, 3, lse->shape);
  uint64_t element = 0;
  bool more = dil_tensor_count(lse) > 0;
  for (; more; more = tensor_next(lse, at)) {
    double number = dil_normal(shape->call.seed, SEED_LSE, element++);
    if (spoils_rows(g) && has_no_pairs(g->forward, at[0], at[2], at[1]))
      number = NAN;
    set_element(&g->call.lse, at, number);
  }
  guard_protect(&g->lse);
}

/* o and lse as a forward run would have left them, and then nothing can write
 * to them. */
static void fill_forward(data *d) {
  int64_t at[DIL_RANK_MAX] = {0}, row = 0, element = 0;
  bool more = dil_tensor_count(&d->call.o) > 0;
  for (; more; more = tensor_next(&d->call.o, at))
    set_element(&d->call.o, at, d->o[element++]);
  memset(at, 0, sizeof at);
  more = d->call.lse.data && dil_tensor_count(&d->call.lse) > 0;
  for (; more; more = tensor_next(&d->call.lse, at))
    set_element(&d->call.lse, at, d->lse[row++]);
  for (int32_t k = 0; k < d->guard_count; k++) guard_protect(&d->guards[k]);
}

/* ---- what a run writes --------------------------------------------------- */

static double *new_right(const dil_tensor *like) {
  size_t count = (size_t)dil_tensor_count(like) + 1;
  return must_allocate(calloc(count, sizeof(double)));
}

static gradient_result *add_result(gradient_data *g, const char *name,
                                   dil_tensor *tensor, const double *right) {
  gradient_result *result = &g->result[g->result_count++];
  *result = (gradient_result){.name = name, .tensor = tensor, .right = right};
  return result;
}

static void make_rows(gradient_data *g, const gradient_shape *shape,
                      gradient_tensor which, const dil_tensor *like,
                      dil_tensor *to, double **right) {
  static const char *const names[] = {NULL, "dq", "dk", "dv"};
  if (shape->unwanted >> which & 1) return;
  *right = new_right(like);
  gradient_result *result = add_result(g, names[which], to, *right);
  *to = guard_tensor(&result->memory, shape->wide ? DIL_F32 : like->dtype,
                     like->shape, shape->layout[which], !shape->call.at_start);
}

static void make_input(gradient_data *g, int32_t index) {
  const dil_input *input = &g->forward->pattern->input[index];
  const dil_tensor *like = &g->forward->call.inputs[index];
  dil_tensor *to = &g->call.inputs[index];
  if (!input->gradient) return;
  g->right.inputs[index] = new_right(like);
  gradient_result *result =
      add_result(g, input->name, to, g->right.inputs[index]);
  size_t size = (size_t)dil_tensor_count(like) * sizeof(float);
  result->memory = guard_new(size, true);
  *to = dil_tensor_make(result->memory.bytes, DIL_F32, like->rank,
                        like->shape);
}

static void make_results(gradient_data *g, const gradient_shape *shape) {
  const dil_call *call = &g->forward->call;
  make_rows(g, shape, GRADIENT_DQ, &call->q, &g->call.dq, &g->right.dq);
  make_rows(g, shape, GRADIENT_DK, &call->k, &g->call.dk, &g->right.dk);
  make_rows(g, shape, GRADIENT_DV, &call->v, &g->call.dv, &g->right.dv);
  if (shape->without_inputs) return;
  for (int32_t k = 0; k < call->input_count; k++) make_input(g, k);
}

/* ---- a call -------------------------------------------------------------- */

gradient_data *gradient_data_new(const tested_pattern *s,
                                 gradient_shape shape) {
  gradient_data *g = must_allocate(calloc(1, sizeof *g));
  g->forward = data_new(s, shape.call);
  data_choose(g->forward);
  if (gpu_computes()) fill_forward(g->forward);
  g->call.size = sizeof g->call;
  g->call.forward = g->forward->call;
  if (shape.without_lse) g->call.forward.lse.data = NULL;
  make_output(g, &shape);
  make_lse(g, &shape);
  make_results(g, &shape);
  if (gpu_computes() &&
      oracle_gradient_run(s->pattern, &g->call, ORACLE_DEFINED, &g->right))
    abort();
  gradient_data_forget(g);
  return g;
}

void gradient_data_free(gradient_data *g) {
  if (g == NULL) return;
  for (int32_t k = 0; k < g->result_count; k++) {
    guard_free(&g->result[k].memory);
    free((void *)g->result[k].right);
  }
  for (int32_t k = 0; k < DIL_INPUT_MAX; k++) {
    free(g->explained.inputs[k]);
    free(g->explained.shared[k]);
  }
  guard_free(&g->output);
  guard_free(&g->lse);
  data_free(g->forward);
  free(g);
}

void gradient_data_forget(gradient_data *g) {
  for (int32_t k = 0; k < g->result_count; k++) {
    tensor_fill_nan(g->result[k].tensor);
    guard_snapshot(&g->result[k].memory);
  }
}

/* ---- comparison ---------------------------------------------------------- */

static bool is_zero_row(const double *x, int64_t count) {
  for (int64_t d = 0; d < count; d++)
    if (x[d] != 0) return false;
  return true;
}

/* Whether no pair reaches the row of dq, or the key of dk and dv, that `at`
 * lies in: then exact zeros are written. */
static bool is_untouched(const gradient_data *g, const dil_tensor *x,
                         const int64_t *at) {
  const data *d = g->forward;
  const dil_call *call = &d->call;
  if (x == &g->call.dq) return has_no_pairs(d, at[0], at[1], at[2]);
  if (x != &g->call.dk && x != &g->call.dv) return false;
  if (!g->right.dk || !g->right.dv) return false;
  int64_t key = (at[0] * call->k.shape[1] + at[1]) * call->k.shape[2] + at[2];
  int64_t D = call->k.shape[3], Dv = call->v.shape[3];
  return is_zero_row(g->right.dk + key * D, D) &&
         is_zero_row(g->right.dv + key * Dv, Dv);
}

/* NULL, or what no tolerance covers. */
static const char *element_fault(const gradient_data *g,
                                 const gradient_result *result,
                                 const int64_t *at, double right) {
  double is = element_at(result->tensor, at);
  if (isfinite(is) != isfinite(right)) return "is finite in one of both";
  if (is != 0 && is_untouched(g, result->tensor, at)) return "is not exactly 0";
  return NULL;
}

/* ---- what rounding explains ---------------------------------------------- */

static void judge_row(gradient_data *g, pair_rounding rounds,
                      const int64_t at[3]) {
  const pattern *p = g->forward->pattern;
  oracle_scatter *scatter = &g->explained;
  double dq[DIL_HEAD_DIM_MAX];
  oracle_gradients unused = {0};
  scatter->context = &rounds;
  oracle_gradient_query(p, &g->call, ORACLE_DEFINED, at, dq, scatter);
  rounds.inputs = true;
  for (int32_t k = 0; k < p->input_count; k++) {
    if (!g->right.inputs[k]) continue;
    unused.inputs[k] = new_right(&g->call.inputs[k]);
  }
  oracle_gradient_inputs(p, &g->call, ORACLE_DEFINED, at, unused.inputs,
                         scatter);
  for (int32_t k = 0; k < p->input_count; k++) free(unused.inputs[k]);
  scatter->context = NULL;
}

/* The errors that rounding explains, summed over all pairs. */
static void explain_gradients(gradient_data *g) {
  const pattern *p = g->forward->pattern;
  const call_shape *s = &g->forward->shape;
  int64_t N = s->queries, H = p->heads, group = H / p->kv_heads;
  bool apart = !pattern_has_lse(p) || p->detached;
  pair_rounding rounds = {.p = p,
                          .exactness = dot_error_of(p, gpu_wanted()),
                          .terms = fmax((double)(N * group), (double)s->keys),
                          .stored = true,
                          .remade = apart || !g->call.forward.lse.data};
  g->explained.judge = rounding_of_pair;
  for (int32_t k = 0; k < p->input_count; k++) {
    const dil_tensor *x = &g->call.inputs[k];
    if (!g->right.inputs[k]) continue;
    g->explained.inputs[k] = new_right(x);
    g->explained.shared[k] = must_allocate(
        calloc((size_t)dil_tensor_count(x) + 1, sizeof(oracle_shared)));
  }
  for (int64_t row = 0; row < s->batch * N * H; row++)
    judge_row(g, rounds,
              (int64_t[]){row / (N * H), row / H % N, row % H});
}

/* The square of the L2 error that rounding explains of a gradient. */
static double explained_square(gradient_data *g,
                               const gradient_result *result) {
  if (!g->explained.judge) explain_gradients(g);
  if (result->tensor == &g->call.dq) return g->explained.dq;
  if (result->tensor == &g->call.dk) return g->explained.dk;
  if (result->tensor == &g->call.dv) return g->explained.dv;
  const double *of = g->explained.inputs[result->tensor - g->call.inputs];
  double sum = 0;
  for (int64_t e = 0; e < dil_tensor_count(result->tensor); e++) sum += of[e];
  return sum;
}

/* ---- comparison ---------------------------------------------------------- */

static const char *compare_result(gradient_data *g,
                                  const gradient_result *result) {
  static char text[300];
  const dil_tensor *x = result->tensor;
  int64_t at[DIL_RANK_MAX] = {0}, element = 0;
  double square = 0, whole = 0, bound = gradient_bound(g->forward->pattern);
  if (!guard_intact(&result->memory, x)) {
    snprintf(text, sizeof text, "wrote beside the elements of %s",
             result->name);
    return text;
  }
  bool more = dil_tensor_count(x) > 0;
  for (; more; more = tensor_next(x, at)) {
    double is = element_at(x, at), right = result->right[element++];
    const char *fault = element_fault(g, result, at, right);
    if (fault) {
      snprintf(text, sizeof text, "%s[%d, %d, %d, %d] %s: %.9g, oracle %.9g",
               result->name, (int)at[0], (int)at[1], (int)at[2], (int)at[3],
               fault, is, right);
      return text;
    }
    if (!isfinite(right)) continue;
    double off = rounding_beyond_storage(x->dtype, is, right);
    square += off * off;
    whole += right * right;
  }
  if (square == 0 || sqrt(square) <= bound * sqrt(whole)) return "";
  double explained = sqrt(explained_square(g, result));
  if (sqrt(square) <= explained) return "";
  snprintf(text, sizeof text,
           "%s off by %.3g of %.3g in all (bound %.3g, explained %.3g)",
           result->name, sqrt(square), sqrt(whole), bound * sqrt(whole),
           explained);
  return text;
}

const char *gradient_data_compare(gradient_data *g) {
  for (int32_t k = 0; k < g->result_count; k++) {
    const char *problem = compare_result(g, &g->result[k]);
    if (problem[0]) return problem;
  }
  return "";
}

const char *gradient_data_problem(gradient_data *g, kernel_made *k) {
  static char text[1000];
  gradient_data_forget(g);
  dil_status status = data_run_backward(k, &g->call);
  if (status == DIL_OK) return gradient_data_compare(g);
  snprintf(text, sizeof text, "%s: %s", dil_status_text(status),
           dil_last_error());
  return text;
}
