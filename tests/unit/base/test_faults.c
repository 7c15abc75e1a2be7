/* test_faults.c - every allocation of the front end and the run time fails
 * once, and once for good: a status comes back, nothing leaks, and the next
 * attempt works. The code of the kernel that runs is made beforehand, since
 * the libraries that make it are not ours. */
#include "runtime/api/context.h"
#include "runtime/base/status.h"
#include "runtime/ring/ranks.h"
#include "tests/support/alloc_faults.h"
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the front end ------------------------------------------------------- */

static dil_context *context;

/* Names, imports, every kind of block, and nesting that grows the parser's
 * stacks. */
static char rich[16384];
static const char *wrong =
    "import \"preset:nothing\";\n"
    "let a = 1; let a = 2;\n"
    "pattern p { heads 4; hed_dim 8; dtype f31; branch { segment 0; } }\n"
    "pattern q { heads 4 kv 3; head_dim 8; dtype f32; mask zz; branch { } }\n";

static void write_rich(void) {
  char *at = rich;
  at += sprintf(at, "import \"preset:longnet\";\nlet one = ");
  for (int i = 0; i < 150; i++) at += sprintf(at, "(");
  at += sprintf(at, "1");
  for (int i = 0; i < 150; i++) at += sprintf(at, ")");
  at += sprintf(at, ";\npattern p {\n  heads 4 kv 2; head_dim 16; dtype f32;\n"
                    "  input doc : i32[B, M]; input slope : f32[H];\n"
                    "  mask doc[b, i] == doc[b, j]; block 16;\n"
                    "  keep local(one) || random(0.2, 3);\n"
                    "  score s - slope[h] * abs(i - j); window 90, inf;\n");
  for (int i = 1; i <= 40; i++)
    at += sprintf(at, "  branch b%d { segment %d; dilation %d; heads %d..3; }\n",
                  i, 16 * i, 1 + i % 5, i % 4);
  at += sprintf(at, "}\ntopology t { devices 1; timeout 500ms; }\n"
                    "kernel k = p on t;\nkernel l = longnet;\n");
}

static dil_status first_of(dil_status a, dil_status b) { return a ? a : b; }

static dil_status parse_rich(void) {
  dil_program *p;
  dil_kernel *k;
  dil_define one = {"one", "2"};
  dil_program_options o = DIL_PROGRAM_OPTIONS_INIT;
  o.defines = &one;
  o.define_count = 1;
  dil_status status =
      dil_program_parse(context, "rich.dil", rich, strlen(rich), &o, &p);
  if (status) return status;
  dil_kernel_options general = DIL_KERNEL_OPTIONS_INIT;
  general.force = DIL_FORCE_GENERAL;
  general.dtype = "bf16";
  status = dil_program_kernel(p, "k", &general, &k);
  dil_kernel_free(k);
  dil_program_free(p);
  return status;
}

static dil_status read_file(void) {
  dil_program *p;
  dil_status status =
      dil_program_read(context, "examples/longformer.dil", NULL, &p);
  dil_program_free(p);
  return status;
}

static bool known_wrong(dil_status status) { return status == DIL_INPUT; }

/* What is wrong stays wrong, or memory is told to be lacking. */
static dil_status parse_wrong(void) {
  dil_program *p;
  dil_program_options o = DIL_PROGRAM_OPTIONS_INIT;
  dil_status text =
      dil_program_parse(context, "wrong.dil", wrong, strlen(wrong), &o, &p);
  o.json = 1;
  dil_status json =
      dil_program_parse(context, "wrong.dil", wrong, strlen(wrong), &o, &p);
  return first_of(known_wrong(text) ? DIL_OK : text,
                  known_wrong(json) ? DIL_OK : json);
}

static dil_status attend(void) {
  static const int64_t segments[] = {16, 32}, dilations[] = {1, 2};
  dil_attention_options o = DIL_ATTENTION_OPTIONS_INIT;
  dil_kernel *branches, *preset;
  o.heads = 2;
  o.head_dim = 8;
  o.branch_count = 2;
  o.segments = segments;
  o.dilations = dilations;
  dil_status status = dil_attention(context, &o, &branches);
  dil_kernel_free(branches);
  if (status) return status;
  o.branch_count = 0;
  o.preset = "bigbird";
  status = dil_attention(context, &o, &preset);
  dil_kernel_free(preset);
  return status;
}

/* ---- the run time -------------------------------------------------------- */

/* The code of a kernel, made once by the real compiler. */
static struct {
  dil_kernel *kernel;
  void *bytes[DIL_VARIANT_COUNT];
  size_t size[DIL_VARIANT_COUNT];
  dil_code code[DIL_VARIANT_COUNT];
  host_call call;
} ready;

static dil_status copy_code(void *unused, dil_variant variant, void **bytes,
                            size_t *size, dil_code *code) {
  (void)unused;
  *size = ready.size[variant];
  *bytes = malloc(*size);
  if (!*bytes) return dil_fail(DIL_MEMORY, "no memory for a copy");
  memcpy(*bytes, ready.bytes[variant], *size);
  *code = ready.code[variant];
  return DIL_OK;
}

static dil_status run_kernel(void) {
  dil_context *own;
  dil_kernel *k = NULL;
  dil_context_options o = DIL_CONTEXT_OPTIONS_INIT;
  void *memory = NULL;
  o.threads = 3;
  dil_status status = dil_context_new(&o, &own);
  if (status) return status;
  dil_kernel_source source = ready.kernel->source;
  source.make = copy_code;
  source.release = NULL;
  status = dil_kernel_make(own, &source, &k);
  if (!status) status = dil_kernel_prepare(k, &host_sizes);
  if (!status) status = dil_kernel_run(k, &ready.call.arguments);
  dil_sizes few = {1, 2, 96};
  if (!status) status = dil_kernel_prepare(k, &few);
  if (!status) status = dil_memory_take(own, 100, &memory);
  dil_memory_give(own, memory);
  dil_kernel_free(k);
  dil_context_free(own);
  return status;
}

/* Two runs of one rank group: what the first one ended, the second one must not
 * touch when it fails. */
static dil_status run_ranks(void) {
  arguments given;
  rank_group *ranks;
  dil_status status =
      arguments_read(ready.kernel, &ready.call.arguments, &given);
  const rank_group_task task = {.mesh = {.ring = 2, .heads = 1, .batch = 1,
                                         .timeout = 10},
                                .table = ready.kernel->source.table,
                                .make = copy_code,
                                .threads = 1};
  if (!status) status = rank_group_new(&task, &ranks);
  if (status) return status;
  status = rank_group_run(ranks, &given.call);
  if (!status) status = rank_group_run(ranks, &given.call);
  rank_group_free(ranks);
  return status;
}

/* From text to a result with a kernel that was kept. What the cache lacks is
 * compiled, and what it cannot keep is not: neither is a failure. */
static dil_status warm_start(void) {
  dil_context *own;
  dil_program *p = NULL;
  dil_kernel *k = NULL;
  dil_status status = dil_context_new(NULL, &own);
  if (status) return status;
  status = dil_program_parse(own, "p", host_text, strlen(host_text), NULL, &p);
  if (!status) status = dil_program_kernel(p, NULL, NULL, &k);
  if (!status) status = dil_kernel_run(k, &ready.call.arguments);
  dil_kernel_free(k);
  dil_program_free(p);
  dil_context_free(own);
  return status;
}

static void make_ready(void) {
  ready.kernel = host_kernel(NULL, host_text);
  for (int v = 0; v < DIL_GRADIENTS; v++)
    host_must(ready.kernel->source.make(ready.kernel->source.context,
                                        (dil_variant)v, &ready.bytes[v],
                                        &ready.size[v], &ready.code[v]));
  host_call_make(&ready.call, ready.kernel, &host_sizes);
}

static char folder[] = "/tmp/dil-faults-XXXXXX";

/* One record, of no pattern here. */
static void write_wisdom(void) {
  char path[64];
  snprintf(path, sizeof path, "%s/wisdom", folder);
  FILE *out = fopen(path, "w");
  ck_assert_ptr_nonnull(out);
  fputs("dil " DIL_VERSION "\tcpu none\t0000000000000001\t1 64 64\t"
        "tile_keys 40;\t1\tp\n", out);
  fclose(out);
  setenv("DIL_WISDOM", path, 1);
}

static void open_all(void) {
  ck_assert_ptr_nonnull(mkdtemp(folder));
  setenv("DIL_CACHE", "on", 1);
  setenv("DIL_CACHE_DIR", folder, 1);
  write_wisdom();
  host_must(dil_context_new(NULL, &context));
  write_rich();
  make_ready();
}

static void close_all(void) {
  host_call_free(&ready.call);
  for (int v = 0; v < DIL_VARIANT_COUNT; v++) free(ready.bytes[v]);
  dil_kernel_free(ready.kernel);
  dil_context_free(context);
  char line[64];
  snprintf(line, sizeof line, "rm -r %s", folder);
  ck_assert_int_eq(system(line), 0);
}

/* ---- all of them --------------------------------------------------------- */

static const struct {
  const char *name;
  dil_status (*run)(void);
  int32_t sites_least; /* so that a test that finds none does not pass */
  bool mends;          /* a failure may be made good */
} scenarios[] = {{"parse_rich", parse_rich, 500, false},
                 {"parse_wrong", parse_wrong, 50, false},
                 {"read_file", read_file, 50, false},
                 {"attend", attend, 200, false},
                 {"run_kernel", run_kernel, 20, false},
                 {"run_ranks", run_ranks, 30, false},
                 {"warm_start", warm_start, 50, true}};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* One site, once or for good. Whether there was such a site. */
static bool fail_at(int scenario, int64_t site, bool ever) {
  int64_t before = faults_live();
  faults_arm(site, ever);
  dil_status status = scenarios[scenario].run();
  const char *failed = faults_disarm();
  const char *name = scenarios[scenario].name;
  if (!failed) {
    ck_assert_msg(status == DIL_OK, "%s: %s", name, dil_last_error());
    return false;
  }
  /* The pool gives back what lies idle, and tries again. */
  bool again = !ever && !strcmp(failed, "aligned_alloc");
  bool spared = status == DIL_OK && (again || scenarios[scenario].mends);
  ck_assert_msg(spared || status == DIL_MEMORY || status == DIL_ENVIRONMENT,
                "%s, call %lld (%s)%s: %s, '%s'", name, (long long)site, failed,
                ever ? " and all after it" : "", dil_status_name(status),
                dil_last_error());
  ck_assert_msg(faults_live() == before, "%s, call %lld (%s): %lld leaks", name,
                (long long)site, failed, (long long)(faults_live() - before));
  return true;
}

START_TEST(every_site_fails) {
  host_must(scenarios[_i].run()); /* what is made once a process */
  for (int ever = 0; ever < 2; ever++) {
    int64_t site = 1;
    while (fail_at(_i, site, ever)) site++;
    printf("%s: %lld sites failed%s\n", scenarios[_i].name,
           (long long)site - 1, ever ? " for good" : "");
    ck_assert_int_gt(site, scenarios[_i].sites_least);
  }
  host_must(scenarios[_i].run());
}
END_TEST

/* Not one call that could fail: not in the kernel's run, and not around it. */
START_TEST(a_prepared_run_allocates_nothing) {
  dil_kernel *k = ready.kernel;
  host_must(dil_kernel_prepare(k, &host_sizes));
  host_must(dil_kernel_run(k, &ready.call.arguments));
  dil_status status = DIL_OK;
  int64_t before = faults_calls();
  for (int i = 0; i < 20 && !status; i++)
    status = dil_kernel_run(k, &ready.call.arguments);
  int64_t made = faults_calls() - before;
  host_must(status); /* which allocates itself, and so is not in the loop */
  ck_assert_int_eq(made, 0);
}
END_TEST

int main(void) {
  host_modules();
  alarm(600); /* a hang is a failure */
  Suite *s = suite_create("faults");
  TCase *t = tcase_create("faults");
  tcase_set_timeout(t, 0);
  tcase_add_unchecked_fixture(t, open_all, close_all);
  tcase_add_test(t, a_prepared_run_allocates_nothing);
  tcase_add_loop_test(t, every_site_fails, 0, SCENARIOS);
  suite_add_tcase(s, t);
  return suite_run(s, CK_NOFORK);
}
