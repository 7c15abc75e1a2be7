// hopper_plan.cuh - the planner warp of the producer.
//
// In: the launch. Out: plans: for each tile in turn the runs of keys that its
// rows meet. The loader (hopper_produce.cuh) turns them into blocks.
#pragma once

#include "templates/hopper/hopper_pairs_of.cuh"

// A *plan* is the planner's message to the loader. It describes a tile, or
// further runs of a tile's keys. A *run* is a range of keys with one stride. A
// plan has a head {what, runs, key head, tile}, the tile's message, then the
// runs. A run is {position, keys, row in the map, where} and {left, right,
// bias, 1 / stride}; with ROW_RANGES the last word is that of rows_seeing.
// PLAN_SORTED: the loader takes blocks in the order of their
// positions. The keys that a warpgroup of a causal tile cannot see then come
// last.
//
// With tile packing the message of the packed rows' warpgroup stands before the
// runs. It is {position of row 0, stride, rows, number of leading runs that the
// packed rows read} and {row, phase, map, position of the last row}. Rows are 0
// if there are no packed rows.
//
// `what` has these bits, and hopper_finish from bit PLAN_FINISH on. `where` has
// the phase in its low bits, then the map and the stride.
// PLAN_CLOSES: the tile's last plan has a run without keys, whose block ends the
// tile.
enum {
  PLAN_TILE = 1, PLAN_LAST = 2, PLAN_END = 4, PLAN_SORTED = 8, PLAN_CLOSES = 16
};
enum { PLAN_FINISH = 8 };
enum { WHERE_MAP = 12, WHERE_STRIDE = 16 };
enum { AT_LATE = 48 }; // behind the messages: tile.late
DEVICE u32 plan_of(u32 base, u32 stage) {
  return base + AT_PLAN + stage * PLAN_BYTES;
}
// The address of the mbarrier of plan number `plans`. The asm makes the
// compiler compute it at each use, since the loops have no register left for
// it.
DEVICE u32 plan_barrier(u32 base, u32 at, u32 plans) {
  asm volatile("" : "+r"(plans));
  return base + at + 8 * (plans & 1);
}

// The address of run n of a plan.
DEVICE u32 run_at(u32 plan, int n) { return plan + PLAN_HEAD + n * RUN_BYTES; }
// The number of runs that the packed rows read.
DEVICE int runs_packed(u32 plan) {
  return TILE_PACKING ? shared_word(plan + 60) : 0;
}

// A row number in the terms of the tensor maps (hopper_maps).
struct map_row {
  int row, phase, map;
};
DEVICE map_row map_row_of(int n, int stride, int slot, int rest) {
  int row = n / stride, phase = n - row * stride;
  return {row, phase, slot * 2 + (phase >= rest)};
}

// A tile of queries streams keys of one head. A tile of keys streams the query
// heads of its key head in turn, and `from`, the key range where a plan begins,
// also counts these heads.
#if HOLDS_KEYS
DEVICE int first_range(int from) { return from % HOPPER_KEY_RANGES; }
DEVICE int streamed_head(const hopper_launch &run, int head, int from) {
  return head * run.group + from / HOPPER_KEY_RANGES;
}
// Where the plans of the next head begin; 0: there is no further head.
DEVICE int next_head(const hopper_launch &run, int from) {
  int next = from / HOPPER_KEY_RANGES + 1;
  return next < run.group ? next * HOPPER_KEY_RANGES : 0;
}
#else
DEVICE int first_range(int from) { return from; }
DEVICE int streamed_head(const hopper_launch &run, int head, int) {
  return head / run.group;
}
DEVICE int next_head(const hopper_launch &, int) { return 0; }
#endif

// Writes the packed rows of the planned tile into the plan, if it has any. Row
// 0 is that of the tile's first warpgroup, as if the packed rows had rows there
// as well.
DEVICE void plan_packed(const hopper_launch &run, u32 plan) {
  const int from = 64 * (WARPGROUPS - 1);
  tile x, g;
  x.klass = shared_word(plan + 4);
  x.instance = shared_word(plan + 8);
  x.away = shared_word(plan + 12);
  x.position = shared_word(plan + 16);
  if (!packed_find(&run, &x, &g)) {
    shared_store(plan + 48, 0, 0, 0, 0);
    return;
  }
  const hopper_class &k = run.classes[g.klass];
  map_row at = map_row_of(row_at(&run, &g), k.stride, k.slot,
                          run.query_rest[k.slot]);
  shared_store(plan + 64, at.row - from, at.phase, at.map,
               g.position + (g.rows - 1) * k.stride);
  shared_store(plan + 48, g.position - from * k.stride, k.stride, g.rows + from,
               run.classes[shared_word(plan + 4)].packed_ranges);
}

// Writes the tile's message into the plan. Until the plan is sent, its head
// holds the shift of streamed rows in the tensors, the tile's class, instance and
// `away`.
DEVICE void plan_tile(const hopper_launch &run, const tile &x, u32 plan) {
  const hopper_class &k = run.classes[x.klass];
  int batch = x.batch, row = row_at(&run, &x), away = x.away, shift = 0;
  shared_store(plan + 16, x.position, k.stride, x.rows,
               run.instances[x.instance].head);
  if (DOCUMENTS) row += held_away(away = away_of(&run, batch));
#if ALIKE // the order in which ptxas keeps everything in registers
  if (HOLDS_KEYS) shared_set(plan + AT_LATE, late_of(&run, batch));
  if (has_documents(&run)) {
    shift = streamed_shift(&run, batch);
    row += held_shift(&run, batch);
    batch = row / run.batch_rows; // of the tensors
    row -= batch * run.batch_rows;
    shift -= batch * run.batch_rows;
  }
  shared_store(plan, shift, x.klass, x.instance, away);
#else
  if (has_documents(&run)) shift = streamed_shift(&run, batch);
  shared_store(plan, shift, x.klass, x.instance, away);
  if (DOCUMENTS && HOLDS_KEYS) shared_set(plan + AT_LATE, late_of(&run, batch));
  if (has_documents(&run)) {
    row += held_shift(&run, batch);
    batch = 0;
  }
#endif
  map_row at = map_row_of(row, k.stride, k.slot, run.query_rest[k.slot]);
  shared_store(plan + 32, at.row, at.phase, at.map, batch);
}

// Key range number `at` of the tile's class. With packed rows the order is
// reversed: they read the last key ranges of the class, and their runs must
// come first.
DEVICE const hopper_key_range *plan_range(const hopper_launch &run, u32 plan,
                                          int at) {
  const hopper_class &k = run.classes[shared_word(plan + 4)];
  if (runs_packed(plan)) at = k.ranges - 1 - at;
  return &run.ranges[k.range + at];
}

// The run of this lane, for the key ranges from number `from` on; no keys: no
// run. The tile is read from the plan field by field to save registers.
DEVICE key_run plan_run(const hopper_launch &run, int from, u32 plan) {
  tile x;
  int at = thread_index() % 32;
  if (at >= PLAN_RUNS) return {0, 0};
  at += first_range(from);
  x.klass = shared_word(plan + 4);
  if (at >= run.classes[x.klass].ranges) return {0, 0};
  const hopper_key_range *p = plan_range(run, plan, at);
  x.position = shared_word(plan + 16);
  key_bounds in = bounds_of(&run, x.position, p);
  x.away = shared_word(plan + 12);
  x.instance = shared_word(plan + 8);
  x.rows = shared_word(plan + 24);
#if HOLDS_KEYS && DOCUMENTS
  x.late = shared_word(plan + AT_LATE);
#endif
  return keys_inside(&run, &x, p, in);
}

// Which rows of the planned tile a key range is of: from the number in the low
// half of the word to that in the high half, which is beyond the tile where the
// key range has no further end.
DEVICE int rows_seeing(const hopper_launch &run, const hopper_key_range &p,
                       u32 plan) {
  const int beyond = 1 << 14;
  int position = shared_word(plan + 16), step = shared_word(plan + 20);
  int last = position + (shared_word(plan + 24) - 1) * step;
  int from = (max(p.row_low - position, 0) + step - 1) / step;
  int to = (max(p.row_high - position, 0) + step - 1) / step;
  return (p.row_low > last ? 0 : from) |
         (p.row_high > last ? beyond : to) << 16;
}

// Writes a run for each lane that has keys, and returns their number. A tile
// whose rows must be written has a first run in any case, if need be with a
// block of hidden keys. `closes`: the plan has a run in any case.
DEVICE int plan_runs(const hopper_launch &run, int from, u32 plan, bool begun,
                     bool closes) {
  key_run keys = plan_run(run, from, plan);
  u32 lane = thread_index() % 32;
  u32 all = __ballot_sync(~0u, keys.count > 0);
  if (!all && !begun && !run.instances[shared_word(plan + 8)].finish) all = 1;
  if (!all && closes) all = 1;
  if (all >> lane & 1) {
    u32 to = run_at(plan, __popc(all & ((1u << lane) - 1)));
    const hopper_key_range &p = *plan_range(run, plan, first_range(from) + lane);
    int low = run.key_low - streamed_away(shared_word(plan + 12));
    int row = keys.position - low + (DOCUMENTS ? shared_word(plan) : 0);
    if (keys.count <= 0) { // the first row of all: there is a map of its phase
      keys = {low, 0};
      row = 0;
    }
    map_row at = map_row_of(row, p.stride, p.slot, run.key_rest[p.slot]);
    shared_store(to, keys.position, keys.count, at.row,
                 at.phase | at.map << WHERE_MAP | p.stride << WHERE_STRIDE);
    shared_store(to + 16, p.left, p.right, __float_as_int(p.bias),
                 ROW_RANGES ? rows_seeing(run, p, plan)
                            : __float_as_int(__fdividef(1, p.stride)));
  }
  if (int packed = runs_packed(plan)) {
    __syncwarp(); // every lane has called runs_packed before
    if (lane == 0) shared_set(plan + 60, __popc(all & ((1u << packed) - 1)));
  }
  return __popc(all);
}

// The tile scheduler: the next tile's number, from a global counter. A thread
// block claims a tile only when its plan has room. Otherwise the last tiles
// would wait behind a busy block.
DEVICE int claim_tile(const hopper_launch &run) {
  int t = 0;
  if (thread_index() % 32 == 0) t = count_up(run.counters) + grid_size();
  return __shfl_sync(~0u, t, 0);
}

DEVICE void plan_send(u32 base, u32 plans, int what, int runs, int head,
                      u32 tiles) {
  __syncwarp();
  if (thread_index() % 32 == 0)
    shared_store(plan_of(base, plans & 1), what, runs, head, tiles);
  barrier_arrive(plan_barrier(base, AT_PLAN_FULL, plans)); // every lane arrives
                                                           // for its own writes
}

// Whether all runs of a plan have the same finite right bound of the window.
DEVICE bool is_sorted(u32 plan, int runs) {
  int lane = thread_index() % 32, right = shared_word(run_at(plan, 0) + 20);
  if (lane < runs && shared_word(run_at(plan, lane) + 20) != right)
    right = HOPPER_FAR;
  return __all_sync(~0u, right < HOPPER_FAR);
}

// Writes and sends plan number `plans`, for a tile from its key range `from`
// on. Returns the first key range of the tile's next plan, or 0. A tile begins
// with its first plan that has runs. A tile without any run is sent all the
// same if its rows must be written. It is dropped if its rows keep the state of
// other passes.
DEVICE int plan_part(const hopper_launch &run, u32 base, u32 &plans, int from,
                     u32 tiles, bool &begun) {
  u32 plan = plan_of(base, plans & 1);
  int next = from + PLAN_RUNS;
  if (first_range(from) + PLAN_RUNS >=
      run.classes[shared_word(plan + 4)].ranges)
    next = next_head(run, from);
  bool closes = BACKWARD && begun && !next;
  int runs = plan_runs(run, from, plan, begun, closes);
  const hopper_instance &m = run.instances[shared_word(plan + 8)];
  int head = streamed_head(run, m.head, from);
  __syncwarp(); // the runs of all lanes are written
  if (!runs && !begun) return next;
  int what = (begun ? 0 : PLAN_TILE) | (next ? 0 : PLAN_LAST) |
             (is_sorted(plan, runs) ? PLAN_SORTED : 0) |
             (closes ? PLAN_CLOSES : 0) | m.finish << PLAN_FINISH;
  plan_send(base, plans++, what, runs, head, tiles);
  begun = true;
  return next;
}

// Waits until the loader has finished plan `plans - 2`, whose slot plan number
// `plans` takes.
DEVICE void wait_plan(u32 base, u32 plans) {
  barrier_wait(plan_barrier(base, AT_PLAN_EMPTY, plans), ~plans >> 1 & 1);
}

#if PAIRWISE
#include "templates/hopper/hopper_pair_plan.cuh"
#else
// Makes the next plan of a tile, from its key range `from` on. Returns the
// first key range of the plan after it, or 0. `begun`: the tile has a plan.
DEVICE int plan_next(const hopper_launch &run, u32 base, const tile &x,
                     u32 &plans, int from, u32 tiles, bool &begun) {
  plan_tile(run, x, plan_of(base, plans & 1));
  __syncwarp();
  if (TILE_PACKING) {
    plan_packed(run, plan_of(base, plans & 1));
    __syncwarp();
  }
  return plan_part(run, base, plans, from, tiles, begun);
}
#endif

// The number in its section of the tile at place t.
DEVICE int tile_at(const hopper_launch &run, int t) {
#if LISTS
  if (run.order) return run.order[t];
#endif
  return t % run.section_tiles;
}

// The planner's loop over tiles in their order: the first tile has the number
// of the thread block, later ones come from claim_tile. With few tiles for each
// thread block, a block claims its next tile only when the last tile's keys are
// all being copied. A block in a long tile must not hold back another tile. The
// last block to finish resets the counters.
DEVICE void make_plans(const hopper_launch &run, u32 base) {
  const u32 few = 8; // with masks, planning takes longer than the products of a
                     // few blocks
  u32 plans = 0, tiles = 0;
  bool begun = false;
  for (int t = blockIdx.x, from = 0; t < run.tiles;) {
    wait_plan(base, plans);
    tile x;
    if (tile_find(&run, tile_at(run, t), 0, run.class_count,
                  t / run.section_tiles, &x)) {
      from = plan_next(run, base, x, plans, from, tiles, begun);
      if (from) continue;
      if (begun)
        wait_plan(base, plans + (!PAIRWISE && run.tiles < few * grid_size()));
      tiles += begun;
      begun = false;
    } else if (DOCUMENTS && x.batch < 0) {
      break;
    }
    t = claim_tile(run);
  }
  wait_plan(base, plans);
  plan_send(base, plans, PLAN_END, 0, 0, tiles);
  if (thread_index() % 32 == 0 &&
      count_up(run.counters + 1) == grid_size() - 1) {
    run.counters[0] = 0;
    run.counters[1] = 0;
  }
}
