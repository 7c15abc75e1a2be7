/* general_visit.cuh - the keys of a tile, in order: branch by branch, each an
 * arithmetic sequence cut into tiles of TILE_KEYS (general_plan.cuh).
 *
 * A key that several branches reach is visited once. Branch a *owns* the keys
 * of branch b where every key that b reaches in a's segment is reached by a
 * too, under the same predicate and chain. Branch b is then *merged* into a: it
 * leaves a gap there, and a's keys count as often as they are reached (their
 * multiplicity; `union`: once). The owner is the least in order. */
#pragma once

#include "templates/general/general_patch.cuh"
#include "templates/shared/few.cuh"
#include "templates/shared/pages.cuh"

#ifndef ALIGNED_KEYS
#define ALIGNED_KEYS 0 /* 1: tiles of keys begin where the cursor says */
#endif

struct dil_cursor {
  dil_set rest;   /* branches not begun */
  dil_set merged; /* branches whose keys count in this branch's visits */
  int table;      /* the table in scratch memory that describes them */
  dil_set rivals; /* `union`: those before it that may reach a key */
  dil_keys keys;             /* a range of a branch's keys */
  int later, later_end;      /* its range behind the gap; none: later_end 0 */
  int n, stop;               /* the next tile to ask about; the range's end */
  int base;                  /* the map: bit b is the tile at base + b * ... */
  unsigned live, full;
  int leap;                  /* keys that a bit of the next map stands for */
  int skip, take;            /* of all tiles: those of this split */
  bool counting;             /* tiles are counted, not walked */
#if ALIGNED_KEYS
  int align; /* a power of two: the numbers of keys, counted from position 0, with
              * which tiles begin are its multiples */
#endif
#if HOLDS_KEYS
  int heads;                 /* of the K/V head, not begun */
#endif
  long long tiles;
};

enum { LEAP = 16 * TILE_KEYS };
/* A visit may be neither full nor cut by a window alone. */
#define ASKS_PAIRS (MASKED || (BRANCHES > 1 && COMBINE == 1))

DIL_INLINE bool comes_before(int a, int b) {
  int by = BRANCH(a).dilation - BRANCH(b).dilation;
  return by < 0 || (by == 0 && a < b);
}

DIL_INLINE bool is_congruent(const dil_tile &t, int a, int b) {
  int away = column_residue(t, b) - column_residue(t, a);
  return away % BRANCH(a).dilation == 0;
}

DIL_INLINE bool is_owner(const dil_tile &t, int a, int b) {
  const dil_branch_row &x = BRANCH(a), &y = BRANCH(b);
  return comes_before(a, b) && y.dilation % x.dilation == 0 &&
         x.predicate == y.predicate && (COMBINE == 1 || x.chain == y.chain) &&
         is_congruent(t, a, b);
}

/* Branches of the tile that `is` relates to `branch`; a lane asks for each. */
template <class Is>
DIL_INLINE dil_set related(const dil_tile &t, int branch, Is is) {
  dil_set found = 0;
#pragma unroll 1
  for (int first = 0; first < BRANCHES; first += 32) {
    int a = first + (threadIdx.x & 31);
    bool yes =
        a < BRANCHES && (t.branches >> a & 1) && a != branch && is(a);
    found |= (dil_set)__ballot_sync(0xffffffffu, yes) << first;
  }
  return found;
}

/* Positions low..high-1, all that some branches' segments hold. */
struct dil_span {
  int low, high;
};
DIL_INLINE dil_span no_span() { return {0x7fffffff, -0x7fffffff}; }
DIL_INLINE void widen_span(const dil_tile &t, int branch, dil_span &s) {
  int size = BRANCH(branch).segment, low = segment_low(branch, t.low);
  s.low = least(s.low, size ? low : -0x7fffffff);
  s.high = most(s.high, size ? low + size : 0x7fffffff);
}
DIL_INLINE bool in_span(dil_span s, int j) { return j >= s.low && j < s.high; }

/* The first number of the keys at or after a position. A span without an end
 * lies more than an int away where the keys begin before position 0. */
DIL_INLINE int number_at(const dil_keys &k, long long position) {
  long long away = position - k.start, far = 0x7fffffff;
  return steps_to(away < far ? away : far, k.step);
}

/* Sets a branch's keys without the gap that it leaves to its owners: at most
 * two ranges. */
DIL_INLINE void leave_gap(const dil_tile &t, dil_set owners, dil_cursor &c) {
  dil_span gap = no_span();
#pragma unroll 1
  for (; owners; owners &= owners - 1) widen_span(t, lowest(owners), gap);
  if (gap.low >= gap.high) return;
  int from = most(number_at(c.keys, gap.low), c.keys.first);
  int to = number_at(c.keys, gap.high);
  if (from >= c.keys.end || to <= from) return;
  c.later = to;
  c.later_end = to < c.keys.end ? c.keys.end : 0;
  c.keys.end = from;
}

DIL_INLINE void begin_branch(const dil_params &p, const dil_tile &t, int branch,
                             dil_cursor &c) {
  c.keys = keys_of(p, t, branch);
  c.later = c.later_end = 0;
  c.merged = c.rivals = 0;
  const bool listed = LISTED && PASS(p.pass).list >= 0; // and owns no keys
#if BRANCHES > 1 && DEDUP
  dil_set owners = related(
      t, branch, [&](int a) { return !listed && is_owner(t, a, branch); });
  leave_gap(t, owners, c);
#endif
#if BRANCHES > 1 && COMBINE == 1
  c.rivals = ~owners &
             related(t, branch, [&](int a) { return comes_before(a, branch); });
#endif
#if MULTIPLICITY
  c.merged = related(t, branch,
                     [&](int a) { return !listed && is_owner(t, branch, a); });
#endif
}

/* ---- how often keys count ------------------------------------------------ */
/* A merged branch: its keys, its segment, and the keys that earlier owners
 * take. */
struct dil_merged {
  int start, step;
  dil_span segment, taken;
};

/* The scratch memory holds all that a block shares besides rows: its tile, its
 * position in the keys, and two visits, the current one and the next. */
struct dil_scratch {
  dil_tile tile;
  dil_cursor cursor;
  dil_visit visit[2];
#if HOLDS_KEYS
  dil_tile walked; /* the tile as the query head sees it whose rows are walked */
#endif
  bool careful; /* rows are gone over again */
  /* Bits that say whether parts of 16 rows and 8 keys are live or full: a byte
   * for each 16 rows, a bit for each 8 keys. Only visits that are neither full
   * nor a window have them. */
  unsigned part_live[2][PART_ROUNDS], part_full[2][PART_ROUNDS];
#if MULTIPLICITY
  int merged_count[2];
  dil_merged merged_branch[2][BRANCHES];
#endif
};
#ifndef PATCH_BYTES
#define PATCH_BYTES 0 /* of the scratch memory: tables of patches */
#endif
static_assert(sizeof(dil_scratch) <= SCRATCH_BYTES - PATCH_BYTES,
              "SCRATCH_BYTES");
#ifndef SCRATCH_AT
#define SCRATCH_AT 0 /* in shared memory */
#endif
#define SCRATCH (*(dil_scratch *)(shared + SCRATCH_AT))

/* The tile as the rows of a visit see it, and as those of the next one do. */
DIL_INLINE dil_tile tile_of(const dil_visit &v) {
#if HOLDS_KEYS
  dil_tile t = SCRATCH.tile;
  t.head = v.head;
  t.branches = 0;
  return t;
#else
  return SCRATCH.tile;
#endif
}
DIL_INLINE const dil_tile &planned_tile() {
#if HOLDS_KEYS
  return SCRATCH.walked;
#else
  return SCRATCH.tile;
#endif
}

#if MULTIPLICITY
DIL_INLINE dil_merged merged_of(const dil_tile &t, int branch, int merged) {
  dil_merged g;
  g.step = BRANCH(merged).dilation;
  g.start = column_residue(t, merged);
  g.segment = g.taken = no_span();
  widen_span(t, merged, g.segment);
#pragma unroll 1
  for (int a = 0; a < BRANCHES; a++)
    if (t.branches >> a & 1 && comes_before(a, branch) &&
        is_owner(t, a, merged))
      widen_span(t, a, g.taken);
  return g;
}

/* Makes the table of the branches that are merged into a branch; each lane
 * makes one entry. */
DIL_INLINE void list_merged(const dil_tile &t, const dil_cursor &c) {
#pragma unroll 1
  for (int first = 0; first < BRANCHES; first += 32) {
    int a = first + (threadIdx.x & 31);
    if (a >= BRANCHES || !(c.merged >> a & 1)) continue;
    int index = __popcll(c.merged & (((dil_set)1 << a) - 1));
    SCRATCH.merged_branch[c.table][index] = merged_of(t, c.keys.branch, a);
  }
  if ((threadIdx.x & 31) == 0)
    SCRATCH.merged_count[c.table] = __popcll(c.merged);
}

/* How often column i of a visit counts. */
DIL_INLINE int key_count(const dil_visit &v, int i) {
  int j = v.keys.start + (v.n + i) * v.keys.step, count = 1;
#pragma unroll 1
  for (int k = 0; k < SCRATCH.merged_count[v.table]; k++) {
    const dil_merged &g = SCRATCH.merged_branch[v.table][k];
    count += in_span(g.segment, j) && !in_span(g.taken, j) &&
             (j - g.start) % g.step == 0;
  }
  return count;
}

/* Writes the multiplicity of each column of a visit to shared memory. */
DIL_INLINE void count_keys(const dil_visit &v, float *times) {
#pragma unroll 1
  for (int i = threadIdx.x; i < TILE_KEYS; i += THREADS)
    times[i] = (float)key_count(v, i);
}
#endif

/* ---- ranges of keys ------------------------------------------------------ */

DIL_INLINE int tiles_of(int first, int end) {
  return end > first ? (end - first - 1) / TILE_KEYS + 1 : 0;
}

/* The number with which the first tile of a range begins: at most `first`. */
DIL_INLINE int first_number(const dil_cursor &c, int first, int end) {
#if ALIGNED_KEYS
  if (first < end) return first - (c.keys.start / c.keys.step + first & c.align - 1);
#endif
  return first;
}

/* Begins the range first..end-1, without the tiles that other splits take. */
DIL_INLINE void begin_range(dil_cursor &c, int first, int end) {
  int begin = first_number(c, first, end), tiles = tiles_of(begin, end);
  int dropped = least(c.skip, tiles), taken = least(c.take, tiles - dropped);
  c.skip -= dropped;
  c.take -= taken;
  c.keys.first = first;
  c.keys.end = end;
  c.n = begin + dropped * TILE_KEYS;
  c.stop = c.n + taken * TILE_KEYS;
  c.live = 0;
  c.leap = TILE_KEYS;
}

#if HOLDS_KEYS
/* The branches of the next query head that has any select the tile's rows. */
DIL_INLINE void next_head(const dil_params &p, dil_cursor &c) {
  dil_tile &t = SCRATCH.walked;
#pragma unroll 1
  while (!c.rest && c.heads > 0) {
    int head = t.head + 1;
    c.heads--;
    c.rest = class_of(p, head, t.low);
    __syncwarp();
    if ((threadIdx.x & 31) == 0) {
      t.head = head;
      t.branches = c.rest;
    }
    __syncwarp();
  }
}
#endif

/* Begins the next range, of this branch or of the next one, for a visit in
 * `slot`. False: there is none. */
DIL_INLINE bool next_range(const dil_params &p, const dil_tile &t,
                           dil_cursor &c, int slot) {
  if (c.later_end) {
    begin_range(c, c.later, c.later_end);
    c.later_end = 0;
    return true;
  }
#if HOLDS_KEYS
  next_head(p, c);
#endif
  if (!c.rest) return false;
  begin_branch(p, t, lowest(c.rest), c);
  c.rest &= c.rest - 1;
#if MULTIPLICITY
  c.table =
      SCRATCH.visit[slot ^ 1].table ^ 1; /* the current visit has its own */
  if (c.merged) list_merged(t, c);
#endif
  begin_range(c, c.keys.first, c.keys.end);
  return true;
}

/* Where keys are split, the warp first counts all tiles. Then it walks them
 * from the start and takes only the tiles of this split. */
DIL_INLINE dil_cursor first_cursor(const dil_params &p, const dil_tile &t) {
  dil_cursor c;
  c.rest = t.branches;
  c.later_end = c.n = c.stop = 0;
  c.live = 0;
  c.table = 0;
  c.skip = 0;
  c.take = 0x7fffffff;
  c.tiles = 0;
  c.counting = p.splits > 1;
#if HOLDS_KEYS
  c.heads = t.count ? heads_behind(p, t.head) : 0;
#endif
  return c;
}
DIL_INLINE void begin_cursor(const dil_params &p, const dil_tile &t) {
  if ((threadIdx.x & 31) == 0) {
    SCRATCH.cursor = first_cursor(p, t);
#if HOLDS_KEYS
    SCRATCH.walked = t;
#endif
    SCRATCH.visit[1].table = 0;
  }
  __syncwarp();
}

DIL_INLINE void share_tiles(const dil_params &p, const dil_tile &t,
                            dil_cursor &c) {
  c.rest = t.branches;
  c.counting = false;
  int splits = splits_of(p, t.keys);
  c.skip = (int)(c.tiles * t.split / splits);
  c.take = (int)(c.tiles * (t.split + 1) / splits) - c.skip;
}
