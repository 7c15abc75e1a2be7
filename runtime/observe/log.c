/* log.c - messages to standard error or a file, as DIL_LOG wants, and to a
 * host's hook. In: a level and a text. Out: a line with time, process, thread
 * and level; each is one write, so that lines of several processes that share
 * a file stay whole. */
#include "log.h"
#include "runtime/base/environment.h"
#include "runtime/base/file_limit.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LINE_SIZE = 2048, LEVELS = DIL_LOG_DEBUG };

static const char *const level_names[LEVELS] = {"error", "warning", "info",
                                                "debug"};

_Atomic int32_t dil_log_level;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static dil_status opened;     /* of DIL_LOG; written once */
static char reason[512];      /* why not */
static int file = -1;         /* -1: DIL_LOG is not set */

/* ---- opening ------------------------------------------------------------- */

static dil_status log_open_file(const char *text) {
  char path[PATH_MAX];
  dil_status status = environment_path("DIL_LOG", text, path, sizeof path);
  if (status) return status;
  file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666);
  if (file >= 0) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "cannot write the log '%s': %s", path,
                  strerror(errno));
}

static dil_status log_follow(const char *text) {
  char level[16];
  size_t length = strcspn(text, ":");
  int32_t index = 0;
  snprintf(level, sizeof level, "%.*s", (int)(length < 16 ? length : 15), text);
  dil_status status =
      environment_word("DIL_LOG", level, level_names, LEVELS, &index);
  if (status) return status;
  if (text[length])
    status = log_open_file(text + length + 1);
  else file = STDERR_FILENO;
  if (!status) atomic_store(&dil_log_level, index + 1);
  return status;
}

static void log_open_once(void) {
  const char *text = environment_text("DIL_LOG");
  opened = text ? log_follow(text) : DIL_OK;
  if (opened) snprintf(reason, sizeof reason, "%s", dil_last_error());
}

dil_status log_open(void) {
  pthread_once(&once, log_open_once);
  return opened ? dil_fail(opened, "%s", reason) : DIL_OK;
}

/* ---- writing ------------------------------------------------------------- */

static void log_write_line(int32_t level, const char *text) {
  char line[LINE_SIZE + 128];
  struct timespec now;
  struct tm day;
  clock_gettime(CLOCK_REALTIME, &now);
  localtime_r(&now.tv_sec, &day);
  size_t head = strftime(line, 64, "%Y-%m-%dT%H:%M:%S", &day);
  int length = snprintf(line + head, sizeof line - head,
                        ".%06ld dil[%ld/%ld] %s: %s\n", now.tv_nsec / 1000,
                        (long)getpid(), (long)syscall(SYS_gettid),
                        level_names[level - 1], text);
  file_limit limit;
  file_limit_begin(&limit);
  ssize_t written = write(file, line, head + (size_t)length);
  file_limit_end(&limit);
  (void)written; /* a log that cannot be written has nowhere to say so */
}

void dil_log_write(const log_target *target, int32_t level, const char *format,
                   ...) {
  char text[LINE_SIZE];
  int kept = errno;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  for (char *c = text; *c; c++)
    if (*c == '\n') *c = ' ';
  if (level <= dil_log_level) log_write_line(level, text);
  if (target && level <= target->level) target->hook(target->user, level, text);
  errno = kept;
}
