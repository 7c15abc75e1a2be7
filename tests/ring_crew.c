/* ring_crew.c - see ring_crew.h. Each rank gets views of its own rows, a
 * kernel for its own heads, and a thread. */
#include "ring_crew.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct member {
  data *d;
  kernel_made *made;
  const crew_plan *mesh;
  crew_result *result;
  int32_t rank;
  dil_link *link;
  pthread_t thread;
} member;

/* Rows of a comb, heads and batch rows of a tensor [B, rows, H, D]. */
static dil_tensor view(const dil_tensor *whole, dil_comb comb, int64_t origin,
                       dil_comb batch, int32_t head, int32_t heads) {
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

static void view_rows(const data *d, const dil_ring *r, dil_comb batch,
                      head_share s, ring_rows *out) {
  int32_t rank = r->link->rank;
  shard mine = place_queries(&r->shape, rank), keys = place_keys(&r->shape, rank);
  int64_t origin = r->shape.M - r->shape.N;
  const dil_call *c = &d->call;
  for (int32_t i = 0; i < SHARD_COMBS; i++) {
    dil_comb q = i < mine.count ? mine.comb[i] : (dil_comb){origin, 1, 0};
    dil_comb k = i < keys.count ? keys.comb[i] : (dil_comb){0, 1, 0};
    out->q[i] = view(&c->q, q, origin, batch, s.head, s.heads);
    out->o[i] = view(&c->o, q, origin, batch, s.head, s.heads);
    out->lse[i] = view_lse(&c->lse, q, origin, batch, s.head, s.heads);
    out->k[i] = view(&c->k, k, 0, batch, s.kv_head, s.kv_heads);
    out->v[i] = view(&c->v, k, 0, batch, s.kv_head, s.kv_heads);
  }
}

static dil_status make_variant(void *context, dil_variant variant,
                               void **bytes, size_t *size, dil_code *code) {
  backend_request request = {.plan = context, .variant = variant};
  backend_code made = {0};
  dil_status status = cpu_backend()->compile(&request, &made);
  *bytes = made.bytes;
  *size = made.size;
  *code = made.code;
  return status;
}

static dil_status run_member(member *m) {
  const crew_plan *p = m->mesh;
  const dil_table *table = &m->made->plan->table;
  int32_t index = m->rank / p->ring;
  head_share share =
      share_heads(table->heads, table->kv_heads, p->heads, index % p->heads);
  shard batch = place_shard(DIL_CONTIGUOUS, m->d->shape.batch, 0, p->batch,
                            index / p->heads);
  dil_comb rows_here = batch.count ? batch.comb[0] : (dil_comb){0, 1, 0};
  void *memory = malloc(share_size(table));
  dil_table mine = share_table(table, share, memory);
  ring_rows owned;
  dil_ring r = {.shape = {&mine, p->layout, p->ring, m->d->shape.queries,
                          m->d->shape.keys},
                .B = m->d->shape.batch, .batch = (int32_t)rows_here.first,
                .head = share.head, .exchange = p->exchange, .link = m->link,
                .threads = dil_threads_new(1), .scratch = pool_new_host(NULL, NULL),
                .call = &m->d->call,
                .rows = &owned, .plan_hash = plan_hash(m->made->plan),
                .checkpoint = p->checkpoint};
  view_rows(m->d, &r, rows_here, share, &owned);
  dil_status status =
      cpu_kernel_new(&mine, make_variant, m->made->plan, &r.kernel);
  if (p->spoil) p->spoil(&r, m->rank);
  if (!status) status = ring_run(&r);
  m->result->facts[m->rank] = r.facts;
  cpu_kernel_free(r.kernel);
  dil_threads_free(r.threads);
  pool_free(r.scratch);
  free(memory);
  return status;
}

static void *run_thread(void *context) {
  member *m = context;
  dil_status status = run_member(m);
  m->result->status[m->rank] = status;
  snprintf(m->result->text[m->rank], sizeof m->result->text[0], "%s",
           status ? dil_last_error() : "");
  link_free(m->link);
  return NULL;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(dil_status status) {
  if (status) abort();
}

void crew_run(data *d, kernel_made *k, const crew_plan *mesh,
              crew_result *result) {
  int32_t rings = mesh->heads * mesh->batch, ranks = mesh->ring * rings;
  member all[CREW_MOST];
  thread_hub *hub[CREW_MOST];
  double start = now();
  for (int32_t i = 0; i < rings; i++)
    must(thread_hub_new(mesh->ring, mesh->timeout > 0 ? mesh->timeout : 30,
                        &hub[i]));
  for (int32_t i = 0; i < ranks; i++) {
    all[i] = (member){d, k, mesh, result, i, NULL, 0};
    must(thread_link_new(hub[i / mesh->ring], i % mesh->ring, &all[i].link));
  }
  for (int32_t i = 0; i < ranks; i++)
    if (pthread_create(&all[i].thread, NULL, run_thread, &all[i])) abort();
  for (int32_t i = 0; i < ranks; i++) pthread_join(all[i].thread, NULL);
  for (int32_t i = 0; i < rings; i++) thread_hub_free(hub[i]);
  result->seconds = now() - start;
}
