/* ranks.c - makes and runs the ranks of a mesh; see crew.h. A rank gets views
 * of its own rows, heads and batch rows: only rows that travel are copied. */
#include "rank.h"
#include "runtime/base/status.h"
#include "runtime/observe/trace.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making -------------------------------------------------------------- */

static dil_status make_once(crew *c, dil_variant variant) {
  return c->task.make(c->task.context, variant, &c->made[variant].bytes,
                      &c->made[variant].size, &c->made[variant].code);
}

/* A dil_make for the kernel of one rank: it copies the crew's machine code. */
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
  if (t->mask) m->mask = *t->mask;
  m->mask.head = m->share.head;
  return DIL_OK;
}

static dil_status member_open(member *m) {
  const crew_task *t = &m->crew->task;
  m->branches = malloc(share_size(t->table) + 1);
  if (!m->branches)
    return dil_fail(DIL_MEMORY, "no memory for rank %d", m->rank);
  m->table = share_table(t->table, m->share, m->branches);
  if (t->gpu) return resident_open(t->gpu, &m->table, m->seat, &m->resident);
  dil_status status =
      cpu_kernel_new(&m->table, make_shared, m->crew, &m->kernel);
  return status ? status : ring_cpu_new(m->kernel, t->threads, &m->device);
}

static ring_device *device_of(const member *m) {
  return m->resident.shared ? m->resident.device : m->device;
}

static dil_status member_new(crew *c, int32_t rank) {
  member *m = c->member[rank] = calloc(1, sizeof *m);
  if (!m) return dil_fail(DIL_MEMORY, "no memory for rank %d", rank);
  m->crew = c;
  m->rank = m->seat = rank;
  return DIL_OK;
}

static void member_shut(member *m) {
  if (m->comm) m->crew->task.nccl->leave(m->comm);
  ring_routes_free(&m->routes, device_of(m));
  resident_close(&m->resident);
  ring_device_free(m->device);
  cpu_kernel_free(m->kernel);
  free(m->branches);
  m->comm = NULL;
  m->device = NULL;
  m->kernel = NULL;
  m->branches = NULL;
}

void member_close(member *m) {
  if (!m) return;
  member_shut(m);
  free(m->store);
  free(m);
}

dil_status member_reopen(member *m) {
  bool open = m->branches != NULL;
  member_shut(m);
  dil_status status = member_share(m);
  return status || !open ? status : member_open(m);
}

dil_status crew_new(const crew_task *task, crew **made) {
  int32_t ranks = mesh_ranks(&task->mesh);
  crew *c = calloc(1, sizeof *c + (size_t)ranks * sizeof(member *));
  if (!c) return dil_fail(DIL_MEMORY, "no memory for %d ranks", ranks);
  c->task = *task;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < ranks && !status; i++) {
    status = member_new(c, i);
    if (!status) status = member_share(c->member[i]);
    if (!status && (!task->link || i == task->rank))
      status = member_open(c->member[i]);
  }
  /* A rank chooses among the variants by its part of a call: it needs all. */
  for (int32_t v = 0; v < DIL_VARIANT_COUNT && !status && !task->gpu; v++)
    status = make_once(c, (dil_variant)v);
  if (status) crew_free(c);
  else *made = c;
  return status;
}

void crew_free(crew *c) {
  if (!c) return;
  for (int32_t i = 0; i < mesh_ranks(&c->task.mesh); i++)
    member_close(c->member[i]);
  for (int32_t v = 0; v < DIL_VARIANT_COUNT; v++) free(c->made[v].bytes);
  free(c);
}

/* ---- a run --------------------------------------------------------------- */

/* The call with the inputs in the memory of the rank's device. */
static dil_call member_call(const member *m) {
  dil_call call = *m->crew->call;
  if (m->resident.shared) call.inputs = m->resident.inputs;
  return call;
}

static dil_status member_run(member *m, dil_link *link) {
  const crew_task *t = &m->crew->task;
  dil_call call = member_call(m);
  ring_rows owned;
  dil_ring r = {.shape = member_shape(m, &call),
                .B = call.q.shape[0],
                .batch = (int32_t)member_batch(m, &call).first,
                .head = m->share.head,
                .link = link,
                .device = device_of(m),
                .routes = &m->routes,
                .call = &call,
                .rows = m->resident.shared ? &m->resident.rows : &owned,
                .plan_hash = t->plan_hash,
                .checkpoint = t->checkpoint,
                .stepped = t->stepped,
                .watcher = t->watcher};
  r.checkpoint.name = m->rank;
  member_view(m, &call, &owned);
  if (t->spoil) t->spoil(&r, m->rank);
  dil_status status = ring_run(&r);
  r.facts.memory += m->resident.bytes;
  m->report.facts = r.facts;
  return status;
}

/* Makes a communicator for the rank's GPU unless every rank has one. After the
 * crew has shrunk, some ranks may lack one, so the ranks ask each other. */
static dil_status member_join(member *m) {
  const dil_nccl_module *nccl = m->crew->task.nccl;
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

/* A run, or crew_join, with rows that travel by NCCL. */
static dil_status member_run_nccl(member *m) {
  const dil_nccl_module *nccl = m->crew->task.nccl;
  dil_link *link = NULL;
  dil_status status = member_join(m);
  if (status || !m->crew->call) return status;
  status = nccl->link(m->comm, m->link, m->crew->task.shrinks, &link);
  if (!status) status = member_run(m, link);
  link_free(link);
  return status;
}

static dil_status member_work(member *m) {
  const crew_task *t = &m->crew->task;
  if (!t->nccl) return m->crew->call ? member_run(m, m->link) : DIL_OK;
  dil_status status = t->gpu->cuda->enter(m->resident.gpu);
  if (status) return status;
  status = member_run_nccl(m);
  t->gpu->cuda->leave(m->resident.gpu);
  return status;
}

static void member_try(member *m) {
  m->report.status = member_work(m);
  snprintf(m->report.text, sizeof m->report.text, "%s",
           m->report.status ? dil_last_error() : "");
  m->lost = false;
  if (m->report.status && m->crew->task.shrinks) member_ask_lost(m);
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

/* Starts the thread of a rank; a failure revokes the link for the others. */
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
                               &c->member[i]->link);
    if (!status) c->member[i]->link->first = i - i % m->ring;
  }
  for (int32_t i = 0; i < mesh_ranks(m) && status; i++) {
    link_free(c->member[i]->link);
    c->member[i]->link = NULL;
  }
  return status;
}

static dil_status worst(const crew *c) {
  const crew_report *found = NULL;
  for (int32_t i = 0; i < mesh_ranks(&c->task.mesh); i++) {
    const crew_report *r = &c->member[i]->report;
    bool better = !found || (found->status == DIL_PEER && r->status != DIL_PEER);
    if (r->status && better) found = r;
  }
  return found ? dil_fail(found->status, "%s", found->text) : DIL_OK;
}

static dil_status run_alone(crew *c) {
  member *m = c->member[c->task.rank];
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
  for (int32_t i = 0; i < ranks && !status; i++) member_start(c->member[i]);
  for (int32_t i = 0; i < ranks && !status; i++)
    if (c->member[i]->started) pthread_join(c->member[i]->thread, NULL);
  for (int32_t i = 0; hub && i < rings; i++) thread_hub_free(hub[i]);
  free(hub);
  return status ? status : worst(c);
}

dil_status crew_run(crew *c, const dil_call *call) {
  c->call = call;
  return c->task.link ? run_alone(c) : run_all(c);
}

dil_status crew_join(crew *c) {
  c->call = NULL;
  return c->task.nccl ? (c->task.link ? run_alone(c) : run_all(c)) : DIL_OK;
}

const crew_report *crew_of(const crew *c, int32_t rank) {
  return &c->member[rank]->report;
}
