/* stream_work.h - what the files of a streamed run share. */
#ifndef DIL_RUNTIME_STREAM_STREAM_WORK_H
#define DIL_RUNTIME_STREAM_STREAM_WORK_H

#include "stream.h"
#include <pthread.h>

enum { QUEUE = 4 };

typedef enum stream_kind { QUERIES, KEYS, OUTPUTS, KINDS } stream_kind;

/* One of two. */
typedef struct stream_buffer {
  void *memory[2];         /* q; k and v; o and lse */
  int32_t uses;            /* times it waits for a thread, or is worked on */
} stream_buffer;

typedef struct arrival {
  stream_kind kind;
  int32_t slot;
  int64_t batch, batches, M, first;
  dil_progression rows;
  stream_place at;
} arrival;

typedef struct queue {
  arrival of[QUEUE];
  int64_t put, taken;
  bool ended;              /* nothing more comes */
} queue;

typedef struct stream_work {
  dil_stream *stream;
  ring_device *device;
  stream_carry carry[TRANSFER_LANES];
  stream_buffer buffer[KINDS][2];
  void *message; /* rows of keys on their way; with a transfer alone */
  float *o_state, *lse_state;
  int64_t states;          /* floats of lse_state */
  dil_tensor inputs[DIL_INPUT_MAX];
  bool buffers_output;     /* o has buffers: the call's place will not do */
  arrival open;            /* queries that are being computed */
  bool is_open;
  int64_t closed;          /* chunks of queries that are done */
  stream_place from;       /* the first pair */
  bool resumed;            /* the state of its queries is there */
  int64_t pairs;           /* since the last state was kept */
  int64_t summed;          /* closed chunks that are in `sum` */
  uint64_t sum;            /* of their rows */
  pthread_t loader, storer;
  pthread_mutex_t lock;    /* of what follows, and of uses */
  pthread_cond_t changed;
  queue arrived, finished;
  dil_status status;       /* of the first that failed */
  char why[256];
} stream_work;

/* stream_memory.c: all that is taken, cleared but the inputs; work_give is due
 * even after a failure. */
dil_status work_take(stream_work *w);
void work_give(stream_work *w);

/* stream.c: waits until nobody uses a buffer; false: the run has failed. */
bool work_claim(stream_work *w, stream_kind of, int32_t slot);

/* stream_state.c: before the first pair, once memory is taken: where to begin. */
dil_status work_resume(stream_work *w);
/* After a pair: a state, where one is due. */
dil_status work_checkpoint(stream_work *w, stream_place done);

#endif
