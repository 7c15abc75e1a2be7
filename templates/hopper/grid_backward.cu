// grid_backward.cu - gradients on Hopper over a grid of two or three axes, where the axes
// alone decide which pairs count, as grid.cu makes o: dQ, or dK and dV.
//
// Each consumer warpgroup has tiles for itself, patches of 64 cells, and its own producing
// warp, stages and barriers. The consumers are those of backward.cu, of one warpgroup
// each. A tile of dQ streams the boxes of its queries' keys; a tile of dK and dV, for each
// query head, the boxes of the queries that see its keys. The sums have a fixed order.

#ifndef MAKES
#define MAKES 1          // bits: 1 dQ, alone; 2 and 4 dK and dV
#endif
#define HOLDS_KEYS (MAKES != 1)
#ifndef CONSUMERS
#define CONSUMERS 2      // warpgroups, each with tiles for itself: 2 or 3
#endif
#ifndef STAGES
#define STAGES 2         // pipeline stages of streamed boxes
#endif
#ifndef HEAD_WIDTH
#define HEAD_WIDTH 128   // head_dim, a multiple of 32
#define VALUE_WIDTH 128
#endif
#ifndef PATCH_AXES
#define PATCH_AXES 2
#endif
#ifndef GROUP_Z
#define GROUP_Z 1        // cells of a tile along the first axis of three
#define GROUP_Y 4        // and along the last axis but one
#endif
#ifndef BOX_X
#define BOX_X 28         // cells of a streamed box along the last axis
#define BOX_Y 2          // and along the last axis but one
#define TILE_KEYS 64     // their product, up to a multiple of 16
#define BOXES_X 1        // boxes of a patch along the last axis, at most
#endif
#ifndef SHARED_LIMIT
#define SHARED_LIMIT 232448
#endif
#define PATCHED 1
#define SOLID (PATCH_AXES == 3)
#define LAST (PATCH_AXES - 1)
#include "templates/hopper/backward_own_sizes.cuh"

#include "templates/shared/plan.cuh"
#include "templates/hopper/grid_backward_launch.h"
#include "templates/shared/patch.cuh"
#include "templates/hopper/hopper_async.cuh"
#include "templates/hopper/hopper_mma.cuh"
#include "templates/hopper/hopper_softmax.cuh"

static_assert(GROUP_Z * GROUP_Y == 4, "a warpgroup has four warps");
static_assert(BOX_X * BOX_Y <= TILE_KEYS && TILE_KEYS % 16 == 0, "a box");
static_assert(sizeof(grid_backward_launch) ==
                  HOPPER_LAUNCH_BYTES + HOPPER_BACKWARD_BYTES + GRID_BACKWARD_BYTES,
              "the run time has another grid_backward_launch");

#define OWN_BYTES (2 * GRID_PATCH_BYTES(BOXES_X))
#include "templates/hopper/backward_own_layout.cuh"
#include "templates/hopper/hopper_stream.cuh"
#include "templates/hopper/backward_facts.cuh"
#include "templates/hopper/backward_consume.cuh"
#include "templates/shared/divide.cuh"
#include "templates/hopper/backward_rows.cuh"
#include "templates/hopper/backward_own.cuh"
#include "templates/hopper/grid_tile.cuh"
#include "templates/hopper/grid_stream.cuh"

// No box fills the rows behind its last cell. Weights and gradients of scores are 0 there,
// and so must be what they multiply.
#if BOX_X * BOX_Y < TILE_KEYS
DEVICE void clear_stages(u32 base) {
  const int bytes = STAGES * (KEY_BYTES + VALUE_BYTES);
#pragma unroll 1
  for (int group = 0; group < CONSUMERS; group++)
    for (int i = threadIdx.x * 16; i < bytes; i += THREADS * 16)
      shared_store(base + group * GROUP_BYTES + AT_KEY + i, 0, 0, 0, 0);
  proxy_fence();
}
#else
DEVICE void clear_stages(u32) {}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    grid_backward(const __grid_constant__ grid_backward_launch run) {
  extern __shared__ __align__(1024) unsigned char memory[];
  u32 base = shared_address(memory);
  clear_stages(base);
  run_own_tiles(run.back, base, [&](u32 own) { stream_boxes(run, own); });
}
