/* test_few_rows.c - few queries over lists of blocks and of keys: the oracle's
 * answer, from the keys alone that some query sees.
 *
 * In: patterns whose masks leave most keys out, and calls of a few rows. Out: what is
 * wrong with o and lse; a run that reads other keys ends by a signal. */
#include "tests/support/edge.h"
#include "tests/support/gpu.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define G(body) "pattern p { heads 4 kv 2; head_dim 24; dtype f32; " body " }"
#define TABLE "block 16; input kept : u8[H, nb, nb]; keep from kept; "
#define LISTS                                                                   \
  "block 33; input rows : i32[H, nb + 1]; input cols : i32[H, *]; "             \
  "keep from rows, cols; "
#define HASH "block 64; keep hash(h, bi, bj, 1) % 9 == 0; "

static const int32_t lengths[] = {1201, 0, 64, 777};

static double every_ninth(int32_t index, const int64_t *at,
                          const int64_t *shape) {
  (void)index, (void)shape;
  return (at[0] + 3 * at[1] + 5 * at[2]) % 9 == 0;
}

/* Keys of a list, downwards. */
static double all_but_every_fifth(int32_t index, const int64_t *at,
                                  const int64_t *shape) {
  (void)index;
  int64_t key = shape[1] - 1 - at[1];
  return key % 5 ? (double)key : -1;
}

static double stairs(int32_t index, const int64_t *at, const int64_t *shape) {
  (void)index, (void)shape;
  return (double)(at[1] / 290);
}

static double infinite_keys(int32_t tensor, const int64_t *at, double number) {
  return tensor > 0 && at[1] % 50 == 7 && at[3] == 2 ? INFINITY : number;
}

#define FEW(n, m, ...) {.batch = 2, .queries = n, .keys = m, __VA_ARGS__}
static const edge cases[] = {
    {"hash", G(HASH "branch { }"), FEW(1, 2011)},
    {"hash, causal", G("causal; " HASH "branch { }"), FEW(7, 1500)},
    {"hash, window", G(HASH "branch { window 700, 3; }"), FEW(11, 1333)},
    {"hash, segments", G(HASH "branch { segment 500; }"), FEW(3, 1290)},
    {"hash, dilation", G(HASH "branch { dilation 3; phase 1; }"), FEW(5, 1900)},
    {"hash, each phase", G(HASH "branch { dilation 5; phase each; }"),
     FEW(6, 1400)},
    {"hash, lengths", G("causal; " HASH "branch { }"),
     {.batch = 4, .queries = 2, .keys = 1201, .lengths = lengths}},
    {"hash, union", G("combine union; " HASH "branch { window 90, 0; } "
     "branch { dilation 2; } branch { segment 700; keep bj == 1; }"),
     FEW(4, 1000)},
    {"hash, branches", G("branch { window 100, 0; } branch { block 32; keep "
     "hash(bi, bj) % 11 == 0; } branch { block 32; keep bj < 1; }"),
     FEW(9, 1700)},
    {"hash, mean", G("combine mean; branch { window 100, 0; } branch { block 32; "
     "keep hash(bi, bj) % 11 == 0; }"), FEW(2, 1100)},
    {"hash, score and sink", G("sink 0.5; score 9 * tanh(s / 9) - 0.01 * "
     "abs(i - j); " HASH "branch { }"), FEW(3, 1234)},
    {"hash, dropout", G("dropout 0.2; " HASH "branch { }"),
     FEW(3, 1300, .train = true, .dropout_seed = 4)},
    {"hash, infinite keys", G(HASH "branch { }"),
     FEW(2, 1000, .element = infinite_keys)},
    {"hash and pairs", G(HASH "mask (i + 3 * j) % 7 != 2; branch { }"),
     FEW(4, 1700)},
    {"pairs", G("mask hash(i, j) % 4 == 0; branch { }"), FEW(2, 5000)},
    {"pairs, then blocks", G("mask j >= 3000 || hash(i, j) % 4 == 0; block 64; "
     "mask j < 2500 || hash(bj, bi) % 8 == 0; branch { }"), FEW(1, 6000)},
    {"a table", G(TABLE "branch { }"), FEW(1, 1600, .input = every_ninth)},
    {"a table, causal", G("causal; " TABLE "branch { }"),
     FEW(8, 1009, .input = every_ninth)},
    {"lists", G(LISTS "branch { }"), FEW(2, 1700)},
    {"lists, causal", G("causal; " LISTS "branch { window 900, 0; }"),
     FEW(10, 1300)},
    {"documents", G("causal; input doc : i32[B, M]; mask doc[b, i] == doc[b, j]; "
     "branch { }"), FEW(3, 1400, .input = stairs)},
    {"a gate", G("block 16; input g : f32[B, H, nbq, nb]; keep top 7 by g; "
     "branch { }"), FEW(5, 1111)},
    {"means", G("causal; block 16; keep top 5 by mean; branch { }"),
     FEW(4, 1050)},
    {"means, lengths", G("causal; block 32; keep mass 0.5, 6 by mean each; "
     "shared kv; branch { }"),
     {.batch = 4, .queries = 3, .keys = 1201, .lengths = lengths}},
    {"tiles, hash", G(HASH "branch { }"), FEW(13, 2011)},
    {"tiles, hash, causal", G("causal; " HASH "branch { }"), FEW(128, 1500)},
    {"tiles, hash, too many rows", G("causal; " HASH "branch { }"),
     FEW(129, 1500)},
    {"tiles, hash, more rows than keys", G("causal; " HASH "branch { }"),
     FEW(90, 70)},
    {"tiles, hash, window", G(HASH "branch { window 700, 3; }"), FEW(40, 1333)},
    {"tiles, hash, lengths", G("causal; " HASH "branch { }"),
     {.batch = 4, .queries = 21, .keys = 1201, .lengths = lengths}},
    {"tiles, hash, union", G("combine union; " HASH "branch { window 90, 0; } "
     "branch { keep bj == 1; }"), FEW(24, 1000)},
    {"tiles, hash, heads", G(HASH "branch { heads 0..1; } branch { heads 1..2; "
     "keep bj % 4 == 2; }"), FEW(14, 1000)},
    {"tiles, hash, infinite keys", G(HASH "branch { }"),
     FEW(30, 1000, .element = infinite_keys)},
    {"tiles, lists", G(LISTS "branch { }"), FEW(33, 9100)},
    {"tiles, a table", G("causal; " TABLE "branch { }"),
     FEW(70, 1009, .input = every_ninth)},
    {"tiles, a gate", G("block 16; input g : f32[B, H, nbq, nb]; keep top 7 by g; "
     "branch { }"), FEW(50, 1111)},
    {"tiles, pairs and a window", G("branch { window 40, 40; } branch { mask "
     "hash(i, j / 100) % 5 == 0; }"), FEW(50, 1700)},
    {"keys", G("input g : i32[H, *]; branch { keys g; }"), FEW(3, 1500)},
    {"keys beside a window", G("input g : i32[*]; branch { window 60, 0; } "
     "branch { keys g; }"), FEW(5, 1400)},
    {"keys beside a window, once", G("combine union; input g : i32[B, H, *]; "
     "branch { window 60, 0; } branch { keys g; }"), FEW(2, 1300)},
    {"keys of a window, with scores", G("causal; score s - 0.02 * (i - j); input g "
     ": i32[H, *]; branch { window 900, 0; keys g; mask (i + j) % 3 != 0; }"),
     FEW(4, 1800)},
    {"many keys", G("input g : i32[H, *]; branch { keys g; }"),
     {.batch = 1, .queries = 2, .keys = 4500, .input = all_but_every_fifth}},
    {"many keys, lengths", G("causal; dropout 0.1; input g : i32[H, *]; "
     "branch { keys g; }"),
     {.batch = 4, .queries = 5, .keys = 1201, .lengths = lengths,
      .input = all_but_every_fifth, .train = true, .dropout_seed = 2}},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static void try_way(const tested_pattern *s, call_shape shape, recipe way) {
  kernel_made *k = kernel_make(s, way);
  if (!k->refused) {
    data *d = data_new(s, shape);
    const char *problem = data_problem(d, k);
    ck_assert_msg(!problem[0], "%s, %s, %s, force %u: %s", s->name,
                  dil_dtype_name(s->pattern->dtype), way.isa ? way.isa : "host",
                  way.force, problem);
    data_free(d);
  }
  kernel_unmake(k);
}

/* Of f32 every plan by every instruction set, of the other types the host's own way;
 * each with another layout of memory. */
START_TEST(right) {
  const edge *e = &cases[_i];
  if (gpu_leaves_case("few rows", _i)) return;
  for (dil_dtype dtype = DIL_F32; dtype <= DIL_BF16; dtype++) {
    forced list[FORCES_MOST];
    tested_pattern *s = tested_pattern_new(e->name, e->text, NULL, 0);
    ck_assert_msg(s->pattern != NULL, "%s: %s", e->name, s->problem);
    tested_pattern_retype(s, dtype);
    forces_of(s, list);
    call_shape shape = e->shape;
    shape.seed = 5 + (uint32_t)dtype;
    shape.layout = (guard_layout)((_i + (int)dtype) % GUARD_LAYOUT_COUNT);
    if (dtype != DIL_F32) try_way(s, shape, (recipe){0});
    for (const char *const *isa = cpu_isas(); dtype == DIL_F32 && *isa; isa++)
      for (const forced *f = list; f->name; f++)
        try_way(s, shape, (recipe){.isa = *isa, .force = f->force});
    tested_pattern_free(s);
  }
}
END_TEST

/* ---- what is read -------------------------------------------------------- */

#define ONE(dtype, body)                                                        \
  "pattern p { heads 2 kv 1; head_dim 64; dtype " dtype "; " body " }"

/* Of a table or a list of 2048 keys: a few blocks of 64, or keys. */
static double some_blocks(int32_t index, const int64_t *at,
                          const int64_t *shape) {
  (void)index, (void)shape;
  return (at[1] + at[0]) % 11 == 4;
}

static double sixteen_keys(int32_t index, const int64_t *at,
                           const int64_t *shape) {
  (void)index, (void)shape;
  return at[0] < 16 ? (double)(at[0] * 61) : -1;
}

static const edge reads[] = {
    {"hash", ONE("f32", "block 64; keep hash(bi, bj) % 9 == 0; branch { }"),
     S(1, 2048)},
    {"hash of bf16", ONE("bf16", "block 128; keep hash(bi, bj) % 9 == 0; "
     "branch { }"), S(2, 8192)},
    {"a table", ONE("f32", "block 64; input t : u8[nb, nb]; keep from t; "
     "branch { }"), S_(3, 2048, .input = some_blocks)},
    {"lists", ONE("f16", "block 64; input rows : i32[nb + 1]; input cols : i32[*]; "
     "keep from rows, cols; branch { }"), S(3, 2048)},
    {"lists and a window", ONE("f32", "block 64; input rows : i32[nb + 1]; input "
     "cols : i32[*]; branch { window 100, 0; } branch { keep from rows, cols; }"),
     S(2, 2048)},
    {"keys", ONE("f32", "input g : i32[*]; branch { keys g; }"),
     S_(3, 2048, .input = sixteen_keys)},
    {"keys and a window, once", ONE("bf16", "combine union; input g : i32[*]; "
     "branch { window 100, 0; } branch { keys g; }"),
     S_(2, 4096, .input = sixteen_keys)},
    {"tiles, hash", ONE("f32", "block 128; keep hash(bi, bj) % 9 == 0; "
     "branch { }"), S(16, 4096)},
    {"tiles, hash of bf16", ONE("bf16", "causal; block 64; keep hash(bi, bj) % 29 "
     "== 0; branch { }"), S(128, 8192)},
    {"tiles, lists", ONE("f16", "block 64; input rows : i32[nb + 1]; input cols : "
     "i32[*]; keep from rows, cols; branch { }"), S(70, 2048)},
    {"hash, once", ONE("f32", "combine union; branch { window 100, 0; } branch { "
     "block 64; keep hash(bi, bj) % 13 == 0; }"), S(2, 2048)},
};
enum { READS = sizeof reads / sizeof reads[0] };

static bool is_seen(const dil_tensor *t, int64_t row) {
  return !isnan(dil_element_read(t->data, t->dtype, row * t->stride[1]));
}

/* A copy of a tensor that cannot be read where no query sees any of `together`
 * rows; returns how many rows are hidden. */
static int64_t hide_unseen(dil_tensor *t, int64_t together) {
  int64_t row = t->stride[1] * (int64_t)dil_dtype_size(t->dtype);
  int64_t page = sysconf(_SC_PAGESIZE), size = t->shape[1] * row, hidden = 0;
  ck_assert(together * row % page == 0 && t->shape[1] % together == 0);
  char *copy = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert(copy != MAP_FAILED);
  memcpy(copy, t->data, (size_t)size);
  for (int64_t at = 0; at < t->shape[1]; at += together) {
    bool seen = false;
    for (int64_t n = at; n < at + together; n++) seen |= is_seen(t, n);
    if (seen) continue;
    ck_assert(!mprotect(copy + at * row, (size_t)(together * row), PROT_NONE));
    hidden += together;
  }
  t->data = copy;
  return hidden;
}

/* Rows that are read together: those of a page, or of the longest tile of keys. */
static int64_t rows_together(const dil_tensor *t, int64_t queries) {
  int64_t row = t->stride[1] * (int64_t)dil_dtype_size(t->dtype);
  return queries < DIL_TILE_ROWS_LEAST ? sysconf(_SC_PAGESIZE) / row
                                       : DIL_TILE_KEYS_MOST;
}

/* Rows of K and V that no query sees are NaN in these data, and are hidden here. */
START_TEST(reads_what_is_seen) {
  const edge *e = &reads[_i];
  if (gpu_wanted()) return;
  tested_pattern *s = tested_pattern_new(e->name, e->text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s: %s", e->name, s->problem);
  kernel_made *k = kernel_make(s, (recipe){.threads = 1});
  data *d = data_new(s, e->shape);
  int64_t together = rows_together(&d->call.k, e->shape.queries);
  int64_t hidden = hide_unseen(&d->call.k, together);
  ck_assert_int_gt(hidden, e->shape.keys / 2);
  ck_assert_int_eq(hide_unseen(&d->call.v, together), hidden);
  const char *problem = data_problem(d, k);
  ck_assert_msg(!problem[0], "%s: %s", e->name, problem);
  data_free(d);
  kernel_unmake(k);
  tested_pattern_free(s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("few_rows");
  TCase *tests = tcase_create("few_rows");
  tcase_set_timeout(tests, 120);
  tcase_add_loop_test(tests, right, 0, CASES);
  tcase_add_loop_test(tests, reads_what_is_seen, 0, READS);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
