/* hopper_cut.h - how the kernels for Hopper cut a plan: what the strategies
 * with and without masks and scores share. */
#ifndef DIL_HOPPER_CUT_H
#define DIL_HOPPER_CUT_H

#include "gpu.h"

enum { HOPPER_CUT_ROOM = 227 * 1024 }; /* bytes a block may have */

/* A way to cut one head size. */
typedef struct hopper_cut {
  int32_t width;       /* head_dim and value_dim up to this */
  int32_t warpgroups, keys, stages;
  int32_t queries;     /* tiles of queries held: 2, or 1 where room is short */
  int32_t staged;      /* 1: rows leave through shared memory in boxes */
  int32_t producer, consumer; /* registers of a thread; 0: the template's own */
} hopper_cut;

/* A strategy's shapes: rows of one width are its attempts, narrowest first.
 * One that does not fit shared memory is passed over. */
typedef struct hopper_cuts {
  const hopper_cut *row;
  int32_t count;
  bool paired;         /* for passes with masks or scores */
  const char *what;    /* how it calls its plans: "masks or scores with " */
  /* The rest of a shape whose tile or stages a schedule has changed. */
  void (*turn)(const dil_table *t, hopper_cut *s);
  /* Whether a schedule's shape can be written; else the reason. */
  bool (*fits)(const hopper_cut *s, int32_t rows, char *reason, size_t size);
} hopper_cuts;

int32_t hopper_cut_bytes(const dil_table *t, const hopper_cut *s);
/* As gpu_strategy.can, and the shape, code and macros of an attempt: false when
 * there is no such attempt. */
bool hopper_can(const gpu_request *r, const hopper_cuts *all, char *reason,
                size_t size);
bool hopper_begin(const gpu_request *r, const hopper_cuts *all,
                  int32_t member, int32_t attempt, hopper_cut *s,
                  dil_cuda_code *code, source_text *text);

#endif
