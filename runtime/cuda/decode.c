/* decode.c - launches of the kernel for few rows. In: a call with fewer than 64
 * rows of queries, and a pass. Out: one launch, whose parameter holds the tensor
 * maps of k and v, a map for each dilation. The number of splits follows from the
 * rows' own keys (templates/shared/splits.h), never from the batch. */
#include "decode.h"
#include "device.h"
#include "general.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"
#include "runtime/cuda/hopper/maps.h"
#include "runtime/cuda/launch/counters.h"
#include "runtime/tables/hopper_table.h"
#include "templates/decode/decode_launch.h"
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(decode_launch) == DECODE_LAUNCH_BYTES &&
                   offsetof(decode_launch, of) == 4096 &&
                   offsetof(decode_launch, dilation) == 5896 &&
                   offsetof(decode_launch, counters) == 5952,
               "templates/decode/decode.cu has another decode_launch");

/* ---- the cache between launches ------------------------------------------ */

typedef struct decode_memory {
  pthread_mutex_t lock;
  map_cache maps;
} decode_memory;

static void decode_close(cuda_code *code) {
  decode_memory *m = code->memory;
  maps_close(&m->maps);
  pthread_mutex_destroy(&m->lock);
  free(m);
  code->memory = NULL;
}

static dil_status decode_open(const dil_table *table, cuda_code *code) {
  (void)table;
  decode_memory *m = calloc(1, sizeof *m);
  if (!m) return dil_fail(DIL_MEMORY, "no memory for a kernel's launches");
  pthread_mutex_init(&m->lock, NULL);
  code->memory = m;
  dil_status status = maps_open(&m->maps, 2 * HOPPER_STRIDES);
  if (status) decode_close(code);
  return status;
}

/* ---- the launch ---------------------------------------------------------- */

/* Lists the dilations of a pass. Returns how many; more than HOPPER_STRIDES: not
 * all are listed. */
static int32_t decode_dilations(const dil_table *t, int32_t pass,
                                int32_t list[HOPPER_STRIDES]) {
  int32_t count = 0;
  for (int32_t b = 0; b < t->branch_count; b++) {
    int32_t dilation = (int32_t)t->branches[b].dilation, i = 0;
    if (!(t->passes[pass].branches >> b & 1)) continue;
    while (i < count && i < HOPPER_STRIDES && list[i] != dilation) i++;
    if (i < count) continue;
    if (count < HOPPER_STRIDES) list[count] = dilation;
    count++;
  }
  return count;
}

/* Keys of one copy: of a tile, or of a page where it has fewer, of each dilation
 * of the pass. 0: a page does not hold the dilation, or fewer than the 8 rows after
 * which copies swizzle anew. */
static int32_t decode_box(const cuda_run *r, int32_t tile_keys,
                          const int32_t *dilation, int32_t count) {
  int32_t box = tile_keys;
  if (!pages_given(r->call)) return box;
  for (int32_t i = 0; i < count; i++) {
    int64_t rows = pages_rows(r->call) / dilation[i];
    if (rows < 8 || rows * dilation[i] != pages_rows(r->call)) return 0;
    box = (int32_t)minimum(box, rows);
  }
  return box;
}

static void decode_fill_sizes(const cuda_run *r, int32_t pass,
                              const cuda_code *code, decode_launch *l) {
  general_fill_few(r, pass, code->about.tile_rows, &l->of);
  int32_t row_tiles = (int32_t)l->of.items / r->table->kv_heads;
  l->tiles = (int)l->of.items;
  l->again = row_tiles > 1;
  l->splits = few_most(general_reach(r, pass), row_tiles);
}

static dil_status decode_fill_maps(const cuda_run *r, int32_t pass,
                                   const cuda_code *code, decode_launch *l) {
  const dil_table *t = r->table;
  decode_memory *m = code->memory;
  int32_t keys = code->about.tile_keys, list[HOPPER_STRIDES];
  int32_t count = decode_dilations(t, pass, list);
  l->box = decode_box(r, keys, list, count);
  map_view views[2] = {maps_view(&r->call->k, t->head_dim, l->box),
                       maps_view(&r->call->v, t->value_dim, l->box)};
  hopper_maps *const maps[2] = {&l->k, &l->v};
  dil_status status = DIL_OK;
  memcpy(l->dilation, list, (size_t)count * sizeof *list);
  pthread_mutex_lock(&m->lock);
  for (int32_t i = 0; i < 2 && !status; i++) {
    views[i].pass = pass;
    views[i].once = !l->again;
    status = maps_find(&m->maps, r->device->driver, &views[i], list, count,
                       *maps[i]);
  }
  pthread_mutex_unlock(&m->lock);
  return status;
}

/* Workspace: the parts of split keys, and a byte for each tile, where tiles are more than
 * a launch's counters have room for. */
enum { DECODE_CLAIMS = 8, DECODE_ARRIVALS = COUNTER_BYTES - DECODE_CLAIMS };
static int64_t decode_part_bytes(const cuda_run *r, const decode_launch *l) {
  int64_t pitch = DECODE_PART(r->table->value_dim);
  int64_t rows = r->B * r->N * r->table->heads;
  return l->splits == 1 ? 0 : round_up(rows * l->splits * pitch * 4, 256);
}
static int64_t decode_counter_bytes(const cuda_run *r, const decode_launch *l) {
  int64_t tiles = r->B * l->tiles;
  return l->splits == 1 || tiles <= DECODE_ARRIVALS ? 0 : round_up(tiles, 256);
}

static int64_t decode_workspace(const cuda_run *r, int32_t pass,
                                const cuda_code *code) {
  decode_launch l = {0};
  decode_fill_sizes(r, pass, code, &l);
  return decode_part_bytes(r, &l) + decode_counter_bytes(r, &l);
}

/* Splits that end are counted from 0. */
static dil_status decode_clear(const cuda_run *r, decode_launch *l) {
  int64_t bytes = decode_counter_bytes(r, l);
  l->of.partial = (float *)(void *)r->workspace;
  if (!bytes) return DIL_OK;
  l->arrived =
      (unsigned *)(void *)(r->workspace + decode_part_bytes(r, l));
  return cuda_check(r->device->driver,
                    r->device->driver->fill_ordered(
                        (cu_pointer)(uintptr_t)l->arrived, 0, (size_t)bytes,
                        r->stream),
                    "clear the counters of splits");
}

/* How many splits a unit has, as a power of two. Where each team has many, they share
 * a plan and an end. Bits of results do not depend on it. */
static int32_t decode_unit_bits(int64_t splits, int64_t teams, int64_t most) {
  enum { ROUNDS = 6, BITS = 3 }; /* units of each team, at least; bits, at most */
  int32_t bits = 0;
  while (bits < BITS && 1 << bits < most &&
         splits >> (bits + 1) >= teams * ROUNDS)
    bits++;
  return bits;
}

static dil_status decode_launch_pass(const cuda_run *r, int32_t pass,
                                     const cuda_code *code) {
  decode_launch l = {0};
  cuda_counter counter;
  cuda_counters *counters = r->device->counters;
  decode_fill_sizes(r, pass, code, &l);
  int64_t splits = r->B * l.tiles * l.splits;
  if (splits > INT32_MAX)
    return dil_fail(DIL_USAGE, "more than 2^31 tiles in one call");
  int64_t blocks = minimum(splits, r->device->facts.processors);
  int64_t teams = blocks * code->about.threads / DECODE_TEAM_THREADS;
  l.unit_bits = decode_unit_bits(splits, teams, l.splits);
  dil_status status = decode_fill_maps(r, pass, code, &l);
  if (!status) status = decode_clear(r, &l);
  if (!status) status = counters_take(counters, r->stream, &counter);
  if (status) return status;
  l.counters = (unsigned *)(uintptr_t)counter.memory;
  if (!l.arrived) l.arrived = l.counters + DECODE_CLAIMS / sizeof *l.counters;
  status = cuda_launch(r, code, 0, blocks, code->about.threads, code->about.shared, &l);
  return counters_give(counters, r->stream, &counter, status);
}

/* ---- the family ---------------------------------------------------------- */

/* Whether the copies of single rows can read a tensor. */
static bool decode_copies(const dil_tensor *t) {
  for (int32_t axis = 0; axis < 3; axis++)
    if (t->shape[axis] > 1 && t->stride[axis] % 8) return false;
  return (uintptr_t)t->data % 16 == 0;
}

static const char *decode_refusal(const cuda_run *r, int32_t pass,
                                  const cuda_code *code) {
  int32_t list[HOPPER_STRIDES], count = decode_dilations(r->table, pass, list);
  const dil_call *c = r->call;
  if (r->N >= DIL_FEW_ROWS) return "64 queries or more";
  if (r->shard) return "a shard of a sequence";
  if (r->drop) return "dropout";
  if (c->packed.queries) return "documents of a packed call";
  if (r->M == 0) return "no keys";
  if (r->M > 1 << 29) return "more than 2^29 keys";
  if (count > HOPPER_STRIDES) return "more than 8 dilations";
  for (int32_t b = 0; b < r->table->branch_count; b++)
    if (r->table->branches[b].dilation > HOPPER_DILATION)
      return "a dilation above 4096";
  if (!decode_box(r, code->about.tile_keys, list, count))
    return "pages with fewer than 8 rows of a dilation";
  if (pages_given(c) && !c->k.shape[0]) return "no pages";
  if (!decode_copies(&c->q) || !maps_can(&c->k) || !maps_can(&c->v))
    return "tensors that no tensor map describes";
  return NULL;
}

static void decode_estimate(const cuda_run *r, int32_t pass,
                            const cuda_code *code, dil_cuda_pass *out) {
  decode_launch l = {0};
  decode_fill_sizes(r, pass, code, &l);
  out->tile_rows = code->about.tile_rows;
  out->tiles = r->B * l.tiles;
  out->parts = few_splits(general_reach(r, pass), l.tiles / r->table->kv_heads);
  out->pack = l.of.pack;
  out->visited = out->masked = out->skipped = out->saved = -1;
}

const cuda_family cuda_decode = {.name = "decode",
                                 .few = true,
                                 .entry = {"dil_decode"},
                                 .open = decode_open,
                                 .close = decode_close,
                                 .refusal = decode_refusal,
                                 .estimate = decode_estimate,
                                 .workspace = decode_workspace,
                                 .launch = decode_launch_pass};
