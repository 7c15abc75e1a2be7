/* program.h - the front end's result for a file: patterns, topologies,
 * schedules and kernels. */
#ifndef DIL_COMPILER_FRONT_PROGRAM_H
#define DIL_COMPILER_FRONT_PROGRAM_H

#include "compiler/dil.h"
#include "compiler/pattern/pattern.h"

typedef enum layout_kind {
  LAYOUT_DEFAULT, LAYOUT_CONTIGUOUS, LAYOUT_ZIGZAG, LAYOUT_STRIPED
} layout_kind;
typedef enum link_kind {
  LINK_DEFAULT, LINK_THREAD, LINK_MPI, LINK_PROCESS, LINK_NCCL
} link_kind;
typedef enum exchange_kind {
  EXCHANGE_AUTO, EXCHANGE_RING, EXCHANGE_GATHER
} exchange_kind;

typedef struct topology {
  const char *name;
  span at;
  int64_t devices, ring, heads, batch;
  double timeout;        /* seconds */
  layout_kind layout;
  link_kind link;
  exchange_kind exchange;
} topology;

typedef struct knob {
  const char *name;
  span at;
  const char *word;      /* its value, where that is a word; NULL: numbers */
  int32_t count;
  int64_t value[8];
} knob;

typedef struct schedule {
  const char *name;
  span at;
  int32_t knob_count;
  knob *knob;
} schedule;

typedef struct kernel {
  const char *name;
  span at;
  const pattern *pattern;
  const topology *topology; /* NULL: one device */
  const schedule *schedule; /* NULL: chosen */
  bool backward;
} kernel;

/* Sizes that replace a pattern's own; 0: that of the pattern. Without kv_heads
 * a pattern that has as many of them as heads keeps that so, and without
 * value_dim one whose values are as long as its keys. */
typedef struct pattern_sizes {
  int64_t heads, kv_heads, head_dim, value_dim;
} pattern_sizes;

typedef struct program {
  int32_t pattern_count, topology_count, schedule_count, kernel_count;
  pattern **pattern;
  topology **topology;
  schedule **schedule;
  kernel **kernel;       /* implicit ones included */
  int32_t file_count;    /* what it was read from: the file, then imports */
  const char **file;
  const struct checker *checker; /* what program_resize asks again */
} program;

typedef dil_define define; /* -D name=value */
enum { DEFINE_MAX = 4096 };  /* of these that a host may give */

/* Reads `path` ("-": standard input) and its imports, parses and checks. NULL
 * when there were errors (they are in d); DIL_ENVIRONMENT through *status when
 * a file cannot be read, else DIL_INPUT. Unknown -D names are errors. */
program *program_read(arena *a, diag *d, const char *path,
                      const define *defines, int32_t define_count,
                      dil_status *status);
/* The same from text in memory; `path` only names it. */
program *program_parse(arena *a, diag *d, const char *path, const char *text,
                       size_t length, const define *defines,
                       int32_t define_count);
/* A kernel of the program whose pattern has other sizes: checked again, as if
 * the file had them. The kernel is in `a`, and lives as long as the program.
 * NULL when there were errors (they are in d). */
const kernel *program_resize(arena *a, diag *d, const program *p,
                             const kernel *own, const pattern_sizes *sizes);
/* Opens a file that the user has named, never to wait for a pipe that has no
 * writer. NULL with the reason. */
FILE *program_open(const char *path, const char **reason);
/* dil print --after tokens | ast */
dil_status program_print_tokens(const char *path, FILE *out, diag *d, arena *a);
dil_status program_print_ast(const char *path, FILE *out, diag *d, arena *a);

#endif
