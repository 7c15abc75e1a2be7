/* test_pages.c - keys and values in pages of a cache: the bits of the same call
 * without pages on processors, and the oracle's answer everywhere. */
#include "compiler/oracle/oracle.h"
#include "tests/support/edge.h"
#include "tests/support/gpu.h"
#include "tests/support/paged.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

#define G(body) "pattern p { heads 8 kv 2; head_dim 32; dtype f32; " body " }"

static const int32_t four[] = {512, 0, 1, 300}, full[] = {768, 768};

/* Keys and values that do not depend on the batch row. */
static double same_batches(int32_t tensor, const int64_t *at, double number) {
  double x = (double)((at[1] * 131 + at[2] * 31 + at[3] * 7) % 23) / 8 - 1.4;
  return tensor == 0 ? number : tensor == 1 ? x : x * x - 1;
}

static const edge cases[] = {
    {"causal", G("causal; branch { }"), S(512, 512)},
    {"LongNet", G("causal; " LONGNET), S(256, 256)},
    {"one query", G("causal; branch { }"),
     {.batch = 2, .queries = 1, .keys = 4096}},
    {"few queries, dilated", G("branch { segment 200; dilation 3; } "
     "branch { segment 500; }"), S(3, 1280)},
    {"few queries, union", G("combine union; branch { window 60, 0; } branch { "
     "dilation 4; phase 1; }"), S(4, 512)},
    {"lengths", G("causal; branch { }"),
     {.batch = 4, .queries = 9, .keys = 512, .lengths = four}},
    {"lengths, many queries", G("causal; " LONGNET),
     {.batch = 4, .queries = 300, .keys = 512, .lengths = four}},
    {"one query, lengths", G("causal; branch { }"),
     {.batch = 4, .queries = 1, .keys = 512, .lengths = four}},
    {"documents", G("input doc : i32[B, M]; mask doc[b, i] == doc[b, j]; "
     "branch { }"), {.batch = 2, .queries = 256, .keys = 256}},
    {"a table", G("block 16; input kept : u8[H, nb, nb]; keep from kept; "
     "branch { }"), S(256, 256)},
    {"a bias", G("input slope : f32[H]; score s - slope[h] * (i - j); causal; "
     "branch { }"), S(256, 256)},
    {"sinks", G("sink 1.5; causal; branch { segment 96; }"), S(256, 256)},
    {"mean", G("combine mean; branch { segment 64; } branch { dilation 2; }"),
     S(256, 256)},
    {"wide heads", "pattern p { heads 2; head_dim 160 value 72; dtype f32; "
     "causal; branch { } }", S(70, 256)},
    {"heads before rows", G("causal; branch { }"),
     S_(64, 256, .layout = GUARD_HEADS)},
    {"rows backwards", G("causal; branch { }"),
     S_(2, 1280, .layout = GUARD_BACKWARD)},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static const int64_t page_rows[] = {1, 16, 64, 256};

/* The bits of o and lse as they stand. */
typedef struct bits {
  size_t size, lse_size;
  unsigned char *bytes;
} bits;

static bits bits_take(const data *d) {
  const dil_tensor *o = &d->call.o, *lse = &d->call.lse;
  int64_t at[DIL_RANK_MAX] = {0};
  bits b = {.size = (size_t)dil_tensor_count(o) * sizeof(double)};
  b.lse_size = lse->data ? (size_t)dil_tensor_count(lse) * sizeof(float) : 0;
  b.bytes = calloc(b.size + b.lse_size + 1, 1);
  double *to = (double *)(void *)b.bytes;
  for (bool more = b.size > 0; more; more = tensor_next(o, at))
    *to++ = dil_element_read(o->data, o->dtype, tensor_index(o, at));
  if (b.lse_size) memcpy(b.bytes + b.size, lse->data, b.lse_size);
  return b;
}

static void expect_bits(const data *d, const bits *want, const char *name,
                        int64_t rows) {
  bits now = bits_take(d);
  ck_assert_msg(!memcmp(now.bytes, want->bytes, want->size + want->lse_size),
                "%s, %s, pages of %d: other bits than without pages", name,
                dil_dtype_name(d->pattern->dtype), (int)rows);
  free(now.bytes);
}

/* One kernel without pages, and with them. */
static void try_kernel(const tested_pattern *s, call_shape shape,
                       page_layout layout, recipe way) {
  kernel_made *k = kernel_make(s, way);
  data *d = data_new(s, shape);
  if (!k->refused) {
    const char *problem = data_problem(d, k);
    ck_assert_msg(!*problem, "%s: %s", s->name, problem);
    bits want = bits_take(d);
    paged_lay_out(d, layout);
    problem = data_problem(d, k);
    ck_assert_msg(!*problem, "%s, %s, pages of %d: %s", s->name,
                  dil_dtype_name(s->pattern->dtype), (int)layout.rows, problem);
    if (!gpu_wanted()) expect_bits(d, &want, s->name, layout.rows);
    free(want.bytes);
  }
  data_free(d);
  kernel_unmake(k);
}

/* By all plans and instruction sets, or by the host's own way. */
static void try_pages(const edge *e, page_layout layout, dil_dtype dtype,
                      bool all_ways) {
  forced list[FORCES_MOST];
  tested_pattern *s = tested_pattern_new(e->name, e->text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  tested_pattern_retype(s, dtype);
  call_shape shape = e->shape;
  shape.seed = 11 + (uint32_t)dtype;
  forces_of(s, list);
  if (!all_ways) try_kernel(s, shape, layout, (recipe){0});
  for (const char *const *isa = cpu_isas(); all_ways && *isa; isa++)
    for (const forced *f = list; f->name; f++)
      try_kernel(s, shape, layout, (recipe){.isa = *isa, .force = f->force});
  tested_pattern_free(s);
}

/* All sizes of pages in f32; the other types with one size each. On a GPU, which
 * asks for kernels of its own in each, one of these. */
START_TEST(pages) {
  const edge *e = &cases[_i];
  if (gpu_leaves_case("pages", _i)) return;
  if (gpu_wanted()) {
    try_pages(e, (page_layout){.rows = page_rows[_i % 4]},
              (dil_dtype)(_i / 2 % 3), false);
    return;
  }
  for (size_t i = 0; i < sizeof page_rows / sizeof *page_rows; i++)
    try_pages(e, (page_layout){.rows = page_rows[i]}, DIL_F32, false);
  try_pages(e, (page_layout){.rows = 16}, DIL_BF16, true);
  try_pages(e, (page_layout){.rows = 64}, DIL_F16, false);
}
END_TEST

/* Batch rows that have the same pages, in part of their lengths. */
START_TEST(shared_pages) {
  static const int32_t lengths[] = {512, 511, 40};
  static const edge few = {"shared, few queries", G("causal; branch { }"),
                           {.batch = 3, .queries = 2, .keys = 512,
                            .lengths = lengths, .element = same_batches,
                            .clean = true}};
  static const edge many = {"shared", G("causal; " LONGNET),
                            {.batch = 3, .queries = 130, .keys = 512,
                             .lengths = lengths, .element = same_batches,
                             .clean = true}};
  if (gpu_leaves_case("shared pages", CASES)) return;
  for (dil_dtype dtype = DIL_F32; dtype <= DIL_BF16; dtype++) {
    try_pages(&few, (page_layout){.rows = 16, .shared = true}, dtype,
              false);
    try_pages(&many, (page_layout){.rows = 64, .shared = true}, dtype,
              false);
  }
}
END_TEST

/* The definition sees the same keys through pages as without them. */
START_TEST(oracle_reads_pages) {
  if (gpu_leaves_case("oracle", CASES + 5)) return;
  tested_pattern *s =
      tested_pattern_new("oracle", G("causal; " LONGNET), NULL, 0);
  data *d = data_new(s, (call_shape){.batch = 2, .queries = 40, .keys = 768,
                                     .seed = 3, .lengths = full});
  data_forget(d);
  ck_assert_int_eq(oracle_run(s->pattern, &d->call), DIL_OK);
  bits want = bits_take(d);
  paged_lay_out(d, (page_layout){.rows = 32});
  data_forget(d);
  ck_assert_msg(!oracle_run(s->pattern, &d->call), "%s", dil_last_error());
  expect_bits(d, &want, "oracle", 32);
  free(want.bytes);
  data_free(d);
  tested_pattern_free(s);
}
END_TEST

/* A page outside the pool: refused where the host can look. On a GPU its keys do
 * not count: the answer is that of a mask without them. */
START_TEST(absent_page) {
  static const int32_t lengths[] = {200, 230};
  static const struct {
    int64_t queries;
    const char *plain, *masked;
  } of[] = {
      {1, G("causal; branch { }"), G("causal; mask j < 64 || j >= 96; "
       "branch { }")},
      {130, G("causal; branch { }"), G("causal; mask j < 64 || j >= 96; "
       "branch { }")},
      {70, G("combine union; branch { window 20, 20; } branch { dilation 3; }"),
       G("combine union; mask j < 64 || j >= 96; branch { window 20, 20; } "
       "branch { dilation 3; }")},
      {70, G("mask (i + j) % 7 != 2; branch { }"),
       G("mask (i + j) % 7 != 2 && (j < 64 || j >= 96); branch { }")}};
  if (gpu_leaves_case("absent page", CASES + 1 + _i)) return;
  for (dil_dtype dtype = DIL_F32; dtype <= DIL_BF16; dtype++) {
    if (gpu_wanted() && (int)dtype != _i % 2) continue;
    tested_pattern *plain = tested_pattern_new("plain", of[_i].plain, NULL, 0);
    tested_pattern *masked = tested_pattern_new("masked", of[_i].masked, NULL, 0);
    ck_assert_msg(masked->pattern && plain->pattern, "%s", masked->problem);
    tested_pattern_retype(plain, dtype);
    tested_pattern_retype(masked, dtype);
    kernel_made *k = kernel_make(plain, (recipe){0});
    data *d = data_new(masked, (call_shape){.batch = 2, .seed = 5, .keys = 256,
                                            .queries = of[_i].queries,
                                            .lengths = lengths});
    paged_lay_out(d, (page_layout){.rows = 32, .absent = 2});
    if (gpu_wanted()) {
      const char *problem = data_problem(d, k);
      ck_assert_msg(!*problem, "%s", problem);
    } else {
      ck_assert_int_eq(data_run(d, k), DIL_USAGE);
      ck_assert_str_eq(dil_last_error(),
                       "pages[0, 2] is -7, and k and v have 18 pages");
    }
    kernel_unmake(k);
    data_free(d);
    tested_pattern_free(plain);
    tested_pattern_free(masked);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("pages");
  TCase *tests = tcase_create("pages");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, pages, 0, CASES);
  tcase_add_test(tests, shared_pages);
  tcase_add_test(tests, oracle_reads_pages);
  tcase_add_loop_test(tests, absent_page, 0, 4);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
