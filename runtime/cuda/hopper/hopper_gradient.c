/* hopper_gradient.c - see hopper_gradient.h. In: a checked call, with o, lse
 * and dO, and a loaded code. Out: launches of gradients. Tables are made once;
 * maps and sizes of the last calls are kept, as hopper.c does. */
#include "hopper_gradient.h"
#include "hopper_sizes.h"
#include "maps.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/cuda/launch/counters.h"
#include "runtime/rowset/walk.h"
#include "runtime/tables/hopper_gradient_table.h"
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(hopper_backward_launch) ==
                       sizeof(hopper_launch) + HOPPER_BACKWARD_BYTES &&
                   offsetof(hopper_backward_launch, of) == 0,
               "templates/hopper/backward.cu has another launch");

enum { HELD_ROWS = 64 }; /* of a warpgroup */

typedef struct gradient_memory {
  pthread_mutex_t lock;
  hopper_table *table; /* by pass */
  bool nested;         /* the segments of every pass are nested */
  bool misses; /* some rows are in no tile of the first pass */
  launch_layout layout; /* of the parameter's `of` */
  int32_t apart; /* of rows that later passes have; 1: all may be such */
  short phase[HOPPER_LIVE_PHASES]; /* of a head's, see hopper_backward_launch */
  map_cache maps;
  hopper_sizes sizes;
} gradient_memory;

static bool gradient_holds_keys(const cuda_code *code) {
  return code->about.knob[GRADIENT_KNOB_MAKES] != GRADIENT_Q;
}

/* ---- what is kept between launches --------------------------------------- */

static void hopper_gradient_close(cuda_code *code) {
  gradient_memory *m = code->memory;
  free(m->table);
  maps_close(&m->maps);
  pthread_mutex_destroy(&m->lock);
  free(m);
  code->memory = NULL;
}

static dil_status gradient_fill_table(const dil_table *from, int32_t pass,
                                      const cuda_code *code,
                                      gradient_memory *m) {
  char reason[128];
  hopper_table *t = &m->table[pass];
  bool keys = gradient_holds_keys(code);
  m->nested &= hopper_is_nested(from, from->passes[pass].branches);
  if (!hopper_gradient_table_fill(from, pass, keys, code->about.tile_keys, t,
                                  reason, sizeof reason))
    return dil_fail(DIL_INTERNAL, "Hopper kernels without tables: %s", reason);
  int64_t intervals = t->interval ? t->period / t->interval : 1;
  int32_t heads = keys ? from->kv_heads : from->heads;
  if (pass == 0)
    m->misses = t->bare || t->instance_count < heads * intervals;
  t->bare = false; /* hopper_clear sees to those rows */
  return DIL_OK;
}

static dil_status hopper_gradient_open(const dil_table *table,
                                       cuda_code *code) {
  gradient_memory *m = calloc(1, sizeof *m);
  if (!m) return dil_fail(DIL_MEMORY, "no memory for a kernel's launches");
  pthread_mutex_init(&m->lock, NULL);
  code->memory = m;
  m->nested = true;
  m->layout = layout_of(table, false);
  m->apart = 1;
  if (!code->about.knob[GRADIENT_KNOB_SHARDS]) {
    layout_add_phases(&m->layout, table);
    m->apart = hopper_live_phases(table, gradient_holds_keys(code), m->phase);
  }
  dil_status status = DIL_OK;
  m->table = malloc((size_t)table->pass_count * sizeof *m->table);
  if (!m->table)
    status = dil_fail(DIL_MEMORY, "no memory for tables of a kernel");
  for (int32_t p = 0; p < table->pass_count && !status; p++) {
    status = gradient_fill_table(table, p, code, m);
    if (!status) layout_add(&m->layout, &m->table[p]);
  }
  if (!status) status = maps_open(&m->maps, 2 * m->layout.strides);
  if (status) hopper_gradient_close(code);
  return status;
}

/* ---- the launch ---------------------------------------------------------- */

/* The place of a shard whose keys are held, and are the rows. */
static hopper_place gradient_place_keys(const cuda_run *r) {
  const dil_progression *q = &r->shard->queries, *k = &r->shard->keys;
  return (hopper_place){.batches = r->B, .rows = r->M, .first = k->first,
                        .low = k->first, .high = k->first + k->count,
                        .key_low = q->first, .key_high = q->first + q->count,
                        .M = r->shard->M, .shard = true};
}

/* Of a packed call: the rows of the tensors that tiles hold. */
static int64_t gradient_held_rows(const cuda_run *r, bool holds_keys) {
  const dil_tensor *held = holds_keys ? &r->call->k : &r->call->q;
  return held->shape[0] * held->shape[1];
}

/* Rows that tiles hold, as rows; rows that they stream, as keys. */
static hopper_place gradient_place(const cuda_run *r, int32_t pass,
                                   bool holds_keys) {
  if (r->shard)
    return holds_keys ? gradient_place_keys(r)
                      : hopper_place_shard(r->table, pass, r->shard, r->B);
  hopper_place place = hopper_place_whole(r->B, r->N, r->M);
  if (r->call->packed.queries) place.packed = gradient_held_rows(r, holds_keys);
  place.shorter = r->call->lengths || place.packed;
  if (!holds_keys) return place;
  place.rows = r->M;
  place.first = place.low = 0;
  place.key_low = r->M - r->N;
  return place;
}

static hopper_gradient gradient_view(const gradient_target *target) {
  const dil_tensor *to = target->to;
  int64_t head = to->shape[3], row = to->shape[2] * head;
  if (to->data && target->sums)
    return (hopper_gradient){target->sums, to->shape[1] * row, row, head};
  return (hopper_gradient){to->data, to->stride[0], to->stride[1],
                           to->stride[2]};
}

static dil_status gradient_fill_maps(const gradient_run *g, int32_t pass,
                                     const cuda_code *code, hopper_launch *l) {
  const cuda_run *r = g->of;
  const dil_call *c = r->call;
  gradient_memory *m = code->memory;
  bool keys = gradient_holds_keys(code);
  int32_t head = r->table->head_dim, value = r->table->value_dim;
  int32_t rows = code->about.tile_keys;
  const hopper_table *t = &m->table[pass];
  map_view held[2] = {maps_view(keys ? &c->k : &c->q, head, HELD_ROWS),
                      maps_view(keys ? &c->v : &c->o, value, HELD_ROWS)};
  map_view streamed[2] = {maps_view(keys ? &c->q : &c->k, head, rows),
                          maps_view(keys ? &c->o : &c->v, value, rows)};
  map_view *const views[4] = {&held[0], &held[1], &streamed[0], &streamed[1]};
  hopper_maps *const maps[4] = {&l->q, &l->o, &l->k, &l->v};
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < 4 && !status; i++) {
    views[i]->pass = pass;
    status = maps_find(&m->maps, r->device->driver, views[i], t->strides,
                       t->stride_count, *maps[i]);
  }
  return status;
}

void hopper_gradient_fill(const gradient_run *g, const hopper_gradient_space *space,
                          int32_t makes, hopper_backward_launch *l) {
  const float log2_e = 1.44269504088896340736f;
  const cuda_run *r = g->of;
  bool keys = makes != GRADIENT_Q;
  const hopper_gradient none = {0};
  float kept = r->drop ? (float)(1 / (1 - r->table->dropout)) : 1;
  l->of.scale = r->scale * log2_e;
  l->of.natural = r->scale;
  l->of.lengths = r->call->lengths;
  l->of.all_batches = (int)(r->shard ? r->shard->B : r->B);
  l->of.all_queries = (int)(r->shard ? r->shard->N : r->N);
  l->of.batch = r->shard ? r->shard->batch : 0;
  l->of.head = r->shard ? r->shard->head : 0;
  cuda_inputs_fill(r, l->of.input);
  l->of.heads = keys ? r->table->kv_heads : r->table->heads;
  l->scored = makes == GRADIENT_V ? none : gradient_view(keys ? &g->k : &g->q);
  l->weighted = makes & GRADIENT_V ? gradient_view(&g->v) : none;
  if (space->query_sums) l->fused = gradient_view(&(gradient_target){.to = g->q.to});
  l->query_sums = space->query_sums;
  l->scored_factor = r->scale * kept * r->weight;
  l->weighted_factor = kept * r->weight;
  l->facts = space->facts;
  l->query_heads = r->table->heads;
  l->query_rows = (int)r->N;
  l->spoiled = space->spoiled;
  l->of.alone = space->alone;
  l->tops = space->tops;
  l->held_words = keys ? space->key_words : space->row_words;
  l->streamed_words = keys ? space->row_words : space->key_words;
  l->held_rows = (int)(keys ? r->M : r->N);
  l->streamed_rows = (int)(keys ? r->N : r->M);
  l->scored_marks = keys ? g->k.marks : g->q.marks;
  l->weighted_marks = g->v.marks;
}

/* Fills a launch, except its counters. */
static dil_status gradient_prepare(const gradient_run *g, int32_t pass,
                                   const hopper_gradient_space *space,
                                   const cuda_code *code,
                                   hopper_backward_launch *l) {
  const cuda_run *r = g->of;
  gradient_memory *m = code->memory;
  bool keys = gradient_holds_keys(code);
  const hopper_form form = {.table = &m->table[pass],
                            .pass = pass,
                            .tile_rows = code->about.tile_rows,
                            .group = r->table->heads / r->table->kv_heads,
                            .processors = r->device->facts.processors};
  const hopper_place place = gradient_place(r, pass, keys);
  pthread_mutex_lock(&m->lock);
  const hopper_sized_launch *s = sizes_find(&m->sizes, &form, &place);
  bool refused = s->refused;
  layout_copy(&m->layout, &s->launch, &l->of);
  memset((char *)l + sizeof l->of, 0, HOPPER_BACKWARD_BYTES);
  dil_status status =
      refused ? DIL_OK : gradient_fill_maps(g, pass, code, &l->of);
  pthread_mutex_unlock(&m->lock);
  if (refused) return dil_fail(DIL_USAGE, "more than 2^30 tiles in one call");
  hopper_gradient_fill(g, space, code->about.knob[GRADIENT_KNOB_MAKES], l);
  hopper_fill_documents(r, form.table, keys, space->lists, &l->of);
  if (l->of.documents) l->query_rows = (int)r->call->q.shape[1];
  return status;
}

int64_t hopper_gradient_pack(const launch_layout *layout,
                             const hopper_backward_launch *l, char *parameter) {
  int64_t bytes = layout_bytes(layout);
  layout_pack(layout, &l->of, parameter);
  memcpy(parameter + bytes, (const char *)l + sizeof l->of, HOPPER_BACKWARD_BYTES);
  return bytes + HOPPER_BACKWARD_BYTES;
}

static dil_status gradient_start(const gradient_run *g, const cuda_code *code,
                                 int32_t entry, int64_t blocks,
                                 int32_t threads, int32_t shared,
                                 const hopper_backward_launch *l) {
  const gradient_memory *m = code->memory;
  char parameter[sizeof *l];
  hopper_gradient_pack(&m->layout, l, parameter);
  return cuda_launch(g->of, code, entry, blocks, threads, shared, parameter);
}

/* A kernel over all rows, which blocks take in turn: of documents, those of the
 * tensor. */
static dil_status gradient_start_rows(const gradient_run *g, const cuda_code *code,
                                      int32_t entry, const hopper_backward_launch *l) {
  enum { BLOCKS_A_PROCESSOR = 8, THREADS = 256 };
  hopper_backward_launch all = *l;
  if (l->of.documents) {
    all.of.batches = 1;
    all.of.queries = gradient_holds_keys(code) ? l->of.document_keys : l->of.document_rows;
  }
  return gradient_start(g, code, entry,
                        BLOCKS_A_PROCESSOR * g->of->device->facts.processors, THREADS,
                        0, &all);
}

static dil_status gradient_launch(const gradient_run *g, const cuda_code *code,
                                  hopper_backward_launch *l) {
  const cuda_run *r = g->of;
  cuda_counters *counters = r->device->counters;
  cuda_counter counter;
  dil_status status = counters_take(counters, r->stream, &counter);
  if (status) return status;
  l->of.counters = (unsigned *)(uintptr_t)counter.memory;
  if (l->of.documents)
    status = gradient_start(g, code, HOPPER_ENTRY_DOCUMENTS, 1, HOPPER_ORDER_THREADS,
                            HOPPER_ORDER_BYTES, l);
  int64_t blocks = minimum(l->of.tiles, r->device->facts.processors);
  if (!status)
    status = gradient_start(g, code, HOPPER_ENTRY_PASS, blocks, code->about.threads,
                            code->about.shared, l);
  return counters_give(counters, r->stream, &counter, status);
}

/* A shard may have tiles for some of its rows only. */
bool hopper_gradient_opens(const gradient_run *g, const cuda_code *code) {
  const cuda_run *r = g->of;
  const gradient_memory *m = code->memory;
  bool packed = r->call->packed.queries && !r->alike; /* rows may have no document */
  if (m->misses || r->call->lengths || packed) return false;
  if (!r->shard) return r->N <= r->M;
  const hopper_place all = gradient_place(r, 0, gradient_holds_keys(code));
  return code->family != &cuda_hopper_fused && all.low <= all.first &&
         all.high >= all.first + all.rows;
}

bool hopper_gradient_settles(const gradient_run *g, const cuda_code *code) {
  const gradient_memory *m = code->memory;
  return !g->of->shard && m->apart > 1 && hopper_gradient_opens(g, code);
}

/* Says which rows come again, and where the others are rounded to. */
static void gradient_fill_end(const gradient_run *g, const cuda_code *code,
                              hopper_backward_launch *l) {
  const gradient_memory *m = code->memory;
  gradient_target scored = gradient_holds_keys(code) ? g->k : g->q;
  gradient_target weighted = g->v;
  scored.sums = weighted.sums = NULL;
  l->apart = m->apart;
  memcpy(l->of.live_phase, m->phase,
         (size_t)m->layout.live_phases * sizeof m->phase[0]);
  if (l->scored.data) l->scored_end = gradient_view(&scored);
  if (l->weighted.data) l->weighted_end = gradient_view(&weighted);
}

dil_status hopper_gradient_pass(const gradient_run *g, int32_t pass,
                                const hopper_gradient_space *space,
                                const cuda_code *code) {
  const dil_shard *shard = g->of->shard;
  hopper_backward_launch l;
  dil_status status = gradient_prepare(g, pass, space, code, &l);
  if (status || (!l.scored.data && !l.weighted.data && !l.query_sums))
    return status;
  l.opens = pass == 0 && (!shard || shard->opens) && hopper_gradient_opens(g, code);
  if (l.opens && hopper_gradient_settles(g, code)) gradient_fill_end(g, code, &l);
  if (pass == 0 && !shard && !l.opens)
    status = gradient_start_rows(g, code, HOPPER_ENTRY_CLEAR, &l);
  if (!l.of.tiles) return status; /* no row sees another */
  return status ? status : gradient_launch(g, code, &l);
}

dil_status hopper_gradient_round(const gradient_run *g,
                                 const hopper_gradient_space *space,
                                 const cuda_code *code) {
  hopper_backward_launch l;
  dil_status status = gradient_prepare(g, 0, space, code, &l);
  if (status || !l.fused.data) return status;
  return gradient_start_rows(g, code, HOPPER_ENTRY_ROUND, &l);
}

dil_status hopper_gradient_settle(const gradient_run *g,
                                  const hopper_gradient_space *space,
                                  const cuda_code *code) {
  hopper_backward_launch l;
  dil_status status = gradient_prepare(g, 0, space, code, &l);
  if (status || (!l.scored.data && !l.weighted.data)) return status;
  gradient_fill_end(g, code, &l);
  return gradient_start_rows(g, code, HOPPER_ENTRY_SETTLE, &l);
}

/* ---- space --------------------------------------------------------------- */

int64_t hopper_gradient_words(const cuda_run *r) {
  return r->drop ? r->B * r->table->heads * (r->N + r->M) : 0;
}

/* Facts take pairs: they begin at an even word. */
static int64_t space_facts(const cuda_run *r) {
  int64_t words = hopper_gradient_words(r) * (int64_t)sizeof(unsigned);
  return round_up(HOPPER_SPACE_HEAD + words, 8);
}

int64_t hopper_gradient_bytes(const cuda_run *r) {
  int64_t rows = cuda_rows(r) * r->table->heads;
  bool own = backward_asks_states(r->table);
  return space_facts(r) + (own ? rows * DIL_FACTS * (int64_t)sizeof(float) : 0);
}

int64_t hopper_gradient_sums(const cuda_run *r, const cuda_code *code) {
  enum { WIDTHS = 32 }; /* rows of sums are as wide as those of tiles */
  int64_t width = round_up(r->table->head_dim, WIDTHS);
  if (code->family != &cuda_hopper_fused) return 0;
  return r->B * r->N * r->table->heads * width * (int64_t)sizeof(float);
}

int64_t hopper_gradient_documents(const cuda_run *r, const cuda_code *code) {
  const gradient_memory *m = code->memory;
  int64_t rows = gradient_held_rows(r, gradient_holds_keys(code)), bytes = 0;
  for (int32_t p = 0; p < r->table->pass_count; p++)
    bytes = maximum(bytes, hopper_documents_bytes(&m->table[p], r->B, rows));
  return bytes;
}

hopper_gradient_space hopper_gradient_place(const gradient_run *g,
                                            char *memory) {
  const cuda_run *r = g->of;
  unsigned *head = (unsigned *)(void *)memory;
  unsigned *words = head + HOPPER_SPACE_HEAD / sizeof *head;
  float *own = (float *)(void *)(memory + space_facts(r));
  return (hopper_gradient_space){.facts = backward_asks_states(r->table)
                                              ? own
                                              : g->facts,
                                 .spoiled = head,
                                 .tops = (float *)(void *)(head + 1),
                                 .row_words = words,
                                 .key_words =
                                     words + r->B * r->table->heads * r->N};
}

/* ---- the family ---------------------------------------------------------- */

static bool gradient_is_described(const dil_tensor *t) {
  return !t->data || (t->dtype != DIL_F32 && maps_can(t));
}

/* Rows before position 0 are in no tile where some branches have segments. */
static bool gradient_has_early_rows(const gradient_memory *m, int32_t passes) {
  bool early = false;
  for (int32_t p = 0; p < passes; p++)
    early |= m->table[p].interval && m->table[p].endless;
  return early;
}

/* Whether a shard leaves out some branches of a pass, and not others. */
static bool gradient_leaves_some(const cuda_run *r) {
  bool some = false;
  for (int32_t p = 0; p < r->table->pass_count; p++) {
    uint64_t branches = r->table->passes[p].branches;
    some |= (branches & r->shard->left_out) && (branches & ~r->shard->left_out);
  }
  return some;
}

/* A shard adds to f32, in pairs of elements. */
static bool gradient_has_pairs(const dil_tensor *t) {
  bool pairs = (uintptr_t)t->data % (2 * sizeof(float)) == 0;
  for (int axis = 0; axis < 3; axis++) pairs &= t->stride[axis] % 2 == 0;
  return pairs;
}

static const char *gradient_shard_refusal(const gradient_run *g, bool early) {
  const cuda_run *r = g->of;
  if (cuda_queries(r).step > 1 || cuda_keys(r).step > 1)
    return "rows that lie apart";
  if (cuda_queries(r).first < 0 && early) return "queries before the first key";
  if (gradient_leaves_some(r)) return "some branches of a pass";
  if (r->shard->M > 1 << 29) return "more than 2^29 rows";
  if (!gradient_has_pairs(g->q.to) || !gradient_has_pairs(g->k.to) ||
      !gradient_has_pairs(g->v.to))
    return "sums that are not aligned";
  return NULL;
}

const char *hopper_gradient_refusal(const gradient_run *g,
                                    const cuda_code *code) {
  enum { FEW_ROWS = 64 };
  const cuda_run *r = g->of;
  const dil_call *c = r->call;
  const gradient_memory *m = code->memory;
  bool early = gradient_has_early_rows(m, r->table->pass_count);
  if (code->about.knob[GRADIENT_KNOB_SHARDS] != (r->shard != NULL))
    return r->shard ? "a shard" : "a whole sequence, by a kernel for shards";
  if (c->packed.queries && backward_asks_states(r->table))
    return "passes of documents with facts of their own";
  bool takes = code->about.knob[GRADIENT_KNOB_DOCUMENTS];
  const char *documents =
      c->packed.queries ? hopper_refuses_documents(r, takes, early, false) : NULL;
  if (documents) return documents;
  if (r->M == 0) return "no keys";
  if (c->lengths && !m->nested)
    return "lengths where segments are not nested";
  if (c->lengths && early)
    return "lengths where only some branches have segments";
  if (!r->shard && r->N > r->M && early) return "queries before the first key";
  if (!(r->scale > 0)) return "a scale that is not positive";
  if (r->N < FEW_ROWS) return "fewer than 64 queries";
  if (r->M > 1 << 29 || r->N > 1 << 29) return "more than 2^29 rows";
  if (r->B > 1 << 16) return "more than 2^16 batch rows";
  bool numbers = r->shard && r->shard->numbers;
  bool described = (numbers || gradient_is_described(&g->o)) &&
                   maps_can(&c->q) && maps_can(&c->k) && maps_can(&c->v) &&
                   maps_can(&c->o);
  if (!described) return "tensors that no tensor map describes";
  if (r->shard) return gradient_shard_refusal(g, early);
  if (!gradient_is_described(g->q.to) || !gradient_is_described(g->k.to) ||
      !gradient_is_described(g->v.to))
    return "gradients of another type, or that are not aligned";
  return NULL;
}

static const char *gradient_refuses_forward(const cuda_run *r, int32_t pass,
                                            const cuda_code *code) {
  (void)r;
  (void)pass;
  (void)code;
  return "it makes gradients";
}

const cuda_family cuda_hopper_gradient = {
    .name = "hopper gradient",
    .entry = {"hopper_backward", "hopper_clear", "hopper_facts", "hopper_settle",
              "hopper_documents"},
    .open = hopper_gradient_open,
    .close = hopper_gradient_close,
    .refusal = gradient_refuses_forward};
const cuda_family cuda_hopper_fused = {
    .name = "hopper fused",
    .entry = {"hopper_backward", "hopper_clear", "hopper_facts", "hopper_settle",
              "hopper_documents", "hopper_round"},
    .open = hopper_gradient_open,
    .close = hopper_gradient_close,
    .refusal = gradient_refuses_forward};
