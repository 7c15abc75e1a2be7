// grid_consume.cuh - the consumer warpgroups of grid.cu: 64 query rows each.
//
// In: tiles, their boxes of keys, and their messages. Out: O and lse of every row
// of the grid.
#pragma once

#define VISIT_LAUNCH grid_launch
#include "templates/hopper/hopper_visit.cuh"
#include "templates/hopper/hopper_stage.cuh"
#include "templates/hopper/grid_columns.cuh"

// A warpgroup's part of a tile.
struct tile_view {
  int x, y, z;       // the cell of the first row of this thread's warp
  int boxes_x, inner; // boxes along x, and of one cell or row of the first axis
  int from, to, all; // the tile's boxes that this warpgroup takes; all of them
  int column_x, column_y, column_z; // the first column of the tile's boxes
  int cells_x;
  bool there;        // the warp's rows are in the grid, where x is
  box_spans seen;    // columns that the warp's rows see
};

// The range of boxes along the first axis that this warpgroup's rows see.
DEVICE void take_boxes(const consumer &c, const dil_patch_axis &a, int first,
                       int cells, int column, int count, tile_view &t) {
  int low = first + c.group * GROUP_DEPTH;
  int high = min(low + GROUP_DEPTH, cells) - 1;
  t.all = count * t.inner;
  t.from = t.to = 0;
  if (high < low) return;
  int begin = columns_of(a, cells, low).first - column;
  int end = columns_of(a, cells, high).last - column;
  t.from = min(max(begin / BOX_DEPTH, 0), count) * t.inner;
  t.to = end < 0 ? 0 : min(end / BOX_DEPTH + 1, count) * t.inner;
}

DEVICE tile_view view_tile(const consumer &c, u32 message, int4 rows) {
  const dil_patch_axis *axis = c.run.of.patch;
  int4 columns = shared_load(message + MESSAGE_COLUMNS);
  int4 cells = shared_load(message + MESSAGE_CELLS);
  int4 place = shared_load(message + MESSAGE_PLACE);
  int warp = thread_index() / 32 % 4;
  tile_view t;
  t.x = rows.z;
  t.y = rows.y + (SOLID ? warp % GROUP_Y : c.group * GROUP_Y + warp);
  t.z = rows.x + (SOLID ? c.group * GROUP_Z + warp / GROUP_Y : 0);
  t.boxes_x = columns.w;
  t.inner = SOLID ? columns.w * place.x : columns.w;
  t.column_x = columns.z;
  t.column_y = columns.y;
  t.column_z = columns.x;
  t.cells_x = cells.z;
  t.there = t.y < cells.y && t.z < cells.x;
  t.seen = spans_of(axis, cells.y, cells.x, t.y, t.z);
  take_boxes(c, axis[0], SOLID ? rows.x : rows.y, SOLID ? cells.x : cells.y,
             SOLID ? columns.x : columns.y, SOLID ? place.y : place.x, t);
  return t;
}

// ---- which columns count ---------------------------------------------------

DEVICE void columns_of_rows(const consumer &c, const tile_view &t, int first,
                            u32 (&kept)[2]) {
  const dil_patch_axis &a = c.run.of.patch[LAST];
  int x = t.x + thread_index() % 32 / 4, column = thread_index() % 4 * 2;
  kept[0] = columns_along(a, t.cells_x, x, first, column);
  kept[1] = columns_along(a, t.cells_x, x + 8, first, column);
}

// The place of a box in its tile.
struct box_place {
  int x, y, z; // its number along each axis
};
DEVICE box_place place_of(const tile_view &t, int index) {
  box_place b = {0, index, 0};
  if (SOLID) {
    b.z = index / t.inner;
    b.y = index - b.z * t.inner;
  }
  if (BOXES_X > 1) {
    int line = b.y / t.boxes_x;
    b.x = b.y - line * t.boxes_x;
    b.y = line;
  }
  return b;
}

// Hides the pairs of a box that do not count. `along`: the columns of the thread's
// rows, of a tile whose boxes are alike along x.
DEVICE void hide_pairs(const consumer &c, const tile_view &t, int index,
                       const u32 (&along)[2], float (&s)[TILE_KEYS / 2]) {
  const u32 all = TILE_KEYS == 128 ? ~0u : (1u << TILE_KEYS / 4 % 32) - 1;
  box_place b = place_of(t, index);
  u32 kept[2] = {along[0], along[1]};
  if (BOXES_X > 1) columns_of_rows(c, t, t.column_x + b.x * BOX_X, kept);
  u32 across = columns_across(t.seen, t.column_y + b.y * BOX_Y, t.column_z + b.z);
  kept[0] &= across;
  kept[1] &= across;
  if (__any_sync(~0u, (kept[0] & kept[1]) != all)) hide_columns(s, kept);
}

// ---- one tile --------------------------------------------------------------

// Passes over boxes that this warpgroup does not take. No wgmma synchronises its
// warps here, so only the thread that releases a stage waits for the values: another
// one might come too late and find the mbarrier in the next phase.
DEVICE void pass_boxes(const consumer &c, int count, ring<STAGES> &block) {
  if (count <= 0) return;
#pragma unroll 1
  for (; count > 0; count--, block.next()) {
    if (c.lead) {
      wait_keys(c, block);
      wait_checked(c, block);
    }
    release_keys(c, block);
    release_values(c, block);
  }
  named_barrier_sync(8 + c.group, 128); // the others come no earlier
}

// Adds up the boxes of a tile that this warpgroup takes.
DEVICE void add_boxes(const consumer &c, const tile_view &t, fragments &f, u32 tile,
                      ring<STAGES> &block) {
  u32 q = query_descriptor(c, tile), along[2] = {0, 0};
  if (BOXES_X == 1) columns_of_rows(c, t, t.column_x, along);
  visit_blocks(c, f, tile, q, t.from, t.to, block,
               [&](int index, float (&s)[TILE_KEYS / 2]) {
                 hide_pairs(c, t, index, along, s);
               });
}

// ---- its end ---------------------------------------------------------------

DEVICE u32 output_area(const consumer &c, u32 thread) {
  return c.base + AT_OUTPUT + (thread / 32 - 4) * 16 * VALUE_WIDTH * 2;
}

// The position of a cell of the residue of a tile's map.
DEVICE int position_of(const consumer &c, int map, int x, int y, int z) {
  const dil_patch_axis *axis = c.run.of.patch;
  const int cell[3] = {SOLID ? z : y, SOLID ? y : x, x};
  int residues = map / c.run.batch_maps, position = 0;
#pragma unroll
  for (int k = 0; k < PATCH_AXES; k++) {
    int residue = residues % axis[k].residues;
    residues /= axis[k].residues;
    position += (cell[k] * axis[k].step + residue) * axis[k].stride;
  }
  return position;
}

// One of a row's four threads stores its lse.
DEVICE void store_lse(const consumer &c, const tile_view &t, int map, int4 place,
                      const float (&lse)[2]) {
  u32 lane = thread_index() % 32;
  int x = t.x + lane / 4;
  if (lane % 4 || !t.there) return;
  float *to = c.run.of.lse + place.w * c.run.of.lse_stride[0] +
              place.z * c.run.of.lse_stride[2];
#pragma unroll
  for (int i = 0; i < 2; i++)
    if (x + 8 * i < t.cells_x)
      to[position_of(c, map, x + 8 * i, t.y, t.z) * c.run.of.lse_stride[1]] =
          lse[i];
}

// Stores a warp's rows by TMA, which leaves out those outside of the grid.
DEVICE void store_rows(const consumer &c, const tile_view &t, int map, int4 place,
                       float (&o)[VALUE_COLUMNS / 2]) {
  u32 thread = thread_index(), area = output_area(c, thread);
  if (thread % 32 == 0) store_wait_read();
  stage_rows(area, o, thread % 32);
  proxy_fence();
  __syncwarp();
  if (thread % 32 != 0 || !t.there) return;
#pragma unroll 1
  for (int i = 0; i < VALUE_WIDTH / VALUE_CHUNK; i++)
    store_box(&c.run.o[map], area + i * (16 * VALUE_CHUNK * 2), i * VALUE_CHUNK,
              t.x, t.y, SOLID ? t.z : place.z, SOLID ? place.z : place.w);
  store_commit();
}

// Divides the rows of a tile by their denominators and writes them.
DEVICE void finish_tile(const consumer &c, const tile_view &t, int map, int4 place,
                        fragments &f) {
  float lse[2], mine[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    end_row(f.r.peak[i], row_sum(f.r.sum[i]), c.run.scale, c.run.of.weight, lse[i],
            mine[i]);
    int x = t.x + thread_index() % 32 / 4 + 8 * i;
    if (SINKS && t.there && x < t.cells_x)
      join_sinks(c.run.of, place.w, c.run.of.M, position_of(c, map, x, t.y, t.z),
                 place.z, lse[i], mine[i]);
  }
  scale_rows(f.o, mine[0], mine[1]);
  if (c.run.of.lse) store_lse(c, t, map, place, lse);
  store_rows(c, t, map, place, f.o);
}

DEVICE void consume(const consumer &c) {
  ring<STAGES> block = {0};
#pragma unroll 1
  for (u32 tile = 0;; tile++) {
    wait_queries(c, tile);
    u32 message = c.base + AT_TILE + query_stage(tile) * TILE_BYTES;
    int4 rows = shared_load(message + MESSAGE_ROWS);
    if (!rows.w) break;
    tile_view t = view_tile(c, message, rows);
    int map = shared_word(message + MESSAGE_CELLS + 12);
    int4 place = shared_load(message + MESSAGE_PLACE);
    fragments f;
    fragments_clear(f);
    pass_boxes(c, t.from, block);
    if (t.to > t.from) {
      add_boxes(c, t, f, tile, block);
    } else {
      named_barrier_sync(8 + c.group, 128); // all warps have the message
      release(c, c.base + AT_QUERY_EMPTY + 8 * query_stage(tile));
    }
    pass_boxes(c, t.all - max(t.to, t.from), block);
    finish_tile(c, t, map, place, f);
  }
  store_wait();
}
