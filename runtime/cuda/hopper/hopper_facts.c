/* hopper_facts.c - the launch that runs before gradients on Hopper: the facts of query
 * rows, the words of dropout, what the unit of f16 follows from. In: a checked call,
 * with o, lse and dO, or the numbers that came with its rows. Out: the space that
 * hopper_gradient.c reads. */
#include "hopper_gradient.h"
#include "runtime/base/arithmetic.h"
#include "runtime/cuda/launch/nvidia.h"
#include "runtime/rowset/walk.h"
#include "templates/hopper/backward_launch.h"

enum { FACTS_THREADS = 256 };

static void facts_strides(const dil_tensor *t, long long out[3]) {
  for (int axis = 0; axis < 3; axis++) out[axis] = t->stride[axis];
}

/* Thread blocks for so many rows: lanes that share a row, as
 * templates/hopper/backward_rows.cuh counts them: no more than there is room for at
 * once, since blocks take rows in turn. */
static int32_t facts_blocks(const cuda_run *r, int64_t rows) {
  int64_t lanes = 1;
  while (lanes < r->table->value_dim / 8 && lanes < 16) lanes *= 2;
  int64_t blocks = (rows * lanes + FACTS_THREADS - 1) / FACTS_THREADS;
  int64_t most = HOPPER_FACT_BLOCKS(r->table->dtype == DIL_F16, r->table->value_dim);
  return (int32_t)minimum(blocks, most * r->device->facts.processors);
}

static void facts_fill(const gradient_run *g, const float *state_lse,
                       const hopper_gradient_space *space,
                       hopper_facts_launch *l) {
  const cuda_run *r = g->of;
  const dil_table *t = r->table;
  const dil_tensor *dlse = g->lse_gradient, *v = &r->call->v;
  const dil_packed *packed = &r->call->packed;
  *l = (hopper_facts_launch){.o = g->o.data,
                             .o_wide = g->o.dtype == DIL_F32,
                             .do_ = r->call->o.data,
                             .lse = g->lse,
                             .dlse = dlse->data,
                             .state_lse = state_lse,
                             .facts = space->facts,
                             .weight = r->weight,
                             .batches = packed->queries ? 1 : (int)r->B,
                             .rows = (int)(packed->queries ? r->call->q.shape[1] : r->N),
                             .heads = t->heads,
                             .fact_blocks = facts_blocks(r, cuda_rows(r) * t->heads),
                             .kept = r->drop ? (float)(1 - t->dropout) : 1,
                             .lengths = r->call->lengths,
                             .v = v->data,
                             .keys = (int)(packed->queries ? v->shape[1] : r->M),
                             .key_heads = t->kv_heads,
                             .tops = space->tops,
                             .row_words = space->row_words,
                             .key_words = space->key_words,
                             .seed_at = r->call->seed_at,
                             .seed_low = (unsigned)r->call->seed,
                             .seed_high = (unsigned)(r->call->seed >> 32),
                             .first = (int)cuda_queries(r).first,
                             .key_first = (int)cuda_keys(r).first};
  if (packed->queries) {
    l->rows_end = packed->queries + r->B;
    l->keys_end = packed->keys + r->B;
  }
  if (backward_asks_states(t)) l->general_facts = g->facts;
  if (r->shard) {
    l->batch = r->shard->batch;
    l->head = r->shard->head;
    l->numbers = r->shard->numbers;
  }
  if (t->dtype == DIL_F16)
    l->value_blocks = facts_blocks(r, (int64_t)l->batches * l->keys * t->kv_heads);
  facts_strides(&g->o, l->o_stride);
  facts_strides(&r->call->o, l->do_stride);
  facts_strides(v, l->v_stride);
  for (int axis = 0; axis < 3; axis++)
    l->lse_stride[axis] = g->lse_stride[axis];
  if (!dlse->data) return;
  l->dlse_stride[0] = dlse->stride[0]; /* [B, H, N] */
  l->dlse_stride[1] = dlse->stride[2];
  l->dlse_stride[2] = dlse->stride[1];
}

dil_status hopper_gradient_facts(const gradient_run *g, int32_t pass,
                                 const float *state_lse,
                                 const hopper_gradient_space *space,
                                 const cuda_code *code) {
  const cuda_run *r = g->of;
  const cuda_driver *driver = r->device->driver;
  hopper_facts_launch l;
  facts_fill(g, state_lse, space, &l);
  int64_t drawing =
      (hopper_gradient_words(r) + FACTS_THREADS - 1) / FACTS_THREADS;
  int64_t blocks = l.fact_blocks;
  if (pass == 0) {
    blocks += l.value_blocks + drawing;
    dil_status status =
        cuda_check(driver,
                   driver->fill_ordered((cu_pointer)(uintptr_t)space->spoiled,
                                        0, HOPPER_SPACE_HEAD, r->stream),
                   "clear memory");
    if (status) return status;
  }
  return cuda_launch(r, code, HOPPER_ENTRY_FACTS, blocks, FACTS_THREADS, 0, &l);
}

dil_status hopper_gradient_mark(const cuda_run *r, float *state_lse,
                                int64_t rows) {
  const cuda_driver *driver = r->device->driver;
  cu_pointer at = (cu_pointer)(uintptr_t)state_lse;
  return cuda_check(driver,
                    driver->fill_ordered(at, HOPPER_UNSEEN & 0xff,
                                         (size_t)rows * sizeof *state_lse,
                                         r->stream),
                    "mark rows");
}
