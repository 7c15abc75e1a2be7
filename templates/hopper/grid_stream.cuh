// grid_stream.cuh - the producing warps of grid_backward.cu, one for each consumer
// warpgroup: copies of patches and boxes, and the facts of streamed queries.
//
// In: the launch. Out: the stream of boxes for the consumers, and a message for each tile
// and box.
#pragma once

// ---- the patch of a tile ---------------------------------------------------

// A cell of the grid's residue, along x, y and z.
struct grid_cell {
  int x, y, z;
};
DEVICE int cell_along(const grid_cell &cell, int axis) {
  return axis == LAST ? cell.x : axis == LAST - 1 ? cell.y : cell.z;
}

// The position of a cell; -1: it is outside of the grid.
DEVICE int position_of(const grid_launch &run, const dil_patch &x, const grid_cell &cell) {
  int position = 0;
  bool inside = true;
#pragma unroll
  for (int k = 0; k < PATCH_AXES; k++) {
    const dil_patch_axis &a = run.of.patch[k];
    int at = cell_along(cell, k) * a.step + x.residue[k];
    inside &= at < a.extent;
    position += at * a.stride;
  }
  return inside ? position : -1;
}

// The cell of row n: a warp has sixteen along x.
DEVICE grid_cell row_cell(const dil_cells &rows, int n) {
  int warp = n / GRID_ROW;
  return {rows.first[LAST] + n % GRID_ROW, rows.first[LAST - 1] + warp % GROUP_Y,
          SOLID ? rows.first[0] + warp / GROUP_Y : 0};
}

// Writes what consumers read of a tile's patch.
DEVICE void write_patch(const grid_launch &run, const grid_tile &t, u32 patch) {
  const dil_patch_axis *axis = run.of.patch;
  const dil_cells &rows = t.x.rows;
  int lane = thread_index() % 32;
#pragma unroll 1
  for (int n = lane; n < 64; n += 32)
    shared_set(patch + 4 * n, position_of(run, t.x, row_cell(rows, n)));
  int cells_x = cells_of(axis[LAST], t.x.residue[LAST]);
#pragma unroll 1
  for (int n = lane; n < BOXES_X * 64; n += 32)
    shared_set(patch + PATCH_ALONG + 4 * n,
               (int)columns_along(axis[LAST], cells_x, rows.first[LAST] + n / 4 % 16,
                                  t.x.columns.first[LAST] + n / 64 * BOX_X, n % 4 * 2));
  if (lane >= 4) return;
  grid_cell of = row_cell(rows, lane * GRID_ROW);
  box_spans s = spans_of(axis, cells_of(axis[LAST - 1], t.x.residue[LAST - 1]),
                         SOLID ? cells_of(axis[0], t.x.residue[0]) : 1, of.y, of.z);
  shared_store(patch + PATCH_SPANS + 16 * lane, s.y.first, s.y.last, s.z.first, s.z.last);
}

// Copies the held rows of a tile, when those of the tile before have been released.
DEVICE void start_tile(const grid_backward_launch &run, u32 base, const grid_tile &t,
                       u32 tile) {
  u32 full = base + AT_QUERY_FULL, patch = patch_of(base, tile);
  u32 message = base + AT_TILE + tile % TILE_SLOTS * TILE_BYTES;
  barrier_wait(base + AT_QUERY_EMPTY, query_parity(tile) ^ 1);
  write_patch(run.grid, t, patch);
  __syncwarp();
  if (thread_index() % 32) return;
  grid_cell first = row_cell(t.x.rows, 0);
  shared_store(message, 0, 1, 64, t.head);
  shared_store(message + 16, patch, 0, 0, t.batch);
  barrier_expect(full, QUERY_BYTES + HELD_BYTES);
  for (int c = 0; c < HEAD_WIDTH; c += CHUNK)
    load_cells(base + AT_QUERY + c * (64 * 2), &run.grid.q[t.map], full, c, first.x,
               first.y, first.z, t.head, t.batch, KEEP_FIRST);
  for (int c = 0; c < VALUE_WIDTH; c += VALUE_CHUNK)
    load_cells(base + AT_HELD + c * (64 * 2), &run.grid.o[t.map], full, c, first.x,
               first.y, first.z, t.head, t.batch, KEEP_FIRST);
}

// ---- boxes -----------------------------------------------------------------

// The warp's state.
struct box_stream {
  const grid_backward_launch &run;
  u32 base;
  float unit;         // of f16's gradients of scores
  u32 tile;           // that is sent now
  ring<STAGES> block; // the next box
  int left;           // boxes of the tile that have not been sent
};

#if HOLDS_KEYS
// Lane x holds the facts of rows x, x + 32, ... of a box. No query is behind its last
// cell, or outside of the grid.
DEVICE void read_facts(const box_stream &s, const grid_tile &t, int head,
                       const grid_cell &first, row_facts (&f)[OWN_FACTS]) {
#pragma unroll
  for (int k = 0; k < OWN_FACTS; k++) {
    int n = thread_index() % 32 + 32 * k;
    int row = position_of(s.run.grid, t.x,
                          {first.x + n % BOX_X, first.y + n / BOX_X, first.z});
    f[k] = {INFINITE_LSE, 0};
    if (n < BOX_X * BOX_Y && row >= 0) f[k] = facts_of(s.run.back, t.batch, head, row);
    f[k].lse -= WEIGHT_BITS;
  }
}
#endif

// Sends a box for a query head: `number` along x, and its first cell.
DEVICE void send_box(box_stream &s, const grid_tile &t, int head, int number,
                     const grid_cell &first, int flags) {
  const grid_launch &of = s.run.grid;
  u32 message = message_of(s.base, s.block.slot()), stage = s.block.stage();
  u32 lane = thread_index() % 32;
#if HOLDS_KEYS
  row_facts f[OWN_FACTS];
  read_facts(s, t, head, first, f);
#endif
  if (--s.left == 0) flags |= BLOCK_LAST;
  flags |= s.tile % TILE_SLOTS << BLOCK_TILE | 1 << BLOCK_TAKES | 1 << BLOCK_MASKS;
  if (lane == 0) {
    shared_store(message + 16, first.z, 0, 0, 0);
    shared_store(message, flags, 0, number, first.y);
  }
  barrier_wait(s.base + AT_KEY_EMPTY + 8 * stage, s.block.phase() ^ 1);
  if (lane == 0) {
    int from = HOLDS_KEYS ? head : head / of.group;
    load_block(s.base, AT_KEY, AT_KEY_FULL, AT_KEY_EMPTY, HEAD_WIDTH, CHUNK,
               &of.k[t.map], s.block, first.x, first.y, first.z, from, t.batch);
    load_block(s.base, AT_VALUE, AT_VALUE_FULL, AT_VALUE_EMPTY, VALUE_WIDTH, VALUE_CHUNK,
               &of.v[t.map], s.block, first.x, first.y, first.z, from, t.batch);
  }
  __syncwarp();
#if HOLDS_KEYS
  write_block_facts(f, s.unit, facts_at(s.base, stage));
  barrier_arrive(facts_barrier(s.base, stage)); // each lane for its own writes
#endif
  s.block.next();
}

// Sends the boxes of a tile for a query head, the last axis fastest.
DEVICE void send_boxes(box_stream &s, const grid_tile &t, int head, int flags) {
  const dil_cells &columns = t.x.columns;
  grid_cell at = {0, 0, 0}; // a box of the tile
#pragma unroll 1
  for (int left = all_boxes(t); left > 0; left--, flags = 0) {
    send_box(s, t, head, at.x,
             {columns.first[LAST] + at.x * BOX_X, columns.first[LAST - 1] + at.y * BOX_Y,
              SOLID ? columns.first[0] + at.z : 0},
             flags);
    if (++at.x < t.boxes[LAST]) continue;
    at.x = 0;
    if (++at.y < t.boxes[LAST - 1]) continue;
    at.y = 0;
    at.z++;
  }
}

DEVICE void send_tile(box_stream &s, const grid_tile &t) {
  int heads = HOLDS_KEYS ? s.run.grid.group : 1;
  start_tile(s.run, s.base, t, s.tile);
  __syncwarp();
  s.left = heads * all_boxes(t);
#pragma unroll 1
  for (int h = 0; h < heads; h++)
    send_boxes(s, t, t.head * heads + h, h == 0 ? BLOCK_NEW : 0);
  s.tile++;
}

DEVICE void stream_boxes(const grid_backward_launch &run, u32 base) {
  const u32 streams = grid_size() * CONSUMERS;
  box_stream s = {run, base, power_of_2(unit_bits(run.back))};
  u32 index = blockIdx.x * CONSUMERS + thread_index() / 32;
#pragma unroll 1
  for (; index < run.grid.of.items; index += streams) {
    grid_tile t;
    if (find_tile(run.grid, index, t)) send_tile(s, t);
  }
  end_stream(base, s.block);
}
