/* test_patch.c - patches of random grids against a walk over all pairs: each
 * query is a row of one patch, each position one packed row, and the boxes of a
 * patch hold every key that one of its queries sees. The queries that see a key are
 * those whose keys it is among. */
#include "runtime/rowset/patch.h"
#include "tests/support/patterns.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 80 };

typedef struct patch_world {
  dil_table table;
  dil_branch branch;
  patch_plan plan;
  int64_t cells;
  int32_t *row_of; /* [cells] packed row of a position */
} patch_world;

static int64_t draw_bound(uint64_t *state) {
  return random_chance(state, 40) ? random_in(state, 0, 9) : DIL_ENDLESS;
}

static void draw_axis(dil_grid *g, dil_reach *r, int32_t a, uint64_t *state) {
  g->extent[a] = random_in(state, 1, g->axes == 2 ? 26 : 8);
  r->dilation[a] = random_chance(state, 60) ? 1 : random_in(state, 2, 5);
  r->kernel[a] = random_chance(state, 50) ? random_in(state, 1, 15)
                                          : DIL_ENDLESS;
  r->left[a] = draw_bound(state);
  r->right[a] = draw_bound(state);
  r->causal[a] = random_chance(state, 25);
}

static bool draw_world(patch_world *w, uint64_t *state) {
  *w = (patch_world){.branch = {.dilation = 1}, .cells = 1};
  w->table.branches = &w->branch;
  w->table.grid.axes = (int32_t)random_in(state, 2, 3);
  for (int32_t a = 0; a < w->table.grid.axes; a++) {
    draw_axis(&w->table.grid, &w->branch.reach, a, state);
    w->cells *= w->table.grid.extent[a];
  }
  if (random_chance(state, 30)) w->table.grid.extent[0] = 0; /* any */
  static const int32_t tall[] = {32, 48, 128, 256, 1024}; /* on a GPU */
  patch_tile_shape shape = {.lanes = 8 << random_in(state, 0, 2),
                            .key_block = 12,
                            .pack = (int32_t)random_in(state, 1, 2)};
  shape.whole = shape.pack == 1 && random_chance(state, 60);
  if (shape.whole) shape.lanes = tall[random_in(state, 0, 4)];
  return patch_plan_make(&w->table, 0, w->cells, &shape, &w->plan);
}

/* Whether a query sees a key along an axis, by the words of the language. */
static bool sees(const dil_reach *r, int32_t a, int64_t extent, int64_t i,
                 int64_t j) {
  int64_t step = r->dilation[a], size = r->kernel[a];
  int64_t count = (extent - i % step + step - 1) / step;
  if ((i - j) % step) return false;
  if (r->left[a] != DIL_ENDLESS && i - j > r->left[a]) return false;
  if (r->right[a] != DIL_ENDLESS && j - i > r->right[a]) return false;
  if (r->causal[a] && j > i) return false;
  if (size == DIL_ENDLESS) return true;
  if (r->causal[a]) return (i - j) / step < size;
  int64_t first = i / step - size / 2;
  if (first + size > count) first = count - size;
  if (first < 0) first = 0;
  return j / step >= first && j / step < first + size;
}

static bool pair_sees(const patch_world *w, int64_t i, int64_t j) {
  for (int32_t a = w->plan.axes - 1; a >= 0; a--) {
    int64_t extent = w->plan.axis[a].extent;
    if (!sees(&w->branch.reach, a, extent, i % extent, j % extent))
      return false;
    i /= extent;
    j /= extent;
  }
  return true;
}

/* Each position has one packed row. */
static void check_rows(patch_world *w) {
  w->row_of = malloc((size_t)w->cells * sizeof *w->row_of);
  memset(w->row_of, -1, (size_t)w->cells * sizeof *w->row_of);
  for (int64_t n = 0; n < w->plan.rows; n++) {
    int64_t t = patch_row_position(&w->plan, n);
    ck_assert(t >= -1 && t < w->cells);
    if (t < 0) continue;
    ck_assert_int_eq(w->row_of[t], -1);
    w->row_of[t] = (int32_t)n;
  }
  for (int64_t t = 0; t < w->cells; t++) ck_assert_int_ge(w->row_of[t], 0);
}

static bool box_has(const patch_world *w, const patch_box *box, int64_t row) {
  int64_t ranges = patch_ranges(&w->plan, box);
  ck_assert_int_le(ranges, w->plan.ranges);
  for (int64_t n = 0; n < ranges; n++) {
    patch_span range = patch_range(&w->plan, box, n);
    if (row < range.first || row > range.last) continue;
    int64_t i = (row - range.first) % w->plan.run;
    int64_t t = patch_row_position(&w->plan, row);
    for (int32_t a = w->plan.axes - 1; t >= 0 && a > 0; a--) {
      const patch_axis *x = &w->plan.axis[a];
      ck_assert_int_eq(patch_inner_cell(&w->plan, box, n, i, a),
                       t % x->extent / x->step);
      t /= x->extent;
    }
    return true;
  }
  return false;
}

static void check_query(const patch_world *w, const patch_box *box,
                        const int64_t *cell, int *seen) {
  int64_t i = patch_position(&w->plan, box, cell);
  ck_assert(i >= 0 && i < w->cells);
  seen[i]++;
  for (int64_t j = 0; j < w->cells; j++) {
    bool kept = pair_sees(w, i, j), told = true, back = true;
    int64_t rest = j;
    for (int32_t a = w->plan.axes - 1; a >= 0; a--) {
      const patch_axis *x = &w->plan.axis[a];
      int64_t at = rest % x->extent, u = cell[a];
      patch_span keys = patch_keys(x, box->cells[a], (patch_span){u, u});
      rest /= x->extent;
      bool mine = at % x->step == box->residue[a];
      int64_t key = at / x->step;
      patch_span queries = patch_queries(x, box->cells[a], (patch_span){key, key});
      told &= mine && key >= keys.first && key <= keys.last;
      back &= mine && u >= queries.first && u <= queries.last;
    }
    ck_assert_int_eq(told, kept);
    ck_assert_int_eq(back, kept);
    if (kept) ck_assert(box_has(w, box, w->row_of[j]));
  }
}

static int32_t check_patch(const patch_world *w, const patch_box *box, int *seen) {
  const patch_span *q = box->query;
  bool deep = w->plan.axes > 2;
  int32_t count = 0;
  int64_t cell[DIL_GRID_AXES];
  for (cell[0] = q[0].first; cell[0] <= q[0].last; cell[0]++)
    for (cell[1] = q[1].first; cell[1] <= q[1].last; cell[1]++)
      for (cell[2] = deep ? q[2].first : 0; cell[2] <= (deep ? q[2].last : 0);
           cell[2]++, count++)
        check_query(w, box, cell, seen);
  return count;
}

START_TEST(boxes_hold_what_is_seen) {
  uint64_t state = (uint64_t)_i + 1;
  patch_world w;
  if (!draw_world(&w, &state)) return;
  check_rows(&w);
  int *seen = calloc((size_t)w.cells, sizeof *seen);
  for (int64_t n = 0; n < w.plan.patches; n++) {
    patch_box box;
    if (!patch_at(&w.plan, n, &box)) continue;
    int32_t count = check_patch(&w, &box, seen);
    ck_assert(count > 0 && count <= w.plan.lanes);
  }
  for (int64_t t = 0; t < w.cells; t++) ck_assert_int_eq(seen[t], 1);
  free(seen);
  free(w.row_of);
}
END_TEST

/* The square patches of a wide neighbourhood visit few keys in vain. */
START_TEST(shapes_are_cheap) {
  patch_world w = {.branch = {.dilation = 1,
                        .reach = {.left = {DIL_ENDLESS, DIL_ENDLESS},
                                  .right = {DIL_ENDLESS, DIL_ENDLESS},
                                  .kernel = {13, 13},
                                  .dilation = {1, 1}}},
             .table.grid = {2, {128, 128}}};
  const patch_tile_shape shape = {.lanes = 16, .key_block = 16, .pack = 1};
  w.table.branches = &w.branch;
  ck_assert(patch_plan_make(&w.table, 0, 128 * 128, &shape, &w.plan));
  ck_assert_int_eq(w.plan.axis[0].size, 4);
  ck_assert_int_eq(w.plan.axis[1].size, 4);
  ck_assert_double_le(patch_plan_visits(&w.plan), 1.55 * 169 * 128 * 128);
  const patch_tile_shape tile = {
      .lanes = 64, .key_block = 64, .pack = 1, .whole = true};
  ck_assert(patch_plan_make(&w.table, 0, 128 * 128, &tile, &w.plan));
  ck_assert_int_eq(w.plan.axis[0].size, 8);
  ck_assert_int_eq(w.plan.axis[1].size, 8);
  /* A box of 20 x 20 keys is 7 blocks; at an edge it has 14 x 20, or 14 x 14. */
  ck_assert_double_eq(patch_plan_blocks(&w.plan, 64),
                      14 * 14 * 7 + 4 * 14 * 5 + 4 * 4);
  w.branch.reach.kernel[0] = w.branch.reach.kernel[1] = 200;
  ck_assert(!patch_plan_make(&w.table, 0, 128 * 128, &shape, &w.plan));
}
END_TEST

int main(void) {
  Suite *suite = suite_create("patch");
  TCase *tests = tcase_create("patch");
  tcase_add_loop_test(tests, boxes_hold_what_is_seen, 0, CASES);
  tcase_add_test(tests, shapes_are_cheap);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
