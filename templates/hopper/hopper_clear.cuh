// hopper_clear.cuh - clears bare rows, which no branch selects: O becomes 0 and
// lse -infinity. Rows that keep the state of other passes stay as they are.
//
// In: the launch. One warp of the producer warpgroup does this while the others
// compute.
//
// TMA stores zeros from shared memory in boxes. A box has rows of one residue
// of one head. The boxes of all heads follow one another, because neighbouring
// heads are neighbours in memory. Plain stores of a warp take several times as
// long beside the consumers' exponentials, but lse has no other way. The warp
// issues so rarely that the search for a set of boxes or a span also costs
// time. So sets are tall and spans are long.
#pragma once

DEVICE void clear_unit(int4 *to) { *to = make_int4(0, 0, 0, 0); }
DEVICE void clear_unit(float *to) { *to = MINUS_INFINITY; }

// Clears row `mine` of a span and every `each`-th row after it, where these are
// bare. `to` is the place of the first row; `step` is the distance to the next.
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

// The same for lse. If the bare rows repeat after 32 rows and rows are
// contiguous, eight stores are in flight at once.
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
  const int units = VALUE_DIM / 8, together = 32 / units; // units of 16 bytes;
                                                          // rows at once
  const hopper_instance &m = run.instances[x.instance];
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

// Waits until the copies of `blocks` key blocks have been issued.
DEVICE void wait_blocks(u32 base, float blocks) {
  while (shared_peek(base + AT_PACE) < blocks) sleep_for(200);
}

// Stores zeros to HOPPER_BOX_ROWS rows of a head.
DEVICE void store_zeros(const hopper_map *map, u32 base, int row, int phase,
                        int head, int batch) {
  const int few = HOPPER_ZERO_ROWS(VALUE_DIM);
#pragma unroll
  for (int i = 0; i < HOPPER_BOX_ROWS; i += few)
#pragma unroll
    for (int c = 0; c < VALUE_WIDTH; c += VALUE_CHUNK)
      store_box(map, base + AT_ZERO, c, row + i, phase, head, batch);
}

// Clears set t of boxes. `patient`: only one box is in flight at a time,
// because copies of keys and values queue behind the stores.
DEVICE void clear_boxes(const hopper_launch &run, u32 base, int t,
                        bool patient) {
  zero_boxes x = boxes_find(&run, t);
  int lane = thread_index() % 32;
  const hopper_map *map = &run.zeros[x.phase >= run.box_rest];
#pragma unroll 1
  for (int first = 0; first < x.instances; first += 32) {
    const hopper_instance &m =
        run.instances[run.by_interval[x.instance +
                                      min(first + lane, x.instances - 1)]];
    bool bare = first + lane < x.instances && !m.finish &&
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

// Clears rows before position 0, which no segment holds. If the call brings
// lengths, only the device knows how many each batch row has. Several thread
// blocks share a batch row, or the other way round.
DEVICE void clear_early(const hopper_launch &run) {
  const int units = VALUE_DIM / 8;
  int each = max(1, grid_size() / run.batches);
#pragma unroll 1
  for (int t = blockIdx.x; t < run.batches * each; t += grid_size()) {
    int batch = t / each, early = away_of(&run, batch) - run.first;
    int late = late_of(&run, batch);
    int shift = has_documents(&run) ? queries_shift(&run, batch) : 0;
    int first = late + t - batch * each;
    if (has_documents(&run)) batch = 0;
#pragma unroll 1
    for (int n = first + shift; n < early + shift; n += each)
#pragma unroll 1
      for (int i = thread_index() % 32; i < run.interval_instances * units;
           i += 32) {
        const hopper_instance &m = run.instances[run.by_interval[i / units]];
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

// Clears sets and spans, dealt out to the thread blocks in turn. They keep pace
// with the key blocks, since all zeros at once would delay those. Sets that are
// behind the pace are stored as fast as possible. So are the low boxes of wide
// heads, which are many.
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
    if (!PAIRWISE && t < run.boxes)
      clear_boxes(run, base, t, !low &&
                  shared_peek(base + AT_PACE) <
                      (done + 1) * (run.clear_pace * HOPPER_AHEAD));
    if (t >= run.spans || (run.boxes && !run.lse)) continue;
    clear_span(run, span_find(&run, t));
  }
  store_wait();
}

// The last warp of the producer warpgroup runs this.
DEVICE void clear_rows(const hopper_launch &run, u32 base) {
  if (run.early) clear_early(run);
  if (BARE) clear_bare(run, base);
}
