// block_list_backward.cu - gradients on Hopper where each block of queries has a list of
// the blocks of keys that it sees, as block_list.cu makes o: dQ, or dK and dV.
//
//   block_list_make      a bit for each pair of blocks, where no table has them already
//   block_list_turn      the same bits by blocks of keys
//   block_list_backward  dQ, or dK and dV
//
// As there, each consumer warpgroup has tiles of its own, of 64 rows with one list, and
// its own producing warp, stages and barriers. The consumers are those of backward.cu,
// of one warpgroup each. A tile of dQ walks the list of its queries; a tile of dK and
// dV, for each query head, the turned list of its keys. The sums have a fixed order.

#ifndef MAKES
#define MAKES 1          // bits: 1 dQ, alone; 2 and 4 dK and dV
#endif
#define HOLDS_KEYS (MAKES != 1)
#ifndef CONSUMERS
#define CONSUMERS 2      // warpgroups, each with tiles of its own: 2 or 3
#endif
#ifndef STAGES
#define STAGES 2         // pipeline stages of streamed units
#endif
#ifndef HEAD_WIDTH
#define HEAD_WIDTH 128   // head_dim, a multiple of 32
#define VALUE_WIDTH 128
#endif
#ifndef QUERY_BLOCK
#define QUERY_BLOCK 64   // rows with one list, a multiple of 64
#define KEY_BLOCK 64     // keys that a bit of it stands for, a multiple of 64
#endif
#ifndef SHARED_LIMIT
#define SHARED_LIMIT 232448
#endif
#ifndef WINDOW_LEFT
#define WINDOW_LEFT DIL_FAR // DIL_FAR: no bound
#define WINDOW_RIGHT 0
#endif
#define TILE_KEYS 64     // of a unit: BLOCK_LIST_ROWS
#define PATCHED 0
#include "templates/hopper/backward_own_sizes.cuh"

#include "templates/shared/plan.cuh"
#include "templates/hopper/block_list_backward_launch.h"
#include "templates/hopper/hopper_async.cuh"
#include "templates/hopper/hopper_mma.cuh"
#include "templates/hopper/hopper_softmax.cuh"
#include "templates/hopper/hopper_make_lists.cuh"

// ---- shared memory ---------------------------------------------------------

#define LISTED_WORDS 4   // of a list, written at once
#define OWN_BYTES (LISTED_WORDS * 32 * 4)
#include "templates/hopper/backward_own_layout.cuh"
#define AT_LISTED AT_OWN
static_assert(sizeof(block_list_backward_launch) ==
                  HOPPER_LAUNCH_BYTES + HOPPER_BACKWARD_BYTES + BLOCK_LIST_BACKWARD_BYTES,
              "the run time has another block_list_backward_launch");
static_assert(QUERY_BLOCK % BLOCK_LIST_ROWS == 0 && KEY_BLOCK % BLOCK_LIST_ROWS == 0,
              "tiles and units do not straddle blocks");

// ---- windows ---------------------------------------------------------------

// Blocks of rows that tiles hold and of those that they stream, and how far a held row
// sees to both sides.
#if HOLDS_KEYS
#define HELD_HEADS KV_HEADS
#define HELD_BLOCK KEY_BLOCK
#define STREAMED_BLOCK QUERY_BLOCK
#define HELD_LEFT WINDOW_RIGHT
#define HELD_RIGHT WINDOW_LEFT
#else
#define HELD_HEADS HEADS
#define HELD_BLOCK QUERY_BLOCK
#define STREAMED_BLOCK KEY_BLOCK
#define HELD_LEFT WINDOW_LEFT
#define HELD_RIGHT WINDOW_RIGHT
#endif

// The positions that a held row sees, of those from `low` to `high`.
struct streamed_span {
  int low, high; // high not included
};
DEVICE streamed_span streamed_by(int position, int low, int high) {
  if (HELD_LEFT != DIL_FAR) low = max(low, position - HELD_LEFT);
  if (HELD_RIGHT != DIL_FAR) high = min(high, position + HELD_RIGHT + 1);
  return {low, high};
}

#include "templates/hopper/hopper_stream.cuh"
#include "templates/hopper/backward_facts.cuh"
#include "templates/hopper/backward_consume.cuh"
#include "templates/shared/divide.cuh"
#include "templates/hopper/backward_rows.cuh"
#include "templates/hopper/backward_own.cuh"
#include "templates/hopper/block_list_stream.cuh"

// ---- the kernels -----------------------------------------------------------

extern "C" __global__ void
block_list_make(const __grid_constant__ block_list_backward_launch run) {
  make_list_rows(run.list, run.params, [&](int) { return run.params.M; });
}

// A warp turns 32 by 32 bits.
extern "C" __global__ void
block_list_turn(const __grid_constant__ block_list_backward_launch run) {
  const hopper_block_list &from = run.list, &to = run.turned;
  int lane = threadIdx.x % 32, columns = (to.rows + 31) / 32;
  int each = columns * to.words, all = each * to.heads * to.batches;
#pragma unroll 1
  for (int n = (blockIdx.x * blockDim.x + threadIdx.x) / 32; n < all;
       n += gridDim.x * blockDim.x / 32) {
    int line = n / each, column = n % each / to.words, word = n % to.words;
    int batch = line / to.heads, head = line % to.heads, row = word * 32 + lane;
    const unsigned *source = from.bits + batch * from.batch + head * from.head;
    u32 held = row < from.rows ? source[(long long)row * from.words + column] : 0;
    u32 turned = 0;
#pragma unroll
    for (int k = 0; k < 32; k++) {
      u32 all_rows = __ballot_sync(~0u, held >> k & 1);
      if (lane == k) turned = all_rows;
    }
    int key = column * 32 + lane;
    if (key < to.rows)
      to.bits[batch * to.batch + head * to.head + (long long)key * to.words + word] =
          turned;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    block_list_backward(const __grid_constant__ block_list_backward_launch run) {
  extern __shared__ __align__(1024) unsigned char memory[];
  run_own_tiles(run.back, shared_address(memory),
                [&](u32 base) { stream_lists(run, base); });
}
