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

DIL_INLINE bool has_query_means(const dil_choice_row &c) {
  return CHOICES_MEANS &&
         DIL_CHOOSE_HAS_MEANS(c.query_block, c.estimate == DIL_ESTIMATE_MEAN);
}

/* Whether matrix products make the estimates. */
DIL_INLINE bool has_products(const dil_choice_row &c) {
  return is_tall(c) || has_query_means(c);
}

/* Where number d of the mean of a block stands. */
DIL_INLINE float *mean_at(const dil_choose_params &p, const dil_choice_row &c,
                          int b, int kv, int block, int d) {
  long long head = (long long)b * KV_HEADS + kv;
  return p.means + (has_products(c) ? (head * p.width + block) * MEAN_DEPTH + d
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

/* Rows that a group of lanes adds up, one unit of each: every `apart`th row from row j
 * on, before row `end`. at(j) is a row, or NULL. */
template <class At> struct mean_rows {
  int j, end, apart;
  At at;
};

DIL_INLINE void add_units(const uint4 (&x)[MEAN_SOME], float (&sum)[MEAN_UNIT]) {
#pragma unroll
  for (int n = 0; n < MEAN_SOME; n++)
#pragma unroll
    for (int k = 0; k < MEAN_UNIT; k++) sum[k] += widen(((const element *)&x[n])[k]);
}

/* Adds some rows at a time, whose loads are started together. */
template <class At>
DIL_INLINE void add_any(mean_rows<At> &r, int unit, bool whole,
                        float (&sum)[MEAN_UNIT]) {
#pragma unroll 1
  for (; r.j < r.end; r.j += MEAN_SOME * r.apart) {
    uint4 x[MEAN_SOME];
#pragma unroll
    for (int n = 0; n < MEAN_SOME; n++) {
      int row = r.j + n * r.apart;
      x[n] = load_unit(row < r.end ? r.at(row) : nullptr, unit, whole);
    }
    add_units(x, sum);
  }
}

/* The same of whole units where rows have equal distances, as long as there are so many
 * rows: nothing is asked of one of them. */
template <class At>
DIL_INLINE void add_even(mean_rows<At> &r, int unit, float (&sum)[MEAN_UNIT]) {
  if (unit * MEAN_UNIT >= HEAD_DIM || r.j >= r.end) return;
  const element *row = r.at(r.j) + unit * MEAN_UNIT;
  long long apart = r.at(r.j + r.apart) + unit * MEAN_UNIT - row;
#pragma unroll 1
  for (; r.j + (MEAN_SOME - 1) * r.apart < r.end; r.j += MEAN_SOME * r.apart) {
    uint4 x[MEAN_SOME];
#pragma unroll
    for (int n = 0; n < MEAN_SOME; n++, row += apart) x[n] = *(const uint4 *)row;
    add_units(x, sum);
  }
}

/* The sums over every `apart`th row of first..end-1, of the groups of a warp together.
 * `even`: the rows are whole units, and have equal distances. */
template <class At>
DIL_INLINE void add_rows(int first, int end, int apart, bool whole, bool even, At at,
                         mean_sums &sum) {
  int lane = threadIdx.x & 31, unit = lane % MEAN_LANES;
#pragma unroll
  for (int k = 0; k < MEAN_SLOTS; k++) {
    mean_rows<At> r = {first * MEAN_ROWS + lane / MEAN_LANES, end, apart * MEAN_ROWS, at};
#pragma unroll
    for (int e = 0; e < MEAN_UNIT; e++) sum[k][e] = 0;
    if (even) add_even(r, unit + 32 * k, sum[k]);
    add_any(r, unit + 32 * k, whole, sum[k]);
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
    bool whole = p.of.flags & DIL_WHOLE_Q, even = whole && !has_cells(c);
    int first = m.first;
    add_rows(warp, m.end - first, warps, whole, even, [&](int j) {
      return query_at(p.of, c, at, first + j, m.head);
    }, sum);
    return;
  }
  int first = m.first;
  bool whole = p.of.flags & DIL_WHOLE_K, even = whole && !has_cells(c) && !is_paged(p.of);
  add_rows(warp, m.end - first, warps, whole, even, [&](int j) {
    return key_row(p.of, m.b, position_of(p.of, c, first + j), m.head);
  }, sum);
}

/* Where choose_coarse.cuh is wanted, and where number d of the coarse mean of a key block
 * stands: as the first operand of products, 16 blocks by 16 numbers, 16 bytes a lane.
 * mma.sync has the same sums whatever the order of the numbers: there a lane has four
 * that are neighbours, as it reads those of rows. */
#define COARSE (CHOICES_COARSE && ELEMENT && HEAD_DIM <= 256)
#if COARSE
#define SMALLEST 1e-18f /* more than the length of numbers whose squares vanish */

DIL_INLINE unsigned short *coarse_mean(const dil_choose_params &p, long long block,
                                       int d) {
  int row = (int)(block % 16), column = d % 16;
  int lane = row % 8 * 4 + (CHOICES_WGMMA ? column % 8 / 2 : column / 4);
  int pair = row / 8 + (CHOICES_WGMMA ? column / 8 : column % 4 / 2) * 2;
  return p.coarse + block / 16 * 16 * MEAN_DEPTH + d / 16 * 256 + lane * 8 + pair * 2 +
         d % 2;
}

/* Writes a mean as elements, and how far a product of both with a row may differ for
 * each unit of the row's length: what rounding took from the mean, and beside it 2^-16
 * of the mean, more than sums of f32 lose. Squares of the smallest numbers vanish, which
 * SMALLEST makes good. A lane has each 32nd number. */
DIL_INLINE void write_coarse(const dil_choose_params &p, const mean_block &m) {
  long long block = (m.to - p.means) / MEAN_DEPTH;
  float lost = 0, length = 0;
#pragma unroll 1
  for (int d = threadIdx.x & 31; d < MEAN_DEPTH; d += 32) {
    float all = m.to[d];
    element near = narrow(all);
    float less = __fsub_rn(all, widen(near));
    *coarse_mean(p, block, d) = near;
    lost = fmaf(less, less, lost);
    length = fmaf(all, all, length);
  }
#pragma unroll
  for (int away = 16; away > 0; away /= 2) {
    lost += __shfl_xor_sync(0xffffffffu, lost, away);
    length += __shfl_xor_sync(0xffffffffu, length, away);
  }
  if ((threadIdx.x & 31) == 0)
    p.lost[block] = __fsqrt_rn(lost) + 0x1p-16f * __fsqrt_rn(length) + SMALLEST;
}
#endif

/* Several warps add up a block of many rows. Zeros stand where a block has no rows,
 * and behind the numbers of a mean. Thread blocks of key blocks come first, then those
 * of query blocks, if they have means of their own. */
extern "C" __global__ void
dil_choose_means(const __grid_constant__ dil_choose_params p) {
  const dil_choice_row &c = choice_of(p);
  float(*part)[MEAN_DEPTH] = (float(*)[MEAN_DEPTH])shared; /* of each warp */
  long long keys = (long long)p.of.batches * KV_HEADS * p.width;
  long long before = DIL_MEAN_BLOCKS(keys, c.block);
  bool queries = blockIdx.x >= before;
  int warps = DIL_MEAN_WARPS(queries ? c.query_block : c.block);
  int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  long long number = (blockIdx.x - (queries ? before : 0)) * DIL_CHOOSE_WARPS + warp;
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
#if COARSE
  if (p.coarse && !queries) write_coarse(p, m);
#endif
}

#endif
