/* ring_notes.h - what a rank on a GPU notes of a run: where streams stand at the
 * begin and end of each step, and where each message is whole. In: steps, and
 * slots of a link as they are posted to. Out: events, kept from run to run. */
#ifndef DIL_RING_NOTES_H
#define DIL_RING_NOTES_H

#include "device.h"

/* Where a stream stands, for whoever has another context. */
typedef struct mark_of {
  cu_event event;
  cu_context context;
  cu_device device;
} mark_of;

typedef struct step_note {
  cu_event begun, done;    /* of the passes' stream, timed */
  bool ran;
} step_note;

typedef struct message_note {
  mark_of packed, came;    /* of the messages' stream */
  bool expects;            /* something is to come */
  int32_t from;
  int32_t step;            /* that waits for it; -1: none so far */
} message_note;

/* Addresses of notes stay until notes_free. */
typedef struct ring_notes {
  dil_cuda *gpu;
  step_note **step;
  int32_t steps;
  message_note **message;  /* in the order of posting */
  int32_t messages, posted; /* made; of this run */
  int32_t *of_slot;        /* the last message of each slot */
  int32_t slots;
} ring_notes;

/* A run begins. */
void notes_begin(ring_notes *n);
/* Of a step; the first run makes them. */
dil_status notes_step(ring_notes *n, int32_t step, step_note **found);
/* A message that is posted to a slot; the one that was posted there last. */
dil_status notes_post(ring_notes *n, int32_t slot, message_note **made);
message_note *notes_last(const ring_notes *n, int32_t slot);
void notes_free(ring_notes *n);

#endif
