/* driver.h - the compiler as one function: from a file to machine code.
 *
 * In: a request, which says what to read and at which stage to stop. Out: a
 * compilation with every result on the way, all of it in the caller's arena.
 * Located errors go to the diag; every other error is at dil_last_error(). */
#ifndef DIL_COMPILER_DRIVER_H
#define DIL_COMPILER_DRIVER_H

#include "compiler/codegen/codegen.h"
#include "compiler/schedule/wisdom_apply.h"

#define DRIVER_STAGES(X)                                                       \
  X(tokens) X(ast) X(pattern) X(cover) X(place) X(normalise) X(fuse) X(plan)   \
  X(cuda) X(ptxas) X(schedule) X(ir) X(asm)

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
  const char *text;   /* not NULL: the source itself; path only names it */
  size_t length;
  const char *kernel; /* NULL: the file's only kernel */
  const char *topology; /* replaces the kernel's own; NULL: keeps that */
  bool joins;         /* the caller can run a kernel on several devices */
  bool from_plan;     /* path holds a plan's text form */
  const define *defines;
  int32_t define_count;
  unsigned force;       /* plan_force bits */
  dil_direction direction; /* backward: whatever the kernel itself says */
  const char *dtype;    /* of q, k, v and o; NULL: the pattern's */
  pattern_sizes sizes;  /* of the heads; 0: the pattern's */
  unsigned device;      /* KNOB_CPU or KNOB_CUDA: a schedule may have only this
                           device's knobs; 0: any device's */
  const char *isa;      /* NULL: the host's */
  int32_t arch;         /* of stages cuda and ptxas: 80, 90, ... */
  dil_variant variant;  /* of stages ir and asm */
  const dil_call *call; /* sizes and inputs for stage cover; NULL elsewhere */
  stage last;           /* the driver stops after this stage */
  FILE *dump;           /* not NULL: the last stage is printed there */
} driver_request;

typedef struct compilation {
  arena *arena;
  diag *diag;
  const program *program; /* NULL: the source was a plan's text */
  const kernel *kernel;   /* NULL: the source was a plan's text */
  const pattern *pattern;
  const topology *topology; /* NULL: one device */
  dil_direction direction; /* of the request or of the kernel */
  knobs knobs;            /* of its schedule, or of a tuner */
  const pattern *normal; /* `pattern` normalised; NULL before stage normalise,
                            and where the source was a plan's text */
  const plan *planned; /* NULL before stage fuse */
  const plan *plan;    /* `planned` with the knobs applied, by stage plan */
  const char *isa; /* instruction set of the processor's code */
} compilation;

/* Reads and checks the program alone. `c` has arena and diag set. */
dil_status driver_read(const driver_request *request, compilation *c);
/* Runs the stages up to request->last. The driver does not read the program
 * again where `c` has it. */
dil_status driver_compile(const driver_request *request, compilation *c);
/* Reads one file and takes each of its kernels through its plan, so that
 * c->diag gets all errors and refusals. */
dil_status driver_check(const driver_request *request, compilation *c);
/* Reports a back end's refusal at the place of the schedule, where the kernel
 * has one with knobs. Returns the status to go on with. */
dil_status driver_refused(compilation *c, dil_status status);
/* Applies knobs to a planned compilation: a schedule's, a tuner's or those of
 * wisdom. Replaces c->plan. */
void driver_apply_knobs(compilation *c, const knobs *k);
/* Applies remembered knobs (schedule/wisdom_apply.h) for calls of this size, or
 * for a chip. True: the compilation has new knobs. */
bool driver_apply_wisdom(compilation *c, const dil_context *context,
                         const int64_t size[3]);
bool driver_apply_wisdom_chip(compilation *c, const char *chip);
/* Removes the knobs again, where no kernel can be made with them. */
void driver_drop_knobs(compilation *c);
wisdom_query driver_wisdom_query(const compilation *c);

/* The request for the code of a planned compilation, on the context's device.
 * It borrows `c`. */
code_request driver_code_request(const compilation *c, dil_context *context);
/* kernel_code_make, whose refusal is reported at the schedule's place. */
dil_status driver_code(compilation *c, const code_request *request,
                       kernel_code *code);

#endif
