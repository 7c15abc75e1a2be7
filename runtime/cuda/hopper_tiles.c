/* hopper_tiles.c - tables and sizes of a call into a launch.
 *
 * In: a pass's tables (hopper_table.c), B, N and M. Out: all of the launch but
 * tensors and heads' states: how many tiles each class has, in which order
 * they are numbered. By arithmetic on the tables, never by length. */
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
                              int64_t length, int32_t tile_rows) {
  int64_t tiles = parts(parts(length, k->stride), tile_rows);
  for (int32_t i = 0; i < HOPPER_SEGMENTS; i++)
    if (k->cuts >> i & 1) tiles += parts(length, l->segments[i]);
  return tiles;
}

/* Cells of a home, tiles of a cell; the tiles of one block of all members. */
static int64_t count_tiles(const hopper_launch *l, int32_t tile_rows,
                           hopper_class *k) {
  int64_t span = l->keys - l->origin;
  int64_t length = k->cell ? minimum(k->cell, span) : span;
  k->tiles = (int)parts(parts(length, k->stride), tile_rows);
  k->cells = 1;
  if (k->cuts) k->tiles = (int)crossing_tiles(l, k, length, tile_rows);
  else if (k->cell)
    k->cells = (int)minimum(l->home / k->cell, parts(span, k->cell));
  if (!k->cell) k->cell = (int)span;
  return (int64_t)l->shapes[k->shape].members * k->cells * k->tiles;
}

/* Numbers the tiles of all classes from `from` on, for `blocks` blocks. */
static int64_t number_tiles(hopper_launch *l, int32_t tile_rows, int32_t from,
                            int32_t to, int64_t blocks) {
  int64_t first = 0;
  for (int32_t i = from; i < to; i++) {
    int64_t each = count_tiles(l, tile_rows, &l->classes[i]);
    l->classes[i].first = (int)minimum(first, INT32_MAX);
    first += each * blocks;
  }
  return first;
}

/* The last tiles of all heads first where a causal cell is many tiles long;
 * sections of one block where there are many, to stay in the cache. */
static bool fill_tiles(const hopper_table *table, int32_t tile_rows,
                       hopper_launch *l) {
  enum { LONG = 16, MANY = 64 };
  int32_t keyed = table->class_count - table->bare_count;
  int64_t periods = parts(l->keys - l->origin, l->period);
  int64_t blocks = l->batches * periods;
  number_tiles(l, tile_rows, 0, keyed, 1);
  for (int32_t i = 0; i < keyed; i++)
    l->spread |= table->causal && l->classes[i].tiles > LONG;
  int64_t section = blocks >= MANY && !l->spread ? 1 : blocks;
  memcpy(l->classes, table->classes, sizeof l->classes);
  int64_t each = number_tiles(l, tile_rows, 0, keyed, section);
  int64_t bare = number_tiles(l, tile_rows, keyed, table->class_count, blocks);
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
  return fill_tiles(table, tile_rows, l);
}
