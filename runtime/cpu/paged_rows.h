/* paged_rows.h - rows of keys and values for the kernels over single rows, which
 * read them at one distance: as they stand, or copied together, from the pages of
 * a cache or from the positions of a list. */
#ifndef DIL_RUNTIME_CPU_PAGED_ROWS_H
#define DIL_RUNTIME_CPU_PAGED_ROWS_H

#include "cpu_run.h"

/* Copies of rows at positions first, first + step, ... */
typedef struct paged_rows {
  char *k, *v;
  int64_t first, step, count; /* count 0: they hold nothing yet */
} paged_rows;

/* Rows of keys, and of values, each at one distance in bytes. */
typedef struct row_run {
  const char *k, *v;
  int64_t k_stride, v_stride;
} row_run;

/* Bytes of the copies of `most` rows; 0 where a call has neither pages nor lists of
 * keys. */
int64_t paged_rows_bytes(const cpu_run *r, int64_t most);
/* Copies in that much memory, which hold nothing. */
void paged_rows_init(paged_rows *p, const cpu_run *r, int64_t most, char *at);
/* The rows at `count` (> 0) positions. Rows that neighbours ask for are copied
 * once. `p` may be a rest of another call's only if its count is 0. */
row_run paged_rows_take(paged_rows *p, const row_view *k, const row_view *v,
                        int64_t first, int64_t step, int64_t count);
/* Copies of the rows at `count` positions, whatever their distances. */
row_run paged_rows_gather(paged_rows *p, const row_view *k, const row_view *v,
                          const int32_t *positions, int64_t count);

#endif
