/* noted_driver.h - a CUDA driver without a device that only takes notes. */
#ifndef DIL_TESTS_SUPPORT_NOTED_DRIVER_H
#define DIL_TESTS_SUPPORT_NOTED_DRIVER_H

#include "runtime/cuda/device.h"
#include <stdbool.h>

enum { MEMORY = 1 << 24, OBJECTS = 16384 };

extern struct notes {
  int32_t maps, launches, ordered, fills;
  cu_pointer counters;       /* of the last launch */
  cu_pointer filled;         /* what was cleared last, in stream order */
  cu_result launch;          /* what a launch answers */
  int capture;               /* what a stream says */
  int32_t taken, events, waits; /* device memory and events alive; waits put */
  uintptr_t recorded;        /* the stream of the last event */
  bool done;                 /* what events answer */
  bool timed;                /* what events are for */
  int32_t objects;
  void (*destroy[OBJECTS])(void *);
  void *object[OBJECTS];
} notes;

extern const cuda_driver noted_driver;

/* Ends what captured graphs keep, as the driver does with the graphs. */
void noted_end_graphs(void);

#endif
