/* stream_work.h - what the files of a streamed run share. */
#ifndef DIL_STREAM_WORK_H
#define DIL_STREAM_WORK_H

#include "stream.h"
#include <pthread.h>

enum { QUEUE = 4 };

typedef enum kind { QUERIES, KEYS, OUTPUTS, KINDS } kind;

/* One of two. */
typedef struct buffer {
  void *memory[2];         /* q; k and v; o and lse */
  int32_t uses;            /* times it waits for a thread, or is worked on */
} buffer;

typedef struct arrival {
  kind kind;
  int32_t slot;
  int64_t batch, batches, M, first;
  dil_comb rows;
} arrival;

typedef struct queue {
  arrival of[QUEUE];
  int64_t put, taken;
  bool ended;              /* nothing more comes */
} queue;

typedef struct stream_work {
  dil_stream *stream;
  ring_device *device;
  stream_carry carry[LIFT_LANES];
  buffer buffer[KINDS][2];
  void *message;           /* rows of keys on their way; with a lift alone */
  float *o_state, *lse_state;
  dil_tensor inputs[DIL_INPUT_MAX];
  bool apart;              /* o has buffers: the call's place will not do */
  arrival open;            /* queries that are being computed */
  bool is_open;
  int64_t closed;          /* chunks of queries that are done */
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

#endif
