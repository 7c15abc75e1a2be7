/* tile_block.c - where the blocks of a pass and their strips stand; see
 * tile_block.h. */
#include "tile_block.h"
#include "key_list.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/walk.h"

/* Small segments share a block of this many positions. */
enum { BLOCK_LEAST = 2048 };

/* ---- shape of the work --------------------------------------------------- */

static bool heads_agree(const dil_table *table, const dil_pass *pass,
                        int32_t a, int32_t b) {
  uint64_t served = walk_served(table, pass, a);
  if (served != walk_served(table, pass, b)) return false;
  for (; served; served &= served - 1) {
    const dil_branch *branch = &table->branches[__builtin_ctzll(served)];
    if (branch->phase[a] != branch->phase[b]) return false;
  }
  return true;
}

static bool can_share(const dil_table *table, const dil_pass *pass) {
  int32_t group = table->heads / table->kv_heads;
  if (key_list_is_of_heads(table, pass)) return group == 1;
  for (int32_t h = 0; h < table->heads; h++)
    if (!heads_agree(table, pass, h, h / group * group)) return false;
  return true;
}

/* The least common multiple of the segments, or `most` if that is less. */
static int64_t common_segment(const dil_table *table, const dil_pass *pass,
                              int64_t most) {
  int64_t length = 1;
  for (int32_t b = 0; b < table->branch_count; b++) {
    if (!(pass->branches >> b & 1)) continue;
    int64_t s = table->branches[b].segment, x = length, y = s;
    if (!s || s >= most) return most;
    while (y) {
      int64_t rest = x % y;
      x = y;
      y = rest;
    }
    if (__builtin_mul_overflow(length / x, s, &length) || length >= most)
      return most;
  }
  return minimum(most, round_up(BLOCK_LEAST, length));
}

/* Positions from a row that the branch selects to the next. */
static int64_t selected_step(const dil_branch *b) {
  return b->each ? 1 : b->dilation;
}

/* Rows that the branches of a pass can select in a block, and the classes of
 * all its cells, at most. */
static void count_packed_rows(tile_blocks *of) {
  const dil_table *table = of->run->table;
  const dil_code *code = of->run->code[DIL_TILES];
  int64_t selected = 0, cells = 1;
  bool each = false;
  for (int32_t b = 0; b < table->branch_count; b++) {
    if (!(of->pass->branches >> b & 1)) continue;
    int64_t s = table->branches[b].segment;
    cells += s ? of->span / s + 2 : 1;
    each |= table->branches[b].each;
    selected += of->span / selected_step(&table->branches[b]) +
                (s ? of->span / s + 2 : 1);
  }
  int64_t classes = minimum(of->pass->period, of->span + 1);
  of->packed_classes = cells * (each ? classes : minimum(classes, 1 << 8));
  of->rows = minimum(selected, of->span);
  int64_t listed = key_list_room(of->run, of->pass);
  if (listed >= 0) of->rows = minimum(of->rows, listed);
  of->packed_rows = of->rows + of->packed_classes * (code->pack - 1) +
                    code->key_block + 2;
}

/* Rows of a strip stand so far apart that tiles fill. Where a branch has every
 * phase, all positions are rows of it, and a few tiles of each phase do. */
static int64_t strip_step(const dil_table *table, uint64_t branches) {
  enum { PHASE_SHARE = 8 };
  int64_t least = INT64_MAX;
  for (; branches; branches &= branches - 1) {
    const dil_branch *b = &table->branches[__builtin_ctzll(branches)];
    int64_t step = b->each ? (b->dilation + PHASE_SHARE - 1) / PHASE_SHARE
                           : b->dilation;
    least = minimum(least, step);
  }
  return least;
}

static bool is_backwards(const dil_table *table, uint64_t branches) {
  for (; branches; branches &= branches - 1) {
    int32_t p = table->branches[__builtin_ctzll(branches)].predicate;
    if (p < 0 || table->predicates[p].right == DIL_ENDLESS) return false;
  }
  return true;
}

/* The most query rows of a batch row that stand before position 0. */
static int64_t rows_before_keys(const cpu_run *r) {
  int64_t most = 0;
  for (int64_t b = 0; b < r->B; b++)
    most = maximum(most, -cpu_run_queries(r, b).first);
  return most;
}

static bool plan_patches(const cpu_run *r, const dil_pass *pass,
                         patch_plan *out) {
  const dil_code *code = r->code[DIL_TILES];
  const patch_tile_shape shape = {
      .lanes = code->lanes, .key_block = code->key_block, .pack = code->pack};
  bool alone = !(pass->branches & (pass->branches - 1));
  return r->table->grid.axes && alone && r->N == r->M &&
         patch_plan_make(r->table, __builtin_ctzll(pass->branches), r->M,
                         &shape, out);
}

bool tile_blocks_patched(const cpu_run *r, const dil_pass *pass) {
  patch_plan unused;
  return plan_patches(r, pass, &unused);
}

/* A strip has as many rows as other passes give it. */
static void count_patches(tile_blocks *of) {
  const dil_code *code = of->run->code[DIL_TILES];
  int64_t rows = of->patches.rows;
  of->strip = maximum(STRIP / code->lanes, 1);
  of->strips = (of->patches.patches + of->strip - 1) / of->strip;
  of->rows = rows;
  of->packed_rows = rows + code->key_block + 2;
}

tile_blocks tile_blocks_plan(const cpu_run *r, const dil_pass *pass) {
  tile_blocks of = {.run = r, .pass = pass};
  const dil_table *table = r->table;
  dil_progression keys =
      r->shard ? r->shard->keys : (dil_progression){0, 1, r->M};
  dil_progression asked = cpu_run_queries(r, 0);
  int64_t whole = r->shard ? r->shard->M : r->M;
  of.shared = can_share(table, pass);
  of.backwards = is_backwards(table, pass->branches);
  of.units = of.shared ? table->kv_heads : table->heads;
  of.length = common_segment(table, pass, maximum(whole, 1));
  of.span = minimum(of.length, progression_end(keys) - keys.first);
  of.block_first = keys.first / of.length;
  of.blocks_a_unit = maximum(
      (progression_end(keys) + of.length - 1) / of.length - of.block_first, 1);
  of.blocks = r->B * of.units * of.blocks_a_unit;
  of.strip = STRIP * strip_step(table, pass->branches) * asked.step;
  int64_t span = progression_end(asked) - asked.first;
  int64_t rows_most = minimum(span, of.length + rows_before_keys(r));
  of.strips = rows_most / of.strip + 2;
  of.patched = plan_patches(r, pass, &of.patches);
  if (of.patched) count_patches(&of);
  else count_packed_rows(&of);
  return of;
}

/* ---- one block ----------------------------------------------------------- */

tile_block tile_block_find(const tile_blocks *of, int64_t index) {
  const cpu_run *r = of->run;
  int64_t at = index % of->blocks_a_unit;
  int64_t unit = index / of->blocks_a_unit;
  tile_block bk = {.b = unit / of->units};
  dil_progression keys = cpu_run_key_progression(r, bk.b),
                  asked = cpu_run_queries(r, bk.b);
  int64_t low = (at + of->block_first) * of->length, high = low + of->length;
  bk.heads = (int32_t)(r->table->heads / of->units);
  bk.head = (int32_t)(unit % of->units) * bk.heads;
  bk.high = minimum(high, progression_end(keys));
  bk.low = minimum(maximum(low, keys.first), bk.high);
  bk.last = minimum(high, progression_end(asked));
  bk.first = at + of->block_first == 0 ? asked.first
                                       : maximum(low, asked.first);
  return bk;
}

walk tile_blocks_walk(const tile_blocks *of, int32_t head) {
  return (walk){.table = of->run->table,
                .pass = of->pass,
                .served = walk_served(of->run->table, of->pass, head),
                .head = head,
                .round = of->run->code[DIL_TILES]->pack};
}

/* ---- strips --------------------------------------------------------------- */

static int64_t strip_border(const walk *w, const tile_block *bk, int64_t strip,
                            int64_t x) {
  if (x <= bk->first) return bk->first;
  if (x >= bk->last) return bk->last;
  segment_cell before = walk_cell(w, x - 1, bk->last);
  if (before.high == x) return x;
  return before.high - x < strip ? before.high : x;
}

void tile_block_strip(const tile_blocks *of, const tile_block *bk,
                      const walk *w, int64_t strip, int64_t *from,
                      int64_t *to) {
  int64_t base = floor_to(bk->first, of->strip) + strip * of->strip;
  *from = strip_border(w, bk, of->strip, base);
  *to = strip_border(w, bk, of->strip, base + of->strip);
}
