/* test_observe.c - log, trace and metrics: what they write is what others read:
 * JSON by jansson, Prometheus text by its grammar. Each is opened once a
 * process, so every case is a process of its own. */
#include "runtime/base/environment.h"
#include "runtime/observe/log.h"
#include "runtime/observe/metrics.h"
#include "runtime/observe/trace.h"
#include "tests/support/suite.h"
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[64];

static void set_up(void) {
  strcpy(path, "/tmp/dil-test-seeing-XXXXXX");
  int file = mkstemp(path);
  ck_assert_int_ge(file, 0);
  close(file);
}

static void tear_down(void) { unlink(path); }

static char *read_all(const char *name) {
  static char text[1 << 22];
  FILE *f = fopen(name, "rb");
  ck_assert_ptr_nonnull(f);
  size_t size = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  text[size] = 0;
  return text;
}

/* ---- log ----------------------------------------------------------------- */

static void set_file(const char *name, const char *before) {
  char value[128];
  snprintf(value, sizeof value, "%s%s", before, path);
  setenv(name, value, 1);
}

START_TEST(the_log_has_lines_of_its_level) {
  set_file("DIL_LOG", "info:");
  ck_assert_int_eq(log_open(), DIL_OK);
  LOG(NULL, DIL_LOG_ERROR, "one %d", 1);
  LOG(NULL, DIL_LOG_INFO, "two\nlines");
  LOG(NULL, DIL_LOG_DEBUG, "three");
  char *text = read_all(path);
  regex_t line;
  ck_assert_int_eq(
      regcomp(&line,
              "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{6} "
              "dil\\[[0-9]+/[0-9]+\\] (error: one 1|info: two lines)$",
              REG_EXTENDED | REG_NOSUB),
      0);
  int lines = 0;
  for (char *at = strtok(text, "\n"); at; at = strtok(NULL, "\n"), lines++)
    ck_assert_msg(!regexec(&line, at, 0, NULL, 0), "%s", at);
  ck_assert_int_eq(lines, 2);
  regfree(&line);
}
END_TEST

static char heard[64];
static void hear(void *user, int32_t level, const char *text) {
  snprintf(heard, sizeof heard, "%s %d %s", (char *)user, (int)level, text);
}

START_TEST(a_hook_hears_without_dil_log) {
  log_target target = {hear, "me", DIL_LOG_WARNING};
  unsetenv("DIL_LOG");
  ck_assert_int_eq(log_open(), DIL_OK);
  LOG(&target, DIL_LOG_INFO, "no");
  ck_assert_str_eq(heard, "");
  LOG(&target, DIL_LOG_WARNING, "yes");
  ck_assert_str_eq(heard, "me 2 yes");
  LOG(NULL, DIL_LOG_ERROR, "nobody");
}
END_TEST

START_TEST(a_wrong_level_is_an_error) {
  setenv("DIL_LOG", "loud", 1);
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(log_open(), DIL_USAGE);
    ck_assert_str_eq(dil_last_error(), "DIL_LOG is 'loud', not one of error, "
                                       "warning, info, debug");
  }
}
END_TEST

START_TEST(a_log_that_cannot_be_opened_is_an_error) {
  setenv("DIL_LOG", "info:/nosuch/folder/log", 1);
  ck_assert_int_eq(log_open(), DIL_ENVIRONMENT);
}
END_TEST

/* ---- trace --------------------------------------------------------------- */

static void spans(int count) {
  for (int i = 0; i < count; i++) {
    int64_t outer = trace_begin();
    int64_t inner = trace_begin();
    trace_end(inner, "test", "inner", "a \"quoted\\\" text\x01", i);
    trace_end(outer, "test", "outer", NULL, -1);
  }
}

static void *thread_spans(void *name) {
  dil_trace_name_thread(name);
  spans(3000);
  return NULL;
}

/* The named events of the file, which is whole. */
static int count_events(const char *name) {
  json_error_t error;
  json_t *all = json_load_file(path, JSON_REJECT_DUPLICATES, &error), *event;
  ck_assert_msg(all != NULL, "%d:%d: %s", error.line, error.column, error.text);
  json_t *list = json_object_get(all, "traceEvents");
  ck_assert(json_is_array(list));
  size_t index;
  int count = 0;
  json_array_foreach(list, index, event) {
    const char *phase = json_string_value(json_object_get(event, "ph"));
    ck_assert_ptr_nonnull(phase);
    ck_assert(json_is_integer(json_object_get(event, "pid")));
    ck_assert(json_is_integer(json_object_get(event, "tid")));
    if (!strcmp(phase, "X")) {
      ck_assert(json_is_number(json_object_get(event, "ts")));
      ck_assert_double_ge(
          json_number_value(json_object_get(event, "dur")), 0);
    }
    count += !strcmp(json_string_value(json_object_get(event, "name")), name);
  }
  json_decref(all);
  return count;
}

START_TEST(a_trace_is_json_at_every_flush) {
  setenv("DIL_TRACE", path, 1);
  ck_assert_int_eq(trace_open(), DIL_OK);
  ck_assert_int_eq(count_events("inner"), 0);
  spans(10);
  ck_assert_int_eq(trace_flush(), DIL_OK);
  ck_assert_int_eq(count_events("inner"), 10);
  pthread_t thread[3];
  for (int i = 0; i < 3; i++)
    ck_assert_int_eq(pthread_create(&thread[i], NULL, thread_spans, "worker"),
                     0);
  for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
  int64_t now = dil_trace_now();
  const char *line = "cuda:0 stream 1";
  dil_trace_add_line(line, now - 1000, now, "pass", "pass", NULL, 0);
  dil_trace_add_line(line, now, now + 5, "pass", "pass", "k", 1);
  ck_assert_int_eq(trace_flush(), DIL_OK);
  ck_assert_int_eq(count_events("inner"), 10 + 9000);
  ck_assert_int_eq(count_events("outer"), 10 + 9000);
  ck_assert_int_eq(count_events("thread_name"), 4);
  ck_assert_int_eq(count_events("pass"), 2);
  ck_assert_int_eq(trace_flush(), DIL_OK);
  ck_assert_int_eq(count_events("outer"), 10 + 9000);
}
END_TEST

START_TEST(no_trace_costs_and_writes_nothing) {
  unsetenv("DIL_TRACE");
  ck_assert_int_eq(trace_open(), DIL_OK);
  ck_assert_int_eq(trace_begin(), 0);
  spans(10);
  ck_assert_int_eq(trace_flush(), DIL_OK);
  ck_assert_str_eq(read_all(path), "");
}
END_TEST

START_TEST(a_trace_that_cannot_be_written_is_an_error) {
  setenv("DIL_TRACE", "/nosuch/folder/trace", 1);
  ck_assert_int_eq(trace_open(), DIL_ENVIRONMENT);
  ck_assert_int_eq(trace_begin(), 0);
}
END_TEST

START_TEST(a_full_disk_is_an_error_of_the_flush) {
  setenv("DIL_TRACE", "/dev/full", 1);
  ck_assert_int_eq(trace_open(), DIL_ENVIRONMENT);
}
END_TEST

/* The signal of the limit on files would end this process; Check writes files of
 * its own, so nothing is asserted meanwhile. */
static dil_status limited(dil_status (*act)(void)) {
  struct rlimit before, few;
  int bad = getrlimit(RLIMIT_FSIZE, &before);
  few = (struct rlimit){.rlim_cur = 10, .rlim_max = before.rlim_max};
  bad |= setrlimit(RLIMIT_FSIZE, &few);
  dil_status status = act();
  bad |= setrlimit(RLIMIT_FSIZE, &before);
  ck_assert_int_eq(bad, 0);
  return status;
}

static dil_status log_a_line(void) {
  LOG(NULL, DIL_LOG_ERROR, "a line");
  return DIL_OK;
}

START_TEST(a_limit_on_files_is_an_error) {
  set_file("DIL_LOG", "info:");
  ck_assert_int_eq(log_open(), DIL_OK);
  ck_assert_int_eq(limited(log_a_line), DIL_OK);
  set_file("DIL_TRACE", "");
  ck_assert_int_eq(limited(trace_open), DIL_ENVIRONMENT);
  ck_assert_ptr_nonnull(strstr(dil_last_error(), strerror(EFBIG)));
  set_file("DIL_METRICS", "");
  ck_assert_int_eq(metrics_open(), DIL_OK);
  ck_assert_int_eq(limited(metrics_write), DIL_ENVIRONMENT);
  ck_assert_ptr_nonnull(strstr(dil_last_error(), strerror(EFBIG)));
}
END_TEST

/* ---- metrics ------------------------------------------------------------- */

/* The text format 0.0.4, a line at a time. */
static void check_prometheus(char *text) {
  static const char *const forms[] = {
      "^# HELP [a-zA-Z_:][a-zA-Z0-9_:]* .+$",
      "^# TYPE [a-zA-Z_:][a-zA-Z0-9_:]* (counter|gauge|histogram)$",
      "^[a-zA-Z_:][a-zA-Z0-9_:]*(\\{[a-zA-Z_][a-zA-Z0-9_]*=\"[^\"\\\\]*\""
      "(,[a-zA-Z_][a-zA-Z0-9_]*=\"[^\"\\\\]*\")*\\})? "
      "-?[0-9]+(\\.[0-9]+)?(e[-+]?[0-9]+)?$"};
  regex_t form[3];
  char family[128] = "", seen[8192] = "";
  for (int i = 0; i < 3; i++)
    ck_assert_int_eq(regcomp(&form[i], forms[i], REG_EXTENDED | REG_NOSUB), 0);
  ck_assert_int_eq(text[strlen(text) - 1], '\n');
  for (char *at = strtok(text, "\n"); at; at = strtok(NULL, "\n")) {
    int kind = 0;
    while (kind < 3 && regexec(&form[kind], at, 0, NULL, 0)) kind++;
    ck_assert_msg(kind < 3, "%s", at);
    if (kind == 0) { /* a family begins once */
      sscanf(at, "# HELP %127s", family);
      strcat(family, " ");
      ck_assert_msg(!strstr(seen, family), "%s twice", family);
      strcat(seen, family);
      family[strlen(family) - 1] = 0;
    } else if (kind == 2) {
      ck_assert_msg(!strncmp(at, family, strlen(family)), "%s: %s", family, at);
    }
  }
  for (int i = 0; i < 3; i++) regfree(&form[i]);
}

static double number_after(const char *text, const char *name) {
  const char *at = strstr(text, name);
  ck_assert_msg(at != NULL, "%s", name);
  return atof(at + strlen(name));
}

START_TEST(metrics_are_prometheus_text) {
  setenv("DIL_METRICS", path, 1);
  ck_assert_int_eq(metrics_open(), DIL_OK);
  metric_add(METRIC_runs_cpu, 3);
  metric_add_seconds(METRIC_compile_cpu, 0.25);
  static const int64_t times[] = {500, 20000, 3000000, INT64_C(20000000000)};
  for (int i = 0; i < 4; i++) dil_metrics_observe(HISTOGRAM_RUN_CPU, times[i]);
  ck_assert_int_eq(metrics_write(), DIL_OK);
  char *text = read_all(path);
  ck_assert_double_eq(number_after(text, "dil_runs_total{device=\"cpu\"} "), 3);
  ck_assert_double_eq_tol(
      number_after(text, "dil_compile_seconds_total{compiler=\"cpu\"} "), 0.25,
      1e-9);
  static const struct {
    const char *sample;
    double number;
  } samples[] = {{"bucket{device=\"cpu\",le=\"1e-06\"} ", 1},
                 {"bucket{device=\"cpu\",le=\"10\"} ", 3},
                 {"bucket{device=\"cpu\",le=\"+Inf\"} ", 4},
                 {"count{device=\"cpu\"} ", 4}};
  for (int i = 0; i < 4; i++) {
    char name[80];
    snprintf(name, sizeof name, "dil_run_seconds_%s", samples[i].sample);
    ck_assert_double_eq(number_after(text, name), samples[i].number);
  }
  check_prometheus(text);
}
END_TEST

START_TEST(metrics_that_cannot_be_written_are_an_error) {
  setenv("DIL_METRICS", "/nosuch/folder/m.prom", 1);
  ck_assert_int_eq(metrics_open(), DIL_OK);
  ck_assert_int_eq(metrics_write(), DIL_ENVIRONMENT);
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "/nosuch/folder/m.prom"));
}
END_TEST

START_TEST(paths_name_the_process) {
  char out[32], want[32];
  ck_assert_int_eq(environment_path("X", "a.%p.%q%", out, sizeof out), DIL_OK);
  snprintf(want, sizeof want, "a.%d.%%q%%", (int)getpid());
  ck_assert_str_eq(out, want);
  ck_assert_int_eq(environment_path("X", "0123456789", out, 10), DIL_USAGE);
  ck_assert_int_eq(environment_path("X", "012345678", out, 10), DIL_OK);
}
END_TEST

START_TEST(numbers_are_read_as_people_write_them) {
  static const struct {
    const char *text;
    environment_number found;
    uint64_t number;
  } cases[] = {
      {"0", NUMBER_WHOLE, 0},
      {"65536", NUMBER_WHOLE, 65536},
      {"64k", NUMBER_WHOLE, 65536},
      {"1K", NUMBER_WHOLE, 1024},
      {"3M", NUMBER_WHOLE, 3 << 20},
      {"2g", NUMBER_WHOLE, UINT64_C(2) << 30},
      {"1T", NUMBER_WHOLE, UINT64_C(1) << 40},
      {"1e6", NUMBER_WHOLE, 1000000},
      {"1.5k", NUMBER_WHOLE, 1536},
      {"2.50E3", NUMBER_WHOLE, 2500},
      {"1.25e1k", NUMBER_WHOLE, 12800},
      {"0e99999999999", NUMBER_WHOLE, 0},
      {"1.000", NUMBER_WHOLE, 1},
      {"18446744073709551615", NUMBER_WHOLE, UINT64_MAX},
      {"1.3k", NUMBER_BROKEN, 0},
      {"0.5", NUMBER_BROKEN, 0},
      {"18446744073709551616", NUMBER_LARGE, 0},
      {"16777216T", NUMBER_LARGE, 0},
      {"1e20", NUMBER_LARGE, 0},
      {"1e99999999999", NUMBER_LARGE, 0},
      {"", NUMBER_WRONG, 0},
      {"k", NUMBER_WRONG, 0},
      {"-1", NUMBER_WRONG, 0},
      {"+1", NUMBER_WRONG, 0},
      {" 1", NUMBER_WRONG, 0},
      {"1 ", NUMBER_WRONG, 0},
      {"1.", NUMBER_WRONG, 0},
      {".5k", NUMBER_WRONG, 0},
      {"1e", NUMBER_WRONG, 0},
      {"1e-3", NUMBER_WRONG, 0},
      {"64kb", NUMBER_WRONG, 0},
      {"0x10", NUMBER_WRONG, 0},
      {"nan", NUMBER_WRONG, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    uint64_t number = 0;
    ck_assert_msg(environment_read_number(cases[i].text, &number) ==
                      cases[i].found,
                  "'%s'", cases[i].text);
    if (cases[i].found == NUMBER_WHOLE)
      ck_assert_uint_eq(number, cases[i].number);
  }
}
END_TEST

int main(void) {
  alarm(300);
  Suite *suite = suite_create("seeing");
  TCase *c = tcase_create("seeing");
  tcase_set_timeout(c, 120); /* a busy machine is no failure */
  tcase_add_checked_fixture(c, set_up, tear_down);
  tcase_add_test(c, the_log_has_lines_of_its_level);
  tcase_add_test(c, a_hook_hears_without_dil_log);
  tcase_add_test(c, a_wrong_level_is_an_error);
  tcase_add_test(c, a_log_that_cannot_be_opened_is_an_error);
  tcase_add_test(c, a_trace_is_json_at_every_flush);
  tcase_add_test(c, no_trace_costs_and_writes_nothing);
  tcase_add_test(c, a_trace_that_cannot_be_written_is_an_error);
  tcase_add_test(c, a_full_disk_is_an_error_of_the_flush);
  tcase_add_test(c, a_limit_on_files_is_an_error);
  tcase_add_test(c, metrics_are_prometheus_text);
  tcase_add_test(c, metrics_that_cannot_be_written_are_an_error);
  tcase_add_test(c, paths_name_the_process);
  tcase_add_test(c, numbers_are_read_as_people_write_them);
  suite_add_tcase(suite, c);
  return suite_run(suite, CK_FORK);
}
