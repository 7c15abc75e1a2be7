// grid.cu - attention forward on Hopper over a grid of two or three axes, where the
// axes alone decide which pairs count.
//
// The kernel is persistent, with the roles of hopper.cu. A tile of queries is a
// patch of the grid, and its keys are boxes of the grid: tensor maps have the
// grid's axes, so that one copy brings a patch or a box, whatever its strides. A
// warp's sixteen rows are neighbours along the last axis. The warpgroups of a tile
// stand side by side along the first axis, and each takes only the boxes that its
// own rows see. They wait for each other nowhere but at the stages of the ring.
//
// Which columns of a box a row sees is the product of one range along each axis.
// The ranges along the last axis become a word of bits once a tile, and those along
// the others one range of columns for each box.

#ifndef WARPGROUPS
#define WARPGROUPS 3     // consumer warpgroups
#endif
#ifndef STAGES
#define STAGES 4         // pipeline stages of keys and values
#endif
#ifndef QUERY_STAGES
#define QUERY_STAGES 2
#endif
#ifndef PATCH_AXES
#define PATCH_AXES 2
#endif
#ifndef GROUP_Z
#define GROUP_Z 1        // cells of a warpgroup along the first axis of three
#define GROUP_Y 4        // and along the last axis but one
#endif
#ifndef BOX_X
#define BOX_X 28         // cells of a box of keys along the last axis
#define BOX_Y 4          // and along the last axis but one
#define TILE_KEYS 112    // their product, up to a multiple of 16
#define BOXES_X 1        // boxes of a patch along the last axis, at most
#endif
#ifndef HEAD_WIDTH
#define HEAD_WIDTH 64    // head_dim, a multiple of 32
#define VALUE_WIDTH 64
#endif
#ifndef PRODUCER_REGISTERS
#define PRODUCER_REGISTERS (WARPGROUPS == 2 ? 40 : 56)
#define CONSUMER_REGISTERS (WARPGROUPS == 2 ? 232 : 152)
#endif
#define CHUNK (HEAD_WIDTH % 64 ? 32 : 64)
#define VALUE_CHUNK (VALUE_WIDTH % 64 ? 32 : 64)
#define THREADS (128 * (WARPGROUPS + 1))
#define SOLID (PATCH_AXES == 3)
#define LAST (PATCH_AXES - 1)
// Along the first axis: cells of a warpgroup, cells of a box.
#define GROUP_DEPTH (SOLID ? GROUP_Z : GROUP_Y)
#define BOX_DEPTH (SOLID ? 1 : BOX_Y)
#define HOLDS_KEYS 0
#define DROPS 0

#include "templates/shared/plan.cuh"
#include "templates/shared/select.cuh"
#include "templates/hopper/grid_launch.h"
#include "templates/shared/patch.cuh"
#include "templates/hopper/hopper_async.cuh"
#include "templates/hopper/hopper_mma.cuh"
#include "templates/hopper/hopper_softmax.cuh"
#include "templates/hopper/hopper_merge.cuh"

static_assert(GROUP_Z * GROUP_Y == 4, "a warpgroup has four warps");
static_assert(BOX_X * BOX_Y <= TILE_KEYS && TILE_KEYS % 16 == 0, "a box");

// ---- shared memory ---------------------------------------------------------

#define QUERY_BYTES (64 * HEAD_WIDTH * 2) // of a warpgroup
#define KEY_BYTES (TILE_KEYS * HEAD_WIDTH * 2)
#define VALUE_BYTES (TILE_KEYS * VALUE_WIDTH * 2)
#define OUTPUT_BYTES (64 * VALUE_WIDTH * 2) // of a warpgroup
#define TILE_BYTES 64

// Offsets in dynamic shared memory.
#define AT_QUERY 0
#define AT_KEY (AT_QUERY + QUERY_STAGES * WARPGROUPS * QUERY_BYTES)
#define AT_VALUE (AT_KEY + STAGES * KEY_BYTES)
#define AT_OUTPUT (AT_VALUE + STAGES * VALUE_BYTES)
#define AT_TILE (AT_OUTPUT + WARPGROUPS * OUTPUT_BYTES)
#define AT_BARRIERS (AT_TILE + QUERY_STAGES * TILE_BYTES)
static_assert(sizeof(grid_launch) == GRID_LAUNCH_BYTES,
              "the run time has another grid_launch");

#include "templates/hopper/hopper_visit_stage.cuh"
#include "templates/hopper/grid_produce.cuh"
#include "templates/hopper/grid_consume.cuh"

// ---- the kernel ------------------------------------------------------------

// No box fills the rows behind its last cell. Their weights are 0, and so must
// their values be.
#if BOX_X * BOX_Y < TILE_KEYS
DEVICE void clear_values(u32 base) {
  for (int i = threadIdx.x * 16; i < STAGES * VALUE_BYTES; i += THREADS * 16)
    shared_store(base + AT_VALUE + i, 0, 0, 0, 0);
  proxy_fence();
}
#else
DEVICE void clear_values(u32) {}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    grid_forward(const __grid_constant__ grid_launch run) {
  extern __shared__ __align__(1024) unsigned char memory[];
  u32 base = shared_address(memory);
  if (threadIdx.x == 0) init_barriers(base, 1);
  clear_values(base);
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(
        PRODUCER_REGISTERS));
    if (threadIdx.x == 0) load_tiles(run, base);
    else if (threadIdx.x >= 32 && threadIdx.x < 64) check_values(run, base);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(
        CONSUMER_REGISTERS));
    consume({run, base, (int)threadIdx.x / 128 - 1, threadIdx.x % 128 == 0});
  }
}
