/* decode_end.cuh - the end of a split, by the warps of its team. In: their
 * running states. Out: the tile's rows; or, where its keys are split, the split's
 * part of them in memory. The last unit of the tile to end merges the parts in the
 * order of the keys. */
#pragma once

/* Of a team: m and l of each warp's rows; sums of the rows, m and l; whether the
 * tile's other units have ended. */
DIL_INLINE float *peaks_of(int team, int warp) {
  return (float *)(shared + AT_PEAKS) +
         (team * TEAM_WARPS + warp) * TILE_ROWS * 2;
}
DIL_INLINE float *sums_of(int team, int row) {
  return (float *)(shared + AT_SUMS) + (team * TILE_ROWS + row) * PITCH_END;
}
DIL_INLINE int *last_of(int team) { return (int *)(shared + AT_LAST) + 4 * team; }
#define SUM_PEAK (PITCH_END - 8)
#define SUM_WEIGHT (PITCH_END - 7)

DIL_INLINE void meet_team(int team) {
  named_barrier_sync(1 + team, 32 * TEAM_WARPS);
}

DIL_INLINE void share_peaks(int team, int mine,
                            const dil_state (&state)[ROW_GROUPS]) {
  int lane = threadIdx.x & 31;
  float *at = peaks_of(team, mine);
#pragma unroll
  for (int e = 0; e < 2 * ROW_GROUPS; e++) {
    int row = 8 * e + lane / 4;
    float l = row_sum(state[e / 2].l[e % 2]);
    if (lane % 4) continue;
    at[2 * row] = state[e / 2].m[e % 2];
    at[2 * row + 1] = l;
  }
}

/* The factor of a warp's sums of a row. Its first warp writes m and l of all. */
DIL_INLINE float common_factor(int team, int mine, int row) {
  float top = DIL_NONE, l = 0, own = 0;
#pragma unroll
  for (int w = 0; w < TEAM_WARPS; w++)
    top = fmaxf(top, peaks_of(team, w)[2 * row]);
  float base = top == DIL_NONE ? 0.0f : top;
#pragma unroll
  for (int w = 0; w < TEAM_WARPS; w++) {
    float factor = power_of_2(peaks_of(team, w)[2 * row] - base);
    l += peaks_of(team, w)[2 * row + 1] * factor;
    if (w == mine) own = factor;
  }
  if (mine == 0 && threadIdx.x % 4 == 0) {
    sums_of(team, row)[SUM_PEAK] = top;
    sums_of(team, row)[SUM_WEIGHT] = l;
  }
  return own;
}

/* Adds a warp's sums to those of the warps before it. */
DIL_INLINE void add_sums(int team, bool first, int e, float factor,
                         const float (&o)[VALUE_TILES][4]) {
  float *row = sums_of(team, 8 * e + (threadIdx.x & 31) / 4);
#pragma unroll
  for (int g = 0; g < VALUE_TILES; g++) {
    float2 *at = (float2 *)(row + 8 * g + 2 * (threadIdx.x & 3));
    float2 sum = first ? make_float2(0, 0) : *at;
    sum.x += o[g][2 * (e % 2)] * factor;
    sum.y += o[g][2 * (e % 2) + 1] * factor;
    *at = sum;
  }
}

/* ---- parts of split keys ------------------------------------------------- */

DIL_INLINE float *part_of(const decode_launch &l, long long number, int split) {
  return l.of.partial + (number * l.splits + split) * PITCH_PART;
}

DIL_INLINE void write_part(float *part, const float *sums) {
  int lane = threadIdx.x & 31;
  if (lane == 0) *(float2 *)part = make_float2(sums[SUM_PEAK], sums[SUM_WEIGHT]);
#pragma unroll 1
  for (int d = 4 * lane; d < VALUE_DIM; d += 128)
    *(float4 *)(part + 4 + d) = *(const float4 *)(sums + d);
}

/* Lane s % 32 has the weights of splits s and s + 32. */
struct part_weights {
  float w[2], top, l;
};
DIL_INLINE part_weights weigh_parts(const float *part, int splits) {
  int lane = threadIdx.x & 31;
  part_weights x;
  float peak[2], sum[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    int s = lane + 32 * i;
    float4 head = s < splits ? load_fresh(part + s * PITCH_PART)
                             : make_float4(DIL_NONE, 0, 0, 0);
    peak[i] = head.x;
    sum[i] = head.y;
  }
  x.top = fmaxf(peak[0], peak[1]);
#pragma unroll
  for (int away = 16; away > 0; away /= 2)
    x.top = fmaxf(x.top, __shfl_xor_sync(0xffffffffu, x.top, away));
  float base = x.top == DIL_NONE ? 0.0f : x.top;
  x.l = 0;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    x.w[i] = power_of_2(peak[i] - base);
    x.l += sum[i] * x.w[i];
  }
#pragma unroll
  for (int away = 16; away > 0; away /= 2)
    x.l += __shfl_xor_sync(0xffffffffu, x.l, away);
  return x;
}

/* The sums of a row's parts, in the order of the keys, to shared memory. */
DIL_INLINE void merge_parts(const float *part, int splits, float *sums) {
  part_weights x = weigh_parts(part, splits);
  int lane = threadIdx.x & 31;
#pragma unroll 1
  for (int first = 0; first < VALUE_DIM; first += 128) {
    int d = first + 4 * lane;
    const float *from = part + 4 + least(d, PITCH_PART - 8); /* whatever d is */
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 16
    for (int s = 0; s < splits; s++) {
      float w = __shfl_sync(0xffffffffu, s < 32 ? x.w[0] : x.w[1], s & 31);
      float4 y = load_fresh(from + s * PITCH_PART);
      sum.x += w * y.x;
      sum.y += w * y.y;
      sum.z += w * y.z;
      sum.w += w * y.w;
    }
    if (d < VALUE_DIM) *(float4 *)(sums + d) = sum;
  }
  if (lane == 0) sums[SUM_PEAK] = x.top;
  if (lane == 0) sums[SUM_WEIGHT] = x.l;
  __syncwarp();
}

/* ---- rows ---------------------------------------------------------------- */

/* The rows of a tile, a warp each in turn: `work(row number of the call, sums,
 * query row, head)`. */
template <class Work>
DIL_INLINE void for_rows(const dil_params &p, const dil_tile &t, int team,
                         int mine, Work work) {
#pragma unroll 1
  for (int row = mine; row < TILE_ROWS; row += TEAM_WARPS) {
    int position, h;
    if (!find_row(p, t, row, &position, &h)) return;
    int n = row_at(p, t, position);
    work(row_number(p, t.b, n, h), sums_of(team, row), n, h);
  }
}

DIL_INLINE void write_rows(const decode_launch &l,
                           const decode_unit_message &u, int team, int mine,
                           bool merges) {
  const dil_params &p = l.of;
  const dil_tile &t = u.tile;
  for_rows(p, t, team, mine, [&](long long number, float *sums, int n, int h) {
    if (merges) merge_parts(part_of(l, number, 0), u.splits, sums);
    finish_row(p, number, t.b, n, h, sums[SUM_PEAK], sums[SUM_WEIGHT],
               [&](int d) { return sums[d]; });
  });
}

/* Counts the parts that the team left, and returns whether all of the tile are
 * there. */
DIL_INLINE bool count_parts(const decode_launch &l, const decode_unit_message &u,
                            int team, int mine) {
  __threadfence();
  meet_team(team);
  if (mine == 0 && threadIdx.x % 32 == 0)
    *last_of(team) = count_up(l.arrived + u.number, (unsigned)u.count) +
                         (unsigned)u.count == (unsigned)u.splits;
  meet_team(team);
  __threadfence();
  return *last_of(team);
}

/* The end of split number `split`; the unit ends with its `last` one. */
DIL_INLINE void end_split(const decode_launch &l, const decode_unit_message &u,
                         int split, bool last, int team, int mine, bool begun,
                         const dil_state (&state)[ROW_GROUPS],
                         const float (&o)[ROW_GROUPS][VALUE_TILES][4]) {
  const int lane = threadIdx.x & 31;
  meet_team(team); /* the rows of the unit before are written */
  share_peaks(team, mine, state);
  meet_team(team);
  float factor[2 * ROW_GROUPS];
#pragma unroll
  for (int e = 0; e < 2 * ROW_GROUPS; e++)
    factor[e] = common_factor(team, mine, 8 * e + lane / 4);
#pragma unroll 1
  for (int w = 0; w < TEAM_WARPS; w++) {
    if (w == mine && (w == 0 || begun)) {
#pragma unroll
      for (int e = 0; e < 2 * ROW_GROUPS; e++)
        add_sums(team, w == 0, e, factor[e], o[e / 2]);
    }
    meet_team(team);
  }
  bool merges = u.splits > 1;
  if (merges) {
    for_rows(l.of, u.tile, team, mine,
             [&](long long number, float *sums, int, int) {
               write_part(part_of(l, number, split), sums);
             });
    if (!last || !count_parts(l, u, team, mine)) return;
  }
  write_rows(l, u, team, mine, merges);
}
