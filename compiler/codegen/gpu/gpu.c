/* gpu.c - the interface of dil-gpu.so (gpu_backend). In: a plan and a chip. Out: the
 * variants of every strategy that a request wants, which jobs.c compiles. */
#include "gpu.h"
#include "interface.h"
#include "jobs.h"
#include "runtime/base/status.h"
#include "runtime/cuda/chips.h"
#include <stdlib.h>
#include <string.h>

/* The general strategy is last: it takes the passes that the others refuse. */
static const gpu_strategy *const strategies[] = {
    &strategy_hopper_grid,     &strategy_hopper_gather,   &strategy_hopper_block_list,
    &strategy_hopper,
    &strategy_hopper_pair,     &strategy_hopper_documents, &strategy_decode,
    &strategy_gather_gradient, &strategy_list_gradient,   &strategy_grid_gradient,
    &strategy_hopper_gradient, &strategy_documents_gradient,
    &strategy_gradient,        &strategy_general};

static const gpu_fast *const fasts[] = {&fast_hopper};

const gpu_fast *gpu_fast_row(int32_t index) {
  return index < (int32_t)(sizeof fasts / sizeof *fasts) ? fasts[index] : NULL;
}

const gpu_fast *gpu_fast_of(int32_t arch) {
  const char *family = cuda_chip_fast(arch);
  const gpu_fast *fast = NULL;
  for (int32_t i = 0; family && (fast = gpu_fast_row(i)); i++)
    if (!strcmp(fast->family, family)) return fast;
  return NULL;
}

int64_t gpu_shared_limit(int32_t arch) { return cuda_chip_like(arch)->shared; }

/* The fast family of a chip. Where it has none, the first one says why it does
 * not take the chip. */
static const gpu_fast *gpu_fast_for(int32_t arch) {
  const gpu_fast *fast = gpu_fast_of(arch);
  return fast ? fast : fasts[0];
}

/* ---- which strategy the knobs select ------------------------------------- */

static const char *const knob_names[KNOB_COUNT] = {
#define KNOB(id, name, values, devices, least, most, of) [KNOB_##id] = name,
#include "compiler/schedule/knobs.def"
#undef KNOB
};

/* The knobs that select a strategy, one bit each. The order of gradients is not
 * one. */
static unsigned gpu_selecting(const gpu_request *r) {
  return r->knobs ? r->knobs->given & ~(1u << KNOB_GRADIENT_ORDER) : 0;
}

/* Returns whether the knobs ask for the general family. */
static bool gpu_is_general(const knobs *k) {
  return knob_given(k, KNOB_FAMILY) &&
         k->value[KNOB_FAMILY][0] == FAMILY_GENERAL;
}

static const gpu_strategy *gpu_strategy_of_knobs(const gpu_request *r) {
  static const knobs none = {0};
  char unused[256];
  gpu_request plain = *r; /* patches decide, unless a family is asked for */
  plain.knobs = knob_given(r->knobs, KNOB_FAMILY) ? &none : NULL;
  const gpu_strategy *fast = gpu_fast_for(r->arch)->plain;
  const gpu_strategy *pairwise = gpu_fast_for(r->arch)->pairwise;
  bool can = fast->can(&plain, unused, sizeof unused);
  if (!can && pairwise->can(&plain, unused, sizeof unused)) {
    fast = pairwise;
    can = true;
  }
  if (knob_given(r->knobs, KNOB_FAMILY))
    return gpu_is_general(r->knobs) ? &strategy_general : fast;
  bool only_general = r->only && !strcmp(r->only, strategy_general.name);
  return can && !only_general ? fast : &strategy_general;
}

/* Finds the strategy that takes the knobs (NULL: there are no knobs).
 * DIL_INPUT: it does not have these knobs, or cannot write this kernel. */
static dil_status gpu_select_by_knobs(const gpu_request *r,
                                      const gpu_strategy **selected) {
  char reason[256] = "";
  *selected = NULL;
  if (!gpu_selecting(r)) return DIL_OK;
  const gpu_strategy *s = gpu_strategy_of_knobs(r);
  unsigned strange = gpu_selecting(r) & ~(s->knobs | 1u << KNOB_FAMILY);
  if (strange)
    return dil_fail(DIL_INPUT, "the %s kernel has no knob '%s'", s->name,
                    knob_names[__builtin_ctz(strange)]);
  if (r->only && strcmp(r->only, s->name))
    return dil_fail(DIL_INPUT, "`family fast` asks for the one kernel and "
                               "--force %s for the other", r->only);
  if (!s->can(r, reason, sizeof reason))
    return dil_fail(DIL_INPUT, "no %s kernel for sm_%d has these knobs: %s",
                    s->name, r->arch, reason);
  *selected = s;
  return DIL_OK;
}

/* ---- all codes ----------------------------------------------------------- */

/* Returns whether nothing asks for the general kernels alone. */
static bool gpu_wants_fast(const gpu_request *r, const gpu_strategy *selected) {
  bool only_general = r->only && !strcmp(r->only, strategy_general.name);
  return !only_general && selected != &strategy_general;
}

/* Returns whether kernels of gradients have tiles that are not of neighbouring rows. */
static bool gpu_is_special(const gpu_strategy *s) {
  return s == &strategy_gather_gradient || s == &strategy_list_gradient ||
         s == &strategy_grid_gradient;
}

/* Returns whether a request wants a strategy. `family general` leaves only the general
 * one. */
static bool gpu_is_wanted(const gpu_request *r, const gpu_strategy *s,
                          const gpu_strategy *selected) {
  bool backward = r->common.plan->direction == DIL_BACKWARD;
  if (s == &strategy_gradient) return backward;
  if (s == &strategy_hopper_documents || s == &strategy_documents_gradient)
    return backward == (s == &strategy_documents_gradient) && !selected &&
           gpu_wants_fast(r, NULL);
  bool special = gpu_is_special(s);
  if (special && selected) return false;
  if (s == &strategy_hopper_gradient || special)
    return backward && gpu_wants_fast(r, selected);
  if (r->only && strcmp(r->only, s->name)) return false;
  if (s == &strategy_decode) return gpu_wants_fast(r, selected) && !backward;
  bool own_tiles = s == &strategy_hopper_grid || s == &strategy_hopper_gather ||
                   s == &strategy_hopper_block_list;
  if (own_tiles && selected) return false;
  bool refused = knob_given(r->knobs, KNOB_FAMILY) &&
                 selected == &strategy_general && s != selected;
  return !refused;
}

/* Lists all variants that a request wants; the caller frees *jobs, also on
 * failure. */
static dil_status gpu_list(const gpu_request *request, gpu_jobs **jobs) {
  const gpu_strategy *selected;
  *jobs = calloc(1, sizeof **jobs);
  if (!*jobs) return dil_fail(DIL_MEMORY, "no memory for compilers");
  dil_status status = gpu_select_by_knobs(request, &selected);
  for (size_t i = 0; !status && i < sizeof strategies / sizeof *strategies;
       i++) {
    gpu_request own = *request;
    own.any_order = knobs_any_order(request->knobs);
    if (strategies[i] != selected) own.knobs = NULL;
    /* Gradients may run the plan forward as a shard, to have its states. */
    own.gradients_of_shards = !request->full_sequences_only;
    if (request->common.plan->direction == DIL_BACKWARD)
      own.full_sequences_only = false;
    if (gpu_is_wanted(request, strategies[i], selected))
      status = jobs_list(&own, strategies[i], *jobs);
  }
  return status;
}

/* Returns whether few calls need a variant that makes gradients. Where the fast
 * family makes them, the general ones are for calls that it refuses and for numbers
 * that are not finite; with several passes they also round, and sinks may have
 * inputs. Calls for gradients mostly train, with dropout where the plan has some. Where
 * kernels gather rows, walk lists or have patches, those of neighbouring rows are for
 * calls that these refuse. */
static bool gpu_gradients_are_rare(const plan *p, const gpu_jobs *jobs,
                                   const gpu_job *j) {
  const dil_table *t = &p->table;
  bool fast = false, special = false;
  for (int32_t i = 0; i < jobs->count; i++) {
    fast |= jobs->job[i].strategy == &strategy_hopper_gradient;
    special |= gpu_is_special(jobs->job[i].strategy);
  }
  if (j->strategy == &strategy_gradient)
    return (fast || special) && t->pass_count == 1 && t->input_count == 0;
  if (j->strategy != &strategy_hopper_gradient) return false;
  return special || (t->dropout > 0 && !j->code.knob[GRADIENT_KNOB_DROPS]);
}

/* Marks the deferred variants. The variant for calls with few rows is one, and so
 * are rare gradients. General variants are, if others before them take every pass
 * or if they are for calls with many rows. Variants that knobs select are never
 * deferred, since an error in knobs must show when the kernel is made. */
static void gpu_mark_deferred(const plan *p, gpu_jobs *jobs) {
  int32_t count = p->table.pass_count;
  uint64_t all = count < 64 ? (1ull << count) - 1 : UINT64_MAX, taken = 0;
  for (int32_t i = 0; i < jobs->count; i++) {
    gpu_job *j = &jobs->job[i];
    bool general = j->strategy == &strategy_general;
    bool few = j->strategy == &strategy_decode;
    if (!general && !few) taken |= j->code.passes;
    j->deferred = few || gpu_gradients_are_rare(p, jobs, j) ||
                  (general && !j->request.knobs &&
                   ((taken & all) == all || j->code.knob[GENERAL_KNOB_MANY]));
  }
}

static dil_status gpu_can(const backend_request *asked) {
  gpu_jobs *jobs;
  dil_status status = gpu_list((const gpu_request *)asked, &jobs);
  free(jobs);
  return status;
}

static dil_status gpu_compile(const backend_request *asked, void *codes) {
  const gpu_request *request = (const gpu_request *)asked;
  gpu_codes *out = codes;
  gpu_jobs *jobs;
  dil_status status = gpu_list(request, &jobs);
  out->count = 0;
  if (!status && request->deferred)
    gpu_mark_deferred(request->common.plan, jobs);
  if (!status) status = jobs_run(request, jobs, out);
  free(jobs);
  if (!status) return DIL_OK;
  while (out->count > 0) free(out->code[--out->count].cubin);
  return status;
}

/* ---- deferred variants ----------------------------------------------------
 */

static uint32_t gpu_deferred(const gpu_request *request, bool *urgent) {
  const dil_table *t = &request->common.plan->table;
  gpu_jobs *jobs;
  uint32_t found = 0;
  bool general = true;
  if (!gpu_list(request, &jobs)) gpu_mark_deferred(request->common.plan, jobs);
  for (int32_t i = 0; jobs && i < jobs->count; i++) {
    found |= (uint32_t)jobs->job[i].deferred << i;
    const gpu_strategy *s = jobs->job[i].strategy;
    general &= s == &strategy_general || s == &strategy_decode;
  }
  /* The general kernel also computes bounds of inputs, and begins and ends the
   * running states of several passes. Calls with either need it at once. */
  *urgent = general || t->pass_count > 1 || t->input_count > 0;
  free(jobs);
  return found;
}

static dil_status gpu_variant(const gpu_request *request, int32_t variant,
                              dil_cuda_code *code) {
  gpu_jobs *jobs;
  dil_status status = gpu_list(request, &jobs);
  if (!status) {
    gpu_job *j = &jobs->job[variant];
    job_run(j);
    *code = j->code;
    if (j->status) status = dil_fail(j->status, "%s", j->problem);
  }
  free(jobs);
  return status;
}

/* ---- estimates without compilation --------------------------------------- */

static dil_status gpu_estimate_codes(const gpu_request *request,
                                     gpu_codes *out) {
  gpu_jobs *jobs;
  dil_status status = gpu_list(request, &jobs);
  out->count = 0;
  for (int32_t i = 0; !status && i < jobs->count; i++)
    job_put_code(&jobs->job[i], i, out);
  free(jobs);
  return status;
}

static bool gpu_refuses(const gpu_request *request, int32_t pass, char *reason,
                        size_t size) {
  plan alone = *request->common.plan;
  gpu_request r = *request;
  alone.table.passes += pass;
  alone.table.pass_count = 1;
  r.common.plan = &alone;
  if (gpu_is_general(r.knobs)) {
    snprintf(reason, size, "the schedule says `family general`");
    return true;
  }
  if (alone.direction == DIL_BACKWARD) {
    if (strategy_hopper_gradient.can(&r, reason, size)) return false;
    r.knobs = NULL;
    return !alone.table.grid.axes || !strategy_grid_gradient.can(&r, reason, size);
  }
  const gpu_fast *family = gpu_fast_for(r.arch);
  const gpu_strategy *fast = family->is_pairwise(&alone.table)
                                 ? family->pairwise : family->plain;
  bool selected =
      gpu_selecting(&r) && gpu_strategy_of_knobs(request) == fast;
  if (!selected) r.knobs = NULL;
  if (fast->can(&r, reason, size)) return false;
  if (selected || !alone.table.grid.axes) return true;
  return !strategy_hopper_grid.can(&r, reason, size);
}

/* ---- candidates for the tuner -------------------------------------------- */

/* Returns whether a kernel can be written with a candidate's knobs, and sets
 * its code. */
static bool gpu_is_candidate(const gpu_request *r, const gpu_strategy *s,
                             gpu_candidate *c) {
  source_text text = {0};
  char unused[256];
  gpu_request own = *r;
  own.knobs = &c->knobs;
  bool good = s->can(&own, unused, sizeof unused) &&
              s->write(&own, 0, 0, &c->code, &text);
  free(text.text);
  return good;
}

static int32_t gpu_candidates(const gpu_request *r, gpu_candidate *list,
                              int32_t room) {
  int32_t count = 0;
  for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
    const gpu_strategy *s = strategies[i];
    if (r->only && strcmp(r->only, s->name)) continue;
    for (int32_t n = 0; count < room; n++) {
      list[count] = (gpu_candidate){0};
      if (!s->propose(n, &list[count].knobs)) break;
      count += gpu_is_candidate(r, s, &list[count]);
    }
  }
  return count;
}

DIL_API const backend *dil_backend_init(void);
const backend *dil_backend_init(void) {
  static const gpu_backend table = {.common = {.version = DIL_INTERFACE,
                                               .name = "gpu",
                                               .compiler = "nvrtc",
                                               .can = gpu_can,
                                               .compile = gpu_compile,
                                               .versions = nvrtc_version,
                                               .origin = nvrtc_origin},
                                    .deferred = gpu_deferred,
                                    .variant = gpu_variant,
                                    .estimate = gpu_estimate_codes,
                                    .refuses = gpu_refuses,
                                    .candidates = gpu_candidates,
                                    .peak = peak_compile,
                                    .rows = rows_compile};
  return &table.common;
}
