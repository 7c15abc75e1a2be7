/* test_hopper_states.c - rows whose state goes from launch to launch, as ranks
 * of a ring and plans of several passes leave it: of random lists and rings the
 * launches are walked as the kernel walks them, and every row that a tile
 * resumes must find in its place what it left there last, and not another
 * row's. Gradients are told which rows come again behind the first pass. No GPU is
 * needed. */
#include "runtime/ring/partition.h"
#include "tests/support/hopper_lists.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE static inline
#define WARPGROUPS 4
#define NESTED 0
#define SHIFTS 1
#include "templates/hopper/hopper_walk.cuh"

enum { PASSES = 3, NOBODY = -1 };

/* The queries of a rank, and whose state stands where. */
typedef struct states_scene {
  hopper_list *list;
  dil_pass passes[PASSES];
  hopper_table made[PASSES];
  dil_predicate predicate[BRANCHES];
  ring_shape ring;
  dil_shard shard;
  int64_t apart;
  int32_t *owner;      /* [HEADS][places]: the number of a row in the call */
  int64_t places;
  int64_t resumed;     /* rows, of all launches */
} states_scene;

/* ---- plans of several passes --------------------------------------------- */

/* Branches fall into passes; the first has keys for every row. */
static void deal_branches(states_scene *s) {
  hopper_list *l = s->list;
  dil_branch *first = &l->branch[0];
  first->dilation = 1;
  first->head_last = HEADS - 1;
  memset(l->phase[0], 0, sizeof l->phase[0]);
  memset(s->passes, 0, sizeof s->passes);
  for (int32_t p = 0; p < PASSES; p++) s->passes[p].period = 1;
  for (int32_t b = 0; b < l->table.branch_count; b++) {
    dil_pass *pass = &s->passes[random_to(PASSES)];
    int64_t r = l->branch[b].dilation, period = pass->period;
    pass->branches |= 1ull << b;
    while (pass->period % r) pass->period += period;
    s->predicate[b] =
        (dil_predicate){random_to(3) ? random_to(400) : DIL_ENDLESS,
                        random_to(2) ? 0 : random_to(400), false, 0, 0, 0, 0};
    l->branch[b].predicate = random_to(3) ? -1 : b;
  }
}

/* Passes without branches are left out. */
static void list_passes(states_scene *s) {
  int32_t count = 0;
  for (int32_t p = 0; p < PASSES; p++)
    if (s->passes[p].branches) s->passes[count++] = s->passes[p];
  s->list->table.passes = s->passes;
  s->list->table.pass_count = count;
  s->list->table.predicates = s->predicate;
  s->list->table.predicate_count = BRANCHES;
}

/* False: a pass has no tables. */
static bool scene_draw(states_scene *s, uint64_t seed) {
  char reason[128];
  list_random(s->list, seed);
  dil_table *t = &s->list->table;
  t->combine = DIL_COMBINE_SOFTMAX;
  deal_branches(s);
  list_passes(s);
  for (int32_t p = 0; p < t->pass_count; p++)
    if (!hopper_table_fill(t, p, 128, &s->made[p], reason, sizeof reason))
      return false;
  s->ring = (ring_shape){.table = t, .layout = (dil_layout)random_to(2),
                         .ranks = 1 + (int32_t)random_to(5),
                         .M = s->list->M,
                         .N = s->list->N < s->list->M ? s->list->N
                                                      : s->list->M};
  return true;
}

/* ---- launches ------------------------------------------------------------ */

/* Of a pass over the shard's keys. */
static void fill_launch(states_scene *s, int32_t pass, uint64_t later,
                        hopper_launch *l) {
  const dil_table *t = &s->list->table;
  hopper_place at = hopper_place_shard(t, pass, &s->shard, 1);
  int32_t height = 64 * (1 + (int32_t)random_to(WARPGROUPS));
  memset(l, 0, sizeof *l);
  ck_assert(hopper_tiles_fill(&s->made[pass], &at, height, l));
  l->heads = HEADS;
  hopper_live_fill(t, later, &at, l);
}

/* Whether a tile has keys here: without any its rows stand as they are. */
static bool has_keys(const hopper_launch *l, const tile *x) {
  const hopper_class *k = &l->classes[x->klass];
  for (int32_t i = 0; i < k->ranges; i++)
    if (keys_of(l, x, &l->ranges[k->range + i]).count > 0) return true;
  return false;
}

static void visit_row(states_scene *s, const hopper_launch *l, int32_t head,
                      int position, bool opens) {
  int32_t n = position - l->first;
  int32_t *owner = &s->owner[head * s->places + n / s->apart];
  if (!opens) {
    ck_assert_msg(*owner == n, "%s: %d ranks of %lld, layout %d, rows from %d, "
                  "keys %d..%d: head %d row at %d finds the state of row %d",
                  list_describe(s->list), s->ring.ranks, (long long)s->ring.N,
                  s->ring.layout, l->first, l->key_low, l->key_high, head,
                  position, *owner);
    s->resumed++;
  }
  if (is_live(l, position, head))
    *owner = n;
  else if (*owner == n) *owner = NOBODY; /* it is not what it was */
}

static void visit_launch(states_scene *s, const hopper_launch *l, bool opens) {
  tile x;
  for (int32_t t = 0; t < l->tiles; t++) {
    if (!tile_find(l, t % l->section_tiles, 0, l->class_count,
                   t / l->section_tiles, &x) || !has_keys(l, &x))
      continue;
    for (int32_t i = 0; i < x.rows; i++)
      visit_row(s, l, l->instances[x.instance].head,
                x.position + i * l->classes[x.klass].stride, opens);
  }
}

/* ---- parts --------------------------------------------------------------- */

/* As opening_pass does (runtime/cuda/kernel.c). */
static bool sees_itself(const states_scene *s, int32_t b) {
  const dil_branch *branch = &s->list->branch[b];
  const dil_progression *q = &s->shard.queries, *k = &s->shard.keys;
  return branch->dilation == 1 && branch->head_last == HEADS - 1 &&
         q->first >= 0 && k->first <= q->first &&
         q->first + q->count <= k->first + k->count;
}
static int32_t opening_pass(const states_scene *s) {
  const dil_table *t = &s->list->table;
  for (int32_t p = 0; p < t->pass_count; p++)
    for (int32_t b = 0; b < t->branch_count; b++)
      if (t->passes[p].branches >> b & 1 && sees_itself(s, b)) return p;
  return -1;
}

static void run_shard(states_scene *s, int32_t opening) {
  const dil_table *t = &s->list->table;
  uint64_t later = (1ull << t->branch_count) - 1;
  hopper_launch *l = &s->list->launch;
  for (int32_t i = -1; i < t->pass_count; i++) {
    int32_t pass = i < 0 ? opening : i;
    if (pass < 0 || (i >= 0 && i == opening)) continue;
    later &= ~t->passes[pass].branches;
    fill_launch(s, pass, later, l);
    visit_launch(s, l, i < 0);
  }
}

/* One progression of a rank's queries over all keys, its own first. False: no
 * pass opens its rows. */
static bool run_queries(states_scene *s, int32_t rank, int32_t index) {
  const dil_table *t = &s->list->table;
  positions asking = partition_queries(&s->ring, rank),
            own = partition_keys(&s->ring, rank);
  if (index >= own.count || !own.progression[index].count) return false;
  s->shard = (dil_shard){.queries = asking.progression[index],
                         .keys = own.progression[index],
                         .B = 1,
                         .N = s->ring.N,
                         .M = s->ring.M};
  int32_t opening = opening_pass(s);
  if (opening < 0 || !s->shard.queries.count) return false;
  hopper_place at = hopper_place_shard(t, opening, &s->shard, 1);
  uint64_t all = (1ull << t->branch_count) - 1;
  s->apart = hopper_live_stride(t, all & ~t->passes[opening].branches, &at);
  s->places = at.rows / s->apart + 1;
  s->owner = malloc((size_t)(HEADS * s->places) * sizeof *s->owner);
  for (int64_t i = 0; i < HEADS * s->places; i++) s->owner[i] = NOBODY;
  run_shard(s, opening);
  for (int32_t i = 0; i < s->ring.ranks; i++) {
    positions keys = partition_keys(&s->ring, (rank + i) % s->ring.ranks);
    for (int32_t c = 0; c < keys.count; c++) {
      s->shard.keys = keys.progression[c];
      if ((i == 0 && c == index) || !keys.progression[c].count) continue;
      run_shard(s, -1);
    }
  }
  free(s->owner);
  return true;
}

/* ---- tests --------------------------------------------------------------- */

enum { GROUPS = 8, EACH = 40 };

START_TEST(random_rings) {
  states_scene *s = calloc(1, sizeof *s);
  const char *first = getenv("FUZZ_SEED");
  int32_t opened = 0;
  s->list = malloc(sizeof *s->list);
  for (uint64_t i = 0; i < EACH; i++) {
    if (!scene_draw(s, (first ? (uint64_t)atoll(first) : 1) * 1000000 +
                           (uint64_t)_i * EACH + i))
      continue;
    for (int32_t rank = 0; rank < s->ring.ranks; rank++) {
      positions asking = partition_queries(&s->ring, rank);
      for (int32_t c = 0; c < asking.count; c++)
        opened += run_queries(s, rank, c);
    }
  }
  ck_assert_msg(opened > EACH / 4, "only %d parts open their rows", opened);
  ck_assert_int_gt(s->resumed, 1000);
  free(s->list);
  free(s);
}
END_TEST

/* ---- rows that gradients do not round at once ----------------------------- */

/* Each row that a branch behind the first pass selects comes again: of a head of
 * queries, and of the heads that share its keys. */
static void check_phases(const hopper_list *l, bool keys) {
  uint64_t all = (1ull << l->table.branch_count) - 1;
  uint64_t later = (uint64_t)random_to((int64_t)all + 1);
  const dil_pass passes[] = {{all & ~later, 1}, {later, 1}};
  dil_table t = l->table;
  short phase[HOPPER_LIVE_PHASES];
  t.passes = passes;
  t.pass_count = 2;
  int64_t apart = hopper_live_phases(&t, keys, phase);
  int32_t group = keys ? t.heads / t.kv_heads : 1;
  for (int32_t i = 0; i < 200; i++) {
    int32_t h = (int32_t)random_to(HEADS);
    int64_t at = random_to(l->M), own = phase[h / group];
    bool selected = false;
    for (int32_t b = 0; b < t.branch_count; b++)
      selected |= (later >> b & 1) && list_selects(l, b, h, at);
    bool again = apart == 1 || (own >= 0 && (at - own) % apart == 0);
    ck_assert_msg(again || !selected, "%s: later %llx, head %d: row %lld is rounded "
                  "at once", list_describe(l), (unsigned long long)later, h,
                  (long long)at);
  }
}

START_TEST(random_phases) {
  enum { LISTS = 2000 };
  hopper_list *l = malloc(sizeof *l);
  for (uint64_t i = 0; i < LISTS; i++) {
    list_random(l, i);
    for (int32_t keys = 0; keys < 2; keys++) check_phases(l, keys);
  }
  free(l);
}
END_TEST

/* Of LongNet's rows one in eight comes again, those of its head's phase. */
START_TEST(phases_of_longnet) {
  static const known_shape longnet = {
      1, 9000, 9000, 3, {2048, 4096, 8192}, {1, 8, 64}};
  static const int32_t mixed[HEADS] = {1, 4};
  const dil_pass passes[] = {{1, 1}, {6, 1}};
  short phase[HOPPER_LIVE_PHASES];
  hopper_list *l = list_known(&longnet, DIL_COMBINE_SOFTMAX, false);
  l->table.passes = passes;
  l->table.pass_count = 2;
  ck_assert_int_eq(hopper_live_phases(&l->table, false, phase), 8);
  for (int32_t h = 0; h < HEADS; h++)
    ck_assert_int_eq(phase[h], l->branch[1].phase[h]);
  l->table.kv_heads = 1; /* heads of other phases share these keys */
  l->branch[1].phase = l->branch[2].phase = mixed;
  ck_assert_int_eq(hopper_live_phases(&l->table, true, phase), 1);
  l->table.pass_count = 1; /* no row comes again, and none ends early */
  ck_assert_int_eq(hopper_live_phases(&l->table, false, phase), 1);
  free(l);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("hopper_states");
  TCase *tests = tcase_create("states");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, random_rings, 0, GROUPS);
  tcase_add_test(tests, random_phases);
  tcase_add_test(tests, phases_of_longnet);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
