/* test_packed.c - packed calls: documents of very unequal lengths against the
 * oracle, both directions, and against each document's own call, to the bit;
 * the same bits whatever the threads are; offsets that are refused, and on a GPU
 * left out. */
#include "tests/support/gpu_gradients.h"
#include "tests/support/suite.h"
#include "runtime/base/documents.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define P(body)  "pattern p { heads 4 kv 2; head_dim 17 value 9; dtype f32; " \
                 body " }"
#define TWO      "branch { segment 32; } branch { dilation 3; }"

static const struct packed_case {
  const char *name, *text;
} cases[] = {
    {"dense", P("branch { }")},
    {"causal", P("causal; branch { }")},
    {"two branches", P("causal; " TWO)},
    {"union", P("combine union; " TWO)},
    {"mean", P("combine mean; " TWO)},
    {"sum, one branch a head",
     P("combine sum; branch { heads 0..1; } branch { heads 2..3; segment 9; }")},
    {"heads select rows", P("phase cycle; " TWO)},
    {"a window", P("window 9, 4; branch { }")},
    {"sizes in a mask", P("mask (i + j + N) % 3 != 1 && j < M - 2; branch { }")},
    {"the number of the document",
     P("mask (i + j) % (b + 2) != 1; score s + 0.1 * b / B; branch { }")},
    {"a bias of the document",
     P("input t : f32[B, H] gradient; score s + t[b, h]; branch { }")},
    {"a slope that is learned",
     P("input t : f32[H] gradient; score s - t[h] * abs(i - j); branch { }")},
    {"an input of keys",
     P("input doc : i32[B, M]; mask doc[b, i] == doc[b, j]; branch { }")},
    {"dropout", P("dropout 0.25; " TWO)},
    {"sinks", P("input z : f32[H] gradient; sink z[h]; causal; "
                "branch { segment 32; sink 0.5 + 0.01 * row; }")},
    {"sinks of branches",
     P("combine mean; input z : f32[H] gradient; "
       "branch { segment 32; sink z[h]; } branch { dilation 3; }")},
    {"sinks of detached branches",
     P("gradient detached; input z : f32[H] gradient; "
       "branch { segment 32; sink z[h]; } branch { dilation 3; }")},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* Empty documents at both ends and inside, single rows, long ones, rows of
 * nobody; keys apart from queries, so that some documents lack one of both. */
static const int32_t alike[] = {0, 0, 1, 34, 34, 35, 195, 200, 233, 233};
static const int32_t fewer[] = {0, 3, 3, 20, 21, 60, 61, 61, 76, 80};
enum { DOCUMENTS = 9, ROWS = 240, KEYS = 85 };

static tested_pattern *s;

static void open_tested(const char *text) {
  s = tested_pattern_new("packed", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
}

static bool apart; /* keys have offsets of their own */

/* What belongs to nobody may hold anything. */
static double spoilt_element(int32_t tensor, const int64_t *at, double number) {
  int64_t end = tensor == 0 || !apart ? alike[DOCUMENTS] : fewer[DOCUMENTS];
  return at[1] < end ? number : at[3] % 3 == 2 ? INFINITY : NAN;
}
static double spoilt_output(const int64_t *at, double number) {
  return at[1] < alike[DOCUMENTS] ? number : NAN;
}

static gradient_shape shape_of(bool own_keys) {
  apart = own_keys;
  return (gradient_shape){
      .call = {.batch = 1,
               .queries = ROWS,
               .keys = own_keys ? KEYS : ROWS,
               .seed = 12,
               .clean = true,
               .train = true,
               .dropout_seed = 7,
               .offsets = alike,
               .key_offsets = own_keys ? fewer : NULL,
               .documents = DOCUMENTS,
               .element = spoilt_element},
      .element = spoilt_output};
}

/* ---- against the oracle -------------------------------------------------- */

START_TEST(every_case_is_right) {
  static const dil_dtype dtypes[] = {DIL_F32, DIL_BF16};
  forced list[FORCES_MOST];
  if (gpu_leaves_case("forward", _i)) return;
  open_tested(cases[_i].text);
  for (int i = 0; i < 4; i++) {
    if (gpu_wanted() && i != _i % 4) continue;
    tested_pattern_retype(s, dtypes[i % 2]);
    gradient_shape shape = shape_of(i / 2);
    shape.call.layout = (guard_layout)((_i + i) % GUARD_LAYOUT_COUNT);
    shape.call.at_start = i == 1;
    data *d = data_new(s, shape.call);
    forces_of(s, list);
    for (int f = 0; list[f].name; f++) {
      kernel_made *k = kernel_make(s, (recipe){.force = list[f].force});
      if (!k->refused) {
        const char *problem = data_problem(d, k);
        ck_assert_msg(!*problem, "%s, %s, keys %d: %s", cases[_i].name,
                      list[f].name, i / 2, problem);
      }
      kernel_unmake(k);
    }
    data_free(d);
  }
  tested_pattern_free(s);
}
END_TEST

START_TEST(every_gradient_is_right) {
  static const dil_dtype dtypes[] = {DIL_F32, DIL_BF16};
  if (gpu_leaves_case("gradients", CASES + _i)) return;
  open_tested(cases[_i].text);
  for (int i = 0; i < 4; i++) {
    if (gpu_wanted() && i != _i % 4) continue;
    tested_pattern_retype(s, dtypes[i % 2]);
    gradient_shape shape = shape_of(i / 2);
    for (int x = 0; x < GRADIENT_TENSORS; x++)
      shape.layout[x] = (guard_layout)((x + i + _i) % GUARD_LAYOUT_COUNT);
    shape.without_lse = i == 3;
    if (gpu_wanted()) {
      const char *problem = gpu_gradient_problem(s, 0, shape);
      ck_assert_msg(!*problem, "%s, keys %d: %s", cases[_i].name, i / 2,
                    problem);
      continue;
    }
    gradient_data *g = gradient_data_new(s, shape);
    kernel_made *k = kernel_make(s, (recipe){.direction = DIL_BACKWARD});
    ck_assert_msg(!k->refused, "%s", k->problem);
    const char *problem = gradient_data_problem(g, k);
    ck_assert_msg(!*problem, "%s, keys %d: %s", cases[_i].name, i / 2, problem);
    kernel_unmake(k);
    gradient_data_free(g);
  }
  tested_pattern_free(s);
}
END_TEST

/* ---- the same bits ------------------------------------------------------- */

static size_t bytes_of(const dil_tensor *t) {
  return (size_t)dil_tensor_count(t) * dil_dtype_size(t->dtype);
}

static char *copy_of(const dil_tensor *t) {
  char *copy = malloc(bytes_of(t) + 1);
  ck_assert_ptr_nonnull(copy);
  memcpy(copy, t->data, bytes_of(t));
  return copy;
}

/* What the packed call wrote at one place is what the document's own call
 * writes there; the call has the same tensors. */
static void expect_own_call(data *d, kernel_made *k, int64_t b, const char *o,
                            const char *lse) {
  dil_call whole = d->call;
  d->call = documents_take(&whole, b);
  dil_tensor own_o = d->call.o, own_lse = d->call.lse;
  ck_assert_msg(data_run(d, k) == DIL_OK, "%s", dil_last_error());
  d->call = whole;
  size_t from = (size_t)((char *)own_o.data - (char *)whole.o.data);
  size_t size = (size_t)own_o.shape[1] * (size_t)own_o.stride[1] *
                dil_dtype_size(own_o.dtype);
  ck_assert_msg(!memcmp(own_o.data, o + from, size), "o of document %d",
                (int)b);
  for (int64_t h = 0; h < own_lse.shape[1]; h++) {
    const float *mine = (const float *)own_lse.data + h * own_lse.stride[1];
    from = (size_t)((const char *)mine - (const char *)whole.lse.data);
    ck_assert_msg(!memcmp(mine, lse + from,
                          (size_t)own_lse.shape[2] * sizeof(float)),
                  "lse of document %d, head %d", (int)b, (int)h);
  }
}

/* No expression here knows the number of its batch row. */
START_TEST(documents_have_the_bits_of_their_own_calls) {
  if (gpu_wanted()) return;
  open_tested(P("causal; " TWO));
  for (int keys = 0; keys < 2; keys++) {
    data *d = data_new(s, shape_of(keys).call);
    kernel_made *k = kernel_make(s, (recipe){0});
    ck_assert_msg(data_run(d, k) == DIL_OK, "%s", dil_last_error());
    char *o = copy_of(&d->call.o), *lse = copy_of(&d->call.lse);
    for (int64_t b = 0; b < DOCUMENTS; b++) expect_own_call(d, k, b, o, lse);
    free(o);
    free(lse);
    kernel_unmake(k);
    data_free(d);
  }
  tested_pattern_free(s);
}
END_TEST

static const char *const repeated[] = {
    P("input t : f32[H] gradient; score s * t[h]; " TWO), P("causal; " TWO)};

START_TEST(bits_depend_on_no_threads) {
  char *first[5] = {0};
  if (gpu_wanted()) return;
  open_tested(repeated[_i]);
  gradient_data *g = gradient_data_new(s, shape_of(_i));
  dil_call *f = &g->forward->call;
  const dil_tensor *t[] = {&f->o, &f->lse, &g->call.dq, &g->call.dk,
                           &g->call.dv};
  data *d = data_new(s, shape_of(_i).call);
  t[0] = &d->call.o;
  t[1] = &d->call.lse;
  for (int32_t threads = 1; threads <= 7; threads++) {
    recipe way = {.threads = threads, .direction = DIL_BACKWARD};
    kernel_made *k = kernel_make(s, way);
    ck_assert_msg(data_run(d, k) == DIL_OK, "%s", dil_last_error());
    ck_assert_str_eq(gradient_data_problem(g, k), "");
    for (int x = 0; x < 5; x++) {
      if (threads == 1) first[x] = copy_of(t[x]);
      ck_assert_msg(!memcmp(first[x], t[x]->data, bytes_of(t[x])),
                    "tensor %d with %d threads", x, threads);
    }
    kernel_unmake(k);
  }
  for (int x = 0; x < 5; x++) free(first[x]);
  data_free(d);
  gradient_data_free(g);
  tested_pattern_free(s);
}
END_TEST

/* ---- refused ------------------------------------------------------------- */

static const struct refused_case {
  int32_t offsets[4];
  int64_t longest;
  const char *words;
} refused[] = {
    {{0, 9, 5, 20}, 20, "offsets_q falls at element 2, from 9 to 5"},
    {{1, 9, 15, 20}, 20, "offsets_q must begin with 0, got 1"},
    {{0, 9, 15, 41}, 30, "offsets_q ends at 41, and there are 40 rows"},
    {{0, 9, 15, 20}, 8, "document 0 of offsets_q has 9 rows, and longest_q is"},
    {{0, 9, 15, 20}, 41, "longest_q must be the rows of the longest document"},
    {{0, 9, 15, 20}, -1, "longest_q must be the rows of the longest document"},
};
enum { REFUSED = sizeof refused / sizeof refused[0] };

START_TEST(wrong_offsets_are_refused) {
  const struct refused_case *c = &refused[_i];
  static const int32_t right[] = {0, 9, 15, 20};
  if (gpu_wanted()) return;
  open_tested(P("causal; branch { }"));
  call_shape shape = {.batch = 1, .queries = 40, .keys = 40, .clean = true,
                      .offsets = right, .documents = 3};
  data *d = data_new(s, shape);
  kernel_made *k = kernel_make(s, (recipe){0});
  d->call.packed = (dil_packed){.queries = c->offsets, .keys = c->offsets,
                                .count = 3, .longest_queries = c->longest,
                                .longest_keys = c->longest};
  ck_assert_int_eq(data_run(d, k), DIL_USAGE);
  ck_assert_msg(strstr(dil_last_error(), c->words) != NULL, "%s",
                dil_last_error());
  kernel_unmake(k);
  data_free(d);
  tested_pattern_free(s);
}
END_TEST

/* ---- left out ------------------------------------------------------------ */

static const struct left_out {
  int32_t told[4];
  int32_t good[2]; /* rows of documents that are as they were */
} left_out[] = {
    {{0, 10, 5, 1000}, {0, 10}},
    {{-5, 10, 30, 50}, {10, 50}},
    {{0, 10, 30, INT32_MIN}, {0, 30}},
    {{0, 10, INT32_MAX, 50}, {0, 10}},
    {{0, 10, 30, 61}, {0, 30}},
};
enum { LEFT_OUT = sizeof left_out / sizeof left_out[0] };

static call_shape shape_left_out(void) {
  static const int32_t right[] = {0, 10, 30, 50};
  return (call_shape){.batch = 1, .queries = 60, .keys = 60, .seed = 4,
                      .clean = true, .offsets = right, .documents = 3};
}

/* The same of ten times as many rows, in sizes that the Hopper kernels take. */
static int32_t tenfold(int32_t offset) {
  bool far = offset > INT32_MAX / 10 || offset < INT32_MIN / 10;
  return far ? offset : 10 * offset;
}
static call_shape long_shape_left_out(void) {
  static const int32_t right[] = {0, 100, 300, 500};
  call_shape shape = shape_left_out();
  shape.queries = shape.keys = 600;
  shape.offsets = right;
  return shape;
}

/* Nothing beside the tensors is written: data_run leaves guards to look at. */
static void leave_out(const char *text, call_shape shape, const int32_t told[4],
                      int32_t low, int32_t high) {
  open_tested(text);
  data *d = data_new(s, shape);
  documents_tell(d, told);
  int64_t N = shape.queries, size = s->pattern->value_dim;
  for (int64_t n = 0; n < N; n++)
    for (int64_t h = 0; h < 4 && (n < low || n >= high); h++) {
      memset(d->o + (n * 4 + h) * size, 0, (size_t)size * sizeof *d->o);
      d->lse[h * N + n] = -INFINITY;
    }
  kernel_made *k = kernel_make(s, (recipe){0});
  ck_assert_str_eq(data_problem(d, k), "");
  kernel_unmake(k);
  data_free(d);
  tested_pattern_free(s);
}

START_TEST(documents_without_right_offsets_are_left_out) {
  if (!gpu_wanted() || gpu_leaves_case("left out", _i)) return;
  const struct left_out *c = &left_out[_i];
  int32_t told[4];
  for (int32_t i = 0; i < 4; i++) told[i] = tenfold(c->told[i]);
  leave_out(P("causal; branch { }"), shape_left_out(), c->told, c->good[0], c->good[1]);
  leave_out("pattern p { heads 4 kv 2; head_dim 64; dtype bf16; causal; branch { } }",
            long_shape_left_out(), told, 10 * c->good[0], 10 * c->good[1]);
}
END_TEST

static double sum_beside(const dil_tensor *t, const int32_t good[2]) {
  int64_t at[DIL_RANK_MAX] = {0};
  double sum = 0;
  for (bool more = true; more; more = tensor_next(t, at))
    if (at[1] < good[0] || at[1] >= good[1])
      sum += fabs(dil_element_read(t->data, t->dtype, tensor_index(t, at)));
  return sum;
}

START_TEST(gradients_without_right_offsets_are_zero) {
  if (!gpu_wanted() || gpu_leaves_case("zero gradients", _i)) return;
  open_tested(P("causal; branch { }"));
  gradient_data *g = gradient_data_new(
      s, (gradient_shape){.call = shape_left_out()});
  documents_tell(g->forward, left_out[_i].told);
  g->call.forward.packed = g->forward->call.packed;
  kernel_made *k = kernel_make(s, (recipe){.direction = DIL_BACKWARD});
  dil_cuda_kernel *made =
      gpu_kernel_make(k->plan, false, k->problem, sizeof k->problem);
  ck_assert_msg(made != NULL, "%s", k->problem);
  gradient_data_forget(g);
  ck_assert_msg(!gpu_backward(g, made, false), "%s", dil_last_error());
  for (int32_t i = 0; i < g->result_count; i++) {
    const gradient_result *r = &g->result[i];
    ck_assert_msg(guard_intact(&r->memory, r->tensor), "%s", r->name);
    ck_assert(sum_beside(r->tensor, left_out[_i].good) == 0);
  }
  gpu_kernel_unmake(made);
  kernel_unmake(k);
  gradient_data_free(g);
  tested_pattern_free(s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("packed");
  TCase *tests = tcase_create("documents");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, every_case_is_right, 0, CASES);
  tcase_add_loop_test(tests, every_gradient_is_right, 0, CASES);
  tcase_add_test(tests, documents_have_the_bits_of_their_own_calls);
  tcase_add_loop_test(tests, bits_depend_on_no_threads, 0, 2);
  tcase_add_loop_test(tests, wrong_offsets_are_refused, 0, REFUSED);
  tcase_add_loop_test(tests, documents_without_right_offsets_are_left_out, 0,
                      LEFT_OUT);
  tcase_add_loop_test(tests, gradients_without_right_offsets_are_zero, 0,
                      LEFT_OUT);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
