/* test_cover.c - counts by arithmetic against counts by listing every pair
 * through pattern_reaches, on random patterns with inputs and without. */
#include "compiler/analysis/cover.h"
#include "runtime/base/arithmetic.h"
#include "tests/support/definition.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>

/* Tensors for what add_inputs declares, and no others. */
static dil_call *make_call(const pattern *p, int64_t M, uint64_t *state) {
  dil_call *call = ARENA_NEW(memory, dil_call);
  call->q.shape[0] = 2;
  call->k.shape[1] = M;
  sample_inputs(memory, p, call, state);
  return call;
}

/* ---- counting by listing ------------------------------------------------- */

typedef struct cover_listing {
  const pattern *p;
  int64_t N, M;
  expr_point point;
} cover_listing;

static cover_listing listing_of(const pattern *p, int64_t N, int64_t M,
                                const dil_call *call) {
  return (cover_listing){p,
                         N,
                         M,
                         {.b = call ? 1 : 0,
                          .B = call ? 2 : 1,
                          .N = (int32_t)N,
                          .M = (int32_t)M,
                          .input = sample_input,
                          .context = (void *)call}};
}

static void list_pair(const cover_listing *l, int64_t h, int64_t t, int64_t j,
                      cover_count *count, bool *any) {
  int reached = 0;
  for (int32_t b = 0; b < l->p->branch_count; b++)
    reached += pattern_reaches(l->p, b, h, t, j, &l->point);
  count->distinct += reached > 0;
  count->pairs +=
      l->p->combine == DIL_COMBINE_UNION ? reached > 0 : reached;
  *any = *any || reached > 0;
}

static void list_pairs(const cover_listing *l, cover_count *count) {
  for (int64_t h = 0; h < l->p->heads; h++)
    for (int64_t t = l->M - l->N; t < l->M; t++) {
      bool any = false;
      for (int64_t j = 0; j < l->M; j++) list_pair(l, h, t, j, count, &any);
      count->uncovered += !any;
    }
}

/* How many phases of a branch have tiles of their own. A shift of phases counts
 * as a mask. */
static int64_t turns_of(const branch *b) {
  return branch_has_each(b) && !b->shift ? b->dilation : 1;
}

static bool is_chosen(const branch *b, int64_t h, int64_t turn,
                      int64_t inside) {
  if (branch_has_each(b) && b->shift) return true;
  int64_t phase = branch_has_each(b) ? turn : b->phase[h];
  return floor_mod(inside, b->dilation) == phase;
}

/* Rows or keys of one segment that a branch selects, in order. */
typedef struct chosen {
  int64_t count, at[128];
} chosen;

static chosen choose_positions(const branch *b, int64_t h, int64_t turn,
                               int64_t segment, int64_t first, int64_t end) {
  chosen all = {0, {0}};
  for (int64_t t = first; t < end; t++) {
    int64_t number = b->segment ? floor_div(t, b->segment) : 0;
    int64_t inside = b->segment ? floor_mod(t, b->segment) : t;
    if (number != segment) continue;
    if (is_chosen(b, h, turn, inside)) all.at[all.count++] = t;
  }
  return all;
}

static void list_tile(const cover_listing *l, int32_t b, int64_t h,
                      const chosen *rows, const chosen *keys, int64_t row,
                      int64_t key, const int32_t size[2], cover_count *count) {
  int64_t kept = 0, all = 0;
  for (int64_t x = row; x < rows->count && x < row + size[0]; x++)
    for (int64_t y = key; y < keys->count && y < key + size[1]; y++, all++)
      kept +=
          pattern_reaches(l->p, b, h, rows->at[x], keys->at[y], &l->point);
  count->empty += kept == 0;
  count->full += kept == all;
  count->partial += kept > 0 && kept < all;
}

static void list_segment(const cover_listing *l, int32_t index, int64_t h,
                         int64_t turn, int64_t segment, const int32_t size[2],
                         cover_count *count) {
  const branch *b = &l->p->branch[index];
  chosen keys = choose_positions(b, h, turn, segment, 0, l->M);
  chosen rows = choose_positions(b, h, turn, segment, l->M - l->N, l->M);
  for (int64_t x = 0; x < rows.count; x += size[0])
    for (int64_t y = 0; y < keys.count; y += size[1])
      list_tile(l, index, h, &rows, &keys, x, y, size, count);
}

static void list_tiles(const cover_listing *l, const int32_t size[2],
                       cover_count *count) {
  for (int32_t b = 0; b < l->p->branch_count; b++) {
    const branch *of = &l->p->branch[b];
    int64_t segments = of->segment ? (l->M + of->segment - 1) / of->segment : 1;
    for (int64_t h = of->head_first; h <= of->head_last; h++)
      for (int64_t k = 0; k < segments * turns_of(of); k++)
        list_segment(l, b, h, k % turns_of(of), k / turns_of(of), size, count);
  }
}

/* ---- comparison ---------------------------------------------------------- */

static bool has_conditions(const pattern *p) {
  for (int32_t b = 0; b < p->branch_count; b++) {
    const branch *of = &p->branch[b];
    if (of->mask_count + of->keeps[0].count + of->keeps[1].count > 0 ||
        (branch_has_each(of) && of->shift))
      return true;
  }
  return false;
}

static void print_counts(const pattern *p, int64_t N, int64_t M,
                         const cover_count *is, const cover_count *should) {
  pattern_print(p, stderr);
  ck_abort_msg("N %d M %d: pairs %g %g distinct %g %g uncovered %g %g "
               "empty %g %g partial %g %g full %g %g",
               (int)N, (int)M, is->pairs, should->pairs, is->distinct,
               should->distinct, is->uncovered, should->uncovered, is->empty,
               should->empty, is->partial, should->partial, is->full,
               should->full);
}

/* With conditions a tile may be called partial although it is not, never the
 * other way round. */
static bool tiles_agree(const pattern *p, const cover_count *is,
                        const cover_count *should) {
  if (!has_conditions(p))
    return is->empty == should->empty && is->partial == should->partial &&
           is->full == should->full;
  double all = should->empty + should->partial + should->full;
  return is->empty + is->partial + is->full == all &&
         is->empty <= should->empty && is->full <= should->full;
}

static void check_pattern(const pattern *p, int64_t N, int64_t M,
                          const int32_t size[2], const dil_call *call) {
  cover_count is, should = {0};
  cover_listing l = listing_of(p, N, M, call);
  list_pairs(&l, &should);
  list_tiles(&l, size, &should);
  cover_pattern(p, N, M, size[0], size[1], call, call ? 1 : 0,
                &is);
  if (is.pairs != should.pairs || is.distinct != should.distinct ||
      is.uncovered != should.uncovered || !tiles_agree(p, &is, &should))
    print_counts(p, N, M, &is, &should);
}

static void check_random(uint64_t *state) {
  pattern *p = random_pattern(memory, state, false);
  pattern_verify(p);
  int64_t N = random_in(state, 0, 40), M = random_in(state, 0, 50);
  const int32_t size[2] = {(int32_t)random_in(state, 1, 7),
                           (int32_t)random_in(state, 1, 7)};
  check_pattern(p, N, M, size, make_call(p, M, state));
}

START_TEST(counts_agree_with_listing) {
  uint64_t state = 4711;
  for (int k = 0; k < 600; k++) {
    if (k % 20 == 0) fresh_memory();
    check_random(&state);
  }
}
END_TEST

/* A mask of i - j, or of i and j. */
static void mask_some(uint64_t *state, branch *b) {
  expr *i = make_leaf(memory, EXPR_I_), *j = make_leaf(memory, EXPR_J_);
  expr_op op = random_chance(state, 50) ? EXPR_SUB : EXPR_MUL;
  expr *rest = make_number(memory, EXPR_MOD, make_number(memory, op, i, j),
                           make_int(memory, random_in(state, 2, 5)));
  if (random_chance(state, 30))
    add_mask(memory, b,
             make_condition(memory, EXPR_NE, rest, make_int(memory, 1)));
}

static pattern *many_branches(uint64_t *state, int32_t count) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, count);
  for (int32_t k = 0; k < count; k++) {
    branch *b = &p->branch[k];
    b->segment = random_in(state, 0, 20);
    b->dilation = random_in(state, 1, 6);
    b->causal = random_chance(state, 50);
    if (random_chance(state, 20)) b->left = random_in(state, 0, 30);
    mask_some(state, b);
  }
  set_phases(memory, p);
  return p;
}

/* Many branches with unlike segments and dilations, in the thick of inclusion
 * and exclusion, or beyond it. */
START_TEST(many_branches_agree_with_listing) {
  uint64_t state = 99;
  for (int k = 0; k < 80; k++) {
    pattern *p = many_branches(&state, k % 2 ? DIL_BRANCH_MAX : 7);
    if (random_chance(&state, 20)) p->combine = DIL_COMBINE_UNION;
    const int32_t size[2] = {4, 4};
    check_pattern(p, 60, random_in(&state, 30, 90), size, NULL);
  }
}
END_TEST

/* Rows before the sequence read 0 from an input, its own rows read 1. */
START_TEST(inputs_outside_read_zero) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  add_inputs(memory, p);
  expr *b = make_leaf(memory, EXPR_B_);
  expr *i = make_input(memory, DOC, TYPE_I32, b, make_leaf(memory, EXPR_I_));
  expr *j = make_input(memory, DOC, TYPE_I32, b, make_leaf(memory, EXPR_J_));
  add_mask(memory, &p->branch[0], make_condition(memory, EXPR_EQ, i, j));
  uint64_t state = 1;
  dil_call *call = make_call(p, 300, &state);
  for (int64_t e = 0; e < 300; e++)
    dil_element_write(call->inputs[DOC].data, DIL_I32, e, 1);
  cover_count count;
  cover_pattern(p, 700, 300, 128, 64, call, 0, &count);
  ck_assert_double_eq(count.pairs, 300 * 300);
  ck_assert_double_eq(count.uncovered, 400);
}
END_TEST

/* ---- the suite ----------------------------------------------------------- */

int main(void) {
  Suite *suite = suite_create("cover");
  TCase *tests = tcase_create("cover");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, counts_agree_with_listing);
  tcase_add_test(tests, many_branches_agree_with_listing);
  tcase_add_test(tests, inputs_outside_read_zero);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
