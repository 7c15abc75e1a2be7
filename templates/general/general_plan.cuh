/* general_plan.cuh - the visits of a tile, one after the other. In: a tile and its cursor
 * (general_visit.cuh). Out: the next tile of keys that may keep some pair, and bits of a
 * thread's pairs. The first warp asks what is known of 32 tiles of keys at once; of one
 * that is partial it asks again, by 16 rows and 8 keys. What is left every warp asks pair
 * by pair for its rows. */
#pragma once

/* ---- empty, full and partial tiles --------------------------------------- */

/* All rows, and this lane's of the next 32 tiles. */
DIL_INLINE dil_box map_box(const dil_params &p, const dil_tile &t,
                           const dil_cursor &c) {
  int n = c.n + (threadIdx.x & 31) * c.leap;
  if (n >= c.stop || n < c.n) n = c.keys.end; /* nothing */
  return {t.low, tile_position(t, t.count - 1), t.head,
          t.head + p.pack - 1, n, c.leap};
}

/* A map that is empty makes the next one coarse, until one is not. */
DIL_INLINE void take_map(dil_cursor &c, unsigned live, unsigned full) {
  int step = 32 * c.leap;
  if (c.leap != TILE_KEYS && live) { /* look closer where it begins */
    c.n += (__ffs((int)live) - 1) * c.leap;
    c.leap = TILE_KEYS;
    return;
  }
  c.base = c.n;
  c.live = live;
  c.full = full;
  c.n = c.stop - c.n > step ? c.n + step : c.stop;
  if (MASKED && !live && c.stop - c.n > 2 * LEAP) c.leap = LEAP;
}

/* Rows of group 4 * round + lane / 8 of the tile, by eight keys. */
DIL_INLINE dil_box part_box(const dil_params &p, const dil_tile &t,
                            const dil_visit &v, int round) {
  int lane = threadIdx.x & 31, group = 4 * round + lane / 8;
  int first = 16 * group / p.pack;
  int last = least((16 * group + 15) / p.pack, t.count - 1);
  bool some = group < TILE_ROWS / 16 && lane % 8 < SCORE_TILES && first <= last;
  return {some ? tile_position(t, first) : 0,
          some ? tile_position(t, last) : -0x7fffffff, t.head,
          t.head + p.pack - 1, v.n + lane % 8 * 8, 8};
}

/* ---- planning ------------------------------------------------------------ */

/* The next tile that may keep some pair; the first warp, all lanes. */
DIL_INLINE void find_visit(const dil_params &p, const dil_tile &t,
                           dil_cursor &c, dil_visit &v, int slot) {
  v.some = true;
  for (;;) {
    bool parts = false;
    if (c.live) {
      int tile = __ffs((int)c.live) - 1;
      v.keys = c.keys;
      v.n = c.base + tile * TILE_KEYS;
      v.full = c.full >> tile & 1;
      v.merged = c.merged;
      v.table = c.table;
      v.rivals = c.rivals;
#if HOLDS_KEYS
      v.head = t.head;
#endif
      c.live &= c.live - 1;
      int predicate = BRANCH(c.keys.branch).predicate;
      v.window = !ASKS_PAIRS ||
                 (!c.rivals && (predicate < 0 || !PREDICATE(predicate).masked ||
                                is_patched(p)));
      if (v.full || v.window) return;
      parts = true;
    } else if (c.n >= c.stop) {
      bool more = next_range(p, t, c, slot);
      if (c.counting && more) {
        c.tiles += (c.stop - c.n) / TILE_KEYS;
        c.n = c.stop;
      } else if (c.counting) {
        share_tiles(p, t, c);
      } else if (!more) {
        v.some = false;
        return;
      }
      continue;
    }
    bool kept = false;
#pragma unroll 1
    for (int round = 0; round < (parts ? PART_ROUNDS : 1); round++) {
      dil_box box = parts ? part_box(p, t, v, round) : map_box(p, t, c);
      int cover = cover_of(p, t, c.keys, c.rivals, box);
      unsigned live = __ballot_sync(0xffffffffu, cover != DIL_EMPTY);
      unsigned full = __ballot_sync(0xffffffffu, cover == DIL_FULL);
      if (!parts) take_map(c, live, full);
      kept = kept || (parts && live);
      if (parts && (threadIdx.x & 31) == 0) {
        SCRATCH.part_live[slot][round] = live;
        SCRATCH.part_full[slot][round] = full;
      }
    }
    if (kept) return;
  }
}

DIL_INLINE void plan_visit(const dil_params &p, int slot) {
  dil_cursor c = SCRATCH.cursor;
  dil_visit v;
  find_visit(p, planned_tile(), c, v, slot);
  if (CARES && SCRATCH.careful && v.full) { /* as if pairs were to be asked */
    v.full = false;
    v.window = true;
  }
#if PAGED
  find_absent(p, planned_tile(), v);
#endif
#if PATCHES
  v.slot = slot;
  list_columns(p, planned_tile(), v);
#endif
  __syncwarp();
  if ((threadIdx.x & 31) == 0) {
    SCRATCH.cursor = c;
    SCRATCH.visit[slot] = v;
  }
  __syncwarp();
}

/* Bits of a group of 16 rows. `live` and `full` are of its parts, a bit for each
 * 8 keys: a part keeps all pairs or none, or each pair is asked. */
DIL_INLINE unsigned part_bits(const dil_params &p, const dil_tile &t,
                              const dil_rows &rows, const dil_visit &v,
                              unsigned live, unsigned full) {
  unsigned bits = 0;
#pragma unroll 1
  for (; live; live &= live - 1) {
    int g = __ffs((int)live) - 1;
    unsigned mine = full >> g & 1 ? 15u : keep_bits(p, t, rows, v, v.rivals, g);
    bits |= mine << 4 * g;
  }
  return bits;
}

/* The same of a group of this warp; windows are known by arithmetic. */
DIL_INLINE unsigned group_bits(const dil_params &p, const dil_tile &t,
                               int slot, int group) {
  const dil_visit &v = SCRATCH.visit[slot];
  int number = (int)(ROW_GROUPS * ROW_WARP + group);
  dil_rows rows = rows_of(p, t, group);
#if PATCHES
  if (is_patched(p)) {
    unsigned bits = patch_bits(v, 16 * number + (threadIdx.x & 31) / 4);
    return p.patch_alone ? bits : asked_bits(p, t, rows, v, bits);
  }
#endif
  if (v.window) return window_bits(t, rows, v);
  int byte = 8 * (number % 4);
  return part_bits(p, t, rows, v,
                   SCRATCH.part_live[slot][number / 4] >> byte & 0xff,
                   SCRATCH.part_full[slot][number / 4] >> byte & 0xff);
}

/* The pairs of a group that count. */
DIL_INLINE unsigned visit_bits(const dil_params &p, const dil_tile &t,
                               int slot, int group) {
  unsigned bits = group_bits(p, t, slot, group);
#if PAGED
  bits = without_absent(SCRATCH.visit[slot], bits);
#endif
  return bits;
}
