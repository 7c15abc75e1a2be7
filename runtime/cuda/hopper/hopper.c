/* hopper.c - launches of the Hopper kernel.
 *
 * In: a checked call and a loaded code. Out: one launch for each pass. Its
 * single parameter (templates/hopper/hopper_launch.h) holds the tensor maps,
 * the pattern's tables and this call's numbers. The tables are made once.
 * Launches for the last few call sizes and maps of the last tensors are cached.
 * */
#include "hopper.h"
#include "hopper_blocks.h"
#include "hopper_sizes.h"
#include "maps.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"
#include "runtime/cuda/launch/counters.h"
#include "runtime/rowset/walk.h"
#include "runtime/tables/launch_layout.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- the cache between launches ------------------------------------------ */

typedef struct hopper_memory {
  pthread_mutex_t lock;
  bool nested;             /* the segments of every pass are nested */
  hopper_table *table[64]; /* by pass; NULL: the code does not run the pass */
  launch_layout layout;    /* of the code's parameter */
  map_cache maps;
  hopper_sizes sizes;
} hopper_memory;

static void hopper_close(cuda_code *code) {
  hopper_memory *m = code->memory;
  for (int32_t p = 0; p < 64; p++) free(m->table[p]);
  maps_close(&m->maps);
  pthread_mutex_destroy(&m->lock);
  free(m);
  code->memory = NULL;
}

static dil_status hopper_make_table(const dil_table *from, int32_t pass,
                                    bool nested, const cuda_code *code,
                                    hopper_table **table) {
  char reason[128];
  hopper_table *t = *table = malloc(sizeof *t);
  if (!t) return dil_fail(DIL_MEMORY, "no memory for tables of a kernel");
  if (hopper_table_fill(from, pass, code->about.tile_keys, t, reason,
                        sizeof reason)) {
    t->pairwise &= !code->about.knob[HOPPER_KNOB_SCORES];
    t->packs =
        nested && !t->pairwise && from->value_dim <= 64 &&
        code->about.tile_rows == HOPPER_PACKING_ROWS; /* like TILE_PACKING */
    return DIL_OK;
  }
  return dil_fail(DIL_INTERNAL, "Hopper kernels without tables: %s", reason);
}

static dil_status hopper_open(const dil_table *table, cuda_code *code) {
  hopper_memory *m = calloc(1, sizeof *m);
  if (!m) return dil_fail(DIL_MEMORY, "no memory for a kernel's launches");
  pthread_mutex_init(&m->lock, NULL);
  code->memory = m;
  dil_status status = DIL_OK;
  m->nested = true;
  m->layout = layout_of(table, !code->about.knob[HOPPER_KNOB_WHOLE]);
  for (int32_t p = 0; p < table->pass_count; p++)
    m->nested &= hopper_is_nested(table, table->passes[p].branches);
  for (int32_t p = 0; p < table->pass_count && p < 64 && !status; p++) {
    if (!(code->about.passes >> p & 1)) continue;
    status = hopper_make_table(table, p, m->nested, code, &m->table[p]);
    if (!status) layout_add(&m->layout, m->table[p]);
  }
  if (!status) status = maps_open(&m->maps, 2 * m->layout.strides);
  if (status) hopper_close(code);
  return status;
}

/* ---- the launch ---------------------------------------------------------- */

static hopper_place hopper_place_of(const cuda_run *r, int32_t pass) {
  hopper_place place = r->shard
                           ? hopper_place_shard(r->table, pass, r->shard, r->B)
                           : hopper_place_whole(r->B, r->N, r->M);
  if (r->call->packed.queries) place.packed = cuda_rows(r);
  place.shorter = r->call->lengths || place.packed;
  return place;
}

/* The same with what a code adds to it. */
static hopper_place hopper_place_by(const cuda_run *r, int32_t pass,
                                    const cuda_code *code) {
  hopper_place place = hopper_place_of(r, pass);
  place.sorted = code->about.knob[HOPPER_KNOB_LISTS] > 0;
  return place;
}

/* The form of the launches of a pass by a code. */
static hopper_form hopper_form_of(const cuda_run *r, int32_t pass,
                                  const cuda_code *code) {
  const hopper_memory *m = code->memory;
  return (hopper_form){.table = m->table[pass],
                       .pass = pass,
                       .tile_rows = code->about.tile_rows,
                       .group = r->table->heads / r->table->kv_heads,
                       .processors = r->device->facts.processors};
}

/* Whether scores keep the scale of products. */
static bool hopper_has_scale(const cuda_run *r, const cuda_code *code) {
  return !r->table->scored ||
         code->about.knob[HOPPER_KNOB_FORM] == CUDA_SCORE_LINEAR;
}

static void hopper_fill_call(const cuda_run *r, const cuda_code *code,
                             hopper_launch *l) {
  const float log2_e = 1.44269504088896340736f;
  const dil_call *c = r->call;
  l->scale = hopper_has_scale(r, code) ? r->scale * log2_e : log2_e;
  /* LOWEST and the slack stay below the score of any key. */
  l->slack = fminf(8 / l->scale, 1e30f);
  l->natural = r->scale;
  l->all_batches = (int)(r->shard ? r->shard->B : r->B);
  l->all_queries = (int)(r->shard ? r->shard->N : r->N);
  l->batch = r->shard ? r->shard->batch : 0;
  l->head = r->shard ? r->shard->head : 0;
  cuda_inputs_fill(r, l->input);
  l->seed_at = c->seed_at;
  l->seed_low = (unsigned)c->seed;
  l->seed_high = (unsigned)(c->seed >> 32);
  l->weight = r->drop ? r->weight / (float)(1 - r->table->dropout) : r->weight;
  l->lengths = c->lengths;
  l->o_data = c->o.data;
  l->o_batch = c->o.stride[0];
  l->o_row = c->o.stride[1];
  l->o_head = c->o.stride[2];
  l->lse = c->lse.data;
  l->lse_batch = c->lse.stride[0];
  l->lse_head = c->lse.stride[1];
  l->lse_row = c->lse.stride[2];
  l->state_o = r->state_o;
  l->state_lse = r->state_lse;
  l->state_rows = (int)cuda_state_rows(r);
  hopper_divide_by(r->state_stride, &l->state_stride_ratio,
                   &l->state_stride_shift);
  l->heads = r->table->heads;
}

/* How a chained head ends in this pass, as hopper_finish; in a shard of a
 * sequence every head is chained. Its rows resume from the running state and
 * leave their new state to the next pass or shard. From an opening pass on,
 * every pass writes the output too. The opening pass itself resumes nothing,
 * and rows that no later pass or shard computes leave no state. */
static int hopper_finish_of(const cuda_run *r, int32_t pass) {
  int how = pass == r->opening ? 0 : HOPPER_RESUME;
  if (combine_is_additive(r->table) && !r->shard) how |= HOPPER_ADD;
  if (!r->opened) return how | HOPPER_LEAVE;
  if (r->opening < 0) return how | HOPPER_LEAVE | HOPPER_WRITE;
  if (!r->shard && !r->later) return how;
  return how | HOPPER_LEAVE | HOPPER_WRITE | HOPPER_SOME;
}

static int64_t hopper_state_stride(const cuda_run *r) {
  const dil_table *t = r->table;
  const hopper_place place = hopper_place_of(r, r->opening);
  uint64_t later = 0;
  for (int32_t p = 0; p < t->pass_count; p++)
    if (p != r->opening) later |= t->passes[p].branches;
  return hopper_live_stride(t, later, &place);
}

static void hopper_fill_finish(const cuda_run *r, int32_t pass,
                               const hopper_table *table, hopper_launch *l) {
  int how = hopper_finish_of(r, pass);
  const hopper_place place = hopper_place_of(r, pass);
  if (how & HOPPER_SOME) hopper_live_fill(r->table, r->later, &place, l);
  bool writes = !r->state_o;
  for (int32_t i = 0; r->state_o && i < table->instance_count; i++) {
    bool chained = r->shard || r->chained[l->instances[i].head];
    l->instances[i].finish = (signed char)(chained ? how : 0);
    writes |= !chained;
  }
  if (!writes) l->early = 0; /* every row keeps its state */
}

static dil_status hopper_fill_maps(const cuda_run *r, int32_t pass,
                                   const cuda_code *code, hopper_launch *l) {
  const dil_table *t = r->table;
  const dil_call *c = r->call;
  hopper_memory *m = code->memory;
  int32_t keys = code->about.tile_keys;
  map_view views[4] = {maps_view(&c->q, t->head_dim, 64),
                       maps_view(&c->k, t->head_dim, keys),
                       maps_view(&c->v, t->value_dim, keys),
                       maps_view(&c->o, t->value_dim, 16)};
  hopper_maps *const maps[4] = {&l->q, &l->k, &l->v, &l->o};
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < 4 && !status; i++) {
    views[i].pass = pass;
    status = maps_find(&m->maps, r->device->driver, &views[i],
                       m->table[pass]->strides, m->table[pass]->stride_count,
                       *maps[i]);
  }
  if (status || !l->boxes) return status;
  views[3].box = HOPPER_ZERO_ROWS(t->value_dim);
  views[3].pass = -1 - pass;
  return maps_find(&m->maps, r->device->driver, &views[3], &l->residues, 1,
                   &l->zeros);
}

/* Fills a launch, except its counters. */
static dil_status hopper_prepare(const cuda_run *r, int32_t pass,
                                 const cuda_code *code, hopper_launch *l) {
  hopper_memory *m = code->memory;
  pthread_mutex_lock(&m->lock);
  const hopper_form form = hopper_form_of(r, pass, code);
  const hopper_place place = hopper_place_by(r, pass, code);
  const hopper_sized_launch *s = sizes_find(&m->sizes, &form, &place);
  bool refused = s->refused;
  layout_copy(&m->layout, &s->launch, l);
  dil_status status = refused ? DIL_OK : hopper_fill_maps(r, pass, code, l);
  pthread_mutex_unlock(&m->lock);
  hopper_fill_call(r, code, l);
  hopper_fill_documents(r, m->table[pass], false, r->workspace, l);
  hopper_fill_finish(r, pass, m->table[pass], l);
  if (refused) return dil_fail(DIL_USAGE, "more than 2^30 tiles in one call");
  return status;
}

/* Why documents exclude the run forward; NULL: they do not. */
static const char *hopper_refuses_packed(const cuda_run *r, const hopper_table *table,
                                         const cuda_code *code) {
  const dil_packed *packed = &r->call->packed;
  if (r->shard) return "documents of a shard";
  if (r->table->sinks && packed->keys != packed->queries)
    return "sinks of documents that may have more rows than keys";
  return hopper_refuses_documents(r, code->about.knob[HOPPER_KNOB_DOCUMENTS],
                                  table->interval && table->endless, table->bare);
}

/* Why this call's sizes and strides exclude the kernel; NULL: they do not. For
 * few queries, kernels with split-K are faster. */
static const char *hopper_refusal(const cuda_run *r, int32_t pass,
                                  const cuda_code *code) {
  enum { FEW_QUERIES = 64 };
  const dil_call *c = r->call;
  const dil_table *t = r->table;
  dil_progression asking = cuda_queries(r);
  int64_t M = r->shard ? r->shard->M : r->M;
  if (r->shard && code->about.knob[HOPPER_KNOB_WHOLE])
    return "a shard of a sequence";
  bool finds_sinks = r->resumes && r->opening < 0;
  if (t->sinks && r->shard && !finds_sinks) return "sinks of a shard";
  if (t->sinks && !finds_sinks && (c->lengths || r->N > r->M))
    return "sinks of rows before position 0";
  if (cuda_list_is_short(r, pass)) return "a list of few keys";
  if (pages_given(c)) return "pages of a cache";
  if (r->shard && c->lengths) return "lengths of a shard";
  if (r->M == 0) return "no keys";
  if (asking.step > 1 || cuda_keys(r).step > 1) return "rows that lie apart";
  if (!(r->scale > 0) && hopper_has_scale(r, code))
    return "a scale that is not positive";
  if (r->N < FEW_QUERIES) return "fewer than 64 queries";
  if (M > 1 << 29 || r->N > 1 << 29) return "more than 2^29 rows";
  if (r->B > 1 << 16) return "more than 2^16 batch rows";
  const hopper_memory *m = code->memory;
  const hopper_table *table = m->table[pass];
  const char *documents =
      c->packed.queries ? hopper_refuses_packed(r, table, code) : NULL;
  if (documents) return documents;
  if (c->lengths && !m->nested)
    return "lengths where segments are not nested";
  if (c->lengths && table->interval && table->endless)
    return "lengths where only some branches have segments";
  if (asking.first < 0 && table->interval &&
      (table->endless || asking.first + asking.count <= 0))
    return "queries before the first key";
  bool described = maps_can(&c->q) && maps_can(&c->k) && maps_can(&c->v) &&
                   maps_can(&c->o);
  if (!described) return "tensors that no tensor map describes";
  /* last: explain says the reason of the other variant */
  if (r->drop == (code->about.knob[HOPPER_KNOB_DROPS] != 0)) return NULL;
  return r->drop ? "dropout" : "no dropout";
}

static void hopper_estimate(const cuda_run *r, int32_t pass,
                            const cuda_code *code, dil_cuda_pass *out) {
  const hopper_memory *m = code->memory;
  const hopper_table *table = m->table[pass];
  const hopper_form form = hopper_form_of(r, pass, code);
  hopper_sized_launch s = {.place = hopper_place_by(r, pass, code)};
  sizes_fill(&form, &s);
  out->tile_rows = s.launch.tile_rows;
  out->classes = table->class_count;
  out->tiles = s.launch.tiles;
  out->parts = out->pack = 1;
  hopper_count(table, &s.launch, code->about.tile_keys, out);
}

/* Dropout needs room for two words of each key. */
static int64_t hopper_words_bytes(const cuda_run *r, const cuda_code *code) {
  if (!code->about.knob[HOPPER_KNOB_DROPS]) return 0;
  return round_up(r->B * r->table->heads * cuda_keys(r).count * 2 *
                      (int64_t)sizeof(unsigned), 256);
}

/* The memory of lists and of the tiles' order. */
static int64_t hopper_lists_bytes(const cuda_run *r, int32_t pass,
                                  const cuda_code *code) {
  hopper_memory *m = code->memory;
  hopper_launch l = {.keys = (int)(r->shard ? r->shard->M : r->M)};
  pthread_mutex_lock(&m->lock);
  const hopper_form form = hopper_form_of(r, pass, code);
  const hopper_place place = hopper_place_by(r, pass, code);
  l.tiles = sizes_find(&m->sizes, &form, &place)->launch.tiles;
  pthread_mutex_unlock(&m->lock);
  return hopper_blocks_fill(r, code, NULL, &l) +
         hopper_order_fill(r, code, NULL, &l);
}

static int64_t hopper_workspace(const cuda_run *r, int32_t pass,
                                const cuda_code *code) {
  const hopper_memory *m = code->memory;
  if (r->call->packed.queries)
    return hopper_documents_bytes(m->table[pass], r->B, cuda_rows(r));
  int64_t words = hopper_words_bytes(r, code);
  if (!code->about.knob[HOPPER_KNOB_LISTS]) return words;
  return words + hopper_lists_bytes(r, pass, code);
}

enum { HOPPER_FORWARD, HOPPER_DOCUMENTS }; /* entries */

static dil_status hopper_start(const cuda_run *r, const cuda_code *code,
                               int64_t blocks, const hopper_launch *l) {
  const hopper_memory *m = code->memory;
  char parameter[sizeof *l];
  layout_pack(&m->layout, l, parameter);
  return cuda_launch(r, code, HOPPER_FORWARD, blocks, code->about.threads,
                     code->about.shared, parameter);
}

/* Finds the tiles of documents, which the launch reads. */
static dil_status hopper_find_documents(const cuda_run *r, const cuda_code *code,
                                        const hopper_launch *l) {
  const hopper_memory *m = code->memory;
  char parameter[sizeof *l];
  if (!l->documents) return DIL_OK;
  layout_pack(&m->layout, l, parameter);
  return cuda_launch(r, code, HOPPER_DOCUMENTS, 1, HOPPER_ORDER_THREADS, HOPPER_ORDER_BYTES,
                     parameter);
}

static dil_status hopper_make(const cuda_run *r, const cuda_code *code,
                              int what, hopper_launch *l) {
  l->makes_lists = what;
  dil_status status = hopper_start(r, code, r->device->facts.processors, l);
  l->makes_lists = 0;
  return status;
}

/* Makes the lists that the launch reads, and the order of its tiles. */
static dil_status hopper_make_lists(const cuda_run *r, const cuda_code *code,
                                    hopper_launch *l) {
  char *memory = r->workspace + hopper_words_bytes(r, code);
  int64_t bytes = hopper_blocks_fill(r, code, memory, l);
  dil_status status =
      bytes ? hopper_make(r, code, HOPPER_MAKES_LISTS, l) : DIL_OK;
  if (status || !hopper_order_fill(r, code, memory + bytes, l)) return status;
  status = hopper_make(r, code, HOPPER_MAKES_LEVELS, l);
  if (!status) status = hopper_make(r, code, HOPPER_MAKES_ORDER, l);
  return status;
}

/* Draws these words, which the launch reads. */
static dil_status hopper_draw(const cuda_run *r, const cuda_code *code,
                              hopper_launch *l) {
  if (!code->about.knob[HOPPER_KNOB_DROPS]) return DIL_OK;
  l->words = (unsigned *)r->workspace;
  l->v_data = r->call->v.data;
  l->v_batch = r->call->v.stride[0];
  l->v_row = r->call->v.stride[1];
  l->v_head = r->call->v.stride[2];
  l->draws = true;
  dil_status status = hopper_start(r, code, r->device->facts.processors, l);
  l->draws = false;
  return status;
}

static dil_status hopper_launch_pass(const cuda_run *r, int32_t pass,
                                     const cuda_code *code) {
  hopper_launch l;
  cuda_counter counter;
  cuda_counters *counters = r->device->counters;
  dil_status status = hopper_prepare(r, pass, code, &l);
  if (r->shard && !status && !l.tiles) return DIL_OK; /* no row sees a key:
                                                          nothing to do */
  if (!status) status = hopper_draw(r, code, &l);
  if (!status) status = hopper_make_lists(r, code, &l);
  if (!status) status = hopper_find_documents(r, code, &l);
  if (!status) status = counters_take(counters, r->stream, &counter);
  if (status) return status;
  l.counters = (unsigned *)(uintptr_t)counter.memory;
  int64_t work = maximum(l.tiles, maximum(l.spans, l.boxes));
  int64_t blocks = minimum(maximum(work, l.early),
                           r->device->facts.processors);
  status = hopper_start(r, code, blocks, &l);
  return counters_give(counters, r->stream, &counter, status);
}

const cuda_family cuda_hopper = {.name = "hopper",
                                 .entry = {"hopper_forward", "hopper_documents"},
                                 .open = hopper_open,
                                 .close = hopper_close,
                                 .refusal = hopper_refusal,
                                 .estimate = hopper_estimate,
                                 .workspace = hopper_workspace,
                                 .state_stride = hopper_state_stride,
                                 .launch = hopper_launch_pass};
