/* backward_fast.c - the gradients of a call by the fast kernels of a chip
 * (hopper/hopper_gradient.c), where they take it. In: a prepared call. Out:
 * launches that write dQ, dK and dV. */
#include "backward.h"
#include "documents.h"
#include "gather_gradient.h"
#include "grid_gradient.h"
#include "list_gradient.h"
#include "spans.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"

static dil_status backward_take_fast_codes(backward_run *b, gradient_kind kind) {
  cuda_codes *codes = &b->kernel->codes;
  backward_codes *of = &b->codes;
  bool drop = b->run.drop;
  dil_status status =
      codes_take_fast_gradient(codes, GRADIENT_Q, kind, drop, &of->fast_q);
  if (!status)
    status = codes_take_fast_gradient(codes, GRADIENT_K, kind, drop, &of->fast_k);
  if (!status)
    status = codes_take_fast_gradient(codes, GRADIENT_V, kind, drop, &of->fast_v);
  return status;
}

/* Kernels that do not hold and stream neighbouring rows. */
typedef struct special_gradients {
  gradient_kind kind;
  const cuda_family *family;
  int64_t (*bytes)(const cuda_run *r, const cuda_code *code); /* NULL: none */
  const char *(*refusal)(const gradient_run *g, const cuda_code *code);
  /* NULL: there is nothing to begin. */
  dil_status (*begin)(const gradient_run *g, const hopper_gradient_space *space,
                      const cuda_code *code);
  dil_status (*pass)(const gradient_run *g, const hopper_gradient_space *space,
                     const cuda_code *code);
} special_gradients;

enum { SPECIALS = 3 };
static const special_gradients specials[SPECIALS] = {
    {GRADIENT_GATHERED, &cuda_gather_gradient, gather_gradient_bytes,
     gather_gradient_refusal, gather_gradient_begin, gather_gradient_pass},
    {GRADIENT_LISTED, &cuda_list_gradient, list_gradient_bytes, list_gradient_refusal,
     list_gradient_begin, list_gradient_pass},
    {GRADIENT_PATCHED, &cuda_grid_gradient, NULL, grid_gradient_refusal, NULL,
     grid_gradient_pass}};

/* Their documents where a mask keeps these apart. */
static void backward_keep_documents(backward_codes *of) {
  of->documents_q = of->fast_q;
  of->documents_k = of->fast_k;
  of->documents_v = of->fast_v;
}

/* The kernels of a special kind, where one of them takes the call; else those of tiles
 * of neighbouring rows. */
dil_status backward_have_fast_codes(backward_run *b) {
  for (int32_t i = 0; i < SPECIALS; i++) {
    dil_status status = backward_take_fast_codes(b, specials[i].kind);
    if (status || (b->codes.fast_q && !backward_fast_refusal(b))) return status;
  }
  dil_status status = backward_take_fast_codes(b, GRADIENT_OF_DOCUMENTS);
  backward_keep_documents(&b->codes);
  return status ? status : backward_take_fast_codes(b, GRADIENT_FAST);
}

/* The special kind of a code; NULL: neighbouring rows. */
static const special_gradients *code_special(const cuda_code *code) {
  for (int32_t i = 0; code && i < SPECIALS; i++)
    if (code->family == specials[i].family) return &specials[i];
  return NULL;
}

static const special_gradients *backward_special(const backward_run *b) {
  return code_special(b->codes.fast_q);
}

/* The general kernels make the gradients of all passes then. */
static bool backward_has_short_list(const backward_run *b) {
  bool some = false;
  for (int32_t p = 0; p < b->kernel->table->pass_count; p++)
    some |= cuda_list_is_short(&b->run, p);
  return some;
}

/* Asks a code that makes dQ why it does not take its run `of`; NULL: it does. */
static const char *backward_refused_by(const backward_run *b, const cuda_run *of,
                                       const cuda_code *code) {
  const dil_backward_call *c = b->call;
  const special_gradients *special = code_special(code);
  gradient_run g = {.of = of,
                    .lse_gradient = &c->lse,
                    .q = {.to = &c->dq},
                    .k = {.to = &c->dk},
                    .v = {.to = &c->dv}};
  bool states = backward_asks_states(b->kernel->table);
  if (b->codes.inputs) return "gradients of an input that scores read";
  if (backward_has_short_list(b)) return "a list of few keys";
  if (!states) g.o = c->forward.o; /* the state of a pass is always described */
  return (special ? special->refusal : hopper_gradient_refusal)(&g, code);
}

/* Why the fast kernels of the plan as it is do not make the gradients. */
static const char *backward_plan_refusal(const backward_run *b) {
  const backward_codes *codes = &b->codes;
  if (!codes->fast_q || !codes->fast_k || !codes->fast_v)
    return "no such kernel was made";
  return backward_refused_by(b, &b->run, codes->fast_q);
}

bool backward_has_documents(const backward_run *b) {
  const backward_codes *codes = &b->codes;
  documents_run d;
  if (!codes->documents_q || !codes->documents_k || !codes->documents_v ||
      !documents_pay(&b->run, codes->documents_q))
    return false;
  documents_fill(&b->kernel->codes, &b->run, codes->documents_q, NULL, &d);
  return !backward_refused_by(b, &d.run, codes->documents_q);
}

const char *backward_fast_refusal(const backward_run *b) {
  const char *reason = backward_plan_refusal(b);
  return reason && backward_has_documents(b) ? NULL : reason;
}

/* The codes of a packed call find the tiles of its documents in turn. */
static int64_t backward_document_bytes(const backward_run *b) {
  const backward_codes *c = &b->codes;
  const cuda_code *const codes[] = {c->fast_q, c->fast_k, c->fast_v};
  int64_t bytes = 0;
  for (int32_t i = 0; i < 3; i++)
    if (codes[i]) bytes = maximum(bytes, hopper_gradient_documents(&b->run, codes[i]));
  return bytes;
}

int64_t backward_list_bytes(const backward_run *b) {
  const special_gradients *special = backward_special(b);
  if (backward_fast_refusal(b)) return 0;
  if (!special && b->run.call->packed.queries) return backward_document_bytes(b);
  bool takes = special && special->bytes;
  return takes ? special->bytes(&b->run, b->codes.fast_q) : 0;
}

bool backward_reads_lists_alone(const backward_run *b) {
  const special_gradients *special = backward_special(b);
  bool gathers = special && special->kind == GRADIENT_GATHERED;
  return gathers && !backward_fast_refusal(b) && !backward_makes_lse(b) &&
         !backward_wants_inputs(b);
}

/* Returns whether one code makes all gradients, and adds dQ to sums. */
static bool backward_is_fused(const backward_run *b) {
  return b->codes.fast_q && b->codes.fast_q->family == &cuda_hopper_fused;
}

int64_t backward_fused_bytes(const backward_run *b) {
  if (!backward_is_fused(b) || backward_fast_refusal(b)) return 0;
  return hopper_gradient_sums(&b->run, b->codes.fast_q);
}

/* The sums of dQ begin as 0. Where the general kernels make dQ again, they leave
 * it in these sums, which are rounded then. */
static dil_status backward_begin_fused(backward_run *b,
                                       hopper_gradient_space *space) {
  const cuda_driver *driver = b->run.device->driver;
  gradient_target *q = &b->gradient.q;
  if (!q->to->data) return DIL_OK;
  q->round_if = space->spoiled;
  space->query_sums = q->sums;
  return cuda_check(
      driver,
      driver->fill_ordered((cu_pointer)(uintptr_t)q->sums, 0,
                           (size_t)backward_fused_bytes(b), b->run.stream),
      "clear sums");
}

static dil_status backward_run_fast_code(const gradient_run *g, int32_t p,
                                         const hopper_gradient_space *space,
                                         const cuda_code *code) {
  cuda_spans *spans = g->of->device->spans;
  int32_t span = spans_begin(spans, g->of->stream);
  const special_gradients *special = code_special(code);
  dil_status status = special ? special->pass(g, space, code)
                              : hopper_gradient_pass(g, p, space, code);
  spans_end(spans, span, g->of->stream, "pass", code->about.variant, p);
  return status;
}

/* Runs each of a pass's codes once. */
static dil_status backward_run_fast_codes(const gradient_run *g, int32_t p,
                                          const hopper_gradient_space *space,
                                          const cuda_code *k, const cuda_code *v,
                                          const cuda_code *q) {
  dil_status status = backward_run_fast_code(g, p, space, k);
  if (!status && v != k) status = backward_run_fast_code(g, p, space, v);
  if (!status && q != k) status = backward_run_fast_code(g, p, space, q);
  return status;
}

dil_status backward_run_fast_pass(backward_run *b, int32_t p,
                                  const hopper_gradient_space *space) {
  const backward_codes *codes = &b->codes;
  return backward_run_fast_codes(&b->gradient, p, space, codes->fast_k, codes->fast_v,
                                 codes->fast_q);
}

dil_status backward_begin_fast(backward_run *b, hopper_gradient_space *space) {
  gradient_run *g = &b->gradient;
  *space = hopper_gradient_place(g, (char *)g->facts + b->at.fast);
  const special_gradients *special = backward_special(b);
  space->lists = (char *)g->facts + b->at.lists;
  if (special) return special->begin ? special->begin(g, space, b->codes.fast_q) : DIL_OK;
  return backward_is_fused(b) ? backward_begin_fused(b, space) : DIL_OK;
}

dil_status backward_run_fast_alone(backward_run *b, int32_t p,
                                   const float *state_lse,
                                   const hopper_gradient_space *space) {
  dil_status status = hopper_gradient_facts(&b->gradient, p, state_lse, space,
                                            b->codes.fast_q);
  return status ? status : backward_run_fast_pass(b, p, space);
}

/* Whether a code leaves a part of the sums to round, and no pass behind its first has
 * the others. */
static bool backward_code_settles(const backward_run *b, const cuda_code *code) {
  const gradient_run g = {.of = &b->run};
  return code && !backward_special(b) && hopper_gradient_settles(&g, code);
}

bool backward_settles(const backward_run *b) {
  const backward_codes *codes = &b->codes;
  return backward_code_settles(b, codes->fast_q) &&
         backward_code_settles(b, codes->fast_k) &&
         backward_code_settles(b, codes->fast_v);
}

/* Rounds the rows that came again. The general kernels round sums only where they made
 * them again. */
static dil_status backward_settle(backward_run *b,
                                  const hopper_gradient_space *space) {
  const backward_codes *codes = &b->codes;
  gradient_run *g = &b->gradient;
  const cuda_code *const code[] = {codes->fast_q, codes->fast_k, codes->fast_v};
  gradient_target *const target[] = {&g->q, &g->k, &g->v};
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < 3 && !status; i++) {
    if (!backward_code_settles(b, code[i])) continue;
    target[i]->round_if = space->spoiled;
    if (i == 0 || code[i] != code[i - 1])
      status = hopper_gradient_settle(g, space, code[i]);
  }
  return status;
}

dil_status backward_end_fast(backward_run *b,
                             const hopper_gradient_space *space) {
  gradient_run *g = &b->gradient;
  dil_status status = backward_settle(b, space);
  if (!status && backward_is_fused(b))
    status = hopper_gradient_round(g, space, b->codes.fast_q);
  g->only_if = space->spoiled;
  return status;
}

/* ---- documents that a mask keeps apart -------------------------------------- */

int64_t backward_documents_bytes(const backward_run *b) {
  const backward_codes *c = &b->codes;
  const cuda_code *const codes[] = {c->documents_q, c->documents_k, c->documents_v};
  int64_t most = 0;
  documents_run d;
  if (!backward_has_documents(b)) return 0;
  documents_fill(&b->kernel->codes, &b->run, c->documents_q, NULL, &d);
  for (int32_t i = 0; i < 3; i++)
    most = maximum(most, hopper_gradient_documents(&d.run, codes[i]));
  return documents_bytes(&b->run, most);
}

/* The passes behind it run where there are none. */
static dil_status backward_run_documents(backward_run *b,
                                         const hopper_gradient_space *space) {
  const backward_codes *codes = &b->codes;
  documents_run d;
  if (!backward_has_documents(b)) return DIL_OK;
  char *memory = (char *)b->gradient.facts + b->at.documents;
  hopper_gradient_space own = *space;
  gradient_run g = b->gradient;
  documents_fill(&b->kernel->codes, &b->run, codes->documents_q, memory, &d);
  g.of = &d.run;
  own.lists = d.run.workspace;
  own.alone = backward_plan_refusal(b) != NULL;
  dil_status status =
      backward_run_fast_codes(&g, 0, &own, codes->documents_k, codes->documents_v,
                              codes->documents_q);
  b->run.only_if = d.run.mixed;
  return status;
}

/* Any code that makes dQ. */
static const cuda_code *backward_code(const backward_run *b) {
  return b->codes.fast_q ? b->codes.fast_q : b->codes.documents_q;
}

dil_status backward_run_fast(backward_run *b) {
  hopper_gradient_space space;
  if (backward_fast_refusal(b)) return DIL_OK;
  bool runs = !backward_plan_refusal(b); /* not documents alone */
  dil_status status = backward_begin_fast(b, &space);
  if (!status)
    status = hopper_gradient_facts(&b->gradient, 0, NULL, &space, backward_code(b));
  if (!status) status = backward_run_documents(b, &space);
  for (int32_t p = 0; p < b->kernel->table->pass_count && runs && !status; p++)
    status = backward_run_fast_pass(b, p, &space);
  b->run.only_if = NULL;
  return status ? status : backward_end_fast(b, &space);
}

/* ---- without the general kernels ------------------------------------------ */

dil_status backward_have_general_codes(backward_run *b, bool waits) {
  cuda_codes *codes = &b->kernel->codes;
  backward_codes *of = &b->codes;
  dil_status status = codes_take_gradient(codes, GRADIENT_Q, waits, &of->q);
  if (!status) status = codes_take_gradient(codes, GRADIENT_K, waits, &of->k);
  if (!status) status = codes_take_gradient(codes, GRADIENT_V, waits, &of->v);
  return status;
}

/* Waits until the fast kernels have run, and asks whether some sum of theirs is
 * not finite. */
static dil_status backward_ask_spoiled(const backward_run *b, bool *spoiled) {
  const cuda_driver *driver = b->run.device->driver;
  unsigned flag = 0;
  dil_status status = cuda_check(
      driver,
      driver->download_ordered(&flag,
                               (cu_pointer)(uintptr_t)b->gradient.only_if,
                               sizeof flag, b->run.stream),
      "read a flag");
  if (!status)
    status = cuda_check(driver, driver->wait(b->run.stream),
                        "wait for gradients");
  *spoiled = flag != 0;
  return status;
}

dil_status backward_end_without_general(backward_run *b, bool *ended) {
  bool spoiled = true, captured;
  const backward_codes *codes = &b->codes;
  *ended = false; /* launches that a graph captures cannot be asked */
  if (!code_is_promised(codes->q) && !code_is_promised(codes->k) &&
      !code_is_promised(codes->v))
    return DIL_OK;
  dil_status status =
      cuda_is_captured(b->run.device->driver, b->run.stream, &captured);
  if (!status && !captured) status = backward_ask_spoiled(b, &spoiled);
  if (status) return status;
  if (spoiled) return backward_have_general_codes(b, true);
  gradient_target *const target[] = {&b->gradient.q, &b->gradient.k, &b->gradient.v};
  for (int32_t i = 0; i < 3; i++) /* sums that the fast kernels have rounded */
    if (target[i]->round_if) target[i]->sums = NULL;
  *ended = true;
  return DIL_OK;
}
