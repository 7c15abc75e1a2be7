/* test_rerun.c - the same kernel on the same call gives the same bits every
 * time: a few times on the CPU, a thousand times on a GPU. */
#include "tests/support/gpu.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define P(body) "pattern p { heads 4; head_dim 64; dtype f32; " body " }"

static const int32_t ragged[] = {700, 0, 431};

static const struct {
  const char *text;
  call_shape shape;
} cases[] = {
    {P("causal; segments 64, 128, 256; dilations 1, 2, 4;"),
     {.batch = 1, .queries = 300, .keys = 300, .seed = 3}},
    {P("combine mean; branch { segment 90; } branch { dilation 3; }"),
     {.batch = 2, .queries = 200, .keys = 200, .seed = 4}},
    {P("causal; branch { }"), /* few queries: the keys are split */
     {.batch = 1, .queries = 2, .keys = 5000, .seed = 5}},
    {P("combine union; branch { window 30, 30; } branch { mask j % 9 == 0; }"),
     {.batch = 1, .queries = 250, .keys = 250, .seed = 6}},
    /* in bf16 these are the Hopper kernel's: cells that cross, state between
     * passes */
    {P("causal; segments 300, 500; dilations 1, 2;"),
     {.batch = 1, .queries = 900, .keys = 900, .seed = 7}},
    {P("combine mean; segments 256, 512; dilations 1, 2;"),
     {.batch = 1, .queries = 700, .keys = 700, .seed = 8}},
    /* batch rows of fewer keys */
    {P("causal; segments 256, 512; dilations 1, 2;"),
     {.batch = 3, .queries = 700, .keys = 700, .seed = 9, .lengths = ragged}},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static void expect_same_bits(data *d, kernel_made *k, int32_t runs) {
  const dil_tensor *o = &d->call.o, *lse = &d->call.lse;
  size_t o_size = (size_t)dil_tensor_count(o) * dil_dtype_size(o->dtype);
  size_t lse_size =
      lse->data ? (size_t)dil_tensor_count(lse) * sizeof(float) : 0;
  unsigned char *first = malloc(o_size + lse_size);
  for (int32_t run = 0; run < runs; run++) {
    ck_assert_msg(data_run(d, k) == DIL_OK, "%s", dil_last_error());
    if (run == 0) {
      memcpy(first, o->data, o_size);
      if (lse_size) memcpy(first + o_size, lse->data, lse_size);
    }
    ck_assert_msg(!memcmp(first, o->data, o_size), "o differs at run %d", run);
    ck_assert_msg(!lse_size || !memcmp(first + o_size, lse->data, lse_size),
                  "lse differs at run %d", run);
  }
  free(first);
}

START_TEST(rerun) {
  static const dil_dtype dtypes[] = {DIL_F32, DIL_BF16};
  for (int i = 0; i < 2; i++) {
    tested_pattern *s = tested_pattern_new("rerun", cases[_i].text, NULL, 0);
    ck_assert_msg(s->pattern != NULL, "%s", s->problem);
    tested_pattern_retype(s, dtypes[i]);
    data *d = data_new(s, cases[_i].shape);
    kernel_made *k = kernel_make(s, (recipe){0});
    expect_same_bits(d, k, gpu_wanted() ? 1000 : 10);
    kernel_unmake(k);
    data_free(d);
    tested_pattern_free(s);
  }
}
END_TEST

/* Inputs are read-only pages once they are made. */
static void change_lengths(const data *d, const int32_t *to, size_t size) {
  void *bytes = (void *)(uintptr_t)d->call.lengths;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  void *from = (void *)((uintptr_t)bytes / page * page);
  ck_assert_int_eq(mprotect(from, page, PROT_READ | PROT_WRITE), 0);
  memcpy(bytes, to, size);
}

/* A length outside 0..M: refused where the host can look, the nearer of the two
 * on a GPU, where nothing waits to. */
START_TEST(length_outside) {
  static const dil_dtype dtypes[] = {DIL_F32, DIL_BF16};
  static const int32_t inside[] = {0, 130}, outside[] = {-7, 2000000000};
  tested_pattern *s = tested_pattern_new(
      "lengths", P("causal; branch { segment 50; }"), NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  tested_pattern_retype(s, dtypes[_i]);
  data *d = data_new(s, (call_shape){.batch = 2, .queries = 130, .keys = 130,
                                     .seed = 7, .lengths = inside});
  kernel_made *k = kernel_make(s, (recipe){0});
  size_t size = (size_t)dil_tensor_count(&d->call.o) *
                dil_dtype_size(d->call.o.dtype);
  void *first = malloc(size);
  ck_assert_msg(data_run(d, k) == DIL_OK, "%s", dil_last_error());
  memcpy(first, d->call.o.data, size);
  change_lengths(d, outside, sizeof outside);
  dil_status status = data_run(d, k);
  if (gpu_wanted()) {
    ck_assert_msg(status == DIL_OK, "%s", dil_last_error());
    ck_assert(!memcmp(first, d->call.o.data, size));
  } else {
    ck_assert_int_eq(status, DIL_USAGE);
    ck_assert_ptr_nonnull(
        strstr(dil_last_error(), "lengths[0] must be within 0 and 130"));
  }
  free(first);
  kernel_unmake(k);
  data_free(d);
  tested_pattern_free(s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("rerun");
  TCase *tests = tcase_create("rerun");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, rerun, 0, CASES);
  TCase *lengths = tcase_create("lengths");
  tcase_add_loop_test(lengths, length_outside, 0, 2);
  suite_add_tcase(suite, lengths);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
