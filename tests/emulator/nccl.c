/* nccl.c - a libnccl.so.2 whose ranks are threads or processes of this host.
 * In: what runtime/link/nccl/nccl.h lists. Out: messages through shared memory
 * that the identifier names, moved when the streams of both ends have come to
 * them and not before.
 *
 * As with NCCL, nobody is told of a rank that is gone: who waits for it, or for
 * a message of another size, waits until it aborts. A group is of one stream.
 * */
#include "runtime/link/nccl/nccl.h"
#include "memory.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { UNHANDLED_CUDA = 1, SYSTEM = 2, INVALID_ARGUMENT = 4,
       INVALID_USAGE = 5, REMOTE = 6 }; /* ncclResult_t */
enum { RANKS_MOST = 16, PIECE = 1 << 16, HALVES_MOST = 64 };
enum { SENDER = 1, RECEIVER = 2 };

typedef struct channel { /* from one rank to another */
  atomic_int waiting;    /* ends that have come in vain */
  atomic_int full;
  size_t size, bytes;    /* of the message, of this piece */
  char piece[PIECE];
} channel;

typedef struct board {
  atomic_int ranks, came;
  atomic_int device[RANKS_MOST]; /* and 1; 0: nobody has come */
  channel channel[];             /* [from * ranks + to] */
} board;

struct nccl_comm {
  board *board;
  char name[64];
  int rank, ranks, device, state, groups, children;
  double ready;            /* not before */
  bool ended;              /* its operations are */
  struct nccl_group *put_off;      /* until the state is asked for */
  struct nccl_comm *child, **made; /* that is being made, where it goes */
};

typedef struct half {
  channel *channel;
  char *at;
  size_t size, left;
  int end;
  bool begun, done;
} half;

typedef struct nccl_group {
  struct nccl_comm *comm;
  cu_stream stream;
  work *work;              /* in the stream */
  uint64_t number;         /* of this process, rising */
  struct nccl_group *next;
  int count;
  half half[HALVES_MOST];
} nccl_group;

#define X(name, symbol, arguments) SHOWN int symbol arguments;
NCCL_FUNCTIONS(X)
NCCL_SHRINK(X)
#undef X
SHOWN const char *ncclGetErrorString(int code);
SHOWN const char *ncclGetLastError(nccl_comm comm);

static nccl_group *outstanding; /* of this process; with the driver locked */
static _Thread_local nccl_group *open_group;
static _Thread_local int depth;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int ncclGetVersion(int *version) {
  return *version = (int)wish("FAKE_NCCL", 22703), NCCL_OK;
}

const char *ncclGetErrorString(int code) {
  static const char *const texts[] = {
      "no error", "unhandled cuda error", "unhandled system error",
      "internal error", "invalid argument", "invalid usage",
      "remote process exited or there was a network error", "in progress"};
  return code >= 0 && code <= NCCL_IN_PROGRESS ? texts[code] : "unknown";
}

const char *ncclGetLastError(nccl_comm comm) {
  (void)comm;
  return "(emulated)";
}

/* ---- messages ----------------------------------------------------------------- */

/* A send is over when all of it has been taken. */
static bool send_piece(half *h) {
  channel *c = h->channel;
  if (atomic_load(&c->full)) return false;
  h->done = h->begun && !h->left;
  if (h->done) return true;
  c->size = h->size;
  c->bytes = h->left < PIECE ? h->left : PIECE;
  memcpy(c->piece, h->at, c->bytes);
  atomic_store(&c->full, 1);
  return true;
}

static bool receive_piece(half *h) {
  channel *c = h->channel;
  if (!atomic_load(&c->full) || c->size != h->size) return false;
  memcpy(h->at, c->piece, c->bytes);
  h->done = h->left == c->bytes;
  atomic_store(&c->full, 0);
  return true;
}

static bool move(half *h) {
  size_t bytes = h->channel->bytes;
  bool sends = h->end == SENDER;
  if (!(sends ? send_piece(h) : receive_piece(h))) {
    atomic_fetch_or(&h->channel->waiting, h->end);
    return false;
  }
  if (sends) bytes = h->channel->bytes;
  atomic_fetch_and(&h->channel->waiting, h->end);
  if (sends && h->done) return true;
  h->begun = true;
  h->at += bytes;
  h->left -= bytes;
  return true;
}

/* Groups of a communicator come one after the other, in whichever streams they
 * are: NCCL has a stream of its own that all of them pass. */
static bool earlier_are_over(const nccl_group *g) {
  for (uint64_t tried = 0;;) {
    nccl_group *x = outstanding;
    while (x->comm != g->comm) x = x->next;
    if (x == g) return true;
    if (x->number == tried) return false;
    tried = x->number;
    work_push(x->work);
  }
}

/* All halves of a group go on beside each other. */
static bool group_is_over(work *w) {
  nccl_group *g;
  bool moved = true, over = false;
  memcpy(&g, w->data, sizeof g);
  if (!earlier_are_over(g)) return g->comm->ended;
  memory_open();
  while (moved && !over && !g->comm->ended) {
    moved = false;
    over = true;
    for (int i = 0; i < g->count; i++) {
      if (!g->half[i].done) moved |= move(&g->half[i]);
      over &= g->half[i].done;
    }
  }
  memory_close();
  return over || g->comm->ended;
}

static void drop_group(work *w) {
  nccl_group *g, **at = &outstanding;
  memcpy(&g, w->data, sizeof g);
  while (*at && *at != g) at = &(*at)->next;
  if (*at) *at = g->next;
  free(g);
}

static void run_nothing(work *w) { (void)w; }

static bool is_wanted(const nccl_group *g) {
  for (int i = 0; i < g->count; i++)
    if (atomic_load(&g->half[i].channel->waiting) & ~g->half[i].end)
      return true;
  return g->comm->ended;
}

/* A chip goes on by itself; here its streams do when the other end waits. */
static void *go_on(void *unused) {
  const struct timespec moment = {0, 200000};
  for (;; nanosleep(&moment, NULL)) {
    uint64_t last = 0;
    driver_lock();
    for (nccl_group *g = outstanding; g;) {
      if (g->number <= last || !is_wanted(g)) {
        g = g->next;
        continue;
      }
      last = g->number;
      work_push(g->work);
      g = outstanding; /* others may have gone with it */
    }
    driver_unlock();
  }
  return unused;
}

static void start_going(void) {
  pthread_t thread;
  if (!pthread_create(&thread, NULL, go_on, NULL)) pthread_detach(thread);
}

/* Into its stream. */
static int put_group(nccl_group *g) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  static uint64_t count;
  pthread_once(&once, start_going);
  work *w = work_new(sizeof g, run_nothing);
  memcpy(w->data, &g, sizeof g);
  w->ready = group_is_over;
  w->drop = drop_group;
  driver_lock();
  nccl_group **end = &outstanding;
  while (*end) end = &(*end)->next;
  *end = g;
  g->work = w;
  g->number = ++count;
  cu_result result = work_put(g->stream, w);
  driver_unlock();
  return result ? UNHANDLED_CUDA : NCCL_OK;
}

/* Every second group is on its way when the state is asked for, as one that has
 * connections to make. */
static int launch(nccl_group *g) {
  struct nccl_comm *c = g->comm;
  c->groups++;
  if (c->groups == wish("EMULATED_NCCL_LOSE", 0)) {
    free(g);
    return c->state = REMOTE;
  }
  if (c->groups % 2 == 0) return put_group(g);
  c->put_off = g;
  return c->state = NCCL_IN_PROGRESS;
}

/* ---- groups ------------------------------------------------------------------- */

int ncclGroupStart(void) { return depth++, NCCL_OK; }

int ncclGroupEnd(void) {
  nccl_group *g = open_group;
  if (!depth) return INVALID_USAGE;
  if (--depth || !g) return NCCL_OK;
  open_group = NULL;
  return launch(g);
}

static int add(half h, int peer, nccl_comm c, void *stream) {
  if (!c || c->state || c->ended || peer < 0 || peer >= c->ranks ||
      peer == c->rank ||
      !memory_holds(h.at, h.size, c->device))
    return INVALID_ARGUMENT;
  if (!open_group) open_group = calloc(1, sizeof *open_group);
  nccl_group *g = open_group;
  if (!depth || g->count == HALVES_MOST ||
      (g->count && (g->comm != c || g->stream != stream)))
    return INVALID_USAGE;
  int from = h.end == SENDER ? c->rank : peer;
  int to = h.end == SENDER ? peer : c->rank;
  h.channel = &c->board->channel[from * c->ranks + to];
  g->comm = c;
  g->stream = stream;
  g->half[g->count++] = h;
  return NCCL_OK;
}

int ncclSend(const void *from, size_t bytes, int type, int to, nccl_comm comm,
             void *stream) {
  half h = {.at = (char *)(uintptr_t)from, .size = bytes, .left = bytes,
            .end = SENDER};
  return type == NCCL_BYTES ? add(h, to, comm, stream) : INVALID_ARGUMENT;
}

int ncclRecv(void *to, size_t bytes, int type, int from, nccl_comm comm,
             void *stream) {
  half h = {.at = to, .size = bytes, .left = bytes, .end = RECEIVER};
  return type == NCCL_BYTES ? add(h, from, comm, stream) : INVALID_ARGUMENT;
}

/* ---- communicators ------------------------------------------------------------ */

int ncclGetUniqueId(nccl_id *id) {
  static atomic_int count;
  *id = (nccl_id){{0}};
  snprintf(id->bytes, sizeof id->bytes, "/emulated-nccl-%d-%lld-%d",
           (int)getpid(), (long long)(now() * 1e6), atomic_fetch_add(&count, 1));
  return NCCL_OK;
}

static board *map_board(const char *name, int ranks) {
  size_t size = sizeof(board) + (size_t)(ranks * ranks) * sizeof(channel);
  int file = shm_open(name, O_RDWR | O_CREAT, 0600);
  void *at = MAP_FAILED;
  if (file >= 0 && !ftruncate(file, (off_t)size))
    at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  return at == MAP_FAILED ? NULL : at;
}

/* A rank comes; it is a communicator when all have. Never freed: streams may
 * still hold on to it. */
static int come(const char *name, int rank, int ranks, nccl_comm *made) {
  int none = 0, nobody = 0;
  if (rank < 0 || rank >= ranks || ranks > RANKS_MOST || device_now() < 0)
    return INVALID_ARGUMENT;
  if (wish("EMULATED_NCCL_REFUSE", -1) == rank) return SYSTEM;
  struct nccl_comm *c = calloc(1, sizeof *c);
  c->rank = rank;
  c->ranks = ranks;
  c->device = device_now();
  snprintf(c->name, sizeof c->name, "%.63s", name);
  c->board = map_board(name, ranks);
  if (!c->board) return free(c), SYSTEM;
  bool same = atomic_compare_exchange_strong(&c->board->ranks, &none, ranks) ||
              none == ranks;
  if (!same || !atomic_compare_exchange_strong(&c->board->device[rank],
                                               &nobody, c->device + 1))
    return free(c), INVALID_USAGE;
  c->ready = now() + 1e-3 * (double)wish("EMULATED_NCCL_DELAY", 0);
  atomic_fetch_add(&c->board->came, 1);
  *made = c;
  return c->state = NCCL_IN_PROGRESS;
}

int ncclCommInitRankConfig(nccl_comm *comm, int ranks, nccl_id id, int rank,
                           nccl_config *config) {
  if (config->magic != 0xcafebeef || config->size != sizeof *config ||
      config->blocking)
    return INVALID_ARGUMENT;
  return come(id.bytes, rank, ranks, comm);
}

/* Two ranks of one device are refused, as NCCL does. */
static int meet(const struct nccl_comm *c) {
  if (atomic_load(&c->board->came) < c->ranks || now() < c->ready)
    return NCCL_IN_PROGRESS;
  shm_unlink(c->name);
  for (int i = 0; i < c->ranks; i++)
    for (int j = 0; j < i; j++)
      if (c->board->device[i] == c->board->device[j]) return INVALID_USAGE;
  return NCCL_OK;
}

int ncclCommGetAsyncError(nccl_comm c, int *state) {
  nccl_group *g = c->put_off;
  if (c->state == NCCL_IN_PROGRESS && c->child) {
    c->state = c->child->state = meet(c->child);
    if (c->state != NCCL_IN_PROGRESS) {
      *c->made = c->child;
      c->child = NULL;
    }
  } else if (c->state == NCCL_IN_PROGRESS)
    c->state = g ? put_group(g) : meet(c);
  c->put_off = NULL;
  return *state = c->state, NCCL_OK;
}

/* What its streams hold is over, whatever has come. */
static void end_operations(struct nccl_comm *c) {
  driver_lock();
  c->ended = true;
  free(c->put_off);
  c->put_off = NULL;
  driver_unlock();
}

/* A caller without the device's context breaks what rows_link.h says. */
int ncclCommAbort(nccl_comm c) {
  if (!c) return INVALID_ARGUMENT;
  if (device_now() < 0) {
    fprintf(stderr, "ncclCommAbort: no context is current\n");
    abort();
  }
  if (c->child) shm_unlink(c->child->name);
  shm_unlink(c->name);
  end_operations(c);
  return NCCL_OK;
}

/* Those that are left come together anew. The parent's state tells when. */
int ncclCommShrink(nccl_comm c, int *lost, int count, nccl_comm *made,
                   nccl_config *config, int how) {
  char name[64];
  int rank = c->rank;
  if (config || how != NCCL_SHRINK_ABORT || c->child) return INVALID_ARGUMENT;
  for (int i = 0; i < count; i++) {
    if (lost[i] == c->rank) return INVALID_ARGUMENT;
    rank -= lost[i] < c->rank;
  }
  end_operations(c);
  snprintf(name, sizeof name, "%.55s.%d", c->name, c->children++);
  int code = come(name, rank, c->ranks - count, &c->child);
  c->made = made;
  return c->state = code;
}
