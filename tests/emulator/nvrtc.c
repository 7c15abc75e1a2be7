/* nvrtc.c - an NVRTC whose cubins run on the host: libnvrtc.so.13 for the
 * emulated driver. In: CUDA C and its headers. Out: a shared object, made by
 * the host's C++ compiler from what translate.c writes, and kept by what it was
 * made of. EMULATED_CXX names the compiler and its first options,
 * EMULATED_CACHE the folder; EMULATED_KEEP=1 leaves the C++ there;
 * EMULATED_CHECK=1 has every access told to check.c. */
#include "translate.h"
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COMPILATION_FAILED = 6 };

typedef struct emulated_job {
  char *source;
  int count;
  char **text, **name; /* of headers */
  void *cubin;
  size_t size;
  char *log;
} emulated_job;

#define NVRTC(result, name, ...)                                             \
  __attribute__((visibility("default"))) result name(__VA_ARGS__);           \
  result name(__VA_ARGS__)

NVRTC(int, nvrtcVersion, int *major, int *minor) {
  return *major = 13, *minor = 0, 0;
}
NVRTC(const char *, nvrtcGetErrorString, int code) {
  return code ? "the host's compiler refuses it" : "no error";
}

static void *must(void *memory) {
  if (!memory) abort();
  return memory;
}

NVRTC(int, nvrtcCreateProgram, emulated_job **made, const char *source,
      const char *name, int count, const char *const *text,
      const char *const *names) {
  emulated_job *j = must(calloc(1, sizeof *j));
  (void)name;
  j->source = must(strdup(source));
  j->count = count;
  j->text = must(calloc((size_t)count + 1, sizeof *j->text));
  j->name = must(calloc((size_t)count + 1, sizeof *j->name));
  for (int i = 0; i < count; i++) {
    j->text[i] = must(strdup(text[i]));
    j->name[i] = must(strdup(names[i]));
  }
  return *made = j, 0;
}

NVRTC(int, nvrtcDestroyProgram, emulated_job **made) {
  emulated_job *j = *made;
  for (int i = 0; i < j->count; i++) {
    free(j->text[i]);
    free(j->name[i]);
  }
  free(j->text);
  free(j->name);
  free(j->source);
  free(j->cubin);
  free(j->log);
  free(j);
  return *made = NULL, 0;
}

/* ---- files ------------------------------------------------------------------- */

/* The folder of this library: chip.h is there, and the driver. Here and below:
 * kernels are compiled by several threads at once. */
static const char *home(void) {
  static _Thread_local char path[PATH_MAX];
  Dl_info info;
  if (path[0] || !dladdr(must((void *)(uintptr_t)home), &info)) return path;
  if (!realpath(info.dli_fname, path)) abort();
  *strrchr(path, '/') = 0;
  return path;
}

static const char *cache(void) {
  static _Thread_local char path[PATH_MAX + 16];
  const char *wish = getenv("EMULATED_CACHE");
  if (path[0]) return path;
  if (wish && *wish) snprintf(path, sizeof path, "%s", wish);
  else snprintf(path, sizeof path, "%s/cache", home());
  mkdir(path, 0777);
  return path;
}

/* The whole of a file, with a 0 behind it; NULL: it cannot be read. */
static char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "r");
  struct stat about;
  if (!file) return NULL;
  if (fstat(fileno(file), &about)) abort();
  char *text = must(malloc((size_t)about.st_size + 1));
  *size = fread(text, 1, (size_t)about.st_size, file);
  text[*size] = 0;
  fclose(file);
  return text;
}

static void write_file(const char *folder, const char *name,
                       const char *text) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = must(fopen(path, "w"));
  if (fputs(text, file) < 0 || fclose(file)) abort();
}

/* The same where the name may have folders. */
static void write_header(const char *folder, const char *name,
                         const char *text) {
  char path[2 * PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/'));
       *slash++ = '/') {
    *slash = 0;
    if (mkdir(path, 0777) && errno != EEXIST) abort();
  }
  write_file(folder, name, text);
}

static uint64_t hash(uint64_t h, const char *text) {
  for (; *text; text++)
    h = (h ^ (unsigned char)*text) * 0x100000001b3ull;
  return h * 0x100000001b3ull;
}

/* ---- compiling ----------------------------------------------------------------- */

static const char *const ours[] = {"chip.h", "chip_calls.h", "chip_hopper.h"};

/* What can change the result: the source, the compiler's line, and this. */
static uint64_t key_of(const emulated_job *j, const char *compiler) {
  uint64_t h = hash(hash(0xcbf29ce484222325ull, j->source), compiler);
  char path[PATH_MAX];
  size_t size;
  for (int i = 0; i < j->count; i++) h = hash(hash(h, j->name[i]), j->text[i]);
  for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
    snprintf(path, sizeof path, "%s/%s", home(), ours[i]);
    char *text = must(read_file(path, &size));
    h = hash(h, text);
    free(text);
  }
  return hash(h, __DATE__ __TIME__);
}

static bool run(emulated_job *j, const char *folder, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool run(emulated_job *j, const char *folder, const char *format, ...) {
  char command[4 * PATH_MAX], line[3 * PATH_MAX], log[PATH_MAX];
  size_t size;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  snprintf(command, sizeof command, "cd '%s' && { %s; } >log 2>&1", folder,
           line);
  if (!system(command)) return true;
  snprintf(log, sizeof log, "%s/log", folder);
  free(j->log);
  j->log = read_file(log, &size);
  return false;
}

static bool translate_file(emulated_job *j, const char *folder) {
  char path[PATH_MAX + 16], problem[200];
  size_t size;
  snprintf(path, sizeof path, "%s/kernel.ii", folder);
  char *text = must(read_file(path, &size));
  snprintf(path, sizeof path, "%s/kernel.cc", folder);
  FILE *out = must(fopen(path, "w"));
  bool good = translate(text, out, problem, sizeof problem);
  fclose(out);
  free(text);
  if (good) return true;
  free(j->log);
  j->log = must(strdup(problem));
  return false;
}

/* One step after the other, in a folder of its own; `made` is what it makes. */
static bool build(emulated_job *j, const char *compiler, const char *made) {
  char folder[PATH_MAX];
  snprintf(folder, sizeof folder, "%s/work-XXXXXX", cache());
  if (!mkdtemp(folder)) abort();
  for (int i = 0; i < j->count; i++)
    write_header(folder, j->name[i], j->text[i]);
  write_file(folder, "kernel.cu", j->source);
  bool good =
      run(j, folder, "%s -E -P -x c++ -I. -include '%s/chip.h' kernel.cu "
          "-o kernel.ii", compiler, home()) &&
      translate_file(j, folder) &&
      run(j, folder, "%s -c -x c++ kernel.cc -o kernel.o", compiler) &&
      run(j, folder, "c++ -shared kernel.o -o kernel.so -L'%s' "
          "-l:libcuda.so.1 -lm && mv kernel.so '%s'", home(), made);
  if (!getenv("EMULATED_KEEP")) {
    char command[PATH_MAX + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command)) abort();
  }
  return good;
}

NVRTC(int, nvrtcCompileProgram, emulated_job *j, int count,
      const char *const *options) {
  const char *wish = getenv("EMULATED_CXX");
  char compiler[1000], path[2 * PATH_MAX];
  int size = snprintf(
      compiler, sizeof compiler,
      "%s -std=c++17 -w -fPIC -fvisibility=hidden -fno-strict-aliasing "
      "-fno-exceptions -fno-rtti "
      "-fwrapv -ftrivial-auto-var-init=pattern -ffp-contract=off "
      "-mfma -mf16c -mavx2 %s",
      wish && *wish ? wish : "c++ -Og",
      getenv("EMULATED_CHECK")
          ? "-fsanitize=thread --param tsan-instrument-func-entry-exit=0"
          : "");
  for (int i = 0; i < count; i++)
    if (!strncmp(options[i], "-D", 2) && size < (int)sizeof compiler)
      size += snprintf(compiler + size, sizeof compiler - (size_t)size, " %s",
                       options[i]);
  snprintf(path, sizeof path, "%s/%016llx.so", cache(),
           (unsigned long long)key_of(j, compiler));
  if (access(path, R_OK) && !build(j, compiler, path))
    return COMPILATION_FAILED;
  j->cubin = read_file(path, &j->size);
  return j->cubin ? 0 : COMPILATION_FAILED;
}

/* ---- what became of it ------------------------------------------------------------ */

static const char *log_of(const emulated_job *j) {
  return j->log ? j->log : "";
}

NVRTC(int, nvrtcGetProgramLogSize, const emulated_job *j, size_t *size) {
  return *size = strlen(log_of(j)) + 1, 0;
}
NVRTC(int, nvrtcGetProgramLog, const emulated_job *j, char *log) {
  return strcpy(log, log_of(j)), 0;
}
NVRTC(int, nvrtcGetCUBINSize, const emulated_job *j, size_t *size) {
  return *size = j->size, 0;
}
NVRTC(int, nvrtcGetCUBIN, const emulated_job *j, void *cubin) {
  return memcpy(cubin, j->cubin, j->size), 0;
}
