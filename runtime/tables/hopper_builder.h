/* hopper_builder.h - shared by hopper_table.c and hopper_keys.c, which turn a
 * pass into the Hopper kernel's tables. */
#ifndef DIL_RUNTIME_TABLES_HOPPER_BUILDER_H
#define DIL_RUNTIME_TABLES_HOPPER_BUILDER_H

#include "hopper_table.h"
#include "runtime/base/arithmetic.h"
#include <stdio.h>

enum { ENDLESS = 1 << 30 }; /* the length of a segment without end */

/* The residue that each branch in `served` selects, in one (interval, head). */
typedef struct residues {
  uint64_t served;
  int32_t of[DIL_BRANCH_MAX];
} residues;

typedef struct table_builder {
  const dil_table *table;
  const dil_pass *pass;
  hopper_table *out;
  residues shape[HOPPER_SHAPES];
  int32_t owner[HOPPER_SEGMENTS]; /* the branch of each of out->segments */
  int32_t tile_keys;
  char *reason;
  size_t size;
} table_builder;

#define REFUSE(builder, ...)                                                   \
  (snprintf((builder)->reason, (builder)->size, __VA_ARGS__), false)

#define EACH_BRANCH(b, mask)                                                   \
  for (uint64_t rest_ = (mask), b = 0;                                         \
       rest_ && ((b = (uint64_t)__builtin_ctzll(rest_)), true);                \
       rest_ &= rest_ - 1)

static inline int64_t segment_of(const table_builder *builder, uint64_t b) {
  int64_t s = builder->table->branches[b].segment;
  return s && s < ENDLESS ? s : ENDLESS;
}

/* ---- hopper_keys.c ------------------------------------------------------- */

/* Every stride-th position from an offset on. */
typedef struct progression {
  int32_t stride, offset;
} progression;

/* Removes from a set of residues modulo `period` the progression with the most
 * residues, and returns it. */
progression progression_take(uint64_t *set, int32_t period);
/* The branches of `among` that select positions of this residue. */
uint64_t builder_selecting(const table_builder *builder, const residues *x,
                           uint64_t among, int32_t position);
/* The index of a stride in out->strides; HOPPER_STRIDES when there are too
 * many. */
int32_t builder_slot(table_builder *builder, int32_t stride);
/* The index of a branch's segment in out->segments, HOPPER_SEGMENTS when there
 * are too many. */
int32_t builder_segment(table_builder *builder, uint64_t b);
/* Appends the key ranges of a class to the table; *blocks becomes the number of
 * key blocks that a tile visits. False with builder->reason: there are too
 * many. */
bool keys_add(table_builder *builder, const residues *x, uint64_t branches,
              hopper_class *k, double *blocks);

#endif
