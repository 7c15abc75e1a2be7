/* ring_events.h - the CUDA events of a rank's run: at the begin and end of each
 * step, where each message is packed and has come, and around each wait of passes.
 * In: steps, and slots of a link in the order of their posts. Out: events, which
 * later runs reuse. */
#ifndef DIL_RUNTIME_CUDA_RING_RING_EVENTS_H
#define DIL_RUNTIME_CUDA_RING_RING_EVENTS_H

#include "runtime/cuda/device.h"

/* An event with its context, for ranks on other devices. */
typedef struct shared_event {
  cu_event event;
  cu_context context;
  cu_device device;
} shared_event;

/* A stretch of the passes' stream: a step, timed, or waits for other streams, in
 * which passes are held up. */
typedef struct span_note {
  cu_event begun, done;
  bool ran;                /* of a step: both are recorded in this run */
} span_note;

typedef struct message_note {
  shared_event packed, came; /* on its lane's stream */
  cu_stream stream;        /* of its lane */
  int32_t peer;            /* the rank whose message comes, else the rank that
                              takes this one; -1: none */
  int32_t step;            /* the first step whose passes wait for it; -1: none so
                              far */
  bool over;               /* it is known to have come */
} message_note;

/* The address of a note stays valid until notes_free. */
typedef struct ring_notes {
  dil_cuda *gpu;
  span_note **step;
  int32_t steps;
  message_note **message;  /* in the order of the posts */
  int32_t messages, posted; /* allocated; used in this run */
  span_note **hold;        /* in their order */
  int32_t holds, held;     /* allocated; used in this run */
  int32_t *of_slot;        /* index of the last message of each slot */
  int32_t slots;
} ring_notes;

/* A run begins: no message has been posted, and passes have not been held up. */
void notes_begin(ring_notes *n);
/* The note of a step; the first run makes it. */
dil_status notes_step(ring_notes *n, int32_t step, span_note **found);
/* A note for a message that is posted to a slot. */
dil_status notes_post(ring_notes *n, int32_t slot, message_note **made);
/* A note for waits of the passes. */
dil_status notes_hold(ring_notes *n, span_note **made);
/* The note of the last message that was posted to a slot. */
message_note *notes_last(const ring_notes *n, int32_t slot);
void notes_free(ring_notes *n);

#endif
