/* code_cache.c - the code cache: compiled code that outlives the process.
 *
 * In: a compilation with its plan. Out: machine code. The key holds all that
 * the code depends on: the plan's canonical text, knobs, target, the headers
 * that dil's plug-ins share, and a hash of the back end's file, which holds the
 * templates. Layout and comments of the .dil file are not in it, so a debugger
 * shows its lines as they were when the code was made. The compiler library is
 * a dependency of the value: the cache drops the value when that file changes.
 * A value for a GPU is a list of codes. Codes on no list may be on the shelf
 * (cubin_cache.c), by their source. */
#include "code_cache.h"
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

enum { KEEP_VERSION = 3 }; /* of the value formats below; part of the key */

/* ---- which compiler ------------------------------------------------------ */

static const char *const module_files[] = {"dil-cpu.so", "dil-gpu.so"};

/* Hashed once a process, since a loaded back end stays loaded. */
static struct {
  XXH128_hash_t hash;
  bool looked, known;
} modules[KEEP_MODULES];
static pthread_mutex_t modules_lock = PTHREAD_MUTEX_INITIALIZER;

/* Hashes a file's bytes; false when it cannot be read. */
static bool hash_file(const char *path, XXH128_hash_t *hash) {
  struct stat found;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  bool good = file >= 0 && !fstat(file, &found) && found.st_size > 0;
  size_t size = good ? (size_t)found.st_size : 0;
  void *bytes = good ? mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE,
                            file, 0)
                     : MAP_FAILED;
  if (file >= 0) close(file);
  if (bytes == MAP_FAILED) return false;
  *hash = XXH3_128bits(bytes, size);
  munmap(bytes, size);
  return true;
}

static bool hash_module(keep_module m, XXH128_hash_t *hash) {
  char path[DIL_PATH_MAX];
  pthread_mutex_lock(&modules_lock);
  if (!modules[m].looked)
    modules[m].known = !dil_module_find(module_files[m], path) &&
                       hash_file(path, &modules[m].hash);
  modules[m].looked = true;
  *hash = modules[m].hash;
  bool known = modules[m].known;
  pthread_mutex_unlock(&modules_lock);
  return known;
}

/* ---- keys ---------------------------------------------------------------- */

typedef struct text {
  char *bytes;   /* malloced; NULL: no key or value, or no memory */
  size_t size;
} text;

FILE *keep_open_key(keep_module m, char **bytes, size_t *size) {
  XXH128_hash_t hash;
  FILE *out = hash_module(m, &hash) ? open_memstream(bytes, size) : NULL;
  if (!out) return NULL;
  fprintf(out, "dil " DIL_VERSION " %x keep %d\n%s %016llx%016llx\n",
          (unsigned)DIL_INTERFACE, KEEP_VERSION, module_files[m],
          (unsigned long long)hash.high64, (unsigned long long)hash.low64);
  const char *wishes = secure_getenv(NVRTC_WISHES);
  if (m == KEEP_GPU && wishes && *wishes) fprintf(out, "wishes %s\n", wishes);
  return out;
}

/* `target`: "avx512 tiles" or "sm_90 general". */
static text key_of(const compilation *c, keep_module m, const char *target) {
  text key = {0};
  char turned[KNOBS_TEXT];
  FILE *out = keep_open_key(m, &key.bytes, &key.size);
  if (!out) return (text){0};
  fprintf(out, "target %s\nknobs %s\nforce %u\n", target,
          knobs_text(&c->knobs, turned), c->plan->force);
  bool whole = plan_write(c->plan, out);
  if (fclose(out) == 0 && whole) return key;
  free(key.bytes);
  return (text){0};
}

/* ---- the processor ------------------------------------------------------- */

/* The head of a cached object; its bytes follow. */
typedef struct object_facts {
  int32_t lanes, pack, key_block, tile_keys;
} object_facts;

static text write_object(const void *made) {
  const backend_code *code = made;
  object_facts facts = {code->code.lanes, code->code.pack,
                        code->code.key_block, code->code.tile_keys};
  text kept = {malloc(sizeof facts + code->size), sizeof facts + code->size};
  if (!kept.bytes) return (text){0};
  memcpy(kept.bytes, &facts, sizeof facts);
  memcpy(kept.bytes + sizeof facts, code->bytes, code->size);
  return kept;
}

static bool read_object(cache_value *found, void *made) {
  backend_code *code = made;
  object_facts facts;
  if (found->size < sizeof facts) {
    free(found->bytes);
    return false;
  }
  memcpy(&facts, found->bytes, sizeof facts);
  *code = (backend_code){.bytes = found->bytes,
                         .size = found->size - sizeof facts,
                         .code = {.lanes = facts.lanes,
                                  .pack = facts.pack,
                                  .key_block = facts.key_block,
                                  .tile_keys = facts.tile_keys}};
  memmove(code->bytes, (char *)code->bytes + sizeof facts, code->size);
  return true;
}

static dil_status open_cpu(const char **origin) {
  const backend *cpu;
  dil_status status = driver_backend(&cpu);
  if (!status) *origin = cpu->origin();
  return status;
}

static dil_status make_object(const void *request, const gpu_shelf *shelf,
                              void *made) {
  const backend *cpu;
  (void)shelf;
  dil_status status = driver_backend(&cpu);
  return status ? status : cpu->compile(request, made);
}

/* ---- GPUs ---------------------------------------------------------------- */

enum { FAMILY_SIZE = 32 };

/* A cached list holds for each code this head, then the cubin. Its size is 0
 * where deferred.c compiles it after the kernel is made. */
typedef struct code_head {
  dil_cuda_code about; /* cubin and family NULL */
  int32_t member;
  char family[FAMILY_SIZE];
} code_head;

static text write_codes(const void *made) {
  const gpu_codes *codes = made;
  text kept = {0};
  FILE *out = open_memstream(&kept.bytes, &kept.size);
  if (!out) return kept;
  for (int32_t i = 0; i < codes->count; i++) {
    code_head head;
    memset(&head, 0, sizeof head);
    head.about = codes->code[i];
    head.about.cubin = NULL;
    head.about.family = NULL;
    head.member = codes->member[i];
    snprintf(head.family, sizeof head.family, "%s", codes->code[i].family);
    fwrite(&head, sizeof head, 1, out);
    if (head.about.size) fwrite(codes->code[i].cubin, 1, head.about.size, out);
  }
  bool whole = !ferror(out);
  if (fclose(out) == 0 && whole) return kept;
  free(kept.bytes);
  return (text){0};
}

/* code->cubin and code->family share one malloced block, the name last. */
static bool read_code(const char **at, const char *end, dil_cuda_code *code,
                      int32_t *member) {
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
  *member = head.member;
  code->cubin = block;
  code->family = block + size;
  return true;
}

static bool read_codes(cache_value *found, void *made) {
  gpu_codes *codes = made;
  const char *at = found->bytes, *end = at + found->size;
  codes->count = 0;
  bool good = true;
  while (good && at < end && codes->count < GPU_CODES_MAX) {
    good = read_code(&at, end, &codes->code[codes->count],
                     &codes->member[codes->count]);
    codes->count += good;
  }
  free(found->bytes);
  if (good && at == end && codes->count) return true;
  while (codes->count > 0) free(codes->code[--codes->count].cubin);
  return false;
}

static dil_status open_gpu(const char **origin) {
  const gpu_backend *gpu;
  dil_status status = gpu_compiler_open(&gpu);
  if (!status) *origin = gpu->origin();
  return status;
}

static dil_status make_codes(const void *request, const gpu_shelf *shelf,
                             void *made) {
  gpu_request own = *(const gpu_request *)request;
  const gpu_backend *gpu;
  own.shelf = shelf;
  dil_status status = gpu_compiler_open(&gpu);
  return status ? status : gpu->compile(&own, made);
}

typedef struct helper_request {
  const plan *plan;
  int32_t arch;
  keep_helper which;
} helper_request;

static dil_status make_helper(const void *request, const gpu_shelf *shelf,
                              void *made) {
  const helper_request *r = request;
  gpu_codes *codes = made;
  const gpu_backend *gpu;
  dil_status status = gpu_compiler_open(&gpu);
  if (status) return status;
  codes->count = 1;
  return r->which == KEEP_PEAK
             ? gpu->peak(r->plan, r->arch, shelf, &codes->code[0])
             : gpu->rows(r->arch, shelf, &codes->code[0]);
}

/* ---- find or compile, for both ------------------------------------------- */

/* A kind of code. `read` and `write` turn code from and into bytes; `read`
 * frees found->bytes, or hands them to the code that it makes. */
typedef struct kind {
  keep_module module;
  const char *compiler; /* for the trace */
  metric compiles, opening, seconds;
  bool (*read)(cache_value *found, void *made);
  text (*write)(const void *made);
  /* Loads the compiler, once a process; *origin: its file's path, or NULL when
   * the path is unknown. */
  dil_status (*open)(const char **origin);
  dil_status (*make)(const void *request, const gpu_shelf *shelf, void *made);
} kind;

static const kind objects = {.module = KEEP_CPU,
                             .compiler = "llvm",
                             .compiles = METRIC_compiles_cpu,
                             .opening = METRIC_open_cpu,
                             .seconds = METRIC_compile_cpu,
                             .read = read_object,
                             .write = write_object,
                             .open = open_cpu,
                             .make = make_object};
#define CUBINS(how)                         \
  {.module = KEEP_GPU,                      \
   .compiler = "nvrtc",                     \
   .compiles = METRIC_compiles_cuda,        \
   .opening = METRIC_open_cuda,             \
   .seconds = METRIC_compile_cuda,          \
   .read = read_codes,                      \
   .write = write_codes,                    \
   .open = open_gpu,                        \
   .make = how}
static const kind cubins = CUBINS(make_codes), helpers = CUBINS(make_helper);

/* Does not resolve symbolic links, since a newer compiler may lie behind one
 * later. */
const char *keep_whole_path(const char *path, char room[PATH_MAX]) {
  char here[PATH_MAX] = "";
  bool rooted = *path == '/';
  if (!rooted && !getcwd(here, sizeof here)) return NULL;
  int length =
      snprintf(room, PATH_MAX, "%s%s%s", here, rooted ? "" : "/", path);
  return length > 0 && length < PATH_MAX ? room : NULL;
}

/* Caches nothing of a compiler whose path is unknown, since that compiler could
 * change without notice. */
static void put_made(const compilation *c, const kind *k, dil_cache *cache,
                     text key, const char *target, const void *made,
                     const char *origin, double seconds) {
  char label[160], room[PATH_MAX];
  origin = origin && *origin ? keep_whole_path(origin, room) : NULL;
  text kept = key.bytes && origin ? k->write(made) : (text){0};
  snprintf(label, sizeof label, "%s %s", c->plan->table.name, target);
  if (kept.bytes)
    dil_cache_put(cache, key.bytes, key.size,
                  &(cache_value){.bytes = kept.bytes,
                                 .size = kept.size,
                                 .seconds = seconds,
                                 .label = label,
                                 .witness = {origin}});
  free(kept.bytes);
}

/* Compiles what is not on the shelf, and caches the result unless there is no
 * key. */
static dil_status make_and_put(const compilation *c, const kind *k,
                               dil_cache *cache, text key, const char *target,
                               const void *request, keep_shelf *shelf,
                               void *made) {
  const char *origin = NULL;
  int64_t begin = dil_trace_now();
  dil_status status = k->open(&origin);
  int64_t opened = dil_trace_now();
  if (tracing()) dil_trace_add(begin, "compile", "open", k->compiler, -1);
  bool empty = !shelf->origin[0]; /* find_shelved has found nothing */
  keep_shelf_open(shelf, c, false, origin);
  shelf->calls.empty = empty;
  if (!status) status = k->make(request, origin ? &shelf->calls : NULL, made);
  if (status) return status;
  double opening = 1e-9 * (double)(opened - begin);
  double seconds = 1e-9 * (double)(dil_trace_now() - opened);
  dil_context_compiled(c->context, opening, seconds);
  metric_add(k->compiles, 1);
  metric_add_seconds(k->opening, opening);
  metric_add_seconds(k->seconds, seconds);
  put_made(c, k, cache, key, target, made, origin, seconds);
  return DIL_OK;
}

static void note_found(const compilation *c, const char *target,
                       int64_t begin) {
  if (tracing()) dil_trace_add(begin, "compile", "cache", target, -1);
  LOG(dil_log_of(c->context), DIL_LOG_INFO,
      "kernel '%s' for %s: from the cache in %.1f ms", c->plan->table.name,
      target, 1e-6 * (double)(dil_trace_now() - begin));
}

/* Reads the value of a key; false: there is none. */
static bool find_made(const compilation *c, const kind *k, dil_cache *cache,
                      text key, const char *target, void *made) {
  cache_value found;
  int64_t begin = dil_trace_now();
  bool hit = key.bytes && dil_cache_get(cache, key.bytes, key.size, &found) &&
             k->read(&found, made);
  if (hit) note_found(c, target, begin);
  return hit;
}

/* Makes GPU code whose cubins are all on the shelf, perhaps from other plans,
 * without loading the compiler. It caches no list, since the next process finds
 * the cubins again in less time than writing a list takes. */
static bool find_shelved(const compilation *c, const kind *k,
                         const char *target, const void *request,
                         keep_shelf *shelf, void *made) {
  int64_t begin = dil_trace_now();
  keep_shelf_open(shelf, c, true, NULL);
  if (k->module != KEEP_GPU || k->make(request, &shelf->calls, made))
    return false;
  note_found(c, target, begin);
  return true;
}

static dil_status make_new(const compilation *c, const kind *k,
                           dil_cache *cache, text key, const char *target,
                           const void *request, void *made) {
  keep_shelf shelf;
  int64_t begin = dil_trace_now();
  if (find_shelved(c, k, target, request, &shelf, made)) return DIL_OK;
  dil_status status =
      make_and_put(c, k, cache, key, target, request, &shelf, made);
  if (tracing()) dil_trace_add(begin, "compile", k->compiler, target, -1);
  if (!status)
    LOG(dil_log_of(c->context), DIL_LOG_INFO,
        "kernel '%s' for %s: compiled in %.1f ms", c->plan->table.name, target,
        1e-6 * (double)(dil_trace_now() - begin));
  return status;
}

static dil_status find_or_make(const compilation *c, const kind *k,
                               const char *target, const void *request,
                               void *made) {
  dil_cache *cache;
  dil_status status = dil_context_cache(c->context, &cache);
  if (status) return status;
  text key = key_of(c, k->module, target);
  if (!find_made(c, k, cache, key, target, made))
    status = make_new(c, k, cache, key, target, request, made);
  free(key.bytes);
  return status;
}

dil_status keep_object(const compilation *c, dil_variant variant,
                       backend_code *code) {
  char target[64];
  backend_request request = {
      .plan = c->plan, .isa = c->isa, .variant = variant, .debug = true};
  snprintf(target, sizeof target, "%s %s", c->isa,
           variant == DIL_TILES ? "tiles" : "rows");
  return find_or_make(c, &objects, target, &request, code);
}

static void name_target(const gpu_request *r, char target[64]) {
  snprintf(target, 64, "sm_%d%s%s%s%s", r->arch, r->only ? " " : "",
           r->only ? r->only : "", r->whole ? " whole" : "",
           r->apart ? " first" : "");
}

dil_status keep_find_codes(const compilation *c, const gpu_request *request,
                           gpu_codes *codes, bool *found) {
  char target[64];
  dil_cache *cache;
  *found = false;
  dil_status status = dil_context_cache(c->context, &cache);
  if (status) return status;
  name_target(request, target);
  text key = key_of(c, KEEP_GPU, target);
  *found = find_made(c, &cubins, cache, key, target, codes);
  free(key.bytes);
  return DIL_OK;
}

dil_status keep_make_codes(const compilation *c, const gpu_request *request,
                           gpu_codes *codes) {
  char target[64];
  dil_cache *cache;
  dil_status status = dil_context_cache(c->context, &cache);
  if (status) return status;
  name_target(request, target);
  text key = key_of(c, KEEP_GPU, target);
  status = make_new(c, &cubins, cache, key, target, request, codes);
  free(key.bytes);
  return status;
}

char *keep_key(const compilation *c, const gpu_request *request, size_t *size) {
  char target[64];
  name_target(request, target);
  text key = key_of(c, KEEP_GPU, target);
  *size = key.size;
  return key.bytes;
}

void keep_list_codes(const compilation *c, const gpu_request *request,
                     char *key, size_t size, double seconds) {
  char target[64];
  dil_cache *cache;
  keep_shelf shelf;
  gpu_codes codes;
  if (dil_context_cache(c->context, &cache)) return;
  name_target(request, target);
  keep_shelf_open(&shelf, c, true, NULL);
  if (make_codes(request, &shelf.calls, &codes)) return;
  put_made(c, &cubins, cache, (text){key, size}, target, &codes, shelf.origin,
           seconds);
  while (codes.count > 0) free(codes.code[--codes.count].cubin);
}

dil_status keep_codes(const compilation *c, const gpu_request *request,
                      gpu_codes *codes) {
  char target[64];
  name_target(request, target);
  return find_or_make(c, &cubins, target, request, codes);
}

dil_status keep_beside(const compilation *c, int32_t arch, keep_helper which,
                       dil_cuda_code *code) {
  char target[64];
  helper_request request = {c->plan, arch, which};
  gpu_codes codes = {0};
  snprintf(target, sizeof target, "sm_%d, its %s", arch,
           which == KEEP_PEAK ? "peak" : "rows");
  dil_status status = find_or_make(c, &helpers, target, &request, &codes);
  *code = codes.code[0];
  return status;
}
