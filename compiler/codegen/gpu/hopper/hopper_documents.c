/* hopper_documents.c - the strategies for a mask that keeps documents apart, and nothing
 * else: `mask doc[b, i] == doc[b, j]`.
 *
 * In: a plan whose one pass has such a mask. Out: the kernels of the same plan without it,
 * which take packed calls. Where the input turns out to be sorted, its documents are those
 * of a packed call (runtime/cuda/documents.h). The kernels of the mask serve where it is not. */
#include "hopper_config.h"
#include "runtime/rowset/walk.h"
#include "runtime/tables/documents_table.h"
#include <string.h>

/* A plan without its mask. It points into this struct, which stays where it is. */
typedef struct documents_plan {
  plan plan;
  documents_table table;
  expr *predicate[1];
} documents_plan;

/* Whether each pair of a document counts as it does where documents are packed, whose
 * positions begin anew. */
static bool documents_are_alike(const plan *p) {
  const dil_table *t = &p->table;
  const dil_branch *b = &t->branches[0];
  return hopper_is_whole(t) && t->predicate_count == 1 && b->predicate == 0 &&
         b->listed < 0 && !dil_predicate_has_range(&t->predicates[0]) &&
         !t->grid.axes && !t->made_count && t->dropout == 0 && !t->general &&
         !combine_is_additive(t) && !reads_batch_row(p) && !reads_positions(p);
}

static bool documents_fill(const gpu_request *r, documents_plan *d, gpu_request *own) {
  const plan *p = r->common.plan;
  bool shards = p->direction == DIL_BACKWARD ? r->gradients_of_shards
                                             : !r->full_sequences_only;
  if (r->knobs || shards || !documents_are_alike(p) || mask_documents(p) < 0) return false;
  documents_table_fill(&p->table, &d->table);
  d->plan = *p;
  d->plan.table = d->table.table;
  d->plan.predicate = d->predicate;
  d->predicate[0] = NULL;
  *own = *r;
  own->common.plan = &d->plan;
  own->any_order = false;
  return true;
}

static bool documents_can(const gpu_request *r, const gpu_strategy *by, char *reason,
                          size_t size) {
  documents_plan d;
  gpu_request own;
  if (documents_fill(r, &d, &own)) return by->can(&own, reason, size);
  snprintf(reason, size, "no mask that keeps documents apart alone");
  return false;
}

static bool documents_write(const gpu_request *r, const gpu_strategy *by, int32_t variant,
                            int32_t fallback, dil_cuda_code *code, source_text *text) {
  documents_plan d;
  gpu_request own;
  char plain[sizeof code->variant];
  if (!documents_fill(r, &d, &own)) return false;
  put(text, "#define ALIKE 1\n");
  if (!by->write(&own, variant, fallback, code, text)) return false;
  code->knob[CUDA_KNOB_DOCUMENTS_OF] = 1 + mask_documents(r->common.plan);
  memcpy(plain, code->variant, sizeof plain);
  snprintf(code->variant, sizeof code->variant, "documents of %.60s", plain);
  return true;
}

/* ---- forward ------------------------------------------------------------- */

/* The strategy of the plan without its mask, which may still have scores. */
static const gpu_strategy *documents_forward(const gpu_request *r) {
  return r->common.plan->table.scored ? &strategy_hopper_pair : &strategy_hopper;
}

static bool hopper_documents_can(const gpu_request *r, char *reason, size_t size) {
  return documents_can(r, documents_forward(r), reason, size);
}

static bool hopper_documents_write(const gpu_request *r, int32_t variant,
                                   int32_t fallback, dil_cuda_code *code,
                                   source_text *text) {
  return documents_write(r, documents_forward(r), variant, fallback, code, text);
}

static bool documents_propose(int32_t index, knobs *k) {
  (void)index;
  (void)k;
  return false;
}

const gpu_strategy strategy_hopper_documents = {"hopper", 0, hopper_documents_can,
                                                hopper_documents_write,
                                                documents_propose};

/* ---- gradients ----------------------------------------------------------- */

static bool documents_gradient_can(const gpu_request *r, char *reason, size_t size) {
  return documents_can(r, &strategy_hopper_gradient, reason, size);
}

static bool documents_gradient_write(const gpu_request *r, int32_t variant,
                                     int32_t fallback, dil_cuda_code *code,
                                     source_text *text) {
  return documents_write(r, &strategy_hopper_gradient, variant, fallback, code, text);
}

const gpu_strategy strategy_documents_gradient = {"hopper gradient", 0,
                                                  documents_gradient_can,
                                                  documents_gradient_write,
                                                  documents_propose};
