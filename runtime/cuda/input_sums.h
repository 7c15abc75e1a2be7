/* input_sums.h - the sums of the gradients of inputs on a GPU: where the sums
 * stand, and the launches that make them. In: a call and what its plan says of
 * its inputs. Out: launches that write the gradients. */
#ifndef DIL_RUNTIME_CUDA_INPUT_SUMS_H
#define DIL_RUNTIME_CUDA_INPUT_SUMS_H

#include "gradient.h"

typedef struct input_sums {
  int32_t count; /* of those below: wanted gradients */
  const dil_tensor *to[DIL_INPUT_MAX];
  dil_input_sums of[DIL_INPUT_MAX];
  int64_t bytes[DIL_INPUT_MAX]; /* of the sums; 0: they are the gradient */
} input_sums;

/* The sums of a call's wanted gradients, which have no memory yet. `warps`: of
 * a thread block that goes over pairs. */
void input_sums_plan(const cuda_run *r, const dil_tensor *gradients,
                     int32_t warps, input_sums *out);
/* Lets the ends add the sums to float64 sums, those of one gradient after the
 * other. */
void input_sums_add_to(input_sums *s, double *sums);
int64_t input_sums_bytes(const input_sums *s);
/* Gives the sums their memory, and sets them to 0. `code` makes dQ, here and
 * below. */
dil_status input_sums_begin(const gradient_run *g, char *memory,
                            const cuda_code *code, input_sums *s);
/* Adds what the pairs of a pass give. `code` makes gradients of inputs; NULL:
 * no score reads any. */
dil_status input_sums_pass(const gradient_run *g, const input_sums *s,
                           int32_t pass, const cuda_code *code);
/* Adds what the rows' sinks give: the pattern's (own) and those of branches. */
dil_status input_sums_sinks(const gradient_run *g, const input_sums *s,
                            bool own, uint64_t branches, const cuda_code *code);
dil_status input_sums_end(const gradient_run *g, const input_sums *s,
                          const cuda_code *code);

#endif
