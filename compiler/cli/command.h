/* command.h - declarations that the files of the command line share: the
 * options as one struct, the subcommands, messages and progress. Nothing
 * outside of main.c, options*.c, command_*.c and their helpers includes it. */
#ifndef DIL_COMPILER_CLI_COMMAND_H
#define DIL_COMPILER_CLI_COMMAND_H

#include "compiler/base/quantity.h"
#include "compiler/driver.h"
#include "compiler/front/program.h"
#include "runtime/cpu/isa.h"
#include "runtime/observe/watch.h"
#include <pthread.h>
#include <time.h>

/* ---- options.c ----------------------------------------------------------- */

typedef enum verb {
#define VERB(id, name, operand, summary, examples) VERB_##id,
#include "options.def"
  VERB_COUNT
} verb;

typedef enum option_id {
#define OPTION(id, name, letter, argument, kind, field, verbs, help)           \
  OPTION_##id,
#include "options.def"
  OPTION_COUNT
} option_id;

typedef struct settings { /* NAME=VALUE, in the order given */
  int32_t count;
  define *pair;
} settings;

typedef struct counts { /* "8192,131072" */
  int32_t count;
  int64_t *number;
} counts;

typedef struct sets { /* one bit set for each time the option was given */
  int32_t count;
  unsigned *set;
} sets;

typedef struct device_choice {
  int32_t word, number;
  bool numbered;         /* the number was given */
} device_choice;
enum { DEVICE_CPU, DEVICE_ORACLE, DEVICE_CUDA }; /* words of --device */

/* The kinds of arguments, and the type of the field each is kept in. Integers
 * are read as environment_read_number has them: "64k", "1e6". */
#define OPTION_KINDS(X)                                                        \
  X(FLAG, bool)                                                                \
  X(COUNT, int64_t)    /* 0 .. 2^31 - 1 */                                     \
  X(POSITIVE, int64_t) /* 1 .. 2^31 - 1 */                                     \
  X(LENGTH, int64_t)   /* 0 .. DIL_LENGTH_MAX */                               \
  X(THREADS, int64_t)  /* 1 .. THREADS_MAX */                                  \
  X(WORD, uint32_t)    /* 0 .. 2^32 - 1 */                                     \
  X(SEED, uint64_t)    /* 0 .. 2^64 - 1 */                                     \
  X(COUNTS, counts)    /* a LENGTH each, apart by commas */                     \
  X(REAL, double)                                                              \
  X(TEXT, const char *)                                                        \
  X(CHOICE, int32_t) /* index of the word in the argument's list */            \
  X(DEVICE, device_choice) /* the same, and a number after a colon */          \
  X(SET, sets)       /* bits by the words of the argument's list */            \
  X(PAIR, settings)                                                            \
  X(ROOM, int64_t)   /* bytes, "4G"; may be left out, then 0 */

typedef struct options {
  verb verb;
  bool seen[OPTION_COUNT];
  int32_t file_count;
  const char **file;
  const char *kernel, *topology, *state, *array[3], *lengths, *offsets,
      *key_offsets, *pages, *out, *lse, *selection, *cpu,
      *cuda;
  const char *d_o, *dlse, *gradient[3];
  const char *library, *name, *depend_file, *max_size;
  settings define, input, grad;
  sets force, emit, dtype;
  int64_t seq, keys, batch, head, query, threads, repeat, every, stream;
  int64_t heads, kv_heads, head_dim, value_dim;
  uint32_t random;
  uint64_t seed;
  double scale;
  int32_t after, from, variant, error_format, as;
  device_choice device;
  counts sizes;
  double budget;
  bool train, check, json, help, standalone, list_outputs, depend, no_wisdom;
  bool list, resume, shrink, backward;
} options;

/* Reads argv after the verb. DIL_USAGE when it is wrong; it has said why. */
dil_status options_read(arena *a, verb which, int argc, char **argv,
                        options *o);
verb options_verb(const char *name); /* VERB_COUNT: there is none such */
void options_help(FILE *out);        /* of the whole program */
void options_verb_help(verb which, FILE *out);
const char *options_verb_nearest(const char *name); /* or NULL */
unsigned sets_union(const sets *list);    /* all bits of all times */
unsigned options_force(const options *o); /* those of --force */
/* Word `index` of an option's list "a|b|c". */
const char *options_word(arena *a, option_id option, int32_t index);
/* Rows of the table, for completions: option `index` as verb `which` has it;
 * false when it has not. */
typedef struct option_text {
  const char *dashes;                 /* "--", or "-" as C compilers have it */
  const char *name, *argument, *help; /* argument NULL: takes none */
  const char *optional;               /* an argument that may be left out */
  char letter;                        /* 0: none */
  bool words;                         /* the argument is "a|b|c" */
} option_text;
bool options_text(verb which, int32_t index, option_text *text);
typedef struct verb_text {
  const char *name, *operand, *summary, *examples;
} verb_text;
verb_text options_verb_text(verb which);

/* ---- message.c ----------------------------------------------------------- */

/* "dil: error: ..." and, unless hint is NULL, "hint: ...", to standard error.
 * Returns `status`. */
dil_status message_error(dil_status status, const char *hint,
                         const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* "dil: note: ...": what was done that nobody asked for in so many words. */
void message_note(const char *format, ...)
    __attribute__((format(printf, 1, 2)));
/* Prints the library's log messages, as a context's log hook: "dil: warning:
 * ..." to standard error. */
void message_log(void *user, int32_t level, const char *text);
/* The diagnostics of a compilation and, when it failed without one, the text
 * of the failure. Returns `status`. */
dil_status message_compiled(const options *o, const compilation *c,
                            dil_status status);
/* A result on a line of standard output; the object is given up. */
void message_json(struct json_t *object);
/* Between the two the program notes where memory for JSON lacks. The second makes a
 * failure of that, unless `status` is one already. */
void message_begin_json(void);
dil_status message_end_json(dil_status status);
double message_clock(void); /* seconds of a steady clock */

/* ---- progress.c ---------------------------------------------------------- */

/* A bar on standard error when that is a terminal and the work takes longer
 * than half a second; nothing otherwise. It stands for `rounds` of `total`
 * each; without a total, and where a call that is given the watch does not set
 * one, a single round shows the time that has passed. Work that begins within
 * other work has the line until it ends. progress_add may come from any thread.
 */
typedef struct progress {
  const char *label;
  dil_watch watch; /* of the round under way */
  int32_t rounds;
  _Atomic int32_t round; /* that are done */
  double start;
  struct progress *outer;
  bool shown; /* its thread runs */
  bool drawn; /* a line is there to wipe */
  bool ended; /* the thread shall end; under the lock */
  struct timespec began;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t end;
} progress;
void progress_start(progress *p, const char *label, int64_t total,
                    int32_t rounds);
void progress_add(progress *p, int64_t count);
void progress_round(progress *p); /* one is done */
void progress_end(progress *p);   /* wipes the bar */

/* ---- command_*.c --------------------------------------------------------- */

#define VERB(id, name, operand, summary, examples)                             \
  dil_status command_##id(arena *a, const options *o);
#include "options.def"

/* The first chip of a list "sm_80,sm_90a", and the list after it. DIL_USAGE
 * when there is none; it has said so. */
dil_status command_arch(const char **list, int32_t *arch);
/* The request that the options of any subcommand make for file `index`. */
driver_request command_request(const options *o, int32_t index);

#endif
