/* place_demand.h - what one comb of the receiver's queries wants of one branch
 * and phase: for the files that make up place.h. */
#ifndef DIL_PLACE_DEMAND_H
#define DIL_PLACE_DEMAND_H

#include "place.h"

typedef struct demand {
  const dil_branch *branch;
  int64_t phase;
  int64_t left, right;  /* the window; DIL_ENDLESS: none */
  bool masked;          /* and the mask is looked at, for this head */
  bool gathered;        /* its branch's rows come first */
  int32_t head;
  dil_comb queries;
} demand;

/* What a demand wants from `at` on, until it changes. */
typedef struct want {
  bool some;
  bool inside;          /* receivers' queries stand on both sides */
  int64_t residue;      /* j = residue mod the dilation */
  int64_t until;
  int64_t query, every, last; /* wanting queries: query + i * every <= last */
} want;

/* Of a range of keys: no query reaches any, some query reaches each, or the
 * range is to be cut. */
typedef enum mask_answer { MASK_NONE, MASK_ALL, MASK_MIXED } mask_answer;

/* A search asks so often at most, and then takes what is left for wanted. */
typedef struct mask_search {
  const place_mask *mask;
  int64_t left;
  bool exact;           /* nothing has been taken for wanted unseen */
} mask_search;

/* Keys low..high-1 under the demand's window and mask. */
mask_answer mask_ask(mask_search *s, const demand *d, const want *w,
                     int64_t low, int64_t high);

#endif
