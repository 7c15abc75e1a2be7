/* cpu_random.h - random typed expressions over every operator and leaf, the
 * same ones for the same seed, for the tests of generated code. */
#ifndef DIL_TESTS_SUPPORT_CPU_RANDOM_H
#define DIL_TESTS_SUPPORT_CPU_RANDOM_H

#include "compiler/front/program.h"

enum { INPUTS = 5 };
extern const dil_input random_inputs[INPUTS]; /* one of each element type */

void random_seed(uint32_t seed);
uint32_t random_below(uint32_t count);

extern arena *random_memory; /* where the trees are made */
extern bool random_scores;   /* `s` may stand in them */
extern bool random_sizes;    /* only B, N, M and integers may */

expr *random_node(expr_op op, expr_type type, int count);
expr *random_word(int depth);
expr *random_real(int depth);
expr *random_number(int depth); /* either */
expr *random_truth(int depth);

#endif
