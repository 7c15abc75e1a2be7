/* counters.c - tile counters of launches that may overlap.
 *
 * In: the stream of a launch. Out: COUNTER_BYTES of memory that are zero when
 * the launch begins and that no concurrent launch uses. The launches of one
 * stream run one after the other and share a counter, which each launch leaves
 * at zero. A captured launch may run at any time, any number of times: it keeps
 * a counter of its own until the graph and its copies are freed. When all
 * counters are lent, a launch takes one by a stream-ordered allocation. */
#include "counters.h"
#include "runtime/base/status.h"
#include <pthread.h>
#include <stdlib.h>

enum {
  STREAMS = 4096,          /* a power of two; a stream keeps its counter */
  CAPTURES = 12288,
  SLOTS = STREAMS + CAPTURES
};

struct cuda_counters {
  const cuda_driver *driver;
  pthread_mutex_t lock;
  cu_pointer memory;                  /* SLOTS of COUNTER_BYTES */
  int32_t holders;                    /* the device, and captured launches */
  int32_t stream_count;
  unsigned long long stream[STREAMS]; /* numbers by hash; 0: free */
  bool spoiled[STREAMS];              /* to be cleared before its next use */
  int32_t free_count;
  int32_t free_slot[CAPTURES];
};

dil_status counters_new(const cuda_driver *driver, cuda_counters **counters) {
  cuda_counters *c = calloc(1, sizeof *c);
  if (!c) return dil_fail(DIL_MEMORY, "no memory for tile counters");
  const size_t size = (size_t)SLOTS * COUNTER_BYTES;
  cu_result result = driver->take(&c->memory, size);
  if (!result) result = driver->fill(c->memory, 0, size);
  if (!result) result = driver->wait(NULL); /* launches may be on any stream */
  if (result) {
    if (c->memory) driver->give(c->memory);
    free(c);
    return cuda_check(driver, result, "take memory for tile counters");
  }
  c->driver = driver;
  c->holders = 1;
  pthread_mutex_init(&c->lock, NULL);
  for (int32_t i = 0; i < CAPTURES; i++) c->free_slot[i] = SLOTS - 1 - i;
  c->free_count = CAPTURES;
  *counters = c;
  return DIL_OK;
}

static void counters_release(cuda_counters *c, int32_t slot) {
  pthread_mutex_lock(&c->lock);
  if (slot >= 0) c->free_slot[c->free_count++] = slot;
  bool last = --c->holders == 0;
  pthread_mutex_unlock(&c->lock);
  if (!last) return;
  pthread_mutex_destroy(&c->lock);
  free(c);
}

/* Graphs that still exist keep the host's struct, since the driver tells it
 * when they are freed. Those graphs can run no more. */
void counters_free(cuda_counters *c) {
  c->driver->give(c->memory);
  counters_release(c, -1);
}

/* ---- captured launches --------------------------------------------------- */

typedef struct counter_loan {
  cuda_counters *counters;
  int32_t slot;
} counter_loan;

/* The driver calls this function, which may not call the driver. */
static void counters_end_loan(void *object) {
  counter_loan *l = object;
  counters_release(l->counters, l->slot);
  free(l);
}

/* Takes a slot, which returns with the last copy of the graph; -1: no slot is
 * free. */
static int32_t counters_take_captured(cuda_counters *c) {
  pthread_mutex_lock(&c->lock);
  int32_t slot = c->free_count ? c->free_slot[--c->free_count] : -1;
  c->holders += slot >= 0;
  pthread_mutex_unlock(&c->lock);
  return slot;
}

static dil_status counters_lend(cuda_counters *c, cu_graph graph,
                                int32_t slot) {
  enum { NO_SYNC = 1, MOVE = 1 };
  cu_object object = NULL;
  counter_loan *l = malloc(sizeof *l);
  if (!l) {
    counters_release(c, slot);
    return dil_fail(DIL_MEMORY, "no memory for a captured launch");
  }
  *l = (counter_loan){c, slot};
  cu_result result =
      c->driver->object_new(&object, l, counters_end_loan, 1, NO_SYNC);
  if (result)
    counters_end_loan(l);
  else if ((result = c->driver->graph_keep(graph, object, 1, MOVE)))
    c->driver->object_free(object, 1);
  return cuda_check(c->driver, result, "keep a counter for a graph");
}

/* ---- streams ------------------------------------------------------------- */

/* Finds the slot of a stream by the stream's number, which no other stream ever
 * has; -1: no slot is left. */
static int32_t counters_slot(cuda_counters *c, unsigned long long number) {
  int32_t at = (int32_t)(number % STREAMS);
  while (c->stream[at] && c->stream[at] != number + 1) at = (at + 1) % STREAMS;
  if (c->stream[at]) return at;
  if (c->stream_count == STREAMS - 1) return -1; /* ends a search */
  c->stream_count++;
  c->stream[at] = number + 1;
  return at;
}

static cu_result counters_clear(const cuda_counters *c, void *stream,
                                cu_pointer memory) {
  return c->driver->fill_ordered(memory, 0, COUNTER_BYTES, stream);
}

/* The lock is held until the counter is clear, since another thread may launch
 * on the same stream. */
static cu_result counters_take_stream(cuda_counters *c, void *stream,
                                      int32_t *slot) {
  unsigned long long number = 0;
  cu_result result = c->driver->stream_number(stream, &number);
  if (result) return result;
  pthread_mutex_lock(&c->lock);
  *slot = counters_slot(c, number);
  if (*slot >= 0 && c->spoiled[*slot]) {
    result = counters_clear(c, stream,
                            c->memory + (cu_pointer)*slot * COUNTER_BYTES);
    c->spoiled[*slot] = result != 0;
  }
  pthread_mutex_unlock(&c->lock);
  return result;
}

/* ---- the counter of a launch --------------------------------------------- */

static cu_result counters_take_ordered(const cuda_counters *c, void *stream,
                                       cuda_counter *counter) {
  cu_result result =
      c->driver->take_ordered(&counter->memory, COUNTER_BYTES, stream);
  return result ? result : counters_clear(c, stream, counter->memory);
}

dil_status counters_take(cuda_counters *c, void *stream,
                         cuda_counter *counter) {
  enum { CAPTURING = 1 };
  cu_graph graph = NULL;
  int capture = 0;
  *counter = (cuda_counter){.slot = -1};
  cu_result result =
      c->driver->capture(stream, &capture, NULL, &graph, NULL, NULL);
  counter->captured = capture == CAPTURING;
  if (counter->captured)
    counter->slot = counters_take_captured(c);
  else if (!result)
    result = counters_take_stream(c, stream, &counter->slot);
  if (!result && counter->slot < 0)
    result = counters_take_ordered(c, stream, counter);
  if (result) return cuda_check(c->driver, result, "take a tile counter");
  if (counter->slot < 0) return DIL_OK;
  counter->memory = c->memory + (cu_pointer)counter->slot * COUNTER_BYTES;
  return counter->captured ? counters_lend(c, graph, counter->slot) : DIL_OK;
}

dil_status counters_give(cuda_counters *c, void *stream,
                         const cuda_counter *counter, dil_status status) {
  if (counter->slot < 0) {
    dil_status given =
        cuda_check(c->driver, c->driver->give_ordered(counter->memory, stream),
                   "give a tile counter back");
    return status ? status : given;
  }
  if (!status || counter->captured) return status;
  pthread_mutex_lock(&c->lock);
  c->spoiled[counter->slot] = true;
  pthread_mutex_unlock(&c->lock);
  return status;
}
