/* driver.h - the compiler as one function: from a file to machine code.
 *
 * In: a request, which says what to read and where to stop. Out: a compilation
 * with everything made on the way, all of it in the caller's arena. Located
 * errors go to the diag; the rest is at dil_last_error(). */
#ifndef DIL_DRIVER_H
#define DIL_DRIVER_H

#include "backend.h"

#define DRIVER_STAGES(X)                                                       \
  X(tokens) X(ast) X(pattern) X(cover) X(place) X(plan) X(cuda) X(ptxas)       \
  X(schedule) X(ir) X(asm)

typedef enum stage {
#define X(name) STAGE_##name,
  DRIVER_STAGES(X)
#undef X
      STAGE_COUNT
} stage;

/* "tokens|ast|...", for the option table. */
#define STAGE_BAR(name) "|" #name
#define STAGE_NAMES     (&(DRIVER_STAGES(STAGE_BAR))[1])

typedef struct driver_request {
  const char *path;   /* "-": standard input */
  const char *kernel; /* NULL: the file's only one */
  bool from_plan;     /* path holds a plan's text form */
  const define *defines;
  int32_t define_count;
  unsigned force;       /* plan_force bits */
  const char *isa;      /* NULL: the host's */
  int32_t arch;         /* what cuda and ptxas show: 80, 90, ... */
  dil_variant variant;  /* what ir and asm show */
  const dil_call *call; /* sizes and inputs for cover; NULL elsewhere */
  stage last;           /* stops after this one */
  FILE *dump;           /* not NULL: the last stage is printed there */
} driver_request;

typedef struct compilation {
  arena *arena;
  diag *diag;
  const program *program; /* NULL when it began at a plan */
  const kernel *kernel;   /* likewise */
  const pattern *pattern;
  const plan *plan; /* NULL before that stage; so the rest */
  const backend *backend;
  const char *isa; /* the one that code is made for */
} compilation;

/* Runs the stages up to request->last. `c` has arena and diag set. */
dil_status driver_compile(const driver_request *request, compilation *c);
/* Reads one file and takes every kernel of it through its plan, so that all
 * that is wrong or refused is in c->diag. */
dil_status driver_check(const driver_request *request, compilation *c);
/* Refuses blocks that are chosen by the numbers in q and k: whatever looks at
 * shapes alone would be silent about them. */
dil_status driver_shapes_decide(const compilation *c);
/* A kernel of a compilation that reached STAGE_schedule; its code is made when
 * a call first needs it. It borrows `c`. */
dil_status driver_kernel(compilation *c, dil_kernel **kernel);

#endif
