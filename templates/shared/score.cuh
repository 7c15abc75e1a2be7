/* score.cuh - which pairs of a partial tile are kept, as bits of the thread
 * that holds them, and the chains that rewrite scores. Bit e of a thread is
 * its element [e / 4][e % 4] of the fragments (softmax.cuh). */
#ifndef DIL_TEMPLATES_SHARED_SCORE_H
#define DIL_TEMPLATES_SHARED_SCORE_H
#if DROPOUT
#include "templates/shared/philox.cuh"
#endif
#include "templates/shared/walk.cuh"

/* Keys may stand in pages of a cache. Gradients have none. */
#ifndef PAGED
#define PAGED !GRADIENT
#endif

/* The two rows of a thread. */
struct dil_rows {
  int t[2], h[2]; /* position, head */
  bool valid[2];
};

/* A tile of keys: numbers n and on of a sequence. */
struct dil_visit {
  dil_keys keys;
  dil_set merged; /* branches whose keys count here as well */
  int table;      /* which of the two tables of them */
  dil_set rivals; /* `union`: branches that may reach a key before this one */
  int n;
#if HOLDS_KEYS
  int head;       /* of the query rows */
#endif
  bool some;      /* there is such a tile */
  bool full;      /* every pair is kept */
  bool window;    /* nothing but a window and the end of its keys cut it */
#if PAGED
  unsigned absent[2]; /* a bit for each key whose page is outside the pool */
#endif
#if PATCHES
  int slot;       /* which half of the table of columns has its keys */
#endif
};

/* The position of row n of a tile, once its tables are there. */
DIL_INLINE int tile_position(const dil_tile &t, int n) {
#if PATCHES
  return PATCH_ROWS[n];
#else
#if LISTED_ROWS
  if (t.list) return t.list[n];
#endif
  return t.low + n * t.step;
#endif
}

/* The position of a column of a visit. */
DIL_INLINE int column_position(const dil_visit &v, int column) {
#if PATCHES
  return PATCH_COLUMNS[v.slot * TILE_KEYS + column].position;
#else
  return key_position(v.keys, v.n + column);
#endif
}

DIL_INLINE bool window_holds(int predicate, int t, int j) {
  const dil_predicate_row &w = PREDICATE(predicate);
  return (w.right == DIL_FAR || j - t <= w.right) &&
         (w.left == DIL_FAR || t - j <= w.left) &&
         range_holds(predicate, j, j) && rows_hold(predicate, t, t);
}

DIL_INLINE bool branch_keeps(int branch, int t, int j, const dil_pair &at) {
  int predicate = BRANCH(branch).predicate;
  if (predicate < 0) return true;
  return window_holds(predicate, t, j) &&
         (!PREDICATE(predicate).masked || dil_mask(predicate, t, j, at));
}

/* Returns whether a branch reaches key j from t. It selects the one of them that
 * is a row of the tile. */
DIL_INLINE bool branch_reaches(int branch, int h, int t, int j,
                               const dil_pair &at) {
  const dil_branch_row &row = BRANCH(branch);
  int inside = HOLDS_KEYS ? t - segment_low(branch, j)
                          : j - segment_low(branch, t);
  if (row.segment && (inside < 0 || inside >= row.segment)) return false;
  int away = EACH && row.shift >= 0 ? t - j - row.shift
                                    : inside - dil_phases[branch * HEADS + h];
  return away % row.dilation == 0 && branch_keeps(branch, t, j, at);
}

/* `union`: a key counts in the first branch that reaches it. `rivals` are the
 * branches before this one that may reach it. */
DIL_INLINE bool is_counted(dil_set rivals, int h, int t, int j,
                           const dil_pair &at) {
#pragma unroll 1
  for (; rivals; rivals &= rivals - 1)
    if (branch_reaches(lowest(rivals), h, t, j, at))
      return false;
  return true;
}

DIL_INLINE dil_pair pair_of(const dil_params &p, const dil_tile &tile, int h) {
  int N = is_packed(p) ? tile.rows : p.N;
  dil_pair at = {tile.b + p.batch, h, 0, N, tile.keys, p.input};
  at.B = p.B;
  return at;
}

/* Some rows of a tile and some keys of a sequence. */
struct dil_box {
  int t0, t1;     /* positions, first and last */
  int h0, h1;     /* heads */
  int n, count;   /* keys: numbers of the sequence */
};

/* The verdict of a predicate on rows and keys first..last. */
DIL_INLINE int predicate_cover(const dil_params &p, const dil_tile &tile,
                               const dil_box &box, int predicate, int first,
                               int last) {
  if (predicate < 0) return DIL_FULL;
  int left = window_left(predicate), right = window_right(predicate);
  if ((right != DIL_FAR && first - box.t1 > right) ||
      (left != DIL_FAR && box.t0 - last > left))
    return DIL_EMPTY;
  int low = HOLDS_KEYS ? box.t0 : first, high = HOLDS_KEYS ? box.t1 : last;
  if (!range_meets(predicate, low, high)) return DIL_EMPTY;
  int row_low = HOLDS_KEYS ? first : box.t0;
  int row_high = HOLDS_KEYS ? last : box.t1;
  if (!rows_meet(predicate, row_low, row_high)) return DIL_EMPTY;
  bool full = range_holds(predicate, low, high) &&
              rows_hold(predicate, row_low, row_high) &&
              (right == DIL_FAR || last - box.t0 <= right) &&
              (left == DIL_FAR || box.t1 - first <= left);
#if MASKED
  if (PREDICATE(predicate).masked) {
    dil_range rows = {box.t0, box.t1}, columns = {first, last};
    dil_range kept =
        dil_cover(predicate, HOLDS_KEYS ? columns : rows,
                  HOLDS_KEYS ? rows : columns, {box.h0, box.h1},
                  pair_of(p, tile, box.h0));
    if (!kept.high) return DIL_EMPTY;
    full = full && kept.low;
  }
#endif
  return full ? DIL_FULL : DIL_PARTIAL;
}

/* Which of the keys first..last, `step` apart, another branch may reach. */
DIL_INLINE int rival_reach(const dil_tile &tile, int branch, int first,
                           int last, int step) {
  const dil_branch_row &row = BRANCH(branch);
  int low = segment_low(branch, tile.low), cover = DIL_FULL;
  if (row.segment && (last < low || first - low >= row.segment))
    return DIL_EMPTY;
  if (row.segment && (first < low || last - low >= row.segment))
    cover = DIL_PARTIAL;
  if (row.dilation == 1) return cover;
  if (step % row.dilation) return DIL_PARTIAL;
  int away = first - column_residue(tile, branch);
  return away % row.dilation ? DIL_EMPTY : cover;
}

/* The verdict on a box without asking pairs. */
DIL_INLINE int cover_of(const dil_params &p, const dil_tile &tile,
                        const dil_keys &keys, dil_set rivals,
                        const dil_box &box) {
  if (box.n >= keys.end || box.t0 > box.t1) return DIL_EMPTY;
  if (is_patched(p)) return DIL_PARTIAL;
  bool whole = box.n + box.count <= keys.end;
  int first = key_position(keys, box.n);
  int last = key_position(keys, least(box.n + box.count, keys.end) - 1);
  int cover = whole ? DIL_FULL : DIL_PARTIAL;
  int branch = keys.branch;
  bool mine = true;
#pragma unroll 1
  for (;;) { /* this branch first, then its rivals: one place that asks */
    int reach =
        mine ? DIL_FULL : rival_reach(tile, branch, first, last, keys.step);
    if (reach != DIL_EMPTY)
      reach = least(reach, predicate_cover(p, tile, box,
                                           BRANCH(branch).predicate,
                                           first, last));
    cover = least(cover, mine ? reach : DIL_FULL - reach);
    mine = false;
    if (COMBINE != 1 || cover == DIL_EMPTY || !rivals) return cover;
    branch = lowest(rivals);
    rivals &= rivals - 1;
  }
}

DIL_INLINE int column_of(int e) {
  return 8 * (e >> 2) + 2 * (threadIdx.x & 3) + (e & 1);
}

/* Bits of a row's columns below `end`: the pairs of column_of in groups of
 * four, of which a row has two. */
DIL_INLINE unsigned columns_below(int end) {
  int mine = end - 2 * (int)(threadIdx.x & 3);
  if (mine <= 0) return 0;
  int groups = least(mine >> 3, 8), rest = least(mine & 7, 2);
  unsigned long long below = (1ull << 4 * groups) - 1;
  if (groups < 8) below |= ((1ull << rest) - 1) << 4 * groups;
  return (unsigned)below & 0x33333333u;
}

#if LISTED_COLUMNS
/* Bits of a tile that nothing but a window and the end of its list cut. */
DIL_INLINE unsigned listed_bits(const dil_rows &rows, const dil_visit &v) {
  int predicate = BRANCH(v.keys.branch).predicate;
  unsigned bits = 0;
#pragma unroll 1
  for (int e = 0; e < TILE_KEYS / 2; e++) {
    bool second = e & 2;
    int n = v.n + column_of(e), row = second ? rows.t[1] : rows.t[0];
    bool there = n < v.keys.end && (second ? rows.valid[1] : rows.valid[0]);
    bool kept = predicate < 0 ||
                window_holds(predicate, row, key_position(v.keys, n));
    bits |= (unsigned)(there && kept) << e;
  }
  return bits;
}
#endif

/* Bits of a tile that nothing but a window and the end of its keys cut, by
 * arithmetic. */
DIL_INLINE unsigned window_bits(const dil_tile &tile, const dil_rows &rows,
                                const dil_visit &v) {
#if LISTED_COLUMNS
  if (v.keys.list) return listed_bits(rows, v);
#endif
  int predicate = BRANCH(v.keys.branch).predicate;
  unsigned bits = 0;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int low = 0, high = v.keys.end - v.n; /* columns low .. high - 1 */
    if (predicate >= 0) {
      int left = window_left(predicate), right = window_right(predicate);
      int away = v.keys.start + v.n * v.keys.step - rows.t[r]; /* column 0 */
      if (right != DIL_FAR)
        high =
            least(high, floor_div((long long)right - away, v.keys.step) + 1);
      if (left != DIL_FAR)
        low = most(low, -floor_div((long long)left + away, v.keys.step));
    }
    unsigned mine = columns_below(high) & ~columns_below(low);
    if (HOLDS_KEYS && predicate >= 0 &&
        !range_holds(predicate, rows.t[r], rows.t[r]))
      mine = 0;
    if (ROW_RANGES && !HOLDS_KEYS && predicate >= 0 &&
        !rows_hold(predicate, rows.t[r], rows.t[r]))
      mine = 0;
    if (rows.valid[r]) bits |= mine << 2 * r;
  }
  return bits;
}

/* Returns whether a branch keeps a pair of a row and a column. */
DIL_INLINE bool pair_kept(const dil_params &p, const dil_tile &tile,
                          const dil_rows &rows, const dil_visit &v,
                          dil_set rivals, int e) {
  bool second = e & 2;
  int column = column_position(v, column_of(e));
  int row = second ? rows.t[1] : rows.t[0];
  int t = pair_i(row, column), j = pair_j(row, column);
  int h = second ? rows.h[1] : rows.h[0];
  dil_pair at = pair_of(p, tile, h);
  return branch_keeps(v.keys.branch, t, j, at) &&
         (COMBINE != 1 || is_counted(rivals, h, t, j, at));
}

/* Bits of columns 8g to 8g + 7, pair by pair, in the lowest four. */
DIL_INLINE unsigned keep_bits(const dil_params &p, const dil_tile &tile,
                              const dil_rows &rows, const dil_visit &v,
                              dil_set rivals, int g) {
  unsigned bits = 0;
#pragma unroll 1
  for (int e = 0; e < 4; e++) {
    bool second = e & 2;
    int n = v.n + column_of(4 * g + e);
    if (n >= v.keys.end || !(second ? rows.valid[1] : rows.valid[0])) continue;
    bits |= (unsigned)pair_kept(p, tile, rows, v, rivals, 4 * g + e) << e;
  }
  return bits;
}

#if DROPOUT
/* The random words of a thread's rows; with HOLDS_KEYS, those are keys. */
struct dil_row_words {
  unsigned of[2];
};
DIL_INLINE dil_row_words row_words(const dil_params &p, const dil_tile &tile,
                                   const dil_rows &rows) {
  dil_row_words words;
  dil_seed seed = seed_of(p);
#pragma unroll 1
  for (int r = 0; r < 2; r++) {
    unsigned word =
        dil_drop_word(HOLDS_KEYS ? DIL_DROP_KEY : DIL_DROP_ROW,
                      tile.b + p.batch, r ? rows.h[1] : rows.h[0],
                      r ? rows.t[1] : rows.t[0], seed.low, seed.high);
    if (r) words.of[1] = word;
    else words.of[0] = word;
  }
  return words;
}

DIL_INLINE unsigned key_word(const dil_params &p, const dil_tile &tile, int h,
                             const dil_visit &v, int column) {
  dil_seed seed = seed_of(p);
  return dil_drop_word(HOLDS_KEYS ? DIL_DROP_ROW : DIL_DROP_KEY, tile.b + p.batch, h,
                       column_position(v, column), seed.low, seed.high);
}

/* Bits of the weights that dropout takes. `keys`: the words of the columns for
 * the tile's head. Heads that share a tile have words of their own. */
template <int KEYS>
DIL_INLINE unsigned drop_bits(const dil_params &p, const dil_tile &tile,
                              const dil_rows &rows, const dil_visit &v,
                              const dil_row_words &words,
                              const unsigned *keys) {
  unsigned bits = 0;
  if (p.pack == 1) {
#pragma unroll
    for (int e = 0; e < KEYS / 2; e++)
      bits |= (unsigned)dil_dropped(words.of[e >> 1 & 1], keys[column_of(e)])
              << e;
    return bits;
  }
#pragma unroll 1
  for (int e = 0; e < KEYS / 2; e++) {
    bool second = e & 2;
    unsigned key =
        key_word(p, tile, second ? rows.h[1] : rows.h[0], v, column_of(e));
    bits |= (unsigned)dil_dropped(second ? words.of[1] : words.of[0], key) << e;
  }
  return bits;
}
#endif

/* Final scores in natural units. */
template <int TILES>
DIL_INLINE void rewrite_scores(const dil_params &p, const dil_tile &tile,
                               const dil_rows &rows, const dil_visit &v,
                               float (&s)[TILES][4]) {
  int chain = BRANCH(v.keys.branch).chain;
  dil_pair at[2] = {pair_of(p, tile, rows.h[0]), pair_of(p, tile, rows.h[1])};
#pragma unroll
  for (int e = 0; e < 4 * TILES; e++) {
    int column = column_position(v, column_of(e));
    int r = e >> 1 & 1, row = rows.t[r];
    float &x = s[e >> 2][e & 3];
    x = __fmul_rn(x, p.scale);
    if (SCORED)
      x = dil_chain(chain, x, pair_i(row, column), pair_j(row, column), at[r]);
  }
}

#endif
