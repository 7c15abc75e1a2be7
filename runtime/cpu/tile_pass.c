/* tile_pass.c - a pass over tiles: packing and the order of the work.
 *
 * In: a pass and a call. The keys and values of a block are packed once and
 * shared by all its query tiles. One queue of work items holds, for each
 * block, its packing and then its strips of queries; packing runs one block
 * ahead, and an item waits only for items before it. What a tile computes
 * depends on the shape of the call alone, never on threads or timing. */
#include "key_list.h"
#include "patch_tile.h"
#include "tile_block.h"
#include "tile_need.h"
#include "runtime/arch.h"
#include "runtime/base/arithmetic.h"
#include "runtime/observe/trace.h"
#include "runtime/observe/watch.h"
#include "runtime/rowset/walk.h"
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { PACK_CHUNK = 4096 }; /* key positions a packing item */

typedef struct block_buffer {
  char *k, *v;
  uint8_t *unpacked;         /* [tiles] where some are left out: tile_need.h */
  atomic_llong packed, done; /* items finished, over all its blocks */
  atomic_llong bad;          /* 1 + the last block with NaN or Inf values */
} block_buffer;

typedef struct patch_worker {
  patch_tile tile;
  class_table rows;       /* the packed rows of a block, as a class */
} patch_worker;

typedef struct tile_pass {
  tile_blocks of;
  int64_t keys;           /* positions or, of patches, packed rows of a block */
  int32_t *positions;     /* of patches: of the packed rows */
  patch_worker *patch;    /* [threads] where the pass has patches */
  int64_t packs, strips;  /* items a block; strips counts heads too */
  int64_t buffers;
  block_buffer *buffer;
  tile_worker *worker;    /* [threads] */
} tile_pass;

/* ---- shape of the work and memory ---------------------------------------- */

static tile_pass tile_pass_plan(const cpu_run *r, const dil_pass *pass) {
  tile_pass ts = {.of = tile_blocks_plan(r, pass)};
  int64_t threads = dil_threads_count(r->threads);
  ts.keys = ts.of.patched ? ts.of.patches.rows : ts.of.span;
  ts.packs = maximum((ts.keys + PACK_CHUNK - 1) / PACK_CHUNK, 1);
  ts.strips = ts.of.strips * (r->table->heads / ts.of.units);
  ts.buffers = minimum(ts.of.blocks, 2 + (threads + ts.strips - 1) / ts.strips);
  return ts;
}

static int64_t key_area(const tile_pass *ts) {
  return round_up(ts->of.packed_rows *
                      pack_key_bytes(ts->of.run->table->head_dim,
                                     ts->of.run->code[DIL_TILES]->pack),
                  64);
}

static int64_t value_area(const tile_pass *ts) {
  return round_up(ts->of.packed_rows *
                      pack_value_bytes(ts->of.run->table->value_dim,
                                       ts->of.run->code[DIL_TILES]->pack),
                  64);
}

/* A byte for each tile that may be left out. */
static int64_t tile_area(const tile_pass *ts) {
  return round_up(ts->of.rows / ts->of.run->code[DIL_TILES]->tile_keys + 1, 64);
}

static int64_t tile_worker_area(const tile_pass *ts) {
  return tile_worker_bytes(ts->of.run, ts->of.pass);
}

/* The memory that patches need besides. */
static int64_t cut_patches(tile_pass *ts, char *memory) {
  int64_t threads = dil_threads_count(ts->of.run->threads);
  cutter c = {memory, 0};
  if (!ts->of.patched) return 0;
  ts->positions = cutter_cut(&c, patch_positions_bytes(&ts->of.patches));
  ts->patch = cutter_cut(&c, threads * (int64_t)sizeof(patch_worker));
  for (int64_t i = 0; i < threads; i++) {
    patch_worker unused, *wk = memory ? &ts->patch[i] : &unused;
    void *rows = cutter_cut(&c, (int64_t)class_table_size(1));
    patch_tile_cut(&c, ts->of.run, &ts->of.patches, &wk->tile);
    if (!memory) continue;
    class_table_init(&wk->rows, 1, rows);
    patch_class(&ts->of.patches, ts->positions, ts->of.pass->branches,
                &wk->rows);
    wk->tile.positions = ts->positions;
    ts->worker[i].patch = &wk->tile;
  }
  return c.used;
}

int64_t tile_pass_bytes(const cpu_run *r, const dil_pass *pass) {
  tile_pass ts = tile_pass_plan(r, pass);
  int64_t threads = dil_threads_count(r->threads);
  return round_up(ts.buffers * (int64_t)sizeof(block_buffer), 64) +
         round_up(threads * (int64_t)sizeof(tile_worker), 64) +
         threads * tile_worker_area(&ts) +
         ts.buffers * (key_area(&ts) + value_area(&ts) + tile_area(&ts)) +
         cut_patches(&ts, NULL);
}

static void tile_pass_cut_scratch(tile_pass *ts) {
  char *at = ts->of.run->scratch;
  int64_t threads = dil_threads_count(ts->of.run->threads);
  ts->buffer = (block_buffer *)at;
  at += round_up(ts->buffers * (int64_t)sizeof(block_buffer), 64);
  ts->worker = (tile_worker *)at;
  at += round_up(threads * (int64_t)sizeof(tile_worker), 64);
  for (int64_t i = 0; i < threads; i++, at += tile_worker_area(ts))
    tile_worker_init(&ts->worker[i], ts->of.run, ts->of.pass, at);
  for (int64_t i = 0; i < ts->buffers; i++) {
    block_buffer *buf = &ts->buffer[i];
    atomic_init(&buf->packed, 0);
    atomic_init(&buf->done, 0);
    atomic_init(&buf->bad, 0);
    buf->k = at;
    buf->v = at + key_area(ts);
    buf->unpacked = (uint8_t *)buf->v + value_area(ts);
    at += key_area(ts) + value_area(ts) + tile_area(ts);
  }
  cut_patches(ts, at);
}

/* ---- one block ----------------------------------------------------------- */

static block_buffer *buffer_of(const tile_pass *ts, int64_t index) {
  return &ts->buffer[index % ts->buffers];
}

/* Blocks that used a block's buffer before it. */
static int64_t generation_of(const tile_pass *ts, int64_t index) {
  return index / ts->buffers;
}

static void counter_wait(atomic_llong *counter, int64_t target) {
  for (int spins = 0;
       atomic_load_explicit(counter, memory_order_acquire) < target; spins++) {
    if (spins < 1000) dil_host_arch.pause();
    else sched_yield();
  }
}

/* Packs rows n0..n1-1 of a class, whose packed row 0 has the index `base`; true when
 * all values are finite. */
static bool block_pack_rows(const tile_pass *ts, const tile_block *bk,
                            block_buffer *buffer, segment_cell c,
                            const class_table *s, int32_t i, int64_t base,
                            int64_t n0, int64_t n1) {
  const cpu_run *r = ts->of.run;
  dil_pack pack = r->code[DIL_TILES]->pack;
  int32_t kv = bk->head / (r->table->heads / r->table->kv_heads);
  row_view k = cpu_run_key_view(r, &r->call->k, bk->b, kv);
  row_view v = cpu_run_key_view(r, &r->call->v, bk->b, kv);
  pack_keys(&k, s, i, c.low, n0, n1, pack,
            buffer->k + base * pack_key_bytes(k.width, pack));
  return pack_values(&v, s, i, c.low, n0, n1, pack,
                     buffer->v + base * pack_value_bytes(v.width, pack));
}

/* The same of the tiles that some query of the block may see; the others are marked
 * by whoever packs from their first row on. There is one class of one cell. */
static bool block_pack_needed(const tile_pass *ts, const tile_block *bk,
                              block_buffer *buffer, segment_cell c,
                              const class_table *s, int64_t step, int64_t n0,
                              int64_t n1) {
  bool finite = true;
  for (int64_t n = n0, next; n < n1; n = next) {
    int64_t tile = n / step, first = tile * step;
    next = minimum(first + step, n1);
    bool needed = tile_needs(&ts->of, bk, c.low + first,
                             minimum(c.low + first + step, c.high));
    if (n == first) buffer->unpacked[tile] = !needed;
    if (needed)
      finite &= block_pack_rows(ts, bk, buffer, c, s, 0, 0, n, next);
  }
  return finite;
}

/* Packs the rows at positions from..to-1 of a cell, whose first packed row has
 * the index `base`; true when all values are finite. */
static bool block_pack_cell(const tile_pass *ts, const tile_block *bk,
                            block_buffer *buffer, const walk *w,
                            segment_cell c, const class_table *s, int64_t base,
                            int64_t from, int64_t to) {
  dil_pack pack = ts->of.run->code[DIL_TILES]->pack;
  int64_t step = tile_need_step(&ts->of, bk);
  bool finite = true;
  for (int32_t i = 0; i < s->count; i++) {
    if (!s->branches[i]) continue;
    int64_t all = class_table_rows(s, i, c.high - c.low);
    int64_t n0 =
        minimum(round_up(class_table_rows(s, i, from - c.low), pack), all);
    int64_t n1 =
        minimum(round_up(class_table_rows(s, i, to - c.low), pack), all);
    finite &= step ? block_pack_needed(ts, bk, buffer, c, s, step, n0, n1)
                   : block_pack_rows(ts, bk, buffer, c, s, i, base, n0, n1);
    base += round_up(all, w->round);
  }
  return finite;
}

/* The same for packed rows of patches. */
static void block_pack_patches(const tile_pass *ts, const tile_block *bk,
                               int64_t index, int64_t chunk,
                               const tile_worker *wk) {
  const class_table *rows = &ts->patch[wk - ts->worker].rows;
  const cpu_run *r = ts->of.run;
  dil_pack pack = r->code[DIL_TILES]->pack;
  block_buffer *buffer = buffer_of(ts, index);
  int32_t kv = bk->head / (r->table->heads / r->table->kv_heads);
  row_view k = cpu_run_key_view(r, &r->call->k, bk->b, kv);
  row_view v = cpu_run_key_view(r, &r->call->v, bk->b, kv);
  int64_t from = chunk * PACK_CHUNK, to = minimum(from + PACK_CHUNK, ts->keys);
  pack_keys(&k, rows, 0, 0, from, to, pack, buffer->k);
  if (!pack_values(&v, rows, 0, 0, from, to, pack, buffer->v))
    atomic_store(&buffer->bad, index + 1);
}

static void block_pack_chunk(const tile_pass *ts, const tile_block *bk,
                             int64_t index, int64_t chunk, tile_worker *wk) {
  walk w = tile_blocks_walk(&ts->of, bk->head);
  block_buffer *buffer = buffer_of(ts, index);
  if (ts->of.patched) {
    block_pack_patches(ts, bk, index, chunk, wk);
    return;
  }
  int64_t from = bk->low + chunk * PACK_CHUNK;
  int64_t to = minimum(from + PACK_CHUNK, bk->high), base = 0;
  for (int64_t at = bk->low; at < to;) {
    segment_cell c = walk_cell(&w, at, bk->high);
    walk_classes(&w, c, &wk->streamed);
    if (c.high > from &&
        !block_pack_cell(ts, bk, buffer, &w, c, &wk->streamed, base,
                         maximum(from, c.low), minimum(to, c.high)))
      atomic_store(&buffer->bad, index + 1);
    base += walk_packed_rows(&w, c, &wk->streamed);
    at = c.high;
  }
}

static void block_pack_item(const tile_pass *ts, int64_t index, int64_t chunk,
                            tile_worker *wk) {
  tile_block bk = tile_block_find(&ts->of, index);
  block_buffer *buffer = buffer_of(ts, index);
  counter_wait(&buffer->done, generation_of(ts, index) * ts->strips);
  if (bk.first < bk.last && walk_served(ts->of.run->table, ts->of.pass, bk.head)) {
    key_list_open(ts->of.run, ts->of.pass, bk.b, bk.head, &wk->streamed);
    block_pack_chunk(ts, &bk, index, chunk, wk);
  }
  atomic_fetch_add_explicit(&buffer->packed, 1, memory_order_release);
}

/* ---- strips of queries --------------------------------------------------- */

/* Rows that no branch selects. */
static void strip_bare_rows(const tile_worker *wk, segment_cell c,
                            int32_t class_index, int64_t b) {
  const cpu_run *r = wk->run;
  int64_t n = class_table_rows(&wk->held, class_index, c.high - c.low);
  for (int64_t i = 0; i < n; i++) {
    int32_t t = (int32_t)(c.low + class_table_row(&wk->held, class_index, i));
    int64_t row = cpu_run_row(r, b, t);
    float sink;
    cpu_run_sinks(r, &wk->env.env, 0, &t, 1, &sink);
    cpu_run_bare_row(r, r->table->dtype, sink,
                     cpu_run_output(r, b, row, wk->walk.head),
                     cpu_run_lse(r, b, row, wk->walk.head));
  }
}

static void strip_compute_cell(tile_worker *wk, segment_cell c, int64_t b) {
  int64_t most = TILE_GROUP * wk->code->lanes;
  walk_classes(&wk->walk, c, &wk->held);
  for (int32_t i = 0; i < wk->held.count; i++) {
    int64_t n = class_table_rows(&wk->held, i, c.high - c.low);
    if (!wk->held.branches[i]) {
      if (wk->finish == FINISH_WRITE) strip_bare_rows(wk, c, i, b);
      continue;
    }
    for (int64_t at = 0; at < n; at += most)
      query_tile_run(wk, c, i, at, minimum(at + most, n), b);
  }
}

/* The patches of a strip. */
static void strip_compute_patches(const tile_pass *ts, const tile_block *bk,
                                  int64_t strip, tile_worker *wk) {
  patch_tile *patch = &ts->patch[wk - ts->worker].tile;
  int64_t first = strip * ts->of.strip;
  int64_t end = minimum(first + ts->of.strip, ts->of.patches.patches);
  wk->held.branches[0] = ts->of.pass->branches;
  for (int64_t n = first; n < end; n++)
    if (patch_tile_open(patch, n))
      query_tile_run(wk, (segment_cell){0, 0}, 0, 0, patch->count, bk->b);
}

static void strip_compute(const tile_pass *ts, const tile_block *bk,
                          int64_t strip, int32_t head, tile_worker *wk) {
  wk->walk = tile_blocks_walk(&ts->of, head);
  if (!wk->walk.served) return;
  dil_progression progression = cpu_run_queries(ts->of.run, bk->b);
  class_table_reset(&wk->held, &progression);
  key_list_open(ts->of.run, ts->of.pass, bk->b, head, &wk->streamed);
  int64_t from, to;
  cpu_run_env_init(ts->of.run, bk->b, head, &wk->env);
  wk->finish = cpu_run_finish(ts->of.run, head);
  if (ts->of.patched) {
    strip_compute_patches(ts, bk, strip, wk);
    return;
  }
  tile_block_strip(&ts->of, bk, &wk->walk, strip, &from, &to);
  while (from < to) {
    segment_cell c = walk_cell(&wk->walk, from, to);
    strip_compute_cell(wk, c, bk->b);
    from = c.high;
  }
}

static void strip_compute_item(const tile_pass *ts, int64_t index, int64_t item,
                               tile_worker *wk) {
  tile_block bk = tile_block_find(&ts->of, index);
  block_buffer *buffer = buffer_of(ts, index);
  counter_wait(&buffer->packed, (generation_of(ts, index) + 1) * ts->packs);
  int64_t a_head = ts->of.strips;
  int64_t strip = ts->of.backwards ? a_head - 1 - item % a_head : item % a_head;
  wk->k = buffer->k;
  wk->v = buffer->v;
  wk->unpacked = tile_need_step(&ts->of, &bk) ? buffer->unpacked : NULL;
  wk->finite = atomic_load(&buffer->bad) != index + 1;
  wk->low = bk.low;
  wk->high = bk.high;
  if (bk.first < bk.last)
    strip_compute(ts, &bk, strip, bk.head + (int32_t)(item / a_head), wk);
  atomic_fetch_add_explicit(&buffer->done, 1, memory_order_release);
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
    strip_compute_item(ts, index, rest - ts->packs, wk);
  else if (index + 1 < ts->of.blocks)
    block_pack_item(ts, index + 1, rest, wk);
  if (!packs) watch_add(ts->of.run->call->watch, STRIP);
  trace_end(begin, "work", packs ? "pack" : "strip", NULL, item);
}

int64_t tile_pass_watch_rows(const cpu_run *r, const dil_pass *pass) {
  tile_pass ts = tile_pass_plan(r, pass);
  return ts.of.blocks * ts.strips * STRIP;
}

dil_status tile_pass_run(cpu_run *r, const dil_pass *pass) {
  tile_pass ts = tile_pass_plan(r, pass);
  tile_pass_cut_scratch(&ts);
  if (ts.of.patched) patch_positions_fill(&ts.of.patches, ts.positions);
  return dil_threads_run(r->threads,
                         ts.packs + ts.of.blocks * (ts.packs + ts.strips),
                         tile_pass_work, &ts);
}
