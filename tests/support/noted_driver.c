/* noted_driver.c - every call succeeds at once, unless the notes say otherwise;
 * what tests ask about (maps, launches, events, memory) is counted in them. */
#include "noted_driver.h"
#include "runtime/cuda/launch/counters.h"
#include "templates/hopper/hopper_launch.h"
#include <check.h>
#include <string.h>

struct notes notes;

static cu_result push(cu_context c) { return (void)c, 0; }
static cu_result pop(cu_context *c) { return *c = NULL, 0; }
static cu_result take(cu_pointer *p, size_t size) {
  notes.taken++;
  return *p = (cu_pointer)MEMORY * (cu_pointer)notes.taken, (void)size, 0;
}
static cu_result give(cu_pointer p) {
  notes.taken--;
  return (void)p, 0;
}
static cu_result fill(cu_pointer p, unsigned char byte, size_t size) {
  return (void)p, (void)byte, (void)size, 0;
}
static cu_result take_ordered(cu_pointer *p, size_t size, cu_stream stream) {
  notes.ordered++;
  return *p = 2 * MEMORY, (void)size, (void)stream, 0;
}
static cu_result give_ordered(cu_pointer p, cu_stream stream) {
  notes.ordered--;
  return (void)p, (void)stream, 0;
}
static cu_result fill_ordered(cu_pointer p, unsigned char byte, size_t size,
                              cu_stream stream) {
  ck_assert_uint_eq(byte, 0);
  ck_assert_uint_eq(size, COUNTER_BYTES);
  notes.fills++;
  notes.filled = p;
  return (void)stream, 0;
}
static cu_result library_load(cu_library *library, const void *bytes,
                              int *options, void **values, unsigned count,
                              int *more, void **others, unsigned rest) {
  (void)bytes, (void)options, (void)values, (void)count;
  (void)more, (void)others, (void)rest;
  return *library = NULL, 0;
}
static cu_result library_unload(cu_library library) { return (void)library, 0; }
static cu_result library_kernel(cu_kernel *found, cu_library library,
                                const char *name) {
  return *found = NULL, (void)library, (void)name, 0;
}
static cu_result kernel_function(cu_function *function, cu_kernel of) {
  return *function = NULL, (void)of, 0;
}
static cu_result function_set(cu_function function, int what, int to) {
  return (void)function, (void)what, (void)to, 0;
}
static cu_result launch(cu_function function, unsigned x, unsigned y,
                        unsigned z, unsigned a, unsigned b, unsigned c,
                        unsigned shared, cu_stream stream, void **arguments,
                        void **extra) {
  (void)function, (void)x, (void)y, (void)z, (void)a, (void)b, (void)c;
  (void)shared, (void)stream, (void)extra;
  const hopper_launch *l = arguments[0];
  notes.counters = (cu_pointer)(uintptr_t)l->counters;
  notes.launches++;
  return notes.launch;
}
static cu_result stream_number(cu_stream stream, unsigned long long *number) {
  return *number = (uintptr_t)stream, 0;
}
static cu_result capture(cu_stream stream, int *status,
                         unsigned long long *number, cu_graph *graph,
                         const void **nodes, size_t *count) {
  (void)stream, (void)number, (void)nodes, (void)count;
  return *status = notes.capture, *graph = NULL, 0;
}
static cu_result capture_mode(int *mode) {
  (void)mode;
  return 0;
}
static cu_result object_new(cu_object *object, void *what,
                            void (*destroy)(void *), unsigned references,
                            unsigned flags) {
  (void)references, (void)flags;
  notes.object[notes.objects] = what;
  notes.destroy[notes.objects++] = destroy;
  return *object = NULL, 0;
}
static cu_result graph_keep(cu_graph graph, cu_object object, unsigned count,
                            unsigned flags) {
  return (void)graph, (void)object, (void)count, (void)flags, 0;
}
static cu_result event_new(cu_event *event, unsigned flags) {
  ck_assert_uint_eq(flags, notes.timed ? 0 : 2); /* 2: no timing */
  notes.events++;
  return *event = (cu_event)(uintptr_t)(16 * notes.events), 0;
}
static cu_result event_record(cu_event event, cu_stream stream) {
  notes.recorded = (uintptr_t)stream;
  return (void)event, 0;
}
static cu_result event_query(cu_event event) {
  enum { NOT_READY = 600 };
  return (void)event, notes.done ? 0 : NOT_READY;
}
static cu_result event_wait(cu_event event) { return (void)event, 0; }
/* Events are numbered in the order they are made in: an origin, then pairs. */
static cu_result event_time(float *milliseconds, cu_event from, cu_event to) {
  return *milliseconds = (float)((uintptr_t)to - (uintptr_t)from) / 16, 0;
}
static cu_result event_free(cu_event event) {
  notes.events--;
  return (void)event, 0;
}
static cu_result stream_wait(cu_stream stream, cu_event event, unsigned flags) {
  notes.waits++;
  return (void)stream, (void)event, (void)flags, 0;
}
static cu_result error_text(cu_result result, const char **text) {
  return *text = "as told", (void)result, 0;
}
static cu_result tensor_map(void *map, int type, unsigned rank, void *from,
                            const uint64_t *size, const uint64_t *stride,
                            const unsigned *box, const unsigned *step,
                            int interleave, int swizzle, int promotion,
                            int rest) {
  (void)type, (void)size, (void)stride, (void)box, (void)step;
  (void)interleave, (void)swizzle, (void)promotion, (void)rest;
  ck_assert_uint_eq(rank, 5);
  memcpy(map, &from, sizeof from); /* tells whose map it is */
  notes.maps++;
  return 0;
}

static cu_result wait(cu_stream stream) {
  (void)stream;
  return 0;
}

const cuda_driver noted_driver = {
    .push = push,
    .pop = pop,
    .take = take,
    .give = give,
    .fill = fill,
    .wait = wait,
    .take_ordered = take_ordered,
    .give_ordered = give_ordered,
    .fill_ordered = fill_ordered,
    .library_load = library_load,
    .library_unload = library_unload,
    .library_kernel = library_kernel,
    .kernel_function = kernel_function,
    .function_set = function_set,
    .launch = launch,
    .stream_number = stream_number,
    .capture = capture,
    .capture_mode = capture_mode,
    .object_new = object_new,
    .graph_keep = graph_keep,
    .event_new = event_new,
    .event_record = event_record,
    .event_query = event_query,
    .event_free = event_free,
    .stream_wait = stream_wait,
    .event_wait = event_wait,
    .event_time = event_time,
    .error_text = error_text,
    .tensor_map = tensor_map};

void noted_end_graphs(void) {
  for (int32_t i = 0; i < notes.objects; i++)
    notes.destroy[i](notes.object[i]);
  notes.objects = 0;
}
