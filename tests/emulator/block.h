/* block.h - blocks of threads that run: what block.c offers to the parts of the
 * emulator that make threads wait for each other (warp.c, async.c, group.c). */
#ifndef DIL_TESTS_EMULATOR_BLOCK_H
#define DIL_TESTS_EMULATOR_BLOCK_H

#include "chip_calls.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WARP = 32, THREADS_MOST = 1024, WARPS_MOST = 32, BARRIERS = 16 };
/* A little more than a power of two: stacks share no cache lines' places. */
enum { STACK_ROOM = 32 * 1024 + 9 * 64 };

typedef struct thread thread;
typedef struct block block;
typedef struct copies copies; /* async.c */
typedef struct groups groups; /* group.c */

typedef struct meeting { /* of the lanes of a mask */
  int kind;
  uint32_t arrived, mask; /* nobody yet: there is none */
} meeting;

typedef struct warp {
  uint32_t ready;    /* threads that may run, a bit each */
  uint32_t alive;    /* that have not returned */
  uint32_t time;     /* how often they have met */
  meeting meeting[WARP]; /* with those that nobody waits at among them */
  int meetings;
  uint32_t x[WARP], y[WARP];  /* what each lane gave, and gets */
  const void *from[WARP];
} warp;

typedef struct barrier {
  unsigned threads;  /* that it waits for; 0: idle */
  unsigned arrived;
  bool some;
  bool outcome;      /* of the last round */
} barrier;

struct thread {
  chip_thread told;  /* what the kernel reads; first */
  void *stack_top;   /* while it does not run */
  char *stack;
  block *block;
  int index;         /* in its block */
  bool done;
  const void *waits_for;  /* NULL: nothing */
  const char *doing;      /* while it waits, for people */
  uint32_t fences;        /* of the asynchronous proxy, so far */
  copies *copies;
};

struct block {
  int threads, warps, left;
  char *shared;
  unsigned shared_size;
  int device;        /* that it runs on */
  bool late;         /* what may happen later, does */
  uint8_t turn[WARPS_MOST]; /* of warps: who has the least one comes first, */
  int patience;      /* and who has this one or more when nothing is put off */
  uint32_t stamp;    /* check.c: this use of the shared memory, */
  void *words;       /* and who touched it */
  warp warp[WARPS_MOST];
  barrier barrier[BARRIERS];
  thread *thread;
  groups *groups;    /* what warpgroups multiply */
  struct boxes *boxes; /* copies of boxes that are under way */
  struct unfenced *unfenced; /* who wrote what boxes and products may read */
  int registers[WARPS_MOST]; /* of a thread, by setmaxnreg; 0: as launched */
};

/* The thread that runs, and what it belongs to. */
static inline thread *thread_now(void) { return (thread *)(void *)chip_now; }
static inline block *block_now(void) { return thread_now()->block; }
static inline warp *warp_now(void) {
  return &block_now()->warp[thread_now()->index / WARP];
}

/* Others run until someone wakes those that wait for `what`. */
void thread_wait(const void *what, const char *doing);
void block_wake(block *b, const void *what);
/* Ends the launch; does not come back to a thread. */
void chip_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* `size` bytes of the block's shared memory, aligned; or a fault. */
char *shared_at(unsigned at, unsigned size, unsigned alignment,
                const char *doing);

typedef struct block_launch {
  void (*entry)(const void *);
  const char *name;
  const void *parameters;
  size_t parameter_bytes;
  unsigned grid, threads, shared;
  int resident;      /* blocks that run at once */
  uint32_t seed;
  int device;
} block_launch;
/* Runs all blocks; false with the reason in fault_text. */
bool block_run(const block_launch *l);
const char *fault_text(void);

void warp_thread_end(thread *t);
/* Of check.c: accesses that no compiler announces, and where they begin. */
void check_begin(const block_launch *l);
void check_block_begin(block *b);
void check_shared(const void *at, unsigned size, bool write);

/* Boxes and products read shared memory as it was before the last fence of who
 * wrote it: 16 bytes that they may not read yet are a fault. */
void proxy_read(const block *b, unsigned at, const char *doing);

/* Of async.c and group.c: at the start and the end of a block; and whether
 * something that was put off is done now, since nobody else can go on. */
void async_begin(block *b);
void async_end(block *b);
bool async_proceed(block *b);
void async_thread_end(thread *t);
void groups_begin(block *b);
void groups_end(block *b);

#endif
