/* status.c - statuses and the text of the last failure.
 *
 * In: a status and a printf format. Out: the text, kept for each thread by
 * itself, so that no lock and no lifetime is involved. */
#include "rt.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_SIZE = 4096 };

static _Thread_local char last_error[TEXT_SIZE];

const char *dil_status_text(dil_status status) {
  switch (status) {
#define X(name, number, text) \
  case DIL_##name:            \
    return text;
#include "status.def"
#undef X
  }
  return "unknown status";
}

const char *dil_last_error(void) {
  return last_error;
}

dil_status dil_fail(dil_status status, const char *format, ...) {
  /* The arguments may be the last text itself, so it is not written over
   * before the new one is whole. */
  char text[TEXT_SIZE];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (length < 0) strcpy(text, dil_status_text(status));
  if (length >= TEXT_SIZE) strcpy(text + TEXT_SIZE - 4, "...");
  strcpy(last_error, text);
  return status;
}
