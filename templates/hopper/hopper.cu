// hopper.cu - attention forward on Hopper, all branches of a pattern in one
// kernel.
//
// The design is that of FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608):
// a persistent kernel with one thread block on each multiprocessor and
// specialised warps. The first warpgroup produces. One of its warps is the tile
// scheduler and plans each tile's runs of keys. Another warp copies queries and
// keys, one thread copies values, and the last warp clears bare rows (rows that
// no branch selects). The other warpgroups consume, 64 query rows each: S = Q
// K^T, softmax, O += P V. Named barriers order their use of the tensor cores,
// so that one multiplies while the others exponentiate (ping-pong scheduling).
//
// Only the planner knows tiles, classes and branches. Consumers see one endless
// stream of key blocks, each with a message that says how to treat it. A
// consumer multiplies the queries with one block while it multiplies the
// weights with the values of the block before. This overlap continues across
// tiles: the end of a tile costs its epilogue but drains no pipeline.

#ifndef WARPGROUPS
#define WARPGROUPS 3     // consumer warpgroups: 2, 3 or 4
#endif
#ifndef TILE_KEYS
#define TILE_KEYS 128
#endif
#ifndef STAGES
#define STAGES 4         // pipeline stages of keys and values
#endif
#ifndef QUERY_STAGES
#define QUERY_STAGES 2   // 1: queries are loaded when the previous tile is done
                         // with its own
#endif
#ifndef STAGED
#define STAGED 1         // 0: O is stored from registers, not by TMA
#endif
#ifndef NESTED
#define NESTED 0         // 1: the segments of every pass divide one another
#endif
#ifndef BARE
#define BARE 1           // 0: every row is selected by some branch
#endif
#ifndef SHIFTS
#define SHIFTS 1         // 0: residues are the same in every segment
#endif
#ifndef EACH_PHASE
#define EACH_PHASE 1     // 0: every class has one phase
#endif
#ifndef LEFT_WINDOWS
#define LEFT_WINDOWS 1   // 0: no window has a left bound
#endif
#ifndef STATES
#define STATES 1         // 0: no pass or shard resumes a running state
#endif
#ifndef ALL_ARRIVE
#define ALL_ARRIVE 0     // 1: every thread arrives itself, for race checkers
#endif
#ifndef HEAD_WIDTH
#define HEAD_WIDTH 64    // head_dim, a multiple of 32
#endif
#ifndef VALUE_WIDTH
#define VALUE_WIDTH 64
#endif
#ifndef VALUE_DIM
#define VALUE_DIM VALUE_WIDTH // columns without padding
#endif
#ifndef ELEMENT
#define ELEMENT 1        // 1 bf16, 2 f16
#endif

#ifndef DROPS
#define DROPS 0          // 1: dropout, of DROPOUT = floor(P 2^32)
#endif
// The arrivals that complete a block of keys, or a tile of queries: copies, and
// with dropout the random words.
#define LOADERS (1 + DROPS)

// 1: masks or score chains decide over pairs, or a union has several windows.
// The plan's tables and expressions (plan.cuh) then stand before this file.
#ifndef PAIRWISE
#define PAIRWISE 0
#endif
#ifndef LISTS
#define LISTS 0          // conditions on blocks, which become lists first
#endif
#ifndef TURNS
#define TURNS 1          // 0: warpgroups multiply when they can, each in its own
                         // blocks, without ping-pong scheduling
#endif
#ifndef CHAINS
#define CHAINS 1         // score chains, if SCORED
#endif
// Tile packing: rows of another class may share a tile (packed rows, see
// hopper_class in hopper_launch.h). Kernels with enough registers support it;
// hopper.c of the run time has the same rule.
#define TILE_PACKING (NESTED && !PAIRWISE && WARPGROUPS == 3 && VALUE_DIM <= 64)

#define CHUNK (HEAD_WIDTH % 64 ? 32 : 64)
#define VALUE_CHUNK (VALUE_WIDTH % 64 ? 32 : 64)
#ifndef PRODUCER_REGISTERS
#define PRODUCER_REGISTERS (WARPGROUPS == 2 ? 40 : 32)
#define CONSUMER_REGISTERS \
  (WARPGROUPS == 2 ? 232 : WARPGROUPS == 3 ? 160 : 112)
#endif
#define THREADS (128 * (WARPGROUPS + 1))
// A warpgroup releases the values of a block one block later. Its first release
// frees the last stage, which counts as in use at the start. Kernels that begin
// each tile anew (one query stage) or skip blocks inside a tile (PAIRWISE)
// cannot do this. Four warpgroups lack a register for it.
#define DELAYED_RELEASE (!PAIRWISE && QUERY_STAGES > 1 && WARPGROUPS < 4)

// The warp that loads values looks at those of blocks in which windows hide
// pairs. With masks consumers look themselves, with dropout an earlier launch.
#define CHECKS (!PAIRWISE && !DROPS)

#ifndef DOCUMENTS
#define DOCUMENTS 0      // 1: calls may be packed. Messages do not tell documents, so that
                         // masks, dropout, and scores that ask for them have general kernels
#endif

// The producer serves the kernels of gradients, too (backward.cu).
#define OWN_TILES 0
#define BACKWARD 0
#define HOLDS_KEYS 0
#define HELD_BYTES 0
#define SAYS_LAST (QUERY_STAGES == 1) // messages tell a tile's last block
// Threads of a warpgroup that release a stage. Where warpgroups pass over many blocks
// of others, it is one of each warp, and the warps need not meet.
#define RELEASES (PAIRWISE && !TURNS ? 4 : 1)

#include "templates/hopper/hopper_launch.h"
// The plan's tables and expressions (plan.cuh) also stand before this file where
// rows have sinks.
#if PAIRWISE
#include "templates/shared/bits.cuh"
#endif
#if SINKS
#include "templates/shared/select.cuh"
#endif
#if DROPS
#include "templates/shared/philox.cuh"
#endif
#include "templates/hopper/hopper_async.cuh"
#include "templates/hopper/hopper_mma.cuh"
#include "templates/hopper/hopper_softmax.cuh"
#include "templates/hopper/hopper_walk.cuh"
#include "templates/hopper/hopper_state.cuh"

// ---- shared memory ---------------------------------------------------------

#define QUERY_BYTES (64 * HEAD_WIDTH * 2) // of a warpgroup
#define KEY_BYTES (TILE_KEYS * HEAD_WIDTH * 2)
#define VALUE_BYTES (TILE_KEYS * VALUE_WIDTH * 2)
#define OUTPUT_BYTES (STAGED * 64 * VALUE_WIDTH * 2) // of a warpgroup
#define TILE_SLOTS 4
#if !PAIRWISE
#define PLAN_RUNS HOPPER_PLAN_RUNS
#define RUN_BYTES 32
#elif KNOWN_PARTS
#define PLAN_RUNS 2
#define RUN_BYTES (64 + WARPGROUPS * 128) // a word for each block, warpgroup
#else
#define PLAN_RUNS 8
#define RUN_BYTES 64
#endif
#define PLAN_HEAD (TILE_PACKING ? 80 : 48)
#define PLAN_BYTES (PLAN_HEAD + PLAN_RUNS * RUN_BYTES)
#define TILE_BYTES (TILE_PACKING ? WARPGROUPS * 32 : 32) // one, or one each
#define MESSAGE_BYTES (PAIRWISE ? 64 : 48)
#define WORD_BYTES                                                             \
  (DROPS ? HOPPER_WORD_BYTES(TILE_KEYS, STAGES, WARPGROUPS) : 0)

// Offsets in dynamic shared memory. An mbarrier has 8 bytes.
#define AT_QUERY 0
#define AT_KEY (AT_QUERY + QUERY_STAGES * WARPGROUPS * QUERY_BYTES)
#define AT_VALUE (AT_KEY + STAGES * KEY_BYTES)
#define AT_OUTPUT (AT_VALUE + STAGES * VALUE_BYTES)
#define AT_BLOCK (AT_OUTPUT + WARPGROUPS * OUTPUT_BYTES) // messages
#include "templates/hopper/hopper_layout.cuh"
#define AT_MESSAGE_FULL AT_MORE
#define AT_PACE (AT_MESSAGE_FULL + 2 * STAGES * 8) // one for each message
#define ZERO_BYTES                                                             \
  (PAIRWISE || !BARE ? 0 : HOPPER_ZERO_ROWS(VALUE_DIM) * VALUE_CHUNK * 2)
#define AT_CHECKED (AT_PACE + 8) // a block's values have been looked at
#define AT_BAD (AT_CHECKED + CHECKS * STAGES * 8) // and some are not finite
#define AT_SLOPE (AT_BAD + CHECKS * STAGES * 4) // of each tile
#define AT_ZERO ((AT_SLOPE + SCORE_SLOPES * TILE_SLOTS * 4 + 127) / 128 * 128)
#define AT_KEY_WORDS (AT_ZERO + ZERO_BYTES) // of each message
#define AT_ROW_WORDS (AT_KEY_WORDS + 2 * STAGES * TILE_KEYS * 4)
#define SHARED_BYTES (AT_ZERO + ZERO_BYTES + WORD_BYTES)
static_assert(sizeof(hopper_launch) == HOPPER_LAUNCH_BYTES,
              "the run time has another hopper_launch");
static_assert(SHARED_BYTES <= 232448, "tiles do not fit shared memory");
static_assert(SHARED_BYTES - AT_BLOCK <=
                  HOPPER_REST_BYTES(VALUE_DIM) + WORD_BYTES,
              "as the host counts");

#include "templates/hopper/hopper_stream.cuh"
#include "templates/hopper/hopper_single.cuh"
#include "templates/hopper/hopper_order_documents.cuh"
#if DROPS
#include "templates/hopper/hopper_drop.cuh"
#endif
#include "templates/hopper/hopper_pairs_of.cuh"
#if LISTS
#include "templates/hopper/hopper_lists.cuh"
#include "templates/hopper/hopper_order.cuh"
#endif
#include "templates/hopper/hopper_produce.cuh"
#include "templates/hopper/hopper_clear.cuh"
#include "templates/hopper/hopper_consume.cuh"
#if PAIRWISE
#include "templates/hopper/hopper_pair.cuh"
#endif

// ---- the kernel ------------------------------------------------------------

DEVICE void init_barriers(u32 base) {
  const int readers = WARPGROUPS * (ALL_ARRIVE ? 128 : RELEASES);
  for (int i = 0; i < 2; i++) {
    barrier_init(base + AT_PLAN_FULL + 8 * i, 32);
    barrier_init(base + AT_PLAN_EMPTY + 8 * i, ALL_ARRIVE ? 32 : 1);
    barrier_init(base + AT_QUERY_FULL + 8 * i, LOADERS);
    barrier_init(base + AT_QUERY_EMPTY + 8 * i, readers);
  }
  for (int i = 0; i < STAGES; i++) {
    barrier_init(base + AT_KEY_FULL + 8 * i, LOADERS);
    barrier_init(base + AT_KEY_EMPTY + 8 * i, readers);
    barrier_init(base + AT_VALUE_FULL + 8 * i, 1);
    barrier_init(base + AT_VALUE_EMPTY + 8 * i, readers);
    barrier_init(base + AT_MESSAGE_FULL + 16 * i, 1);
    barrier_init(base + AT_MESSAGE_FULL + 16 * i + 8, 1);
    if (CHECKS) barrier_init(base + AT_CHECKED + 8 * i, 1);
  }
  shared_set(base + AT_PACE, 0);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    hopper_forward(const __grid_constant__ hopper_launch run) {
  extern __shared__ __align__(1024) unsigned char memory[];
  u32 base = shared_address(memory);
#if PAIRWISE
  if (run.only_if && !*run.only_if) return;
#endif
#if DROPS
  if (run.draws) {
    draw_words(run);
    return;
  }
#endif
#if LISTS
  if (run.makes_lists) {
    if (run.makes_lists == HOPPER_MAKES_LISTS) make_lists(run);
    else if (run.makes_lists == HOPPER_MAKES_LEVELS) make_levels(run);
    else make_order(run, (int *)memory);
    return;
  }
#endif
  if (threadIdx.x == 0) init_barriers(base);
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(
        PRODUCER_REGISTERS));
    if (threadIdx.x < 32) load_plans(run, base);
    else if (threadIdx.x < 64 && (DROPS || CHECKS || threadIdx.x == 32))
      load_values(run, base);
    else if (threadIdx.x >= 64 && threadIdx.x < 96) make_plans(run, base);
    else if (threadIdx.x >= 96) clear_rows(run, base);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(
        CONSUMER_REGISTERS));
    consumer c = {run, base, (int)threadIdx.x / 128 - 1,
                  ALL_ARRIVE || threadIdx.x % (128 / RELEASES) == 0};
#if PAIRWISE
    consume_pairs(c);
#else
    consume(c);
#endif
  }
}

// One block of this runs before a packed call.
extern "C" __global__ void __launch_bounds__(HOPPER_ORDER_THREADS, 1)
    hopper_documents(const __grid_constant__ hopper_launch run) {
  extern __shared__ __align__(1024) unsigned char memory[];
#if DOCUMENTS
  order_documents(run, *(document_order *)memory);
#endif
}
