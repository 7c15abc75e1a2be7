/* spec.h - a random pattern and call as plain numbers, so that it can be
 * printed as .dil text and made smaller field by field. */
#ifndef DIL_TESTS_FUZZ_SPEC_H
#define DIL_TESTS_FUZZ_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SPEC_BRANCHES = 5, SPEC_BATCHES = 3 };

/* Indices 0 of the text tables in spec_words.h mean: no such statement. */
typedef struct spec_branch {
  int32_t segment, dilation; /* segment 0: none */
  int32_t left, right;       /* -1: inf; both -1: no window */
  int32_t mask, score, sink, phase;
  int32_t head_first, head_last;
  int32_t causal;
  int32_t reach; /* of a grid */
  int32_t keys;  /* it sees the keys of a list */
  int32_t choice, shared; /* of blocks, by their scores */
} spec_branch;

typedef struct spec {
  uint32_t seed;
  int32_t heads, kv_heads, head_dim, value_dim;
  int32_t dtype, combine, phase, causal, split, scale, dropout;
  int32_t mask, score, sink, keep, block, left, right;
  int32_t branch_count;
  spec_branch branch[SPEC_BRANCHES];
  int32_t batch, queries, keys, layout, lengths, threads, isa, force;
  int32_t rows;    /* each row chooses blocks for itself */
  int32_t grid[3]; /* extents; the first 0: two axes; the last 0: no grid */
} spec;

static inline bool spec_has_grid(const spec *s) { return s->grid[2] > 0; }

spec spec_random(uint32_t seed);
/* One that the Hopper kernels take, as far as can be said without a plan. */
spec spec_hopper(uint32_t seed);
/* One over a grid. */
spec spec_grids(uint32_t seed);
/* One over a grid that the Hopper kernel for grids takes, unless it is small. */
spec spec_hopper_grids(uint32_t seed);
/* One whose branches choose blocks by their scores. */
spec spec_choices(uint32_t seed);
/* One whose rows choose for themselves, for the Hopper kernel that gathers rows. */
spec spec_hopper_choices(uint32_t seed);
bool spec_chooses(const spec *s);
void spec_print(const spec *s, char *text, size_t size); /* as .dil */
bool spec_says(const spec *s, const char *words); /* in a condition, score or sink */
/* spec_simplify.c: makes s simpler in the way number `step`; false when there
 * is none left. */
bool spec_simplify(spec *s, int32_t step);

#endif
