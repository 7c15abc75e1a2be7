/* link.c - collectives over any kind of link, made of post and wait. */
#include "link.h"

static dil_status link_move(dil_link *l, int32_t slot, const link_transfer *t) {
  dil_status status = l->calls->post(l, slot, t);
  return status ? status : l->calls->wait(l, slot);
}

/* A dissemination barrier (Hensgen, Finkel and Manber, 1988). */
dil_status link_barrier(dil_link *l) {
  int32_t rank = l->rank, ranks = l->ranks;
  int64_t mine = 0, theirs;
  dil_status status = DIL_OK;
  for (int32_t far = 1; far < ranks && !status; far *= 2) {
    const link_transfer t = {.to = (rank + far) % ranks,
                             .from = (rank - far + ranks) % ranks,
                             .send = &mine,
                             .receive = &theirs,
                             .send_bytes = sizeof mine,
                             .receive_bytes = sizeof theirs};
    status = link_move(l, 0, &t);
  }
  return status;
}

dil_status link_dismiss(dil_link *l) {
  char word = 0;
  const link_transfer hear = {
      .to = -1, .from = 0, .receive = &word, .receive_bytes = sizeof word};
  link_transfer say = {
      .to = 1, .from = -1, .send = &word, .send_bytes = sizeof word};
  if (l->calls->dismiss) return l->calls->dismiss(l);
  if (l->rank) return link_move(l, 0, &hear);
  dil_status status = l->calls->check(l);
  for (; say.to < l->ranks && !status; say.to++) status = link_move(l, 0, &say);
  return status;
}

dil_status link_least(dil_link *l, int64_t mine, int64_t *least) {
  int32_t rank = l->rank, ranks = l->ranks;
  int64_t theirs = mine;
  dil_status status = DIL_OK;
  *least = mine;
  for (int32_t step = 1; step < ranks && !status; step++) {
    const link_transfer t = {.to = (rank + step) % ranks,
                             .from = (rank - step + ranks) % ranks,
                             .send = &mine,
                             .receive = &theirs,
                             .send_bytes = sizeof mine,
                             .receive_bytes = sizeof theirs};
    status = link_move(l, step, &t);
    if (theirs < *least) *least = theirs;
  }
  return status;
}
