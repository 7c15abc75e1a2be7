/* general_state.cuh - how the rows of a tile begin and end, and the small
 * kernels over rows whose state is in memory. Needs the sizes that general.cu
 * defines. */
#pragma once
#include "templates/shared/documents.cuh"

/* ---- the rows of a tile -------------------------------------------------- */

DIL_INLINE void begin_rows(dil_state &state, float (&o)[VALUE_TILES][4]) {
#pragma unroll
  for (int e = 0; e < 4 * VALUE_TILES; e++) o[e >> 2][e & 3] = 0;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    state.m[r] = DIL_NONE;
    state.l[r] = 0;
  }
}

/* One row of a group, m, l and its sums, from where end_rows has put it. */
DIL_INLINE void end_row(const dil_params &p, const dil_tile &t, int row,
                        const float *sums) {
  int position, h;
  if (!find_row(p, t, row, &position, &h)) return;
  int n = row_at(p, t, position);
  long long number = row_number(p, t.b, n, h);
  if (p.splits == 1) {
    finish_row(p, number, t.b, n, h, sums[0], sums[1],
               [&](int d) { return sums[2 + d]; });
    return;
  }
  long long count = state_rows(p);
  float *part = p.partial + (t.split * count + number) * (2 + VALUE_DIM);
#pragma unroll 1
  for (int d = threadIdx.x & 31; d < 2 + VALUE_DIM; d += 32) part[d] = sums[d];
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

extern "C" __global__ void dil_merge(const __grid_constant__ dil_params p) {
  long long stride = state_rows(p) * (2 + VALUE_DIM);
  WARP_ROWS(p, index) {
    dil_place at = place_of(p, index);
    if (at.b < 0 || !pass_serves(p.pass, at.h)) continue;
    const float *part = p.partial + index * (2 + VALUE_DIM);
    const int splits = splits_of(p, batch_keys(p, at.b));
    float top = DIL_NONE, l = 0;
#pragma unroll 1
    for (int s = 0; s < splits; s++) top = fmaxf(top, part[s * stride]);
    float base = top == DIL_NONE ? 0.0f : top;
#pragma unroll 1
    for (int s = 0; s < splits; s++)
      l += part[s * stride + 1] * power_of_2(part[s * stride] - base);
    finish_row(p, index, at.b, at.n, at.h, top, l, [&](int d) {
      float sum = 0;
#pragma unroll 1
      for (int s = 0; s < splits; s++)
        sum += part[s * stride + 2 + d] * power_of_2(part[s * stride] - base);
      return sum;
    });
  }
}

/* The states of a row of a shard: one, or one a pass, weighted and added. */
#define STATES (COMBINE >= 2 ? PASSES : 1)

/* Returns the state that a row begins with. In a shard p.batches counts the
 * batch rows of all states. Else passes of `mean` and `sum` begin with their
 * sinks themselves, and only the pattern's say whether the row is NaN. */
DIL_INLINE float state_start(const dil_params &p, const dil_place &at) {
  bool joined = is_shard(p) && !is_packed(p);
  int batches = joined ? p.batches / STATES : p.batches;
  int state = joined ? at.b / batches : is_shard(p) ? at.state : -1;
  if (STATES > 1 && state >= 0 && !pass_serves(state, at.h)) return DIL_NONE;
  return row_start(p, at.b % batches, at.n, at.h, state);
}

/* A warp begins 32 rows: each lane finds the start of one, and all write sums. */
extern "C" __global__ void dil_begin(const __grid_constant__ dil_params p) {
  const long long rows = all_rows(p);
  const long long step = (long long)gridDim.x * blockDim.x;
  const int lane = threadIdx.x % 32;
  long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x - lane;
  for (; first < rows; first += step) {
    long long index = first + lane;
    bool begins = false;
    float start = 0;
    if (index < rows) {
      dil_place at = place_of(p, index);
      begins = at.b >= 0 && (is_shard(p) || passes_of(at.h) > 1);
      if (begins) start = state_start(p, at);
    }
    if (begins) p.state_lse[index] = start;
    if (is_shard(p) && !SINKS) continue; /* nobody reads sums without an lse */
    unsigned some = __ballot_sync(0xffffffffu, begins);
#pragma unroll 1
    for (int i = lane; i < 32 * VALUE_DIM; i += 32) {
      float its = __shfl_sync(0xffffffffu, start, i / VALUE_DIM);
      if (some >> i / VALUE_DIM & 1)
        p.state_o[first * VALUE_DIM + i] = its == its ? 0.0f : its;
    }
  }
}

DIL_INLINE float states_sum(const dil_params &p, long long index, int d) {
  long long stride = state_rows(p);
  float sum = 0;
#pragma unroll 1
  for (int s = 0; s < STATES; s++) {
    long long row = s * stride + index;
    if (p.state_lse[row] != DIL_NONE)
      sum += p.state_o[row * VALUE_DIM + d] * p.weight;
  }
  return sum;
}
/* lse of several: that of the one pass which serves the head. */
DIL_INLINE float states_lse(const dil_params &p, long long index, int head) {
  long long stride = state_rows(p);
  int s = 0;
  while (s < STATES - 1 && !pass_serves(s, head)) s++;
  return p.state_lse[s * stride + index];
}

#if COMBINE < 2
/* Writes a row of which each pass has a state apart: one softmax joins them, and the
 * pattern's own sinks. */
DIL_INLINE void join_states(const dil_params &p, long long index, const dil_place &at) {
  float lse[PASSES], top = DIL_NONE, all = 0;
  float own = SINKS ? sink_of(row_pair(p, at.b, at.h), row_position(p, at.b, at.n),
                              true, 0ull)
                    : DIL_NONE;
#pragma unroll
  for (int s = 0; s < PASSES; s++) {
    lse[s] = pass_serves(s, at.h) ? p.state_lse[s * state_rows(p) + index] : DIL_NONE;
    top = fmaxf(top, lse[s]);
  }
  top = fmaxf(top, own);
  float base = top == DIL_NONE ? 0.0f : top;
#pragma unroll
  for (int s = 0; s < PASSES; s++) all += power_of_2((lse[s] - base) * DIL_LOG2_E);
  all += power_of_2((own - base) * DIL_LOG2_E);
#pragma unroll 1
  for (int d = threadIdx.x % 32; d < VALUE_DIM; d += 32) {
    float sum = all == all ? 0 : all;
#pragma unroll
    for (int s = 0; s < PASSES; s++)
      if (lse[s] != DIL_NONE)
        sum += p.state_o[(s * state_rows(p) + index) * VALUE_DIM + d] *
               (power_of_2((lse[s] - base) * DIL_LOG2_E) / all);
    output_row(p, at.b, at.n, at.h)[d] = narrow(sum);
  }
  if (threadIdx.x % 32 == 0)
    write_lse(p, at.b, at.n, at.h, all == 0 ? DIL_NONE : base + logf(all));
}
#endif

extern "C" __global__ void dil_end(const __grid_constant__ dil_params p) {
  WARP_ROWS(p, index) {
    dil_place at = place_of(p, index);
    if (at.b < 0) continue; /* `dil_clear` writes rows of nobody */
#if COMBINE < 2
    if (p.flags & DIL_JOINS) {
      join_states(p, index, at);
      continue;
    }
#endif
    bool shard = is_shard(p);
    int passes = shard ? 2 : passes_of(at.h);
    if (passes == 1) continue;
    /* A head that nobody serves has no softmax with `mean` and `sum`. */
    float start = COMBINE < 2 ? row_start(p, at.b, at.n, at.h, -1) : DIL_NONE;
#pragma unroll 1
    for (int d = threadIdx.x % 32; d < VALUE_DIM; d += 32)
      output_row(p, at.b, at.n, at.h)[d] =
          narrow(shard            ? states_sum(p, index, d)
                 : passes         ? p.state_o[index * VALUE_DIM + d]
                 : start == start ? 0.0f
                                  : start);
    if (threadIdx.x % 32 == 0)
      write_lse(p, at.b, at.n, at.h,
                shard    ? states_lse(p, index, at.h)
                : passes ? p.state_lse[index]
                         : start);
  }
}

/* Rows that no document of a packed call has: o 0, lse -inf. */
extern "C" __global__ void dil_clear(const __grid_constant__ dil_params p) {
  int first = first_of_nobody(p.offsets_q, p.batches, p.packed_rows, p.rows);
  long long step = (long long)gridDim.x * blockDim.x / 32;
  long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
#pragma unroll 1
  for (row += (long long)first * p.heads;
       row < (long long)p.packed_rows * p.heads; row += step) {
    int n = (int)(row / p.heads), h = (int)(row % p.heads);
    element *o = (element *)p.o + n * p.o_stride[1] + h * p.o_stride[2];
#pragma unroll 1
    for (int d = threadIdx.x % 32; d < VALUE_DIM; d += 32) o[d] = narrow(0.0f);
    if (p.lse && threadIdx.x % 32 == 0)
      p.lse[n * p.lse_stride[1] + h * p.lse_stride[2]] = DIL_NONE;
  }
}
