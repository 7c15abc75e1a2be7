/* flight_recorder.h - the flight recorder of a rank: its last operations as
 * lines of a file that is mapped into memory, so that they are there however
 * the process ends. A run that succeeds takes its file away. */
#ifndef DIL_RUNTIME_OBSERVE_FLIGHT_RECORDER_H
#define DIL_RUNTIME_OBSERVE_FLIGHT_RECORDER_H

#include "runtime/dilrt.h"
#include <stdbool.h>

enum { FLIGHT_LINES = 1024, FLIGHT_WIDTH = 80 };

typedef struct flight {
  char *lines;      /* [FLIGHT_LINES][FLIGHT_WIDTH]; NULL: not recording */
  int64_t next;     /* operations so far */
  double start;
  char path[512];
} flight;

/* Records to PREFIX.NAME.flight; prefix NULL: nothing is recorded. */
dil_status flight_begin(flight *f, const char *prefix, int32_t name);
/* "12 0.003402 step 3 wait for 2: 4096 bytes" */
void flight_note(flight *f, int32_t step, const char *what, int32_t peer,
                 int64_t bytes);
/* The file stays when the run has failed. */
void flight_end(flight *f, bool failed);

#endif
