/* test_usage.c - no public function crashes by what it is given. Each function
 * of dilrt.h and dil.h is called with every pointer NULL in turn, every number
 * at its ends, every struct with a size that it cannot have: it answers with
 * the status, or the harmless value, that the table says. The table has every
 * function that the headers declare, with as many parameters. */
#include "runtime/api/ffi_call.h"
#include "tests/support/suite.h"
#include "tests/support/usage.h"
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- calls ---------------------------------------------------------------- */

typedef struct answer {
  dil_status status;
  const char *text;
  int32_t number;
} answer;

/* Calls it with what stands in the slots; what the call has made is gone. */
static answer ask(const usage_function *f) {
  char letters[PARAMETERS + 1] = "";
  void *arguments[PARAMETERS];
  answer a = {DIL_OK, NULL, 0};
  for (int i = 0; i < PARAMETERS && f->slot[i].kind; i++) {
    letters[i] = f->slot[i].kind == 's' ? 'p' : f->slot[i].kind;
    arguments[i] = f->slot[i].at;
  }
  void *out = f->result == 'p' ? (void *)&a.text : &a.number;
  char result = f->result == 's' ? 'w' : f->result;
  host_must(call_function(f->address, result, letters, arguments, out));
  if (f->result == 's') a.status = (dil_status)a.number;
  ck_assert_msg(!a.status || !usage_made(), "%s failed and made something",
                f->name);
  usage_drop();
  return a;
}

/* A failure of another text, so that the next one is seen. */
static void say_else(void) {
  void *memory;
  ck_assert_int_eq(dil_memory_take(usage.context, -77, &memory), DIL_USAGE);
}

static void expect(const usage_function *f, const char *what, dil_status want) {
  say_else();
  answer a = ask(f);
  const char *said = dil_last_error();
  if (f->result == 's')
    ck_assert_msg(a.status == want, "%s, %s: %s (%s), wanted %s", f->name, what,
                  dil_status_name(a.status), said, dil_status_name(want));
  if (f->result == 's')
    ck_assert_msg(want == DIL_OK || (*said && !strstr(said, "-77")),
                  "%s, %s: says '%s'", f->name, what, said);
  if (want == DIL_OK) return;
  if (f->result == 'w')
    ck_assert_msg(a.number == 0, "%s, %s: %d", f->name, what, a.number);
  if (f->result == 'p' && f->harmless) {
    ck_assert_msg(a.text != NULL, "%s, %s: NULL", f->name, what);
    ck_assert_str_eq(a.text, f->harmless);
  } else if (f->result == 'p')
    ck_assert_msg(!a.text, "%s, %s: '%s'", f->name, what, a.text);
}

/* Writes over a slot, calls, and puts back what was there. */
static void spoil(const usage_function *f, const usage_slot *s,
                  const char *name, const void *value, size_t size,
                  const char *what, dil_status want) {
  char before[sizeof(int64_t)], label[200];
  snprintf(label, sizeof label, "%s %s", name, what);
  memcpy(before, s->at, size);
  memcpy(s->at, value, size);
  expect(f, label, want);
  memcpy(s->at, before, size);
}

static void spoil_pointer(const usage_function *f, const usage_slot *s,
                          const char *name) {
  static const size_t wrong[] = {0, 3, 4097, 1000000000, SIZE_MAX};
  const void *nothing = NULL;
  spoil(f, s, name, &nothing, sizeof nothing, "NULL", s->zero);
  if (s->kind != 's') return;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    size_t *alone = malloc(sizeof *alone); /* nothing may be read behind it */
    ck_assert_ptr_nonnull(alone);
    *alone = wrong[i];
    spoil(f, s, name, &alone, sizeof alone, "of a wrong size", s->other);
    free(alone);
  }
}

static void spoil_number(const usage_function *f, const usage_slot *s,
                         const char *name) {
  static const int32_t words[] = {0, -1, INT32_MIN, INT32_MAX};
  static const int64_t longs[] = {0, (int64_t)1 << 62, INT64_MIN, INT64_MAX,
                                  -1};
  static const double reals[] = {0, 0.5, -1, NAN, INFINITY};
  int count = s->kind == 'w' ? 4 : s->kind == 'f' ? 4 : 5;
  for (int i = 0; i < count; i++) {
    char what[40];
    const void *value = s->kind == 'w'   ? (const void *)&words[i]
                        : s->kind == 'd' ? (const void *)&reals[i]
                                         : (const void *)&longs[i];
    snprintf(what, sizeof what, "at end %d", i);
    spoil(f, s, name, value, s->kind == 'w' ? 4 : 8, what,
          i ? s->other : s->zero);
  }
}

static void spoil_slot(const usage_function *f, const usage_slot *s,
                       const char *name) {
  if (s->kind == 'p' || s->kind == 's') spoil_pointer(f, s, name);
  else spoil_number(f, s, name);
}

START_TEST(parameters_are_checked) {
  const usage_function *f = &functions[_i];
  usage_set();
  host_must(ask(f).status);
  for (int i = 0; i < PARAMETERS && f->slot[i].kind; i++) {
    char name[32];
    snprintf(name, sizeof name, "parameter %d", i + 1);
    spoil_slot(f, &f->slot[i], name);
  }
  host_must(ask(f).status);
  host_must(dil_kernel_run(usage.kernel, &usage.call.arguments));
  usage_unset();
}
END_TEST

/* Whether the function reads the field: `preset` is of the second. */
static bool has(const usage_function *f, const field *d) {
  const char *at = d->slot.at;
  const void *given = f->slot[1].at;
  bool second = (at >= (const char *)&usage.preset &&
                 at < (const char *)(&usage.preset + 1)) ||
                (at >= (const char *)&usage.window &&
                 at < (const char *)(&usage.window + 1));
  return !strcmp(f->name, d->function) &&
         (f->address != (void *)dil_attention ||
          second == (given == (const void *)&usage.preset_given));
}

START_TEST(fields_are_checked) {
  const field *d = &fields[_i];
  const usage_function *f = functions;
  while (f < functions + function_count && !has(f, d)) f++;
  ck_assert_msg(f < functions + function_count, "%s has no row", d->function);
  usage_set();
  spoil_slot(f, &d->slot, d->name);
  host_must(ask(f).status);
  usage_unset();
}
END_TEST

/* ---- memory of somebody else ---------------------------------------------- */

static void hear(void *user, int32_t level, const char *line) {
  ck_assert_int_eq(level, DIL_LOG_ERROR);
  snprintf(user, 200, "%s", line);
}

START_TEST(memory_of_others_is_left_alone) {
  char heard[200] = "";
  char *own = malloc(8);
  void *memory;
  dil_context *c, *other;
  dil_context_options o = DIL_CONTEXT_OPTIONS_INIT;
  o.log = hear;
  o.log_user = heard;
  o.log_level = DIL_LOG_ERROR;
  host_must(dil_context_new(&o, &c));
  host_must(dil_context_new(NULL, &other));
  host_must(dil_memory_take(other, 8, &memory));
  void *wrong[] = {own, own + 4, memory, (char *)memory + 1, heard};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    *heard = 0;
    dil_memory_give(c, wrong[i]);
    ck_assert_ptr_nonnull(strstr(heard, "none that this context has handed"));
    ck_assert_str_eq(dil_last_error(), heard);
  }
  dil_memory_give(other, memory);
  *heard = 0;
  host_must(dil_memory_take(c, 8, &memory));
  dil_memory_give(c, memory);
  ck_assert_str_eq(heard, "");
  dil_memory_give(c, memory);
  ck_assert_ptr_nonnull(strstr(heard, "none that this context has handed"));
  host_must(dil_memory_take(c, 8, &memory));
  dil_context_free(c);
  free(memory); /* it was still out */
  free(own);
  dil_context_free(other);
}
END_TEST

/* ---- the table is whole --------------------------------------------------- */

/* A declaration opens its line, and its name stands there. */
static bool next_declaration(FILE *in, char name[64], int *parameters) {
  char line[400];
  while (fgets(line, sizeof line, in)) {
    char *open = strchr(line, '('), *at = open;
    if (strncmp(line, "DIL_API ", 8) || !open) continue;
    while (at[-1] == '_' || (at[-1] >= 'a' && at[-1] <= 'z')) at--;
    snprintf(name, 64, "%.*s", (int)(open - at), at);
    while (!strchr(line, ';')) {
      size_t length = strlen(line);
      if (!fgets(line + length, (int)(sizeof line - length), in)) return false;
    }
    *parameters = strstr(line, "(void)") ? 0 : 1;
    for (const char *c = line; *c; c++) *parameters += *c == ',';
    return true;
  }
  return false;
}

static int parameters_of(const char *name) {
  for (const usage_function *f = functions; f < functions + function_count; f++)
    if (!strcmp(f->name, name)) {
      int count = 0;
      while (count < PARAMETERS && f->slot[count].kind) count++;
      return count;
    }
  return -1;
}

START_TEST(every_function_has_a_row) {
  static const char *const headers[] = {"runtime/dilrt.h", "compiler/dil.h"};
  char name[64];
  int parameters, found = 0, names = 0;
  for (int i = 0; i < 2; i++) {
    FILE *in = fopen(headers[i], "r");
    ck_assert_msg(in != NULL, "%s", headers[i]);
    for (; next_declaration(in, name, &parameters); found++)
      ck_assert_msg(parameters_of(name) == parameters,
                    "%s has %d parameters, its row %d (-1: there is none)",
                    name, parameters, parameters_of(name));
    fclose(in);
  }
  for (int i = 0; i < function_count; i++)
    names += i == 0 || strcmp(functions[i].name, functions[i - 1].name);
  ck_assert_int_eq(found, names);
}
END_TEST

static Suite *usage_suite(void) {
  Suite *s = suite_create("usage");
  TCase *t = tcase_create("usage");
  tcase_set_timeout(t, 120);
  tcase_add_unchecked_fixture(t, usage_open, usage_close);
  tcase_add_test(t, every_function_has_a_row);
  tcase_add_loop_test(t, parameters_are_checked, 0, function_count);
  tcase_add_loop_test(t, fields_are_checked, 0, field_count);
  tcase_add_test(t, memory_of_others_is_left_alone);
  suite_add_tcase(s, t);
  return s;
}

/* Requests that no allocator can meet end as DIL_MEMORY under ASan, too. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
  return "allocator_may_return_null=1";
}

int main(void) {
  host_modules();
  alarm(300); /* a hang is a failure */
  return suite_run(usage_suite(), CK_NOFORK);
}
