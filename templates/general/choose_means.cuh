/* choose_means.cuh - the means of blocks of keys, which queries meet, and where they
 * stand. In: a call and one of its choices. Out: a mean for each block of keys of a K/V
 * head, in f32. choose.cuh includes this file behind its shared memory. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_MEANS_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_MEANS_H

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

/* The position of place `place` where positions are counted block by block: the
 * place itself, but where blocks are of cells, which divide the grid. */
DIL_INLINE int position_of(const dil_params &p, const dil_choice_row &c,
                           int place) {
  if (!CHOICES_CELLS || !c.cell[0]) return place;
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

enum { MEAN_SLOTS = (MEAN_DEPTH + 31) / 32 }; /* numbers of a lane */

/* The sums over every `apart`th key of a block. */
DIL_INLINE void add_keys(const dil_choose_params &p, const dil_choice_row &c, int b,
                         int kv, int first, int end, int apart,
                         float (&sum)[MEAN_SLOTS]) {
#pragma unroll
  for (int k = 0; k < MEAN_SLOTS; k++) sum[k] = 0;
#pragma unroll 2
  for (int j = first; j < end; j += apart) {
    const element *row = key_row(p.of, b, position_of(p.of, c, j), kv);
    if (!row) continue;
#pragma unroll
    for (int k = 0; k < MEAN_SLOTS; k++) {
      int d = (threadIdx.x & 31) + 32 * k;
      if (d < HEAD_DIM) sum[k] += widen(row[d]);
    }
  }
}

/* Several warps add up a block of many keys. Zeros stand where a block has no rows,
 * and behind the numbers of a mean. */
extern "C" __global__ void
dil_choose_means(const __grid_constant__ dil_choose_params p) {
  const dil_choice_row &c = dil_choices[p.choice];
  float(*part)[MEAN_DEPTH] = (float(*)[MEAN_DEPTH])shared; /* of each warp */
  int warp = threadIdx.x / 32, warps = DIL_MEAN_WARPS(c.block);
  long long number = ((long long)blockIdx.x * CHOOSE_WARPS + warp) / warps;
  bool there = number < (long long)p.of.batches * KV_HEADS * p.width;
  int block = (int)(number % p.width);
  int kv = (int)(number / p.width % KV_HEADS);
  int b = there ? (int)(number / p.width / KV_HEADS) : 0;
  int first = block * c.block, end = dil_min(first + c.block, batch_keys(p.of, b));
  float sum[MEAN_SLOTS];
  if (there) add_keys(p, c, b, kv, first + warp % warps, end, warps, sum);
#pragma unroll
  for (int k = 0; k < MEAN_SLOTS; k++) {
    int d = (threadIdx.x & 31) + 32 * k;
    if (there && d < MEAN_DEPTH) part[warp][d] = sum[k];
  }
  __syncthreads();
  if (!there || warp % warps) return;
#pragma unroll
  for (int k = 0; k < MEAN_SLOTS; k++) {
    int d = (threadIdx.x & 31) + 32 * k;
    if (d >= MEAN_DEPTH) continue;
    float all = sum[k];
#pragma unroll 1
    for (int w = 1; w < warps; w++) all += part[warp + w][d];
    if (end > first) all = __fdiv_rn(all, (float)(end - first));
    *mean_at(p, c, b, kv, block, d) = all;
  }
}

#endif
