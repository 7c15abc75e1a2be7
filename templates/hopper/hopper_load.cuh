// hopper_load.cuh - the loader: cuts the runs of a plan into blocks.
//
// In: a plan. Out: for each block its message and the copy of its keys. Each
// lane of the warp holds one run of the plan. For each block, one lane writes
// the message, starts the copy and advances its run.
#pragma once

struct lane_run {
  int position, count; // the rest of the run
  int last;            // last position that the tile's last row sees
};
DEVICE u32 run_of(const loader &l) {
  return run_at(l.plan, thread_index() % 32);
}

// Whether rows from .. to - 1 of a tile are among those of rows_seeing.
DEVICE bool rows_cover(int rows, int from, int to) {
  return from >= (rows & 0xffff) && to <= rows >> 16;
}

// Which warpgroups take part in a block and which of them must mask. In the
// last plan of a sorted tile, a warpgroup leaves when it sees no further key.
// It stays for the tile's first block, since each warpgroup writes its rows.
// Most blocks are seen whole by all warpgroups.
DEVICE int block_flags(int4 tile, int position, int end, int count, int left,
                       int right, int rows, bool may_leave) {
  int groups = (tile.z + 63) / 64, low = tile.x, flags = 0;
  bool all = !ROW_RANGES || rows_cover(rows, 0, groups * 64);
  if (all && count >= TILE_KEYS && end <= low + right &&
      position >= low + (groups * 64 - 1) * tile.y - left)
    return ((1 << groups) - 1) << BLOCK_TAKES;
#pragma unroll 1
  for (int w = 0; w < groups; w++) {
    int high = low + 63 * tile.y;
    if (!may_leave || position <= high + right)
      flags |= 1 << (BLOCK_TAKES + w);
    if (count < TILE_KEYS || end > low + right || position < high - left ||
        (ROW_RANGES && !rows_cover(rows, w * 64, w * 64 + 64)))
      flags |= 1 << (BLOCK_MASKS + w);
    low = high + tile.y;
  }
  return flags;
}

// The flags of the packed rows' warpgroup. It takes part in all runs that its
// rows read, and counts each key once.
DEVICE int packed_flags(const loader &l, int position, int end, int count,
                        int left, int right) {
  const int w = WARPGROUPS - 1;
  int4 packed = shared_load(l.plan + 48);
  if (int(thread_index() % 32) >= packed.w) return 0;
  int low = packed.x + w * 64 * packed.y, high = low + 63 * packed.y;
  bool masks = count < TILE_KEYS || end > low + right || position < high - left;
  return 1 << (BLOCK_TAKES + w) | 1 << (BLOCK_ONCE + w) |
         masks << (BLOCK_MASKS + w);
}

// Writes a block's message except the keys' location. Only the lane that holds
// the run calls this. `last`: the block is the tile's last.
DEVICE void write_block_message(const loader &l, const lane_run &r, bool last) {
  const int both = PLAN_LAST | PLAN_SORTED;
  u32 message = message_of(l);
  int4 tile = shared_load(l.plan + 16), form = shared_load(run_of(l) + 16);
  int step = shared_word(run_of(l) + 12) >> WHERE_STRIDE;
  int end = r.position + (TILE_KEYS - 1) * step;
  bool may_leave =
      !BACKWARD && (l.what & (both | PLAN_TILE)) == both && !runs_packed(l.plan);
  int flags = block_flags(tile, r.position, end, r.count, form.x, form.y,
                          form.w, may_leave);
  if (TILE_PACKING)
    flags |= packed_flags(l, r.position, end, r.count, form.x, form.y);
  flags |= (l.what & PLAN_TILE ? BLOCK_NEW : 0) | (last ? BLOCK_LAST : 0) |
           tile_number(l) % TILE_SLOTS << BLOCK_TILE |
           l.hidden << BLOCK_HIDDEN;
  shared_store(message, flags, form.z, r.position, form.w);
  shared_store(message + 16, form.x, form.y, r.count, step);
}

// Sends the next block of this lane's run: its message, and the copy of its
// keys.
DEVICE void load_block(const loader &l, const lane_run &r, bool last) {
  write_block_message(l, r, last);
  int4 at = shared_load(run_of(l));
  at = make_int4(at.z + at.y - r.count, at.w, shared_word(l.plan + 8),
                 shared_word(l.plan + 44));
  shared_store(message_of(l) + 32, at.x, at.y, at.z, at.w);
  message_arrive(l.base, slot_of(l));
  load_keys(l, at);
}

DEVICE void run_move(const loader &l, lane_run &r) {
  r.position += TILE_KEYS * (shared_word(run_of(l) + 12) >> WHERE_STRIDE);
  r.count -= TILE_KEYS;
}
// Whether the run has a key left that the tile's last row sees.
DEVICE bool is_seen(const lane_run &r) {
  return r.count > 0 && r.position <= r.last;
}
// Whether the next block of lane `lane` is the tile's last.
DEVICE bool is_end(const loader &l, const lane_run &r, int lane) {
  lane_run next = r;
  if (thread_index() % 32 == lane) run_move(l, next);
  return !__any_sync(~0u, is_seen(next)) && l.what & PLAN_LAST;
}

DEVICE lane_run run_begin(const loader &l) {
  int lane = thread_index() % 32;
  if (lane >= shared_word(l.plan + 4)) return {0, 0, 0};
  int4 r = shared_load(run_of(l)), tile = shared_load(l.plan + 16);
  int last = tile.x + (tile.z - 1) * tile.y;
  if (lane < runs_packed(l.plan)) last = max(last, shared_word(l.plan + 76));
  return {r.x, r.y, last + shared_word(run_of(l) + 20)};
}

// Chooses the lane that sends the next block; -1: no lane has one left. It is
// the first lane whose run is still seen. With PLAN_SORTED it is the lane whose
// next block has the lowest position. Runs that packed rows read come before
// all others. A tile's first block is sent in any case.
DEVICE int choose_lane(const loader &l, const lane_run &r) {
  bool seen = is_seen(r);
  u32 all = __ballot_sync(~0u, seen);
  if (TILE_PACKING) {
    u32 packed = all & ((1u << runs_packed(l.plan)) - 1);
    if (packed) all = packed;
    seen = all >> thread_index() % 32 & 1;
  }
  if (all & (all - 1) && l.what & PLAN_SORTED) {
    int first = __reduce_min_sync(~0u, seen ? r.position : HOPPER_FAR * 2);
    all = __ballot_sync(~0u, seen && r.position == first);
  }
  if (!all && l.what & (PLAN_TILE | PLAN_CLOSES)) return 0;
  return __ffs(all) - 1;
}

// Sends all blocks of a plan.
DEVICE void load_runs(loader &l) {
  lane_run r = run_begin(l);
  for (int lane; (lane = choose_lane(l, r)) >= 0;) {
    bool last = SAYS_LAST && is_end(l, r, lane);
    if (ALL_ARRIVE) wait_stage(l); // each lane waits for itself
    if (thread_index() % 32 == lane) load_block(l, r, last);
    l.hidden = max(TILE_KEYS - __shfl_sync(~0u, r.count, lane), 0);
    if (thread_index() % 32 == lane) run_move(l, r);
    l.what &= ~(PLAN_TILE | PLAN_CLOSES);
    l.blocks++;
    __syncwarp(); // makes one lane's waits valid for the next lane
  }
}
