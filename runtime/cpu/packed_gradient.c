/* packed_gradient.c - the gradients of a call that holds documents.
 *
 * In: a run backward whose call has documents, its offsets checked. Out: dQ, dK
 * and dV of each document, with the bits of a call of its own; zeros behind the
 * last one; the gradients of inputs, summed over the documents in their order. */
#include "gradient.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/documents.h"
#include <string.h>

static dil_backward_call call_of(const cpu_gradient_run *g,
                                 const cpu_run *document, int64_t b) {
  dil_backward_call one = documents_take_backward(g->call, b);
  one.forward = *document->call;
  return one;
}

static int64_t document_bytes(const packed_work *w, cpu_run *document,
                              int64_t b) {
  dil_backward_call call = call_of(w->context, document, b);
  return gradient_document_bytes(w->context, document, &call);
}

static dil_status document_run(const packed_work *w, cpu_run *document,
                               int64_t b, char *memory) {
  dil_backward_call call = call_of(w->context, document, b);
  return gradient_document_run(w->context, document, &call, memory);
}

/* Documents add to the same sums of inputs: one after the other, then. */
static packed_work work_of(const cpu_gradient_run *g) {
  return (packed_work){.run = g->run,
                       .context = g,
                       .in_turn = g->sums_length > 0,
                       .bytes = document_bytes,
                       .work = document_run};
}

static int64_t sums_bytes(const cpu_gradient_run *g) {
  return round_up(g->sums_length * g->copies * (int64_t)sizeof(double), 64);
}

int64_t packed_gradient_bytes(const cpu_gradient_run *g) {
  packed_work w = work_of(g);
  return round_up(input_bounds_bytes(g->run), 64) + sums_bytes(g) +
         packed_share_bytes(&w);
}

/* What no document has is zero. */
static dil_status clear_rest(const cpu_gradient_run *g) {
  const dil_packed *p = &g->run->call->packed;
  int64_t queries = p->queries[p->count], keys = p->keys[p->count];
  dil_status status = packed_clear_rows(g->run, &g->call->dq, queries);
  if (!status) status = packed_clear_rows(g->run, &g->call->dk, keys);
  return status ? status : packed_clear_rows(g->run, &g->call->dv, keys);
}

dil_status packed_gradient_run(cpu_gradient_run *g, char *memory) {
  int64_t bounds = round_up(input_bounds_bytes(g->run), 64);
  if (bounds) input_bounds_fill(g->run, memory);
  g->sums = g->sums_length ? (double *)(memory + bounds) : NULL;
  if (g->sums) memset(g->sums, 0, (size_t)sums_bytes(g));
  packed_work w = work_of(g);
  dil_status status = packed_share(&w, memory + bounds + sums_bytes(g));
  if (!status) status = clear_rest(g);
  if (!status) gradient_store_inputs(g);
  return status;
}
