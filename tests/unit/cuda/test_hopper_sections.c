/* test_hopper_sections.c - how the tiles of a call of the Hopper kernels are
 * cut and dealt out: as high as fills the processors, in sections where they
 * are many, rows of one class as packed rows in another's tiles. Every row must
 * be of one tile. No GPU is needed. */
#include "tests/support/hopper_lists.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>

#define DEVICE static inline
#define WARPGROUPS 3
#define NESTED 0
#define SHIFTS 1
#include "templates/hopper/hopper_walk.cuh"

/* Few tiles: as high as still fills the processors. */
START_TEST(heights) {
  static const struct {
    int64_t N;
    int32_t rows;
  } wanted[] = {{1000, 64}, {4000, 128}, {6000, 192}, {100000, 192}};
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    known_shape dense = {1, wanted[i].N, wanted[i].N, 1, {0}, {1}};
    hopper_list *s = list_known(&dense, DIL_COMBINE_SOFTMAX, true);
    char reason[128];
    ck_assert(hopper_table_fill(&s->table, 0, 128, &s->made, reason,
                                sizeof reason));
    s->place = hopper_place_whole(s->B, s->N, s->M);
    ck_assert(hopper_tiles_choose(&s->made, &s->place, 192, 132, &s->launch));
    ck_assert_int_eq(s->launch.tile_rows, wanted[i].rows);
    free(s);
  }
}
END_TEST

/* Rows of all tiles, each of them of one; how many of those are packed rows. */
static int64_t count_rows(const hopper_list *s, int64_t *packed) {
  const hopper_launch *l = &s->launch;
  unsigned char *seen = calloc((size_t)(s->B * HEADS * s->N), 1);
  int64_t rows = 0, twice = 0;
  tile x[2];
  for (int32_t t = 0; t < l->tiles; t++) {
    if (!tile_find(l, t % l->section_tiles, 0, l->class_count,
                   t / l->section_tiles, x))
      continue;
    int32_t all = packed_find(l, x, x + 1) ? 2 : 1;
    for (int32_t i = 0; i < all; i++)
      for (int32_t n = 0; n < x[i].rows; n++, rows++, *packed += i)
        twice += seen[((int64_t)x[i].batch * HEADS +
                       l->instances[x[i].instance].head) *
                          s->N +
                      x[i].position + n * l->classes[x[i].klass].stride]++;
  }
  free(seen);
  ck_assert_msg(!twice, "%s: rows of two tiles", list_describe(s));
  return rows;
}

/* Many tiles: in sections of few blocks, or of some heads, or all in one. */
START_TEST(sections) {
  static const struct {
    known_shape list;
    int32_t section, shares;
    int64_t packed; /* rows: of LongNet 64 of each segment and head */
  } wanted[] = {
      {{1, 16384, 16384, 3, {2048, 4096, 8192}, {1, 2, 4}}, 2, 1, 2048},
      {{1, 99000, 99000, 3, {2048, 4096, 8192}, {1, 2, 4}}, 2, 1, 12288},
      {{1, 140000, 140000, 3, {6144, 12288, 24576}, {1, 2, 4}}, 1, 2, 0},
      {{3, 99000, 99000, 2, {0, 8192}, {1, 2}}, 39, 1, 0},
  };
  hopper_list *s =
      list_known(&wanted[_i].list, DIL_COMBINE_SOFTMAX, true);
  char reason[128];
  int64_t packed = 0;
  for (int32_t b = 0; b < s->table.branch_count; b++)
    s->branch[b].predicate = 0;
  s->predicate[0] = (dil_predicate){DIL_ENDLESS, 0, false, 0, 0, 0, 0};
  ck_assert(
      hopper_table_fill(&s->table, 0, 128, &s->made, reason, sizeof reason));
  s->place = hopper_place_whole(s->B, s->N, s->M);
  s->made.packs = true;
  ck_assert(hopper_tiles_fill(&s->made, &s->place, 192, &s->launch));
  ck_assert_int_eq(s->launch.section, wanted[_i].section);
  ck_assert_int_eq(s->launch.shares, wanted[_i].shares);
  ck_assert_int_eq(count_rows(s, &packed), s->B * HEADS * s->N);
  ck_assert_int_eq(packed, wanted[_i].packed);
  free(s);
}
END_TEST

/* Of documents those tiles are counted that their rows have, and not those of documents
 * as long as the longest, which would be too many. */
START_TEST(documents) {
  enum { COUNT = 1 << 16, LONGEST = 1 << 20, ROWS = 1 << 23, TALL = 192 };
  known_shape dense = {COUNT, LONGEST, LONGEST, 1, {0}, {1}};
  hopper_list *s = list_known(&dense, DIL_COMBINE_SOFTMAX, true);
  char reason[128];
  ck_assert(hopper_table_fill(&s->table, 0, 128, &s->made, reason, sizeof reason));
  s->place = hopper_place_whole(s->B, s->N, s->M);
  ck_assert(!hopper_tiles_fill(&s->made, &s->place, TALL, &s->launch));
  s->place.packed = ROWS;
  s->place.shorter = true;
  ck_assert(hopper_tiles_fill(&s->made, &s->place, TALL, &s->launch));
  int64_t least = (int64_t)HEADS * (ROWS / TALL + COUNT);
  ck_assert_int_ge(s->launch.tiles, least);
  ck_assert_int_le(s->launch.tiles, 2 * least + 2 * HEADS);
  free(s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("hopper_sections");
  TCase *tests = tcase_create("sections");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, heights);
  tcase_add_loop_test(tests, sections, 0, 4);
  tcase_add_test(tests, documents);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
