/* decode.cu - the kernel for few rows of sm_90: decoding with a cache of keys. Its
 * time is that of reading K and V once, so that all it does serves the copies.
 *
 * A *unit* is a tile of up to 16 rows and a few splits of its keys, one after the
 * other. The rows of a group of query heads share a tile. A block has a few teams
 * of warps, which take units by counting, as long as there are any. The producing
 * warp of a team plans the keys of a unit as general.cu does (general_plan.cuh),
 * copies them into the team's ring of stages and tells the other warps by messages.
 * It runs ahead of them, also into the next unit. Planning a visit takes longer than
 * reading its keys, hence a producing warp for each team. The visits of a split go
 * round the warps of its team, each of which has a running softmax of its own. At
 * the end of a split the team adds them up in a fixed order. Where keys are split,
 * the team of a tile's last unit sees to it that all are merged (decode_tiles.cuh).
 *
 * The keys of a split follow from the batch row's own keys (splits.h): a row has the
 * same bits alone or in a batch. The idea of splits is that of Flash-Decoding
 * (Dao, Haziza, Massa and Sizov 2023, on the PyTorch blog). */
#include "templates/shared/plan.cuh"
#include "templates/shared/finish.cuh"
#include "templates/shared/barrier.cuh"
#include "templates/decode/decode_launch.h"
#include "templates/decode/decode_sizes.cuh"
#include "templates/shared/score.cuh"
#include "templates/shared/softmax.cuh"
#define ROW_WARP 0 /* all warps work on the rows of one tile */
#include "templates/general/general_rows.cuh"
enum { CARES = 0 };
#define ALIGNED_KEYS PAGED
#include "templates/general/general_visit.cuh"
#include "templates/general/general_plan.cuh"
#include "templates/decode/decode_stream.cuh"
#include "templates/decode/decode_plan.cuh"
#include "templates/decode/decode_product.cuh"
#include "templates/decode/decode_merge.cuh"
#include "templates/decode/decode_tiles.cuh"
#include "templates/decode/decode_end.cuh"

static_assert(sizeof(decode_launch) == DECODE_LAUNCH_BYTES,
              "the run time has another decode_launch");
static_assert(sizeof(dil_scratch) <= SCRATCH_BYTES, "SCRATCH_BYTES");

/* A warp's share of a split. */
struct decode_rows {
  int team;
  dil_state state[ROW_GROUPS];
  float o[ROW_GROUPS][VALUE_TILES][4];
  bool begun; /* it has taken a visit */
  decode_ended ended;
};

DIL_INLINE void begin_split(decode_rows &x) {
#pragma unroll
  for (int r = 0; r < ROW_GROUPS; r++) {
#pragma unroll
    for (int e = 0; e < 4 * VALUE_TILES; e++) x.o[r][e >> 2][e & 3] = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      x.state[r].m[i] = DIL_NONE;
      x.state[r].l[i] = 0;
    }
  }
  x.begun = false;
}

/* Scores to weights: scale, chain, predicate, softmax. */
DIL_INLINE void make_weights(const dil_params &p, const dil_tile &tile,
                             const decode_message &m, const float *times,
                             int group,
                             float (&s)[SCORE_TILES][4], dil_state &state,
                             float (&o)[VALUE_TILES][4]) {
  const dil_visit &v = m.visit;
  bool natural = SCORED || !(p.scale > 0);
  float alpha[2];
  dil_rows rows = {};
  unsigned bits = ~0u;
  if (SCORED || !v.full) rows = rows_of(p, tile, group);
  if (!v.full)
    bits = v.window ? window_bits(tile, rows, v)
                    : part_bits(p, tile, rows, v,
                                m.live[group / 4] >> 8 * (group % 4) & 0xff,
                                m.full[group / 4] >> 8 * (group % 4) & 0xff);
#if PAGED
  if (!v.full) bits = without_absent(v, bits);
#endif
  if (natural) rewrite_scores<SCORE_TILES>(p, tile, rows, v, s);
  if (!v.full) hide_pairs<SCORE_TILES>(bits, s);
  softmax_step<SCORE_TILES>(state, s,
                            natural ? DIL_LOG2_E : p.scale * DIL_LOG2_E,
                            MULTIPLICITY && v.merged ? times : nullptr, alpha);
  scale_sums<VALUE_TILES>(alpha, o);
}

/* A warp's visit: the keys of message n of the block. */
DIL_INLINE void take_visit(const dil_params &p, const decode_message &m,
                           unsigned n,
                           query_fragment (&fragments)[ROW_GROUPS][Q_FRAGMENTS],
                           decode_rows &x) {
  unsigned stage = stage_of(x.team, m.place), slot = slot_of(x.team, m.unit);
  float s[ROW_GROUPS][SCORE_TILES][4];
  if (!x.begun) {
    barrier_wait(QUERY_FULL(slot), slot_turn(m.unit));
    if (Q_IN_REGISTERS) load_fragments(slot, fragments);
    x.begun = true;
  }
  barrier_wait(STAGE_FULL(stage), stage_turn(m.place));
  make_scores(stage, slot, fragments, s);
#pragma unroll
  for (int r = 0; r < ROW_GROUPS; r++)
    make_weights(p, UNIT(slot).tile, m, TIMES(n), r, s[r], x.state[r], x.o[r]);
  if (!m.visit.full && has_bad_values(stage)) take_bad_rows(stage, s, x.o);
  add_values(stage, s, x.o);
  proxy_fence(); /* without it the arrival overtakes the last reads of the stage */
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(STAGE_EMPTY(stage));
}

/* The end of a split: writes the rows that are due. Behind the last split of a unit its
 * queries may be written over. Or the end of all units: the warps of the block merge what
 * is due. */
DIL_INLINE void take_end(const decode_launch &l, const decode_message &m, int warp,
                         decode_rows &x) {
  const int mine = warp % TEAM_WARPS;
  const bool stops = m.stops;
  unsigned slot = slot_of(x.team, m.unit);
  row_turn turn = {mine, TEAM_WARPS};
  decode_due due = {};
  unsigned tiles = 0;
  if (stops) {
    end_team(l, x.team, mine, x.ended);
    turn = {warp, TEAMS * TEAM_WARPS};
    tiles = due_tiles();
  } else {
    barrier_wait(QUERY_FULL(slot), slot_turn(m.unit));
    due = end_split(l, UNIT(slot), m.split, m.last, x.team, mine, x.state, x.o, x.ended);
  }
#pragma unroll 1
  for (; due.of || tiles; due.of = nullptr) {
    if (stops) due = due_tile(__ffs((int)tiles) - 1);
    tiles &= tiles - 1;
    write_rows(l, *due.of, x.team, mine, due.merges, turn);
  }
  __syncwarp();
  if (!stops && m.last && threadIdx.x % 32 == 0) barrier_arrive(QUERY_EMPTY(slot));
  begin_split(x);
}

DIL_INLINE void consume(const decode_launch &l, int warp) {
  int mine = warp % TEAM_WARPS, turn = 0; /* the warp that takes the next visit */
  query_fragment fragments[ROW_GROUPS][Q_FRAGMENTS];
  decode_rows x;
  open_stream();
  x.team = warp / TEAM_WARPS;
  x.ended = {};
  begin_split(x);
  bool stops = false;
#pragma unroll 1
  for (unsigned count = 0; !stops; count++) {
    unsigned n = message_of(x.team, count);
    const decode_message &m = MESSAGE(n);
    barrier_wait(MESSAGE_FULL(n), message_turn(count));
    stops = m.stops;
    if (stops || !m.visit.some) {
      take_end(l, m, warp, x);
      turn = 0;
    } else {
      if (turn == mine) take_visit(l.of, m, n, fragments, x);
      turn = (turn + 1) % TEAM_WARPS;
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(MESSAGE_EMPTY(n));
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    dil_decode(const __grid_constant__ decode_launch l) {
  int warp = (int)threadIdx.x / 32;
  if (warp < TEAMS)
    produce(l, warp);
  else
    consume(l, warp - TEAMS);
}
