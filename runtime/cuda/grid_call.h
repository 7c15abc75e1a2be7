/* grid_call.h - what launches of the Hopper kernels for grids share (grid.c,
 * grid_gradient.c): patches of a code's tiles, tensor maps whose axes are those of the
 * grid, for each residue of the dilations, and which calls they take. The maps of the
 * last calls are kept. */
#ifndef DIL_RUNTIME_CUDA_GRID_CALL_H
#define DIL_RUNTIME_CUDA_GRID_CALL_H

#include "runtime/cuda/hopper/maps.h"
#include "runtime/cuda/launch/family.h"
#include "runtime/rowset/patch.h"
#include "templates/hopper/grid_launch.h"

enum { GRID_TENSORS = 4 };
/* Cells of a copy along x, y and z. */
typedef int32_t grid_box[DIL_GRID_AXES];

typedef struct grid_cache grid_cache;
dil_status grid_cache_open(grid_cache **out);
void grid_cache_close(grid_cache *cache);
/* Finds the maps of four tensors, in the order of the launch, or makes them. A cache
 * always gets the same boxes. */
dil_status grid_cache_find(grid_cache *cache, const cuda_run *r, const patch_plan *p,
                           const map_view view[GRID_TENSORS],
                           const grid_box box[GRID_TENSORS], grid_launch *l);

/* How a pass is cut into patches of `groups` warpgroups. False: every row sees all of the
 * grid. */
bool grid_patches(const cuda_run *r, int32_t pass, const cuda_code *code, int32_t groups,
                  patch_plan *out);
/* Maps of a residue: with three axes the batch row has no room in a map. */
int64_t grid_batch_maps(const cuda_run *r);
/* Fills a launch but for its maps. The heads of its tiles may differ from the call's. */
dil_status grid_fill(const cuda_run *r, int32_t pass, const patch_plan *p, int32_t heads,
                     grid_launch *l);
/* Returns why no kernel for grids takes a call in either direction; NULL: it may. */
const char *grid_call_refusal(const cuda_run *r, int32_t pass, const cuda_code *code);

#endif
