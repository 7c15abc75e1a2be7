/* ring_events.c - CUDA events of steps and messages; see ring_events.h. */
#include "ring_events.h"
#include "runtime/base/status.h"
#include <stdlib.h>

enum { TIMED, UNTIMED = 2 };

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

/* Adds a stretch, whose events are of a kind, to the end of an array. */
static dil_status notes_add_span(const ring_notes *n, span_note ***array,
                                 int32_t *count, unsigned kind) {
  void **all = (void **)*array;
  span_note *made = calloc(1, sizeof *made);
  bool grown = made && notes_grow(&all, *count);
  *array = (span_note **)all;
  if (!grown) {
    free(made);
    return notes_no_memory();
  }
  (*array)[(*count)++] = made;
  dil_status status = notes_make_event(n, &made->begun, kind);
  return status ? status : notes_make_event(n, &made->done, kind);
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

void notes_begin(ring_notes *n) { n->posted = n->held = 0; }

dil_status notes_hold(ring_notes *n, span_note **made) {
  dil_status status = DIL_OK;
  if (n->held == n->holds)
    status = notes_add_span(n, &n->hold, &n->holds, UNTIMED);
  *made = status ? NULL : n->hold[n->held++];
  return status;
}

dil_status notes_step(ring_notes *n, int32_t step, span_note **found) {
  dil_status status = DIL_OK;
  while (n->steps <= step && !status)
    status = notes_add_span(n, &n->step, &n->steps, TIMED);
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

static void notes_free_spans(const ring_notes *n, span_note **all, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    notes_free_event(n, all[i]->begun);
    notes_free_event(n, all[i]->done);
    free(all[i]);
  }
  free(all);
}

void notes_free(ring_notes *n) {
  for (int32_t i = 0; i < n->messages; i++) {
    notes_free_event(n, n->message[i]->packed.event);
    notes_free_event(n, n->message[i]->came.event);
    free(n->message[i]);
  }
  notes_free_spans(n, n->step, n->steps);
  notes_free_spans(n, n->hold, n->holds);
  free(n->message);
  free(n->of_slot);
}
