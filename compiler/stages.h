/* stages.h - the steps of the compiler's stages, for driver.c alone.
 *
 * A step takes the request and the compilation as the step before left it, and
 * adds its result. A failure is located in c->diag, or at dil_last_error(). */
#ifndef DIL_COMPILER_STAGES_H
#define DIL_COMPILER_STAGES_H

#include "driver.h"

/* pattern: reads the file, unless it was read, and chooses the kernel. */
dil_status stage_read(const driver_request *r, compilation *c);
/* The kernel's pattern, checked again where the request has other sizes. */
dil_status stage_pattern(const driver_request *r, compilation *c);
/* The option of the first size that the request replaces; NULL: none. */
const char *stage_sizes_option(const driver_request *r);
/* place: takes the topology and the schedule's knobs, and reports at its place
 * in the file what no link or back end of this build supports. */
dil_status stage_place(const driver_request *r, compilation *c);
/* normalise: masks that say what a branch can say become branches. */
dil_status stage_normalise(const driver_request *r, compilation *c);
/* fuse: decides which branches share a pass, and fills the plan's tables. */
dil_status stage_fuse(const driver_request *r, compilation *c);
/* plan: applies the knobs, or reads the plan where the source is one. */
dil_status stage_plan(const driver_request *r, compilation *c);
/* schedule: the instruction set of the processor's code. The run time names it;
 * the back end stays closed, since the code may lie in the cache. */
dil_status stage_isa(const driver_request *r, compilation *c);

void stage_verify_pattern(const compilation *c);
void stage_verify_normal(const compilation *c);
void stage_verify_passes(const compilation *c);
void stage_verify_plan(const compilation *c);

/* stages_print.c: what follows a stage, in request->dump. */
#define X(name) \
  dil_status stage_print_##name(const driver_request *r, compilation *c);
DRIVER_STAGES(X)
#undef X

#endif
