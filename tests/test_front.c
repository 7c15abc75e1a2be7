/* test_front.c - the front end against its golden texts, and its limits.
 *
 * tests/golden/errors/X.dil is a program and X.err all that is said of it; a
 * first line `#! -D name=value ...` stands for the command line. A program of
 * tests/golden/ast has its tree in X.ast. REGOLD=1 writes the expectations
 * anew. Run from the root of the repository. */
#include "all.h"
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files --------------------------------------------------------------- */

static char *file_text(const char *path) {
  FILE *in = fopen(path, "r");
  if (!in) return NULL;
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  for (int c; (c = fgetc(in)) != EOF;) fputc(c, out);
  fclose(out);
  fclose(in);
  return text;
}

static void file_write(const char *path, const char *text) {
  FILE *out = fopen(path, "w");
  ck_assert_msg(out, "cannot write %s: %s", path, strerror(errno));
  fputs(text, out);
  fclose(out);
}

static int is_program(const struct dirent *entry) {
  const char *dot = strrchr(entry->d_name, '.');
  return dot && !strcmp(dot, ".dil");
}

/* ---- golden texts -------------------------------------------------------- */

typedef char *(*produce)(const char *path);

/* What the compiler says against the file beside the program. */
static int golden_differs(const char *path, const char *suffix,
                          produce produced) {
  char beside[512];
  snprintf(beside, sizeof beside, "%.*s%s", (int)strlen(path) - 4, path,
           suffix);
  char *got = produced(path), *expected = file_text(beside);
  int differs = !expected || strcmp(got, expected);
  if (differs && getenv("REGOLD"))
    file_write(beside, got), differs = 0;
  if (differs)
    printf("%s differs; it should be\n%s\nand is\n%s\n", beside,
           expected ? expected : "(missing)", got);
  free(got);
  free(expected);
  return differs;
}

static void golden_folder(const char *folder, const char *suffix,
                          produce produced) {
  char *back = getcwd(NULL, 0);
  struct dirent **entry;
  int wrong = 0;
  ck_assert_msg(chdir(folder) == 0, "%s: %s", folder, strerror(errno));
  int count = scandir(".", &entry, is_program, alphasort);
  ck_assert_int_gt(count, 0);
  for (int i = 0; i < count; i++) {
    wrong += golden_differs(entry[i]->d_name, suffix, produced);
    free(entry[i]);
  }
  free(entry);
  ck_assert_int_eq(chdir(back), 0);
  free(back);
  ck_assert_int_eq(wrong, 0);
}

/* The defines of a first line `#! -D a=1 -D b=2`. */
static int32_t defines_of(arena *a, const char *path, define *defines) {
  char *text = file_text(path), *line = text, *save = NULL;
  int32_t count = 0;
  if (text && !strncmp(text, "#! ", 3)) {
    line = strtok_r(text + 3, "\n", &save);
    char *save_word = NULL;
    for (char *w = strtok_r(line, " ", &save_word); w;
         w = strtok_r(NULL, " ", &save_word)) {
      char *equals = strchr(w, '=');
      if (!equals) continue;
      defines[count].name = arena_copy(a, w, (size_t)(equals - w));
      defines[count++].value = arena_copy(a, equals + 1, strlen(equals + 1));
    }
  }
  free(text);
  return count;
}

static char *errors_of(const char *path) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  arena *a = arena_new();
  diag *d = diag_new(a);
  define defines[8];
  int32_t count = defines_of(a, path, defines);
  dil_status status;
  program *p = program_read(a, d, path, defines, count, &status);
  ck_assert_int_eq(p == NULL, diag_errors(d) > 0);
  ck_assert_int_eq(p == NULL, status != DIL_OK);
  diag_print(d, out, false);
  arena_free(a);
  fclose(out);
  return text;
}

static char *tree_of(const char *path) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  arena *a = arena_new();
  diag *d = diag_new(a);
  dil_status status = program_print_ast(path, out, d, a);
  ck_assert_int_eq(status, DIL_OK);
  arena_free(a);
  fclose(out);
  return text;
}

START_TEST(golden_errors) {
  golden_folder("tests/golden/errors", ".err", errors_of);
}
END_TEST

START_TEST(golden_trees) {
  golden_folder("tests/golden/ast", ".ast", tree_of);
}
END_TEST

/* ---- programs in memory -------------------------------------------------- */

/* All messages on `text`; freed by the caller. *good: it is a program. */
static char *messages(const char *text, size_t length, bool json, bool *good) {
  char *said = NULL;
  size_t said_length = 0;
  FILE *out = open_memstream(&said, &said_length);
  arena *a = arena_new();
  diag *d = diag_new(a);
  *good = program_parse(a, d, "x.dil", text, length, NULL, 0) != NULL;
  diag_print(d, out, json);
  arena_free(a);
  fclose(out);
  return said;
}

static void expect_good(const char *text) {
  bool good;
  char *said = messages(text, strlen(text), false, &good);
  ck_assert_msg(good, "%s", said);
  ck_assert_str_eq(said, "");
  free(said);
}

static void expect_error(const char *text, const char *message) {
  bool good;
  char *said = messages(text, strlen(text), false, &good);
  ck_assert(!good);
  ck_assert_msg(strstr(said, message), "'%s' is not in\n%s", message, said);
  free(said);
}

static char *repeated(const char *before, const char *part, int count,
                      const char *after) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  fputs(before, out);
  for (int i = 0; i < count; i++) fputs(part, out);
  fputs(after, out);
  fclose(out);
  return text;
}

START_TEST(nesting_is_bounded) {
  static const struct { const char *open, *close; int count; } forms[] = {
      {"(", ")", 200}, {"-", "", 200}, {"1 + ", "", 200}, {"abs(", ")", 200},
      {"1 < 2 ? 1 : ", "", 199},
  };
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
    for (int over = 0; over < 2; over++) {
      int count = forms[i].count + over;
      char *inner = repeated("1", forms[i].close, count, ";");
      char *text = repeated("let w = ", forms[i].open, count, inner);
      if (over)
        expect_error(text, "expression is nested more than 200 deep");
      else
        expect_good(text);
      free(inner);
      free(text);
    }
}
END_TEST

/* Far beyond the limit, where the parser's own stack would end first. */
START_TEST(nesting_far_too_deep) {
  static const char *const opens[] = {"(", "-", "!", "1 + (", "abs(", "x[",
                                      "1 ? 1 : ", "1 || 2 && 3 < 4 + 5 * ("};
  for (size_t i = 0; i < sizeof opens / sizeof *opens; i++) {
    char *text = repeated("let w = ", opens[i], 40000, "1;");
    expect_error(text, "expression is nested more than 200 deep");
    free(text);
  }
}
END_TEST

START_TEST(file_size_is_bounded) {
  enum { MEBIBYTE = 1 << 20 };
  char *text = malloc(MEBIBYTE + 1);
  memset(text, ' ', MEBIBYTE + 1);
  bool good;
  char *said = messages(text, MEBIBYTE, false, &good);
  ck_assert(good);
  free(said);
  said = messages(text, MEBIBYTE + 1, false, &good);
  ck_assert(!good);
  ck_assert_str_eq(said, "error: 'x.dil' has more than 1048576 bytes\n");
  free(said);
  free(text);
}
END_TEST

static dil_status read_status(const char *path, char **said) {
  size_t length = 0;
  FILE *out = open_memstream(said, &length);
  arena *a = arena_new();
  diag *d = diag_new(a);
  dil_status status;
  program_read(a, d, path, NULL, 0, &status);
  diag_print(d, out, false);
  arena_free(a);
  fclose(out);
  return status;
}

START_TEST(unreadable_files) {
  char *said;
  ck_assert_int_eq(read_status("no/such.dil", &said), DIL_ENVIRONMENT);
  ck_assert_str_eq(
      said, "error: cannot read 'no/such.dil': No such file or directory\n");
  free(said);
  ck_assert_int_eq(read_status("tests", &said), DIL_ENVIRONMENT);
  ck_assert_str_eq(said, "error: cannot read 'tests': Is a directory\n");
  free(said);
}
END_TEST

/* A chain of files, each importing the next: `count` imports deep. */
static void write_chain(const char *folder, int count) {
  char path[256], text[64];
  for (int i = 0; i <= count; i++) {
    snprintf(path, sizeof path, "%s/%d.dil", folder, i);
    snprintf(text, sizeof text, "import \"%d.dil\";\n", i + 1);
    file_write(path, i < count ? text : "let last = 1;\n");
  }
}

START_TEST(import_depth_is_bounded) {
  char folder[] = "/tmp/dil-import-XXXXXX", path[64], *said;
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/0.dil", folder);
  write_chain(folder, 16);
  ck_assert_int_eq(read_status(path, &said), DIL_OK);
  ck_assert_str_eq(said, "");
  free(said);
  write_chain(folder, 17);
  ck_assert_int_eq(read_status(path, &said), DIL_INPUT);
  ck_assert_ptr_nonnull(
      strstr(said, "16.dil:1:8: error: imports are nested more than 16 deep"));
  free(said);
  for (int i = 0; i <= 17; i++) {
    snprintf(path, sizeof path, "%s/%d.dil", folder, i);
    unlink(path);
  }
  rmdir(folder);
}
END_TEST

START_TEST(json_lines) {
  const char *text = "let w = 1;\n let v = widht;\nlet u = \"";
  bool good;
  char *said = messages("let wide = 1;\n let v = widee;\n", 30, true, &good);
  ck_assert(!good);
  ck_assert_str_eq(
      said, "{\"file\":\"x.dil\",\"line\":2,\"column\":10,\"end_column\":15,"
            "\"severity\":\"error\",\"message\":\"unknown name 'widee'\","
            "\"hint\":\"did you mean 'wide'?\"}\n");
  free(said);
  said = messages(text, strlen(text), true, &good);
  ck_assert_str_eq(
      said, "{\"file\":\"x.dil\",\"line\":3,\"column\":9,\"end_column\":10,"
            "\"severity\":\"error\",\"message\":\"string does not end on its "
            "line\",\"hint\":null}\n");
  free(said);
}
END_TEST

/* ---- meaning ------------------------------------------------------------- */

typedef struct parsed {
  arena *arena;
  program *program;
} parsed;

static parsed parse(const char *text) {
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
  parsed all = parse(HEAD "branch { dilation 4; } "
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
  parsed all = parse(HEAD "window 8, inf; mask i < 3; score s + 1; phase kv; "
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
  parsed all = parse("pattern p { heads 10; head_dim 8; dtype f32; "
                     "heads split; segments 4, 8, 16; dilations 1, 1, 1; }");
  static const int32_t first[] = {0, 4, 7}, last[] = {3, 6, 9};
  for (int32_t k = 0; k < 3; k++) {
    ck_assert_int_eq(branch_of(&all, k)->head_first, first[k]);
    ck_assert_int_eq(branch_of(&all, k)->head_last, last[k]);
  }
  arena_free(all.arena);
}
END_TEST

static char *printed(const expr *e) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  expr_print(e, NULL, out);
  fclose(out);
  return text;
}

START_TEST(names_are_spelled_out) {
  static const struct { const char *written, *meant; } rows[] = {
      {"bi == bj", "i / 4 == j / 4"},
      {"bj < nb", "j / 4 < (M + 3) / 4"},
      {"local(2)", "abs(i / 4 - j / 4) <= 2"},
      {"global(2)", "i / 4 < 2 || j / 4 < 2"},
      {"strided(2)", "j / 4 % 2 == 0"},
      {"random(0.03125, 7)", "hash(h, i / 4, j / 4, 7) % 10000 < 312.5"},
      {"hierarchical(1, 2, 4, 8)",
       "i / 4 % 1 == 0 && abs(i / 4 - j / 4) <= 2 || i / 4 % 4 == 0 && "
       "abs(i / 4 - j / 4) <= 8"},
  };
  for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
    char *text = repeated(HEAD "block 4; keep ", rows[k].written, 1,
                          "; branch { } }");
    parsed all = parse(text);
    char *meant = printed(branch_of(&all, 0)->keeps[0].keep[0].condition);
    ck_assert_str_eq(meant, rows[k].meant);
    free(meant);
    free(text);
    arena_free(all.arena);
  }
}
END_TEST

START_TEST(sizes_are_constants) {
  parsed all = parse(HEAD "block 4; mask i < S * 1000 + H * 100 + HKV * 10 + "
                          "D; branch { } }");
  char *meant = printed(branch_of(&all, 0)->mask[0]);
  ck_assert_str_eq(meant, "i < 4646");
  free(meant);
  arena_free(all.arena);
}
END_TEST

START_TEST(topologies_fill_in) {
  parsed all = parse(HEAD "branch { } } topology t { devices 8; heads 2; "
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
  parsed all = parse(HEAD "branch { } }");
  ck_assert_int_eq(all.program->kernel_count, 1);
  ck_assert_str_eq(all.program->kernel[0]->name, "p");
  arena_free(all.arena);
  all = parse(HEAD "branch { } } pattern q { heads 1; head_dim 8; dtype f32; "
                   "branch { } }");
  ck_assert_int_eq(all.program->kernel_count, 0);
  arena_free(all.arena);
}
END_TEST

/* The canonical text of a pattern is a program of the same meaning. */
static void expect_round(const pattern *first) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  pattern_print(first, out);
  fclose(out);
  parsed second = parse(text);
  ck_assert_msg(pattern_same(first, second.program->pattern[0]), "%s", text);
  arena_free(second.arena);
  free(text);
}

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
    arena_free(parse(file).arena);
    free(file);
    count++;
  }
  ck_assert_int_ge(count, 8);
  free(text);
}
END_TEST

START_TEST(counts_are_bounded) {
  char *text = repeated(HEAD, "branch { } ", 64, "}");
  arena_free(parse(text).arena);
  free(text);
  arena_free(parse("pattern p { heads 4096; head_dim 65536; dtype f32; "
                   "branch { segment 2147483647; } }").arena);
}
END_TEST

/* ---- util ---------------------------------------------------------------- */

START_TEST(floored_arithmetic) {
  ck_assert_int_eq(floor_div(-1, 2), -1);
  ck_assert_int_eq(floor_div(7, 2), 3);
  ck_assert_int_eq(floor_div(-4, 2), -2);
  ck_assert_int_eq(floor_mod(-1, 2), 1);
  ck_assert_int_eq(floor_mod(7, 4), 3);
  ck_assert_int_eq(gcd_of(12, 18), 6);
  ck_assert_int_eq(lcm_of(4, 6), 12);
  ck_assert_int_eq(lcm_of(INT64_MAX, INT64_MAX - 1), INT64_MAX);
}
END_TEST

START_TEST(arenas) {
  arena *a = arena_new();
  const char *first = arena_name(a, "segment", 7);
  for (int i = 0; i < 5000; i++) {
    const char *name = arena_print(a, "name%d", i);
    ck_assert_ptr_eq(arena_name(a, name, strlen(name)),
                     arena_name(a, name, strlen(name)));
    ck_assert_uint_eq((uintptr_t)arena_take(a, 3, 5) % 16, 0);
  }
  ck_assert_ptr_eq(arena_name(a, "segments", 7), first);
  ck_assert_ptr_ne(arena_name(a, "segments", 8), first);
  unsigned char *large = arena_take(a, 1, 1 << 20);
  for (int i = 0; i < 1 << 20; i++) ck_assert_uint_eq(large[i], 0);
  arena_free(a);
}
END_TEST

START_TEST(arena_out_of_memory) {
  arena *a = arena_new();
  jmp_buf out;
  volatile bool reached = false;
  if (setjmp(out) == 0) {
    arena_catch(a, &out);
    arena_take(a, SIZE_MAX / 2, 3);
  } else {
    reached = true;
  }
  ck_assert(reached);
  arena_free(a);
}
END_TEST

START_TEST(nearest_names) {
  static const char *const names[] = {"dilation", "segment", "N", "min"};
  ck_assert_str_eq(diag_nearest("dilaton", names, 4), "dilation");
  ck_assert_str_eq(diag_nearest("semgent", names, 4), "segment");
  ck_assert_str_eq(diag_nearest("n", names, 4), "N");
  ck_assert_ptr_null(diag_nearest("x", names, 4));
  ck_assert_ptr_null(diag_nearest("attention", names, 4));
  ck_assert_ptr_null(diag_nearest("", names, 4));
}
END_TEST

int main(void) {
  Suite *suite = suite_create("front");
  TCase *all = tcase_create("front");
  tcase_set_timeout(all, 60);
  static const TTest *const *const tests[] = {
      &golden_errors, &golden_trees, &nesting_is_bounded,
      &nesting_far_too_deep, &file_size_is_bounded, &unreadable_files,
      &import_depth_is_bounded, &json_lines, &phases_by_kind,
      &branches_inherit, &heads_are_split, &names_are_spelled_out,
      &sizes_are_constants, &topologies_fill_in,
      &kernels_without_a_statement, &patterns_print_and_parse,
      &reference_examples, &counts_are_bounded,
      &floored_arithmetic, &arenas, &arena_out_of_memory, &nearest_names};
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
    tcase_add_test(all, *tests[i]);
  suite_add_tcase(suite, all);
  SRunner *runner = srunner_create(suite);
  srunner_set_fork_status(runner, CK_NOFORK);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
