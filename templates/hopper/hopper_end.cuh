// hopper_end.cuh - the epilogue of a tile, by one consumer warpgroup.
//
// In: the sums of 64 rows in registers, their row state, the tile's message.
// Out: O and lse, or the running state that other passes or shards resume. Only
// STAGED kernels write shared memory here. There the row state of a tile that
// has ended waits in the output buffer until its last product is done.
#pragma once

#include "templates/hopper/hopper_direct.cuh"
#include "templates/hopper/hopper_stage.cuh"

// The output buffer of a warp: sixteen rows.
DEVICE u32 output_area(const consumer &c, u32 thread) {
  return c.base + AT_OUTPUT + warp_row(thread) * VALUE_WIDTH * 2;
}

// Keeps the row state of a tile that has ended until its sums are complete.
// STAGED kernels keep it in the output buffer, after earlier TMA stores have
// read that.
DEVICE void save_state(const consumer &c, row_state &done, const row_state &r) {
  u32 thread = thread_index();
  done = r;
  if (!STAGED) return;
  if (thread % 32 == 0) store_wait_read();
  __syncwarp();
  shared_store(output_area(c, thread) + thread % 32 * 16,
               __float_as_int(r.peak[0]), __float_as_int(r.peak[1]),
               __float_as_int(r.sum[0]), __float_as_int(r.sum[1]));
}
DEVICE void load_state(const consumer &c, u32 thread, row_state &r) {
  if (!STAGED) return;
  int4 kept = shared_load(output_area(c, thread) + thread % 32 * 16);
  r.peak[0] = __int_as_float(kept.x);
  r.peak[1] = __int_as_float(kept.y);
  r.sum[0] = __int_as_float(kept.z);
  r.sum[1] = __int_as_float(kept.w);
}

// Stores the rows from the output buffer. TMA stores them as one box if all are
// rows of the tile. A box of fewer rows would overwrite rows of another cell,
// so plain stores write these.
DEVICE void store_staged(const consumer &c, u32 area, u32 thread, int4 t,
                         int4 to) {
  const int units = VALUE_WIDTH / 8;
  int lane = thread % 32, row = warp_row(thread);
  if (row + 16 <= t.z) {
    proxy_fence();
    __syncwarp();
    if (lane != 0) return;
    for (int i = 0; i < VALUE_WIDTH / VALUE_CHUNK; i++)
      store_box(&c.run.o[0][0] + to.z, area + i * (16 * VALUE_CHUNK * 2),
                i * VALUE_CHUNK, to.x + row, to.y, t.w, to.w);
    store_commit();
    return;
  }
  unsigned short *out = (unsigned short *)c.run.o_data +
                        to.w * c.run.o_batch + t.w * c.run.o_head +
                        t.x * c.run.o_row;
  __syncwarp();
#pragma unroll 1
  for (int i = lane; i < (t.z - row) * units; i += 32) {
    int r = i / units, column = i % units * 8;
    if (column < VALUE_DIM)
      *(int4 *)(out + (row + r) * t.y * c.run.o_row + column) =
          shared_load(area + output_unit(r, i % units));
  }
}

// Stores rows from registers if nothing is staged.
DEVICE void store_direct(const consumer &c, float (&o)[VALUE_COLUMNS / 2],
                         u32 thread, int4 t, int batch) {
  int row = warp_row(thread) + thread % 32 / 4;
  unsigned short *out = (unsigned short *)c.run.o_data +
                        batch * c.run.o_batch + t.w * c.run.o_head;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int at = row + half * 8;
    store_row(o, half, at < t.z, out + (t.x + at * t.y) * c.run.o_row);
  }
}

// The natural logarithm of a row's denominator. log2 0 is -infinity.
DEVICE float row_lse(const consumer &c, float peak, float sum) {
  const float ln_2 = 0.69314718055994530942f;
  if (STEADY) return (STEADY_PEAK + log2_fast(sum)) * ln_2;
  return (peak * scale_of(c.run) + log2_fast(sum)) * ln_2;
}

// One of a row's four threads stores its lse.
DEVICE void store_lse(const consumer &c, u32 thread, int4 t, int batch,
                      const float (&lse)[2]) {
  int row = warp_row(thread) + thread % 32 / 4;
  float *to = c.run.lse + batch * c.run.lse_batch + t.w * c.run.lse_head +
              (t.x + row * t.y) * c.run.lse_row;
  if (thread % 4 || row >= t.z) return;
  *to = lse[0];
  if (row + 8 < t.z) to[8 * t.y * c.run.lse_row] = lse[1];
}

// Adds to the lse of a thread's two rows what the scores of all their keys have
// left out. The rows are at positions `position` and eight strides later.
// `away`: the position of the call's row 0 is that much less than `first` of the
// launch.
DEVICE void add_row_scores(const consumer &c, int4 t, int batch, int position,
                           int away, float (&lse)[2]) {
#if SCORE_ROWS
  const dil_pair at = pair_at(c.run, batch, t.w, away);
#pragma unroll 1
  for (int i = 0; i < 2; i++) {
    float more = dil_row_score(position + i * 8 * t.y, at);
    if (i == 0) lse[0] += more;
    else lse[1] += more;
  }
#endif
}

// Merges these rows with their sinks, which the pattern has. Rows that resume a
// state have them from there.
DEVICE void add_sinks(const consumer &c, int4 t, int batch, int position,
                      int away, float (&lse)[2], float (&mine)[2]) {
#if SINKS
  const dil_pair at = pair_at(c.run, batch, t.w, away);
#pragma unroll 1
  for (int i = 0; i < 2; i++) {
    float sink = sink_of(at, position + i * 8 * t.y, true, ~0ull);
    if (i == 0) merge_row(sink, lse[0], mine[0]);
    else merge_row(sink, lse[1], mine[1]);
  }
#endif
}

// Divides a tile's rows by their denominators, merges them with their sinks and
// with an earlier state if there is one, and computes their lse.
DEVICE void divide_rows(const consumer &c, float (&o)[VALUE_COLUMNS / 2],
                        const row_state &r, const state_rows &rows,
                        int finish, int4 t, int batch, int position, int away,
                        float (&lse)[2]) {
  float sum[2] = {row_sum(r.sum[0]), row_sum(r.sum[1])}, mine[2];
  float theirs[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    mine[i] = sum[i] == 0 ? 0 : __fdividef(c.run.weight, sum[i]);
    lse[i] = row_lse(c, r.peak[i], sum[i]);
  }
  add_row_scores(c, t, batch, position, away, lse);
  if (!STATES || !(finish & HOPPER_RESUME))
    add_sinks(c, t, batch, position, away, lse, mine);
  if (STATES && finish & HOPPER_RESUME)
    weigh_states(c.run, rows, finish & HOPPER_ADD, lse, mine, theirs);
  scale_rows(o, mine[0], mine[1]);
  if (!STATES) return;
  add_row<0>(state_of(c.run, rows.number[0]), theirs[0], o);
  add_row<1>(state_of(c.run, rows.number[1]), theirs[1], o);
}

// A bit for each of a thread's two rows that needs a state, because a later
// pass or shard computes it.
DEVICE u32 live_rows(const consumer &c, int position, int4 t) {
  u32 kept = 0;
#pragma unroll 1
  for (int i = 0; i < 2; i++)
    kept |= is_live(&c.run, position + i * 8 * t.y, t.w) << i;
  return kept;
}

// The epilogue of a tile. It divides by the sums and merges with the state of
// earlier passes or shards. It stores the new state, or O and lse, or both.
DEVICE void finish_tile(const consumer &c, float (&o)[VALUE_COLUMNS / 2],
                        row_state r, int slot) {
  u32 message = tile_message(c, slot), thread = thread_index();
  int4 t = shared_load(message), to = shared_load(message + 16);
  int first = warp_row(thread), row = first + thread % 32 / 4;
  int finish = to.z >> TILE_FINISH, position = t.x + row * t.y;
  int away = first_row(t, to) + c.run.first - t.x;
  t.x = first_row(t, to); // from here on rows are numbered as in the call
  to.z &= (1 << TILE_FINISH) - 1;
  int n = t.x + row * t.y;
  state_rows rows = {(row < t.z ? 1u : 0) | (row + 8 < t.z ? 2u : 0),
                     {state_row(c.run, to.w, n, t.w),
                      state_row(c.run, to.w, n + 8 * t.y, t.w)}};
  float lse[2];
  load_state(c, thread, r);
  asm volatile("" : "+r"(t.x)); // saves two moves in the loop, at D 64
  divide_rows(c, o, r, rows, finish, t, to.w, position, away, lse);
  if (STATES && finish & HOPPER_LEAVE) {
    if (finish & HOPPER_SOME) rows.there &= live_rows(c, position, t);
    __syncwarp();
    leave_rows(c.run, rows, finish, lse, o);
    if (!(finish & HOPPER_WRITE)) return;
  }
  if (c.run.lse) store_lse(c, thread, t, to.w, lse);
  if (first >= t.z) return;
  if (STAGED) {
    stage_rows(output_area(c, thread), o, thread % 32);
    store_staged(c, output_area(c, thread), thread, t, to);
  } else {
    store_direct(c, o, thread, t, to.w);
  }
}
