// hopper_produce.cuh - the loaders of the producer warpgroup.
//
// In: the planner's plans. Out: the stream of blocks for the consumers: queries,
// keys and values in shared memory, and a message for each tile and block.
#pragma once

#include "templates/hopper/hopper_plan.cuh"

// The state of the loading warp.
struct loader {
  const hopper_launch &run;
  u32 base;
  u32 blocks; // number of blocks loaded so far
  u32 plan;   // address of the current plan
  int what;   // the plan's flags
  int hidden; // keys of the last block that lie beyond its run
};
DEVICE u32 stage_of(const loader &l) { return l.blocks % STAGES; }
DEVICE u32 phase_of(const loader &l) { return l.blocks / STAGES & 1; }
DEVICE u32 slot_of(const loader &l) { return l.blocks % (2 * STAGES); }
DEVICE u32 message_of(const loader &l) {
  return message_of(l.base, slot_of(l));
}
DEVICE u32 tile_number(const loader &l) { return shared_word(l.plan + 12); }

// Writes a tile's message for one warpgroup or all: the tile's rows `t`; of
// `at`, row 0 and the map; the batch row.
DEVICE void write_tile_message(const loader &l, u32 message, int4 t, int4 at,
                               int batch) {
  int finish = shared_word(l.plan) >> PLAN_FINISH;
  shared_store(message + 16, at.x, at.y, at.z | finish << TILE_FINISH, batch);
  shared_store(message, t.x, t.y, t.z, t.w);
}

#if SCORE_SLOPES && !HOLDS_KEYS
// Writes the slope of a tile. The arguments are as in write_tile_message.
DEVICE void write_slope(const loader &l, int4 t, int4 at, int batch) {
  int away = first_row(t, at) + l.run.first - t.x;
  float slope = slope_of_products(l.run, pair_at(l.run, batch, t.w, away));
  shared_set(l.base + AT_SLOPE + tile_number(l) % TILE_SLOTS * 4,
             __float_as_int(slope));
}
#endif

// Copies the queries of warpgroup w, and backward the other tensor's rows.
DEVICE void load_rows(const loader &l, int w, u32 stage, int4 at, int head,
                      int batch) {
  u32 full = l.base + AT_QUERY_FULL + 8 * stage;
  u32 to = l.base + AT_QUERY + (stage * WARPGROUPS + w) * QUERY_BYTES;
#pragma unroll
  for (int c = 0; c < HEAD_WIDTH / CHUNK; c++)
    load_box(to + c * (64 * CHUNK * 2), &l.run.q[0][0] + at.z, full, c * CHUNK,
             at.x + w * 64, at.y, head, batch, KEEP_FIRST);
#if HELD_BYTES
  to = l.base + AT_HELD + (stage * WARPGROUPS + w) * HELD_BYTES;
#pragma unroll
  for (int c = 0; c < VALUE_WIDTH / VALUE_CHUNK; c++)
    load_box(to + c * (64 * VALUE_CHUNK * 2), &l.run.o[0][0] + at.z, full,
             c * VALUE_CHUNK, at.x + w * 64, at.y, head, batch, KEEP_FIRST);
#endif
}

// Copies the queries of a tile, one box for each warpgroup, and writes the
// tile's messages.
DEVICE void load_queries(loader &l) {
  u32 tile = tile_number(l), stage = query_stage(tile);
  u32 message = l.base + AT_TILE + tile % TILE_SLOTS * TILE_BYTES;
  barrier_wait(l.base + AT_QUERY_EMPTY + 8 * stage, query_parity(tile) ^ 1);
  int4 at = shared_load(l.plan + 32), t = shared_load(l.plan + 16);
  int boxes = (t.z + 63) / 64, packed = runs_packed(l.plan) ? 1 : 0;
  barrier_expect(l.base + AT_QUERY_FULL + 8 * stage,
                 (boxes + packed) * (QUERY_BYTES + HELD_BYTES));
#pragma unroll 1
  for (int w = 0; w < boxes; w++) load_rows(l, w, stage, at, t.w, at.w);
#pragma unroll 1
  for (int w = 0; w < (TILE_PACKING ? WARPGROUPS : 1); w++)
    write_tile_message(l, message + w * 32, t, at, at.w);
#if SCORE_SLOPES && !HOLDS_KEYS
  write_slope(l, t, at, at.w);
#endif
  if (!packed) return;
  int head = t.w, batch = at.w;
  at = shared_load(l.plan + 64);
  t = shared_load(l.plan + 48);
  t.w = head;
  write_tile_message(l, message + (WARPGROUPS - 1) * 32, t, at, batch);
  load_rows(l, WARPGROUPS - 1, stage, at, head, batch);
}

// Copies the keys or values of a block when their stage is free.
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

// Waits until the stage of the next block's keys is free.
DEVICE void wait_stage(const loader &l) {
  barrier_wait(l.base + AT_KEY_EMPTY + 8 * stage_of(l), phase_of(l) ^ 1);
}

// Copies the keys of the block whose message was sent last; at: {row, where,
// head, batch}.
DEVICE void load_keys(const loader &l, int4 at) {
  u32 stage = stage_of(l);
  if (BARE) shared_count(l.base + AT_PACE, 1);
  load_tile<HEAD_WIDTH, CHUNK>(
      l.base + AT_KEY + stage * KEY_BYTES, l.base + AT_KEY_FULL + 8 * stage,
      l.base + AT_KEY_EMPTY + 8 * stage, phase_of(l) ^ 1, &l.run.k[0][0], at);
}

#if PAIRWISE
#include "templates/hopper/hopper_pair_load.cuh"
#else
#include "templates/hopper/hopper_load.cuh"
#endif

// Ends the stream.
DEVICE void send_end(const loader &l) {
  u32 stage = stage_of(l);
  if (BARE) shared_count(l.base + AT_PACE, 1 << 30); // bare rows may be cleared
                                                     // at once
  shared_store(message_of(l),
               BLOCK_END | BLOCK_NEW |
                   tile_number(l) % TILE_SLOTS << BLOCK_TILE |
                   l.hidden << BLOCK_HIDDEN,
               0, 0, 0);
  message_arrive(l.base, slot_of(l));
  wait_stage(l);
  for (int i = 0; i < LOADERS; i++)
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
  if (lead) send_end(l);
}

#if CHECKS
// Looks at the values of a block in which windows hide pairs, as soon as they
// are there, and tells consumers whether some are not finite. The whole warp
// calls this for every block, since the mbarrier counts them.
DEVICE void check_values(u32 base, u32 message, u32 stage, u32 phase) {
  const int masks = (1 << WARPGROUPS) - 1;
  u32 lane = thread_index() % 32, sum = 0;
  if (shared_word(message) >> BLOCK_MASKS & masks) {
    int visible = min(shared_word(message + 24), TILE_KEYS);
    barrier_wait(base + AT_VALUE_FULL + 8 * stage, phase);
    sum = add_nothings(base + AT_VALUE + stage * VALUE_BYTES, visible, lane, 32);
  }
  bool bad = __any_sync(~0u, sum);
  if (lane) return;
  shared_set(base + AT_BAD + 4 * stage, bad);
  barrier_arrive(base + AT_CHECKED + 8 * stage);
}
#endif

// Copies the values, one block for each message. A separate thread does this,
// or a warp that looks at them or brings random words before. Stages of values
// are released half a block later than those of keys, and the keys must not wait
// for them.
DEVICE void load_values(const hopper_launch &run, u32 base) {
  const bool alone = LOADERS == 1 && !CHECKS;
  bool lead = alone || thread_index() % 32 == 0;
#if LOADERS > 1
  bool bad = false; // a value of the last block is not finite
#endif
  for (ring<2 * STAGES> sent = {0};; sent.next()) {
    u32 slot = sent.stage(), stage = slot % STAGES, phase = slot / STAGES;
    u32 message = message_of(base, slot);
    barrier_wait(base + AT_MESSAGE_FULL + 8 * slot, sent.phase());
    if (shared_word(message) & BLOCK_END) break;
#if LOADERS > 1
    load_words(run, base, slot, phase ^ 1, bad);
#endif
    if (lead)
      load_tile<VALUE_WIDTH, VALUE_CHUNK>(
          base + AT_VALUE + stage * VALUE_BYTES,
          base + AT_VALUE_FULL + 8 * stage, base + AT_VALUE_EMPTY + 8 * stage,
          phase ^ !(DELAYED_RELEASE && stage == STAGES - 1), &run.v[0][0],
          shared_load(message + 32));
    if (!alone) __syncwarp();
#if CHECKS
    check_values(base, message, stage, phase);
#endif
  }
}
