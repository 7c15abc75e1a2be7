/* async.c - what a thread starts and the chip finishes: cp.async, boxes of
 * tensor maps, and the mbarriers that tell when. In a block that is `late`
 * nothing happens before somebody waits for it and nobody else can go on; in
 * the others all of it happens at once. Correct kernels cannot tell. */
#include "block.h"
#include "map.h"
#include "memory.h"
#include <stdlib.h>
#include <string.h>

enum { COPIES = 4096, GROUPS = 64, BOXES = 512 };

/* ---- shared memory ----------------------------------------------------------- */

unsigned chip_shared_address(const void *p) {
  ptrdiff_t at = (const char *)p - chip_shared;
  if (at < 0 || at > 1 << 18) /* who uses it asks more closely */
    chip_fault("%p is taken for an address of shared memory", p);
  return (unsigned)at;
}

/* The last thread that wrote 16 bytes, and its fences until then. */
enum { PLACES = 256 * 1024 / 16 };
struct unfenced {
  struct {
    uint16_t thread; /* and 1 */
    uint16_t fences;
  } by[PLACES];
};

static void note_unfenced(unsigned at) {
  const thread *t = thread_now();
  struct unfenced *u = t->block->unfenced;
  u->by[at / 16].thread = (uint16_t)(t->index + 1);
  u->by[at / 16].fences = (uint16_t)t->fences;
}

void proxy_read(const block *b, unsigned at, const char *doing) {
  int writer = b->unfenced->by[at / 16].thread;
  if (!writer) return;
  const thread *t = &b->thread[writer - 1];
  if ((uint16_t)t->fences == b->unfenced->by[at / 16].fences)
    chip_fault("%s reads shared memory at %u, which thread %d has written "
               "without a fence", doing, at, writer - 1);
}

/* What a thread wrote by itself is seen by boxes and products from here on. */
void chip_fence_proxy(void) { thread_now()->fences++; }

void chip_shared_read(unsigned from, void *to, unsigned size) {
  const char *at = shared_at(from, size, size, "ld.shared");
  check_shared(at, size, false);
  memcpy(to, at, size);
}

void chip_shared_write(unsigned to, const void *from, unsigned size) {
  char *at = shared_at(to, size, size, "st.shared");
  if (!memcmp(at, from, size)) return; /* as others of its warp have */
  check_shared(at, size, true);
  note_unfenced(to);
  memcpy(at, from, size);
}

static const char counts; /* what those wait for that pause */

void chip_shared_add(unsigned at, unsigned x) {
  unsigned sum;
  chip_shared_read(at, &sum, 4);
  sum += x;
  chip_shared_write(at, &sum, 4);
  block_wake(block_now(), &counts);
}

void chip_pause(void) { thread_wait(&counts, "a number to be counted up"); }

unsigned chip_global_add(void *at, unsigned x) {
  unsigned *word = at, before = *word;
  *word += x;
  return before;
}

void chip_fresh_read(const void *from, void *to, unsigned size) {
  if ((uintptr_t)from % size)
    chip_fault("ld.global.cg of %u bytes at %p", size, from);
  if (!memory_holds(from, size, block_now()->device))
    chip_fault("ld.global.cg: %s", memory_problem());
  memcpy(to, from, size);
}

/* ---- cp.async ---------------------------------------------------------------- */

typedef struct copy {
  unsigned to;
  int size, given;
  const void *from;
} copy;

struct copies { /* of a thread, in order */
  copy copy[COPIES];
  int count;
  int group_end[GROUPS], groups; /* how many copies, up to a group's end */
};

static void run_copy(const copy *c) {
  char *to = shared_at(c->to, (unsigned)c->size, 16, "cp.async");
  if (c->given && !memory_holds(c->from, (size_t)c->given, -1))
    chip_fault("cp.async: %s", memory_problem());
  if (c->given) memcpy(to, c->from, (size_t)c->given);
  memset(to + c->given, 0, (size_t)(c->size - c->given));
}

void chip_copy(unsigned to, const void *from, int size, int given) {
  thread *t = thread_now();
  copy c = {to, size, given, from};
  if (given && (uintptr_t)from % 16)
    chip_fault("cp.async from %p, no multiple of 16", from);
  if (given < 0 || given > size)
    chip_fault("cp.async of %d out of %d bytes", given, size);
  if (!t->block->late) {
    run_copy(&c);
    return;
  }
  if (!t->copies) t->copies = calloc(1, sizeof *t->copies);
  if (t->copies->count == COPIES) chip_fault("more copies than are known");
  t->copies->copy[t->copies->count++] = c;
}

void chip_copy_commit(void) {
  copies *c = thread_now()->copies;
  if (!c) return;
  if (c->groups == GROUPS) chip_fault("more groups of copies than are known");
  c->group_end[c->groups++] = c->count;
}

void chip_copy_wait(int left) {
  copies *c = thread_now()->copies;
  if (!c || c->groups <= left) return;
  int over = c->groups - left, upto = c->group_end[over - 1];
  for (int i = 0; i < upto; i++) run_copy(&c->copy[i]);
  memmove(c->copy, c->copy + upto,
          (size_t)(c->count - upto) * sizeof *c->copy);
  for (int i = over; i < c->groups; i++)
    c->group_end[i - over] = c->group_end[i] - upto;
  c->count -= upto;
  c->groups -= over;
}

void async_thread_end(thread *t) {
  if (!t->copies) return;
  for (int i = 0; i < t->copies->count; i++) run_copy(&t->copies->copy[i]);
  t->copies->count = t->copies->groups = 0;
}

/* ---- mbarriers ------------------------------------------------------------------ */

/* A word of shared memory: what is set up, and what is missing. */
typedef struct mbarrier {
  uint64_t magic : 16, phase : 1, count : 11, pending : 11;
  uint64_t bytes : 24; /* that are on their way; a number with a sign */
} mbarrier;
enum { MAGIC = 0xBA44, COUNT_MOST = 1024 };
_Static_assert(sizeof(mbarrier) == 8, "a word");

static int32_t bytes_of(const mbarrier *m) {
  return (int32_t)((uint32_t)m->bytes << 8) >> 8;
}

static mbarrier *mbarrier_at(unsigned at) {
  mbarrier *m = (mbarrier *)(void *)shared_at(at, 8, 8, "an mbarrier");
  if (m->magic != MAGIC) chip_fault("at %u there is no mbarrier", at);
  return m;
}

static void add_bytes(mbarrier *m, int32_t more) {
  int32_t bytes = bytes_of(m) + more;
  if (bytes >= 1 << 20 || bytes < -(1 << 20))
    chip_fault("an mbarrier waits for %d bytes: more than it can", bytes);
  m->bytes = (uint32_t)bytes & 0xffffff;
}

/* The phase ends when nobody and nothing is missing. */
static void settle(block *b, mbarrier *m) {
  if (m->pending || bytes_of(m)) return;
  m->phase ^= 1;
  m->pending = m->count;
  block_wake(b, m);
}

void chip_mbarrier_init(unsigned at, unsigned count) {
  void *word = shared_at(at, 8, 8, "mbarrier.init");
  if (!count || count > COUNT_MOST)
    chip_fault("mbarrier.init of %u threads", count);
  mbarrier m = {.magic = MAGIC, .count = count & 0x7ff,
                .pending = count & 0x7ff};
  memcpy(word, &m, sizeof m);
}

void chip_mbarrier_arrive(unsigned at, unsigned bytes) {
  mbarrier *m = mbarrier_at(at);
  add_bytes(m, (int32_t)bytes);
  if (!m->pending--)
    chip_fault("one more than the %u threads of the mbarrier at %u", m->count,
               at);
  settle(block_now(), m);
}

int chip_mbarrier_wait(unsigned at, unsigned parity) {
  mbarrier *m = mbarrier_at(at);
  while (m->phase == (parity & 1)) {
    thread_wait(m, parity ? "phase 1 of the mbarrier at"
                          : "phase 0 of the mbarrier at");
    m = mbarrier_at(at);
  }
  return 1;
}

/* ---- boxes ----------------------------------------------------------------------- */

typedef struct box {
  const tensor_map *map; /* NULL: `bytes` that lie side by side at `from` */
  const void *from;
  unsigned bytes;
  int at[5];
  unsigned shared, told; /* of an mbarrier */
  bool load;
  int thread, group; /* of a store: who waits for it */
} box;

struct boxes {
  box box[BOXES];
  int count;
  int committed[THREADS_MOST]; /* groups of stores of each thread */
};

/* Bytes in place of a box. */
static void run_bytes(const block *b, const box *x) {
  if (!memory_holds(x->from, x->bytes, b->device))
    chip_fault("a copy of %u bytes: %s", x->bytes, memory_problem());
  memcpy(b->shared + x->shared, x->from, x->bytes);
}

static void run_box(block *b, const box *x) {
  char *shared = b->shared + x->shared;
  for (unsigned i = 0; !x->load && i < x->bytes; i += 16)
    proxy_read(b, x->shared + i, "the store of a box");
  if (!x->map)
    run_bytes(b, x);
  else if (!map_copy(x->map, b->device, x->at, shared, b->shared, x->load))
    chip_fault("a box at %d, %d, %d, %d, %d of a tensor map: %s", x->at[0],
               x->at[1], x->at[2], x->at[3], x->at[4], map_problem());
  if (!x->load) return;
  mbarrier *m = (mbarrier *)(void *)(b->shared + x->told);
  if (m->magic != MAGIC) chip_fault("the mbarrier of a box is gone");
  add_bytes(m, -(int32_t)x->bytes);
  settle(b, m);
}

/* The box that was put off first, or the first of those that `wanted` is for. */
static void run_and_drop(block *b, int index) {
  struct boxes *all = b->boxes;
  box x = all->box[index];
  memmove(&all->box[index], &all->box[index + 1],
          (size_t)(--all->count - index) * sizeof x);
  run_box(b, &x);
}

/* Does what was asked, now or later. */
static void put_box(const box *x) {
  block *b = block_now();
  struct boxes *all = b->boxes;
  if (!b->late) {
    run_box(b, x);
    return;
  }
  if (all->count == BOXES) run_and_drop(b, 0);
  all->box[all->count++] = *x;
}

static void start_box(const void *map, const int *at, unsigned shared,
                      unsigned told, bool load) {
  const thread *t = thread_now();
  const char *doing = load ? "the copy of a box" : "the store of a box";
  if (!map_is_one(map))
    chip_fault("%s through %p: %s", doing, map, map_problem());
  box x = {.map = map, .bytes = map_box_bytes(map), .shared = shared,
           .told = told, .load = load, .thread = t->index};
  memcpy(x.at, at, sizeof x.at);
  shared_at(shared, x.bytes, 128, doing);
  if (load) mbarrier_at(told);
  else x.group = block_now()->boxes->committed[t->index];
  put_box(&x);
}

void chip_bulk_load(unsigned to, const void *from, unsigned bytes,
                    unsigned told) {
  box x = {.from = from, .bytes = bytes, .shared = to, .told = told,
           .load = true, .thread = thread_now()->index};
  if ((uintptr_t)from % 16 || !bytes || bytes % 16)
    chip_fault("a copy of %u bytes from %p: no multiples of 16", bytes, from);
  shared_at(to, bytes, 16, "a copy of bytes");
  mbarrier_at(told);
  put_box(&x);
}

void chip_box_load(unsigned to, const void *map, const int *at,
                   unsigned told) {
  start_box(map, at, to, told, true);
}

void chip_box_store(const void *map, const int *at, unsigned from) {
  start_box(map, at, from, 0, false);
}

void chip_box_commit(void) {
  block_now()->boxes->committed[thread_now()->index]++;
}

void chip_box_wait(int left, int read_only) {
  block *b = block_now();
  int me = thread_now()->index;
  (void)read_only; /* read late and written at once */
  for (int i = 0; i < b->boxes->count;) {
    const box *x = &b->boxes->box[i];
    if (!x->load && x->thread == me &&
        x->group < b->boxes->committed[me] - left)
      run_and_drop(b, i);
    else i++;
  }
}

/* ---- the block ---------------------------------------------------------------------- */

void async_begin(block *b) {
  memset(b->registers, 0, sizeof b->registers);
  if (!b->boxes) b->boxes = calloc(1, sizeof *b->boxes);
  if (!b->unfenced) b->unfenced = calloc(1, sizeof *b->unfenced);
  memset(b->unfenced, 0, sizeof *b->unfenced);
  memset(b->boxes->committed, 0, sizeof b->boxes->committed);
  b->boxes->count = 0;
}

void async_end(block *b) {
  while (b->boxes->count) run_and_drop(b, 0);
}

/* In any order: the last that was started comes first. */
bool async_proceed(block *b) {
  for (int i = b->boxes->count - 1; i >= 0; i--)
    if (b->boxes->box[i].load) {
      run_and_drop(b, i);
      return true;
    }
  return false;
}

/* The registers of a block's threads, at most: they share 65536 evenly, in
 * units of 8. */
static int registers_of_launch(const block *b) {
  int each = 65536 / b->threads / 8 * 8;
  return each < 256 ? each : 256;
}

/* A chip waits for ever where warps together want more than the launch has. */
void chip_registers(int count, int more) {
  (void)more;
  block *b = block_now();
  int launched = registers_of_launch(b), all = 0;
  if (count < 24 || count > 256 || count % 8)
    chip_fault("setmaxnreg of %d registers", count);
  b->registers[thread_now()->index / WARP] = count;
  for (int i = 0; i < b->warps; i++) {
    if (!b->registers[i]) return; /* it may give some back yet */
    all += b->registers[i];
  }
  if (all > launched * b->warps)
    chip_fault("setmaxnreg: %d warps want %d registers a lane, the launch has %d",
               b->warps, all, launched * b->warps);
}
