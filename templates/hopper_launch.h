/* hopper_launch.h - what the host tells the Hopper forward kernel.
 *
 * Plain C, read by the run time and by the kernel alike, so that the layout is
 * written once. Everything travels as one kernel parameter: tensor maps, the
 * pattern's small tables, and the numbers of this call.
 *
 * Positions of a batch row are cut into periods, after which the pattern's
 * residues repeat; a period into homes, inside which they stay; a home into
 * cells, inside which no branch of a class changes its segment. A *tile* is a
 * few rows of one class in one cell: the rows `offset + shift (mod stride)`. A
 * *piece* is one run of keys that the class reads, likewise a residue. */
#ifndef HOPPER_LAUNCH_H
#define HOPPER_LAUNCH_H

#include "launch.h"

enum {
  HOPPER_STRIDES = 8,  /* distinct strides of rows and of keys */
  HOPPER_SHAPES = 16,  /* distinct sets of residues, up to a shift */
  HOPPER_CLASSES = 48,
  HOPPER_PIECES = 192,
  HOPPER_MEMBERS = 512,
  HOPPER_SEGMENTS = 16, /* of branches whose segments are not nested */
  HOPPER_KEEPS = 16, HOPPER_PHASES = 1024,
  HOPPER_PERIOD = 64, /* largest common period of dilations */
  HOPPER_BOX_ROWS = 32,   /* of boxes of zeros; HOPPER_ZERO_ROWS of each */
  HOPPER_TALL_ROWS = 128, /* of a set of them, at most */
  HOPPER_FAR = 1 << 29 /* a window bound that nothing reaches */
};

/* A box takes its time, however few its rows are, but wide heads leave no room
 * for the zeros of many. Of the shared memory that is none of a tile's. */
#define HOPPER_ZERO_ROWS(width) ((width) <= 64 ? HOPPER_BOX_ROWS : 8)
#define HOPPER_REST_BYTES(width) ((width) <= 64 ? 7168 : 3072)

/* By how much zeros are ahead of the blocks of keys that they come with: what is
 * left over at the end has nothing to hide behind. */
#define HOPPER_AHEAD 1.25f

/* A CUtensorMap. */
typedef struct hopper_map {
  unsigned long long word[16];
} __attribute__((aligned(64))) hopper_map;

/* Maps of one tensor: rows n / stride, phases n % stride. Phases below the
 * remainder of the length have one row more, hence two maps a stride: [0] of
 * those phases, [1] of the others. Nothing outside of the tensor is touched. */
typedef hopper_map hopper_maps[HOPPER_STRIDES][2];

/* Keys of the segment of length `outer` (0: all keys), without its part of
 * length `inner`: what lies left of that, or right of it, or, where the one is
 * twice the other, the other half.
 *
 * HOPPER_SHARED and on: segments that are not nested, the bits of `outer` in
 * the launch's `segments`. Those that a row stands in all hold its position, so
 * that what `inner` of them reach, or more, is one stretch: that stretch, or
 * its part left or right of what one more reaches. */
typedef enum hopper_side {
  HOPPER_WHOLE, HOPPER_LEFT, HOPPER_RIGHT, HOPPER_OTHER,
  HOPPER_SHARED, HOPPER_SHARED_LEFT, HOPPER_SHARED_RIGHT
} hopper_side;

typedef struct hopper_piece {
  int outer, inner;
  short side, slot;    /* hopper_side; index of the stride */
  int stride, offset;
  int left, right;     /* the window; HOPPER_FAR: none */
  float bias;          /* log2 of how often the keys count */
  unsigned predicates; /* bits: a pair counts that one of these keeps; 0: all */
  int chain;           /* of scores */
} hopper_piece;

typedef struct hopper_class {
  short shape, slot;
  int stride, offset;
  int cell;            /* positions; 0: all of the call's */
  unsigned cuts;       /* segments that cut a home into cells; 0: `cell` does */
  short piece, pieces;
  /* of this call: */
  int cells, tiles;    /* cells a home, tiles a cell */
  int first;           /* number of its first tile in a section */
  /* The last rows of a class may be guests in the last tile that another one
   * has in the same cell: in its last warpgroup, over keys that both read. */
  short guest;         /* 1 + the class of those in this one's; 0: none */
  short joined;        /* pieces that they read, each key once: the last ones */
  short joins;         /* 1: this class's are; `tiles` counts the others */
} hopper_class;

/* What becomes of a head's rows, where another pass touches it too; 0: they are
 * written to o and lse, and 0 where no branch selects them. */
typedef enum hopper_finish {
  HOPPER_RESUME = 1, /* joined with the state that an earlier pass left */
  HOPPER_LEAVE = 2,  /* left as state, not written */
  HOPPER_ADD = 4,    /* `mean`, `sum`: the outputs are added, no lse */
  HOPPER_WRITE = 8,  /* with LEAVE: written as well */
  HOPPER_SOME = 16   /* with LEAVE: as state only those that `keeps` names */
} hopper_finish;

/* A branch that is yet to come to the rows it selects: all of them, or those
 * that it gives keys below position `low` or from `high` on. */
typedef struct hopper_keep {
  int segment, dilation; /* segment HOPPER_FAR: holds every position */
  unsigned segment_ratio, dilation_ratio; /* to divide by them: quotient_by */
  short segment_shift, dilation_shift;
  int left, right;       /* the window; HOPPER_FAR: none */
  int low, high;
} hopper_keep;

/* A head in one home of a period that has a given shape. */
typedef struct hopper_member {
  short head, home;
  short shift;
  signed char shape, finish; /* hopper_finish, of this call */
} hopper_member;

typedef struct hopper_shape {
  short member, members;
  short share;                 /* of its members, in a section of this call */
  /* Bit x: no branch selects the rows of residue x, modulo the launch's
   * `residues`, over and over. */
  unsigned long long bare;
} hopper_shape;

typedef struct hopper_launch {
  hopper_maps q, k, v, o;
  hopper_map zeros[2];         /* of o, by `residues` */
  hopper_class classes[HOPPER_CLASSES];
  hopper_piece pieces[HOPPER_PIECES];
  hopper_member members[HOPPER_MEMBERS];
  hopper_shape shapes[HOPPER_SHAPES];
  short by_home[HOPPER_MEMBERS]; /* members, home after home, by heads */
  short query_rest[HOPPER_STRIDES], key_rest[HOPPER_STRIDES]; /* rows % it */
  int class_count, member_count;
  int batches, queries;        /* rows of the call, a head and batch row */
  int keys;                    /* M; of the whole sequence, as are positions */
  int part;                    /* of a sequence: see hopper_place */
  int first;                   /* position of query row 0 */
  int low, high;               /* of the rows to be computed; high behind them */
  int key_low, key_high;       /* of the keys that are there */
  int origin, period, home;    /* positions; first period begins at origin */
  int homes, home_members;     /* of a period; members of each */
  int grid;                    /* origin is a multiple of it; 0: it is `low` */
  int span;                    /* positions from the origin on, at most */
  int periods;                 /* of a batch row */
  /* [B] or NULL: keys of each batch row. All of the above is of one that has M;
   * the rows of a shorter one stand as much earlier: see away_of. */
  const int *lengths;
  int relative;                /* residues count from the home's start */
  int segments[HOPPER_SEGMENTS]; /* 0: holds every position */
  int group;                   /* query heads a key head */
  int section;                 /* (batch row, period) blocks of a section */
  int shares;                  /* of their heads, one after the other */
  int tile_rows;               /* at most; fewer where tiles are few */
  int section_tiles, tiles;    /* tiles of a section, and of all sections */
  int residues;                /* of rows; above HOPPER_PERIOD: all but one are
                                  bare */
  int turn;                    /* a multiple of them, above 32: which rows are
                                  bare repeats after it; at most HOPPER_PERIOD,
                                  unless they are more */
  int shifts;                  /* residues, from home to home; 0: bare rows are
                                  cleared as if a batch row were one */
  int row_homes;               /* of a batch row, then */
  int spans, home_spans;       /* of rows, bare ones among them; of a home */
  int span_rows;               /* of each, at most */
  int boxes, home_boxes;       /* sets of boxes of zeros; 0: spans write o, too */
  int box_rows;                /* of each head, in a set; HOPPER_BOX_ROWS or
                                  a multiple */
  int box_rest;                /* rows % residues */
  float clear_pace;            /* how many of each come with a block of keys */
  int early;                   /* rows before position 0, all of them bare */
  int spread;                  /* last tiles of all heads first */
  float scale;                 /* of scores, times log2 e; positive */
  float slack;                 /* above its peak, before that moves: scores */
  float weight;                /* of the output */
  /* Plain views of o (its own elements) and lse, in elements. */
  void *o_data;
  long long o_batch, o_row, o_head;
  float *lse;                  /* NULL: not wanted */
  long long lse_batch, lse_row, lse_head;
  /* Of heads that several passes touch, and of all in a part of a sequence: f32
   * [batches, state_rows, H, Dv] and [batches, state_rows, H]. Row n's stands at
   * n / apart: of those that share a place no more than one is ever kept. */
  float *state_o, *state_lse;
  int state_rows;
  unsigned apart_ratio;        /* quotient_by */
  short apart_shift;
  int heads;                   /* H */
  int keep_count;              /* -1: every row may be named */
  hopper_keep keeps[HOPPER_KEEPS];
  short keep_phase[HOPPER_PHASES]; /* [keep_count][H]; -1: not of this head */
  /* Tiles dealt out and blocks finished: zero before and after a launch, and
   * no other launch's while it runs. */
  unsigned *counters;
  /* Where expressions have a say: */
  int all_batches, all_queries; /* B, N of the whole */
  int batch, head;             /* numbers in the whole of the call's first */
  float natural;               /* what the chains want scores multiplied by */
  dil_device_input input[16];
} hopper_launch;

#endif
