/* test_plan_serial.c - plans as bytes: what is written comes back whole, and no
 * damage gets through: every byte changed, every end cut off, and random
 * changes behind a sum that was made to fit. */
#include "compiler/plan/plan.h"
#include "runtime/api/plan_serial.h"
#include "tests/support/patterns.h"
#include "tests/support/suite.h"
#include <check.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

typedef struct image {
  void *bytes;
  size_t size;
} image;

static image image_of(const dil_table *table) {
  image made;
  ck_assert_int_eq(dil_plan_serialise(table, &made.bytes, &made.size), DIL_OK);
  return made;
}

/* ---- there and back ------------------------------------------------------ */

static void same_branch(const dil_branch *a, const dil_branch *b,
                        int32_t heads) {
  ck_assert_int_eq(a->segment, b->segment);
  ck_assert_int_eq(a->dilation, b->dilation);
  ck_assert_int_eq(a->head_first, b->head_first);
  ck_assert_int_eq(a->head_last, b->head_last);
  ck_assert_int_eq(a->predicate, b->predicate);
  ck_assert_int_eq(a->chain, b->chain);
  ck_assert_mem_eq(a->phase, b->phase, (size_t)heads * sizeof *a->phase);
}

static void same_sizes(const dil_table *a, const dil_table *b) {
  ck_assert_str_eq(a->name, b->name);
  ck_assert(a->heads == b->heads && a->kv_heads == b->kv_heads);
  ck_assert(a->head_dim == b->head_dim && a->value_dim == b->value_dim);
  ck_assert(a->dtype == b->dtype && a->combine == b->combine);
  ck_assert(a->dedup == b->dedup && a->general == b->general);
  ck_assert(a->runtime_scale == b->runtime_scale && a->scored == b->scored);
  ck_assert(a->lse_allowed == b->lse_allowed);
  ck_assert(a->scale == b->scale && a->dropout == b->dropout);
  ck_assert(a->tile_keys == b->tile_keys);
  ck_assert(a->chain_count == b->chain_count);
}

static void same_table(const dil_table *a, const dil_table *b) {
  same_sizes(a, b);
  ck_assert_int_eq(a->branch_count, b->branch_count);
  ck_assert_int_eq(a->pass_count, b->pass_count);
  ck_assert_int_eq(a->predicate_count, b->predicate_count);
  ck_assert_int_eq(a->input_count, b->input_count);
  for (int32_t i = 0; i < a->branch_count; i++)
    same_branch(&a->branches[i], &b->branches[i], a->heads);
  for (int32_t i = 0; i < a->pass_count; i++)
    ck_assert(a->passes[i].branches == b->passes[i].branches &&
              a->passes[i].period == b->passes[i].period);
  for (int32_t i = 0; i < a->predicate_count; i++)
    ck_assert(a->predicates[i].left == b->predicates[i].left &&
              a->predicates[i].right == b->predicates[i].right &&
              a->predicates[i].masked == b->predicates[i].masked);
  for (int32_t i = 0; i < a->input_count; i++) {
    ck_assert_str_eq(a->inputs[i].name, b->inputs[i].name);
    ck_assert(a->inputs[i].dtype == b->inputs[i].dtype &&
              a->inputs[i].rank == b->inputs[i].rank &&
              a->inputs[i].masks == b->inputs[i].masks &&
              a->inputs[i].spans == b->inputs[i].spans &&
              a->inputs[i].gradient == b->inputs[i].gradient &&
              a->inputs[i].in_scores == b->inputs[i].in_scores &&
              a->inputs[i].in_sinks == b->inputs[i].in_sinks &&
              a->inputs[i].apart == b->inputs[i].apart);
  }
}

static void check_round_trip(const dil_table *table) {
  dil_table *back;
  image once = image_of(table);
  ck_assert_msg(!dil_plan_deserialise(once.bytes, once.size, &back), "%s: %s",
                table->name, dil_last_error());
  same_table(table, back);
  image again = image_of(back);
  ck_assert_uint_eq(once.size, again.size);
  ck_assert_mem_eq(once.bytes, again.bytes, once.size);
  free(once.bytes);
  free(again.bytes);
  free(back);
}

START_TEST(every_example_comes_back) {
  glob_t files;
  ck_assert_int_eq(glob("examples/*.dil", 0, NULL, &files), 0);
  for (size_t i = 0; i < files.gl_pathc; i++) {
    arena *a = arena_new();
    diag *d = diag_new(a);
    dil_status status;
    program *p = program_read(a, d, files.gl_pathv[i], NULL, 0, &status);
    ck_assert_ptr_nonnull(p);
    plan *made = plan_make(a, d, p->pattern[0], 0);
    ck_assert_ptr_nonnull(made);
    check_round_trip(&made->table);
    arena_free(a);
  }
  ck_assert_uint_gt(files.gl_pathc, 10);
  globfree(&files);
}
END_TEST

/* ---- damage -------------------------------------------------------------- */

/* A plan with something of everything. */
static const char everything[] =
    "pattern p { heads 4 kv 2; head_dim 8 value 16; dtype bf16; causal;"
    "  input slope : f32[H]; input doc : i32[B, M];"
    "  score s - slope[h] * abs(i - j); mask doc[b, i] == doc[b, j];"
    "  branch { segment 64; } branch { segment 128; dilation 2; heads 1..3; }"
    "  branch { window 9, 9; dilation 3; phase block; } }";

static image whole;

static void open_image(void) {
  open_memory();
  diag *d = diag_new(memory);
  program *p = program_parse(memory, d, "p.dil", everything, strlen(everything),
                             NULL, 0);
  ck_assert_ptr_nonnull(p);
  plan *made = plan_make(memory, d, p->pattern[0], FORCE_FUSE);
  ck_assert_ptr_nonnull(made);
  whole = image_of(&made->table);
}

static void close_image(void) {
  free(whole.bytes);
  close_memory();
}

/* A copy of exactly `size` bytes, so that a sanitizer sees reads beyond. */
static char *copy_of(size_t size) {
  char *copy = malloc(size ? size : 1);
  memcpy(copy, whole.bytes, size < whole.size ? size : whole.size);
  return copy;
}

static void expect_refused(const char *bytes, size_t size, const char *what,
                           size_t at) {
  dil_table *table;
  ck_assert_msg(dil_plan_deserialise(bytes, size, &table) == DIL_INPUT,
                "taken: %s %zu of %zu", what, at, whole.size);
  ck_assert_ptr_null(table);
  ck_assert_msg(strstr(dil_last_error(), "image of a plan"), "%s",
                dil_last_error());
}

START_TEST(every_changed_byte_is_refused) {
  char *bytes = copy_of(whole.size);
  for (size_t at = 0; at < whole.size; at++)
    for (int bit = 0; bit < 8; bit++) {
      bytes[at] = (char)(bytes[at] ^ 1 << bit);
      expect_refused(bytes, whole.size, "a changed byte", at);
      bytes[at] = (char)(bytes[at] ^ 1 << bit);
    }
  free(bytes);
}
END_TEST

START_TEST(every_cut_is_refused) {
  for (size_t size = 0; size < whole.size; size++) {
    char *bytes = copy_of(size);
    expect_refused(bytes, size, "a cut", size);
    free(bytes);
  }
  char *longer = copy_of(whole.size + 1);
  longer[whole.size] = 0;
  expect_refused(longer, whole.size + 1, "a longer one", whole.size);
  free(longer);
}
END_TEST

START_TEST(a_version_is_told) {
  dil_table *table;
  char *bytes = copy_of(whole.size);
  bytes[4] = 11;
  ck_assert_int_eq(dil_plan_deserialise(bytes, whole.size, &table), DIL_INPUT);
  ck_assert_str_eq(dil_last_error(), "the image of a plan has version 11, this "
                                     "build reads 10");
  free(bytes);
}
END_TEST

/* ---- behind a sum that fits ---------------------------------------------- */

enum { HEAD = 24 };

static void mend_sum(char *bytes, size_t size) {
  uint64_t sum = 0xcbf29ce484222325, length = size;
  for (size_t i = HEAD; i < size; i++)
    sum = (sum ^ (unsigned char)bytes[i]) * 0x100000001b3;
  memcpy(bytes + 8, &length, sizeof length);
  memcpy(bytes + 16, &sum, sizeof sum);
}

/* Whatever is taken holds what a run relies on: no index is out of its array. */
static void check_taken(const dil_table *t) {
  uint64_t seen = 0;
  for (int32_t i = 0; i < t->pass_count; i++) {
    ck_assert(!(seen & t->passes[i].branches));
    seen |= t->passes[i].branches;
  }
  for (int32_t i = 0; i < t->branch_count; i++) {
    const dil_branch *b = &t->branches[i];
    ck_assert(seen >> i & 1);
    ck_assert(b->chain >= 0 && b->chain < t->chain_count);
    ck_assert(b->predicate >= -1 && b->predicate < t->predicate_count);
    ck_assert(b->head_last < t->heads && b->head_first >= 0);
    for (int32_t h = 0; h < t->heads; h++)
      ck_assert(b->phase[h] >= 0 && b->phase[h] < b->dilation);
  }
  for (int32_t i = 0; i < t->input_count; i++)
    ck_assert_uint_gt(strlen(t->inputs[i].name), 0);
}

START_TEST(forged_images_are_checked_field_by_field) {
  uint64_t state = 42;
  int taken = 0, turns = 60000;
  for (int turn = 0; turn < turns; turn++) {
    size_t size = random_chance(&state, 90)
                      ? whole.size
                      : (size_t)random_in(&state, HEAD, (int64_t)whole.size);
    char *bytes = copy_of(size);
    for (int64_t n = random_in(&state, 0, 3); n > 0; n--)
      if (size > HEAD)
        bytes[random_in(&state, HEAD, (int64_t)size - 1)] =
            (char)random_in(&state, -2, 255);
    mend_sum(bytes, size);
    dil_table *table;
    if (!dil_plan_deserialise(bytes, size, &table)) {
      check_taken(table);
      taken++;
    }
    free(table);
    free(bytes);
  }
  ck_assert_int_gt(taken, turns / 20); /* the sums do fit */
  ck_assert_int_lt(taken, turns * 9 / 10);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("image");
  TCase *trips = tcase_create("trips"), *damage = tcase_create("damage");
  tcase_add_test(trips, every_example_comes_back);
  tcase_add_checked_fixture(damage, open_image, close_image);
  tcase_add_test(damage, every_changed_byte_is_refused);
  tcase_add_test(damage, every_cut_is_refused);
  tcase_add_test(damage, a_version_is_told);
  tcase_add_test(damage, forged_images_are_checked_field_by_field);
  tcase_set_timeout(damage, 120);
  suite_add_tcase(suite, trips);
  suite_add_tcase(suite, damage);
  return suite_run(suite, CK_FORK_GETENV);
}
