/* nvrtc.c - one CUDA C source to one cubin, through the gate.
 *
 * NVRTC is opened at run time, once; a failure is remembered with its reason.
 * The gate reads what ptxas reports: a kernel that spills, keeps a stack,
 * serialises its wgmma or has setmaxnreg ignored is refused, since each of
 * these loses more than any choice of tiles gains. */
#include "gpu.h"
#include "templates.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct nvrtc_job *job_handle;

/* The functions of NVRTC that are used: name, and its arguments. */
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
  /* NULL: this NVRTC is too old to be stopped. */
  int (*SetFlowCallback)(job_handle, int (*ask)(void *, void *), void *);
  char failure[256], version[32];
  bool has_minimal; /* can leave out what only hosts' headers need */
} nvrtc;
static pthread_once_t nvrtc_once = PTHREAD_ONCE_INIT;

/* ---- opening ------------------------------------------------------------- */

static void *open_library(void) {
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

static bool find(void *library, const char *name, void *address) {
  void *symbol = dlsym(library, name);
  if (!symbol)
    snprintf(nvrtc.failure, sizeof nvrtc.failure, "NVRTC has no %s", name);
  memcpy(address, &symbol, sizeof symbol);
  return symbol != NULL;
}

static void nvrtc_open(void) {
  void *library = open_library();
  bool good = library != NULL;
#define X(name, arguments)                                                     \
  good = good && find(library, "nvrtc" #name, &nvrtc.name);
  NVRTC_FUNCTIONS(X)
#undef X
  good = good && find(library, "nvrtcGetErrorString", &nvrtc.GetErrorString);
  void *flow = good ? dlsym(library, "nvrtcSetFlowCallback") : NULL;
  memcpy(&nvrtc.SetFlowCallback, &flow, sizeof flow);
  int major = 0, minor = 0;
  if (good && nvrtc.Version(&major, &minor) == 0)
    snprintf(nvrtc.version, sizeof nvrtc.version, "NVRTC %d.%d", major, minor);
  nvrtc.has_minimal = major > 12 || (major == 12 && minor >= 4);
}

static dil_status ready(void) {
  pthread_once(&nvrtc_once, nvrtc_open);
  if (!nvrtc.failure[0]) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "no CUDA compiler: %s", nvrtc.failure);
}

const char *nvrtc_version(void) {
  return ready() ? NULL : nvrtc.version;
}

const char *nvrtc_origin(void) {
  Dl_info info;
  bool found = !ready() && dladdr((void *)nvrtc.Version, &info);
  return found ? info.dli_fname : NULL;
}

/* ---- the gate ------------------------------------------------------------ */

/* Words of ptxas that refuse a kernel when the number before them is not 0. */
static const char *const counted[] = {" bytes stack frame",
                                      " bytes spill stores",
                                      " bytes spill loads"};
/* Its advisories, and what each means. */
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
};

/* The number that stands before `word`; 0 when there is none. */
static long number_before(const char *log, const char *word) {
  const char *begin = word;
  while (begin > log && begin[-1] >= '0' && begin[-1] <= '9') begin--;
  return begin == word ? 0 : strtol(begin, NULL, 10);
}

static dil_status gate_counts(const char *name, const char *log) {
  for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
    for (const char *at = log; (at = strstr(at, counted[i]));
         at += strlen(counted[i])) {
      long bytes = number_before(log, at);
      if (bytes)
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

static dil_status failed(const char *what, int code) {
  return dil_fail(DIL_INTERNAL, "NVRTC cannot %s: %s", what,
                  nvrtc.GetErrorString(code));
}

static dil_status create(const source_text *text, const char *name,
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
  return code ? failed("take the source", code) : DIL_OK;
}

/* The whole report; malloced. */
static char *log_of(job_handle job) {
  size_t size = 0;
  if (nvrtc.GetProgramLogSize(job, &size)) return NULL;
  char *log = calloc(1, size + 1);
  if (log && size && nvrtc.GetProgramLog(job, log)) log[0] = 0;
  return log;
}

static dil_status take_cubin(job_handle job, void **cubin, size_t *size) {
  int code = nvrtc.GetCUBINSize(job, size);
  if (code) return failed("make a cubin", code);
  *cubin = malloc(*size);
  if (!*cubin) return dil_fail(DIL_MEMORY, "no memory for a cubin");
  code = nvrtc.GetCUBIN(job, *cubin);
  if (!code) return DIL_OK;
  free(*cubin);
  return failed("give its cubin", code);
}

/* Compute capability 9.0 is always compiled with its own instructions. */
static dil_status compile(job_handle job, int32_t arch) {
  char target[48];
  snprintf(target, sizeof target, "--gpu-architecture=sm_%d%s", arch,
           arch == 90 ? "a" : "");
  const char *const options[] = {target, "--std=c++17", "-default-device",
                                 "--ptxas-options=-v", "--minimal"};
  int count = (int)(sizeof options / sizeof *options);
  int code = nvrtc.CompileProgram(job, count - !nvrtc.has_minimal, options);
  if (!code) return DIL_OK;
  char *log = log_of(job);
  dil_status status =
      dil_fail(code == 5 ? DIL_ENVIRONMENT : DIL_INTERNAL,
               "NVRTC refuses a kernel for sm_%d: %s\n%s", arch,
               nvrtc.GetErrorString(code), log ? log : "");
  free(log);
  return status;
}

/* Asked by NVRTC between its phases: 1 ends the compilation. */
static int is_stopped(void *stop, void *unused) {
  (void)unused;
  return atomic_load((const atomic_bool *)stop);
}

static dil_status allow_stop(job_handle job, const atomic_bool *stop) {
  if (!stop || !nvrtc.SetFlowCallback) return DIL_OK;
  int code =
      nvrtc.SetFlowCallback(job, is_stopped, (void *)(uintptr_t)stop);
  return code ? failed("be made to stop", code) : DIL_OK;
}

dil_status nvrtc_compile(const source_text *text, dil_cuda_code *code,
                         FILE *report, const atomic_bool *stop) {
  job_handle job = NULL;
  dil_status status = ready();
  if (!status && text->lost)
    status = dil_fail(DIL_MEMORY, "no memory for CUDA source");
  if (!status) status = create(text, code->variant, &job);
  if (status) return status;
  status = allow_stop(job, stop);
  if (!status) status = compile(job, code->arch);
  if (!status) {
    char *log = log_of(job);
    if (report && log) fprintf(report, "%s", log);
    status = log ? gate(code, log) : failed("give its report", 0);
    free(log);
  }
  if (!status) status = take_cubin(job, &code->cubin, &code->size);
  nvrtc.DestroyProgram(&job);
  return status;
}
