/* nvrtc.c - an NVRTC that only counts: libnvrtc.so.13 for tests of what is
 * compiled, and how often, and of what is launched (gpu_estimate.sh). In: a source
 * and options. Out: a "cubin" for a real chip, with their hash and without code; the
 * emulated driver takes it, and computes nothing of it. Sources with the words of
 * COUNTING_REFUSES are reported as what the gate refuses. */
#include <elf.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CUBIN = sizeof(Elf64_Ehdr) + 17 };

typedef struct counted_job {
  char *source;
  char cubin[CUBIN];
  const char *log;
} counted_job;

#define SHOWN(result, name, ...)                                              \
  __attribute__((visibility("default"))) result name(__VA_ARGS__);            \
  result name(__VA_ARGS__)

static atomic_int compiles;
SHOWN(int, counting_compiles, void) { return atomic_load(&compiles); }

SHOWN(int, nvrtcVersion, int *major, int *minor) {
  return *major = 13, *minor = 0, 0;
}
SHOWN(const char *, nvrtcGetErrorString, int code) {
  return code ? "no" : "no error";
}

SHOWN(int, nvrtcCreateProgram, counted_job **made, const char *source,
      const char *name, int count, const char *const *text,
      const char *const *names) {
  (void)name, (void)count, (void)text, (void)names;
  *made = calloc(1, sizeof **made);
  if (!*made || !((*made)->source = strdup(source))) abort();
  return 0;
}
SHOWN(int, nvrtcDestroyProgram, counted_job **made) {
  free((*made)->source);
  free(*made);
  return *made = NULL, 0;
}

static uint64_t hash(uint64_t h, const char *text) {
  for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3ull;
  return h;
}

SHOWN(int, nvrtcCompileProgram, counted_job *j, int count,
      const char *const *options) {
  const char *words = getenv("COUNTING_REFUSES");
  uint64_t h = hash(0xcbf29ce484222325ull, j->source);
  for (int i = 0; i < count; i++) h = hash(h, options[i]);
  const Elf64_Ehdr head = {.e_ident = ELFMAG, .e_machine = EM_CUDA};
  memcpy(j->cubin, &head, sizeof head);
  snprintf(j->cubin + sizeof head, CUBIN - sizeof head, "%016llx",
           (unsigned long long)h);
  j->log = words && strstr(j->source, words) ? "ptxas info : (C7504)" : "";
  atomic_fetch_add(&compiles, 1);
  return 0;
}

SHOWN(int, nvrtcGetProgramLogSize, const counted_job *j, size_t *size) {
  return *size = strlen(j->log) + 1, 0;
}
SHOWN(int, nvrtcGetProgramLog, const counted_job *j, char *log) {
  return strcpy(log, j->log), 0;
}
SHOWN(int, nvrtcGetCUBINSize, const counted_job *j, size_t *size) {
  return (void)j, *size = CUBIN, 0;
}
SHOWN(int, nvrtcGetCUBIN, const counted_job *j, void *cubin) {
  return memcpy(cubin, j->cubin, CUBIN), 0;
}
