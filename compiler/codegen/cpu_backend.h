/* cpu_backend.h - the back end for processors, dil-cpu.so: requests, machine
 * code, and objects of kernels ahead of time. */
#ifndef DIL_COMPILER_CODEGEN_CPU_BACKEND_H
#define DIL_COMPILER_CODEGEN_CPU_BACKEND_H

#include "backend.h"
#include "compiler/front/program.h"
#include "runtime/api/kernel.h"

typedef struct cpu_request {
  backend_request common;
  const char *isa;       /* "avx2", "avx512", "avx512bf16", "amx"; NULL: the host's */
  dil_variant variant;
  bool debug;            /* line tables for gdb */
  FILE *ir, *assembly;   /* not NULL: the text goes there as well */
  bool texts_only;       /* no object: the caller wants the texts alone */
} cpu_request;

typedef struct cpu_code {
  void *bytes;           /* malloced object file; the caller's; NULL: texts
                            alone were wanted */
  size_t size;
  dil_code code;         /* lanes, pack, key_block, tile_keys filled */
} cpu_code;

/* ---- kernels ahead of time: one object file of code and data ------------- */

/* Machine code of a plan. Its functions are the object's own; `symbol` is the
 * object's own dil_code that points to them. */
typedef struct backend_part {
  const plan *plan;
  const char *isa;       /* NULL: `dimension` alone, for every machine */
  dil_variant variant;
  const char *symbol;
} backend_part;

/* A pointer in data, in place of eight bytes at `offset`. */
typedef struct backend_pointer {
  size_t offset;
  const char *symbol;    /* of a part, of data that stands before this, or
                            of another object */
} backend_pointer;

typedef struct backend_data {
  const char *symbol;    /* the object's own */
  const char *section;   /* NULL: by what it is */
  const void *bytes;
  size_t size;
  unsigned alignment;
  bool writable;
  int32_t pointer_count;
  const backend_pointer *pointer; /* by rising offset */
} backend_data;

/* A function for the world: calls `callee`, which another object has, with
 * the address of `data` unless that is NULL and then what it was called with,
 * and returns what comes back. Letters of types: p pointer, w i32, l i64, v
 * nothing. */
typedef struct backend_entry {
  const char *symbol, *callee, *data;
  char result;
  const char *parameters;
} backend_entry;

typedef struct backend_library {
  const char *name;      /* of the object, for people */
  int32_t part_count, data_count, entry_count;
  const backend_part *part;
  const backend_data *data;
  const backend_entry *entry;
  FILE *ir, *assembly;   /* not NULL: the text goes there as well */
} backend_library;

typedef struct cpu_backend {
  backend common;
  /* The instruction set this host would get; NULL with the reason in
   * dil_last_error when the module cannot serve it. */
  const char *(*host)(void);
  /* DIL_OK: this host runs code of the instruction set. DIL_USAGE: it is
   * unknown; DIL_ENVIRONMENT: the host lacks it. */
  dil_status (*runs)(const char *isa);
  /* Nothing of the host is asked: any instruction set may be built. The same
   * library gives the same bytes. */
  dil_status (*library)(const backend_library *library, cpu_code *out);
  /* All instruction sets, each after those it holds; NULL ends them. */
  const char *const *(*isas)(void);
} cpu_backend;

/* Opens dil-cpu.so, once: loads the compiler library. */
dil_status cpu_backend_open(const cpu_backend **opened);

#endif
