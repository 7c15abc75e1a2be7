/* gather_launch.h - the parameter of the Hopper kernel that gathers the rows which
 * chose a block of keys. Plain C: the run time fills it, and gather.cu reads it.
 *
 * A *line* is a batch row and query head. Its *entries* are those of its list of
 * chosen blocks, in the form CSR: a query row and a block that it chose. */
#ifndef DIL_TEMPLATES_HOPPER_GATHER_LAUNCH_H
#define DIL_TEMPLATES_HOPPER_GATHER_LAUNCH_H

#include "templates/hopper/hopper_launch.h"

enum {
  GATHER_BLOCKS_MOST = 8192, /* key blocks; counted in 32 KiB of shared memory */
  GATHER_LIST_THREADS = 1024,
  GATHER_MAP_BYTES = 2 * 128,
  /* C and CUDA C both check it */
  GATHER_LAUNCH_BYTES = (GATHER_MAP_BYTES + DIL_PARAMS_BYTES + 80 + 63) / 64 * 64
};

/* Bytes of shared memory of gather_lists. */
#define GATHER_LIST_SHARED(blocks) \
  (GATHER_LIST_THREADS / 32 * 8 + (int)(blocks) * 4)

typedef struct gather_tile {
  int block;               /* of keys */
  int first, count;        /* of its entries, sorted by blocks */
  int unused;
} gather_tile;

/* An entry, where they are sorted by blocks: the query row, and the entry's number
 * where they are sorted by rows. */
typedef struct gather_item {
  int row, entry;
} gather_item;

/* An entry leaves this of its row's softmax: the peak of its scores, the sum of its
 * weights. */
typedef struct gather_end {
  float peak, sum;
} gather_end;

typedef struct gather_launch {
  hopper_map k, v;
  dil_params of;
  float scale;             /* softmax scale times log2 e; positive */
  float slack;             /* a row's peak moves when a score exceeds it by this */
  int lists;               /* the inputs that hold the lists: rows, then columns */
  int block, blocks;       /* keys of a block; blocks of all keys */
  int group;               /* query heads of a key head */
  int first_line, lines;   /* of this launch */
  int tile_room, entry_room; /* of a line, at most */
  int *counts;             /* [lines of the call]: tiles */
  gather_tile *tiles;      /* [lines of the call][tile_room] */
  gather_item *items;      /* [lines of the call][entry_room] */
  float *partial;          /* [lines][entry_room][VALUE_DIM]: o of one block */
  gather_end *ends;        /* [lines][entry_room] */
} gather_launch;

#endif
