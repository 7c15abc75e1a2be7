/* status.c - statuses and the text of the last failure.
 *
 * In: a status and a printf format. Out: the text, kept for each thread by
 * itself, so that no lock is involved. */
#include "status.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* One message, and the diagnostics of a whole file. */
enum { MESSAGE_SIZE = 4096, TEXT_SIZE = 16384 };

/* A call of the host writes to the other text, which takes the place of the
 * one shown only where the call fails. */
static _Thread_local struct {
  char text[2][TEXT_SIZE];
  int32_t shown, depth; /* calls may call each other */
} last;

int32_t dil_version(void) { return DIL_VERSION_NUM; }

const char *dil_version_text(void) { return DIL_VERSION; }

const char *dil_status_name(dil_status status) {
  switch (status) {
#define X(name, number, text) \
  case DIL_##name:            \
    return "DIL_" #name;
#include "runtime/status.def"
#undef X
  }
  return "unknown status";
}

const char *dil_status_text(dil_status status) {
  switch (status) {
#define X(name, number, text) \
  case DIL_##name:            \
    return text;
#include "runtime/status.def"
#undef X
  }
  return "unknown status";
}

const char *dil_last_error(void) {
  return last.text[last.shown];
}

static void turn(void) { last.shown = !last.shown; }

void dil_call_begin(void) {
  if (last.depth++) return;
  turn();
  *last.text[last.shown] = 0;
}

dil_status dil_call_end(dil_status status) {
  if (--last.depth == 0 && !status) turn();
  return status;
}

dil_status dil_fail_text(dil_status status, const char *text) {
  size_t length = strlen(text);
  bool cut = length >= TEXT_SIZE;
  if (cut) length = TEXT_SIZE - 4;
  char *to = last.text[last.shown];
  memmove(to, text, length); /* it may be the last text itself */
  strcpy(to + length, cut ? "..." : "");
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
