/* test_ring.c - rings of ranks on threads against the oracle: any number of
 * ranks, meshes, layouts and ways of exchange; and what happens when a rank
 * fails, is silent, disagrees or sends too little. */
#include "runtime/base/status.h"
#include "tests/support/ring_trial.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define P(body) "pattern p { heads 4; head_dim 16; dtype f32; " body " }"

static const char *const patterns[] = {
    P("causal; segments 32, 64, 128; dilations 1, 2, 4;"),
    P("branch { }"),
    P("phase block; segments 48, 90; dilations 3, 2;"),
    P("causal; combine union; branch { window 20, 0; } branch { dilation 5; }"),
    P("combine mean; branch { segment 50; } branch { dilation 3; }"),
    P("causal; mask i - j < 9 || (i - j) % 12 == 0; branch { }"),
    P("mask abs(i - j) < 9 || i < 30 || j < 20; branch { }"),
    P("mask j - i > 20 && j - i <= 50; branch { }"),
    P("heads split; branch { segment 40; } branch { dilation 2; }"),
    P("causal; score s - 0.1 * abs(i - j) * (h + 1); branch { dilation 2; }"),
    P("input doc : i32[B, M]; mask doc[b, i] == doc[b, j]; branch { }"),
    P("input far : f32[H, N]; mask row % 5 != 3 || j < row;"
      " score s + far[h, row]; branch { } branch { segment 60; }"),
    P("input z : f32[H] gradient; sink z[h]; branch { sink 0.1 * row; }"
      " branch { segment 40; dilation 3; heads 1..2; sink log(2.0); }"),
    P("combine mean; sink 0.5; branch { segment 50; sink -1.0; }"
      " branch { dilation 3; sink h == 1 ? inf : -inf; }"),
    "pattern p { heads 6 kv 2; head_dim 16; dtype f32; causal; phase kv;"
    " segments 40, 200; dilations 1, 4; dropout 1.0 / 8; }",
};
enum { PATTERNS = sizeof patterns / sizeof patterns[0] };

typedef struct ring_scene {
  tested_pattern *s;
  kernel_made *k;
  data *d;
} ring_scene;

static ring_scene scene_open(const char *text, int64_t N, int64_t M) {
  ring_scene c = {.s = tested_pattern_new("ring", text, NULL, 0)};
  ck_assert_msg(c.s->pattern != NULL, "%s", c.s->problem);
  c.k = kernel_make(c.s, (recipe){0});
  c.d = data_new(c.s, (call_shape){.batch = 2, .queries = N, .keys = M,
                                   .seed = 9, .train = true,
                                   .dropout_seed = 3});
  return c;
}

static void scene_close(ring_scene *c) {
  data_free(c->d);
  kernel_unmake(c->k);
  tested_pattern_free(c->s);
}

static ring_outcome run_trial(ring_scene *c, const ring_trial *t) {
  return ring_trial_run(c->k, t, &c->d->call);
}

static void expect_good(ring_scene *c, const ring_trial *t) {
  const mesh *m = &t->mesh;
  ring_outcome r = run_trial(c, t);
  for (int32_t i = 0; i < mesh_ranks(m); i++)
    ck_assert_msg(r.of[i].status == DIL_OK, "rank %d of %d: %s", i,
                  mesh_ranks(m), r.of[i].text);
  const char *problem = data_compare(c->d);
  ck_assert_msg(!*problem, "%d x %d x %d, layout %d: %s", m->ring, m->heads,
                m->batch, m->layout, problem);
}

START_TEST(meshes_agree_with_the_oracle) {
  ring_scene c = scene_open(patterns[_i], 171, 171);
  for (int i = 0; i < MESHES; i++)
    for (int way = 0; way < WAYS; way++) {
      ring_trial t = {.mesh = meshes[i]};
      t.mesh.gathered = ways[way];
      expect_good(&c, &t);
    }
  scene_close(&c);
}
END_TEST

START_TEST(other_lengths) {
  static const int64_t lengths[][2] = {{3, 200}, {90, 40}, {2, 2}, {5, 0}};
  for (int i = 0; i < 4; i++) {
    ring_scene c = scene_open(patterns[_i], lengths[i][0], lengths[i][1]);
    ring_trial t = {.mesh = MESH(4, 1, 1, CONTIGUOUS)};
    t.mesh.layout = (dil_layout)(i % DIL_LAYOUT_COUNT);
    expect_good(&c, &t);
    scene_close(&c);
  }
}
END_TEST

/* Few rows share out the keys, which stand apart in a striped shard: a share is so
 * many positions, and one rank has fewer keys than that. */
START_TEST(striped_keys_are_shared_out_by_position) {
  static const char *const few[] = {
      "pattern p { heads 1; head_dim 16; dtype f32; branch { segment 11; } }",
      "pattern p { heads 1; head_dim 16; dtype f32; causal; branch { } }",
  };
  static const int64_t lengths[][2] = {{1100, 1100}, {3, 3000}};
  ring_scene c = scene_open(few[_i], lengths[_i][0], lengths[_i][1]);
  for (int32_t ranks = 2; ranks < 5; ranks++) {
    ring_trial t = {.mesh = MESH(ranks, 1, 1, STRIPED)};
    expect_good(&c, &t);
  }
  scene_close(&c);
}
END_TEST

static char *bytes_of(const data *d, size_t *size) {
  *size = (size_t)dil_tensor_count(&d->call.o) *
          dil_dtype_size(d->call.o.dtype);
  char *copy = malloc(*size);
  return memcpy(copy, d->call.o.data, *size);
}

/* No row travels twice, whichever branches want it. */
START_TEST(any_exchange_gives_the_same_bits_by_as_many_bytes) {
  ring_scene c = scene_open(patterns[0], 171, 171);
  ring_trial t = {.mesh = MESH(4, 1, 1, ZIGZAG)};
  size_t size;
  ring_outcome r = run_trial(&c, &t);
  char *first = bytes_of(c.d, &size);
  int64_t sent = ring_bytes_sent(&r);
  ck_assert_int_gt(sent, 0);
  for (uint64_t branches = 1; branches < 8; branches++) {
    t.mesh.gathered = branches;
    expect_good(&c, &t);
    ck_assert(!memcmp(first, c.d->call.o.data, size));
    memset(c.d->call.o.data, 0, size);
    r = run_trial(&c, &t);
    ck_assert_int_eq(r.status, DIL_OK);
    ck_assert_int_eq(ring_bytes_sent(&r), sent);
  }
  free(first);
  scene_close(&c);
}
END_TEST

/* Runs of the same scene that must agree to the last bit. */
static void expect_same_bits(const char *text, int64_t length,
                             const mesh *of, int count) {
  ring_scene c = scene_open(text, length, length);
  char *first = NULL;
  size_t size;
  for (int i = 0; i < count; i++) {
    ring_trial t = {.mesh = of[i]};
    expect_good(&c, &t);
    if (!first) first = bytes_of(c.d, &size);
    ck_assert_msg(!memcmp(first, c.d->call.o.data, size), "%d x %d x %d",
                  of[i].ring, of[i].heads, of[i].batch);
  }
  free(first);
  scene_close(&c);
}

/* Where segments lie inside shards, any ring has the order of one rank; heads
 * and batch rows never change it. */
START_TEST(same_order_same_bits) {
  static const mesh inside[] = {
      MESH(1, 1, 1, CONTIGUOUS), MESH(2, 1, 1, CONTIGUOUS),
      MESH(4, 1, 1, CONTIGUOUS), MESH(8, 1, 1, CONTIGUOUS),
      MESH(2, 2, 2, CONTIGUOUS)};
  static const mesh across[] = {
      MESH(3, 1, 1, ZIGZAG), MESH(3, 2, 1, ZIGZAG), MESH(3, 1, 2, ZIGZAG),
      MESH(3, 4, 1, ZIGZAG)};
  expect_same_bits(P("causal; segments 8, 16; dilations 1, 2;"), 128, inside,
                   5);
  for (int i = 0; i < PATTERNS - 1; i++)
    expect_same_bits(patterns[i], 171, across, 4);
}
END_TEST

/* Segments inside a shard need nothing; a branch of dilation 4 a quarter. */
START_TEST(only_needed_rows_travel) {
  ring_scene c = scene_open(P("branch { segment 50; }"), 200, 200);
  ring_trial t = {.mesh = MESH(4, 1, 1, CONTIGUOUS)};
  ring_outcome r = run_trial(&c, &t);
  for (int i = 0; i < 4; i++) ck_assert_int_eq(r.of[i].facts.sent, 0);
  scene_close(&c);
  c = scene_open(P("phase kv; branch { dilation 4; }"), 200, 200);
  r = run_trial(&c, &t);
  /* 2 batch rows, 4 heads, 3 other ranks, of 50 rows 12 or 13, K and V */
  for (int i = 0; i < 4; i++) {
    ck_assert_int_eq(r.of[i].facts.received % (2 * 16 * 4), 0);
    ck_assert_int_ge(r.of[i].facts.received, 2 * 4 * 3 * 12 * 2 * 16 * 4);
    ck_assert_int_le(r.of[i].facts.received, 2 * 4 * 3 * 13 * 2 * 16 * 4);
  }
  scene_close(&c);
}
END_TEST

/* ---- faults -------------------------------------------------------------- */

/* Of the mesh's last ring. */
static void expect_failure(const ring_trial *t, const char *words,
                           dil_status own, int32_t culprit) {
  ring_scene c = scene_open(patterns[1], 171, 171);
  ring_outcome r = run_trial(&c, t);
  int32_t ranks = mesh_ranks(&t->mesh);
  for (int32_t i = ranks - t->mesh.ring; i < ranks; i++) {
    ck_assert_int_eq(r.of[i].status, i == culprit ? own : DIL_PEER);
    if (i != culprit)
      ck_assert_msg(strstr(r.of[i].text, words) != NULL, "rank %d: %s", i,
                    r.of[i].text);
  }
  ck_assert_int_eq(r.status, own);
  ck_assert_msg(r.seconds < 3, "took %g s", r.seconds);
  scene_close(&c);
}

static void change_plan(dil_ring *r, int32_t rank) {
  if (rank == 1) r->plan_hash++;
}

static void add_input_behind(dil_ring *r, int32_t rank) {
  ring_add_input(r, rank - 4);
}

/* By its number among all of a mesh. */
START_TEST(failing_rank_is_named) {
  ring_trial t = {.mesh = MESH(4, 1 + _i, 1, CONTIGUOUS)};
  t.spoil = _i ? add_input_behind : ring_add_input;
  expect_failure(&t, _i ? "rank 6 failed in step 0" : "rank 2 failed in step 0",
                 DIL_USAGE, _i ? 6 : 2);
}
END_TEST

START_TEST(disagreement_is_found_first) {
  ring_trial t = {.mesh = MESH(3, 1, 1, CONTIGUOUS)};
  t.spoil = change_plan;
  expect_failure(&t, "another plan", DIL_PEER, 1);
}
END_TEST

/* A link that is silent, slow or brief, on top of another. */
static dil_status silent_post(dil_link *link, int32_t slot,
                              const link_transfer *t) {
  if (slot == 2 && t->send_bytes > 200) usleep(1500000);
  return link_below->post(link, slot, t);
}
static dil_status slow_post(dil_link *link, int32_t slot,
                            const link_transfer *t) {
  usleep(20000);
  return link_below->post(link, slot, t);
}
static dil_status brief_post(dil_link *link, int32_t slot,
                             const link_transfer *t) {
  link_transfer less = *t;
  if (t->send_bytes > 200) less.send_bytes -= 64;
  return link_below->post(link, slot, &less);
}

static void be_silent(dil_ring *r, int32_t rank) {
  if (rank == 1) ring_spoil_link(r, rank, silent_post, NULL);
}
static void be_silent_behind(dil_ring *r, int32_t rank) {
  be_silent(r, rank - 4);
}
static void be_slow(dil_ring *r, int32_t rank) {
  if (rank == 1) ring_spoil_link(r, rank, slow_post, NULL);
}
static void be_brief(dil_ring *r, int32_t rank) {
  if (rank == 1) ring_spoil_link(r, rank, brief_post, NULL);
}

START_TEST(silence_is_an_error_in_time) {
  bool behind = _i == 2;
  ring_trial t = {.mesh = MESH(4, 1, 1 + behind, CONTIGUOUS)};
  t.spoil = behind ? be_silent_behind : be_silent;
  t.mesh.timeout = 0.5;
  t.mesh.gathered = _i == 1 ? ~(uint64_t)0 : 0;
  expect_failure(&t, behind ? "rank 5 is silent" : "rank 1 is silent", DIL_PEER,
                 -1);
}
END_TEST

START_TEST(slowness_is_none) {
  ring_scene c = scene_open(patterns[0], 171, 171);
  ring_trial t = {.mesh = MESH(4, 1, 1, CONTIGUOUS)};
  t.spoil = be_slow;
  expect_good(&c, &t);
  scene_close(&c);
}
END_TEST

START_TEST(truncation_is_an_error) {
  ring_trial t = {.mesh = MESH(4, 1, 1, CONTIGUOUS)};
  t.spoil = be_brief;
  expect_failure(&t, "rank 1 sent", DIL_PEER, -1);
}
END_TEST

/* ---- after a fault ------------------------------------------------------- */

static rank_group *shrinking_group(const ring_scene *c, mesh shape) {
  rank_group_task task = ring_trial_task(
      c->k, &(ring_trial){.mesh = shape, .spoil = ring_fail_once});
  task.shrinks = true;
  return ring_trial_group(&task);
}

/* Rank 1 of so many fails in a step; those left have the oracle's results. */
static void lose_one(const ring_scene *c, rank_group *all, int32_t ranks,
                     int32_t step) {
  bool lost[4];
  ring_fail_next(1, step);
  ck_assert_int_eq(rank_group_run(all, &c->d->call), DIL_INTERNAL);
  ck_assert(rank_group_lost(all, lost));
  for (int32_t i = 0; i < ranks; i++) ck_assert_int_eq(lost[i], i == 1);
  ck_assert_msg(!rank_group_shrink(all, lost, NULL), "%s", dil_last_error());
  data_forget(c->d);
  ck_assert_msg(!rank_group_run(all, &c->d->call), "%s", dil_last_error());
  ck_assert(!rank_group_lost(all, lost));
  const char *problem = data_compare(c->d);
  ck_assert_msg(!*problem, "%d ranks left: %s", ranks - 1, problem);
}

/* Another rank is lost each time, until one is left. */
START_TEST(those_left_go_on) {
  ring_scene c = scene_open(patterns[0], 171, 171);
  rank_group *all = shrinking_group(&c, (mesh)MESH(4, 1, 1, ZIGZAG));
  for (int32_t ranks = 4; ranks > 2; ranks--) lose_one(&c, all, ranks, 2);
  rank_group_free(all);
  scene_close(&c);
}
END_TEST

/* Those of a mesh become one ring, of all heads and batch rows. */
START_TEST(those_left_of_a_mesh_go_on) {
  static const mesh split[] = {MESH(2, 2, 1, ZIGZAG), MESH(2, 1, 2, STRIPED)};
  ring_scene c = scene_open(patterns[0], 171, 171);
  rank_group *all = shrinking_group(&c, split[_i]);
  lose_one(&c, all, 4, 1);
  rank_group_free(all);
  scene_close(&c);
}
END_TEST

START_TEST(resume_continues_bit_equal) {
  ring_scene c = scene_open(patterns[0], 171, 171);
  char prefix[64];
  snprintf(prefix, sizeof prefix, "/tmp/test_ring.%d.%d", (int)getpid(), _i);
  ring_trial t = {.mesh = MESH(5, 1, 1, CONTIGUOUS)};
  t.mesh.gathered = ways[_i % WAYS];
  t.checkpoint = (ring_checkpoint){prefix, 0, 1, false};
  size_t size;
  expect_good(&c, &t);
  char *whole = bytes_of(c.d, &size);
  ring_fail_next(2, _i + 1);
  t.spoil = ring_fail_once;
  ck_assert_int_eq(run_trial(&c, &t).status, DIL_INTERNAL);
  t.spoil = NULL;
  t.checkpoint.resume = true;
  memset(c.d->call.o.data, 0, size);
  expect_good(&c, &t);
  ck_assert(!memcmp(whole, c.d->call.o.data, size));
  for (int i = 0; i < 5; i++) {
    char name[80];
    snprintf(name, sizeof name, "%s.%d", prefix, i);
    ck_assert_int_eq(unlink(name), 0);
  }
  free(whole);
  scene_close(&c);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("ring");
  TCase *tests = tcase_create("ring");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, meshes_agree_with_the_oracle, 0, PATTERNS);
  tcase_add_loop_test(tests, other_lengths, 0, PATTERNS);
  tcase_add_loop_test(tests, striped_keys_are_shared_out_by_position, 0, 2);
  tcase_add_test(tests, any_exchange_gives_the_same_bits_by_as_many_bytes);
  tcase_add_test(tests, same_order_same_bits);
  tcase_add_test(tests, only_needed_rows_travel);
  tcase_add_loop_test(tests, failing_rank_is_named, 0, 2);
  tcase_add_test(tests, disagreement_is_found_first);
  tcase_add_loop_test(tests, silence_is_an_error_in_time, 0, 3);
  tcase_add_test(tests, slowness_is_none);
  tcase_add_test(tests, truncation_is_an_error);
  tcase_add_test(tests, those_left_go_on);
  tcase_add_loop_test(tests, those_left_of_a_mesh_go_on, 0, 2);
  tcase_add_loop_test(tests, resume_continues_bit_equal, 0, 4);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
