/* exchange.h - which rows travel between ranks: the branches whose rows are
 * gathered before the first step, and what a topology costs. In: a plan, a
 * topology, sizes. Out: the choice, bytes, work and a predicted time. */
#ifndef DIL_COMPILER_EXCHANGE_EXCHANGE_H
#define DIL_COMPILER_EXCHANGE_EXCHANGE_H

#include "compiler/base/quantity.h"
#include "compiler/front/program.h"
#include "compiler/plan/partition.h"
#include "compiler/plan/plan.h"
#include "runtime/ring/way.h"

/* ---- exchange.c ---------------------------------------------------------- */

/* Of a link and the devices that it joins: bytes a second one way, seconds
 * until a message is there and that it takes a rank, operations a second. */
typedef struct exchange_speed {
  const char *name, *source; /* of the link; of the bytes, for people */
  double bytes, latency, message, operations;
} exchange_speed;
/* DIL_LINK_SPEED is bytes a second in place of those that are known. DIL_USAGE:
 * it is no number of bytes, or 0. */
dil_status exchange_speed_of(const topology *t, bool on_gpu,
                             exchange_speed *speed);

typedef enum exchange_reason {
  EXCHANGE_NOTHING,
  EXCHANGE_FORCED,
  EXCHANGE_GAIN,
  EXCHANGE_NO_GAIN,
  EXCHANGE_TOO_LARGE
} exchange_reason;

/* The most that a rank receives of a branch, if the branch travels alone. */
typedef struct exchange_branch {
  double bytes;
  int32_t messages;
  exchange_reason reason;
} exchange_branch;

typedef struct exchange_choice {
  uint64_t gathered;       /* branches, as bits; the others rotate */
  bool forced;             /* the topology says so */
  double seconds, saved;   /* of a run; over one in which all rotate */
  double room;             /* bytes that messages of gathered rows may take */
  exchange_speed speed;    /* bytes 0: the rank group refuses the mesh */
  int32_t branch_count;
  exchange_branch branch[64];
} exchange_choice;
/* Every rank chooses alike. */
dil_status exchange_choose(arena *a, const dil_table *table, const mesh *m,
                           const topology *t, bool on_gpu, int64_t B, int64_t N,
                           int64_t M, exchange_choice *made);

/* ---- exchange_work.c ----------------------------------------------------- */

/* Pairs of all heads, masks not looked at; so many stretches of a long shard
 * stand for all of it. */
double exchange_pairs(const dil_table *t, const positions *asking,
                      const positions *keys, int32_t stretches);

/* ---- exchange_masks.c ---------------------------------------------------- */

/* The plan and sizes that bounds depend on; they must outlive the mask. */
typedef struct mask_bounds {
  const plan *plan;
  int64_t B, N, M;
} mask_bounds;
/* bounds NULL: the plan has no mask that could be asked about. */
partition_mask mask_bounds_of(mask_bounds *bounds);

/* ---- exchange_cost.c ----------------------------------------------------- */

/* A run backward: which branches' queries come, and the bytes of both ways. */
typedef struct exchange_gradients {
  uint64_t queries;    /* branches whose queries come, as bits */
  way_bytes way[DIL_BRANCH_MAX]; /* of each branch alone, all batch rows */
  int64_t *bytes;      /* [ring * ring], from * ring + to: all that moves */
  double states;       /* bytes of keys and values that come for the states of
                          branches, which a run forward makes first */
  double keys, dkv, asking, dq; /* bytes of keys and values, of their gradients,
                                   of queries with what comes beside them, and
                                   of dQ */
  double sums;         /* bytes of f32 sums that the rank of most rows has */
} exchange_gradients;

/* The rows that travel and the work. The ranks of a place in the ring, which
 * share heads and batch rows, count as one. */
typedef struct exchange_cost {
  const topology *topology;
  const plan *plan;
  mesh mesh;
  exchange_choice choice;
  int64_t *bytes;      /* [ring * ring], from * ring + to */
  double most;         /* bytes that one rank sends or receives */
  int64_t *queries, *keys; /* [ring] rows owned */
  double *pairs;       /* [ring]; masks not looked at, long shards sampled */
  double compute, transfer; /* seconds of the busiest rank */
  bool exact;          /* the bytes are the least that the pattern needs */
  bool backward;       /* the runs are backward, too */
  exchange_gradients gradients;
} exchange_cost;

/* on: the mesh of the topology, as a run takes it; seconds: what the whole call
 * takes on one device; backward: the runs are backward, too. */
dil_status exchange_cost_of(arena *a, const plan *of, const mesh *on,
                            const topology *t, int64_t B, int64_t N, int64_t M,
                            double seconds, bool on_gpu, bool backward,
                            exchange_cost *cost);
/* A line a rank, a table of who sends what, and the prediction. */
void exchange_cost_print(const exchange_cost *cost, FILE *out);
struct json_t *exchange_cost_json(const exchange_cost *cost);
/* The name that a branch of the table has in the file. */
const char *exchange_branch_name(const exchange_cost *cost, int32_t index,
                                 char text[QUANTITY_TEXT]);

/* ---- exchange_gradients.c ------------------------------------------------ */

/* Memory for the counts, and then what one share of the heads adds to them:
 * `forward` has the bytes of its keys in a run forward. */
void exchange_gradients_begin(arena *a, exchange_cost *cost);
dil_status exchange_gradients_count(arena *a, const ring_shape *share, int64_t B,
                                    const int64_t *forward,
                                    exchange_cost *cost);
/* Counts the memory of a rank's sums, once all shares are counted. */
void exchange_gradients_end(exchange_cost *cost, int64_t B);
/* Rows of all lists that travel between two places, [ring * ring]. */
dil_status exchange_rows(const ring_shape *r, int64_t *rows, bool *exact);
/* Bytes that a place in the ring sends and receives in a run backward. */
int64_t exchange_backward_sends(const exchange_cost *cost, int32_t rank);
int64_t exchange_backward_receives(const exchange_cost *cost, int32_t rank);
void exchange_gradients_print(const exchange_cost *cost, FILE *out);
struct json_t *exchange_gradients_json(const exchange_cost *cost);

#endif
