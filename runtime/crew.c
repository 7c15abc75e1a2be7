/* crew.c - all ranks of a mesh as threads; see crew.h. A rank sees views of
 * its own rows, heads and batch rows, so nothing is copied but what travels. */
#include "crew.h"
#include "trace.h"
#include "walk.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct member {
  struct crew *crew;
  int32_t rank;
  head_share share;
  dil_table table;       /* of its heads */
  void *branches;        /* in it */
  cpu_kernel *kernel;
  ring_device *device;
  ring_routes routes;
  dil_link *link;        /* of the run */
  pthread_t thread;
  bool started;
  crew_report report;
} member;

struct crew {
  crew_task task;
  const dil_call *call;  /* of the run */
  struct {               /* machine code, the same for every rank */
    void *bytes;
    size_t size;
    dil_code code;
  } made[DIL_VARIANT_COUNT];
  member member[];
};

/* ---- making -------------------------------------------------------------- */

static dil_status make_once(crew *c, dil_variant variant) {
  return c->task.make(c->task.context, variant, &c->made[variant].bytes,
                      &c->made[variant].size, &c->made[variant].code);
}

/* Each rank's kernel gets a copy of its own. */
static dil_status make_shared(void *context, dil_variant variant, void **bytes,
                              size_t *size, dil_code *code) {
  const crew *c = context;
  *size = c->made[variant].size;
  *code = c->made[variant].code;
  *bytes = malloc(*size);
  if (!*bytes) return dil_fail(DIL_MEMORY, "no memory for machine code");
  memcpy(*bytes, c->made[variant].bytes, *size);
  return DIL_OK;
}

static dil_status member_share(member *m) {
  const crew_task *t = &m->crew->task;
  m->share = share_heads(t->table->heads, t->table->kv_heads, t->mesh.heads,
                         m->rank / t->mesh.ring % t->mesh.heads);
  if (m->share.heads == 0)
    return dil_fail(DIL_USAGE, "heads are split over %d ranks, %d heads in %d "
                    "groups leave some without", t->mesh.heads, t->table->heads,
                    t->table->kv_heads);
  return DIL_OK;
}

static dil_status member_open(member *m) {
  const crew_task *t = &m->crew->task;
  m->branches = malloc(share_size(t->table) + 1);
  if (!m->branches)
    return dil_fail(DIL_MEMORY, "no memory for rank %d", m->rank);
  m->table = share_table(t->table, m->share, m->branches);
  dil_status status =
      cpu_kernel_new(&m->table, make_shared, m->crew, &m->kernel);
  return status ? status : ring_cpu_new(m->kernel, t->threads, &m->device);
}

static void member_close(member *m) {
  ring_routes_free(&m->routes, m->device);
  ring_device_free(m->device);
  cpu_kernel_free(m->kernel);
  free(m->branches);
}

dil_status crew_new(const crew_task *task, crew **made) {
  int32_t ranks = mesh_ranks(&task->mesh);
  crew *c = calloc(1, sizeof *c + (size_t)ranks * sizeof(member));
  if (!c) return dil_fail(DIL_MEMORY, "no memory for %d ranks", ranks);
  c->task = *task;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < ranks && !status; i++) {
    c->member[i].crew = c;
    c->member[i].rank = i;
    status = member_share(&c->member[i]);
    if (!status && (!task->link || i == task->rank))
      status = member_open(&c->member[i]);
  }
  /* Which kind a rank takes depends on its part of a call. */
  for (int32_t v = 0; v < DIL_VARIANT_COUNT && !status; v++)
    status = make_once(c, (dil_variant)v);
  if (status) crew_free(c);
  else *made = c;
  return status;
}

void crew_free(crew *c) {
  if (!c) return;
  for (int32_t i = 0; i < mesh_ranks(&c->task.mesh); i++)
    member_close(&c->member[i]);
  for (int32_t v = 0; v < DIL_VARIANT_COUNT; v++) free(c->made[v].bytes);
  free(c);
}

/* ---- a rank's rows ------------------------------------------------------- */

/* Rows of a comb, heads and batch rows of a tensor [B, rows, H, D]. */
static dil_tensor view_rows(const dil_tensor *whole, dil_comb comb,
                            int64_t origin, dil_comb batch, int32_t head,
                            int32_t heads) {
  dil_tensor t = *whole;
  int64_t at = batch.first * t.stride[0] +
               (comb.first - origin) * t.stride[1] + head * t.stride[2];
  t.data = (char *)t.data + at * (int64_t)dil_dtype_size(t.dtype);
  t.stride[1] *= comb.step;
  t.shape[0] = batch.count;
  t.shape[1] = comb.count;
  t.shape[2] = heads;
  return t;
}

static dil_tensor view_lse(const dil_tensor *whole, dil_comb comb,
                           int64_t origin, dil_comb batch, int32_t head,
                           int32_t heads) {
  dil_tensor t = *whole;
  if (!t.data) return t;
  t.data = (float *)t.data + batch.first * t.stride[0] + head * t.stride[1] +
           (comb.first - origin) * t.stride[2];
  t.stride[2] *= comb.step;
  t.shape[0] = batch.count;
  t.shape[1] = heads;
  t.shape[2] = comb.count;
  return t;
}

static void view_own(const dil_call *c, const ring_shape *r, int32_t rank,
                     dil_comb batch, head_share s, ring_rows *out) {
  shard mine = place_queries(r, rank), owned = place_keys(r, rank);
  int64_t origin = r->M - r->N;
  for (int32_t i = 0; i < SHARD_COMBS; i++) {
    dil_comb q = i < mine.count ? mine.comb[i] : (dil_comb){origin, 1, 0};
    dil_comb k = i < owned.count ? owned.comb[i] : (dil_comb){0, 1, 0};
    out->q[i] = view_rows(&c->q, q, origin, batch, s.head, s.heads);
    out->o[i] = view_rows(&c->o, q, origin, batch, s.head, s.heads);
    out->lse[i] = view_lse(&c->lse, q, origin, batch, s.head, s.heads);
    out->keys.k[i] = view_rows(&c->k, k, 0, batch, s.kv_head, s.kv_heads);
    out->keys.v[i] = view_rows(&c->v, k, 0, batch, s.kv_head, s.kv_heads);
  }
}

/* ---- a run --------------------------------------------------------------- */

static dil_comb member_batch(const member *m, const dil_call *call) {
  const mesh *all = &m->crew->task.mesh;
  shard batch = place_shard(DIL_CONTIGUOUS, call->q.shape[0], 0, all->batch,
                            m->rank / all->ring / all->heads);
  return batch.count ? batch.comb[0] : (dil_comb){0, 1, 0};
}

static dil_status member_run(member *m) {
  const crew_task *t = &m->crew->task;
  const dil_call *call = m->crew->call;
  dil_comb rows_here = member_batch(m, call);
  ring_rows owned;
  dil_ring r = {.shape = {&m->table, t->mesh.layout, t->mesh.ring,
                          call->q.shape[1], call->k.shape[1]},
                .B = call->q.shape[0],
                .batch = (int32_t)rows_here.first,
                .head = m->share.head,
                .exchange = t->mesh.exchange,
                .link = m->link,
                .device = m->device,
                .routes = &m->routes,
                .call = call,
                .rows = &owned,
                .plan_hash = t->plan_hash,
                .checkpoint = t->checkpoint};
  r.checkpoint.name = m->rank;
  view_own(call, &r.shape, r.link->rank, rows_here, m->share, &owned);
  if (t->spoil) t->spoil(&r, m->rank);
  dil_status status = ring_run(&r);
  m->report.facts = r.facts;
  return status;
}

static void member_try(member *m) {
  m->report.status = member_run(m);
  snprintf(m->report.text, sizeof m->report.text, "%s",
           m->report.status ? dil_last_error() : "");
}

static void *member_thread(void *context) {
  member *m = context;
  char name[16];
  snprintf(name, sizeof name, "rank %d", (int)m->rank);
  dil_trace_name_thread(name);
  member_try(m);
  link_free(m->link);
  return NULL;
}

/* Without its thread a rank is gone before it began: the others are told. */
static void member_start(member *m) {
  m->started = !pthread_create(&m->thread, NULL, member_thread, m);
  if (m->started) return;
  m->report = (crew_report){DIL_ENVIRONMENT, "no thread for the rank", {0}};
  m->link->calls->revoke(m->link, m->report.text);
  link_free(m->link);
}

static dil_status open_links(crew *c, thread_hub **hub) {
  const mesh *m = &c->task.mesh;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < mesh_ranks(m) && !status; i++) {
    if (i % m->ring == 0)
      status = thread_hub_new(m->ring, m->timeout, &hub[i / m->ring]);
    if (!status)
      status = thread_link_new(hub[i / m->ring], i % m->ring,
                               &c->member[i].link);
  }
  for (int32_t i = 0; i < mesh_ranks(m) && status; i++) {
    link_free(c->member[i].link);
    c->member[i].link = NULL;
  }
  return status;
}

static dil_status worst(const crew *c) {
  const crew_report *found = NULL;
  for (int32_t i = 0; i < mesh_ranks(&c->task.mesh); i++) {
    const crew_report *r = &c->member[i].report;
    bool better = !found || (found->status == DIL_PEER && r->status != DIL_PEER);
    if (r->status && better) found = r;
  }
  return found ? dil_fail(found->status, "%s", found->text) : DIL_OK;
}

static dil_status run_alone(crew *c) {
  member *m = &c->member[c->task.rank];
  m->link = c->task.link;
  member_try(m);
  return m->report.status ? dil_fail(m->report.status, "%s", m->report.text)
                          : DIL_OK;
}

static dil_status run_all(crew *c) {
  int32_t ranks = mesh_ranks(&c->task.mesh), rings = ranks / c->task.mesh.ring;
  thread_hub **hub = calloc((size_t)rings, sizeof *hub);
  dil_status status = hub ? open_links(c, hub)
                          : dil_fail(DIL_MEMORY, "no memory for links");
  for (int32_t i = 0; i < ranks && !status; i++) member_start(&c->member[i]);
  for (int32_t i = 0; i < ranks && !status; i++)
    if (c->member[i].started) pthread_join(c->member[i].thread, NULL);
  for (int32_t i = 0; hub && i < rings; i++) thread_hub_free(hub[i]);
  free(hub);
  return status ? status : worst(c);
}

dil_status crew_run(crew *c, const dil_call *call) {
  c->call = call;
  return c->task.link ? run_alone(c) : run_all(c);
}

const crew_report *crew_of(const crew *c, int32_t rank) {
  return &c->member[rank].report;
}

/* ---- ranks that are processes: their rows to rank 0 ---------------------- */

/* Rows of all heads of a tensor, to a message or from it. */
static void move_tensor(const dil_tensor *t, char **at, bool unpack) {
  size_t size = dil_dtype_size(t->dtype), row = (size_t)t->shape[3] * size;
  int64_t n[3];
  for (n[0] = 0; n[0] < t->shape[0]; n[0]++)
    for (n[1] = 0; n[1] < t->shape[1]; n[1]++)
      for (n[2] = 0; n[2] < t->shape[2]; n[2]++, *at += row) {
        char *place = (char *)t->data + (n[0] * t->stride[0] +
                                         n[1] * t->stride[1] +
                                         n[2] * t->stride[2]) *
                                            (int64_t)size;
        memcpy(unpack ? place : *at, unpack ? *at : place, row);
      }
}

/* lse is [B, H, N]: each number a row of its own. */
static void move_lse(dil_tensor t, char **at, bool unpack) {
  if (!t.data) return;
  t.shape[3] = 1;
  move_tensor(&t, at, unpack);
}

/* What a rank has written, and its report. */
static void move_result(member *m, const dil_call *call, char *message,
                        bool unpack) {
  const crew_task *t = &m->crew->task;
  ring_shape shape_of = {t->table, t->mesh.layout, t->mesh.ring,
                         call->q.shape[1], call->k.shape[1]};
  ring_rows owned;
  view_own(call, &shape_of, m->rank % t->mesh.ring, member_batch(m, call),
           m->share, &owned);
  if (unpack) memcpy(&m->report, message, sizeof m->report);
  else memcpy(message, &m->report, sizeof m->report);
  message += sizeof m->report;
  for (int32_t i = 0; i < SHARD_COMBS; i++) {
    move_tensor(&owned.o[i], &message, unpack);
    move_lse(owned.lse[i], &message, unpack);
  }
}

static int64_t result_bytes(const member *m, const dil_call *call) {
  const crew_task *t = &m->crew->task;
  shard mine = place_shard(t->mesh.layout, call->q.shape[1], 0, t->mesh.ring,
                           m->rank % t->mesh.ring);
  int64_t one = t->table->value_dim * (int64_t)dil_dtype_size(t->table->dtype) +
                (call->lse.data ? (int64_t)sizeof(float) : 0);
  return (int64_t)sizeof m->report +
         shard_rows(&mine) * member_batch(m, call).count * m->share.heads * one;
}

/* One rank's message, at either end. */
static dil_status collect_one(crew *c, dil_link *world, const dil_call *call,
                              int32_t rank) {
  member *m = &c->member[rank];
  int64_t bytes = result_bytes(m, call);
  bool here = world->rank == 0;
  char *message = malloc((size_t)bytes);
  if (!message)
    return dil_fail(DIL_MEMORY, "no memory for the rows of rank %d", rank);
  if (!here) move_result(m, call, message, false);
  const link_transfer t = {here ? -1 : 0, here ? rank : -1, message, message,
                           here ? 0 : bytes, here ? bytes : 0};
  dil_status status = world->calls->post(world, 0, &t);
  if (!status) status = world->calls->wait(world, 0);
  if (!status && here) move_result(m, call, message, true);
  free(message);
  return status;
}

dil_status crew_collect(crew *c, dil_link *world, const dil_call *call) {
  dil_status status = DIL_OK;
  for (int32_t i = 1; i < world->ranks && !status; i++)
    if (world->rank == 0 || world->rank == i)
      status = collect_one(c, world, call, i);
  return status;
}
