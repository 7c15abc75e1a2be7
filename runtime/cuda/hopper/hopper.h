/* hopper.h - the tables of the Hopper kernel: the facts of a pass that do not
 * depend on the call. They follow from the plan's table by arithmetic. The
 * compiler asks whether they exist, and the run time copies them into its
 * launches. templates/hopper/hopper_launch.h explains the terms. */
#ifndef DIL_RUNTIME_CUDA_HOPPER_HOPPER_H
#define DIL_RUNTIME_CUDA_HOPPER_HOPPER_H

#include "runtime/cuda/cuda.h"
#include "templates/hopper/hopper_launch.h"

enum {
  HOPPER_DILATION = 4096, /* largest dilation of a branch that is alone in its
                             pass */
  HOPPER_PREDICATES = 32, /* most predicates of a pattern with `paired`
                             passes */
  HOPPER_GUEST_TILE = 192
};

typedef struct hopper_table {
  hopper_class classes[HOPPER_CLASSES]; /* most key blocks first */
  double blocks[HOPPER_CLASSES]; /* key blocks that a tile of a class visits */
  double cell[HOPPER_CLASSES];   /* mean length of a class's cells, positions */
  hopper_piece pieces[HOPPER_PIECES];
  hopper_member members[HOPPER_MEMBERS];
  hopper_shape shapes[HOPPER_SHAPES];
  short by_home[HOPPER_MEMBERS];
  int32_t strides[HOPPER_STRIDES];
  int32_t class_count, piece_count, member_count, shape_count, stride_count;
  int32_t tile_keys;
  int64_t period, home;   /* positions; 0: all positions of the call */
  bool relative;          /* residues count from the home's start */
  bool endless;           /* some branch has no segments */
  int32_t residues;       /* as in hopper_launch */
  bool bare;              /* some rows are bare: no branch selects them */
  int32_t segments[HOPPER_SEGMENTS], segment_count;
  bool causal;            /* some window has a right bound */
  bool paired;            /* masks or score chains: needs the kernel that
                             evaluates them for each pair */
  bool narrow;            /* zeros are stored HOPPER_BOX_ROWS rows at a time */
  bool guests;            /* the kernel supports guests (see hopper_class); its
                             tiles have HOPPER_GUEST_TILE rows */
} hopper_table;

/* Fills the tables of a pass. False with `reason`: the general kernels must
 * take it. tile_keys is the kernel's key block, for which visits are
 * counted. */
bool hopper_table_fill(const dil_table *table, int32_t pass, int32_t tile_keys,
                       hopper_table *out, char *reason, size_t size);
/* Whether all segments of these branches divide one another. */
bool hopper_is_nested(const dil_table *table, uint64_t branches);

/* Which rows of a sequence a call has, and which of them can see its keys. Two
 * of them are compared byte by byte. */
typedef struct hopper_place {
  int64_t batches, rows;     /* of the call */
  int64_t first;             /* position of query row 0 */
  int64_t low, high;         /* positions of the rows to compute */
  int64_t key_low, key_high; /* positions of the keys that exist here */
  int64_t M;                 /* of the whole sequence */
  int64_t shard;             /* bool: rows that see no key keep their state */
  int64_t shorter;           /* bool: batch rows may have fewer keys than M, and
                      only the device knows how many; not in a shard */
} hopper_place;

/* hopper_tiles.c: the place of a whole call; and of a shard of a sequence in
 * one pass of the plan, whose rows and keys are contiguous. */
hopper_place hopper_place_whole(int64_t B, int64_t N, int64_t M);
hopper_place hopper_place_shard(const dil_table *table, int32_t pass,
                                const dil_shard *shard, int64_t batches);
/* Fills a launch from tables and sizes; tensors are left out. False: there are
 * too many tiles. */
bool hopper_tiles_fill(const hopper_table *table, const hopper_place *place,
                       int32_t tile_rows, hopper_launch *l);
/* The relative time for a block of keys in a tile of `height` rows; 192 rows
 * take 1. Fewer warpgroups wait for the same latencies, so lower tiles gain
 * less than their height suggests. Measured with 64 columns
 * (tests/bench/NOTES.md). */
static inline double hopper_block_time(int64_t height) {
  static const double times[] = {0, 0.67, 0.85, 1, 1.3};
  return times[(height + 63) / 64];
}
/* The same, but chooses the tiles' height, at most tile_rows: lower tiles where
 * they fill more of the processors. */
bool hopper_tiles_choose(const hopper_table *table, const hopper_place *place,
                         int32_t tile_rows, int64_t processors,
                         hopper_launch *l);

/* hopper_packing.c: sets in a launch's classes which of them share tiles. */
void hopper_guests_fill(const hopper_table *table, hopper_launch *l);

/* hopper_count.c: counts the key blocks that a launch visits, for the fields of
 * dil_cuda_pass. For `paired` tables the counts are -1: only the kernel finds
 * out. */
void hopper_count(const hopper_table *table, const hopper_launch *l,
                  int32_t tile_keys, dil_cuda_pass *out);

/* hopper_live.c: describes in a launch, whose sizes are set, which rows still
 * need a state. These are the rows that `later` branches select, and in a shard
 * also rows with keys in other parts. */
void hopper_keeps_fill(const dil_table *table, uint64_t later,
                       const hopper_place *place, hopper_launch *l);
/* The state stride: a divisor of all distances between these rows of one head,
 * so that row / stride is different for each. At least 1. */
int64_t hopper_keeps_apart(const dil_table *table, uint64_t later,
                           const hopper_place *place);
/* n / divisor = (2 n * ratio >> 32) >> shift, for 0 <= n < 2^31. */
void hopper_divide_by(int64_t divisor, unsigned *ratio, short *shift);

#endif
