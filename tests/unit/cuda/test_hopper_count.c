/* test_hopper_count.c - what is said of a launch beforehand (hopper_count.c)
 * against enumeration: every tile is walked pair by pair. Pairs that the kernel
 * computes, and those that it is said to save, are those of the definition; a
 * block is masked where some row of its tile does not see some key of it. */
#include "tests/support/hopper_lists.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE static inline
#define WARPGROUPS 3
#define NESTED 0
#define SHIFTS 1
#include "templates/hopper/hopper_walk.cuh"

enum { KEYS = 128, PAIRS = 3000000 /* of a list, at most */ };

/* ---- the definition ------------------------------------------------------ */

static double pairs_of(const hopper_list *s) {
  double pairs = 0;
  for (int32_t h = 0; h < HEADS; h++)
    for (int64_t t = s->M - s->N; t < s->M; t++)
      for (int64_t j = 0; j < s->M; j++)
        for (int32_t b = 0; b < s->table.branch_count; b++)
          pairs += list_reaches(s, b, h, t, j);
  return pairs * (double)s->B;
}

/* ---- the walk ------------------------------------------------------------ */

typedef struct walked {
  double pairs;          /* that the kernel computes */
  double visited, whole; /* blocks */
  bool gaps;             /* windows may fall between two rows */
} walked;

/* Of one block, whose first key has number `from` in its run. */
static int32_t pairs_in(const tile *x, int32_t row_stride,
                        const hopper_key_range *p, key_run r, int32_t from) {
  int32_t pairs = 0;
  for (int32_t i = 0; i < x->rows; i++)
    for (int32_t n = from; n < r.count && n < from + KEYS; n++) {
      int64_t t = x->position + (int64_t)i * row_stride;
      int64_t j = r.position + (int64_t)n * p->stride;
      pairs += j - t <= p->right && t - j <= p->left;
    }
  return pairs;
}

static void walk_range(const hopper_launch *l, const tile *x,
                       const tile *packed, const hopper_key_range *p,
                       walked *w) {
  int32_t stride = l->classes[x->klass].stride, seen = 0;
  key_run r = keys_of(l, x, p);
  for (int32_t from = 0; from < r.count; from += KEYS) {
    int32_t pairs = pairs_in(x, stride, p, r, from), rows = x->rows;
    if (packed) {
      pairs += pairs_in(packed, l->classes[packed->klass].stride, p, r, from);
      rows += packed->rows;
    }
    if (pairs) seen = from / KEYS + 1;
    w->pairs += pairs;
    w->whole += pairs == KEYS * rows;
  }
  w->visited += seen;
  w->gaps |= (int64_t)p->left + p->right + 1 < stride + p->stride;
}

static void walk_all(const hopper_launch *l, walked *w) {
  tile x, packed;
  for (int32_t t = 0; t < l->tiles; t++) {
    if (!tile_find(l, t % l->section_tiles, 0, l->class_count,
                   t / l->section_tiles, &x))
      continue;
    const hopper_class *k = &l->classes[x.klass];
    bool packs = packed_find(l, &x, &packed);
    for (int32_t i = 0; i < k->ranges; i++)
      walk_range(l, &x,
                 packs && i >= k->ranges - k->packed_ranges ? &packed : NULL,
                 &l->ranges[k->range + i], w);
  }
}

/* False: there are no tables, or too much to enumerate. */
static bool list_check(hopper_list *s) {
  char reason[128];
  walked w = {0};
  dil_cuda_pass counted = {0};
  bool sums = s->table.combine == DIL_COMBINE_SOFTMAX;
  if (s->B * s->N * s->M * HEADS * s->table.branch_count > 4 * PAIRS ||
      !hopper_table_fill(&s->table, 0, KEYS, &s->made, reason, sizeof reason) ||
      (s->N > s->M && s->made.endless && s->made.interval))
    return false;
  s->place = hopper_place_whole(s->B, s->N, s->M);
  s->made.packs = random_to(4);
  memset(&s->launch, 0, sizeof s->launch);
  ck_assert(hopper_tiles_choose(&s->made, &s->place, 192, 4, &s->launch));
  hopper_count(&s->made, &s->launch, KEYS, &counted);
  if (s->made.pairwise) {
    ck_assert_msg(counted.visited < 0, "%s", list_describe(s));
    return true;
  }
  walk_all(&s->launch, &w);
  bool agrees =
      w.gaps ? counted.visited >= w.visited : counted.visited == w.visited;
  ck_assert_msg(agrees, "%s: %.0f visited, not %.0f", list_describe(s),
                counted.visited, w.visited);
  ck_assert_msg(counted.masked == counted.visited - w.whole,
                "%s: %.0f whole, not "
                "%.0f",
                list_describe(s), counted.visited - counted.masked, w.whole);
  ck_assert_msg(!sums || counted.saved == pairs_of(s) - w.pairs,
                "%s: %.0f saved of %.0f, %.0f are left", list_describe(s),
                counted.saved, pairs_of(s), w.pairs);
  ck_assert(!counted.estimated);
  return true;
}

enum { GROUPS = 4, EACH = 150 };

START_TEST(random_lists) {
  hopper_list *s = malloc(sizeof *s);
  const char *first = getenv("FUZZ_SEED");
  int32_t taken = 0;
  for (uint64_t i = 0; i < EACH; i++) {
    list_random(s, (first ? (uint64_t)atoll(first) : 1) * 1000000 +
                       (uint64_t)_i * EACH + i);
    taken += list_check(s);
  }
  ck_assert_msg(taken > 5, "only %d of %d are taken", taken, EACH);
  free(s);
}
END_TEST

/* Many tiles: some stand for the rest, within what a causal pattern's tiles
 * differ by. */
START_TEST(samples) {
  enum { MANY = 1 << 22, SOME = MANY / 32 };
  static const known_shape many = {1, MANY, MANY, 2, {2048, 4096}, {1, 2}};
  static const known_shape some = {1, SOME, SOME, 2, {2048, 4096}, {1, 2}};
  const known_shape *const both[] = {&some, &many};
  dil_cuda_pass counted[2] = {{0}, {0}};
  char reason[128];
  for (int32_t i = 0; i < 2; i++) {
    hopper_list *s = list_known(both[i], DIL_COMBINE_SOFTMAX, true);
    s->predicate[0] = (dil_predicate){DIL_ENDLESS, 0, false, 0, 0, 0, 0};
    s->branch[0].predicate = s->branch[1].predicate = 0;
    ck_assert(hopper_table_fill(&s->table, 0, KEYS, &s->made, reason,
                                sizeof reason));
    s->place = hopper_place_whole(s->B, s->N, s->M);
    ck_assert(hopper_tiles_fill(&s->made, &s->place, 192, &s->launch));
    hopper_count(&s->made, &s->launch, KEYS, &counted[i]);
    free(s);
  }
  ck_assert(!counted[0].estimated && counted[1].estimated);
  ck_assert_double_eq_tol(counted[1].visited / counted[0].visited, 32, 0.3);
  ck_assert_double_eq_tol(counted[1].masked / counted[0].masked, 32, 0.3);
  ck_assert_double_eq_tol(counted[1].skipped / counted[0].skipped, 32, 0.3);
  ck_assert_double_eq_tol(counted[1].saved / counted[0].saved, 32, 0.3);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("forecast");
  TCase *tests = tcase_create("launches");
  tcase_set_timeout(tests, 120);
  tcase_add_loop_test(tests, random_lists, 0, GROUPS);
  tcase_add_test(tests, samples);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
