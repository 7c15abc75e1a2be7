/* wisdom_apply.h - finds the tuned schedule (wisdom.h) for a kernel. An
 * unreadable record of the file is a warning in the diag, once a process. */
#ifndef DIL_COMPILER_SCHEDULE_WISDOM_APPLY_H
#define DIL_COMPILER_SCHEDULE_WISDOM_APPLY_H

#include "wisdom.h"
#include "runtime/api/kernel.h"

/* A kernel of which wisdom is asked. */
typedef struct wisdom_query {
  arena *arena;
  diag *diag;
  const pattern *pattern;
  dil_direction direction;
  const char *isa;     /* of the processor's code */
  bool free;           /* the kernel has no schedule of its own, nor a forced
                          plan; others take no knobs */
} wisdom_query;

/* Fills the key under which wisdom holds the context's device, this pattern and
 * a call of these sizes: batch, queries, keys. */
void wisdom_apply_key(const wisdom_query *q, const dil_context *context,
                      const int64_t size[3], wisdom_key *key);
/* Finds the remembered knobs for calls of this size on the context's device;
 * size NULL: those of the largest call. True: *k has them. */
bool wisdom_apply(const wisdom_query *q, const dil_context *context,
                  const int64_t size[3], knobs *k);
/* The same for any device whose name ends in `chip` ("sm_90"), and for the
 * largest call. */
bool wisdom_apply_chip(const wisdom_query *q, const char *chip, knobs *k);
/* The message where no kernel can have these knobs: the knobs and the
 * reason. */
#define WISDOM_LOST "the remembered schedule %s cannot be had: %s"

#endif
