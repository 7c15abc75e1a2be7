/* gpu_case.h - a case of the suites about a GPU's fast kernels: a pattern and a
 * call. A case is computed, compared with the oracle between guard bytes, and on a
 * GPU it is asserted which kernel took it; elsewhere the processor computes it. */
#ifndef DIL_TESTS_SUPPORT_GPU_CASE_H
#define DIL_TESTS_SUPPORT_GPU_CASE_H

#include "paged.h"

typedef struct gpu_case {
  const char *text;
  unsigned force;
  call_shape shape;
} gpu_case;

#define P(sizes, body) "pattern p { " sizes " " body " }"
#define THREE "segments 256, 512, 1024; dilations 1, 2, 4;"
#define CROSSING "segments 512, 750, 1250; dilations 1, 2, 4;"

#define SHAPE(b, n, m, how) \
  {.batch = b, .queries = n, .keys = m, .seed = 7, .layout = how}
/* Four batch rows of fewer keys: of one, none, 1100 and 777. */
#define RAGGED(n, m, how) \
  {.batch = 4, .queries = n, .keys = m, .seed = 7, .layout = how, \
   .lengths = ragged_lengths}
/* With some values that are not finite. */
#define BAD(b, n, m, how) \
  {.batch = b, .queries = n, .keys = m, .seed = 7, .layout = how, \
   .element = bad_values}

extern const int32_t ragged_lengths[4];
/* Lengths that stand for 300, 299 and 0 keys in a call with 300 keys. */
extern const int32_t outside_lengths[3], nearest_lengths[3];
/* An element of a tensor; pairs that do not count must not read the bad ones. */
double bad_values(int32_t tensor, const int64_t *at, double number);

/* Computes the case, with its keys in pages where pages.rows is not 0. On a GPU
 * the names of its kernels have `takes` in them and not `leaves`; NULL: any. */
void gpu_case_compute(const gpu_case *c, page_layout pages, const char *takes,
                      const char *leaves);

#endif
