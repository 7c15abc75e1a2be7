// gather.cu - attention forward on Hopper where each query row chooses blocks of keys.
//
// Neighbouring rows choose different blocks, so that a tile of neighbours would visit
// nearly all of them. Instead, a tile gathers rows that chose the same block of keys,
// wherever they stand (FlashMoBA, arXiv:2511.11571, does so). Its result is a part of
// each of these rows' softmax:
//
//   gather_count, gather_place, gather_items
//                   sort the entries of the lists by blocks, and make tiles of them
//   gather_forward  o of one block of keys for each entry, and what its softmax left
//   gather_merge    adds up the entries of each row
//
// gather_forward is persistent, as hopper.cu is. One thread copies keys and values, a
// warp looks for values that are not finite, and two warps gather queries.

#ifndef WARPGROUPS
#define WARPGROUPS 2     // consumer warpgroups
#endif
#ifndef STAGES
#define STAGES 2         // pipeline stages of keys and values
#endif
#ifndef TILE_KEYS
#define TILE_KEYS 128
#endif
#ifndef HEAD_WIDTH
#define HEAD_WIDTH 128   // head_dim, a multiple of 32
#define VALUE_WIDTH 128
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif
#define QUERY_STAGES 2
#define PRODUCER_REGISTERS 56
#define CONSUMER_REGISTERS 224
#define CHUNK (HEAD_WIDTH % 64 ? 32 : 64)
#define VALUE_CHUNK (VALUE_WIDTH % 64 ? 32 : 64)
#define THREADS (128 * (WARPGROUPS + 1))
#define TILE_ROWS (64 * WARPGROUPS)
#define GATHERERS 64     // threads that gather queries
#define HOLDS_KEYS 0
#define DROPS 0

#include "templates/shared/plan.cuh"
#include "templates/shared/select.cuh"
#include "templates/hopper/gather_launch.h"
#include "templates/hopper/hopper_async.cuh"
#include "templates/hopper/hopper_mma.cuh"
#include "templates/hopper/hopper_softmax.cuh"
#include "templates/hopper/hopper_merge.cuh"

// ---- shared memory ---------------------------------------------------------

#define QUERY_BYTES (64 * HEAD_WIDTH * 2) // of a warpgroup
#define KEY_BYTES (TILE_KEYS * HEAD_WIDTH * 2)
#define VALUE_BYTES (TILE_KEYS * VALUE_WIDTH * 2)
#define TILE_BYTES 32
#define ITEM_BYTES (TILE_ROWS * 8)

// Offsets in dynamic shared memory.
#define AT_QUERY 0
#define AT_KEY (AT_QUERY + QUERY_STAGES * WARPGROUPS * QUERY_BYTES)
#define AT_VALUE (AT_KEY + STAGES * KEY_BYTES)
#define AT_TILE (AT_VALUE + STAGES * VALUE_BYTES)
#define AT_ITEM (AT_TILE + QUERY_STAGES * TILE_BYTES)
#define AT_BARRIERS (AT_ITEM + QUERY_STAGES * ITEM_BYTES)
static_assert(TILE_ROWS == GATHER_TILE_ROWS &&
                  sizeof(gather_call) == GATHER_CALL_BYTES &&
                  sizeof(gather_launch) == GATHER_LAUNCH_BYTES,
              "the run time has another gather_launch");

#include "templates/hopper/hopper_visit_stage.cuh"
#include "templates/hopper/gather_sort.cuh"
#include "templates/hopper/gather_merge.cuh"
#include "templates/hopper/gather_produce.cuh"
#include "templates/hopper/gather_consume.cuh"

// ---- the kernel ------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gather_forward(const __grid_constant__ gather_launch run) {
  extern __shared__ __align__(1024) unsigned char memory[];
  u32 base = shared_address(memory);
  if (threadIdx.x == 0) init_barriers(base, GATHERERS);
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(
        PRODUCER_REGISTERS));
    if (threadIdx.x == 0) load_blocks(run, base);
    else if (threadIdx.x >= 32 && threadIdx.x < 64) check_values(run, base);
    else if (threadIdx.x >= 64) gather_queries(run, base);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(
        CONSUMER_REGISTERS));
    consume({run, base, (int)threadIdx.x / 128 - 1, threadIdx.x % 128 == 0});
  }
}
