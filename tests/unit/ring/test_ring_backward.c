/* test_ring_backward.c - gradients over rings of ranks on threads against the
 * oracle: any number of ranks, meshes, layouts and ways of exchange, whether
 * keys come or queries, whatever a pattern says; the same bits whatever the
 * timing; ranks that fail, and runs that go on. */
#include "tests/support/fault.h"
#include "tests/support/ring_trial.h"
#include "tests/support/suite.h"
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
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

/* ---- against the oracle -------------------------------------------------- */

/* Where keys come alone, in a way of exchange, and where queries come. */
static void agrees_both_ways(const gradient_scene *c, mesh m, int which, int way) {
  ring_trial t = {.mesh = m};
  t.mesh.gathered = ways[(which + way) % WAYS];
  gradient_scene_agrees(c, &t);
  ring_trial_come(&t, which + way / WAYS);
  gradient_scene_agrees(c, &t);
}

START_TEST(meshes_agree_with_the_oracle) {
  gradient_scene c = gradient_scene_open(patterns[_i], 97, 97);
  for (int i = 0; i < MESHES; i++) agrees_both_ways(&c, meshes[i], i, _i);
  gradient_scene_close(&c);
}
END_TEST

START_TEST(other_lengths) {
  static const int64_t lengths[][2] = {{3, 90}, {60, 30}, {2, 2}, {5, 0}};
  for (int i = 0; i < 4; i++) {
    gradient_scene c =
        gradient_scene_open(patterns[_i], lengths[i][0], lengths[i][1]);
    mesh four = MESH(4, 1, 1, CONTIGUOUS);
    four.layout = (dil_layout)(i % DIL_LAYOUT_COUNT);
    agrees_both_ways(&c, four, i, _i);
    gradient_scene_close(&c);
  }
}
END_TEST

/* ---- the same bits ------------------------------------------------------- */

/* All gradients of a call, one behind the other. */
static char *bits_of(const gradient_scene *c, size_t *size) {
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

static void expect_bits(const gradient_scene *c, const ring_trial *t,
                        const char *bits) {
  size_t size;
  gradient_scene_agrees(c, t);
  char *now = bits_of(c, &size);
  ck_assert(!memcmp(bits, now, size));
  free(now);
}

/* Links that are slow now and then, of every second rank. */
static uint32_t delays;
static dil_status slow_post(dil_link *link, int32_t slot,
                            const link_transfer *t) {
  usleep(__atomic_add_fetch(&delays, 7, __ATOMIC_RELAXED) * 2654435761u % 3000);
  return link_below->post(link, slot, t);
}
static void be_slow(dil_ring *r, int32_t rank) {
  if (rank % 2 == 0) ring_spoil_link(r, rank, slow_post, NULL);
}

START_TEST(timing_changes_no_bit) {
  gradient_scene c = gradient_scene_open(patterns[_i], 97, 97);
  for (int way = 0; way < WAYS * COMING; way++) {
    ring_trial t = {.mesh = MESH(4, 2, 1, ZIGZAG)};
    size_t size;
    t.mesh.gathered = ways[way / COMING];
    ring_trial_come(&t, way);
    gradient_scene_agrees(&c, &t);
    char *bits = bits_of(&c, &size);
    t.spoil = be_slow;
    for (int i = 0; i < 3; i++) expect_bits(&c, &t, bits);
    free(bits);
  }
  gradient_scene_close(&c);
}
END_TEST

/* ---- faults -------------------------------------------------------------- */

/* Every rank fails within seconds; but for the culprit each names it. */
static void expect_failure(const ring_trial *t, const char *words,
                           int32_t culprit) {
  gradient_scene c = gradient_scene_open(patterns[1], 97, 97);
  ring_outcome r = gradient_scene_run(&c, t);
  ck_assert_int_ne(r.status, DIL_OK);
  for (int32_t i = 0; i < mesh_ranks(&t->mesh); i++) {
    ck_assert_int_ne(r.of[i].status, DIL_OK);
    if (i != culprit)
      ck_assert_msg(strstr(r.of[i].text, words) != NULL, "rank %d: %s", i,
                    r.of[i].text);
  }
  ck_assert_msg(r.seconds < 10, "took %g s", r.seconds);
  gradient_scene_close(&c);
}

START_TEST(a_rank_that_fails_is_named) {
  ring_trial t = {.mesh = MESH(4, 1, 1, CONTIGUOUS), .spoil = ring_add_input};
  t.mesh.gathered = ways[_i];
  expect_failure(&t, "rank 2 ", 2);
}
END_TEST

/* Ranks that differ in what they want are told so before any row moves. */
static void turn_forward(dil_ring *r, int32_t rank) {
  if (rank == 1) r->gradients = NULL;
}

START_TEST(gradients_on_some_ranks_alone) {
  ring_trial t = {.mesh = MESH(3, 1, 1, CONTIGUOUS), .spoil = turn_forward};
  expect_failure(&t, "another direction", 1);
}
END_TEST

/* Frozen while gradients go back: these messages come second in a slot. */
static int32_t posts;
static dil_status frozen_post(dil_link *link, int32_t slot,
                              const link_transfer *t) {
  if (t->send_bytes > 200 && ++posts == 4) usleep(2500000);
  return link_below->post(link, slot, t);
}
static void freeze(dil_ring *r, int32_t rank) {
  if (rank != 1) return;
  posts = 0;
  ring_spoil_link(r, rank, frozen_post, NULL);
}

/* Ranks whose callers say otherwise which queries come. */
static void go_another_way(dil_ring *r, int32_t rank) {
  r->way_given = true;
  r->queries = rank == 1;
}

START_TEST(ranks_go_the_same_way) {
  ring_trial t = {.mesh = MESH(3, 1, 1, CONTIGUOUS), .spoil = go_another_way};
  expect_failure(&t, "another set of queries that come", -1);
}
END_TEST

START_TEST(a_frozen_rank_is_named_in_time) {
  ring_trial t = {.mesh = MESH(4, 1, 1, CONTIGUOUS), .spoil = freeze};
  t.mesh.timeout = 0.7;
  expect_failure(&t, "rank 1 is silent", 1);
}
END_TEST

/* ---- after a fault ------------------------------------------------------- */

enum { RESUMED_RANKS = 5 };

static void remove_sums(const char *prefix, int32_t rank) {
  char name[80];
  snprintf(name, sizeof name, "%s.%d.back", prefix, (int)rank);
  ck_assert_int_eq(unlink(name), 0);
}

/* Rank 2 fails in a step, and perhaps the sums of another are gone: the run goes
 * on to the same bits, where each rank may have kept another step. */
static void expect_resumed(const gradient_scene *c, ring_trial *t,
                           const char *bits, int32_t step, int32_t without) {
  ring_fail_next(2, step);
  t->spoil = ring_fail_once;
  t->checkpoint.resume = false;
  ck_assert_int_eq(gradient_scene_run(c, t).status, DIL_INTERNAL);
  if (without >= 0) remove_sums(t->checkpoint.prefix, without);
  t->spoil = NULL;
  t->checkpoint.resume = true;
  expect_bits(c, t, bits);
}

static const int resumed_patterns[] = {0, 4, 5};

START_TEST(a_killed_run_goes_on_to_the_same_bits) {
  gradient_scene c =
      gradient_scene_open(patterns[resumed_patterns[_i / COMING]], 97, 97);
  char prefix[64];
  size_t size;
  ring_trial t = {.mesh = MESH(RESUMED_RANKS, 1, 1, ZIGZAG)};
  snprintf(prefix, sizeof prefix, "/tmp/test_back.%d", (int)getpid());
  t.mesh.gathered = ways[(_i + _i / COMING) % WAYS];
  ring_trial_come(&t, _i);
  t.checkpoint = (ring_checkpoint){prefix, 0, 1, false};
  gradient_scene_agrees(&c, &t);
  char *bits = bits_of(&c, &size);
  for (int32_t step = 1; step < RESUMED_RANKS; step++) {
    t.checkpoint.every = 1 + step / 4;
    expect_resumed(&c, &t, bits, step, step % 2 ? -1 : step);
  }
  for (int32_t i = 0; i < RESUMED_RANKS; i++) remove_sums(prefix, i);
  free(bits);
  gradient_scene_close(&c);
}
END_TEST

/* One rank cannot write a state, and says so. A rank that fails with it names it;
 * in the last step others may be done. */
static void expect_unwritten(const ring_outcome *r, int32_t ranks) {
  int32_t culprit = 0;
  char name[24];
  while (culprit < ranks && r->of[culprit].status != DIL_ENVIRONMENT) culprit++;
  ck_assert_msg(culprit < ranks, "%s", r->text);
  ck_assert_msg(strstr(r->of[culprit].text, "cannot write the state") != NULL,
                "rank %d: %s", culprit, r->of[culprit].text);
  snprintf(name, sizeof name, "rank %d ", culprit);
  for (int32_t i = 0; i < ranks; i++)
    ck_assert_msg(i == culprit || !r->of[i].status ||
                      strstr(r->of[i].text, name) != NULL,
                  "rank %d, where %s fails: %s", i, name, r->of[i].text);
}

/* Nothing half written stays beside the states. */
static void expect_no_remains(const char *prefix, int32_t ranks) {
  char name[90];
  for (int32_t i = 0; i < ranks; i++) {
    snprintf(name, sizeof name, "%s.%d.back.new", prefix, (int)i);
    ck_assert_int_ne(access(name, F_OK), 0);
  }
}

/* Of all states that are written in a run, each once cannot be: what was kept
 * before it stays, and the run goes on from that to the same bits. */
static const fault_call writes[] = {FAULT_fsync, FAULT_rename};

START_TEST(states_that_cannot_be_written) {
  enum { RANKS = 3 };
  char prefix[64];
  size_t size;
  gradient_scene c = gradient_scene_open(patterns[0], 97, 97);
  ring_trial t = {.mesh = MESH(RANKS, 1, 1, ZIGZAG)};
  snprintf(prefix, sizeof prefix, "/tmp/test_back.%d", (int)getpid());
  t.checkpoint = (ring_checkpoint){prefix, 0, 1, false};
  gradient_scene_agrees(&c, &t);
  char *bits = bits_of(&c, &size);
  for (int at = 0; at < RANKS * RANKS; at++) {
    t.checkpoint.resume = false;
    fault_set(writes[_i], at, FAULT_ERROR, ENOSPC, false);
    ring_outcome r = gradient_scene_run(&c, &t);
    fault_clear();
    expect_unwritten(&r, RANKS);
    expect_no_remains(prefix, RANKS);
    t.checkpoint.resume = true;
    expect_bits(&c, &t, bits);
  }
  for (int32_t i = 0; i < RANKS; i++) remove_sums(prefix, i);
  free(bits);
  gradient_scene_close(&c);
}
END_TEST

/* The sums of another rank. */
START_TEST(sums_of_another_run_are_refused) {
  char prefix[64], from[80], to[80];
  gradient_scene c = gradient_scene_open(patterns[0], 97, 97);
  ring_trial t = {.mesh = MESH(3, 1, 1, CONTIGUOUS)};
  snprintf(prefix, sizeof prefix, "/tmp/test_back.%d", (int)getpid());
  t.checkpoint = (ring_checkpoint){prefix, 0, 1, false};
  gradient_scene_agrees(&c, &t);
  snprintf(from, sizeof from, "%s.0.back", prefix);
  snprintf(to, sizeof to, "%s.1.back", prefix);
  ck_assert(!rename(from, to));
  t.checkpoint.resume = true;
  ring_outcome r = gradient_scene_run(&c, &t);
  ck_assert_int_eq(r.status, DIL_INPUT);
  ck_assert_msg(strstr(r.text, "has no gradients of this rank") != NULL, "%s",
                r.text);
  remove_sums(prefix, 1);
  remove_sums(prefix, 2);
  gradient_scene_close(&c);
}
END_TEST

/* In a step, keys that come and queries that come leave other sums. */
START_TEST(sums_of_the_other_way_are_refused) {
  char prefix[64];
  gradient_scene c = gradient_scene_open(patterns[0], 97, 97);
  ring_trial t = {.mesh = MESH(3, 1, 1, CONTIGUOUS)};
  snprintf(prefix, sizeof prefix, "/tmp/test_back.%d", (int)getpid());
  t.checkpoint = (ring_checkpoint){prefix, 0, 1, false};
  ring_trial_come(&t, 0);
  gradient_scene_agrees(&c, &t);
  ring_trial_come(&t, 1);
  t.checkpoint.resume = true;
  ring_outcome r = gradient_scene_run(&c, &t);
  ck_assert_int_eq(r.status, DIL_INPUT);
  ck_assert_msg(strstr(r.text, "the queries of other branches came") != NULL,
                "%s", r.text);
  for (int32_t i = 0; i < 3; i++) remove_sums(prefix, i);
  gradient_scene_close(&c);
}
END_TEST

/* Ranks that are left make the gradients anew. */
START_TEST(those_left_of_a_backward_run_go_on) {
  static const mesh whole[] = {MESH(4, 1, 1, ZIGZAG), MESH(4, 1, 1, STRIPED),
                               MESH(4, 2, 1, CONTIGUOUS)};
  gradient_scene c = gradient_scene_open(patterns[2 * _i], 97, 97);
  int32_t ranks = mesh_ranks(&whole[_i]);
  bool lost[RANKS_MOST];
  rank_group_task task = ring_trial_task(
      c.k, &(ring_trial){.mesh = whole[_i], .spoil = ring_fail_once});
  task.shrinks = true;
  rank_group *all = ring_trial_group(&task);
  ring_fail_next(2, 2);
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
  gradient_scene_close(&c);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("ring_backward");
  TCase *tests = tcase_create("ring_backward");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, meshes_agree_with_the_oracle, 0, PATTERNS);
  tcase_add_loop_test(tests, other_lengths, 0, PATTERNS);
  tcase_add_loop_test(tests, timing_changes_no_bit, 0, 1);
  tcase_add_loop_test(tests, a_rank_that_fails_is_named, 0, WAYS);
  tcase_add_test(tests, gradients_on_some_ranks_alone);
  tcase_add_test(tests, ranks_go_the_same_way);
  tcase_add_test(tests, a_frozen_rank_is_named_in_time);
  tcase_add_loop_test(tests, a_killed_run_goes_on_to_the_same_bits, 0,
                      3 * COMING);
  tcase_add_loop_test(tests, states_that_cannot_be_written, 0, 2);
  tcase_add_test(tests, sums_of_another_run_are_refused);
  tcase_add_test(tests, sums_of_the_other_way_are_refused);
  tcase_add_loop_test(tests, those_left_of_a_backward_run_go_on, 0, 3);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
