/* walk.cuh - from the number of a tile to its rows, and from its rows to the
 * keys that they see, by arithmetic on the plan's tables. A call may hold a
 * shard of a sequence and some of the plan's heads. Positions and heads are
 * then numbered as in the whole.
 *
 * A cell is a stretch of positions in which no branch of the pass changes its
 * segment. A tile's rows stand one period apart inside a cell, so that the
 * same branches select all of them. They then see one arithmetic sequence of
 * keys by each branch. */
#ifndef DIL_TEMPLATES_SHARED_WALK_H
#define DIL_TEMPLATES_SHARED_WALK_H
#include "templates/shared/plan.cuh"

#ifndef SHARDS
#define SHARDS 1 /* 0: no call is a shard of a sequence */
#endif
/* Gradients of keys walk the other way round: a tile's rows are keys, and what
 * it walks are the query rows that see them. Rows and keys then change places in
 * all that follows. The same branches select a position as a row and as a key,
 * so that cells, classes and progressions stay as they are. */
#ifndef HOLDS_KEYS
#define HOLDS_KEYS 0
#endif
#ifndef GRADIENT
#define GRADIENT 0 /* 1: heads that no pass serves have tiles, too */
#endif
#include "templates/shared/document.h"
#include "templates/shared/key_list.cuh"
#include "templates/shared/patch.cuh"
#include "templates/shared/select.cuh"
DIL_INLINE bool is_shard(const dil_params &p) {
  return SHARDS && p.flags & DIL_SHARD;
}
/* From one query row to the next. */
DIL_INLINE int query_step(const dil_params &p) { return SHARDS ? p.step : 1; }
/* The same of the rows that tiles hold, and of the columns that they walk. */
DIL_INLINE int row_step(const dil_params &p) {
  return SHARDS ? (HOLDS_KEYS ? p.key_step : p.step) : 1;
}
DIL_INLINE int column_step(const dil_params &p) {
  return SHARDS ? (HOLDS_KEYS ? p.step : p.key_step) : 1;
}

/* The largest multiple of n (> 0) that is at most a. */
DIL_INLINE int floor_to(int a, int n) {
  int rest = a % n;
  return a - (rest < 0 ? rest + n : rest);
}
/* floor(a / n), n > 0, held within 2^10: more columns than a tile has. So small
 * a quotient is one off at most when it is rounded. */
DIL_INLINE int floor_div(long long a, int n) {
  const long long far = 1 << 10;
  long long least = -far * n, most = far * n;
  a = a < least ? least : a > most ? most : a;
  if (n == 1) return (int)a;
  int quotient = __float2int_rd(__fdividef((float)a, (float)n));
  long long rest = a - (long long)quotient * n;
  return quotient + (rest >= n) - (rest < 0);
}
DIL_INLINE int least(int a, int b) { return a < b ? a : b; }
DIL_INLINE int most(int a, int b) { return a > b ? a : b; }

#define GROUP (HEADS / KV_HEADS) /* query heads of a K/V head */

/* The query row and the key of a pair of a tile's row and a column. */
DIL_INLINE int pair_i(int row, int column) { return HOLDS_KEYS ? column : row; }
DIL_INLINE int pair_j(int row, int column) { return HOLDS_KEYS ? row : column; }

/* The window of a predicate, as a tile's rows see it. */
DIL_INLINE int window_left(int predicate) {
  const dil_predicate_row &w = PREDICATE(predicate);
  return HOLDS_KEYS ? w.right : w.left;
}
DIL_INLINE int window_right(int predicate) {
  const dil_predicate_row &w = PREDICATE(predicate);
  return HOLDS_KEYS ? w.left : w.right;
}

/* Returns whether keys low..high may be in the range of a predicate, and
 * whether all are. */
DIL_INLINE bool range_meets(int predicate, int low, int high) {
  const dil_predicate_row &w = PREDICATE(predicate);
  return high >= w.first && low < w.end;
}
DIL_INLINE bool range_holds(int predicate, int low, int high) {
  const dil_predicate_row &w = PREDICATE(predicate);
  return low >= w.first && high < w.end;
}
/* The same of its range of rows. */
DIL_INLINE bool rows_meet(int predicate, int low, int high) {
  const dil_predicate_row &w = PREDICATE(predicate);
  return !ROW_RANGES || (high >= w.row_first && low < w.row_end);
}
DIL_INLINE bool rows_hold(int predicate, int low, int high) {
  const dil_predicate_row &w = PREDICATE(predicate);
  return !ROW_RANGES || (low >= w.row_first && high < w.row_end);
}

/* Branches, as bits. */
#if BRANCHES > 32
typedef unsigned long long dil_set;
DIL_INLINE int lowest(dil_set x) { return __ffsll((long long)x) - 1; }
#else
typedef unsigned dil_set;
DIL_INLINE int lowest(dil_set x) { return PLAN_ROW(BRANCHES, __ffs((int)x) - 1); }
#endif

struct dil_tile {
  int b;             /* batch row of the call */
  int head, kv;      /* first head, of the plan's; K/V head of the call */
  int keys;          /* M of this batch row */
  int origin;        /* position of query row 0 */
  int rows;          /* query rows of this batch row */
  int query_row, key_row; /* its first ones in the tensors of a packed call */
  int low, step;     /* positions of its rows: low + n * step */
  int count;         /* how many; 0: the tile is empty */
#if HOLDS_KEYS
  int written;       /* those and the rows behind the last key of a batch row */
#endif
  int split;
  dil_set branches;  /* that select its rows */
#if PATCHES
  dil_patch patch;   /* where the tile is one; `low` is its first position */
#endif
#if LISTED_ROWS
  const int *list;   /* not NULL: the positions of its rows, in place of step */
#endif
};

/* Passes that have a branch for this head. */
DIL_INLINE int passes_of(int head) {
  int passes = 0;
#pragma unroll 1
  for (int p = 0; p < PASSES; p++) {
    bool some = false;
#pragma unroll 1
    for (int b = 0; b < BRANCHES; b++)
      some = some || (PASS(p).branches >> b & 1 && serves(b, head));
    passes += some;
  }
  return passes;
}

DIL_INLINE bool pass_serves(int pass, int head) {
  bool some = false;
#pragma unroll 1
  for (int b = 0; b < BRANCHES; b++)
    some = some || (PASS(pass).branches >> b & 1 && serves(b, head));
  return some;
}

DIL_INLINE int segment_low(int branch, int t) {
  int s = BRANCH(branch).segment;
  return s ? floor_to(t, s) : 0;
}

/* The first position after `at` where a branch of the pass begins a segment. */
DIL_INLINE int next_border(int pass, int at, int high) {
#pragma unroll 1
  for (int b = 0; b < BRANCHES; b++) {
    int s = BRANCH(b).segment;
    if (PASS(pass).branches >> b & 1 && s)
      high = least(high, floor_to(at, s) + s);
  }
  return high;
}

/* Positions low..high-1 of part `part` of grid cell `cell`; none: low >= high.
 * `end` is past the last row's. Before position 0 nothing has segments, and
 * grid cells end there anyway. */
DIL_INLINE void find_cell(const dil_params &p, int origin, int end, int cell,
                          int part, int *low, int *high) {
  *low = origin;
  *high = end;
  if (!p.segment) return;
  long long first = (long long)floor_to(origin, p.segment) +
                    (long long)cell * p.segment;
  if (first >= end) {
    *low = end;
    return;
  }
  int grid_low = (int)first;
  int grid_high = (int)(first + p.segment < end ? first + p.segment : end);
  int at = most(grid_low, origin);
  if (grid_low >= 0)
    for (; part > 0 && at < grid_high; part--)
      at = next_border(p.pass, at, grid_high);
  else if (part > 0)
    at = grid_high;
  *low = at;
  *high = grid_low >= 0 && at < grid_high ? next_border(p.pass, at, grid_high)
                                          : grid_high;
}

/* Which branches of the pass select position t of a head. A shard may leave some
 * out. */
DIL_INLINE dil_set class_of(const dil_params &p, int head, int t) {
  dil_set branches = 0, all = PASS(p.pass).branches;
#if SHARDS && GRADIENT
  all &= ~(dil_set)p.left_out;
#endif
#pragma unroll 1
  for (int b = 0; b < BRANCHES; b++)
    if (all >> b & 1 && serves(b, head) && selects(b, head, t))
      branches |= (dil_set)1 << b;
  return branches;
}

/* The rows of documents in the tensors of a packed call. */
DIL_INLINE bool is_packed(const dil_params &p) { return p.offsets_q; }
DIL_INLINE dil_extent document_queries(const dil_params &p, int b) {
  return document_of(p.offsets_q, b, p.packed_rows, p.rows);
}
DIL_INLINE dil_extent document_keys(const dil_params &p, int b) {
  return document_of(p.offsets_k, b, p.packed_keys, p.M);
}

/* N and M of a batch row of the call, and its query rows there. */
DIL_INLINE int batch_queries(const dil_params &p, int b) {
  return is_packed(p) ? document_queries(p, b).count : p.N;
}
DIL_INLINE int batch_rows(const dil_params &p, int b) {
  return is_packed(p) ? document_queries(p, b).count : p.rows;
}
DIL_INLINE int batch_keys(const dil_params &p, int b) {
  if (is_packed(p)) return document_keys(p, b).count;
  return p.lengths ? most(0, least(p.lengths[b], p.M)) : p.M;
}

/* The position of the call's first row, of those that tiles hold. */
DIL_INLINE int first_position(const dil_params &p, const dil_tile &t) {
  return !HOLDS_KEYS ? t.origin : SHARDS ? p.key_first : 0;
}
/* The number of a tile's row at a position. */
DIL_INLINE int row_at(const dil_params &p, const dil_tile &t, int position) {
  int step = row_step(p);
  int away = position - first_position(p, t);
  return step == 1 ? away : away / step;
}
/* The position of the first row from `low` on, which is not before the call's
 * first. */
DIL_INLINE int row_from(const dil_params &p, const dil_tile &t, int low) {
  int step = row_step(p), first = first_position(p, t);
  if (step == 1) return low;
  return first + (low - first + step - 1) / step * step;
}

/* Takes the last digit, of `size` values, off a number and returns it. */
DIL_INLINE int take_digit(unsigned &number, int size) {
  if (size == 1) return 0;
  unsigned rest = number / (unsigned)size;
  int digit = (int)(number - rest * (unsigned)size);
  number = rest;
  return digit;
}

/* Returns how many steps reach `away`, a distance of two positions; 0: no step
 * is due. */
DIL_INLINE int steps_to(long long away, int step) {
  return away > 0 ? (int)((unsigned)(away - 1) / (unsigned)step) + 1 : 0;
}

/* The rows of the tile that are there, and the branches that select them. */
DIL_INLINE void fill_tile(const dil_params &p, dil_tile &t, int high,
                          int rows) {
  t.count = least((high - t.low - 1) / t.step + 1, rows);
#if HOLDS_KEYS
  t.written = t.count;
  t.count = least(t.count, steps_to((long long)t.keys - t.low, t.step));
  if (!t.count) return;
#endif
  t.branches = class_of(p, t.head, t.low);
}

#if PATCHES
/* Makes the tile a patch of the grid. Its columns are all of one branch. */
DIL_INLINE void take_patch(const dil_params &p, dil_tile &t, unsigned index) {
  int cell[PATCH_AXES];
  if (!find_patch(p, index, t.patch)) return;
  t.low = cell_at(p, t.patch, t.patch.rows, 0, cell);
  t.count = cells_in(t.patch.rows);
#if HOLDS_KEYS
  t.written = t.count;
#endif
  t.branches = class_of(p, t.head, t.low);
}
#endif

#include "templates/shared/listed_keys.cuh"

#if HOLDS_KEYS
/* K/V heads of the call, which may hold a part of the query heads of one. */
DIL_INLINE int tile_heads(const dil_params &p) {
  if (!SHARDS) return p.heads / GROUP;
  return (p.head + p.heads - 1) / GROUP - p.head / GROUP + 1;
}
/* The first query head of a K/V head, and those behind it, of the call's. */
DIL_INLINE int first_head(const dil_params &p, int kv) {
  if (!SHARDS) return p.head + kv * GROUP;
  return most(p.head, (p.head / GROUP + kv) * GROUP);
}
DIL_INLINE int heads_behind(const dil_params &p, int head) {
  int end = (head / GROUP + 1) * GROUP;
  return (SHARDS ? least(end, p.head + p.heads) : end) - 1 - head;
}
#else
/* Groups of heads that share a tile. */
DIL_INLINE int tile_heads(const dil_params &p) { return p.heads / p.pack; }
DIL_INLINE int first_head(const dil_params &p, int index) {
  return p.head + index * p.pack;
}
#endif

/* Tile number `item`, of tile_rows rows. Blocks of late rows come first: with
 * `causal` they see the most. Where there are few tiles, the late blocks of all
 * heads come first; else the blocks of a head stay together, near its keys. */
DIL_INLINE dil_tile find_tile(const dil_params &p, unsigned item,
                              int tile_rows) {
  dil_tile t;
  int block, residue, part, cell, low, high;
  int heads = tile_heads(p);
  t.split = take_digit(item, p.splits);
  if (p.spread) t.head = first_head(p, take_digit(item, heads));
  block = p.blocks - 1 - take_digit(item, p.blocks);
  residue = take_digit(item, p.residues);
  part = take_digit(item, p.parts);
  cell = p.cells - 1 - take_digit(item, p.cells);
  if (!p.spread) t.head = first_head(p, take_digit(item, heads));
  t.kv = t.head / GROUP - p.head / GROUP;
  t.b = (int)item;
  t.keys = batch_keys(p, t.b);
  t.rows = p.rows;
  t.origin = p.first - (p.M - t.keys);
  t.step = p.stride;
  int first = first_position(p, t);
  int rows = !HOLDS_KEYS ? p.rows : SHARDS ? p.key_rows : p.M;
  if (is_packed(p)) {
    dil_extent queries = document_queries(p, t.b), keys = document_keys(p, t.b);
    t.rows = queries.count;
    t.query_row = queries.first;
    t.key_row = keys.first;
    t.origin = t.keys - t.rows;
    first = HOLDS_KEYS ? 0 : t.origin;
    rows = HOLDS_KEYS ? t.keys : t.rows;
  }
  find_cell(p, first, first + (rows - 1) * row_step(p) + 1, cell, part, &low,
            &high);
  long long from = (long long)row_from(p, t, low) +
                   (long long)residue * row_step(p) +
                   (long long)block * (tile_rows / p.pack) * t.step;
  t.count = 0;
  t.low = 0;
  t.branches = 0;
#if HOLDS_KEYS
  t.written = 0;
#endif
  if (!GRADIENT && !pass_serves(p.pass, t.head)) return t;
#if PATCHES
  if (is_patched(p)) {
    take_patch(p, t, (unsigned)block);
    return t;
  }
#endif
#if LISTED_ROWS
  t.list = nullptr;
  if (p.flags & DIL_LIST_ROWS) {
    take_listed_rows(p, t, block, tile_rows);
    return t;
  }
#endif
  if (low >= high || from >= high) return t;
  t.low = (int)from;
  fill_tile(p, t, high, tile_rows / p.pack);
  return t;
}

/* The first element of a tile's batch row in a tensor of query rows, or of keys.
 */
DIL_INLINE long long batch_place(const dil_params &p, const dil_tile &t,
                                 bool keys, const long long (&stride)[3]) {
  if (!is_packed(p)) return t.b * stride[0];
  return (keys ? t.key_row : t.query_row) * stride[1];
}
/* The same of query rows of batch row b. */
DIL_INLINE long long queries_place(const dil_params &p, int b,
                                   const long long (&stride)[3]) {
  if (!is_packed(p)) return b * stride[0];
  return document_queries(p, b).first * stride[1];
}

/* A position whose residue the columns have that a tile's rows see of a branch:
 * that of its phase, or with every phase that of the rows less the shift. */
DIL_INLINE int column_residue(const dil_tile &t, int branch) {
  int shift = BRANCH(branch).shift, base = segment_low(branch, t.low);
  if (!EACH || shift < 0) return base + dil_phases[branch * HEADS + t.head];
  int away = HOLDS_KEYS ? shift : -shift;
  return base + dil_mod(t.low - base + away, BRANCH(branch).dilation);
}

#if PATCHES
/* The same of a patch: the cells of its box, counted inside it. */
DIL_INLINE dil_keys patch_keys(const dil_tile &t, int branch) {
  return {branch, 0, 1, 0, cells_in(t.patch.columns)};
}
#endif

/* A branch's columns become those that the call holds. False: none. The turns are
 * as many as the progression has steps at most, and one where it is no
 * progression. */
DIL_INLINE bool meet_progression(const dil_params &p, dil_keys &k) {
  long long start = k.start, step = k.step;
  const int first = HOLDS_KEYS ? p.first : p.key_first, by = column_step(p);
  long long end = first + (long long)(HOLDS_KEYS ? p.rows : p.key_rows) * by;
  while ((start - first) % by != 0) {
    start += k.step;
    if (start >= end) return false;
  }
  while (step % by != 0) step += k.step;
  k.start = (int)start;
  k.step = (int)(step < 1 << 30 ? step : 1 << 30);
  return true;
}

DIL_INLINE dil_keys keys_of(const dil_params &p, const dil_tile &t,
                            int branch) {
#if PATCHES
  if (is_patched(p)) return patch_keys(t, branch);
#endif
#if LISTED_COLUMNS
  if (PASS(p.pass).list >= 0)
    return listed_keys(p, t, branch, PASS(p.pass).list);
#endif
  const dil_branch_row &row = BRANCH(branch);
  dil_keys k = {};
  int base = segment_low(branch, t.low);
  int from = HOLDS_KEYS ? t.origin : 0;
  int end = HOLDS_KEYS ? t.origin + (t.rows - 1) * column_step(p) + 1 : t.keys;
  long long low = row.segment ? most(from, base) : from;
  long long high = row.segment ? least(end, base + row.segment) : end;
  k.branch = branch;
  k.step = row.dilation;
  k.start = column_residue(t, branch);
  if (HOLDS_KEYS && low < k.start) k.start += floor_to((int)low - k.start, k.step);
  if (row.predicate >= 0) {
    int left = window_left(row.predicate), right = window_right(row.predicate);
    long long last = last_position(t);
    if (left != DIL_FAR && t.low - (long long)left > low)
      low = t.low - (long long)left;
    if (right != DIL_FAR && last + right + 1 < high)
      high = last + right + 1;
    const dil_predicate_row &w = PREDICATE(row.predicate);
    if (HOLDS_KEYS) {
      if (!range_meets(row.predicate, t.low, (int)last)) high = low;
      if (ROW_RANGES && w.row_first > low) low = w.row_first;
      if (ROW_RANGES && w.row_end < high) high = w.row_end;
    } else {
      if (!rows_meet(row.predicate, t.low, (int)last)) high = low;
      if (w.first > low) low = w.first;
      if (w.end < high) high = w.end;
    }
  }
  if (is_shard(p)) {
    long long end = p.key_first + (p.key_rows - 1) * (long long)p.key_step + 1;
    if (!HOLDS_KEYS && low < p.key_first) low = p.key_first;
    if (!HOLDS_KEYS && high > end) high = end;
    if (!meet_progression(p, k)) high = low;
  }
  k.first = steps_to(low - k.start, k.step);
  k.end = steps_to(high - k.start, k.step);
  return k;
}

/* Returns whether a tile's rows have keys at all, as far as windows know. */
DIL_INLINE bool sees_keys(const dil_params &p, const dil_tile &t) {
#pragma unroll 1
  for (dil_set rest = t.branches; rest; rest &= rest - 1) {
    dil_keys k = keys_of(p, t, lowest(rest));
    if (k.first < k.end) return true;
  }
  return false;
}

#endif
