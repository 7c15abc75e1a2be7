// block_list.cu - attention forward on Hopper where each block of queries has a list of
// the blocks of keys that it sees.
//
//   block_list_make     a bit for each pair of blocks, where no table has them already
//   block_list_forward  the attention
//
// Neighbouring blocks of queries often have different lists. A tile that held several
// of them would visit the blocks of all lists, and most of its warpgroups would wait.
// So each consumer warpgroup has tiles of its own, of 64 rows with one list, and its own
// producing warp, stages and barriers: the warpgroups of a thread block share nothing but
// its processor. While one computes weights, others multiply.
//
// A *unit* is 64 keys of a listed block. A visit takes TILE_KEYS / 64 units, which may
// stand far from each other. Tiles are claimed from a counter.

#ifndef WARPGROUPS
#define WARPGROUPS 3     // consumer warpgroups: 2 or 3
#endif
#ifndef STAGES
#define STAGES 2         // pipeline stages of keys and values
#endif
#ifndef TILE_KEYS
#define TILE_KEYS 128
#endif
#ifndef HEAD_WIDTH
#define HEAD_WIDTH 64    // head_dim, a multiple of 32
#define VALUE_WIDTH 64
#endif
#ifndef QUERY_BLOCK
#define QUERY_BLOCK 64   // rows with one list, a multiple of 64
#define KEY_BLOCK 64     // keys that a bit of it stands for, a multiple of 64
#endif
#ifndef WINDOW_LEFT
#define WINDOW_LEFT DIL_FAR // DIL_FAR: no bound
#define WINDOW_RIGHT 0
#endif
#define QUERY_STAGES 1
#define READERS 1        // warpgroups that free a stage
#define CHECKING_WARP 0
#define PRODUCER_REGISTERS (WARPGROUPS == 3 && TILE_KEYS == 128 ? 32 : 56)
#define CONSUMER_REGISTERS                                                     \
  (WARPGROUPS == 2 ? 224 : TILE_KEYS == 128 ? 160 : 152)
#define CHUNK (HEAD_WIDTH % 64 ? 32 : 64)
#define VALUE_CHUNK (VALUE_WIDTH % 64 ? 32 : 64)
#define THREADS (128 * (WARPGROUPS + 1))
#define UNITS (TILE_KEYS / BLOCK_LIST_ROWS)
#define HOLDS_KEYS 0
#define DROPS 0

#include "templates/shared/plan.cuh"
#include "templates/shared/select.cuh"
#include "templates/hopper/block_list_launch.h"
#include "templates/hopper/hopper_async.cuh"
#include "templates/hopper/hopper_mma.cuh"
#include "templates/hopper/hopper_softmax.cuh"
#include "templates/hopper/hopper_merge.cuh"
#include "templates/hopper/hopper_make_lists.cuh"

// ---- shared memory ---------------------------------------------------------

#define QUERY_BYTES (BLOCK_LIST_ROWS * HEAD_WIDTH * 2)
#define KEY_BYTES (TILE_KEYS * HEAD_WIDTH * 2)
#define VALUE_BYTES (TILE_KEYS * VALUE_WIDTH * 2)
#define TILE_BYTES 32
#define PLACE_BYTES (UNITS * 4) // where the units of a visit stand
#define LISTED_WORDS (WARPGROUPS == 2 ? 4 : 16) // of a list, written at once

// Offsets in a warpgroup's part of dynamic shared memory.
#define AT_QUERY 0
#define AT_KEY (AT_QUERY + QUERY_BYTES)
#define AT_VALUE (AT_KEY + STAGES * KEY_BYTES)
#define AT_TILE (AT_VALUE + STAGES * VALUE_BYTES)
#define AT_PLACES (AT_TILE + 2 * TILE_BYTES)
#define AT_LISTED (AT_PLACES + 2 * STAGES * PLACE_BYTES)
#define AT_BARRIERS (AT_LISTED + LISTED_WORDS * 32 * 4)
static_assert(sizeof(block_list_launch) == BLOCK_LIST_LAUNCH_BYTES,
              "the run time has another block_list_launch");
static_assert(QUERY_BLOCK % BLOCK_LIST_ROWS == 0 && KEY_BLOCK % BLOCK_LIST_ROWS == 0,
              "tiles and units do not straddle blocks");

#include "templates/hopper/hopper_visit_stage.cuh"
#define GROUP_BYTES ((SHARED_BYTES + 1023) / 1024 * 1024)
static_assert(WARPGROUPS * GROUP_BYTES <= 232448, "tiles do not fit shared memory");

#include "templates/hopper/block_list_produce.cuh"
#include "templates/hopper/block_list_consume.cuh"

// ---- the kernels -----------------------------------------------------------

extern "C" __global__ void block_list_make(const __grid_constant__ block_list_launch run) {
  make_list_rows(run.list, run.of, [&](int batch) { return batch_keys(run, batch); });
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    block_list_forward(const __grid_constant__ block_list_launch run) {
  extern __shared__ __align__(1024) unsigned char memory[];
  u32 base = shared_address(memory);
  if (threadIdx.x < WARPGROUPS) init_barriers(base + threadIdx.x * GROUP_BYTES, 1);
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(
        PRODUCER_REGISTERS));
    if (threadIdx.x < 32 * WARPGROUPS)
      produce(run, base + threadIdx.x / 32 * GROUP_BYTES);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(
        CONSUMER_REGISTERS));
    int group = (int)threadIdx.x / 128 - 1;
    consume({run, base + group * GROUP_BYTES, group, threadIdx.x % 128 == 0});
  }
}
