/* decode_merge.cuh - the rows of a tile: from sums in shared memory, or from the parts
 * that teams have left of split keys. Parts are added in an order that their number alone
 * fixes, whichever team or warp does it. */
#pragma once

/* A team's sums of a row, m and l. */
DIL_INLINE float *sums_of(int team, int row) {
  return (float *)(shared + AT_SUMS) + (team * TILE_ROWS + row) * PITCH_END;
}
#define SUM_PEAK (PITCH_END - 8)
#define SUM_WEIGHT (PITCH_END - 7)

DIL_INLINE int tile_rows(const decode_launch &l, const decode_unit_message &u) {
  return u.tile.count * l.of.pack;
}

/* ---- parts of split keys ------------------------------------------------- */

DIL_INLINE float *part_of(const decode_launch &l, long long number, int split) {
  return l.of.partial + (number * l.splits + split) * PITCH_PART;
}

/* Of a row's splits: lane s % 32 has m and l of splits s and s + 32, then their
 * weights. */
struct part_weights {
  float m[2], l[2], w[2];
  float top, sum; /* m and l of all */
};
DIL_INLINE part_weights load_weights(const float *part, int splits) {
  part_weights x;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    int s = (threadIdx.x & 31) + 32 * i;
    float4 head = s < splits ? load_fresh(part + s * PITCH_PART + PART_PEAK)
                             : make_float4(DIL_NONE, 0, 0, 0);
    x.m[i] = head.x;
    x.l[i] = head.y;
  }
  return x;
}
DIL_INLINE void weigh_parts(part_weights &x) {
  x.top = fmaxf(x.m[0], x.m[1]);
#pragma unroll
  for (int away = 16; away > 0; away /= 2)
    x.top = fmaxf(x.top, __shfl_xor_sync(0xffffffffu, x.top, away));
  float base = x.top == DIL_NONE ? 0.0f : x.top;
  x.sum = 0;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    x.w[i] = power_of_2(x.m[i] - base);
    x.sum += x.l[i] * x.w[i];
  }
#pragma unroll
  for (int away = 16; away > 0; away /= 2)
    x.sum += __shfl_xor_sync(0xffffffffu, x.sum, away);
}

/* A lane adds four columns. Where a row has fewer than a warp's, stripes of lanes take
 * splits in turn, and are added up at the end. So many loads of a lane wait together:
 * each takes as long as all. */
enum {
  PART_LANES = VALUE_DIM <= 32 ? 8 : VALUE_DIM <= 64 ? 16 : 32,
  PART_STRIPES = 32 / PART_LANES,
  PART_LOADS = 16
};

/* The columns d..d+3 of a row's sums. `begins`: the weights are only loaded. */
DIL_INLINE float4 merge_columns(const float *part, int splits, int d, bool begins,
                                part_weights &x) {
  const int stripe = (threadIdx.x & 31) / PART_LANES;
  const float *from = part + least(d, PART_PEAK - 4); /* whatever d is */
  float sum[4] = {0, 0, 0, 0};
#pragma unroll 1
  for (int first = 0; first < splits; first += PART_STRIPES * PART_LOADS) {
    float4 y[PART_LOADS];
#pragma unroll
    for (int i = 0; i < PART_LOADS; i++) {
      int s = first + i * PART_STRIPES + stripe;
      y[i] = s < splits ? load_fresh(from + s * PITCH_PART) : make_float4(0, 0, 0, 0);
    }
    if (begins) weigh_parts(x);
    begins = false;
#pragma unroll
    for (int i = 0; i < PART_LOADS; i++) {
      int s = first + i * PART_STRIPES; /* of the first stripe */
      float w = __shfl_sync(0xffffffffu, s < 32 ? x.w[0] : x.w[1], s + stripe & 31);
      sum[0] += w * y[i].x;
      sum[1] += w * y[i].y;
      sum[2] += w * y[i].z;
      sum[3] += w * y[i].w;
    }
  }
#pragma unroll
  for (int away = PART_LANES; away < 32; away *= 2)
#pragma unroll
    for (int e = 0; e < 4; e++) sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], away);
  return make_float4(sum[0], sum[1], sum[2], sum[3]);
}

/* Adds up a row's parts. The sums go to shared memory. */
DIL_INLINE void merge_parts(const float *part, int splits, float *sums) {
  const int lane = threadIdx.x & 31;
  part_weights x = load_weights(part, splits);
#pragma unroll 1
  for (int first = 0; first < VALUE_DIM; first += 4 * PART_LANES) {
    int d = first + 4 * (lane % PART_LANES);
    float4 sum = merge_columns(part, splits, d, first == 0, x);
    if (d < VALUE_DIM && lane < PART_LANES) *(float4 *)(sums + d) = sum;
  }
  if (lane == 0) sums[SUM_PEAK] = x.top;
  if (lane == 0) sums[SUM_WEIGHT] = x.sum;
  __syncwarp();
}

/* ---- rows ---------------------------------------------------------------- */

/* Warps take rows in turn, also of several tiles: the next row of this warp, counted from
 * the tile's first one, and the number of warps. */
struct row_turn {
  int next, warps;
};

/* The warp's rows of a tile: `work(row number of the call, its number in the tile, query
 * row, head)`. */
template <class Work>
DIL_INLINE void for_rows(const decode_launch &l, const decode_unit_message &u,
                         row_turn &turn, Work work) {
  const int rows = tile_rows(l, u);
#pragma unroll 1
  for (; turn.next < rows; turn.next += turn.warps) {
    int position, h;
    find_row(l.of, u.tile, turn.next, &position, &h);
    int n = row_at(l.of, u.tile, position);
    work(row_number(l.of, u.tile.b, n, h), turn.next, n, h);
  }
  turn.next -= rows;
}

/* Writes rows whose sums are in shared memory. Where they are merged from parts, a row of
 * that memory is the warp's own. */
DIL_INLINE void write_rows(const decode_launch &l, const decode_unit_message &u, int team,
                           int mine, bool merges, row_turn &turn) {
  const dil_params &p = l.of;
  for_rows(l, u, turn, [&](long long number, int row, int n, int h) {
    float *sums = sums_of(team, merges ? mine : row);
    if (merges) merge_parts(part_of(l, number, 0), u.splits, sums);
    finish_row(p, number, u.tile.b, n, h, sums[SUM_PEAK], sums[SUM_WEIGHT],
               [&](int d) { return sums[d]; });
  });
}
