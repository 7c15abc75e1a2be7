// hopper_walk.cuh - from the number of a tile to its rows and its keys.
//
// In: the launch's tables. Out: where the tile's rows lie, and each run of
// keys that they read, already cut to what the windows let the tile see. All
// is arithmetic on the position of the cell; nothing is stored by length.
#pragma once

enum { TILE_ROWS = 64 * WARPGROUPS };

// Few numbers, since the producer has few registers; the rest is in the tables.
struct tile {
  int position; // of row 0
  int rows;     // 1 .. TILE_ROWS
  int batch;
  short klass, member;
};

// A run of keys: `count` of them from `position` on, `stride` apart.
struct key_run {
  int position, count;
};

DEVICE int floor_to(int x, int n) {
  int rest = x % n;
  return x - (rest < 0 ? rest + n : rest);
}
// The first position from `low` on with the residue of `at`, modulo n.
DEVICE int first_from(int low, int at, int n) {
  int rest = (at - low) % n;
  return low + (rest < 0 ? rest + n : rest);
}
DEVICE int rows_between(int first, int end, int stride) {
  return first < end ? (end - 1 - first) / stride + 1 : 0;
}

// Where tile t of the classes from c on stands among the members of its
// class: false when it falls behind the end of the call.
DEVICE bool tile_find(const hopper_launch &run, int t, int c, int classes,
                      int section, tile &x) {
  while (--classes && t >= run.classes[c + 1].first) c++;
  const hopper_class &k = run.classes[c];
  const hopper_shape &s = run.shapes[k.shape];
  t -= k.first;
  int each = k.cells * k.tiles, pairs = run.section * s.members, pair;
  if (run.spread) {
    pair = t % pairs;
    t = each - 1 - t / pairs;
  } else {
    pair = t / each;
    t -= pair * each;
  }
  int block = section * run.section + pair / s.members;
  x.klass = c;
  x.member = s.member + pair % s.members;
  x.batch = block / run.periods;
  if (x.batch >= run.batches) return false;
  const hopper_member &m = run.members[x.member];
  int cell = t / k.tiles;
  int low = run.origin + (block - x.batch * run.periods) * run.period +
            m.home * run.home + cell * k.cell;
  int high = min(low + k.cell, run.keys);
  low = max(low, run.keys - run.queries);
  x.position = first_from(low, k.offset + m.shift, k.stride) +
               (t - cell * k.tiles) * TILE_ROWS * k.stride;
  x.rows = min(rows_between(x.position, high, k.stride), int(TILE_ROWS));
  return x.rows > 0;
}

// The keys of a piece from the first that some row of the tile sees to the
// piece's end. Those behind the last row's window are no less valid, and each
// is seen by its own row: only keys behind the end may hold anything.
DEVICE key_run keys_of(const hopper_launch &run, const tile &x,
                       const hopper_piece &p) {
  int low = 0, high = run.keys;
  if (p.outer) {
    low = floor_to(x.position, p.outer);
    high = min(high, low + p.outer);
  }
  if (p.side != HOPPER_WHOLE) {
    int hole = floor_to(x.position, p.inner);
    if (p.side == HOPPER_OTHER) {
      low += hole == low ? p.inner : 0;
      high = min(run.keys, low + p.inner);
    } else if (p.side == HOPPER_LEFT) high = hole;
    else low = hole + p.inner;
  }
  int last = x.position + (x.rows - 1) * run.classes[x.klass].stride;
  low = max(low, x.position - p.left);
  int first = first_from(low, p.offset + run.members[x.member].shift, p.stride);
  if (first > last + p.right) return {0, 0};
  return {first, rows_between(first, high, p.stride)};
}
