/* hopper_tiles.c - fills a launch from the tables of a pass and the sizes of a
 * call.
 *
 * In: a pass's tables (hopper_table.c), the positions of rows and keys. Out:
 * all of the launch except tensors and heads' states: the height of tiles, the
 * number of each class's tiles, and their order. All by arithmetic on the
 * tables; nothing grows with the length. */
#include "hopper.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/walk.h"
#include <math.h>
#include <string.h>

/* Copies the classes of the table and finds the packed rows among their
 * rows. */
static void tiles_fill_classes(const hopper_table *table, const hopper_place *at,
                               hopper_launch *l) {
  memcpy(l->classes, table->classes, sizeof l->classes);
  if (!at->packed) hopper_packing_fill(table, l);
}

static void tiles_fill_tables(const hopper_table *table, hopper_launch *l) {
  memcpy(l->ranges, table->ranges, sizeof l->ranges);
  memcpy(l->instances, table->instances, sizeof l->instances);
  memcpy(l->shapes, table->shapes, sizeof l->shapes);
  memcpy(l->by_interval, table->by_interval, sizeof l->by_interval);
  memcpy(l->segments, table->segments, sizeof l->segments);
  l->class_count = table->class_count;
  l->instance_count = table->instance_count;
  l->relative = table->relative;
  l->residues = table->residues;
  l->bare_period = (int)maximum(1, HOPPER_PERIOD / l->residues) * l->residues;
}

static int64_t tiles_parts(int64_t n, int64_t size) {
  return (n + size - 1) / size;
}

/* The tiles of an interval that several segments cut into cells. Each border
 * makes at most one tile more. */
static int64_t tiles_crossing(const hopper_launch *l, const hopper_class *k,
                              int64_t length) {
  int64_t tiles = tiles_parts(tiles_parts(length, k->stride), l->tile_rows);
  for (int32_t i = 0; i < HOPPER_SEGMENTS; i++)
    if (k->crossing >> i & 1) tiles += tiles_parts(length, l->segments[i]);
  return tiles;
}

/* Sets the cells of an interval and the tiles of a cell. Returns the tiles of
 * one block, (batch row, period), over all its instances. */
static int64_t tiles_count(const hopper_launch *l, hopper_class *k) {
  int64_t span = l->span, length = k->cell ? minimum(k->cell, span) : span;
  k->tiles = (int)tiles_parts(tiles_parts(length, k->stride), l->tile_rows);
  k->cells = 1;
  if (k->crossing)
    k->tiles = (int)tiles_crossing(l, k, length);
  else if (k->cell)
    k->cells = (int)minimum(l->interval / k->cell, tiles_parts(span, k->cell));
  if (!k->cell) k->cell = (int)span;
  if (k->is_packed) k->tiles--;
  return (int64_t)l->shapes[k->shape].share * k->cells * k->tiles * k->phases;
}

/* The rows that see a key of low..high-1 in its segment (0: no segments)
 * through a window. */
typedef struct row_span {
  int64_t low, high;
} row_span;
static row_span tiles_seeing_rows(int64_t low, int64_t high, int64_t segment,
                                  int64_t left, int64_t right) {
  row_span s = {INT64_MIN, INT64_MAX};
  if (segment) {
    s.low = floor_to(low, segment);
    s.high = floor_to(high - 1, segment) + segment;
  }
  if (right < HOPPER_FAR) s.low = maximum(s.low, low - right);
  if (left < HOPPER_FAR) s.high = minimum(s.high, high + left);
  return s;
}

/* Whether rows to compute may see a key that exists here, through key range p
 * in a segment of this length. */
static bool tiles_segment_sees(const hopper_launch *l,
                               const hopper_key_range *p, int64_t segment) {
  row_span s =
      tiles_seeing_rows(l->key_low, l->key_high, segment, p->left, p->right);
  return s.low < l->high && s.high > l->low;
}

/* The same over all key ranges of a class. If no row of a class sees a key, its
 * rows keep their state and it has no tiles. */
static bool tiles_class_sees(const hopper_launch *l, const hopper_class *k) {
  bool sees = false;
  for (int32_t n = k->range; n < k->range + k->ranges && !sees; n++) {
    const hopper_key_range *p = &l->ranges[n];
    if (p->side < HOPPER_SHARED) sees = tiles_segment_sees(l, p, p->outer);
    for (int32_t i = 0; p->side >= HOPPER_SHARED && i < HOPPER_SEGMENTS; i++)
      sees |= (p->outer >> i & 1) && tiles_segment_sees(l, p, l->segments[i]);
  }
  return sees;
}

/* Numbers the tiles of all classes, for `blocks` blocks. Returns their
 * number. */
static int64_t tiles_number(hopper_launch *l, int64_t blocks) {
  int64_t first = 0;
  for (int32_t i = 0; i < l->class_count; i++) {
    int64_t each = tiles_count(l, &l->classes[i]);
    if (l->shard && !tiles_class_sees(l, &l->classes[i])) each = 0;
    l->classes[i].first = (int)minimum(first, INT32_MAX);
    first += each * blocks;
  }
  return first;
}

/* ---- rows without keys --------------------------------------------------- */

/* About how many key blocks a tile of a class visits. Only the pace of clearing
 * uses it. */
static double tiles_visits(const hopper_table *table, const hopper_launch *l,
                           const hopper_class *k) {
  double blocks = 0;
  for (int32_t i = k->range; i < k->range + k->ranges; i++) {
    const hopper_key_range *p = &l->ranges[i];
    double length = fmin(l->keys, (double)p->high - p->low);
    if (p->side < HOPPER_SHARED && p->outer)
      length = fmin(length, p->outer - (p->side ? p->inner : 0));
    length = fmin(length, (double)p->left + p->right + 1 +
                              (double)l->tile_rows * k->stride);
    if (p->left == HOPPER_FAR && p->right < HOPPER_FAR) length /= 2;
    blocks += length / p->stride / table->tile_keys;
  }
  return blocks;
}

/* Sets the size of sets of boxes of zeros; returns the number of sets of a
 * interval. 0: zeros are not stored in boxes. `pairwise` kernels lack the
 * shared memory for them, and a box would reach into another document. Some
 * intervals are too short for a box or begin before the first row. Sets of wide
 * heads are low, like their boxes. */
static int64_t tiles_count_boxes(const hopper_table *table,
                                 const hopper_place *at, hopper_launch *l,
                                 int64_t interval) {
  int64_t tall = interval / l->residues;
  if (!l->shifts) tall = table->narrow ? HOPPER_TALL_ROWS : HOPPER_BOX_ROWS;
  tall = minimum(tall, HOPPER_TALL_ROWS) / HOPPER_BOX_ROWS * HOPPER_BOX_ROWS;
  l->box_rows = (int)tall;
  l->box_rest = l->queries % l->residues;
  if (table->pairwise || at->packed || !tall) return 0;
  if (l->shifts && (at->low > 0 || at->shorter)) return 0;
  return tiles_parts(interval, tall * l->residues) * l->residues;
}

/* Plans how bare rows are cleared, a little faster than keys are multiplied:
 * spans of rows and boxes of zeros. Spans are short if a warp also writes their
 * O. False: there are too many. */
static bool tiles_fill_bare(const hopper_table *table, const hopper_place *at,
                            hopper_launch *l, int64_t blocks) {
  enum { SHORT_SPAN = 1024, LONG_SPAN = 4096 };
  double visits = 1;
  l->shifts = l->intervals > 1 || l->relative;
  int64_t interval = l->shifts ? l->interval : l->queries, most = INT32_MAX / 2;
  int64_t row_intervals = l->shifts ? (int64_t)l->periods * l->intervals : 1;
  int64_t intervals = row_intervals * l->batches;
  int64_t boxes = tiles_count_boxes(table, at, l, interval);
  l->span_rows = boxes ? LONG_SPAN : SHORT_SPAN;
  int64_t spans = tiles_parts(interval, l->span_rows);
  if (spans * intervals > most / l->interval_instances ||
      boxes > most / intervals)
    return false;
  for (int32_t i = 0; i < l->class_count; i++)
    visits += tiles_visits(table, l, &l->classes[i]) * l->classes[i].cells *
              l->classes[i].phases * l->classes[i].tiles *
              l->shapes[l->classes[i].shape].instances * (double)blocks;
  l->row_intervals = (int)row_intervals;
  l->interval_spans = (int)spans;
  l->interval_boxes = (int)boxes;
  l->spans = (int)(spans * intervals * l->interval_instances);
  l->boxes = (int)(boxes * intervals);
  l->clear_pace = (float)(visits / HOPPER_AHEAD /
                          (double)maximum(l->spans, l->boxes));
  return true;
}

/* Cuts the instances of each shape into `shares` shares; false: some do not
 * divide evenly. */
static bool tiles_set_shares(hopper_launch *l, int64_t shares) {
  bool even = true;
  l->shares = (int)shares;
  for (int32_t i = 0; i < HOPPER_SHAPES; i++) {
    even &= l->shapes[i].instances % shares == 0;
    l->shapes[i].share = (short)(l->shapes[i].instances / shares);
  }
  return even;
}

/* Chooses sections. If tiles are many, a section is few blocks, or some heads
 * of one block. Keys then stay in the L2 cache from class to class. A few tiles
 * for each processor are enough for long tiles to come first. Otherwise one
 * section holds all tiles. Lists read keys of a whole head in no order, so that
 * fewer tiles are many. `each`: tiles of a block. */
static void tiles_choose_sections(hopper_launch *l, int64_t blocks,
                                  int64_t each, bool sorted) {
  enum { FEW = 256 };
  const int64_t many = sorted ? 2 * FEW : 2048;
  int64_t shares = minimum(each / FEW, HOPPER_INSTANCES);
  l->section = (int)blocks;
  if (l->spread || each * blocks < many) return;
  l->section = (int)minimum(blocks, tiles_parts(FEW, each));
  while (shares > 1 && !tiles_set_shares(l, shares)) shares--;
  if (shares < 2) tiles_set_shares(l, 1);
}

/* Counts the tiles of documents: a section has those of all heads at the same rows, and
 * the device says which. False: there are too many. */
static bool tiles_fill_documents(const hopper_table *table, const hopper_place *at,
                                 hopper_launch *l) {
  int64_t room =
      hopper_documents_room(table, l->batches, at->packed, l->tile_rows);
  l->section_tiles = l->interval_instances;
  if (room * l->section_tiles > INT32_MAX / 2) return false;
  l->document_room = (int)room;
  l->tiles = (int)room * l->section_tiles;
  return true;
}

/* Counts and orders the tiles. Where causal cells are many tiles long, the last
 * tiles of all heads run first: they are the longest. The device sorts tiles with lists
 * itself. False: there are too many tiles. */
static bool tiles_fill(const hopper_table *table, const hopper_place *at,
                       hopper_launch *l) {
  enum { LONG = 16 };
  int64_t periods = tiles_parts(l->span, l->period), most = INT32_MAX / 2;
  int64_t blocks = l->batches * periods;
  if (blocks > most) return false;
  l->periods = (int)periods;
  tiles_set_shares(l, 1);
  int64_t each = tiles_number(l, 1);
  if (at->packed)
    return tiles_fill_documents(table, at, l) &&
           (!table->bare || tiles_fill_bare(table, at, l, blocks));
  l->spread = 0;
  for (int32_t i = 0; i < l->class_count; i++)
    l->spread |= table->causal && !at->sorted && l->classes[i].tiles > LONG;
  tiles_choose_sections(l, blocks, each, at->sorted);
  tiles_fill_classes(table, at, l);
  each = tiles_number(l, l->section);
  int64_t sections = tiles_parts(blocks, l->section) * l->shares;
  if (each > most / sections) return false;
  l->section_tiles = (int)each;
  l->tiles = (int)(each * sections);
  return !table->bare || l->shard || tiles_fill_bare(table, at, l, blocks);
}

/* ---- where rows and keys stand ------------------------------------------- */

hopper_place hopper_place_whole(int64_t B, int64_t N, int64_t M) {
  return (hopper_place){.batches = B, .rows = N, .first = M - N, .low = M - N,
                        .high = M, .key_low = 0, .key_high = M, .M = M};
}

hopper_place hopper_place_shard(const dil_table *table, int32_t pass,
                                const dil_shard *shard, int64_t batches) {
  static const dil_predicate none = {.left = DIL_ENDLESS,
                                      .right = DIL_ENDLESS};
  const dil_progression *q = &shard->queries, *k = &shard->keys;
  hopper_place at = {.batches = batches, .rows = q->count, .first = q->first,
                     .low = INT64_MAX, .high = INT64_MIN,
                     .key_low = k->first, .key_high = k->first + k->count,
                     .M = shard->M, .shard = true};
  for (int32_t b = 0; b < table->branch_count; b++) {
    const dil_branch *branch = &table->branches[b];
    const dil_predicate *window =
        branch->predicate < 0 ? &none : &table->predicates[branch->predicate];
    if (!(table->passes[pass].branches >> b & 1)) continue;
    row_span seen = tiles_seeing_rows(at.key_low, at.key_high, branch->segment,
                                      window->left, window->right);
    at.low = minimum(at.low, seen.low);
    at.high = maximum(at.high, seen.high);
  }
  at.low = maximum(at.low, q->first);
  at.high = maximum(minimum(at.high, q->first + q->count), at.low);
  return at;
}

/* ---- the launch ---------------------------------------------------------- */

/* The most positions of a batch row from its first period's begin on. A shorter
 * batch row may start anywhere within a period. */
static int64_t tiles_span(const hopper_table *table, const hopper_place *at,
                          const hopper_launch *l) {
  if (!at->shorter) return at->high - l->origin;
  return table->interval ? minimum(at->M, at->rows - 1 + l->period) : at->rows;
}

static void tiles_fill_place(const hopper_table *table, const hopper_place *at,
                             hopper_launch *l) {
  l->batches = (int)at->batches;
  l->queries = (int)at->rows;
  l->shard = (int)at->shard;
  l->keys = (int)at->M;
  l->first = (int)at->first;
  l->low = l->origin = (int)at->low;
  l->high = (int)at->high;
  l->key_low = (int)at->key_low;
  l->key_high = (int)at->key_high;
  l->period = (int)(table->period ? table->period : at->high - at->low);
  l->interval = (int)(table->interval ? table->interval : at->high - at->low);
  l->intervals =
      l->interval ? l->period / l->interval : 1; /* 0: there are no rows */
  l->interval_instances = l->instance_count / l->intervals;
  if (table->interval) {
    l->grid = l->period;
    l->origin = (int)(maximum(at->low, 0) / l->period * l->period);
    l->early = (int)(at->shorter ? at->rows : maximum(-at->first, 0));
  }
  l->span = (int)tiles_span(table, at, l);
  for (int32_t i = 0; i < table->stride_count; i++) {
    int64_t stride = table->strides[i];
    l->query_rest[i] = (short)(at->rows % stride);
    l->key_rest[i] = (short)((at->key_high - at->key_low) % stride);
  }
}

bool hopper_tiles_fill(const hopper_table *table, const hopper_place *place,
                       int32_t tile_rows, hopper_launch *l) {
  tiles_fill_tables(table, l);
  tiles_fill_place(table, place, l);
  l->tile_rows = tile_rows;
  tiles_fill_classes(table, place, l);
  return place->low == place->high || tiles_fill(table, place, l);
}

/* ---- the height of tiles ------------------------------------------------- */

/* The estimated time, if all tiles and documents were equally long: the tiles of the fullest
 * processor, one after the other. The unit is the time of a tile of 192 rows.
 * The last tiles leave processors idle. */
static double tiles_time(const hopper_place *at, const hopper_launch *l,
                         int64_t processors) {
  const double gap = 0.35;
  double work = 0, one = hopper_block_time(l->tile_rows);
  int64_t span = at->packed ? tiles_parts(at->packed, l->batches) : l->span;
  for (int32_t i = 0; i < l->class_count; i++) {
    const hopper_class *k = &l->classes[i];
    if (l->shard && !tiles_class_sees(l, k)) continue;
    int64_t tall = tiles_parts(minimum(k->cell, span), k->stride);
    double cells = (double)l->shapes[k->shape].instances * k->phases * l->batches;
    cells *= at->packed ? (double)tiles_parts(span, k->cell) / l->intervals
                        : (double)k->cells * l->periods;
    int64_t rest =
        k->is_packed ? 0 : tall % l->tile_rows + (k->packed_class ? 64 : 0);
    work += cells * ((double)(tall / l->tile_rows) * one +
                     hopper_block_time(rest));
  }
  if (l->tiles <= processors) return one;
  return work / (double)processors + gap * one;
}

bool hopper_tiles_choose(const hopper_table *table, const hopper_place *place,
                         int32_t tile_rows, int64_t processors,
                         hopper_launch *l) {
  const double better = 0.95; /* gains below the error of the estimate do not
                                 count */
  if (!hopper_tiles_fill(table, place, tile_rows, l)) return false;
  double least = tiles_time(place, l, processors);
  int32_t best = tile_rows;
  for (int32_t height = tile_rows - 64; height > 0; height -= 64) {
    if (!hopper_tiles_fill(table, place, height, l)) break;
    double time = tiles_time(place, l, processors);
    if (time >= better * least) continue;
    least = time;
    best = height;
  }
  return hopper_tiles_fill(table, place, best, l);
}
