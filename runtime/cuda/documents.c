/* documents.c - see documents.h. In: a call, codes of its plan without the mask. Out: the
 * packed call, whose offsets the device writes before its launches. */
#include "documents.h"
#include "spans.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/pages.h"
#include "runtime/cuda/hopper/hopper.h"

enum { HEAD = 256 };         /* bytes of the number that says whether there are none */
enum { LEAST_ROWS = 32 };    /* of a document, on average: shorter ones fill no tile */
/* Rows of all heads of a batch row, for a processor, below which launches cost more; and of
 * several batch rows, of which one runs after the other. */
enum { LEAST_WORK = 192, LEAST_OF_SEVERAL = 960 };

/* The most documents of a call. */
static int64_t documents_most(const cuda_run *r) { return r->N / LEAST_ROWS; }

static int64_t documents_offset_bytes(const cuda_run *r) {
  return HEAD + round_up((documents_most(r) + 1) * (int64_t)sizeof(int32_t), HEAD);
}

int64_t documents_bytes(const cuda_run *r, int64_t most) {
  return documents_offset_bytes(r) + round_up(most, HEAD);
}

bool documents_pay(const cuda_run *r, const cuda_code *code) {
  const dil_call *c = r->call;
  const dil_tensor *alike = &c->inputs[code->about.knob[CUDA_KNOB_DOCUMENTS_OF] - 1];
  int64_t least = r->B > 1 ? LEAST_OF_SEVERAL : LEAST_WORK;
  return !r->shard && !c->packed.queries && !c->lengths && !pages_given(c) && r->B > 0 &&
         r->N == r->M && alike->shape[alike->rank - 1] >= r->N &&
         r->N * r->table->heads >= least * r->device->facts.processors;
}

dil_tensor documents_row(const dil_tensor *t, int64_t b) {
  dil_tensor row = *t;
  int64_t bytes = b * t->stride[0] * (int64_t)dil_dtype_size(t->dtype);
  row.shape[0] = 1;
  if (t->data) row.data = (char *)t->data + bytes;
  return row;
}

void documents_fill(const cuda_codes *codes, const cuda_run *r, const cuda_code *code,
                    char *memory, int64_t b, documents_run *d) {
  static const int32_t nowhere[1]; /* a call that has offsets is packed */
  const int32_t *offsets =
      memory ? (const int32_t *)(const void *)(memory + HEAD) : nowhere;
  const dil_call *c = r->call;
  const dil_tensor *alike = &c->inputs[code->about.knob[CUDA_KNOB_DOCUMENTS_OF] - 1];
  d->call = *c;
  d->call.q = documents_row(&c->q, b);
  d->call.k = documents_row(&c->k, b);
  d->call.v = documents_row(&c->v, b);
  d->call.o = documents_row(&c->o, b);
  d->call.lse = documents_row(&c->lse, b);
  d->call.packed = (dil_packed){offsets, offsets, documents_most(r), r->N, r->N};
  d->alike = alike->rank > 1 ? documents_row(alike, b) : *alike;
  d->run = *r;
  d->run.table = &codes->documents.table;
  d->run.call = &d->call;
  d->run.B = documents_most(r);
  d->run.bounds = NULL; /* no mask asks for them */
  d->run.alike = &d->alike;
  d->run.mixed = (unsigned *)(void *)memory;
  d->run.joins = b > 0;
  d->run.workspace = memory ? memory + documents_offset_bytes(r) : NULL;
}

/* ---- forward ------------------------------------------------------------- */

const cuda_code *documents_code(const cuda_codes *codes, const cuda_run *r) {
  const cuda_code *code = codes_of_documents(codes), *other = codes_choose(codes, r, 0);
  documents_run d;
  if (!code || !other || other->family != &cuda_hopper || !documents_pay(r, code))
    return NULL;
  documents_fill(codes, r, code, NULL, 0, &d);
  return code->family->refusal(&d.run, 0, code) ? NULL : code;
}

int64_t documents_forward_bytes(const cuda_codes *codes, const cuda_run *r) {
  const cuda_code *code = documents_code(codes, r);
  documents_run d;
  if (!code) return 0;
  documents_fill(codes, r, code, NULL, 0, &d);
  return documents_bytes(r, code->family->workspace(&d.run, 0, code));
}

dil_status documents_forward(const cuda_codes *codes, cuda_run *r) {
  const cuda_code *code = documents_code(codes, r);
  documents_run d;
  dil_status status = DIL_OK;
  cuda_spans *spans = r->device->spans;
  int32_t span = spans_begin(spans, r->stream);
  for (int64_t b = 0; b < r->B && !status; b++) {
    documents_fill(codes, r, code, r->documents, b, &d);
    status = code->family->launch(&d.run, 0, code);
  }
  spans_end(spans, span, r->stream, "pass", code->about.variant, 0);
  r->only_if = d.run.mixed;
  return status;
}
