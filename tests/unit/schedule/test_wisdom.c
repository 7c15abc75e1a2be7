/* test_wisdom.c - remembered schedules: keys that mean, records that survive,
 * a file that may hold anything; and the order that the cost model gives. */
#include "compiler/analysis/cost.h"
#include "compiler/schedule/wisdom.h"
#include "runtime/cuda.h"
#include "tests/support/numeric.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/dil-wisdom-XXXXXX";

static char *path_of(arena *a, const char *name) {
  return arena_print(a, "%s/%s", folder, name);
}

static void write_file(const char *path, const char *text) {
  FILE *out = fopen(path, "w");
  ck_assert_ptr_nonnull(out);
  fputs(text, out);
  fclose(out);
}

static uint64_t meaning(arena *a, const char *text) {
  tested_pattern *s = tested_pattern_new("wisdom", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  uint64_t hash = wisdom_pattern(a, s->pattern, DIL_FORWARD);
  tested_pattern_free(s);
  return hash;
}

/* ---- keys ---------------------------------------------------------------- */

#define HEAD "{ heads 2; head_dim 8; dtype f32; "
START_TEST(names_do_not_matter) {
  arena *a = arena_new();
  uint64_t one =
      meaning(a, "pattern p " HEAD "branch near { segment 4; } branch { } }");
  ck_assert_uint_eq(
      one, meaning(a, "let w = 4; pattern q " HEAD
                      "branch { segment w; } branch far { } }"));
  ck_assert_uint_ne(
      one, meaning(a, "pattern p " HEAD "branch { segment 5; } branch { } }"));
  ck_assert_uint_ne(one, meaning(a, "pattern p " HEAD "causal; "
                                    "branch { segment 4; } branch { } }"));
  arena_free(a);
}
END_TEST

START_TEST(classes_of_sizes) {
  static const int64_t pairs[][2] = {{0, 0},       {1, 1},       {2, 2},
                                     {3, 4},       {5, 4},       {6, 8},
                                     {8191, 8192}, {12000, 16384}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    ck_assert_int_eq(wisdom_class(pairs[i][0]), pairs[i][1]);
}
END_TEST

START_TEST(places) {
  arena *a = arena_new();
  setenv("DIL_WISDOM", "off", 1);
  ck_assert_ptr_null(wisdom_path(a));
  setenv("DIL_WISDOM", "w.txt", 1);
  ck_assert_str_eq(wisdom_path(a), "w.txt");
  unsetenv("DIL_WISDOM");
  setenv("XDG_STATE_HOME", "/state", 1);
  ck_assert_str_eq(wisdom_path(a), "/state/dil/wisdom");
  unsetenv("XDG_STATE_HOME");
  setenv("HOME", "/home/u", 1);
  ck_assert_str_eq(wisdom_path(a), "/home/u/.local/state/dil/wisdom");
  setenv("XDG_STATE_HOME", "state", 1); /* relative paths are passed over */
  ck_assert_str_eq(wisdom_path(a), "/home/u/.local/state/dil/wisdom");
  setenv("HOME", "u", 1);
  ck_assert_ptr_null(wisdom_path(a));
  unsetenv("XDG_STATE_HOME");
  unsetenv("HOME");
  ck_assert_ptr_null(wisdom_path(a));
  arena_free(a);
}
END_TEST

/* ---- the file ------------------------------------------------------------ */

static wisdom_record record_of(int64_t queries, int32_t keys) {
  wisdom_record r = {.key = {.device = "cuda Some Chip sm_90",
                             .pattern = 0x0123456789abcdef,
                             .size = {1, queries, 64}},
                     .knobs = {.given = 1u << KNOB_TILE | 1u << KNOB_FAMILY},
                     .seconds = 0.00125,
                     .name = "longnet"};
  r.knobs.value[KNOB_TILE][0] = 128;
  r.knobs.value[KNOB_TILE][1] = keys;
  return r;
}

START_TEST(kept_and_found) {
  arena *a = arena_new();
  const char *path = path_of(a, "deep/er/wisdom");
  wisdom_record one = record_of(64, 96), two = record_of(128, 80);
  wisdom w;
  ck_assert_int_eq(wisdom_read(a, path, &w), DIL_OK);
  ck_assert_int_eq(w.count, 0);
  ck_assert_int_eq(wisdom_add(a, path, &one), DIL_OK);
  ck_assert_int_eq(wisdom_add(a, path, &two), DIL_OK);
  one.knobs.value[KNOB_TILE][1] = 64;
  ck_assert_int_eq(wisdom_add(a, path, &one), DIL_OK);
  ck_assert_int_eq(wisdom_read(a, path, &w), DIL_OK);
  ck_assert_int_eq(w.count, 2);
  ck_assert_int_eq(w.bad_count, 0);
  const wisdom_record *found = wisdom_find(&w, &one.key);
  ck_assert_ptr_nonnull(found);
  ck_assert_mem_eq(&found->knobs, &one.knobs, sizeof one.knobs);
  ck_assert_str_eq(found->name, "longnet");
  one.key.device = "cuda Some Chip sm_80";
  ck_assert_ptr_null(wisdom_find(&w, &one.key));
  arena_free(a);
}
END_TEST

#define GOOD "dil " DIL_VERSION "\tcpu x\t0123456789abcdef\t1 64 64\t"
START_TEST(bad_records_are_passed_over) {
  arena *a = arena_new();
  const char *path = path_of(a, "bad");
  wisdom w;
  write_file(path, "# a comment\n\n"
                   "dil 0.0.1\tcpu x\t0123456789abcdef\t1 2 3\told\t1\tp\n"
                   GOOD "tile_keys 9;\t1\tp\n"
                   GOOD "tile 64, 64;\t1\tp\n"
                   GOOD "tile_keys 64\t1\tp\n"
                   GOOD "tile_keys 64;\tsoon\tp\n"
                   GOOD "tile_keys 64;\t1\n"
                   "dil\n\t\t\t\t\t\t\t\t\n"
                   GOOD "tile_keys 64;\t1\tp\n"
                   GOOD "tile_keys 64;");
  ck_assert_int_eq(wisdom_read(a, path, &w), DIL_OK);
  ck_assert_int_eq(w.count, 1);
  ck_assert_int_eq(w.record[0].knobs.value[KNOB_TILE_KEYS][0], 64);
  ck_assert_int_eq(w.bad_count, 8);
  ck_assert_int_eq(w.bad_line, 4);
  ck_assert_ptr_nonnull(strstr(w.reason, "within 32 and 128, got 9"));
  wisdom_record one = record_of(64, 96);
  ck_assert_int_eq(wisdom_add(a, path, &one), DIL_OK);
  ck_assert_int_eq(wisdom_read(a, path, &w), DIL_OK);
  ck_assert_int_eq(w.count, 2); /* and what was there is there */
  ck_assert_int_eq(w.bad_count, 8);
  arena_free(a);
}
END_TEST

/* Any bytes: no crash, and nothing that is not a record. */
START_TEST(noise) {
  arena *a = arena_new();
  const char *path = path_of(a, "noise");
  char text[400];
  uint64_t x = 88172645463325252u + (uint64_t)_i;
  for (size_t i = 0; i < sizeof text - 1; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    text[i] = "\t\n ;,0123456789abcdil.tk_ey"[x % 27];
  }
  text[sizeof text - 1] = 0;
  wisdom w;
  write_file(path, text);
  ck_assert_int_eq(wisdom_read(a, path, &w), DIL_OK);
  ck_assert_int_eq(w.count, 0);
  arena_free(a);
}
END_TEST

/* ---- knobs --------------------------------------------------------------- */

START_TEST(knobs_read_what_they_write) {
  char text[KNOBS_TEXT], again[KNOBS_TEXT], reason[100];
  knobs k = {.given = (1u << KNOB_COUNT) - 1}, back;
  static const int32_t largest[] = {
#define KNOB(id, name, values, devices, least, most, of) most,
#include "compiler/schedule/knobs.def"
#undef KNOB
  };
  for (int32_t i = 0; i < KNOB_COUNT; i++)
    k.value[i][0] = k.value[i][1] = largest[i];
  knobs_text(&k, text);
  ck_assert_uint_lt(strlen(text), KNOBS_TEXT - 1);
  ck_assert_msg(knobs_read(text, KNOB_ANY, &back, reason, sizeof reason), "%s",
                reason);
  ck_assert_str_eq(knobs_text(&back, again), text);
  ck_assert_uint_eq(back.given, k.given);
  ck_assert(!knobs_read(text, KNOB_CPU, &back, reason, sizeof reason));
}
END_TEST

START_TEST(knobs_read_old_names) {
  char text[KNOBS_TEXT], reason[160];
  knobs k;
  ck_assert(knobs_read("tile 128, 64; hopper 1;", KNOB_CUDA, &k, reason,
                       sizeof reason));
  ck_assert_str_eq(knobs_text(&k, text), "tile 128, 64; family fast;");
  ck_assert(knobs_read("hopper 0;", KNOB_CUDA, &k, reason, sizeof reason));
  ck_assert_str_eq(knobs_text(&k, text), "family general;");
  ck_assert(!knobs_read("hopper 2;", KNOB_CUDA, &k, reason, sizeof reason));
  ck_assert(!knobs_read("family 1;", KNOB_CUDA, &k, reason, sizeof reason));
  ck_assert(!knobs_read("family tall;", KNOB_CUDA, &k, reason, sizeof reason));
  ck_assert(!knobs_read("tile fast;", KNOB_CUDA, &k, reason, sizeof reason));
}
END_TEST

/* ---- the order of predictions -------------------------------------------- */

static double predicted(const pattern *p, int64_t N, const char *family,
                        int32_t rows, int32_t keys, double parts) {
  dil_cuda_facts chip = {.processors = 132, .arch = 90};
  dil_cuda_code code = {.family = family,
                        .threads = *family == 'h' ? rows * 2 + 128 : rows * 2,
                        .shared = 30000,
                        .tile_rows = rows,
                        .tile_keys = keys};
  cover_count count;
  cover_pattern(p, N, N, rows, keys, NULL, 0, &count);
  cost_gpu_case c = {.facts = &chip,
                     .code = &code,
                     .count = &count,
                     .B = 1,
                     .N = N,
                     .M = N,
                     .dedup = *family == 'h',
                     .parts = parts};
  return cost_gpu_seconds(p, &c);
}

START_TEST(cost_orders_gpu_kernels) {
  tested_pattern *s = tested_pattern_new(
      "cost",
      "pattern p { heads 12; head_dim 64; dtype bf16; segments 2048, "
      "4096; dilations 1, 2; }",
      NULL, 0);
  const pattern *p = s->pattern;
  ck_assert_msg(p != NULL, "%s", s->problem);
  int64_t N = 1 << 17;
  double fast = predicted(p, N, "hopper", 192, 128, 0);
  ck_assert_double_lt(fast, predicted(p, N, "general", 64, 64, 0));
  ck_assert_double_lt(fast, predicted(p, N, "hopper", 192, 64, 0));
  /* twice the work takes twice as long where there are many waves */
  double twice = predicted(p, 2 * N, "hopper", 192, 128, 0) / fast;
  ck_assert_double_gt(twice, 1.9);
  ck_assert_double_lt(twice, 2.1);
  /* few tiles: parts of the keys pay, and do not where there are many */
  ck_assert_double_lt(predicted(p, 64, "general", 64, 64, 8),
                      predicted(p, 64, "general", 64, 64, 1));
  ck_assert_double_gt(predicted(p, N, "general", 64, 64, 8),
                      predicted(p, N, "general", 64, 64, 1));
  tested_pattern_free(s);
}
END_TEST

/* Kernels that were measured beside each other (tests/bench/NOTES.md): the tall
 * tile is best in a long call, and in a short one by less; where tiles are fewer
 * than processors, both take lower ones. */
START_TEST(cost_knows_small_calls) {
  tested_pattern *s = tested_pattern_new(
      "small",
      "pattern p { heads 8; head_dim 64; dtype bf16; segments 2048, "
      "4096, 8192; dilations 1, 2, 4; }",
      NULL, 0);
  static const struct {
    int64_t N;
    double low, high; /* of tall over flat */
  } cases[] = {{1 << 17, 0.8, 0.87}, {8192, 0.85, 0.95}, {1024, 0.9, 1.1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    double tall = predicted(s->pattern, cases[i].N, "hopper", 192, 128, 0);
    double flat = predicted(s->pattern, cases[i].N, "hopper", 128, 128, 0);
    ck_assert_double_gt(tall / flat, cases[i].low);
    ck_assert_double_lt(tall / flat, cases[i].high);
  }
  tested_pattern_free(s);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("wisdom");
  TCase *tests = tcase_create("wisdom");
  tcase_add_test(tests, names_do_not_matter);
  tcase_add_test(tests, classes_of_sizes);
  tcase_add_test(tests, places);
  tcase_add_test(tests, kept_and_found);
  tcase_add_test(tests, bad_records_are_passed_over);
  tcase_add_loop_test(tests, noise, 0, 50);
  tcase_add_test(tests, knobs_read_what_they_write);
  tcase_add_test(tests, knobs_read_old_names);
  tcase_add_test(tests, cost_orders_gpu_kernels);
  tcase_add_test(tests, cost_knows_small_calls);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  if (!mkdtemp(folder)) return 70;
  int failed = suite_run(make_suite(), CK_FORK_GETENV);
  char remove_all[64];
  snprintf(remove_all, sizeof remove_all, "rm -r %s", folder);
  return failed || system(remove_all) != 0;
}
