/* wisdom_apply.h - applies tuned schedules (wisdom.h) to a compilation that has
 * its plan. A kernel with a schedule of its own, or a forced plan, stays as it
 * is. An unreadable record of the file is a warning in the diag, once a
 * process. */
#ifndef DIL_COMPILER_API_WISDOM_APPLY_H
#define DIL_COMPILER_API_WISDOM_APPLY_H

#include "compiler/driver.h"
#include "compiler/front/program.h"
#include "compiler/schedule/wisdom.h"

/* Fills the key under which wisdom holds the context's device, this pattern and
 * a call of these sizes: batch, queries, keys. */
void recall_key(const compilation *c, const dil_context *context,
                const int64_t size[3], wisdom_key *key);
/* Applies the remembered knobs for calls of this size on the context's device;
 * size NULL: those of the largest call. True: the compilation has new knobs. */
bool recall(compilation *c, const dil_context *context, const int64_t size[3]);
/* The same for any device whose name ends in `chip` ("sm_90"), and for the
 * largest call. */
bool recall_chip(compilation *c, const char *chip);
/* Removes the knobs again, where no kernel can be made with them. The caller
 * prints RECALL_LOST with the knobs and the reason. */
#define RECALL_LOST "the remembered schedule %s cannot be had: %s"
void recall_undo(compilation *c);

#endif
