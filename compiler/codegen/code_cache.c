/* code_cache.c - the code cache: compiled code that outlives the process.
 *
 * In: a compilation with its plan. Out: machine code. The key holds all that
 * the code depends on: the plan's canonical text, knobs, target, the headers
 * that dil's plug-ins share, and a hash of the back end's file, which holds the
 * templates. Layout and comments of the .dil file are not in it, so a debugger
 * shows its lines as they were when the code was made. The compiler library is
 * a dependency of the value: the cache drops the value when that file changes.
 * A value for a GPU is a list of codes. Cubins of codes on no list may be in
 * the cubin cache (cubin_cache.c), by their source. */
#include "code_cache.h"
#include "cubin_cache.h"
#include "interface.h"
#include "runtime/base/module.h"
#include "runtime/cache/cache.h"
#include "runtime/observe/metrics.h"
#include "runtime/observe/trace.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- the processor ------------------------------------------------------- */

/* The head of a cached object; its bytes follow. */
typedef struct object_facts {
  int32_t lanes, pack, key_block, tile_keys;
} object_facts;

static code_bytes code_cache_write_object(const void *made) {
  const cpu_code *code = made;
  object_facts facts = {code->code.lanes, code->code.pack,
                        code->code.key_block, code->code.tile_keys};
  code_bytes kept = {malloc(sizeof facts + code->size),
                     sizeof facts + code->size};
  if (!kept.bytes) return (code_bytes){0};
  memcpy(kept.bytes, &facts, sizeof facts);
  memcpy(kept.bytes + sizeof facts, code->bytes, code->size);
  return kept;
}

static bool code_cache_read_object(cache_value *found, void *made) {
  cpu_code *code = made;
  object_facts facts;
  if (found->size < sizeof facts) {
    free(found->bytes);
    return false;
  }
  memcpy(&facts, found->bytes, sizeof facts);
  *code = (cpu_code){.bytes = found->bytes,
                         .size = found->size - sizeof facts,
                         .code = {.lanes = facts.lanes,
                                  .pack = facts.pack,
                                  .key_block = facts.key_block,
                                  .tile_keys = facts.tile_keys}};
  memmove(code->bytes, (char *)code->bytes + sizeof facts, code->size);
  return true;
}

static dil_status open_cpu(const backend **opened) {
  const cpu_backend *cpu;
  dil_status status = cpu_backend_open(&cpu);
  if (!status) *opened = &cpu->common;
  return status;
}

static dil_status make_object(const void *request,
                              const gpu_cubin_cache *cubins, void *made) {
  const cpu_request *r = request;
  const cpu_backend *cpu;
  (void)cubins;
  dil_status status = cpu_backend_open(&cpu);
  return status ? status : cpu->common.compile(&r->common, made);
}

/* ---- GPUs ---------------------------------------------------------------- */

enum { FAMILY_SIZE = 32 };

/* A cached list holds for each code this head, then the cubin. Its size is 0
 * where deferred.c compiles it after the kernel is made. */
typedef struct code_head {
  dil_cuda_code about; /* cubin and family NULL */
  int32_t variant;
  char family[FAMILY_SIZE];
} code_head;

static code_bytes code_cache_write_codes(const void *made) {
  const gpu_codes *codes = made;
  code_bytes kept = {0};
  FILE *out = open_memstream(&kept.bytes, &kept.size);
  if (!out) return kept;
  for (int32_t i = 0; i < codes->count; i++) {
    code_head head;
    memset(&head, 0, sizeof head);
    head.about = codes->code[i];
    head.about.cubin = NULL;
    head.about.family = NULL;
    head.variant = codes->variant[i];
    snprintf(head.family, sizeof head.family, "%s", codes->code[i].family);
    fwrite(&head, sizeof head, 1, out);
    if (head.about.size) fwrite(codes->code[i].cubin, 1, head.about.size, out);
  }
  bool whole = !ferror(out);
  if (fclose(out) == 0 && whole) return kept;
  free(kept.bytes);
  return (code_bytes){0};
}

/* code->cubin and code->family share one malloced block, the name last. */
static bool read_code(const char **at, const char *end, dil_cuda_code *code,
                      int32_t *variant) {
  code_head head;
  if ((size_t)(end - *at) < sizeof head) return false;
  memcpy(&head, *at, sizeof head);
  *at += sizeof head;
  size_t size = head.about.size;
  char *block = size <= (size_t)(end - *at) ? malloc(size + FAMILY_SIZE) : NULL;
  if (!block) return false;
  memcpy(block, *at, size);
  memcpy(block + size, head.family, FAMILY_SIZE);
  block[size + FAMILY_SIZE - 1] = 0;
  *at += size;
  *code = head.about;
  *variant = head.variant;
  code->cubin = block;
  code->family = block + size;
  return true;
}

static bool code_cache_read_codes(cache_value *found, void *made) {
  gpu_codes *codes = made;
  const char *at = found->bytes, *end = at + found->size;
  codes->count = 0;
  bool good = true;
  while (good && at < end && codes->count < GPU_CODES_MAX) {
    good = read_code(&at, end, &codes->code[codes->count],
                     &codes->variant[codes->count]);
    codes->count += good;
  }
  free(found->bytes);
  if (good && at == end && codes->count) return true;
  while (codes->count > 0) free(codes->code[--codes->count].cubin);
  return false;
}

static dil_status open_gpu(const backend **opened) {
  const gpu_backend *gpu;
  dil_status status = gpu_backend_open(&gpu);
  if (!status) *opened = &gpu->common;
  return status;
}

static dil_status make_codes(const void *request, const gpu_cubin_cache *cubins,
                             void *made) {
  gpu_request own = *(const gpu_request *)request;
  const gpu_backend *gpu;
  own.cubins = cubins;
  dil_status status = gpu_backend_open(&gpu);
  return status ? status : gpu->common.compile(&own.common, made);
}

typedef struct helper_request {
  const plan *plan;
  int32_t arch;
  helper_kernel which;
} helper_request;

static dil_status make_helper(const void *request,
                              const gpu_cubin_cache *cubins, void *made) {
  const helper_request *r = request;
  gpu_codes *codes = made;
  const gpu_backend *gpu;
  dil_status status = gpu_backend_open(&gpu);
  if (status) return status;
  codes->count = 1;
  return r->which == HELPER_PEAK
             ? gpu->peak(r->plan, r->arch, cubins, &codes->code[0])
             : gpu->rows(r->arch, cubins, &codes->code[0]);
}

/* ---- find or compile, for both ------------------------------------------- */

/* A kind of code. `read` and `write` turn code from and into bytes; `read`
 * frees found->bytes, or hands them to the code that it makes. */
typedef struct code_kind {
  code_module module;
  const char *compiler; /* for the trace */
  metric compiles, opening, seconds;
  bool (*read)(cache_value *found, void *made);
  code_bytes (*write)(const void *made);
  dil_status (*open)(const backend **opened); /* once a process */
  dil_status (*make)(const void *request, const gpu_cubin_cache *cubins,
                     void *made);
} code_kind;

static const code_kind object_kind = {.module = MODULE_CPU,
                             .compiler = "llvm",
                             .compiles = METRIC_compiles_cpu,
                             .opening = METRIC_open_cpu,
                             .seconds = METRIC_compile_cpu,
                             .read = code_cache_read_object,
                             .write = code_cache_write_object,
                             .open = open_cpu,
                             .make = make_object};
#define CUBINS(how)                         \
  {.module = MODULE_GPU,                      \
   .compiler = "nvrtc",                     \
   .compiles = METRIC_compiles_cuda,        \
   .opening = METRIC_open_cuda,             \
   .seconds = METRIC_compile_cuda,          \
   .read = code_cache_read_codes,                      \
   .write = code_cache_write_codes,                    \
   .open = open_gpu,                        \
   .make = how}
static const code_kind cubin_kind = CUBINS(make_codes),
                  helper_kind = CUBINS(make_helper);

/* Does not resolve symbolic links, since a newer compiler may lie behind one
 * later. */
const char *code_cache_absolute(const char *path, char room[PATH_MAX]) {
  char here[PATH_MAX] = "";
  bool rooted = *path == '/';
  if (!rooted && !getcwd(here, sizeof here)) return NULL;
  int length =
      snprintf(room, PATH_MAX, "%s%s%s", here, rooted ? "" : "/", path);
  return length > 0 && length < PATH_MAX ? room : NULL;
}

/* Caches nothing of a compiler whose path is unknown, since that compiler could
 * change without notice. */
static void code_cache_put(const code_request *of, const code_kind *k,
                           dil_cache *cache, code_bytes key, const char *target,
                           const void *made, const char *origin,
                           double seconds) {
  char label[160], room[PATH_MAX];
  origin = origin && *origin ? code_cache_absolute(origin, room) : NULL;
  code_bytes kept = key.bytes && origin ? k->write(made) : (code_bytes){0};
  snprintf(label, sizeof label, "%s %s", of->plan->table.name, target);
  if (kept.bytes)
    dil_cache_put(cache, key.bytes, key.size,
                  &(cache_value){.bytes = kept.bytes,
                                 .size = kept.size,
                                 .seconds = seconds,
                                 .label = label,
                                 .witness = {origin}});
  free(kept.bytes);
}

/* Compiles what is not in the cubin cache, and caches the result unless there
 * is no key. */
static dil_status code_cache_compile(const code_request *of, const code_kind *k,
                                     dil_cache *cache, code_bytes key,
                                     const char *target, const void *request,
                                     cubin_cache *cubins, void *made) {
  const backend *opened = NULL;
  int64_t begin = dil_trace_now();
  dil_status status = k->open(&opened);
  const char *origin =
      status ? NULL : opened->origin(); /* loads the compiler */
  int64_t loaded = dil_trace_now();
  if (tracing()) dil_trace_add(begin, "compile", "open", k->compiler, -1);
  bool empty =
      !cubins->origin[0]; /* code_cache_from_cubins has found nothing */
  cubin_cache_open(cubins, of->context, false, origin);
  cubins->calls.empty = empty;
  if (!status) status = k->make(request, origin ? &cubins->calls : NULL, made);
  if (status) return status;
  double opening = 1e-9 * (double)(loaded - begin);
  double seconds = 1e-9 * (double)(dil_trace_now() - loaded);
  dil_context_compiled(of->context, opening, seconds);
  metric_add(k->compiles, 1);
  metric_add_seconds(k->opening, opening);
  metric_add_seconds(k->seconds, seconds);
  code_cache_put(of, k, cache, key, target, made, origin, seconds);
  return DIL_OK;
}

static void note_found(const code_request *of, const char *target,
                       int64_t begin) {
  if (tracing()) dil_trace_add(begin, "compile", "cache", target, -1);
  LOG(dil_log_of(of->context), DIL_LOG_INFO,
      "kernel '%s' for %s: from the cache in %.1f ms", of->plan->table.name,
      target, 1e-6 * (double)(dil_trace_now() - begin));
}

/* Reads the value of a key; false: there is none. */
static bool code_cache_find(const code_request *of, const code_kind *k,
                            dil_cache *cache, code_bytes key,
                            const char *target, void *made) {
  cache_value found;
  int64_t begin = dil_trace_now();
  bool hit = key.bytes && dil_cache_get(cache, key.bytes, key.size, &found) &&
             k->read(&found, made);
  if (hit) note_found(of, target, begin);
  return hit;
}

/* Makes GPU code whose cubins are all in the cubin cache, perhaps from other
 * plans, without loading the compiler. It caches no list, since the next
 * process finds the cubins again in less time than writing a list takes. */
static bool code_cache_from_cubins(const code_request *of, const code_kind *k,
                         const char *target, const void *request,
                         cubin_cache *cubins, void *made) {
  int64_t begin = dil_trace_now();
  cubin_cache_open(cubins, of->context, true, NULL);
  if (k->module != MODULE_GPU || k->make(request, &cubins->calls, made))
    return false;
  note_found(of, target, begin);
  return true;
}

static dil_status code_cache_make(const code_request *of, const code_kind *k,
                           dil_cache *cache, code_bytes key, const char *target,
                           const void *request, void *made) {
  cubin_cache cubins;
  int64_t begin = dil_trace_now();
  if (code_cache_from_cubins(of, k, target, request, &cubins, made))
    return DIL_OK;
  dil_status status =
      code_cache_compile(of, k, cache, key, target, request, &cubins, made);
  if (tracing()) dil_trace_add(begin, "compile", k->compiler, target, -1);
  if (!status)
    LOG(dil_log_of(of->context), DIL_LOG_INFO,
        "kernel '%s' for %s: compiled in %.1f ms", of->plan->table.name, target,
        1e-6 * (double)(dil_trace_now() - begin));
  return status;
}

static dil_status code_cache_find_or_make(const code_request *of,
                                          const code_kind *k,
                                          const char *target,
                                          const void *request, void *made) {
  dil_cache *cache;
  dil_status status = dil_context_cache(of->context, &cache);
  if (status) return status;
  code_bytes key = code_cache_key_of(of, k->module, target);
  if (!code_cache_find(of, k, cache, key, target, made))
    status = code_cache_make(of, k, cache, key, target, request, made);
  free(key.bytes);
  return status;
}

dil_status code_cache_object(const code_request *of, dil_variant variant,
                       cpu_code *code) {
  char target[64];
  cpu_request request = {
      .common = {of->plan}, .isa = of->isa, .variant = variant, .debug = true};
  snprintf(target, sizeof target, "%s %s", of->isa,
           dil_variant_name(variant));
  return code_cache_find_or_make(of, &object_kind, target, &request, code);
}

static void name_target(const gpu_request *r, char target[64]) {
  snprintf(target, 64, "sm_%d%s%s%s%s", r->arch, r->only ? " " : "",
           r->only ? r->only : "", r->full_sequences_only ? " whole" : "",
           r->deferred ? " first" : "");
}

dil_status code_cache_find_codes(const code_request *of,
                                 const gpu_request *request, gpu_codes *codes,
                                 bool *found) {
  char target[64];
  dil_cache *cache;
  *found = false;
  dil_status status = dil_context_cache(of->context, &cache);
  if (status) return status;
  name_target(request, target);
  code_bytes key = code_cache_key_of(of, MODULE_GPU, target);
  *found = code_cache_find(of, &cubin_kind, cache, key, target, codes);
  free(key.bytes);
  return DIL_OK;
}

dil_status code_cache_make_codes(const code_request *of,
                                 const gpu_request *request, gpu_codes *codes) {
  char target[64];
  dil_cache *cache;
  dil_status status = dil_context_cache(of->context, &cache);
  if (status) return status;
  name_target(request, target);
  code_bytes key = code_cache_key_of(of, MODULE_GPU, target);
  status = code_cache_make(of, &cubin_kind, cache, key, target, request, codes);
  free(key.bytes);
  return status;
}

char *code_cache_key(const code_request *of, const gpu_request *request,
                     size_t *size) {
  char target[64];
  name_target(request, target);
  code_bytes key = code_cache_key_of(of, MODULE_GPU, target);
  *size = key.size;
  return key.bytes;
}

void code_cache_list_codes(const code_request *of, const gpu_request *request,
                     char *key, size_t size, double seconds) {
  char target[64];
  dil_cache *cache;
  cubin_cache cubins;
  gpu_codes codes;
  if (dil_context_cache(of->context, &cache)) return;
  name_target(request, target);
  cubin_cache_open(&cubins, of->context, true, NULL);
  if (make_codes(request, &cubins.calls, &codes)) return;
  code_cache_put(of, &cubin_kind, cache, (code_bytes){key, size}, target,
                 &codes, cubins.origin, seconds);
  while (codes.count > 0) free(codes.code[--codes.count].cubin);
}

dil_status code_cache_codes(const code_request *of, const gpu_request *request,
                      gpu_codes *codes) {
  char target[64];
  name_target(request, target);
  return code_cache_find_or_make(of, &cubin_kind, target, request, codes);
}

dil_status code_cache_helper(const code_request *of, helper_kernel which,
                             dil_cuda_code *code) {
  char target[64];
  int32_t arch = dil_context_arch(of->context);
  helper_request request = {of->plan, arch, which};
  gpu_codes codes = {0};
  snprintf(target, sizeof target, "sm_%d, its %s", arch,
           which == HELPER_PEAK ? "peak" : "rows");
  dil_status status =
      code_cache_find_or_make(of, &helper_kind, target, &request, &codes);
  *code = codes.code[0];
  return status;
}
