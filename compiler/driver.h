/* driver.h - the compiler as one function: from a file to machine code.
 *
 * In: a request, which says what to read and where to stop. Out: a compilation
 * with everything made on the way, all of it in the caller's arena. Located
 * errors go to the diag; the rest is at dil_last_error(). */
#ifndef DIL_DRIVER_H
#define DIL_DRIVER_H

#include "backend.h"
#include "gpu/gpu.h"

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
  const char *text;   /* not NULL: what is read, and path only names it */
  size_t length;
  const char *kernel; /* NULL: the file's only one */
  const char *topology; /* of the file, in place of the kernel's; NULL: its own */
  bool joins;         /* whoever asks can run a kernel on many devices */
  bool from_plan;     /* path holds a plan's text form */
  const define *defines;
  int32_t define_count;
  unsigned force;       /* plan_force bits */
  const char *dtype;    /* of q, k, v and o; NULL: the pattern's */
  unsigned device;      /* KNOB_CPU, KNOB_CUDA: whose knobs a schedule may have;
                           0: none in particular */
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
  const topology *topology; /* NULL: one device */
  knobs knobs;            /* what its schedule decides */
  const plan *planned; /* NULL before that stage; so the rest */
  const plan *plan;    /* the same, turned by the knobs */
  dil_context *context; /* whose cache and counts its code goes through */
  const char *isa; /* the one that code is made for */
  char chip[16];   /* "sm_90", once GPU code is made */
  bool early;      /* a kernel may be made before all GPU code of it is */
  bool whole;      /* its calls are whole sequences, none a part of one */
  struct late *late; /* what is still made of it; NULL: nothing */
} compilation;

/* Reads and checks the program alone. `c` has arena and diag set. */
dil_status driver_read(const driver_request *request, compilation *c);
/* Runs the stages up to request->last; a program that `c` already has is not
 * read again. */
dil_status driver_compile(const driver_request *request, compilation *c);
/* Reads one file and takes every kernel of it through its plan, so that all
 * that is wrong or refused is in c->diag. */
dil_status driver_check(const driver_request *request, compilation *c);
/* What a back end says of a kernel, told where the schedule stands when it is
 * the schedule that cannot be had. Returns the status to go on with. */
dil_status driver_refused(compilation *c, dil_status status);
/* Gives a planned compilation other knobs: a tuner's, or remembered ones. */
void driver_turn(compilation *c, const knobs *k);
/* The back end for processors, opened once: loads the compiler library. */
dil_status driver_backend(const backend **opened);
/* Refuses blocks that are chosen by the numbers in q and k: whatever looks at
 * shapes alone would be silent about them. */
dil_status driver_shapes_decide(const compilation *c);

/* ---- driver_source.c ------------------------------------------------------ */

/* What the run time makes a kernel of, for the context's device; it borrows
 * `c`. On a GPU the code is made here, and driver_source_free is due once the
 * kernel is made; where `c` is early, driver_drop once the kernel is freed. */
dil_status driver_source(compilation *c, dil_context *context,
                         dil_kernel_source *source);
void driver_source_free(dil_kernel_source *source);
void driver_drop(compilation *c);
/* The GPU back end, opened once, or the reason why not. */
dil_status gpu_compiler_open(const gpu_backend **backend);

#endif
