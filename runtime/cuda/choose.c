/* choose.c - launches templates/general/choose.cuh. In: a call and its choices of
 * blocks. Out: the lists that they choose, in stream order, where
 * cuda_inputs_fill put them. */
#include "general.h"
#include "device.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/lists.h"
#include "runtime/base/status.h"

/* Thread blocks of dil_choose_means: those of keys, then those of queries. */
static int64_t choose_mean_blocks(const cuda_run *r, int32_t choice,
                                  const dil_choose_params *p, bool means) {
  const dil_choice *c = &r->table->choices[choice];
  int64_t keys = means ? r->B * r->table->kv_heads * p->width : 0;
  int64_t queries = p->query_means ? r->B * r->table->heads * p->queries : 0;
  return DIL_MEAN_BLOCKS(keys, c->block) + DIL_MEAN_BLOCKS(queries, c->query_block);
}

static dil_status choose_one(const cuda_run *r, int32_t choice,
                             const dil_params *of, char *memory,
                             const cuda_code *code) {
  const dil_table *t = r->table;
  dil_choose_params p = cuda_choose_sizes(r, choice);
  cuda_choose_layout at = cuda_choose_lay_out(r, &p);
  int64_t parts = maximum((p.queries + p.joined - 1) / p.joined, 1);
  p.of = *of;
  p.means = (float *)memory;
  if (at.has_query_means) p.query_means = (float *)(memory + at.query_means);
  if (at.is_coarse) {
    p.coarse = (unsigned short *)(memory + at.coarse);
    p.lost = (float *)(memory + at.lost);
  }
  p.list = (int *)(memory + at.list);
  p.length = (int *)(memory + at.length);
  p.own = memory + at.own;
  dil_status status =
      cuda_launch(r, code, GENERAL_CHOOSE_MEANS,
                  choose_mean_blocks(r, choice, &p, at.query_means > 0),
                  DIL_CHOOSE_THREADS,
                  DIL_CHOOSE_WARPS * DIL_CHOOSE_DEPTH(t->head_dim) *
                      (int32_t)sizeof(float), &p);
  if (!status)
    status = cuda_launch(r, code, at.is_coarse ? GENERAL_CHOOSE_COARSE : GENERAL_CHOOSE,
                         at.blocks, DIL_CHOOSE_THREADS, cuda_choose_shared(t, &p), &p);
  if (status) return status;
  return cuda_launch(r, code, GENERAL_CHOOSE_JOIN, r->B * t->heads * parts,
                     DIL_CHOOSE_THREADS, DIL_CHOOSE_SHARED, &p);
}

dil_status cuda_choose_run(const cuda_run *r, const dil_params *of,
                      const cuda_code *code) {
  char *memory = r->bounds + cuda_bounds_bytes(r) - cuda_choose_bytes(r);
  dil_status status = DIL_OK;
  if (r->call->chosen) return DIL_OK;
  for (int32_t k = 0; k < r->table->choice_count && !status; k++)
    status = choose_one(r, k, of, memory, code);
  return status;
}

dil_status cuda_choose_nothing(const cuda_run *r) {
  const dil_table *t = r->table;
  const cuda_driver *driver = r->device->driver;
  cu_result result = 0;
  for (int32_t i = 0; i < 2 * t->choice_count && r->call->made && !result; i++) {
    bool cols = i % 2 == 1;
    const dil_tensor *list =
        &r->call->made[t->choices[i / 2].rows + cols - t->input_count];
    size_t bytes = (size_t)dil_tensor_count(list) * sizeof(int32_t);
    if (list->data && bytes)
      result = driver->fill_ordered((cu_pointer)(uintptr_t)list->data,
                                    cols ? 0xFF : 0, bytes, r->stream);
  }
  return cuda_check(driver, result, "clear a list of blocks");
}
