/* choose.cuh - blocks of keys that a call's own numbers choose, as
 * runtime/cpu/choose.c does. In: a call and one of its choices. Out: sorted lists
 * in the form CSR. What a block of queries chooses follows from its own rows and
 * from the means of the key blocks alone.
 *
 *   dil_choose_means  the mean of each block of keys, a warp each or several
 *   dil_choose        estimates, and the best blocks of each block of queries
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
  bool there[DIL_CHOOSE_TALL]; /* that row exists */
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

/* ---- estimates ----------------------------------------------------------- */

/* Rows that meet key blocks at once. */
DIL_INLINE int rows_at_once(const dil_choose_params &p, const dil_choice_row &c) {
  if (has_query_means(c)) return p.strip;
  return is_tall(c) ? DIL_CHOOSE_TALL : DIL_CHOOSE_ROWS;
}

/* Rows `from` and those behind it of a strip that begins with block `first`. */
DIL_INLINE void load_rows(const dil_choose_params &p, const dil_choice_row &c,
                          int b, int h, int first, int from) {
  int per = rows_of_block(c);
#pragma unroll 1
  for (int e = threadIdx.x; e < DIL_CHOOSE_ROWS * MEAN_DEPTH;
       e += DIL_CHOOSE_THREADS) {
    int n = e / MEAN_DEPTH, d = e % MEAN_DEPTH, row = from + n;
    choose_place at = place_of(p, c, b, first + row / per);
    int t = at.bi * c.query_block + row % per, last = t;
    if (c.estimate == DIL_ESTIMATE_MEAN) t = at.first, last = at.last;
    bool there = row / per < p.strip && at.bi < p.queries &&
                 t >= at.first && t <= at.last;
    float sum = 0;
    int count = there ? last - t + 1 : 0;
#pragma unroll 4
    for (int k = 0; k < count && d < HEAD_DIM; k++)
      sum += widen(query_at(p.of, c, at, t + k, h)[d]);
    if (count > 1) sum = __fdiv_rn(sum, (float)count);
    query_row(n)[d] = sum;
    if (d == 0) CHOOSING.there[n] = there;
  }
}

/* Returns whether no query of rows `from` and those behind it sees a key of blocks
 * low..high: the window alone says so. */
DIL_INLINE bool window_misses(const dil_choose_params &p, const dil_choice_row &c,
                              int first, int from, int low, int high) {
  int per = rows_of_block(c), last = (from + rows_at_once(p, c) - 1) / per;
  long long t0 = (long long)(first + from / per) * c.query_block;
  long long t1 = (long long)(first + last + 1) * c.query_block - 1;
  bool after = c.right != DIL_FAR && (long long)low * c.block > t1 + c.right;
  bool before = c.left != DIL_FAR && (high + 1ll) * c.block - 1 < t0 - c.left;
  return after || before;
}

DIL_INLINE float not_a_number() { return __uint_as_float(0x7fffffffu); }

#include "templates/general/choose_products.cuh"

/* Rows of the strip meet the means of key block bj. Estimates become the largest
 * of them and of these. */
DIL_INLINE void meet_block(const dil_choose_params &p, const float *means, int per,
                           int from, int bj, float *estimate) {
  enum { STEP = 8 }; /* numbers of means that are read ahead */
  float sum[DIL_CHOOSE_ROWS] = {}, mean[STEP], next[STEP];
#pragma unroll
  for (int k = 0; k < STEP; k++) next[k] = means[(long long)k * p.width + bj];
#pragma unroll 1
  for (int d = 0; d < MEAN_DEPTH; d += STEP) {
    int ahead = d + STEP < MEAN_DEPTH ? d + STEP : d;
#pragma unroll
    for (int k = 0; k < STEP; k++) {
      mean[k] = next[k];
      next[k] = means[(long long)(ahead + k) * p.width + bj];
    }
#pragma unroll
    for (int n = 0; n < DIL_CHOOSE_ROWS; n++)
#pragma unroll
      for (int k = 0; k < STEP; k += 4) {
        float4 q = *(const float4 *)(query_row(n) + d + k);
        sum[n] = fmaf(q.x, mean[k], sum[n]);
        sum[n] = fmaf(q.y, mean[k + 1], sum[n]);
        sum[n] = fmaf(q.z, mean[k + 2], sum[n]);
        sum[n] = fmaf(q.w, mean[k + 3], sum[n]);
      }
  }
#pragma unroll
  for (int n = 0; n < DIL_CHOOSE_ROWS; n++) {
    if (!CHOOSING.there[n]) continue;
    float *to = estimate + (long long)((from + n) / per) * p.width + bj;
    *to = fmaxf(*to, __fmul_rn(p.of.scale, sum[n])); /* of NaN, the other */
  }
}

/* Estimates of a strip of query blocks. Those of key blocks that no query can see
 * stay NaN. Other threads may read them after a barrier. */
DIL_INLINE void estimate_head(const dil_choose_params &p, const dil_choice_row &c,
                              int b, int h, int first, float *estimate) {
  int per = rows_of_block(c), blocks = p.strip;
  const float *means = mean_at(p, c, b, h / (HEADS / KV_HEADS), 0, 0);
  for (int bj = threadIdx.x; bj < p.keys && !stores_all(c); bj += DIL_CHOOSE_THREADS)
    for (int k = 0; k < blocks; k++)
      estimate[(long long)k * p.width + bj] = not_a_number();
#pragma unroll 1
  for (int from = 0; from < blocks * per; from += rows_at_once(p, c)) {
    __syncthreads();
    if (has_products(c)) {
      estimate_by_products(p, c, b, h, means, first, from, estimate);
      continue;
    }
    load_rows(p, c, b, h, first, from);
    __syncthreads();
#pragma unroll 1
    for (int bj = threadIdx.x; bj < p.keys; bj += DIL_CHOOSE_THREADS)
      if (!window_misses(p, c, first, from, bj, bj))
        meet_block(p, means, per, from, bj, estimate);
  }
  __syncthreads();
}

/* The call's own numbers, in whatever rank they have. A thread has those of several
 * query blocks in flight. */
DIL_INLINE void read_head(const dil_choose_params &p, const dil_choice_row &c,
                          int b, int h, int first, float *estimate) {
  enum { AHEAD = 8 };
  const dil_device_input &g = p.of.input[c.gate];
  int rank = dil_inputs[c.gate].rank;
  const float *from = (const float *)g.data;
  if (rank > 3) from += b * g.stride[rank - 4];
  if (rank > 2) from += h * g.stride[rank - 3];
  int blocks = dil_min(p.strip, p.queries - first);
  long long apart = g.stride[rank - 2];
#pragma unroll 1
  for (int bj = threadIdx.x; bj < p.keys; bj += DIL_CHOOSE_THREADS)
#pragma unroll 1
    for (int k = 0; k < blocks; k += AHEAD) {
      const float *at = from + (first + k) * apart + bj * g.stride[rank - 1];
      float x[AHEAD], *to = estimate + (long long)k * p.width + bj;
#pragma unroll
      for (int i = 0; i < AHEAD; i++, at += apart)
        if (k + i < blocks) x[i] = *at;
#pragma unroll
      for (int i = 0; i < AHEAD; i++, to += p.width)
        if (k + i < blocks) *to = x[i];
    }
}

DIL_INLINE bool serves(const dil_branch_row &branch, int h) {
  return h >= branch.head_first && h <= branch.head_last;
}

DIL_INLINE void estimate_one(const dil_choose_params &p, const dil_choice_row &c,
                             int b, int h, int first, float *estimate) {
  if (c.estimate == DIL_ESTIMATE_INPUT) read_head(p, c, b, h, first, estimate);
  else estimate_head(p, c, b, h, first, estimate);
}

/* Estimates of a group of heads: the sums over those that the branch serves. Where
 * heads choose alone there is no room for sums. Each thread adds those of its own
 * key blocks. Returns where the sums are. */
DIL_INLINE const float *estimate_group(const dil_choose_params &p,
                                       const dil_choice_row &c, int b, int group,
                                       int first, float *estimate, float *total) {
  bool begun = false;
#pragma unroll 1
  for (int h = group * c.group; h < (group + 1) * c.group; h++) {
    if (!serves(BRANCH(c.branch), h)) continue;
    estimate_one(p, c, b, h, first, estimate);
    if (c.group == 1) return estimate;
    for (int bj = threadIdx.x; bj < p.keys; bj += DIL_CHOOSE_THREADS)
      for (int k = 0; k < p.strip; k++) {
        long long at = (long long)k * p.width + bj;
        total[at] = begun ? __fadd_rn(total[at], estimate[at]) : estimate[at];
      }
    begun = true;
    __syncthreads();
  }
  return total;
}

#include "templates/general/choose_blocks.cuh"

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

#include "templates/general/choose_lanes.cuh"

/* Warps wait for all estimates, and thereafter the next strip's for all warps. */
template <int OWN_KEYS>
DIL_INLINE void choose_strip_by_lanes(const dil_choose_params &p,
                                      const dil_choice_row &c, int b, int group,
                                      int first, const float *sum) {
  int lanes = lanes_of_keys<OWN_KEYS>(p.keys), each = DIL_CHOOSE_THREADS / lanes;
  __syncthreads();
#pragma unroll 1
  for (int from = 0; from < p.strip; from += each) {
    int k = from + threadIdx.x / lanes;
    if (from + (int)(threadIdx.x & ~31) / lanes >= p.strip) break;
    bool there = k < p.strip && first + k < p.queries;
    choose_by_lanes<OWN_KEYS>(p, c, b, group, first + k, lanes,
                          sum + (long long)k * p.width, there);
  }
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
  const float *sum = estimate_group(p, c, b, group, first, estimate, total);
  if (DIL_CHOOSE_BY_LANES(p.keys)) {
    int own = DIL_CHOOSE_OF_LANE(p.keys);
    if (own == DIL_CHOOSE_FEW)
      choose_strip_by_lanes<DIL_CHOOSE_FEW>(p, c, b, group, first, sum);
    else if (own == DIL_CHOOSE_SOME)
      choose_strip_by_lanes<DIL_CHOOSE_SOME>(p, c, b, group, first, sum);
    else choose_strip_by_lanes<DIL_CHOOSE_MOST>(p, c, b, group, first, sum);
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
dil_choose_join(const __grid_constant__ dil_choose_params) {}

#endif
#endif
