/* tile_pass.c - a pass over tiles: blocks, packing and the order of the work.
 *
 * In: a pass and a call. A block is a range of positions that no segment of
 * the pass leaves, for one batch row and one head (or one K/V head, when all
 * query heads of it select the same rows). Its keys and values are packed once
 * and shared by all its query tiles. One queue of work items holds, for each
 * block, its packing and then its strips of queries; packing runs one block
 * ahead, and an item waits only for items before it. What a tile computes
 * depends on the shape of the call alone, never on threads or timing. */
#include "query_tile.h"
#include "runtime/arch.h"
#include "runtime/base/arithmetic.h"
#include "runtime/observe/trace.h"
#include "runtime/observe/watch.h"
#include "runtime/rowset/walk.h"
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum {
  STRIP = 1024,      /* query rows a work item, at dilation 1 */
  PACK_CHUNK = 4096, /* key positions a packing item */
  BLOCK_LEAST = 2048 /* small segments share a block of this many positions */
};

typedef struct block_buffer {
  char *k, *v;
  atomic_llong packed, done; /* items finished, over all its blocks */
  atomic_llong bad;          /* 1 + the last block with NaN or Inf values */
} block_buffer;

typedef struct tile_pass {
  const run *run;
  const dil_pass *pass;
  bool shared;            /* query heads of a K/V head share packed rows */
  bool backwards;         /* later strips are longer: hand them out first */
  int64_t units;          /* heads or K/V heads */
  int64_t length;         /* positions of a block */
  int64_t span;           /* positions from a block's first to its last key */
  int64_t block_first;    /* number of the first block, counted from 0 */
  int64_t blocks_a_unit, blocks;
  int64_t strip;          /* positions a strip */
  int64_t packs, strips;  /* items a block; strips counts heads too */
  int64_t packed_rows;    /* a block, at most */
  int64_t buffers;
  block_buffer *buffer;
  tile_worker *worker;    /* [threads] */
} tile_pass;

/* One block, found by arithmetic from its number. */
typedef struct tile_block {
  int64_t b, low, high;   /* keys: positions low..high-1 */
  int64_t first, last;    /* queries: positions first..last-1 */
  int32_t head, heads;    /* query heads head..head+heads-1 */
  int64_t generation;     /* blocks that used its buffer before */
  block_buffer *buffer;
} tile_block;

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

/* Rows that the branches of a pass can select in a block, at most. */
static int64_t count_packed_rows(const tile_pass *ts) {
  const dil_table *table = ts->run->table;
  int64_t selected = 0, cells = 1;
  for (int32_t b = 0; b < table->branch_count; b++) {
    if (!(ts->pass->branches >> b & 1)) continue;
    int64_t s = table->branches[b].segment;
    cells += s ? ts->span / s + 2 : 1;
    selected += ts->span / table->branches[b].dilation +
                (s ? ts->span / s + 2 : 1);
  }
  int64_t round = ts->run->code[DIL_TILES]->pack - 1;
  return minimum(selected, ts->span) +
         cells * minimum(ts->pass->period, 1 << 8) * round;
}

static int64_t smallest_dilation(const dil_table *table, uint64_t branches) {
  int64_t least = INT64_MAX;
  for (; branches; branches &= branches - 1)
    least = minimum(least,
                    table->branches[__builtin_ctzll(branches)].dilation);
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
static int64_t rows_before_keys(const run *r) {
  int64_t most = 0;
  for (int64_t b = 0; b < r->B; b++)
    most = maximum(most, -run_queries(r, b).first);
  return most;
}

static tile_pass tile_pass_plan(const run *r, const dil_pass *pass) {
  tile_pass ts = {.run = r, .pass = pass};
  const dil_table *table = r->table;
  int64_t threads = dil_threads_count(r->threads);
  dil_progression keys =
      r->shard ? r->shard->keys : (dil_progression){0, 1, r->M};
  dil_progression asked = run_queries(r, 0);
  int64_t whole = r->shard ? r->shard->M : r->M;
  ts.shared = can_share(table, pass);
  ts.backwards = is_backwards(table, pass->branches);
  ts.units = ts.shared ? table->kv_heads : table->heads;
  ts.length = common_segment(table, pass, maximum(whole, 1));
  ts.span = minimum(ts.length, progression_end(keys) - keys.first);
  ts.block_first = keys.first / ts.length;
  ts.blocks_a_unit = maximum(
      (progression_end(keys) + ts.length - 1) / ts.length - ts.block_first, 1);
  ts.blocks = r->B * ts.units * ts.blocks_a_unit;
  ts.strip = STRIP * smallest_dilation(table, pass->branches) * asked.step;
  ts.packs = maximum((ts.span + PACK_CHUNK - 1) / PACK_CHUNK, 1);
  int64_t span = progression_end(asked) - asked.first;
  int64_t rows_most = minimum(span, ts.length + rows_before_keys(r));
  ts.strips = (rows_most / ts.strip + 2) * (table->heads / ts.units);
  ts.packed_rows = count_packed_rows(&ts) + r->code[DIL_TILES]->key_block + 2;
  ts.buffers = minimum(ts.blocks, 2 + (threads + ts.strips - 1) / ts.strips);
  return ts;
}

static int64_t key_area(const tile_pass *ts) {
  return round_up(ts->packed_rows *
                      pack_key_bytes(ts->run->table->head_dim,
                                     ts->run->code[DIL_TILES]->pack),
                  64);
}

static int64_t value_area(const tile_pass *ts) {
  return round_up(ts->packed_rows *
                      pack_value_bytes(ts->run->table->value_dim,
                                       ts->run->code[DIL_TILES]->pack),
                  64);
}

static int64_t tile_worker_area(const tile_pass *ts) {
  return tile_worker_bytes(ts->run, ts->pass);
}

int64_t tile_pass_bytes(const run *r, const dil_pass *pass) {
  tile_pass ts = tile_pass_plan(r, pass);
  int64_t threads = dil_threads_count(r->threads);
  return round_up(ts.buffers * (int64_t)sizeof(block_buffer), 64) +
         round_up(threads * (int64_t)sizeof(tile_worker), 64) +
         threads * tile_worker_area(&ts) +
         ts.buffers * (key_area(&ts) + value_area(&ts));
}

static void tile_pass_cut_scratch(tile_pass *ts) {
  char *at = ts->run->scratch;
  int64_t threads = dil_threads_count(ts->run->threads);
  ts->buffer = (block_buffer *)at;
  at += round_up(ts->buffers * (int64_t)sizeof(block_buffer), 64);
  ts->worker = (tile_worker *)at;
  at += round_up(threads * (int64_t)sizeof(tile_worker), 64);
  for (int64_t i = 0; i < threads; i++, at += tile_worker_area(ts))
    tile_worker_init(&ts->worker[i], ts->run, ts->pass, at);
  for (int64_t i = 0; i < ts->buffers; i++) {
    block_buffer *buf = &ts->buffer[i];
    atomic_init(&buf->packed, 0);
    atomic_init(&buf->done, 0);
    atomic_init(&buf->bad, 0);
    buf->k = at;
    buf->v = at + key_area(ts);
    at += key_area(ts) + value_area(ts);
  }
}

/* ---- one block ----------------------------------------------------------- */

static tile_block block_find(const tile_pass *ts, int64_t index) {
  const run *r = ts->run;
  int64_t at = index % ts->blocks_a_unit;
  int64_t unit = index / ts->blocks_a_unit;
  tile_block bk = {.b = unit / ts->units, .generation = index / ts->buffers};
  dil_progression keys = run_key_progression(r, bk.b),
                  asked = run_queries(r, bk.b);
  int64_t low = (at + ts->block_first) * ts->length, high = low + ts->length;
  bk.heads = (int32_t)(r->table->heads / ts->units);
  bk.head = (int32_t)(unit % ts->units) * bk.heads;
  bk.high = minimum(high, progression_end(keys));
  bk.low = minimum(maximum(low, keys.first), bk.high);
  bk.last = minimum(high, progression_end(asked));
  bk.first = at + ts->block_first == 0 ? asked.first
                                       : maximum(low, asked.first);
  bk.buffer = &ts->buffer[index % ts->buffers];
  return bk;
}

static walk pass_walk(const tile_pass *ts, int32_t head) {
  return (walk){.table = ts->run->table,
                .pass = ts->pass,
                .served = walk_served(ts->run->table, ts->pass, head),
                .head = head,
                .round = ts->run->code[DIL_TILES]->pack};
}

static void counter_wait(atomic_llong *counter, int64_t target) {
  for (int spins = 0;
       atomic_load_explicit(counter, memory_order_acquire) < target; spins++) {
    if (spins < 1000) dil_host_arch.pause();
    else sched_yield();
  }
}

/* Packs the rows at positions from..to-1 of a cell, whose first packed row has
 * the index `base`; true when all values are finite. */
static bool block_pack_cell(const tile_pass *ts, const tile_block *bk,
                            const walk *w, segment_cell c, const class_table *s,
                            int64_t base, int64_t from, int64_t to) {
  const run *r = ts->run;
  dil_pack pack = r->code[DIL_TILES]->pack;
  int32_t kv = bk->head / (r->table->heads / r->table->kv_heads);
  dil_progression keys = run_key_progression(r, bk->b);
  row_view k = run_row_view(&r->call->k, bk->b, kv, keys);
  row_view v = run_row_view(&r->call->v, bk->b, kv, keys);
  bool finite = true;
  for (int32_t i = 0; i < s->count; i++) {
    if (!s->branches[i]) continue;
    int64_t all = class_table_rows(s, i, c.high - c.low);
    int64_t n0 =
        minimum(round_up(class_table_rows(s, i, from - c.low), pack), all);
    int64_t n1 =
        minimum(round_up(class_table_rows(s, i, to - c.low), pack), all);
    pack_keys(&k, s, i, c.low, n0, n1, pack,
              bk->buffer->k + base * pack_key_bytes(k.width, pack));
    finite &=
        pack_values(&v, s, i, c.low, n0, n1, pack,
                    bk->buffer->v + base * pack_value_bytes(v.width, pack));
    base += round_up(all, w->round);
  }
  return finite;
}

static void block_pack_chunk(const tile_pass *ts, const tile_block *bk,
                             int64_t index, int64_t chunk, tile_worker *wk) {
  walk w = pass_walk(ts, bk->head);
  int64_t from = bk->low + chunk * PACK_CHUNK;
  int64_t to = minimum(from + PACK_CHUNK, bk->high), base = 0;
  for (int64_t at = bk->low; at < to;) {
    segment_cell c = walk_cell(&w, at, bk->high);
    walk_classes(&w, c, &wk->streamed);
    if (c.high > from &&
        !block_pack_cell(ts, bk, &w, c, &wk->streamed, base,
                         maximum(from, c.low), minimum(to, c.high)))
      atomic_store(&bk->buffer->bad, index + 1);
    base += walk_packed_rows(&w, c, &wk->streamed);
    at = c.high;
  }
}

static void block_pack_item(const tile_pass *ts, int64_t index, int64_t chunk,
                            tile_worker *wk) {
  tile_block bk = block_find(ts, index);
  counter_wait(&bk.buffer->done, bk.generation * ts->strips);
  if (bk.first < bk.last && walk_served(ts->run->table, ts->pass, bk.head)) {
    dil_progression keys = run_key_progression(ts->run, bk.b);
    class_table_reset(&wk->streamed, &keys);
    block_pack_chunk(ts, &bk, index, chunk, wk);
  }
  atomic_fetch_add_explicit(&bk.buffer->packed, 1, memory_order_release);
}

/* ---- strips of queries --------------------------------------------------- */

/* A strip's border moves up to the begin of the next cell where that is
 * less than a strip away. */
static int64_t strip_border(const walk *w, const tile_block *bk, int64_t strip,
                            int64_t x) {
  if (x <= bk->first) return bk->first;
  if (x >= bk->last) return bk->last;
  segment_cell before = walk_cell(w, x - 1, bk->last);
  if (before.high == x) return x;
  return before.high - x < strip ? before.high : x;
}

static void strip_zero_rows(const tile_worker *wk, segment_cell c,
                            int32_t class_index, int64_t b) {
  const run *r = wk->run;
  int64_t n = class_table_rows(&wk->held, class_index, c.high - c.low);
  size_t bytes =
      (size_t)r->table->value_dim * dil_dtype_size(r->table->dtype);
  for (int64_t i = 0; i < n; i++) {
    int64_t row =
        run_row(r, b, c.low + class_table_row(&wk->held, class_index, i));
    memset(run_output(r, b, row, wk->walk.head), 0, bytes);
    float *lse = run_lse(r, b, row, wk->walk.head);
    if (lse) *lse = -__builtin_inff();
  }
}

static void strip_run_cell(tile_worker *wk, segment_cell c, int64_t b) {
  int64_t most = TILE_GROUP * wk->code->lanes;
  walk_classes(&wk->walk, c, &wk->held);
  for (int32_t i = 0; i < wk->held.count; i++) {
    int64_t n = class_table_rows(&wk->held, i, c.high - c.low);
    if (!wk->held.branches[i]) {
      if (wk->finish == FINISH_WRITE) strip_zero_rows(wk, c, i, b);
      continue;
    }
    for (int64_t at = 0; at < n; at += most)
      query_tile_run(wk, c, i, at, minimum(at + most, n), b);
  }
}

static void strip_run(const tile_pass *ts, const tile_block *bk, int64_t strip,
                      int32_t head, tile_worker *wk) {
  wk->walk = pass_walk(ts, head);
  if (!wk->walk.served) return;
  dil_progression progression = run_queries(ts->run, bk->b);
  class_table_reset(&wk->held, &progression);
  progression = run_key_progression(ts->run, bk->b);
  class_table_reset(&wk->streamed, &progression);
  int64_t base = floor_to(bk->first, ts->strip) + strip * ts->strip;
  int64_t from = strip_border(&wk->walk, bk, ts->strip, base);
  int64_t to = strip_border(&wk->walk, bk, ts->strip, base + ts->strip);
  run_env_init(ts->run, bk->b, head, &wk->env);
  wk->finish = run_finish(ts->run, head);
  while (from < to) {
    segment_cell c = walk_cell(&wk->walk, from, to);
    strip_run_cell(wk, c, bk->b);
    from = c.high;
  }
}

static void strip_run_item(const tile_pass *ts, int64_t index, int64_t item,
                           tile_worker *wk) {
  tile_block bk = block_find(ts, index);
  counter_wait(&bk.buffer->packed, (bk.generation + 1) * ts->packs);
  int64_t a_head = ts->strips / bk.heads;
  int64_t strip = ts->backwards ? a_head - 1 - item % a_head : item % a_head;
  wk->k = bk.buffer->k;
  wk->v = bk.buffer->v;
  wk->finite = atomic_load(&bk.buffer->bad) != index + 1;
  wk->low = bk.low;
  wk->high = bk.high;
  if (bk.first < bk.last)
    strip_run(ts, &bk, strip, bk.head + (int32_t)(item / a_head), wk);
  atomic_fetch_add_explicit(&bk.buffer->done, 1, memory_order_release);
}

/* The queue: packing of block 0, then for each block the packing of the next
 * one and its own strips. */
static void tile_pass_work(void *context, int64_t item, int32_t worker) {
  const tile_pass *ts = context;
  tile_worker *wk = &ts->worker[worker];
  int64_t begin = trace_begin(), ahead = item - ts->packs;
  int64_t index = ahead / (ts->packs + ts->strips);
  int64_t rest = ahead % (ts->packs + ts->strips);
  bool first = ahead < 0, packs = first || rest < ts->packs;
  if (first)
    block_pack_item(ts, 0, item, wk);
  else if (!packs)
    strip_run_item(ts, index, rest - ts->packs, wk);
  else if (index + 1 < ts->blocks)
    block_pack_item(ts, index + 1, rest, wk);
  if (!packs) watch_add(ts->run->call->watch, STRIP);
  trace_end(begin, "work", packs ? "pack" : "strip", NULL, item);
}

int64_t tile_pass_watch_rows(const run *r, const dil_pass *pass) {
  tile_pass ts = tile_pass_plan(r, pass);
  return ts.blocks * ts.strips * STRIP;
}

dil_status tile_pass_run(run *r, const dil_pass *pass) {
  tile_pass ts = tile_pass_plan(r, pass);
  tile_pass_cut_scratch(&ts);
  return dil_threads_run(r->threads,
                         ts.packs + ts.blocks * (ts.packs + ts.strips),
                         tile_pass_work, &ts);
}
