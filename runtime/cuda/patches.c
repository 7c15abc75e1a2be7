/* patches.c - see patches.h. In: a call and a pass of a grid. Out: numbers by which
 * templates/shared/patch.cuh finds a patch and its box. */
#include "patches.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/pages.h"
#include "templates/shared/splits.h"

/* Returns whether the call has the whole sequence, be it as one shard. */
static bool is_whole(const cuda_run *r) {
  const dil_shard *s = r->shard;
  return !s || (s->N == r->N && s->M == r->M && s->queries.count == s->N &&
                s->keys.count == s->M);
}

bool cuda_patches_plan(const cuda_run *r, int32_t pass, const cuda_code *code,
                       patch_plan *out) {
  const dil_pass *of = &r->table->passes[pass];
  const patch_tile_shape shape = {.lanes = code->about.tile_rows,
                                  .key_block = code->about.tile_keys,
                                  .pack = 1,
                                  .whole = true};
  bool plain = is_whole(r) && !pages_given(r->call) && r->N == r->M &&
               r->N >= DIL_FEW_ROWS;
  return plain && patch_may(r->table, of) &&
         patch_plan_make(r->table, __builtin_ctzll(of->branches), r->M, &shape,
                         out);
}

static int bound(int64_t cells) { return (int)minimum(cells, INT32_MAX); }

int64_t cuda_patches_fill(const cuda_run *r, int32_t pass,
                          const patch_plan *patches, dil_params *p) {
  int32_t branch = __builtin_ctzll(r->table->passes[pass].branches);
  p->pass = pass;
  p->stride = p->cells = p->parts = p->residues = p->pack = 1;
  p->segment = 0;
  p->blocks = (int)patches->patches;
  p->patch_axes = patches->axes;
  p->patch_alone = r->table->branches[branch].reach.alone;
  for (int32_t k = 0; k < patches->axes; k++) {
    const patch_axis *a = &patches->axis[k];
    p->patch[k] = (dil_patch_axis){
        .extent = bound(a->extent),     .stride = bound(a->stride),
        .step = bound(a->step),         .residues = bound(a->residues),
        .left = bound(a->left),         .right = bound(a->right),
        .kernel = bound(a->kernel),     .causal = a->causal,
        .size = bound(a->size),         .count = bound(a->count)};
  }
  return patches->patches;
}

void cuda_patches_estimate(const cuda_run *r, int32_t pass, const cuda_code *code,
                           const patch_plan *patches, dil_cuda_pass *out) {
  const dil_table *t = r->table;
  const dil_branch *b = &t->branches[__builtin_ctzll(t->passes[pass].branches)];
  double heads = (double)r->B * (b->head_last - b->head_first + 1);
  int32_t rows = code->about.tile_rows, keys = code->about.tile_keys;
  double all = (double)((r->N + rows - 1) / rows) *
               (double)((r->M + keys - 1) / keys);
  for (int32_t k = 0; k < patches->axes; k++)
    out->patch[k] = (int32_t)patches->axis[k].size;
  out->visited = out->masked = heads * patch_plan_blocks(patches, keys);
  out->skipped = heads * all > out->visited ? heads * all - out->visited : 0;
  out->saved = 0;
}
