/* recall.h - schedules that were measured and are remembered (wisdom.h), for a
 * compilation that has its plan. A schedule of its own, or a forced plan, is
 * never touched; what is wrong with the file is a warning of its diag, once a
 * process. */
#ifndef DIL_RECALL_H
#define DIL_RECALL_H

#include "driver.h"
#include "wisdom.h"

/* What wisdom calls the context's device, this pattern and a call of batch,
 * queries and keys. */
void recall_key(const compilation *c, const dil_context *context,
                const int64_t size[3], wisdom_key *key);
/* Gives the compilation the knobs that are remembered of calls of this size on
 * the context's device; size NULL: of the largest. True: it has other knobs
 * now. */
bool recall(compilation *c, const dil_context *context, const int64_t size[3]);
/* The same for any device whose name ends in `chip` ("sm_90"). */
bool recall_chip(compilation *c, const char *chip);
/* Takes them back: no kernel can be had with them, which is told so, with the
 * knobs and the reason. */
#define RECALL_LOST "the remembered schedule %s cannot be had: %s"
void recall_undo(compilation *c);

#endif
