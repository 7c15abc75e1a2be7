/* test_hopper_tables.c - the tables of the Hopper kernels against plain
 * enumeration: random lists of (segment, dilation, phase, heads, window), of
 * lengths N and M, parts of those, and batch rows of fewer keys. A launch is
 * walked as the kernel walks it, with the kernel's own arithmetic; every row
 * must come once, with every key that is there as often as the definition says,
 * and no key may be read that no row of the call sees. No GPU is needed. */
#include "tests/support/hopper_lists.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE static inline
#define WARPGROUPS 3
#define NESTED 0
#define SHIFTS 1
#include "templates/hopper/hopper_walk.cuh"

/* An assertion that costs nothing while it holds. */
#define expect(holds, ...)              \
  do {                                  \
    if (!(holds)) ck_abort_msg(__VA_ARGS__); \
  } while (0)

enum { CHECKED = 30 /* tiles of a launch, about */ };

/* ---- the definition ------------------------------------------------------ */

static int32_t defined(const hopper_list *s, int32_t h, int64_t t, int64_t j) {
  int32_t copies = 0;
  for (int32_t b = 0; b < s->table.branch_count; b++)
    copies += list_reaches(s, b, h, t, j);
  return s->table.combine == DIL_COMBINE_UNION ? copies > 0 : copies;
}

static int32_t selecting(const hopper_list *s, int32_t h, int64_t t) {
  int32_t count = 0;
  for (int32_t b = 0; b < s->table.branch_count; b++)
    count += list_selects(s, b, h, t);
  return count;
}

/* ---- the walk ------------------------------------------------------------ */

typedef struct visits {
  unsigned char *rows;  /* [B][HEADS][rows of the call] */
  unsigned char *zeros; /* of those: 1 by spans, 2 by boxes */
  float *keys;          /* [M] of one row */
} visits;

/* How many keys a batch row has fewer than M; where its row 0 stands. */
static int64_t away(const hopper_list *s, int32_t batch) {
  return s->place.shorter ? s->M - s->lengths[batch] : 0;
}
static int64_t first_at(const hopper_list *s, int32_t batch) {
  return s->place.first - away(s, batch);
}

static bool is_there(const hopper_list *s, int32_t batch, int64_t j) {
  return j >= s->place.key_low && j < s->place.key_high - away(s, batch);
}

/* Whether some row of the call sees a key. */
static bool is_reached(const hopper_list *s, int32_t batch, int32_t h,
                       int64_t j) {
  for (int64_t n = 0; n < s->place.rows; n++)
    if (defined(s, h, first_at(s, batch) + n, j)) return true;
  return false;
}

static int64_t row_of(const hopper_list *s, int32_t batch, int32_t head,
                      int64_t position) {
  int64_t n = position - first_at(s, batch), rows = s->place.rows;
  expect(n >= 0 && n < rows, "%s: row %lld", list_describe(s), (long long)n);
  return ((int64_t)batch * HEADS + head) * rows + n;
}

/* Keys of the row at t of a tile, or of its packed rows: those read some of the
 * tile's key ranges, each key once. */
static void visit_keys(const hopper_list *s, const tile *x, bool packed,
                       int64_t t, float *keys) {
  const hopper_class *k = &s->launch.classes[x->klass];
  int32_t head = s->launch.instances[x->instance].head;
  for (int32_t i = packed ? k->ranges - k->packed_ranges : 0; i < k->ranges;
       i++) {
    const hopper_key_range *p = &s->launch.ranges[k->range + i];
    key_run run = keys_of(&s->launch, x, p);
    for (int32_t n = 0; n < run.count; n++) {
      int64_t j = run.position + (int64_t)n * p->stride;
      expect(is_there(s, x->batch, j), "%s: key %lld", list_describe(s),
             (long long)j);
      if (n > run.count - 3 || !random_to(200))
        expect(is_reached(s, x->batch, head, j),
               "%s: head %d key %lld is seen by none", list_describe(s), head,
               (long long)j);
      if (j - t <= p->right && t - j <= p->left)
        keys[j] += packed ? 1 : exp2f(p->bias);
    }
  }
}

/* One row of a tile, or of its packed rows: all of all tiles are too many. */
static void check_row(const hopper_list *s, const visits *v, const tile *host,
                      const tile *x, int32_t row) {
  int32_t head = s->launch.instances[x->instance].head;
  int64_t t = x->position + (int64_t)row * s->launch.classes[x->klass].stride;
  memset(v->keys, 0, (size_t)s->M * sizeof *v->keys);
  visit_keys(s, host, host != x, t, v->keys);
  for (int64_t j = 0; j < s->M; j++) {
    int32_t want = is_there(s, x->batch, j) ? defined(s, head, t, j) : 0;
    expect(fabsf(v->keys[j] - (float)want) < 1e-3f,
                  "%s: head %d row at %lld, key %lld: %g times, not %d",
                  list_describe(s), head, (long long)t, (long long)j,
                  v->keys[j], want);
  }
}

static void visit_rows(const hopper_list *s, const visits *v, const tile *host,
                       const tile *x) {
  const hopper_class *k = &s->launch.classes[x->klass];
  int32_t head = s->launch.instances[x->instance].head;
  expect(x->rows <= s->launch.tile_rows, "%s: %d rows", list_describe(s),
         x->rows);
  for (int32_t i = 0; i < x->rows; i++) {
    int64_t t = x->position + (int64_t)i * k->stride;
    expect(selecting(s, head, t), "%s: row at %lld of head %d is bare",
           list_describe(s), (long long)t, head);
    v->rows[row_of(s, x->batch, head, t)]++;
  }
  if (random_to(1 + s->launch.tiles / CHECKED)) return;
  check_row(s, v, host, x, 0);
  check_row(s, v, host, x, x->rows - 1);
  check_row(s, v, host, x, (int32_t)random_to(x->rows));
}

static void visit_tile(const hopper_list *s, const visits *v, const tile *x) {
  tile packed;
  visit_rows(s, v, x, x);
  if (!packed_find(&s->launch, x, &packed)) return;
  expect(packed.rows <= 64 && x->rows <= s->launch.tile_rows - 64,
         "%s: %d rows and %d packed rows", list_describe(s), x->rows,
         packed.rows);
  visit_rows(s, v, x, &packed);
}

static int64_t bare_row(const hopper_list *s, int32_t batch, int32_t head,
                        int64_t t) {
  expect(!selecting(s, head, t), "%s: row at %lld of head %d is not bare",
         list_describe(s), (long long)t, head);
  return row_of(s, batch, head, t);
}

/* As clear_span does. */
static void visit_span(const hopper_list *s, const visits *v, int32_t t) {
  const hopper_launch *l = &s->launch;
  bare_span x = span_find(l, t);
  const hopper_instance *m = &l->instances[x.instance];
  for (int32_t n = 0, at = x.at; n < x.rows; n++, at = bare_behind(l, at, 1)) {
    if (!is_bare(l, l->shapes[m->shape].bare, at)) continue;
    int64_t row = bare_row(s, x.batch, m->head,
                           first_at(s, x.batch) + x.row + n);
    v->rows[row]++;
    v->zeros[row] |= 1;
  }
}

/* As clear_boxes does. */
static void visit_boxes(const hopper_list *s, const visits *v, int32_t t) {
  const hopper_launch *l = &s->launch;
  zero_boxes x = boxes_find(l, t);
  for (int32_t i = x.instance; i < x.instance + x.instances; i++) {
    const hopper_instance *m = &l->instances[l->by_interval[i]];
    if (!is_bare(l, l->shapes[m->shape].bare, shape_residue(l, m, x.residue)))
      continue;
    for (int32_t row = x.row; row < x.row + l->box_rows; row++) {
      int64_t n = (int64_t)row * l->residues + x.phase;
      expect(n >= 0, "%s: a box from row %lld on", list_describe(s),
             (long long)n);
      if (n < l->queries)
        v->zeros[bare_row(s, x.batch, m->head, first_at(s, x.batch) + n)] |= 2;
    }
  }
}

/* Rows before position 0, as clear_early does. */
static void visit_early(const hopper_list *s, const visits *v) {
  const hopper_launch *l = &s->launch;
  for (int32_t batch = 0; batch < s->B; batch++)
    for (int32_t t = 0; t < l->early; t++)
      for (int32_t i = 0; i < l->instance_count; i++)
        if (!l->instances[i].interval && l->first + t < away_of(l, batch))
          v->rows[bare_row(s, batch, l->instances[i].head,
                           first_at(s, batch) + t)] |= 1; /* maybe bare, too */
}

static void visit_all(const hopper_list *s, const visits *v) {
  const hopper_launch *l = &s->launch;
  tile x;
  for (int32_t t = 0; t < l->tiles; t++)
    if (tile_find(l, t % l->section_tiles, 0, l->class_count,
                  t / l->section_tiles, &x))
      visit_tile(s, v, &x);
  for (int32_t t = 0; t < l->spans; t++) visit_span(s, v, t);
  for (int32_t t = 0; t < l->boxes; t++) visit_boxes(s, v, t);
  if (s->place.key_high - s->place.key_low == s->M) visit_early(s, v);
}

static bool is_served(const hopper_list *s, int32_t h) {
  for (int32_t b = 0; b < s->table.branch_count; b++)
    if (h <= s->branch[b].head_last) return true;
  return false;
}

/* A row that no tile has: none selects it, or it sees no key that is there. */
static void check_left_out(const hopper_list *s, int32_t batch, int32_t h,
                           int64_t t) {
  if (!s->place.shard)
    expect(!selecting(s, h, t), "%s: head %d leaves out the row at %lld",
           list_describe(s), h, (long long)t);
  for (int64_t j = s->place.key_low; is_there(s, batch, j); j++)
    expect(!defined(s, h, t, j), "%s: head %d leaves out the row at %lld, "
           "which sees %lld", list_describe(s), h, (long long)t, (long long)j);
}

static void check_place(hopper_list *s) {
  const hopper_place *at = &s->place;
  size_t rows = (size_t)(s->B * HEADS * at->rows);
  visits v = {calloc(rows, 1), calloc(rows, 1),
              calloc((size_t)s->M, sizeof *v.keys)};
  bool whole = !at->shard; /* a shard leaves rows that see no key as they are */
  memset(&s->launch, 0, sizeof s->launch);
  s->made.packs = random_to(4);
  if (at->shorter) s->launch.lengths = s->lengths;
  int32_t height = 64 * (1 + (int32_t)random_to(TILE_ROWS / 64));
  ck_assert(hopper_tiles_fill(&s->made, at, height, &s->launch));
  visit_all(s, &v);
  for (size_t i = 0; i < rows; i++) {
    size_t n = i % (size_t)at->rows;
    int32_t h = (int32_t)(i / (size_t)at->rows) % HEADS;
    int32_t batch = (int32_t)(i / (size_t)at->rows) / HEADS;
    expect(whole ? v.rows[i] == is_served(s, h) : v.rows[i] <= 1,
           "%s: row %zu of head %d comes %d times", list_describe(s), n, h,
           v.rows[i]);
    bool early = first_at(s, batch) + (int64_t)n < 0 && v.zeros[i] == 2;
    expect(!s->launch.boxes || !v.zeros[i] || v.zeros[i] == 3 || early,
           "%s: row %zu of head %d: %d", list_describe(s), n, h, v.zeros[i]);
    if (!v.rows[i] && !random_to(20))
      check_left_out(s, batch, h, first_at(s, batch) + (int64_t)n);
  }
  free(v.rows);
  free(v.zeros);
  free(v.keys);
}

/* Whether a row has keys by a branch where no key of the shard stands. */
static bool is_away(const hopper_list *s, int32_t b, int32_t h, int64_t t) {
  for (int64_t j = 0; j < s->M; j++)
    if (!is_there(s, 0, j) && list_reaches(s, b, h, t, j)) return true;
  return false;
}

/* Rows that are kept where the state of the row at t has its place. */
static int32_t places_taken(const hopper_list *s, int32_t h, int64_t t,
                            int64_t apart) {
  int64_t first = s->place.first, low = first + (t - first) / apart * apart;
  int32_t taken = 0;
  for (int64_t n = low; n < low + apart && n < first + s->place.rows; n++)
    taken += is_live(&s->launch, (int)n, h);
  return taken;
}

/* Rows that later branches, or other parts, come to are named; of those that no
 * such branch selects none is, and each has a place of its own. */
static void check_keeps(hopper_list *s) {
  hopper_launch *l = &s->launch;
  bool shard = s->place.shard;
  uint64_t later = (uint64_t)random_to(1 << s->table.branch_count);
  if (s->place.first < 0) return;
  l->heads = HEADS;
  hopper_live_fill(&s->table, later, &s->place, l);
  int64_t apart = hopper_live_stride(&s->table, later, &s->place);
  for (int32_t i = 0; i < 200; i++) {
    int32_t h = (int32_t)random_to(HEADS);
    int64_t t = s->place.first + random_to(s->place.rows);
    bool must = false, may = false;
    for (int32_t b = 0; b < s->table.branch_count; b++) {
      bool comes = later >> b & 1;
      may |= (comes || shard) && list_selects(s, b, h, t);
      must |= comes ? list_selects(s, b, h, t)
                    : shard && i < 4 && is_away(s, b, h, t);
    }
    bool kept = is_live(l, (int)t, h);
    expect(kept ? may : !must, "%s: later %llx, head %d row at %lld is %skept",
           list_describe(s), (unsigned long long)later, h, (long long)t,
           kept ? "" : "not ");
    expect(places_taken(s, h, t, apart) <= 1,
           "%s: later %llx, head %d, rows %lld apart: one at %lld has its place "
           "with another", list_describe(s), (unsigned long long)later, h,
           (long long)apart, (long long)t);
  }
}

/* Some stretch of low..low + length - 1. */
static dil_progression stretch_random(int64_t low, int64_t length) {
  int64_t count = 1 + random_to(length);
  return (dil_progression){low + random_to(length - count + 1), 1, count};
}

static void check_shard(hopper_list *s) {
  dil_shard shard = {.queries = stretch_random(s->M - s->N, s->N),
                     .keys = stretch_random(0, s->M),
                     .B = s->B, .N = s->N, .M = s->M};
  if (!random_to(4)) shard.queries = shard.keys; /* its own, on a ring */
  bool early = shard.queries.first < 0 && s->made.interval;
  if (shard.queries.first < s->M - s->N) return;
  if (early && (s->made.endless ||
                shard.queries.first + shard.queries.count <= 0)) return;
  s->place = hopper_place_shard(&s->table, 0, &shard, s->B);
  check_place(s);
  check_keeps(s);
}

/* Batch rows of any length, those at the ends among them. */
static void check_lengths(hopper_list *s) {
  if (s->made.endless && s->made.interval) return;
  int64_t ends[] = {0, 1, s->M, s->N < s->M ? s->N : s->M};
  s->place = hopper_place_whole(s->B, s->N, s->M);
  s->place.shorter = true;
  for (int32_t b = 0; b < BATCHES; b++)
    s->lengths[b] = (int)(random_to(3) ? random_to(s->M + 1)
                                       : ends[random_to(4)]);
  check_place(s);
}

/* False: the tables refuse. */
static bool list_check(hopper_list *s) {
  char reason[128] = "";
  if (!hopper_table_fill(&s->table, 0, 128, &s->made, reason, sizeof reason)) {
    ck_assert(reason[0]);
    return false;
  }
  if (s->N > s->M && s->made.endless && s->made.interval) return false;
  s->place = hopper_place_whole(s->B, s->N, s->M);
  check_place(s);
  check_keeps(s);
  for (int32_t i = 0; i < 3; i++) check_shard(s);
  for (int32_t i = 0; i < 3; i++) check_lengths(s);
  return true;
}

enum { GROUPS = 10, EACH = 30 };

START_TEST(random_lists) {
  hopper_list *s = malloc(sizeof *s);
  int32_t taken = 0;
  const char *first = getenv("FUZZ_SEED");
  for (uint64_t i = 0; i < EACH; i++) {
    list_random(s, (first ? (uint64_t)atoll(first) : 1) * 1000000 +
                          (uint64_t)_i * EACH + i);
    taken += list_check(s);
  }
  ck_assert_msg(taken * 10 > EACH, "only %d of %d are taken", taken, EACH);
  free(s);
}
END_TEST

/* ---- lists that are known ------------------------------------------------ */

static const known_shape lists[] = {
    {1, 33000, 33000, 5, {2048, 4096, 8192, 16384, 32768}, {1, 2, 4, 6, 12}},
    {1, 12000, 12000, 3, {2048, 3000, 5000}, {1, 2, 4}},
    {2, 5000, 7777, 3, {2048, 3000, 5000}, {1, 2, 4}},
    {1, 9000, 9000, 3, {512, 1024, 2048}, {1, 2, 4}},
    {2, 5001, 5300, 3, {2048, 4096, 8192}, {1, 2, 4}},
    {1, 9000, 9000, 1, {3000}, {7}},
    {1, 9000, 9000, 1, {8192}, {128}},
    {1, 9000, 4000, 2, {1024, 2048}, {1, 2}},
    {1, 8000, 8000, 2, {1000, 3000}, {3, 7}},
    {1, 8000, 8000, 3, {1000, 0, 1700}, {1, 5, 2}},
    {1, 2149, 2149, 4, {1024, 700, 700, 300}, {1, 1, 2, 1}},
};

START_TEST(known_list) {
  static const dil_combine combines[] = {DIL_COMBINE_SOFTMAX,
                                         DIL_COMBINE_SOFTMAX,
                                         DIL_COMBINE_UNION};
  for (int32_t way = 0; way < 3; way++) {
    hopper_list *s = list_known(&lists[_i], combines[way], way > 0);
    ck_assert_msg(list_check(s), "%s: refused", list_describe(s));
    free(s);
  }
}
END_TEST

/* ---- what is refused, and why -------------------------------------------- */

static const struct {
  known_shape list;
  const char *reason;
} refused[] = {
    {{1, 999, 999, 1, {100}, {4}}, "cells of 100 positions with rows 4 apart"},
    {{1, 999, 999, 2, {4004, 8008}, {11, 13}}, "a period of 143, above 64"},
    {{1, 999, 999, 1, {0}, {5000}}, "a period of 5000, above 4096"},
    {{1, 999, 999, 2, {3001, 5003}, {7, 5}}, "residues that hardly repeat"},
    {{1, 999, 999, 2, {1000, 1700}, {7, 3}},
     "more than 512 heads and phase intervals"},
};

START_TEST(refusal) {
  char reason[128] = "";
  hopper_list *s = list_known(&refused[_i].list, DIL_COMBINE_SOFTMAX, true);
  ck_assert(!hopper_table_fill(&s->table, 0, 128, &s->made, reason,
                               sizeof reason));
  ck_assert_str_eq(reason, refused[_i].reason);
  free(s);
}
END_TEST

/* A branch of every phase has a pass of its own. */
START_TEST(every_phase_alone) {
  static const known_shape two = {1, 3000, 3000, 2, {0, 0}, {40, 1}};
  char reason[128] = "";
  hopper_list *s = list_known(&two, DIL_COMBINE_SOFTMAX, true);
  s->branch[0].each = true;
  ck_assert(!hopper_table_fill(&s->table, 0, 128, &s->made, reason,
                               sizeof reason));
  ck_assert_str_eq(reason, "a branch of every phase beside others");
  s->pass = (dil_pass){1, 40};
  ck_assert(hopper_table_fill(&s->table, 0, 128, &s->made, reason,
                              sizeof reason));
  ck_assert_int_eq(s->made.classes[0].phases, 40);
  ck_assert(!s->made.bare);
  free(s);
}
END_TEST

/* One window and none, in a union: nested segments alone can message_arrive
 * them apart. */
START_TEST(union_of_windows) {
  static const known_shape nested = {1, 3000, 3000, 2, {512, 1024}, {1, 1}};
  static const known_shape crossing = {1, 3000, 3000, 2, {512, 700}, {1, 1}};
  char reason[128] = "";
  hopper_list *s = list_known(&nested, DIL_COMBINE_UNION, true);
  s->branch[0].predicate = 0;
  ck_assert(hopper_table_fill(&s->table, 0, 128, &s->made, reason,
                              sizeof reason));
  free(s);
  s = list_known(&crossing, DIL_COMBINE_UNION, true);
  s->branch[0].predicate = 0;
  ck_assert(!hopper_table_fill(&s->table, 0, 128, &s->made, reason,
                               sizeof reason));
  ck_assert_str_eq(reason,
                   "a union of windows over segments that are not nested");
  free(s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("hopper_tables");
  TCase *tests = tcase_create("tables");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, known_list, 0, sizeof lists / sizeof *lists);
  tcase_add_loop_test(tests, random_lists, 0, GROUPS);
  tcase_add_loop_test(tests, refusal, 0, sizeof refused / sizeof *refused);
  tcase_add_test(tests, every_phase_alone);
  tcase_add_test(tests, union_of_windows);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
