/* documents.c - see documents.h. In: a call, codes of its plan without the mask. Out: the
 * packed call, whose offsets the device writes before its launches. */
#include "documents.h"
#include "spans.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/pages.h"
#include "runtime/cuda/hopper/hopper.h"

enum { HEAD = 256 };           /* bytes of the number that says whether there are none */
enum { LEAST_ROWS = 32 };      /* of a document, on average: shorter ones fill no tile */
enum { LEAST_WORK = 192 };     /* rows of all heads for a processor: launches cost more */
enum { MOST = 1 << 16, ROWS_MOST = 1 << 29 }; /* of documents; of their rows */

static int64_t documents_most(const cuda_run *r) {
  return minimum(r->B * r->N / LEAST_ROWS, MOST);
}

static int64_t documents_offset_bytes(const cuda_run *r) {
  return HEAD + round_up((documents_most(r) + 1) * (int64_t)sizeof(int32_t), HEAD);
}

int64_t documents_bytes(const cuda_run *r, int64_t most) {
  return documents_offset_bytes(r) + round_up(most, HEAD);
}

static const dil_tensor *documents_input(const cuda_run *r, const cuda_code *code) {
  return &r->call->inputs[code->about.knob[CUDA_KNOB_DOCUMENTS_OF] - 1];
}

bool documents_pay(const cuda_run *r, const cuda_code *code) {
  const dil_call *c = r->call;
  const dil_tensor *alike = documents_input(r, code);
  int64_t rows = r->B * r->N;
  if (r->N < HOPPER_ALIKE_ROWS) return false;
  return !r->shard && !c->packed.queries && !c->lengths && !pages_given(c) &&
         r->N == r->M && alike->shape[alike->rank - 1] >= r->N && rows <= ROWS_MOST &&
         rows * r->table->heads >= LEAST_WORK * r->device->facts.processors;
}

void documents_fill(const cuda_codes *codes, const cuda_run *r, const cuda_code *code,
                    char *memory, documents_run *d) {
  static const int32_t nowhere[1]; /* a call that has offsets is packed */
  const int32_t *offsets =
      memory ? (const int32_t *)(const void *)(memory + HEAD) : nowhere;
  d->call = *r->call;
  d->call.packed = (dil_packed){offsets, offsets, documents_most(r), r->N, r->N};
  d->run = *r;
  d->run.table = &codes->documents.table;
  d->run.call = &d->call;
  d->run.B = documents_most(r);
  d->run.bounds = NULL; /* no mask asks for them */
  d->run.alike = documents_input(r, code);
  d->run.mixed = (unsigned *)(void *)memory;
  d->run.workspace = memory ? memory + documents_offset_bytes(r) : NULL;
}

/* ---- forward ------------------------------------------------------------- */

const cuda_code *documents_code(const cuda_codes *codes, const cuda_run *r) {
  const cuda_code *code = codes_of_documents(codes);
  documents_run d;
  if (!code || !documents_pay(r, code)) return NULL; /* most calls are not asked further */
  const cuda_code *other = codes_choose(codes, r, 0);
  if (!other || other->family != &cuda_hopper) return NULL;
  documents_fill(codes, r, code, NULL, &d);
  return code->family->refusal(&d.run, 0, code) ? NULL : code;
}

int64_t documents_forward_bytes(const cuda_codes *codes, const cuda_run *r) {
  const cuda_code *code = documents_code(codes, r);
  documents_run d;
  if (!code) return 0;
  documents_fill(codes, r, code, NULL, &d);
  return documents_bytes(r, code->family->workspace(&d.run, 0, code));
}

dil_status documents_forward(const cuda_codes *codes, cuda_run *r) {
  const cuda_code *code = documents_code(codes, r);
  documents_run d;
  documents_fill(codes, r, code, r->documents, &d);
  cuda_spans *spans = r->device->spans;
  int32_t span = spans_begin(spans, r->stream);
  dil_status status = code->family->launch(&d.run, 0, code);
  spans_end(spans, span, r->stream, "pass", code->about.variant, 0);
  r->only_if = d.run.mixed;
  return status;
}
