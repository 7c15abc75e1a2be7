/* paged.h - the keys and values of a call laid out in pages of a cache. */
#ifndef DIL_TESTS_SUPPORT_PAGED_H
#define DIL_TESTS_SUPPORT_PAGED_H

#include "numeric.h"

typedef struct page_layout {
  int64_t rows;   /* of a page */
  bool shared;    /* all batch rows have the pages of the first */
  int32_t absent; /* this page of each batch row is outside of the pool, where it
                     is not 0 */
} page_layout;

/* The call of d from now on has pages: out of order, among others full of NaN.
 * What stands behind a batch row's length is NaN, too, and its pages' numbers are
 * outside of the pool. */
void paged_lay_out(data *d, page_layout layout);

#endif
