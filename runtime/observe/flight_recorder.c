/* flight_recorder.c - the flight recorder of a rank; see flight_recorder.h. */
#include "flight_recorder.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char *map_file(int file) {
  const size_t size = (size_t)FLIGHT_LINES * FLIGHT_WIDTH;
  if (ftruncate(file, (off_t)size)) return NULL;
  char *lines = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return lines == MAP_FAILED ? NULL : lines;
}

dil_status flight_recorder_begin(flight_recorder *f, const char *prefix,
                                 int32_t name) {
  *f = (flight_recorder){.start = clock_seconds()};
  if (!prefix) return DIL_OK;
  int length = snprintf(f->path, sizeof f->path, "%s.%d.flight", prefix, name);
  if (length >= (int)sizeof f->path)
    return dil_fail(DIL_USAGE, "the name '%s' is too long", prefix);
  int file = open(f->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                  0600);
  f->lines = file < 0 ? NULL : map_file(file);
  int reason = errno;
  if (file >= 0) close(file);
  if (f->lines) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "cannot record the flight in '%s': %s",
                  f->path, strerror(reason));
}

/* One line is written whole over the oldest. */
void flight_recorder_note(flight_recorder *f, int32_t step, const char *what,
                          int32_t peer, int64_t bytes) {
  char line[FLIGHT_WIDTH + 1];
  if (!f->lines) return;
  int length = snprintf(line, sizeof line, "%lld %.6f step %d %s",
                        (long long)f->next, clock_seconds() - f->start, step,
                        what);
  if (peer >= 0 && length < FLIGHT_WIDTH)
    length += snprintf(line + length, sizeof line - (size_t)length,
                       " rank %d: %lld bytes", peer, (long long)bytes);
  if (length > FLIGHT_WIDTH - 1) length = FLIGHT_WIDTH - 1;
  memset(line + length, ' ', (size_t)(FLIGHT_WIDTH - 1 - length));
  line[FLIGHT_WIDTH - 1] = '\n';
  memcpy(f->lines + f->next++ % FLIGHT_LINES * FLIGHT_WIDTH, line,
         FLIGHT_WIDTH);
}

/* A flight shorter than the file ends where its lines do. */
void flight_recorder_end(flight_recorder *f, bool failed) {
  if (!f->lines) return;
  munmap(f->lines, (size_t)FLIGHT_LINES * FLIGHT_WIDTH);
  f->lines = NULL;
  int cut = 0;
  if (!failed) unlink(f->path);
  else if (f->next < FLIGHT_LINES)
    cut = truncate(f->path, (off_t)(f->next * FLIGHT_WIDTH));
  (void)cut; /* the rest of the file is empty, which does no harm */
}
