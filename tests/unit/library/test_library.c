/* test_library.c - libraries from within: what reads files from anywhere stands
 * any damage, archives come back member by member, and a library's function
 * tells what it lacks, memory at every single place included. */
#include "compiler/library/library.h"
#include "runtime/base/module.h"
#include "tests/support/fault.h"
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char text[] =
    "pattern shared { heads 2; head_dim 16; dtype f32; causal; scale runtime;"
    "  input slope : f32[H]; score s + slope[h]; branch { segment 32; }"
    "  branch { dilation 2; } }";

static arena *memory;
static library made;
static cpu_code object;

static void make_library(void) {
  memory = arena_new();
  compilation c = {.arena = memory, .diag = diag_new(memory)};
  const compilation *at;
  driver_request r = {.path = "shared.dil",
                      .text = text,
                      .length = strlen(text),
                      .last = STAGE_plan};
  made = (library){.arena = memory,
                   .has_object = true,
                   .isa_count = 1,
                   .isa = {"avx2"}};
  ck_assert_msg(!library_name(&made, "libshared", NULL) &&
                    !driver_compile(&r, &c) &&
                    !library_add(&made, "shared_kernel", "", &c) &&
                    !library_name_kernels(&made, false, false) &&
                    !library_make(&made, &at) &&
                    !library_object_make(&made, NULL, NULL, &object),
                "%s", dil_last_error());
}

static void drop_library(void) {
  free(object.bytes);
  arena_free(memory);
}

/* ---- objects and archives ------------------------------------------------ */

static void expect_name(void *context, const char *name) {
  int *seen = context;
  static const char *const names[] = {"shared_kernel", "shared_kernel_packed",
                                      "shared_kernel_prepare",
                                      "shared_last_error"};
  int i = 0;
  while (i < 4 && strcmp(names[i], name)) i++;
  ck_assert_int_lt(i, 4);
  *seen |= 1 << i;
}

START_TEST(an_object_says_what_it_holds) {
  const char *data;
  size_t size;
  int seen = 0;
  ck_assert(elf_find_section(object.bytes, object.size, DIL_LIBRARY_SECTION,
                             &data, &size));
  ck_assert_str_eq(data, made.meta);
  elf_each_global(object.bytes, object.size, expect_name, &seen);
  ck_assert_int_eq(seen, 15);
}
END_TEST

static void expect_prefix(void *context, const char *name) {
  ++*(int *)context;
  ck_assert_msg(!strncmp(name, "mine_", 5), "%s", name);
}

START_TEST(names_are_changed_and_nothing_else) {
  void *bytes;
  size_t size, length;
  const char *data;
  int count = 0;
  ck_assert_int_eq(elf_rename(object.bytes, object.size, "mine_", &bytes,
                              &size), DIL_OK);
  elf_each_global(bytes, size, expect_prefix, &count);
  ck_assert_int_eq(count, 4);
  ck_assert(elf_find_section(bytes, size, ".dil.library", &data, &length));
  ck_assert_str_eq(data, made.meta);
  free(bytes);
}
END_TEST

START_TEST(archives_come_back) {
  const library_object members[] = {
      {"a.o", object.bytes, object.size},
      {"a_name_that_is_longer_than_an_archive_holds.o", "odd", 3},
      {"b.o", "even", 4}};
  void *bytes;
  size_t size, length, at = 0;
  const char *member;
  ck_assert_int_eq(archive_make(members, 3, &bytes, &size), DIL_OK);
  for (int i = -2; i < 3; i++) { /* first its two tables */
    ck_assert(archive_next(bytes, size, &at, &member, &length));
    if (i < 0) continue;
    ck_assert_uint_eq(length, members[i].size);
    ck_assert_mem_eq(member, members[i].bytes, length);
  }
  ck_assert(!archive_next(bytes, size, &at, &member, &length));
  free(bytes);
}
END_TEST

/* ---- damage -------------------------------------------------------------- */

static void ignore_name(void *context, const char *name) {
  *(size_t *)context += strlen(name);
}

/* All that looks into an object; whatever comes of it, nothing is read that is
 * not there (a sanitizer would see it). */
static void look_into(const void *bytes, size_t size) {
  const char *data, *member;
  size_t length, at = 0, sum = 0, turns = 0;
  void *out;
  if (elf_find_section(bytes, size, DIL_LIBRARY_SECTION, &data, &length))
    for (size_t i = 0; i < length; i++) sum += (unsigned char)data[i];
  elf_each_global(bytes, size, ignore_name, &sum);
  if (!elf_rename(bytes, size, "p_", &out, &length)) free(out);
  while (archive_next(bytes, size, &at, &member, &length) && turns++ < 100)
    for (size_t i = 0; i < length; i++) sum += (unsigned char)member[i];
  ck_assert_uint_lt(turns, 100);
}

/* Where the numbers are: the head and the table of sections; in an archive all
 * heads of members. */
static size_t damage_place(const char *bytes, size_t size, uint64_t *state) {
  uint64_t sections;
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  size_t at = (size_t)(*state >> 33);
  memcpy(&sections, bytes + 40, sizeof sections);
  if (bytes[0] == '!' || sections >= size || *state >> 32 & 1)
    return at % (size < 256 ? size : 256);
  return sections + at % (size - sections);
}

static void damage(const void *whole, size_t size) {
  enum { TURNS = 4000 };
  uint64_t state = 7;
  for (int turn = 0; turn < TURNS; turn++) {
    size_t length = turn % 8 ? size : (size_t)(state >> 20) % size;
    char *bytes = malloc(length + 1);
    memcpy(bytes, whole, length);
    for (int n = turn % 3; n >= 0 && length > 64; n--) {
      size_t at = damage_place(bytes, length, &state);
      bytes[at] = (char)(state >> 40);
    }
    look_into(bytes, length);
    free(bytes);
  }
}

START_TEST(damaged_objects_do_no_harm) { damage(object.bytes, object.size); }
END_TEST

START_TEST(damaged_archives_do_no_harm) {
  const library_object members[] = {{"a.o", object.bytes, object.size},
                                    {"b.o", object.bytes, object.size}};
  void *bytes;
  size_t size;
  ck_assert_int_eq(archive_make(members, 2, &bytes, &size), DIL_OK);
  damage(bytes, size);
  free(bytes);
}
END_TEST

/* Its JSON may be anything; what is printed and compared of it is text. */
START_TEST(a_damaged_description_is_told) {
  static const struct {
    const char *list, *part;
  } wrong[] = {{"cpu", "[1]"}, {"cpu", "7"}, {"inputs", "[{\"name\": \"a\"}]"},
               {"inputs", "[\"a\"]"}, {"cuda", "[{\"arch\": null}]"}};
  library_kernel_facts facts;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    json_t *described = json_loads(made.meta, 0, NULL);
    json_t *entry =
        json_array_get(json_object_get(described, "kernels"), 0);
    ck_assert_int_eq(library_about_kernel("a.so", entry, &facts), DIL_OK);
    json_object_set_new(entry, wrong[i].list,
                        json_loads(wrong[i].part, JSON_DECODE_ANY, NULL));
    ck_assert_int_eq(library_about_kernel("a.so", entry, &facts), DIL_INPUT);
    ck_assert_ptr_nonnull(strstr(dil_last_error(), "what is no text"));
    json_decref(described);
  }
}
END_TEST

/* ---- calls --------------------------------------------------------------- */

static void expect_error(int32_t status, int32_t want, const char *words) {
  ck_assert_int_eq(status, want);
  ck_assert_msg(strstr(dil_last_error(), words), "%s", dil_last_error());
}

START_TEST(what_is_no_library_of_this_form_is_told) {
  dil_library_kernel k = {.abi = DIL_LIBRARY_ABI + 1, .name = "old"};
  uint64_t words[8] = {sizeof words};
  expect_error(dil_library_run(&k, NULL, words), DIL_ENVIRONMENT,
               "build it again");
  k.abi = DIL_LIBRARY_ABI;
  expect_error(dil_library_run(&k, NULL, NULL), DIL_USAGE, "no arguments");
  k.image = "none";
  k.image_size = 4;
  expect_error(dil_library_run(&k, NULL, words), DIL_INPUT, "image of a plan");
}
END_TEST

typedef struct shared_arguments {
  size_t size;
  const DLTensor *q, *k, *v;
  DLTensor *o, *lse;
  const DLTensor *lengths;
  void *stream;
  const DLTensor *offsets_q, *offsets_k;
  int64_t longest_q, longest_k;
  const DLTensor *pages;
  DLTensor *const *selection;
  void *saved;
  int64_t saved_bytes;
  void *reserved[DIL_WORD_INPUTS - DIL_WORD_RESERVED];
  const DLTensor *slope;
  double scale;
} shared_arguments;

enum { N = 40, H = 2, D = 16 };

typedef int32_t (*entry)(dil_context *context, const void *arguments);

/* A call of ones: every output is 1, else -1 comes back. Asserts nothing: that
 * takes memory. */
static int32_t call_shared(entry run, dil_context *c) {
  static float ones[N * H * D], out[N * H * D], slope[H];
  int64_t shape[] = {1, N, H, D}, heads[] = {H};
  DLTensor t = {.data = ones,
                .device = {kDLCPU, 0},
                .ndim = 4,
                .dtype = {kDLFloat, 32, 1},
                .shape = shape};
  DLTensor o = t, s = t;
  for (int i = 0; i < N * H * D; i++) ones[i] = 1;
  memset(out, 0, sizeof out);
  o.data = out;
  s.data = slope;
  s.ndim = 1;
  s.shape = heads;
  shared_arguments a = {.size = sizeof a, .q = &t, .k = &t, .v = &t, .o = &o,
                        .slope = &s, .scale = 0.25};
  int32_t status = run(c, &a);
  for (int i = 0; i < N * H * D && !status; i++)
    if (!(fabsf(out[i] - 1) < 1e-6f)) status = -1;
  return status;
}

static entry load(void) {
  char path[] = "/tmp/dil-test-library-XXXXXX", runtime[DIL_PATH_MAX];
  const library_object one = {"shared.o", object.bytes, object.size};
  int file = mkstemp(path);
  ck_assert_int_ge(file, 0);
  close(file);
  ck_assert_msg(!library_link(&made, &one, 1, true, path), "%s", dil_last_error());
  /* there already when the library asks for it by its name */
  ck_assert_int_eq(dil_module_find("libdilrt.so", runtime), DIL_OK);
  ck_assert_ptr_nonnull(dlopen(runtime, RTLD_NOW));
  void *handle = dlopen(path, RTLD_NOW);
  ck_assert_msg(handle != NULL, "%s", dlerror());
  unlink(path);
  void *function = dlsym(handle, "shared_kernel");
  ck_assert_ptr_nonnull(function);
  return (entry)function;
}

/* One context, one call; with or without memory it ends well. */
static int32_t one_life(entry run) {
  dil_context_options options = DIL_CONTEXT_OPTIONS_INIT;
  dil_context *c;
  options.threads = 1;
  int32_t status = (int32_t)dil_context_new(&options, &c);
  if (!status) status = call_shared(run, c);
  dil_context_free(c);
  return status;
}

START_TEST(every_lack_of_memory_is_a_status) {
  static const fault_call calls[] = {FAULT_malloc, FAULT_calloc,
                                     FAULT_realloc};
  entry run = load();
  int told = 0;
  ck_assert_int_eq(one_life(run), DIL_OK);
  for (int which = 0; which < 6; which++)
    for (int at = 0;; at++) {
      fault_set(calls[which / 2], at, FAULT_ERROR, ENOMEM, which % 2);
      int32_t status = one_life(run);
      int count = fault_count(calls[which / 2]);
      fault_clear();
      ck_assert_int_ne(status, -1);
      ck_assert_msg(!status || *dil_last_error(), "%d without a word", status);
      told += status != DIL_OK;
      if (count <= at) break;
    }
  ck_assert_int_gt(told, 5);
  ck_assert_int_eq(one_life(run), DIL_OK);
}
END_TEST

START_TEST(a_processor_without_the_code_is_told) {
  entry run = load();
  setenv("DIL_CPU", "sse2", 1);
  expect_error(one_life(run), DIL_ENVIRONMENT,
               "runs on processors with avx2; here is none of these within "
               "DIL_CPU=sse2");
  setenv("DIL_CPU", "avx2", 1);
  ck_assert_int_eq(one_life(run), DIL_OK);
}
END_TEST

int main(void) {
  host_modules();
  Suite *suite = suite_create("library");
  TCase *files = tcase_create("files"), *calls = tcase_create("calls");
  tcase_add_checked_fixture(files, make_library, drop_library);
  tcase_add_checked_fixture(calls, make_library, drop_library);
  tcase_add_test(files, an_object_says_what_it_holds);
  tcase_add_test(files, names_are_changed_and_nothing_else);
  tcase_add_test(files, archives_come_back);
  tcase_add_test(files, damaged_objects_do_no_harm);
  tcase_add_test(files, damaged_archives_do_no_harm);
  tcase_add_test(files, a_damaged_description_is_told);
  tcase_add_test(calls, what_is_no_library_of_this_form_is_told);
  tcase_add_test(calls, every_lack_of_memory_is_a_status);
  tcase_add_test(calls, a_processor_without_the_code_is_told);
  tcase_set_timeout(files, 240);
  tcase_set_timeout(calls, 240);
  suite_add_tcase(suite, files);
  suite_add_tcase(suite, calls);
  return suite_run(suite, CK_FORK_GETENV);
}
