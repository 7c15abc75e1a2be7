/* hopper_tiles.c - tables and sizes of a call into a launch.
 *
 * In: a pass's tables (hopper_table.c), B, N and M. Out: all of the launch but
 * tensors and heads' states: how high tiles are, how many each class has, in
 * which order they are numbered. By arithmetic on the tables, never by length. */
#include "hopper.h"
#include "../walk.h"
#include <string.h>

static void fill_tables(const hopper_table *table, hopper_launch *l) {
  memcpy(l->classes, table->classes, sizeof l->classes);
  memcpy(l->pieces, table->pieces, sizeof l->pieces);
  memcpy(l->members, table->members, sizeof l->members);
  memcpy(l->shapes, table->shapes, sizeof l->shapes);
  memcpy(l->segments, table->segments, sizeof l->segments);
  l->class_count = table->class_count;
  l->bare_count = table->bare_count;
  l->member_count = table->member_count;
  l->relative = table->relative;
  l->but = table->but;
}

static int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* Cells that several segments cut: each border makes at most one tile more. */
static int64_t crossing_tiles(const hopper_launch *l, const hopper_class *k,
                              int64_t length) {
  int64_t tiles = parts(parts(length, k->stride), l->tile_rows);
  for (int32_t i = 0; i < HOPPER_SEGMENTS; i++)
    if (k->cuts >> i & 1) tiles += parts(length, l->segments[i]);
  return tiles;
}

/* Cells of a home, tiles of a cell; the tiles of one block of all members. */
static int64_t count_tiles(const hopper_launch *l, hopper_class *k) {
  int64_t span = l->keys - l->origin;
  int64_t length = k->cell ? minimum(k->cell, span) : span;
  k->tiles = (int)parts(parts(length, k->stride), l->tile_rows);
  k->cells = 1;
  if (k->cuts) k->tiles = (int)crossing_tiles(l, k, length);
  else if (k->cell)
    k->cells = (int)minimum(l->home / k->cell, parts(span, k->cell));
  if (!k->cell) k->cell = (int)span;
  return (int64_t)l->shapes[k->shape].members * k->cells * k->tiles;
}

/* Numbers the tiles of all classes from `from` on, for `blocks` blocks. */
static int64_t number_tiles(hopper_launch *l, int32_t from, int32_t to,
                            int64_t blocks) {
  int64_t first = 0;
  for (int32_t i = from; i < to; i++) {
    int64_t each = count_tiles(l, &l->classes[i]);
    l->classes[i].first = (int)minimum(first, INT32_MAX);
    first += each * blocks;
  }
  return first;
}

/* The last tiles of all heads first where a causal cell is many tiles long;
 * sections of one block where there are many, to stay in the cache. */
static bool fill_tiles(const hopper_table *table, hopper_launch *l) {
  enum { LONG = 16, MANY = 64 };
  int32_t keyed = table->class_count - table->bare_count;
  int64_t periods = parts(l->keys - l->origin, l->period);
  int64_t blocks = l->batches * periods;
  number_tiles(l, 0, keyed, 1);
  l->spread = 0;
  for (int32_t i = 0; i < keyed; i++)
    l->spread |= table->causal && l->classes[i].tiles > LONG;
  int64_t section = blocks >= MANY && !l->spread ? 1 : blocks;
  memcpy(l->classes, table->classes, sizeof l->classes);
  int64_t each = number_tiles(l, 0, keyed, section);
  int64_t bare = number_tiles(l, keyed, table->class_count, blocks);
  int64_t sections = parts(blocks, section), most = INT32_MAX / 2;
  if (periods > most || bare > most || each > most / sections) return false;
  l->periods = (int)periods;
  l->section = (int)section;
  l->section_tiles = (int)each;
  l->tiles = (int)(each * sections);
  l->bare_tiles = (int)bare;
  return true;
}

bool hopper_tiles_fill(const hopper_table *table, int64_t B, int64_t N,
                       int64_t M, int32_t tile_rows, hopper_launch *l) {
  fill_tables(table, l);
  l->batches = (int)B;
  l->queries = (int)N;
  l->keys = (int)M;
  l->period = (int)(table->period ? table->period : N);
  l->home = (int)(table->home ? table->home : N);
  l->origin = (int)(M - N);
  if (table->home) {
    l->origin = (int)(maximum(M - N, 0) / l->period * l->period);
    l->early = (int)maximum(N - M, 0);
  }
  for (int32_t i = 0; i < table->stride_count; i++) {
    l->query_rest[i] = (short)(N % table->strides[i]);
    l->key_rest[i] = (short)(M % table->strides[i]);
  }
  l->tile_rows = tile_rows;
  return fill_tiles(table, l);
}

/* ---- how high tiles are --------------------------------------------------- */

/* Tiles of all classes, each as long as the others: those of the fullest
 * processor, one after the other. The last ones leave gaps. */
static double time_of(const hopper_launch *l, int64_t processors) {
  const double gap = 0.35;
  double work = 0, one = hopper_block_time(l->tile_rows);
  for (int32_t i = 0; i < l->class_count - l->bare_count; i++) {
    const hopper_class *k = &l->classes[i];
    int64_t tall = parts(minimum(k->cell, l->keys - l->origin), k->stride);
    double cells = (double)l->shapes[k->shape].members * k->cells *
                   l->batches * l->periods;
    work += cells * ((double)(tall / l->tile_rows) * one +
                     hopper_block_time(tall % l->tile_rows));
  }
  if (l->tiles <= processors) return one;
  return work / (double)processors + gap * one;
}

bool hopper_tiles_choose(const hopper_table *table, int64_t B, int64_t N,
                         int64_t M, int32_t tile_rows, int64_t processors,
                         hopper_launch *l) {
  const double better = 0.95; /* than what the estimate may be wrong by */
  if (!hopper_tiles_fill(table, B, N, M, tile_rows, l)) return false;
  double least = time_of(l, processors);
  int32_t best = tile_rows;
  for (int32_t height = tile_rows - 64; height > 0; height -= 64) {
    if (!hopper_tiles_fill(table, B, N, M, height, l)) break;
    double time = time_of(l, processors);
    if (time >= better * least) continue;
    least = time;
    best = height;
  }
  return hopper_tiles_fill(table, B, N, M, best, l);
}
