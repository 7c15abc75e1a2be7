/* hopper_config.h - tile configurations of the Hopper kernels, shared by the
 * two strategies: hopper.c, and hopper_pair.c for masks and scores. */
#ifndef DIL_COMPILER_CODEGEN_GPU_HOPPER_HOPPER_CONFIG_H
#define DIL_COMPILER_CODEGEN_GPU_HOPPER_HOPPER_CONFIG_H

#include "compiler/codegen/gpu/gpu.h"

enum { HOPPER_CUT_ROOM = 227 * 1024 }; /* shared memory of a thread block,
                                          bytes */

/* A tile configuration for one head size. */
typedef struct hopper_cut {
  int32_t width;       /* head_dim and value_dim up to this */
  int32_t warpgroups, keys, stages;
  int32_t queries;     /* query tiles in shared memory: 2, or 1 to save room */
  int32_t staged;      /* 1: O is stored by TMA, through shared memory */
  int32_t producer, consumer; /* registers of a thread; 0: the template's
                                 default */
} hopper_cut;

/* A strategy's configurations. The rows of one width are its attempts, and the
 * narrowest width that holds the heads is used. A configuration that does not
 * fit shared memory is skipped. */
typedef struct hopper_cuts {
  const hopper_cut *row;
  int32_t count;
  bool pairwise;       /* for passes with masks or score chains */
  const char *what;    /* for error messages: "masks or scores with " or "" */
  /* Adapts the other fields after a schedule has changed the tile or the
   * stages. */
  void (*turn)(const dil_table *t, hopper_cut *s);
  /* Whether the template can be compiled with a schedule's configuration; fills
   * `reason` if not. */
  bool (*fits)(const hopper_cut *s, int32_t rows, char *reason, size_t size);
} hopper_cuts;

int32_t hopper_cut_bytes(const dil_table *t, const hopper_cut *s);
/* As gpu_strategy.can; and the configuration, code and macros of an attempt.
 * False: there is no such attempt. */
bool hopper_can(const gpu_request *r, const hopper_cuts *all, char *reason,
                size_t size);
bool hopper_begin(const gpu_request *r, const hopper_cuts *all,
                  int32_t member, int32_t attempt, hopper_cut *s,
                  dil_cuda_code *code, source_text *text);

#endif
