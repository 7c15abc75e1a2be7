/* ring_work.h - one rank's run over a ring, as the files behind ring.h share it:
 * its messages of keys and queries. Internal to these files. */
#ifndef DIL_RUNTIME_RING_RING_WORK_H
#define DIL_RUNTIME_RING_RING_WORK_H

#include "ring.h"
#include "ring_state.h"
#include "runtime/observe/flight_recorder.h"

/* One message each way, in one step and phase: rows of keys, and behind them
 * rows of queries. */
typedef struct ring_parcel {
  bool posted;          /* the link may still use both messages */
  double since;         /* when they were posted */
  int64_t outgoing_bytes, incoming_bytes;
  void *outgoing, *incoming;
} ring_parcel;

/* One step's messages, and the sender's shards of keys and of queries, into
 * which the received rows are spread. No pair has a row that did not travel. */
typedef struct exchange {
  ring_parcel phase[EXCHANGE_PHASES];
  void *k, *v;          /* [B, rows of the shard, Hkv, D] */
  void *queries;        /* ring_queries */
} exchange;

/* One step's gradients on their way back: to the rank whose rows came in the
 * step, and from the rank that this rank's rows went to. */
typedef struct ring_return {
  bool posted;          /* the link may still use both messages */
  int64_t outgoing_bytes, incoming_bytes;
  void *outgoing, *incoming;
  void *dk, *dv, *dq;   /* f32 sums of the step, as long as the sender's shards */
} ring_return;

/* Queries that come to keys, a view for each progression: rows.k is q and rows.v
 * is dO, numbers.k has the numbers of the rows (cpu_kernel_row_numbers), and
 * numbers.v is empty. A view is contiguous, but for the rank's own rows. */
typedef struct ring_queries {
  ring_keys rows, numbers;
} ring_queries;

typedef struct ring_work {
  dil_ring *ring;
  ring_device *device;
  int64_t B;            /* batch rows here */
  flight_recorder flight;
  ring_state state;     /* of this rank's queries */
  const route_set *keys,  /* rows that travel in the run */
      *queries;           /* NULL: no queries come */
  ring_queries own;       /* this rank's, for other ranks */
  void *numbers;          /* of `own` */
  exchange *exchange;   /* [ranks], by step; 0 is unused */
  ring_return *back;    /* [ranks], by step: gradients that go back; NULL: the
                           run is forward */
  const ring_gradients *sums; /* what passes backward add to: the ring's, or for
                                 a step that these include already others */
  ring_digest digest;   /* of a run that keeps its state or sums */
  int32_t *kept;        /* [ranks]: the step of each rank's kept sums that the run
                           goes on from; -1: none */
} ring_work;

/* ---- ring.c: passes over keys -------------------------------------------- */

/* Progression i of the rank's queries over one progression of keys: its shard
 * and its call. */
dil_shard ring_shard(ring_work *w, int32_t i, dil_progression keys,
                     const dil_tensor *k, const dil_tensor *v, dil_call *call);
int32_t ring_query_progressions(const ring_work *w);
/* The steps of the run forward, after which w->state has the state of each pass
 * of the rank's rows. The caller has set state.by_pass. */
dil_status ring_states(ring_work *w);

/* ---- ring_backward.c ----------------------------------------------------- */

/* A run backward, after its handshake; its end frees what it took, also after a
 * failure. */
dil_status ring_backward(ring_work *w);
void ring_backward_end(ring_work *w, bool failed);

/* ---- ring_queries.c: the queries that travel ----------------------------- */

/* Chooses the way of each branch for a run backward, unless the caller has. */
dil_status ring_choose_ways(const ring_work *w);
/* Makes this rank's own queries ready, whose numbers serve the rank itself, too,
 * unless it is on the host; w->state has the states of their rows,
 * where the device asks for these. */
dil_status ring_queries_begin(ring_work *w);
void ring_queries_end(ring_work *w);
/* Bytes of the queries of a route; of their gradients. */
int64_t ring_query_bytes(const ring_work *w, const route *r);
int64_t ring_dq_bytes(const ring_work *w, const route *r);
dil_status ring_pack_queries(const ring_work *w, route *r, char *message);
/* Allocates the sender's shard of queries and spreads the received rows. */
dil_status ring_spread_queries(ring_work *w, int32_t step,
                               ring_queries *queries);
/* Sums of dQ for the queries of another rank, in sums->k, which are to be
 * cleared. */
dil_status ring_take_dq(ring_work *w, int32_t owner, void **memory,
                        ring_keys *sums);
/* The dQ that comes back to the rank's own sums, as keys whose values are empty. */
ring_keys ring_own_dq(const ring_work *w);
/* The passes of another rank's queries over this rank's keys. */
dil_status ring_passes_of_queries(ring_work *w, int32_t owner,
                                  const ring_queries *queries,
                                  const ring_keys *dq);

/* ---- ring_exchange.c: the keys that travel ------------------------------- */

/* Lists the routes of a shape, unless the set has them. */
dil_status ring_list_routes(const dil_ring *ring, const ring_shape *shape,
                            route_set *set);
bool ring_same_shape(const ring_shape *a, const ring_shape *b);
/* In a step, a rank sends to rank + step and receives from rank - step. */
route *ring_route_out(const route_set *r, int32_t step, exchange_phase phase);
route *ring_route_in(const route_set *r, int32_t step, exchange_phase phase);
/* Lists the routes back, unless the last run backward had the same shape. */
dil_status ring_list_returns(route_set *set);
/* Rows of a set that go back in a step, or (`in`) come back. */
route *ring_return_route(const route_set *r, int32_t step,
                         exchange_phase phase, bool in);
/* Bytes of the keys of a route. */
int64_t ring_key_bytes(const ring_work *w, const route *r);
/* Posts the rows of branches that gather, for all steps. */
dil_status ring_post_first(ring_work *w);
/* Posts the rows of branches that rotate, for one step; past the last step it
 * does nothing. */
dil_status ring_post_rest(ring_work *w, int32_t step);
/* Waits for the messages of a step. */
dil_status ring_wait_step(ring_work *w, int32_t step);
/* Waits for one message, if it was posted. */
dil_status ring_wait_phase(ring_work *w, int32_t step, exchange_phase phase);
/* Allocates the sender's shard and spreads the received rows into it. Rows
 * that did not travel are finite (RING_OLD_ROWS). */
dil_status ring_spread_step(ring_work *w, int32_t step, const positions *owned,
                            ring_keys *keys);
/* Views of rank keys in k and v, [B, rows of the shard, Hkv, D], one for each
 * progression. */
void ring_view_keys(const ring_work *w, void *k, void *v, dil_dtype dtype,
                    const positions *owned, ring_keys *keys);
void ring_exchange_free(ring_work *w, exchange *e);
/* Whether rows of a set came in a step (NULL: none did), the rank that they are
 * of, and the rank that this rank's rows went to. */
bool ring_arrived(const ring_work *w, const route_set *set, int32_t step);
int32_t ring_sender(const ring_work *w, int32_t step);
int32_t ring_receiver(const ring_work *w, int32_t step);
/* Allocates the exchanges of all steps; the end waits for what is still under
 * way, since the link may use it, and frees them. */
dil_status ring_exchange_begin(ring_work *w);
void ring_exchange_end(ring_work *w, bool failed);
/* Notes a message in the flight recorder; a peer of -1 means that there is no
 * message. */
void ring_note(ring_work *w, int32_t step, const char *what, int32_t peer,
               int64_t bytes);
/* Adds a run's bytes and seconds to the metrics. */
void ring_count_facts(const ring_facts *f);

#endif
