/* hopper.c - launches of the Hopper kernel.
 *
 * In: a checked call and a loaded code. Out: one launch a pass, whose single
 * parameter (templates/hopper_launch.h) holds the tensor maps, the pattern's
 * tables and this call's numbers; all by arithmetic on the tables. */
#include "device.h"
#include "hopper.h"
#include "../walk.h"
#include <stdatomic.h>
#include <string.h>

/* Of cuda.h's CUtensorMapDataType and its kin. */
enum {
  MAP_F16 = 6, MAP_BF16 = 9,
  MAP_SWIZZLE_64 = 2, MAP_SWIZZLE_128 = 3,
  MAP_PROMOTE_256 = 3
};

/* ---- tensor maps --------------------------------------------------------- */

/* How one tensor is read or written: rows of a box, columns that there are. */
typedef struct view {
  const dil_tensor *tensor;
  int64_t rows, heads, width;
  int32_t box;
} view;

static int32_t chunk_of(int64_t width) {
  return round_up(width, 32) % 64 ? 32 : 64;
}

static bool is_mappable(const dil_tensor *t) {
  for (int32_t axis = 0; axis < 3; axis++)
    if (t->shape[axis] > 1 &&
        (t->stride[axis] % 8 || t->stride[axis] < 0 ||
         t->stride[axis] >= (1ll << 39) / HOPPER_PERIOD))
      return false;
  return (uintptr_t)t->data % 16 == 0;
}

/* A stride in bytes; any will do where there is only one. */
static uint64_t bytes_of(const dil_tensor *t, int32_t axis) {
  return t->shape[axis] > 1 ? (uint64_t)t->stride[axis] * 2 : 16;
}

static dil_status encode(const cuda_run *r, const view *v, int64_t stride,
                         int64_t count, int64_t phases, hopper_map *map) {
  const dil_tensor *t = v->tensor;
  int32_t chunk = chunk_of(v->width);
  if (!count || !phases) return DIL_OK;
  const uint64_t size[5] = {(uint64_t)v->width, (uint64_t)count,
                            (uint64_t)phases, (uint64_t)v->heads,
                            (uint64_t)r->B};
  const uint64_t step[4] = {bytes_of(t, 1) * (uint64_t)stride, bytes_of(t, 1),
                            bytes_of(t, 2), bytes_of(t, 0)};
  const unsigned box[5] = {(unsigned)chunk, (unsigned)v->box, 1, 1, 1};
  const unsigned each[5] = {1, 1, 1, 1, 1};
  return cuda_check(
      r->device->driver,
      r->device->driver->tensor_map(
          map, r->table->dtype == DIL_BF16 ? MAP_BF16 : MAP_F16, 5, t->data,
          size, step, box, each, 0,
          chunk == 64 ? MAP_SWIZZLE_128 : MAP_SWIZZLE_64, MAP_PROMOTE_256, 0),
      "describe a tensor");
}

/* The two maps of each stride. */
static dil_status encode_all(const cuda_run *r, const hopper_table *table,
                             const view *v, hopper_maps maps) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < table->stride_count && !status; i++) {
    int64_t stride = table->strides[i], rest = v->rows % stride;
    status = encode(r, v, stride, v->rows / stride + 1, rest, &maps[i][0]);
    if (!status)
      status = encode(r, v, stride, v->rows / stride, stride, &maps[i][1]);
  }
  return status;
}

static dil_status fill_maps(const cuda_run *r, const hopper_table *table,
                            const cuda_code *code, hopper_launch *l) {
  const dil_table *t = r->table;
  const dil_call *c = r->call;
  const view views[4] = {
      {&c->q, r->N, t->heads, t->head_dim, 64},
      {&c->k, r->M, t->kv_heads, t->head_dim, code->about.tile_keys},
      {&c->v, r->M, t->kv_heads, t->value_dim, code->about.tile_keys},
      {&c->o, r->N, t->heads, t->value_dim, 16}};
  hopper_maps *const maps[4] = {&l->q, &l->k, &l->v, &l->o};
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < 4 && !status; i++)
    status = encode_all(r, table, &views[i], *maps[i]);
  for (int32_t i = 0; i < table->stride_count; i++) {
    l->query_rest[i] = (short)(r->N % table->strides[i]);
    l->key_rest[i] = (short)(r->M % table->strides[i]);
  }
  return status;
}

/* ---- tiles --------------------------------------------------------------- */

/* Cells of a home, tiles of a cell; the tiles of one block of all members. */
static int64_t count_tiles(const hopper_launch *l, const hopper_table *table,
                           int32_t tile_rows, hopper_class *k) {
  int64_t span = l->keys - l->origin;
  int64_t length = k->cell ? minimum(k->cell, span) : span;
  int64_t each = (length + k->stride - 1) / k->stride;
  k->tiles = (int)((each + tile_rows - 1) / tile_rows);
  k->cells = k->cell ? (int)minimum(l->home / k->cell,
                                    (span + k->cell - 1) / k->cell)
                     : 1;
  if (!k->cell) k->cell = (int)span;
  return (int64_t)table->shapes[k->shape].members * k->cells * k->tiles;
}

/* Numbers the tiles of all classes from `first` on, for `blocks` blocks. */
static int64_t number_tiles(hopper_launch *l, const hopper_table *table,
                            int32_t tile_rows, int32_t from, int32_t to,
                            int64_t blocks) {
  int64_t first = 0;
  for (int32_t i = from; i < to; i++) {
    int64_t each = count_tiles(l, table, tile_rows, &l->classes[i]);
    l->classes[i].first = (int)minimum(first, INT32_MAX);
    first += each * blocks;
  }
  return first;
}

/* The last tiles of all heads first where a causal cell is many tiles long;
 * sections of one block where there are many, to stay in the cache. */
static bool fill_tiles(const cuda_run *r, const hopper_table *table,
                       const cuda_code *code, hopper_launch *l) {
  enum { LONG = 16, MANY = 64 };
  int32_t tall = code->about.tile_rows;
  int32_t keyed = table->class_count - table->bare_count;
  int64_t t = maximum(r->M - r->N, 0);
  l->period = (int)(table->period ? table->period : r->N);
  l->home = (int)(table->home ? table->home : r->N);
  l->origin = (int)(table->home ? t / l->period * l->period : r->M - r->N);
  int64_t periods = (r->M - l->origin + l->period - 1) / l->period;
  int64_t blocks = r->B * periods;
  number_tiles(l, table, tall, 0, keyed, 1);
  for (int32_t i = 0; i < keyed; i++)
    l->spread |= table->causal && l->classes[i].tiles > LONG;
  int64_t section = blocks >= MANY && !l->spread ? 1 : blocks;
  memcpy(l->classes, table->classes, sizeof l->classes);
  int64_t each = number_tiles(l, table, tall, 0, keyed, section);
  int64_t bare =
      number_tiles(l, table, tall, keyed, table->class_count, blocks);
  int64_t sections = (blocks + section - 1) / section, most = INT32_MAX / 2;
  if (periods > most || bare > most || each > most / sections) return false;
  l->periods = (int)periods;
  l->section = (int)section;
  l->section_tiles = (int)each;
  l->tiles = (int)(each * sections);
  l->bare_tiles = (int)bare;
  return true;
}

/* ---- the launch ---------------------------------------------------------- */

static void fill_tables(const hopper_table *table, hopper_launch *l) {
  memcpy(l->classes, table->classes, sizeof l->classes);
  memcpy(l->pieces, table->pieces, sizeof l->pieces);
  memcpy(l->members, table->members, sizeof l->members);
  memcpy(l->shapes, table->shapes, sizeof l->shapes);
  l->class_count = table->class_count;
  l->bare_count = table->bare_count;
}

static void fill_call(const cuda_run *r, hopper_launch *l) {
  const float log2_e = 1.44269504088896340736f;
  const dil_call *c = r->call;
  l->batches = (int)r->B;
  l->queries = (int)r->N;
  l->keys = (int)r->M;
  l->group = r->table->heads / r->table->kv_heads;
  l->scale = r->scale * log2_e;
  l->weight = r->weight;
  l->o_data = c->o.data;
  l->o_batch = c->o.stride[0];
  l->o_row = c->o.stride[1];
  l->o_head = c->o.stride[2];
  l->lse = c->lse.data;
  l->lse_batch = c->lse.stride[0];
  l->lse_head = c->lse.stride[1];
  l->lse_row = c->lse.stride[2];
}

/* Launches that overlap must not share a counter. */
static int32_t next_slot(void) {
  static atomic_uint slots;
  return (int32_t)(atomic_fetch_add(&slots, 1) % HOPPER_SLOTS);
}

/* What the tables cannot know: the sizes and strides of this call, and heads
 * whose state another pass continues. Few queries are better served by kernels
 * that split the keys. */
static bool can(const cuda_run *r, int32_t pass, const cuda_code *code) {
  enum { FEW_QUERIES = 64 };
  const dil_call *c = r->call;
  const dil_table *t = r->table;
  (void)code;
  if (r->drop || c->lengths || !(r->scale > 0) || r->M == 0) return false;
  if (r->N < FEW_QUERIES) return false;
  if (r->M > 1 << 29 || r->N > 1 << 29 || r->B > 1 << 16) return false;
  for (int32_t h = 0; h < t->heads; h++)
    if (r->chained[h] && cuda_served(t, pass, h)) return false;
  for (int32_t b = 0; r->N > r->M && b < t->branch_count; b++)
    if ((t->passes[pass].branches >> b & 1) && t->branches[b].segment)
      return false;
  return is_mappable(&c->q) && is_mappable(&c->k) && is_mappable(&c->v) &&
         is_mappable(&c->o);
}

static int64_t workspace(const cuda_run *r, int32_t pass,
                         const cuda_code *code) {
  (void)r, (void)pass, (void)code;
  return 0;
}

static dil_status launch(const cuda_run *r, int32_t pass,
                         const cuda_code *code) {
  hopper_table table;
  hopper_launch l;
  char reason[128];
  if (!hopper_table_fill(r->table, pass, code->about.tile_keys, &table, reason,
                         sizeof reason))
    return dil_fail(DIL_INTERNAL, "Hopper kernels without tables: %s", reason);
  memset(&l, 0, sizeof l);
  fill_tables(&table, &l);
  fill_call(r, &l);
  l.slot = next_slot();
  if (!fill_tiles(r, &table, code, &l))
    return dil_fail(DIL_USAGE, "more than 2^30 tiles in one call");
  dil_status status = fill_maps(r, &table, code, &l);
  if (status) return status;
  int64_t blocks = minimum(maximum(l.tiles, l.bare_tiles),
                           r->device->facts.processors);
  return cuda_launch(r, code, 0, blocks, code->about.threads,
                     code->about.shared, &l);
}

const cuda_family cuda_hopper = {.name = "hopper",
                                 .entry = {"hopper_forward"},
                                 .can = can,
                                 .workspace = workspace,
                                 .launch = launch};
