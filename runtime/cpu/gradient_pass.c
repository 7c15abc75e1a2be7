/* gradient_pass.c - a pass backward: blocks of keys with their sums.
 *
 * In: a pass of a run. Out: dQ, dK and dV of its branches, written or added, and
 * the sums of the inputs. Query tiles are held and keys streamed, as forward;
 * each visit also adds to the sums of its keys, f32 rows in the packed order of
 * the block, which stay in the second-level cache.
 *
 * One worker owns a block and computes all five products of its pairs. Where
 * there are fewer blocks than threads, the parts of a block's keys are shared
 * out, each with a dQ of its own, and these are added up. Where a block has too
 * few parts, smaller shares of its keys are shared out, and dQ is a second walk
 * of its own (seven products). Sums of dK and dV are made in the order of the
 * queries, those of dQ in the order of the keys and part by part, in all
 * cases: the bits do not depend on the number of threads. */
#include "gradient.h"
#include "key_list.h"
#include "patch_tile.h"
#include "tile_block.h"
#include "runtime/base/arithmetic.h"
#include "runtime/observe/trace.h"
#include "runtime/rowset/walk.h"
#include <stdio.h>
#include <string.h>

typedef struct gradient_pass {
  const cpu_gradient_run *of;
  tile_blocks blocks;
  int32_t turn, turns;   /* heads of a K/V head that go one after the other */
  int64_t count;         /* blocks of a turn */
  int64_t parts;         /* of a block, each with sums of dQ from 0 */
  int64_t part_rows;     /* packed rows of a part; the last has the rest */
  bool split;            /* a block's keys are shared out */
  bool fused;            /* its parts are, and dQ with them */
  int64_t shares;        /* of a block */
  int64_t share_rows;    /* packed rows of a share; the last has the rest */
  int64_t sum_rows;      /* packed rows that a block has sums for */
  int64_t lists;         /* blocks go to this many workers in turn */
  char *workers, *memory; /* the workers', the blocks' */
  int64_t worker_bytes;
  dil_tensor part_dq;     /* dQ of part 0, with the others after it */
  int32_t *positions;     /* of patches: of the packed rows */
} gradient_pass;

/* A worker with its patch, where the pass has some. */
typedef struct patch_gradient_worker {
  gradient_worker common;
  patch_tile patch;
} patch_gradient_worker;

int32_t gradient_pass_turns(const cpu_run *r, const dil_pass *pass) {
  tile_blocks blocks = tile_blocks_plan(r, pass);
  return blocks.shared ? 1 : r->table->heads / r->table->kv_heads;
}

/* ---- shape of the work and memory ---------------------------------------- */

/* `rows` packed rows in `count` pieces. */
static int64_t rows_of_each(int64_t rows, int64_t count) {
  return round_up(maximum((rows + count - 1) / count, 1), MARK_ROWS);
}

/* Keys of a query that are visited twice have no order of parts. */
static bool has_parts(const cpu_gradient_run *g, const dil_pass *pass) {
  bool once = g->run->table->dedup || !(pass->branches & (pass->branches - 1));
  return once && !g->own_lse && !g->detached;
}

/* The parts that the shape of the call alone fixes: the bits depend on them. */
static void plan_parts(gradient_pass *ps, const dil_pass *pass) {
  enum { PART_LEAST = 512, PARTS_MOST = 8 };
  int64_t rows = ps->blocks.rows;
  bool parted = !ps->blocks.patched && has_parts(ps->of, pass);
  ps->parts = parted ? rows / PART_LEAST : 1;
  ps->parts = minimum(maximum(ps->parts, 1), PARTS_MOST);
  ps->part_rows = rows_of_each(rows, ps->parts);
}

/* The share of each worker, on which the bits do not depend. */
static void plan_shares(gradient_pass *ps) {
  enum { SHARE_LEAST = 512 };
  const cpu_gradient_run *g = ps->of;
  int64_t threads = dil_threads_count(g->run->threads);
  bool keys = g->call->dk.data || g->call->dv.data;
  ps->split = ps->count < threads && g->sums_length == 0;
  ps->fused = ps->split && keys && g->call->dq.data &&
              ps->count * ps->parts >= threads;
  ps->shares = ps->split ? maximum(ps->sum_rows / SHARE_LEAST, 1) : 1;
  ps->shares = minimum(ps->shares, 4 * threads);
  ps->share_rows = rows_of_each(ps->sum_rows, ps->shares);
  if (!ps->fused) return;
  ps->shares = ps->parts;
  ps->share_rows = ps->part_rows;
}

/* The memory that a worker needs for patches. */
static int64_t cut_patch(const gradient_pass *ps, patch_tile *patch,
                         char *memory) {
  cutter c = {memory, 0};
  patch_tile unused;
  if (!ps->blocks.patched) return 0;
  patch_tile_cut(&c, ps->of->run, &ps->blocks.patches,
                 patch ? patch : &unused);
  return c.used;
}

static gradient_pass gradient_pass_plan(const cpu_gradient_run *g,
                                        const dil_pass *pass) {
  const cpu_run *r = g->run;
  gradient_pass ps = {.of = g, .blocks = tile_blocks_plan(r, pass)};
  ps.turns = ps.blocks.shared ? 1 : r->table->heads / r->table->kv_heads;
  ps.count = ps.blocks.blocks / (ps.blocks.shared ? 1 : ps.turns);
  ps.sum_rows = ps.blocks.packed_rows;
  plan_parts(&ps, pass);
  plan_shares(&ps);
  ps.lists = g->sums_length ? minimum(g->copies, ps.count) : ps.count;
  ps.worker_bytes = round_up((int64_t)sizeof(patch_gradient_worker), 64) +
                    round_up(gradient_worker_bytes(g, pass), 64) +
                    cut_patch(&ps, NULL, NULL);
  return ps;
}

static int64_t positions_bytes(const gradient_pass *ps) {
  return ps->blocks.patched ? patch_positions_bytes(&ps->blocks.patches) : 0;
}

static int64_t sum_width(const gradient_pass *ps) {
  const dil_table *table = ps->of->run->table;
  return dil_code_outer(table->head_dim) + dil_code_outer(table->value_dim);
}

/* Bytes of one block's sums, of its packed keys before them, and how many
 * blocks have some at once. */
static int64_t sum_bytes(const gradient_pass *ps) {
  return round_up(ps->sum_rows * sum_width(ps) * (int64_t)sizeof(float), 64);
}

static int64_t key_bytes(const gradient_pass *ps) {
  return packed_keys_bytes(ps->of->run, ps->sum_rows);
}

static int64_t block_bytes(const gradient_pass *ps) {
  return key_bytes(ps) + sum_bytes(ps);
}

static int64_t blocks_at_once(const gradient_pass *ps) {
  return ps->split ? ps->count : dil_threads_count(ps->of->run->threads);
}

/* Bytes of all parts of dQ, where they are made one by one. */
static int64_t part_bytes(const gradient_pass *ps) {
  if (!ps->fused) return 0;
  return ps->parts * dil_tensor_count(&ps->of->call->dq) *
         (int64_t)sizeof(float);
}

int64_t gradient_pass_bytes(const cpu_gradient_run *g, const dil_pass *pass) {
  gradient_pass ps = gradient_pass_plan(g, pass);
  return dil_threads_count(g->run->threads) * ps.worker_bytes +
         blocks_at_once(&ps) * block_bytes(&ps) + part_bytes(&ps) +
         positions_bytes(&ps);
}

static gradient_worker *worker_of(const gradient_pass *ps, int32_t worker) {
  return (gradient_worker *)(ps->workers + worker * ps->worker_bytes);
}

/* ---- one block ----------------------------------------------------------- */

/* Block `index` of the turn. */
static tile_block find_block(const gradient_pass *ps, int64_t index) {
  if (ps->turns == 1) return tile_block_find(&ps->blocks, index);
  int64_t unit = index / ps->blocks.blocks_a_unit;
  int64_t at = index % ps->blocks.blocks_a_unit;
  return tile_block_find(&ps->blocks, (unit * ps->turns + ps->turn) *
                                              ps->blocks.blocks_a_unit +
                                          at);
}

/* The worker's keys and sums are those of the block, in its memory. */
static void open_block(const gradient_pass *ps, gradient_worker *wk,
                       const tile_block *bk, char *memory) {
  const cpu_run *r = ps->of->run;
  wk->tile.low = bk->low;
  wk->tile.high = bk->high;
  wk->keys = packed_keys_at(r, ps->sum_rows, memory);
  wk->tile.k = wk->keys.k_keys;
  wk->tile.v = wk->keys.v_values;
  wk->dk = (float *)(memory + key_bytes(ps));
  wk->dv = wk->dk + ps->sum_rows * dil_code_outer(r->table->head_dim);
}

typedef void class_action(const gradient_pass *ps, gradient_worker *wk,
                          const tile_block *bk, const packed_range *of);

/* All classes of the block that a branch selects. */
static void each_class(const gradient_pass *ps, gradient_worker *wk,
                       const tile_block *bk, class_action *act) {
  walk w = tile_blocks_walk(&ps->blocks, bk->head);
  class_table *s = &wk->tile.streamed;
  int64_t base = 0;
  if (!w.served) return;
  if (ps->blocks.patched) {
    segment_cell all = patch_class(&ps->blocks.patches, ps->positions,
                                   ps->blocks.pass->branches, s);
    act(ps, wk, bk, &(packed_range){.cell = all, .n1 = all.high});
    return;
  }
  key_list_open(ps->of->run, ps->blocks.pass, bk->b, bk->head, s);
  for (int64_t at = bk->low; at < bk->high;) {
    segment_cell c = walk_cell(&w, at, bk->high);
    walk_classes(&w, c, s);
    for (int32_t i = 0; i < s->count; i++) {
      if (!s->branches[i]) continue;
      packed_range of = {c, i, base, 0, class_table_rows(s, i, c.high - c.low)};
      act(ps, wk, bk, &of);
      base += round_up(of.n1, w.round);
    }
    at = c.high;
  }
}

static int32_t kv_head(const gradient_pass *ps, const tile_block *bk) {
  const dil_table *table = ps->of->run->table;
  return bk->head / (table->heads / table->kv_heads);
}

static void pack_class(const gradient_pass *ps, gradient_worker *wk,
                       const tile_block *bk, const packed_range *of) {
  const cpu_run *r = ps->of->run;
  int32_t kv = kv_head(ps, bk);
  dil_progression keys = cpu_run_key_progression(r, bk->b);
  row_view k = cpu_run_row_view(&r->call->k, bk->b, kv, keys);
  row_view v = cpu_run_row_view(&r->call->v, bk->b, kv, keys);
  packed_keys_fill(wk, *of, &k, &v);
}

/* Packs the worker's rows of the block, and begins their sums. */
static void begin_block(const gradient_pass *ps, gradient_worker *wk,
                        const tile_block *bk) {
  const dil_table *table = ps->of->run->table;
  int64_t k = dil_code_outer(table->head_dim);
  int64_t v = dil_code_outer(table->value_dim);
  int64_t end = minimum(wk->to, ps->sum_rows), mark = wk->from / MARK_ROWS;
  int64_t rows = maximum(end - wk->from, 0), f = sizeof(float);
  int64_t marks = (rows + MARK_ROWS - 1) / MARK_ROWS;
  memset(wk->keys.marks + mark, 0, (size_t)marks);
  memset(wk->dk + wk->from * k, 0, (size_t)(rows * k * f));
  memset(wk->dv + wk->from * v, 0, (size_t)(rows * v * f));
  each_class(ps, wk, bk, pack_class);
}

/* The sinks of rows that no branch selects. */
static void run_bare_class(const gradient_worker *wk, segment_cell c,
                           int32_t index, int64_t rows, int64_t b) {
  const tile_worker *tile = &wk->tile;
  const cpu_gradient_run *g = wk->of;
  bool wanted = g->sums && wk->wants_keys && g->own_lse &&
                g->call->lse.data && !tile->run->shard;
  if (!wanted || !tile->run->table->sinks) return;
  for (int64_t i = 0; i < rows; i++) {
    int64_t t = c.low + class_table_row(&tile->held, index, i);
    gradient_bare_row(g, &tile->env.env, b, cpu_run_row(tile->run, b, t),
                      tile->walk.head, wk->sums);
  }
}

typedef void rows_action(gradient_worker *wk, segment_cell held, int32_t c,
                         int64_t n0, int64_t n1, int64_t b);

static void run_cell(gradient_worker *wk, segment_cell c, int64_t b,
                     rows_action *act) {
  tile_worker *tile = &wk->tile;
  int64_t most = TILE_GROUP * tile->code->lanes;
  walk_classes(&tile->walk, c, &tile->held);
  for (int32_t i = 0; i < tile->held.count; i++) {
    int64_t n = class_table_rows(&tile->held, i, c.high - c.low);
    if (!tile->held.branches[i]) {
      run_bare_class(wk, c, i, n, b);
      continue;
    }
    for (int64_t at = 0; at < n; at += most)
      act(wk, c, i, at, minimum(at + most, n), b);
  }
}

/* The patches of a strip. */
static void run_patches(const gradient_pass *ps, gradient_worker *wk,
                        const tile_block *bk, int64_t strip,
                        rows_action *act) {
  patch_tile *patch = &((patch_gradient_worker *)wk)->patch;
  int64_t first = strip * ps->blocks.strip;
  int64_t end = minimum(first + ps->blocks.strip, ps->blocks.patches.patches);
  wk->tile.held.branches[0] = ps->blocks.pass->branches;
  for (int64_t n = first; n < end; n++)
    if (patch_tile_open(patch, n))
      act(wk, (segment_cell){0, 0}, 0, 0, patch->count, bk->b);
}

static void run_strip(const gradient_pass *ps, gradient_worker *wk,
                      const tile_block *bk, int32_t head, int64_t strip,
                      rows_action *act) {
  tile_worker *tile = &wk->tile;
  const cpu_run *r = ps->of->run;
  int64_t from, to;
  tile->walk = tile_blocks_walk(&ps->blocks, head);
  if (!tile->walk.served || bk->first >= bk->last) return;
  if (ps->blocks.patched) {
    cpu_run_env_init(r, bk->b, head, &tile->env);
    run_patches(ps, wk, bk, strip, act);
    return;
  }
  dil_progression progression = cpu_run_queries(r, bk->b);
  class_table_reset(&tile->held, &progression);
  key_list_open(r, ps->blocks.pass, bk->b, head, &tile->streamed);
  cpu_run_env_init(r, bk->b, head, &tile->env);
  tile_block_strip(&ps->blocks, bk, &tile->walk, strip, &from, &to);
  while (from < to) {
    segment_cell c = walk_cell(&tile->walk, from, to);
    run_cell(wk, c, bk->b, act);
    from = c.high;
  }
}

static void run_block(const gradient_pass *ps, gradient_worker *wk,
                      const tile_block *bk) {
  for (int32_t h = 0; h < bk->heads; h++)
    for (int64_t strip = 0; strip < ps->blocks.strips; strip++)
      run_strip(ps, wk, bk, bk->head + h, strip, gradient_tile_run);
}

/* ---- dK and dV out ------------------------------------------------------- */

/* Whether a packed row stands for no key. */
static bool is_filler(const gradient_pass *ps, int64_t row) {
  return ps->blocks.patched &&
         patch_row_position(&ps->blocks.patches, row) < 0;
}

/* Writes the worker's rows of a class. */
static void store_class(const gradient_pass *ps, gradient_worker *wk,
                        const tile_block *bk, const packed_range *of) {
  const cpu_run *r = ps->of->run;
  const cpu_gradient_target *target[2] = {&ps->of->dk, &ps->of->dv};
  float *sums[2] = {wk->dk, wk->dv};
  float factor[2] = {r->scale * r->weight, r->weight};
  dil_progression keys = cpu_run_key_progression(r, bk->b);
  for (int which = 0; which < 2; which++) {
    if (!target[which]->to.data) continue;
    row_view out =
        cpu_run_row_view(&target[which]->to, bk->b, kv_head(ps, bk), keys);
    int64_t row = dil_code_outer(out.width);
    for (int64_t i = 0; i < of->n1; i++) {
      int64_t t = of->cell.low + class_table_row(&wk->tile.streamed, of->c, i);
      int64_t at = of->base + i;
      if (at < wk->from || at >= wk->to || is_filler(ps, at)) continue;
      gradient_store_row(target[which], sums[which] + at * row, factor[which],
                (char *)row_view_at(&out, t));
    }
  }
}

/* ---- work: a worker owns a block ----------------------------------------- */

static void block_list(void *context, int64_t list, int32_t worker) {
  const gradient_pass *ps = context;
  gradient_worker *wk = worker_of(ps, worker);
  int64_t begin = trace_begin();
  wk->wants_dq = ps->of->dq.to.data != NULL;
  wk->wants_keys = true;
  wk->from = 0;
  wk->to = INT64_MAX;
  gradient_sums(ps->of, list, wk->sums);
  for (int64_t index = list; index < ps->count; index += ps->lists) {
    tile_block bk = find_block(ps, index);
    open_block(ps, wk, &bk, ps->memory + worker * block_bytes(ps));
    begin_block(ps, wk, &bk);
    run_block(ps, wk, &bk);
    each_class(ps, wk, &bk, store_class);
  }
  trace_end(begin, "work", "gradients", NULL, list);
}

/* ---- work: shares of keys, and then rows of queries ---------------------- */

/* The worker and its block for one share of the block's keys. */
static gradient_worker *open_share(const gradient_pass *ps, int64_t item,
                                   int32_t worker, tile_block *bk) {
  gradient_worker *wk = worker_of(ps, worker);
  int64_t index = item / ps->shares, share = item % ps->shares;
  *bk = find_block(ps, index);
  wk->wants_dq = ps->fused;
  wk->wants_keys = true;
  wk->from = share * ps->share_rows;
  wk->to = share + 1 < ps->shares ? wk->from + ps->share_rows : INT64_MAX;
  wk->part_dq = ps->part_dq;
  if (ps->fused)
    wk->part_dq.data = (float *)ps->part_dq.data +
                       share * dil_tensor_count(&ps->part_dq);
  open_block(ps, wk, bk, ps->memory + index * block_bytes(ps));
  return wk;
}

static void key_share_begin(void *context, int64_t item, int32_t worker) {
  tile_block bk;
  gradient_worker *wk = open_share(context, item, worker, &bk);
  begin_block(context, wk, &bk);
}

static void key_share(void *context, int64_t item, int32_t worker) {
  tile_block bk;
  int64_t begin = trace_begin();
  gradient_worker *wk = open_share(context, item, worker, &bk);
  run_block(context, wk, &bk);
  trace_end(begin, "work", "gradients of keys", NULL, item);
}

static void key_share_store(void *context, int64_t item, int32_t worker) {
  tile_block bk;
  gradient_worker *wk = open_share(context, item, worker, &bk);
  each_class(context, wk, &bk, store_class);
}

/* One strip of the queries of a head: its dQ, or the sum of its parts. */
static void query_strip(void *context, int64_t item, int32_t worker) {
  const gradient_pass *ps = context;
  gradient_worker *wk = worker_of(ps, worker);
  int64_t begin = trace_begin(), strip = item % ps->blocks.strips;
  int64_t rest = item / ps->blocks.strips;
  int64_t heads = ps->of->run->table->heads / ps->of->run->table->kv_heads;
  heads /= ps->turns;
  int64_t index = rest / heads;
  tile_block bk = find_block(ps, index);
  wk->wants_dq = true;
  wk->wants_keys = false;
  wk->part_dq = ps->part_dq;
  wk->from = 0;
  wk->to = INT64_MAX;
  open_block(ps, wk, &bk, ps->memory + index * block_bytes(ps));
  run_strip(ps, wk, &bk, bk.head + (int32_t)(rest % heads), strip,
            ps->fused ? gradient_sum_parts : gradient_tile_run);
  trace_end(begin, "work", "gradients of queries", NULL, item);
}

static dil_status run_split(gradient_pass *ps) {
  const cpu_gradient_run *g = ps->of;
  dil_threads *threads = g->run->threads;
  int64_t heads = g->run->table->heads / g->run->table->kv_heads / ps->turns;
  int64_t shares = ps->count * ps->shares;
  int64_t strips = ps->count * heads * ps->blocks.strips;
  bool keys = g->dk.to.data || g->dv.to.data;
  dil_status status = dil_threads_run(threads, shares, key_share_begin, ps);
  if (!status && keys)
    status = dil_threads_run(threads, shares, key_share, ps);
  if (!status && keys)
    status = dil_threads_run(threads, shares, key_share_store, ps);
  if (status || !g->dq.to.data) return status;
  return dil_threads_run(threads, strips, query_strip, ps);
}

dil_status gradient_pass_run(cpu_gradient_run *g, const dil_pass *pass) {
  gradient_pass ps = gradient_pass_plan(g, pass);
  int64_t threads = dil_threads_count(g->run->threads);
  dil_status status = DIL_OK;
  ps.workers = g->run->scratch;
  ps.memory = ps.workers + threads * ps.worker_bytes;
  ps.positions = (int32_t *)(ps.memory + blocks_at_once(&ps) * block_bytes(&ps) +
                             part_bytes(&ps));
  if (ps.blocks.patched)
    patch_positions_fill(&ps.blocks.patches, ps.positions);
  if (ps.fused)
    ps.part_dq =
        dil_tensor_make(ps.memory + blocks_at_once(&ps) * block_bytes(&ps),
                        DIL_F32, 4, g->call->dq.shape);
  for (int32_t i = 0; i < threads; i++) {
    gradient_worker *wk = worker_of(&ps, i);
    patch_tile *patch = &((patch_gradient_worker *)wk)->patch;
    int64_t own = round_up((int64_t)sizeof(patch_gradient_worker), 64);
    gradient_worker_init(wk, g, pass, (char *)wk + own);
    if (ps.blocks.patched) {
      cut_patch(&ps, patch,
                (char *)wk + own + round_up(gradient_worker_bytes(g, pass), 64));
      patch->positions = ps.positions;
      wk->tile.patch = patch;
    }
    wk->parts = ps.parts;
    wk->part_rows = ps.part_rows;
  }
  for (ps.turn = 0; ps.turn < ps.turns && !status; ps.turn++)
    status = ps.split ? run_split(&ps)
                      : dil_threads_run(g->run->threads, ps.lists, block_list,
                                        &ps);
  return status;
}
