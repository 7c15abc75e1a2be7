/* test_check.c - what check makes of good programs: phases, inheritance, heads,
 * names spelled out, topologies, kernels; and every example of the language
 * reference. Run from the root of the repository. */
#include "compiler/front/program.h"
#include "tests/support/suite.h"
#include "tests/support/text.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

/* ---- meaning ------------------------------------------------------------- */

typedef struct parsed {
  arena *arena;
  program *program;
} parsed;

static parsed parse_program(const char *text) {
  parsed all = {.arena = arena_new()};
  diag *d = diag_new(all.arena);
  all.program =
      program_parse(all.arena, d, "x.dil", text, strlen(text), NULL, 0);
  if (!all.program) diag_print(d, stdout, false);
  ck_assert_ptr_nonnull(all.program);
  if (all.program->pattern_count) pattern_verify(all.program->pattern[0]);
  return all;
}

static const branch *branch_of(const parsed *all, int32_t index) {
  ck_assert_int_lt(index, all->program->pattern[0]->branch_count);
  return &all->program->pattern[0]->branch[index];
}

static void expect_phases(const branch *b, int32_t count,
                          const int32_t *phases) {
  for (int32_t h = 0; h < count; h++) ck_assert_int_eq(b->phase[h], phases[h]);
}

#define HEAD "pattern p { heads 6 kv 3; head_dim 16; dtype bf16; "

START_TEST(phases_by_kind) {
  parsed all = parse_program(HEAD "branch { dilation 4; } "
                                  "branch { dilation 4; phase block; } "
                                  "branch { dilation 4; phase branch; } "
                                  "branch { dilation 4; phase kv; } "
                                  "branch { dilation 4; phase 1 - 2 * h; } "
                                  "branch { } }");
  expect_phases(branch_of(&all, 0), 6, (int32_t[]){0, 1, 2, 3, 0, 1});
  expect_phases(branch_of(&all, 1), 6, (int32_t[]){0, 0, 1, 1, 2, 2});
  expect_phases(branch_of(&all, 2), 6, (int32_t[]){2, 2, 2, 2, 2, 2});
  expect_phases(branch_of(&all, 3), 6, (int32_t[]){0, 0, 1, 1, 2, 2});
  expect_phases(branch_of(&all, 4), 6, (int32_t[]){1, 3, 1, 3, 1, 3});
  arena_free(all.arena);
}
END_TEST

START_TEST(branches_inherit) {
  parsed all =
      parse_program(HEAD "window 8, inf; mask i < 3; score s + 1; phase kv; "
                         "block 4; keep local(1); "
                         "branch { window inf, 2; mask j < 3; score s * 2; "
                         "causal; keep global(1); phase cycle; } "
                         "branch { block 8; } }");
  const branch *first = branch_of(&all, 0), *second = branch_of(&all, 1);
  ck_assert(first->causal && !second->causal);
  ck_assert_int_eq(first->left, 8);
  ck_assert_int_eq(first->right, 2);
  ck_assert_int_eq(second->right, DIL_ENDLESS);
  ck_assert_int_eq(first->mask_count, 2);
  ck_assert_int_eq(first->score_count, 2);
  ck_assert_int_eq(first->score[0]->op, EXPR_ADD);
  ck_assert_int_eq(first->score[1]->op, EXPR_MUL);
  ck_assert_int_eq(first->phase_kind, PHASE_CYCLE);
  ck_assert_int_eq(second->phase_kind, PHASE_KV);
  ck_assert_int_eq(first->keeps[0].count, 1);
  ck_assert_int_eq(first->keeps[1].count, 1);
  ck_assert_int_eq(first->keeps[0].block, 4);
  ck_assert_int_eq(second->keeps[0].block, 8);
  ck_assert_int_eq(second->keeps[1].count, 0);
  arena_free(all.arena);
}
END_TEST

START_TEST(heads_are_split) {
  parsed all =
      parse_program("pattern p { heads 10; head_dim 8; dtype f32; "
                    "heads split; segments 4, 8, 16; dilations 1, 1, 1; }");
  static const int32_t first[] = {0, 4, 7}, last[] = {3, 6, 9};
  for (int32_t k = 0; k < 3; k++) {
    ck_assert_int_eq(branch_of(&all, k)->head_first, first[k]);
    ck_assert_int_eq(branch_of(&all, k)->head_last, last[k]);
  }
  arena_free(all.arena);
}
END_TEST

static char *expr_text(const expr *e) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  expr_print(e, NULL, out);
  fclose(out);
  return text;
}

/* The canonical text of a pattern is a program of the same meaning. */
static void expect_round(const pattern *first) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  pattern_print(first, out);
  fclose(out);
  parsed second = parse_program(text);
  ck_assert_msg(pattern_same(first, second.program->pattern[0]), "%s", text);
  arena_free(second.arena);
  free(text);
}

START_TEST(names_are_spelled_out) {
  static const struct { const char *written, *meant; } rows[] = {
      {"bi == bj", "i / 4 == j / 4"},
      {"bj < nb", "j / 4 < (M + 3) / 4"},
      {"row < 9", "i - (M - N) < 9"},
      {"j < int(2.9)", "j < 2"},
      {"int(bi) == int(0.5 * j)", "i / 4 == int(0.5 * j)"},
      {"j < int(0.7 * 90)", "j < 63"}, /* as f32 */
      {"j < known", "j < 63"},
      {"int(min(h, 2.5)) < j", "int(min(h, 2.5)) < j"},
      {"local(2)", "abs(i / 4 - j / 4) <= 2"},
      {"global(2)", "i / 4 < 2 || j / 4 < 2"},
      {"strided(2)", "j / 4 % 2 == 0"},
      {"random(0.03125, 7)", "hash(h, i / 4, j / 4, 7) % 10000 < 312.5"},
      {"hierarchical(1, 2, 4, 8)",
       "i / 4 % 1 == 0 && abs(i / 4 - j / 4) <= 2 || i / 4 % 4 == 0 && "
       "abs(i / 4 - j / 4) <= 8"},
  };
  for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
    char *text = repeated("let known = int(0.7 * 90); " HEAD
                          "block 4; keep ", rows[k].written, 1,
                          "; branch { } }");
    parsed all = parse_program(text);
    char *meant = expr_text(branch_of(&all, 0)->keeps[0].keep[0].condition);
    ck_assert_str_eq(meant, rows[k].meant);
    free(meant);
    free(text);
    arena_free(all.arena);
  }
}
END_TEST

START_TEST(sizes_are_constants) {
  parsed all =
      parse_program(HEAD "block 4; mask i < S * 1000 + H * 100 + HKV * 10 + "
                         "D; branch { } }");
  char *meant = expr_text(branch_of(&all, 0)->mask[0]);
  ck_assert_str_eq(meant, "i < 4646");
  free(meant);
  arena_free(all.arena);
}
END_TEST

/* Names that came after files were written: a file's own name hides them. */
static const char *const hidden[] = {
    "row", "int", "each", "SQ", "nbq", "grid", "neighborhood", "keys", "x", "y", "z",
    "any", "iz",  "iy",   "ix", "jz",  "jy",   "jx"};
enum { HIDDEN = sizeof hidden / sizeof *hidden };

static char *message_about(const char *text, const char *name) {
  char *all = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&all, &length);
  for (const char *at = text; *at; at++)
    if (*at == '@') fputs(name, out);
    else fputc(*at, out);
  fclose(out);
  return all;
}

START_TEST(files_hide_new_names) {
  char *text = message_about(
      "let @ = 3; pattern @ { heads 6; head_dim 16; dtype f32;"
      " mask j < @; branch @ { } } topology @ { devices 2; } schedule @ "
      "{ tile_keys 64; } kernel @ = @ on @ with @;",
      hidden[_i]);
  parsed all = parse_program(text);
  char *mask = expr_text(branch_of(&all, 0)->mask[0]);
  ck_assert_str_eq(mask, "j < 3");
  ck_assert_str_eq(branch_of(&all, 0)->name, hidden[_i]);
  ck_assert_ptr_eq(all.program->kernel[0]->topology, all.program->topology[0]);
  arena_free(all.arena);
  free(mask);
  free(text);
}
END_TEST

START_TEST(inputs_hide_new_names) {
  char *text = message_about(
      HEAD "input @ : i32[M]; mask @[j] == 0; branch { } }", hidden[_i]);
  parsed all = parse_program(text);
  const expr *mask = branch_of(&all, 0)->mask[0];
  ck_assert_int_eq(mask->arg[0]->op, EXPR_INPUT);
  expect_round(all.program->pattern[0]);
  arena_free(all.arena);
  free(text);
}
END_TEST

START_TEST(each_phase_is_one_branch) {
  parsed all = parse_program(
      HEAD "branch { dilation 3; phase each; } "
           "branch { dilation 5; phase branch; } branch { phase each; } "
           "branch { dilation 4; phase each - 5; } "
           "branch { dilation 4; phase each + 1; } }");
  const pattern *p = all.program->pattern[0];
  ck_assert_int_eq(p->branch_count, 5);
  ck_assert(branch_has_each(&p->branch[0]));
  ck_assert_int_eq(p->branch[1].phase[0], 1);
  ck_assert(!branch_has_each(&p->branch[2]));
  ck_assert_int_eq(p->branch[3].shift, 1);
  ck_assert_int_eq(p->branch[4].shift, 3);
  expect_round(p);
  arena_free(all.arena);
  all = parse_program("let each = 5; " HEAD
                      "branch { dilation 3; phase each; } }");
  ck_assert(!branch_has_each(branch_of(&all, 0)));
  ck_assert_int_eq(branch_of(&all, 0)->phase[0], 2);
  arena_free(all.arena);
  all = parse_program(HEAD "input each : f32[H]; score s + each[h]; "
                           "branch each { dilation 3; phase each; } }"
                           "topology each { devices 1; }");
  ck_assert(branch_has_each(branch_of(&all, 0)));
  arena_free(all.arena);
}
END_TEST

START_TEST(topologies_fill_in) {
  parsed all =
      parse_program(HEAD "branch { } } topology t { devices 8; heads 2; "
                         "timeout 500ms; } topology u { } kernel k = p on t; "
                         "kernel l = p backward;");
  const program *p = all.program;
  ck_assert_int_eq(p->topology_count, 2);
  ck_assert_int_eq(p->topology[0]->ring, 4);
  ck_assert_double_eq(p->topology[0]->timeout, 0.5);
  ck_assert_int_eq(p->topology[1]->devices, 1);
  ck_assert_double_eq(p->topology[1]->timeout, 30);
  ck_assert_int_eq(p->kernel_count, 2);
  ck_assert_ptr_eq(p->kernel[0]->topology, p->topology[0]);
  ck_assert(p->kernel[1]->backward && !p->kernel[1]->topology);
  arena_free(all.arena);
}
END_TEST

START_TEST(kernels_without_a_statement) {
  parsed all = parse_program(HEAD "branch { } }");
  ck_assert_int_eq(all.program->kernel_count, 1);
  ck_assert_str_eq(all.program->kernel[0]->name, "p");
  arena_free(all.arena);
  all = parse_program(
      HEAD "branch { } } pattern q { heads 1; head_dim 8; dtype f32; "
           "branch { } }");
  ck_assert_int_eq(all.program->kernel_count, 0);
  arena_free(all.arena);
}
END_TEST

static void expect_rounds(const char *path) {
  arena *a = arena_new();
  diag *d = diag_new(a);
  dil_status status;
  program *p = program_read(a, d, path, NULL, 0, &status);
  if (!p) diag_print(d, stdout, false);
  ck_assert_int_eq(status, DIL_OK);
  for (int32_t i = 0; i < p->pattern_count; i++) expect_round(p->pattern[i]);
  arena_free(a);
}

START_TEST(patterns_print_and_parse) {
  struct dirent **entry;
  int count = scandir("examples", &entry, is_program, alphasort);
  ck_assert_int_gt(count, 0);
  for (int i = 0; i < count; i++) {
    char path[512];
    snprintf(path, sizeof path, "examples/%s", entry[i]->d_name);
    expect_rounds(path);
    free(entry[i]);
  }
  free(entry);
  expect_rounds("tests/golden/ast/everything.dil");
}
END_TEST

/* ---- the language reference ---------------------------------------------- */

/* A fenced example as a file: `dil pattern` holds statements of a pattern,
 * `dil branch` of a branch. */
static char *example_file(const char *kind, const char *body) {
  bool whole = !strcmp(kind, "dil"), inside = !strcmp(kind, "dil branch");
  bool headed = strstr(body, "heads     ") != NULL;
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  if (!whole) fputs("pattern p { ", out);
  if (!whole && !headed) fputs("heads 8; head_dim 64; dtype f32; ", out);
  fprintf(out, inside ? "branch { %s\n} }" : whole ? "%s" : "%s\n}", body);
  fclose(out);
  return text;
}

START_TEST(reference_examples) {
  char *text = file_text("grammar/README.md"), *at = text;
  int count = 0;
  ck_assert_ptr_nonnull(text);
  while ((at = strstr(at, "\n```dil"))) {
    char *kind = at + 4, *body = strchr(kind, '\n');
    at = strstr(body, "\n```");
    *body++ = *at++ = 0;
    char *file = example_file(kind, body);
    arena_free(parse_program(file).arena);
    free(file);
    count++;
  }
  ck_assert_int_ge(count, 8);
  free(text);
}
END_TEST

START_TEST(counts_are_bounded) {
  char *text = repeated(HEAD, "branch { } ", 64, "}");
  arena_free(parse_program(text).arena);
  free(text);
  arena_free(parse_program("pattern p { heads 4096; head_dim 65536; dtype f32; "
                           "branch { segment 2147483647; } }")
                 .arena);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("check");
  TCase *all = tcase_create("check");
  tcase_set_timeout(all, 60);
  static const TTest *const *const tests[] = {
      &phases_by_kind, &branches_inherit, &heads_are_split,
      &names_are_spelled_out, &sizes_are_constants,
      &each_phase_is_one_branch, &topologies_fill_in,
      &kernels_without_a_statement, &patterns_print_and_parse,
      &reference_examples, &counts_are_bounded};
  tcase_add_loop_test(all, files_hide_new_names, 0, HIDDEN);
  tcase_add_loop_test(all, inputs_hide_new_names, 0, HIDDEN);
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
    tcase_add_test(all, *tests[i]);
  suite_add_tcase(suite, all);
  return suite_run(suite, CK_NOFORK);
}
