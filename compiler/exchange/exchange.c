/* exchange.c - `exchange auto`: which branches of a plan rotate their
 * keys around the ring, step by step behind the passes, and which gather them
 * all before. In: a table, a mesh, sizes. Out: a choice, with its reasons.
 *
 * A run is played through by arithmetic on a few ranks: messages that gather
 * are all under way at once, and each is there when the wire has brought it;
 * what rotates is asked for a step ahead of the passes that want it. What
 * gathers saves the latency of its steps, and takes memory. Speeds are those of
 * a kind of link and device, from a table or the environment and never measured
 * by a run, so that all ranks choose alike. */
#include "exchange.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/environment.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include <math.h>

enum { BRANCHES_MOST = 64, LANES_MOST = 3, STRETCHES = 2 };

/* ---- speeds -------------------------------------------------------------- */

enum { JOINS_THREADS, JOINS_PROCESSES, JOINS_GPUS };

/* Bytes: memcpy of 256 MiB by one thread, beside others' work (11.6e9; 34e9 of
 * 1 MiB, in the cache); processes of several hosts were never measured; NCCL's
 * send and receive of 1 GiB among four H200 with NVLink 4, each way (345e9; 7e9
 * of 1 MiB). What messages take besides is guessed. GPUs are one kind, whether
 * by copies or NCCL: the order is to be the same. Operations of GPUs:
 * tests/bench/NOTES.md. */
static const exchange_speed speeds[] = {
    [JOINS_THREADS] = {"threads of a processor", "measured", 11.6e9, 5e-6, 2e-6,
                       1e11},
    [JOINS_PROCESSES] = {"processes", "a guess", 4e9, 20e-6, 2e-6, 1e11},
    [JOINS_GPUS] = {"GPUs by NVLink", "measured between H200s", 345e9, 20e-6,
                    5e-6, 4e14},
};

dil_status exchange_speed_of(const topology *t, bool on_gpu,
                             exchange_speed *speed) {
  int64_t bytes = 0;
  dil_status status = environment_bytes("DIL_LINK_SPEED", &bytes);
  bool processes = t->link == LINK_MPI || t->link == LINK_PROCESS;
  *speed = speeds[on_gpu      ? JOINS_GPUS
                  : processes ? JOINS_PROCESSES
                              : JOINS_THREADS];
  if (status || !environment_text("DIL_LINK_SPEED")) return status;
  speed->bytes = (double)bytes;
  speed->source = "by DIL_LINK_SPEED";
  return bytes ? DIL_OK
               : dil_fail(DIL_USAGE, "DIL_LINK_SPEED is 0: over such a link "
                          "nothing travels");
}

/* ---- what a rank has to do ----------------------------------------------- */

/* One rank that receives, by step. */
typedef struct lane {
  double *seconds;      /* [ranks] of passes */
  double *bytes;        /* [branches * ranks] of each branch alone */
} lane;

typedef struct chooser {
  const dil_table *table; /* of a rank's heads */
  ring_shape shape;
  exchange_speed speed;
  int64_t B;              /* batch rows of a rank */
  int32_t lanes;
  lane lane[LANES_MOST];
} chooser;

/* Rows of branch b that travel, of the first K/V head it serves, times how many
 * it serves: phases differ from head to head, and numbers of rows hardly. */
static dil_status branch_bytes(const chooser *c, int32_t b, int32_t from,
                               int32_t to, double *bytes) {
  const dil_table *t = c->table;
  const dil_branch *row = &t->branches[b];
  int32_t group = t->heads / t->kv_heads;
  ring_shape alone = c->shape;
  int64_t count = 0;
  bool exact;
  *bytes = 0;
  if (row->head_first > row->head_last) return DIL_OK;
  int32_t first = row->head_first / group, last = row->head_last / group;
  alone.gathered = (uint64_t)1 << b;
  dil_status status = partition_count(&alone, from, to, first,
                                      EXCHANGE_GATHERED, &count, &exact);
  *bytes = (double)(count * (last - first + 1) * c->B * route_row_bytes(t));
  return status;
}

static dil_status fill_lane(const chooser *c, int32_t rank, lane *l) {
  const dil_table *t = c->table;
  int32_t ranks = c->shape.ranks;
  positions asking = partition_queries(&c->shape, rank);
  double flops = 2.0 * (double)(t->head_dim + t->value_dim) * (double)c->B;
  dil_status status = DIL_OK;
  for (int32_t step = 0; step < ranks && !status; step++) {
    int32_t from = (rank - step + ranks) % ranks;
    positions owned = partition_keys(&c->shape, from);
    l->seconds[step] = flops * exchange_pairs(t, &asking, &owned, STRETCHES) /
                       c->speed.operations;
    for (int32_t b = 0; b < t->branch_count && step && !status; b++)
      status = branch_bytes(c, b, from, rank, &l->bytes[b * ranks + step]);
  }
  return status;
}

/* The first, the middle and the last rank: with `causal` they differ most. */
static dil_status fill_lanes(arena *a, chooser *c) {
  int32_t ranks = c->shape.ranks;
  const int32_t rank[LANES_MOST] = {ranks - 1, 0, ranks / 2};
  dil_status status = DIL_OK;
  c->lanes = ranks < LANES_MOST ? ranks : LANES_MOST;
  for (int32_t i = 0; i < c->lanes && !status; i++) {
    c->lane[i].seconds = ARENA_ARRAY(a, double, ranks);
    c->lane[i].bytes = ARENA_ARRAY(a, double, c->table->branch_count * ranks);
    status = fill_lane(c, rank[i], &c->lane[i]);
  }
  return status;
}

/* ---- a run --------------------------------------------------------------- */

static double step_bytes(const chooser *c, const lane *l, int32_t step,
                         uint64_t branches) {
  double sum = 0;
  for (int32_t b = 0; b < c->table->branch_count; b++)
    if (branches >> b & 1) sum += l->bytes[b * c->shape.ranks + step];
  return sum;
}

/* Returns the time at which a rank is done if these branches gather. */
static double lane_seconds(const chooser *c, const lane *l, uint64_t gathered) {
  const exchange_speed *s = &c->speed;
  int32_t ranks = c->shape.ranks;
  double early = 0, wire = 0, start = 0, end = l->seconds[0];
  for (int32_t k = 1; k < ranks; k++)
    wire += step_bytes(c, l, k, gathered) / s->bytes;
  for (int32_t k = 1; k < ranks; k++) {
    double first = step_bytes(c, l, k, gathered);
    double rest = step_bytes(c, l, k, ~gathered), there = 0;
    early += first / s->bytes;
    if (first > 0) there = early + s->latency;
    if (rest > 0) {
      wire = fmax(wire, start) + rest / s->bytes;
      there = fmax(there, wire + s->latency);
    }
    start = fmax(end, there);
    end = start + l->seconds[k] + s->message * ((first > 0) + (rest > 0));
  }
  return end;
}

/* Of the rank that is done last. */
static double run_seconds(const chooser *c, uint64_t gathered) {
  double most = 0;
  for (int32_t i = 0; i < c->lanes; i++)
    most = fmax(most, lane_seconds(c, &c->lane[i], gathered));
  return most;
}

/* ---- the choice ---------------------------------------------------------- */

/* The most that a rank receives of a branch, and in how many messages. */
static void size_branch(const chooser *c, int32_t b, exchange_branch *of) {
  for (int32_t i = 0; i < c->lanes; i++) {
    double bytes = 0;
    int32_t messages = 0;
    for (int32_t k = 1; k < c->shape.ranks; k++) {
      double there = c->lane[i].bytes[b * c->shape.ranks + k];
      bytes += there;
      messages += there > 0;
    }
    of->bytes = fmax(of->bytes, bytes);
    if (messages > of->messages) of->messages = messages;
  }
}

/* Branches, the one of fewest bytes first. */
static void sort_branches(const exchange_choice *made, int32_t *order) {
  for (int32_t n = 0; n < made->branch_count; n++) {
    double bytes = made->branch[n].bytes;
    int32_t at = n;
    for (; at && made->branch[order[at - 1]].bytes > bytes; at--)
      order[at] = order[at - 1];
    order[at] = n;
  }
}

/* Messages of gathered rows are all there at once, in and out. */
static dil_status find_room(const chooser *c, double *room) {
  enum { SMALL = 64 << 20 };
  positions own = partition_keys(&c->shape, 0);
  int64_t bytes = positions_count(&own) * c->B * c->table->kv_heads *
                  route_row_bytes(c->table);
  bytes = maximum(bytes, SMALL);
  dil_status status = environment_bytes("DIL_GATHER_MAX", &bytes);
  *room = (double)bytes;
  return status;
}

/* Of the sets of the smallest branches that have room, the one with which a run
 * ends first; of equals the smallest. */
static void choose(const chooser *c, exchange_choice *made) {
  const double better = 1 - 1e-6;
  int32_t order[BRANCHES_MOST];
  double bytes = 0, rotating = run_seconds(c, 0);
  uint64_t set = 0;
  made->seconds = rotating;
  sort_branches(made, order);
  for (int32_t n = 0; n < made->branch_count; n++) {
    exchange_branch *b = &made->branch[order[n]];
    bytes += 2 * b->bytes;
    set |= (uint64_t)1 << order[n];
    b->reason = bytes > made->room ? EXCHANGE_TOO_LARGE : EXCHANGE_NO_GAIN;
    if (bytes > made->room) continue;
    double seconds = run_seconds(c, set);
    if (seconds >= made->seconds * better) continue;
    made->seconds = seconds;
    made->gathered = set;
  }
  made->saved = rotating - made->seconds;
}

static void give_reasons(exchange_choice *made) {
  for (int32_t n = 0; n < made->branch_count; n++) {
    exchange_branch *b = &made->branch[n];
    if (b->bytes == 0) b->reason = EXCHANGE_NOTHING;
    else if (made->forced) b->reason = EXCHANGE_FORCED;
    else if (made->gathered >> n & 1) b->reason = EXCHANGE_GAIN;
  }
}

static dil_status choose_shared(arena *a, chooser *c, exchange_choice *made) {
  dil_status status = fill_lanes(a, c);
  for (int32_t b = 0; b < made->branch_count && !status; b++)
    size_branch(c, b, &made->branch[b]);
  if (!status) status = find_room(c, &made->room);
  if (!status && !made->forced) choose(c, made);
  if (!status) give_reasons(made);
  return status;
}

dil_status exchange_choose(arena *a, const dil_table *table, const mesh *m,
                           const topology *t, bool on_gpu, int64_t B, int64_t N,
                           int64_t M, exchange_choice *made) {
  head_partition share =
      partition_heads(table->heads, table->kv_heads, m->heads, 0);
  *made = (exchange_choice){.branch_count = table->branch_count,
                            .forced = t->exchange != EXCHANGE_AUTO,
                            .gathered = m->gathered};
  if (!share.heads) return DIL_OK; /* the rank group refuses it */
  dil_table mine = head_partition_table(
      table, share, arena_take(a, 1, head_partition_size(table)));
  chooser c = {.table = &mine,
               .shape = {.table = &mine, .layout = m->layout,
                         .ranks = m->ring, .N = N, .M = M},
               .B = (B + m->batch - 1) / m->batch};
  dil_status status = exchange_speed_of(t, on_gpu, &c.speed);
  made->speed = c.speed;
  return status ? status : choose_shared(a, &c, made);
}
