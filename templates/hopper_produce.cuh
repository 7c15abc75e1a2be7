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
enum { PLAN_TILE = 1, PLAN_LAST = 2, PLAN_END = 4, PLAN_SORTED = 8 }; // what
enum { PLAN_FINISH = 8 };                            // shift; hopper_finish
enum { WHERE_MAP = 12, WHERE_STRIDE = 16 };          // shifts; phase below
DEVICE u32 plan_of(u32 base, u32 stage) {
  return base + AT_PLAN + stage * PLAN_BYTES;
}

// A row number as the maps count.
struct map_row {
  int row, phase, map;
};
DEVICE map_row map_row_of(int n, int stride, int slot, int rest) {
  int row = n / stride, phase = n - row * stride;
  return {row, phase, slot * 2 + (phase >= rest)};
}

// The tile's message; also its class and member, behind the plan's head.
DEVICE void plan_tile(const hopper_launch &run, const tile &x, u32 plan) {
  const hopper_class &k = run.classes[x.klass];
  map_row at = map_row_of(x.position - (run.keys - run.queries), k.stride,
                          k.slot, run.query_rest[k.slot]);
  shared_store(plan + 32, at.row, at.phase, at.map, x.batch);
  shared_store(plan + 16, x.position, k.stride, x.rows,
               run.members[x.member].head);
  shared_store(plan, 0, x.klass, x.member, 0);
}

// The run of this lane of the pieces from `from` on; none: no keys. The tile is
// read bit by bit, for want of registers.
DEVICE key_run plan_run(const hopper_launch &run, int from, u32 plan) {
  tile x;
  int at = thread_index() % 32;
  if (at >= PLAN_RUNS) return {0, 0};
  at += from;
  x.klass = shared_word(plan + 4);
  const hopper_class &k = run.classes[x.klass];
  if (at >= k.pieces) return {0, 0};
  const hopper_piece *p = &run.pieces[k.piece + at];
  x.position = shared_word(plan + 16);
  key_bounds in = bounds_of(&run, x.position, p);
  x.member = shared_word(plan + 8);
  x.rows = shared_word(plan + 24);
  return keys_inside(&run, &x, p, in);
}

// One run of keys a lane, those without keys left out; their number. A tile's
// first plan has one in any case: a block of hidden keys begins the tile, and
// its rows are written even if they see nothing.
DEVICE int plan_runs(const hopper_launch &run, int from, u32 plan) {
  key_run keys = plan_run(run, from, plan);
  u32 lane = thread_index() % 32;
  u32 all = __ballot_sync(~0u, keys.count > 0);
  if (!all && !from) all = 1;
  if (all >> lane & 1) {
    u32 to = plan + 48 + __popc(all & ((1u << lane) - 1)) * 32;
    const hopper_piece &p =
        run.pieces[run.classes[shared_word(plan + 4)].piece + from + lane];
    if (keys.count <= 0) keys = {0, 0};
    map_row at = map_row_of(keys.position, p.stride, p.slot,
                            run.key_rest[p.slot]);
    shared_store(to, keys.position, keys.count, at.row,
                 at.phase | at.map << WHERE_MAP | p.stride << WHERE_STRIDE);
    shared_store(to + 16, p.left, p.right, __float_as_int(p.bias),
                 __float_as_int(__fdividef(1, p.stride)));
  }
  return __popc(all);
}

// The next tile's number. A block claims no tile before there is room for its
// plan, or the last ones would wait in a busy block's queue.
DEVICE int claim_tile(const hopper_launch &run) {
  int t = 0;
  if (thread_index() % 32 == 0) t = count_up(run.counters) + gridDim.x;
  return __shfl_sync(~0u, t, 0);
}

DEVICE void plan_send(u32 base, u32 plans, int what, int runs, int head,
                      u32 tiles) {
  __syncwarp();
  if (thread_index() % 32 == 0)
    shared_store(plan_of(base, plans & 1), what, runs, head, tiles);
  barrier_arrive(base + AT_PLAN_FULL + 8 * (plans & 1)); // each for its part
}

// Whether all runs of a plan end at the same distance from the query.
DEVICE bool is_sorted(u32 plan, int runs) {
  int lane = thread_index() % 32, right = shared_word(plan + 48 + 20);
  if (lane < runs && shared_word(plan + 48 + lane * 32 + 20) != right)
    right = HOPPER_FAR;
  return __all_sync(~0u, right < HOPPER_FAR);
}

// Plan number `plans`, of a tile from its piece `from` on. Returns where the
// next plan of the tile goes on, or 0.
DEVICE int plan_part(const hopper_launch &run, u32 base, u32 plans, int from,
                     u32 tiles) {
  u32 plan = plan_of(base, plans & 1);
  int next = from + PLAN_RUNS;
  if (next >= run.classes[shared_word(plan + 4)].pieces) next = 0;
  int runs = plan_runs(run, from, plan);
  const hopper_member &m = run.members[shared_word(plan + 8)];
  int head = m.head / run.group;
  __syncwarp(); // the runs of all lanes are there
  int what = (from ? 0 : PLAN_TILE) | (next ? 0 : PLAN_LAST) |
             (is_sorted(plan, runs) ? PLAN_SORTED : 0) |
             m.finish << PLAN_FINISH;
  plan_send(base, plans, what, runs, head, tiles);
  return next;
}

#if PAIRED
#include "hopper_pair_plan.cuh"
#else
// The next plan of a tile, from its piece `from` on. Returns where the one
// behind it goes on, or 0.
DEVICE int plan_next(const hopper_launch &run, u32 base, const tile &x,
                     u32 &plans, int from, u32 tiles) {
  plan_tile(run, x, plan_of(base, plans & 1));
  __syncwarp();
  return plan_part(run, base, plans++, from, tiles);
}
#endif

// Tiles in their order: the first by the block's number, the next ones by a
// counter. The last block to finish leaves the counters as it found them.
DEVICE void make_plans(const hopper_launch &run, u32 base) {
  u32 plans = 0, tiles = 0;
  for (int t = blockIdx.x, from = 0; t < run.tiles;) {
    barrier_wait(base + AT_PLAN_EMPTY + 8 * (plans & 1), ~plans >> 1 & 1);
    tile x;
    if (tile_find(&run, t % run.section_tiles, 0,
                  run.class_count - run.bare_count, t / run.section_tiles,
                  &x)) {
      from = plan_next(run, base, x, plans, from, tiles);
      if (from) continue;
      tiles++;
      barrier_wait(base + AT_PLAN_EMPTY + 8 * (plans & 1), ~plans >> 1 & 1);
    }
    t = claim_tile(run);
  }
  barrier_wait(base + AT_PLAN_EMPTY + 8 * (plans & 1), ~plans >> 1 & 1);
  plan_send(base, plans, PLAN_END, 0, 0, tiles);
  if (thread_index() % 32 == 0 &&
      count_up(run.counters + 1) == gridDim.x - 1) {
    run.counters[0] = 0;
    run.counters[1] = 0;
  }
}

// ---- the loader ------------------------------------------------------------

// Few registers are left to it: what a plan says is read anew at each use.
struct loader {
  const hopper_launch &run;
  u32 base;
  ring<STAGES> block;
  int hidden; // keys behind the end of the last block's run
  u32 plan;   // address
};
DEVICE u32 tile_number(const loader &l) { return shared_word(l.plan + 12); }

// Queries of a tile, one box a warpgroup, and the tile's message.
DEVICE void load_queries(loader &l) {
  int4 at = shared_load(l.plan + 32);
  const hopper_map *map = &l.run.q[0][0] + at.z;
  u32 tile = tile_number(l), stage = query_stage(tile);
  u32 full = l.base + AT_QUERY_FULL + 8 * stage;
  u32 to = l.base + AT_QUERY + stage * (WARPGROUPS * QUERY_BYTES);
  u32 message = l.base + AT_TILE + tile % TILE_SLOTS * 32;
  barrier_wait(l.base + AT_QUERY_EMPTY + 8 * stage, query_parity(tile) ^ 1);
  int finish = shared_word(l.plan) >> PLAN_FINISH;
  shared_store(message + 16, at.x, at.y, at.z | finish << TILE_FINISH, at.w);
  int4 t = shared_load(l.plan + 16);
  shared_store(message, t.x, t.y, t.z, t.w);
  int boxes = (t.z + 63) / 64;
  barrier_expect(full, boxes * QUERY_BYTES);
#pragma unroll 1
  for (int w = 0; w < boxes; w++)
#pragma unroll
    for (int c = 0; c < HEAD_WIDTH / CHUNK; c++)
      load_box(to + w * QUERY_BYTES + c * (64 * CHUNK * 2), map, full,
               c * CHUNK, at.x + w * 64, at.y, t.w, at.w, KEEP_FIRST);
}

// Which warpgroups take part in a block of a run and which of them must mask.
// One that sees no more of a tile's last run may leave, but for the tile's
// first block: each writes its rows.
DEVICE int block_flags(const loader &l, u32 run, int position, int count,
                       bool may_leave) {
  int end = position +
            (TILE_KEYS - 1) * (shared_word(run + 12) >> WHERE_STRIDE);
  int left = shared_word(run + 16), right = shared_word(run + 20);
  int low = shared_word(l.plan + 16), stride = shared_word(l.plan + 20);
  int flags = 0;
#pragma unroll 1
  for (int w = 0; w * 64 < shared_word(l.plan + 24); w++) {
    int high = low + 63 * stride;
    if (!may_leave || position <= high + right)
      flags |= 1 << (BLOCK_TAKES + w);
    if (count < TILE_KEYS || end > low + right || position < high - left)
      flags |= 1 << (BLOCK_MASKS + w);
    low = high + stride;
  }
  return flags;
}

// The message of a block, that begins at `at`: {position, keys, row in the map,
// where}, as the run stood before it moved on.
DEVICE void tell_block(loader &l, u32 run, int4 at, bool last) {
  u32 message = message_of(l.base, l.block.stage, l.block.phase ^ 1);
  int what = shared_word(l.plan), both = PLAN_LAST | PLAN_SORTED;
  int flags = block_flags(l, run, at.x, at.y,
                          (what & both) == both && !(what & PLAN_TILE));
  flags |= (what & PLAN_TILE ? BLOCK_NEW : 0) | (last ? BLOCK_LAST : 0) |
           tile_number(l) % TILE_SLOTS << BLOCK_TILE |
           l.hidden << BLOCK_HIDDEN;
  shared_store(message, flags, shared_word(run + 24), at.x,
               shared_word(run + 28));
  shared_store(message + 16, shared_word(run + 16), shared_word(run + 20),
               at.y, 0);
  shared_store(message + 32, at.z, at.w, shared_word(l.plan + 8),
               shared_word(l.plan + 44));
  tell(l.base, l.block.stage, l.block.phase ^ 1);
  l.hidden = max(TILE_KEYS - at.y, 0);
}

// The keys or values of a block, when their stage is free.
template <int width, int chunk>
DEVICE void load_tile(u32 to, u32 full, u32 empty, u32 phase,
                      const hopper_map *maps, u32 message) {
  int4 at = shared_load(message + 32);
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

// The keys of the block that was told last.
DEVICE void load_keys(loader &l) {
  u32 stage = l.block.stage, phase = l.block.phase;
  load_tile<HEAD_WIDTH, CHUNK>(l.base + AT_KEY + stage * KEY_BYTES,
                               l.base + AT_KEY_FULL + 8 * stage,
                               l.base + AT_KEY_EMPTY + 8 * stage, phase,
                               &l.run.k[0][0],
                               message_of(l.base, stage, phase ^ 1));
  l.block.next();
}

// Whether a run has a key left that the last row of the tile sees; a tile's
// first block is loaded in any case.
DEVICE bool is_seen(const loader &l, u32 run) {
  int last = shared_word(l.plan + 16) +
             (shared_word(l.plan + 24) - 1) * shared_word(l.plan + 20);
  return shared_word(run + 4) > 0 &&
         shared_word(run) <= last + shared_word(run + 20);
}

// The run to go on with: the first that is seen, or of all of them the one
// whose next block comes first. 0: none.
DEVICE u32 choose_run(const loader &l) {
  u32 best = 0, end = l.plan + 48 + shared_word(l.plan + 4) * 32;
  int position = 0;
  for (u32 run = l.plan + 48; run < end; run += 32) {
    if (!is_seen(l, run) || (best && shared_word(run) >= position)) continue;
    best = run;
    position = shared_word(run);
    if (!(shared_word(l.plan) & PLAN_SORTED)) break;
  }
  return best;
}

// Whether the tile has no block behind the runs as they stand.
DEVICE bool is_last(const loader &l) {
  return shared_word(l.plan) & PLAN_LAST && !choose_run(l);
}

// The next block of a run; the run goes on behind it, and the tile is begun.
DEVICE void load_block(loader &l, u32 run) {
  int4 at = shared_load(run);
  shared_store(run, at.x + TILE_KEYS * (at.w >> WHERE_STRIDE),
               at.y - TILE_KEYS, at.z + TILE_KEYS, at.w);
  tell_block(l, run, at, QUERY_STAGES == 1 && is_last(l));
  shared_set(l.plan, shared_word(l.plan) & ~PLAN_TILE);
  load_keys(l);
}

#if PAIRED
#include "hopper_pair_load.cuh"
#endif

DEVICE void load_plans(const hopper_launch &run, u32 base) {
  loader l = {run, base, {0, 1}, 0, 0};
  for (u32 plans = 0;; plans++) {
    l.plan = plan_of(base, plans & 1);
    barrier_wait(base + AT_PLAN_FULL + 8 * (plans & 1), plans >> 1 & 1);
    int what = shared_word(l.plan);
    if (what & PLAN_END) break;
    if (what & PLAN_TILE) load_queries(l);
#if PAIRED
    for (int i = 0; i < shared_word(l.plan + 4); i++)
      load_run(l, l.plan + 48 + i * RUN_BYTES);
#else
    if (what & PLAN_TILE && !choose_run(l)) load_block(l, l.plan + 48);
    for (u32 next; (next = choose_run(l));) load_block(l, next);
#endif
    barrier_arrive(base + AT_PLAN_EMPTY + 8 * (plans & 1));
  }
  u32 stage = l.block.stage;
  shared_store(message_of(base, stage, l.block.phase ^ 1),
               BLOCK_END | BLOCK_NEW |
                   tile_number(l) % TILE_SLOTS << BLOCK_TILE |
                   l.hidden << BLOCK_HIDDEN,
               0, 0, 0);
  tell(base, stage, l.block.phase ^ 1);
  barrier_wait(base + AT_KEY_EMPTY + 8 * stage, l.block.phase);
  barrier_arrive(base + AT_KEY_FULL + 8 * stage);
}

// Values follow the messages, by a thread of their own: their stages come free
// half a block after those of the keys, which must not wait for them.
DEVICE void load_values(const hopper_launch &run, u32 base) {
  for (ring<2 * STAGES> told = {0, 0};; told.next()) {
    u32 stage = told.stage % STAGES, phase = told.stage / STAGES;
    u32 message = message_of(base, stage, phase);
    barrier_wait(base + AT_TOLD + 8 * told.stage, told.phase);
    if (shared_word(message) & BLOCK_END) break;
    load_tile<VALUE_WIDTH, VALUE_CHUNK>(
        base + AT_VALUE + stage * VALUE_BYTES,
        base + AT_VALUE_FULL + 8 * stage, base + AT_VALUE_EMPTY + 8 * stage,
        phase ^ 1, &run.v[0][0], message);
  }
}
