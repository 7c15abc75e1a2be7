/* test_ring_backward.c - gradients over rings of ranks on threads against the
 * oracle: any number of ranks, meshes, layouts and ways of exchange, whether keys
 * come or queries, whatever a pattern says; the same bits whatever the timing; the
 * bytes that go back. */
#include "runtime/base/status.h"
#include "runtime/ring/ranks.h"
#include "tests/support/gradients.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define P(body)       "pattern p { heads 4; head_dim 16; dtype f32; " body " }"
#define GROUPED(body) \
  "pattern p { heads 4 kv 2; head_dim 12 value 7; dtype f32; " body " }"

static const char *const patterns[] = {
    P("causal; segments 32, 64, 128; dilations 1, 2, 4;"),
    P("branch { }"),
    GROUPED("phase cycle; segments 48, 90; dilations 3, 2;"),
    P("causal; combine union; branch { window 20, 0; } branch { dilation 5; }"),
    P("combine mean; branch { segment 50; } branch { dilation 3; }"),
    GROUPED("combine sum; input z : f32[H] gradient; sink 0.5; "
            "branch { segment 50; sink z[h]; } branch { dilation 3; }"),
    GROUPED("gradient detached; causal; branch { segment 40; } "
            "branch { dilation 3; }"),
    P("gradient detached; input z : f32[H] gradient; sink z[h]; branch "
      "{ segment 64; } branch { dilation 2; window 20, 9; } "
      "branch { dilation 2; sink z[h]; }"),
    P("causal; mask i - j < 9 || (i - j) % 12 == 0; branch { }"),
    P("heads split; branch { segment 40; } branch { dilation 2; }"),
    P("causal; input t : f32[H] gradient; "
      "score s - t[h] * abs(i - j); branch { dilation 2; }"),
    P("input doc : i32[B, M]; mask doc[b, i] == doc[b, j]; branch { }"),
    P("input t : f32[H, N] gradient; mask row % 5 != 3 || j < row; "
      "score s + t[h, row]; branch { } branch { segment 60; }"),
    P("input z : f32[H] gradient; sink z[h]; branch { sink 0.1 * row; } "
      "branch { segment 40; dilation 3; heads 1..2; sink log(2.0); }"),
    P("combine mean; input z : f32[H] gradient; sink z[h]; "
      "branch { segment 50; dilation 2; }"),
    "pattern p { heads 6 kv 2; head_dim 16; dtype f32; causal; phase kv;"
    " segments 40, 200; dilations 1, 4; dropout 1.0 / 8; }",
    "pattern p { heads 4 kv 2; head_dim 8; dtype bf16; causal;"
    " segments 40, 200; dilations 1, 4; }",
};
enum { PATTERNS = sizeof patterns / sizeof patterns[0] };

#define MESH(ring, heads, batch, layout) \
  { ring, heads, batch, DIL_##layout, 0, 30, false, 0 }
static const mesh meshes[] = {
    MESH(1, 1, 1, CONTIGUOUS), MESH(2, 1, 1, ZIGZAG), MESH(3, 1, 1, CONTIGUOUS),
    MESH(4, 1, 1, STRIPED),    MESH(7, 1, 1, ZIGZAG), MESH(8, 1, 1, CONTIGUOUS),
    MESH(2, 2, 1, CONTIGUOUS), MESH(2, 1, 2, ZIGZAG), MESH(1, 4, 2, STRIPED),
    MESH(3, 3, 1, STRIPED),
};
enum { MESHES = sizeof meshes / sizeof meshes[0] };

/* ---- a scene: a pattern, its kernel and a call for gradients -------------- */

typedef struct scene {
  tested_pattern *s;
  kernel_made *k;
  gradient_data *g;
} scene;

static scene scene_of(tested_pattern *s, int64_t N, int64_t M) {
  scene c = {.s = s};
  ck_assert_msg(c.s->pattern != NULL, "%s", c.s->problem);
  c.k = kernel_make(c.s, (recipe){.direction = DIL_BACKWARD});
  c.g = gradient_data_new(
      c.s, (gradient_shape){.call = {.batch = 2, .queries = N, .keys = M,
                                     .seed = 9, .train = true,
                                     .dropout_seed = 3}});
  return c;
}

static scene scene_open(const char *text, int64_t N, int64_t M) {
  return scene_of(tested_pattern_new("ring", text, NULL, 0), N, M);
}

static void scene_close(scene *c) {
  gradient_data_free(c->g);
  kernel_unmake(c->k);
  tested_pattern_free(c->s);
}

enum { RANKS_MOST = 16 };

typedef struct outcome {
  dil_status status;
  char text[256];
  rank_report of[RANKS_MOST];
} outcome;

typedef struct trial {
  mesh mesh;
  ring_checkpoint checkpoint;
  void (*spoil)(dil_ring *ring, int32_t rank);
} trial;

static rank_group_task task_of(const scene *c, const trial *t) {
  return (rank_group_task){.mesh = t->mesh,
                           .table = &c->k->plan->table,
                           .plan_hash = plan_hash(c->k->plan),
                           .make = plan_variant,
                           .context = c->k->plan,
                           .threads = 1,
                           .backward = true,
                           .checkpoint = t->checkpoint,
                           .spoil = t->spoil};
}

static outcome run_trial(const scene *c, const trial *t) {
  rank_group_task task = task_of(c, t);
  rank_group *all;
  ck_assert_msg(!rank_group_new(&task, &all), "%s", dil_last_error());
  gradient_data_forget(c->g);
  outcome r = {.status = rank_group_backward(all, &c->g->call)};
  snprintf(r.text, sizeof r.text, "%s", dil_last_error());
  for (int32_t i = 0; i < mesh_ranks(&t->mesh); i++)
    r.of[i] = *rank_group_report(all, i);
  rank_group_free(all);
  return r;
}

static outcome expect_good(const scene *c, const trial *t) {
  const mesh *m = &t->mesh;
  outcome r = run_trial(c, t);
  ck_assert_msg(r.status == DIL_OK, "%s", r.text);
  const char *problem = gradient_data_compare(c->g);
  ck_assert_msg(!*problem, "%d x %d x %d, layout %d: %s", m->ring, m->heads,
                m->batch, m->layout, problem);
  return r;
}

/* ---- against the oracle -------------------------------------------------- */

/* All rotate, all gather, or only some branches do. */
static const uint64_t ways[] = {0, ~(uint64_t)0, 1, 2};
enum { WAYS = sizeof ways / sizeof ways[0] };

/* The queries of all branches come, of none, or of some. */
static const uint64_t coming[] = {~(uint64_t)0, 1, 0, 2};
enum { COMING = sizeof coming / sizeof coming[0] };

static void let_come(trial *t, int which) {
  t->mesh.way_given = true;
  t->mesh.queries = coming[which % COMING];
}

START_TEST(meshes_agree_with_the_oracle) {
  scene c = scene_open(patterns[_i], 97, 97);
  for (int i = 0; i < MESHES; i++) {
    trial t = {.mesh = meshes[i]};
    t.mesh.gathered = ways[(i + _i) % WAYS];
    expect_good(&c, &t);
    let_come(&t, i + _i / WAYS);
    expect_good(&c, &t);
  }
  scene_close(&c);
}
END_TEST

START_TEST(other_lengths) {
  static const int64_t lengths[][2] = {{3, 90}, {60, 30}, {2, 2}, {5, 0}};
  for (int i = 0; i < 4; i++) {
    scene c = scene_open(patterns[_i], lengths[i][0], lengths[i][1]);
    trial t = {.mesh = MESH(4, 1, 1, CONTIGUOUS)};
    t.mesh.layout = (dil_layout)(i % DIL_LAYOUT_COUNT);
    t.mesh.gathered = ways[(i + _i) % WAYS];
    expect_good(&c, &t);
    let_come(&t, i + _i / WAYS);
    expect_good(&c, &t);
    scene_close(&c);
  }
}
END_TEST

/* ---- the same bits ------------------------------------------------------- */

/* All gradients of a call, one behind the other. */
static char *bits_of(const scene *c, size_t *size) {
  char *copy = NULL;
  *size = 0;
  for (int32_t i = 0; i < c->g->result_count; i++) {
    const dil_tensor *t = c->g->result[i].tensor;
    size_t bytes = (size_t)dil_tensor_count(t) * dil_dtype_size(t->dtype);
    copy = realloc(copy, *size + bytes + 1);
    memcpy(copy + *size, t->data, bytes);
    *size += bytes;
  }
  return copy;
}

static void expect_bits(const scene *c, const trial *t, const char *bits) {
  size_t size;
  expect_good(c, t);
  char *now = bits_of(c, &size);
  ck_assert(!memcmp(bits, now, size));
  free(now);
}

/* A link that is slow now and then, on top of another. */
static const link_calls *below;
static link_calls spoiled_calls;
static uint32_t delays;
static dil_status slow_post(dil_link *link, int32_t slot,
                            const link_transfer *t) {
  usleep(__atomic_add_fetch(&delays, 7, __ATOMIC_RELAXED) * 2654435761u % 3000);
  return below->post(link, slot, t);
}
static void be_slow(dil_ring *r, int32_t rank) {
  if (rank == 0) {
    below = r->link->calls;
    spoiled_calls = *below;
    spoiled_calls.post = slow_post;
  }
  if (rank % 2) return;
  usleep(1000);
  if (r->link->calls == below) r->link->calls = &spoiled_calls;
}

START_TEST(timing_changes_no_bit) {
  scene c = scene_open(patterns[_i], 97, 97);
  for (int way = 0; way < WAYS * COMING; way++) {
    trial t = {.mesh = MESH(4, 2, 1, ZIGZAG)};
    size_t size;
    t.mesh.gathered = ways[way / COMING];
    let_come(&t, way);
    expect_good(&c, &t);
    char *bits = bits_of(&c, &size);
    t.spoil = be_slow;
    for (int i = 0; i < 3; i++) expect_bits(&c, &t, bits);
    free(bits);
  }
  scene_close(&c);
}
END_TEST

/* ---- faults -------------------------------------------------------------- */

/* Every rank fails within seconds; but for the culprit each names it. */
static void expect_failure(const trial *t, const char *words, int32_t culprit) {
  scene c = scene_open(patterns[1], 97, 97);
  struct timespec from, to;
  clock_gettime(CLOCK_MONOTONIC, &from);
  outcome r = run_trial(&c, t);
  clock_gettime(CLOCK_MONOTONIC, &to);
  ck_assert_int_ne(r.status, DIL_OK);
  for (int32_t i = 0; i < mesh_ranks(&t->mesh); i++) {
    ck_assert_int_ne(r.of[i].status, DIL_OK);
    if (i != culprit)
      ck_assert_msg(strstr(r.of[i].text, words) != NULL, "rank %d: %s", i,
                    r.of[i].text);
  }
  ck_assert_int_lt(to.tv_sec - from.tv_sec, 10);
  scene_close(&c);
}

static void lack_input(dil_ring *r, int32_t rank) {
  static dil_call spoiled;
  if (rank != 2) return;
  spoiled = *r->call;
  spoiled.input_count = 1;
  spoiled.inputs = &spoiled.q;
  r->call = &spoiled;
}

START_TEST(a_rank_that_fails_is_named) {
  trial t = {.mesh = MESH(4, 1, 1, CONTIGUOUS), .spoil = lack_input};
  t.mesh.gathered = ways[_i];
  expect_failure(&t, "rank 2 ", 2);
}
END_TEST

/* Ranks that differ in what they want are told so before any row moves. */
static void turn_forward(dil_ring *r, int32_t rank) {
  if (rank == 1) r->gradients = NULL;
}

START_TEST(gradients_on_some_ranks_alone) {
  trial t = {.mesh = MESH(3, 1, 1, CONTIGUOUS), .spoil = turn_forward};
  expect_failure(&t, "another direction", 1);
}
END_TEST

/* Frozen while gradients go back: these messages come second in a slot. */
static int32_t posts;
static dil_status frozen_post(dil_link *link, int32_t slot,
                              const link_transfer *t) {
  if (t->send_bytes > 200 && ++posts == 4) usleep(2500000);
  return below->post(link, slot, t);
}
static void freeze(dil_ring *r, int32_t rank) {
  if (rank != 1) return;
  posts = 0;
  below = r->link->calls;
  spoiled_calls = *below;
  spoiled_calls.post = frozen_post;
  r->link->calls = &spoiled_calls;
}

/* Ranks whose callers say otherwise which queries come. */
static void go_another_way(dil_ring *r, int32_t rank) {
  r->way_given = true;
  r->queries = rank == 1;
}

START_TEST(ranks_go_the_same_way) {
  trial t = {.mesh = MESH(3, 1, 1, CONTIGUOUS), .spoil = go_another_way};
  expect_failure(&t, "another set of queries that come", -1);
}
END_TEST

START_TEST(a_frozen_rank_is_named_in_time) {
  trial t = {.mesh = MESH(4, 1, 1, CONTIGUOUS), .spoil = freeze};
  t.mesh.timeout = 0.7;
  expect_failure(&t, "rank 1 is silent", 1);
}
END_TEST

/* ---- after a fault ------------------------------------------------------- */

/* Rank 2 fails once, in a step. */
static int32_t failing_step;
static bool has_failed;
static dil_status failing_wait(dil_link *link, int32_t slot) {
  if (link->rank == 2 && link->step == failing_step && !has_failed) {
    has_failed = true;
    return dil_fail(DIL_INTERNAL, "struck down");
  }
  return below->wait(link, slot);
}
static void fail_once(dil_ring *r, int32_t rank) {
  if (rank != 2) return;
  below = r->link->calls;
  spoiled_calls = *below;
  spoiled_calls.wait = failing_wait;
  r->link->calls = &spoiled_calls;
}

enum { RESUMED_RANKS = 5 };

static void remove_sums(const char *prefix, int32_t rank) {
  char name[80];
  snprintf(name, sizeof name, "%s.%d.back", prefix, (int)rank);
  ck_assert_int_eq(unlink(name), 0);
}

/* Rank 2 fails in a step, and perhaps the sums of another are gone: the run goes
 * on to the same bits, where each rank may have kept another step. */
static void expect_resumed(const scene *c, trial *t, const char *bits,
                           int32_t step, int32_t without) {
  failing_step = step;
  has_failed = false;
  t->spoil = fail_once;
  t->checkpoint.resume = false;
  ck_assert_int_eq(run_trial(c, t).status, DIL_INTERNAL);
  if (without >= 0) remove_sums(t->checkpoint.prefix, without);
  t->spoil = NULL;
  t->checkpoint.resume = true;
  expect_bits(c, t, bits);
}

static const int resumed_patterns[] = {0, 4, 5};

START_TEST(a_killed_run_goes_on_to_the_same_bits) {
  scene c = scene_open(patterns[resumed_patterns[_i / COMING]], 97, 97);
  char prefix[64];
  size_t size;
  trial t = {.mesh = MESH(RESUMED_RANKS, 1, 1, ZIGZAG)};
  snprintf(prefix, sizeof prefix, "/tmp/test_back.%d", (int)getpid());
  t.mesh.gathered = ways[(_i + _i / COMING) % WAYS];
  let_come(&t, _i);
  t.checkpoint = (ring_checkpoint){prefix, 0, 1, false};
  expect_good(&c, &t);
  char *bits = bits_of(&c, &size);
  for (int32_t step = 1; step < RESUMED_RANKS; step++) {
    t.checkpoint.every = 1 + step / 4;
    expect_resumed(&c, &t, bits, step, step % 2 ? -1 : step);
  }
  for (int32_t i = 0; i < RESUMED_RANKS; i++) remove_sums(prefix, i);
  free(bits);
  scene_close(&c);
}
END_TEST

/* The sums of another rank. */
START_TEST(sums_of_another_run_are_refused) {
  char prefix[64], from[80], to[80];
  scene c = scene_open(patterns[0], 97, 97);
  trial t = {.mesh = MESH(3, 1, 1, CONTIGUOUS)};
  snprintf(prefix, sizeof prefix, "/tmp/test_back.%d", (int)getpid());
  t.checkpoint = (ring_checkpoint){prefix, 0, 1, false};
  expect_good(&c, &t);
  snprintf(from, sizeof from, "%s.0.back", prefix);
  snprintf(to, sizeof to, "%s.1.back", prefix);
  ck_assert(!rename(from, to));
  t.checkpoint.resume = true;
  outcome r = run_trial(&c, &t);
  ck_assert_int_eq(r.status, DIL_INPUT);
  ck_assert_msg(strstr(r.text, "has no gradients of this rank") != NULL, "%s",
                r.text);
  remove_sums(prefix, 1);
  remove_sums(prefix, 2);
  scene_close(&c);
}
END_TEST

/* In a step, keys that come and queries that come leave other sums. */
START_TEST(sums_of_the_other_way_are_refused) {
  char prefix[64];
  scene c = scene_open(patterns[0], 97, 97);
  trial t = {.mesh = MESH(3, 1, 1, CONTIGUOUS)};
  snprintf(prefix, sizeof prefix, "/tmp/test_back.%d", (int)getpid());
  t.checkpoint = (ring_checkpoint){prefix, 0, 1, false};
  let_come(&t, 0);
  expect_good(&c, &t);
  let_come(&t, 1);
  t.checkpoint.resume = true;
  outcome r = run_trial(&c, &t);
  ck_assert_int_eq(r.status, DIL_INPUT);
  ck_assert_msg(strstr(r.text, "the queries of other branches came") != NULL,
                "%s", r.text);
  for (int32_t i = 0; i < 3; i++) remove_sums(prefix, i);
  scene_close(&c);
}
END_TEST

/* Ranks that are left make the gradients anew. */
START_TEST(those_left_of_a_backward_run_go_on) {
  static const mesh whole[] = {MESH(4, 1, 1, ZIGZAG), MESH(4, 1, 1, STRIPED),
                               MESH(4, 2, 1, CONTIGUOUS)};
  scene c = scene_open(patterns[2 * _i], 97, 97);
  int32_t ranks = mesh_ranks(&whole[_i]);
  bool lost[RANKS_MOST];
  rank_group *all;
  rank_group_task task = task_of(&c, &(trial){.mesh = whole[_i],
                                              .spoil = fail_once});
  task.shrinks = true;
  ck_assert_msg(!rank_group_new(&task, &all), "%s", dil_last_error());
  failing_step = 2;
  has_failed = false;
  ck_assert_int_eq(rank_group_backward(all, &c.g->call), DIL_INTERNAL);
  ck_assert(rank_group_lost(all, lost));
  for (int32_t i = 0; i < ranks; i++)
    ck_assert(!lost[i] || i % whole[_i].ring == 2);
  ck_assert_msg(!rank_group_shrink(all, lost, NULL), "%s", dil_last_error());
  gradient_data_forget(c.g);
  ck_assert_msg(!rank_group_backward(all, &c.g->call), "%s", dil_last_error());
  const char *problem = gradient_data_compare(c.g);
  ck_assert_msg(!*problem, "%s", problem);
  rank_group_free(all);
  scene_close(&c);
}
END_TEST

/* ---- bytes --------------------------------------------------------------- */

static int64_t bytes_sent(const outcome *r, int32_t ranks) {
  int64_t sum = 0;
  for (int32_t i = 0; i < ranks; i++) sum += r->of[i].facts.sent;
  return sum;
}

/* Whether query t and key j of two heads are a pair of some of these branches. */
static bool is_pair(const scene *c, uint64_t branches, int32_t head, int64_t t,
                    int64_t j, int64_t N) {
  const expr_point point = {.B = 2, .N = (int32_t)N, .M = (int32_t)N};
  const pattern *p = c->k->plan->pattern;
  for (int32_t b = 0; b < p->branch_count; b++)
    if ((branches >> b & 1) && pattern_reaches(p, b, head, t, j, &point))
      return true;
  return false;
}

static int32_t owner_of(const mesh *m, int64_t N, int64_t row) {
  for (int32_t rank = 0; rank < m->ring; rank++) {
    positions p = partition_owned(m->layout, N, 0, m->ring, rank);
    for (int32_t i = 0; i < p.count; i++) {
      int64_t past = row - p.progression[i].first;
      if (past >= 0 && past % p.progression[i].step == 0 &&
          past / p.progression[i].step < p.progression[i].count)
        return rank;
    }
  }
  return -1;
}

/* Counts by enumeration the rows of keys that queries of other ranks see, or the
 * rows of queries that see keys of other ranks: a row for each such rank. */
static int64_t rows_needed(const scene *c, const mesh *m, int64_t N,
                           uint64_t branches, bool queries) {
  const dil_table *table = &c->k->plan->table;
  int32_t group = table->heads / table->kv_heads;
  int32_t heads = queries ? 1 : group;
  int64_t rows = 0;
  for (int32_t list = 0; list < table->heads / heads; list++)
    for (int64_t own = 0; own < N; own++) {
      bool wanted[RANKS_MOST] = {false};
      for (int64_t other = 0; other < N; other++)
        for (int32_t h = list * heads; h < (list + 1) * heads; h++)
          if (is_pair(c, branches, h, queries ? own : other,
                      queries ? other : own, N))
            wanted[owner_of(m, N, other)] = true;
      wanted[owner_of(m, N, own)] = false;
      for (int32_t rank = 0; rank < m->ring; rank++) rows += wanted[rank];
    }
  return rows;
}

/* Keys come: K and V in the pattern's type there, dK and dV in f32 back. Queries
 * come: q, dO, lse and delta there, dQ in f32 back. */
static void expect_bytes(const scene *c, const trial *of, int64_t N,
                         uint64_t queries) {
  const dil_table *t = &c->k->plan->table;
  int64_t width = t->head_dim + t->value_dim;
  int64_t element = (int64_t)dil_dtype_size(t->dtype);
  int64_t keys = 2 * rows_needed(c, &of->mesh, N, ~queries, false);
  int64_t asking = 2 * rows_needed(c, &of->mesh, N, queries, true);
  outcome r = expect_good(c, of);
  ck_assert_int_eq(bytes_sent(&r, 4),
                   keys * width * (element + 4) +
                       asking * (width * element + 8 + 4 * t->head_dim));
}

START_TEST(each_row_goes_back_once) {
  const int64_t N = 97;
  scene c = scene_open(_i ? patterns[PATTERNS - 1] : patterns[0], N, N);
  trial of = {.mesh = MESH(4, 1, 1, CONTIGUOUS)};
  for (int layout = 0; layout < DIL_LAYOUT_COUNT; layout++)
    for (int way = 0; way < COMING; way++) {
      of.mesh.layout = (dil_layout)layout;
      of.mesh.gathered = ways[(way + layout) % WAYS];
      let_come(&of, way);
      expect_bytes(&c, &of, N, coming[way]);
    }
  scene_close(&c);
}
END_TEST

/* Without a word of the caller, each branch goes the way of fewer bytes: by
 * enumeration of the branch alone. */
START_TEST(each_branch_goes_the_cheaper_way) {
  const int64_t N = 97;
  static const struct {
    int pattern;
    uint64_t queries;
  } cases[] = {{0, 7}, {PATTERNS - 1, 3}, {PATTERNS - 2, 0}};
  scene c = scene_open(patterns[cases[_i].pattern], N, N);
  const dil_table *t = &c.k->plan->table;
  int64_t width = t->head_dim + t->value_dim;
  int64_t element = (int64_t)dil_dtype_size(t->dtype);
  trial of = {.mesh = MESH(4, 1, 1, ZIGZAG)};
  uint64_t cheaper = 0;
  for (int32_t b = 0; b < t->branch_count; b++) {
    uint64_t alone = (uint64_t)1 << b;
    int64_t keys = rows_needed(&c, &of.mesh, N, alone, false);
    int64_t asking = rows_needed(&c, &of.mesh, N, alone, true);
    if (asking * (width * element + 8 + 4 * t->head_dim) <
        keys * width * (element + 4))
      cheaper |= alone;
  }
  ck_assert_uint_eq(cheaper, cases[_i].queries);
  expect_bytes(&c, &of, N, cheaper);
  scene_close(&c);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("ring_backward");
  TCase *tests = tcase_create("ring_backward");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, meshes_agree_with_the_oracle, 0, PATTERNS);
  tcase_add_loop_test(tests, other_lengths, 0, PATTERNS);
  tcase_add_loop_test(tests, timing_changes_no_bit, 0, 1);
  tcase_add_loop_test(tests, each_row_goes_back_once, 0, 2);
  tcase_add_loop_test(tests, each_branch_goes_the_cheaper_way, 0, 3);
  tcase_add_loop_test(tests, a_rank_that_fails_is_named, 0, WAYS);
  tcase_add_test(tests, gradients_on_some_ranks_alone);
  tcase_add_test(tests, ranks_go_the_same_way);
  tcase_add_test(tests, a_frozen_rank_is_named_in_time);
  tcase_add_loop_test(tests, a_killed_run_goes_on_to_the_same_bits, 0,
                      3 * COMING);
  tcase_add_test(tests, sums_of_another_run_are_refused);
  tcase_add_test(tests, sums_of_the_other_way_are_refused);
  tcase_add_loop_test(tests, those_left_of_a_backward_run_go_on, 0, 3);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
