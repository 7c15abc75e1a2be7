/* choose_means.cuh - the means of blocks of keys, which queries meet, and where they
 * stand. In: a call and one of its choices. Out: a mean for each block of keys of a K/V
 * head, in f32. choose.cuh includes this file behind its shared memory. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_MEANS_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_MEANS_H

/* The choice that a launch makes. Where there is one, its numbers are constants. */
DIL_INLINE const dil_choice_row &choice_of(const dil_choose_params &p) {
  return dil_choices[CHOICES == 1 ? 0 : p.choice];
}

/* Row j of the keys of a head; NULL: its page is outside the pool. */
DIL_INLINE const element *key_row(const dil_params &p, int b, int j, int kv) {
  const element *row = (const element *)p.k + kv * p.k_stride[2];
  if (is_paged(p)) return page_row(p, row, b, j, p.k_stride);
  return row + b * p.k_stride[0] + j * p.k_stride[1];
}

/* The rows of a block of queries that meet key blocks: its mean, or each. */
DIL_INLINE int rows_of_block(const dil_choice_row &c) {
  return c.estimate == DIL_ESTIMATE_EACH ? c.query_block : 1;
}

DIL_INLINE bool is_tall(const dil_choice_row &c) {
  return CHOICES_EACH &&
         DIL_CHOOSE_IS_TALL(c.query_block, c.estimate == DIL_ESTIMATE_EACH,
                            ELEMENT_BYTES);
}

/* Where number d of the mean of a block stands. */
DIL_INLINE float *mean_at(const dil_choose_params &p, const dil_choice_row &c,
                          int b, int kv, int block, int d) {
  long long head = (long long)b * KV_HEADS + kv;
  return p.means + (is_tall(c) ? (head * p.width + block) * MEAN_DEPTH + d
                               : (head * MEAN_DEPTH + d) * p.width + block);
}

/* ---- sums of rows ---------------------------------------------------------- */

/* Some lanes add up rows, 16 bytes of each row a lane; a warp has as many rows at once
 * as it has such groups of lanes. */
enum {
  MEAN_UNIT = 16 / ELEMENT_BYTES, /* numbers of a lane that stand side by side */
  MEAN_UNITS = MEAN_DEPTH / MEAN_UNIT,
  MEAN_LANES = DIL_MEAN_LANES(MEAN_UNITS),
  MEAN_SLOTS = (MEAN_UNITS + 31) / 32, /* such units of a lane */
  MEAN_ROWS = 32 / MEAN_LANES,
  MEAN_SOME = 4 /* rows of a lane that are in flight */
};
typedef float mean_sums[MEAN_SLOTS][MEAN_UNIT];

/* A unit of a row, 16 bytes at once where all rows are `whole` units; zeros where the
 * row is NULL or ends before. */
DIL_INLINE uint4 load_unit(const element *from, int unit, bool whole) {
  int first = unit * MEAN_UNIT;
  uint4 x = make_uint4(0, 0, 0, 0);
  if (!from || first >= HEAD_DIM) return x;
  if (whole) return *(const uint4 *)(from + first);
#pragma unroll
  for (int k = 0; k < MEAN_UNIT; k++)
    if (first + k < HEAD_DIM) ((element *)&x)[k] = from[first + k];
  return x;
}

/* Adds units of some rows. Loads of all these rows are started together. at(j) is a
 * row, or NULL. */
template <class At>
DIL_INLINE void add_units(int j, int end, int apart, int unit, bool whole, At at,
                          float (&sum)[MEAN_UNIT]) {
  uint4 x[MEAN_SOME];
#pragma unroll
  for (int n = 0; n < MEAN_SOME; n++) {
    int row = j + n * apart;
    x[n] = load_unit(row < end ? at(row) : nullptr, unit, whole);
  }
#pragma unroll
  for (int n = 0; n < MEAN_SOME; n++)
#pragma unroll
    for (int k = 0; k < MEAN_UNIT; k++) sum[k] += widen(((const element *)&x[n])[k]);
}

/* The sums over every `apart`th row of first..end-1, of the groups of a warp together. */
template <class At>
DIL_INLINE void add_rows(int first, int end, int apart, bool whole, At at,
                         mean_sums &sum) {
  int lane = threadIdx.x & 31, unit = lane % MEAN_LANES, step = apart * MEAN_ROWS;
#pragma unroll
  for (int k = 0; k < MEAN_SLOTS; k++) {
#pragma unroll
    for (int e = 0; e < MEAN_UNIT; e++) sum[k][e] = 0;
#pragma unroll 1
    for (int j = first * MEAN_ROWS + lane / MEAN_LANES; j < end; j += MEAN_SOME * step)
      add_units(j, end, step, unit + 32 * k, whole, at, sum[k]);
  }
#pragma unroll
  for (int away = MEAN_LANES; away < 32; away *= 2)
#pragma unroll
    for (int e = 0; e < MEAN_SLOTS * MEAN_UNIT; e++)
      sum[e / MEAN_UNIT][e % MEAN_UNIT] += __shfl_xor_sync(
          0xffffffffu, sum[e / MEAN_UNIT][e % MEAN_UNIT], away);
}

/* ---- blocks ---------------------------------------------------------------- */

/* The rows of one block, and where number d of their mean goes: to[d * apart]. */
struct mean_block {
  int b, head, first, end; /* places of rows; of queries, or of keys */
  float *to;               /* NULL: there is none */
  long long apart;
};

DIL_INLINE mean_block key_block(const dil_choose_params &p, const dil_choice_row &c,
                                long long number) {
  if (number >= (long long)p.of.batches * KV_HEADS * p.width) return {};
  int block = (int)(number % p.width), kv = (int)(number / p.width % KV_HEADS);
  int b = (int)(number / p.width / KV_HEADS), first = block * c.block;
  float *to = mean_at(p, c, b, kv, block, 0);
  return {b, kv, first, dil_min(first + c.block, batch_keys(p.of, b)), to,
          mean_at(p, c, b, kv, block, 1) - to};
}

DIL_INLINE float *query_mean(const dil_choose_params &p, int b, int h, int bi) {
  long long line = ((long long)b * HEADS + h) * p.queries + bi;
  return p.query_means + line * MEAN_DEPTH;
}

DIL_INLINE mean_block query_block(const dil_choose_params &p, const dil_choice_row &c,
                                  long long number) {
  if (number >= (long long)p.of.batches * HEADS * p.queries) return {};
  int bi = (int)(number % p.queries), h = (int)(number / p.queries % HEADS);
  choose_place at = place_of(p, c, (int)(number / p.queries / HEADS), bi);
  return {at.b, h, at.first, at.last + 1, query_mean(p, at.b, h, bi), 1};
}

/* One of the warps that add up a block. */
DIL_INLINE void add_block(const dil_choose_params &p, const dil_choice_row &c,
                          const mean_block &m, bool queries, int warp, int warps,
                          mean_sums &sum) {
  if (queries) {
    choose_place at = {m.b, 0, 0, 0, batch_keys(p.of, m.b)};
    bool whole = p.of.flags & DIL_WHOLE_Q;
    int first = m.first;
    add_rows(warp, m.end - first, warps, whole, [&](int j) {
      return query_at(p.of, c, at, first + j, m.head);
    }, sum);
    return;
  }
  int first = m.first;
  add_rows(warp, m.end - first, warps, p.of.flags & DIL_WHOLE_K, [&](int j) {
    return key_row(p.of, m.b, position_of(p.of, c, first + j), m.head);
  }, sum);
}

/* Several warps add up a block of many rows. Zeros stand where a block has no rows,
 * and behind the numbers of a mean. Thread blocks of key blocks come first, then those
 * of query blocks, if they have means of their own. */
extern "C" __global__ void
dil_choose_means(const __grid_constant__ dil_choose_params p) {
  const dil_choice_row &c = choice_of(p);
  float(*part)[MEAN_DEPTH] = (float(*)[MEAN_DEPTH])shared; /* of each warp */
  long long keys = (long long)p.of.batches * KV_HEADS * p.width;
  long long before = (keys * DIL_MEAN_WARPS(c.block) + CHOOSE_WARPS - 1) / CHOOSE_WARPS;
  bool queries = blockIdx.x >= before;
  int warps = DIL_MEAN_WARPS(queries ? c.query_block : c.block);
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  long long number = (blockIdx.x - (queries ? before : 0)) * CHOOSE_WARPS + warp;
  mean_block m = queries ? query_block(p, c, number / warps)
                         : key_block(p, c, number / warps);
  mean_sums sum;
  if (m.to) add_block(p, c, m, queries, warp % warps, warps, sum);
#pragma unroll
  for (int k = 0; k < MEAN_SLOTS; k++)
#pragma unroll
    for (int e = 0; e < MEAN_UNIT; e++) {
      int d = (lane + 32 * k) * MEAN_UNIT + e;
      if (m.to && lane < MEAN_LANES && d < MEAN_DEPTH) part[warp][d] = sum[k][e];
    }
  __syncthreads();
  if (!m.to || warp % warps) return;
#pragma unroll 1
  for (int d = lane; d < MEAN_DEPTH; d += 32) {
    float all = part[warp][d];
#pragma unroll 1
    for (int w = 1; w < warps; w++) all += part[warp + w][d];
    if (m.end > m.first) all = __fdiv_rn(all, (float)(m.end - m.first));
    m.to[d * m.apart] = all;
  }
}

#endif
