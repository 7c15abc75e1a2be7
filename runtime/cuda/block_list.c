/* block_list.c - launches of the Hopper kernel for lists of kept blocks.
 *
 * In: a checked call of a whole sequence. Out: a launch that makes the lists, where no
 * table of the call has their bits, and one of the attention. A line is a batch row and
 * query head. */
#include "block_list.h"
#include "general.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"
#include "runtime/cuda/hopper/hopper_blocks.h"
#include "runtime/cuda/hopper/row_maps.h"
#include "runtime/cuda/launch/counters.h"
#include "templates/hopper/block_list_launch.h"
#include <math.h>
#include <stddef.h>

_Static_assert(sizeof(block_list_launch) == BLOCK_LIST_LAUNCH_BYTES &&
                   offsetof(block_list_launch, list) ==
                       BLOCK_LIST_MAP_BYTES + DIL_PARAMS_BYTES,
               "templates/hopper/block_list.cu has another block_list_launch");

enum { LIST_FORWARD, LIST_MAKE }; /* functions */

/* ---- the launch ---------------------------------------------------------- */

static int64_t list_workspace(const cuda_run *r, int32_t pass, const cuda_code *code) {
  (void)pass;
  hopper_block_list list;
  return hopper_list_fill(r, code, 0, r->M, NULL, NULL, &list);
}

/* Tiles begin at multiples of 64 positions, so that a line may have one more. */
static int64_t list_line_tiles(const cuda_run *r) {
  return (r->N + BLOCK_LIST_ROWS - 1) / BLOCK_LIST_ROWS + 1;
}

static dil_status list_prepare(const cuda_run *r, const cuda_code *code,
                               block_list_launch *l, bool *makes) {
  const float log2_e = 1.44269504088896340736f;
  const dil_table *t = r->table;
  const dil_call *c = r->call;
  *l = (block_list_launch){.of = general_parameters(r),
                           .line_tiles = (int)list_line_tiles(r),
                           .group = t->heads / t->kv_heads,
                           .scale = r->scale * log2_e};
  l->slack = fminf(8 / l->scale, 1e30f);
  *makes = hopper_list_fill(r, code, 0, r->M, l->of.input, r->workspace, &l->list) > 0;
  const int32_t box = BLOCK_LIST_ROWS;
  dil_status status = row_maps_find(r, code, &c->q, t->head_dim, box, &l->q);
  if (!status) status = row_maps_find(r, code, &c->k, t->head_dim, box, &l->k);
  return status ? status : row_maps_find(r, code, &c->v, t->value_dim, box, &l->v);
}

static dil_status list_make(const cuda_run *r, const cuda_code *code,
                            block_list_launch *l) {
  enum { WARPS = 8 };
  int64_t rows = (int64_t)l->list.rows * l->list.heads * l->list.batches;
  return cuda_launch(r, code, LIST_MAKE, (rows + WARPS - 1) / WARPS, 32 * WARPS, 0, l);
}

/* Tiles are claimed by counting. */
static dil_status list_run(const cuda_run *r, const cuda_code *code,
                           block_list_launch *l) {
  int64_t tiles = r->B * r->table->heads * list_line_tiles(r);
  int64_t groups = code->about.threads / 128 - 1;
  cuda_counters *counters = r->device->counters;
  cuda_counter counter;
  dil_status status = counters_take(counters, r->stream, &counter);
  if (status) return status;
  l->counters = (unsigned *)(uintptr_t)counter.memory;
  status = cuda_launch(r, code, LIST_FORWARD,
                       minimum((tiles + groups - 1) / groups,
                               r->device->facts.processors),
                       code->about.threads, code->about.shared, l);
  return counters_give(counters, r->stream, &counter, status);
}

static dil_status list_launch_pass(const cuda_run *r, int32_t pass,
                                   const cuda_code *code) {
  (void)pass;
  block_list_launch l;
  bool makes;
  dil_status status = list_prepare(r, code, &l, &makes);
  if (!status && makes) status = list_make(r, code, &l);
  return status ? status : list_run(r, code, &l);
}

/* ---- the family ---------------------------------------------------------- */

static const char *list_refusal(const cuda_run *r, int32_t pass,
                                const cuda_code *code) {
  (void)pass;
  (void)code;
  const dil_call *c = r->call;
  if (r->shard) return "a shard of a sequence";
  if (r->drop) return "dropout";
  if (c->packed.queries || pages_given(c)) return "documents or pages";
  if (!(r->scale > 0)) return "a scale that is not positive";
  if (r->N < BLOCK_LIST_ROWS) return "fewer than 64 queries";
  if (r->M > 1 << 29 || r->B * r->table->heads * list_line_tiles(r) > INT32_MAX / 2)
    return "more than 2^29 rows, or than 2^30 tiles";
  bool described = maps_can(&c->q) && maps_can(&c->k) && maps_can(&c->v) &&
                   maps_can(&c->o);
  return described ? NULL : "tensors that no tensor map describes";
}

static void list_estimate(const cuda_run *r, int32_t pass, const cuda_code *code,
                          dil_cuda_pass *out) {
  (void)pass;
  out->tile_rows = code->about.tile_rows;
  out->tiles = r->B * r->table->heads * list_line_tiles(r);
  out->parts = out->pack = 1;
  out->visited = out->masked = out->skipped = -1; /* the lists tell */
}

const cuda_family cuda_hopper_block_list = {
    .name = "hopper_block_list",
    .entry = {"block_list_forward", "block_list_make"},
    .open = row_maps_open,
    .close = row_maps_close,
    .refusal = list_refusal,
    .estimate = list_estimate,
    .workspace = list_workspace,
    .launch = list_launch_pass};
