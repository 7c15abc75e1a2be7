/* message.c - the messages of the command line: errors on standard error,
 * and numbers with their units. */
#include "command.h"
#include "runtime/base/clock.h"
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

dil_status message_error(dil_status status, const char *hint,
                         const char *format, ...) {
  va_list list;
  va_start(list, format);
  fputs("dil: error: ", stderr);
  vfprintf(stderr, format, list);
  fputc('\n', stderr);
  va_end(list);
  if (hint) fprintf(stderr, "hint: %s\n", hint);
  return status;
}

void message_note(const char *format, ...) {
  va_list list;
  va_start(list, format);
  fputs("dil: note: ", stderr);
  vfprintf(stderr, format, list);
  fputc('\n', stderr);
  va_end(list);
}

/* Each context reports a fault of the cache; the program prints it once. */
void message_log(void *user, int32_t level, const char *text) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static char last[1024];
  (void)user;
  pthread_mutex_lock(&lock);
  bool again = !strncmp(last, text, sizeof last - 1);
  snprintf(last, sizeof last, "%s", text);
  pthread_mutex_unlock(&lock);
  if (again) return;
  fprintf(stderr, "dil: %s: %s\n",
          level <= DIL_LOG_ERROR ? "error" : "warning", text);
}

/* Of a failure that no line of a pattern is to blame for; NULL: none. */
static const char *hint_of(const options *o, dil_status status) {
  bool lacks = status == DIL_ENVIRONMENT && o->device.word == DEVICE_CUDA;
  return lacks ? "`dil doctor` says what is here and what is missing; without "
                 "--device a pattern runs on the processor"
               : NULL;
}

dil_status message_compiled(const options *o, const compilation *c,
                            dil_status status) {
  bool json = o->error_format == 1;
  const char *why = dil_last_error();
  if (!*why) why = dil_status_text(status);
  bool untold = status && !diag_errors(c->diag);
  if (untold && json)
    diag_report(c->diag, SEVERITY_ERROR, (span){0}, hint_of(o, status), "%s",
                why);
  diag_print(c->diag, stderr, json);
  if (untold && !json) message_error(status, hint_of(o, status), "%s", why);
  return status;
}

static atomic_bool json_lacked;

static void *json_memory(size_t size) {
  void *memory = malloc(size);
  if (!memory && size) json_lacked = true;
  return memory;
}

void message_begin_json(void) { json_set_alloc_funcs(json_memory, free); }

dil_status message_end_json(dil_status status) {
  if (status || !json_lacked) return status;
  return message_error(DIL_MEMORY, NULL, "no memory for JSON: its text is not whole");
}

void message_json(json_t *object) {
  json_dumpf(object, stdout, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
  putchar('\n');
  json_decref(object);
}

double message_clock(void) { return clock_seconds(); }
