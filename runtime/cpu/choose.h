/* choose.h - blocks of keys that a call's own numbers choose (dil_choice). */
#ifndef DIL_RUNTIME_CPU_CHOOSE_H
#define DIL_RUNTIME_CPU_CHOOSE_H

#include "cpu_run.h"

/* Fills r->read of all choices, whose memory is there. `memory` has as many
 * bytes as choose_bytes says, aligned to 64. */
int64_t choose_bytes(const cpu_run *r);
dil_status choose_run(cpu_run *r, char *memory);
/* A call without rows or batch rows chooses nothing: its lists become empty. */
void choose_nothing(const cpu_run *r);

/* ---- choose_blocks.c: which blocks, and the best of them ----------------- */

/* A query block of a head: its places, which exist from `first` to `last`. Places are
 * positions, or on a grid cells counted block by block. */
typedef struct choose_place {
  int64_t b, bi, first, last, M;
} choose_place;

typedef enum choose_kind { CHOOSE_NONE, CHOOSE_SCORED, CHOOSE_ALWAYS } choose_kind;

/* The position of place `place` of the call, counted block by block. */
int64_t choose_position(const cpu_run *r, const dil_choice *c, int64_t place);
choose_place choose_place_of(const cpu_run *r, const dil_choice *c, int64_t b,
                             int64_t bi);
/* The kind of the key block for heads h..end - 1 together, by one of the table's
 * choices. */
choose_kind choose_kind_of(const cpu_run *r, int32_t choice,
                           const choose_place *at, int32_t h, int32_t end,
                           int64_t bj);
/* Of nb blocks with their kinds and estimates, those that are chosen, in their
 * order; `room` is for nb numbers. Returns how many. */
int64_t choose_best(const dil_choice *c, const uint8_t *kind,
                    const float *estimate, int64_t nb, uint64_t *room,
                    int32_t *out);

#endif
