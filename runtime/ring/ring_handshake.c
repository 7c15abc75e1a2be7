/* ring_handshake.c - the handshake of a run, before any row moves: each rank
 * sends its values to every other rank. In: a ring. Out: DIL_PEER on every rank
 * if any two ranks differ. */
#include "ring.h"
#include "interface.h"
#include "runtime/base/status.h"
#include <string.h>

/* The values that must be the same on every rank. All fields have 8 bytes. */
typedef struct handshake {
  uint64_t plan_hash;
  int64_t version, ranks, layout, exchange, B, N, M, batch, train, seed;
  double scale;
  int64_t direction, gradients, resume, queries;
} handshake;

static const char *const handshake_words[] = {"plan",
                                              "version of dil",
                                              "number of ranks",
                                              "layout",
                                              "way of exchange",
                                              "number of batch rows",
                                              "number of queries",
                                              "number of keys",
                                              "first batch row",
                                              "word on training",
                                              "seed",
                                              "scale",
                                              "direction",
                                              "set of gradients",
                                              "word on resuming: all ranks "
                                              "resume, or none",
                                              "set of queries that come"};

int64_t ring_gradient_set(const dil_ring *r) {
  const ring_gradients *g = r->gradients;
  int64_t bits = g && g->lse_given;
  for (int32_t x = 0; g && x < r->call->input_count; x++)
    if (g->wanted[x].data) bits |= (int64_t)2 << x;
  return bits;
}

static handshake handshake_values(const dil_ring *r, int64_t B) {
  return (handshake){.plan_hash = r->plan_hash,
                     .version = DIL_INTERFACE,
                     .ranks = r->link->ranks,
                     .layout = r->shape.layout,
                     .exchange = (int64_t)r->shape.gathered,
                     .B = B,
                     .N = r->shape.N,
                     .M = r->shape.M,
                     .batch = r->batch,
                     .train = r->call->train,
                     .seed = (int64_t)r->call->seed,
                     .scale = r->call->scale,
                     .direction = r->gradients != NULL,
                     .gradients = ring_gradient_set(r),
                     .resume = r->checkpoint.prefix && r->checkpoint.resume,
                     .queries = r->gradients ? (int64_t)r->queries : 0};
}

static dil_status handshake_compare(const handshake *mine,
                                    const handshake *theirs, int32_t rank) {
  enum { FIELD = 8, FIELDS = sizeof *mine / FIELD };
  _Static_assert(FIELDS == sizeof handshake_words / sizeof *handshake_words,
                 "a word for each field");
  for (size_t i = 0; i < FIELDS; i++)
    if (memcmp((const char *)mine + i * FIELD, (const char *)theirs + i * FIELD,
               FIELD))
      return dil_fail(DIL_PEER, "rank %d has another %s", rank,
                      handshake_words[i]);
  return DIL_OK;
}

/* As many bytes to rank + step as from rank - step. */
static dil_status swap(const dil_ring *r, int32_t step, const void *mine,
                       void *theirs, int64_t bytes) {
  int32_t rank = r->link->rank, ranks = r->link->ranks;
  const link_transfer t = {.to = (rank + step) % ranks,
                           .from = (rank - step + ranks) % ranks,
                           .send = mine,
                           .receive = theirs,
                           .send_bytes = bytes,
                           .receive_bytes = bytes};
  dil_status status = r->link->calls->post(r->link, step, &t);
  return status ? status : r->link->calls->wait(r->link, step);
}

dil_status ring_handshake(const dil_ring *r, int64_t B) {
  handshake mine = handshake_values(r, B), theirs = {0};
  int32_t rank = r->link->rank, ranks = r->link->ranks;
  dil_status status = DIL_OK;
  for (int32_t step = 1; step < ranks && !status; step++) {
    int32_t from = (rank - step + ranks) % ranks;
    status = swap(r, step, &mine, &theirs, sizeof mine);
    if (!status)
      status = handshake_compare(&mine, &theirs, link_number(r->link, from));
  }
  return status;
}

dil_status ring_tell_step(const dil_ring *r, int32_t step, int32_t *steps) {
  int32_t rank = r->link->rank, ranks = r->link->ranks;
  dil_status status = DIL_OK;
  steps[rank] = step;
  for (int32_t i = 1; i < ranks && !status; i++)
    status = swap(r, i, &step, &steps[(rank - i + ranks) % ranks], sizeof step);
  return status;
}
