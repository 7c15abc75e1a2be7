/* test_sizes.c - kernels of a program with heads and widths of the host's own in
 * place of the pattern's. */
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdio.h>
#include <string.h>

#define SIZED "input slope : f32[H]; score s - slope[h] * D; branch { "
static const struct {
  const char *head; /* of the pattern whose sizes are replaced */
  int32_t heads, kv_heads, head_dim, value_dim;
  const char *same; /* the pattern that says these sizes itself */
} resized[] = {
    {"heads 4; head_dim 8; ", 6, 0, 0, 0, "heads 6; head_dim 8; "},
    {"heads 4; head_dim 8; ", 6, 2, 24, 0, "heads 6 kv 2; head_dim 24; "},
    {"heads 4 kv 2; head_dim 8; ", 6, 0, 0, 16,
     "heads 6 kv 2; head_dim 8 value 16; "},
    {"heads 4 kv 2; head_dim 8 value 16; ", 0, 1, 24, 0,
     "heads 4 kv 1; head_dim 24 value 16; "},
};
enum { RESIZED = sizeof resized / sizeof *resized };

static dil_program *sized_program(dil_context *c, const char *head,
                                  const char *branch) {
  char text[300];
  dil_program *p;
  snprintf(text, sizeof text, "pattern p { dtype f32; %s" SIZED "%s } }", head,
           branch);
  host_must(dil_program_parse(c, "sized.dil", text, strlen(text), NULL, &p));
  return p;
}

static uint64_t plan_hash(dil_program *p, const dil_kernel_options *o) {
  dil_kernel *k;
  dil_kernel_info info = DIL_KERNEL_INFO_INIT;
  host_must(dil_program_kernel(p, NULL, o, &k));
  host_must(dil_kernel_describe(k, &info));
  dil_kernel_free(k);
  return info.plan_hash;
}

START_TEST(sizes_are_replaced) {
  dil_context *c;
  dil_kernel_options o = DIL_KERNEL_OPTIONS_INIT;
  host_must(dil_context_new(NULL, &c));
  o.heads = resized[_i].heads;
  o.kv_heads = resized[_i].kv_heads;
  o.head_dim = resized[_i].head_dim;
  o.value_dim = resized[_i].value_dim;
  dil_program *p = sized_program(c, resized[_i].head, "segment H * D;");
  dil_program *same = sized_program(c, resized[_i].same, "segment H * D;");
  ck_assert_uint_ne(plan_hash(p, NULL), plan_hash(same, NULL));
  ck_assert_uint_eq(plan_hash(p, &o), plan_hash(same, NULL));
  ck_assert_uint_eq(plan_hash(same, &o), plan_hash(same, NULL));
  dil_program_free(same);
  dil_program_free(p);
  dil_context_free(c);
}
END_TEST

START_TEST(wrong_sizes_are_refused) {
  dil_context *c;
  dil_kernel *k;
  host_must(dil_context_new(NULL, &c));
  dil_program *p = sized_program(c, "heads 8 kv 4; head_dim 8; ", "heads 6..7;");
  dil_kernel_options o = DIL_KERNEL_OPTIONS_INIT;
  o.heads = 4;
  host_refused(dil_program_kernel(p, NULL, &o, &k), DIL_INPUT,
               "the last head must be at most 3, got 7");
  o.heads = 10;
  host_refused(dil_program_kernel(p, NULL, &o, &k), DIL_INPUT,
               "10 heads cannot share 4 kv heads evenly");
  o.heads = -1;
  host_refused(dil_program_kernel(p, NULL, &o, &k), DIL_USAGE,
               "heads must be 1 to 4096, got -1");
  o.heads = 0;
  o.head_dim = 257;
  host_refused(dil_program_kernel(p, NULL, &o, &k), DIL_USAGE,
               "head_dim must be 1 to 256, got 257");
  dil_program_free(p);
  dil_context_free(c);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("sizes");
  TCase *tests = tcase_create("sizes");
  host_modules();
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(tests, sizes_are_replaced, 0, RESIZED);
  tcase_add_test(tests, wrong_sizes_are_refused);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
