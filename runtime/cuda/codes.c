/* codes.c - see codes.h. In: codes, with their cubins or with a function that
 * makes them. Out: loaded codes, and the code that a pass of a call takes. */
#include "codes.h"
#include "decode.h"
#include "block_list.h"
#include "gather.h"
#include "gather_gradient.h"
#include "general.h"
#include "gradient.h"
#include "grid.h"
#include "grid_gradient.h"
#include "list_gradient.h"
#include "runtime/base/status.h"
#include "runtime/cuda/hopper/hopper.h"
#include "runtime/cuda/hopper/hopper_gradient.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_DYNAMIC_SHARED = 8 /* CU_FUNC_ATTRIBUTE_... */ };
enum { CAPTURE_RELAXED = 2 /* CU_STREAM_CAPTURE_MODE_... */ };

/* runtime/cuda/ring/rows.c launches this family. */
static const cuda_family rows = {
    .name = "rows",
    .entry = {
        [ROWS_MOVE] = "dil_rows_move", [ROWS_RANDOM] = "dil_rows_random_fill"}};

static const cuda_family *const families[] = {
    &cuda_hopper,        &cuda_hopper_grid,     &cuda_hopper_gather,
    &cuda_hopper_block_list,
    &cuda_decode,        &cuda_general,         &cuda_gradient,
    &cuda_gradient_keys, &cuda_hopper_gradient, &cuda_hopper_fused,
    &cuda_gather_gradient, &cuda_list_gradient, &cuda_grid_gradient,
    &cuda_peak,          &rows};

/* ---- one code ------------------------------------------------------------ */

static const cuda_family *codes_family(const char *name) {
  for (size_t i = 0; i < sizeof families / sizeof *families; i++)
    if (!strcmp(families[i]->name, name)) return families[i];
  return NULL;
}

static dil_status code_load_entry(const dil_cuda *d, cuda_code *code,
                                  int32_t i) {
  cu_kernel kernel = NULL;
  cu_function function = NULL;
  cu_result result =
      d->driver->library_kernel(&kernel, code->library, code->family->entry[i]);
  if (!result) result = d->driver->kernel_function(&function, kernel);
  int32_t shared = i == 0 ? code->about.shared : code->family->beside;
  if (!result && shared)
    result = d->driver->function_set(function, MAX_DYNAMIC_SHARED, shared);
  code->function[i] = function;
  return cuda_check(d->driver, result, "prepare a kernel");
}

/* Copies the facts of a code that are known before the code is loaded. */
static dil_status code_describe(const dil_cuda_code *from, cuda_code *code) {
  *code = (cuda_code){.about = *from, .family = codes_family(from->family)};
  code->about.cubin = NULL;
  if (!code->family)
    return dil_fail(DIL_UNSUPPORTED,
                    "no kernels of family '%s' in this run "
                    "time",
                    from->family);
  code->about.family = code->family->name; /* the caller owns its string */
  return DIL_OK;
}

dil_status code_load(const dil_cuda *d, const dil_cuda_code *from,
                     cuda_code *code) {
  dil_status status = code_describe(from, code);
  if (status) return status;
  cu_library library = NULL;
  status = cuda_check(d->driver,
                      d->driver->library_load(&library, from->cubin, NULL, NULL,
                                              0, NULL, NULL, 0),
                      "load a kernel");
  code->library = library;
  const char *const *entry = code->family->entry;
  for (int32_t i = 0; i < DIL_CUDA_ENTRIES && entry[i] && !status; i++)
    status = code_load_entry(d, code, i);
  return status;
}

void code_unload(const dil_cuda *d, cuda_code *code) {
  if (code->memory) code->family->close(code);
  if (code->library) d->driver->library_unload(code->library);
}

/* ---- all of a kernel ----------------------------------------------------- */

static dil_status codes_load(cuda_codes *c, const dil_cuda_code *from,
                             int32_t i) {
  cuda_code *code = &c->loaded[i];
  dil_status status =
      c->device ? code_load(c->device, from, code) : code_describe(from, code);
  const dil_table *table = code_is_of_documents(code) ? &c->documents.table : c->table;
  if (!status && code->family->open) status = code->family->open(table, code);
  if (!status) atomic_store(&c->now[i], code);
  return status;
}

static dil_status codes_add(cuda_codes *c, const dil_cuda_code *from) {
  int32_t i = c->count++;
  if (from->size || !c->more) return codes_load(c, from, i);
  atomic_store(&c->now[i], &c->promised[i]);
  return code_describe(from, &c->promised[i]);
}

dil_status codes_open(cuda_codes *codes, dil_cuda *device,
                      const dil_table *table, const dil_cuda_code *from,
                      int32_t count, dil_more more, const void *context) {
  codes->device = device;
  codes->table = table;
  for (int32_t i = 0; i < count; i++)
    if (from[i].knob[CUDA_KNOB_DOCUMENTS_OF])
      documents_table_fill(table, &codes->documents);
  codes->more = more;
  codes->context = context;
  pthread_mutex_init(&codes->lock, NULL);
  dil_status status = DIL_OK;
  for (int32_t i = 0; !status && i < count; i++)
    status = codes_add(codes, &from[i]);
  return status;
}

void codes_close(cuda_codes *codes) {
  for (int32_t i = 0; i < codes->count; i++)
    code_unload(codes->device, &codes->loaded[i]);
  pthread_mutex_destroy(&codes->lock);
}

/* ---- choosing ------------------------------------------------------------ */

/* The index of the first code that runs a pass; -1: no code does. */
static int32_t codes_find(const cuda_codes *codes, const cuda_run *r,
                          int32_t pass) {
  for (int32_t i = 0; i < codes->count; i++) {
    const cuda_code *code = atomic_load(&codes->now[i]);
    if (code && (code->about.passes >> pass & 1) && !code_is_of_documents(code) &&
        !code->family->refusal(r, pass, code))
      return i;
  }
  return -1;
}

const cuda_code *codes_choose(const cuda_codes *codes, const cuda_run *r,
                              int32_t pass) {
  int32_t i = codes_find(codes, r, pass);
  return i < 0 ? NULL : atomic_load(&codes->now[i]);
}

/* Loads a code while a stream of this thread may be captured into a graph. */
static dil_status codes_load_late(cuda_codes *codes, const dil_cuda_code *made,
                                  int32_t i) {
  const cuda_driver *driver = codes->device->driver;
  int mode = CAPTURE_RELAXED;
  dil_status status = cuda_check(driver, driver->capture_mode(&mode),
                                 "prepare to load a kernel");
  if (status) return status;
  status = codes_load(codes, made, i);
  dil_status back = cuda_check(driver, driver->capture_mode(&mode),
                               "end the load of a kernel");
  return status ? status : back;
}

/* Asks for a promised code and loads it, if it is there or is waited for. A code
 * that the compiler refused is left out. The refusal of the last code is an
 * error, since no code follows. */
static dil_status codes_fetch(cuda_codes *codes, int32_t i, bool waits) {
  dil_cuda_code made = {0};
  dil_status status = codes->more(codes->context, i, waits, &made);
  if (!waits && !made.cubin) return DIL_OK; /* a call that waits tells why */
  if (status == DIL_UNSUPPORTED && i + 1 < codes->count) {
    atomic_store(&codes->now[i], NULL);
    return DIL_OK;
  }
  if (status) return status;
  status = codes_load_late(codes, &made, i);
  free(made.cubin);
  if (!status) return DIL_OK;
  code_unload(codes->device, &codes->loaded[i]);
  codes->loaded[i] = (cuda_code){0};
  return status;
}

static bool codes_is_loaded(const cuda_codes *codes, int32_t i) {
  return atomic_load(&codes->now[i]) != &codes->promised[i];
}

/* Waits for a promised code, or loads it if it is there. */
static dil_status codes_load_promised(cuda_codes *codes, int32_t i,
                                      bool waits) {
  if (codes_is_loaded(codes, i)) return DIL_OK;
  pthread_mutex_lock(&codes->lock);
  dil_status status =
      codes_is_loaded(codes, i) ? DIL_OK : codes_fetch(codes, i, waits);
  pthread_mutex_unlock(&codes->lock);
  return status;
}

static dil_status codes_ensure(cuda_codes *codes, int32_t i) {
  return codes_load_promised(codes, i, true);
}

dil_status codes_take(cuda_codes *codes, const cuda_run *r, int32_t pass,
                      const cuda_code **code) {
  dil_status status = DIL_OK;
  int32_t i = codes_find(codes, r, pass);
  while (i >= 0 && !codes_is_loaded(codes, i) && !status) {
    status = codes_ensure(codes, i);
    if (!status) i = codes_find(codes, r, pass);
  }
  *code = i < 0 || status ? NULL : atomic_load(&codes->now[i]);
  return status;
}

static gradient_kind code_kind(const cuda_code *code) {
  const cuda_family *f = code->family;
  if (code_is_of_documents(code)) return GRADIENT_OF_DOCUMENTS;
  if (f == &cuda_gather_gradient) return GRADIENT_GATHERED;
  if (f == &cuda_list_gradient) return GRADIENT_LISTED;
  if (f == &cuda_grid_gradient) return GRADIENT_PATCHED;
  if (f == &cuda_hopper_gradient || f == &cuda_hopper_fused) return GRADIENT_FAST;
  return GRADIENT_GENERAL;
}

/* Returns whether a code makes one of these gradients. */
static bool code_makes(const cuda_code *code, int32_t makes, gradient_kind kind) {
  bool general = code->family == &cuda_gradient || code->family == &cuda_gradient_keys;
  return code_kind(code) == kind && (kind != GRADIENT_GENERAL || general) &&
         code->about.knob[GRADIENT_KNOB_MAKES] & makes;
}

/* Finds the first such code; NULL: there is none. It is loaded, unless it is
 * promised and not waited for. The general ones take calls with and without
 * dropout. */
static dil_status codes_find_gradient(cuda_codes *codes, int32_t makes,
                                      gradient_kind kind, bool drop, bool waits,
                                      const cuda_code **code) {
  *code = NULL;
  for (int32_t i = 0; i < codes->count; i++) {
    const cuda_code *one = atomic_load(&codes->now[i]);
    if (!one || !code_makes(one, makes, kind)) continue;
    bool drops = one->about.knob[GRADIENT_KNOB_DROPS] != 0;
    if (kind != GRADIENT_GENERAL && drop != drops) continue;
    dil_status status = codes_load_promised(codes, i, waits);
    *code = status ? NULL : atomic_load(&codes->now[i]);
    if (status || *code) return status;
  }
  return DIL_OK;
}

dil_status codes_take_fast_gradient(cuda_codes *codes, int32_t makes,
                                    gradient_kind kind, bool drop,
                                    const cuda_code **code) {
  return codes_find_gradient(codes, makes, kind, drop, true, code);
}

dil_status codes_take_gradient(cuda_codes *codes, int32_t makes, bool waits,
                               const cuda_code **code) {
  dil_status status =
      codes_find_gradient(codes, makes, GRADIENT_GENERAL, false, waits, code);
  if (status || *code) return status;
  return dil_fail(DIL_UNSUPPORTED, "'%s' has no kernel for gradients here",
                  codes->table->name);
}

const cuda_code *codes_of_documents(const cuda_codes *codes) {
  for (int32_t i = 0; i < codes->count; i++) {
    const cuda_code *code = atomic_load(&codes->now[i]);
    if (code && code->memory && code_is_of_documents(code) &&
        code->family == &cuda_hopper)
      return code;
  }
  return NULL;
}

bool code_is_of_documents(const cuda_code *code) {
  return code->about.knob[CUDA_KNOB_DOCUMENTS_OF] != 0;
}

bool code_is_promised(const cuda_code *code) { return !code->library; }

dil_status codes_take_last(cuda_codes *codes, const cuda_code **code) {
  dil_status status = codes_ensure(codes, codes->count - 1);
  *code = status ? NULL : atomic_load(&codes->now[codes->count - 1]);
  return status;
}
