/* test_last_error.c - dil_last_error holds the host's last failure, and nothing
 * that a call has recovered from. */
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Everything that a host asks of a kernel, with an empty cache: its first
 * compilation misses there. */
static void make_and_run(void) {
  dil_kernel *k = host_kernel(NULL, host_text);
  char variant[16];
  int64_t bytes;
  host_call call;
  host_call_make(&call, k, &host_sizes);
  host_must(dil_kernel_prepare(k, &host_sizes));
  host_must(dil_kernel_workspace(k, &host_sizes, &bytes));
  host_must(dil_kernel_variant(k, &host_sizes, variant, sizeof variant));
  host_must(dil_kernel_run(k, &call.arguments));
  host_call_free(&call);
  dil_kernel_free(k);
}

static void choose_and_make(void) {
  dil_attention_options o = DIL_ATTENTION_OPTIONS_INIT;
  dil_kernel *k;
  o.heads = 2;
  o.head_dim = 16;
  host_must(dil_attention(NULL, &o, &k));
  dil_kernel_free(k);
}

static void *in_a_new_thread(void *said) {
  void (*const work[])(void) = {make_and_run, choose_and_make};
  for (int i = 0; i < 2; i++) {
    work[i]();
    snprintf((char *)said + 256 * i, 256, "%s", dil_last_error());
  }
  return NULL;
}

/* What a call has recovered from is none of the host's failures: they are the
 * last one as before, at the same place. */
START_TEST(success_says_nothing) {
  char folder[] = "/tmp/dil-test-host-XXXXXX", line[64], said[2][256];
  pthread_t thread;
  ck_assert_ptr_nonnull(mkdtemp(folder));
  setenv("DIL_CACHE_DIR", folder, 1);
  setenv("DIL_CACHE", "on", 1);
  ck_assert_int_eq(pthread_create(&thread, NULL, in_a_new_thread, said), 0);
  pthread_join(thread, NULL);
  ck_assert_str_eq(said[0], "");
  ck_assert_str_eq(said[1], "");
  host_refused(dil_kernel_run(NULL, NULL), DIL_USAGE, "no kernel");
  const char *text = dil_last_error();
  snprintf(line, sizeof line, "rm -rf %s", folder);
  ck_assert_int_eq(system(line), 0);
  make_and_run();
  choose_and_make();
  ck_assert_str_eq(text, "there is no kernel");
  ck_assert_ptr_eq(text, dil_last_error());
  setenv("DIL_CACHE", "off", 1);
  ck_assert_int_eq(system(line), 0);
}
END_TEST

static Suite *last_error_suite(void) {
  Suite *s = suite_create("last_error");
  TCase *t = tcase_create("last_error");
  tcase_set_timeout(t, 60);
  tcase_add_test(t, success_says_nothing);
  suite_add_tcase(s, t);
  return s;
}

int main(void) {
  host_modules();
  alarm(300); /* a hang is a failure */
  return suite_run(last_error_suite(), CK_NOFORK);
}
