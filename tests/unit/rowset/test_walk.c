/* test_walk.c - cells, classes and rows against the definition, position by
 * position; packing and transposing against plain loops. */
#include "runtime/base/arithmetic.h"
#include "runtime/cpu/pack.h"
#include "runtime/rowset/walk.h"
#include "tests/support/patterns.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BRANCHES = 4, HEADS = 6, KEYS = 211 };

typedef struct world {
  dil_table table;
  dil_pass pass;
  dil_branch branch[BRANCHES];
  int32_t phase[BRANCHES][HEADS];
  walk walk;
  class_table shape;
} world;

static void random_world(world *w, uint64_t *state) {
  *w = (world){.table = {.heads = HEADS, .kv_heads = 1}};
  w->table.branches = w->branch;
  w->table.branch_count = (int32_t)random_in(state, 1, BRANCHES);
  w->pass = (dil_pass){(1ull << w->table.branch_count) - 1, 1};
  for (int32_t b = 0; b < w->table.branch_count; b++) {
    int64_t r = random_in(state, 1, 6);
    w->branch[b] = (dil_branch){
        .segment = random_chance(state, 25) ? 0 : random_in(state, 1, 60),
        .dilation = r,
        .head_first = (int32_t)random_in(state, 0, 2),
        .head_last = (int32_t)random_in(state, 3, HEADS - 1),
        .phase = w->phase[b]};
    for (int32_t h = 0; h < HEADS; h++)
      w->phase[b][h] = (int32_t)random_in(state, 0, r - 1);
    w->pass.period = least_multiple(w->pass.period, r);
  }
  int32_t head = (int32_t)random_in(state, 0, HEADS - 1);
  w->walk = (walk){.table = &w->table,
                   .pass = &w->pass,
                   .served = walk_served(&w->table, &w->pass, head),
                   .head = head,
                   .round = (int32_t)random_in(state, 1, 2)};
  class_table_init(&w->shape, w->pass.period,
             calloc(1, class_table_size(w->pass.period)));
}

static void free_world(world *w) { free(w->shape.residue); }

/* The branches that select t, by the formula of the language. */
static uint64_t selected(const world *w, int64_t t) {
  uint64_t mask = 0;
  for (int32_t b = 0; b < w->table.branch_count; b++) {
    const dil_branch *one = &w->branch[b];
    int32_t h = w->walk.head;
    if (h < one->head_first || h > one->head_last) continue;
    if (one->segment && t < 0) continue;
    int64_t inside = one->segment ? floor_mod(t, one->segment) : t;
    if (floor_mod(inside, one->dilation) == one->phase[h]) mask |= 1ull << b;
  }
  return mask;
}

static void check_cell(world *w, segment_cell c, int *seen) {
  int64_t slots = 0;
  walk_classes(&w->walk, c, &w->shape);
  for (int32_t i = 0; i < w->shape.count; i++) {
    int64_t n = class_table_rows(&w->shape, i, c.high - c.low), before = -1;
    for (int64_t row = 0; row < n; row++) {
      int64_t offset = class_table_row(&w->shape, i, row);
      ck_assert(offset > before && offset < c.high - c.low);
      before = offset;
      ck_assert_int_eq(class_table_rows(&w->shape, i, offset), row);
      ck_assert_uint_eq(selected(w, c.low + offset), w->shape.branches[i]);
      seen[c.low + offset + KEYS]++;
    }
    if (w->shape.branches[i]) slots += round_up(n, w->walk.round);
  }
  ck_assert_int_eq(slots, walk_packed_rows(&w->walk, c, &w->shape));
}

START_TEST(every_position_stands_in_its_class) {
  uint64_t state = (uint64_t)_i;
  world w;
  random_world(&w, &state);
  int seen[2 * KEYS] = {0};
  int64_t from = -random_in(&state, 0, KEYS);
  for (int64_t at = from; at < KEYS;) {
    segment_cell c = walk_cell(&w.walk, at, KEYS);
    ck_assert(c.low == at && c.high > at && c.high <= KEYS);
    check_cell(&w, c, seen);
    at = c.high;
  }
  for (int64_t t = from; t < KEYS; t++) ck_assert_int_eq(seen[t + KEYS], 1);
  free_world(&w);
}
END_TEST

START_TEST(cells_share_segments_when_positions_do) {
  uint64_t state = (uint64_t)_i;
  world w;
  random_world(&w, &state);
  for (int pair = 0; pair < 50; pair++) {
    int64_t t = random_in(&state, 0, KEYS - 1), j = random_in(&state, 0, KEYS - 1);
    uint64_t together = walk_together(&w.walk, walk_cell(&w.walk, t, KEYS),
                                      walk_cell(&w.walk, j, KEYS),
                                      w.walk.served);
    for (int32_t b = 0; b < w.table.branch_count; b++) {
      int64_t s = w.branch[b].segment;
      bool same = !s || floor_div(t, s) == floor_div(j, s);
      bool served = w.walk.served >> b & 1;
      ck_assert_int_eq(together >> b & 1, served && same);
    }
  }
  free_world(&w);
}
END_TEST

/* ---- packing ------------------------------------------------------------- */

static const dil_dtype dtypes[] = {DIL_F32, DIL_BF16, DIL_F16};
static const int32_t widths[] = {1, 2, 7, 8, 16, 33, 64, 255};

typedef struct matrix {
  char *bytes;
  row_view rows;
} matrix;

static matrix random_matrix(dil_dtype dtype, int32_t width, int64_t count,
                            uint64_t *state) {
  int64_t stride = (width + 3) * (int64_t)dil_dtype_size(dtype);
  matrix m = {malloc((size_t)(stride * count)), {0}};
  m.rows = (row_view){.base = m.bytes,
                      .stride = stride,
                      .step = 1,
                      .dtype = dtype,
                      .width = width};
  for (int64_t e = 0; e < (width + 3) * count; e++)
    dil_element_write(m.bytes, dtype, e,
                      (double)random_in(state, -999, 999) / 64);
  return m;
}

static double element(const matrix *m, int64_t row, int64_t d) {
  return dil_element_read(m->bytes + row * m->rows.stride, m->rows.dtype, d);
}

START_TEST(queries_lie_in_the_lanes) {
  uint64_t state = (uint64_t)_i + 7;
  dil_dtype dtype = dtypes[_i % 3];
  int32_t width = widths[_i / 3 % 8], lanes = _i % 2 ? 16 : 32;
  int32_t pack = dtype == DIL_BF16 && _i % 4 < 2 ? 2 : 1;
  matrix m = random_matrix(dtype, width, 100, &state);
  int32_t t[DIL_LANES_MAX];
  for (int32_t lane = 0; lane < lanes; lane++)
    t[lane] = (int32_t)random_in(&state, 0, 99);
  size_t size = (size_t)lanes * 260 * sizeof(float);
  float *qt = aligned_alloc(64, size), *spare = aligned_alloc(64, size);
  pack_queries(&m.rows, t, lanes, pack, qt, spare);
  for (int32_t d = 0; d < width; d++)
    for (int32_t lane = 0; lane < lanes; lane++) {
      double got =
          pack == DIL_PACK_F32
              ? qt[d * lanes + lane]
              : dil_bf16_to_f32(
                    ((uint16_t *)qt)[(d / 2 * lanes + lane) * 2 + d % 2]);
      ck_assert_double_eq(got, element(&m, t[lane], d));
    }
  free(qt);
  free(spare);
  free(m.bytes);
}
END_TEST

/* One class of every third row, from row 2. */
static class_table every_third(void) {
  static int32_t first[] = {0, 1, 3}, offset[] = {2, 0, 1};
  static uint64_t branches[] = {1, 0};
  return (class_table){.period = 3, .count = 2, .branches = branches,
                 .first = first, .offset = offset};
}

START_TEST(keys_and_values_are_packed) {
  uint64_t state = (uint64_t)_i + 3;
  dil_dtype dtype = dtypes[_i % 3];
  int32_t width = widths[_i / 3 % 8];
  int32_t pack = dtype == DIL_BF16 && _i % 2 ? 2 : 1;
  matrix m = random_matrix(dtype, width, 100, &state);
  class_table s = every_third();
  int64_t n = 11, bytes = 12 * 260 * 4;
  char *k = malloc((size_t)bytes), *v = malloc((size_t)bytes);
  pack_keys(&m.rows, &s, 0, 5, 0, n, pack, k);
  ck_assert(pack_values(&m.rows, &s, 0, 5, 0, n, pack, v));
  for (int64_t i = 0; i < n; i++)
    for (int32_t d = 0; d < width; d++) {
      double want = element(&m, 5 + 3 * i + 2, d);
      const char *row = k + i * pack_key_bytes(width, pack);
      dil_dtype as = pack == DIL_PACK_BF16_PAIRS ? DIL_BF16 : DIL_F32;
      ck_assert_double_eq(dil_element_read(row, as, d), want);
      int64_t at = pack == DIL_PACK_BF16_PAIRS ? (i / 2 * width + d) * 2 + i % 2
                                               : i * width + d;
      ck_assert_double_eq(dil_element_read(v, as, at), want);
    }
  for (int32_t d = 0; d < width && pack == DIL_PACK_BF16_PAIRS;
       d++) /* the odd end */
    ck_assert_int_eq(((uint16_t *)v)[(n / 2 * width + d) * 2 + 1], 0);
  free(k);
  free(v);
  free(m.bytes);
}
END_TEST

START_TEST(values_that_are_not_finite_are_noticed) {
  static const double bad[] = {INFINITY, -INFINITY, NAN};
  uint64_t state = (uint64_t)_i;
  dil_dtype dtype = dtypes[_i % 3];
  int32_t width = widths[_i / 3 % 8], pack = dtype == DIL_BF16 ? 2 : 1;
  matrix m = random_matrix(dtype, width, 100, &state);
  class_table s = every_third();
  char *v = malloc(12 * 260 * 4);
  int64_t row = 5 + 3 * random_in(&state, 0, 9) + 2;
  dil_element_write(m.bytes + row * m.rows.stride, dtype,
                    random_in(&state, 0, width - 1),
                    bad[random_in(&state, 0, 2)]);
  ck_assert(!pack_values(&m.rows, &s, 0, 5, 0, 10, pack, v));
  free(v);
  free(m.bytes);
}
END_TEST

START_TEST(sums_come_back_as_rows) {
  uint64_t state = (uint64_t)_i;
  dil_dtype dtype = dtypes[_i % 3];
  int32_t width = widths[_i / 3 % 8], lanes = 32, used = 1 + _i % 32;
  float *o = aligned_alloc(64, (size_t)(lanes * 256) * sizeof(float));
  float *spare = malloc((size_t)(lanes * 256) * sizeof(float)), factor[32];
  char *out[DIL_LANES_MAX] = {0};
  for (int32_t i = 0; i < lanes * width; i++)
    o[i] = (float)random_in(&state, -99, 99);
  for (int32_t i = 0; i < lanes; i++) factor[i] = 1 / (float)(i + 1);
  for (int32_t i = 0; i < used; i++) out[i] = malloc((size_t)width * 4);
  unpack_rows(o, width, lanes, factor, out, dtype, false, spare);
  for (int32_t lane = 0; lane < used; lane++) {
    for (int32_t d = 0; d < width; d++) {
      char want[4];
      dil_element_write(want, dtype, 0,
                        (double)(o[d * lanes + lane] * factor[lane]));
      ck_assert_double_eq(dil_element_read(out[lane], dtype, d),
                          dil_element_read(want, dtype, 0));
    }
    free(out[lane]);
  }
  free(spare);
  free(o);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("walk");
  TCase *tests = tcase_create("walk");
  tcase_set_timeout(tests, 120);
  tcase_add_loop_test(tests, every_position_stands_in_its_class, 0, 500);
  tcase_add_loop_test(tests, cells_share_segments_when_positions_do, 0, 100);
  tcase_add_loop_test(tests, queries_lie_in_the_lanes, 0, 48);
  tcase_add_loop_test(tests, keys_and_values_are_packed, 0, 48);
  tcase_add_loop_test(tests, values_that_are_not_finite_are_noticed, 0, 48);
  tcase_add_loop_test(tests, sums_come_back_as_rows, 0, 96);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
