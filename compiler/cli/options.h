/* options.h - a row of the table of options, as the files that read command
 * lines share it. */
#ifndef DIL_COMPILER_CLI_OPTIONS_H
#define DIL_COMPILER_CLI_OPTIONS_H

#include "command.h"

typedef enum option_kind {
#define X(name, type) KIND_##name,
  OPTION_KINDS(X)
#undef X
} option_kind;

typedef struct option_row {
  const char *name;
  char letter;
  const char *argument;
  option_kind kind;
  size_t offset;
  unsigned verbs; /* bit v: verb v has it */
  const char *help;
} option_row;

/* ---- options_argument.c -------------------------------------------------- */

/* Reads `text`, NULL where the option has none, into the option's field.
 * DIL_USAGE when it is wrong; it has said so. */
dil_status option_read(arena *a, const option_row *row, const char *text,
                       void *field);

#endif
