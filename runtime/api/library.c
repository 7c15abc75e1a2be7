/* library.c - kernels of libraries that were built ahead of time.
 *
 * In: a dil_library_kernel and the generated struct of its arguments. Out: a
 * call of a kernel that is made of the library's own machine code when a
 * context first sees it, and that the context then keeps until the host gives
 * it back. Nothing of the library is written to. */
#include "library.h"
#include "context.h"
#include "plan_serial.h"
#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include "runtime/cpu/peak.h"
#include "runtime/cuda/chips.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The parts of a library that a kernel borrows and gives back at its end. */
typedef struct loan {
  const dil_library_kernel *library;
  dil_table *table;
} loan;

static void loan_end(void *context) {
  loan *l = context;
  free(l->table);
  free(l);
}

static int64_t loan_dimension(const void *context, int32_t index, int32_t axis,
                              int32_t B, int32_t N, int32_t M) {
  const loan *l = context;
  const dil_env env = {.B = B, .N = N, .M = M};
  return l->library->questions->dimension(index, axis, &env);
}

static dil_status loan_begin(const dil_library_kernel *k, loan **begun) {
  loan *l = calloc(1, sizeof *l);
  if (!l) return dil_fail(DIL_MEMORY, "no memory for a kernel");
  l->library = k;
  dil_status status = dil_plan_deserialise(k->image, k->image_size, &l->table);
  if (status) free(l);
  else *begun = l;
  return status;
}

/* ---- which machine code -------------------------------------------------- */

static void list_name(char *text, size_t room, const char *name) {
  size_t used = strlen(text);
  snprintf(text + used, room - used, "%s%s", used ? ", " : "", name);
}

/* The strongest that this processor has and that is quick there; else the strongest;
 * -1: it has none. */
static int32_t find_isa(const dil_library_kernel *k) {
  int32_t found = -1;
  for (int32_t i = 0; i < k->isa_count; i++)
    if (dil_isa_usable(k->isas[i].isa) &&
        (found < 0 || dil_isa_is_quick(k->isas[i].isa)))
      found = i;
  return found;
}

static dil_status choose_isa(const dil_library_kernel *k,
                             dil_kernel_source *source) {
  char list[128] = "";
  int32_t found = find_isa(k);
  if (found >= 0) {
    source->target = k->isas[found].isa;
    source->ready = k->isas[found].variant;
    return DIL_OK;
  }
  for (int32_t i = 0; i < k->isa_count; i++)
    list_name(list, sizeof list, k->isas[i].isa);
  const char *wish = getenv("DIL_CPU");
  return dil_fail(DIL_ENVIRONMENT,
                  "kernel '%s' of this library runs on processors with %s; "
                  "here is none of these%s%s",
                  k->name, *list ? list : "nothing: it is for GPUs",
                  wish ? " within DIL_CPU=" : "", wish ? wish : "");
}

/* Returns whether code for `code` runs on `chip`. Code with a suffix ("sm_90a")
 * runs on its own chip alone. Other code also runs on later chips of its
 * generation. */
static bool chip_runs(int32_t code, int32_t chip) {
  return *cuda_chip_suffix(code) ? chip == code
                                 : code / 10 == chip / 10 && code <= chip;
}

static dil_status choose_chip(const dil_library_kernel *k, int32_t chip,
                              dil_kernel_source *source) {
  char list[128] = "";
  int32_t best = 0, before = 0;
  for (int32_t i = 0; i < k->cuda_count; i++)
    if (chip_runs(k->cuda[i].arch, chip) && k->cuda[i].arch > best)
      best = k->cuda[i].arch;
  for (int32_t i = 0; i < k->cuda_count; i++) {
    char name[16];
    if (k->cuda[i].arch == best && !source->code_count++)
      source->codes = &k->cuda[i];
    snprintf(name, sizeof name, "sm_%d", k->cuda[i].arch);
    if (k->cuda[i].arch != before) list_name(list, sizeof list, name);
    before = k->cuda[i].arch;
  }
  if (best) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT,
                  "kernel '%s' of this library runs on chips with %s; this one "
                  "is sm_%d",
                  k->name, *list ? list : "nothing: it is for processors",
                  chip);
}

/* ---- a context's kernels of libraries ------------------------------------ */

static dil_status library_make_kernel(const dil_library_kernel *k,
                                      dil_context *c, dil_kernel **made) {
  loan *l = NULL;
  dil_status status = loan_begin(k, &l);
  if (status) return status;
  int32_t chip = dil_context_arch(c);
  dil_kernel_source source = {.table = l->table,
                              .plan_hash = k->plan_hash,
                              .direction = (dil_direction)k->direction,
                              .dimension = k->questions ? loan_dimension : NULL,
                              .context = l,
                              .release = loan_end};
  status = chip ? choose_chip(k, chip, &source) : choose_isa(k, &source);
  if (!status) status = dil_kernel_make(c, &source, made);
  if (status) loan_end(l);
  return status;
}

/* Should a library be closed and another lie in its place, their hashes
 * differ. */
static attached *library_find_attached(const dil_context *c,
                                       const dil_library_kernel *k) {
  attached *a = atomic_load_explicit(&c->attached, memory_order_acquire);
  while (a && (a->key != k || a->hash != k->hash)) a = a->next;
  return a;
}

static dil_status library_attach(dil_context *c, const dil_library_kernel *k,
                                 attached **out) {
  attached *a = calloc(1, sizeof *a);
  if (!a) return dil_fail(DIL_MEMORY, "no memory for a kernel");
  dil_status status = library_make_kernel(k, c, &a->kernel);
  if (status) {
    free(a);
    return status;
  }
  a->key = k;
  a->hash = k->hash;
  a->next = atomic_load(&c->attached);
  atomic_store(&c->attached, a);
  *out = a;
  return DIL_OK;
}

static dil_status library_find_or_attach(dil_context *c,
                                         const dil_library_kernel *k,
                                         attached **found) {
  dil_status status = dil_context_check(c);
  if (status) return status;
  pthread_mutex_lock(&c->attached_lock);
  *found = library_find_attached(c, k);
  if (!*found) status = library_attach(c, k, found);
  pthread_mutex_unlock(&c->attached_lock);
  return status;
}

/* Whoever runs the kernel checks the context, too. */
static dil_status find_kernel(dil_context *c, const dil_library_kernel *k,
                              dil_kernel **found) {
  attached *a = library_find_attached(c, k);
  dil_status status = a ? DIL_OK : library_find_or_attach(c, k, &a);
  if (!status) *found = a->kernel;
  return status;
}

/* ---- contexts that nobody brought ---------------------------------------- */

enum { DEFAULTS_MAX = 64 };

static pthread_mutex_t defaults_lock = PTHREAD_MUTEX_INITIALIZER;
/* One a device, kept to the end of the process; guarded by defaults_lock. */
static dil_context *defaults[DEFAULTS_MAX];

/* 0: the processor, and whatever memory it reaches; else GPU n - 1. */
static int32_t default_device(const DLTensor *q) {
  bool gpu = q && q->device.device_type == kDLCUDA;
  int32_t number = gpu ? q->device.device_id + 1 : 0;
  return number >= 0 && number < DEFAULTS_MAX ? number : 0;
}

static dil_status default_context(const DLTensor *q, dil_context **context) {
  int32_t number = default_device(q);
  char device[24] = "cpu";
  dil_context_options options = DIL_CONTEXT_OPTIONS_INIT;
  dil_status status = DIL_OK;
  if (number) snprintf(device, sizeof device, "cuda:%d", number - 1);
  options.device = device;
  pthread_mutex_lock(&defaults_lock);
  dil_context **place = &defaults[number];
  /* A child has lost its parent's threads, and starts afresh. */
  if (!*place || (*place)->process != process_own())
    status = dil_context_new(&options, place);
  *context = *place;
  pthread_mutex_unlock(&defaults_lock);
  return status;
}

int32_t dil_library_context(int32_t threads, dil_context **context) {
  dil_context_options options = DIL_CONTEXT_OPTIONS_INIT;
  options.threads = threads;
  return (int32_t)dil_context_new(&options, context);
}

/* ---- calls --------------------------------------------------------------- */

static uint64_t word_at(const void *given, int32_t index) {
  uint64_t word;
  memcpy(&word, (const char *)given + 8 * (size_t)index, sizeof word);
  return word;
}

static void *pointer_at(const void *given, int32_t index) {
  return (void *)(uintptr_t)word_at(given, index);
}

/* Nobody may rely on words from `first` up to `end`, which this version does
 * not read; `what` is the struct. */
static dil_status check_reserved(const dil_library_kernel *k, const void *from,
                                 const char *what, int32_t first, int32_t end) {
  for (int32_t i = first; i < end; i++)
    if (word_at(from, i))
      return dil_fail(DIL_USAGE,
                      "reserved[%d] of the %s of kernel '%s' is not "
                      "NULL",
                      i - first, what, k->name);
  return DIL_OK;
}

static dil_status check_words(const dil_library_kernel *k, const void *from,
                              const char *what, int32_t count) {
  uint64_t size = word_at(from, 0);
  if (size == 8 * (uint64_t)count) return DIL_OK;
  return dil_fail(DIL_USAGE,
                  "the %s of kernel '%s' have %d bytes, their size "
                  "says %llu",
                  what, k->name, 8 * count, (unsigned long long)size);
}

/* From the generated struct to the one that all kernels share. */
static dil_status read_argument_words(const dil_library_kernel *k,
                                      const dil_table *t, const void *from,
                                      dil_arguments *to) {
  int32_t at = DIL_WORD_INPUTS + t->input_count;
  int32_t count = at + t->runtime_scale + 2 * (t->dropout > 0);
  dil_status status = check_words(k, from, "arguments", count);
  if (!status)
    status = check_reserved(k, from, "arguments", DIL_WORD_RESERVED,
                            DIL_WORD_INPUTS);
  if (status) return status;
  *to = (dil_arguments)DIL_ARGUMENTS_INIT;
  to->q = pointer_at(from, DIL_WORD_Q);
  to->k = pointer_at(from, DIL_WORD_K);
  to->v = pointer_at(from, DIL_WORD_V);
  to->o = pointer_at(from, DIL_WORD_O);
  to->lse = pointer_at(from, DIL_WORD_LSE);
  to->lengths = pointer_at(from, DIL_WORD_LENGTHS);
  to->stream = pointer_at(from, DIL_WORD_STREAM);
  to->offsets_q = pointer_at(from, DIL_WORD_OFFSETS_Q);
  to->offsets_k = pointer_at(from, DIL_WORD_OFFSETS_K);
  to->longest_q = (int64_t)word_at(from, DIL_WORD_LONGEST_Q);
  to->longest_k = (int64_t)word_at(from, DIL_WORD_LONGEST_K);
  to->pages = pointer_at(from, DIL_WORD_PAGES);
  to->selection = pointer_at(from, DIL_WORD_SELECTION);
  if (to->selection && !t->choice_count)
    return dil_fail(DIL_USAGE, "kernel '%s' chooses no blocks by their scores: "
                    "selection must be NULL", k->name);
  to->selection_count = to->selection ? 2 * t->choice_count : 0;
  to->saved = pointer_at(from, DIL_WORD_SAVED);
  to->saved_bytes = (int64_t)word_at(from, DIL_WORD_SAVED_BYTES);
  to->input_count = t->input_count;
  to->inputs = (const DLTensor *const *)((const char *)from +
                                         8 * (size_t)DIL_WORD_INPUTS);
  if (t->runtime_scale) {
    uint64_t bits = word_at(from, at++);
    memcpy(&to->scale, &bits, sizeof bits);
  }
  if (t->dropout > 0) {
    to->seed = word_at(from, at);
    to->train = word_at(from, at + 1) != 0;
  }
  return DIL_OK;
}

/* The kernel of a context, or of the default one for the device of q. */
static dil_status library_open_kernel(const dil_library_kernel *k,
                                      dil_context *context, const DLTensor *q,
                                      dil_kernel **found) {
  dil_status status = DIL_OK;
  if (k->abi != DIL_LIBRARY_ABI)
    return dil_fail(DIL_ENVIRONMENT,
                    "kernel '%s' is in a library of form %d, this run time "
                    "takes form %d: build it again",
                    k->name, k->abi, DIL_LIBRARY_ABI);
  if (!context) status = default_context(q, &context);
  return status ? status : find_kernel(context, k, found);
}

int32_t dil_library_run(const dil_library_kernel *k, dil_context *context,
                        const void *given) {
  dil_arguments call;
  dil_kernel *made;
  if (!given)
    return (int32_t)dil_fail(DIL_USAGE, "kernel '%s' has no arguments",
                             k->name);
  dil_call_begin();
  dil_status status =
      library_open_kernel(k, context, pointer_at(given, DIL_WORD_Q), &made);
  if (!status)
    status = read_argument_words(k, made->source.table, given, &call);
  if (!status) status = dil_kernel_run(made, &call);
  return (int32_t)dil_call_end(status);
}

int32_t dil_library_packed(const dil_library_kernel *k, dil_context *context,
                           const void *given) {
  if (given && !pointer_at(given, DIL_WORD_OFFSETS_Q))
    return (int32_t)dil_fail(DIL_USAGE,
                             "a packed call of kernel '%s' wants offsets_q",
                             k->name);
  return dil_library_run(k, context, given);
}

int32_t dil_library_prepare(const dil_library_kernel *k, dil_context *context,
                            int64_t batch, int64_t queries, int64_t keys) {
  const dil_sizes sizes = {batch, queries, keys};
  dil_kernel *made;
  dil_call_begin();
  dil_status status = library_open_kernel(k, context, NULL, &made);
  if (!status) status = dil_kernel_prepare(made, &sizes);
  return (int32_t)dil_call_end(status);
}

/* ---- gradients ----------------------------------------------------------- */

/* A host's struct as the one that all kernels share, and what it points to. */
typedef struct library_gradients {
  dil_arguments forward;
  DLTensor *inputs[DIL_INPUT_MAX];
  dil_gradients gradients;
} library_gradients;

static dil_status read_gradient_words(const dil_library_kernel *k,
                                      const dil_table *t, const void *from,
                                      library_gradients *to) {
  int32_t count = DIL_GRADIENT_INPUTS;
  const void *forward = pointer_at(from, DIL_GRADIENT_FORWARD);
  for (int32_t i = 0; i < t->input_count; i++) count += t->inputs[i].gradient;
  dil_status status = check_words(k, from, "gradients", count);
  if (!status)
    status = check_reserved(k, from, "gradients", DIL_GRADIENT_RESERVED,
                            DIL_GRADIENT_INPUTS);
  if (!status && !forward)
    status = dil_fail(DIL_USAGE,
                      "the gradients of kernel '%s' have no forward "
                      "call",
                      k->name);
  if (!status) status = read_argument_words(k, t, forward, &to->forward);
  if (status) return status;
  int32_t at = DIL_GRADIENT_INPUTS;
  for (int32_t i = 0; i < t->input_count; i++)
    to->inputs[i] = t->inputs[i].gradient ? pointer_at(from, at++) : NULL;
  to->gradients = (dil_gradients)DIL_GRADIENTS_INIT;
  dil_gradients *g = &to->gradients;
  g->forward = &to->forward;
  g->d_o = pointer_at(from, DIL_GRADIENT_DO);
  g->dlse = pointer_at(from, DIL_GRADIENT_DLSE);
  g->dq = pointer_at(from, DIL_GRADIENT_DQ);
  g->dk = pointer_at(from, DIL_GRADIENT_DK);
  g->dv = pointer_at(from, DIL_GRADIENT_DV);
  g->inputs = to->inputs;
  g->input_count = t->input_count;
  g->workspace = pointer_at(from, DIL_GRADIENT_WORKSPACE);
  g->workspace_bytes = (int64_t)word_at(from, DIL_GRADIENT_WORKSPACE_BYTES);
  return DIL_OK;
}

/* The q of the call that ran forward, by which a device is chosen. */
static const DLTensor *forward_q(const void *given) {
  const void *forward = pointer_at(given, DIL_GRADIENT_FORWARD);
  return forward ? pointer_at(forward, DIL_WORD_Q) : NULL;
}

int32_t dil_library_backward(const dil_library_kernel *k, dil_context *context,
                             const void *given) {
  library_gradients call;
  dil_kernel *made;
  if (!given)
    return (int32_t)dil_fail(DIL_USAGE, "kernel '%s' has no gradients to write",
                             k->name);
  dil_call_begin();
  dil_status status = library_open_kernel(k, context, forward_q(given), &made);
  if (!status)
    status = read_gradient_words(k, made->source.table, given, &call);
  if (!status) status = dil_kernel_backward(made, &call.gradients);
  return (int32_t)dil_call_end(status);
}

/* Asks a kernel for the bytes of a call of these sizes. */
typedef dil_status library_question(dil_kernel *kernel, const dil_sizes *sizes,
                                    int64_t *bytes);
static int32_t library_ask(const dil_library_kernel *k, dil_context *context,
                           dil_sizes sizes, library_question *ask, int64_t *bytes) {
  dil_kernel *made;
  if (bytes) *bytes = 0;
  dil_call_begin();
  dil_status status = library_open_kernel(k, context, NULL, &made);
  if (!status) status = ask(made, &sizes, bytes);
  return (int32_t)dil_call_end(status);
}

int32_t dil_library_backward_workspace(const dil_library_kernel *k,
                                       dil_context *context, int64_t batch,
                                       int64_t queries, int64_t keys,
                                       int64_t *bytes) {
  return library_ask(k, context, (dil_sizes){batch, queries, keys},
                     dil_kernel_backward_workspace, bytes);
}

int32_t dil_library_saved(const dil_library_kernel *k, dil_context *context,
                          int64_t batch, int64_t queries, int64_t keys,
                          int64_t *bytes) {
  return library_ask(k, context, (dil_sizes){batch, queries, keys}, dil_kernel_saved,
                     bytes);
}
