/* warp.c - what the threads of a warp, and of a block, do together: shuffles,
 * votes, matrices of 8 x 8, mma.sync, barriers. The last to arrive does it for
 * all. A warp whose threads are at different places does not go on, and says so. */
#include "block.h"
#include <string.h>

/* Kinds of the first four are CHIP_SYNC and its kin. */
enum { SHUFFLE = 8, LOAD, LOAD_TURNED, STORE, MULTIPLY };

static const char *const names[] = {
    [CHIP_SYNC + 1] = "__syncwarp", [CHIP_BALLOT + 1] = "a vote",
    [CHIP_MIN + 1] = "a minimum",   [CHIP_MATCH + 1] = "a match",
    [SHUFFLE] = "a shuffle",
    [LOAD] = "ldmatrix",            [LOAD_TURNED] = "ldmatrix.trans",
    [STORE] = "stmatrix",           [MULTIPLY] = "mma.sync"};

/* ---- what is done when all are there ---------------------------------------- */

#define LANES(i, lanes) \
  for (int i = 0; i < WARP; i++) if ((lanes) >> i & 1)

static void vote(warp *w, uint32_t lanes) {
  uint32_t all = 0;
  LANES(i, lanes) all |= (uint32_t)(w->x[i] != 0) << i;
  LANES(i, lanes) w->y[i] = all;
}

static void least(warp *w, uint32_t lanes) {
  int32_t all = INT32_MAX;
  LANES(i, lanes) if ((int32_t)w->x[i] < all) all = (int32_t)w->x[i];
  LANES(i, lanes) w->y[i] = (uint32_t)all;
}

/* The lanes whose word is the same. */
static void match(warp *w, uint32_t lanes) {
  LANES(i, lanes) {
    w->y[i] = 0;
    LANES(k, lanes) w->y[i] |= (uint32_t)(w->x[k] == w->x[i]) << k;
  }
}

static void shuffle(warp *w, uint32_t lanes) {
  LANES(i, lanes) {
    uint32_t lane = w->y[i] & 31;
    if (!(lanes >> lane & 1))
      chip_fault("lane %d shuffles with lane %u, which is not there", i, lane);
    w->y[i] = w->x[lane];
  }
}

static void load(warp *w) {
  for (int m = 0; m < 4; m++)
    for (int i = 0; i < WARP; i++) {
      unsigned *x = (unsigned *)(uintptr_t)w->from[i];
      memcpy(&x[m], shared_at(w->x[8 * m + i / 4], 16, 16, "ldmatrix") +
                        4 * (i % 4), 4);
    }
}

static void load_turned(warp *w) {
  for (int m = 0; m < 4; m++)
    for (int i = 0; i < WARP; i++) {
      unsigned *x = (unsigned *)(uintptr_t)w->from[i];
      for (int half = 0; half < 2; half++)
        memcpy((char *)&x[m] + 2 * half,
               shared_at(w->x[8 * m + 2 * (i % 4) + half], 16, 16,
                         "ldmatrix.trans") + 2 * (i / 4), 2);
    }
}

static void store(warp *w) {
  for (int m = 0; m < 4; m++)
    for (int i = 0; i < WARP; i++) {
      const unsigned *x = w->from[i];
      chip_shared_write(w->x[8 * m + i / 4] + 4 * (i % 4), &x[m], 4);
    }
}

static inline float number(int type, uint32_t x) {
  float f;
  if (type == CHIP_F16) {
    _Float16 h;
    memcpy(&h, &x, 2);
    return (float)h;
  }
  x = type == CHIP_BF16 ? x << 16 : x & 0xffffe000;
  memcpy(&f, &x, 4);
  return f;
}

/* What a lane of mma.sync brings. */
typedef struct factors {
  float *sum;
  const unsigned *x; /* a[4], b[2] */
} factors;

typedef double columns __attribute__((vector_size(64))); /* eight */

/* Operands as matrices: a has 16 rows, b 8 columns; a register holds one
 * element of 32 bits, or two. */
static inline int gather(const warp *w, int type, double (*a)[16],
                         columns *b) {
  int each = type == CHIP_TF32 ? 1 : 2;
  for (int i = 0; i < WARP; i++) {
    const factors *f = w->from[i];
    for (int r = 0; r < 6; r++)
      for (int e = 0; e < each; e++) {
        uint32_t bits = each == 2 ? f->x[r] >> 16 * e & 0xffff : f->x[r];
        int k = each * (i % 4) + e;
        if (r < 4)
          a[i / 4 + 8 * (r & 1)][k + 4 * each * (r >> 1)] = number(type, bits);
        else b[k + 4 * each * (r - 4)][i / 4] = number(type, bits);
      }
  }
  return 8 * each;
}

/* Each sum is a chain over k; those of a row are made side by side. */
static void multiply(warp *w) {
  double a[16][16];
  columns b[16];
  int type = (int)w->x[0], depth;
  if (type == CHIP_F16) depth = gather(w, CHIP_F16, a, b); /* a loop each */
  else if (type == CHIP_BF16) depth = gather(w, CHIP_BF16, a, b);
  else depth = gather(w, CHIP_TF32, a, b);
  for (int row = 0; row < 16; row++) {
    float *of[4]; /* two columns each */
    columns sum;
    for (int i = 0; i < 4; i++) {
      const factors *f = w->from[row % 8 * 4 + i];
      of[i] = f->sum + 2 * (row / 8);
      sum[2 * i] = of[i][0], sum[2 * i + 1] = of[i][1];
    }
    for (int k = 0; k < depth; k++) sum += a[row][k] * b[k];
    for (int i = 0; i < 4; i++)
      of[i][0] = (float)sum[2 * i], of[i][1] = (float)sum[2 * i + 1];
  }
}

/* ---- meeting ------------------------------------------------------------------- */

static void together(int kind, warp *w, uint32_t lanes) {
  switch (kind) {
    case CHIP_BALLOT + 1: vote(w, lanes); break;
    case CHIP_MIN + 1: least(w, lanes); break;
    case CHIP_MATCH + 1: match(w, lanes); break;
    case SHUFFLE: shuffle(w, lanes); break;
    case LOAD: load(w); break;
    case LOAD_TURNED: load_turned(w); break;
    case STORE: store(w); break;
    case MULTIPLY: multiply(w); break;
    default: break;
  }
}

/* All are there: `lane`, which runs, and those that wait. */
static void finish(block *b, warp *w, meeting *m, int lane) {
  int first = (int)(w - b->warp) * WARP;
  uint32_t others = m->arrived & ~(1u << lane);
  together(m->kind, w, m->arrived);
  w->time++;
  m->arrived = 0;
  for (uint32_t rest = others; rest; rest &= rest - 1)
    b->thread[first + __builtin_ctz(rest)].waits_for = NULL;
  w->ready |= others;
}

/* Lanes may meet in several groups at once; but those of one mask do the same. */
static meeting *meeting_of(warp *w, int lane, int kind, uint32_t mask) {
  meeting *m = NULL;
  if (!(mask >> lane & 1))
    chip_fault("%s without itself: mask %x", names[kind], mask);
  for (int i = 0; i < w->meetings; i++) {
    meeting *other = &w->meeting[i];
    if (!other->arrived) m = other;
    else if (other->mask == mask) {
      m = other;
      break;
    }
  }
  if (m && m->arrived && m->kind != kind)
    chip_fault("lanes %x of its warp are at %s, it is at %s, both of mask %x",
               m->arrived, names[m->kind], names[kind], mask);
  if (!m && w->meetings == WARP) chip_fault("more masks than lanes");
  if (!m) m = &w->meeting[w->meetings++];
  m->kind = kind;
  m->mask = mask;
  return m;
}

static uint32_t meet(int kind, uint32_t mask, uint32_t x, uint32_t y,
                     const void *from) {
  thread *t = thread_now();
  warp *w = warp_now();
  int lane = t->index % WARP;
  meeting *m = meeting_of(w, lane, kind, mask);
  m->arrived |= 1u << lane;
  w->x[lane] = x;
  w->y[lane] = y;
  w->from[lane] = from;
  if (m->arrived == (mask & w->alive)) finish(t->block, w, m, lane);
  else thread_wait(m, names[kind]);
  return w->y[lane];
}

/* Those who are gone are waited for no more. */
void warp_thread_end(thread *t) {
  warp *w = &t->block->warp[t->index / WARP];
  int lane = t->index % WARP;
  w->alive &= ~(1u << lane);
  w->ready &= ~(1u << lane);
  for (int i = 0; i < WARP; i++) {
    meeting *m = &w->meeting[i];
    if (m->arrived && m->arrived == (m->mask & w->alive))
      finish(t->block, w, m, lane);
  }
}

unsigned chip_ballot(int kind, unsigned mask, unsigned x) {
  return meet(kind + 1, mask, x, 0, NULL);
}

unsigned chip_shuffle(unsigned mask, unsigned x, int lane) {
  return meet(SHUFFLE, mask, x, (uint32_t)lane, NULL);
}

void chip_load_matrices(unsigned from, int turned, unsigned *x) {
  meet(turned ? LOAD_TURNED : LOAD, ~0u, from, 0, x);
}

void chip_store_matrices(unsigned to, const unsigned *x) {
  meet(STORE, ~0u, to, 0, x);
}

void chip_multiply(int type, float *sum, const unsigned *x) {
  factors f = {sum, x};
  meet(MULTIPLY, ~0u, (uint32_t)type, 0, &f);
}

/* ---- barriers ------------------------------------------------------------------- */

static barrier *arrive(unsigned number, unsigned threads) {
  block *b = block_now();
  if (number >= BARRIERS) chip_fault("there is no barrier %u", number);
  if (threads % WARP && threads != (unsigned)b->threads)
    chip_fault("barrier %u of %u threads, no multiple of 32", number, threads);
  barrier *it = &b->barrier[number];
  if (it->arrived && it->threads != threads)
    chip_fault("barrier %u of %u threads is one of %u to others", number,
               threads, it->threads);
  it->threads = threads;
  it->arrived++;
  return it;
}

static bool complete(barrier *it) {
  if (it->arrived < it->threads) return false;
  it->outcome = it->some;
  it->some = false;
  it->arrived = 0;
  block *b = block_now();
  for (int i = 0; i < b->warps; i++) b->warp[i].time++;
  block_wake(b, it);
  return true;
}

int chip_barrier(unsigned number, unsigned threads, int yes) {
  barrier *it = arrive(number, threads);
  it->some |= yes;
  if (!complete(it)) thread_wait(it, "a barrier of the block");
  return it->outcome;
}

void chip_barrier_arrive(unsigned number, unsigned threads) {
  complete(arrive(number, threads));
}
