/* cover.c - counts the pairs and tiles of a pattern by arithmetic.
 *
 * In: a pattern, N, M, and the inputs its conditions read. Out: exact counts,
 * or estimates where counting would take long, of pairs, of pairs reached at
 * least once, of rows without a key, and of tiles. Nothing of size N x M is
 * built: heads that see the same are counted once, segments that repeat are
 * counted once, and so are pairs that several branches reach
 * (cover_union.c). */
#include "cover.h"
#include "cover_set.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/documents.h"
#include <assert.h>
#include <string.h>

enum {
  ROWS_AT_ONCE = 1 << 16,
  BOXES_EXACT = 1 << 24, /* boxes that are examined before it is sampled: 4 s */
  BOX_SAMPLES = 1 << 15, /* places of N x M that are looked at then */
  FEW = 16,              /* branches whose sets may well be counted */
  SETS_OF_FEW = 1 << 24, /* steps of cover_union.c: 4 s */
  SETS_OF_MANY = 1 << 22, /* 1 s */
  SWEEP_STEPS = 1 << 29,  /* steps of cover_sweep.c: 0.5 s */
  PAIRS_DRAWN = 1 << 18   /* pairs that are drawn there: 0.5 s */
};

static uint64_t branch_bit(int32_t b) {
  return (uint64_t)1 << b;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- heads that see the same --------------------------------------------- */

static bool branch_serves(const branch *b, int64_t h) {
  return b->head_first <= h && h <= b->head_last;
}

static bool level_sees_head(const keeps *level) {
  for (int32_t k = 0; k < level->count; k++) {
    const keep *one = &level->keep[k];
    if (expr_uses(one->condition, EXPR_H_)) return true;
  }
  return false;
}

static bool sees_head(const branch *b) {
  for (int32_t k = 0; k < b->mask_count; k++)
    if (expr_uses(b->mask[k], EXPR_H_)) return true;
  return level_sees_head(&b->keeps[0]) || level_sees_head(&b->keeps[1]);
}

static bool sees_same(const pattern *p, int64_t g, int64_t h) {
  for (int32_t k = 0; k < p->branch_count; k++) {
    const branch *b = &p->branch[k];
    if (branch_serves(b, g) != branch_serves(b, h)) return false;
    if (branch_serves(b, g) && (b->phase[g] != b->phase[h] || sees_head(b)))
      return false;
  }
  return true;
}

/* Counts the heads that see the same pairs as h; 0 when an earlier head does.
 */
static int64_t heads_like(const pattern *p, int64_t h) {
  int64_t count = 1;
  for (int64_t g = 0; g < h; g++)
    if (sees_same(p, g, h)) return 0;
  for (int64_t g = h + 1; g < p->heads; g++) count += sees_same(p, h, g);
  return count;
}

/* ---- pairs --------------------------------------------------------------- */

static bool comes_before(const branch *a, const branch *b) {
  int64_t x = a->segment ? a->segment : INT64_MAX;
  int64_t y = b->segment ? b->segment : INT64_MAX;
  return x != y ? x < y : a->dilation < b->dilation;
}

static cover_order order_of(const pattern *p, int64_t h) {
  cover_order all = {0, {0}};
  for (int32_t k = 0; k < p->branch_count; k++) {
    if (!branch_serves(&p->branch[k], h)) continue;
    int32_t at = all.count++;
    for (; at > 0; at--) {
      int32_t before = all.branch[at - 1];
      if (!comes_before(&p->branch[k], &p->branch[before])) break;
      all.branch[at] = before;
    }
    all.branch[at] = k;
  }
  return all;
}

/* ---- rows without a key -------------------------------------------------- */

/* Positions from..end of a sequence that are marked when they have a key. */
typedef struct row_marks {
  int64_t from, end;
  uint8_t *covered;
} row_marks;

/* The rows of a subrange are a lattice of positions. */
static void mark_subrange(const row_marks *m, cover_subrange *subrange,
                          uint8_t *rows) {
  int64_t last = floor_div(m->end - 1 - subrange->origin, subrange->step);
  subrange->u1 = smaller(subrange->u1, last);
  if (subrange->u0 > subrange->u1 || subrange->v0 > subrange->v1) return;
  int64_t count = subrange->u1 - subrange->u0 + 1;
  int64_t start = subrange->origin + subrange->step * subrange->u0 - m->from;
  for (int64_t k = 0; k < count; k++)
    rows[k] = m->covered[start + subrange->step * k];
  cover_subrange_mark(subrange, rows);
  for (int64_t k = 0; k < count; k++)
    m->covered[start + subrange->step * k] = rows[k];
}

static void mark_branch(cover *c, int32_t index, const row_marks *m,
                        uint8_t *rows) {
  cover_set set;
  cover_set_make(c, branch_bit(index), &set);
  for (; set.turn < set.turns; set.turn++) {
    int64_t x = set.segmented && m->from < 0 ? 0 : m->from;
    while (x < m->end) {
      cover_subrange subrange;
      x = cover_subrange_at(c, &set, x, &subrange);
      mark_subrange(m, &subrange, rows);
    }
  }
}

static bool has_uncovered_row(const row_marks *m) {
  return memchr(m->covered, 0, (size_t)(m->end - m->from)) != NULL;
}

static double uncovered_count(cover *c, const cover_order *all) {
  double count = 0, pairs, seeing;
  if (all->count == 1 && cover_grid_count(c, all->branch[0], &pairs, &seeing))
    return (double)c->M - seeing;
  if (!c->marks) c->marks = ARENA_ARRAY(c->arena, uint8_t, 2 * ROWS_AT_ONCE);
  uint8_t *covered = c->marks, *rows = c->marks + ROWS_AT_ONCE;
  for (int64_t from = c->first; from < c->M; from += ROWS_AT_ONCE) {
    row_marks m = {from, smaller(c->M, from + ROWS_AT_ONCE), covered};
    memset(covered, 0, ROWS_AT_ONCE);
    for (int32_t k = 0; k < c->pattern->branch_count; k++)
      if (branch_serves(&c->pattern->branch[k], c->head) &&
          has_uncovered_row(&m))
        mark_branch(c, k, &m, rows);
    for (int64_t n = 0; n < m.end - from; n++) count += !covered[n];
  }
  return count;
}

/* ---- tiles --------------------------------------------------------------- */

typedef struct tile_counts {
  int64_t rows, keys;
  cover_tiles all;
  double asked, together; /* as in cover_count */
} tile_counts;

/* A walk examines stretches of 16 subtiles, halves what is not settled down to
 * a tile of four, and examines the subtiles of a tile one by one. */
static void add_asked(tile_counts *t, const cover_subrange *subrange,
                      double times) {
  enum { STRETCH = 16, TILE = 4 };
  for (int64_t scale = STRETCH; scale >= TILE; scale /= 2) {
    cover_tiles boxes = {0, 0, 0};
    cover_subrange_tiles(subrange, t->rows, t->keys * scale, &boxes);
    if (scale == STRETCH)
      t->asked += times * (boxes.empty + boxes.partial + boxes.full);
    t->asked += times * boxes.partial * (scale == TILE ? TILE : 2);
    if (scale == TILE) t->together += times * boxes.full * TILE;
  }
}

static void add_subrange_tiles(void *context, const cover_subrange *subrange,
                               int64_t times) {
  tile_counts *t = context;
  cover_tiles tiles = {0, 0, 0};
  cover_subrange_tiles(subrange, t->rows, t->keys, &tiles);
  t->all.empty += (double)times * tiles.empty;
  t->all.partial += (double)times * tiles.partial;
  t->all.full += (double)times * tiles.full;
  if (t->keys == COVER_SUBTILE && subrange->set->condition_count > 0)
    add_asked(t, subrange, (double)times);
}

/* ---- patterns ------------------------------------------------------------ */

static void count_head_tiles(cover *c, const cover_order *all, double heads,
                             tile_counts *t, cover_count *count) {
  t->all = (cover_tiles){0, 0, 0};
  t->asked = t->together = 0;
  for (int32_t k = 0; k < all->count; k++) {
    cover_set set;
    cover_set_make(c, branch_bit(all->branch[k]), &set);
    cover_set_walk(c, &set, add_subrange_tiles, t);
  }
  count->empty += heads * t->all.empty;
  count->partial += heads * t->all.partial;
  count->full += heads * t->all.full;
  count->asked += heads * t->asked;
  count->together += heads * t->together;
}

static void count_head_pairs(cover *c, const cover_order *all, double heads,
                             bool wants_distinct, cover_count *count) {
  double own[DIL_BRANCH_MAX], pairs = 0, distinct = 0;
  bool unites = c->pattern->combine == DIL_COMBINE_UNION;
  for (int32_t k = 0; k < all->count; k++) {
    cover_set set;
    double seeing;
    if (!cover_grid_count(c, all->branch[k], &own[k], &seeing)) {
      cover_set_make(c, branch_bit(all->branch[k]), &set);
      own[k] = cover_set_count(c, &set);
    }
    pairs += own[k];
  }
  if (unites || wants_distinct)
    distinct = all->count == 1 ? own[0] : cover_union(c, all, own);
  count->pairs += heads * (unites ? distinct : pairs);
  count->distinct += heads * distinct;
}

static void cover_open(cover *c, const pattern *p, int64_t N, int64_t M,
                       const dil_call *call, int64_t b) {
  assert(N >= 0 && M >= 0 && N <= INT32_MAX && M <= INT32_MAX);
  *c = (cover){.arena = arena_new(),
               .call = call,
               .first = M - N,
               .M = M,
               .left = BOXES_EXACT,
               .work = INT64_MAX,
               .sets_work = p->branch_count > FEW ? SETS_OF_MANY : SETS_OF_FEW,
               .sweep_work = SWEEP_STEPS,
               .samples = PAIRS_DRAWN,
               .grain = (double)N * (double)M / BOX_SAMPLES};
  c->pattern = pattern_spell_shifts(c->arena, p);
  c->box.range = cover_range;
  c->box.point = (expr_point){.b = (int32_t)b,
                              .B = call ? (int32_t)documents_count(call) : 1,
                              .N = (int32_t)N,
                              .M = (int32_t)M,
                              .input = cover_input,
                              .context = c};
}

static void cover_close(cover *c, cover_count *count) {
  count->boxes = (double)(BOXES_EXACT - c->left);
  count->estimated = c->left < 0 || c->sampled;
  arena_free(c->arena);
}

/* The next head at or after c->head that sees what none before it does, and how
 * many see the same; 0: there is none. */
static int64_t find_heads(cover *c) {
  for (; c->head < c->pattern->heads; c->head++) {
    int64_t heads = heads_like(c->pattern, c->head);
    c->box.point.h = (int32_t)c->head;
    if (heads > 0) return heads;
  }
  return 0;
}

/* `t`: NULL, no tiles are counted. */
static void count_all(cover *c, tile_counts *t, cover_count *count) {
  for (int64_t heads; (heads = find_heads(c)) > 0; c->head++) {
    cover_order all = order_of(c->pattern, c->head);
    count_head_pairs(c, &all, (double)heads, true, count);
    count->uncovered += (double)heads * uncovered_count(c, &all);
    if (t) count_head_tiles(c, &all, (double)heads, t, count);
  }
}

void cover_pattern(const pattern *p, int64_t N, int64_t M, int32_t tile_rows,
                   int32_t tile_keys, const dil_call *call, int64_t b,
                   cover_count *count) {
  cover c;
  assert(tile_rows > 0 && tile_keys > 0);
  *count = (cover_count){0};
  cover_open(&c, p, N, M, call, b);
  tile_counts t = {.rows = tile_rows, .keys = tile_keys};
  count_all(&c, &t, count);
  cover_close(&c, count);
}

void cover_rows(const pattern *p, int64_t N, int64_t M, const dil_call *call,
                int64_t b, cover_count *count) {
  cover c;
  *count = (cover_count){0};
  cover_open(&c, p, N, M, call, b);
  count_all(&c, NULL, count);
  cover_close(&c, count);
}

void cover_pairs(const pattern *p, int64_t N, int64_t M, const dil_call *call,
                 int64_t b, cover_count *count) {
  cover c;
  *count = (cover_count){0};
  cover_open(&c, p, N, M, call, b);
  for (int64_t heads; (heads = find_heads(&c)) > 0; c.head++) {
    cover_order all = order_of(c.pattern, c.head);
    count_head_pairs(&c, &all, (double)heads, false, count);
  }
  cover_close(&c, count);
}

double cover_kept_tiles(const pattern *p, int64_t N, int32_t rows,
                        int32_t keys) {
  cover c;
  cover_count count = {0};
  cover_open(&c, p, N, N, NULL, 0);
  tile_counts t = {.rows = rows, .keys = keys};
  for (int64_t heads; (heads = find_heads(&c)) > 0; c.head++) {
    cover_order all = order_of(c.pattern, c.head);
    count_head_tiles(&c, &all, (double)heads, &t, &count);
  }
  cover_close(&c, &count);
  return count.partial + count.full;
}
