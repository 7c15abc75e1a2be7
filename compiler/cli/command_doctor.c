/* command_doctor.c - `dil doctor`: which devices and loadable parts this
 * machine has, and the reason for each that is missing. It writes to standard
 * output; a missing part is no failure. */
#include "command.h"
#include "compiler/library/library.h"
#include "compiler/schedule/wisdom.h"
#include "runtime/api/device_cuda.h"
#include "runtime/base/module.h"
#include "runtime/cache/cache.h"
#include "runtime/link/mpi/job.h"
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

static void say_part(const options *o, const char *part, bool there,
                     const char *text) {
  if (o->json)
    message_json(json_pack("{s:s, s:b, s:o}", "part", part, "found", there,
                           "text", diag_json(text)));
  else
    printf("%-14s %-8s %s\n", part, there ? "found" : "missing", text);
}

static void doctor_cpu(const options *o) {
  void *symbol;
  if (dil_module_open("dil-cpu.so", BACKEND_SYMBOL, &symbol)) {
    say_part(o, "cpu", false, dil_last_error());
    return;
  }
  const cpu_backend *cpu = (const void *)((backend_init)symbol)();
  const char *isa = cpu->host();
  say_part(o, "cpu", isa != NULL, isa ? isa : dil_last_error());
  say_part(o, "cpu compiler", true, cpu->common.versions());
}

static void doctor_compiler(const options *o) {
  const gpu_backend *gpu;
  const char *version =
      gpu_backend_open(&gpu) == DIL_OK ? gpu->common.versions() : NULL;
  say_part(o, "gpu compiler", version != NULL,
           version ? version : dil_last_error());
}

static void doctor_device(const options *o, const dil_cuda_module *cuda,
                          int32_t index) {
  char part[24], text[160];
  dil_cuda *device;
  snprintf(part, sizeof part, "cuda:%d", index);
  if (cuda->open(index, &device)) {
    say_part(o, part, false, dil_last_error());
    return;
  }
  const dil_cuda_facts *facts = cuda->facts(device);
  snprintf(text, sizeof text,
           "%s, sm_%d, %d processors, %.0f GiB, driver %d.%d", facts->name,
           facts->arch, facts->processors, (double)facts->memory / (1 << 30),
           facts->driver / 1000, facts->driver % 1000 / 10);
  say_part(o, part, true, text);
  cuda->close(device);
}

static void doctor_devices(const options *o) {
  const dil_cuda_module *cuda;
  int32_t count = 0;
  dil_status status = dil_cuda_module_open(&cuda);
  if (!status) status = cuda->devices(&count);
  if (status)
    say_part(o, "gpu", false, dil_last_error());
  else if (count == 0)
    say_part(o, "gpu", false, "the driver sees no device");
  for (int32_t i = 0; i < count; i++) doctor_device(o, cuda, i);
}

static void doctor_mpi(const options *o) {
  void *symbol;
  bool there = !dil_module_open("dilrt-mpi.so", DIL_MPI_SYMBOL, &symbol);
  say_part(o, "mpi", there,
           there ? "ranks may be processes" : dil_last_error());
}

static void doctor_wisdom(const options *o, arena *a) {
  wisdom w;
  const char *path = wisdom_path(a);
  const char *text = "DIL_WISDOM is off, or there is no home";
  bool good = path && wisdom_read(a, path, &w) == DIL_OK;
  if (path && !good) text = dil_last_error();
  if (good)
    text = arena_print(a, "%d schedule%s of `dil tune` in %s", w.count,
                       w.count == 1 ? "" : "s", path);
  if (good && w.count == 0)
    text = arena_print(a, "no schedule yet; `dil tune` remembers them in %s",
                       path);
  say_part(o, "wisdom", good, text);
}

static void doctor_file(const options *o, const char *part, const char *file) {
  char path[DIL_PATH_MAX];
  bool there = !dil_module_find(file, path);
  say_part(o, part, there, there ? path : dil_last_error());
}

/* The tools that `dil build` needs besides compilers. */
static void doctor_libraries(const options *o, arena *a) {
  const char *linker = library_linker(a);
  doctor_file(o, "libraries", LIBRARY_LINKED);
  doctor_file(o, "standalone", LIBRARY_CARRIED);
  say_part(o, "linker", linker != NULL, linker ? linker : dil_last_error());
}

/* Says how many kernels are kept, or why there are none. */
static void doctor_cache(const options *o) {
  cache_options wanted;
  cache_file *files = NULL;
  char path[PATH_MAX], text[PATH_MAX + 64];
  int32_t count = 0;
  dil_status status = cache_options_read(&wanted, path);
  bool read_only = wanted.mode == CACHE_READ_ONLY;
  bool off = !status && (wanted.mode == CACHE_OFF || !wanted.folder);
  int folder = status || off ? -1 : cache_folder_open(path, false, read_only);
  bool refused = status || (!off && folder < 0 && errno != ENOENT);
  if (folder >= 0) refused = cache_folder_list(folder, &files, &count);
  snprintf(text, sizeof text, "%s, %d file%s", path, count,
           count == 1 ? "" : "s");
  say_part(o, "cache", !refused && !off,
           refused ? dil_last_error()
           : off   ? "DIL_CACHE=off, or neither DIL_CACHE_DIR nor HOME is set"
                   : text);
  free(files);
  if (folder >= 0) close(folder);
}

dil_status command_doctor(arena *a, const options *o) {
  doctor_cpu(o);
  doctor_compiler(o);
  doctor_devices(o);
  doctor_cache(o);
  doctor_mpi(o);
  doctor_wisdom(o, a);
  doctor_libraries(o, a);
  return DIL_OK;
}
