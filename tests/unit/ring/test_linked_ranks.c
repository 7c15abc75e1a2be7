/* test_linked_ranks.c - ranks that know of each other by links alone, as
 * processes do: each holds its own rows, of arrays that all can read or of
 * random numbers that it makes itself, and rank 0 is brought what it asks for,
 * however long that takes. With DIL_TEST_DEVICE=cuda the ranks are on a GPU. */
#include "runtime/base/random.h"
#include "runtime/ring/ranks.h"
#include "runtime/rowset/walk.h"
#include "tests/support/gpu.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { RANKS = 4, N = 90, M = 130, BATCH = 2, HEADS = 4, KV = 2, D = 16,
       SEED = 11, FEW = 9 };

static const char text[] =
    "pattern p { heads 4 kv 2; head_dim 16; dtype f32; causal; phase kv;"
    " segments 32, 64; dilations 1, 2; }";

/* Ring, heads, batch, of so many processes; which branches gather. */
static const mesh meshes[] = {
    {4, 1, 1, DIL_CONTIGUOUS, 0, 30, false, 0},
    {4, 1, 1, DIL_ZIGZAG, ~(uint64_t)0, 30, false, 0},
    {2, 1, 2, DIL_STRIPED, 1, 30, false, 0},
    {2, 2, 1, DIL_CONTIGUOUS, 0, 30, false, 0},
};
enum { MESHES = sizeof meshes / sizeof meshes[0] };

static double normal_element(int32_t tensor, const int64_t *at, double old) {
  int64_t whole = tensor ? M : N, heads = tensor ? KV : HEADS;
  (void)old;
  return dil_normal(SEED, (uint32_t)tensor,
                    (uint64_t)(((at[0] * whole + at[1]) * heads + at[2]) * D +
                               at[3]));
}

typedef struct linked_scene {
  tested_pattern *s;
  kernel_made *k;
  data *d;
  mesh mesh;
  bool random;       /* nobody has made q, k and v */
  wanted_rows wanted;
  const rank_group_gpu *gpu; /* of a run; NULL: the processor */
  char path[64];     /* where they meet; empty: they are joined as threads, */
  int port;          /* 0: it is a file */
  int32_t slow;      /* 0: the first takes its time; else each other rank */
} linked_scene;

enum { TIMEOUT = 1 }; /* seconds a wait may take, of ranks that meet */

static _Thread_local int32_t here; /* number of this thread's rank */

typedef struct linked_rank {
  linked_scene *of;
  int32_t number;
  dil_link *ring, *world;
  dil_status status;
  char why[256];
  pthread_t thread;
} linked_rank;

/* What this rank sees of the call: outputs are rank 0's alone. */
static dil_call call_of(const linked_rank *r) {
  dil_call call = r->of->d->call;
  dil_tensor *inputs[] = {&call.q, &call.k, &call.v};
  for (int i = 0; i < 3 && r->of->random; i++)
    *inputs[i] = dil_tensor_make(NULL, inputs[i]->dtype, 4, inputs[i]->shape);
  call.random = SEED;
  if (r->number) call.o.data = call.lse.data = NULL;
  return call;
}

static dil_status run_rank(linked_rank *r, rank_group *c) {
  dil_call call = call_of(r);
  dil_status status = rank_group_hold(c, &call);
  if (!status) status = rank_group_load(c, &call);
  if (!status) status = rank_group_join(c);
  for (int repeat = 0; repeat < 2 && !status; repeat++)
    status = rank_group_run(c, &call);
  if (!status) status = rank_group_collect(c, r->world, &call, &r->of->wanted);
  return status ? status : link_dismiss(r->world);
}

/* As processes do it: where all of them can. */
static dil_status meet(linked_rank *r) {
  const linked_scene *s = r->of;
  char address[40];
  snprintf(address, sizeof address, "127.0.0.1:%d", s->port);
  if (!*s->path) return DIL_OK;
  return s->port ? socket_link_new(address, r->number, RANKS, 30, TIMEOUT,
                                   &r->world)
                 : file_link_new(s->path, r->number, RANKS, TIMEOUT, &r->world);
}

static void *rank_thread(void *context) {
  linked_rank *r = context;
  plan *p = r->of->k->plan;
  rank_group_task task = {.mesh = r->of->mesh, .table = &p->table,
                          .plan_hash = plan_hash(p), .make = plan_variant,
                          .context = p, .threads = 1, .link = r->ring,
                          .rank = r->number,
                          .gpu = r->of->gpu};
  rank_group *c = NULL;
  here = r->number;
  r->status = meet(r);
  if (!r->status) r->status = rank_group_new(&task, &c);
  if (!r->status) r->status = run_rank(r, c);
  snprintf(r->why, sizeof r->why, "%s", dil_last_error());
  if (r->status && r->world) r->world->calls->revoke(r->world, r->why);
  rank_group_free(c);
  link_free(r->ring);
  link_free(r->world);
  return NULL;
}

static void run_scene(linked_scene *s) {
  thread_hub *world, *rings[RANKS];
  linked_rank ranks[RANKS];
  ck_assert(!thread_hub_new(RANKS, 30, &world));
  s->gpu = gpu_wanted() ? gpu_rank_group(s->k->plan) : NULL;
  for (int i = 0; i < RANKS; i++) {
    int ring = i / s->mesh.ring;
    ranks[i] = (linked_rank){.of = s, .number = i};
    if (i % s->mesh.ring == 0)
      ck_assert(!thread_hub_new(s->mesh.ring, 30, &rings[ring]));
    ck_assert(!thread_link_new(rings[ring], i % s->mesh.ring, &ranks[i].ring));
    if (!*s->path) ck_assert(!thread_link_new(world, i, &ranks[i].world));
  }
  for (int i = 0; i < RANKS; i++)
    ck_assert(!pthread_create(&ranks[i].thread, NULL, rank_thread, &ranks[i]));
  for (int i = 0; i < RANKS; i++) pthread_join(ranks[i].thread, NULL);
  for (int i = 0; i < RANKS; i++)
    ck_assert_msg(!ranks[i].status, "rank %d: %s", i, ranks[i].why);
  for (int i = 0; i < RANKS / s->mesh.ring; i++) thread_hub_free(rings[i]);
  thread_hub_free(world);
}

static linked_scene scene_open(int mesh_index, bool random) {
  linked_scene s = {.s = tested_pattern_new("apart", text, NULL, 0),
                    .mesh = meshes[mesh_index],
                    .random = random,
                    .wanted = {.count = -1}};
  ck_assert_msg(s.s->pattern != NULL, "%s", s.s->problem);
  s.k = kernel_make(s.s, (recipe){0});
  s.d = data_new(s.s, (call_shape){.batch = BATCH, .queries = N, .keys = M,
                                   .clean = true, .element = normal_element});
  data_forget(s.d);
  return s;
}

static void scene_close(linked_scene *s) {
  data_free(s->d);
  kernel_unmake(s->k);
  tested_pattern_free(s->s);
}

START_TEST(each_makes_its_own_rows) {
  linked_scene s = scene_open(_i, true);
  run_scene(&s);
  const char *problem = data_compare(s.d);
  ck_assert_msg(!*problem, "%s", problem);
  scene_close(&s);
}
END_TEST

START_TEST(each_takes_its_rows_of_arrays) {
  linked_scene s = scene_open(_i, false);
  run_scene(&s);
  const char *problem = data_compare(s.d);
  ck_assert_msg(!*problem, "%s", problem);
  scene_close(&s);
}
END_TEST

static void few_rows(const void *owner, int64_t index, output_row *row) {
  (void)owner;
  *row = (output_row){index % BATCH, index * 10, (int32_t)(index % HEADS)};
}

/* lse off by how much, at a row of the oracle's; NaN: it was not brought. */
static double lse_off(const data *d, int64_t b, int64_t n, int64_t h) {
  const dil_tensor *lse = &d->call.lse;
  int64_t at[] = {b, h, n};
  int64_t place = 0;
  for (int i = 0; i < 3; i++) place += at[i] * lse->stride[i];
  return ((const float *)lse->data)[place] - d->lse[(b * HEADS + h) * N + n];
}

START_TEST(only_wanted_rows_are_brought) {
  linked_scene s = scene_open(_i, true);
  s.wanted = (wanted_rows){FEW, few_rows, NULL};
  run_scene(&s);
  int64_t brought = 0;
  for (int64_t i = 0; i < FEW; i++) {
    output_row row;
    few_rows(NULL, i, &row);
    ck_assert(fabs(lse_off(s.d, row.b, row.n, row.h)) < 1e-4);
  }
  for (int64_t i = 0; i < BATCH * N * HEADS; i++)
    brought += !isnan(lse_off(s.d, i / HEADS / N, i / HEADS % N, i % HEADS));
  ck_assert_int_eq(brought, FEW);
  scene_close(&s);
}
END_TEST

/* Every row takes the first a while, or the first row each other rank, one after
 * the other: it waits for each as long as it may. */
static void slow_row(const void *owner, int64_t index, output_row *row) {
  const linked_scene *s = owner;
  few_rows(NULL, index, row);
  if (here == 0 && !s->slow) usleep(TIMEOUT * 25000);
  if (here && s->slow && index == 0) usleep((useconds_t)here * TIMEOUT * 300000);
}

/* Longer than any wait may take, of those whose turn has not come or has been.
 * A matter of links: where devices are tested, many of these run at once. */
START_TEST(a_long_collection_is_no_silence) {
  if (gpu_wanted()) return;
  linked_scene s = scene_open(0, true);
  snprintf(s.path, sizeof s.path, "/tmp/test_linked_ranks.%d", (int)getpid());
  s.port = _i % 2 ? 20000 + (getpid() * 7 + _i) % 12000 : 0;
  s.slow = _i / 2;
  s.wanted = (wanted_rows){FEW, slow_row, &s};
  run_scene(&s);
  scene_close(&s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("apart");
  TCase *tests = tcase_create("apart");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, each_makes_its_own_rows, 0, MESHES);
  tcase_add_loop_test(tests, each_takes_its_rows_of_arrays, 0, MESHES);
  tcase_add_loop_test(tests, only_wanted_rows_are_brought, 0, MESHES);
  tcase_add_loop_test(tests, a_long_collection_is_no_silence, 0, 4);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
