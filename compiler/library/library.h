/* library.h - kernels ahead of time: what the files of `dil build` share.
 *
 * A library is one object of machine code, plans as data and functions for the
 * world (library_object.c), its description (library_meta.c), a header
 * (library_header.c), and what is made of these: an archive, a shared library,
 * cubins, texts. The compiler library writes the code, the rest is written
 * here, but for the linking of shared libraries. */
#ifndef DIL_COMPILER_LIBRARY_LIBRARY_H
#define DIL_COMPILER_LIBRARY_LIBRARY_H

#include "compiler/driver.h"
#include "runtime/api/library.h"
#include <jansson.h>

enum { LIBRARY_TARGETS_MAX = 16 };

typedef struct library_kernel {
  const char *name;       /* of its C function */
  const char *own;        /* name in its file */
  const char *ending;     /* of both: its dtype, where it comes in several */
  compilation *compilation; /* that came to its plan */
  const plan *plan;
  int32_t code_count;
  dil_cuda_code *code;    /* of all chips; cubins are the library's */
} library_kernel;

typedef struct library {
  arena *arena;
  bool no_wisdom;         /* measured schedules are left alone */
  /* Gets a line of text that tells of a choice; NULL: nobody listens. */
  void (*note)(const char *text);
  const char *path;       /* the beginning of the names of its files */
  const char *base;       /* the last part of path */
  const char *name;       /* as a C name; functions of the whole begin so */
  bool standalone;
  int32_t kernel_count;
  library_kernel *kernel;
  int32_t isa_count;      /* weakest first */
  const char *isa[LIBRARY_TARGETS_MAX];
  int32_t arch_count;
  int32_t arch[LIBRARY_TARGETS_MAX];
  bool has_object;        /* machine code for processors is wanted */
  const cpu_backend *cpu;    /* NULL: it is not */
  const gpu_backend *gpu;
  uint64_t hash;
  const char *meta;       /* JSON */
  const char *prefix;     /* of the run time's symbols; "" when it is linked */
} library;

/* ---- library.c ----------------------------------------------------------- */

/* Sets path, base and name: `given`, or NULL: made of the path. DIL_USAGE when
 * that is no C name. */
dil_status library_name(library *l, const char *path, const char *given);
/* One kernel more. DIL_USAGE when a C program could not use its inputs. */
dil_status library_add(library *l, const char *own, const char *ending,
                       const compilation *c);
/* Names the functions of all kernels, when these are there: by the library when
 * `given`, with the kernel's own name when there are `several`. DIL_USAGE when a
 * C program could not use the names, or tell them apart. */
dil_status library_name_kernels(library *l, bool given, bool several);
/* Opens the back ends that the targets need and makes the cubins, then the
 * description. *at: the compilation that has failed, and tells; else NULL. */
dil_status library_make(library *l, const compilation **at);
void library_free(library *l); /* the cubins */
/* The text that `print` writes of a pattern and a number. */
const char *library_printed(arena *a,
                            void (*print)(const pattern *, int32_t, FILE *),
                            const pattern *p, int32_t index);
/* "sm_90a" */
const char *library_arch_name(arena *a, int32_t arch);
/* A kernel's GPU code as `r` wants it, with the knobs of its schedule or those
 * that are remembered of the chip; a note tells of these. */
dil_status library_compile(const library *l, const library_kernel *k,
                           gpu_request r, gpu_codes *codes);

/* ---- library_object.c ---------------------------------------------------- */

/* Machine code, data and functions as one object file. */
dil_status library_object_make(const library *l, FILE *ir, FILE *assembly,
                               cpu_code *out);
/* The run time as an object whose symbols are this library's own. */
dil_status library_runtime(const library *l, void **bytes, size_t *size);

/* ---- library_meta.c, library_header.c ------------------------------------ */

/* Fills hash, prefix and meta. */
dil_status library_describe(library *l);
void library_header(const library *l, FILE *out);
void library_pc(const library *l, FILE *out);

/* ---- library_read.c: the way back ---------------------------------------- */

/* The contents of a description; texts belong to the JSON. */
typedef struct library_facts {
  const char *name, *version, *hash;
  const char *cpu, *cuda; /* the compilers' versions; NULL: not asked */
  int abi, standalone;
  json_t *kernels;        /* an array */
} library_facts;

typedef struct library_kernel_facts {
  const char *name, *pattern, *dtype, *combine, *plan_hash;
  const char *text;       /* the pattern, canonical */
  int heads, kv_heads, head_dim, value_dim, passes, lse;
  bool takes_scale;
  double dropout;
  json_t *inputs, *isas, *codes; /* arrays */
} library_kernel_facts;

/* A file whole; *bytes is malloced. */
dil_status library_file(const char *path, void **bytes, size_t *size);
/* On failure nothing of it is left. */
dil_status library_file_write(const char *path, const void *bytes, size_t size);
/* *described is the caller's. DIL_INPUT: not one of ours. */
dil_status library_read(arena *a, const char *path, json_t **described);
/* DIL_INPUT when something is missing; `path` is for the message. */
dil_status library_about(const char *path, json_t *described,
                         library_facts *facts);
dil_status library_about_kernel(const char *path, json_t *entry,
                                library_kernel_facts *facts);

/* ---- library_elf.c ------------------------------------------------------- */

typedef struct elf elf;

/* The section of an object or shared library; bytes: aligned as malloc does. */
bool elf_find_section(const void *bytes, size_t size, const char *name,
                      const char **data, size_t *length);
/* Every symbol that the object has for others. */
void elf_each_global(const void *bytes, size_t size,
                     void (*visit)(void *context, const char *name),
                     void *context);
/* The object with `prefix` before the names of all that it defines for others,
 * which is hidden from then on outside of what it is linked into. *out is
 * malloced. */
dil_status elf_rename(const void *bytes, size_t size, const char *prefix,
                      void **out, size_t *out_size);

/* ---- library_archive.c --------------------------------------------------- */

typedef struct library_object {
  const char *name; /* of the member */
  const void *bytes;
  size_t size;
} library_object;

dil_status archive_make(const library_object *object, int32_t count,
                        void **bytes, size_t *size);
/* The next member; *at is 0 at first. False: it was the last, or no archive. */
bool archive_next(const char *bytes, size_t size, size_t *at,
                  const char **member, size_t *length);

/* The libraries that a library is linked to, or whose objects it carries. */
#define LIBRARY_LINKED  "libdilrt.so"
#define LIBRARY_CARRIED "dilrt.o"

/* ---- library_link.c ------------------------------------------------------ */

/* Returns the path of the C compiler that links; NULL with the reason in
 * dil_last_error. */
const char *library_linker(arena *a);
/* Has $CC link a shared library of these objects, or make one of them. */
dil_status library_link(const library *l, const library_object *object,
                        int32_t count, bool shared, const char *path);

#endif
