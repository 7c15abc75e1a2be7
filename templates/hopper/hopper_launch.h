/* hopper_launch.h - the parameter of the Hopper forward kernel.
 *
 * Plain C, included by the run time and by the kernel, so that the layout is
 * written once. A launch has one kernel parameter: tensor maps, the pattern's
 * small tables, and the numbers of this call.
 *
 * Terms. A batch row's positions are divided into *periods*, after which the
 * pattern's residues repeat. A period is divided into *phase intervals*, in
 * short intervals, inside which no branch's residue shifts. An *instance* (of a
 * head) is one head in one interval. A *shape* is a set of residues, the same
 * for all its instances up to a shift. A *class* is the rows of a shape that
 * the same branches select: one progression `offset + shift (mod stride)`. An
 * `phase each` selects the rows of all residues: its class has as many *phases*
 * as residues, and the rows of a phase see keys that stand `offset` before them
 * (mod stride). An interval is divided into *cells*, inside which no branch of
 * the class changes its segment. A *tile* is up to `tile_rows` rows of one class and phase in
 * one cell. A *key range* is a set of keys that a class reads: a progression between two
 * positions. A row is *bare* when no branch selects it. */
#ifndef DIL_TEMPLATES_HOPPER_HOPPER_LAUNCH_H
#define DIL_TEMPLATES_HOPPER_HOPPER_LAUNCH_H

#include "templates/shared/launch.h"

/* The rows of a launch's tables. A kernel defines those that its passes need
 * (runtime/tables/launch_layout.h), since a long parameter makes a launch slow. The
 * host has the most. */
#ifndef HOPPER_STRIDES
enum {
  HOPPER_STRIDES = 8, /* distinct strides of rows and of keys */
  HOPPER_SHAPES = 16, /* different sets of residues, up to a shift */
  HOPPER_CLASSES = 48,
  HOPPER_KEY_RANGES = 192,
  HOPPER_INSTANCES = 512,
  HOPPER_LIVE_BRANCHES = 16,
  HOPPER_LIVE_PHASES = 1024,
  HOPPER_INPUTS = 16
};
#endif

enum {
  HOPPER_SEGMENTS = 16, /* lengths of segments that are not nested */
  HOPPER_RESTS = 8,     /* numbers of rows by stride */
  HOPPER_PERIOD = 64,     /* largest common period of dilations */
  HOPPER_BOX_ROWS = 32,   /* rows of a box of zeros */
  HOPPER_TALL_ROWS = 128, /* most rows of a set of such boxes */
  HOPPER_FAR = 1 << 29,   /* a window bound beyond every position */
  HOPPER_PLAN_RUNS = 16,  /* most runs of a plan without masks */
  HOPPER_LISTS = 1,       /* lists of kept blocks */
  HOPPER_NUMBERS_BYTES = 640 /* of what stands before the tables of hopper_launch */
};

/* HOPPER_ZERO_ROWS: rows of zeros in shared memory, which one TMA store copies.
 * A store takes about the same time for few rows as for many, but wide heads
 * leave no room for many. HOPPER_REST_BYTES: the bytes of shared memory that
 * hold no tile. */
#define HOPPER_ZERO_ROWS(width) ((width) <= 64 ? HOPPER_BOX_ROWS : 8)
#define HOPPER_REST_BYTES(width) ((width) <= 64 ? 7168 : 3072)
/* The bytes of dropout's random words in shared memory: of the keys of every
 * message, and of the rows of four tiles. */
#define HOPPER_WORD_BYTES(keys, stages, warpgroups) \
  (2 * (stages) * (keys) * 4 + 4 * 64 * (warpgroups) * 4)

/* Zeros are stored this much faster than key blocks arrive. Zeros that are left
 * over at the end of a launch overlap with nothing. */
#define HOPPER_AHEAD 1.25f

/* A CUtensorMap. */
typedef struct hopper_map {
  unsigned long long word[16];
} __attribute__((aligned(64))) hopper_map;

/* The tensor maps of one tensor, by stride: row n stands at row n / stride of
 * phase n % stride. Phases below `length % stride` have one row more than the
 * others, hence two maps a stride: [0] for those phases, [1] for the others. No
 * copy touches memory outside of the tensor. */
typedef hopper_map hopper_maps[HOPPER_STRIDES][2];

/* The keys that a key range takes. HOPPER_WHOLE: the segment of length `outer`
 * that holds the row (0: all keys). The next three leave out the inner segment
 * of length `inner` that holds the row. LEFT and RIGHT are the keys beside it.
 * OTHER is the other half, where `outer` is twice `inner`.
 *
 * SHARED and later are for segments that are not nested: `outer` is a bit set
 * of indices into the launch's `segments`. All of these segments hold the row,
 * so the keys that at least `inner` of them hold are one range. SHARED is this
 * range. SHARED_LEFT and SHARED_RIGHT are its parts beside the range that
 * `inner + 1` segments hold. */
typedef enum hopper_side {
  HOPPER_WHOLE, HOPPER_LEFT, HOPPER_RIGHT, HOPPER_OTHER,
  HOPPER_SHARED, HOPPER_SHARED_LEFT, HOPPER_SHARED_RIGHT
} hopper_side;

typedef struct hopper_key_range {
  int outer, inner;
  short side, slot;    /* hopper_side; index of the stride */
  int stride, offset;
  int left, right;     /* the window; HOPPER_FAR: none */
  int low, high;       /* positions of its keys, high not included; HOPPER_FAR:
                          no end */
  int row_low, row_high; /* likewise of its rows */
  float bias;          /* log2 of the keys' multiplicity */
  unsigned predicates; /* bit set: a pair counts if one of these holds; 0:
                          always */
  int chain;           /* score chain */
} hopper_key_range;

typedef struct hopper_class {
  short shape, slot;
  int stride, offset;
  int cell;            /* positions; 0: all positions of the call */
  unsigned crossing;   /* bit set of the segments that divide an interval into
                          cells; 0: cells have length `cell` */
  short range, ranges;
  /* set for each call: */
  int cells, tiles;    /* cells of an interval, tiles of a cell and phase */
  int first;           /* the class's first tile in a section */
  /* The last rows of a cell may be *packed rows* in a tile of another class.
   * They fill the last warpgroup of the last tile that this class has in the
   * same cell, over keys that both classes read. */
  short packed_class;  /* 1 + the class whose last rows are packed into this
                          class's tiles; 0: none */
  short packed_ranges; /* the last `packed_ranges` key ranges are read by the
                          packed rows too, and count once for them */
  short is_packed;     /* 1: this class's last rows are packed into tiles of
                          another class, and `tiles` leaves them out */
  short phases;        /* 1, but for `phase each` */
} hopper_class;

/* How a tile ends for a head that several passes compute. 0: its rows go to o
 * and lse, and bare rows become 0. */
typedef enum hopper_finish {
  HOPPER_RESUME = 1, /* merge with the state of earlier passes */
  HOPPER_LEAVE = 2,  /* store as state; no output without WRITE */
  HOPPER_ADD = 4,    /* `mean`, `sum`: outputs are added, no lse */
  HOPPER_WRITE = 8,  /* with LEAVE: write the output as well */
  HOPPER_SOME = 16   /* with LEAVE: only rows that `live` describes */
} hopper_finish;

/* A branch of a later pass or shard. It says which rows need a state: all rows
 * that it selects, or only rows with keys below position `low` or from `high`
 * on. */
typedef struct hopper_live_rows {
  int segment, dilation; /* segment HOPPER_FAR: no segments */
  unsigned segment_ratio, dilation_ratio; /* divide by multiplication, see
                                             quotient_by */
  short segment_shift, dilation_shift;
  int left, right;       /* the window; HOPPER_FAR: none */
  int low, high;
} hopper_live_rows;

/* One head in one interval of a period. */
typedef struct hopper_instance {
  short head, interval;
  short shift;
  signed char shape, finish; /* hopper_finish, of this call */
} hopper_instance;

typedef struct hopper_shape {
  short instance, instances;
  short share; /* instances in one section of this call */
  /* Bit x: rows of residue x are bare. Residues are modulo the launch's
   * `residues`; the pattern is repeated to fill the word. */
  unsigned long long bare;
} hopper_shape;

/* A list of kept blocks: a bit for each key block, in rows of `words` words, one
 * row for each query block from number `low` on, of each head and batch row, or
 * of all heads or batch rows together. */
typedef struct hopper_block_list {
  unsigned *bits;
  long long head, batch;       /* words from one to the next; 0: they share it */
  int low, rows, words, heads, batches;
} hopper_block_list;

enum { /* what a launch makes before the tiles of the call */
  HOPPER_MAKES_LISTS = 1,
  HOPPER_MAKES_LEVELS,
  HOPPER_MAKES_ORDER
};
enum { HOPPER_LEVELS = 256 }; /* of tiles that are sorted */
/* The block that sorts those of documents: its threads, the tiles that it remembers, and
 * its shared memory. */
enum { HOPPER_ORDER_THREADS = 512, HOPPER_ORDER_KEPT = 1024, HOPPER_ORDER_BYTES = 24576 };
enum { HOPPER_ALIKE_ROWS = 256 }; /* that a warp looks at together: at most a batch row */

typedef struct hopper_launch {
  short query_rest[HOPPER_RESTS], key_rest[HOPPER_RESTS]; /* number of rows
                                                             % stride */
  int class_count, instance_count;
  int batches, queries;        /* `queries`: rows of a head and batch row */
  int keys;                    /* M of the whole sequence, like positions */
  int shard;                   /* bool, see hopper_place */
  int first;                   /* position of query row 0 */
  int low, high;               /* positions of the rows to compute; high is
                                  exclusive */
  int key_low, key_high;       /* positions of the keys that exist here */
  int origin, period, interval;      /* positions; the first period begins at
                                       origin */
  int intervals, interval_instances; /* of a period; of an interval */
  int grid;                    /* origin is a multiple of it; 0: origin is
                                  `low` */
  int span;                    /* most positions from the origin on */
  int periods;                 /* periods of a batch row */
  /* [B] or NULL: the number of keys of each batch row. All other fields assume
   * M keys; the rows of a shorter batch row stand that much earlier: see
   * away_of. */
  const int *lengths;
  /* [B + 1] of a packed call, whose batch rows are documents; or NULL: where each one
   * begins among the rows of queries and of keys. Here too all other fields assume M
   * keys and `queries` rows, the most of a document: see away_of and late_of. */
  const int *documents, *key_documents;
  int document_rows, document_keys; /* of the tensors, all batch rows together */
  int batch_rows;              /* of those that tiles hold, of a batch row there */
  /* Of a packed call: its sections, each the tiles of all heads at the same rows, as
   * {document, interval in it, class, tile of the interval}, those with many keys first.
   * There is room for so many; behind the last one, documents are -1. */
  int document_room;
  int alone;                   /* of gradients, see `alike`: *spoiled becomes 1, too */
  int *document_tiles;
  /* Where a mask keeps documents apart: the elements of its input, of which equal ones
   * of a batch row are a document, and how far apart batch rows and elements are.
   * hopper_documents writes `documents` then. NULL: the call brings them. *mixed becomes 1
   * where elements fall, or have more documents than `batches`; then there is none. */
  const int *alike;
  long long alike_batch, alike_step;
  unsigned *mixed;
  const unsigned *only_if;     /* NULL, or the launch does nothing where this is 0 */
  int relative;                  /* residues count from the interval's start */
  int segments[HOPPER_SEGMENTS]; /* lengths; 0: no end */
  int group;                   /* query heads of a key head */
  /* Tiles are numbered section by section, for locality in L2. A section has
   * this many (batch row, period) blocks, or one of `shares` groups of heads of
   * one. */
  int section;
  int shares;                  /* groups of heads of a block */
  int tile_rows;               /* most rows of a tile */
  int section_tiles, tiles;    /* tiles of a section, and of all sections */
  int residues;                /* modulus of the rows' residues; above
                                  HOPPER_PERIOD: one residue has rows, all
                                  others are bare */
  int bare_period;             /* a multiple of `residues` above 32, after which
                                  the bare rows repeat; at most HOPPER_PERIOD
                                  unless `residues` is larger */
  int shifts;                  /* bool: residues differ between intervals; 0:
                                  clearing takes a batch row as one interval */
  int row_intervals;           /* intervals of a batch row, for clearing */
  /* A *span* is rows of one head, among which bare rows are found and cleared:
   * the number of spans; of one head in an interval. */
  int spans, interval_spans;
  int span_rows;               /* most rows of a span */
  /* Zeros of O are stored in sets of boxes: the number of sets; of an interval.
   * 0: spans clear O as well. */
  int boxes, interval_boxes;
  int box_rows;                /* rows of a head in a set, a multiple of
                                  HOPPER_BOX_ROWS */
  int box_rest;                /* number of rows % residues */
  float clear_pace;            /* key blocks for each span or set of boxes */
  int early;                   /* most rows before position 0, which are bare */
  int spread;                  /* bool: the last tiles, the longest, run
                                  first */
  float scale;                 /* softmax scale times log2 e; positive */
  float slack;                 /* a row's peak moves when a score exceeds it by
                                  this */
  float weight;                /* factor of the output */
  /* Pointers and strides of o and lse. Strides count elements; o has its own
   * 16-bit elements. */
  void *o_data;
  long long o_batch, o_row, o_head;
  float *lse;                  /* NULL: no lse is wanted */
  long long lse_batch, lse_row, lse_head;
  /* The running state of heads that several passes compute, and of all heads in
   * a shard of a sequence. f32 [batches, state_rows, H, Dv] and [batches,
   * state_rows, H]. Row n has entry n / state stride. At most one of the rows
   * that share an entry needs a state. */
  float *state_o, *state_lse;
  int state_rows;
  unsigned state_stride_ratio; /* for n / state stride, see quotient_by */
  short state_stride_shift;
  int heads;                   /* H */
  int live_count;              /* -1: every row needs a state */
  /* Two counters: tiles handed out and thread blocks finished. They are zero
   * before and after a launch, and no other launch uses them meanwhile. */
  unsigned *counters;
  /* For mask and score expressions: */
  int all_batches, all_queries; /* B, N of the whole sequence */
  int batch, head;             /* the call's first batch row and head, in the
                                  whole */
  float natural;               /* softmax scale: chains take natural units */
  unsigned seed_low, seed_high; /* of dropout; `weight` then has the factor of
                                   the weights that stay */
  unsigned zero;               /* 0, which the kernel's compiler does not know */
  int draws;                   /* bool: this launch only draws `words` */
  unsigned *words;             /* [batches, heads, key_high - key_low, 2]: the
                                  random words of keys, and whether a key's
                                  value is not finite */
  const unsigned *seed_at;     /* in place of seed_low and seed_high, or NULL */
  const unsigned short *v_data; /* the values, for that launch */
  long long v_batch, v_row, v_head;
  hopper_block_list lists[HOPPER_LISTS];
  int makes_lists;             /* HOPPER_MAKES_...: this launch does no more */
  /* Of each tile, the number in its section of the tile that takes its place: tiles
   * with long lists come first. NULL: all keep their places. And what they are
   * sorted by, in that order. */
  int *order;
  unsigned char *levels;
  /* The tables. Their places follow from their rows: launch_layout.h. */
  hopper_map zeros[2];         /* maps of o for zeros, with stride `residues` */
  hopper_maps q, k, v, o;
  dil_device_input input[HOPPER_INPUTS];
  hopper_shape shapes[HOPPER_SHAPES];
  hopper_class classes[HOPPER_CLASSES];
  hopper_key_range ranges[HOPPER_KEY_RANGES];
  hopper_live_rows live[HOPPER_LIVE_BRANCHES];
  hopper_instance instances[HOPPER_INSTANCES];
  short by_interval[HOPPER_INSTANCES]; /* indices of instances, sorted by
                                          interval, then head */
  short live_phase[HOPPER_LIVE_PHASES]; /* [live_count][H]; -1: no row */
} hopper_launch;

#endif
