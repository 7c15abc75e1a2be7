/* definition.h - calls with made-up tensors, and the definition of attention
 * written out a second time. */
#ifndef DIL_TESTS_SUPPORT_DEFINITION_H
#define DIL_TESTS_SUPPORT_DEFINITION_H

#include "patterns.h"
#include "compiler/front/program.h"
#include "runtime/call.h"

/* A call with plain tensors of numbers within +-2, without inputs. */
dil_call *sample_call(arena *a, const pattern *p, int64_t B, int64_t N,
                      int64_t M, uint64_t seed);
/* Adds what add_inputs declares. */
void sample_inputs(arena *a, const pattern *p, dil_call *call,
                   uint64_t *state);
/* Adds tensors for the inputs that any pattern declares: floats are multiples
 * of 1/64 within +-1, integers within -1..5. */
void sample_declared(arena *a, const pattern *p, dil_call *call,
                     uint64_t *state);
/* Adds a length to each batch row. */
void sample_lengths(arena *a, dil_call *call, uint64_t *state);
/* The gradients of that call: dO and, where the pattern has an lse, dlse of
 * numbers within +-1; no places for results. */
dil_backward_call *sample_backward(arena *a, const pattern *p,
                                   const dil_call *call, uint64_t seed);
/* An element of a declared input, 0 outside it: the `input` of a point whose
 * context is the call. */
value sample_input(void *call, int32_t index, const int32_t *at);
/* One element of a tensor of up to four dimensions; surplus indices 0. */
double sample_element(const dil_tensor *x, int64_t a, int64_t b, int64_t c,
                      int64_t d);
void sample_set(const dil_tensor *x, int64_t a, int64_t b, int64_t c,
                int64_t d, double number);

/* Position t of head h in batch row b, which has M keys. */
typedef struct definition {
  const pattern *p;
  const dil_call *call;
  int64_t b, h, t, M;
} definition;

bool definition_reaches(const definition *c, const branch *b, int64_t j);
/* o[value_dim]; returns lse, NaN where several branches have one each. */
long double definition_row(arena *a, const definition *c,
                           long double *o);

#endif
