/* hopper.h - launches of the Hopper kernel: the tables of a pass
 * (runtime/tables/hopper_table.h), with the sizes of a call.
 * templates/hopper/hopper_launch.h explains the terms. */
#ifndef DIL_RUNTIME_CUDA_HOPPER_HOPPER_H
#define DIL_RUNTIME_CUDA_HOPPER_HOPPER_H

#include "runtime/cuda/launch/family.h"
#include "runtime/tables/hopper_table.h"
#include "templates/hopper/hopper_launch.h"

extern const cuda_family cuda_hopper;

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
  int64_t sorted;            /* bool: tiles go by the lengths of their lists */
  int64_t packed;            /* batch rows are documents, of at most `rows` and M: how
                      many rows all of them have. 0: they are not */
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
/* As hopper_tiles_fill, but chooses the tiles' height, at most tile_rows: lower tiles where
 * they fill more of the processors. */
bool hopper_tiles_choose(const hopper_table *table, const hopper_place *place,
                         int32_t tile_rows, int64_t processors,
                         hopper_launch *l);

/* hopper_documents.c: of a packed call, where its documents stand. All rows of a tensor
 * stand side by side. `tiles`: of hopper_documents_bytes. */
void hopper_fill_documents(const cuda_run *r, const hopper_table *table, bool holds_keys,
                           void *tiles, hopper_launch *l);
/* Why a kernel does not take the documents of a call; NULL: it does. `takes`: its knob
 * says so; `endless`: only some branches of a pass have segments. `bare`: a kernel clears
 * rows that no branch selects, which it counts for documents as long as the longest. */
const char *hopper_refuses_documents(const cuda_run *r, bool takes, bool endless,
                                     bool bare);
/* The sections of the tiles of documents that share `rows` rows, with room for some that
 * overlap by wrong offsets; and the bytes of what is said of each, for tiles of any
 * height. */
int64_t hopper_documents_room(const hopper_table *table, int64_t documents, int64_t rows,
                              int64_t tile_rows);
int64_t hopper_documents_bytes(const hopper_table *table, int64_t documents,
                               int64_t rows);

/* hopper_packing.c: sets in a launch's classes which of them share tiles. */
void hopper_packing_fill(const hopper_table *table, hopper_launch *l);

/* hopper_count.c: counts the key blocks that a launch visits, for the fields of
 * dil_cuda_pass. For `pairwise` tables the counts are -1: only the kernel finds
 * out. */
void hopper_count(const hopper_table *table, const hopper_launch *l,
                  int32_t tile_keys, dil_cuda_pass *out);

/* hopper_live.c: describes in a launch, whose sizes are set, which rows still
 * need a state. These are the rows that `later` branches select, and in a shard
 * also rows with keys in other parts. */
void hopper_live_fill(const dil_table *table, uint64_t later,
                      const hopper_place *place, hopper_launch *l);
/* The state stride: a divisor of all distances between these rows of one head,
 * so that row / stride is different for each. At least 1. */
int64_t hopper_live_stride(const dil_table *table, uint64_t later,
                           const hopper_place *place);
/* Says of each head, of queries or of keys, at which positions rows come again in the
 * passes behind the first: at those that are phase[head] modulo the result; -1: at
 * none. The result is 1 where all rows may come again. */
int32_t hopper_live_phases(const dil_table *table, bool keys, short *phase);
/* n / divisor = (2 n * ratio >> 32) >> shift, for 0 <= n < 2^31. */
void hopper_divide_by(int64_t divisor, unsigned *ratio, short *shift);

#endif
