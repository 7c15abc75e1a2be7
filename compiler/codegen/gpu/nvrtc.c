/* nvrtc.c - compiles one CUDA C source to one cubin, through the gate.
 *
 * NVRTC is opened once, at run time; a failure is remembered with its reason.
 * The gate reads the report of ptxas. It refuses a kernel that spills
 * registers, uses a stack, serialises its wgmma or has setmaxnreg ignored. Each
 * of these costs more than any choice of tiles gains. */
#include "gpu.h"
#include "compiler/codegen/gpu/emit/templates.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/cuda/chips.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct nvrtc_job *job_handle;

/* The functions of NVRTC in use: name and arguments. */
#define NVRTC_FUNCTIONS(X)                                                     \
  X(Version, (int *major, int *minor))                                         \
  X(CreateProgram, (job_handle *, const char *source, const char *name,        \
                    int headers, const char *const *header,                    \
                    const char *const *header_name))                           \
  X(CompileProgram, (job_handle, int count, const char *const *option))        \
  X(GetProgramLogSize, (job_handle, size_t *))                                 \
  X(GetProgramLog, (job_handle, char *))                                       \
  X(GetCUBINSize, (job_handle, size_t *))                                      \
  X(GetCUBIN, (job_handle, char *))                                            \
  X(DestroyProgram, (job_handle *))

static struct {
#define X(name, arguments) int (*name) arguments;
  NVRTC_FUNCTIONS(X)
#undef X
  const char *(*GetErrorString)(int);
  /* NULL: this NVRTC is too old to cancel a compilation. */
  int (*SetFlowCallback)(job_handle, int (*ask)(void *, void *), void *);
  char failure[256], version[32];
  bool has_minimal; /* has --minimal, which skips headers of host code */
} nvrtc;
static pthread_once_t nvrtc_once = PTHREAD_ONCE_INIT;

/* ---- opening ------------------------------------------------------------- */

static void *nvrtc_open_library(void) {
  static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library) return library;
  }
  snprintf(nvrtc.failure, sizeof nvrtc.failure,
           "neither libnvrtc.so.13 nor libnvrtc.so.12 can be opened: %s",
           dlerror());
  return NULL;
}

static bool nvrtc_find(void *library, const char *name, void *address) {
  void *symbol = dlsym(library, name);
  if (!symbol)
    snprintf(nvrtc.failure, sizeof nvrtc.failure, "NVRTC has no %s", name);
  memcpy(address, &symbol, sizeof symbol);
  return symbol != NULL;
}

static void nvrtc_open(void) {
  void *library = nvrtc_open_library();
  bool good = library != NULL;
#define X(name, arguments)                                                     \
  good = good && nvrtc_find(library, "nvrtc" #name, &nvrtc.name);
  NVRTC_FUNCTIONS(X)
#undef X
  good =
      good && nvrtc_find(library, "nvrtcGetErrorString", &nvrtc.GetErrorString);
  void *flow = good ? dlsym(library, "nvrtcSetFlowCallback") : NULL;
  memcpy(&nvrtc.SetFlowCallback, &flow, sizeof flow);
  int major = 0, minor = 0;
  if (good && nvrtc.Version(&major, &minor) == 0)
    snprintf(nvrtc.version, sizeof nvrtc.version, "NVRTC %d.%d", major, minor);
  nvrtc.has_minimal = major > 12 || (major == 12 && minor >= 4);
}

static dil_status nvrtc_ready(void) {
  pthread_once(&nvrtc_once, nvrtc_open);
  if (!nvrtc.failure[0]) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "no CUDA compiler: %s", nvrtc.failure);
}

const char *nvrtc_version(void) {
  return nvrtc_ready() ? NULL : nvrtc.version;
}

const char *nvrtc_origin(void) {
  Dl_info info;
  bool found = !nvrtc_ready() && dladdr((void *)nvrtc.Version, &info);
  return found ? info.dli_fname : NULL;
}

/* ---- the gate ------------------------------------------------------------ */

/* Words in ptxas' report; a number other than 0 before them refuses the
 * kernel. */
static const char *const counted[] = {" bytes stack frame",
                                      " bytes spill stores",
                                      " bytes spill loads"};
/* Advisories of ptxas and their meanings; each refuses the kernel. */
static const struct {
  const char *code, *meaning;
} advisories[] = {
    {"C7504", "setmaxnreg is ignored"},
    {"C7508", "setmaxnreg is ignored"},
    {"C7509", "wgmma is serialised: a call that is not inlined"},
    {"C7510", "wgmma is serialised: a call"},
    {"C7511", "wgmma is serialised: too few registers"},
    {"C7512", "wgmma is serialised: too few registers"},
    {"C7513", "wgmma is serialised: registers still in use"},
    {"C7514", "wgmma is serialised"},
    {"C7515", "wgmma is serialised: sums touched before the wait"},
    {"C7520", "wgmma is serialised: in a divergent path"},
    {"are serialized", "wgmma is serialised"}, /* other versions */
};

/* The number before `word`; 0 if there is none. */
static long number_before(const char *log, const char *word) {
  const char *begin = word;
  while (begin > log && begin[-1] >= '0' && begin[-1] <= '9') begin--;
  return begin == word ? 0 : strtol(begin, NULL, 10);
}

/* Whether a place of the report is about the choice of blocks, which is compiled
 * beside each variant of the kernel and is the same in all of them. */
static bool is_of_choice(const char *log, const char *place) {
  static const char entry[] = "entry function '", choice[] = "dil_choose";
  const char *last = NULL;
  for (const char *at = log; (at = strstr(at, entry)) && at < place;)
    last = at += strlen(entry);
  return last && !strncmp(last, choice, strlen(choice));
}

static dil_status gate_counts(const char *name, const char *log) {
  for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
    for (const char *at = log; (at = strstr(at, counted[i]));
         at += strlen(counted[i])) {
      long bytes = number_before(log, at);
      if (bytes && !is_of_choice(log, at))
        return dil_fail(DIL_UNSUPPORTED, "kernel %s is refused: %ld%s", name,
                        bytes, counted[i]);
    }
  return DIL_OK;
}

static dil_status gate(const dil_cuda_code *code, const char *log) {
  const char *name = code->variant;
  for (size_t i = 0; i < sizeof advisories / sizeof *advisories; i++)
    if (strstr(log, advisories[i].code))
      return dil_fail(DIL_UNSUPPORTED, "kernel %s is refused: %s (%s)", name,
                      advisories[i].meaning, advisories[i].code);
  return code->lenient ? DIL_OK : gate_counts(name, log);
}

/* ---- compiling ----------------------------------------------------------- */

static dil_status nvrtc_failed(const char *what, int code) {
  return dil_fail(DIL_INTERNAL, "NVRTC cannot %s: %s", what,
                  nvrtc.GetErrorString(code));
}

static dil_status nvrtc_create(const source_text *text, const char *name,
                               job_handle *job) {
  const char **headers =
      malloc(2 * (size_t)source_template_count * sizeof *headers);
  if (!headers) return dil_fail(DIL_MEMORY, "no memory for CUDA source");
  const char **names = headers + source_template_count;
  for (int32_t i = 0; i < source_template_count; i++) {
    headers[i] = source_templates[i].text;
    names[i] = source_templates[i].name;
  }
  int code = nvrtc.CreateProgram(job, text->text, name,
                                 source_template_count, headers, names);
  free(headers);
  return code ? nvrtc_failed("take the source", code) : DIL_OK;
}

/* The whole report; malloced. */
static char *nvrtc_log(job_handle job) {
  size_t size = 0;
  if (nvrtc.GetProgramLogSize(job, &size)) return NULL;
  char *log = calloc(1, size + 1);
  if (log && size && nvrtc.GetProgramLog(job, log)) log[0] = 0;
  return log;
}

static dil_status nvrtc_take(job_handle job, gpu_made *made) {
  made->log = nvrtc_log(job);
  if (!made->log) return nvrtc_failed("give its report", 0);
  int code = nvrtc.GetCUBINSize(job, &made->size);
  if (code) return nvrtc_failed("make a cubin", code);
  made->cubin = malloc(made->size);
  if (!made->cubin) return dil_fail(DIL_MEMORY, "no memory for a cubin");
  code = nvrtc.GetCUBIN(job, made->cubin);
  return code ? nvrtc_failed("give its cubin", code) : DIL_OK;
}

/* Options after the target; the last only if NVRTC knows it. */
static const char *const options[] = {"--std=c++17", "-default-device",
                                      "--ptxas-options=-v", "--minimal"};
enum { OPTIONS = sizeof options / sizeof *options };

/* Compute capability 9.0 is always sm_90a: see chips.def. */
static void nvrtc_target(int32_t arch, char target[48]) {
  snprintf(target, 48, "--gpu-architecture=sm_%d%s", arch,
           cuda_chip_suffix(arch));
}

/* Further options, from DIL_NVRTC_OPTIONS, for profilers and checkers. They are
 * part of the cache's keys. */
typedef struct nvrtc_options {
  char text[1000];
  const char *word[20];
  int count;
} nvrtc_options;

static dil_status nvrtc_read_options(nvrtc_options *w) {
  const int most = sizeof w->word / sizeof *w->word;
  const char *given = secure_getenv(NVRTC_WISHES);
  char *rest = w->text;
  int size = snprintf(w->text, sizeof w->text, "%s", given ? given : "");
  w->count = 0;
  for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL; w->count++)
    if (w->count < most) w->word[w->count] = word;
  if (size < (int)sizeof w->text && w->count <= most) return DIL_OK;
  return dil_fail(DIL_USAGE, NVRTC_WISHES " has %d bytes and %d words, more "
                  "than %zu or %d", size, w->count, sizeof w->text - 1, most);
}

static dil_status nvrtc_refused(job_handle job, int32_t arch, int code) {
  const char *given = secure_getenv(NVRTC_WISHES);
  char *log = nvrtc_log(job);
  dil_status status =
      dil_fail(code == 5 ? DIL_ENVIRONMENT : DIL_INTERNAL,
               "NVRTC refuses a kernel for sm_%d%s%s: %s\n%s", arch,
               given && *given ? " with " NVRTC_WISHES "=" : "",
               given ? given : "",
               nvrtc.GetErrorString(code), log ? log : "");
  free(log);
  return status;
}

static dil_status nvrtc_compile_program(job_handle job, int32_t arch) {
  nvrtc_options more;
  char target[48];
  const char *all[1 + sizeof more.word / sizeof *more.word + OPTIONS] = {target};
  dil_status status = nvrtc_read_options(&more);
  if (status) return status;
  int count = 1 + OPTIONS - !nvrtc.has_minimal;
  nvrtc_target(arch, target);
  memcpy(all + 1, options, sizeof options);
  memcpy(all + count, more.word, (size_t)more.count * sizeof *all);
  int code = nvrtc.CompileProgram(job, count + more.count, all);
  return code ? nvrtc_refused(job, arch, code) : DIL_OK;
}

/* NVRTC calls this between its phases; 1 cancels the compilation. */
static int nvrtc_is_stopped(void *stop, void *unused) {
  (void)unused;
  return atomic_load((const atomic_bool *)stop);
}

static dil_status nvrtc_allow_stop(job_handle job, const atomic_bool *stop) {
  if (!stop || !nvrtc.SetFlowCallback) return DIL_OK;
  int code =
      nvrtc.SetFlowCallback(job, nvrtc_is_stopped, (void *)(uintptr_t)stop);
  return code ? nvrtc_failed("be made to stop", code) : DIL_OK;
}

/* Compiles a source. On failure `made` may be partly filled. */
static dil_status nvrtc_make(const source_text *text, const dil_cuda_code *code,
                             const atomic_bool *stop, gpu_made *made) {
  job_handle job = NULL;
  dil_status status = nvrtc_ready();
  if (!status) status = nvrtc_create(text, code->variant, &job);
  if (status) return status;
  status = nvrtc_allow_stop(job, stop);
  if (!status) status = nvrtc_compile_program(job, code->arch);
  if (!status) status = nvrtc_take(job, made);
  nvrtc.DestroyProgram(&job);
  return status;
}

/* ---- the cubin cache ----------------------------------------------------- */

/* The key of a cubin: options, variant and source. The version of NVRTC and the
 * templates that others include are not in it. */
static source_text nvrtc_cache_key(const source_text *text,
                                   const dil_cuda_code *code) {
  source_text all = {0};
  char target[48];
  nvrtc_target(code->arch, target);
  put(&all, "%s", target);
  for (int i = 0; i < OPTIONS; i++) put(&all, " %s", options[i]);
  put(&all, "\n%s\n%s", code->variant, text->text);
  return all;
}

static dil_status nvrtc_make_and_put(const source_text *text,
                                     const dil_cuda_code *code,
                                     const atomic_bool *stop,
                                     const gpu_cubin_cache *cubins,
                                     const source_text *all, gpu_made *made) {
  char label[120];
  double begin = clock_seconds();
  dil_status status = nvrtc_make(text, code, stop, made);
  if (status || !cubins) return status;
  snprintf(label, sizeof label, "%s sm_%d cubin", code->variant, code->arch);
  cubins->put(cubins->context, all, label, made, clock_seconds() - begin);
  return DIL_OK;
}

static dil_status nvrtc_find_or_make(const source_text *text,
                                     const dil_cuda_code *code,
                                     const atomic_bool *stop,
                                     const gpu_cubin_cache *cubins,
                                     gpu_made *made) {
  source_text all = cubins ? nvrtc_cache_key(text, code) : (source_text){0};
  dil_status status = DIL_OK;
  if (text->lost || all.lost)
    status = dil_fail(DIL_MEMORY, "no memory for CUDA source");
  else if (cubins && !cubins->empty &&
           cubins->find(cubins->context, &all, made))
    status = DIL_OK;
  else if (cubins && cubins->only)
    status = dil_fail(DIL_ENVIRONMENT, "no cubin of '%s' is kept",
                      code->variant);
  else
    status = nvrtc_make_and_put(text, code, stop, cubins, &all, made);
  free(all.text);
  return status;
}

dil_status nvrtc_compile(const source_text *text, dil_cuda_code *code,
                         FILE *report, const atomic_bool *stop,
                         const gpu_cubin_cache *cubins) {
  gpu_made made = {0};
  dil_status status = nvrtc_find_or_make(text, code, stop, cubins, &made);
  if (!status && report) fprintf(report, "%s", made.log);
  if (!status) status = gate(code, made.log);
  free(made.log);
  if (status) {
    free(made.cubin);
    return status;
  }
  code->cubin = made.cubin;
  code->size = made.size;
  return DIL_OK;
}
