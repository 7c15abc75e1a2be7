/* gpu_estimate.c - a dry run of a plan on a GPU: see gpu_estimate.h. In: a
 * chip, a plan, sizes. Out: a gpu_estimate. Each kernel has the preferred
 * configuration of its strategy: the gate's refusals are unknown before ptxas
 * has run. */
#include "gpu_estimate.h"
#include "session_cuda.h"
#include "compiler/exchange/exchange.h"
#include "runtime/api/device_cuda.h"
#include "runtime/base/status.h"
#include "runtime/cuda/chips.h"
#include <string.h>

/* ---- the chip ------------------------------------------------------------ */

/* "sm_80, sm_86 and sm_90a": the chips of which there are figures. */
static const char *estimate_chips_known(arena *a) {
  const char *list = "", *last = NULL;
  const cuda_chip *chip;
  for (int32_t i = 0; (chip = cuda_chip_row(i)); i++) {
    if (!chip->model) continue;
    if (last) list = arena_print(a, "%s%s%s", list, *list ? ", " : "", last);
    last = arena_print(a, "sm_%d%s", chip->number, chip->suffix);
  }
  return arena_print(a, "%s and %s", list, last);
}

dil_status gpu_estimate_chip(arena *a, const options *o, gpu_estimate *f) {
  const char *list = o->cuda;
  int32_t arch;
  dil_status status = command_arch(&list, &arch);
  if (status) return status;
  if (*list)
    return message_error(DIL_USAGE, NULL,
                         "`dil explain` takes one chip, got '%s' too", list);
  const cuda_chip *chip = cost_gpu_chip_of(arch);
  if (!chip)
    return message_error(DIL_USAGE,
                         "where such a GPU is at hand, say --device cuda",
                         "`dil explain --cuda` knows %s, got '%s'",
                         estimate_chips_known(a), o->cuda);
  f->name = *chip->suffix ? arena_print(a, "sm_%d%s", arch, chip->suffix)
                          : o->cuda;
  f->model = chip->model;
  f->facts = (dil_cuda_facts){.arch = arch,
                              .processors = chip->processors,
                              .shared_block = chip->shared};
  return DIL_OK;
}

dil_status gpu_estimate_device(const call_setup *b, compilation *c,
                               gpu_estimate *f) {
  dil_context *gpu;
  dil_status status = session_cuda_context(b->options, &gpu);
  if (status)
    return dil_fail(status, "%s; --cuda sm_90a asks of a chip that need not be "
                    "there", dil_last_error());
  f->facts = *dil_context_facts(gpu);
  f->name = arena_print(c->arena, "cuda:%d", b->options->device.number);
  f->model = f->facts.name;
  driver_apply_wisdom(c, gpu, b->size);
  dil_context_free(gpu);
  return DIL_OK;
}

/* ---- one pass ------------------------------------------------------------ */

/* A copy of the pattern with a pass's branches alone. */
static pattern *estimate_pattern(const compilation *c, int32_t pass) {
  const pattern *whole = c->plan->pattern;
  uint64_t branches = c->plan->table.passes[pass].branches;
  pattern *p = ARENA_NEW(c->arena, pattern);
  *p = *whole;
  p->branch = ARENA_ARRAY(c->arena, branch, whole->branch_count);
  p->branch_count = 0;
  for (; branches; branches &= branches - 1)
    p->branch[p->branch_count++] = whole->branch[__builtin_ctzll(branches)];
  return p;
}

/* Sets the reason why the fast kernel does not take a pass: the run time's,
 * about the call, or the back end's, about the pattern. */
static void estimate_set_reason(const compilation *c, const gpu_backend *gpu,
                                const gpu_request *request, int32_t pass,
                                gpu_estimate *f) {
  gpu_estimate_pass *own = &f->pass[pass];
  const dil_cuda_code *code = &f->codes.code[f->run.pass[pass].code];
  const pattern *p = c->plan->pattern;
  int32_t first = __builtin_ctzll(c->plan->table.passes[pass].branches);
  char reason[256] = "";
  if (cuda_is_fast(code->family)) return;
  bool may = false; /* some call may take the fast kernel */
  for (int32_t i = 0; i < f->codes.count; i++)
    may |= cuda_is_fast(f->codes.code[i].family) &&
           (f->codes.code[i].passes >> pass & 1);
  if (may) own->reason = f->run.pass[pass].refusal;
  if (may || !gpu->refuses(request, pass, reason, sizeof reason)) return;
  own->reason = arena_print(c->arena, "%s", reason);
  bool chosen = c->plan->force & FORCE_GENERAL || c->knobs.given;
  bool whole = p->dtype == DIL_F32 || p->dropout > 0 ||
               !p->branch[first].at.source;
  if (cuda_chip_fast(f->facts.arch) && !chosen) own->at = whole ? p->at
                                                      : p->branch[first].at;
}

static double estimate_rows(const call_setup *b) {
  return (double)b->size[CALL_B] * (double)b->size[CALL_N] *
         (double)b->pattern->heads;
}

static void estimate_predict(const call_setup *b, const compilation *c,
                             int32_t pass, gpu_estimate *f) {
  const dil_cuda_pass *run = &f->run.pass[pass];
  const dil_cuda_code *code = &f->codes.code[run->code];
  gpu_estimate_pass *own = &f->pass[pass];
  call_setup alone = *b;
  alone.pattern = estimate_pattern(c, pass);
  /* A kernel without classes of rows counts its own visits: patches, gathered rows and
   * blocks of listed keys are no tiles of neighbouring positions. */
  bool tells = run->visited >= 0 && !run->classes;
  if (tells) measure_rows(&alone, &own->count);
  else measure_cover(&alone, code->tile_rows, code->tile_keys, &own->count);
  if (tells) {
    own->count.full = run->visited - run->masked;
    own->count.partial = run->masked;
    own->count.empty = run->skipped;
  }
  cost_gpu_case spot = {.facts = &f->facts,
                        .code = code,
                        .count = &own->count,
                        .B = b->size[CALL_B],
                        .N = b->size[CALL_N],
                        .M = b->size[CALL_M],
                        .dedup =
                            c->plan->table.dedup && cuda_is_fast(code->family),
                        .touched = 1 - own->count.uncovered / estimate_rows(b),
                        .parts = run->parts};
  own->seconds = cost_gpu_seconds(alone.pattern, &spot);
}

/* A call of these sizes, of row-major tensors without data. */
static dil_call estimate_call(const call_setup *b, const dil_table *t,
                              int64_t B, int64_t N, int64_t M) {
  int64_t q[] = {B, N, t->heads, t->head_dim};
  int64_t k[] = {B, M, t->kv_heads, t->head_dim};
  int64_t v[] = {B, M, t->kv_heads, t->value_dim};
  int64_t o[] = {B, N, t->heads, t->value_dim};
  dil_call call = b->call;
  call.q = dil_tensor_make(NULL, t->dtype, 4, q);
  call.k = dil_tensor_make(NULL, t->dtype, 4, k);
  call.v = dil_tensor_make(NULL, t->dtype, 4, v);
  call.o = dil_tensor_make(NULL, t->dtype, 4, o);
  call.scale = 1; /* any that is positive */
  return call;
}

/* ---- ranks --------------------------------------------------------------- */

/* Adds up the states of a rank. Each of its progressions of queries starts with
 * the keys that the rank owns. */
static dil_status estimate_rank(const call_setup *b, const ring_shape *r,
                                int64_t batch, int32_t rank,
                                const dil_cuda_module *cuda, gpu_estimate *f) {
  positions asking = partition_queries(r, rank),
            owned = partition_keys(r, rank);
  dil_cuda_estimate estimate = {0};
  int64_t bytes = 0;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < asking.count && !status; i++) {
    dil_progression q = asking.progression[i];
    dil_progression k =
        i < owned.count ? owned.progression[i] : (dil_progression){0, 1, 0};
    dil_shard shard = {
        .queries = q, .keys = k, .B = b->size[CALL_B], .N = r->N, .M = r->M};
    dil_call call = estimate_call(b, r->table, batch, q.count, k.count);
    status = cuda->estimate(&f->facts, r->table, f->codes.code, f->codes.count,
                            &call, &shard, &estimate);
    bytes += estimate.state;
  }
  if (bytes <= f->rank_state) return status;
  f->rank_state = bytes;
  f->rank_state_stride = estimate.state_stride;
  return status;
}

/* The largest states of any rank. */
static dil_status estimate_ranks(const call_setup *b, const compilation *c,
                                 const dil_cuda_module *cuda, gpu_estimate *f) {
  const dil_table *all = &c->plan->table;
  dil_status status = DIL_OK;
  if (!c->topology) return status;
  mesh m = place_mesh(c->pattern, c->topology);
  head_partition share = partition_heads(all->heads, all->kv_heads, m.heads, 0);
  if (!share.heads) return status; /* rank_group_new refuses the mesh */
  dil_table mine = head_partition_table(
      all, share, arena_take(c->arena, 1, head_partition_size(all)));
  ring_shape r = {.table = &mine,
                  .layout = m.layout,
                  .ranks = m.ring,
                  .N = b->size[CALL_N],
                  .M = b->size[CALL_M]};
  int64_t batch = (b->size[CALL_B] + m.batch - 1) / m.batch;
  for (int32_t i = 0; i < m.ring && !status; i++)
    status = estimate_rank(b, &r, batch, i, cuda, f);
  return status;
}

/* ---- all ----------------------------------------------------------------- */

/* Seconds to move states. Every pass but the opening one reads and writes the
 * states of its rows; without an opening pass all rows first get an empty
 * state. */
static double estimate_state_bytes(const call_setup *b, const gpu_estimate *f) {
  const plan *p = f->compilation->plan;
  double all = estimate_rows(b), rows = f->run.opening < 0 ? all : 0;
  if (!f->run.stateful) return 0;
  for (int32_t i = 0; i < p->table.pass_count; i++)
    if (i != f->run.opening) rows += all - f->pass[i].count.uncovered;
  return cost_gpu_state_seconds(p->pattern, &f->facts, rows);
}

static double estimate_choices(const call_setup *b, const gpu_estimate *f) {
  const dil_table *t = &f->compilation->plan->table;
  double seconds = 0;
  for (int32_t k = 0; k < t->choice_count; k++)
    seconds += cost_gpu_choice_seconds(b->pattern, &f->facts, &t->choices[k],
                                       b->size[CALL_B], b->size[CALL_N],
                                       b->size[CALL_M]);
  return seconds;
}

static void estimate_add_up(const call_setup *b, double flops,
                            gpu_estimate *f) {
  const plan *p = f->compilation->plan;
  f->states = estimate_state_bytes(b, f);
  f->choices = estimate_choices(b, f);
  f->seconds = f->states + f->choices;
  for (int32_t i = 0; i < p->table.pass_count; i++)
    f->seconds += f->pass[i].seconds;
  f->share = cost_gpu_chip_of(f->facts.arch)
                 ? flops / f->seconds / cost_gpu_peak(p->pattern, &f->facts)
                 : -1;
}

dil_status gpu_estimate_make(const call_setup *b, const compilation *c,
                             double flops, gpu_estimate *f) {
  const gpu_backend *gpu;
  const dil_cuda_module *cuda;
  gpu_request request = {.common = {c->plan},
                         .arch = f->facts.arch,
                         .knobs = &c->knobs,
                         .full_sequences_only = !c->topology,
                         .only = c->plan->force & FORCE_GENERAL ? "general"
                                                                : NULL};
  dil_call call = estimate_call(b, &c->plan->table, b->size[CALL_B],
                                b->size[CALL_N], b->size[CALL_M]);
  f->compilation = c;
  if (!b->size[CALL_B] || !b->size[CALL_N])
    return dil_fail(DIL_USAGE, "no rows: there is nothing to run on a GPU");
  dil_status status = gpu_backend_open(&gpu);
  if (!status) status = dil_cuda_module_open(&cuda);
  if (!status) status = gpu->estimate(&request, &f->codes);
  if (!status)
    status = cuda->estimate(&f->facts, &c->plan->table, f->codes.code,
                            f->codes.count, &call, NULL, &f->run);
  if (!status) status = estimate_ranks(b, c, cuda, f);
  for (int32_t i = 0; !status && i < c->plan->table.pass_count; i++) {
    estimate_set_reason(c, gpu, &request, i, f);
    estimate_predict(b, c, i, f);
  }
  if (!status) estimate_add_up(b, flops, f);
  return status;
}
