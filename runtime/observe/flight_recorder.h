/* flight_recorder.h - the flight recorder of a rank: its last operations as
 * lines of a file that is mapped into memory, so that they are there however
 * the process ends. A run that succeeds takes its file away. */
#ifndef DIL_RUNTIME_OBSERVE_FLIGHT_RECORDER_H
#define DIL_RUNTIME_OBSERVE_FLIGHT_RECORDER_H

#include "runtime/dilrt.h"
#include <stdbool.h>

enum { FLIGHT_LINES = 1024, FLIGHT_WIDTH = 80 };

typedef struct flight_recorder {
  char *lines;      /* [FLIGHT_LINES][FLIGHT_WIDTH]; NULL: not recording */
  int64_t next;     /* operations so far */
  double start;
  char path[512];
} flight_recorder;

/* Records to PREFIX.NAME.flight; prefix NULL: nothing is recorded. */
dil_status flight_recorder_begin(flight_recorder *f, const char *prefix,
                                 int32_t name);
/* "12 0.003402 step 3 wait for 2: 4096 bytes" */
void flight_recorder_note(flight_recorder *f, int32_t step, const char *what,
                          int32_t peer, int64_t bytes);
/* The file stays when the run has failed. */
void flight_recorder_end(flight_recorder *f, bool failed);

#endif
