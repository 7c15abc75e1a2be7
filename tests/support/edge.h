/* edge.h - a row of the tables of edges, and the patterns they are made of. */
#ifndef DIL_TESTS_SUPPORT_EDGE_H
#define DIL_TESTS_SUPPORT_EDGE_H

#include "numeric.h"

#define P(body) "pattern p { heads 4; head_dim 16; dtype f32; " body " }"
#define S(n, m) {.batch = 1, .queries = n, .keys = m}
#define S_(n, m, ...) {.batch = 1, .queries = n, .keys = m, __VA_ARGS__}
#define LONGNET "segments 32, 64, 128; dilations 1, 2, 4;"

typedef struct edge {
  const char *name, *text;
  call_shape shape;
} edge;

/* The lengths of four batch rows of at most 100 keys. */
extern const int32_t ragged[];

/* score_edges.c: the edges of scores and of numbers that are not finite. */
extern const edge score_edges[];
extern const int32_t score_edge_count;
double huge_key_nan_value(int32_t tensor, const int64_t *at, double number);

/* sink_edges.c: the edges of sinks. */
extern const edge sink_edges[];
extern const int32_t sink_edge_count;

#endif
