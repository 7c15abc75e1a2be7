/* diag.h - located messages for a user. */
#ifndef DIL_COMPILER_BASE_DIAG_H
#define DIL_COMPILER_BASE_DIAG_H

#include "arena.h"
#include <stdio.h>

typedef struct source {
  const char *path;  /* as the user wrote it */
  const char *text;
  size_t length;
  int32_t index;     /* in the order of reading */
} source;

/* A byte range of a source; source NULL: no location (the command line). */
typedef struct span {
  const source *source;
  int32_t start, end;
} span;

typedef enum severity { SEVERITY_ERROR, SEVERITY_WARNING } severity;

/* Gathers messages; at most 20 errors are kept, then `full`. */
typedef struct diag diag;
diag *diag_new(arena *a);
/* hint may be NULL. Messages: lower case, no full stop, the value in them. */
void diag_report(diag *d, severity level, span at, const char *hint,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));
int diag_errors(const diag *d);
bool diag_full(const diag *d);
/* "longnet.dil:12:5"; "" where there is no location. */
const char *diag_location(arena *a, span at);
/* Writes all messages, in order of location: text with caret lines, or one JSON
 * object a line. */
void diag_print(const diag *d, FILE *out, bool json);
/* The nearest of count names within a third of its length, or NULL. */
const char *diag_nearest(const char *name, const char *const *names,
                         int32_t count);
/* "x, y, z", as many as there is room for. */
enum { DIAG_LIST = 140 };
const char *diag_list(const char *const *names, int32_t count,
                      char text[DIAG_LIST]);
/* For the end of a message: ", did you mean 'x'?", or where none is near
 * "; it has x, y". */
enum { DIAG_GUESS = DIAG_LIST + 12 };
const char *diag_guess(const char *name, const char *const *names,
                       int32_t count, char text[DIAG_GUESS]);
/* A text for JSON: null for NULL; bytes that are not UTF-8 become '?'. */
struct json_t *diag_json(const char *text);

#endif
