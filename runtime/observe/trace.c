/* trace.c - gathers spans and writes them as Chrome's trace event format.
 *
 * In: spans from any thread. Out: a JSON object with a list "traceEvents",
 * times in microseconds. Each thread gathers in a buffer of its own; a full
 * one is written at once, so that memory stays bounded. The end of the list is
 * written again after each batch, so that the file is whole between them. */
#include "trace.h"
#include "log.h"
#include "runtime/base/environment.h"
#include "runtime/base/file_limit.h"
#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPANS = 1024, LINES_MAX = 64, TEXT_SIZE = 32 };

typedef struct span_record {
  int64_t begin, end;
  const char *category, *name;
  int64_t number;
  int32_t line;
  char text[TEXT_SIZE];
} span_record;

typedef struct trace_buffer {
  struct trace_buffer *next; /* of all; never unlinked */
  pthread_mutex_t lock;
  atomic_bool taken;            /* by a thread that lives */
  int32_t line;                 /* the thread's */
  int32_t count;
  span_record span[SPANS];
} trace_buffer;

atomic_bool dil_trace_on;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static dil_status opened;
static char reason[512];
static pid_t process;           /* that opened the file: a child writes none */
static pthread_key_t key;
static _Atomic(trace_buffer *) buffers;

static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;           /* guarded, with all below */
static off_t tail;              /* where the end of the list begins */
static bool any, failed;
static char *line_name[LINES_MAX]; /* lines that are no threads, by number */

/* ---- the file ------------------------------------------------------------ */

static bool trace_put_bytes(const char *bytes, size_t size, off_t at) {
  while (size > 0) {
    ssize_t count = pwrite(file, bytes, size, at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes += count;
    size -= (size_t)count;
    at += count;
  }
  return true;
}

static dil_status trace_write_bytes(const char *bytes, size_t size, off_t at) {
  file_limit limit;
  file_limit_begin(&limit);
  bool good = trace_put_bytes(bytes, size, at);
  file_limit_end(&limit);
  if (good) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "cannot write the trace: %s",
                  strerror(errno));
}

/* Text for a JSON string: what is not plain ASCII becomes a blank. */
static const char *plain_text(const char *text, char out[2 * TEXT_SIZE]) {
  size_t used = 0;
  for (; *text && used < 2 * TEXT_SIZE - 2; text++) {
    bool odd = *text < ' ' || *text > '~';
    if (*text == '"' || *text == '\\') out[used++] = '\\';
    out[used++] = odd ? ' ' : *text;
  }
  out[used] = 0;
  return out;
}

static void put_separator(FILE *out) {
  fputs(any ? ",\n" : "\n", out);
  any = true;
}

static void put_span(FILE *out, const span_record *s) {
  char text[2 * TEXT_SIZE];
  put_separator(out);
  fprintf(out,
          "{\"ph\":\"X\",\"cat\":\"%s\",\"name\":\"%s\",\"pid\":%ld,"
          "\"tid\":%d,\"ts\":%lld.%03d,\"dur\":%lld.%03d",
          s->category, s->name, (long)process, (int)s->line,
          (long long)(s->begin / 1000), (int)(s->begin % 1000),
          (long long)((s->end - s->begin) / 1000),
          (int)((s->end - s->begin) % 1000));
  if (s->text[0] && s->number >= 0)
    fprintf(out, ",\"args\":{\"of\":\"%s\",\"number\":%lld}",
            plain_text(s->text, text), (long long)s->number);
  else if (s->text[0])
    fprintf(out, ",\"args\":{\"of\":\"%s\"}", plain_text(s->text, text));
  else if (s->number >= 0)
    fprintf(out, ",\"args\":{\"number\":%lld}", (long long)s->number);
  fputc('}', out);
}

static void trace_put_name(FILE *out, const char *kind, int32_t line,
                           const char *name) {
  char text[2 * TEXT_SIZE];
  put_separator(out);
  fprintf(out,
          "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%ld,\"tid\":%d,"
          "\"args\":{\"name\":\"%s\"}}",
          kind, (long)process, (int)line, plain_text(name, text));
}

/* The text that `put` writes, then the end of the list. Under file_lock. */
static dil_status trace_append(void (*put)(FILE *, const void *),
                               const void *what) {
  static const char end[] = "\n]}\n";
  char *text = NULL;
  size_t size = 0;
  if (file < 0 || process != process_own()) return DIL_OK;
  FILE *out = open_memstream(&text, &size);
  if (out) put(out, what);
  if (out) fputs(end, out);
  bool good = out && fclose(out) == 0;
  dil_status status = good ? trace_write_bytes(text, size, tail)
                           : dil_fail(DIL_MEMORY, "no memory for the trace");
  if (!status) tail += (off_t)(size - strlen(end));
  free(text);
  if (status && !failed) LOG(NULL, DIL_LOG_ERROR, "%s", dil_last_error());
  failed |= status != DIL_OK;
  return status;
}

/* ---- opening ------------------------------------------------------------- */

static void put_process(FILE *out, const void *name) {
  trace_put_name(out, "process_name", 0, name);
}

static dil_status trace_open_file(const char *text) {
  static const char begin[] = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
  char path[PATH_MAX];
  dil_status status = environment_path("DIL_TRACE", text, path, sizeof path);
  if (status) return status;
  file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666);
  if (file < 0)
    return dil_fail(DIL_ENVIRONMENT, "cannot write the trace '%s': %s", path,
                    strerror(errno));
  status = trace_write_bytes(begin, strlen(begin), 0);
  tail = (off_t)strlen(begin);
  return status ? status : trace_append(put_process, "dil");
}

static void trace_leave(void *mine) {
  atomic_store(&((trace_buffer *)mine)->taken, false);
}

static void trace_open_once(void) {
  const char *text = environment_text("DIL_TRACE");
  if (!text) return;
  process = process_own();
  opened = trace_open_file(text);
  if (!opened && pthread_key_create(&key, trace_leave))
    opened = dil_fail(DIL_ENVIRONMENT, "no room for a trace in threads");
  if (opened) snprintf(reason, sizeof reason, "%s", dil_last_error());
  atomic_store(&dil_trace_on, !opened);
}

dil_status trace_open(void) {
  pthread_once(&once, trace_open_once);
  return opened ? dil_fail(opened, "%s", reason) : DIL_OK;
}

/* This library may be unloaded before its threads end. */
__attribute__((destructor)) static void close_key(void) {
  if (atomic_load(&dil_trace_on)) pthread_key_delete(key);
}

/* ---- gathering ----------------------------------------------------------- */

int64_t dil_trace_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int32_t thread_line(void) { return (int32_t)syscall(SYS_gettid); }

/* One that a thread has left, or a new one; NULL without memory. */
static trace_buffer *take_buffer(void) {
  trace_buffer *b = atomic_load(&buffers);
  for (; b; b = b->next) {
    bool none = false;
    if (atomic_compare_exchange_strong(&b->taken, &none, true)) break;
  }
  if (!b) {
    b = calloc(1, sizeof *b);
    if (!b) return NULL;
    pthread_mutex_init(&b->lock, NULL);
    atomic_store(&b->taken, true);
    b->next = atomic_load(&buffers);
    while (!atomic_compare_exchange_weak(&buffers, &b->next, b)) continue;
  }
  pthread_mutex_lock(&b->lock);
  b->line = thread_line();
  pthread_mutex_unlock(&b->lock);
  pthread_setspecific(key, b);
  return b;
}

static void put_buffer(FILE *out, const void *what) {
  const trace_buffer *b = what;
  for (int32_t i = 0; i < b->count; i++) put_span(out, &b->span[i]);
}

/* Under the buffer's lock. */
static dil_status write_buffer(trace_buffer *b) {
  if (b->count == 0) return DIL_OK;
  pthread_mutex_lock(&file_lock);
  dil_status status = trace_append(put_buffer, b);
  pthread_mutex_unlock(&file_lock);
  b->count = 0;
  return status;
}

static void trace_gather(span_record s, const char *text, int32_t line) {
  trace_buffer *b = pthread_getspecific(key);
  if (!b && !(b = take_buffer())) return;
  if (text) snprintf(s.text, sizeof s.text, "%s", text);
  pthread_mutex_lock(&b->lock);
  s.line = line ? line : b->line;
  b->span[b->count++] = s;
  if (b->count == SPANS) write_buffer(b);
  pthread_mutex_unlock(&b->lock);
}

void dil_trace_add(int64_t begin, const char *category, const char *name,
                   const char *text, int64_t number) {
  if (!tracing()) return;
  trace_gather((span_record){.begin = begin,
                             .end = dil_trace_now(),
                             .category = category,
                             .name = name,
                             .number = number},
               text, 0);
}

static void put_line(FILE *out, const void *index) {
  int32_t i = *(const int32_t *)index;
  trace_put_name(out, "thread_name", i + 1, line_name[i]);
}

/* The number of a line by its name, from 1 on; 0: there is no more room. */
static int32_t find_line(const char *name) {
  int32_t i = 0;
  pthread_mutex_lock(&file_lock);
  while (i < LINES_MAX && line_name[i] && strcmp(line_name[i], name)) i++;
  if (i < LINES_MAX && !line_name[i] && (line_name[i] = strdup(name)))
    trace_append(put_line, &i);
  bool found = i < LINES_MAX && line_name[i];
  pthread_mutex_unlock(&file_lock);
  return found ? i + 1 : 0;
}

void dil_trace_add_line(const char *line, int64_t begin, int64_t end,
                        const char *category, const char *name,
                        const char *text, int64_t number) {
  if (!tracing()) return;
  trace_gather((span_record){.begin = begin,
                             .end = end,
                             .category = category,
                             .name = name,
                             .number = number},
               text, find_line(line));
}

static void put_thread(FILE *out, const void *name) {
  trace_put_name(out, "thread_name", thread_line(), name);
}

void dil_trace_name_thread(const char *name) {
  if (!tracing()) return;
  pthread_mutex_lock(&file_lock);
  trace_append(put_thread, name);
  pthread_mutex_unlock(&file_lock);
}

dil_status trace_flush(void) {
  dil_status status = DIL_OK;
  if (!tracing() || process != process_own()) return DIL_OK;
  for (trace_buffer *b = atomic_load(&buffers); b; b = b->next) {
    pthread_mutex_lock(&b->lock);
    dil_status now = write_buffer(b);
    pthread_mutex_unlock(&b->lock);
    if (!status) status = now;
  }
  return status;
}
