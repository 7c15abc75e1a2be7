/* test_front.c - the front end against its golden texts, and its limits.
 *
 * tests/golden/errors/X.dil is a program and X.err all that is said of it; a
 * first line `#! -D name=value ...` stands for the command line. A program of
 * tests/golden/ast has its tree in X.ast. REGOLD=1 writes the expectations
 * anew. Run from the root of the repository. */
#include "compiler/front/program.h"
#include "runtime/base/arithmetic.h"
#include "tests/support/suite.h"
#include "tests/support/text.h"
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- files --------------------------------------------------------------- */

static void file_write(const char *path, const char *text) {
  FILE *out = fopen(path, "w");
  ck_assert_msg(out, "cannot write %s: %s", path, strerror(errno));
  fputs(text, out);
  fclose(out);
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
static char *messages_on(const char *text, size_t length, bool json,
                         bool *good) {
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
  char *said = messages_on(text, strlen(text), false, &good);
  ck_assert_msg(good, "%s", said);
  ck_assert_str_eq(said, "");
  free(said);
}

static void expect_error(const char *text, const char *message) {
  bool good;
  char *said = messages_on(text, strlen(text), false, &good);
  ck_assert(!good);
  ck_assert_msg(strstr(said, message), "'%s' is not in\n%s", message, said);
  free(said);
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
  char *said = messages_on(text, MEBIBYTE, false, &good);
  ck_assert(good);
  free(said);
  said = messages_on(text, MEBIBYTE + 1, false, &good);
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
  char *said = messages_on("let wide = 1;\n let v = widee;\n", 30, true, &good);
  ck_assert(!good);
  ck_assert_str_eq(
      said, "{\"file\":\"x.dil\",\"line\":2,\"column\":10,\"end_column\":15,"
            "\"severity\":\"error\",\"message\":\"unknown name 'widee'\","
            "\"hint\":\"did you mean 'wide'?\"}\n");
  free(said);
  said = messages_on(text, strlen(text), true, &good);
  ck_assert_str_eq(
      said, "{\"file\":\"x.dil\",\"line\":3,\"column\":9,\"end_column\":10,"
            "\"severity\":\"error\",\"message\":\"string does not end on its "
            "line\",\"hint\":null}\n");
  free(said);
}
END_TEST

/* ---- util ---------------------------------------------------------------- */

START_TEST(floored_arithmetic) {
  ck_assert_int_eq(floor_div(-1, 2), -1);
  ck_assert_int_eq(floor_div(7, 2), 3);
  ck_assert_int_eq(floor_div(-4, 2), -2);
  ck_assert_int_eq(floor_mod(-1, 2), 1);
  ck_assert_int_eq(floor_mod(7, 4), 3);
  ck_assert_int_eq(greatest_divisor(12, 18), 6);
  ck_assert_int_eq(least_multiple(4, 6), 12);
  ck_assert_int_eq(least_multiple(INT64_MAX, INT64_MAX - 1), INT64_MAX);
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
      &import_depth_is_bounded, &json_lines, &floored_arithmetic, &arenas,
      &arena_out_of_memory, &nearest_names};
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
    tcase_add_test(all, *tests[i]);
  suite_add_tcase(suite, all);
  return suite_run(suite, CK_NOFORK);
}
