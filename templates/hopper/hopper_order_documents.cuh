// hopper_order_documents.cuh - the tiles of a packed call, those with many keys first.
//
// In: where documents begin. Out: `document_tiles` of the launch. Rows of documents alone
// have tiles there, so that short documents cost what they have. One thread block makes
// them by a counting sort. The tiles of one level stand in any order.
#pragma once
#if DOCUMENTS

#include "templates/hopper/hopper_levels.cuh"
#include "templates/hopper/hopper_walk.cuh"

// A section as document_tiles has it, and its level; -1: no head has rows there.
struct document_tile {
  int document, interval, klass, tile, level;
};

// The shared memory of the block.
struct document_order {
  int count[HOPPER_LEVELS];             // tiles of a level; then where its next one goes
  int begin[HOPPER_ORDER_THREADS + 1];  // tiles of the documents before, of a block's
  int warp[HOPPER_ORDER_THREADS / 32];  // of a warp's documents
  int each;                             // tiles of a whole interval
  int documents;                        // how many there may be
  document_tile kept[HOPPER_ORDER_KEPT]; // the first ones
};
static_assert(sizeof(document_order) <= HOPPER_ORDER_BYTES, "as the host counts");

// The positions that a document's rows have from its first period's begin on.
DEVICE int document_span(const hopper_launch &run, int document) {
  int rows =
      (HOLDS_KEYS ? keys_at(&run, document) : queries_of(&run, document)).count;
  int away = away_of(&run, document);
  int from = origin_of(&run, held_away(away) - held_late(&run, document));
  return rows ? max(0, run.high - away - from) : 0;
}

// The tiles of a class in the first `span` positions of an interval, at most, and those
// of all classes.
DEVICE int class_tiles(const hopper_launch &run, const hopper_class &k, int span) {
  int cells = min(span, run.interval) / k.cell, rest = min(span, run.interval) % k.cell;
  int rows = (rest + k.stride - 1) / k.stride;
  return (cells * k.tiles + (rows + run.tile_rows - 1) / run.tile_rows) * k.phases;
}
DEVICE int interval_tiles(const hopper_launch &run, int span) {
  int tiles = 0;
#pragma unroll 1
  for (int c = 0; c < run.class_count; c++)
    tiles += class_tiles(run, run.classes[c], span);
  return tiles;
}
DEVICE int document_tiles(const hopper_launch &run, int document, int each) {
  int span = document_span(run, document);
  int whole = span / run.interval;
  return whole * each + interval_tiles(run, span - whole * run.interval);
}

// The sum of a number over the threads of the block, up to the caller's.
DEVICE int sum_of_threads(int sum, document_order &o) {
  int n = (int)threadIdx.x;
  sum = sum_of_lanes(sum);
  if (n % 32 == 31) o.warp[n / 32] = sum;
  __syncthreads();
  for (int w = 0; w < n / 32; w++) sum += o.warp[w];
  return sum;
}

#if ALIKE
// Counts the documents that begin in a warp's rows, and writes these rows to `to`, unless
// it is null. Sets `falls` where rows do not rise.
DEVICE int begins_of(const hopper_launch &run, int first, int end, int *to, bool &falls) {
  const int GROUPS = HOPPER_ALIKE_ROWS / 32; // of rows, a lane each; their loads overlap
  int lane = thread_index() % 32, count = 0;
#pragma unroll 1
  for (int at = first; at < end; at += HOPPER_ALIKE_ROWS) {
    int own[GROUPS], before[GROUPS];
    unsigned opens = 0; // bit g: a batch row
    int from = at / run.batch_rows; // a batch row has no fewer rows than all groups
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      int row = min(at + 32 * g + lane, end - 1) - from * run.batch_rows;
      bool next = row >= run.batch_rows;
      row -= next ? run.batch_rows : 0;
      const int *x = run.alike + (from + next) * run.alike_batch + row * run.alike_step;
      own[g] = *x;
      before[g] = x[row ? -run.alike_step : 0];
      opens |= (row == 0) << g;
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      int row = at + 32 * g + lane;
      bool begins = row < end && (own[g] > before[g] || opens >> g & 1);
      unsigned all = __ballot_sync(~0u, begins);
      if (to && begins) to[count + __popc(all & ((1u << lane) - 1))] = row;
      count += __popc(all);
      falls = falls || own[g] < before[g];
    }
  }
  return count;
}

// Writes the offsets of the documents of `alike`, of which each warp has a range of rows.
DEVICE void find_documents(const hopper_launch &run, document_order &o) {
  const int WARPS = HOPPER_ORDER_THREADS / 32;
  int n = (int)threadIdx.x, rows = run.document_rows;
  int each = (rows + WARPS - 1) / WARPS;
  int first = min(rows, n / 32 * each), end = min(rows, first + each);
  int *offsets = (int *)run.documents;
  bool falls = false;
  int own = begins_of(run, first, end, nullptr, falls);
  int fall = sum_of_threads(falls, o);
  __syncthreads();
  int until = sum_of_threads(n % 32 ? 0 : own, o);
  if (n == HOPPER_ORDER_THREADS - 1) {
    bool mixed = fall || until > run.batches;
    o.documents = mixed ? 0 : until;
    *run.mixed = mixed;
  }
  __syncthreads();
  if (o.documents) begins_of(run, first, end, offsets + until - own, falls);
  for (int d = o.documents + n; d <= run.batches; d += HOPPER_ORDER_THREADS)
    offsets[d] = rows;
  __syncthreads();
}
#endif

// Sets `begin` for the documents from number `first` on, a thread each. Returns the
// number of their tiles.
DEVICE int begin_documents(const hopper_launch &run, int first, document_order &o) {
  int n = (int)threadIdx.x, document = first + n;
  int own = document < o.documents ? document_tiles(run, document, o.each) : 0;
  o.begin[n + 1] = sum_of_threads(own, o);
  if (n == 0) o.begin[0] = 0;
  __syncthreads();
  return o.begin[HOPPER_ORDER_THREADS];
}

// Entry number n of the documents from number `first` on.
DEVICE document_tile document_tile_of(const hopper_launch &run, int first, int n,
                                      const document_order &o) {
  int at = 0;
#pragma unroll 1
  for (int step = HOPPER_ORDER_THREADS / 2; step; step /= 2)
    if (o.begin[at + step] <= n) at += step;
  document_tile x = {first + at, 0, 0, n - o.begin[at], -1};
  int span = document_span(run, x.document), whole = span / run.interval;
  x.interval = min(x.tile / o.each, whole);
  x.tile -= x.interval * o.each;
  span -= x.interval * run.interval;
  for (int tiles; x.tile >= (tiles = class_tiles(run, run.classes[x.klass], span));
       x.klass++)
    x.tile -= tiles;
  return x;
}

// Whether some head may have rows in a tile.
DEVICE bool document_has(const hopper_launch &run, const document_tile &of) {
  const hopper_class &k = run.classes[of.klass];
  int t = of.tile / k.phases, cell = t / k.tiles, away = away_of(&run, of.document);
  int lead = held_away(away) - held_late(&run, of.document);
  int low = origin_of(&run, lead) + of.interval * run.interval + cell * k.cell;
  int rows = min(low + k.cell, run.high - away) - max(low, run.low - lead);
  return (t - cell * k.tiles) * run.tile_rows * k.stride < rows;
}

// The level of the tile of the first head of its class.
DEVICE int document_level(const hopper_launch &run, const document_tile &of) {
  const hopper_class &k = run.classes[of.klass];
  tile x;
  x.klass = (short)of.klass;
  x.instance = run.shapes[k.shape].instance;
  x.batch = of.document;
  if (!tile_in(&run, of.tile, of.interval * run.interval, &x)) return HOPPER_LEVELS - 1;
  x.away = away_of(&run, x.batch);
#if HOLDS_KEYS
  x.late = late_of(&run, x.batch);
#endif
  int keys = 0;
#pragma unroll 1
  for (int i = 0; i < k.ranges; i++)
    keys += max(0, keys_of(&run, &x, &run.ranges[k.range + i]).count);
  return HOPPER_LEVELS - 1 - level_of(keys);
}

DEVICE void document_set(const hopper_launch &run, int place, const document_tile &x) {
  int *to = run.document_tiles + 4 * place;
  to[0] = x.document;
  to[1] = x.interval;
  to[2] = x.klass;
  to[3] = x.tile;
}

// Adds the tiles to the counts of their levels, or puts them where these point. Then the
// first ones of few documents are known.
DEVICE void sort_documents(const hopper_launch &run, bool places, document_order &o) {
  bool known = places && o.documents <= HOPPER_ORDER_THREADS;
#pragma unroll 1
  for (int first = 0; first < o.documents; first += HOPPER_ORDER_THREADS) {
    int tiles =
        known ? o.begin[HOPPER_ORDER_THREADS] : begin_documents(run, first, o);
#pragma unroll 1
    for (int n = (int)threadIdx.x; n < tiles; n += HOPPER_ORDER_THREADS) {
      document_tile x;
      if (known && n < HOPPER_ORDER_KEPT) {
        x = o.kept[n];
      } else {
        x = document_tile_of(run, first, n, o);
        if (document_has(run, x)) x.level = document_level(run, x);
        if (n < HOPPER_ORDER_KEPT) o.kept[n] = x;
      }
      if (x.level < 0) continue;
      int place = atomicAdd(&o.count[x.level], 1);
      if (places && place < run.document_room) document_set(run, place, x);
    }
    __syncthreads();
  }
}

DEVICE void order_documents(const hopper_launch &run, document_order &o) {
  int n = (int)threadIdx.x;
#if ALIKE
  find_documents(run, o);
#else
  if (n == 0) o.documents = run.batches;
#endif
  if (n < HOPPER_LEVELS) o.count[n] = 0;
  if (n == 0) o.each = interval_tiles(run, run.interval);
#pragma unroll 1
  for (int places = 0; places < 2; places++) {
    if (places && n < 32) begin_levels(o.count);
    __syncthreads();
    sort_documents(run, places, o);
  }
  n += o.count[HOPPER_LEVELS - 1];
  for (; n < run.document_room; n += HOPPER_ORDER_THREADS)
    document_set(run, n, {-1, 0, 0, 0, 0});
}
#endif
