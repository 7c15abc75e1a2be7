/* decode_end.cuh - the end of a split, by the warps of its team. In: their running
 * states. Out: the sums of the tile's rows; or, where its keys are split, the split's part
 * of them in memory. */
#pragma once

/* m and l of each warp's rows. */
DIL_INLINE float *peaks_of(int team, int warp) {
  return (float *)(shared + AT_PEAKS) +
         (team * TEAM_WARPS + warp) * TILE_ROWS * 2;
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
DIL_INLINE void leave_half(int team, int rows,
                           const float (&o)[ROW_GROUPS][VALUE_TILES][4]) {
#pragma unroll
  for (int e = 0; e < 2 * ROW_GROUPS; e++)
#pragma unroll
    for (int g = FIRST; g < FIRST + HALF_TILES && 8 * e < rows; g++)
      sums_at(team, e, g) = make_float2(o[e / 2][g][2 * (e % 2)],
                                        o[e / 2][g][2 * (e % 2) + 1]);
}

/* `columns(e, g, sums)`: the sums of both warps. The first one's come first. Its lanes
 * tell of each row, too: `row(e, m, l)`. */
template <int FIRST, class Columns, class Row>
DIL_INLINE void add_half(int team, int rows,
                         const float (&o)[ROW_GROUPS][VALUE_TILES][4],
                         Columns columns, Row row) {
#pragma unroll
  for (int e = 0; e < 2 * ROW_GROUPS; e++) {
    if (8 * e >= rows) break;
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

/* The lane's rows of a split's part in memory; NULL: the tile has no such row. */
struct part_rows {
  float *at[2 * ROW_GROUPS];
};
DIL_INLINE part_rows find_parts(const decode_launch &l, const decode_unit_message &u,
                                int split) {
  const dil_tile &t = u.tile;
  const int rows = tile_rows(l, u);
  part_rows x;
#pragma unroll
  for (int e = 0; e < 2 * ROW_GROUPS; e++) {
    int position, h;
    x.at[e] = nullptr;
    if (8 * e >= rows) continue;
    bool some = find_row(l.of, t, 8 * e + (threadIdx.x & 31) / 4, &position, &h);
    long long number = row_number(l.of, t.b, row_at(l.of, t, position), h);
    if (some) x.at[e] = part_of(l, number, split);
  }
  return x;
}

/* A warp's half of the team's sums goes to the split's part in memory; or, where keys
 * are not split, to shared memory. */
template <int FIRST>
DIL_INLINE void add_warps(const decode_launch &l, const decode_unit_message &u,
                          int split, int team,
                          const float (&o)[ROW_GROUPS][VALUE_TILES][4]) {
  const int rows = tile_rows(l, u);
  if (u.splits > 1) {
    part_rows part = find_parts(l, u, split);
    add_half<FIRST>(
        team, rows, o,
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
      team, rows, o, [&](int e, int g, float2 sums) { sums_at(team, e, g) = sums; },
      [&](int e, float m, float weight) {
        float *row = sums_of(team, 8 * e + (threadIdx.x & 31) / 4);
        row[SUM_PEAK] = m;
        row[SUM_WEIGHT] = weight;
      });
}

/* The end of split number `split`; the unit ends with its `last` one. */
DIL_INLINE decode_due end_split(const decode_launch &l, const decode_unit_message &u,
                          int split, bool last, int team, int mine,
                          const dil_state (&state)[ROW_GROUPS],
                          const float (&o)[ROW_GROUPS][VALUE_TILES][4],
                          decode_ended &x) {
  const bool merges = u.splits > 1, asks = last && merges && x.counted;
  const int rows = tile_rows(l, u);
  meet_team(team); /* what the split before left is read */
  share_peaks(team, mine, state);
  if (mine == 0)
    leave_half<HALF_TILES>(team, rows, o);
  else
    leave_half<0>(team, rows, o);
  if (asks && mine == 0 && threadIdx.x % 32 == 0) tell_complete(l, team, x);
  meet_team(team);
  if (mine == 0)
    add_warps<0>(l, u, split, team, o);
  else
    add_warps<HALF_TILES>(l, u, split, team, o);
  if (!merges) {
    meet_team(team);
    return {&u, false};
  }
  if (!last) return {};
  return end_unit(l, u, asks && complete_of(team).counted, team, mine, x);
}
