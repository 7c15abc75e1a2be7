/* test_decode.c - calls with few rows of queries: every kind of pattern beside the
 * oracle, and rows that have the same bits alone or in a batch. On a GPU of sm_90
 * it is asserted which kernel takes them; elsewhere the general kernels or the
 * processor compute them. */
#include "tests/support/gpu.h"
#include "tests/support/gpu_case.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

#define BF16(d) "heads 4 kv 2; head_dim " #d "; dtype bf16;"
#define F16(d) "heads 4 kv 2; head_dim " #d "; dtype f16;"

typedef struct paged_case {
  gpu_case of;
  page_layout pages;
} paged_case;

static const gpu_case cases[] = {
    /* sizes of heads and of groups, numbers of rows */
    {P(BF16(64), "causal; branch { }"), 0, SHAPE(1, 1, 1000, 0)},
    {P(BF16(128), "causal; branch { }"), 0, SHAPE(3, 1, 3000, 0)},
    {P(F16(256), "causal; branch { }"), 0, SHAPE(2, 2, 1111, 1)},
    {P(BF16(192), "causal; branch { }"), 0, SHAPE(1, 3, 999, 0)},
    {P(F16(96), "branch { }"), 0, SHAPE(2, 5, 1025, 0)},
    {P(BF16(8), "causal; branch { }"), 0, SHAPE(1, 7, 700, 0)},
    {P(F16(40), "causal; branch { }"), 0, SHAPE(1, 9, 700, 1)},
    {P(BF16(72), "causal; branch { }"), 0, SHAPE(1, 16, 257, 0)},
    {P("heads 4 kv 2; head_dim 192 value 128; dtype bf16;",
       "causal; branch { }"), 0, SHAPE(1, 4, 700, 0)},
    {P("heads 2; head_dim 32 value 256; dtype bf16;", "branch { }"), 0,
     SHAPE(2, 4, 700, 0)},
    {P("heads 32 kv 1; head_dim 64; dtype bf16;", "causal; branch { }"), 0,
     SHAPE(1, 2, 1500, 0)},
    {P("heads 12 kv 1; head_dim 64; dtype f16;", "causal; branch { }"), 0,
     SHAPE(2, 3, 300, 0)},
    {P("heads 10 kv 2; head_dim 64; dtype bf16;", "causal; branch { }"), 0,
     SHAPE(1, 63, 500, 1)},
    {P("heads 3; head_dim 64; dtype bf16;", "causal; branch { }"), 0,
     SHAPE(1, 63, 100, 0)},
    {P(BF16(64), "causal; branch { }"), 0, SHAPE(2, 60, 17, 0)},
    {P(BF16(64), "causal; branch { }"), 0, SHAPE(2, 1, 1, 0)},
    {P(BF16(64), "branch { }"), 0, SHAPE(70, 1, 300, 0)},
    {P("heads 2; head_dim 16; dtype bf16;", "branch { }"), 0,
     SHAPE(130, 1, 300, 0)}, /* more tiles than a launch's counters */
    /* windows, ranges, segments, dilations */
    {P(BF16(64), "causal; branch { window 300, 0; }"), 0,
     SHAPE(1, 1, 2000, 0)},
    {P(F16(64), "branch { window 99, 40; }"), 0, SHAPE(2, 30, 500, 0)},
    {P(BF16(128), "causal; mask j < 4 || i - j < 300; branch { }"), 0,
     SHAPE(1, 2, 2000, 0)},
    {P(BF16(64), "causal; branch { segment 256; }"), 0, SHAPE(2, 63, 1000, 0)},
    {P(BF16(64), "causal; " THREE), 0, SHAPE(1, 1, 1100, 0)},
    {P(F16(64), THREE), 0, SHAPE(2, 20, 1300, 1)},
    {P(BF16(64), THREE), FORCE_CHAIN, SHAPE(1, 9, 1300, 0)},
    {P(BF16(64), "causal; " CROSSING), FORCE_FUSE, RAGGED(33, 1100, 0)},
    {P(BF16(64), "combine union; causal; " CROSSING), 0,
     SHAPE(1, 5, 1700, 0)},
    {P(BF16(64), "combine mean; " THREE), 0, SHAPE(1, 7, 1300, 0)},
    {P(F16(64), "combine sum; causal; " THREE), 0, SHAPE(1, 2, 1300, 0)},
    {P(F16(64), THREE), FORCE_MULTISET, SHAPE(1, 6, 1100, 0)},
    {P("heads 6 kv 3; head_dim 64; dtype bf16;",
       "branch { segment 512; heads 0..3; } "
       "branch { segment 1024; dilation 2; heads 2..5; }"),
     FORCE_CHAIN, SHAPE(1, 11, 1300, 0)},
    {P(BF16(64), "branch { segment 9000; dilation 100; }"), 0,
     SHAPE(1, 40, 9500, 0)},
    {P(BF16(64), "branch { dilation 3; }"), 0, SHAPE(1, 50, 30, 0)},
    {P("heads 4 kv 2; head_dim 64; dtype bf16;",
       "phase kv; branch { segment 1100; } branch { segment 1300; dilation 3; }"
       " branch { dilation 5; }"), 0, SHAPE(1, 13, 1900, 0)},
    /* masks and scores */
    {P(BF16(64), "causal; mask (i / 64 + j / 64) % 3 != 0; branch { }"), 0,
     SHAPE(2, 5, 1000, 0)},
    {P(F16(64), "mask hash(i, j) % 5 != 0; branch { }"), 0, SHAPE(1, 3, 900, 0)},
    {P(BF16(64), "causal; score 5 * tanh(s / 5); branch { }"), 0, SHAPE(1, 4, 900, 0)},
    {P(BF16(128), "input slope : f32[H]; causal;"
                  " score s - slope[h] * abs(i - j); branch { }"), 0,
     SHAPE(2, 2, 700, 0)},
    {P(BF16(64), "score s + 0.01 * j; mask j % 7 != row % 3; branch { }"), 0,
     RAGGED(6, 1100, 0)},
    {P(BF16(64), "input z : f32[M]; score s + log(z[j]); branch { }"), 0,
     SHAPE(1, 2, 600, 0)},
    {P(BF16(64), "input doc : i32[M]; mask doc[i] == doc[j]; branch { }"), 0,
     SHAPE(2, 4, 800, 0)},
    {P(F16(64), "causal; sink 0.7; branch { }"), 0, SHAPE(2, 1, 700, 0)},
    {P(BF16(64), "input z : f32[H]; sink z[h]; causal; branch { window 200, 0; }"),
     0, RAGGED(3, 1100, 0)},
    {P(BF16(64), "scale runtime; causal; branch { }"), 0,
     {.batch = 1, .queries = 3, .keys = 500, .seed = 7, .scale = -0.4}},
    /* batch rows of fewer keys: none, one, all, fewer than queries */
    {P(BF16(64), "causal; branch { }"), 0, RAGGED(1, 1100, 0)},
    {P(F16(128), "causal; branch { }"), 0, RAGGED(20, 1100, 1)},
    {P(BF16(64), "branch { window 99, 40; dilation 3; }"), 0,
     RAGGED(30, 1100, 0)},
    {P(F16(64), THREE), FORCE_CHAIN, RAGGED(9, 1100, 1)},
    {P(BF16(64), "combine mean; " THREE), 0, RAGGED(11, 1200, 0)},
    {P(BF16(64), "causal; branch { }"), 0,
     {.batch = 3, .queries = 5, .keys = 300, .seed = 7,
      .lengths = nearest_lengths, .told = outside_lengths}},
    /* values that are not finite */
    {P(BF16(64), "causal; branch { }"), 0, BAD(1, 40, 300, 0)},
    {P(F16(128), "causal; branch { window 130, 0; }"), 0, BAD(2, 3, 700, 0)},
    {P(BF16(96), "mask j % 97 != 9; branch { }"), 0, BAD(1, 2, 700, 0)},
    {P(BF16(64), "causal; score j % 97 == 9 ? -inf : s; branch { }"), 0,
     BAD(1, 2, 700, 0)},
};

/* Calls that are left to the general kernel by what they bring. */
static const gpu_case left[] = {
    {P("heads 4 kv 2; head_dim 64; dtype f32;", "causal; branch { }"), 0,
     SHAPE(2, 3, 700, 0)},
    {P("heads 4 kv 2; head_dim 20; dtype bf16;", "causal; branch { }"), 0,
     SHAPE(2, 3, 700, 0)},
    {P(BF16(64), "causal; branch { }"), 0, SHAPE(2, 3, 700, GUARD_BACKWARD)},
    {P(BF16(64), "branch { }"), 0, SHAPE(2, 3, 0, 0)},
    {P(BF16(64), "dropout 0.3; branch { }"), 0,
     {.batch = 1, .queries = 3, .keys = 300, .seed = 7, .train = true,
      .dropout_seed = 5}},
};

/* Calls with pages: of one tile of keys, fewer or more; ranges of keys that begin or
 * end inside a page; pages that no pool has, which the masks leave out. */
#define PAGES(n) {.rows = n}
static const paged_case paged[] = {
    {{P(BF16(64), "causal; branch { }"), 0, SHAPE(2, 1, 1024, 0)}, PAGES(64)},
    {{P(F16(128), "causal; branch { }"), 0, RAGGED(3, 1152, 0)}, PAGES(16)},
    {{P(BF16(96), "branch { }"), 0, RAGGED(1, 1280, 0)}, PAGES(256)},
    {{P(BF16(72), "causal; branch { window 300, 0; }"), 0, SHAPE(3, 2, 1200, 0)}, PAGES(8)},
    {{P(F16(64), "branch { window 99, 40; }"), 0, RAGGED(30, 1152, 0)}, PAGES(32)},
    {{P("heads 12 kv 1; head_dim 64; dtype bf16;",
       "causal; mask j < 4 || i - j < 333; branch { }"), 0, SHAPE(2, 3, 2048, 0)}, PAGES(128)},
    {{P(BF16(64), "causal; mask j >= 37 && (i - j) % 5 != 2; branch { }"), 0,
     RAGGED(5, 1152, 0)}, PAGES(64)},
    {{P(BF16(64), "causal; score j % 7 == 3 ? -inf : s; branch { }"), 0,
     BAD(1, 4, 896, 0)}, PAGES(32)},
    {{P(BF16(64), "causal; " THREE), 0, SHAPE(1, 9, 1280, 0)}, PAGES(64)},
    {{P(F16(64), "causal; " CROSSING), 0, RAGGED(33, 1152, 0)}, PAGES(128)},
    {{P(BF16(64), "combine union; causal; " CROSSING), 0, SHAPE(1, 5, 1792, 0)}, PAGES(32)},
    {{P(BF16(64), THREE), FORCE_CHAIN, SHAPE(1, 9, 1280, 0)}, PAGES(256)},
    {{P(BF16(64), "combine mean; " THREE), 0, RAGGED(11, 1216, 0)}, PAGES(64)},
    {{P(BF16(64), "branch { dilation 4; phase each - 3; window 400, 0; }"), 0,
     SHAPE(2, 7, 960, 0)}, PAGES(32)},
    {{P(F16(64), "sink 0.7; branch { segment 300; }"), 0, SHAPE(2, 20, 1024, 0)}, PAGES(16)},
};

/* Calls with pages that are left to the general kernel. */
static const paged_case paged_left[] = {
    {{P(BF16(64), "causal; branch { }"), 0, SHAPE(2, 2, 512, 0)}, PAGES(4)},
    {{P(BF16(64), "branch { dilation 3; }"), 0, SHAPE(2, 2, 512, 0)}, PAGES(64)},
    {{P(BF16(64), "branch { dilation 4; }"), 0, SHAPE(2, 2, 512, 0)}, PAGES(16)},
};

enum {
  PAGED = sizeof paged / sizeof paged[0],
  PAGED_LEFT = sizeof paged_left / sizeof paged_left[0],
  CASES = sizeof cases / sizeof cases[0],
  LEFT = sizeof left / sizeof left[0]
};

static bool has_decode(void) {
  return gpu_wanted() && gpu_module()->facts(gpu_device())->arch == 90;
}

static void compute(const gpu_case *c, page_layout pages, const char *takes,
                    const char *leaves) {
  bool told = has_decode();
  gpu_case_compute(c, pages, told ? takes : NULL, told ? leaves : NULL);
}

START_TEST(computed) {
  const gpu_case *c = &cases[_i];
  if (gpu_leaves_case("computed", _i)) return;
  if (c->shape.told && !gpu_wanted()) return; /* refused there */
  compute(c, (page_layout){0}, "decode", "general");
}
END_TEST

START_TEST(left_to_general) {
  if (gpu_leaves_case("left to general", _i)) return;
  compute(&left[_i], (page_layout){0}, "general", "decode");
}
END_TEST

START_TEST(computed_through_pages) {
  if (gpu_leaves_case("computed through pages", _i)) return;
  bool goes = _i < PAGED;
  const paged_case *c = goes ? &paged[_i] : &paged_left[_i - PAGED];
  compute(&c->of, c->pages, goes ? "decode" : "general", goes ? "general" : "decode");
}
END_TEST

/* ---- the same bits alone or in a batch ----------------------------------- */

enum { BATCH = 64, KEYS = 1200 };

static const char *const batched[] = {
    P("heads 4 kv 1; head_dim 32; dtype bf16;", "causal; branch { }"),
    P("heads 4 kv 1; head_dim 32; dtype f32;", "causal; branch { }"),
    P("heads 4 kv 2; head_dim 16; dtype f16;",
      "causal; segments 128, 256, 512; dilations 1, 2, 4;"),
    P("heads 2; head_dim 32; dtype bf16;",
      "causal; sink 0.5; mask j < 8 || i - j < 700; score s - 0.01 * (i - j);"
      " branch { }"),
    P("heads 2; head_dim 20; dtype f16;", "branch { window 600, 9; }"),
};
static const int64_t queries[] = {1, 5, 63};

static int64_t batch_stride(const dil_tensor *t) {
  return t->stride[0] * (int64_t)dil_dtype_size(t->dtype);
}

/* Rows first .. first + count - 1 of a batch. */
static data rows_of(const data *d, int64_t first, int64_t count) {
  data part = *d;
  dil_call *c = &part.call;
  dil_tensor *const tensors[] = {&c->q, &c->k, &c->v, &c->o, &c->lse};
  for (int i = 0; i < 5; i++) {
    tensors[i]->data =
        (char *)tensors[i]->data + first * batch_stride(tensors[i]);
    tensors[i]->shape[0] = count;
  }
  c->lengths += first;
  part.shape.batch = count;
  return part;
}

/* A batch row by itself: its keys, and no lengths. */
static data row_alone(const data *d, int64_t row) {
  data part = rows_of(d, row, 1);
  part.call.k.shape[1] = part.call.v.shape[1] = d->call.lengths[row];
  part.call.lengths = NULL;
  return part;
}

/* The bits of o and lse of batch row `row` of a call: [N, H, Dv + 1]. */
static size_t row_bits(const data *d, int64_t row, double *out) {
  const dil_tensor *o = &d->call.o, *lse = &d->call.lse;
  size_t count = 0;
  for (int64_t n = 0; n < o->shape[1]; n++)
    for (int64_t h = 0; h < o->shape[2]; h++) {
      for (int64_t x = 0; x < o->shape[3]; x++)
        out[count++] = dil_element_read(
            o->data, o->dtype, tensor_index(o, (int64_t[]){row, n, h, x}));
      out[count++] = dil_element_read(
          lse->data, DIL_F32,
          row * lse->stride[0] + h * lse->stride[1] + n * lse->stride[2]);
    }
  return count;
}

static void run_part(data *part, kernel_made *k, const char *text) {
  dil_status status = data_run(part, k);
  ck_assert_msg(!status, "%s: %s", text, dil_last_error());
}

/* Compares every row of a part of the batch with what the whole batch gave. */
static void same_bits(const data *part, int64_t first, const double *whole,
                      size_t size, const char *text) {
  double *bits = malloc(size * sizeof *bits);
  for (int64_t row = 0; row < part->call.q.shape[0]; row++) {
    row_bits(part, row, bits);
    ck_assert_msg(
        !memcmp(bits, whole + (size_t)(first + row) * size,
                size * sizeof *bits),
        "%s: row %d of %d keys has other bits at place %d of a batch of %d",
        text, (int)(first + row), (int)part->call.k.shape[1], (int)row,
        (int)part->call.q.shape[0]);
  }
  free(bits);
}

/* Every row in batches of several sizes, at every place of those of 2 and 3. */
static void try_batches(const data *d, kernel_made *k, const double *whole,
                        size_t size, const char *text) {
  static const int64_t counts[] = {2, 3, 9, 33};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    int64_t count = counts[i], step = count > 3 ? count - 2 : 1;
    for (int64_t first = 0; first + count <= BATCH; first += step) {
      data part = rows_of(d, first, count);
      run_part(&part, k, text);
      same_bits(&part, first, whole, size, text);
    }
  }
}

static void try_alone(const data *d, kernel_made *k, const double *whole,
                      size_t size, const char *text) {
  for (int64_t row = 0; row < BATCH; row++) {
    data part = rows_of(d, row, 1);
    run_part(&part, k, text);
    same_bits(&part, row, whole, size, text);
    part = row_alone(d, row);
    if (part.call.k.shape[1] == 0) continue;
    run_part(&part, k, text);
    same_bits(&part, row, whole, size, text);
  }
}

START_TEST(alone_or_in_a_batch) {
  const char *text = batched[_i / 3];
  int32_t lengths[BATCH];
  if (gpu_leaves_case("alone or in a batch", _i)) return;
  for (int32_t b = 0; b < BATCH; b++)
    lengths[b] = b % 9 == 5 ? b % 2 : KEYS - b * 37 % KEYS;
  tested_pattern *s = tested_pattern_new("batches", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s: %s", text, s->problem);
  data *d = data_new(s, (call_shape){.batch = BATCH, .queries = queries[_i % 3],
                                     .keys = KEYS, .seed = 3,
                                     .lengths = lengths});
  kernel_made *k = kernel_make(s, (recipe){0});
  run_part(d, k, text);
  ck_assert_msg(data_compare(d)[0] == 0, "%s: %s", text, data_compare(d));
  size_t size = (size_t)(d->call.o.shape[1] * d->call.o.shape[2] *
                         (d->call.o.shape[3] + 1));
  double *whole = malloc(BATCH * size * sizeof *whole);
  for (int64_t row = 0; row < BATCH; row++)
    row_bits(d, row, whole + (size_t)row * size);
  try_alone(d, k, whole, size, text);
  try_batches(d, k, whole, size, text);
  free(whole);
  kernel_unmake(k);
  data_free(d);
  tested_pattern_free(s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("decode");
  TCase *tests = tcase_create("cases");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, computed, 0, CASES);
  tcase_add_loop_test(tests, left_to_general, 0, LEFT);
  tcase_add_loop_test(tests, computed_through_pages, 0, PAGED + PAGED_LEFT);
  suite_add_tcase(suite, tests);
  TCase *batches = tcase_create("batches");
  tcase_set_timeout(batches, 600);
  tcase_add_loop_test(batches, alone_or_in_a_batch, 0,
                      3 * sizeof batched / sizeof *batched);
  suite_add_tcase(suite, batches);
  return suite_run(suite, CK_FORK_GETENV);
}
