/* link_nccl.c - moves rows of device memory by NCCL. In: posted messages. Out:
 * one NCCL group of a send and a receive for each slot, on its stream.
 * Communicators are non-blocking: this file polls NCCL until the link's
 * deadline. After a failure the communicator is aborted, so that no stream
 * waits for it for ever; or it shrinks to the remaining ranks, which aborts its
 * operations, too. Messages of the host go over another link. */
#include "nccl.h"
#include "rows_link.h"
#include "interface.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/observe/log.h"
#include <stdio.h>
#include <stdlib.h>

struct dil_nccl {
  const nccl_functions *nccl;
  nccl_comm comm;          /* NULL: it was aborted */
  int32_t ranks;
};

typedef struct nccl_link {
  dil_link link;
  dil_link *host;
  dil_nccl *own;
  bool shrinks;
  bool failed;
  char reason[256];
  struct nccl_slot {
    bool ordered;          /* the message is of device memory, by NCCL */
    int32_t from, to;
  } slot[]; /* [ranks + 1] */
} nccl_link;

static dil_status nccl_translate(const nccl_functions *nccl, nccl_comm comm,
                                 int code, const char *doing) {
  const char *more = comm ? nccl->last(comm) : "";
  return dil_fail(DIL_ENVIRONMENT, "NCCL cannot %s: %s %.120s", doing,
                  nccl->text(code), more ? more : "");
}

/* Polls until NCCL has finished the communicator's last operation. *late: the
 * deadline has passed or the host's link has failed. */
static int nccl_finish(const nccl_functions *nccl, nccl_comm comm,
                       dil_link *host, bool *late) {
  double end = clock_seconds() + host->timeout;
  *late = false;
  for (int64_t turns = 0;; turns++) {
    int state = NCCL_OK;
    int code = nccl->state(comm, &state);
    if (code || state != NCCL_IN_PROGRESS) return code ? code : state;
    *late = clock_seconds() > end || host->calls->check(host);
    if (*late) return NCCL_IN_PROGRESS;
    clock_rest(turns);
  }
}

/* ---- joining ------------------------------------------------------------- */

/* Sends rank 0's unique id to all other ranks. */
static dil_status nccl_share_id(dil_link *host, nccl_id *id) {
  dil_status status = DIL_OK;
  for (int32_t i = 1; i < host->ranks && !status; i++) {
    bool sends = host->rank == 0;
    if (!sends && host->rank != i) continue;
    const link_transfer t = {.to = sends ? i : -1,
                             .from = sends ? -1 : 0,
                             .send = id,
                             .receive = id,
                             .send_bytes = sends ? (int64_t)sizeof *id : 0,
                             .receive_bytes = sends ? 0 : (int64_t)sizeof *id};
    status = host->calls->post(host, 0, &t);
    if (!status) status = host->calls->wait(host, 0);
  }
  return status;
}

static dil_status nccl_begin_comm(const nccl_functions *nccl, dil_link *host,
                                  const nccl_id *id, nccl_comm *comm) {
  enum { PATIENCE = 30 }; /* seconds: NCCL starts threads and maps memory */
  nccl_config config = NCCL_CONFIG;
  bool late = false;
  double timeout = host->timeout;
  int code = nccl->join(comm, host->ranks, *id, host->rank, &config);
  if (host->timeout < PATIENCE) host->timeout = PATIENCE;
  if (*comm && (!code || code == NCCL_IN_PROGRESS))
    code = nccl_finish(nccl, *comm, host, &late);
  host->timeout = timeout;
  if (!code) return DIL_OK;
  dil_status status = late ? host->calls->check(host) : DIL_OK;
  if (!status) status = nccl_translate(nccl, *comm, code, "join the ranks");
  if (*comm) nccl->abort(*comm);
  return status;
}

static dil_status nccl_join(dil_link *host, dil_nccl **made) {
  dil_nccl *n = calloc(1, sizeof *n);
  nccl_id id = {{0}};
  if (!n) return dil_fail(DIL_MEMORY, "no memory for a communicator");
  dil_status status = nccl_open(&n->nccl);
  n->ranks = host->ranks;
  if (!status && host->rank == 0) {
    int code = n->nccl->id(&id);
    if (code)
      status = nccl_translate(n->nccl, NULL, code, "name a communicator");
  }
  if (!status) status = nccl_share_id(host, &id);
  if (!status) status = nccl_begin_comm(n->nccl, host, &id, &n->comm);
  if (status) free(n);
  else *made = n;
  return status;
}

static bool nccl_serves(const dil_nccl *n, int32_t ranks) {
  return n->comm && n->ranks == ranks;
}

static void nccl_abort_comm(dil_nccl *n) {
  if (n->comm) n->nccl->abort(n->comm);
  n->comm = NULL;
}

static void nccl_leave(dil_nccl *n) {
  if (!n) return;
  nccl_abort_comm(n); /* ncclCommFinalize would wait for the other ranks */
  free(n);
}

/* ---- the link ------------------------------------------------------------ */

static nccl_link *nccl_link_of(dil_link *link) {
  return (nccl_link *)link;
}

static dil_status nccl_fail(nccl_link *l, const char *what) {
  if (!l->failed)
    snprintf(l->reason, sizeof l->reason, "%s", what);
  l->failed = true;
  return dil_fail(DIL_PEER, "%s", l->reason);
}

/* Fails with NCCL's text and the rank at the other end of the slot. */
static dil_status nccl_fail_by(nccl_link *l, int code, int32_t slot) {
  const nccl_functions *nccl = l->own->nccl;
  const struct nccl_slot *s = &l->slot[slot <= l->link.ranks ? slot : 0];
  char text[256];
  snprintf(text, sizeof text, "rank %d lost rank %d in step %d: NCCL says %.150s",
           link_number(&l->link, l->link.rank),
           link_number(&l->link, s->from >= 0 ? s->from : s->to), slot,
           nccl->text(code));
  return nccl_fail(l, text);
}

static dil_status nccl_check_comm(nccl_link *l) {
  int state = NCCL_OK, code = 0;
  if (l->failed) return nccl_fail(l, "");
  if (!l->own->comm) return nccl_fail(l, "the communicator was aborted");
  code = l->own->nccl->state(l->own->comm, &state);
  if (!code && (!state || state == NCCL_IN_PROGRESS)) return DIL_OK;
  return nccl_fail_by(l, code ? code : state, l->link.step);
}

static int nccl_put_group(const nccl_link *l, const link_transfer *t) {
  const nccl_functions *nccl = l->own->nccl;
  nccl_comm comm = l->own->comm;
  void *stream = t->order->stream;
  int code = nccl->begin(), last;
  if (code) return code;
  if (t->to >= 0)
    code = nccl->send(t->send, (size_t)t->send_bytes, NCCL_BYTES, t->to, comm,
                      stream);
  if (t->from >= 0 && (!code || code == NCCL_IN_PROGRESS))
    code = nccl->receive(t->receive, (size_t)t->receive_bytes, NCCL_BYTES,
                         t->from, comm, stream);
  last = nccl->end();
  return code && code != NCCL_IN_PROGRESS ? code : last;
}

static dil_status nccl_post(dil_link *link, int32_t index,
                            const link_transfer *t) {
  nccl_link *l = nccl_link_of(link);
  bool late = false;
  l->slot[index] = (struct nccl_slot){t->order != NULL, t->from, t->to};
  l->host->step = link->step;
  if (!t->order) return l->host->calls->post(l->host, index, t);
  dil_status status = nccl_check_comm(l);
  if (status || (t->to < 0 && t->from < 0)) return status;
  int code = nccl_put_group(l, t);
  if (code == NCCL_IN_PROGRESS)
    code = nccl_finish(l->own->nccl, l->own->comm, l->host, &late);
  if (late) status = l->host->calls->check(l->host);
  if (status) return status;
  return code ? nccl_fail_by(l, code, index) : DIL_OK;
}

/* A device message is in stream order already: only errors need a check. */
static dil_status nccl_wait(dil_link *link, int32_t index) {
  nccl_link *l = nccl_link_of(link);
  l->host->step = link->step;
  return l->slot[index].ordered ? nccl_check_comm(l)
                                : l->host->calls->wait(l->host, index);
}

static dil_status nccl_check(dil_link *link) {
  nccl_link *l = nccl_link_of(link);
  dil_status status = l->host->calls->check(l->host);
  return status ? status : nccl_check_comm(l);
}

static int32_t nccl_find_silent_rank(dil_link *link, int32_t peer) {
  dil_link *host = nccl_link_of(link)->host;
  return host->calls->find_silent_rank
             ? host->calls->find_silent_rank(host, peer)
             : peer;
}

/* ---- when it has failed -------------------------------------------------- */

/* Polls until the smaller communicator is made. The host's link has failed
 * already, so this has a deadline of its own. */
static int nccl_finish_shrinking(const nccl_functions *nccl, nccl_comm comm,
                                 nccl_comm *smaller, double timeout) {
  double end = clock_seconds() + timeout;
  int state = NCCL_IN_PROGRESS, code = NCCL_OK;
  for (int64_t turns = 0; state == NCCL_IN_PROGRESS && !code; turns++) {
    code = nccl->state(comm, &state);
    if (!code && !state && *smaller) code = nccl->state(*smaller, &state);
    if (clock_seconds() > end) break;
    clock_rest(turns);
  }
  return code ? code : state;
}

/* Shrinks the communicator to the remaining ranks, or aborts it. The other
 * remaining ranks do the same now, unless they have been lost since. */
static void nccl_shrink_comm(nccl_link *l, const bool *lost) {
  const nccl_functions *nccl = l->own->nccl;
  nccl_comm parent = l->own->comm, smaller = NULL;
  int list[l->link.ranks], count = 0;
  for (int32_t i = 0; i < l->link.ranks; i++)
    if (lost[i]) list[count++] = i;
  int code = nccl->shrink(parent, list, count, &smaller, NULL,
                          NCCL_SHRINK_ABORT);
  if (!code || code == NCCL_IN_PROGRESS)
    code = nccl_finish_shrinking(nccl, parent, &smaller, l->link.timeout);
  if (code)
    LOG(NULL, DIL_LOG_WARNING, "NCCL cannot shrink a communicator of %d ranks "
        "by %d, those left make a new one: %s", l->link.ranks, count,
        nccl->text(code));
  if (code && smaller) nccl->abort(smaller);
  nccl->abort(parent);
  l->own->comm = code ? NULL : smaller;
  l->own->ranks -= count;
}

static bool nccl_failed_ranks(dil_link *link, bool *lost) {
  dil_link *host = nccl_link_of(link)->host;
  return host->calls->failed_ranks && host->calls->failed_ranks(host, lost);
}

static void nccl_report_failure(dil_link *link, int32_t rank, const char *why) {
  dil_link *host = nccl_link_of(link)->host;
  if (host->calls->report_failure) host->calls->report_failure(host, rank, why);
}

/* Ends the communicator: until then streams wait for its posted messages. */
static void nccl_end_comm(nccl_link *l) {
  bool lost[l->link.ranks];
  bool shrinks = l->shrinks && l->own->comm &&
                 nccl_failed_ranks(&l->link, lost) && !lost[l->link.rank];
  if (shrinks && l->own->nccl->shrink) {
    nccl_shrink_comm(l, lost);
    return;
  }
  if (shrinks)
    LOG(NULL, DIL_LOG_WARNING, "NCCL has no ncclCommShrink, which came with "
        "2.27: the ranks that are left make a new communicator");
  nccl_abort_comm(l->own);
}

/* If the host's link has failed already, its reason stays: it may name a rank
 * that is gone. */
static void nccl_revoke(dil_link *link, const char *why) {
  nccl_link *l = nccl_link_of(link);
  l->host->step = link->step;
  if (!l->host->calls->check(l->host)) l->host->calls->revoke(l->host, why);
  nccl_end_comm(l);
}

static void nccl_free(dil_link *link) {
  free(nccl_link_of(link));
}

static const link_calls nccl_calls = {.name = "nccl",
                                      .orders_at_post = true,
                                      .post = nccl_post,
                                      .wait = nccl_wait,
                                      .check = nccl_check,
                                      .find_silent_rank = nccl_find_silent_rank,
                                      .revoke = nccl_revoke,
                                      .free = nccl_free,
                                      .report_failure = nccl_report_failure,
                                      .failed_ranks = nccl_failed_ranks};

static dil_status nccl_link_new(dil_nccl *own, dil_link *host, bool shrinks,
                                dil_link **made) {
  size_t slots = ((size_t)host->ranks + 1) * sizeof(struct nccl_slot);
  nccl_link *l = calloc(1, sizeof *l + slots);
  if (!l)
    return dil_fail(DIL_MEMORY, "no memory for a link of %d ranks",
                    host->ranks);
  l->link = *host;
  l->link.calls = &nccl_calls;
  l->link.step = 0;
  l->host = host;
  l->own = own;
  l->shrinks = shrinks;
  *made = &l->link;
  return DIL_OK;
}

DIL_API const dil_nccl_module *dil_nccl_module_init(void);
const dil_nccl_module *dil_nccl_module_init(void) {
  static const dil_nccl_module module = {
      DIL_INTERFACE, nccl_join, nccl_link_new, nccl_serves, nccl_leave};
  return &module;
}
