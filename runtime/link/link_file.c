/* link_file.c - ranks are processes of one host, and a file is their rendezvous
 * and shared memory. In: one path for all, a rank for each process. Out:
 * messages in pieces through the mapped file. A failure names a rank whose
 * process has ended or is stopped. Rank 0 unlinks the file when all have it. */
#include "link.h"
#include "runtime/base/clock.h"
#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 16, REASON = 256, RANKS_MOST = 256 };

typedef struct seat {      /* a rank's entry in the file */
  atomic_int pid;          /* 0: no process has taken this rank */
  atomic_int left;         /* the rank has freed its link */
  _Atomic double lived;    /* its last heartbeat, by the host's clock */
} seat;

typedef struct box {       /* a mailbox from one rank to another */
  atomic_int full;
  int32_t bytes;           /* of this piece */
  int64_t size;            /* of the whole message */
  char piece[PIECE];
} box;

/* State of the link. FAILS: a rank writes the reason; FAILED: the reason is
 * there; OVER: rank 0 has dismissed all, and the link cannot fail any more. */
enum { GOES_ON, FAILS, FAILED, OVER };

typedef struct board {
  char magic[8];
  int32_t ranks;
  atomic_int came;         /* how many ranks have met; below 0: spoiled */
  atomic_int state;
  char reason[REASON];
  bool lost[RANKS_MOST];   /* ranks that the failure has cost */
  seat seat[RANKS_MOST];
  box box[];               /* [from * ranks + to] */
} board;

typedef struct half {      /* one direction of a transfer */
  int32_t peer;            /* -1: this direction has no message */
  char *at;
  int64_t size, left;
  bool begun;              /* a message of no bytes has one empty piece */
} half;

typedef struct file_link {
  dil_link link;
  char *path;
  board *board;
  size_t size;
  struct slot {
    half send, receive;
  } slot[];                /* [ranks + 1] */
} file_link;

static const char magic[8] = "dilmeet1";

static file_link *self(dil_link *link) { return (file_link *)link; }

static box *box_of(const file_link *l, int32_t from, int32_t to) {
  return &l->board->box[from * l->link.ranks + to];
}

/* ---- failing ------------------------------------------------------------- */

/* `left` is read last: the rank may leave and end after process_state. */
static bool is_in_state(const file_link *l, int32_t rank, const char *states) {
  const seat *s = &l->board->seat[rank];
  int pid = atomic_load(&s->pid);
  if (!pid) return false;
  char state = process_state(pid);
  return strchr(states, state ? state : 'Z') && !atomic_load(&s->left);
}

/* A rank whose process has one of these states; -1: none has. */
static int32_t rank_in_state(const file_link *l, const char *states) {
  for (int32_t i = 0; i < l->link.ranks; i++)
    if (is_in_state(l, i, states)) return i;
  return -1;
}

/* The first failure decides the reason and the lost ranks: `rank` and all ranks
 * whose processes have ended. With `rank` -1 no rank is lost. */
static void fail_over(file_link *l, int32_t rank, const char *why) {
  board *b = l->board;
  int goes_on = GOES_ON;
  if (!atomic_compare_exchange_strong(&b->state, &goes_on, FAILS)) return;
  snprintf(b->reason, sizeof b->reason, "%s", why);
  for (int32_t i = 0; i < l->link.ranks; i++)
    b->lost[i] = i == rank || (rank >= 0 && is_in_state(l, i, "ZX"));
  atomic_store(&b->state, FAILED);
}

static void look_for_dead(file_link *l) {
  char why[REASON];
  int32_t dead = rank_in_state(l, "ZX");
  if (dead < 0) return;
  snprintf(why, sizeof why, "rank %d is gone: its process has ended, rank %d "
           "was in step %d", link_number(&l->link, dead),
           link_number(&l->link, l->link.rank), l->link.step);
  fail_over(l, dead, why);
}

static dil_status check(dil_link *link) {
  file_link *l = self(link);
  if (atomic_load(&l->board->state) == GOES_ON) look_for_dead(l);
  while (atomic_load(&l->board->state) == FAILS) clock_rest(0);
  if (atomic_load(&l->board->state) != FAILED) return DIL_OK;
  return dil_fail(DIL_PEER, "%s", l->board->reason);
}

/* A rank whose process is stopped is the silent one; else the peer is. */
static int32_t find_silent_rank(dil_link *link, int32_t peer) {
  int32_t stopped = rank_in_state(self(link), "Tt");
  return stopped >= 0 ? stopped : peer;
}

static void heartbeat(dil_link *link) {
  atomic_store(&self(link)->board->seat[link->rank].lived, clock_seconds());
}

static void revoke_link(dil_link *link, const char *why) {
  char text[REASON];
  snprintf(text, sizeof text, "rank %d failed in step %d: %.180s",
           link_number(link, link->rank), link->step, why);
  fail_over(self(link), link->rank, text);
}

static void report_failure(dil_link *link, int32_t rank, const char *why) {
  fail_over(self(link), rank, why);
}

static bool failed_ranks(dil_link *link, bool *lost) {
  const board *b = self(link)->board;
  bool any = false;
  if (check(link) == DIL_OK) return false;
  memcpy(lost, b->lost, (size_t)link->ranks * sizeof *lost);
  for (int32_t i = 0; i < link->ranks; i++) any |= lost[i];
  return any;
}

/* ---- messages ------------------------------------------------------------ */

static half half_of(int32_t peer, const void *at, int64_t bytes) {
  return (half){peer, (char *)(uintptr_t)at, bytes, bytes, peer < 0};
}

static dil_status post(dil_link *link, int32_t index, const link_transfer *t) {
  struct slot *s = &self(link)->slot[index];
  if (t->order)
    return dil_fail(DIL_UNSUPPORTED, "a file moves memory of the host alone");
  s->send = half_of(t->to, t->send, t->send_bytes);
  s->receive = half_of(t->from, t->receive, t->receive_bytes);
  return DIL_OK;
}

static bool is_done(const half *h) { return h->begun && h->left == 0; }

static bool is_over(const struct slot *s) {
  return is_done(&s->send) && is_done(&s->receive);
}

static bool send_piece(file_link *l, half *h) {
  box *b = box_of(l, l->link.rank, h->peer);
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

static bool receive_piece(file_link *l, half *h) {
  box *b = box_of(l, h->peer, l->link.rank);
  char why[REASON];
  if (!atomic_load(&b->full)) return false;
  if (b->size != h->size || b->bytes > h->left) {
    snprintf(why, sizeof why, "rank %d sent %lld bytes to rank %d in step %d, "
             "%lld were due", link_number(&l->link, h->peer), (long long)b->size,
             link_number(&l->link, l->link.rank), l->link.step,
             (long long)h->size);
    fail_over(l, -1, why);
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
static bool is_late(const file_link *l, int32_t peer, double end) {
  double lived = atomic_load(&l->board->seat[peer].lived) + l->link.timeout;
  return clock_seconds() > (lived > end ? lived : end);
}

static void be_silent(file_link *l, int32_t peer) {
  char why[REASON];
  int32_t silent = find_silent_rank(&l->link, peer);
  snprintf(why, sizeof why, "rank %d is silent: rank %d waited for it in step "
           "%d, at most %g s", link_number(&l->link, silent),
           link_number(&l->link, l->link.rank), l->link.step, l->link.timeout);
  fail_over(l, silent, why);
}

enum { LOOKS = 64 }; /* turns of a wait between two checks of the processes */

static dil_status wait_slot(dil_link *link, int32_t index) {
  file_link *l = self(link);
  struct slot *s = &l->slot[index];
  double end = clock_seconds() + link->timeout;
  for (int64_t turns = 0;; turns++) {
    int32_t peer = is_done(&s->receive) ? s->send.peer : s->receive.peer;
    bool late = !is_over(s) && is_late(l, peer, end); /* a last try follows */
    bool moved = !is_done(&s->send) && send_piece(l, &s->send);
    if (!is_done(&s->receive)) moved |= receive_piece(l, &s->receive);
    if (is_over(s)) return DIL_OK;
    link_heartbeat(link);
    if (moved) {
      end = clock_seconds() + link->timeout; /* no peer is silent */
      continue;
    }
    dil_status status = turns % LOOKS ? DIL_OK : check(link);
    if (status) return status;
    if (late) be_silent(l, peer);
    clock_rest(turns);
  }
}

/* One atomic exchange decides for all ranks: OVER, or failed for rank 0 too. */
static dil_status dismiss(dil_link *link) {
  file_link *l = self(link);
  int goes_on = GOES_ON;
  double end = clock_seconds() + link->timeout;
  if (link->rank == 0)
    atomic_compare_exchange_strong(&l->board->state, &goes_on, OVER);
  for (int64_t turns = 0; atomic_load(&l->board->state) != OVER; turns++) {
    dil_status status = turns % LOOKS ? DIL_OK : check(link);
    if (status) return status;
    if (is_late(l, 0, end)) be_silent(l, 0);
    clock_rest(turns);
  }
  return DIL_OK;
}

/* ---- meeting ------------------------------------------------------------- */

static void free_link(dil_link *link) {
  file_link *l = self(link);
  atomic_store(&l->board->seat[link->rank].left, 1);
  munmap(l->board, l->size);
  free(l->path);
  free(l);
}

/* The remaining ranks meet in a new file; its name has their number. */
static dil_status shrink(dil_link *link, const bool *lost, dil_link **smaller) {
  const file_link *l = self(link);
  int32_t left = link_left(lost, link->ranks);
  char path[4096];
  if (snprintf(path, sizeof path, "%s.%d", l->path, left) >= (int)sizeof path)
    return dil_fail(DIL_USAGE, "the path '%.40s...' is too long", l->path);
  return file_link_new(path, link_left(lost, link->rank), left, link->timeout,
                       smaller);
}

static const link_calls file_calls = {.name = "file",
                                      .post = post,
                                      .wait = wait_slot,
                                      .check = check,
                                      .find_silent_rank = find_silent_rank,
                                      .heartbeat = heartbeat,
                                      .dismiss = dismiss,
                                      .revoke = revoke_link,
                                      .free = free_link,
                                      .report_failure = report_failure,
                                      .failed_ranks = failed_ranks,
                                      .shrink = shrink};

static board *map_board(int file, size_t size) {
  void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return at == MAP_FAILED ? NULL : at;
}

/* The running process that has this seat, or 0. */
static int sitting(const board *b, int32_t rank) {
  int pid = atomic_load(&b->seat[rank].pid);
  char state = pid ? process_state(pid) : 0;
  return state && state != 'Z' ? pid : 0;
}

/* Maps the file of `ranks` ranks; odd: the head of one of another number. */
static board *open_board(const char *path, int32_t ranks, size_t size, bool odd) {
  struct stat about;
  int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  board *b = NULL;
  if (file >= 0 && !fstat(file, &about) && about.st_uid == geteuid() &&
      (odd ? about.st_size >= (off_t)size : about.st_size == (off_t)size))
    b = map_board(file, size);
  if (file >= 0) close(file);
  if (!b || (!memcmp(b->magic, magic, sizeof magic) &&
             (b->ranks != ranks) == odd))
    return b;
  munmap(b, size);
  return NULL;
}

/* Makes the rendezvous fail for all with this reason, unless all have met. */
static void spoil(board *b, const char *why) {
  int came = atomic_load(&b->came);
  while (came >= 0 && came < b->ranks)
    if (atomic_compare_exchange_weak(&b->came, &came, -2 * RANKS_MOST)) {
      came = -1;
      snprintf(b->reason, sizeof b->reason, "%s", why);
      atomic_store(&b->state, FAILED);
    }
}

/* Whether the file is an earlier job's, or empty, so that it may go. */
static bool is_meeting(const char *path) {
  char begin[sizeof magic];
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  ssize_t length = file >= 0 ? read(file, begin, sizeof begin) : -1;
  if (file >= 0) close(file);
  return length == 0 || (length == (ssize_t)sizeof begin &&
                         !memcmp(begin, magic, sizeof magic));
}

/* Gives the file its public name by link(2), over an earlier job's file. False:
 * a running rank 0 has the name (*taken), or another failure (errno). */
static bool name_board(const char *aside, const char *path, int32_t ranks,
                       size_t size, int *taken) {
  while (link(aside, path)) {
    if (errno != EEXIST) return false;
    board *b = open_board(path, ranks, size, false);
    *taken = b ? sitting(b, 0) : 0;
    if (b) munmap(b, size);
    errno = EEXIST;
    if (*taken || !is_meeting(path)) return false;
    if (unlink(path) && errno != ENOENT) return false;
  }
  return true;
}

/* Rank 0 makes the file under another name, so that no rank sees half of it. */
static board *make_board(const char *path, int32_t ranks, size_t size,
                         int *taken) {
  char aside[4096];
  board *b = NULL;
  if (snprintf(aside, sizeof aside, "%s.%d", path, (int)getpid()) >=
      (int)sizeof aside)
    return NULL;
  int file = open(aside, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file >= 0 && !ftruncate(file, (off_t)size)) b = map_board(file, size);
  if (file >= 0) close(file);
  if (!b) return NULL;
  memcpy(b->magic, magic, sizeof magic);
  b->ranks = ranks;
  atomic_store(&b->seat[0].pid, (int)getpid());
  bool named = name_board(aside, path, ranks, size, taken);
  int why = errno;
  unlink(aside);
  errno = why;
  if (named) return b;
  munmap(b, size);
  return NULL;
}

/* Takes this rank's seat in the file. NULL: there is no file; or its rank 0 has
 * ended, as in an earlier job's file; or *taken has this rank's seat. */
static board *find_board(const char *path, int32_t rank, int32_t ranks,
                         size_t size, int *taken) {
  int nobody = 0;
  board *b = open_board(path, ranks, size, false);
  *taken = 0;
  if (!b) return NULL;
  bool led = sitting(b, 0) != 0;
  if (led && atomic_compare_exchange_strong(&b->seat[rank].pid, &nobody,
                                            (int)getpid()))
    return b;
  if (led) *taken = sitting(b, rank);
  munmap(b, size);
  return NULL;
}

/* Waits until rank 0 has made the file. Rank 0 unlinks a file as soon as all
 * have met, so a seat that stays taken is not an earlier job's. */
static board *await_board(const char *path, int32_t rank, int32_t ranks,
                          double end, size_t size, int *taken) {
  enum { SURE = 2 }; /* seconds */
  double free_at = clock_seconds();
  board *b = NULL;
  while (!b && clock_seconds() < end) {
    b = find_board(path, rank, ranks, size, taken);
    board *odd = b || *taken ? NULL : open_board(path, ranks, sizeof *odd, true);
    if (odd && sitting(odd, 0)) *taken = -1; /* rank 0 counts other ranks */
    if (odd) munmap(odd, sizeof *odd);
    if (!*taken) free_at = clock_seconds();
    else if (clock_seconds() > free_at + SURE) return NULL;
    if (!b) clock_rest(INT64_MAX);
  }
  return b;
}

/* This process has no seat, so the others cannot meet: it tells them why. */
static dil_status refuse(const char *path, int32_t rank, int32_t ranks,
                         size_t size, int taken) {
  char why[REASON];
  bool odd = taken < 0;
  if (odd) size = sizeof(board);
  board *b = open_board(path, ranks, size, odd);
  if (odd)
    snprintf(why, sizeof why, "a process is rank %d of %d, here are %d: process "
             "%d", rank, ranks, b ? b->ranks : 0, (int)getpid());
  else
    snprintf(why, sizeof why, "two processes are rank %d, process %d and process "
             "%d: each process has a rank of its own", rank, taken, (int)getpid());
  if (b) spoil(b, why);
  if (b) munmap(b, size);
  if (odd) return dil_fail(DIL_PEER, "ranks do not meet in '%s': %s", path, why);
  return dil_fail(DIL_USAGE, "rank %d has come to '%s' already, as process %d: "
                  "each process has a rank of its own", rank, path, taken);
}

static dil_status meet(const char *path, int32_t rank, int32_t ranks,
                       double timeout, size_t size, board **met) {
  int taken = 0;
  double end = clock_seconds() + timeout;
  board *b = rank ? await_board(path, rank, ranks, end, size, &taken)
                  : make_board(path, ranks, size, &taken);
  if (!b && taken) return refuse(path, rank, ranks, size, taken);
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
static void await_others(const file_link *l) {
  double end = clock_seconds() + 3;
  for (int32_t i = 0; i < l->link.ranks; i++)
    while (!atomic_load(&l->board->seat[i].pid) && clock_seconds() < end)
      clock_rest(INT64_MAX);
}

dil_status file_link_new(const char *path, int32_t rank, int32_t ranks,
                         double timeout, dil_link **link) {
  enum { PATIENCE = 30 }; /* seconds: processes do not begin at once */
  size_t size = sizeof(board) + (size_t)ranks * (size_t)ranks * sizeof(box);
  if (ranks > RANKS_MOST || rank < 0 || rank >= ranks)
    return dil_fail(DIL_USAGE, "rank %d of %d, at most %d may meet in a file",
                    rank, ranks, RANKS_MOST);
  file_link *l =
      calloc(1, sizeof *l + ((size_t)ranks + 1) * sizeof(struct slot));
  if (!l) return dil_fail(DIL_MEMORY, "no memory for a link of %d ranks", ranks);
  l->link = (dil_link){
      .calls = &file_calls, .rank = rank, .ranks = ranks, .timeout = timeout};
  l->size = size;
  l->path = strdup(path);
  dil_status status =
      l->path ? meet(path, rank, ranks, timeout > PATIENCE ? timeout : PATIENCE,
                     size, &l->board)
              : dil_fail(DIL_MEMORY, "no memory for the path of a link");
  if (status && l->board && !rank) await_others(l);
  if (rank == 0 && l->board) unlink(path);
  if (!status) *link = &l->link;
  else {
    if (l->board) munmap(l->board, size);
    free(l->path);
    free(l);
  }
  return status;
}
