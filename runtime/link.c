/* link.c - what all kinds of links have in common. */
#include "link.h"

/* Nobody is done before all are: a dissemination barrier (Hensgen, Finkel and
 * Manber, 1988). */
dil_status link_meet(dil_link *l) {
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
    status = l->calls->post(l, 0, &t);
    if (!status) status = l->calls->wait(l, 0);
  }
  return status;
}

dil_status link_dismiss(dil_link *l) {
  char word = 0;
  dil_status status = DIL_OK;
  for (int32_t i = 1; i < l->ranks && !status; i++) {
    const link_transfer t = {.to = l->rank ? -1 : i,
                             .from = l->rank ? 0 : -1,
                             .send = &word,
                             .receive = &word,
                             .send_bytes = l->rank ? 0 : sizeof word,
                             .receive_bytes = l->rank ? sizeof word : 0};
    if (l->rank && l->rank != i) continue;
    status = l->calls->post(l, 0, &t);
    if (!status) status = l->calls->wait(l, 0);
  }
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
    status = l->calls->post(l, step, &t);
    if (!status) status = l->calls->wait(l, step);
    if (theirs < *least) *least = theirs;
  }
  return status;
}
