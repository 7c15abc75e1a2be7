/* status.c - statuses and the text of the last failure.
 *
 * In: a status and a printf format. Out: the text, kept for each thread by
 * itself, so that no lock and no lifetime is involved. */
#include "rt.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* One message, and the diagnostics of a whole file. */
enum { MESSAGE_SIZE = 4096, TEXT_SIZE = 16384 };

static _Thread_local char last_error[TEXT_SIZE];

int32_t dil_version(void) { return DIL_VERSION_NUM; }

const char *dil_version_text(void) { return DIL_VERSION; }

const char *dil_status_name(dil_status status) {
  switch (status) {
#define X(name, number, text) \
  case DIL_##name:            \
    return "DIL_" #name;
#include "status.def"
#undef X
  }
  return "unknown status";
}

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

dil_status dil_fail_text(dil_status status, const char *text) {
  size_t length = strlen(text);
  bool cut = length >= TEXT_SIZE;
  if (cut) length = TEXT_SIZE - 4;
  memmove(last_error, text, length); /* it may be the last text itself */
  strcpy(last_error + length, cut ? "..." : "");
  return status;
}

dil_status dil_fail(dil_status status, const char *format, ...) {
  /* The arguments may be the last text itself, so it is not written over
   * before the new one is whole. */
  char text[MESSAGE_SIZE];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (length < 0) strcpy(text, dil_status_text(status));
  if (length >= MESSAGE_SIZE) strcpy(text + MESSAGE_SIZE - 4, "...");
  return dil_fail_text(status, text);
}
