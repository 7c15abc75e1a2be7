/* hopper.h - the tables of the Hopper kernel: what of a pass does not depend
 * on the call. Made by arithmetic on the plan's table, by both halves: the
 * compiler asks whether there are any, the run time fills its launches. */
#ifndef DIL_CUDA_HOPPER_H
#define DIL_CUDA_HOPPER_H

#include "cuda.h"
#include "../../templates/hopper_launch.h"

enum {
  HOPPER_DILATION = 4096, /* largest dilation of a branch alone in its pass */
  HOPPER_PREDICATES = 32, /* of a pattern, where pairs are asked */
  HOPPER_GUEST_TILE = 192
};

typedef struct hopper_table {
  hopper_class classes[HOPPER_CLASSES]; /* most keys first */
  double blocks[HOPPER_CLASSES]; /* of keys, that a tile of a class visits */
  double cell[HOPPER_CLASSES];   /* positions of one of its cells, about */
  hopper_piece pieces[HOPPER_PIECES];
  hopper_member members[HOPPER_MEMBERS];
  hopper_shape shapes[HOPPER_SHAPES];
  short by_home[HOPPER_MEMBERS];
  int32_t strides[HOPPER_STRIDES];
  int32_t class_count, piece_count, member_count, shape_count, stride_count;
  int32_t tile_keys;
  int64_t period, home;   /* 0: all positions of the call */
  bool relative;          /* residues count from the home's start */
  bool endless;           /* some branch has no segments */
  int32_t residues;       /* see hopper_launch */
  bool bare;              /* some rows are selected by no branch */
  int32_t segments[HOPPER_SEGMENTS], segment_count;
  bool causal;            /* some window ends at the query */
  bool paired;            /* masks or scores: for kernels that ask pairs */
  bool narrow;            /* heads whose boxes of zeros are high */
  bool guests;            /* for kernels that know of guests: see hopper_class;
                           * of their tiles' height, HOPPER_GUEST_TILE */
} hopper_table;

/* False with the reason in `reason`: the general kernels take such a pass.
 * tile_keys: of the kernel, for which the visits are counted. */
bool hopper_table_fill(const dil_table *table, int32_t pass, int32_t tile_keys,
                       hopper_table *out, char *reason, size_t size);
/* Whether all segments of these branches divide one another. */
bool hopper_is_nested(const dil_table *table, uint64_t branches);

/* What rows of a sequence a call has, and which of them see its keys at all.
 * Compared byte by byte. */
typedef struct hopper_place {
  int64_t batches, rows;     /* of the call */
  int64_t first;             /* position of query row 0 */
  int64_t low, high;         /* positions of the rows to be computed */
  int64_t key_low, key_high; /* positions of the keys that are there */
  int64_t M;                 /* of the whole */
  int64_t part;              /* rows that see no key are left as they are */
  int64_t shorter;           /* batch rows may have fewer keys than M, which the
                              * device alone knows: not of a part */
} hopper_place;

/* hopper_tiles.c: of a plain call; of a part, in a pass of the plan, whose rows
 * and keys stand side by side. */
hopper_place hopper_place_whole(int64_t B, int64_t N, int64_t M);
hopper_place hopper_place_part(const dil_table *table, int32_t pass,
                               const dil_part *part, int64_t batches);
/* Tables and sizes of a call into a launch, whose tensors are left out. False:
 * too many tiles. */
bool hopper_tiles_fill(const hopper_table *table, const hopper_place *place,
                       int32_t tile_rows, hopper_launch *l);
/* What a block of keys takes with so many rows of a tile, beside 192: the
 * warpgroups wait for the same latencies, so that fewer are not as much
 * faster. As measured at 64 columns (tests/bench/NOTES.md). */
static inline double hopper_block_time(int64_t height) {
  static const double times[] = {0, 0.67, 0.85, 1, 1.3};
  return times[(height + 63) / 64];
}
/* The same with tiles of at most tile_rows: of fewer where that fills more of
 * the processors. */
bool hopper_tiles_choose(const hopper_table *table, const hopper_place *place,
                         int32_t tile_rows, int64_t processors,
                         hopper_launch *l);

/* hopper_guests.c: into a launch's classes, which of them share tiles. */
void hopper_guests_fill(const hopper_table *table, hopper_launch *l);

/* hopper_count.c: the blocks of keys that a launch visits, into the fields of
 * dil_cuda_pass. Where pairs are asked, the kernel alone finds out. */
void hopper_count(const hopper_table *table, const hopper_launch *l,
                  int32_t tile_keys, dil_cuda_pass *out);

/* hopper_keep.c: into a launch with its sizes, which of its rows are yet to be
 * reached: by `later` branches, or in a part by any over keys that other parts
 * bring. */
void hopper_keeps_fill(const dil_table *table, uint64_t later,
                       const hopper_place *place, hopper_launch *l);
/* A divisor of all distances between such rows of one head: their numbers,
 * divided by it, are all different. At least 1. */
int64_t hopper_keeps_apart(const dil_table *table, uint64_t later,
                           const hopper_place *place);
/* n / divisor = (2 n * ratio >> 32) >> shift, for 0 <= n < 2^31. */
void hopper_divide_by(int64_t divisor, unsigned *ratio, short *shift);

#endif
