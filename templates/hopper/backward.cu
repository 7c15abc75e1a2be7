// backward.cu - gradients on Hopper: dQ, dK or dV, or dK and dV.
//
// The kernel is persistent, as hopper.cu is, and has the same producer. A tile
// holds rows of two tensors (backward_launch.h) and streams the rows that their
// pairs have on the other side. For each block of these, a consumer warpgroup
// computes the scores S of its 64 rows and the products dP = dO V^T; then
// P = exp(S - lse) and dS = P (dP - delta). Both stay in registers, as the left
// operands of dV += P^T dO, dK += dS^T Q and dQ += dS K. A kernel for dQ and
// another for dK and dV make seven products of a pair, and they always give the
// same bits. Where scores are rewritten, or masks decide over pairs (PAIRWISE), the
// plan's tables and expressions (plan.cuh) stand before this file. The fused form is
// one kernel that makes five products, and adds dQ to sums in f32 in no fixed order
// (backward_fused.cuh).
//
// The order of the products leaves none in flight at the end of a round of the
// loop: ptxas would serialise all of them.

#ifndef MAKES
#define MAKES 1          // bits: 1 dQ, alone or with both others; 2 dK, 4 dV
#endif
#define HOLDS_KEYS (MAKES != 1)
#define FUSED (MAKES == 7)
#define MAKES_SCORED ((MAKES & 3) != 0) // dQ or dK, which need dS
#define MAKES_WEIGHTED (MAKES >> 2)     // dV
#ifndef WARPGROUPS
#define WARPGROUPS 2     // consumer warpgroups
#endif
#ifndef TILE_KEYS
#define TILE_KEYS 128    // rows of a streamed block
#endif
#ifndef STAGES
#define STAGES 2         // pipeline stages of streamed blocks
#endif
#ifndef QUERY_STAGES
#define QUERY_STAGES 2   // tiles of held rows in shared memory
#endif
#ifndef SUMS
#define SUMS 0           // 1: gradients are added to sums in f32
#endif
#ifndef MARKS
#define MARKS 0          // 1: rows whose sums are not finite are marked
#endif
#ifndef PINGPONG
#define PINGPONG 0       // 1: warpgroups take turns to issue products
#endif
#ifndef NESTED
#define NESTED 0
#endif
#ifndef SHIFTS
#define SHIFTS 1
#endif
#ifndef LEFT_WINDOWS
#define LEFT_WINDOWS 1
#endif
#ifndef HEAD_WIDTH
#define HEAD_WIDTH 64    // head_dim, padded to a multiple of 32
#endif
#ifndef VALUE_WIDTH
#define VALUE_WIDTH 64   // value_dim, likewise
#endif
#ifndef HEAD_DIM
#define HEAD_DIM HEAD_WIDTH
#endif
#ifndef VALUE_DIM
#define VALUE_DIM VALUE_WIDTH
#endif
#ifndef ELEMENT
#define ELEMENT 1        // 1 bf16, 2 f16
#endif
#ifndef DROPS
#define DROPS 0          // 1: dropout, of DROPOUT = floor(P 2^32)
#endif
#ifndef ALL_ARRIVE
#define ALL_ARRIVE 0
#endif
#ifndef PRODUCER_REGISTERS
#define PRODUCER_REGISTERS 40
#define CONSUMER_REGISTERS 232
#endif
#define BACKWARD 1
#define CHECKS 0
#define GATHERS 0        // 1: gather_backward.cu, where tiles gather rows
#define OWN_TILES 0      // 1: a warpgroup has tiles for itself (backward_own.cuh)
#define PATCHED 0        // 1: grid_backward.cu, where tiles hold patches of a grid
#define GATHERS_HELD 0   // 1: rows that tiles hold are gathered
#ifndef PAIRWISE
#define PAIRWISE 0       // 1: masks, or several windows, decide over pairs
#endif
#ifndef DOCUMENTS
#define DOCUMENTS 0      // 1: calls may be packed, as in hopper.cu
#endif
#define LISTS 0
#define TURNS 1
#define BARE 0           // hopper_zero clears such rows
#define STATES 0
#define LOADERS 1
#define TILE_PACKING 0
#define DELAYED_RELEASE 0
#define SAYS_LAST 1
#define CHUNK (HEAD_WIDTH % 64 ? 32 : 64)
#define VALUE_CHUNK (VALUE_WIDTH % 64 ? 32 : 64)
#define THREADS (128 * (WARPGROUPS + 1))

#include "templates/hopper/backward_launch.h"
#if PAIRWISE
#include "templates/shared/bits.cuh"
#endif
#if DROPS
#include "templates/shared/philox.cuh"
#endif
#include "templates/hopper/hopper_async.cuh"
#include "templates/hopper/hopper_mma.cuh"
#include "templates/hopper/hopper_softmax.cuh"
#include "templates/hopper/hopper_walk.cuh"

// SLOPED: dS is multiplied by derivatives of scores, which vary and are in units
// of SLOPE_UNIT. UNIT_SLOPES: they are 1.
#ifndef UNIT_SLOPES
#define UNIT_SLOPES 0
#endif
#define SLOPED                                                                 \
  (MAKES_SCORED && SCORED && SCORE_FORM != SCORE_LINEAR && !UNIT_SLOPES)
#if SLOPED && SCORE_FORM == SCORE_CAPPED
#define SLOPE_UNIT (4 * SCORE_CAP * SCORE_RATE)
#elif SLOPED && ELEMENT == 2
#define SLOPE_UNIT 16.0f // dS fits into f16 with derivatives up to 32
#else
#define SLOPE_UNIT 1.0f
#endif

// ---- shared memory ---------------------------------------------------------

#define QUERY_BYTES (64 * HEAD_WIDTH * 2) // of a warpgroup
#define HELD_BYTES (MAKES_SCORED * 64 * VALUE_WIDTH * 2) // likewise: dO, or V
#define KEY_BYTES (TILE_KEYS * HEAD_WIDTH * 2)
#define VALUE_BYTES (TILE_KEYS * VALUE_WIDTH * 2)
#define TILE_SLOTS 4
#if PAIRWISE && KNOWN_PARTS
#define PLAN_RUNS 2
#define RUN_BYTES (64 + WARPGROUPS * 128) // a word for each block, warpgroup
#else
#define PLAN_RUNS 8
#define RUN_BYTES (PAIRWISE ? 64 : 32)
#endif
#if DOCUMENTS && HOLDS_KEYS
#define PLAN_HEAD 64
#else
#define PLAN_HEAD 48
#endif
#define PLAN_BYTES (PLAN_HEAD + PLAN_RUNS * RUN_BYTES)
#define TILE_BYTES 32
#define MESSAGE_BYTES (PAIRWISE ? 64 : 48)
// Where keys are held: lse of all rows, delta of all rows, whether some lse is
// large, the unit, the slope of the scores. With dropout: words of streamed rows and of held rows.
#define WORDS_AT (HOLDS_KEYS * (TILE_KEYS * 8 + 16))
#define FACT_BYTES (WORDS_AT + DROPS * (TILE_KEYS + 64 * WARPGROUPS) * 4)

#define AT_QUERY 0
#define AT_HELD (AT_QUERY + QUERY_STAGES * WARPGROUPS * QUERY_BYTES)
#define AT_KEY (AT_HELD + QUERY_STAGES * WARPGROUPS * HELD_BYTES)
#define AT_VALUE (AT_KEY + STAGES * KEY_BYTES)
// The fused form: dS of 64 query rows to a chunk, in [keys][64], twice.
#define SLOPE_CHUNK (64 * WARPGROUPS * 128)
#define SLOPE_BYTES (TILE_KEYS / 64 * SLOPE_CHUNK)
#define AT_SLOPES (AT_VALUE + STAGES * VALUE_BYTES)
#define AT_FACTS (AT_SLOPES + FUSED * 2 * SLOPE_BYTES)
#define AT_BLOCK (AT_FACTS + STAGES * FACT_BYTES)
#include "templates/hopper/hopper_layout.cuh"
#define AT_FACTS_FULL AT_MORE
#define AT_MESSAGE_FULL (AT_FACTS_FULL + STAGES * 8)
#define AT_PACE AT_MESSAGE_FULL // unused: no rows are cleared here
#define AT_SLOPES_FULL (AT_MESSAGE_FULL + 2 * STAGES * 8)
#define AT_SLOPES_EMPTY (AT_SLOPES_FULL + FUSED * 16)
#define AT_SLOPE (AT_SLOPES_EMPTY + FUSED * 16) // of each tile of queries
#define SHARED_BYTES (AT_SLOPE + !HOLDS_KEYS * SCORE_SLOPES * TILE_SLOTS * 4)
static_assert(sizeof(hopper_launch) == HOPPER_LAUNCH_BYTES &&
                  sizeof(hopper_backward_launch) ==
                      HOPPER_LAUNCH_BYTES + HOPPER_BACKWARD_BYTES,
              "the run time has another hopper_backward_launch");
#ifndef SHARED_LIMIT
#define SHARED_LIMIT 232448
#endif
static_assert(SHARED_BYTES <= SHARED_LIMIT, "as the compiler counts");

#include "templates/hopper/hopper_stream.cuh"
#include "templates/hopper/hopper_produce.cuh"
#include "templates/hopper/backward_facts.cuh"
#include "templates/hopper/backward_load.cuh"
#include "templates/hopper/backward_consume.cuh"
#include "templates/shared/divide.cuh"
#include "templates/hopper/backward_rows.cuh"
#include "templates/hopper/hopper_order_documents.cuh"

// ---- the kernel ------------------------------------------------------------

DEVICE void init_barriers(u32 base) {
  const int readers = WARPGROUPS * 4; // a warp each
  for (int i = 0; i < 2; i++) {
    barrier_init(base + AT_PLAN_FULL + 8 * i, 32);
    barrier_init(base + AT_PLAN_EMPTY + 8 * i, ALL_ARRIVE ? 32 : 1);
    barrier_init(base + AT_QUERY_FULL + 8 * i, 1);
    barrier_init(base + AT_QUERY_EMPTY + 8 * i, readers);
  }
  for (int i = 0; i < STAGES; i++) {
    barrier_init(base + AT_KEY_FULL + 8 * i, 1);
    barrier_init(base + AT_KEY_EMPTY + 8 * i, readers);
    barrier_init(base + AT_VALUE_FULL + 8 * i, 1);
    barrier_init(base + AT_VALUE_EMPTY + 8 * i, readers);
    barrier_init(base + AT_FACTS_FULL + 8 * i, 32);
    barrier_init(base + AT_MESSAGE_FULL + 16 * i, 1);
    barrier_init(base + AT_MESSAGE_FULL + 16 * i + 8, 1);
  }
  for (int i = 0; FUSED && i < 2; i++) {
    barrier_init(base + AT_SLOPES_FULL + 8 * i, readers);
    barrier_init(base + AT_SLOPES_EMPTY + 8 * i, readers);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    hopper_backward(const __grid_constant__ hopper_backward_launch run) {
  extern __shared__ __align__(1024) unsigned char memory[];
  u32 base = shared_address(memory);
#if PAIRWISE
  if (run.of.only_if && !*run.of.only_if) return;
#endif
  if (threadIdx.x == 0) init_barriers(base);
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(
        PRODUCER_REGISTERS));
    if (threadIdx.x < 32) load_plans(run.of, base);
    else if (threadIdx.x == 32) load_values(run.of, base);
    else if (threadIdx.x >= 64 && threadIdx.x < 96) make_plans(run.of, base);
    else if (threadIdx.x >= 96 && FACT_BYTES) load_facts(run, base);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(
        CONSUMER_REGISTERS));
    consume(run, base);
  }
}

// One block of this runs before a packed call.
extern "C" __global__ void __launch_bounds__(HOPPER_ORDER_THREADS, 1)
    hopper_documents(const __grid_constant__ hopper_backward_launch run) {
  extern __shared__ __align__(1024) unsigned char memory[];
#if DOCUMENTS
  order_documents(run.of, *(document_order *)memory);
  if (run.of.alone && threadIdx.x == 0 && *run.of.mixed) *run.spoiled = 1;
#endif
}
