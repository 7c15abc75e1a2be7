/* stream.h - a call whose arrays are larger than the memory that computes it:
 * chunks of queries, and for each of them the chunks of keys that it needs.
 *
 * In: a whole call in memory of the host, which may be a mapped file; a bound.
 * Out: o and lse. A thread brings the rows of the next chunk into one of two
 * buffers while passes run on the other. Each chunk of keys is one pass, which
 * resumes the state of the pass before. Only rows that some query of the chunk
 * reaches are brought (partition.h); chunks without any are skipped. Keys come
 * in rising order: what a result is rounded to depends on the cuts, and on
 * nothing else. */
#ifndef DIL_RUNTIME_STREAM_STREAM_H
#define DIL_RUNTIME_STREAM_STREAM_H

#include "runtime/ring/ring_device.h"
#include "runtime/ring/transfer.h"

/* ---- stream_walk.c: which chunk comes when ------------------------------- */

/* Rows of a chunk, the last one may be shorter. */
typedef struct stream_chunks {
  int64_t batch, queries, keys;
} stream_chunks;

typedef struct stream_shape {
  const dil_table *table;
  int64_t B, N, M;
  const int32_t *lengths;  /* [B] or NULL: see dil_call */
  stream_chunks chunks;
} stream_shape;

/* Fills the chunks, so that what is in memory at a time stays within `bound`
 * bytes: buffers, states, and what `threads` threads pack; 0: a device with
 * memory of its own. DIL_USAGE: it is too small for a query and a tile of
 * keys. */
dil_status stream_plan(stream_shape *shape, int32_t threads, int64_t bound);
/* Pairs of a chunk of queries and one of keys. */
int64_t stream_pairs(const stream_shape *shape);

/* A pair of chunks: their numbers, those of queries and keys within a unit of
 * batch rows. */
typedef struct stream_place {
  int64_t unit, query, key;
} stream_place;
/* Chunks of queries, and pairs, that come before it. */
int64_t stream_queries_before(const stream_shape *shape, stream_place at);
int64_t stream_pairs_before(const stream_shape *shape, stream_place at);

/* The next thing to bring. */
typedef struct stream_job {
  bool keys;               /* a chunk of keys, else of queries */
  stream_place at;         /* of queries: their first pair */
  int64_t batch, batches;  /* its batch rows */
  int64_t M;               /* keys of these */
  dil_progression rows;    /* positions */
  int64_t first;           /* row of the array that the first one is */
  int32_t slot;            /* which of its two buffers */
  bool there;              /* the buffer has it already */
  bool whole;              /* every row of it is wanted */
  int64_t skipped;         /* pairs without a row, since the job before */
  route route;             /* of the keys; the walk's own */
  int64_t bytes;           /* to bring, in the dtype of the pattern */
} stream_job;

/* The state of a walk over all chunks. */
typedef struct stream_walk {
  const stream_shape *shape;
  stream_place at;           /* the next pair */
  bool begun;                /* the queries of the pair are there */
  int32_t slot[2];           /* of the last keys, and queries */
  struct {
    int64_t unit, key;       /* unit -1: nothing */
    bool whole;
  } held[2];                 /* by the buffers of keys */
  stream_job job;
} stream_walk;

/* `from`: the first pair, whose queries come before it. */
void stream_walk_begin(stream_walk *walk, const stream_shape *shape,
                       stream_place from);
/* False at the end, or when *status tells of a failure. */
bool stream_walk_next(stream_walk *walk, dil_status *status);
void stream_walk_end(stream_walk *walk);

/* ---- stream_carry.c: between the host's rows and a device's buffers ------ */

typedef struct stream_carry {
  device_transfer *transfer; /* NULL: the device's memory is the host's */
  dil_threads *threads;
  int32_t turn[TRANSFER_LANES]; /* pieces so far */
} stream_carry;

/* All rows of a tensor, to or from a buffer that holds just them. */
dil_status carry_up(stream_carry *c, const dil_tensor *from,
                    const dil_tensor *buffer);
dil_status carry_down(stream_carry *c, const dil_tensor *buffer,
                      const dil_tensor *to);
/* The rows of a route from the whole k and v to a chunk that begins at
 * position `first`; `message`: memory of the device for them. */
dil_status carry_route(stream_carry *c, route *r, const ring_keys *from,
                       const ring_keys *chunk, int64_t first, void *message);

/* ---- stream_state.c: what a run keeps of itself -------------------------- */

/* PREFIX.state has the place that a run has reached and the running state of
 * its queries. Rows of o and lse that are finished are where the call has them:
 * in files, if they are to outlive the process. */
typedef struct stream_checkpoint {
  const char *prefix;       /* NULL: nothing is kept */
  int32_t every;            /* pairs from state to state */
  bool resume;              /* begins where the state is */
  uint64_t plan_hash;
} stream_checkpoint;

/* The cuts of the run that has left a state: bits depend on them. */
dil_status stream_checkpoint_chunks(const char *prefix, stream_chunks *chunks);
/* Returns whether there is something to resume; there is nothing more. */
bool stream_has_checkpoint(const char *prefix);
void stream_checkpoint_remove(const char *prefix);

/* ---- stream.c: the run --------------------------------------------------- */

typedef struct stream_facts {
  int64_t chunks, skipped;  /* pairs computed, and those without a row */
  int64_t resumed;          /* pairs of a former run */
  int64_t loaded, stored;   /* bytes of rows */
  double waited, computed;  /* seconds: without rows, and in passes */
} stream_facts;

typedef struct dil_stream {
  stream_shape shape;
  ring_device *device;
  device_transfer *transfer; /* to the device; NULL: its memory is the host's */
  dil_threads *threads;     /* that copy */
  /* Whole; q, k, v and o of any float type, lse f32; on the host. */
  const dil_call *call;
  /* Pairs that are done; from any thread. NULL: nobody asks. */
  void (*progress)(void *user, int64_t pairs);
  void *user;
  stream_checkpoint checkpoint;
  stream_facts facts;       /* out */
} dil_stream;

dil_status stream_run(dil_stream *stream);
/* The rows that a run would load, and its pairs, without running it. */
dil_status stream_count(const stream_shape *shape, stream_facts *facts);

#endif
