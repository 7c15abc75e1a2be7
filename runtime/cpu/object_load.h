/* object_load.h - object files of machine code, loaded into memory. */
#ifndef DIL_RUNTIME_CPU_OBJECT_LOAD_H
#define DIL_RUNTIME_CPU_OBJECT_LOAD_H

#include "runtime/dilrt.h"
#include <elf.h>
#include <stdbool.h>

#pragma GCC visibility push(default)

/* A relocatable ELF object of this architecture, mapped for execution: sections
 * are copied to fresh pages, relocated, then made read-execute (never both
 * writable and executable), and told to gdb (JIT interface) and, with
 * DIL_PERF_MAP=1, to perf (/tmp/perf-PID.map). Undefined symbols are an error
 * that names them. */
typedef struct dil_object dil_object;
dil_status dil_object_load(const void *bytes, size_t size, const char *name,
                           dil_object **object);
void *dil_object_symbol(const dil_object *object, const char *name); /* NULL */
void dil_object_free(dil_object *object);

#pragma GCC visibility pop

/* An entry of gdb's JIT interface: gdb reads both structures by name. */
typedef struct jit_code_entry {
  struct jit_code_entry *next, *previous;
  const char *image;
  uint64_t image_size;
} jit_code_entry;

/* Memory of one protection; each starts on a page of its own. */
typedef enum zone { ZONE_CODE, ZONE_CONSTANT, ZONE_DATA, ZONE_COUNT } zone;

struct dil_object {
  char *name;                 /* owned */
  char *image;                /* owned copy of the file; its section addresses
                                 are set to where the sections lie */
  size_t size;
  Elf64_Shdr *sections;       /* in image, as are symbols and strings */
  size_t section_count;
  const char *section_names;
  const Elf64_Sym *symbols;
  size_t symbol_count;
  const char *strings;
  char **address;             /* owned: of each section, NULL: not loaded */
  char *memory;               /* mapped */
  size_t memory_size;
  size_t zone_start[ZONE_COUNT + 1]; /* offsets in memory */
  size_t got_start;                  /* offset in memory: an entry for each
                                        relocation that asks for one */
  uint64_t *got_end;                 /* the next free entry */
  jit_code_entry entry;
  bool registered;
};

/* Tells gdb and, with DIL_PERF_MAP=1, perf. */
dil_status jit_debug_register(dil_object *object);
void jit_debug_unregister(dil_object *object); /* from gdb; perf has no way */

#endif
