/* module.c - finds and opens loadable parts, such as dil-cpu.so.
 *
 * In: a file name without folder and the symbol it must have. Out: the address
 * of the symbol. A file is tried once a process: whatever came of it is
 * remembered, with the reason, and told again at the next call. */
#include "module.h"
#include "status.h"
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REASON_SIZE = 2048, PLACE_MAX = 8 };

typedef struct attempt {
  struct attempt *next;
  char *file, *symbol;
  dil_status status;
  void *address;            /* DIL_OK */
  char reason[REASON_SIZE]; /* else */
} attempt;

static pthread_mutex_t attempts_lock = PTHREAD_MUTEX_INITIALIZER;
static attempt *attempts; /* guarded by attempts_lock; never freed */

/* ---- where to look ------------------------------------------------------- */

typedef struct places {
  int count;
  char path[PLACE_MAX][PATH_MAX];
} places;

/* A path that does not fit names no file that could be opened. */
static void add_place(places *p, const char *folder, const char *rest,
                      const char *file) {
  char *path = p->path[p->count];
  int length = snprintf(path, PATH_MAX, "%s%s/%s", folder, rest, file);
  if (length > 0 && length < PATH_MAX) p->count++;
}

/* The folder of a file: its path, symbolic links resolved, less its name. */
static bool folder_of(const char *file, char folder[PATH_MAX]) {
  if (!realpath(file, folder)) return false;
  char *slash = strrchr(folder, '/');
  if (slash) *slash = 0;
  return slash != NULL;
}

static bool own_library(Dl_info *info) {
  void *here = &attempts_lock;
  return dladdr(here, info) && info->dli_fname;
}

/* DIL_MODULE_DIR, where it is set, is the only place. */
static void list_places(places *p, const char *file) {
  const char *given = secure_getenv("DIL_MODULE_DIR");
  char folder[PATH_MAX];
  Dl_info info;
  p->count = 0;
  if (given) {
    add_place(p, given, "", file);
    return;
  }
  if (folder_of("/proc/self/exe", folder)) {
    add_place(p, folder, "", file);
    add_place(p, folder, "/build", file);
    add_place(p, folder, "/../lib/dil", file);
    add_place(p, folder, "/../lib", file);
  }
  if (own_library(&info) && folder_of(info.dli_fname, folder)) {
    add_place(p, folder, "", file);
    add_place(p, folder, "/dil", file);
    add_place(p, folder, "/../dil", file);
  }
}

/* ---- opening ------------------------------------------------------------- */

static void refuse(attempt *a, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void refuse(attempt *a, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(a->reason, sizeof a->reason, format, arguments);
  va_end(arguments);
  a->status = DIL_ENVIRONMENT;
}

static void refuse_missing(attempt *a, const places *p) {
  char tried[REASON_SIZE - 256] = "";
  size_t used = 0;
  for (int i = 0; i < p->count && used < sizeof tried; i++)
    used += (size_t)snprintf(tried + used, sizeof tried - used, "%s%s",
                             i ? ", " : "", p->path[i]);
  refuse(a, "there is no %.99s; tried %s", a->file, tried);
}

static void open_file(attempt *a, const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    refuse(a, "cannot load %.99s: %s", a->file, dlerror());
    return;
  }
  a->address = dlsym(library, a->symbol);
  if (a->address) return;
  refuse(a, "%s has no symbol '%.99s'", path, a->symbol);
  dlclose(library);
}

/* The first place that has the file decides; NULL: none has it. */
static const char *first_place(places *p, const char *file) {
  list_places(p, file);
  for (int i = 0; i < p->count; i++)
    if (!access(p->path[i], F_OK)) return p->path[i];
  return NULL;
}

static void try(attempt *a) {
  places *p = malloc(sizeof *p);
  if (!p) {
    refuse(a, "no memory to look for %.99s", a->file);
    return;
  }
  const char *path = first_place(p, a->file);
  if (path) open_file(a, path);
  else refuse_missing(a, p);
  free(p);
}

static attempt *find_attempt(const char *file, const char *symbol) {
  attempt *a = attempts;
  while (a && (strcmp(a->file, file) || strcmp(a->symbol, symbol)))
    a = a->next;
  return a;
}

static attempt *new_attempt(const char *file, const char *symbol) {
  attempt *a = calloc(1, sizeof *a);
  if (!a) return NULL;
  a->file = strdup(file);
  a->symbol = strdup(symbol);
  if (!a->file || !a->symbol) {
    free(a->file);
    free(a->symbol);
    free(a);
    return NULL;
  }
  try(a);
  a->next = attempts;
  return attempts = a;
}

dil_status dil_module_open(const char *file, const char *symbol,
                           void **address) {
  pthread_mutex_lock(&attempts_lock);
  attempt *a = find_attempt(file, symbol);
  if (!a) a = new_attempt(file, symbol);
  pthread_mutex_unlock(&attempts_lock);
  *address = a ? a->address : NULL;
  if (!a) return dil_fail(DIL_MEMORY, "no memory to open %s", file);
  return a->status ? dil_fail(a->status, "%s", a->reason) : DIL_OK;
}

dil_status dil_module_find(const char *file, char path[DIL_PATH_MAX]) {
  attempt none = {.file = (char *)file, .status = DIL_OK};
  places *p = malloc(sizeof *p);
  if (!p) return dil_fail(DIL_MEMORY, "no memory to look for %s", file);
  const char *found = first_place(p, file);
  if (found) memcpy(path, found, strlen(found) + 1);
  else refuse_missing(&none, p);
  free(p);
  return found ? DIL_OK : dil_fail(DIL_ENVIRONMENT, "%s", none.reason);
}
