/* patches.c - see patches.h. In: a call and a pass of a grid. Out: numbers by which
 * templates/shared/patch.cuh finds a patch and its box. */
#include "patches.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/pages.h"
#include "templates/shared/splits.h"

bool cuda_patches_plan(const cuda_run *r, int32_t pass, const cuda_code *code,
                       patch_plan *out) {
  const dil_pass *of = &r->table->passes[pass];
  const patch_tile_shape shape = {.lanes = code->about.tile_rows,
                                  .key_block = code->about.tile_keys,
                                  .pack = 1,
                                  .whole = true};
  bool plain = !r->shard && !pages_given(r->call) && r->N == r->M &&
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

int64_t cuda_patches_keys(const patch_plan *patches) {
  int64_t keys = 1;
  for (int32_t k = 0; k < patches->axes; k++) {
    const patch_axis *a = &patches->axis[k];
    int64_t cells = (a->extent + a->step - 1) / a->step;
    int64_t middle = a->count / 2 * a->size;
    patch_span query = {middle, minimum(middle + a->size, cells) - 1};
    keys *= patch_length(patch_keys(a, cells, query));
  }
  return keys;
}
