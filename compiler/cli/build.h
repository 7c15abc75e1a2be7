/* build.h - one run of `dil build`, as its files share it: command_build.c
 * reads targets and kernels, build_outputs.c makes what is written,
 * build_write.c writes it. */
#ifndef DIL_COMPILER_CLI_BUILD_H
#define DIL_COMPILER_CLI_BUILD_H

#include "command.h"
#include "compiler/front/program.h"
#include "compiler/library/library.h"

/* The words of --emit, by their index in its list. */
typedef enum emitted {
  EMIT_SO, EMIT_A, EMIT_O, EMIT_H, EMIT_PC, EMIT_JSON, EMIT_CU, EMIT_CUBIN,
  EMIT_LL, EMIT_S, EMIT_COUNT
} emitted;
#define BIT(which) (1u << EMIT_##which)
#define EMIT_OBJECTS (BIT(SO) | BIT(A) | BIT(O) | BIT(LL) | BIT(S))
/* Files that differ when the run time is linked into them. */
#define EMIT_LIBRARY \
  (BIT(SO) | BIT(A) | BIT(O) | BIT(H) | BIT(PC) | BIT(JSON))
#define EMIT_CHIPS   (BIT(CU) | BIT(CUBIN))

typedef struct output {
  const char *path;
  emitted kind;
  void *bytes;         /* malloced; NULL: linked of the objects */
  size_t size;
} output;

typedef struct building {
  const options *options;
  compilation compilation; /* of the file at hand */
  library library;
  unsigned emit;        /* bits of the files to write */
  int32_t source_count; /* kernels of the files, one for all dtypes */
  int32_t file_count;   /* files that the kernels were read from */
  const char **file;
  output *output;
  int32_t output_count, output_room;
  library_object object[2]; /* the library's own, and the run time */
  int32_t object_count;
} building;

/* ---- build_outputs.c ----------------------------------------------------- */

/* Fills b->output with all that b->emit asks for; shared libraries are linked
 * when they are written. *at: as library_make has it. */
dil_status build_make(building *b, const compilation **at);

/* ---- build_write.c ------------------------------------------------------- */

/* The outputs and, when asked, the rule for make; or only their names. */
dil_status build_write(building *b);
void build_free(building *b);

#endif
