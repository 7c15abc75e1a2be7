/* link_thread.c - ranks are threads of this process. In: messages that one
 * thread posts. Out: the same bytes, copied once, by the receiving thread. One
 * lock and one condition serve all ranks: messages are few and large. */
#include "link.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct message {
  const void *bytes;
  int64_t size;
  bool copying, taken;  /* the receiver copies it now; has copied it */
  const void *ready, *done; /* of device memory: see link_order */
  struct message *next;
} message;

typedef struct waiter { /* the wait of a rank */
  int32_t target, step; /* target: the awaited rank; -1: it does not wait */
  struct timespec until;
} waiter;

struct thread_hub {
  int32_t ranks;
  double timeout;
  pthread_mutex_t lock;
  pthread_cond_t change;
  bool failed;
  char reason[256];
  int32_t lost;         /* the rank that the failure has cost; -1: none */
  waiter *waiter;       /* [ranks] */
  message *mailbox[];   /* [from * ranks + to], oldest first */
};

typedef struct thread_slot {
  link_transfer transfer;
  message sent;
  bool used;
} thread_slot;

typedef struct thread_link {
  dil_link link;
  thread_hub *hub;
  thread_slot slot[]; /* [ranks + 1] */
} thread_link;

/* ---- the hub ------------------------------------------------------------- */

dil_status thread_hub_new(int32_t ranks, double timeout, thread_hub **hub) {
  size_t mailboxes = (size_t)ranks * (size_t)ranks * sizeof(message *);
  thread_hub *h = calloc(1, sizeof *h + mailboxes);
  waiter *waiters = calloc((size_t)ranks, sizeof *waiters);
  if (!h || !waiters) {
    free(h);
    free(waiters);
    return dil_fail(DIL_MEMORY, "no memory to join %d ranks", ranks);
  }
  for (int32_t i = 0; i < ranks; i++) waiters[i].target = -1;
  h->waiter = waiters;
  h->ranks = ranks;
  h->timeout = timeout;
  pthread_mutex_init(&h->lock, NULL);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&h->change, &monotonic);
  pthread_condattr_destroy(&monotonic);
  *hub = h;
  return DIL_OK;
}

void thread_hub_free(thread_hub *hub) {
  if (!hub) return;
  pthread_cond_destroy(&hub->change);
  pthread_mutex_destroy(&hub->lock);
  free(hub->waiter);
  free(hub);
}

/* The first failure decides the reason and the lost rank. The caller holds the
 * lock. */
__attribute__((format(printf, 3, 4)))
static void hub_fail(thread_hub *hub, int32_t lost, const char *format, ...) {
  va_list values;
  if (hub->failed) return;
  va_start(values, format);
  vsnprintf(hub->reason, sizeof hub->reason, format, values);
  va_end(values);
  hub->failed = true;
  hub->lost = lost;
  pthread_cond_broadcast(&hub->change);
}

static message **hub_mailbox(thread_hub *hub, int32_t from, int32_t to) {
  return &hub->mailbox[from * hub->ranks + to];
}

/* ---- one rank's link ----------------------------------------------------- */

static dil_status thread_post(dil_link *link, int32_t index,
                              const link_transfer *t) {
  thread_link *l = (thread_link *)link;
  thread_slot *s = &l->slot[index];
  s->used = true;
  s->transfer = *t;
  s->sent = (message){.bytes = t->send, .size = t->send_bytes,
                      .taken = t->to < 0, .ready = t->ready};
  if (t->to < 0) return DIL_OK;
  pthread_mutex_lock(&l->hub->lock);
  message **end = hub_mailbox(l->hub, link->rank, t->to);
  while (*end) end = &(*end)->next;
  *end = &s->sent;
  pthread_cond_broadcast(&l->hub->change);
  pthread_mutex_unlock(&l->hub->lock);
  return DIL_OK;
}

static dil_status thread_copy(const link_transfer *t, int32_t index,
                              message *m) {
  const link_order *o = t->order;
  if (o)
    return o->copy(o->user, index, t->receive, m->bytes, m->size, m->ready,
                   &m->done);
  if (m->size) memcpy(t->receive, m->bytes, (size_t)m->size);
  return DIL_OK;
}

/* Copies the oldest message of the sender, with the lock released. */
static void thread_take(thread_link *l, int32_t index, const link_transfer *t) {
  message **box = hub_mailbox(l->hub, t->from, l->link.rank), *m = *box;
  if (m->size != t->receive_bytes) {
    hub_fail(l->hub, -1, "rank %d sent %lld bytes to rank %d in step %d, %lld "
             "were due", link_number(&l->link, t->from), (long long)m->size,
             link_number(&l->link, l->link.rank), l->link.step,
             (long long)t->receive_bytes);
    return;
  }
  m->copying = true;
  pthread_mutex_unlock(&l->hub->lock);
  dil_status status = thread_copy(t, index, m);
  pthread_mutex_lock(&l->hub->lock);
  if (status)
    hub_fail(l->hub, l->link.rank, "rank %d failed in step %d: %s",
             link_number(&l->link, l->link.rank), l->link.step,
             dil_last_error());
  *box = m->next;
  m->copying = false;
  m->taken = true;
  pthread_cond_broadcast(&l->hub->change);
}

static struct timespec thread_deadline(double seconds) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  int64_t nanoseconds = t.tv_nsec + (int64_t)(seconds * 1e9);
  t.tv_sec += nanoseconds / 1000000000;
  t.tv_nsec = nanoseconds % 1000000000;
  return t;
}

/* The sender may free a message only when its receiver does not read it. */
static void thread_wait_for_copy(thread_link *l, const thread_slot *s) {
  while (s->sent.copying)
    pthread_cond_wait(&l->hub->change, &l->hub->lock);
}

static bool time_is_before(struct timespec a, struct timespec b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

/* Finds the silent rank: it starts at the rank that has waited longest and
 * follows the chain of waits to a rank that does not wait. If the chain is a
 * circle, it names the rank that the first one waits for. */
static void thread_find_silent_rank(const thread_link *l) {
  thread_hub *hub = l->hub;
  const waiter *w = hub->waiter;
  int32_t first = -1, by;
  for (int32_t i = 0; i < hub->ranks; i++)
    if (hub->waiter[i].target >= 0 &&
        (first < 0 ||
         time_is_before(hub->waiter[i].until, hub->waiter[first].until)))
      first = i;
  by = first;
  for (int32_t i = 0; i < hub->ranks && w[w[by].target].target >= 0; i++)
    by = w[by].target;
  if (w[w[by].target].target >= 0) by = first;
  hub_fail(hub, w[by].target, "rank %d is silent: rank %d waited for it in "
           "step %d, at most %g s", link_number(&l->link, w[by].target),
           link_number(&l->link, by), w[by].step, hub->timeout);
}

/* Waits until both directions are done or the hub has failed; a timeout makes
 * it fail. The caller holds the lock. */
static void thread_wait_locked(thread_link *l, int32_t index) {
  thread_slot *s = &l->slot[index];
  thread_hub *hub = l->hub;
  const link_transfer *t = &s->transfer;
  waiter *me = &hub->waiter[l->link.rank];
  bool received = t->from < 0;
  *me = (waiter){-1, l->link.step, thread_deadline(l->link.timeout)};
  while (!hub->failed && !(received && s->sent.taken)) {
    if (!received && *hub_mailbox(hub, t->from, l->link.rank)) {
      thread_take(l, index, t);
      received = true;
      continue;
    }
    me->target = received ? t->to : t->from;
    if (pthread_cond_timedwait(&hub->change, &hub->lock, &me->until) ==
        ETIMEDOUT)
      thread_find_silent_rank(l);
  }
  me->target = -1;
}

static dil_status thread_wait(dil_link *link, int32_t index) {
  thread_link *l = (thread_link *)link;
  dil_status status = DIL_OK;
  pthread_mutex_lock(&l->hub->lock);
  thread_slot *s = &l->slot[index];
  const link_transfer *t = &s->transfer;
  thread_wait_locked(l, index);
  thread_wait_for_copy(l, s);
  if (l->hub->failed) status = dil_fail(DIL_PEER, "%s", l->hub->reason);
  pthread_mutex_unlock(&l->hub->lock);
  s->used = status != DIL_OK; /* its message may still be in a box */
  if (status || !t->order || t->to < 0) return status;
  return t->order->follow(t->order->user, s->sent.done);
}

static dil_status thread_check(dil_link *link) {
  const thread_link *l = (thread_link *)link;
  dil_status status = DIL_OK;
  pthread_mutex_lock(&l->hub->lock);
  if (l->hub->failed) status = dil_fail(DIL_PEER, "%s", l->hub->reason);
  pthread_mutex_unlock(&l->hub->lock);
  return status;
}

static void thread_revoke(dil_link *link, const char *why) {
  thread_link *l = (thread_link *)link;
  pthread_mutex_lock(&l->hub->lock);
  hub_fail(l->hub, link->rank, "rank %d failed in step %d: %s",
           link_number(link, link->rank), link->step, why);
  pthread_mutex_unlock(&l->hub->lock);
}

static void thread_report_failure(dil_link *link, int32_t rank,
                                  const char *why) {
  thread_link *l = (thread_link *)link;
  pthread_mutex_lock(&l->hub->lock);
  hub_fail(l->hub, rank, "%s", why);
  pthread_mutex_unlock(&l->hub->lock);
}

static bool thread_failed_ranks(dil_link *link, bool *lost) {
  const thread_link *l = (thread_link *)link;
  memset(lost, 0, (size_t)link->ranks * sizeof *lost);
  pthread_mutex_lock(&l->hub->lock);
  bool any = l->hub->failed && l->hub->lost >= 0;
  if (any) lost[l->hub->lost] = true;
  pthread_mutex_unlock(&l->hub->lock);
  return any;
}

static void message_unlink(message **box, const message *gone) {
  while (*box && *box != gone) box = &(*box)->next;
  if (*box) *box = gone->next;
}

/* If the receiver has not taken a message yet, the hub fails, and the message
 * leaves the receiver's box. */
static void thread_free(dil_link *link) {
  thread_link *l = (thread_link *)link;
  pthread_mutex_lock(&l->hub->lock);
  for (int32_t i = 0; i <= link->ranks; i++) {
    thread_slot *s = &l->slot[i];
    thread_wait_for_copy(l, s);
    if (!s->used || s->sent.taken) continue;
    hub_fail(l->hub, link->rank, "rank %d is gone",
             link_number(link, link->rank));
    message_unlink(hub_mailbox(l->hub, link->rank, s->transfer.to), &s->sent);
  }
  pthread_mutex_unlock(&l->hub->lock);
  free(l);
}

static const link_calls thread_calls = {.name = "thread",
                                        .post = thread_post,
                                        .wait = thread_wait,
                                        .check = thread_check,
                                        .revoke = thread_revoke,
                                        .free = thread_free,
                                        .report_failure = thread_report_failure,
                                        .failed_ranks = thread_failed_ranks};

dil_status thread_link_new(thread_hub *hub, int32_t rank, dil_link **link) {
  size_t slots = ((size_t)hub->ranks + 1) * sizeof(thread_slot);
  thread_link *l = calloc(1, sizeof *l + slots);
  if (!l) return dil_fail(DIL_MEMORY, "no memory for the link of rank %d", rank);
  l->link = (dil_link){.calls = &thread_calls, .rank = rank,
                       .ranks = hub->ranks, .timeout = hub->timeout};
  l->hub = hub;
  *link = &l->link;
  return DIL_OK;
}
