/* launch_layout.h - where the tables of a launch of the Hopper kernels stand.
 *
 * The host fills a launch with room for any plan. A kernel is compiled with about as
 * many rows as its own passes fill, so that its parameter is short: a launch of 31 KB
 * takes 3.6 us longer than one of 64 bytes (tests/bench/NOTES.md). The compiler writes
 * the rows into the kernel, and the run time copies a launch into such a parameter. */
#ifndef DIL_RUNTIME_TABLES_LAUNCH_LAYOUT_H
#define DIL_RUNTIME_TABLES_LAUNCH_LAYOUT_H

#include "hopper_table.h"

/* The rows of the tables of hopper_launch. */
typedef struct launch_layout {
  int32_t strides, shapes, classes, ranges, instances;
  int32_t live_branches, live_phases;
  int32_t inputs;
} launch_layout;

/* The rows of a kernel that runs no pass yet. `keeps_states`: it tells later passes
 * and shards which rows are live. */
launch_layout layout_of(const dil_table *table, bool keeps_states);
/* Makes room for a phase of each head, where the plan has several passes. */
void layout_add_phases(launch_layout *layout, const dil_table *table);
/* Makes room for the tables of a pass. */
void layout_add(launch_layout *layout, const hopper_table *made);
/* The bytes of a kernel's hopper_launch. */
int64_t layout_bytes(const launch_layout *layout);
/* Copies the numbers and the rows that a kernel has, without tensor maps, into a
 * launch that is not initialised. */
void layout_copy(const launch_layout *layout, const hopper_launch *from,
                 hopper_launch *to);
/* Writes a kernel's hopper_launch, of layout_bytes, to the parameter. */
void layout_pack(const launch_layout *layout, const hopper_launch *from,
                 char *parameter);

#endif
