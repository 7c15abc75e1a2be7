/* planner.h - what plan.c and its text form share. */
#ifndef DIL_COMPILER_PLAN_PLANNER_H
#define DIL_COMPILER_PLAN_PLANNER_H

#include "plan.h"
#include "runtime/rowset/walk.h"

typedef struct planner {
  arena *arena;
  diag *diag;
  plan *plan;
} planner;

/* A plan with all but its passes; look at the diag before using it. */
planner plan_begin(arena *a, diag *d, const pattern *p, unsigned force);
/* Returns whether each pass can be one; else reports the reason at `at`. */
bool plan_passes_fit(planner *pl, span at);
/* Returns whether some head has branches of both sets. */
bool plan_share_heads(const dil_table *t, uint64_t one, uint64_t other);
/* Returns whether all branches of both sets see the keys of one list, or none sees
 * those of a list. `other` has a branch. */
bool plan_share_list(const dil_table *t, uint64_t one, uint64_t other);
/* plan_slopes.c: the plan's direction, and the derivatives that it needs. */
void plan_direct(planner *pl, dil_direction direction);
/* fuse.c: chooses passes by the cost of each on the target. False, and nothing done:
 * there is no kernel that it could be counted for. */
bool fuse_choose(plan *p, const plan_target *target);

#endif
