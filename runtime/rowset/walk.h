/* walk.h - the arithmetic of rows: cells, classes and packed rows of a plan.
 *
 * Positions are cut into cells: ranges in which no branch of the pass
 * changes its segment. Inside a cell the rows that the same branches select
 * form a class: a few residues of the pass's period. Where a branch has every
 * phase, a class has one residue of its dilation.
 *
 * Rows have one of two roles. A tile holds rows of one class; the rows of the
 * other role are packed cell by cell and class by class and streamed past it,
 * so that each class that the tile meets is a contiguous range. The forward
 * pass holds queries and streams keys. The arithmetic is the same where keys
 * are held and queries are streamed; windows are not, and stand elsewhere. */
#ifndef DIL_RUNTIME_ROWSET_WALK_H
#define DIL_RUNTIME_ROWSET_WALK_H

#include "runtime/plan_table.h"
#include "runtime/shard.h"

/* One past the last position. */
static inline int64_t progression_end(dil_progression c) {
  return c.count ? c.first + (c.count - 1) * c.step + 1 : c.first;
}
/* Returns whether each pass has a softmax of its own, and the outputs are
 * added. */
static inline bool combine_is_additive(const dil_table *table) {
  return table->combine == DIL_COMBINE_MEAN ||
         table->combine == DIL_COMBINE_SUM;
}
/* Whether each pass of a shard's row has a state of its own. */
static inline bool shard_is_by_pass(const dil_table *table,
                                    const dil_shard *shard) {
  return combine_is_additive(table) || shard->by_pass;
}
/* The number of states that a row of a shard has. */
static inline int32_t run_states(const dil_table *table) {
  return combine_is_additive(table) ? table->pass_count : 1;
}
/* The same backward, where a branch may also have a delta of its own. */
static inline bool backward_asks_states(const dil_table *table) {
  return combine_is_additive(table) || table->detached;
}
static inline int32_t backward_states(const dil_table *table) {
  return backward_asks_states(table) ? table->pass_count : 1;
}

/* The classes of one cell and head. Rows are counted from the cell's start:
 * class c has the offsets offset[first[c]] .. offset[first[c + 1] - 1] of each
 * period, rising. A class with branches 0 holds the rows that no branch
 * selects. */
typedef struct class_table {
  int64_t period;
  int64_t step, origin; /* rows stand at positions origin + i * step alone */
  int64_t phase;     /* offset of the first such position */
  int64_t modulus;   /* offsets of a class are alike modulo this */
  uint64_t served;   /* branches that serve the head and reach this cell */
  int64_t *residue;  /* [DIL_BRANCH_MAX] first selected offset, by branch */
  int32_t count;     /* classes */
  uint64_t *branches; /* [period] by class */
  int32_t *first;     /* [period + 1] */
  int32_t *offset;    /* [period] */
  int32_t listed;     /* rows of a list, which are one class: `offset` holds them;
                       * -1: there is no list */
} class_table;

typedef struct segment_cell {
  int64_t low, high; /* positions, high not included */
} segment_cell;

/* The facts of a pass that hold for one head, in both roles. */
typedef struct walk {
  const dil_table *table;
  const dil_pass *pass;
  uint64_t served;    /* branches of the pass that serve the head */
  int32_t head;
  int32_t round;      /* a class's packed rows start at a multiple of this */
} walk;

size_t class_table_size(int64_t period);
/* period: a multiple of the progression's step, and of the pass's period unless
 * no cell is longer. */
void class_table_init(class_table *s, int64_t period, void *memory);
/* Forgets the cell; from now on the rows stand at the progression. */
void class_table_reset(class_table *s, const dil_progression *progression);
/* The rows are `count` positions, rising, which the branches select. A table that
 * had a list once always has one. A position more must be readable. */
void class_table_list(class_table *s, int32_t *positions, int32_t count);
/* The least common multiple of the dilations of these branches. */
int64_t walk_period(const dil_table *table, uint64_t branches);
/* Whether tiles of query rows fill well when these branches share a pass. */
bool walk_fills_tiles(const dil_table *table, uint64_t branches);
/* The branches of the pass that serve a head. */
uint64_t walk_served(const dil_table *table, const dil_pass *pass,
                     int32_t head);
/* The branches of `among` that serve a head and select the row at t. */
uint64_t walk_selecting(const dil_table *table, uint64_t among, int32_t head,
                        int64_t t);
/* The cell at position t, clipped to `high`. */
segment_cell walk_cell(const walk *w, int64_t t, int64_t high);
/* Fills s for a cell; quick where the cell is like the one before. */
void walk_classes(const walk *w, segment_cell c, class_table *s);
/* Branches in `among` that have the held and the streamed cell in one
 * segment: through them rows of the one meet rows of the other. */
uint64_t walk_together(const walk *w, segment_cell held, segment_cell streamed,
                       uint64_t among);
/* Branches in `among` through which the row at t meets the key at j of a class
 * that they select, as far as residues go. The rows of t's class meet the same
 * keys' class. */
uint64_t walk_meeting(const walk *w, uint64_t among, int64_t t, int64_t j);
/* Rows of class c at offsets below `length`, and the offset of row n. */
int64_t class_table_rows(const class_table *s, int32_t c, int64_t length);
int64_t class_table_row(const class_table *s, int32_t c, int64_t n);
/* The number of packed rows of a whole cell, rounding included. */
int64_t walk_packed_rows(const walk *w, segment_cell c, const class_table *s);

#endif
