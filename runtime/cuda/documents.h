/* documents.h - a call whose mask keeps documents apart, as a packed call.
 *
 * `mask doc[b, i] == doc[b, j]` is a packed call in disguise where doc is sorted, and the
 * kernels of packed calls visit no pair of two documents. Whether doc is sorted, the device
 * finds out (templates/hopper/hopper_order_documents.cuh), and the host does not wait: both
 * runs are put on the stream, and one of them has nothing to do. */
#ifndef DIL_RUNTIME_CUDA_DOCUMENTS_H
#define DIL_RUNTIME_CUDA_DOCUMENTS_H

#include "codes.h"

/* The packed call of a call: its tensors keep their batch rows, whose documents follow one
 * another. The run points to the call here, which stays where it is. */
typedef struct documents_run {
  cuda_run run;
  dil_call call;
} documents_run;

/* Fills the packed call of a call. `code` is one of documents; `memory` is of
 * documents_bytes. NULL: the run is for questions alone. */
void documents_fill(const cuda_codes *codes, const cuda_run *r, const cuda_code *code,
                    char *memory, documents_run *d);
/* Whether it pays to ask the device for the documents of a call. */
bool documents_pay(const cuda_run *r, const cuda_code *code);
/* The memory that a packed call needs, with `most` bytes for the tiles of documents. */
int64_t documents_bytes(const cuda_run *r, int64_t most);

/* The code that runs the documents of a call forward; NULL: none does. */
const cuda_code *documents_code(const cuda_codes *codes, const cuda_run *r);
/* The bytes that r->documents has; 0: the call has no documents. */
int64_t documents_forward_bytes(const cuda_codes *codes, const cuda_run *r);
/* Runs the documents of a call. The pass behind it runs where there are none. */
dil_status documents_forward(const cuda_codes *codes, cuda_run *r);

#endif
