/* group.c - products of warpgroups: wgmma. Four warps bring a product together;
 * it is made when all have come, or, in a block that is `late`, when the first
 * of them waits for it: then what it reads must still be there, and its sums
 * are read by nobody. */
#include "block.h"
#include <stdlib.h>
#include <string.h>

enum { GROUP = 128, GROUPS_MOST = THREADS_MOST / GROUP, QUEUE = 64 };

typedef struct product {
  int type, width, add, turned;
  bool shared_a;
  unsigned long long a_at, b_at;
  float *sums[GROUP];
  unsigned a[GROUP][4];
  int number;            /* of its commit group */
} product;

typedef struct group {
  product *made;         /* what threads are bringing */
  int arrived;
  product *queue[QUEUE];
  int queued;
  int commits[4];        /* of each warp */
} group;

struct groups {
  group group[GROUPS_MOST];
};

/* ---- matrices in shared memory ------------------------------------------------ */

static float number(int type, const char *at) {
  uint16_t x;
  memcpy(&x, at, 2);
  if (type == CHIP_F16) {
    _Float16 h;
    memcpy(&h, &x, 2);
    return (float)h;
  }
  uint32_t wide = (uint32_t)x << 16;
  float f;
  memcpy(&f, &wide, 4);
  return f;
}

typedef struct group_place { /* what a descriptor says, in bytes */
  unsigned start, leading, stride, width, rows;
} group_place;

static group_place place_of(unsigned long long d) {
  static const unsigned widths[] = {16, 128, 64, 32}; /* of 16: no swizzle */
  group_place p = {.start = (unsigned)(d & 0x3fff) << 4,
                   .leading = (unsigned)(d >> 16 & 0x3fff) << 4,
                   .stride = (unsigned)(d >> 32 & 0x3fff) << 4,
                   .width = widths[d >> 62]};
  if (d >> 49 & 7) chip_fault("wgmma with a base offset is not known");
  p.rows = p.width / 16 - 1;
  return p;
}

static const char *element_at(const block *b, const group_place *p,
                              unsigned at) {
  at ^= (at >> 7 & p->rows) << 4;
  if (at + 2 > b->shared_size)
    chip_fault("wgmma reads shared memory at %u, beyond %u", at,
               b->shared_size);
  proxy_read(b, at, "wgmma");
  return b->shared + at;
}

/* Rows of a or columns of b, sixteen deep: row r's element k. */
static void read_straight(const block *b, const product *x,
                          unsigned long long d, int rows, float *out) {
  group_place p = place_of(d);
  for (int r = 0; r < rows; r++)
    for (int k = 0; k < 16; k += 8) {
      unsigned at = p.start + (unsigned)(r / 8) * p.stride +
                    (unsigned)(r % 8) * p.width +
                    (unsigned)k / 8 * (p.width == 16 ? p.leading : 16);
      const char *from = element_at(b, &p, at); /* eight lie together */
      for (int e = 0; e < 8; e++)
        out[(k + e) * rows + r] = number(x->type, from + 2 * e);
    }
}

/* The same where rows of the memory are what is summed over. */
static void read_turned(const block *b, const product *x,
                        unsigned long long d, int columns, float *out) {
  group_place p = place_of(d);
  if (p.width == 16) chip_fault("wgmma turned without a swizzle is not known");
  int chunk = (int)p.width / 2;
  for (int k = 0; k < 16; k++)
    for (int c = 0; c < columns; c += 8) {
      unsigned at = p.start + (unsigned)(c / chunk) * p.leading +
                    (unsigned)(k / 8) * p.stride + (unsigned)(k % 8) * p.width +
                    (unsigned)(c % chunk) * 2;
      const char *from = element_at(b, &p, at);
      for (int e = 0; e < 8; e++)
        out[k * columns + c + e] = number(x->type, from + 2 * e);
    }
}

/* Register i of a thread: rows lane / 4 and that + 8, columns 2 (lane % 4) and
 * that + 8. */
static void read_registers(const product *x, float *out) {
  for (int t = 0; t < GROUP; t++)
    for (int i = 0; i < 4; i++)
      for (int half = 0; half < 2; half++) {
        uint16_t bits = (uint16_t)(x->a[t][i] >> 16 * half);
        int row = t / 32 * 16 + t % 32 / 4 + 8 * (i & 1);
        int k = 2 * (t % 4) + half + 8 * (i >> 1);
        out[k * 64 + row] = number(x->type, (const char *)&bits);
      }
}

/* ---- a product ------------------------------------------------------------------ */

/* Element 4 g + e of a thread: row lane / 4 + 8 (e / 2), column 8 g + 2 (lane %
 * 4) + e % 2. */
static float *sum_at(const product *x, int t, int row_half, int g) {
  return x->sums[t] + 4 * g + 2 * row_half;
}

static void make(const block *b, const product *x) {
  static float a[16 * 64], m[16 * 256], row[256];
  const int width = x->width;
  if (x->shared_a)
    (x->turned & 2 ? read_turned : read_straight)(b, x, x->a_at, 64, a);
  else read_registers(x, a);
  (x->turned & 1 ? read_turned : read_straight)(b, x, x->b_at, width, m);
  for (int r = 0; r < 64; r++) {
    int first = r / 16 * 32 + r % 8 * 4, half = r / 8 % 2;
    for (int t = 0; t < 4; t++)
      for (int g = 0; g < width / 8; g++)
        memcpy(row + 8 * g + 2 * t, sum_at(x, first + t, half, g), 8);
    if (!x->add) memset(row, 0, sizeof row);
    for (int k = 0; k < 16; k++) {
      float factor = a[k * 64 + r];
      const float *with = m + k * width;
      for (int c = 0; c < width; c++) row[c] += factor * with[c];
    }
    for (int t = 0; t < 4; t++)
      for (int g = 0; g < width / 8; g++)
        memcpy(sum_at(x, first + t, half, g), row + 8 * g + 2 * t, 8);
  }
}

/* ---- bringing, committing, waiting ------------------------------------------------ */

static group *group_now(void) {
  const thread *t = thread_now();
  if (t->index / GROUP >= GROUPS_MOST) chip_fault("no such warpgroup");
  return &t->block->groups->group[t->index / GROUP];
}

/* What all threads say alike. */
static void check_alike(const product *x, int type, int width, int add,
                        int turned, unsigned long long a_at,
                        unsigned long long b_at) {
  if (x->type != type || x->width != width || !x->add != !add ||
      x->turned != turned)
    chip_fault("its warpgroup is at another product: wgmma of width %d and %d",
               width, x->width);
  if (x->a_at != a_at || x->b_at != b_at)
    chip_fault("descriptors of wgmma differ: %llx %llx and %llx %llx", a_at,
               b_at, x->a_at, x->b_at);
}

static void drop_first(group *g) {
  free(g->queue[0]);
  memmove(g->queue, g->queue + 1, (size_t)--g->queued * sizeof *g->queue);
}

static void finish(block *b, group *g) {
  product *x = g->made;
  g->made = NULL;
  g->arrived = 0;
  int first = (int)(g - b->groups->group) * (GROUP / WARP);
  for (int i = 0; i < GROUP / WARP; i++) b->warp[first + i].time++;
  block_wake(b, g);
  if (!b->late) {
    make(b, x);
    free(x);
    return;
  }
  if (g->queued == QUEUE) chip_fault("more products than are known");
  g->queue[g->queued++] = x;
}

void chip_group_multiply(int type, int width, float *sums, const unsigned *a,
                         unsigned long long a_at, unsigned long long b_at,
                         int add, int turned) {
  thread *t = thread_now();
  group *g = group_now();
  if (!g->made) {
    g->made = calloc(1, sizeof *g->made);
    *g->made = (product){.type = type, .width = width, .add = add,
                         .turned = turned, .shared_a = !a, .a_at = a_at,
                         .b_at = b_at,
                         .number = g->commits[t->index % GROUP / WARP]};
  }
  check_alike(g->made, type, width, add, turned, a_at, b_at);
  g->made->sums[t->index % GROUP] = sums;
  if (a) memcpy(g->made->a[t->index % GROUP], a, 4 * sizeof *a);
  if (++g->arrived < GROUP) thread_wait(g, "wgmma of its warpgroup");
  else finish(t->block, g);
}

void chip_group_fence(void) {}

/* Told once a warp: by its first lane. */
void chip_group_commit(void) {
  int index = thread_now()->index;
  chip_ballot(CHIP_SYNC, ~0u, 0);
  if (index % WARP == 0) group_now()->commits[index % GROUP / WARP]++;
  chip_ballot(CHIP_SYNC, ~0u, 0);
}

void chip_group_wait(int left) {
  group *g = group_now();
  thread *t = thread_now();
  chip_ballot(CHIP_SYNC, ~0u, 0);
  int done = g->commits[t->index % GROUP / WARP] - left;
  while (g->queued && g->queue[0]->number < done) {
    make(t->block, g->queue[0]);
    drop_first(g);
  }
}

void groups_begin(block *b) {
  if (!b->groups) b->groups = calloc(1, sizeof *b->groups);
  for (int i = 0; i < GROUPS_MOST; i++) {
    group *g = &b->groups->group[i];
    while (g->queued) drop_first(g);
    free(g->made);
    *g = (group){0};
  }
}

void groups_end(block *b) {
  for (int i = 0; i < GROUPS_MOST; i++)
    if (b->groups->group[i].queued)
      chip_fault("the block ends before products that nobody waited for");
}
