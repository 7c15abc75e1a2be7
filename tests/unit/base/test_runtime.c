/* test_runtime.c - statuses, element types, random numbers, peak and modules.
 *
 * Conversions are held to rounding done in float64 arithmetic, Philox to the
 * published known-answer vectors of its authors. */
#include "runtime/base/lists.h"
#include "runtime/base/module.h"
#include "runtime/base/process.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include "runtime/cpu/isa.h"
#include "runtime/cpu/peak.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- status.c ------------------------------------------------------------ */

START_TEST(status_has_text) {
  ck_assert_str_eq(dil_status_text(DIL_OK), "success");
  ck_assert_str_eq(dil_status_text(DIL_INTERNAL), "internal error");
  ck_assert_str_eq(dil_status_text((dil_status)12345), "unknown status");
}
END_TEST

static void *fail_elsewhere(void *unused) {
  (void)unused;
  ck_assert_str_eq(dil_last_error(), "");
  dil_fail(DIL_INPUT, "another thread");
  return NULL;
}

START_TEST(failure_is_remembered_by_thread) {
  ck_assert_int_eq(dil_fail(DIL_USAGE, "row %d", 7), DIL_USAGE);
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
  pthread_join(thread, NULL);
  ck_assert_str_eq(dil_last_error(), "row 7");
  dil_fail(DIL_INPUT, "q: %s", dil_last_error());
  ck_assert_str_eq(dil_last_error(), "q: row 7");
}
END_TEST

START_TEST(long_failure_ends_in_dots) {
  static char text[10000];
  memset(text, 'a', sizeof text - 1);
  dil_fail(DIL_INPUT, "%s", text);
  size_t length = strlen(dil_last_error());
  ck_assert_uint_lt(length, sizeof text - 1);
  ck_assert_str_eq(dil_last_error() + length - 4, "a...");
}
END_TEST

/* ---- tensor.c ------------------------------------------------------------ */

/* value to `digits` significant binary digits, the last no smaller than
 * 2^lowest; beyond `largest` infinity. Ties to even, by nearbyint. */
static double nearest(double value, int digits, int lowest, double largest) {
  int exponent;
  if (value == 0 || !isfinite(value)) return value;
  frexp(value, &exponent);
  int unit = exponent - digits > lowest ? exponent - digits : lowest;
  double rounded = ldexp(nearbyint(ldexp(value, -unit)), unit);
  return fabs(rounded) > largest ? copysign(INFINITY, value) : rounded;
}

static double nearest_f16(double value) {
  return nearest(value, 11, -24, 65504);
}

static double nearest_bf16(double value) {
  return nearest(value, 8, -133, 0x1.fep127);
}

/* Asserts on failure only: Check writes to a file at each assertion. */
static void check_same(double got, double want, double from) {
  bool same = isnan(want) ? isnan(got)
                          : got == want && !signbit(got) == !signbit(want);
  if (!same) ck_abort_msg("%a gives %a, not %a", from, got, want);
}

static void check_f32(float value) {
  check_same((double)dil_f16_to_f32(dil_f32_to_f16(value)),
             nearest_f16((double)value), (double)value);
  check_same((double)dil_bf16_to_f32(dil_f32_to_bf16(value)),
             nearest_bf16((double)value), (double)value);
}

static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

START_TEST(every_16_bit_float_survives) {
  for (uint32_t bits = 0; bits < 0x10000; bits++) {
    float half = dil_f16_to_f32((uint16_t)bits);
    float brain = dil_bf16_to_f32((uint16_t)bits);
    uint16_t half_bits = dil_f32_to_f16(half);
    uint16_t brain_bits = dil_f32_to_bf16(brain);
    if (isnan(half) ? !isnan(dil_f16_to_f32(half_bits)) : half_bits != bits)
      ck_abort_msg("f16 %04x became %04x", bits, half_bits);
    if (isnan(brain) ? !isnan(dil_bf16_to_f32(brain_bits)) : brain_bits != bits)
      ck_abort_msg("bf16 %04x became %04x", bits, brain_bits);
  }
}
END_TEST

START_TEST(f16_bits_mean_what_they_say) {
  ck_assert(dil_f16_to_f32(0x3c00) == 1.0f);
  ck_assert(dil_f16_to_f32(0x0001) == 0x1p-24f);
  ck_assert(dil_f16_to_f32(0x03ff) == 0x1.ff8p-15f);
  ck_assert(dil_f16_to_f32(0x0400) == 0x1p-14f);
  ck_assert(dil_f16_to_f32(0x7bff) == 65504.0f);
  ck_assert(dil_f16_to_f32(0xfc00) == -INFINITY);
  ck_assert(dil_bf16_to_f32(0x3f80) == 1.0f);
}
END_TEST

/* Around every 16-bit value: it, the midpoint to the next, and neighbours. */
START_TEST(rounding_is_to_nearest_even) {
  static const int32_t near[] = {-1, 0, 1};
  for (uint32_t high = 0; high < 0x10000; high++)
    for (int i = 0; i < 3; i++) {
      check_f32(float_of((high << 16) + (uint32_t)near[i]));
      check_f32(float_of((high << 16 | 0x8000) + (uint32_t)near[i]));
      check_f32(float_of((high << 13 | 0x1000) + 0x30000000 +
                         (uint32_t)near[i]));
    }
  uint32_t bits = 1;
  for (int i = 0; i < 300000; i++) {
    bits = bits * 1664525 + 1013904223;
    check_f32(float_of(bits));
  }
}
END_TEST

START_TEST(nan_stays_nan) {
  ck_assert(isnan(dil_f16_to_f32(dil_f32_to_f16(float_of(0x7f800001)))));
  ck_assert(isnan(dil_bf16_to_f32(dil_f32_to_bf16(float_of(0x7f800001)))));
  ck_assert(isnan(dil_bf16_to_f32(dil_f32_to_bf16(float_of(0xffffffff)))));
}
END_TEST

/* A float64 just above a midpoint must not be rounded twice. */
START_TEST(element_write_rounds_once) {
  static const double values[] = {
      1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-11 - 0x1p-40, 1 + 0x1p-11,
      1 + 0x1p-8 + 0x1p-40,  1 + 0x1p-8,            -0x1p-25 - 0x1p-70,
      65519.999999999,       65520,                 1e300,
      -1e-300,               0x1.ffp127 - 0x1p60,   0.1};
  uint16_t bits[2];
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    dil_element_write(bits, DIL_F16, 1, values[i]);
    check_same(dil_element_read(bits, DIL_F16, 1), nearest_f16(values[i]),
               values[i]);
    dil_element_write(bits, DIL_BF16, 1, values[i]);
    check_same(dil_element_read(bits, DIL_BF16, 1), nearest_bf16(values[i]),
               values[i]);
  }
}
END_TEST

START_TEST(integer_elements_are_clipped) {
  int32_t words[2] = {0, 0};
  uint8_t bytes[2] = {0, 0};
  dil_element_write(words, DIL_I32, 1, -3e9);
  ck_assert_int_eq(words[1], INT32_MIN);
  dil_element_write(words, DIL_I32, 1, (double)NAN);
  ck_assert_int_eq(words[1], 0);
  dil_element_write(words, DIL_I32, 1, -7);
  ck_assert(dil_element_read(words, DIL_I32, 1) == -7);
  dil_element_write(bytes, DIL_U8, 1, 300);
  ck_assert_int_eq(bytes[1], 255);
  ck_assert_int_eq(bytes[0], 0);
}
END_TEST

/* ---- lists --------------------------------------------------------------- */

static const dil_input block_lists = {
    .rank = 3, .rows = 0, .cols = 1, .query_block = 64, .block = 64};

/* Bits of two heads say which blocks entries name; 70 blocks fill no word. */
START_TEST(bits_of_lists_are_their_entries) {
  enum { HEADS = 2, BLOCKS = 70, ROOM = 500, M = 64 * BLOCKS - 3 };
  int32_t start[HEADS][BLOCKS + 1], entry[HEADS][ROOM];
  for (int h = 0; h < HEADS; h++) {
    for (int e = 0; e < ROOM; e++)
      entry[h][e] = (e * 37 + h * 11) % (BLOCKS + 4) - 2;
    for (int r = start[h][0] = 0; r < BLOCKS; r++)
      start[h][r + 1] = start[h][r] + (r * 5 + h) % 8;
  }
  dil_tensor rows = dil_tensor_make(start, DIL_I32, 2,
                                    (int64_t[]){HEADS, BLOCKS + 1});
  dil_tensor cols = dil_tensor_make(entry, DIL_I32, 2,
                                    (int64_t[]){HEADS, ROOM});
  static uint8_t bytes[HEADS * BLOCKS * BLOCKS];
  static uint32_t words[HEADS * BLOCKS * 3];
  memset(words, 0xff, sizeof words);
  dil_tensor bits = dil_lists_bits(&block_lists, &rows, M, words);
  dil_lists_fill(&block_lists, &rows, &cols, &bits);
  for (int h = 0; h < HEADS; h++)
    for (int r = 0; r < BLOCKS; r++)
      for (int e = start[h][r]; e < start[h][r + 1]; e++)
        if (entry[h][e] >= 0 && entry[h][e] < BLOCKS)
          bytes[(h * BLOCKS + r) * BLOCKS + entry[h][e]] = 1;
  ck_assert_int_eq(dil_lists_bytes(&block_lists, &bits), sizeof words);
  for (int64_t e = 0; e < (int64_t)sizeof bytes; e++) {
    int64_t at = e / BLOCKS / BLOCKS * bits.stride[0] +
                 e / BLOCKS % BLOCKS * bits.stride[1] + e % BLOCKS;
    ck_assert_int_eq(dil_lists_bit(&bits, at), bytes[e]);
  }
}
END_TEST

/* A table of 1 Mi tokens takes 32 MiB a head. */
START_TEST(lists_of_a_million_tokens_fit) {
  dil_tensor rows = dil_tensor_make(NULL, DIL_I32, 2, (int64_t[]){16, 16385});
  dil_tensor bits = dil_lists_bits(&block_lists, &rows, 1 << 20, NULL);
  ck_assert_int_eq(dil_lists_bytes(&block_lists, &bits), 16 << 25);
}
END_TEST

START_TEST(tensor_is_row_major) {
  float data[24];
  dil_tensor t = dil_tensor_make(data, DIL_F32, 3, (int64_t[]){2, 3, 4});
  ck_assert_int_eq(t.stride[0], 12);
  ck_assert_int_eq(t.stride[1], 4);
  ck_assert_int_eq(t.stride[2], 1);
  ck_assert_int_eq(dil_tensor_count(&t), 24);
  ck_assert(dil_tensor_is_row_major(&t));
  t.stride[0] = 24;
  ck_assert(!dil_tensor_is_row_major(&t));
  t.shape[1] = 0;
  ck_assert_int_eq(dil_tensor_count(&t), 0);
  ck_assert(dil_tensor_is_row_major(&t));
  t = dil_tensor_make(data, DIL_F32, 0, NULL);
  ck_assert_int_eq(dil_tensor_count(&t), 1);
}
END_TEST

START_TEST(tensor_count_sees_overflow) {
  const int64_t shape[3] = {INT64_C(1) << 40, INT64_C(1) << 40, 2};
  dil_tensor t = dil_tensor_make(NULL, DIL_F32, 3, shape);
  ck_assert_int_eq(dil_tensor_count(&t), -1);
  t.shape[2] = 0;
  ck_assert_int_eq(dil_tensor_count(&t), 0);
  t.shape[0] = -1;
  ck_assert_int_eq(dil_tensor_count(&t), -1);
}
END_TEST

/* ---- random.c ------------------------------------------------------------ */

/* Random123's kat_vectors, philox4x32 with 10 rounds. */
static const uint32_t philox_known[3][10] = {
    {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
    {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
     0x6d5451fd},
    {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0,
     0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
};

START_TEST(philox_gives_known_answers) {
  for (int i = 0; i < 3; i++) {
    uint32_t out[4];
    dil_philox(philox_known[i], philox_known[i] + 4, out);
    ck_assert_mem_eq(out, philox_known[i] + 6, sizeof out);
  }
}
END_TEST

START_TEST(normals_have_normal_moments) {
  enum { COUNT = 200000 };
  double sum[5] = {0};
  for (uint64_t e = 0; e < COUNT; e++) {
    double x = dil_normal(1, 2, e + (UINT64_C(1) << 32) - COUNT / 2);
    double power = x;
    for (int n = 1; n <= 4; n++, power *= x) sum[n] += power / COUNT;
  }
  ck_assert_double_lt(fabs(sum[1]), 5 * sqrt(1.0 / COUNT));
  ck_assert_double_lt(fabs(sum[2] - 1), 5 * sqrt(2.0 / COUNT));
  ck_assert_double_lt(fabs(sum[3]), 5 * sqrt(15.0 / COUNT));
  ck_assert_double_lt(fabs(sum[4] - 3), 5 * sqrt(96.0 / COUNT));
}
END_TEST

START_TEST(normals_depend_on_all_of_the_key) {
  double x = dil_normal(1, 2, 3);
  ck_assert(x == dil_normal(1, 2, 3));
  ck_assert(x != dil_normal(2, 2, 3));
  ck_assert(x != dil_normal(1, 1, 3));
  ck_assert(x != dil_normal(1, 2, 4));
  ck_assert(x != dil_normal(1, 2, 3 + (UINT64_C(1) << 32)));
}
END_TEST

/* ---- peak.c -------------------------------------------------------------- */

START_TEST(peaks_of_the_host) {
  const char *isa = dil_host_isa();
  ck_assert(dil_peak_flops("mmx", false, 0.01) == 0);
  if (!isa) {
    ck_assert(dil_peak_flops("avx2", false, 0.01) == 0);
    return;
  }
  double narrow = dil_peak_flops("avx2", false, 0.05);
  double best = dil_peak_flops(isa, false, 0.05);
  double brain = dil_peak_flops(isa, true, 0.05);
  printf("%s: avx2 %.0f, best %.0f, bf16 %.0f GFLOP/s\n", isa, narrow, best,
         brain);
  ck_assert_double_gt(narrow, 1);
  ck_assert_double_gt(best, 0.7 * narrow);
  /* Some chips begin a bf16 product in every second cycle; tiles have 1024 in each. */
  ck_assert_double_gt(brain, 0.3 * best);
  ck_assert_double_lt(brain, dil_isa_has_tiles(isa) ? 10000 : 2000);
}
END_TEST

/* No set that the host has is much quicker than the one that kernels are made for. */
START_TEST(the_host_takes_its_quickest_set) {
  static const char *const sets[] = {CPU_ISAS(CPU_ISA_NAME) NULL};
  const char *isa = dil_host_isa();
  if (!isa) return;
  ck_assert(dil_isa_is_quick(isa));
  for (int type = 0; type < 2; type++) {
    double own = dil_peak_flops(isa, type, 0.05);
    for (int32_t i = 0; sets[i]; i++)
      if (dil_isa_usable(sets[i]))
        ck_assert_double_lt(dil_peak_flops(sets[i], type, 0.05), 1.3 * own);
  }
  ck_assert(!dil_isa_is_quick("mmx"));
  setenv("DIL_CPU", "avx512bf16", 1); /* who names it has it */
  ck_assert(dil_isa_is_quick("avx512bf16"));
  unsetenv("DIL_CPU");
}
END_TEST

/* ---- module.c ------------------------------------------------------------ */

static char folder[] = "/tmp/dil-module-XXXXXX";

/* A module named `name` of one function, from the C compiler. */
static void build_module(const char *name, const char *source) {
  const char *compiler = getenv("CC");
  char command[512];
  snprintf(command, sizeof command,
           "printf '%s' | %s -shared -fPIC -x c - -o %s/%s", source,
           compiler ? compiler : "cc", folder, name);
  ck_assert_int_eq(system(command), 0);
}

static void remove_module(const char *name) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  ck_assert_int_eq(unlink(path), 0);
}

static void refuse_module(const char *name, const char *reason) {
  void *address = folder;
  ck_assert_int_eq(dil_module_open(name, "entry", &address), DIL_ENVIRONMENT);
  ck_assert_ptr_null(address);
  ck_assert_msg(strstr(dil_last_error(), reason) != NULL, "%s",
                dil_last_error());
}

START_TEST(modules_are_opened_once) {
  void *address, *again;
  ck_assert_ptr_nonnull(mkdtemp(folder));
  setenv("DIL_MODULE_DIR", folder, 1);
  build_module("one.so", "int entry(void) { return 5; }");
  build_module("other.so", "int another(void) { return 5; }");
  ck_assert_int_eq(dil_module_open("one.so", "entry", &address), DIL_OK);
  int (*entry)(void);
  memcpy(&entry, &address, sizeof entry);
  ck_assert_int_eq(entry(), 5);
  refuse_module("other.so", "has no symbol 'entry'");
  remove_module("one.so");
  remove_module("other.so");
  ck_assert_int_eq(dil_module_open("one.so", "entry", &again), DIL_OK);
  ck_assert_ptr_eq(address, again);
  refuse_module("other.so", "has no symbol 'entry'");
  rmdir(folder);
  unsetenv("DIL_MODULE_DIR");
}
END_TEST

static void *open_missing(void *unused) {
  (void)unused;
  void *address;
  return dil_module_open("absent.so", "entry", &address) == DIL_ENVIRONMENT &&
                 strstr(dil_last_error(), "absent.so")
             ? folder
             : NULL;
}

START_TEST(threads_open_at_once) {
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, open_missing, NULL), 0);
  for (int i = 0; i < 4; i++) {
    void *result;
    pthread_join(threads[i], &result);
    ck_assert_ptr_eq(result, folder);
  }
}
END_TEST

START_TEST(missing_modules_say_what_was_tried) {
  setenv("DIL_MODULE_DIR", "/nonexistent", 1);
  refuse_module("nowhere.so", "tried /nonexistent/nowhere.so");
  unsetenv("DIL_MODULE_DIR");
  refuse_module("nowhere.so", "tried /nonexistent/nowhere.so");
  refuse_module("missing.so", "/build/missing.so, ");
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "/../lib/dil/missing.so"));
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "/lib/dil/missing.so"));
}
END_TEST

START_TEST(a_damaged_module_is_told) {
  char path[128];
  char place[] = "/tmp/dil-module-XXXXXX";
  ck_assert_ptr_nonnull(mkdtemp(place));
  snprintf(path, sizeof path, "%s/damaged.so", place);
  FILE *file = fopen(path, "w");
  ck_assert_ptr_nonnull(file);
  fputs("this is no library", file);
  fclose(file);
  setenv("DIL_MODULE_DIR", place, 1);
  refuse_module("damaged.so", "cannot load damaged.so: ");
  unsetenv("DIL_MODULE_DIR");
  unlink(path);
  rmdir(place);
}
END_TEST

/* Whether a child, and a child of `depth` generations below it, know their own
 * numbers. */
static bool children_know(int depth) {
  int status;
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(process_own() == getpid() && (!depth || children_know(depth - 1)) ? 0
                                                                           : 1);
  }
  return waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

START_TEST(each_process_knows_its_number) {
  ck_assert_int_eq(process_own(), getpid());
  ck_assert(children_know(2));
  ck_assert_int_eq(process_own(), getpid());
}
END_TEST

static Suite *runtime_suite(void) {
  Suite *suite = suite_create("runtime");
  TCase *status = tcase_create("status"), *tensor = tcase_create("tensor");
  TCase *random = tcase_create("random"), *host = tcase_create("host");
  tcase_add_test(status, status_has_text);
  tcase_add_test(status, failure_is_remembered_by_thread);
  tcase_add_test(status, long_failure_ends_in_dots);
  tcase_add_test(tensor, every_16_bit_float_survives);
  tcase_add_test(tensor, f16_bits_mean_what_they_say);
  tcase_add_test(tensor, rounding_is_to_nearest_even);
  tcase_add_test(tensor, nan_stays_nan);
  tcase_add_test(tensor, element_write_rounds_once);
  tcase_add_test(tensor, integer_elements_are_clipped);
  tcase_add_test(tensor, bits_of_lists_are_their_entries);
  tcase_add_test(tensor, lists_of_a_million_tokens_fit);
  tcase_add_test(tensor, tensor_is_row_major);
  tcase_add_test(tensor, tensor_count_sees_overflow);
  tcase_add_test(random, philox_gives_known_answers);
  tcase_add_test(random, normals_have_normal_moments);
  tcase_add_test(random, normals_depend_on_all_of_the_key);
  tcase_add_test(host, peaks_of_the_host);
  tcase_add_test(host, the_host_takes_its_quickest_set);
  tcase_add_test(host, modules_are_opened_once);
  tcase_add_test(host, threads_open_at_once);
  tcase_add_test(host, missing_modules_say_what_was_tried);
  tcase_add_test(host, a_damaged_module_is_told);
  tcase_add_test(host, each_process_knows_its_number);
  suite_add_tcase(suite, host);
  suite_add_tcase(suite, status);
  suite_add_tcase(suite, tensor);
  suite_add_tcase(suite, random);
  return suite;
}

int main(void) {
  return suite_run(runtime_suite(), CK_NOFORK);
}
