// gather_consume.cuh - the consumer warpgroups of gather.cu: 64 gathered rows each.
//
// In: tiles, their blocks of keys, and their messages. Out: for each entry O of one
// block of keys, and what its softmax left.
#pragma once

#define VISIT_LAUNCH gather_launch
#include "templates/hopper/hopper_visit.cuh"

// The two rows of a thread: their entries, -1 where there is none, and the keys of the
// block that they see.
struct own_rows {
  int entry[2], keys[2];
};

DEVICE own_rows rows_of(const consumer &c, u32 stage, int4 message) {
  u32 thread = thread_index();
  u32 row = c.group * 64 + thread / 32 % 4 * 16 + thread % 32 / 4;
  own_rows own;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    u32 item = c.base + AT_ITEM + stage * ITEM_BYTES + (row + 8 * i) * 8;
    own.entry[i] = shared_word(item + 4);
    own.keys[i] = message.y;
    if (CAUSAL) own.keys[i] = min(message.y, shared_word(item) - message.x + 1);
  }
  return own;
}

// Hides the keys of visit `index` that the rows do not see.
DEVICE void hide_keys(const own_rows &own, int index, float (&s)[TILE_KEYS / 2]) {
  int end[2] = {own.keys[0] - index * TILE_KEYS, own.keys[1] - index * TILE_KEYS};
  if (__any_sync(~0u, min(end[0], end[1]) < TILE_KEYS))
    hide_after(s, end[0], end[1], thread_index() % 4 * 2);
}

// Divides the rows of a tile by their denominators and writes them. The four threads
// of a row write 32 bytes together.
DEVICE void finish_tile(const consumer &c, const own_rows &own, int line,
                        fragments &f) {
  int column = thread_index() % 4 * 2;
  long long first = (long long)(line - c.run.call.first_line) * c.run.call.entry_room;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float sum = row_sum(f.r.sum[i]);
    float factor = sum == 0 ? 0 : __fdividef(1, sum);
    if (own.entry[i] < 0) continue;
    if (column == 0) c.run.ends[first + own.entry[i]] = {f.r.peak[i], sum};
    float *to = c.run.partial + (first + own.entry[i]) * VALUE_DIM + column;
#pragma unroll
    for (int g = 0; g < VALUE_COLUMNS / 8; g++)
      if (8 * g + column < VALUE_DIM)
        *(float2 *)(to + 8 * g) = make_float2(f.o[4 * g + 2 * i] * factor,
                                              f.o[4 * g + 2 * i + 1] * factor);
  }
}

DEVICE void consume(const consumer &c) {
  ring<STAGES> block = {0};
#pragma unroll 1
  for (u32 tile = 0;; tile++) {
    wait_queries(c, tile);
    u32 stage = query_stage(tile);
    int4 message = shared_load(c.base + AT_TILE + stage * TILE_BYTES);
    if (!message.z) break;
    own_rows own = rows_of(c, stage, message);
    fragments f;
    fragments_clear(f);
    visit_blocks(c, f, tile, query_descriptor(c, tile), 0, visits_of(message.y),
                 block, [&](int index, float (&s)[TILE_KEYS / 2]) {
                   hide_keys(own, index, s);
                 });
    finish_tile(c, own, message.w, f);
  }
}
