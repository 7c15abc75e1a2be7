/* ring_events.c - CUDA events of steps and messages; see ring_events.h. */
#include "ring_events.h"
#include "runtime/base/status.h"
#include <stdlib.h>

enum { UNTIMED = 2 };

static dil_status notes_no_memory(void) {
  return dil_fail(DIL_MEMORY, "no memory for the steps of a ring");
}

/* Adds one NULL to the end of an array of pointers. */
static bool notes_grow(void ***array, int32_t count) {
  void **grown = realloc(*array, ((size_t)count + 1) * sizeof *grown);
  if (!grown) return false;
  grown[count] = NULL;
  *array = grown;
  return true;
}

static dil_status notes_make_event(const ring_notes *n, cu_event *event,
                                   unsigned kind) {
  const cuda_driver *driver = n->gpu->driver;
  return cuda_check(driver, driver->event_new(event, kind), "make an event");
}

static dil_status notes_add_step(ring_notes *n) {
  void **all = (void **)n->step;
  step_note *made = calloc(1, sizeof *made);
  bool grown = made && notes_grow(&all, n->steps);
  n->step = (step_note **)all;
  if (!grown) {
    free(made);
    return notes_no_memory();
  }
  n->step[n->steps++] = made;
  dil_status status = notes_make_event(n, &made->begun, 0);
  return status ? status : notes_make_event(n, &made->done, 0);
}

static dil_status notes_add_message(ring_notes *n) {
  void **all = (void **)n->message;
  message_note *made = calloc(1, sizeof *made);
  bool grown = made && notes_grow(&all, n->messages);
  n->message = (message_note **)all;
  if (!grown) {
    free(made);
    return notes_no_memory();
  }
  n->message[n->messages++] = made;
  made->packed.context = made->came.context = n->gpu->context;
  made->packed.device = made->came.device = n->gpu->device;
  dil_status status = notes_make_event(n, &made->packed.event, UNTIMED);
  return status ? status : notes_make_event(n, &made->came.event, UNTIMED);
}

static dil_status notes_add_hold(ring_notes *n) {
  void **all = (void **)n->hold;
  hold_note *made = calloc(1, sizeof *made);
  bool grown = made && notes_grow(&all, n->holds);
  n->hold = (hold_note **)all;
  if (!grown) {
    free(made);
    return notes_no_memory();
  }
  n->hold[n->holds++] = made;
  dil_status status = notes_make_event(n, &made->begun, UNTIMED);
  return status ? status : notes_make_event(n, &made->done, UNTIMED);
}

void notes_begin(ring_notes *n) { n->posted = n->held = 0; }

dil_status notes_hold(ring_notes *n, hold_note **made) {
  dil_status status = n->held == n->holds ? notes_add_hold(n) : DIL_OK;
  *made = status ? NULL : n->hold[n->held++];
  return status;
}

dil_status notes_step(ring_notes *n, int32_t step, step_note **found) {
  dil_status status = DIL_OK;
  while (n->steps <= step && !status) status = notes_add_step(n);
  *found = status ? NULL : n->step[step];
  return status;
}

dil_status notes_post(ring_notes *n, int32_t slot, message_note **made) {
  dil_status status = DIL_OK;
  *made = NULL;
  if (slot >= n->slots) {
    size_t size = ((size_t)slot + 1) * sizeof *n->of_slot;
    int32_t *grown = realloc(n->of_slot, size);
    if (!grown) return notes_no_memory();
    n->of_slot = grown;
    while (n->slots <= slot) grown[n->slots++] = 0;
  }
  if (n->posted == n->messages) status = notes_add_message(n);
  if (status) return status;
  n->of_slot[slot] = n->posted;
  *made = n->message[n->posted++];
  (*made)->step = -1;
  (*made)->over = false;
  return DIL_OK;
}

message_note *notes_last(const ring_notes *n, int32_t slot) {
  return n->message[n->of_slot[slot]];
}

static void notes_free_event(const ring_notes *n, cu_event event) {
  if (event) n->gpu->driver->event_free(event);
}

void notes_free(ring_notes *n) {
  for (int32_t i = 0; i < n->steps; i++) {
    notes_free_event(n, n->step[i]->begun);
    notes_free_event(n, n->step[i]->done);
    free(n->step[i]);
  }
  for (int32_t i = 0; i < n->messages; i++) {
    notes_free_event(n, n->message[i]->packed.event);
    notes_free_event(n, n->message[i]->came.event);
    free(n->message[i]);
  }
  for (int32_t i = 0; i < n->holds; i++) {
    notes_free_event(n, n->hold[i]->begun);
    notes_free_event(n, n->hold[i]->done);
    free(n->hold[i]);
  }
  free(n->step);
  free(n->hold);
  free(n->message);
  free(n->of_slot);
}
