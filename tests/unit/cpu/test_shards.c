/* test_shards.c - a sequence computed in shards, as ranks of a ring would: each
 * owner's queries over each owner's keys, the state carried in between,
 * against the oracle. */
#include "tests/fuzz/spec.h"
#include "tests/support/gpu.h"
#include "tests/support/host.h"
#include "tests/support/shards.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

#define P(body) "pattern p { heads 4; head_dim 24; dtype f32; " body " }"

static const char *const patterns[] = {
    P("branch { }"),
    P("causal; branch { }"),
    P("causal; segments 32, 64, 128; dilations 1, 2, 4;"),
    P("phase block; segments 48, 90; dilations 3, 2;"),
    P("causal; combine union; branch { window 20, 0; } branch { dilation 5; }"),
    P("combine mean; branch { segment 50; } branch { dilation 3; }"),
    P("combine sum; branch { heads 0..1; } branch { heads 2..3; segment 9; }"),
    P("branch { segment 40; window 30, 30; mask (i + j) % 3 != 0; }"),
    P("dropout 1.0 / 8; causal; branch { } branch { segment 64; dilation 2; }"),
    P("score s - 0.1 * abs(i - j) * (h + 1); branch { dilation 2; phase 1; }"),
    P("input z : f32[H] gradient; sink z[h]; branch { sink 0.1 * row; }"
      " branch { segment 40; dilation 3; heads 1..2; sink log(2.0); }"),
    P("combine mean; sink 0.5; branch { segment 50; sink -1.0; }"
      " branch { dilation 3; sink h == 1 ? inf : -inf; }"),
    P("branch { segment 7; }"), /* by rows */
    P("input doc : i32[B, M]; mask doc[b, i] == doc[b, j] && hash(h, i / 8, "
      "j / 8, 7) % 3 != N % 2; branch { }"),
};
enum { PATTERNS = sizeof patterns / sizeof patterns[0] };

/* Those that the Hopper kernels take, on a GPU that has them. */
#define H(sizes, body) "pattern p { " sizes " dtype bf16; " body " }"
#define TWO "heads 2; head_dim 64;"
#define THREE "segments 256, 512, 1024; dilations 1, 2, 4;"

static const struct fast {
  const char *text;
  unsigned force;
  int64_t queries, keys;
} fast[] = {
    {H(TWO, "branch { }"), 0, 1300, 1300},
    {H(TWO, "causal; branch { }"), 0, 1300, 1300},
    {H(TWO, "causal; branch { }"), 0, 700, 1900},
    {H(TWO, "causal; " THREE), 0, 2100, 2100},
    {H(TWO, THREE), FORCE_CHAIN, 1500, 2100},
    {H(TWO, THREE), 0, 1700, 1300},
    {H(TWO, "segments 512, 750, 1250; dilations 1, 2, 4;"), 0, 2500, 2500},
    {H(TWO, "branch { window 300, 0; }"), 0, 1900, 1900},
    {H(TWO, "branch { window 90, 170; }"), 0, 1900, 1900},
    {H(TWO, "branch { window 40, 30; } branch { dilation 8; window 500, "
            "400; }"), FORCE_FUSE, 1900, 1900},
    {H(TWO, "segments 128, 384, 1536; dilations 1, 6, 24;"),
     FORCE_CHAIN, 2000, 2000},
    {H(TWO, "branch { segment 700; dilation 9; }"), 0, 2500, 2500},
    {H(TWO, "branch { dilation 129; }"), 0, 9500, 9500},
    {H(TWO, "combine mean; causal; " THREE), 0, 1300, 1300},
    {H(TWO, "combine sum; branch { } branch { segment 512; }"), 0, 1300, 1300},
    {H("heads 4 kv 2; head_dim 128;", "causal; " THREE), 0, 1300, 1300},
    {H("heads 2; head_dim 192;", "causal; " THREE), 0, 1300, 1300},
    {H(TWO, "causal; mask (i - j) % 3 != 1; branch { }"), 0, 1300, 1300},
    {H(TWO, "mask i - j > 400; branch { }"), 0, 1300, 1300}, /* far keys alone */
    {H(TWO, "combine union; branch { window 100, 60; } "
            "branch { segment 512; window 0, 90; } "
            "branch { segment 1024; dilation 2; }"), 0, 1300, 1300},
    {H(TWO, "score s - 0.01 * (h + 1) * abs(i - j); branch { window 400, "
            "400; }"), 0, 1300, 1300},
    {H(TWO, "input doc : i32[B, M]; mask doc[b, i] == doc[b, j] && "
            "hash(h, i / 8, j / 8, 7) % 3 != N % 2; branch { }"), 0, 900, 1300},
};
enum { FAST = sizeof fast / sizeof fast[0], RANDOM = 40 };
static const unsigned forces[] = {0, FORCE_CHAIN, FORCE_GENERAL};

/* The bytes of o and lse as they stand. */
static char *outputs_copy(const data *d, size_t *size) {
  const dil_tensor *o = &d->call.o, *lse = &d->call.lse;
  size_t first = (size_t)dil_tensor_count(o) * dil_dtype_size(o->dtype);
  size_t second = lse->data ? (size_t)dil_tensor_count(lse) * 4 : 0;
  char *copy = malloc(*size = first + second);
  memcpy(copy, o->data, first);
  if (second) memcpy(copy + first, lse->data, second);
  return copy;
}

/* Whether the whole as one shard takes what the plain call takes. */
static bool takes_the_same(const data *d, const kernel_made *k,
                           const dil_shard *whole) {
  char plain[512], sharded[512];
  const dil_cuda_module *gpu = gpu_module();
  host_must(gpu->variants(k->cuda, &d->call, NULL, plain, sizeof plain));
  host_must(gpu->variants(k->cuda, &d->call, whole, sharded, sizeof sharded));
  return !strcmp(plain, sharded);
}

/* The whole as one shard and one pass is computed as the plain call is, to the
 * last bit. */
static void check_one_shard(data *d, kernel_made *k) {
  ring_shape ring = {.table = &k->plan->table, .ranks = 1,
                     .N = d->shape.queries, .M = d->shape.keys};
  dil_shard whole = {.queries = partition_queries(&ring, 0).progression[0],
                     .keys = partition_keys(&ring, 0).progression[0],
                     .B = d->shape.batch, .N = ring.N, .M = ring.M};
  size_t size;
  if (k->plan->table.pass_count > 1 || !takes_the_same(d, k, &whole)) return;
  host_must(data_run(d, k));
  char *plain = outputs_copy(d, &size);
  const char *problem = shards_problem(d, k, &ring, NULL, NULL);
  char *shards = outputs_copy(d, &size);
  ck_assert_msg(!*problem && !memcmp(plain, shards, size),
                "one shard is not the plain run: %s", problem);
  free(plain);
  free(shards);
}

static void check_parts(const tested_pattern *s, unsigned force,
                        call_shape size) {
  data *d = data_new(s, size);
  kernel_made *k = kernel_make(s, (recipe){.force = force});
  dil_threads *threads = dil_threads_new(2);
  pool *scratch = pool_new_host(NULL, NULL);
  if (gpu_wanted() && !k->refused)
    k->cuda = gpu_kernel_make(k->plan, true, k->problem, sizeof k->problem);
  ck_assert_msg(k->refused || !k->problem[0], "%s", k->problem);
  if (k->cuda) check_one_shard(d, k);
  for (int32_t ranks = 1; ranks <= 7 && !k->refused; ranks += 1 + ranks / 2)
    for (int layout = 0; layout < DIL_LAYOUT_COUNT; layout++) {
      ring_shape ring = {.table = &k->plan->table,
                         .layout = (dil_layout)layout, .ranks = ranks,
                         .N = size.queries, .M = size.keys};
      const char *problem = shards_problem(d, k, &ring, threads, scratch);
      ck_assert_msg(!*problem, "%d ranks, layout %d, force %u: %s", ranks,
                    layout, force, problem);
    }
  dil_pool_free(scratch);
  dil_threads_free(threads);
  kernel_unmake(k);
  data_free(d);
}

START_TEST(shards) {
  const char *text = patterns[_i / 3];
  if (gpu_leaves_case("shards", _i / 3)) return;
  static const int64_t lengths[][2] = {{171, 171}, {100, 160}, {170, 120}};
  tested_pattern *s = tested_pattern_new("shards", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  for (int i = 0; i < 3; i++)
    check_parts(s, forces[_i % 3],
                (call_shape){.batch = 2, .queries = lengths[i][0],
                             .keys = lengths[i][1], .seed = 5,
                             .train = true, .dropout_seed = 77});
  tested_pattern_free(s);
}
END_TEST

START_TEST(fast_parts) {
  const struct fast *f = &fast[_i];
  if (!gpu_wanted() || gpu_leaves_case("fast parts", PATTERNS + _i)) return;
  tested_pattern *s = tested_pattern_new("shards", f->text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  check_parts(s, f->force, (call_shape){.batch = 2, .queries = f->queries,
                                        .keys = f->keys, .seed = 9});
  tested_pattern_free(s);
}
END_TEST

static void check_random(const tested_pattern *s, const spec *drawn) {
  data *d = data_new(s, (call_shape){.batch = drawn->batch, .seed = drawn->seed,
                                     .queries = drawn->queries,
                                     .keys = drawn->keys, .scale = 0.3});
  kernel_made *k = kernel_make(s, (recipe){.force = force_all[drawn->force]
                                               .force});
  if (k->refused) goto out;
  k->cuda = gpu_kernel_make(k->plan, true, k->problem, sizeof k->problem);
  ck_assert_msg(!k->problem[0], "%s", k->problem);
  ring_shape ring = {.table = &k->plan->table,
                     .layout = (dil_layout)(drawn->seed % 8 == 0
                                                ? DIL_STRIPED
                                                : drawn->seed % 2),
                     .ranks = 2 + (int32_t)(drawn->seed / 2 % 4),
                     .N = drawn->queries, .M = drawn->keys};
  const char *problem = shards_problem(d, k, &ring, NULL, NULL);
  ck_assert_msg(!*problem, "%d ranks, layout %d, %s, seed %u: %s", ring.ranks,
                ring.layout, force_all[drawn->force].name, drawn->seed,
                problem);
out:
  kernel_unmake(k);
  data_free(d);
}

/* The fuzzer's patterns for the Hopper kernels, each on some ring. Keys by a list go
 * with no ring. */
START_TEST(random_parts) {
  char text[4000];
  const char *first = getenv("FUZZ_SEED");
  if (!gpu_wanted()) return;
  if (gpu_leaves_case("random parts", PATTERNS + FAST + _i)) return;
  spec drawn = spec_hopper((first ? (uint32_t)atoll(first) : 1) * 1000 +
                           (uint32_t)_i);
  for (int32_t i = 0; i < drawn.branch_count; i++) drawn.branch[i].keys = 0;
  spec_print(&drawn, text, sizeof text);
  tested_pattern *s = tested_pattern_new("shards", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  check_random(s, &drawn);
  tested_pattern_free(s);
}
END_TEST

/* Of 100 queries at 60 to 159 and 160 keys. */
static const struct misfit {
  dil_progression queries, keys;
  const char *words; /* NULL: it fits */
} misfits[] = {
    {{60, 1, 100}, {0, 1, 160}, NULL},
    {{60, 1, 100}, {1, 1, 160}, "160 keys for 160 rows at positions 1,"},
    {{60, 1, 100}, {-1, 1, 160}, "160 keys for 160 rows at positions -1"},
    {{60, 1, 100}, {0, 1, 159}, "159 keys for 160 rows"},
    {{60, 1, 100}, {0, 0, 160}, "160 keys for 160 rows at positions 0, 0"},
    {{59, 1, 100}, {0, 1, 160}, "100 queries for 100 rows at positions 59"},
    {{61, 1, 100}, {0, 1, 160}, "100 queries for 100 rows at positions 61"},
};
enum { MISFITS = sizeof misfits / sizeof misfits[0] };

START_TEST(parts_that_do_not_fit_are_refused) {
  if (gpu_wanted()) return;
  const struct misfit *f = &misfits[_i];
  tested_pattern *s = tested_pattern_new("shards", patterns[0], NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  data *d = data_new(s, (call_shape){.batch = 1, .queries = 100, .keys = 160});
  kernel_made *k = kernel_make(s, (recipe){0});
  dil_threads *threads = dil_threads_new(1);
  int64_t rows = 100 * s->pattern->heads * cpu_kernel_states(k->kernel);
  dil_shard shard = {.queries = f->queries, .keys = f->keys, .B = 1, .N = 100,
                     .M = 160,
                     .o = shards_state_new(rows * s->pattern->value_dim),
                     .lse = shards_state_new(rows)};
  dil_status status = cpu_kernel_begin(k->kernel, threads, &d->call, &shard);
  ck_assert_int_eq(status, f->words ? DIL_USAGE : DIL_OK);
  ck_assert_msg(!f->words || strstr(dil_last_error(), f->words), "%s",
                dil_last_error());
  shards_state_free(shard.o);
  shards_state_free(shard.lse);
  dil_threads_free(threads);
  kernel_unmake(k);
  data_free(d);
  tested_pattern_free(s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("shards");
  TCase *tests = tcase_create("shards");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, shards, 0, PATTERNS * 3);
  tcase_add_loop_test(tests, parts_that_do_not_fit_are_refused, 0, MISFITS);
  tcase_add_loop_test(tests, fast_parts, 0, FAST);
  tcase_add_loop_test(tests, random_parts, 0, RANDOM);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
