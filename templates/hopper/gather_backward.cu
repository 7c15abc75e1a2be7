// gather_backward.cu - gradients on Hopper where each query row chooses blocks of keys,
// as gather.cu makes o: dQ, or dK and dV.
//
// Rows are gathered by the blocks that they chose, and the consumers are those of
// backward.cu. For dQ a tile holds 128 rows that chose a block of keys, and streams
// the block; its sums are a part of each row's dQ, which gather_add adds up. For dK
// and dV a tile holds up to 128 keys of a block, and streams the rows that chose it.
// All sums have a fixed order.

#ifndef MAKES
#define MAKES 1          // bits: 1 dQ, alone; 2 and 4 dK and dV
#endif
#define HOLDS_KEYS (MAKES != 1)
#define FUSED 0
#define MAKES_SCORED 1
#define MAKES_WEIGHTED (MAKES >> 2)
#ifndef WARPGROUPS
#define WARPGROUPS 2     // consumer warpgroups
#endif
#ifndef TILE_KEYS
#define TILE_KEYS 64     // rows of a streamed block
#endif
#ifndef STAGES
#define STAGES 2         // pipeline stages of streamed blocks
#endif
#ifndef QUERY_STAGES
#define QUERY_STAGES 1   // tiles of held rows in shared memory
#endif
#ifndef PINGPONG
#define PINGPONG 1       // 1: warpgroups take turns to issue products
#endif
#ifndef HEAD_WIDTH
#define HEAD_WIDTH 128   // head_dim, a multiple of 32
#define VALUE_WIDTH 128
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif
#define PRODUCER_REGISTERS 56
#define CONSUMER_REGISTERS 224
#define SUMS (!HOLDS_KEYS) // dQ of an entry is of f32
#define MARKS 0
#define NESTED 1
#define SHIFTS 0
#define LEFT_WINDOWS 0
#define DROPS 0
#define BACKWARD 1
#define CHECKS 0
#define PAIRWISE 0
#define TURNS 1
#define TILE_PACKING 0
#define GATHERS 1
#define OWN_TILES 0
#define PATCHED 0
#define GATHERS_HELD (!HOLDS_KEYS)
#define CHUNK (HEAD_WIDTH % 64 ? 32 : 64)
#define VALUE_CHUNK (VALUE_WIDTH % 64 ? 32 : 64)
#define THREADS (128 * (WARPGROUPS + 1))
#define TILE_ROWS (64 * WARPGROUPS)
#define SLOPED 0
#define SLOPE_UNIT 1.0f

#include "templates/shared/plan.cuh"
#include "templates/hopper/gather_launch.h"
#include "templates/hopper/hopper_async.cuh"
#include "templates/hopper/hopper_mma.cuh"
#include "templates/hopper/hopper_softmax.cuh"

// ---- shared memory ---------------------------------------------------------

#define QUERY_BYTES (64 * HEAD_WIDTH * 2) // of a warpgroup
#define HELD_BYTES (64 * VALUE_WIDTH * 2) // likewise: dO, or V
#define KEY_BYTES (TILE_KEYS * HEAD_WIDTH * 2)
#define VALUE_BYTES (TILE_KEYS * VALUE_WIDTH * 2)
#define TILE_SLOTS 4
#define PLAN_BYTES 0
#define TILE_BYTES 32
#define MESSAGE_BYTES 48
// Where keys are held: as in backward.cu, then the numbers of the rows.
#define FACT_BYTES (HOLDS_KEYS * (TILE_KEYS * 12 + 16))
#define WORDS_AT FACT_BYTES // unused: there is no dropout
#define ITEM_BYTES (GATHERS_HELD * TILE_ROWS * 8)
#define GATHERERS (HOLDS_KEYS ? 64 : 96) // threads that gather rows

#define AT_QUERY 0
#define AT_HELD (AT_QUERY + QUERY_STAGES * WARPGROUPS * QUERY_BYTES)
#define AT_KEY (AT_HELD + QUERY_STAGES * WARPGROUPS * HELD_BYTES)
#define AT_VALUE (AT_KEY + STAGES * KEY_BYTES)
#define AT_FACTS (AT_VALUE + STAGES * VALUE_BYTES)
#define AT_ITEM (AT_FACTS + STAGES * FACT_BYTES)
#define AT_BLOCK (AT_ITEM + TILE_SLOTS * ITEM_BYTES)
#include "templates/hopper/hopper_layout.cuh"
#define AT_FACTS_FULL AT_MORE
#define AT_MESSAGE_FULL AT_MORE // unused: copies wait for facts
#define CLAIMS 8 // claimed tiles in shared memory; more than stages
#define AT_CLAIM_FULL (AT_FACTS_FULL + STAGES * 8)
#define AT_CLAIM (AT_CLAIM_FULL + CLAIMS * 8)
#define SHARED_BYTES (AT_CLAIM + CLAIMS * 4)
static_assert(TILE_ROWS == GATHER_TILE_ROWS &&
                  sizeof(gather_call) == GATHER_CALL_BYTES &&
                  sizeof(gather_backward_launch) ==
                      HOPPER_LAUNCH_BYTES + HOPPER_BACKWARD_BYTES +
                          GATHER_BACKWARD_BYTES,
              "the run time has another gather_backward_launch");
static_assert(SHARED_BYTES <= SHARED_LIMIT, "as the compiler counts");
static_assert(STAGES < CLAIMS, "a claimed tile is read before its slot is taken");

#include "templates/hopper/hopper_stream.cuh"
#include "templates/hopper/backward_facts.cuh"
#include "templates/hopper/backward_consume.cuh"
#include "templates/shared/divide.cuh"
#include "templates/hopper/backward_rows.cuh"
#include "templates/hopper/gather_sort.cuh"
#include "templates/hopper/gather_tiles.cuh"
#include "templates/hopper/gather_add.cuh"
#if HOLDS_KEYS
#include "templates/hopper/gather_hold_keys.cuh"
#else
#include "templates/hopper/gather_hold_rows.cuh"
#endif

// ---- the kernel ------------------------------------------------------------

DEVICE void init_barriers(u32 base) {
  const int readers = WARPGROUPS * 4; // a warp each
  for (int i = 0; i < QUERY_STAGES; i++) {
    barrier_init(base + AT_QUERY_FULL + 8 * i, HOLDS_KEYS ? 1 : GATHERERS);
    barrier_init(base + AT_QUERY_EMPTY + 8 * i, readers);
  }
  for (int i = 0; i < STAGES; i++) {
    barrier_init(base + AT_KEY_FULL + 8 * i, HOLDS_KEYS ? GATHERERS : 1);
    barrier_init(base + AT_KEY_EMPTY + 8 * i, readers);
    barrier_init(base + AT_VALUE_FULL + 8 * i, HOLDS_KEYS ? GATHERERS : 1);
    barrier_init(base + AT_VALUE_EMPTY + 8 * i, readers);
    barrier_init(base + AT_FACTS_FULL + 8 * i, 32);
  }
  for (int i = 0; i < CLAIMS; i++) barrier_init(base + AT_CLAIM_FULL + 8 * i, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gather_backward(const __grid_constant__ gather_backward_launch run) {
  extern __shared__ __align__(1024) unsigned char memory[];
  u32 base = shared_address(memory);
  if (threadIdx.x == 0) init_barriers(base);
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(
        PRODUCER_REGISTERS));
    produce(run, base);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(
        CONSUMER_REGISTERS));
    consume(run.back, base);
  }
}
