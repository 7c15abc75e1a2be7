/* block.c - the blocks of a launch: each thread has a stack of its own and runs
 * until it waits for others. In: a kernel's function and the shape of a launch.
 * Out: everything it wrote, or a fault: threads that wait for what never comes,
 * and whatever the chip would trap on.
 *
 * Several blocks are under way at once, in a changing order, and so are their
 * warps: what depends on an order shows. In most of the blocks a warp, or each,
 * comes only when others cannot go on, and finds how far they got without it. All
 * of it is one thread of the host. */
#include "block.h"
#include "memory.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SHARED_MOST = 256 * 1024, RESIDENT_MOST = 16 };

chip_thread *chip_now;
char *chip_shared;

static void *scheduler; /* its stack, while a thread runs */
static uint32_t others; /* lanes of the warp that runs whose turn is still to come */
static jmp_buf escape;
static char fault[4096];
static const block_launch *running;
static block *resident[RESIDENT_MOST];

const char *fault_text(void) { return fault; }

/* ---- switching ------------------------------------------------------------ */

/* Keeps what a function must leave as it was. */
void chip_switch(void **from, void *to);
__asm__(".text\n"
        ".globl chip_switch\n"
        ".hidden chip_switch\n"
        ".type chip_switch, @function\n"
        "chip_switch:\n"
        "  push %rbp\n  push %rbx\n  push %r12\n"
        "  push %r13\n  push %r14\n  push %r15\n"
        "  mov %rsp, (%rdi)\n"
        "  mov %rsi, %rsp\n"
        "  pop %r15\n  pop %r14\n  pop %r13\n"
        "  pop %r12\n  pop %rbx\n  pop %rbp\n"
        "  ret\n");

void chip_fault(const char *format, ...) {
  const thread *t = thread_now();
  char what[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  if (t)
    snprintf(fault, sizeof fault, "%s: block %u thread %d: %s", running->name,
             t->told.block.x, t->index, what);
  else snprintf(fault, sizeof fault, "%s: %s", running->name, what);
  longjmp(escape, 1);
}

/* Goes on with the next lane of the warp that runs, or else with the scheduler. The
 * stack that is left is kept in *from; `first` is the warp's first thread. */
static void leave(void **from, thread *first) {
  while (others) {
    thread *t = first + __builtin_ctz(others);
    others &= others - 1;
    if (t->done || t->waits_for) continue;
    chip_now = &t->told;
    chip_switch(from, t->stack_top);
    return;
  }
  if (from != &scheduler) chip_switch(from, scheduler);
}

void thread_wait(const void *what, const char *doing) {
  thread *t = thread_now();
  int lane = t->index % WARP;
  t->waits_for = what;
  t->doing = doing;
  warp_now()->ready &= ~(1u << lane);
  leave(&t->stack_top, t - lane);
}

/* Whoever waits together has met. */
void block_wake(block *b, const void *what) {
  for (int i = 0; i < b->threads; i++) {
    thread *t = &b->thread[i];
    if (t->waits_for != what) continue;
    t->waits_for = NULL;
    b->warp[i / WARP].ready |= 1u << i % WARP;
  }
}

static void thread_main(void) {
  running->entry(running->parameters);
  thread *t = thread_now();
  block *b = t->block;
  async_thread_end(t);
  t->done = true;
  b->left--;
  warp_thread_end(t);
  leave(&t->stack_top, t - t->index % WARP);
  abort();
}

/* ---- a block ----------------------------------------------------------------- */

char *shared_at(unsigned at, unsigned size, unsigned alignment,
                const char *doing) {
  const block *b = block_now();
  if (at % alignment)
    chip_fault("%s: shared address %u is no multiple of %u", doing, at,
               alignment);
  if (at > b->shared_size || size > b->shared_size - at)
    chip_fault("%s: shared address %u and %u bytes on are beyond %u", doing,
               at, size, b->shared_size);
  return b->shared + at;
}

static void *map(size_t size) {
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) abort();
  return memory;
}

/* Stacks of all threads, in large pages: a switch from one to another would miss the
 * table of small ones nearly always. */
static char *map_stacks(void) {
  const size_t page = 2 << 20, size = (size_t)THREADS_MOST * STACK_ROOM;
  uintptr_t at = (uintptr_t)map(size + page);
  char *stacks = (char *)((at + page - 1) & ~(uintptr_t)(page - 1));
  madvise(stacks, size, MADV_HUGEPAGE); /* small ones do as well */
  return stacks;
}

static block *block_new(void) {
  block *b = calloc(1, sizeof *b);
  b->thread = calloc(THREADS_MOST, sizeof *b->thread);
  b->shared = map(SHARED_MOST);
  char *stacks = map_stacks();
  for (int i = 0; i < THREADS_MOST; i++) {
    b->thread[i].stack = stacks + (size_t)i * STACK_ROOM;
    b->thread[i].block = b;
    b->thread[i].index = i;
  }
  return b;
}

/* What the first switch to a thread takes from its stack. */
static void set_stack(thread *t) {
  enum { SAVED = 6 };
  uintptr_t top = ((uintptr_t)t->stack + STACK_ROOM) & ~(uintptr_t)63;
  void **at = (void **)top;
  *--at = NULL;
  *--at = (void *)(uintptr_t)thread_main;
  for (int i = 0; i < SAVED; i++) *--at = NULL;
  t->stack_top = at;
}

static uint32_t next_random(uint32_t x) { return x * 1664525u + 1013904223u; }

/* Half of the blocks have one slow warp, a quarter one warp before the other, and
 * the rest no order among them. */
static void order_warps(block *b, const block_launch *l, unsigned number) {
  uint32_t x = next_random(next_random(l->seed) ^ number * 2654435761u);
  uint32_t warps = (uint32_t)b->warps, kind = x >> 30;
  memset(b->turn, 0, sizeof b->turn);
  b->patience = 1;
  if (kind == 1 || kind == 2) b->turn[(x >> 8) % warps] = 1;
  if (kind < 3) return;
  b->patience = 1 + (int)((x >> 8) % warps);
  for (uint32_t i = 1; i < warps; i++) {
    uint32_t with = ((x = next_random(x)) >> 8) % (i + 1);
    b->turn[i] = b->turn[with];
    b->turn[with] = (uint8_t)i;
  }
}

static void block_begin(block *b, const block_launch *l, unsigned number) {
  b->threads = b->left = (int)l->threads;
  b->warps = (b->threads + WARP - 1) / WARP;
  b->shared_size = l->shared;
  b->device = l->device;
  b->late = (l->seed + number) & 1;
  order_warps(b, l, number);
  memory_spoil(b->shared, l->shared);
  memset(b->warp, 0, sizeof b->warp);
  memset(b->barrier, 0, sizeof b->barrier);
  for (int i = 0; i < b->threads; i++) {
    thread *t = &b->thread[i];
    t->told = (chip_thread){{(unsigned)i, 0, 0},
                            {number, 0, 0},
                            {l->threads, 1, 1},
                            {l->grid, 1, 1}};
    t->done = false;
    t->waits_for = NULL;
    b->warp[i / WARP].ready |= 1u << i % WARP;
    set_stack(t);
  }
  for (int i = 0; i < b->warps; i++) b->warp[i].alive = b->warp[i].ready;
  async_begin(b);
  groups_begin(b);
  check_block_begin(b);
}

/* Runs what may run of a warp, each thread until it waits. */
static void run_warp(block *b, warp *w) {
  chip_shared = b->shared;
  others = w->ready;
  leave(&scheduler, b->thread + (w - b->warp) * WARP);
  chip_now = NULL;
}

/* What the threads of a block that stands still wait for. */
static void tell_deadlock(const block *b) {
  char text[2000] = "";
  size_t length = 0;
  for (int i = 0; i < b->threads; i++) {
    const thread *t = &b->thread[i];
    if (t->done || length > sizeof text - 200) continue;
    int last = i;
    while (last + 1 < b->threads && !b->thread[last + 1].done &&
           b->thread[last + 1].waits_for == t->waits_for &&
           b->thread[last + 1].doing == t->doing)
      last++;
    ptrdiff_t at = (const char *)t->waits_for - b->shared;
    length += (size_t)snprintf(text + length, sizeof text - length,
                               "\n  threads %d-%d: %s", i, last, t->doing);
    if (at >= 0 && at < SHARED_MOST)
      length += (size_t)snprintf(text + length, sizeof text - length, " %td",
                                 at);
    i = last;
  }
  chip_fault("block %u stands still: nobody will end what its threads wait "
             "for%s", b->thread[0].told.block.x, text);
}

/* Who comes first of the warps that can go on; -1: none can. */
static int least_turn(const block *b) {
  int least = -1;
  for (int i = 0; i < b->warps; i++)
    if (b->warp[i].ready && (least < 0 || b->turn[i] < least))
      least = b->turn[i];
  return least;
}

/* One round over those, or something that was put off; false when nobody could
 * go on. */
static bool run_round(block *b, uint32_t first) {
  int turn = least_turn(b);
  if ((turn < 0 || turn >= b->patience) && async_proceed(b)) return true;
  for (int i = 0; i < b->warps && turn >= 0; i++) {
    uint32_t at = (first + (uint32_t)i) % (uint32_t)b->warps;
    if (b->turn[at] != turn) continue;
    /* It meets up to 16 times in a row, while caches have its stacks. */
    for (uint32_t n = 1 + (first + at * 7) % 16; n && b->warp[at].ready; n--)
      run_warp(b, &b->warp[at]);
  }
  return turn >= 0;
}

/* ---- a launch ------------------------------------------------------------------ */

/* Nothing guards the end of a stack, whose last word stays 0. */
static void check_stacks(const block *b) {
  for (int i = 0; i < b->threads; i++)
    if (*(const uint64_t *)(const void *)b->thread[i].stack)
      chip_fault("thread %d wants more stack than %d bytes", i, STACK_ROOM);
}

static void block_end(block *b) {
  check_stacks(b);
  async_end(b);
  groups_end(b);
}

static void run_blocks(const block_launch *l) {
  unsigned next = 0, ended = 0;
  int count = l->resident < RESIDENT_MOST ? l->resident : RESIDENT_MOST;
  bool busy[RESIDENT_MOST] = {false};
  uint32_t turn = l->seed;
  while (ended < l->grid) {
    for (int i = 0; i < count; i++) {
      block *b = resident[i];
      if (!busy[i] && next == l->grid) continue;
      if (!b) b = resident[i] = block_new();
      if (!busy[i]) block_begin(b, l, next++);
      busy[i] = true;
      turn = next_random(turn);
      if (!run_round(b, turn >> 16)) tell_deadlock(b);
      if (b->left) continue;
      block_end(b);
      busy[i] = false;
      ended++;
    }
  }
}

bool block_run(const block_launch *l) {
  running = l;
  fault[0] = 0;
  chip_now = NULL;
  check_begin(l);
  if (setjmp(escape)) {
    chip_now = NULL;
    return false;
  }
  run_blocks(l);
  return true;
}
