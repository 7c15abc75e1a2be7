/* call.h - one call as the run time sees it. */
#ifndef DIL_RUNTIME_CALL_H
#define DIL_RUNTIME_CALL_H

#include "plan_table.h"

#pragma GCC visibility push(default)

/* Query and key rows of a call: differences of positions stay within 32 bits.
 * */
enum { DIL_LENGTH_MAX = INT32_MAX / 2 };

/* The documents of a packed call. Its tensors are [1, T, ..]: document b has the
 * query rows queries[b]..queries[b + 1] - 1 and the keys keys[b]..keys[b + 1] - 1.
 * Positions, N and M are the document's own, and b is its batch row. Rows behind
 * the last document belong to nobody. */
typedef struct dil_packed {
  const int32_t *queries, *keys; /* [count + 1]; NULL: the call is not packed */
  int64_t count;
  int64_t longest_queries, longest_keys; /* of a document, at least */
} dil_packed;

/* Key j of batch row b stands in page number[b * stride + j / rows], row j % rows
 * of it; k and v are the pages, [pages, rows, Hkv, D], and M is columns * rows.
 */
typedef struct dil_call_pages {
  const int32_t *number; /* NULL: k and v are no pages */
  int64_t columns;       /* the most pages that a batch row has */
  int64_t stride;
} dil_call_pages;

/* One call as the run time sees it: dil_arguments with its tensors by value.
 * Everything is read-only but o and lse. */
typedef struct dil_call {
  size_t size;              /* sizeof(dil_call) */
  dil_tensor q;             /* [B, N, H, D] */
  dil_tensor k;             /* [B, M, Hkv, D] */
  dil_tensor v;             /* [B, M, Hkv, Dv] */
  dil_tensor o;             /* [B, N, H, Dv] */
  dil_tensor lse;           /* f32 [B, H, N]; data NULL: not wanted */
  const dil_tensor *inputs; /* the pattern's inputs in its own order */
  int32_t input_count;
  int32_t train;            /* not 0: dropout applies */
  uint64_t seed;            /* of the dropout */
  const uint32_t *seed_at;  /* its low and its high word in the device's memory,
                               in place of `seed`; NULL: `seed` */
  double scale;             /* read when the pattern says `scale runtime` */
  const int32_t *lengths;   /* [B], each row's own M_b <= M; NULL: M */
  dil_packed packed;
  dil_call_pages pages;     /* of k and v */
  uint32_t random;          /* q, k, v without data hold dil_normal of this
                               seed and 0, 1, 2: who computes makes them */
  struct dil_watch *watch;  /* how far the call is; NULL: nobody looks on */
  const dil_tensor *made;   /* the lists that choices make, at the places of the
                               inputs behind the call's own: a kernel writes
                               them, the oracle reads them. NULL: not wanted */
  bool chosen;              /* of gradients: the lists of `made` are what the run
                               forward chose, and are read */
  void *saved;              /* on the device: what gradients would make again. A run
                               writes it, and gradients read it; NULL: neither */
} dil_call;

/* The gradients of one call, as the run time sees them. The call is the one that
 * ran forward, with the o that it wrote; its lse too, unless lse.data is NULL:
 * then the run makes it again. Shapes are those of what they are gradients of.
 * dq, dk and dv have the kernel's dtype or f32, an input's gradient its own
 * dtype or f32; one whose data is NULL is not wanted. All are written, not
 * added to. */
typedef struct dil_backward_call {
  size_t size;              /* sizeof(dil_backward_call) */
  dil_call forward;
  dil_tensor output;        /* dO, in the kernel's dtype: [B, N, H, Dv] */
  dil_tensor lse;           /* f32 [B, H, N], the gradient of lse; data NULL: 0 */
  dil_tensor dq, dk, dv;
  dil_tensor inputs[DIL_INPUT_MAX]; /* the gradients of the inputs */
  void *workspace;          /* NULL: from the context's pool */
  int64_t workspace_bytes;
} dil_backward_call;

/* How the gradients of a call are made, or would be. */
typedef struct dil_backward_facts {
  char variant[320];      /* the kernels; on a GPU dK and dV's first: "a+b" */
  const char *refusal;    /* on a GPU, why the kernels of the fast family make
                             none of them; NULL: they do */
  int32_t code[4], count; /* on a GPU, the indices of the codes */
  int64_t workspace;      /* bytes besides the call's tensors */
} dil_backward_facts;

#pragma GCC visibility pop
#endif
