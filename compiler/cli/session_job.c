/* session_job.c - ranks that are processes of a job: their handshake before a
 * run and their results after it. In: a topology, and a call that only rank 0
 * has read. Out: links, and the same sizes on every rank; or, before any row
 * moves, an error that names the value in which a rank differs. */
#include "accuracy.h"
#include "command.h"
#include "session_ranks.h"
#include "compiler/analysis/cost.h"
#include "interface.h"
#include "runtime/base/status.h"
#include <string.h>
#include <xxhash.h>

/* Timeout of a wait in the handshake, seconds: rank 0 reads its arrays and
 * every rank makes its code within it. */
enum { SETTING_UP = 600 };

/* The handshake message: values that must be equal on every rank. */
typedef struct job_values {
  uint64_t plan_hash;
  int64_t version, ring, heads, batch, layout, exchange;
  int64_t size[CALL_SIZE_COUNT];
  int64_t train, seed;
  double scale;
  uint64_t inputs;
  int64_t random;          /* the seed of q, k and v, or -1 */
  int64_t resume;
} job_values;

static const char *const job_words[] = {"plan",
                                        "version of dil",
                                        "length of the ring",
                                        "split of heads",
                                        "split of batch rows",
                                        "layout",
                                        "way of exchange",
                                        "number of batch rows",
                                        "number of queries",
                                        "number of keys",
                                        "word on training",
                                        "seed",
                                        "scale",
                                        "declared input",
                                        "seed of random numbers",
                                        "word on resuming: --resume is for "
                                        "all ranks, or for none"};

enum { FIELD = 8, FIELDS = sizeof(job_values) / FIELD };
_Static_assert(FIELDS == sizeof job_words / sizeof *job_words,
               "a word for each field");

static uint64_t job_hash_inputs(const call_setup *b) {
  uint64_t hash = 0;
  for (int32_t i = 0; i < b->call.input_count; i++) {
    const dil_tensor *t = &b->inputs[i];
    size_t bytes = (size_t)dil_tensor_count(t) * dil_dtype_size(t->dtype);
    hash = XXH3_64bits_withSeed(t->data, bytes, hash + 1);
  }
  return hash;
}

static job_values job_values_of(const session_ranks *t, const topology *on,
                                const call_setup *b) {
  mesh m = place_mesh(b->pattern, on);
  job_values h = {.plan_hash = t->code.source.plan_hash,
                  .version = DIL_INTERFACE,
                  .ring = m.ring,
                  .heads = m.heads,
                  .batch = m.batch,
                  .layout = m.layout,
                  .exchange = on->exchange,
                  .train = b->call.train,
                  .seed = (int64_t)b->call.seed,
                  .scale = b->call.scale,
                  .inputs = job_hash_inputs(b),
                  .random = b->options->seen[OPTION_RANDOM]
                                ? (int64_t)b->options->random
                                : -1,
                  .resume = b->options->resume};
  memcpy(h.size, b->size, sizeof h.size);
  return h;
}

static dil_status job_compare(const job_values *mine, const job_values *theirs,
                              int32_t rank, size_t fields) {
  for (size_t i = 0; i < fields; i++)
    if (memcmp((const char *)mine + i * FIELD, (const char *)theirs + i * FIELD,
               FIELD))
      return dil_fail(DIL_PEER, "rank %d has another %s", rank, job_words[i]);
  return DIL_OK;
}

static dil_status job_send(dil_link *world, int32_t to,
                           const job_values *mine) {
  const link_transfer t = {.to = to, .from = -1, .send = mine,
                           .send_bytes = sizeof *mine};
  dil_status status = world->calls->post(world, 0, &t);
  return status ? status : world->calls->wait(world, 0);
}

static dil_status job_receive(dil_link *world, int32_t from,
                              job_values *theirs) {
  const link_transfer t = {.to = -1, .from = from, .receive = theirs,
                           .receive_bytes = sizeof *theirs};
  dil_status status = world->calls->post(world, 0, &t);
  return status ? status : world->calls->wait(world, 0);
}

/* Rank 0 reads the call, sends its values, and compares them with the answer of
 * every other rank. */
static dil_status job_lead(session_ranks *t, const topology *on, call_setup *b,
                           int64_t seq) {
  dil_status status = call_setup_tensors(b, seq);
  if (status) return status;
  job_values mine = job_values_of(t, on, b), theirs;
  for (int32_t i = 1; i < t->world->ranks && !status; i++)
    status = job_send(t->world, i, &mine);
  for (int32_t i = 1; i < t->world->ranks && !status; i++) {
    status = job_receive(t->world, i, &theirs);
    if (!status) status = job_compare(&mine, &theirs, i, FIELDS);
  }
  return status;
}

/* Every other rank takes rank 0's sizes, unless its own options contradict
 * them, and answers with its own values. */
static dil_status job_follow(session_ranks *t, const topology *on,
                             call_setup *b) {
  job_values first;
  enum { BEFORE_SIZES = offsetof(job_values, size) / FIELD };
  dil_status status = job_receive(t->world, 0, &first);
  job_values mine = job_values_of(t, on, b);
  if (!status) status = job_compare(&mine, &first, 0, BEFORE_SIZES);
  if (!status) status = call_setup_follow(b, first.size);
  if (status) return status;
  mine = job_values_of(t, on, b);
  return job_send(t->world, 0, &mine);
}

dil_status session_job_join(session_ranks *t, const topology *on, call_setup *b,
                            int64_t seq) {
  b->is_rank = true;
  dil_status status = session_ranks_world(t, on, SETTING_UP);
  if (!status)
    status = t->task.rank ? job_follow(t, on, b) : job_lead(t, on, b, seq);
  if (!status) status = link_barrier(t->world); /* fails where ranks differ */
  return status ? status : session_ranks_ring(t);
}

dil_status session_job_begin(session_ranks *t, const topology *on,
                             const call_setup *b) {
  dil_status status = link_barrier(t->world);
  t->world->timeout = on->timeout;
  return status ? status : rank_group_hold(t->group, &b->call);
}

/* ---- the end ------------------------------------------------------------- */

typedef struct checked {
  const call_setup *setup;
  int64_t rows;
} checked;

static void job_checked_row(const void *owner, int64_t index, output_row *row) {
  const checked *c = owner;
  accuracy_element at = accuracy_row(c->setup, c->rows, index);
  *row = (output_row){at.b, at.n, (int32_t)at.h};
}

dil_status session_job_collect(session_ranks *t, double budget) {
  const call_setup *b = t->setup;
  checked c = {b, 0};
  if (budget > 0) {
    cover_count count;
    measure_pairs(b, &count);
    c.rows = accuracy_rows(b, count.pairs, budget);
  }
  bool some = call_is_sparse(b) && !t->backward; /* keys see all of lse */
  wanted_rows wanted = {some ? c.rows : -1, job_checked_row, &c};
  dil_status status =
      rank_group_collect(t->group, t->world, &b->call, &wanted);
  if (status || !t->backward) return status;
  return rank_group_collect_gradients(t->group, t->world, t->backward);
}

void session_job_fail(session_ranks *t) {
  if (t->world && !t->failed)
    t->world->calls->revoke(t->world, dil_last_error());
  t->failed = true;
}
