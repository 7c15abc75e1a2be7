// hopper_produce.cuh - the producing warpgroup: plans and copies.
//
// In: the launch. Out: the stream of blocks for the consumers: queries, keys
// and values in shared memory, and a message for each tile and block.
#pragma once

// ---- the planner -----------------------------------------------------------

// A plan tells the loader of one tile, or of more runs of its keys: a head of
// {what, runs, key head, tile} and the tile's message, then the runs. A run is
// {position, keys, row in the map, where} and {left, right, bias, 1 / stride};
// the loader moves it on. PLAN_SORTED: blocks in the order of their positions,
// so that what a warpgroup of a causal tile cannot see comes last.
//
// Behind the head stands what the guests' warpgroup is told: {position of row 0,
// stride, rows, runs that they read, the first ones} and {row, phase, map,
// position of the last row}; no rows: there are none.
enum { PLAN_TILE = 1, PLAN_LAST = 2, PLAN_END = 4, PLAN_SORTED = 8 }; // what
enum { PLAN_FINISH = 8 };                            // shift; hopper_finish
enum { WHERE_MAP = 12, WHERE_STRIDE = 16 };          // shifts; phase below
DEVICE u32 plan_of(u32 base, u32 stage) {
  return base + AT_PLAN + stage * PLAN_BYTES;
}
// Where the barriers of plan number `plans` stand, asked anew each time: kept,
// it would be one of the registers that the loops have none left of.
DEVICE u32 plan_barrier(u32 base, u32 at, u32 plans) {
  asm volatile("" : "+r"(plans));
  return base + at + 8 * (plans & 1);
}

// Run n of a plan, or room for it.
DEVICE u32 run_at(u32 plan, int n) { return plan + PLAN_HEAD + n * RUN_BYTES; }
// How many runs the guests read.
DEVICE int runs_joined(u32 plan) {
  return GUESTS ? shared_word(plan + 60) : 0;
}

// A row number as the maps count.
struct map_row {
  int row, phase, map;
};
DEVICE map_row map_row_of(int n, int stride, int slot, int rest) {
  int row = n / stride, phase = n - row * stride;
  return {row, phase, slot * 2 + (phase >= rest)};
}

// The guests of a tile that is planned, if any: row 0 is that of the tile's first
// warpgroup, as if it had theirs as well.
DEVICE void plan_guests(const hopper_launch &run, u32 plan) {
  const int from = 64 * (WARPGROUPS - 1);
  tile x, g;
  x.klass = shared_word(plan + 4);
  x.member = shared_word(plan + 8);
  x.away = shared_word(plan + 12);
  x.position = shared_word(plan + 16);
  if (!guests_find(&run, &x, &g)) {
    shared_store(plan + 48, 0, 0, 0, 0);
    return;
  }
  const hopper_class &k = run.classes[g.klass];
  map_row at = map_row_of(row_at(&run, &g), k.stride, k.slot,
                          run.query_rest[k.slot]);
  shared_store(plan + 64, at.row - from, at.phase, at.map,
               g.position + (g.rows - 1) * k.stride);
  shared_store(plan + 48, g.position - from * k.stride, k.stride,
               g.rows + from, run.classes[shared_word(plan + 4)].joined);
}

// The tile's message; also its class, member and keys, behind the plan's head.
DEVICE void plan_tile(const hopper_launch &run, const tile &x, u32 plan) {
  const hopper_class &k = run.classes[x.klass];
  map_row at = map_row_of(row_at(&run, &x), k.stride, k.slot,
                          run.query_rest[k.slot]);
  shared_store(plan + 32, at.row, at.phase, at.map, x.batch);
  shared_store(plan + 16, x.position, k.stride, x.rows,
               run.members[x.member].head);
  shared_store(plan, 0, x.klass, x.member, x.away);
}

// Piece number `at` of the tile's class. Those that guests read come first, and
// are the last of the class.
DEVICE const hopper_piece *plan_piece(const hopper_launch &run, u32 plan,
                                      int at) {
  const hopper_class &k = run.classes[shared_word(plan + 4)];
  if (runs_joined(plan)) at = k.pieces - 1 - at;
  return &run.pieces[k.piece + at];
}

// The run of this lane of the pieces from `from` on; none: no keys. The tile is
// read bit by bit, for want of registers.
DEVICE key_run plan_run(const hopper_launch &run, int from, u32 plan) {
  tile x;
  int at = thread_index() % 32;
  if (at >= PLAN_RUNS) return {0, 0};
  at += from;
  x.klass = shared_word(plan + 4);
  if (at >= run.classes[x.klass].pieces) return {0, 0};
  const hopper_piece *p = plan_piece(run, plan, at);
  x.position = shared_word(plan + 16);
  key_bounds in = bounds_of(&run, x.position, p);
  x.away = shared_word(plan + 12);
  x.member = shared_word(plan + 8);
  x.rows = shared_word(plan + 24);
  return keys_inside(&run, &x, p, in);
}

// One run of keys a lane, those without keys left out; their number. A tile
// whose rows must be written begins with one in any case, a block of hidden
// keys.
DEVICE int plan_runs(const hopper_launch &run, int from, u32 plan,
                     bool begun) {
  key_run keys = plan_run(run, from, plan);
  u32 lane = thread_index() % 32;
  u32 all = __ballot_sync(~0u, keys.count > 0);
  if (!all && !begun && !run.members[shared_word(plan + 8)].finish) all = 1;
  if (all >> lane & 1) {
    u32 to = run_at(plan, __popc(all & ((1u << lane) - 1)));
    const hopper_piece &p = *plan_piece(run, plan, from + lane);
    if (keys.count <= 0) keys = {0, 0};
    map_row at = map_row_of(keys.position - run.key_low, p.stride, p.slot,
                            run.key_rest[p.slot]);
    shared_store(to, keys.position, keys.count, at.row,
                 at.phase | at.map << WHERE_MAP | p.stride << WHERE_STRIDE);
    shared_store(to + 16, p.left, p.right, __float_as_int(p.bias),
                 __float_as_int(__fdividef(1, p.stride)));
  }
  if (int joined = runs_joined(plan)) {
    __syncwarp(); // all have asked whether there are
    if (lane == 0)
      shared_set(plan + 60, __popc(all & ((1u << joined) - 1)));
  }
  return __popc(all);
}

// The next tile's number. A block claims no tile before there is room for its
// plan, or the last ones would wait in a busy block's queue.
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
  barrier_arrive(plan_barrier(base, AT_PLAN_FULL, plans)); // each for its part
}

// Whether all runs of a plan end at the same distance from the query.
DEVICE bool is_sorted(u32 plan, int runs) {
  int lane = thread_index() % 32, right = shared_word(run_at(plan, 0) + 20);
  if (lane < runs && shared_word(run_at(plan, lane) + 20) != right)
    right = HOPPER_FAR;
  return __all_sync(~0u, right < HOPPER_FAR);
}

// Plan number `plans`, of a tile from its piece `from` on. Returns where the
// next plan of the tile goes on, or 0. A tile begins with its first plan that
// has runs. Without any its rows are written all the same, or stand as other
// passes left them.
DEVICE int plan_part(const hopper_launch &run, u32 base, u32 &plans, int from,
                     u32 tiles, bool &begun) {
  u32 plan = plan_of(base, plans & 1);
  int next = from + PLAN_RUNS;
  if (next >= run.classes[shared_word(plan + 4)].pieces) next = 0;
  int runs = plan_runs(run, from, plan, begun);
  const hopper_member &m = run.members[shared_word(plan + 8)];
  int head = m.head / run.group;
  __syncwarp(); // the runs of all lanes are there
  if (!runs && !begun) return next;
  int what = (begun ? 0 : PLAN_TILE) | (next ? 0 : PLAN_LAST) |
             (is_sorted(plan, runs) ? PLAN_SORTED : 0) |
             m.finish << PLAN_FINISH;
  plan_send(base, plans++, what, runs, head, tiles);
  begun = true;
  return next;
}

// Waits until the loader has done with the plan two before number `plans`,
// which lies where that one goes.
DEVICE void wait_plan(u32 base, u32 plans) {
  barrier_wait(plan_barrier(base, AT_PLAN_EMPTY, plans), ~plans >> 1 & 1);
}

#if PAIRED
#include "hopper_pair_plan.cuh"
#else
// The next plan of a tile, from its piece `from` on. Returns where the one
// behind it goes on, or 0; `begun`: there is something to do.
DEVICE int plan_next(const hopper_launch &run, u32 base, const tile &x,
                     u32 &plans, int from, u32 tiles, bool &begun) {
  plan_tile(run, x, plan_of(base, plans & 1));
  __syncwarp();
  if (GUESTS) {
    plan_guests(run, plan_of(base, plans & 1));
    __syncwarp();
  }
  return plan_part(run, base, plans, from, tiles, begun);
}
#endif

// Tiles in their order: the first by the block's number, the next ones by a
// counter. Where a block has few of them, it claims the next one when all keys
// of the last are on their way and no sooner: a block in a long tile must not
// sit on another. The last block to finish leaves the counters as it found them.
DEVICE void make_plans(const hopper_launch &run, u32 base) {
  const u32 few = 8; // masks take longer to plan than a few blocks to multiply
  u32 plans = 0, tiles = 0;
  bool begun = false;
  for (int t = blockIdx.x, from = 0; t < run.tiles;) {
    wait_plan(base, plans);
    tile x;
    if (tile_find(&run, t % run.section_tiles, 0,
                  run.class_count, t / run.section_tiles,
                  &x)) {
      from = plan_next(run, base, x, plans, from, tiles, begun);
      if (from) continue;
      if (begun)
        wait_plan(base, plans + (!PAIRED && run.tiles < few * grid_size()));
      tiles += begun;
      begun = false;
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

// ---- the loader ------------------------------------------------------------

// What the lanes of the loading warp carry from block to block.
struct loader {
  const hopper_launch &run;
  u32 base;
  u32 blocks; // that were loaded
  u32 plan;   // address
  int what;   // of the plan
  int hidden; // keys behind the end of the last block's run
};
DEVICE u32 stage_of(const loader &l) { return l.blocks % STAGES; }
DEVICE u32 phase_of(const loader &l) { return l.blocks / STAGES & 1; }
DEVICE u32 slot_of(const loader &l) { return l.blocks % (2 * STAGES); }
DEVICE u32 message_of(const loader &l) {
  return message_of(l.base, slot_of(l));
}
DEVICE u32 tile_number(const loader &l) { return shared_word(l.plan + 12); }

// What is told of a tile, or of its guests, to one or all warpgroups: {x: row 0,
// z: map} of `at` and the batch row.
DEVICE void tell_tile(const loader &l, u32 message, int4 t, int4 at, int batch) {
  int finish = shared_word(l.plan) >> PLAN_FINISH;
  shared_store(message + 16, at.x, at.y, at.z | finish << TILE_FINISH, batch);
  shared_store(message, t.x, t.y, t.z, t.w);
}

// The queries of warpgroup w.
DEVICE void load_rows(const loader &l, int w, u32 stage, int4 at, int head,
                      int batch) {
  u32 full = l.base + AT_QUERY_FULL + 8 * stage;
  u32 to = l.base + AT_QUERY + (stage * WARPGROUPS + w) * QUERY_BYTES;
#pragma unroll
  for (int c = 0; c < HEAD_WIDTH / CHUNK; c++)
    load_box(to + c * (64 * CHUNK * 2), &l.run.q[0][0] + at.z, full, c * CHUNK,
             at.x + w * 64, at.y, head, batch, KEEP_FIRST);
}

// Queries of a tile, one box a warpgroup, and the tile's message.
DEVICE void load_queries(loader &l) {
  u32 tile = tile_number(l), stage = query_stage(tile);
  u32 message = l.base + AT_TILE + tile % TILE_SLOTS * TILE_BYTES;
  barrier_wait(l.base + AT_QUERY_EMPTY + 8 * stage, query_parity(tile) ^ 1);
  int4 at = shared_load(l.plan + 32), t = shared_load(l.plan + 16);
  int boxes = (t.z + 63) / 64, joined = runs_joined(l.plan) ? 1 : 0;
  barrier_expect(l.base + AT_QUERY_FULL + 8 * stage,
                 (boxes + joined) * QUERY_BYTES);
#pragma unroll 1
  for (int w = 0; w < boxes; w++) load_rows(l, w, stage, at, t.w, at.w);
#pragma unroll 1
  for (int w = 0; w < (GUESTS ? WARPGROUPS : 1); w++)
    tell_tile(l, message + w * 32, t, at, at.w);
  if (!joined) return;
  int head = t.w, batch = at.w;
  at = shared_load(l.plan + 64);
  t = shared_load(l.plan + 48);
  t.w = head;
  tell_tile(l, message + (WARPGROUPS - 1) * 32, t, at, batch);
  load_rows(l, WARPGROUPS - 1, stage, at, head, batch);
}

// The keys or values of a block, when their stage is free.
template <int width, int chunk>
DEVICE void load_tile(u32 to, u32 full, u32 empty, u32 phase,
                      const hopper_map *maps, int4 at) {
  const hopper_map *map =
      maps + (at.y >> WHERE_MAP & ((1 << (WHERE_STRIDE - WHERE_MAP)) - 1));
  at.y &= (1 << WHERE_MAP) - 1;
  barrier_wait(empty, phase);
  barrier_expect(full, TILE_KEYS * width * 2);
#pragma unroll
  for (int c = 0; c < width / chunk; c++)
    load_box(to + c * TILE_KEYS * chunk * 2, map, full, c * chunk, at.x, at.y,
             at.z, at.w, KEEP_LAST);
}

// Until the stage of the next block's keys is free.
DEVICE void wait_stage(const loader &l) {
  barrier_wait(l.base + AT_KEY_EMPTY + 8 * stage_of(l), phase_of(l) ^ 1);
}

// The keys of the block whose message was told last, {row, where, head, batch}.
DEVICE void load_keys(const loader &l, int4 at) {
  u32 stage = stage_of(l);
  if (BARE) shared_count(l.base + AT_PACE, 1);
  load_tile<HEAD_WIDTH, CHUNK>(
      l.base + AT_KEY + stage * KEY_BYTES, l.base + AT_KEY_FULL + 8 * stage,
      l.base + AT_KEY_EMPTY + 8 * stage, phase_of(l) ^ 1, &l.run.k[0][0], at);
}

#if PAIRED
#include "hopper_pair_load.cuh"
#else
#include "hopper_load.cuh"
#endif

// Nothing follows.
DEVICE void tell_end(const loader &l) {
  u32 stage = stage_of(l);
  if (BARE) shared_count(l.base + AT_PACE, 1 << 30); // the rest at once
  shared_store(message_of(l),
               BLOCK_END | BLOCK_NEW |
                   tile_number(l) % TILE_SLOTS << BLOCK_TILE |
                   l.hidden << BLOCK_HIDDEN,
               0, 0, 0);
  tell(l.base, slot_of(l));
  wait_stage(l);
  barrier_arrive(l.base + AT_KEY_FULL + 8 * stage);
}

DEVICE void load_plans(const hopper_launch &run, u32 base) {
  bool lead = thread_index() % 32 == 0;
  loader l = {run, base, 0, 0, 0, 0};
  for (u32 plans = 0;; plans++) {
    l.plan = plan_of(base, plans & 1);
    barrier_wait(plan_barrier(base, AT_PLAN_FULL, plans), plans >> 1 & 1);
    l.what = shared_word(l.plan);
    if (l.what & PLAN_END) break;
    if (l.what & PLAN_TILE && lead) load_queries(l);
    load_runs(l);
    __syncwarp();
    if (lead || ALL_ARRIVE)
      barrier_arrive(plan_barrier(base, AT_PLAN_EMPTY, plans));
  }
  if (lead) tell_end(l);
}

// Values follow the messages, by a thread of their own: their stages come free
// half a block after those of the keys, which must not wait for them.
DEVICE void load_values(const hopper_launch &run, u32 base) {
  for (ring<2 * STAGES> told = {0};; told.next()) {
    u32 slot = told.stage(), stage = slot % STAGES, phase = slot / STAGES;
    u32 message = message_of(base, slot);
    barrier_wait(base + AT_TOLD + 8 * slot, told.phase());
    if (shared_word(message) & BLOCK_END) break;
    load_tile<VALUE_WIDTH, VALUE_CHUNK>(
        base + AT_VALUE + stage * VALUE_BYTES,
        base + AT_VALUE_FULL + 8 * stage, base + AT_VALUE_EMPTY + 8 * stage,
        phase ^ !(LATE_VALUES && stage == STAGES - 1), &run.v[0][0],
        shared_load(message + 32));
  }
}
