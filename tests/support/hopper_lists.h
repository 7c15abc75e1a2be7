/* hopper_lists.h - patterns for tests of the Hopper kernels' tables: lists of
 * (segment, dilation, phase, heads, window), known or random. */
#ifndef DIL_TESTS_SUPPORT_HOPPER_LISTS_H
#define DIL_TESTS_SUPPORT_HOPPER_LISTS_H

#include "runtime/cuda/hopper/hopper.h"

enum { BRANCHES = 5, HEADS = 4, BATCHES = 3 };

/* A list, its lengths, and what is made of them. */
typedef struct hopper_list {
  dil_table table;
  dil_branch branch[BRANCHES];
  dil_predicate predicate[BRANCHES];
  dil_pass pass;
  int32_t phase[BRANCHES][HEADS];
  int64_t B, N, M;
  int lengths[BATCHES]; /* of batch rows, where place.shorter */
  hopper_place place;
  hopper_table made;
  hopper_launch launch;
} hopper_list;

/* Segments and dilations that every head has; phases are of cycles. */
typedef struct known_shape {
  int64_t B, N, M;
  int32_t branches;
  int64_t segment[BRANCHES], dilation[BRANCHES];
} known_shape;

int64_t random_to(int64_t n); /* 0 .. n - 1, after list_random's seed */
void list_random(hopper_list *s, uint64_t seed);
/* To be freed; its window is no branch's yet. */
hopper_list *list_known(const known_shape *l, dil_combine combine, bool dedup);
/* Whether a branch has the row or key at a position, and whether its row at t
 * sees the key at j: the definition. */
bool list_selects(const hopper_list *s, int32_t b, int32_t h, int64_t t);
bool list_reaches(const hopper_list *s, int32_t b, int32_t h, int64_t t,
                  int64_t j);
/* In words, until the next call. */
const char *list_describe(const hopper_list *s);

#endif
