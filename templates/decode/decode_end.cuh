/* decode_end.cuh - the end of a split, by the warps of its team. In: their
 * running states. Out: the tile's rows; or, where its keys are split, the split's
 * part of them in memory. The parts of a tile whose units have all ended are merged in
 * the order of the keys, by the team of its last unit. */
#pragma once

/* Of a team: m and l of each warp's rows; sums of the rows, m and l; which tiles are
 * complete (below). */
DIL_INLINE float *peaks_of(int team, int warp) {
  return (float *)(shared + AT_PEAKS) +
         (team * TEAM_WARPS + warp) * TILE_ROWS * 2;
}
DIL_INLINE float *sums_of(int team, int row) {
  return (float *)(shared + AT_SUMS) + (team * TILE_ROWS + row) * PITCH_END;
}
struct decode_complete {
  int counted; /* bool: the counted tile is */
  int due[2];  /* when the team has no more units: places of such tiles, or -1 */
  int unused;
};
DIL_INLINE decode_complete &complete_of(int team) {
  return ((decode_complete *)(shared + AT_COMPLETE))[team];
}
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

DIL_INLINE int tile_rows(const decode_launch &l, const decode_unit_message &u) {
  return u.tile.count * l.of.pack;
}

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

/* The sums of a row's parts, in the order of the keys, to shared memory. */
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
  const int rows = tile_rows(l, u);
  if (u.splits > 1) {
    part_rows part = find_parts(l, u.tile, split);
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

/* ---- tiles of split keys -------------------------------------------------- */

/* A team counts the splits of its unit and goes on: whether they were the last ones of
 * their tile it learns at the end of its next unit. A complete tile waits until the next
 * one is complete, or until no team of the block has units: then all warps share the
 * rows. A team that merged at once would end its next unit late, hence as the last one of
 * another tile, which it would merge, too. */
struct decode_ended {
  bool counted;    /* TILE(team, place) has been counted */
  bool waits;      /* the tile before it is complete */
  int place;       /* of three: the one behind it may still be merged */
  unsigned before; /* the tile's splits that had ended: lane 0 of the first warp */
};
#define TILE(team, place)                                                     \
  (*(decode_unit_message *)(shared + AT_TILES + (3 * (team) + (place) % 3) * UNIT_BYTES))

/* Rows that are due: those of a tile, of which the sums of both warps are there, or
 * parts. NULL: none. */
struct decode_due {
  const decode_unit_message *of;
  bool merges;
};

/* A tile's counter is a byte, which does not overflow: a tile has at most 64 splits. */
struct decode_counter {
  unsigned *word;
  int shift;
};
DIL_INLINE decode_counter counter_of(const decode_launch &l,
                                     const decode_unit_message &u) {
  return {l.arrived + u.number / 4, u.number % 4 * 8};
}

/* One thread's fence orders all that the team wrote before it met. */
DIL_INLINE void count_splits(const decode_launch &l, const decode_unit_message &u,
                             decode_ended &x) {
  decode_counter c = counter_of(l, u);
  device_fence();
  x.before = count_up(c.word, (unsigned)u.count << c.shift);
}

/* Tells the team whether the tile that it has counted is complete; by lane 0 of the
 * first warp. Then the counter becomes 0 for the next launch. */
DIL_INLINE void tell_complete(const decode_launch &l, int team, const decode_ended &x) {
  const decode_unit_message &u = TILE(team, x.place);
  decode_counter c = counter_of(l, u);
  bool complete = (int)(x.before >> c.shift & 255) + u.count == u.splits;
  if (complete) count_up(c.word, 0 - ((unsigned)u.splits << c.shift));
  if (complete) device_fence();
  complete_of(team).counted = complete;
}

/* Counts a unit whose parts the warp has left; the tile counted before is `complete`.
 * Returns the tile that has to be merged. */
DIL_INLINE decode_due end_unit(const decode_launch &l, const decode_unit_message &u,
                               bool complete, int team, int mine, decode_ended &x) {
  const bool first = mine == 0 && threadIdx.x % 32 == 0, merges = complete && x.waits;
  meet_team(team);
  if (first) count_splits(l, u, x);
  if (complete) {
    x.waits = true;
    x.place = (x.place + 1) % 3;
  }
  if (first) TILE(team, x.place) = u;
  x.counted = true;
  return {merges ? &TILE(team, x.place + 1) : nullptr, true};
}

/* The team has no more units. When all teams have none, their complete tiles are due. */
DIL_INLINE void end_team(const decode_launch &l, int team, int mine,
                         const decode_ended &x) {
  if (mine == 0 && threadIdx.x % 32 == 0) {
    decode_complete &c = complete_of(team);
    c.counted = false;
    if (x.counted) tell_complete(l, team, x);
    c.due[0] = x.waits ? x.place + 2 : -1;
    c.due[1] = c.counted ? x.place : -1;
  }
  named_barrier_sync(1 + TEAMS, 32 * TEAMS * TEAM_WARPS);
}

/* The due tiles of the block, a bit each: team n / 2 has number n. */
DIL_INLINE unsigned due_tiles() {
  const int n = threadIdx.x & 31;
  bool due = n < 2 * TEAMS && complete_of(n / 2).due[n % 2] >= 0;
  return __ballot_sync(0xffffffffu, due);
}
DIL_INLINE decode_due due_tile(int n) {
  return {&TILE(n / 2, complete_of(n / 2).due[n % 2]), true};
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
