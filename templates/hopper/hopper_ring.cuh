// hopper_ring.cuh - rings of pipeline stages: the stage of a block or of a tile, and
// the parity of its mbarriers.
#pragma once

// A position in a ring of `size` pipeline stages: it gives the stage and the
// mbarrier parity to wait for. The number counts modulo twice the size; where a
// power of two allows it, it wraps with the word.
template <int size> struct ring {
  static const bool endless = (size & (size - 1)) == 0;
  u32 number;
  DEVICE void next() {
    number++;
    if (!endless && number == 2 * size) number = 0;
  }
  DEVICE void back() {
    number = endless || number ? number - 1 : 2 * size - 1;
  }
  DEVICE u32 stage() const {
    if (endless) return number % size;
    return number < size ? number : number - size;
  }
  DEVICE u32 phase() const {
    return endless ? number / size % 2 : number >= size;
  }
  DEVICE u32 slot() const { return endless ? number % (2 * size) : number; }
};

// Tiles are counted modulo TILE_SLOTS. The stage of a tile's queries, and the
// parity of their mbarriers:
DEVICE u32 query_stage(u32 tile) { return tile & (QUERY_STAGES - 1); }
DEVICE u32 query_parity(u32 tile) { return tile / QUERY_STAGES & 1; }
