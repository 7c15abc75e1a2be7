/* test_harness.c - the numeric harness notices what it is there to notice: a
 * wrong element, a row not written, a byte beside the output, a read beyond an
 * input, a wrong lse. Without this, a green numeric suite proves nothing. And
 * what tests share in the store is what each would have made. */
#include "tests/support/numeric.h"
#include "tests/support/store.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const char text[] =
    "pattern p { heads 2; head_dim 8; dtype f32; branch { segment 32; } }";

static tested_pattern *s;
static data *d;
static kernel_made *k;

/* Under AddressSanitizer, too, a bad access has to end as a signal. */
__attribute__((visibility("default"))) /* the sanitizer looks for it */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "handle_segv=0"; }

static void set_up(void) {
  s = tested_pattern_new("harness", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  d = data_new(s, (call_shape){.batch = 1, .queries = 40, .keys = 50,
                               .seed = 3, .layout = GUARD_HOLES});
  k = kernel_make(s, (recipe){0});
}
static void tear_down(void) {
  kernel_unmake(k);
  data_free(d);
  tested_pattern_free(s);
}

START_TEST(right_is_right) { ck_assert_str_eq(data_problem(d, k), ""); }
END_TEST

START_TEST(wrong_element) {
  d->o[77] += 1e-3;
  ck_assert_ptr_nonnull(strstr(data_problem(d, k), "o off by"));
  ck_assert_ptr_nonnull(strstr(data_problem(d, k), "row 4 h 1 element 5"));
}
END_TEST

/* Too little for the whole. */
START_TEST(slightly_wrong_element) {
  d->o[77] += 1e-5;
  ck_assert_ptr_nonnull(strstr(data_problem(d, k), "an element by"));
  ck_assert(data_error(d, &(double){0}) < o_bound(d));
}
END_TEST

START_TEST(wrong_lse) {
  d->lse[3] += 1e-4;
  ck_assert_ptr_nonnull(strstr(data_problem(d, k), "lse by 0.0001"));
}
END_TEST

START_TEST(infinity_is_no_number) {
  d->lse[0] = -INFINITY;
  ck_assert_ptr_nonnull(strstr(data_problem(d, k), "lse by inf"));
}
END_TEST

START_TEST(nan_is_not_zero) {
  d->o[0] = NAN;
  ck_assert_ptr_nonnull(strstr(data_problem(d, k), "o off by inf"));
}
END_TEST

static double huge_key(int32_t tensor, const int64_t *at, double number) {
  return tensor == 1 && at[1] == 9 && at[3] == 4 ? -INFINITY : number;
}

/* Scores without end widen no bound. */
START_TEST(infinite_scores) {
  data *huge = data_new(s, (call_shape){.batch = 1, .queries = 40, .keys = 50,
                                        .seed = 3, .element = huge_key});
  ck_assert(o_bound(huge) < 1e-4 && lse_bound(huge) < 1e-3);
  ck_assert_str_eq(data_problem(huge, k), "");
  huge->o[39 * 2 * 8] = NAN;
  ck_assert_ptr_nonnull(strstr(data_problem(huge, k), "row 39 h 0 element 0"));
  data_free(huge);
}
END_TEST

START_TEST(row_not_written) {
  double lse_error;
  ck_assert_int_eq(data_run(d, k), DIL_OK);
  ck_assert(data_error(d, &lse_error) < o_bound(d));
  memset(d->call.o.data, 0xFF, 8 * sizeof(float)); /* NaN */
  ck_assert(isinf(data_error(d, &lse_error)));
}
END_TEST

START_TEST(byte_beside) {
  guard g;
  dil_tensor t = guard_tensor(&g, DIL_F16, (const int64_t[]){2, 3, 2, 5},
                              GUARD_HOLES, true);
  guard_snapshot(&g);
  for (int64_t x = 0; x < 5; x++)
    dil_element_write(t.data, t.dtype,
                      tensor_index(&t, (int64_t[]){1, 2, 1, x}), 7);
  ck_assert(guard_intact(&g, &t));
  dil_element_write(t.data, t.dtype,
                    tensor_index(&t, (int64_t[]){1, 2, 1, 4}) + 1, 7);
  ck_assert(!guard_intact(&g, &t));
  guard_free(&g);
}
END_TEST

START_TEST(read_beyond) {
  guard g;
  dil_tensor t = guard_tensor(&g, DIL_F32, (const int64_t[]){1, 3, 2, 5},
                              GUARD_PLAIN, true);
  volatile float *end = (float *)t.data + 30;
  (void)*end;
}
END_TEST

START_TEST(write_to_input) { *(volatile float *)d->call.k.data = 1; }
END_TEST

START_TEST(unseen_rows_are_nan) { /* 40 queries stand at positions 10..49 */
  const dil_tensor *v = &d->call.v;
  int64_t n = 0;
  for (int64_t j = 0; j < 50; j++)
    n += isnan(dil_element_read(v->data, v->dtype,
                                tensor_index(v, (int64_t[]){0, j, 1, 0})));
  ck_assert_int_eq(n, 0); /* segment 0 is seen by 10..31 */
  tested_pattern *narrow =
      tested_pattern_new("narrow",
                         "pattern p { heads 2; head_dim 8; dtype f32; "
                         "branch { window 0, 0; } }",
                         NULL, 0);
  data *other = data_new(narrow, (call_shape){.batch = 1, .queries = 40,
                                              .keys = 50});
  v = &other->call.v;
  for (int64_t j = 0; j < 50; j++)
    n += isnan(dil_element_read(v->data, v->dtype,
                                tensor_index(v, (int64_t[]){0, j, 1, 0})));
  ck_assert_int_eq(n, 10);
  data_free(other);
  tested_pattern_free(narrow);
}
END_TEST

/* An object from the store is that of the same IR and instruction set, byte by
 * byte; a store gives back what stood under the key, and nothing else. */
START_TEST(stored_objects) {
  char folder[] = "/tmp/dil-store-XXXXXX", command[80];
  tested_pattern *longer = tested_pattern_new(
      "longer", "pattern p { heads 2; head_dim 8; dtype f32; branch { segment "
      "64; } }", NULL, 0);
  plan *plans[] = {k->plan, plan_make(longer->memory, diag_new(longer->memory),
                                      longer->pattern, 0)};
  void *bytes[3];
  size_t size[3];
  dil_code code[3];
  stored found;
  unsetenv("DIL_TEST_STORE");
  for (int i = 0; i < 3; i++) { /* compiled, put there, found */
    if (i == 1) ck_assert(!setenv("DIL_TEST_STORE", mkdtemp(folder), 1));
    ck_assert_int_eq(plan_variant(plans[i / 2], DIL_TILES, &bytes[i], &size[i],
                                  &code[i]), DIL_OK);
    ck_assert_uint_eq(size[i], size[0]);
    ck_assert_mem_eq(bytes[i], bytes[0], size[0]);
    ck_assert_mem_eq(&code[i], &code[0], sizeof code[0]);
  }
  store_put("kind", "key", 3, "value", 5);
  ck_assert(store_find("kind", "key", 3, &found) && found.size == 5);
  ck_assert_mem_eq(found.bytes, "value", 5);
  free(found.bytes);
  ck_assert(!store_find("other", "key", 3, &found));
  ck_assert(!store_find("kind", "keys", 4, &found));
  for (int i = 0; i < 3; i++) free(bytes[i]);
  snprintf(command, sizeof command, "test $(ls %s | wc -l) -eq 2 && rm -r %s",
           folder, folder); /* the two plans have one object */
  ck_assert_int_eq(system(command), 0);
  tested_pattern_free(longer);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("harness");
  TCase *tests = tcase_create("harness");
  tcase_add_checked_fixture(tests, set_up, tear_down);
  tcase_add_test(tests, right_is_right);
  tcase_add_test(tests, wrong_element);
  tcase_add_test(tests, slightly_wrong_element);
  tcase_add_test(tests, wrong_lse);
  tcase_add_test(tests, infinity_is_no_number);
  tcase_add_test(tests, nan_is_not_zero);
  tcase_add_test(tests, infinite_scores);
  tcase_add_test(tests, row_not_written);
  tcase_add_test(tests, byte_beside);
  tcase_add_test_raise_signal(tests, read_beyond, SIGSEGV);
  tcase_add_test_raise_signal(tests, write_to_input, SIGSEGV);
  tcase_add_test(tests, unseen_rows_are_nan);
  tcase_add_test(tests, stored_objects);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK); /* two of them must crash */
}
