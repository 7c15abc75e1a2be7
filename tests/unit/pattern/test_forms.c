/* test_forms.c - normal forms of masks: a normalised pattern keeps the pairs of
 * the written one, each as often. Random masks of windows, ranges of keys and
 * residues, and by hand what becomes of some. */
#include "compiler/pattern/key_span.h"
#include "tests/support/patterns.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE_MOST = 24 };

static pattern *parsed(const char *text) {
  diag *d = diag_new(memory);
  program *all = program_parse(memory, d, "text", text, strlen(text), NULL, 0);
  if (all == NULL || all->pattern_count != 1) {
    diag_print(d, stderr, false);
    ck_abort_msg("not read:\n%s", text);
  }
  return all->pattern[0];
}

/* ---- random masks -------------------------------------------------------- */

static void put_term(FILE *out, uint64_t *state) {
  static const char *const forms[] = {
      "i - j < %d",   "i - j <= %d",      "abs(i - j) <= %d", "%d > abs(j - i)",
      "j - i < %d",   "j < %d",           "j >= %d",          "%d >= j",
      "i - j >= -%d", "i < %d",           "i - j >= %d",      "j - i > %d",
      "j == %d",      "abs(i - j) == %d", "i + j > %d"};
  static const char *const plain[] = {"j <= i", "i == j", "j > i", "i >= j",
                                      "h == 1", "h < 2",  "h % 2 == 0"};
  static const char *const residues[] = {
      "i %% %d == j %% %d", "(i - j) %% %d == 0", "0 == (j - i) %% %d",
      "(i - j) %% %d == 1", "1 == (j - i) %% %d", "j %% %d == 0"};
  int kind = (int)random_in(state, 0, 9);
  int number = (int)random_in(state, 0, 12), r = (int)random_in(state, 2, 5);
  if (kind < 7)
    fprintf(out, forms[random_in(state, 0, kind < 5 ? 8 : 14)], number);
  else if (kind < 8)
    fputs(plain[random_in(state, 0, 6)], out);
  else
    fprintf(out, residues[random_in(state, 0, kind < 9 ? 2 : 5)], r, r);
}

static void put_mask(FILE *out, uint64_t *state) {
  int64_t either = random_in(state, 1, 3);
  for (int64_t k = 0; k < either; k++) {
    if (k) fputs(" || ", out);
    put_term(out, state);
    for (; random_chance(state, 35);) {
      fputs(" && ", out);
      put_term(out, state);
    }
  }
}

static void put_branch(FILE *out, uint64_t *state) {
  static const char *const phases[] = {"branch", "each", "each - 1"};
  fputs("branch { ", out);
  if (random_chance(state, 25)) fputs("causal; ", out);
  if (random_chance(state, 20))
    fprintf(out, "window %d, inf; ", (int)random_in(state, 0, 9));
  if (random_chance(state, 20))
    fprintf(out, "segment %d; ", (int)random_in(state, 2, 12));
  if (random_chance(state, 15))
    fprintf(out, "dilation %d; phase %s; ", (int)random_in(state, 1, 3),
            phases[random_in(state, 0, 2)]);
  if (random_chance(state, 10))
    fprintf(out, "heads %d..2; ", (int)random_in(state, 0, 2));
  if (random_chance(state, 80)) {
    fputs("mask ", out);
    put_mask(out, state);
    fputs("; ", out);
  }
  fputs("}\n", out);
}

static char *random_text(uint64_t *state) {
  static const char *const ways[] = {"softmax", "softmax", "union", "mean"};
  char *text = NULL;
  size_t size;
  FILE *out = open_memstream(&text, &size);
  int64_t branches = random_in(state, 1, 5);
  fprintf(out, "pattern p { heads 3; head_dim 8; dtype f32; combine %s;\n",
          ways[random_in(state, 0, 3)]);
  if (random_chance(state, 50)) {
    fputs("mask ", out);
    put_mask(out, state);
    fputs(";\n", out);
  }
  for (int64_t b = 0; b < (branches < 3 ? 1 : branches - 1); b++)
    put_branch(out, state);
  fputs("}\n", out);
  fclose(out);
  char *kept = arena_copy(memory, text, size);
  free(text);
  return kept;
}

/* ---- the same pairs ------------------------------------------------------ */

/* How often a pair counts. */
static int32_t times_of(const pattern *p, int64_t h, int64_t t, int64_t j,
                        const expr_point *point) {
  int32_t times = 0;
  for (int32_t b = 0; b < p->branch_count; b++)
    times += pattern_reaches(p, b, h, t, j, point);
  return p->combine == DIL_COMBINE_UNION && times > 1 ? 1 : times;
}

/* A row's branches: `mean` divides by all, and each has its sinks. */
static bool same_pairs(const pattern *a, const pattern *b,
                       const expr_point *point) {
  for (int64_t t = point->M - point->N; t < point->M; t++)
    for (int64_t j = 0; j < point->M; j++)
      for (int64_t h = 0; h < a->heads; h++)
        if (times_of(a, h, t, j, point) != times_of(b, h, t, j, point))
          return false;
  return true;
}

static int number_of(const char *name, int otherwise) {
  const char *given = getenv(name);
  return given ? atoi(given) : otherwise;
}

/* FORMS_ROUNDS masks from FORMS_SEED on. */
START_TEST(random_masks_keep_their_pairs) {
  int rounds = number_of("FORMS_ROUNDS", 3000), changed = 0;
  uint64_t state = (uint64_t)number_of("FORMS_SEED", 20);
  for (int round = 0; round < rounds; round++) {
    fresh_memory();
    const char *text = random_text(&state);
    const pattern *p = parsed(text), *normal = pattern_normalise(memory, p);
    int64_t M = random_in(&state, 1, SIZE_MOST);
    int64_t N = random_in(&state, 1, SIZE_MOST);
    pattern_verify(normal);
    changed += normal != p;
    if (p->combine == DIL_COMBINE_MEAN)
      ck_assert_int_eq(normal->branch_count, p->branch_count);
    expr_point point = {.B = 1, .N = (int32_t)N, .M = (int32_t)M};
    ck_assert_msg(same_pairs(p, normal, &point), "%d rows, %d keys, of\n%s",
                  (int)N, (int)M, text);
  }
  ck_assert_int_gt(changed, rounds / 5);
}
END_TEST

/* ---- unions with lists of keys -------------------------------------------- */

/* An element of a list's table, of a number that follows from where it stands. */
static value marked(void *context, int32_t index, const int32_t *at) {
  uint32_t word = *(const uint32_t *)context + 0x9e3779b9u * (uint32_t)index;
  for (int32_t axis = 0; axis < 2; axis++)
    word = (word ^ (uint32_t)at[axis]) * 0x85ebca6bu;
  return (value){.integer = (word >> 16) % 3 == 0};
}

static char *random_union(uint64_t *state) {
  char *text = NULL;
  size_t size;
  FILE *out = open_memstream(&text, &size);
  fputs("pattern p { heads 3; head_dim 8; dtype f32; combine union;\n"
        "input g : i32[H, *]; input f : i32[H, *];\n", out);
  int64_t branches = random_in(state, 1, 3);
  for (int64_t b = 0; b < branches; b++) put_branch(out, state);
  fprintf(out, "branch { keys g; heads %d..2; }\n", (int)random_in(state, 0, 2));
  if (random_chance(state, 50)) fputs("branch { keys f; causal; }\n", out);
  if (random_chance(state, 20)) put_branch(out, state);
  fputs("}\n", out);
  fclose(out);
  char *kept = arena_copy(memory, text, size);
  free(text);
  return kept;
}

static bool has_lists_alone(const pattern *p) {
  for (int32_t b = 0; b < p->branch_count; b++)
    if (pattern_key_list(p, &p->branch[b]) >= 0)
      return p->combine == DIL_COMBINE_SOFTMAX;
  return false;
}

START_TEST(unions_with_lists_keep_their_pairs) {
  uint64_t state = 7;
  int rounds = 600, parted = 0;
  for (int round = 0; round < rounds; round++) {
    fresh_memory();
    const char *text = random_union(&state);
    const pattern *p = parsed(text), *normal = pattern_normalise(memory, p);
    int64_t M = random_in(&state, 1, SIZE_MOST);
    int64_t N = random_in(&state, 1, SIZE_MOST);
    uint32_t seed = (uint32_t)round;
    expr_point point = {.B = 1, .N = (int32_t)N, .M = (int32_t)M,
                        .input = marked, .context = &seed};
    pattern_verify(normal);
    parted += has_lists_alone(normal);
    ck_assert_msg(same_pairs(p, normal, &point), "%d rows, %d keys, of\n%s",
                  (int)N, (int)M, text);
  }
  ck_assert_int_gt(parted, rounds / 3);
}
END_TEST

/* ---- by hand ------------------------------------------------------------- */

static const struct {
  const char *mask;
  int32_t branches;
  bool reads; /* no mask but ranges of keys is left */
} forms[] = {
    {"i - j < 256 || j < 4", 2, true},
    {"j <= i || j < 2048", 2, true},
    {"i % 4 == j % 4 && i - j >= 0 && i - j < 2048", 1, true},
    {"(i - j) % 32 == 0", 1, true},
    {"(i - j) % 33 == 7", 1, true},
    {"(j - i) % 4096 == 0", 1, true},
    {"(i - j) % 8191 == 0", 1, false},
    {"(i - j) % 4 == 0 || (i - j) % 6 == 1", 2, true},
    {"(i - j) % 4 == 0 || (i - j) % 6 == 2", 1, false},
    {"(i - j) % 4 == 1 || (i - j) % 8 == 5", 1, true},
    {"i - j >= 5 && i - j < 9", 1, true},
    {"i - j < 5 || i - j >= 9", 2, true},
    {"i - j < 9 || i - j > 2147483646 || j < 4", 1, false},
    {"abs(i - j) < 9 || j < 5 || j >= 90 && j < 100", 4, true},
    {"i - j < 9 && i >= j || i - j < 99 && i >= j", 1, true},
    {"i - j < 128 || (i - j) % 4 == 0", 2, true},
    {"abs(i - j) < 128 || (i - j) % 4 == 0", 3, true},
    {"i - j < 128 || (i - j) % 128 == 0", 2, true},
    {"h < 4 && i - j < 9 || h >= 4 && j < 5", 2, true},
    {"h >= 4 || i - j < 9", 2, true},
    {"h % 3 == 1 && j <= i", 3, true},
    {"h % 2 == 0 && j <= i || h > 6", 5, true},
    {"h > 20", 1, false},
    {"h + b < 4 && j < 5", 1, false},
    {"i < 4 || j < 4", 2, true},
    {"abs(i - j) <= 256 || i < 64 || j < 64", 3, true},
    {"i >= 0", 1, false},
    {"i >= 5 && i < 9 || i < 3 && j <= i", 2, true},
    {"i - j < 9 && hash(1, j) % 2 == 0", 1, false},
};

START_TEST(forms_by_hand) {
  char text[512];
  snprintf(text, sizeof text,
           "pattern p { heads 8; head_dim 8; dtype f32; branch { mask %s; } }",
           forms[_i].mask);
  const pattern *p = pattern_normalise(memory, parsed(text));
  bool reads = true;
  ck_assert_int_eq(p->branch_count, forms[_i].branches);
  for (int32_t b = 0; b < p->branch_count; b++)
    for (int32_t m = 0; m < p->branch[b].mask_count; m++) {
      pair_bounds bounds = {DIL_ENDLESS, DIL_ENDLESS, {0, 0}, {0, 0}};
      reads &= pair_bounds_take(p->branch[b].mask[m], &bounds);
    }
  ck_assert_int_eq(reads, forms[_i].reads);
}
END_TEST

/* ---- ranges of keys ------------------------------------------------------- */

static const struct {
  const char *mask;
  span_kind kind;
  int64_t segment, offset; /* SPAN_SEGMENT; of SPAN_BESIDE, the operator */
} spans[] = {
    {"d[b, i] == d[b, j]", SPAN_ALIKE, 0, 0},
    {"d[b, j] == d[b, i]", SPAN_ALIKE, 0, 0},
    {"d[b, i] == d[0, j]", SPAN_NONE, 0, 0},
    {"f[i] == f[j]", SPAN_NONE, 0, 0},
    {"d[b, i] != d[b, j]", SPAN_NONE, 0, 0},
    {"d[b, i] <= j", SPAN_BESIDE, EXPR_GE, 0},
    {"j < d[b, i] + 3", SPAN_BESIDE, EXPR_LT, 0},
    {"j == i / 2", SPAN_BESIDE, EXPR_EQ, 0},
    {"j < f[i]", SPAN_NONE, 0, 0},
    {"j != i / 2", SPAN_NONE, 0, 0},
    {"(i + 3) / 8 == (j + 3) / 8", SPAN_SEGMENT, 8, 3},
    {"(j - 3) / 8 == (i - 3) / 8", SPAN_SEGMENT, 8, -3},
    {"i / 8 == j / 8", SPAN_SEGMENT, 8, 0},
    {"(i + 3) / 8 == (j + 2) / 8", SPAN_NONE, 0, 0},
    {"(i + 3) / 8 == (j + 3) / 9", SPAN_NONE, 0, 0},
    {"b < 3 && h != 1", SPAN_GUARD, 0, 0},
};

START_TEST(ranges_of_keys) {
  char text[512];
  snprintf(text, sizeof text,
           "pattern p { heads 8; head_dim 8; dtype f32; input d : i32[B, M]; "
           "input f : f32[M]; branch { mask %s; } }",
           spans[_i].mask);
  key_span x = key_span_of(parsed(text)->branch[0].mask[0]);
  ck_assert_int_eq(x.kind, spans[_i].kind);
  if (x.kind == SPAN_BESIDE) ck_assert_int_eq(x.op, spans[_i].segment);
  if (x.kind != SPAN_SEGMENT) return;
  ck_assert_int_eq(x.segment, spans[_i].segment);
  ck_assert_int_eq(x.offset, spans[_i].offset);
}
END_TEST

/* ---- `phase each` -------------------------------------------------------- */

static bool each_meets(int64_t t, int64_t j, int64_t s, int64_t r, int64_t c,
                       int64_t w) {
  if (s && (t < 0 || t / s != j / s)) return false;
  int64_t away = t - j;
  return away >= 0 && away <= w && away % r == c % r;
}

/* Rows of every residue of a segment see their own, or one that is c less: keys c
 * and whole steps away. */
START_TEST(each_row_sees_its_residue) {
  uint64_t state = 3;
  for (int round = 0; round < 300; round++) {
    char text[256];
    fresh_memory();
    int64_t s = random_in(&state, 0, 20), r = random_in(&state, 1, 9);
    int64_t w = random_in(&state, 0, 30), M = random_in(&state, 1, 40);
    int64_t N = random_in(&state, 1, 50), c = random_in(&state, 0, 12);
    char segment[32] = "";
    if (s) snprintf(segment, sizeof segment, "segment %d;", (int)s);
    snprintf(text, sizeof text,
             "pattern p { heads 2; head_dim 8; dtype f32; branch { %s "
             "dilation %d; phase each - %d; window %d, 0; } }",
             segment, (int)r, (int)c, (int)w);
    const pattern *p = pattern_normalise(memory, parsed(text));
    expr_point point = {.B = 1, .N = (int32_t)N, .M = (int32_t)M};
    for (int64_t t = M - N; t < M; t++)
      for (int64_t j = 0; j < M; j++)
        ck_assert_msg(times_of(p, 1, t, j, &point) ==
                          each_meets(t, j, s, r, c, w),
                      "row %d, key %d of\n%s", (int)t, (int)j, text);
  }
}
END_TEST

static Suite *forms_suite(void) {
  Suite *suite = suite_create("forms");
  TCase *tests = tcase_create("forms");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, 600);
  tcase_add_test(tests, random_masks_keep_their_pairs);
  tcase_add_test(tests, unions_with_lists_keep_their_pairs);
  tcase_add_test(tests, each_row_sees_its_residue);
  tcase_add_loop_test(tests, forms_by_hand, 0, sizeof forms / sizeof *forms);
  tcase_add_loop_test(tests, ranges_of_keys, 0,
                      sizeof spans / sizeof *spans);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  return suite_run(forms_suite(), CK_FORK_GETENV);
}
