/* ring_trial.c - calls on ranks that are threads: a new group for each run, and
 * links that fail, or do what a test puts before them. */
#include "ring_trial.h"
#include "gpu.h"
#include "runtime/base/status.h"
#include <check.h>
#include <stdio.h>
#include <time.h>

const mesh meshes[MESHES] = {
    MESH(1, 1, 1, CONTIGUOUS), MESH(2, 1, 1, ZIGZAG), MESH(3, 1, 1, CONTIGUOUS),
    MESH(4, 1, 1, STRIPED),    MESH(7, 1, 1, ZIGZAG), MESH(8, 1, 1, CONTIGUOUS),
    MESH(2, 2, 1, CONTIGUOUS), MESH(2, 1, 2, ZIGZAG), MESH(1, 4, 2, STRIPED),
    MESH(3, 3, 1, STRIPED),
};
const uint64_t ways[WAYS] = {0, ~(uint64_t)0, 1, 2};
const uint64_t coming[COMING] = {~(uint64_t)0, 1, 0, 2};

void ring_trial_come(ring_trial *t, int which) {
  t->mesh.way_given = true;
  t->mesh.queries = coming[which % COMING];
}

rank_group_task ring_trial_task(const kernel_made *k, const ring_trial *t) {
  return (rank_group_task){.mesh = t->mesh,
                           .table = &k->plan->table,
                           .plan_hash = plan_hash(k->plan),
                           .make = plan_variant,
                           .context = k->plan,
                           .backward = k->plan->direction == DIL_BACKWARD,
                           .threads = 1,
                           .checkpoint = t->checkpoint,
                           .gpu = gpu_wanted() ? gpu_rank_group(k->plan) : NULL,
                           .spoil = t->spoil};
}

rank_group *ring_trial_group(const rank_group_task *task) {
  rank_group *made;
  ck_assert_msg(!rank_group_new(task, &made), "%s", dil_last_error());
  return made;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One of the two calls is NULL. */
static ring_outcome run(const kernel_made *k, const ring_trial *t,
                        const dil_call *forward,
                        const dil_backward_call *backward) {
  rank_group_task task = ring_trial_task(k, t);
  rank_group *all = ring_trial_group(&task);
  double start = now();
  if (task.gpu && forward)
    ck_assert_msg(!rank_group_load(all, forward), "%s", dil_last_error());
  ring_outcome r = {.status = forward    ? rank_group_run(all, forward)
                              : task.gpu ? gpu_ranks_backward(all, backward)
                                         : rank_group_backward(all, backward)};
  r.seconds = now() - start;
  if (task.gpu && forward && !r.status)
    r.status = rank_group_fetch(all, forward);
  snprintf(r.text, sizeof r.text, "%s", dil_last_error());
  for (int32_t i = 0; i < mesh_ranks(&t->mesh); i++)
    r.of[i] = *rank_group_report(all, i);
  rank_group_free(all);
  return r;
}

ring_outcome ring_trial_run(const kernel_made *k, const ring_trial *t,
                            const dil_call *call) {
  return run(k, t, call, NULL);
}

ring_outcome ring_trial_backward(const kernel_made *k, const ring_trial *t,
                                 const dil_backward_call *call) {
  return run(k, t, NULL, call);
}

int64_t ring_bytes_sent(const ring_outcome *r) {
  int64_t sum = 0;
  for (int i = 0; i < RANKS_MOST; i++) sum += r->of[i].facts.sent;
  return sum;
}

/* ---- a call for gradients ------------------------------------------------ */

gradient_scene gradient_scene_open(const char *text, int64_t N, int64_t M) {
  gradient_scene c = {.s = tested_pattern_new("ring", text, NULL, 0)};
  ck_assert_msg(c.s->pattern != NULL, "%s", c.s->problem);
  c.k = kernel_make(c.s, (recipe){.direction = DIL_BACKWARD});
  c.g = gradient_data_new(
      c.s, (gradient_shape){.call = {.batch = 2, .queries = N, .keys = M,
                                     .seed = 9, .train = true,
                                     .dropout_seed = 3}});
  return c;
}

void gradient_scene_close(gradient_scene *c) {
  gradient_data_free(c->g);
  kernel_unmake(c->k);
  tested_pattern_free(c->s);
}

ring_outcome gradient_scene_run(const gradient_scene *c, const ring_trial *t) {
  gradient_data_forget(c->g);
  return ring_trial_backward(c->k, t, &c->g->call);
}

ring_outcome gradient_scene_agrees(const gradient_scene *c,
                                   const ring_trial *t) {
  const mesh *m = &t->mesh;
  ring_outcome r = gradient_scene_run(c, t);
  ck_assert_msg(r.status == DIL_OK, "%s", r.text);
  const char *problem = gradient_data_compare(c->g);
  ck_assert_msg(!*problem, "%d x %d x %d, layout %d: %s", m->ring, m->heads,
                m->batch, m->layout, problem);
  return r;
}

/* ---- ranks that a test spoils -------------------------------------------- */

const link_calls *link_below;
/* Of each rank by itself, which may run beside others. */
static link_calls spoiled[RANKS_MOST];

void ring_spoil_link(dil_ring *r, int32_t rank, ring_post *post,
                     ring_wait *wait) {
  link_calls *mine = &spoiled[rank];
  link_below = r->link->calls;
  *mine = *link_below;
  if (post) mine->post = post;
  if (wait) mine->wait = wait;
  r->link->calls = mine;
}

static int32_t failing_rank, failing_step;
static bool has_failed;

static dil_status failing_wait(dil_link *link, int32_t slot) {
  if (link->rank == failing_rank && link->step == failing_step && !has_failed) {
    has_failed = true;
    return dil_fail(DIL_INTERNAL, "struck down");
  }
  return link_below->wait(link, slot);
}

void ring_fail_next(int32_t rank, int32_t step) {
  failing_rank = rank;
  failing_step = step;
  has_failed = false;
}

void ring_fail_once(dil_ring *r, int32_t rank) {
  if (rank == failing_rank) ring_spoil_link(r, rank, NULL, failing_wait);
}

void ring_add_input(dil_ring *r, int32_t rank) {
  static dil_call changed;
  if (rank != 2) return;
  changed = *r->call;
  changed.input_count = 1;
  changed.inputs = &changed.q;
  r->call = &changed;
}
