/* choose.cuh - blocks of keys that a call's own numbers choose, as
 * runtime/cpu/choose.c does. In: a call and one of its choices. Out: sorted lists
 * in the form CSR. What a block of queries chooses follows from its own rows and
 * from the means of the key blocks alone.
 *
 *   dil_choose_means  the mean of each block of keys, a warp each or several
 *   dil_choose        estimates, and the best blocks of each block of queries; or
 *   dil_choose_coarse the same by each row and rounded means, of which some become whole
 *   dil_choose_join   lists of query blocks move together
 *
 * Some lanes of a warp find the best where key blocks are few (choose_lanes.cuh), or
 * else a thread block does: by counts of digits, from the first on; `keep mass` sorts.
 * Atomics count integers in shared memory alone, so that their order never
 * shows. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_H
#include "templates/general/general_load.cuh"

#if CHOICES

static_assert(sizeof(dil_choose_params) == DIL_CHOOSE_BYTES,
              "the run time has another dil_choose_params");

/* Greater for the better block: its estimate, then the smaller number. */
typedef unsigned long long dil_rank;
#define RANK_NONE 0ull
#define RANK_ALWAYS (~0ull)

enum { DIGITS = 256 };

enum {
  MEAN_DEPTH = DIL_CHOOSE_DEPTH(HEAD_DIM),
  QUERY_PITCH = DIL_CHOOSE_PITCH(HEAD_DIM)
};

/* The shared memory of a thread block, and behind it rows of queries: zeros stand
 * behind their numbers. Those that matrix products take stand as parts of 16 bits. */
struct choose_memory {
  double sum[DIL_CHOOSE_THREADS];
  int start[DIL_CHOOSE_THREADS];
  int digit[DIGITS];
  int warp[DIL_CHOOSE_WARPS];
  int found, rest;
  int near[DIL_CHOOSE_WARPS][16]; /* key blocks that a warp's rows meet again */
  unsigned reach[DIL_CHOOSE_STRIP]; /* of a block's longest row: the square */
  bool there[DIL_COARSE_ROWS]; /* that row exists */
  float4 query[1];
};
#define CHOOSING (*(choose_memory *)shared)
static_assert(sizeof(choose_memory) <= DIL_CHOOSE_SHARED,
              "the run time has less shared memory");

DIL_INLINE float *query_row(int n) {
  return (float *)CHOOSING.query + n * QUERY_PITCH;
}

/* ---- sums of a thread block ---------------------------------------------- */

DIL_INLINE int block_sum(int x) {
#pragma unroll
  for (int away = 16; away > 0; away >>= 1)
    x += __shfl_xor_sync(0xffffffffu, x, away);
  __syncthreads();
  if (threadIdx.x % 32 == 0) CHOOSING.warp[threadIdx.x / 32] = x;
  __syncthreads();
  int all = 0;
#pragma unroll
  for (int w = 0; w < DIL_CHOOSE_WARPS; w++) all += CHOOSING.warp[w];
  return all;
}

/* The sum of the numbers of the threads up to this one, in one order. */
DIL_INLINE double block_scan(double x) {
  int self = threadIdx.x;
  __syncthreads();
  CHOOSING.sum[self] = x;
#pragma unroll 1
  for (int away = 1; away < DIL_CHOOSE_THREADS; away *= 2) {
    __syncthreads();
    double more = self >= away ? CHOOSING.sum[self - away] : 0;
    __syncthreads();
    CHOOSING.sum[self] += more;
  }
  __syncthreads();
  return CHOOSING.sum[self];
}

/* ---- rows of queries and of keys ------------------------------------------- */

DIL_INLINE bool has_cells(const dil_choice_row &c) {
  return CHOICES_CELLS && c.cell[0];
}

/* The position of place `place` where positions are counted block by block: the
 * place itself, but where blocks are of cells, which divide the grid. */
DIL_INLINE int position_of(const dil_params &p, const dil_choice_row &c,
                           int place) {
  if (!has_cells(c)) return place;
  int block = place / c.block, inside = place % c.block;
  int position = 0, stride = 1, plane = 1;
#pragma unroll
  for (int a = 0; a < 3; a++)
    if (c.extent[a]) plane *= c.extent[a];
#pragma unroll
  for (int a = 2; a >= 0; a--) {
    int extent = c.extent[a] ? c.extent[a] : p.M / plane, size = c.cell[a];
    int blocks = dil_max(extent / size, 1);
    position += (block % blocks * size + inside % size) * stride;
    block /= blocks;
    inside /= size;
    stride *= extent;
  }
  return position;
}

/* A block of queries: its rows, which exist from `first` to `last`. */
struct choose_place {
  int b, bi, first, last, M;
};

DIL_INLINE choose_place place_of(const dil_choose_params &p,
                                 const dil_choice_row &c, int b, int bi) {
  int M = batch_keys(p.of, b);
  int first = dil_max(bi * c.query_block, dil_max(M - p.of.N, 0));
  choose_place at = {b, bi, first, dil_min((bi + 1) * c.query_block, M) - 1, M};
  return at;
}

/* The row of queries at place t. */
DIL_INLINE const element *query_at(const dil_params &p, const dil_choice_row &c,
                                   const choose_place &at, int t, int h) {
  t = position_of(p, c, t);
  return (const element *)p.q + h * p.q_stride[2] + at.b * p.q_stride[0] +
         (t - (at.M - p.N)) * p.q_stride[1];
}

#include "templates/general/choose_means.cuh"
#include "templates/general/choose_estimates.cuh"
#include "templates/general/choose_blocks.cuh"
#include "templates/general/choose_lanes.cuh"
#include "templates/general/choose_near.cuh"

/* ---- lists --------------------------------------------------------------- */

DIL_INLINE long long line_of(const dil_choose_params &p, int b, int h, int bi) {
  return ((long long)b * HEADS + h) * p.queries + bi;
}

/* Block bj stands at this place of the lists of all heads of the group. */
DIL_INLINE void write_place(const dil_choose_params &p, const dil_choice_row &c,
                            int b, int group, int bi, int place, int bj) {
#pragma unroll 1
  for (int h = group * c.group; h < (group + 1) * c.group; h++)
    if (serves(BRANCH(c.branch), h))
      p.list[line_of(p, b, h, bi) * p.room + place] = bj;
}

/* The lists of all heads have so many blocks. `threads` write, this one is `self`. */
DIL_INLINE void write_lengths(const dil_choose_params &p, const dil_choice_row &c,
                              int b, int group, int bi, int written, int self,
                              int threads) {
  for (int h = group * c.group + self; h < (group + 1) * c.group; h += threads)
    p.length[line_of(p, b, h, bi)] =
        serves(BRANCH(c.branch), h) ? written : 0;
}

/* Writes the blocks of `least` and better ranks, in their order, for all heads of
 * the group. */
DIL_INLINE void write_lists(const dil_choose_params &p, const dil_choice_row &c,
                            int b, int group, int bi, const dil_rank *rank,
                            dil_rank least) {
  int written = 0, warp = threadIdx.x / 32;
  unsigned below = (1u << (threadIdx.x & 31)) - 1;
#pragma unroll 1
  for (int from = 0; from < p.keys; from += DIL_CHOOSE_THREADS) {
    int bj = from + threadIdx.x;
    bool chosen = bj < p.keys && rank[bj] != RANK_NONE && rank[bj] >= least;
    unsigned all = __ballot_sync(0xffffffffu, chosen);
    int place = written + __popc(all & below);
    int count = block_sum((threadIdx.x & 31) == 0 ? __popc(all) : 0);
    for (int w = 0; w < warp; w++) place += CHOOSING.warp[w];
    if (chosen) write_place(p, c, b, group, bi, place, bj);
    written += count;
  }
  write_lengths(p, c, b, group, bi, written, threadIdx.x, DIL_CHOOSE_THREADS);
}

DIL_INLINE void choose_block(const dil_choose_params &p, const dil_choice_row &c,
                             int b, int group, int bi, const float *estimate,
                             dil_rank *rank, dil_rank *sorted) {
  choose_place at = place_of(p, c, b, bi);
  __syncthreads();
#pragma unroll 1
  for (int bj = threadIdx.x; bj < p.keys; bj += DIL_CHOOSE_THREADS) {
    dil_rank r = RANK_NONE;
    if (is_candidate(p, c, at, group, bj))
      r = is_diagonal(c, bi, bj) ? RANK_ALWAYS : rank_of(estimate[bj], bj);
    rank[bj] = r;
  }
  __syncthreads();
  write_lists(p, c, b, group, bi, rank, least_chosen(p, c, rank, sorted));
}

/* Writes the lane's key blocks behind those of the lanes before it. */
DIL_INLINE void write_blocks(const dil_choose_params &p, const dil_choice_row &c,
                             int b, int group, int bi, int first, int lanes,
                             unsigned chosen, bool there) {
  int place = sum_before(__popc(chosen), lanes);
  int written = count_lanes(__popc(chosen), lanes);
  if (!there) return;
#pragma unroll 1
  for (; chosen; chosen &= chosen - 1)
    write_place(p, c, b, group, bi, place++, first + __ffs((int)chosen) - 1);
  write_lengths(p, c, b, group, bi, written, threadIdx.x & (lanes - 1), lanes);
}

/* Some lanes choose for block bi of queries, which may not be `there`. The whole warp
 * comes here. */
template <int OWN_KEYS, bool BY_SHARE>
DIL_INLINE void choose_by_lanes(const dil_choose_params &p, const dil_choice_row &c,
                                int b, int group, int bi, int lanes,
                                const float *estimate, bool there) {
  int first = (int)(threadIdx.x & (lanes - 1)) * OWN_KEYS;
  lane_choice x = choice_of_lanes(p, c, b, group, bi, lanes, OWN_KEYS, there);
  unsigned best = best_blocks<OWN_KEYS, BY_SHARE>(
      estimate + first, lanes, x.own.scored, x.taken, c.share, x.all || x.taken == 0);
  write_blocks(p, c, b, group, bi, first, lanes, chosen_of(x, best), there);
}

/* For a strip of query blocks. */
template <int OWN_KEYS, bool BY_SHARE>
DIL_INLINE void choose_strip_by_lanes(const dil_choose_params &p,
                                      const dil_choice_row &c, int b, int group,
                                      int first, const float *sum) {
  int lanes = lanes_of_keys(OWN_KEYS, p.keys), each = DIL_CHOOSE_THREADS / lanes;
#pragma unroll 1
  for (int from = 0; from < p.strip; from += each) {
    int k = from + threadIdx.x / lanes;
    if (from + (int)(threadIdx.x & ~31) / lanes >= p.strip) break;
    bool there = k < p.strip && first + k < p.queries;
    choose_by_lanes<OWN_KEYS, BY_SHARE>(p, c, b, group, first + k, lanes,
                                        sum + (there ? (long long)k * p.width : 0), there);
  }
}

/* Warps wait for all estimates, and thereafter the next strip's for all warps. */
template <int OWN_KEYS>
DIL_INLINE void choose_whole_strip(const dil_choose_params &p, const dil_choice_row &c,
                                   int b, int group, int first, float *sum) {
  __syncthreads();
  if (c.share > 0)
    choose_strip_by_lanes<OWN_KEYS, true>(p, c, b, group, first, sum);
  else choose_strip_by_lanes<OWN_KEYS, false>(p, c, b, group, first, sum);
  __syncthreads();
}

DIL_INLINE void choose_strip(const dil_choose_params &p, const dil_choice_row &c,
                             long long item) {
  int strip = p.strip, strips = (p.queries + strip - 1) / strip;
  int groups = HEADS / c.group, first = (int)(item % strips) * strip;
  int group = (int)(item / strips % groups), b = (int)(item / strips / groups);
  float *estimate = (float *)(p.own + blockIdx.x * p.own_bytes);
  float *total = estimate + (c.group > 1 ? (long long)strip * p.width : 0);
  dil_rank *rank = (dil_rank *)(total + (long long)strip * p.width);
  float *sum = estimate_group(p, c, b, group, first, estimate, total);
  if (DIL_CHOOSE_BY_LANES(p.keys)) {
    if (DIL_CHOOSE_OF_LANE(p.keys) == DIL_CHOOSE_SOME)
      choose_whole_strip<DIL_CHOOSE_SOME>(p, c, b, group, first, sum);
    else choose_whole_strip<DIL_CHOOSE_MOST>(p, c, b, group, first, sum);
    return;
  }
#pragma unroll 1
  for (int k = 0; k < strip && first + k < p.queries; k++)
    choose_block(p, c, b, group, first + k, sum + (long long)k * p.width, rank,
                 rank + p.width);
}

extern "C" __global__ void __launch_bounds__(DIL_CHOOSE_THREADS, 4)
    dil_choose(const __grid_constant__ dil_choose_params p) {
  const dil_choice_row &c = choice_of(p);
  int strip = p.strip, strips = (p.queries + strip - 1) / strip;
  long long items = (long long)p.of.batches * (HEADS / c.group) * strips;
#pragma unroll 1
  for (long long item = blockIdx.x; item < items; item += gridDim.x)
    choose_strip(p, c, item);
}

/* A thread block chooses for a strip, by coarse estimates at first. */
extern "C" __global__ void __launch_bounds__(DIL_CHOOSE_THREADS, 2)
    dil_choose_coarse(const __grid_constant__ dil_choose_params p) {
#if COARSE
  const dil_choice_row &c = choice_of(p);
  int strips = (p.queries - 1) / p.strip + 1, first = blockIdx.x % strips * p.strip;
  int head = blockIdx.x / strips, blocks = dil_min(p.strip, p.queries - first);
  coarse_place s = {head / HEADS, head % HEADS, first, blocks, blocks * c.query_block};
  s.estimate = (float *)((char *)CHOOSING.query + p.coarse_bytes);
  s.near = (unsigned *)(s.estimate + p.strip * p.width);
  if (!serves(BRANCH(c.branch), s.h)) {
    if (threadIdx.x < blocks) p.length[line_of(p, s.b, s.h, first + threadIdx.x)] = 0;
    return;
  }
  estimate_coarsely(p, c, s);
  __syncthreads();
  choose_coarsely(p, c, s, [&](int k, int low, int lanes, unsigned chosen, bool there) {
    write_blocks(p, c, s.b, s.h, first + k, low, lanes, chosen, there);
  });
#endif
}

/* A thread block moves the lists of `joined` query blocks, as many as it has threads at
 * most. */
extern "C" __global__ void __launch_bounds__(DIL_CHOOSE_THREADS)
    dil_choose_join(const __grid_constant__ dil_choose_params p) {
  int parts = dil_max((p.queries - 1) / p.joined + 1, 1);
  int line = blockIdx.x / parts, part = blockIdx.x % parts, before = 0;
  int first = part * p.joined, bi = first + threadIdx.x;
  const int *length = p.length + (long long)line * p.queries;
  const int *list = p.list + (long long)line * p.queries * p.room;
  int made = choice_of(p).rows;
  int *rows = (int *)p.of.input[made].data + (long long)line * (p.queries + 1);
  int *cols = (int *)p.of.input[made + 1].data +
              (long long)line * p.queries * p.room;
  for (int k = threadIdx.x; k < first; k += DIL_CHOOSE_THREADS)
    before += length[k];
  before = block_sum(before);
  bool there = threadIdx.x < p.joined && bi < p.queries;
  int own = there ? length[bi] : 0;
  int end = before + (int)block_scan(own);
  CHOOSING.start[threadIdx.x] = end - own;
  if (there) rows[bi + 1] = end;
  if (bi == 0) rows[0] = 0;
  long long all = before + (long long)CHOOSING.sum[DIL_CHOOSE_THREADS - 1];
  __syncthreads();
  int lanes = 1; /* that move a list: several lists a warp where they are short */
  while (lanes < 32 && lanes < p.room) lanes *= 2;
#pragma unroll 1
  for (int k = threadIdx.x / lanes; k < p.joined && first + k < p.queries;
       k += DIL_CHOOSE_THREADS / lanes)
    for (int e = threadIdx.x & (lanes - 1); e < length[first + k]; e += lanes)
      cols[CHOOSING.start[k] + e] = list[(long long)(first + k) * p.room + e];
  if (part + 1 < parts) return;
  for (long long e = all + threadIdx.x; e < (long long)p.queries * p.room;
       e += DIL_CHOOSE_THREADS)
    cols[e] = -1;
}

#else /* the run time loads all functions of a family */

extern "C" __global__ void
dil_choose_means(const __grid_constant__ dil_choose_params) {}
extern "C" __global__ void
dil_choose(const __grid_constant__ dil_choose_params) {}
extern "C" __global__ void
dil_choose_coarse(const __grid_constant__ dil_choose_params) {}
extern "C" __global__ void
dil_choose_join(const __grid_constant__ dil_choose_params) {}

#endif
#endif
