// gather_tiles.cuh - the tiles that gather_sort.cuh made, and copies of gathered rows to
// shared memory.
#pragma once

#include "templates/shared/ptx.cuh"
#include "templates/hopper/hopper_rows.cuh"

// A tile of this launch.
struct tile_place {
  gather_tile tile;
  int line, keys; // keys of its block
};

// Finds tile number `index`; returns whether there is one.
DEVICE bool find_tile(const gather_call &run, u32 index, tile_place &t) {
  u32 number = index / run.tile_room, at = index - number * run.tile_room;
  t.line = run.first_line + number;
  if (at >= run.counts[t.line]) return false;
  t.tile = run.tiles[(long long)t.line * run.tile_room + at];
  t.keys = min(run.block,
               batch_keys(run, t.line / HEADS) - t.tile.block * run.block);
  return true;
}
DEVICE u32 tile_places(const gather_call &run) { return run.lines * run.tile_room; }

DEVICE int visits_of(int keys) { return (keys + TILE_KEYS - 1) / TILE_KEYS; }

// ---- gathered rows ---------------------------------------------------------

// Where 16 bytes of a row stand among `rows` rows of chunks of so many elements, as
// tensor maps would swizzle them: the rows of a chunk follow each other.
template <int chunk> DEVICE u32 swizzled_unit(u32 row, u32 unit, int rows) {
  const u32 width = chunk * 2, units = chunk / 8;
  u32 swizzle = width == 128 ? row & 7 : row >> 1 & 3;
  return unit / units * (rows * width) + row * width +
         ((unit % units ^ swizzle) << 4);
}

// Gathered rows in global memory: row n is `stride` elements behind row n - 1.
struct row_source {
  const char *first;
  const long long &stride; // of the launch: it takes no register
};
DEVICE row_source source_of(const void *rows, const long long (&stride)[3], int line) {
  long long first = line / HEADS * stride[0] + line % HEADS * stride[2];
  return {(const char *)rows + 2 * first, stride[1]};
}

// Starts copies of `rows` rows, in boxes of so many, by some threads. The numbers of
// the rows stand in shared memory, `step` bytes apart; -1: zeros. Neighbouring threads
// copy neighbouring units of 16 bytes; numbers are read some at a time, before the
// copies that wait for them.
template <int width, int dim, int chunk, int rows, int box, int threads>
DEVICE void gather_rows(u32 to, u32 numbers, int step, const row_source &from,
                        int self) {
  const int units = width / 8, lanes = units <= 4 ? 4 : units <= 8 ? 8 : 16;
  const int apart = threads / lanes, some = 8;
  int unit = self % lanes;
  if (unit >= units) return;
  const char *own = from.first + unit * 16;
#pragma unroll 1
  for (int first = self / lanes; first < rows; first += some * apart) {
    int number[some];
#pragma unroll
    for (int k = 0; k < some; k++)
      number[k] = shared_word(numbers + step * min(first + k * apart, rows - 1));
#pragma unroll
    for (int k = 0; k < some; k++) {
      int row = first + k * apart;
      if (rows % (some * apart) && row >= rows) break;
      copy_16(to + row / box * (box * width * 2) +
                  swizzled_unit<chunk>(row % box, unit, box),
              own + 2 * from.stride * max(number[k], 0),
              number[k] >= 0 && unit < dim / 8);
    }
  }
}
