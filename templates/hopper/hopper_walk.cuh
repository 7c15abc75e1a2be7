// hopper_walk.cuh - from the number of a tile to its rows and its keys.
//
// In: the launch's tables, whose terms hopper_launch.h explains. Out: the
// position of the tile's rows, and each run of keys that the windows let the
// tile see. All follows by arithmetic from the cell's position; no table grows
// with the length.
//
// Plain C, so that the host and tests can walk a launch without a GPU. They
// define DEVICE, WARPGROUPS, NESTED and SHIFTS first.
#ifndef DIL_TEMPLATES_HOPPER_HOPPER_WALK_H
#define DIL_TEMPLATES_HOPPER_HOPPER_WALK_H
#ifndef BACK_WINDOWS
#define BACK_WINDOWS 1 // 0: every window holds its row
#endif
#ifndef EACH_PHASE
#define EACH_PHASE 1 // 0: every class has one phase
#endif
#ifndef HOLDS_KEYS
#define HOLDS_KEYS 0 // 1: tiles hold keys and stream query rows
#endif
#ifndef ROW_RANGES
#define ROW_RANGES 1 // 0: every key range is that of all rows
#endif
#ifndef DOCUMENTS
#define DOCUMENTS 0 // 1: calls may be packed
#endif
#include "templates/hopper/hopper_launch.h"
#include "templates/hopper/hopper_documents.cuh"

enum { TILE_ROWS = 64 * WARPGROUPS };

// The tables hold all other facts of a tile, since the producer has few
// registers.
typedef struct tile {
  int position; // position of row 0
  int rows;     // 1 .. TILE_ROWS
  int batch;
  int away;     // M minus the number of the batch row's keys. Kernels that take
                // documents find it later, to save registers
#if HOLDS_KEYS && DOCUMENTS
  int late;     // streamed rows that the batch row lacks before its first one
#endif
  short klass, instance;
} tile;

// A run of keys: `count` keys from `position` on, with the stride of its key
// range.
typedef struct key_run {
  int position, count;
} key_run;

DEVICE int lesser(int a, int b) { return a < b ? a : b; }
DEVICE int greater(int a, int b) { return a > b ? a : b; }
DEVICE int floor_to(int x, int n) {
  int rest = x % n;
  return x - (rest < 0 ? rest + n : rest);
}
// The first position from `low` on whose residue modulo n is that of `at`.
DEVICE int first_from(int low, int at, int n) {
  int rest = (at - low) % n;
  return low + (rest < 0 ? rest + n : rest);
}
DEVICE int rows_between(int first, int end, int stride) {
  return first < end ? (end - 1 - first) / stride + 1 : 0;
}

// M minus the number of a batch row's keys. Its query rows stand that much
// earlier.
// Kernels for segments that are not nested lack the registers for lengths.
DEVICE int away_of(const hopper_launch *run, int batch) {
#ifdef __CUDACC__
  if (!NESTED) return 0;
#endif
  if (has_documents(run)) return run->keys - keys_at(run, batch).count;
  if (!run->lengths) return 0;
  int keys = run->lengths[DOCUMENTS ? again(batch) : batch];
  return run->keys - greater(0, lesser(keys, run->keys));
}
// How much earlier the rows that tiles hold stand, and those that they stream.
// Both end where the batch row's keys end.
DEVICE int held_away(int away) { return HOLDS_KEYS ? 0 : away; }
DEVICE int streamed_away(int away) { return HOLDS_KEYS ? away : 0; }
// The position where the batch row's first period begins. Here `away` is that
// of held rows, less the rows that a document lacks.
DEVICE int origin_of(const hopper_launch *run, int away) {
  int low = run->low - away;
  if (!away) return run->origin;
  return run->grid ? floor_to(greater(low, 0), run->grid) : low;
}
// The number of a tile's row 0 in the call.
DEVICE int row_at(const hopper_launch *run, const tile *x) {
  return x->position - run->first + held_away(x->away);
}

// The position from which residues count: 0, or the start of the segment if all
// branches have the same one.
DEVICE int base_of(const hopper_launch *run, int position) {
  return SHIFTS && run->relative ? floor_to(position, run->interval) : 0;
}

// The first position after `at` where one of `segments` begins.
DEVICE int next_border(const hopper_launch *run, unsigned segments, int at) {
  int next = HOPPER_FAR;
  for (int i = 0; segments >> i; i++)
    if (segments >> i & 1 && run->segments[i])
      next = lesser(next, floor_to(at, run->segments[i]) + run->segments[i]);
  return next;
}

// The rows of tile t among the positions low .. high - 1.
DEVICE void tile_rows(const hopper_launch *run, int t, int low, int high,
                      int at, int stride, tile *x) {
  x->position = first_from(low, at, stride) + t * run->tile_rows * stride;
  x->rows = lesser(rows_between(x->position, high, stride), run->tile_rows);
}

// The same if several segments cut low .. high - 1 into cells: t counts the
// tiles of all these cells.
DEVICE void tile_among(const hopper_launch *run, const hopper_class *k, int t,
                       int low, int high, int at, tile *x) {
  x->rows = 0;
  while (low < high) {
    int end = lesser(next_border(run, k->crossing, low), high);
    int rows = rows_between(first_from(low, at, k->stride), end, k->stride);
    int tiles = (rows + run->tile_rows - 1) / run->tile_rows;
    if (t < tiles) {
      tile_rows(run, t, low, end, at, k->stride, x);
      break;
    }
    t -= tiles;
    low = end;
  }
}

// Finds tile *t of a section of documents: its class and instance, its number in its
// interval, and how far behind the document's first period that begins. Returns false if
// another shape has the head, or where the batch row is -1: there are no more sections.
DEVICE bool tile_of_documents(const hopper_launch *run, int section, int *t, int *from,
                              tile *x) {
  const int *tiles = run->document_tiles + 4 * section;
  int interval = tiles[1];
  x->batch = tiles[0];
  x->klass = (short)tiles[2];
  int first = SHIFTS ? interval % run->intervals * run->interval_instances : 0;
  x->instance = run->by_interval[first + *t];
  *t = tiles[3];
  *from = interval * run->interval;
  return x->batch >= 0 &&
         run->instances[x->instance].shape == run->classes[x->klass].shape;
}

// The same of other calls, whose classes are looked for from class c on.
DEVICE bool tile_of_section(const hopper_launch *run, int section, int c, int classes,
                            int *t, int *from, tile *x) {
  while (--classes && *t >= run->classes[c + 1].first) c++;
  const hopper_class *k = &run->classes[c];
  const hopper_shape *s = &run->shapes[k->shape];
  *t -= k->first;
  int each = k->cells * k->tiles * (EACH_PHASE ? k->phases : 1);
  int pairs = run->section * s->share, pair;
  if (run->spread) {
    pair = *t % pairs;
    *t = each - 1 - *t / pairs;
  } else {
    pair = *t / each;
    *t -= pair * each;
  }
  int block = section / run->shares;
  int instance = s->instance + (section - block * run->shares) * s->share;
  block = block * run->section + pair / s->share;
  x->klass = (short)c;
  x->instance = (short)(instance + pair % s->share);
  x->batch = block / run->periods;
  *from = (block - x->batch * run->periods) * run->period +
          (SHIFTS ? run->instances[x->instance].interval * run->interval : 0);
  return x->batch < run->batches;
}

// Finds the rows of tile t of a class and instance in the interval that begins `from`
// behind the batch row's first period. Returns false if it has none.
DEVICE bool tile_in(const hopper_launch *run, int t, int from, tile *x) {
  const hopper_class *k = &run->classes[x->klass];
  int away = away_of(run, x->batch);
  int lead = held_away(away) - held_late(run, x->batch), first = run->low - lead;
  int low = origin_of(run, lead) + from;
  int at = k->offset + run->instances[x->instance].shift +
           (SHIFTS && run->relative ? low : 0);
  if (EACH_PHASE) { // the phases of a tile follow one another
    at += t % k->phases;
    t /= k->phases;
  }
  if (DOCUMENTS) { // computed again to save registers
    away = away_of(run, x->batch);
    first = run->low - held_away(away) + held_late(run, x->batch);
  }
  if (!NESTED && k->crossing) {
    tile_among(run, k, t, greater(low, first),
               lesser(low + run->interval, run->high - away), at, x);
  } else {
    int cell = t / k->tiles;
    low += cell * k->cell;
    tile_rows(run, t - cell * k->tiles, greater(low, first),
              lesser(low + k->cell, run->high - away), at, k->stride, x);
  }
  x->away = DOCUMENTS ? 0 : away_of(run, x->batch);
  return x->rows > 0;
}

// Finds tile t of a section: its class (from class c on), instance and rows.
// Returns false if it lies beyond the end of the call.
DEVICE bool tile_find(const hopper_launch *run, int t, int c, int classes,
                      int section, tile *x) {
  int from;
  bool some = has_documents(run)
                  ? tile_of_documents(run, section, &t, &from, x)
                  : tile_of_section(run, section, c, classes, &t, &from, x);
  return some && tile_in(run, t, from, x);
}

// Finds the packed rows of a tile; false: it has none. They are in the last
// tile of a cell, if their class has that many rows there.
DEVICE bool packed_find(const hopper_launch *run, const tile *x, tile *packed) {
  const hopper_class *k = &run->classes[x->klass], *g;
  if (!k->packed_class) return false;
  int low = floor_to(x->position, k->cell);
  int high = lesser(low + k->cell, run->high - x->away);
  if (x->position + run->tile_rows * k->stride < high) return false;
  packed->klass = (short)(k->packed_class - 1);
  g = &run->classes[packed->klass];
  packed->batch = x->batch;
  packed->away = x->away;
  packed->instance = x->instance;
  tile_rows(run, g->tiles, greater(low, run->low - x->away), high,
            g->offset + run->instances[x->instance].shift, g->stride, packed);
  return packed->rows > 0;
}

// ---- keys ------------------------------------------------------------------

// How far segment i around a position reaches: its first position, or with
// `front` its end, negated. A smaller number reaches farther.
DEVICE int reach_of(const hopper_launch *run, int position, int i, bool front) {
  int s = run->segments[i], low = s ? floor_to(position, s) : -HOPPER_FAR;
  if (!front) return low;
  return s ? -lesser(low + s, run->keys) : -run->keys;
}

// The reach of the segment that is number `rank`, from 1 on, in the order from
// the farthest reach.
DEVICE int ranked(const hopper_launch *run, int position, unsigned segments,
                  int rank, bool front) {
  int found = -HOPPER_FAR - 1;
  while (rank > 0) {
    int next = HOPPER_FAR;
    for (int i = 0; segments >> i; i++) {
      int reach = reach_of(run, position, i, front);
      if (segments >> i & 1 && reach > found) next = lesser(next, reach);
    }
    found = next;
    for (int i = 0; segments >> i; i++)
      rank -= segments >> i & 1 && reach_of(run, position, i, front) == found;
  }
  return front ? -found : found;
}

// The positions low .. high - 1 from which a key range may take its keys. Query
// rows that are streamed may stand before position 0.
typedef struct key_bounds {
  int low, high;
} key_bounds;

DEVICE key_bounds shared_bounds(const hopper_launch *run, int position,
                                const hopper_key_range *p) {
  bool left = p->side == HOPPER_SHARED_LEFT;
  bool right = p->side == HOPPER_SHARED_RIGHT;
  key_bounds r;
  r.low = ranked(run, position, p->outer, p->inner + right, right);
  r.high = ranked(run, position, p->outer, p->inner + left, !left);
  return r;
}

// Assumes a batch row of M keys.
DEVICE key_bounds bounds_of(const hopper_launch *run, int position,
                            const hopper_key_range *p) {
  key_bounds r;
  if (!NESTED && p->side >= HOPPER_SHARED)
    return shared_bounds(run, position, p);
  r.low = -HOPPER_FAR;
  r.high = run->keys;
  if (p->outer) {
    r.low = floor_to(position, p->outer);
    r.high = lesser(r.high, r.low + p->outer);
  }
  if (p->side == HOPPER_WHOLE) return r;
  int hole = floor_to(position, p->inner);
  if (p->side == HOPPER_OTHER) {
    r.low += hole == r.low ? p->inner : 0;
    r.high = lesser(run->keys, r.low + p->inner);
  } else if (p->side == HOPPER_LEFT) {
    r.high = hole;
  } else {
    r.low = hole + p->inner;
  }
  return r;
}

DEVICE bool has_phases(const hopper_launch *run, const tile *x) {
  return EACH_PHASE && run->classes[x->klass].phases > 1;
}

// A position that has the residue of a key range's keys.
DEVICE int key_residue(const hopper_launch *run, const tile *x,
                       const hopper_key_range *p) {
  if (has_phases(run, x)) return x->position - p->offset;
  return p->offset + run->instances[x->instance].shift +
         base_of(run, x->position);
}

DEVICE int streamed_late(const tile *x) {
#if HOLDS_KEYS && DOCUMENTS
  return x->late;
#else
  (void)x;
  return 0;
#endif
}

// The run of a key range: from the first key that some row of the tile sees to
// the key range's end. Keys beyond the last row's window stay in the run if
// this call has rows at their positions. These rows see the keys, so the keys
// hold valid values. Otherwise, where windows end before the row itself, and where
// keys of a phase may have another's rows, the run ends with the window.
DEVICE key_run keys_inside(const hopper_launch *run, const tile *x,
                           const hopper_key_range *p, key_bounds in) {
  key_run r;
  int last = x->position + (x->rows - 1) * run->classes[x->klass].stride;
  int from = run->key_low - streamed_away(x->away) + streamed_late(x);
  int low = greater(greater(in.low, p->low), greater(from, x->position - p->left));
  int high = lesser(lesser(in.high, p->high), run->key_high - x->away);
  r.position = first_from(low, key_residue(run, x, p), p->stride);
  r.count = 0;
  if (high > run->high || (BACK_WINDOWS && p->right < 0) || has_phases(run, x))
    high = lesser(high, last + p->right + 1);
  if (ROW_RANGES && (x->position >= p->row_high || last < p->row_low))
    return r;
  if (r.position <= last + p->right)
    r.count = rows_between(r.position, high, p->stride);
  return r;
}

DEVICE key_run keys_of(const hopper_launch *run, const tile *x,
                       const hopper_key_range *p) {
  return keys_inside(run, x, p, bounds_of(run, x->position, p));
}

// ---- rows without keys -----------------------------------------------------

// A residue, shifted as in the tables of the instance's shape.
DEVICE int shape_residue(const hopper_launch *run, const hopper_instance *m,
                         int residue) {
  int at = residue - m->shift;
  return at < 0 ? at + run->residues : at;
}

// Whether rows of residue `at` (from shape_residue) are bare. `bare` is the
// shape's bit set, which repeats, so that `at` may be any number below
// `bare_period`.
DEVICE bool is_bare(const hopper_launch *run, unsigned long long bare, int at) {
  return run->residues > HOPPER_PERIOD ? at != 0 : bare >> at & 1;
}
// `at` for the row that is `rows` (at most 32) further on.
DEVICE int bare_behind(const hopper_launch *run, int at, int rows) {
  at += rows;
  return at < run->bare_period ? at : at - run->bare_period;
}

// The call's rows low .. high - 1 in one interval, or all rows of a batch row
// if residues do not shift. low may be before the first row. The interval's
// instances stand in `by_interval` from `instance` on.
typedef struct bare_interval {
  int batch, away, low, high, instance;
  int late; // the first row of a document
} bare_interval;

DEVICE bare_interval interval_find(const hopper_launch *run, int block) {
  bare_interval x;
  x.batch = SHIFTS ? block / run->row_intervals : block;
  x.away = away_of(run, x.batch);
  x.late = late_of(run, x.batch);
  x.low = x.instance = 0;
  x.high = run->queries;
  if (SHIFTS && run->shifts) {
    block -= x.batch * run->row_intervals;
    x.low =
        origin_of(run, x.away - x.late) - run->first + x.away + block * run->interval;
    x.high = lesser(x.high, x.low + run->interval);
    x.instance = block % run->intervals * run->interval_instances;
  }
  return x;
}

// The residue of a row in an interval.
DEVICE int row_residue(const hopper_launch *run, const bare_interval *x,
                       int row) {
  int position = run->first - x->away + row;
  int n = (position - base_of(run, position)) % run->residues;
  return n < 0 ? n + run->residues : n;
}

// A span: rows of one instance inside an interval. `at` is the residue of its
// first row, from shape_residue.
typedef struct bare_span {
  int row, rows, batch, instance, at;
} bare_span;

// Finds span t. The spans of all heads at the same rows follow one another.
DEVICE bare_span span_find(const hopper_launch *run, int t) {
  bare_span x;
  int instances = run->interval_instances, place = t / instances;
  int block = place / run->interval_spans;
  bare_interval interval = interval_find(run, block);
  int row =
      interval.low + (place - block * run->interval_spans) * run->span_rows;
  x.batch = interval.batch;
  x.instance = run->by_interval[interval.instance + t - place * instances];
  x.row = greater(row, interval.late);
  x.rows = lesser(interval.high, row + run->span_rows) - x.row;
  x.at = shape_residue(run, &run->instances[x.instance],
                       row_residue(run, &interval, x.row));
  if (has_documents(run)) { // where the rows stand in the tensors
    x.row += queries_shift(run, x.batch);
    x.batch = 0;
  }
  return x;
}

// A set of boxes: `box_rows` rows of one phase of the tensor maps, of all heads
// in an interval. Either all of these rows of a head are bare or none. The
// heads are `instances` entries of `by_interval` from `instance` on; 0: nothing
// to do.
typedef struct zero_boxes {
  int row, phase, batch, residue, instance, instances;
} zero_boxes;

// Finds set t. The last box of an interval ends with the interval and repeats
// some rows of the box before. Only in the last interval of all may a box
// extend beyond the map, where TMA stores nothing.
DEVICE zero_boxes boxes_find(const hopper_launch *run, int t) {
  zero_boxes x;
  int block = t / run->interval_boxes;
  bare_interval interval = interval_find(run, block);
  t -= block * run->interval_boxes;
  int group = t / run->residues, from = group * run->box_rows;
  int n = interval.low + t - group * run->residues;
  bool some = n + from * run->residues < interval.high;
  x.batch = interval.batch;
  x.row = from;
  x.phase = n;
  x.residue = row_residue(run, &interval, n);
  x.instance = interval.instance;
  x.instances = some ? run->interval_instances : 0;
  if (SHIFTS) {
    int rows = rows_between(n, interval.high, run->residues),
        low = n / run->residues;
    if (interval.high < run->queries) from = lesser(from, rows - run->box_rows);
    x.row = low + from;
    x.phase = n - low * run->residues;
  }
  return x;
}

// ---- rows that need a state ------------------------------------------------

// Returns n / d exactly for 0 <= n < 2^31, from the ratio and shift of d
// (hopper_live_rows).
DEVICE int quotient_by(int n, unsigned ratio, int shift) {
  return (int)(2ull * n * ratio >> 32 >> shift);
}

// Whether another pass or shard may still compute a head's row there.
DEVICE bool is_live(const hopper_launch *run, int position, int head) {
  bool kept = run->live_count < 0;
#ifdef __CUDACC__
#pragma unroll 1
#endif
  for (int i = 0; i < run->live_count; i++) {
    const hopper_live_rows *k = &run->live[i];
    int low = quotient_by(position, k->segment_ratio, k->segment_shift) *
              k->segment;
    int inside = position - low;
    int residue = inside - quotient_by(inside, k->dilation_ratio,
                                       k->dilation_shift) * k->dilation;
    kept |= residue == run->live_phase[i * run->heads + head] &&
            (greater(low, position - k->left) < k->low ||
             lesser(low + k->segment, position + k->right + 1) > k->high);
  }
  return kept;
}

#endif
