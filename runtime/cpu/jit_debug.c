/* jit_debug.c - tells debugger and profiler about mapped objects.
 *
 * In: a loaded object, whose image has its section addresses set. Out: an
 * entry in the list that gdb reads (its JIT interface), so that it knows
 * functions and lines; with DIL_PERF_MAP=1 lines in /tmp/perf-PID.map. */
#include "object_load.h"
#include "runtime/base/file_limit.h"
#include "runtime/base/status.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- gdb ----------------------------------------------------------------- */

typedef enum jit_action { JIT_NONE, JIT_REGISTER, JIT_UNREGISTER } jit_action;

typedef struct jit_descriptor {
  uint32_t version, action;
  jit_code_entry *relevant, *first;
} jit_descriptor;

/* gdb stops at the function and reads the list; other compilers in the same
 * process may share both, so the names and layouts are gdb's. */
void __jit_debug_register_code(void);
extern jit_descriptor __jit_debug_descriptor;

__attribute__((noinline)) void __jit_debug_register_code(void) {
  __asm__ volatile("" ::: "memory");
}
jit_descriptor __jit_debug_descriptor = {1, JIT_NONE, NULL, NULL};

static pthread_mutex_t jit_list_lock = PTHREAD_MUTEX_INITIALIZER;

static void jit_notify_gdb(jit_code_entry *entry, jit_action action) {
  __jit_debug_descriptor.relevant = entry;
  __jit_debug_descriptor.action = action;
  __jit_debug_register_code();
}

static void jit_register_image(dil_object *o) {
  jit_code_entry *entry = &o->entry;
  entry->image = o->image;
  entry->image_size = o->size;
  pthread_mutex_lock(&jit_list_lock);
  entry->next = __jit_debug_descriptor.first;
  if (entry->next) entry->next->previous = entry;
  __jit_debug_descriptor.first = entry;
  jit_notify_gdb(entry, JIT_REGISTER);
  pthread_mutex_unlock(&jit_list_lock);
  o->registered = true;
}

void jit_debug_unregister(dil_object *o) {
  if (!o->registered) return;
  jit_code_entry *entry = &o->entry;
  pthread_mutex_lock(&jit_list_lock);
  if (entry->next) entry->next->previous = entry->previous;
  if (entry->previous) entry->previous->next = entry->next;
  else __jit_debug_descriptor.first = entry->next;
  jit_notify_gdb(entry, JIT_UNREGISTER);
  pthread_mutex_unlock(&jit_list_lock);
  o->registered = false;
}

/* ---- perf ---------------------------------------------------------------- */

static bool is_function(const dil_object *o, const Elf64_Sym *s) {
  return ELF64_ST_TYPE(s->st_info) == STT_FUNC && s->st_size > 0 &&
         s->st_shndx < o->section_count && o->address[s->st_shndx] &&
         o->sections[s->st_shndx].sh_flags & SHF_EXECINSTR;
}

static dil_status perf_map_write(const dil_object *o) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
  /* The name can be guessed and /tmp is everyone's: follow no link. */
  int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC,
                  0600);
  bool written = file >= 0;
  file_limit limit;
  file_limit_begin(&limit);
  for (size_t i = 1; written && i < o->symbol_count; i++) {
    const Elf64_Sym *s = &o->symbols[i];
    if (is_function(o, s))
      written = dprintf(file, "%lx %lx %s:%s\n",
                        (unsigned long)(uintptr_t)o->address[s->st_shndx] +
                            (unsigned long)s->st_value,
                        (unsigned long)s->st_size, o->name,
                        o->strings + s->st_name) > 0;
  }
  file_limit_end(&limit);
  dil_status status =
      written ? DIL_OK : dil_fail(DIL_ENVIRONMENT, "cannot write %s: %m", path);
  if (file >= 0) close(file);
  return status;
}

dil_status jit_debug_register(dil_object *o) {
  const char *wish = secure_getenv("DIL_PERF_MAP");
  if (wish && strcmp(wish, "0") && strcmp(wish, "1"))
    return dil_fail(DIL_USAGE, "DIL_PERF_MAP is '%s', not 0 or 1", wish);
  if (wish && !strcmp(wish, "1")) {
    dil_status status = perf_map_write(o);
    if (status) return status;
  }
  jit_register_image(o);
  return DIL_OK;
}
