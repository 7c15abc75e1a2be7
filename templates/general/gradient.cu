/* gradient.cu - gradients of one pass of any plan, sm_80 and up, by mma.sync.
 * With P = exp(s - lse) for a pair's weight, W for what dropout leaves of it
 * and delta = dO . o - dlse of a row:
 *
 *   dV += P W dO      dS = P (W (dO . v) - delta)      dQ += dS K   dK += dS Q
 *
 * which is the backward pass of FlashAttention-2 (Dao 2023, arXiv 2307.08691).
 * A source makes some of the three (MAKES). That of dQ holds query rows and
 * walks their keys as general.cu does; those of dK and dV hold keys and walk
 * the query rows that see them (HOLDS_KEYS of walk.cuh), over the query heads
 * of a K/V head in turn. A row of a gradient is summed by one block, in the
 * order of its visits.
 *
 * One source makes the gradient of an input that scores read instead, a launch
 * each (MAKES_INPUTS): it holds query rows, and gives the pairs of a visit one by
 * one to the sums of gradient_sums.cuh.
 *
 *   dil_gradient_pass  the gradients of one pass
 *   dil_delta          the facts of query rows: lse and delta
 *   dil_round          f32 sums of several passes, rounded once
 *   dil_sink_inputs    the gradient of an input that sinks read
 *   dil_input_end      the copies of the sums of an input, rounded once */
#define MAKES_Q 1
#define MAKES_K 2
#define MAKES_V 4
#define MAKES_INPUTS 8
#ifndef MAKES
#define MAKES MAKES_Q
#endif
#define HOLDS_KEYS (MAKES & (MAKES_K | MAKES_V) ? 1 : 0)
#define SCORES_MATTER (MAKES & (MAKES_Q | MAKES_K | MAKES_INPUTS) ? 1 : 0)
#define GRADIENT 1
#ifndef SHARDS
#define SHARDS 0
#endif
#define ROW_GROUPS 1
#include "templates/shared/plan.cuh"
#include "templates/shared/element.cuh"
#include "templates/shared/epilogue.cuh"
#include "templates/general/general_sizes.cuh"

/* Behind all else: facts of the query rows of a tile or of a visit; and for
 * gradients of inputs the pairs of a visit. */
#define SHARED_HELD (SHARED_V + TILE_KEYS * PITCH_V)
#define SHARED_FACTS (SHARED_WORDS + (DROPOUT ? 4 * TILE_KEYS : 0))
#define SHARED_PAIRS (SHARED_FACTS + 8 * most_of(TILE_ROWS, TILE_KEYS))
#define PAIR_BYTES (MAKES & MAKES_INPUTS ? 8 * TILE_ROWS * TILE_KEYS : 0)
#define KEY_TILES (WIDTH_K / 8)

static_assert(sizeof(dil_gradient_params) == DIL_GRADIENT_BYTES,
              "the run time has another dil_gradient_params");
#ifdef SHARED_BYTES /* as compiler/codegen/gpu/gradient.c counts */
static_assert(SHARED_PAIRS + PAIR_BYTES <= SHARED_BYTES, "a tile");
static_assert(SCRATCH_BYTES +
                      4 * TILE_ROWS * (most_of(HEAD_DIM, VALUE_DIM) | 1) <=
                  SHARED_BYTES,
              "the sums of the warps' rows");
#endif

#include "templates/shared/score.cuh"
#include "templates/shared/softmax.cuh"
#include "templates/general/general_rows.cuh"
#include "templates/general/general_load.cuh"
#include "templates/general/general_product.cuh"
#include "templates/general/general_visit.cuh"
#include "templates/general/general_plan.cuh"
#include "templates/general/gradient_load.cuh"
#include "templates/general/gradient_score.cuh"
#include "templates/general/gradient_end.cuh"
#include "templates/general/gradient_sums.cuh"
#if MAKES & MAKES_Q
#include "templates/general/gradient_sinks.cuh"
#elif MAKES & MAKES_INPUTS
#include "templates/general/gradient_inputs.cuh"
#endif

#if MAKES & MAKES_INPUTS
struct dil_sums {};
DIL_INLINE void begin_sums(dil_sums &) {}

/* One visit, whose rows are here. What it adds cannot be taken back: products
 * that are lost are made again at once. */
DIL_INLINE void add_visit(const dil_gradient_params &g, const dil_visit &v,
                          unsigned bits, const dil_row_words &words,
                          dil_sums &) {
  const query_fragment none[ROW_GROUPS][Q_FRAGMENTS] = {};
  float s[ROW_GROUPS][SCORE_TILES][4], d[ROW_GROUPS][SCORE_TILES][4];
  make_scores(none, s);
  if (PLAINLY && is_lost(s[0])) make_scores_plainly(s);
  make_scores<held_rows, value_rows>(none, d);
  if (PLAINLY && is_lost(d[0])) make_scores_plainly<held_rows, value_rows>(d);
  differentiate(g.of, tile_of(v), v, bits, words, s[0], d[0]);
  keep_pairs(s[0], d[0]);
  add_inputs(g, tile_of(v), v);
}

DIL_INLINE void finish_tile(const dil_gradient_params &, const dil_tile &,
                            const dil_sums &) {}
#else
/* Sums of a tile: of gradients of scores by the streamed rows of HEAD_DIM (dQ or
 * dK), and of weights by the streamed rows of VALUE_DIM (dV). */
struct dil_sums {
  float scored[ROW_GROUPS][SCORES_MATTER ? KEY_TILES : 1][4];
  float weighted[ROW_GROUPS][MAKES & MAKES_V ? VALUE_TILES : 1][4];
  float unit[2]; /* f16: scored is in units of these powers of two */
};

DIL_INLINE void begin_sums(dil_sums &sums) {
#pragma unroll
  for (int e = 0; e < 4 * (SCORES_MATTER ? KEY_TILES : 1); e++)
    sums.scored[0][e >> 2][e & 3] = 0;
#pragma unroll
  for (int e = 0; e < 4 * (MAKES & MAKES_V ? VALUE_TILES : 1); e++)
    sums.weighted[0][e >> 2][e & 3] = 0;
  sums.unit[0] = sums.unit[1] = LEAST_UNIT;
}

/* One visit, whose rows are here. */
DIL_INLINE void add_visit(const dil_gradient_params &g, const dil_visit &v,
                          unsigned bits, const dil_row_words &words,
                          dil_sums &sums) {
  const query_fragment none[ROW_GROUPS][Q_FRAGMENTS] = {};
  float s[ROW_GROUPS][SCORE_TILES][4], d[ROW_GROUPS][SCORE_TILES][4];
  bool careful = SCRATCH.careful;
  if (PLAINLY && careful) make_scores_plainly(s);
  else make_scores(none, s);
#if SCORES_MATTER
  if (PLAINLY && careful) make_scores_plainly<held_rows, value_rows>(d);
  else make_scores<held_rows, value_rows>(none, d);
#endif
  differentiate(g.of, tile_of(v), v, bits, words, s[0], d[0]);
#if MAKES & MAKES_V
  if (careful) take_bad_values(s, sums.weighted);
  add_values(s, sums.weighted);
#endif
#if SCORES_MATTER
  if (ELEMENT == 2) take_unit(d[0], sums.scored[0], sums.unit);
  if (careful) take_bad_values<key_rows>(d, sums.scored);
  add_values<key_rows>(d, sums.scored);
#endif
}

/* Whether sums came out so that the tile is to be gone over again, with care:
 * see general_product.cuh. */
DIL_INLINE bool want_care(const dil_sums &sums) {
  bool careful = SCRATCH.careful;
  bool lost = is_lost(sums.scored[0]) || is_lost(sums.weighted[0]);
  lost = __syncthreads_or(lost) && !careful;
  if (threadIdx.x == 0) SCRATCH.careful = lost;
  return lost;
}

DIL_INLINE void finish_tile(const dil_gradient_params &g, const dil_tile &t,
                            const dil_sums &sums) {
  if (!want_care(sums)) end_tile(g, t, sums);
}
#endif

/* The first warp plans the next visit while the rows of this one travel. The
 * first round only plans. */
DIL_INLINE void run_tile(const dil_gradient_params &g, const dil_tile &t) {
  const dil_params &p = g.of;
  dil_sums sums;
  unsigned bits = 0;
  dil_row_words words;
  bool begun = false;
  clear_padding();
  list_rows(p, t);
  load_held(p, t);
  if (!HOLDS_KEYS) load_row_facts(g, t);
  if (threadIdx.x < 32) begin_cursor(p, t);
  begin_sums(sums);
#if DROPOUT && !HOLDS_KEYS
  words = row_words(p, t, rows_of(p, t, 0));
#endif
#pragma unroll 1
  for (int slot = 1;; slot ^= 1) {
    const dil_visit &v = SCRATCH.visit[slot], &next = SCRATCH.visit[slot ^ 1];
    if (begun) load_streamed(g, t, v);
    copy_commit();
    if (threadIdx.x < 32) plan_visit(p, slot ^ 1);
    if (begun) {
      bits = v.full ? ~0u : visit_bits(p, tile_of(v), slot, 0);
#if MULTIPLICITY
      if (v.merged) count_keys(v, (float *)(shared + SHARED_TIMES));
#endif
#if DROPOUT
      load_words(p, tile_of(v), v);
#if HOLDS_KEYS /* of the visit's head */
      words = row_words(p, tile_of(v), rows_of(p, tile_of(v), 0));
#endif
#endif
    }
    copy_wait<0>();
    __syncthreads(); /* the rows are here, the next visit is known */
    if (begun) add_visit(g, v, bits, words, sums);
    __syncthreads();
    if (!next.some) break;
    begun = true;
  }
  finish_tile(g, t, sums);
}

DIL_INLINE void run_item(const dil_gradient_params &g, unsigned item) {
  if (threadIdx.x < 32) {
    dil_tile t = find_tile(g.of, item, TILE_ROWS);
    if (threadIdx.x == 0) SCRATCH.tile = t;
  }
  __syncthreads();
  if (has_rows(g, SCRATCH.tile)) run_tile(g, SCRATCH.tile);
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    dil_gradient_pass(const __grid_constant__ dil_gradient_params g) {
  if (g.only_if && !*g.only_if) return;
  if (threadIdx.x == 0) SCRATCH.careful = false;
#if MAKES & MAKES_INPUTS
  unsigned heads = (unsigned)(g.of.heads / g.of.pack);
  unsigned batches = (unsigned)g.of.batches, lists = (unsigned)g.input.lists;
  dil_items items = {
      {(unsigned)g.of.items / (heads * batches), heads, batches}};
  unsigned turns = items_together(g.input, items);
#pragma unroll 1
  for (unsigned turn = blockIdx.x % lists; turn < turns; turn += lists)
    run_item(g, item_of(g.input, items, blockIdx.x / lists, turn));
#else
  for (unsigned item = blockIdx.x; item < g.of.items;
       item += SCRATCH.careful ? 0 : gridDim.x)
    run_item(g, item);
#endif
}
