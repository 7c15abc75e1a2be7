/* backward.h - a call for gradients on a GPU, which may be absent. Running the
 * call (backward.c) and telling of it beforehand (backward_estimate.c) share
 * these declarations. */
#ifndef DIL_RUNTIME_CUDA_BACKWARD_H
#define DIL_RUNTIME_CUDA_BACKWARD_H

#include "input_sums.h"
#include "kernel.h"
#include "runtime/cuda/hopper/hopper_gradient.h"

typedef struct backward_codes {
  const cuda_code *q, *k, *v;
  const cuda_code *inputs; /* NULL: no gradient of an input that scores read */
  const cuda_code *fast_q, *fast_k, *fast_v; /* NULL: there are none */
  /* Of documents that a mask keeps apart, which run before the fast ones; NULL: none */
  const cuda_code *documents_q, *documents_k, *documents_v;
  const cuda_code *general;                  /* bounds and states */
} backward_codes;

/* Where everything lies in the workspace. */
typedef struct backward_layout {
  int64_t facts, fast, lists, documents, state_o, state_lse, sums[3], inputs, bounds;
  int64_t pass, end;
} backward_layout;

typedef struct backward_run {
  dil_cuda_kernel *kernel;
  const dil_backward_call *call;
  dil_call seen;   /* the forward call; its o is dO */
  dil_call again;  /* the forward call as passes run it once more: into states,
                      so that an o which it lacks need only be described */
  cuda_run run;    /* of `seen` */
  dil_shard whole; /* the whole call as a shard */
  backward_codes codes;
  backward_layout at;
  gradient_run gradient;
  input_sums inputs;
  char *sums; /* memory of the sums of inputs */
} backward_run;

/* Whether the run forward has left the states of its passes. */
bool backward_has_saved(const backward_run *b);
/* Fills `seen` and `again` from the call. */
void backward_see_calls(backward_run *b);
/* Checks a call on a kernel's device, and begins to fill `b`. */
dil_status backward_check(dil_cuda_kernel *kernel,
                          const dil_backward_call *call, backward_run *b);
/* Refuses a plan that no kernel of gradients takes. */
dil_status backward_refuse(const dil_cuda_kernel *kernel);
/* Returns whether the gradient of an input is wanted that some score reads. */
bool backward_wants_scores(const backward_run *b);
/* The gradient takes its lse from a call's, [B, H, N]. */
void gradient_take_lse(gradient_run *g, const dil_tensor *lse);
/* Does all that comes before the device has work to do: the codes, there, and
 * the workspace. The device, where there is one, is entered. */
dil_status backward_prepare(backward_run *b);
/* The launches of a pass, whose gradients are the first or are added; and those of
 * the sinks of the softmax whose facts the rows have: the pattern's (own), and
 * those of branches. */
dil_status backward_run_pass(backward_run *b, int32_t p, bool first);
dil_status backward_run_sinks(backward_run *b, bool own, uint64_t branches);
/* backward_fast.c: the codes of the fast kernels, there; the bytes of the sums to
 * which the fused form adds dQ, of what kernels that gather rows need, and of documents
 * that a mask keeps apart, 0 where the call does not take them; the launches,
 * where the call suits them. The general kernels then work only if some sum was
 * not finite: they keep such numbers apart. */
dil_status backward_have_fast_codes(backward_run *b);
int64_t backward_fused_bytes(const backward_run *b);
int64_t backward_list_bytes(const backward_run *b);
int64_t backward_documents_bytes(const backward_run *b);
/* Whether the fast kernels read lists alone, so that tables are made behind them, where
 * the general kernels work. */
bool backward_reads_lists_alone(const backward_run *b);
/* Whether the documents that a mask keeps apart have kernels of their own, which take the
 * call where the input of the mask is sorted. */
bool backward_has_documents(const backward_run *b);
dil_status backward_run_fast(backward_run *b);
/* The launches of a pass by the fast kernels, whose facts are there. */
dil_status backward_run_fast_pass(backward_run *b, int32_t p,
                                  const hopper_gradient_space *space);
/* Whether the fast kernels round all sums of several passes. */
bool backward_settles(const backward_run *b);
/* backward_run_fast where each pass has facts of its own: before the first pass;
 * a pass, its state there, `state_lse` as in hopper_facts_launch; behind the
 * last. */
dil_status backward_begin_fast(backward_run *b, hopper_gradient_space *space);
dil_status backward_run_fast_alone(backward_run *b, int32_t p,
                                   const float *state_lse,
                                   const hopper_gradient_space *space);
dil_status backward_end_fast(backward_run *b,
                             const hopper_gradient_space *space);
/* The general kernels of gradients, which may be promised only unless the call
 * `waits`. Behind the fast kernels, while the general ones are still being
 * compiled: the device is asked whether these have anything to do, and they are
 * waited for only then. Else the call has *ended. */
dil_status backward_have_general_codes(backward_run *b, bool waits);
dil_status backward_end_without_general(backward_run *b, bool *ended);
/* Parts of a run (backward.c). The joint lse is made again: */
bool backward_makes_lse(const backward_run *b);
/* Returns whether the gradient of some input is wanted. */
bool backward_wants_inputs(const backward_run *b);
/* The run of the passes forward, over the whole call as a shard; pass p of it,
 * from the state as it is. The gradient takes lse, or o, from these states. */
cuda_run backward_forward_run(const backward_run *b);
dil_status backward_advance(const backward_run *b, cuda_run *r, int32_t p);
void backward_take_lse(backward_run *b, const float *lse);
void backward_take_o(backward_run *b, float *o);
/* By the general kernels: the facts of rows. */
dil_status backward_make_facts(backward_run *b);
/* backward_apart.c: all passes, where each has facts of its own. */
dil_status backward_run_apart(backward_run *b);
/* Returns why the fast kernels do not make the gradients of a prepared call;
 * NULL: they do. */
const char *backward_fast_refusal(const backward_run *b);

#endif
