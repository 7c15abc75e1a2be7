/* partition.h - pattern x topology: who owns which rows, which rows travel, and
 * what that costs. The arithmetic is the run time's (runtime/ring/partition.h);
 * here are the choices that a topology leaves open, the text form and the bill.
 * */
#ifndef DIL_COMPILER_PLAN_PARTITION_H
#define DIL_COMPILER_PLAN_PARTITION_H

#include "compiler/front/program.h"
#include "runtime/ring/ranks.h"

/* The mesh of a topology: layout, exchange and link as written, or chosen. p is
 * the pattern as it was written: all that ask must find the same layout. */
mesh place_mesh(const pattern *p, const topology *t);
/* Refuses, where it stands, what this build has no link for. */
void place_possible(diag *d, const topology *t);
/* "4 ranks: ring 4, ..." */
void place_print_mesh(const mesh *m, const topology *t, FILE *out);
/* The text form of the stage, without sizes. */
void place_print(const pattern *p, const topology *t, FILE *out);

#endif
