/* general.cu - the kernel for everything: any head_dim up to 256, any strides,
 * any plan, sm_80 and up, by mma.sync. One block takes a tile of rows. It walks
 * their keys branch by branch, in one pass with one running softmax. K of the
 * next tile travels while this one's scores are turned into weights, V while
 * they are made. The kernel is correct for all; hopper.cu is the fast one.
 *
 * The loop over key tiles is that of FlashAttention-2 (Dao 2023, arXiv
 * 2307.08691). Splits over keys are those of Flash-Decoding (Dao, Haziza, Massa
 * and Sizov 2023, on the PyTorch blog).
 *
 *   dil_pass   one pass of the plan, or one of its splits over keys
 *   dil_merge  the splits of a row, in order, into its end
 *   dil_bounds bounds of the inputs that masks read (bounds.cuh)
 *   dil_intervals ranges of equal elements (intervals.cuh)
 *   dil_lists  the tables that lists of blocks stand for (lists.cuh)
 *   dil_turn   the same tables turned round, for gradients of keys
 *   dil_begin  the first state of the rows that several passes touch
 *   dil_end    that state rounded once to o; heads that nobody serves get 0 */
#include "templates/shared/plan.cuh"
#include "templates/shared/intervals.cuh"
#include "templates/shared/lists.cuh"
#include "templates/shared/few.cuh"
#include "templates/shared/element.cuh"
#include "templates/shared/finish.cuh"

#include "templates/general/general_sizes.cuh"

static_assert(sizeof(dil_params) == DIL_PARAMS_BYTES,
              "the run time has another dil_params");
#ifdef SHARED_BYTES /* as compiler/codegen/gpu/general.c counts */
static_assert(SHARED_TIMES + TILE_KEYS * 4 <= SHARED_BYTES, "a tile");
static_assert(SCRATCH_BYTES + 16 * WARPS * PITCH_END * 4 <= SHARED_BYTES,
              "the sums of the warps' rows");
#endif

#include "templates/shared/score.cuh"
#include "templates/shared/softmax.cuh"
#include "templates/general/general_rows.cuh"
#include "templates/general/general_load.cuh"
#include "templates/general/general_product.cuh"
#include "templates/general/general_state.cuh"
#include "templates/general/general_visit.cuh"
#include "templates/general/general_plan.cuh"
#include "templates/general/choose.cuh"

/* Scores to weights: scale, chain, predicate, softmax, dropout. */
DIL_INLINE void make_weights(const dil_params &p, const dil_tile &t, int group,
                             const dil_visit &v, unsigned bits,
                             const dil_row_words &words,
                             float (&s)[SCORE_TILES][4], dil_state &state,
                             float (&o)[VALUE_TILES][4]) {
  bool natural = SCORED || !(p.scale > 0);
  float alpha[2];
  if (natural) rewrite_scores<SCORE_TILES>(p, t, rows_of(p, t, group), v, s);
  if (!v.full) hide_pairs<SCORE_TILES>(bits, s);
  const float *times = (const float *)(shared + SHARED_TIMES);
  softmax_step<SCORE_TILES>(state, s,
                            natural ? DIL_LOG2_E : p.scale * DIL_LOG2_E,
                            MULTIPLICITY && v.merged ? times : nullptr, alpha);
  scale_sums<VALUE_TILES>(alpha, o);
#if DROPOUT
  if (p.flags & DIL_DROP) {
    unsigned gone =
        drop_bits<TILE_KEYS>(p, t, rows_of(p, t, group), v, words,
                             (const unsigned *)(shared + SHARED_WORDS));
#pragma unroll
    for (int e = 0; e < 4 * SCORE_TILES; e++)
      s[e >> 2][e & 3] = gone >> e & 1 ? 0.0f
                                       : s[e >> 2][e & 3] * DROPOUT_KEPT;
  }
#endif
}

/* Weights of a visit, and their sums of its values, which are on the way. */
DIL_INLINE void finish_visit(const dil_params &p, const dil_tile &t,
                             const dil_visit &v,
                             const unsigned (&bits)[ROW_GROUPS],
                             const dil_row_words (&words)[ROW_GROUPS],
                             float (&s)[ROW_GROUPS][SCORE_TILES][4],
                             dil_state (&state)[ROW_GROUPS],
                             float (&o)[ROW_GROUPS][VALUE_TILES][4]) {
#pragma unroll
  for (int r = 0; r < ROW_GROUPS; r++)
    make_weights(p, t, r, v, bits[r], words[r], s[r], state[r], o[r]);
  copy_wait<1>();
  __syncthreads(); /* V is here */
  if (!v.full) take_bad_values(s, o);
  add_values(s, o);
}

/* Returns whether rows came out so that they are to be computed again, with
 * care. */
DIL_INLINE bool want_care(const float (&o)[ROW_GROUPS][VALUE_TILES][4]) {
  bool careful = SCRATCH.careful, lost = false;
  if (!CARES) return false;
#pragma unroll
  for (int r = 0; r < ROW_GROUPS; r++) lost |= is_lost(o[r]);
  lost = __syncthreads_or(lost) && !careful;
  if (threadIdx.x == 0) SCRATCH.careful = lost;
  return lost;
}

/* Keys of the next visit travel while this one's scores become weights and
 * meet their values; values travel while the first warp plans the next visit
 * and scores are made. The first round only plans. */
DIL_INLINE void run_tile(const dil_params &p, const dil_tile &t) {
  dil_state state[ROW_GROUPS];
  float o[ROW_GROUPS][VALUE_TILES][4], s[ROW_GROUPS][SCORE_TILES][4];
  query_fragment fragments[ROW_GROUPS][Q_FRAGMENTS];
  unsigned bits[ROW_GROUPS];
  dil_row_words words[ROW_GROUPS];
  bool begun = false;
  clear_padding();
  list_rows(p, t);
  load_queries(p, t);
  if (threadIdx.x < 32) begin_cursor(p, t);
#pragma unroll
  for (int r = 0; r < ROW_GROUPS; r++) {
    begin_rows(state[r], o[r]);
#if DROPOUT
    words[r] = row_words(p, t, rows_of(p, t, r));
#endif
  }
#pragma unroll 1
  for (int slot = 1;; slot ^= 1) {
    const dil_visit &v = SCRATCH.visit[slot], &next = SCRATCH.visit[slot ^ 1];
    if (begun) load_values(p, t, v);
    copy_commit();
    if (threadIdx.x < 32) plan_visit(p, slot ^ 1);
    if (begun) {
      if (!v.full) {
#pragma unroll
        for (int r = 0; r < ROW_GROUPS; r++)
          bits[r] = visit_bits(p, t, slot, r);
      }
#if MULTIPLICITY
      if (v.merged) count_keys(v, (float *)(shared + SHARED_TIMES));
#endif
#if DROPOUT
      load_words(p, t, v);
#endif
      make_scores(fragments, s);
      if (PLAINLY && !v.full && SCRATCH.careful) make_scores_plainly(s);
    }
    __syncthreads(); /* K is free, the next visit is known */
    if (next.some) load_keys(p, t, next);
    copy_commit();
    if (begun) finish_visit(p, t, v, bits, words, s, state, o);
    copy_wait<0>();
    __syncthreads(); /* V is free, K is here */
    if (!next.some) break;
    if (Q_IN_REGISTERS && !begun) load_fragments(fragments);
    begun = true;
  }
  if (want_care(o)) return;
#pragma unroll
  for (int r = 0; r < ROW_GROUPS; r++) end_rows(p, t, r, state[r], o[r]);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    dil_pass(const __grid_constant__ dil_params p) {
  if (CARES && threadIdx.x == 0) SCRATCH.careful = false;
  for (unsigned item = blockIdx.x; item < p.items;
       item += CARES && SCRATCH.careful ? 0 : gridDim.x) {
    if (threadIdx.x < 32) {
      dil_tile t = find_tile(p, item, TILE_ROWS);
      /* Rows that a shard has no keys for keep their state. */
      if (is_shard(p) && p.splits == 1 && !sees_keys(p, t)) t.count = 0;
      if (t.split > 0 && t.split >= splits_of(p, t.keys)) t.count = 0;
      if (threadIdx.x == 0) SCRATCH.tile = t;
    }
    __syncthreads();
    if (SCRATCH.tile.count) run_tile(p, SCRATCH.tile);
    __syncthreads();
  }
}
