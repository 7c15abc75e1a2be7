/* session_library.c - runs a kernel of a library. In: the library's path, a
 * kernel's name, a call. Out: the outputs, which the library's own C function
 * writes, and the pattern of its description, by which a check judges them. */
#include "session_library.h"
#include "runtime/api/context.h"
#include "runtime/api/ffi_call.h"
#include "runtime/base/module.h"
#include "runtime/base/status.h"
#include "runtime/cpu/peak.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* ---- the description ----------------------------------------------------- */

enum { NAMES_MAX = 64 };

static const char *name_at(json_t *kernels, size_t index) {
  const char *name = json_string_value(
      json_object_get(json_array_get(kernels, index), "name"));
  return name ? name : "";
}

static dil_status find_library_kernel(const session_library *t,
                                      const char *name, json_t **found) {
  const char *names[NAMES_MAX];
  char list[DIAG_LIST], guess[DIAG_GUESS];
  json_t *kernels = t->about.kernels;
  size_t count = json_array_size(kernels);
  int32_t known = (int32_t)(count < NAMES_MAX ? count : NAMES_MAX);
  for (int32_t i = 0; i < known; i++) names[i] = name_at(kernels, (size_t)i);
  if (!name && count == 1) name = names[0];
  if (!name)
    return dil_fail(DIL_USAGE,
                    "the library has %zu kernels: choose one by its name: %s",
                    count, diag_list(names, known, list));
  for (size_t i = 0; i < count; i++) {
    *found = json_array_get(kernels, i);
    if (!strcmp(name_at(kernels, i), name)) return DIL_OK;
  }
  return dil_fail(DIL_USAGE, "the library has no kernel '%s'%s", name,
                  diag_guess(name, names, known, guess));
}

static dil_status read_library_pattern(const session_library *t,
                                       compilation *c) {
  const char *text = t->facts.text;
  c->program = program_parse(c->arena, c->diag, t->path, text, strlen(text),
                             NULL, 0);
  if (!c->program) return DIL_INPUT;
  if (c->program->pattern_count != 1)
    return dil_fail(DIL_INPUT, "the description in '%s' is damaged: it has no "
                               "pattern", t->path);
  c->pattern = c->program->pattern[0];
  return DIL_OK;
}

/* The instruction set that the library chooses itself: the last quick one. */
static const char *usable_isa(json_t *isas) {
  const char *found = NULL;
  size_t index;
  json_t *isa;
  json_array_foreach(isas, index, isa) {
    const char *name = json_string_value(isa);
    if (name && dil_isa_usable(name) && (!found || dil_isa_is_quick(name)))
      found = name;
  }
  return found;
}

static dil_status limit_isa(session_library *t, const char *wish) {
  size_t index;
  json_t *isa;
  if (!wish) return DIL_OK;
  json_array_foreach(t->facts.isas, index, isa) {
    if (strcmp(json_string_value(isa), wish)) continue;
    if (setenv("DIL_CPU", wish, 1))
      return dil_fail(DIL_MEMORY, "no memory for DIL_CPU");
    return dil_isa_usable(wish)
               ? DIL_OK
               : dil_fail(DIL_ENVIRONMENT, "this processor has no %s", wish);
  }
  return dil_fail(DIL_USAGE, "kernel '%s' of the library has no code for '%s'",
                  t->facts.name, wish);
}

static dil_status check_library_options(const options *o) {
  static const struct {
    option_id id;
    const char *name;
  } useless[] = {
      {OPTION_DEFINE, "--define"},       {OPTION_FROM, "--from"},
      {OPTION_FORCE, "--force"},         {OPTION_AS, "--dtype"},
      {OPTION_NO_WISDOM, "--no-wisdom"}, {OPTION_TOPOLOGY, "--topology"},
      {OPTION_HEADS, "--heads"},         {OPTION_KV_HEADS, "--kv-heads"},
      {OPTION_HEAD_DIM, "--head-dim"},   {OPTION_VALUE_DIM, "--value-dim"}};
  for (size_t i = 0; i < sizeof useless / sizeof *useless; i++)
    if (o->seen[useless[i].id])
      return dil_fail(DIL_USAGE,
                      "%s has no effect on a kernel that is built "
                      "already",
                      useless[i].name);
  if (o->device.word == DEVICE_ORACLE)
    return dil_fail(DIL_USAGE, "--library runs on cpu or cuda; --check "
                               "compares with the oracle");
  return DIL_OK;
}

dil_status session_library_read(session_library *t, const options *o,
                                compilation *c) {
  json_t *found;
  *t = (session_library){.path = o->library};
  dil_status status = check_library_options(o);
  if (!status) status = library_read(c->arena, t->path, &t->described);
  if (!status) status = library_about(t->path, t->described, &t->about);
  if (!status) status = find_library_kernel(t, o->kernel, &found);
  if (!status) status = library_about_kernel(t->path, found, &t->facts);
  if (!status) status = limit_isa(t, o->cpu);
  if (status) return status;
  t->isa = usable_isa(t->facts.isas);
  return read_library_pattern(t, c);
}

/* ---- loading ------------------------------------------------------------- */

static void *library_symbol(const session_library *t, const char *rest) {
  char name[512];
  int length = snprintf(name, sizeof name, "%s%s%s", t->about.name,
                        *rest ? "_" : "", rest);
  return length < (int)sizeof name ? dlsym(t->file, name) : NULL;
}

/* The library needs libdilrt.so by name alone. The loader finds it in memory
 * once this program has loaded it by its path. */
static void load_runtime(void) {
  char path[DIL_PATH_MAX];
  if (!dil_module_find(LIBRARY_LINKED, path)) dlopen(path, RTLD_LAZY);
}

/* A standalone library carries its own run time and needs a context of that. */
static dil_status make_context(session_library *t, const options *o) {
  int32_t threads = (int32_t)o->threads, result;
  void *place = &t->context, *with[] = {&threads, &place};
  void *function = library_symbol(t, "context_new");
  if (!function || o->device.word == DEVICE_CUDA) return DIL_OK;
  dil_status status = call_function(function, 'w', "wp", with, &result);
  t->own_context = !status && !result;
  return status ? status : (dil_status)result;
}

static void *function_of(const session_library *t, const char *rest) {
  char name[512];
  int length = snprintf(name, sizeof name, "%s_%s", t->facts.name, rest);
  return length < (int)sizeof name ? dlsym(t->file, name) : NULL;
}

dil_status session_library_load(session_library *t, const options *o,
                                dil_context *context) {
  /* dlopen would search its own folders for a name without a folder */
  char *path = realpath(t->path, NULL);
  if (!path) return dil_fail(DIL_ENVIRONMENT, "cannot find '%s'", t->path);
  load_runtime();
  t->file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  free(path);
  if (!t->file)
    return dil_fail(DIL_ENVIRONMENT, "cannot load the library: %s", dlerror());
  t->function = dlsym(t->file, t->facts.name);
  if (!t->function)
    return dil_fail(DIL_INPUT, "'%s' has no function '%s'", t->path,
                    t->facts.name);
  t->packed = function_of(t, "packed");
  t->backward = function_of(t, "backward");
  if (t->about.standalone) return make_context(t, o);
  t->context = context;
  return DIL_OK;
}

void session_library_free(session_library *t) {
  void *result, *with[] = {&t->context};
  void *function = t->own_context ? library_symbol(t, "context_free") : NULL;
  if (function) call_function(function, 'v', "p", with, &result);
  if (t->described) json_decref(t->described);
}

/* ---- calling ------------------------------------------------------------- */

static uint64_t put_tensor(session_library *t, const dil_tensor *from,
                           DLDevice device) {
  if (!from->data) return 0;
  DLTensor *to = &t->tensor[t->tensor_count++];
  *to = (DLTensor){.data = from->data,
                   .device = device,
                   .ndim = from->rank,
                   .dtype = arguments_type(from->dtype),
                   .shape = (int64_t *)from->shape,
                   .strides = (int64_t *)from->stride};
  return (uint64_t)(uintptr_t)to;
}

/* An array of integers, whose shape lasts as long as the call. */
static uint64_t put_integers(session_library *t, const int32_t *data,
                             int32_t rank, const int64_t *shape,
                             DLDevice device) {
  if (!data) return 0;
  DLTensor *to = &t->tensor[t->tensor_count++];
  *to = (DLTensor){.data = (void *)(uintptr_t)data,
                   .device = device,
                   .ndim = rank,
                   .dtype = arguments_type(DIL_I32),
                   .shape = (int64_t *)(uintptr_t)shape};
  return (uint64_t)(uintptr_t)to;
}

static void put_packed(session_library *t, const dil_packed *p,
                       DLDevice device) {
  uint64_t *word = t->word;
  t->offsets_shape = p->count + 1;
  word[DIL_WORD_OFFSETS_Q] =
      put_integers(t, p->queries, 1, &t->offsets_shape, device);
  if (p->keys != p->queries)
    word[DIL_WORD_OFFSETS_K] =
        put_integers(t, p->keys, 1, &t->offsets_shape, device);
  word[DIL_WORD_LONGEST_Q] = (uint64_t)p->longest_queries;
  word[DIL_WORD_LONGEST_K] = (uint64_t)p->longest_keys;
}

static void put_pages(session_library *t, const dil_call *call,
                      DLDevice device) {
  const dil_call_pages *p = &call->pages;
  t->pages_shape[0] = call->q.shape[0];
  t->pages_shape[1] = p->columns;
  t->word[DIL_WORD_PAGES] =
      put_integers(t, p->number, 2, t->pages_shape, device);
}

static void put_selection(session_library *t, const pattern *p,
                          const dil_call *call, DLDevice device) {
  int32_t count = 0;
  for (int32_t k = 0; k < p->branch_count && call->made; k++) {
    const keep *chosen = branch_choice(&p->branch[k]);
    if (!chosen) continue;
    const dil_tensor *rows = &call->made[chosen->chosen - p->input_count];
    t->selection[count++] = put_tensor(t, &rows[0], device);
    t->selection[count++] = put_tensor(t, &rows[1], device);
  }
  t->word[DIL_WORD_SELECTION] = count ? (uint64_t)(uintptr_t)t->selection : 0;
}

void session_library_set_call(session_library *t, const pattern *p,
                              const dil_call *call, DLDevice device) {
  uint64_t *word = t->word;
  int32_t count = DIL_WORD_INPUTS;
  word[DIL_WORD_Q] = put_tensor(t, &call->q, device);
  word[DIL_WORD_K] = put_tensor(t, &call->k, device);
  word[DIL_WORD_V] = put_tensor(t, &call->v, device);
  word[DIL_WORD_O] = put_tensor(t, &call->o, device);
  word[DIL_WORD_LSE] = put_tensor(t, &call->lse, device);
  word[DIL_WORD_LENGTHS] =
      put_integers(t, call->lengths, 1, call->q.shape, device);
  if (call->packed.queries) put_packed(t, &call->packed, device);
  put_pages(t, call, device);
  put_selection(t, p, call, device);
  for (int32_t i = 0; i < call->input_count; i++)
    word[count++] = put_tensor(t, &call->inputs[i], device);
  if (t->facts.takes_scale) memcpy(&word[count++], &call->scale, 8);
  if (t->facts.dropout > 0) {
    word[count++] = call->seed;
    word[count++] = (uint64_t)call->train;
  }
  word[DIL_WORD_SIZE] = 8 * (uint64_t)count;
}

dil_status session_library_set_gradients(session_library *t,
                                         const dil_backward_call *call,
                                         DLDevice device) {
  uint64_t *word = t->gradient_word;
  int32_t count = DIL_GRADIENT_INPUTS;
  if (!t->backward)
    return dil_fail(DIL_USAGE,
                    "kernel '%s' of the library has no gradients: "
                    "`dil build --backward` makes them",
                    t->facts.name);
  word[DIL_GRADIENT_FORWARD] = (uint64_t)(uintptr_t)t->word;
  word[DIL_GRADIENT_DO] = put_tensor(t, &call->output, device);
  word[DIL_GRADIENT_DLSE] = put_tensor(t, &call->lse, device);
  word[DIL_GRADIENT_DQ] = put_tensor(t, &call->dq, device);
  word[DIL_GRADIENT_DK] = put_tensor(t, &call->dk, device);
  word[DIL_GRADIENT_DV] = put_tensor(t, &call->dv, device);
  for (int32_t i = 0; i < DIL_INPUT_MAX; i++)
    if (call->inputs[i].data)
      word[count++] = put_tensor(t, &call->inputs[i], device);
  word[DIL_GRADIENT_SIZE] = 8 * (uint64_t)count;
  return DIL_OK;
}

/* Calls a function of the library with a context and a struct. */
static dil_status call_with(session_library *t, void *function,
                            uint64_t *words) {
  void *struct_at = words, *with[] = {&t->context, &struct_at};
  int32_t result;
  const char *text = NULL;
  dil_status status = call_function(function, 'w', "pp", with, &result);
  if (status || !result) return status;
  void *why = library_symbol(t, "last_error");
  if (why) status = call_function(why, 'p', "", NULL, &text);
  return status ? status
                : dil_fail((dil_status)result, "%s", text ? text : "no reason");
}

dil_status session_library_run(session_library *t) {
  bool packed = t->word[DIL_WORD_OFFSETS_Q];
  if (packed && !t->packed)
    return dil_fail(DIL_INPUT, "'%s' has no function '%s_packed'", t->path,
                    t->facts.name);
  return call_with(t, packed ? t->packed : t->function, t->word);
}

dil_status session_library_run_gradients(session_library *t) {
  return call_with(t, t->backward, t->gradient_word);
}
