/* gather_launch.h - the parameters of the Hopper kernels that gather the rows which
 * chose a block of keys. Plain C: the run time fills them; gather.cu and
 * gather_backward.cu read them.
 *
 * A *line* is a batch row and query head. Its *entries* are those of its list of
 * chosen blocks, in the form CSR: a query row and a block that it chose. */
#ifndef DIL_TEMPLATES_HOPPER_GATHER_LAUNCH_H
#define DIL_TEMPLATES_HOPPER_GATHER_LAUNCH_H

#include "templates/hopper/backward_launch.h"

enum {
  GATHER_BLOCKS_MOST = 8192, /* key blocks */
  GATHER_CHUNKS = 64,        /* of the rows of a line, a warp each */
  GATHER_STEP = 32,          /* rows that a warp sorts at once */
  GATHER_PLACE_THREADS = 1024,
  GATHER_TILE_ROWS = 128,
  GATHER_MAP_BYTES = 2 * 128,
  /* C and CUDA C both check these */
  GATHER_CALL_BYTES = DIL_PARAMS_BYTES + 80,
  GATHER_LAUNCH_BYTES = (GATHER_MAP_BYTES + GATHER_CALL_BYTES + 24 + 63) / 64 * 64,
  GATHER_BACKWARD_BYTES = (GATHER_CALL_BYTES + 40 + 63) / 64 * 64
};

typedef struct gather_tile {
  int block;               /* of keys */
  int first, count;        /* of its entries, sorted by blocks */
  int unused;
} gather_tile;

/* An entry, where they are sorted by blocks: the query row, and the entry's number
 * where they are sorted by rows. Rows of a block rise, but for those of one step. */
typedef struct gather_item {
  int row, entry;
} gather_item;

/* A call, and its entries sorted by blocks; the parameter of the kernels that sort
 * them. */
typedef struct gather_call {
  dil_params of;
  int lists;               /* the inputs that hold the lists: rows, then columns */
  int block, blocks;       /* keys of a block; blocks of all keys */
  int group;               /* query heads of a key head */
  int first_line, lines;   /* of this launch */
  int tile_room, entry_room; /* of a line, at most */
  int chunk_rows;          /* a multiple of GATHER_STEP */
  int *counts;             /* [lines of the call]: tiles */
  int *starts;             /* [lines of the call][blocks + 1]: of a block's entries */
  int *places;             /* [lines of the call][GATHER_CHUNKS][blocks] */
  gather_tile *tiles;      /* [lines of the call][tile_room] */
  gather_item *items;      /* [lines of the call][entry_room] */
} gather_call;

/* An entry leaves this of its row's softmax: the peak of its scores, the sum of its
 * weights. */
typedef struct gather_end {
  float peak, sum;
} gather_end;

typedef struct gather_launch {
  hopper_map k, v;
  gather_call call;
  float scale;             /* softmax scale times log2 e; positive */
  float slack;             /* a row's peak moves when a score exceeds it by this */
  float *partial;          /* [lines][entry_room][VALUE_DIM]: o of one block */
  gather_end *ends;        /* [lines][entry_room] */
} gather_launch;

/* Of gradients. In `back` q and o have the maps of the rows that tiles hold (K and V
 * for dK and dV), k and v those that they stream (K and V for dQ); other rows are
 * gathered, by call.of.q and call.of.o, which is dO. dQ of an entry goes to
 * back.scored, of f32: a line's entries follow each other. */
typedef struct gather_backward_launch {
  hopper_backward_launch back;
  gather_call call;
  hopper_gradient queries; /* dQ */
  float *partial;          /* [lines][entry_room][HEAD_DIM]: dQ of one block */
} gather_backward_launch;

#endif
