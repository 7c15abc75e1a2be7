// hopper_clear.cuh - rows that no branch selects: O is 0, lse -infinity.
//
// In: the launch. A warp of the producing warpgroup clears them while the others
// compute. State that other passes left stands as it is.
//
// Zeros leave shared memory as boxes, one residue of one head each, those of all
// heads in turn: side by side in memory, they come to it together. A warp's
// stores, one waiting for the other, take several times as long beside the others'
// exponentials; lse has nothing else. The warp gets to issue so seldom that what
// finds a set of boxes or a span counts as well: sets are high, spans long.
#pragma once

DEVICE void clear_unit(int4 *to) { *to = make_int4(0, 0, 0, 0); }
DEVICE void clear_unit(float *to) { *to = MINUS_INFINITY; }

// What stands at `to` of row `mine` of a span, and of every `each`-th behind it,
// where that is bare; `step` from one to the next.
template <typename unit>
DEVICE void clear_each(const hopper_launch &run, const bare_span &x, u64 bare,
                       int mine, int each, unit *to, long long step) {
  int at = bare_behind(&run, x.at, mine);
#pragma unroll 1
  for (; mine < x.rows; mine += each, to += step) {
    if (is_bare(&run, bare, at)) clear_unit(to);
    at = bare_behind(&run, at, each);
  }
}

// The same of lse: where 32 rows on all is as before, eight stores are on their
// way at once.
DEVICE void clear_lse(const hopper_launch &run, const bare_span &x, u64 bare,
                      float *to, int lane) {
  to += (x.row + lane) * run.lse_row;
  if (32 % run.residues || run.lse_row != 1) {
    clear_each(run, x, bare, lane, 32, to, 32 * run.lse_row);
    return;
  }
  if (!is_bare(&run, bare, bare_behind(&run, x.at, lane))) return;
#pragma unroll 1
  for (int left = x.rows - lane; left > 0; left -= 256, to += 256)
#pragma unroll
    for (int i = 0; i < 256; i += 32)
      if (i < left) clear_unit(to + i);
}

DEVICE void clear_span(const hopper_launch &run, const bare_span &x) {
  const int units = VALUE_DIM / 8, together = 32 / units; // of 16 bytes; rows
  const hopper_member &m = run.members[x.member];
  int lane = thread_index() % 32, mine = lane / units;
  u64 bare = run.shapes[m.shape].bare;
  if (m.finish) return;
  if (run.lse)
    clear_lse(run, x, bare,
              run.lse + x.batch * run.lse_batch + m.head * run.lse_head, lane);
  if (!run.boxes && mine < together)
    clear_each(run, x, bare, mine, together,
               (int4 *)((unsigned short *)run.o_data + x.batch * run.o_batch +
                        m.head * run.o_head + (x.row + mine) * run.o_row) +
                   lane % units,
               together * run.o_row / 8);
}

// Waits until the keys of so many blocks are on their way.
DEVICE void wait_blocks(u32 base, float blocks) {
  while (shared_peek(base + AT_PACE) < blocks) sleep_for(200);
}

// HOPPER_BOX_ROWS rows of a head.
DEVICE void store_zeros(const hopper_map *map, u32 base, int row, int phase,
                        int head, int batch) {
  const int few = HOPPER_ZERO_ROWS(VALUE_DIM);
#pragma unroll
  for (int i = 0; i < HOPPER_BOX_ROWS; i += few)
#pragma unroll
    for (int c = 0; c < VALUE_WIDTH; c += VALUE_CHUNK)
      store_box(map, base + AT_ZERO, c, row + i, phase, head, batch);
}

// Set t of boxes. `patient`: one is under way at a time, for copies of keys and
// values wait behind them.
DEVICE void clear_boxes(const hopper_launch &run, u32 base, int t,
                        bool patient) {
  zero_boxes x = boxes_find(&run, t);
  int lane = thread_index() % 32;
  const hopper_map *map = &run.zeros[x.phase >= run.box_rest];
#pragma unroll 1
  for (int first = 0; first < x.members; first += 32) {
    const hopper_member &m =
        run.members[run.by_home[x.member + min(first + lane, x.members - 1)]];
    bool bare = first + lane < x.members && !m.finish &&
                is_bare(&run, run.shapes[m.shape].bare,
                        shape_residue(&run, &m, x.residue));
    int head = m.head;
#pragma unroll 1
    for (u32 all = __ballot_sync(~0u, bare); all; all &= all - 1) {
      int to = __shfl_sync(~0u, head, __ffs(all) - 1);
      if (lane == 0)
#pragma unroll 1
        for (int i = 0; i < run.box_rows; i += HOPPER_BOX_ROWS) {
          store_zeros(map, base, x.row + i, x.phase, to, x.batch);
          if (!patient) continue;
          store_commit();
          store_wait_read();
        }
    }
  }
  store_commit();
}

// Rows before position 0, where nothing has segments. Where the call brings
// lengths, how many a batch row has of them is not known before: some blocks
// for each batch row, or the other way round.
DEVICE void clear_early(const hopper_launch &run) {
  const int units = VALUE_DIM / 8;
  int each = max(1, grid_size() / run.batches);
#pragma unroll 1
  for (int t = blockIdx.x; t < run.batches * each; t += grid_size()) {
    int batch = t / each, early = away_of(&run, batch) - run.first;
#pragma unroll 1
    for (int n = t - batch * each; n < early; n += each)
#pragma unroll 1
      for (int i = thread_index() % 32; i < run.home_members * units; i += 32) {
        const hopper_member &m = run.members[run.by_home[i / units]];
        if (m.finish) continue;
        clear_unit((int4 *)((unsigned short *)run.o_data +
                            batch * run.o_batch + n * run.o_row +
                            m.head * run.o_head) + i % units);
        if (run.lse && i % units == 0)
          clear_unit(run.lse + batch * run.lse_batch + n * run.lse_row +
                     m.head * run.lse_head);
      }
  }
}

// Dealt out in turn and with the blocks of keys: zeros all at once would hold
// those up. What is late, if all is to end together, comes as fast as it can, as
// do the boxes of wide heads, which are low and many.
DEVICE void clear_bare(const hopper_launch &run, u32 base) {
  for (int i = thread_index() % 32; i < ZERO_BYTES / 16; i += 32)
    shared_store(base + AT_ZERO + i * 16, 0, 0, 0, 0);
  proxy_fence();
  __syncwarp();
  const bool low = HOPPER_ZERO_ROWS(VALUE_DIM) < HOPPER_BOX_ROWS;
  for (u32 done = 0;; done++) {
    int t = blockIdx.x + done * gridDim.x;
    if (t >= max(run.spans, run.boxes)) break;
    wait_blocks(base, done * run.clear_pace);
    if (!PAIRED && t < run.boxes)
      clear_boxes(run, base, t, !low &&
                  shared_peek(base + AT_PACE) <
                      (done + 1) * (run.clear_pace * HOPPER_AHEAD));
    if (t >= run.spans || (run.boxes && !run.lse)) continue;
    clear_span(run, span_find(&run, t));
  }
  store_wait();
}

// By the last warp of the producing warpgroup.
DEVICE void clear_rows(const hopper_launch &run, u32 base) {
  if (run.early) clear_early(run);
  if (BARE) clear_bare(run, base);
}
