/* code_cache_key.c - what machine code follows from, as the key of the cache. In:
 * a plan, its knobs and target. Out: a text that begins with the version of this
 * program and a hash of the back end's file. */
#include "code_cache.h"
#include "interface.h"
#include "runtime/base/module.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { CODE_CACHE_VERSION = 3 }; /* of the formats of keys and values */

/* ---- which compiler ------------------------------------------------------ */

static const char *const module_files[] = {"dil-cpu.so", "dil-gpu.so"};

/* Hashed once a process, since a loaded back end stays loaded. */
static struct {
  XXH128_hash_t hash;
  bool looked, known;
} modules[MODULE_COUNT];
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

static bool hash_module(code_module m, XXH128_hash_t *hash) {
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

FILE *code_cache_open_key(code_module m, char **bytes, size_t *size) {
  XXH128_hash_t hash;
  FILE *out = hash_module(m, &hash) ? open_memstream(bytes, size) : NULL;
  if (!out) return NULL;
  fprintf(out, "dil " DIL_VERSION " %x keep %d\n%s %016llx%016llx\n",
          (unsigned)DIL_INTERFACE, CODE_CACHE_VERSION, module_files[m],
          (unsigned long long)hash.high64, (unsigned long long)hash.low64);
  const char *wishes = secure_getenv(NVRTC_WISHES);
  if (m == MODULE_GPU && wishes && *wishes) fprintf(out, "wishes %s\n", wishes);
  return out;
}

code_bytes code_cache_key_of(const code_request *of, code_module m,
                             const char *target) {
  code_bytes key = {0};
  char text[KNOBS_TEXT];
  FILE *out = code_cache_open_key(m, &key.bytes, &key.size);
  if (!out) return (code_bytes){0};
  fprintf(out, "target %s\nknobs %s\nforce %u\n", target,
          knobs_text(&of->knobs, text), of->plan->force);
  bool whole = plan_write(of->plan, out);
  if (fclose(out) == 0 && whole) return key;
  free(key.bytes);
  return (code_bytes){0};
}
