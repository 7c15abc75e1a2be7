/* general_state.cuh - how the rows of a tile begin and end, and the small
 * kernels over rows whose state is in memory. Needs the sizes that general.cu
 * defines. */
#pragma once

/* ---- the rows of a tile -------------------------------------------------- */

/* Row `row` of a tile: query row and head; false: there is none. */
DIL_INLINE bool find_row(const dil_params &p, const dil_tile &t, int row,
                         int *position, int *head) {
  int n = p.pack == 1 ? row : row / p.pack;
  *position = t.low + (n < t.count ? n * t.step : 0);
  *head = t.head + row - n * p.pack;
  return n < t.count;
}

DIL_INLINE dil_rows rows_of(const dil_params &p, const dil_tile &t,
                            int group) {
  dil_rows rows;
  int first = 16 * (ROW_GROUPS * (threadIdx.x >> 5) + group);
#pragma unroll
  for (int r = 0; r < 2; r++)
    rows.valid[r] = find_row(p, t, first + (threadIdx.x & 31) / 4 + 8 * r,
                             &rows.t[r], &rows.h[r]);
  return rows;
}

/* An empty state, or what an earlier pass left. */
DIL_INLINE void begin_rows(const dil_params &p, const dil_tile &t,
                           int group, dil_state &state,
                           float (&o)[VALUE_TILES][4]) {
  dil_rows rows = rows_of(p, t, group);
#pragma unroll
  for (int e = 0; e < 4 * VALUE_TILES; e++) o[e >> 2][e & 3] = 0;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    state.m[r] = DIL_NONE;
    state.l[r] = 0;
    if (PASSES == 1 || t.split || !rows.valid[r] ||
        finish_of(rows.h[r]) != FINISH_RESUME)
      continue;
    long long row = row_number(p, t.b, rows.t[r] - t.origin, rows.h[r]);
    float lse = p.state_lse[row];
    if (lse == DIL_NONE) continue;
    state.m[r] = lse * DIL_LOG2_E;
    state.l[r] = (threadIdx.x & 3) == 0 ? 1.0f : 0.0f;
    const float *from = p.state_o + row * VALUE_DIM;
#pragma unroll
    for (int e = 0; e < 4 * VALUE_TILES; e++)
      if ((e >> 1 & 1) == r && column_of(e) < VALUE_DIM)
        o[e >> 2][e & 3] = from[column_of(e)];
  }
}

/* One row of a group, m, l and its sums, from where end_rows has put it. */
DIL_INLINE void end_row(const dil_params &p, const dil_tile &t, int row,
                        const float *sums) {
  int position, h;
  if (!find_row(p, t, row, &position, &h)) return;
  int n = position - t.origin, lane = threadIdx.x & 31;
  float m = sums[0], l = sums[1];
  if (p.splits > 1) {
    long long count = (long long)p.B * p.N * HEADS;
    float *part = p.partial + (t.split * count + row_number(p, t.b, n, h)) *
                                  (2 + VALUE_DIM);
#pragma unroll 1
    for (int d = lane; d < 2 + VALUE_DIM; d += 32) part[d] = sums[d];
    return;
  }
  int how = finish_of(h);
  float factor = row_factor(p, l);
  if (lane == 0) finish_lse(p, how, t.b, n, h, row_lse(m, l));
#pragma unroll 1
  for (int d = lane; d < VALUE_DIM; d += 32)
    finish_element(p, how, t.b, n, h, d, l == 0 ? 0.0f : sums[2 + d] * factor);
}

/* Sums, m and l of a group through shared memory, so that rows are written
 * whole; every warp has a place of its own. */
DIL_INLINE void end_rows(const dil_params &p, const dil_tile &t, int group,
                         const dil_state &state,
                         const float (&o)[VALUE_TILES][4]) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float *place = (float *)(shared + SHARED_Q) + warp * 16 * PITCH_END;
  __syncwarp();
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float l = row_sum(state.l[r]);
    float *mine = place + (lane / 4 + 8 * r) * PITCH_END;
    if (lane % 4 == 0) mine[0] = state.m[r];
    if (lane % 4 == 0) mine[1] = l;
#pragma unroll
    for (int e = 0; e < 2 * VALUE_TILES; e++) {
      int at = 4 * (e >> 1) + 2 * r + (e & 1);
      if (column_of(at) < VALUE_DIM) mine[2 + column_of(at)] = o[at >> 2][at & 3];
    }
  }
  __syncwarp();
#pragma unroll 1
  for (int row = 0; row < 16; row++)
    end_row(p, t, 16 * (ROW_GROUPS * warp + group) + row,
            place + row * PITCH_END);
}

/* ---- rows whose state is in memory --------------------------------------- */

/* Row number `index` of [B, N, H]. */
struct dil_place {
  int b, n, h;
};
DIL_INLINE dil_place place_of(const dil_params &p, long long index) {
  dil_place at;
  at.h = (int)(index % HEADS);
  at.n = (int)(index / HEADS % p.N);
  at.b = (int)(index / HEADS / p.N);
  return at;
}

#define WARP_ROWS(p, index)                                                   \
  for (long long index = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / \
                         32;                                                  \
       index < (long long)(p).B * (p).N * HEADS;                              \
       index += (long long)gridDim.x * blockDim.x / 32)

extern "C" __global__ void dil_merge(const __grid_constant__ dil_params p) {
  long long rows = (long long)p.B * p.N * HEADS;
  WARP_ROWS(p, index) {
    dil_place at = place_of(p, index);
    if (!pass_serves(p.pass, at.h)) continue;
    const float *part = p.partial + index * (2 + VALUE_DIM);
    float top = DIL_NONE, l = 0;
#pragma unroll 1
    for (int s = 0; s < p.splits; s++)
      top = fmaxf(top, part[s * rows * (2 + VALUE_DIM)]);
    float base = top == DIL_NONE ? 0.0f : top;
#pragma unroll 1
    for (int s = 0; s < p.splits; s++) {
      const float *one = part + s * rows * (2 + VALUE_DIM);
      l += one[1] * power_of_2(one[0] - base);
    }
    int how = finish_of(at.h);
    float factor = row_factor(p, l);
#pragma unroll 1
    for (int d = threadIdx.x % 32; d < VALUE_DIM; d += 32) {
      float sum = 0;
#pragma unroll 1
      for (int s = 0; s < p.splits; s++) {
        const float *one = part + s * rows * (2 + VALUE_DIM);
        sum += one[2 + d] * power_of_2(one[0] - base);
      }
      finish_element(p, how, at.b, at.n, at.h, d, l == 0 ? 0.0f : sum * factor);
    }
    if (threadIdx.x % 32 == 0)
      finish_lse(p, how, at.b, at.n, at.h, row_lse(top, l));
  }
}

extern "C" __global__ void dil_begin(const __grid_constant__ dil_params p) {
  WARP_ROWS(p, index) {
    if (passes_of((int)(index % HEADS)) <= 1) continue;
#pragma unroll 1
    for (int d = threadIdx.x % 32; d < VALUE_DIM; d += 32)
      p.state_o[index * VALUE_DIM + d] = 0;
    if (threadIdx.x % 32 == 0) p.state_lse[index] = DIL_NONE;
  }
}

extern "C" __global__ void dil_end(const __grid_constant__ dil_params p) {
  WARP_ROWS(p, index) {
    dil_place at = place_of(p, index);
    int passes = passes_of(at.h);
    if (passes == 1) continue;
#pragma unroll 1
    for (int d = threadIdx.x % 32; d < VALUE_DIM; d += 32)
      output_row(p, at.b, at.n, at.h)[d] =
          narrow(passes ? p.state_o[index * VALUE_DIM + d] : 0.0f);
    if (threadIdx.x % 32 == 0)
      write_lse(p, at.b, at.n, at.h, passes ? p.state_lse[index] : DIL_NONE);
  }
}
