/* ranks.c - makes and runs the ranks of a mesh; see ranks.h. A rank gets views
 * of its own rows, heads and batch rows: only rows that travel are copied. */
#include "rank.h"
#include "runtime/base/status.h"
#include "runtime/observe/trace.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making -------------------------------------------------------------- */

static dil_status make_once(rank_group *c, dil_variant variant) {
  return c->task.make(c->task.context, variant, &c->made[variant].bytes,
                      &c->made[variant].size, &c->made[variant].code);
}

/* A dil_make for the kernel of one rank: it copies the rank group's machine
 * code. */
static dil_status make_shared(void *context, dil_variant variant, void **bytes,
                              size_t *size, dil_code *code) {
  const rank_group *c = context;
  *size = c->made[variant].size;
  *code = c->made[variant].code;
  *bytes = malloc(*size);
  if (!*bytes) return dil_fail(DIL_MEMORY, "no memory for machine code");
  memcpy(*bytes, c->made[variant].bytes, *size);
  return DIL_OK;
}

static dil_status rank_share(group_rank *m) {
  const rank_group_task *t = &m->group->task;
  m->share = partition_heads(t->table->heads, t->table->kv_heads, t->mesh.heads,
                             m->rank / t->mesh.ring % t->mesh.heads);
  if (m->share.heads == 0)
    return dil_fail(DIL_USAGE, "heads are split over %d ranks, %d heads in %d "
                    "groups leave some without", t->mesh.heads, t->table->heads,
                    t->table->kv_heads);
  if (t->mask) m->mask = *t->mask;
  m->mask.head = m->share.head;
  return DIL_OK;
}

static dil_status rank_open(group_rank *m) {
  const rank_group_task *t = &m->group->task;
  m->branches = malloc(head_partition_size(t->table) + 1);
  if (!m->branches)
    return dil_fail(DIL_MEMORY, "no memory for rank %d", m->rank);
  m->table = head_partition_table(t->table, m->share, m->branches);
  if (t->gpu)
    return resident_open(t->gpu, &m->table, m->original, &m->resident);
  dil_status status =
      cpu_kernel_new(&m->table, make_shared, m->group, &m->kernel);
  return status ? status : ring_cpu_new(m->kernel, t->threads, &m->device);
}

ring_device *rank_device(const group_rank *m) {
  return m->resident.shared ? m->resident.device : m->device;
}

static dil_status rank_new(rank_group *c, int32_t rank) {
  group_rank *m = c->rank[rank] = calloc(1, sizeof *m);
  if (!m) return dil_fail(DIL_MEMORY, "no memory for rank %d", rank);
  m->group = c;
  m->rank = m->original = rank;
  return DIL_OK;
}

static void rank_leave(group_rank *m) {
  const rank_group_task *t = &m->group->task;
  if (!m->comm || t->gpu->cuda->enter(m->resident.gpu)) return;
  t->nccl->leave(m->comm);
  t->gpu->cuda->leave(m->resident.gpu);
}

static void rank_shut(group_rank *m) {
  rank_leave(m);
  ring_routes_free(&m->routes, rank_device(m));
  rank_gradients_free(m);
  resident_close(&m->resident);
  ring_device_free(m->device);
  cpu_kernel_free(m->kernel);
  free(m->branches);
  m->comm = NULL;
  m->device = NULL;
  m->kernel = NULL;
  m->branches = NULL;
}

void rank_close(group_rank *m) {
  if (!m) return;
  rank_shut(m);
  free(m->store);
  free(m->gradient_store);
  free(m);
}

dil_status rank_reopen(group_rank *m) {
  bool open = m->branches != NULL;
  rank_shut(m);
  dil_status status = rank_share(m);
  return status || !open ? status : rank_open(m);
}

dil_status rank_group_new(const rank_group_task *task, rank_group **made) {
  int32_t ranks = mesh_ranks(&task->mesh);
  rank_group *c = calloc(1, sizeof *c + (size_t)ranks * sizeof(group_rank *));
  if (!c) return dil_fail(DIL_MEMORY, "no memory for %d ranks", ranks);
  c->task = *task;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < ranks && !status; i++) {
    status = rank_new(c, i);
    if (!status) status = rank_share(c->rank[i]);
    if (!status && (!task->link || i == task->rank))
      status = rank_open(c->rank[i]);
  }
  /* A rank chooses among the variants by its part of a call: it needs all. */
  int32_t variants = task->backward ? DIL_VARIANT_COUNT : DIL_GRADIENTS;
  for (int32_t v = 0; v < variants && !status && !task->gpu; v++)
    status = make_once(c, (dil_variant)v);
  if (status) rank_group_free(c);
  else *made = c;
  return status;
}

void rank_group_free(rank_group *c) {
  if (!c) return;
  for (int32_t i = 0; i < mesh_ranks(&c->task.mesh); i++)
    rank_close(c->rank[i]);
  for (int32_t v = 0; v < DIL_VARIANT_COUNT; v++) free(c->made[v].bytes);
  free(c);
}

/* ---- a run --------------------------------------------------------------- */

/* The call with the inputs in the memory of the rank's device. */
static dil_call rank_call(const group_rank *m) {
  dil_call call = *m->group->call;
  if (m->resident.shared) call.inputs = m->resident.inputs;
  return call;
}

static dil_status rank_run(group_rank *m, dil_link *link) {
  const rank_group_task *t = &m->group->task;
  dil_call call = rank_call(m);
  ring_rows owned;
  dil_ring r = {.shape = rank_shape(m, &call),
                .B = call.q.shape[0],
                .batch = (int32_t)rank_batch(m, &call).first,
                .head = m->share.head,
                .link = link,
                .device = rank_device(m),
                .routes = &m->routes,
                .call = &call,
                .rows = m->resident.shared ? &m->resident.rows : &owned,
                .gradients = m->group->backward ? &m->sums : NULL,
                .way_given = t->mesh.way_given,
                .queries = t->mesh.queries,
                .plan_hash = t->plan_hash,
                .checkpoint = t->checkpoint,
                .stepped = t->stepped,
                .watcher = t->watcher};
  r.checkpoint.name = m->rank;
  rank_view(m, &call, &owned);
  if (t->spoil) t->spoil(&r, m->rank);
  dil_status status =
      r.gradients ? rank_gradients_begin(m, ring_opens_sums(&r)) : DIL_OK;
  char why[256];
  snprintf(why, sizeof why, "%s", dil_last_error());
  if (status) link->calls->revoke(link, why);
  else status = ring_run(&r);
  r.facts.memory += m->resident.bytes;
  m->report.facts = r.facts;
  return status;
}

/* Makes a communicator for the rank's GPU unless every rank has one. After the
 * rank group has shrunk, some ranks may lack one, so the ranks ask each
 * other. */
static dil_status rank_join(group_rank *m) {
  const dil_nccl_module *nccl = m->group->task.nccl;
  int64_t joined = m->comm && nccl->serves(m->comm, m->link->ranks);
  dil_status status = DIL_OK;
  if (m->shrunk) status = link_least(m->link, joined, &joined);
  m->shrunk = false;
  if (!status && joined) return DIL_OK;
  if (m->comm) nccl->leave(m->comm);
  m->comm = NULL;
  if (!status) status = nccl->join(m->link, &m->comm);
  char why[256];
  snprintf(why, sizeof why, "%s", dil_last_error());
  if (!status) return DIL_OK;
  m->link->calls->revoke(m->link, why);
  return dil_fail(status, "%s", why);
}

/* A run, or rank_group_join, with rows that travel by NCCL. */
static dil_status rank_run_nccl(group_rank *m) {
  const dil_nccl_module *nccl = m->group->task.nccl;
  dil_link *link = NULL;
  dil_status status = rank_join(m);
  if (status || !m->group->call) return status;
  status = nccl->link(m->comm, m->link, m->group->task.shrinks, &link);
  if (!status) status = rank_run(m, link);
  link_free(link);
  return status;
}

static dil_status rank_work(group_rank *m) {
  const rank_group_task *t = &m->group->task;
  if (!t->nccl) return m->group->call ? rank_run(m, m->link) : DIL_OK;
  dil_status status = t->gpu->cuda->enter(m->resident.gpu);
  if (status) return status;
  status = rank_run_nccl(m);
  t->gpu->cuda->leave(m->resident.gpu);
  return status;
}

static void rank_try(group_rank *m) {
  m->report.status = rank_work(m);
  snprintf(m->report.text, sizeof m->report.text, "%s",
           m->report.status ? dil_last_error() : "");
  m->lost = false;
  if (m->report.status && m->group->task.shrinks) rank_ask_lost(m);
}

/* The link of a run on threads ends with the run. */
static void rank_unlink(group_rank *m) {
  link_free(m->link);
  m->link = NULL;
}

static void *rank_thread(void *context) {
  group_rank *m = context;
  char name[16];
  snprintf(name, sizeof name, "rank %d", (int)m->rank);
  dil_trace_name_thread(name);
  rank_try(m);
  rank_unlink(m);
  return NULL;
}

/* Starts the thread of a rank; a failure revokes the link for the others. */
static void rank_start(group_rank *m) {
  m->started = !pthread_create(&m->thread, NULL, rank_thread, m);
  if (m->started) return;
  m->report = (rank_report){DIL_ENVIRONMENT, "no thread for the rank", {0}};
  m->link->calls->revoke(m->link, m->report.text);
  rank_unlink(m);
}

static dil_status open_links(rank_group *c, thread_hub **hub) {
  const mesh *m = &c->task.mesh;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < mesh_ranks(m) && !status; i++) {
    if (i % m->ring == 0)
      status = thread_hub_new(m->ring, m->timeout, &hub[i / m->ring]);
    if (!status)
      status = thread_link_new(hub[i / m->ring], i % m->ring,
                               &c->rank[i]->link);
    if (!status) c->rank[i]->link->first = i - i % m->ring;
  }
  for (int32_t i = 0; i < mesh_ranks(m) && status; i++)
    rank_unlink(c->rank[i]);
  return status;
}

static dil_status worst(const rank_group *c) {
  const rank_report *found = NULL;
  for (int32_t i = 0; i < mesh_ranks(&c->task.mesh); i++) {
    const rank_report *r = &c->rank[i]->report;
    bool better = !found || (found->status == DIL_PEER && r->status != DIL_PEER);
    if (r->status && better) found = r;
  }
  return found ? dil_fail(found->status, "%s", found->text) : DIL_OK;
}

static dil_status run_alone(rank_group *c) {
  group_rank *m = c->rank[c->task.rank];
  m->link = c->task.link;
  rank_try(m);
  return m->report.status ? dil_fail(m->report.status, "%s", m->report.text)
                          : DIL_OK;
}

static dil_status run_all(rank_group *c) {
  int32_t ranks = mesh_ranks(&c->task.mesh), rings = ranks / c->task.mesh.ring;
  thread_hub **hub = calloc((size_t)rings, sizeof *hub);
  dil_status status = hub ? open_links(c, hub)
                          : dil_fail(DIL_MEMORY, "no memory for links");
  for (int32_t i = 0; i < ranks && !status; i++) rank_start(c->rank[i]);
  for (int32_t i = 0; i < ranks && !status; i++)
    if (c->rank[i]->started) pthread_join(c->rank[i]->thread, NULL);
  for (int32_t i = 0; hub && i < rings; i++) thread_hub_free(hub[i]);
  free(hub);
  return status ? status : worst(c);
}

dil_status rank_group_run(rank_group *c, const dil_call *call) {
  c->call = call;
  c->backward = NULL;
  return c->task.link ? run_alone(c) : run_all(c);
}

dil_status rank_group_backward(rank_group *c, const dil_backward_call *call) {
  c->call = &call->forward;
  c->backward = call;
  dil_status status = c->task.link ? run_alone(c) : run_all(c);
  if (!status && !c->task.link && !c->task.gpu)
    status = rank_gradients_store(c);
  return status;
}

dil_status rank_group_fetch_gradients(rank_group *c) {
  return c->task.gpu && !c->task.link ? rank_gradients_store(c) : DIL_OK;
}

dil_status rank_group_join(rank_group *c) {
  c->call = NULL;
  return c->task.nccl ? (c->task.link ? run_alone(c) : run_all(c)) : DIL_OK;
}

const rank_report *rank_group_report(const rank_group *c, int32_t rank) {
  return &c->rank[rank]->report;
}
