/* link_file.c - ranks are processes of one host, and a file is their rendezvous
 * and shared memory. In: one path for all, a rank for each process. Out:
 * messages in pieces through the mapped file. A failure names a rank whose
 * process has ended or is stopped. Rank 0 unlinks the file when all have it. */
#include "shared_file.h"
#include "link.h"
#include "runtime/base/clock.h"
#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct file_half { /* one direction of a transfer */
  int32_t peer;            /* -1: this direction has no message */
  char *at;
  int64_t size, left;
  bool begun;              /* a message of no bytes has one empty piece */
} file_half;

typedef struct file_link {
  dil_link link;
  char *path;
  shared_file *memory;
  size_t size;
  struct file_slot {
    file_half send, receive;
  } slot[]; /* [ranks + 1] */
} file_link;

static file_link *file_link_of(dil_link *link) {
  return (file_link *)link;
}

static mailbox *file_mailbox(const file_link *l, int32_t from, int32_t to) {
  return &l->memory->mailbox[from * l->link.ranks + to];
}

/* ---- failing ------------------------------------------------------------- */

/* `left` is read last: the rank may leave and end after process_state. */
static bool file_rank_is(const file_link *l, int32_t rank, const char *states) {
  const file_entry *s = &l->memory->entry[rank];
  int pid = atomic_load(&s->pid);
  if (!pid) return false;
  char state = process_state(pid);
  return strchr(states, state ? state : 'Z') && !atomic_load(&s->left);
}

/* The first rank whose process has one of these states; -1: there is none. */
static int32_t file_rank_in_state(const file_link *l, const char *states) {
  for (int32_t i = 0; i < l->link.ranks; i++)
    if (file_rank_is(l, i, states)) return i;
  return -1;
}

/* The first failure decides the reason and the lost ranks: `rank` and all ranks
 * whose processes have ended. With `rank` -1 no rank is lost. */
static void file_fail(file_link *l, int32_t rank, const char *why) {
  shared_file *b = l->memory;
  int goes_on = GOES_ON;
  if (!atomic_compare_exchange_strong(&b->state, &goes_on, FAILS)) return;
  snprintf(b->reason, sizeof b->reason, "%s", why);
  for (int32_t i = 0; i < l->link.ranks; i++)
    b->lost[i] = i == rank || (rank >= 0 && file_rank_is(l, i, "ZX"));
  atomic_store(&b->state, FAILED);
}

static void file_check_processes(file_link *l) {
  char why[REASON];
  int32_t dead = file_rank_in_state(l, "ZX");
  if (dead < 0) return;
  snprintf(why, sizeof why, "rank %d is gone: its process has ended, rank %d "
           "was in step %d", link_number(&l->link, dead),
           link_number(&l->link, l->link.rank), l->link.step);
  file_fail(l, dead, why);
}

static dil_status file_check(dil_link *link) {
  file_link *l = file_link_of(link);
  if (atomic_load(&l->memory->state) == GOES_ON) file_check_processes(l);
  while (atomic_load(&l->memory->state) == FAILS) clock_rest(0);
  if (atomic_load(&l->memory->state) != FAILED) return DIL_OK;
  return dil_fail(DIL_PEER, "%s", l->memory->reason);
}

/* A rank whose process is stopped is the silent one; else the peer is. */
static int32_t file_find_silent_rank(dil_link *link, int32_t peer) {
  int32_t stopped = file_rank_in_state(file_link_of(link), "Tt");
  return stopped >= 0 ? stopped : peer;
}

static void file_heartbeat(dil_link *link) {
  atomic_store(&file_link_of(link)->memory->entry[link->rank].last_heartbeat,
               clock_seconds());
}

static void file_revoke(dil_link *link, const char *why) {
  char text[REASON];
  snprintf(text, sizeof text, "rank %d failed in step %d: %.180s",
           link_number(link, link->rank), link->step, why);
  file_fail(file_link_of(link), link->rank, text);
}

static void file_report_failure(dil_link *link, int32_t rank, const char *why) {
  file_fail(file_link_of(link), rank, why);
}

static bool file_failed_ranks(dil_link *link, bool *lost) {
  const shared_file *b = file_link_of(link)->memory;
  bool any = false;
  if (file_check(link) == DIL_OK) return false;
  memcpy(lost, b->lost, (size_t)link->ranks * sizeof *lost);
  for (int32_t i = 0; i < link->ranks; i++) any |= lost[i];
  return any;
}

/* ---- messages ------------------------------------------------------------ */

static file_half file_half_new(int32_t peer, const void *at, int64_t bytes) {
  return (file_half){peer, (char *)(uintptr_t)at, bytes, bytes, peer < 0};
}

static dil_status file_post(dil_link *link, int32_t index,
                            const link_transfer *t) {
  struct file_slot *s = &file_link_of(link)->slot[index];
  if (t->order)
    return dil_fail(DIL_UNSUPPORTED, "a file moves memory of the host alone");
  s->send = file_half_new(t->to, t->send, t->send_bytes);
  s->receive = file_half_new(t->from, t->receive, t->receive_bytes);
  return DIL_OK;
}

static bool file_half_is_done(const file_half *h) {
  return h->begun && h->left == 0;
}

static bool file_slot_is_done(const struct file_slot *s) {
  return file_half_is_done(&s->send) && file_half_is_done(&s->receive);
}

static bool file_send_piece(file_link *l, file_half *h) {
  mailbox *b = file_mailbox(l, l->link.rank, h->peer);
  if (atomic_load(&b->full)) return false;
  b->bytes = (int32_t)(h->left < PIECE ? h->left : PIECE);
  b->size = h->size;
  memcpy(b->piece, h->at, (size_t)b->bytes);
  h->at += b->bytes;
  h->left -= b->bytes;
  h->begun = true;
  atomic_store(&b->full, 1);
  return true;
}

static bool file_receive_piece(file_link *l, file_half *h) {
  mailbox *b = file_mailbox(l, h->peer, l->link.rank);
  char why[REASON];
  if (!atomic_load(&b->full)) return false;
  if (b->size != h->size || b->bytes > h->left) {
    snprintf(why, sizeof why, "rank %d sent %lld bytes to rank %d in step %d, "
             "%lld were due", link_number(&l->link, h->peer), (long long)b->size,
             link_number(&l->link, l->link.rank), l->link.step,
             (long long)h->size);
    file_fail(l, -1, why);
    return false;
  }
  memcpy(h->at, b->piece, (size_t)b->bytes);
  h->at += b->bytes;
  h->left -= b->bytes;
  h->begun = true;
  atomic_store(&b->full, 0);
  return true;
}

/* No piece has moved up to `end`, and the last heartbeat is a timeout old. */
static bool file_is_late(const file_link *l, int32_t peer, double end) {
  double until =
      atomic_load(&l->memory->entry[peer].last_heartbeat) + l->link.timeout;
  return clock_seconds() > (until > end ? until : end);
}

static void file_fail_silent(file_link *l, int32_t peer) {
  char why[REASON];
  int32_t silent = file_find_silent_rank(&l->link, peer);
  snprintf(why, sizeof why, "rank %d is silent: rank %d waited for it in step "
           "%d, at most %g s", link_number(&l->link, silent),
           link_number(&l->link, l->link.rank), l->link.step, l->link.timeout);
  file_fail(l, silent, why);
}

enum {
  CHECK_EVERY = 64
}; /* turns of a wait between two checks of the processes */

static dil_status file_wait(dil_link *link, int32_t index) {
  file_link *l = file_link_of(link);
  struct file_slot *s = &l->slot[index];
  double end = clock_seconds() + link->timeout;
  for (int64_t turns = 0;; turns++) {
    int32_t peer =
        file_half_is_done(&s->receive) ? s->send.peer : s->receive.peer;
    bool late = !file_slot_is_done(s) &&
                file_is_late(l, peer, end); /* a last try follows */
    bool moved = !file_half_is_done(&s->send) && file_send_piece(l, &s->send);
    if (!file_half_is_done(&s->receive))
      moved |= file_receive_piece(l, &s->receive);
    if (file_slot_is_done(s)) return DIL_OK;
    link_heartbeat(link);
    if (moved) {
      end = clock_seconds() + link->timeout; /* no peer is silent */
      continue;
    }
    dil_status status = turns % CHECK_EVERY ? DIL_OK : file_check(link);
    if (status) return status;
    if (late) file_fail_silent(l, peer);
    clock_rest(turns);
  }
}

/* One atomic exchange decides for all ranks: OVER, or failed for rank 0 too. */
static dil_status file_dismiss(dil_link *link) {
  file_link *l = file_link_of(link);
  int goes_on = GOES_ON;
  double end = clock_seconds() + link->timeout;
  if (link->rank == 0)
    atomic_compare_exchange_strong(&l->memory->state, &goes_on, OVER);
  for (int64_t turns = 0; atomic_load(&l->memory->state) != OVER; turns++) {
    dil_status status = turns % CHECK_EVERY ? DIL_OK : file_check(link);
    if (status) return status;
    if (file_is_late(l, 0, end)) file_fail_silent(l, 0);
    clock_rest(turns);
  }
  return DIL_OK;
}

/* ---- meeting ------------------------------------------------------------- */

static void file_free(dil_link *link) {
  file_link *l = file_link_of(link);
  atomic_store(&l->memory->entry[link->rank].left, 1);
  munmap(l->memory, l->size);
  free(l->path);
  free(l);
}

/* The remaining ranks meet in a new file; its name has their number. */
static dil_status file_shrink(dil_link *link, const bool *lost,
                              dil_link **smaller) {
  const file_link *l = file_link_of(link);
  int32_t left = link_left(lost, link->ranks);
  char path[4096];
  if (snprintf(path, sizeof path, "%s.%d", l->path, left) >= (int)sizeof path)
    return dil_fail(DIL_USAGE, "the path '%.40s...' is too long", l->path);
  return file_link_new(path, link_left(lost, link->rank), left, link->timeout,
                       smaller);
}

static const link_calls file_calls = {.name = "file",
                                      .post = file_post,
                                      .wait = file_wait,
                                      .check = file_check,
                                      .find_silent_rank = file_find_silent_rank,
                                      .heartbeat = file_heartbeat,
                                      .dismiss = file_dismiss,
                                      .revoke = file_revoke,
                                      .free = file_free,
                                      .report_failure = file_report_failure,
                                      .failed_ranks = file_failed_ranks,
                                      .shrink = file_shrink};

/* This process has no entry, so the ranks cannot meet: it gives them the
 * reason. */
static dil_status file_refuse(const char *path, int32_t rank, int32_t ranks,
                              size_t size, int taken) {
  char why[REASON];
  bool odd = taken < 0;
  if (odd) size = sizeof(shared_file);
  shared_file *b = shared_file_open(path, ranks, size, odd);
  if (odd)
    snprintf(why, sizeof why, "a process is rank %d of %d, here are %d: process "
             "%d", rank, ranks, b ? b->ranks : 0, (int)getpid());
  else
    snprintf(why, sizeof why, "two processes are rank %d, process %d and process "
             "%d: each process has a rank of its own", rank, taken, (int)getpid());
  if (b) shared_file_spoil(b, why);
  if (b) munmap(b, size);
  if (odd) return dil_fail(DIL_PEER, "ranks do not meet in '%s': %s", path, why);
  return dil_fail(DIL_USAGE, "rank %d has come to '%s' already, as process %d: "
                  "each process has a rank of its own", rank, path, taken);
}

static dil_status file_meet(const char *path, int32_t rank, int32_t ranks,
                            double timeout, size_t size, shared_file **met) {
  int taken = 0;
  double end = clock_seconds() + timeout;
  shared_file *b = rank
                       ? shared_file_await(path, rank, ranks, end, size, &taken)
                       : shared_file_make(path, ranks, size, &taken);
  if (!b && taken) return file_refuse(path, rank, ranks, size, taken);
  if (!b && !rank)
    return dil_fail(DIL_ENVIRONMENT, "cannot meet in '%s': %s", path,
                    strerror(errno));
  if (!b)
    return dil_fail(DIL_PEER, "rank 0 has not come to '%s' in %g s", path,
                    timeout);
  *met = b;
  atomic_fetch_add(&b->came, 1);
  while (atomic_load(&b->state) == GOES_ON && atomic_load(&b->came) < ranks &&
         clock_seconds() < end)
    clock_rest(INT64_MAX);
  if (atomic_load(&b->came) == ranks) return DIL_OK;
  if (atomic_load(&b->state) == FAILED)
    return dil_fail(DIL_PEER, "ranks do not meet in '%s': %s", path, b->reason);
  return dil_fail(DIL_PEER, "%d of %d ranks have come to '%s' in %g s",
                  atomic_load(&b->came), ranks, path, timeout);
}

/* Waits a little, so that late ranks find the file and the reason in it. */
static void file_await_others(const file_link *l) {
  double end = clock_seconds() + 3;
  for (int32_t i = 0; i < l->link.ranks; i++)
    while (!atomic_load(&l->memory->entry[i].pid) && clock_seconds() < end)
      clock_rest(INT64_MAX);
}

dil_status file_link_new(const char *path, int32_t rank, int32_t ranks,
                         double timeout, dil_link **link) {
  enum { PATIENCE = 30 }; /* seconds: processes do not begin at once */
  size_t size =
      sizeof(shared_file) + (size_t)ranks * (size_t)ranks * sizeof(mailbox);
  if (ranks > RANKS_MOST || rank < 0 || rank >= ranks)
    return dil_fail(DIL_USAGE, "rank %d of %d, at most %d may meet in a file",
                    rank, ranks, RANKS_MOST);
  file_link *l =
      calloc(1, sizeof *l + ((size_t)ranks + 1) * sizeof(struct file_slot));
  if (!l) return dil_fail(DIL_MEMORY, "no memory for a link of %d ranks", ranks);
  l->link = (dil_link){
      .calls = &file_calls, .rank = rank, .ranks = ranks, .timeout = timeout};
  l->size = size;
  l->path = strdup(path);
  dil_status status =
      l->path
          ? file_meet(path, rank, ranks,
                      timeout > PATIENCE ? timeout : PATIENCE, size, &l->memory)
          : dil_fail(DIL_MEMORY, "no memory for the path of a link");
  if (status && l->memory && !rank) file_await_others(l);
  if (rank == 0 && l->memory) unlink(path);
  if (!status) *link = &l->link;
  else {
    if (l->memory) munmap(l->memory, size);
    free(l->path);
    free(l);
  }
  return status;
}
