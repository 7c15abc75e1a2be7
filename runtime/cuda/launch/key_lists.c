/* key_lists.c - passes whose branches all see the keys of one list. In: a call and a
 * pass. Out: the memory of sorted lists (templates/shared/key_list.cuh), the tiles
 * that hold listed keys, and the blocks that such a pass visits. */
#include "family.h"
#include "runtime/base/arithmetic.h"

static int32_t list_group(const cuda_run *r) {
  return r->table->heads / r->table->kv_heads;
}

int64_t cuda_list_room(const cuda_run *r, int32_t pass, bool held) {
  const dil_table *t = r->table;
  int32_t index = dil_pass_list(t, &t->passes[pass]);
  if (index < 0) return -1;
  const dil_tensor *list = &r->call->inputs[t->inputs[index].rows];
  int64_t most = list->rank ? list->shape[list->rank - 1] : 0;
  if (held && list->rank > 1) most *= list_group(r);
  return minimum(most, r->M);
}

bool cuda_list_is_short(const cuda_run *r, int32_t pass) {
  enum { SHARE = 4 };
  int64_t most = r->call->inputs ? cuda_list_room(r, pass, false) : -1;
  return most >= 0 && most * SHARE < r->M;
}

static bool list_is_walked(const dil_table *t, int32_t index) {
  bool walked = false;
  for (int32_t p = 0; p < t->pass_count; p++)
    walked |= dil_pass_list(t, &t->passes[p]) == index;
  return walked;
}

int64_t cuda_list_bytes(const cuda_run *r, int32_t index,
                        const dil_tensor *list) {
  enum { NUMBER = sizeof(int32_t), LINE = 256 };
  if (!list_is_walked(r->table, index)) return 0;
  int64_t length = list->shape[list->rank - 1], rows = 1;
  for (int32_t axis = 0; axis + 1 < list->rank; axis++)
    rows *= list->shape[axis];
  int64_t bytes = round_up(rows * (length + 1) * NUMBER, LINE);
  if (!r->turns || list->rank < 2 || list_group(r) == 1) return bytes;
  int64_t most = minimum(length * list_group(r), r->M) + 1;
  rows /= list_group(r);
  return bytes + round_up(rows * r->M, LINE) +
         round_up(rows * most * NUMBER, LINE);
}

bool cuda_list_space(const cuda_run *r, int32_t pass, int32_t tile_rows,
                     dil_params *p) {
  int64_t most = r->shard ? -1 : cuda_list_room(r, pass, true);
  if (most < 0) return false;
  p->pass = pass;
  p->stride = p->cells = p->parts = p->residues = p->pack = 1;
  p->segment = 0;
  p->blocks = (int)((most + tile_rows - 1) / tile_rows);
  p->flags |= DIL_LIST_ROWS;
  return true;
}

/* The mask is asked for each pair. */
void cuda_list_estimate(const cuda_run *r, int32_t pass, const cuda_code *code,
                        dil_cuda_pass *out) {
  int64_t keys = code->about.tile_keys, most = cuda_list_room(r, pass, false);
  uint64_t branches = r->table->passes[pass].branches;
  if (most < 0) return;
  double tiles = (double)out->tiles * __builtin_popcountll(branches);
  double blocks = (double)((most + keys - 1) / keys);
  double all = (double)((r->M + keys - 1) / keys);
  out->visited = out->masked = tiles * blocks;
  out->skipped = all > blocks ? tiles * (all - blocks) : 0;
  out->saved = 0;
}
