/* tested_pattern.c - from the text of a pattern to a kernel, through the
 * library: parse, check, plan, compile with the back end beside the test
 * program. */
#include "gpu.h"
#include "interface.h"
#include "store.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The messages of d as one text. */
static void keep_messages(const diag *d, char *text, size_t size) {
  char *all = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&all, &length);
  if (out == NULL) abort();
  diag_print(d, out, false);
  fclose(out);
  snprintf(text, size, "%s", length ? all : "failed without a message");
  free(all);
}

static tested_pattern *tested_pattern_take(arena *memory, const char *name,
                                           const diag *d, const program *read) {
  tested_pattern *s = ARENA_NEW(memory, tested_pattern);
  s->memory = memory;
  snprintf(s->name, sizeof s->name, "%s", name);
  if (read == NULL || diag_errors(d) > 0)
    keep_messages(d, s->problem, sizeof s->problem);
  else
    s->pattern = read->pattern[0];
  return s;
}

tested_pattern *tested_pattern_new(const char *name, const char *text,
                                   const define *defines,
                                   int32_t define_count) {
  arena *memory = arena_new();
  diag *d = diag_new(memory);
  return tested_pattern_take(memory, name, d,
                             program_parse(memory, d, name, text, strlen(text),
                                           defines, define_count));
}

tested_pattern *tested_pattern_read(const char *path, const define *defines,
                                    int32_t define_count) {
  arena *memory = arena_new();
  diag *d = diag_new(memory);
  dil_status status = DIL_OK;
  return tested_pattern_take(
      memory, path, d,
      program_read(memory, d, path, defines, define_count, &status));
}

void tested_pattern_retype(tested_pattern *s, dil_dtype dtype) {
  pattern *copy = ARENA_NEW(s->memory, pattern);
  *copy = *s->pattern;
  copy->dtype = dtype;
  s->pattern = copy;
}

void tested_pattern_free(tested_pattern *s) {
  if (s) arena_free(s->memory);
}

/* ---- the back end -------------------------------------------------------- */

/* dil-cpu.so stands one folder above the test program. */
static const cpu_backend *open_module(void) {
  char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
  if (length < 0) return NULL;
  path[length] = 0;
  for (char *slash; (slash = strrchr(path, '/')) != NULL;) {
    *slash = 0;
    char file[4200];
    snprintf(file, sizeof file, "%s/dil-cpu.so", path);
    if (access(file, R_OK) != 0) continue;
    void *module = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (module == NULL) fprintf(stderr, "%s\n", dlerror());
    backend_init init =
        module ? (backend_init)dlsym(module, BACKEND_SYMBOL) : NULL;
    return init ? (const void *)init() : NULL;
  }
  return NULL;
}

static const cpu_backend *cpu;

static void open_cpu(void) {
  cpu = open_module();
  if (cpu != NULL && cpu->common.version == DIL_INTERFACE) return;
  fprintf(stderr, "no usable dil-cpu.so above the test program; "
                  "DIL_TEST_DEVICE=cuda tests kernels of a GPU\n");
  abort();
}

/* Ranks that are threads ask for it as well. */
const cpu_backend *processor_backend(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_cpu);
  return cpu;
}

const char *const *cpu_isas(void) {
  static const char *mine[8];
  int32_t count = 0;
  if (gpu_wanted())
    mine[count++] = "cuda";
  else
    for (const char *const *isa = processor_backend()->isas(); *isa; isa++)
      if (processor_backend()->runs(*isa) == DIL_OK) mine[count++] = *isa;
  mine[count] = NULL;
  return mine;
}

const forced force_all[] = {
    {"own choice", 0},
    {"fuse dedup", FORCE_FUSE | FORCE_DEDUP},
    {"fuse multiset", FORCE_FUSE | FORCE_MULTISET},
    {"chain", FORCE_CHAIN},
    {"general", FORCE_GENERAL},
    {NULL, 0},
};

static bool is_among(uint64_t hash, const uint64_t *hashes, int32_t count) {
  for (int32_t i = 0; i < count; i++)
    if (hashes[i] == hash) return true;
  return false;
}

void forces_of(const tested_pattern *s, forced list[FORCES_MOST]) {
  uint64_t hashes[FORCES_MOST];
  int32_t count = 0, plans = 0;
  for (const forced *f = force_all; f->name; f++) {
    arena *memory = arena_new();
    const plan *p = plan_make(memory, diag_new(memory), s->pattern, f->force);
    uint64_t hash = p ? plan_hash(p) : 0;
    bool differs = p && (gpu_wanted() || !is_among(hash, hashes, plans));
    if (p) hashes[plans++] = hash;
    if (differs || f == force_all) list[count++] = *f;
    arena_free(memory);
  }
  list[count] = (forced){NULL, 0};
}

/* ---- a kernel ------------------------------------------------------------ */

/* The LLVM IR of a request, with what else decides about its code; malloced.
 * *code gets all but its bytes. NULL: the compiler has a reason to tell. */
static char *tested_ir(cpu_request request, cpu_code *code, size_t *size) {
  char *text = NULL;
  request.ir = open_memstream(&text, size);
  if (request.ir == NULL) abort();
  request.texts_only = true;
  fprintf(request.ir, "; %s\n", request.isa ? request.isa : "");
  dil_status status =
      processor_backend()->common.compile(&request.common, code);
  fclose(request.ir);
  if (status == DIL_OK) return text;
  free(text);
  return NULL;
}

/* Machine code is a function of its LLVM IR and the processor, so tests share
 * it: kernels that differ in lengths and branches alone have the same IR. */
static dil_status compile_shared(const cpu_request *request, cpu_code *made) {
  size_t size = 0;
  stored object;
  char *ir = store_is_open() ? tested_ir(*request, made, &size) : NULL;
  bool found = ir != NULL && store_find("object", ir, size, &object);
  dil_status status = DIL_OK;
  if (found) {
    made->bytes = object.bytes;
    made->size = object.size;
  } else {
    status = processor_backend()->common.compile(&request->common, made);
    if (ir != NULL && status == DIL_OK)
      store_put("object", ir, size, made->bytes, made->size);
  }
  free(ir);
  return status;
}

static dil_status compile_tested(cpu_request request, void **bytes,
                                 size_t *size, dil_code *code) {
  cpu_code made = {0};
  dil_status status = compile_shared(&request, &made);
  *bytes = made.bytes;
  *size = made.size;
  *code = made.code;
  return status;
}

dil_status plan_variant(void *context, dil_variant variant, void **bytes,
                        size_t *size, dil_code *code) {
  return compile_tested((cpu_request){.common = {context}, .variant = variant},
                        bytes, size, code);
}

static dil_status make_variant(void *context, dil_variant variant, void **bytes,
                               size_t *size, dil_code *code) {
  kernel_made *k = context;
  k->compiled++;
  return compile_tested(
      (cpu_request){.common = {k->plan}, .isa = k->way.isa, .variant = variant},
      bytes, size, code);
}

kernel_made *kernel_make(const tested_pattern *s, recipe way) {
  arena *memory = arena_new();
  diag *d = diag_new(memory);
  kernel_made *k = ARENA_NEW(memory, kernel_made);
  k->memory = memory;
  k->way = way;
  k->plan =
      plan_make_for(memory, d, s->pattern, way.force, way.direction, NULL);
  if (k->plan == NULL) {
    k->refused = true;
    keep_messages(d, k->problem, sizeof k->problem);
    return k;
  }
  plan_verify(k->plan);
  dil_status status =
      cpu_kernel_new(&k->plan->table, make_variant, k, &k->kernel);
  if (status != DIL_OK)
    snprintf(k->problem, sizeof k->problem, "cpu_kernel_new: %s: %s",
             dil_status_text(status), dil_last_error());
  return k;
}

void kernel_unmake(kernel_made *k) {
  if (k == NULL) return;
  cpu_kernel_free(k->kernel);
  gpu_kernel_unmake(k->cuda);
  arena_free(k->memory);
}
