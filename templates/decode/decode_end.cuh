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

/* Of a row of the tile: the factors of the warps' sums, m and l of all. */
struct team_weights {
  float of[TEAM_WARPS], top, l;
};
DIL_INLINE team_weights weigh_warps(int team, int row) {
  team_weights x;
  x.top = DIL_NONE;
  x.l = 0;
#pragma unroll
  for (int w = 0; w < TEAM_WARPS; w++)
    x.top = fmaxf(x.top, peaks_of(team, w)[2 * row]);
  float base = x.top == DIL_NONE ? 0.0f : x.top;
#pragma unroll
  for (int w = 0; w < TEAM_WARPS; w++) {
    x.of[w] = power_of_2(peaks_of(team, w)[2 * row] - base);
    x.l += peaks_of(team, w)[2 * row + 1] * x.of[w];
  }
  return x;
}

/* Each warp of the two adds up one half of the columns. It leaves its sums of the
 * other half here, and finds those of the other warp. */
static_assert(TEAM_WARPS == 2, "a team halves the columns");
enum { HALF_TILES = VALUE_TILES / 2 };

/* Two columns of group g of 8, of the lane's row of row group e. */
DIL_INLINE float2 &sums_at(int team, int e, int g) {
  int lane = threadIdx.x & 31;
  return *(float2 *)(sums_of(team, 8 * e + lane / 4) + 8 * g + 2 * (lane & 3));
}

template <int FIRST>
DIL_INLINE void leave_half(int team,
                           const float (&o)[ROW_GROUPS][VALUE_TILES][4]) {
#pragma unroll
  for (int e = 0; e < 2 * ROW_GROUPS; e++)
#pragma unroll
    for (int g = FIRST; g < FIRST + HALF_TILES; g++)
      sums_at(team, e, g) = make_float2(o[e / 2][g][2 * (e % 2)],
                                        o[e / 2][g][2 * (e % 2) + 1]);
}

/* `columns(e, g, sums)`: the sums of both warps. The first one's come first. Its lanes
 * tell of each row, too: `row(e, m, l)`. */
template <int FIRST, class Columns, class Row>
DIL_INLINE void add_half(int team, const float (&o)[ROW_GROUPS][VALUE_TILES][4],
                         Columns columns, Row row) {
#pragma unroll
  for (int e = 0; e < 2 * ROW_GROUPS; e++) {
    team_weights x = weigh_warps(team, 8 * e + (threadIdx.x & 31) / 4);
#pragma unroll
    for (int g = FIRST; g < FIRST + HALF_TILES; g++) {
      float2 mine = make_float2(o[e / 2][g][2 * (e % 2)],
                                o[e / 2][g][2 * (e % 2) + 1]);
      float2 theirs = sums_at(team, e, g);
      float2 a = FIRST ? theirs : mine, b = FIRST ? mine : theirs;
      columns(e, g, make_float2(fmaf(b.x, x.of[1], a.x * x.of[0]),
                                fmaf(b.y, x.of[1], a.y * x.of[0])));
    }
    if (FIRST == 0 && threadIdx.x % 4 == 0) row(e, x.top, x.l);
  }
}

/* ---- parts of split keys ------------------------------------------------- */

DIL_INLINE float *part_of(const decode_launch &l, long long number, int split) {
  return l.of.partial + (number * l.splits + split) * PITCH_PART;
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
    float4 head = s < splits ? load_fresh(part + s * PITCH_PART + PART_PEAK)
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
    const float *from = part + least(d, PART_PEAK - 4); /* whatever d is */
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

/* Counts the splits of a unit, and returns whether all of its tile have ended. No byte
 * overflows: a tile has at most 64. The last unit clears it for the next launch. */
DIL_INLINE bool count_splits(const decode_launch &l, const decode_unit_message &u) {
  unsigned *word = l.arrived + u.number / 4;
  int shift = u.number % 4 * 8;
  unsigned before = count_up(word, (unsigned)u.count << shift) >> shift & 255;
  bool last = before + (unsigned)u.count == (unsigned)u.splits;
  if (last) count_up(word, 0 - ((unsigned)u.splits << shift));
  return last;
}

/* Counts the parts that the team left, and returns whether all of the tile are
 * there. */
DIL_INLINE bool count_parts(const decode_launch &l, const decode_unit_message &u,
                            int team, int mine) {
  __threadfence();
  meet_team(team);
  if (mine == 0 && threadIdx.x % 32 == 0)
    *last_of(team) = count_splits(l, u);
  meet_team(team);
  __threadfence();
  return *last_of(team);
}

/* The lane's rows of a split's part in memory; NULL: the tile has no such row. */
struct part_rows {
  float *at[2 * ROW_GROUPS];
};
DIL_INLINE part_rows find_parts(const decode_launch &l, const dil_tile &t, int split) {
  part_rows x;
#pragma unroll
  for (int e = 0; e < 2 * ROW_GROUPS; e++) {
    int position, h;
    bool some = find_row(l.of, t, 8 * e + (threadIdx.x & 31) / 4, &position, &h);
    long long number = row_number(l.of, t.b, row_at(l.of, t, position), h);
    x.at[e] = some ? part_of(l, number, split) : nullptr;
  }
  return x;
}

/* A warp's half of the team's sums goes to the split's part in memory; or, where keys
 * are not split, to shared memory. */
template <int FIRST>
DIL_INLINE void add_warps(const decode_launch &l, const decode_unit_message &u,
                          int split, int team,
                          const float (&o)[ROW_GROUPS][VALUE_TILES][4]) {
  if (u.splits > 1) {
    part_rows part = find_parts(l, u.tile, split);
    add_half<FIRST>(
        team, o,
        [&](int e, int g, float2 sums) {
          int d = 8 * g + 2 * (threadIdx.x & 3);
          if (part.at[e] && d < PART_PEAK) *(float2 *)(part.at[e] + d) = sums;
        },
        [&](int e, float m, float weight) {
          if (part.at[e]) *(float2 *)(part.at[e] + PART_PEAK) = make_float2(m, weight);
        });
    return;
  }
  add_half<FIRST>(
      team, o, [&](int e, int g, float2 sums) { sums_at(team, e, g) = sums; },
      [&](int e, float m, float weight) {
        float *row = sums_of(team, 8 * e + (threadIdx.x & 31) / 4);
        row[SUM_PEAK] = m;
        row[SUM_WEIGHT] = weight;
      });
}

/* The end of split number `split`; the unit ends with its `last` one. */
DIL_INLINE void end_split(const decode_launch &l, const decode_unit_message &u,
                          int split, bool last, int team, int mine,
                          const dil_state (&state)[ROW_GROUPS],
                          const float (&o)[ROW_GROUPS][VALUE_TILES][4]) {
  meet_team(team); /* what the split before left is read */
  share_peaks(team, mine, state);
  if (mine == 0)
    leave_half<HALF_TILES>(team, o);
  else
    leave_half<0>(team, o);
  meet_team(team);
  if (mine == 0)
    add_warps<0>(l, u, split, team, o);
  else
    add_warps<HALF_TILES>(l, u, split, team, o);
  bool merges = u.splits > 1;
  if (!merges) meet_team(team);
  else if (!last || !count_parts(l, u, team, mine)) return;
  write_rows(l, u, team, mine, merges);
}
