// block_list_consume.cuh - the consumer warpgroups of block_list.cu: 64 query rows each.
//
// In: tiles, their visits, and their messages. Out: O and lse of each row.
#pragma once

#define VISIT_LAUNCH block_list_launch
#include "templates/hopper/hopper_visit.cuh"
#include "templates/hopper/hopper_direct.cuh"

// The number of this thread's first row in its tile; the second stands 8 behind it.
DEVICE int own_row() { return thread_index() / 32 % 4 * 16 + thread_index() % 32 / 4; }

// The thread's columns of unit `n` at `key` that a row sees.
DEVICE u32 columns_seen(const row_keys &k, int n, int key) {
  const int rows = BLOCK_LIST_ROWS;
  int first = n * rows - (int)(thread_index() % 4 * 2);
  u32 kept = columns_below(first + min(max(k.high - key, 0), rows));
  return kept & ~columns_below(first + min(max(k.low - key, 0), rows));
}

// Hides the keys of a visit that the rows do not see. `places`: of its units.
DEVICE void hide_keys(u32 message, u32 places, float (&s)[TILE_KEYS / 2]) {
  int first = shared_word(places);
  if (!(first & 1)) return;
  int4 tile = shared_load(message);
  u32 kept[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < UNITS; n++) {
    int key = (n ? shared_word(places + n * 4) : first) / 2 * BLOCK_LIST_ROWS;
#pragma unroll
    for (int i = 0; i < 2; i++)
      kept[i] |= columns_seen(keys_of(tile.y + own_row() + 8 * i, tile.z), n, key);
  }
  hide_columns(s, kept);
}

// Divides the rows of a tile by their denominators and writes them.
DEVICE void finish_tile(const consumer &c, u32 message, fragments &f) {
  const dil_params &of = c.run.of;
  int row = shared_word(message + 16) + own_row(), line = shared_word(message + 12);
  int batch = line / HEADS, head = line % HEADS;
  float mine[2], lse[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    end_row(f.r.peak[i], row_sum(f.r.sum[i]), c.run.scale, of.weight, lse[i], mine[i]);
    join_sinks(of, batch, batch_keys(c.run, batch), row + 8 * i, head, lse[i], mine[i]);
  }
  scale_rows(f.o, mine[0], mine[1]);
  unsigned short *o = (unsigned short *)of.o + batch * of.o_stride[0] +
                      head * of.o_stride[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    int n = row + 8 * i;
    bool there = n >= 0 && n < of.N;
    store_row(f.o, i, there, o + n * of.o_stride[1]);
    if (of.lse && there && thread_index() % 4 == 0)
      of.lse[batch * of.lse_stride[0] + n * of.lse_stride[1] +
             head * of.lse_stride[2]] = lse[i];
  }
}

DEVICE void consume(const consumer &c) {
  ring<STAGES> block = {0};
  u32 q = descriptor_low(c.base + AT_QUERY, 16);
#pragma unroll 1
  for (u32 tile = 0;; tile++) {
    u32 message = message_of(c.base, tile);
    wait_queries(c, tile);
    int visits = shared_word(message);
    if (visits < 0) break;
    fragments f;
    fragments_clear(f);
    if (visits > 0) {
      visit_blocks(c, f, tile, q, 0, visits, block,
                   [&](int, float (&s)[TILE_KEYS / 2]) {
                     hide_keys(message_of(c.base, tile),
                               c.base + AT_PLACES + block.slot() * PLACE_BYTES, s);
                   });
    } else {
      named_barrier_sync(8 + c.group, 128); // all warps have the message
      release(c, c.base + AT_QUERY_EMPTY);
    }
    finish_tile(c, message_of(c.base, tile), f);
  }
}
