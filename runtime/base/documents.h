/* documents.h - the documents of a packed call, on the host.
 *
 * In: a call whose offsets the host can read. Out: what is wrong with them, or
 * one document as a call of its own: views of the same memory. */
#ifndef DIL_RUNTIME_BASE_DOCUMENTS_H
#define DIL_RUNTIME_BASE_DOCUMENTS_H

#include "runtime/call.h"
#include "runtime/dilrt.h"

#pragma GCC visibility push(default)

static inline bool documents_given(const dil_call *c) {
  return c->packed.queries != NULL;
}
/* The call's batch rows: documents, where it has some. */
static inline int64_t documents_count(const dil_call *c) {
  return documents_given(c) ? c->packed.count : c->q.shape[0];
}
/* N and M of the longest batch row. */
static inline int64_t documents_queries(const dil_call *c) {
  return documents_given(c) ? c->packed.longest_queries : c->q.shape[1];
}
static inline int64_t documents_keys(const dil_call *c) {
  return documents_given(c) ? c->packed.longest_keys : c->k.shape[1];
}

/* What needs no look at the offsets: the batch of the tensors, the longest
 * documents, lengths beside documents. */
dil_status documents_check_shape(const dil_call *c);
/* DIL_USAGE: offsets do not begin at 0, fall, end behind the rows, or make a
 * document longer than the call says; the text names the place. */
dil_status documents_check_offsets(const dil_call *c);
/* Document b as a call: tensors of one batch row, no documents. */
dil_call documents_take(const dil_call *c, int64_t b);
dil_backward_call documents_take_backward(const dil_backward_call *c,
                                          int64_t b);
/* The document that has a row of the call; -1: none has. */
int64_t documents_find(const int32_t *offsets, int64_t count, int64_t row);

#pragma GCC visibility pop
#endif
