/* cpu.c - a kernel on the processor: made on demand, checked at the call, run.
 *
 * In: a plan as data (dil_table) and a maker of machine code. Out: o and lse
 * of each call. A variant's object is made when a call first needs it; the
 * variant of a pass follows from the shape of the call alone. */
#include "cpu.h"
#include "object_load.h"
#include "choose.h"
#include "gradient.h"
#include "runtime/base/documents.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cpu_kernel {
  const dil_table *table;
  dil_make make;
  void *context;
  pthread_mutex_t lock; /* of code, made and object */
  dil_code code[DIL_VARIANT_COUNT];
  bool made[DIL_VARIANT_COUNT];       /* the code is there */
  dil_object *object[DIL_VARIANT_COUNT]; /* NULL: not made here */
  bool *chained;                      /* [heads] */
};

/* ---- making -------------------------------------------------------------- */

static void cpu_kernel_count_passes(cpu_kernel *k) {
  for (int32_t h = 0; h < k->table->heads; h++) {
    int32_t passes = 0;
    for (int32_t p = 0; p < k->table->pass_count; p++)
      passes += walk_served(k->table, &k->table->passes[p], h) != 0;
    k->chained[h] = passes > 1;
  }
}

dil_status cpu_kernel_new(const dil_table *table, dil_make make, void *context,
                          cpu_kernel **kernel) {
  cpu_kernel *k = calloc(1, sizeof *k);
  bool *chained = calloc((size_t)table->heads, sizeof *chained);
  if (!k || !chained) {
    free(k);
    free(chained);
    return dil_fail(DIL_MEMORY, "no memory for a kernel");
  }
  k->table = table;
  k->make = make;
  k->context = context;
  k->chained = chained;
  pthread_mutex_init(&k->lock, NULL);
  cpu_kernel_count_passes(k);
  *kernel = k;
  return DIL_OK;
}

void cpu_kernel_free(cpu_kernel *kernel) {
  if (!kernel) return;
  for (int32_t v = 0; v < DIL_VARIANT_COUNT; v++)
    dil_object_free(kernel->object[v]);
  pthread_mutex_destroy(&kernel->lock);
  free(kernel->chained);
  free(kernel);
}

/* A symbol of the generated code and where it goes. */
typedef struct code_entry {
  dil_variant variant;
  const char *symbol; /* a number follows where it stands once a score chain */
  size_t offset;
} code_entry;

#define X(variant, name) {DIL_##variant, #name, offsetof(dil_code, name)},
static const code_entry entries[] = {DIL_CODE_FUNCTIONS(X)};
static const code_entry chain_entries[] = {DIL_CODE_CHAINS(X)};
#undef X

static void code_bind_symbol(dil_code *code, const dil_object *object,
                             const char *symbol, size_t offset) {
  void *address = dil_object_symbol(object, symbol);
  memcpy((char *)code + offset, &address, sizeof address);
}

static void code_bind(const dil_table *table, dil_variant variant,
                      const dil_object *object, dil_code *code) {
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
    if (entries[i].variant == variant)
      code_bind_symbol(code, object, entries[i].symbol, entries[i].offset);
  for (size_t i = 0; i < sizeof chain_entries / sizeof *chain_entries; i++)
    for (int32_t c = 0; c < table->chain_count; c++) {
      char name[32];
      const code_entry *entry = &chain_entries[i];
      if (entry->variant != variant) continue;
      snprintf(name, sizeof name, "%s%d", entry->symbol, c);
      code_bind_symbol(code, object, name,
                       entry->offset + (size_t)c * sizeof(void *));
    }
}

/* Gives the gradients' code the products that it shares (dil_code_shares). The
 * tiles' code must be there already. */
static void code_share(const dil_table *table, dil_variant variant,
                       const dil_code *tiles, dil_code *c) {
  if (variant != DIL_GRADIENTS ||
      !dil_code_shares(table->head_dim, table->value_dim))
    return;
  c->dp = tiles->qk;
  c->dq = tiles->pv;
  c->dv = c->dk;
}

static bool code_has_gradients(const dil_table *table, const dil_code *c) {
  bool whole = c->dp && c->ds && c->dq && c->dk && c->dv;
  bool inputs = false;
  for (int32_t x = 0; x < table->input_count; x++)
    inputs |= table->inputs[x].gradient;
  whole &= table->dropout == 0 || c->ds_drop;
  whole &= !table->scored || c->slope[0];
  whole &= !table->sink_branches || c->branch_sink;
  whole &= !table->sinks || !inputs || c->sink_inputs;
  return whole && (!inputs || c->inputs[0]);
}

/* Returns whether the functions that every plan needs are there. */
static bool code_has_variant(const dil_table *table, dil_variant variant,
                             const dil_code *c) {
  switch (variant) {
  case DIL_TILES:
    return c->qk && c->softmax && c->pv && c->modify[0] &&
           (table->dropout == 0 || c->softmax_drop);
  case DIL_ROWS:
    return c->row_qk && c->row_softmax && c->row_pv && c->row_modify[0] &&
           (table->dropout == 0 || c->row_softmax_drop);
  default: return code_has_gradients(table, c);
  }
}

/* A generated object that lacks a function is a bug of the back end. */
static dil_status code_check(const dil_table *table, dil_variant variant,
                             const dil_code *c) {
  bool whole = code_has_variant(table, variant, c);
  bool asks = variant != DIL_GRADIENTS; /* it takes the tiles' functions */
  for (int32_t p = 0; p < table->predicate_count; p++)
    whole &= !asks || !table->predicates[p].masked || c->cover;
  whole &= !asks || dil_table_reads(table) == 0 || c->dimension;
  for (int32_t p = 0; p < table->choice_count; p++)
    whole &= !asks || !table->choices[p].asks || c->keeps;
  whole &= !asks || table->dropout == 0 || c->dropout_words;
  whole &= !asks || !table->sinks || c->sink;
  if (whole) return DIL_OK;
  return dil_fail(DIL_INTERNAL, "kernel '%s' lacks a generated function",
                  table->name);
}

static dil_status cpu_kernel_make_variant(cpu_kernel *k, dil_variant variant) {
  void *bytes = NULL;
  size_t size = 0;
  dil_code code = {0};
  dil_object *object = NULL;
  dil_status status = k->make(k->context, variant, &bytes, &size, &code);
  if (!status) status = dil_object_load(bytes, size, k->table->name, &object);
  free(bytes);
  if (status) return status;
  code_bind(k->table, variant, object, &code);
  code_share(k->table, variant, &k->code[DIL_TILES], &code);
  status = code_check(k->table, variant, &code);
  if (status) {
    dil_object_free(object);
    return status;
  }
  k->code[variant] = code;
  k->object[variant] = object;
  k->made[variant] = true;
  return DIL_OK;
}

dil_status cpu_kernel_take(const dil_table *table,
                           const dil_code *const ready[DIL_VARIANT_COUNT],
                           cpu_kernel **kernel) {
  cpu_kernel *k;
  dil_status status = cpu_kernel_new(table, NULL, NULL, &k);
  if (status) return status;
  for (int32_t v = 0; v < DIL_VARIANT_COUNT && !status; v++) {
    if (!ready[v]) continue;
    k->code[v] = *ready[v];
    k->made[v] = true;
    code_share(table, (dil_variant)v, &k->code[DIL_TILES], &k->code[v]);
    status = code_check(table, (dil_variant)v, &k->code[v]);
  }
  if (status) cpu_kernel_free(k);
  else *kernel = k;
  return status;
}

static dil_status cpu_kernel_need_variant(cpu_kernel *k, dil_variant variant) {
  dil_status status = DIL_OK;
  pthread_mutex_lock(&k->lock);
  if (!k->made[variant] && !k->make)
    status = dil_fail(DIL_UNSUPPORTED, "kernel '%s' was made without gradients",
                      k->table->name);
  else if (!k->made[variant])
    status = cpu_kernel_make_variant(k, variant);
  pthread_mutex_unlock(&k->lock);
  return status;
}

/* ---- which variant ------------------------------------------------------- */

static unsigned cpu_kernel_variants(const cpu_kernel *k, const dil_call *call,
                                    const dil_shard *shard) {
  cpu_run r = {.table = k->table,
               .call = call,
               .shard = shard,
               .N = call->q.shape[1]};
  return documents_given(call) ? packed_variants(&r) : cpu_run_variants(&r);
}

const char *cpu_kernel_variant(const cpu_kernel *kernel, const dil_call *call) {
  static const char *const names[] = {"none", "tiles", "rows", "tiles+rows"};
  return names[cpu_kernel_variants(kernel, call, NULL)];
}

static dil_status cpu_kernel_need_variants(cpu_kernel *kernel,
                                           const dil_call *call,
                                           const dil_shard *shard) {
  unsigned mask = cpu_kernel_variants(kernel, call, shard);
  for (int32_t v = 0; v < DIL_VARIANT_COUNT; v++) {
    dil_status status =
        mask >> v & 1 ? cpu_kernel_need_variant(kernel, v) : DIL_OK;
    if (status) return status;
  }
  return DIL_OK;
}

dil_status cpu_kernel_prepare(cpu_kernel *kernel, const dil_call *call) {
  return cpu_kernel_need_variants(kernel, call, NULL);
}

/* ---- running ------------------------------------------------------------- */

static cpu_run cpu_kernel_run_new(const cpu_kernel *kernel,
                                  dil_threads *threads, const dil_call *call,
                                  const dil_shard *shard) {
  return (cpu_run){.table = kernel->table,
                   .call = call,
                   .shard = shard,
                   .threads = threads,
                   .chained = kernel->chained};
}

/* The code that a checked call needs, and its inputs. */
static dil_status cpu_kernel_bind_run(cpu_kernel *k, cpu_run *r) {
  dil_status status = cpu_kernel_need_variants(k, r->call, r->shard);
  if (status) return status;
  for (int32_t v = 0; v < DIL_VARIANT_COUNT; v++) r->code[v] = &k->code[v];
  bool tiles = cpu_kernel_variants(k, r->call, r->shard) >> DIL_TILES & 1;
  return input_bind(r, r->code[tiles ? DIL_TILES : DIL_ROWS]);
}

/* Rows behind the last document are written, too. */
static bool is_empty(const cpu_run *r) {
  if (documents_given(r->call)) return r->call->q.shape[1] == 0;
  return r->B == 0 || r->N == 0;
}

static int64_t cpu_kernel_run_bytes(const cpu_run *r) {
  return documents_given(r->call) ? packed_bytes(r) : cpu_run_bytes(r);
}

/* What every call must be; the host can look at its offsets. */
static dil_status cpu_kernel_check(cpu_run *r) {
  dil_status status = dil_run_check(r);
  if (status || !documents_given(r->call)) return status;
  return documents_check_offsets(r->call);
}

/* Runs `passes` of a call that is checked, or of a shard of one. */
static dil_status
cpu_kernel_run_passes(cpu_kernel *k, cpu_run *r, pool *scratch,
                      dil_status (*passes)(cpu_run *r, char *memory)) {
  dil_status status = cpu_kernel_bind_run(k, r);
  if (!status && is_empty(r)) choose_nothing(r);
  if (status || is_empty(r)) return status;
  int64_t bytes = cpu_kernel_run_bytes(r);
  char *memory = pool_take(scratch, bytes);
  if (!memory) return DIL_MEMORY;
  status = passes(r, memory);
  pool_give(scratch, memory);
  return status;
}

dil_status cpu_kernel_workspace(cpu_kernel *kernel, dil_threads *threads,
                                const dil_call *call, int64_t *bytes) {
  cpu_run r = cpu_kernel_run_new(kernel, threads, call, NULL);
  dil_status status = cpu_kernel_check(&r);
  if (!status) status = cpu_kernel_bind_run(kernel, &r);
  *bytes = status || is_empty(&r) ? 0 : cpu_kernel_run_bytes(&r);
  return status;
}

dil_status cpu_kernel_run(cpu_kernel *kernel, dil_threads *threads,
                          pool *scratch, const dil_call *call) {
  cpu_run r = cpu_kernel_run_new(kernel, threads, call, NULL);
  dil_status status = cpu_kernel_check(&r);
  if (!status) status = dil_pages_check_numbers(call);
  if (status) return status;
  return cpu_kernel_run_passes(
      kernel, &r, scratch,
      documents_given(call) ? packed_passes : cpu_run_passes);
}

/* ---- gradients ----------------------------------------------------------- */

/* The codes that gradients take, whatever the forward call would take. */
static dil_status cpu_kernel_bind_gradients(cpu_kernel *k, cpu_run *r) {
  dil_status status = cpu_kernel_need_variant(k, DIL_TILES);
  if (!status) status = cpu_kernel_need_variant(k, DIL_GRADIENTS);
  if (status) return status;
  for (int32_t v = 0; v < DIL_VARIANT_COUNT; v++) r->code[v] = &k->code[v];
  return input_bind(r, r->code[DIL_TILES]);
}

/* The code that backward needs, and the inputs. A call without lse runs forward
 * first. */
static dil_status cpu_kernel_bind_backward(cpu_kernel *k, cpu_run *r) {
  dil_status status = cpu_kernel_need_variants(k, r->call, NULL);
  return status ? status : cpu_kernel_bind_gradients(k, r);
}

static dil_status cpu_kernel_backward_plan(cpu_kernel *k, cpu_run *r,
                                           const dil_backward_call *call,
                                           int64_t *bytes) {
  dil_status status = gradient_run_check(r, call);
  if (!status) status = cpu_kernel_bind_backward(k, r);
  *bytes = status ? 0 : gradient_run_bytes(r, call);
  return status;
}

dil_status cpu_kernel_backward_workspace(cpu_kernel *kernel,
                                         dil_threads *threads,
                                         const dil_backward_call *call,
                                         int64_t *bytes) {
  cpu_run r = cpu_kernel_run_new(kernel, threads, &call->forward, NULL);
  return cpu_kernel_backward_plan(kernel, &r, call, bytes);
}

static char *align_up(void *memory) {
  return (char *)(((uintptr_t)memory + 63) / 64 * 64);
}

dil_status cpu_kernel_backward(cpu_kernel *kernel, dil_threads *threads,
                               pool *scratch, const dil_backward_call *call) {
  cpu_run r = cpu_kernel_run_new(kernel, threads, &call->forward, NULL);
  int64_t bytes;
  dil_status status = cpu_kernel_backward_plan(kernel, &r, call, &bytes);
  if (status) return status;
  if (call->workspace) {
    char *memory = align_up(call->workspace);
    int64_t lost = memory - (char *)call->workspace;
    if (bytes + lost > call->workspace_bytes)
      return dil_fail(DIL_USAGE, "the workspace has %lld bytes, and the call "
                      "needs %lld, aligned to 64",
                      (long long)call->workspace_bytes, (long long)bytes);
    return gradient_run_all(&r, call, memory);
  }
  char *memory = pool_take(scratch, bytes);
  if (!memory) return DIL_MEMORY;
  status = gradient_run_all(&r, call, memory);
  pool_give(scratch, memory);
  return status;
}

/* ---- a shard of a sequence ----------------------------------------------- */

static dil_status cpu_kernel_check_shard(cpu_run *r) {
  if (r->call->lengths)
    return dil_fail(DIL_UNSUPPORTED, "lengths of batch rows cannot be used "
                    "with a shard of a sequence");
  if (documents_given(r->call))
    return dil_fail(DIL_UNSUPPORTED, "offsets of documents cannot be used with "
                    "a shard of a sequence");
  dil_status status = dil_pages_refuse(r->call, "a shard of a sequence");
  return status ? status : dil_shard_check(r);
}

int32_t cpu_kernel_states(const cpu_kernel *kernel) {
  return run_states(kernel->table);
}

bool cpu_kernel_asks_states(const cpu_kernel *kernel) {
  return backward_asks_states(kernel->table);
}

dil_status cpu_kernel_begin(cpu_kernel *kernel, dil_threads *threads,
                            const dil_call *call, const dil_shard *shard) {
  cpu_run r = cpu_kernel_run_new(kernel, threads, call, shard);
  dil_status status = cpu_kernel_check_shard(&r);
  if (!status && kernel->table->sinks)
    status = shard->by_pass ? cpu_kernel_bind_gradients(kernel, &r)
                            : cpu_kernel_bind_run(kernel, &r);
  return status ? status : cpu_run_begin(&r);
}

dil_status cpu_kernel_advance(cpu_kernel *kernel, dil_threads *threads,
                              pool *scratch, const dil_call *call,
                              const dil_shard *shard) {
  cpu_run r = cpu_kernel_run_new(kernel, threads, call, shard);
  dil_status status = cpu_kernel_check_shard(&r);
  if (status || shard->keys.count == 0) return status;
  return cpu_kernel_run_passes(kernel, &r, scratch, cpu_run_advance);
}

dil_status cpu_kernel_finish(cpu_kernel *kernel, dil_threads *threads,
                             const dil_call *call, const dil_shard *shard) {
  cpu_run r = cpu_kernel_run_new(kernel, threads, call, shard);
  dil_status status = cpu_kernel_check_shard(&r);
  return status ? status : cpu_run_end(&r);
}

dil_status cpu_kernel_backward_shard(cpu_kernel *kernel, dil_threads *threads,
                                     pool *scratch,
                                     const dil_backward_call *call,
                                     const dil_shard *shard) {
  cpu_run r = cpu_kernel_run_new(kernel, threads, &call->forward, shard);
  dil_status status = cpu_kernel_check_shard(&r);
  if (!status) status = dil_gradient_shard_check(&r, call);
  if (!status) status = cpu_kernel_bind_gradients(kernel, &r);
  if (status || is_empty(&r)) return status;
  char *memory = pool_take(scratch, gradient_shard_bytes(&r, call));
  if (!memory) return DIL_MEMORY;
  status = gradient_shard_run(&r, call, memory);
  pool_give(scratch, memory);
  return status;
}

dil_status cpu_kernel_row_numbers(cpu_kernel *kernel, dil_threads *threads,
                                  const dil_backward_call *call,
                                  const dil_shard *shard, float *numbers) {
  cpu_run r = cpu_kernel_run_new(kernel, threads, &call->forward, shard);
  dil_status status = cpu_kernel_check_shard(&r);
  if (!status) status = dil_gradient_shard_check(&r, call);
  if (!status) status = cpu_kernel_bind_gradients(kernel, &r);
  return status ? status : gradient_shard_numbers(&r, call, numbers);
}
