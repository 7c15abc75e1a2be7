/* check.c - every access of a checked kernel. With EMULATED_CHECK=1 kernels are
 * compiled with calls before each load and store, those of gcc's
 * -fsanitize=thread, which come here. In: an address. Out: a fault where a
 * thread
 *
 *   touches memory that is none of the device, its block or its stack,
 *   writes what another lane of its warp has touched, or touches what it has
 *   written, and the warp has not met in between,
 *   does that to what another block of the launch has touched. */
#include "block.h"
#include "memory.h"
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <sys/mman.h>

typedef struct access { /* the last one to four bytes */
  uint32_t stamp;       /* of its launch, or of its block's shared memory */
  uint32_t block, time; /* time: meetings of its warp */
  uint16_t thread;
  uint8_t bytes;        /* which of the four */
} access;
typedef struct checked_word {
  access write, read;
} checked_word;

enum { SHARED_WORDS = 256 * 1024 / 4 };
static const block_launch *running;
static uint32_t stamps, launch_stamp;
static const char *code_low, *code_high; /* the kernel's own data */
static struct {
  const char *base;
  checked_word *words;
} shadows[16]; /* of devices */

/* ---- a launch --------------------------------------------------------------- */

static int find_code(struct dl_phdr_info *info, size_t size, void *base) {
  (void)size;
  if (info->dlpi_addr != (uintptr_t)base) return 0;
  code_low = base;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const char *end =
        code_low + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    if (info->dlpi_phdr[i].p_type == PT_LOAD && end > code_high)
      code_high = end;
  }
  return 1;
}

void check_begin(const block_launch *l) {
  Dl_info about;
  void *entry;
  __builtin_memcpy(&entry, &l->entry, sizeof entry);
  running = l;
  launch_stamp = ++stamps;
  code_low = code_high = NULL;
  if (dladdr(entry, &about)) dl_iterate_phdr(find_code, about.dli_fbase);
}

void check_block_begin(block *b) { b->stamp = ++stamps; }

/* ---- who touched a word ------------------------------------------------------- */

static checked_word *map_words(size_t count) {
  void *words = mmap(NULL, count * sizeof(checked_word), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (words == MAP_FAILED) abort();
  return words;
}

static checked_word *shared_word(block *b, size_t at) {
  if (!b->words) b->words = map_words(SHARED_WORDS);
  return (checked_word *)b->words + at / 4;
}

static checked_word *device_word(const char *p, int device) {
  if (!shadows[device].words) {
    size_t size;
    shadows[device].base = memory_region(device, &size);
    shadows[device].words = map_words(size / 4);
  }
  return shadows[device].words + (p - shadows[device].base) / 4;
}

/* Whether an access as recent as `x` may come at any time to `mine`. */
static bool is_race(const access *x, const access *mine) {
  if (x->stamp != mine->stamp || !(x->bytes & mine->bytes)) return false;
  if (x->block != mine->block) return true;
  return x->thread != mine->thread &&
         x->thread / WARP == mine->thread / WARP && x->time == mine->time;
}

static void tell_race(const access *x, const char *did,
                      const char *does, const void *at) {
  chip_fault("%s %p, which thread %u of block %u %s: nothing orders the two",
             does, at, x->thread, x->block, did);
}

static void note(checked_word *w, const access *mine, bool write,
                 const void *at) {
  const char *does = write ? "writes" : "reads";
  if (is_race(&w->write, mine)) tell_race(&w->write, "wrote", does, at);
  if (write && is_race(&w->read, mine))
    tell_race(&w->read, "reads", does, at);
  *(write ? &w->write : &w->read) = *mine;
}

static void note_all(checked_word *w, const char *p, size_t size, bool write,
                     uint32_t stamp) {
  const thread *t = thread_now();
  access mine = {stamp, t->told.block.x, warp_now()->time,
                 (uint16_t)t->index, 0};
  while (size) {
    size_t first = (uintptr_t)p % 4;
    size_t some = size < 4 - first ? size : 4 - first;
    mine.bytes = (uint8_t)(((1u << some) - 1) << first);
    note(w++, &mine, write, p);
    p += some;
    size -= some;
  }
}

/* ---- an access ------------------------------------------------------------------- */

static bool within(const char *p, size_t size, const void *from, size_t room) {
  const char *low = from;
  return p >= low && size <= room && p <= low + room - size;
}

/* Of the emulator itself, which kernels read. */
static bool is_told(const char *p, size_t size, const block *b) {
  return within(p, size, b->thread, THREADS_MOST * sizeof *b->thread) ||
         within(p, size, &chip_now, sizeof chip_now) ||
         within(p, size, &chip_shared, sizeof chip_shared) ||
         within(p, size, running->parameters, running->parameter_bytes);
}

static void touch(const void *at, size_t size, bool write) {
  const thread *t = thread_now();
  const char *p = at;
  if (!t || within(p, size, t->stack, STACK_ROOM)) return;
  block *b = t->block;
  if (within(p, 1, b->shared, SHARED_WORDS * 4)) {
    size_t offset = (size_t)(p - b->shared);
    if (offset + size > b->shared_size)
      chip_fault("%s %zu bytes of shared memory at %zu, beyond %u",
                 write ? "writes" : "reads", size, offset, b->shared_size);
    note_all(shared_word(b, offset), p, size, write, b->stamp);
    return;
  }
  int device = memory_device(p);
  if (device >= 0 || memory_pinned(p, size)) {
    if (!memory_holds(p, size, running->device))
      chip_fault("%s %s", write ? "writes" : "reads", memory_problem());
    if (device >= 0)
      note_all(device_word(p, device), p, size, write, launch_stamp);
    return;
  }
  if (within(p, size, code_low, (size_t)(code_high - code_low))) return;
  if (is_told(p, size, b)) return;
  chip_fault("%s %zu bytes at %p, which is memory of the host",
             write ? "writes" : "reads", size, at);
}

void check_shared(const void *at, unsigned size, bool write) {
  static int wanted = -1;
  if (wanted < 0) wanted = getenv("EMULATED_CHECK") != NULL;
  if (wanted) touch(at, size, write);
}

/* ---- the calls ----------------------------------------------------------------------- */

#define CALL(name, ...)                                                      \
  __attribute__((visibility("default"))) void name(__VA_ARGS__);             \
  void name(__VA_ARGS__)
#define CALLS(size)                                                          \
  CALL(__tsan_read##size, void *at) { touch(at, size, false); }              \
  CALL(__tsan_write##size, void *at) { touch(at, size, true); }              \
  CALL(__tsan_unaligned_read##size, void *at) { touch(at, size, false); }    \
  CALL(__tsan_unaligned_write##size, void *at) { touch(at, size, true); }
CALLS(1) CALLS(2) CALLS(4) CALLS(8) CALLS(16)
CALL(__tsan_read_range, void *at, size_t size) { touch(at, size, false); }
CALL(__tsan_write_range, void *at, size_t size) { touch(at, size, true); }
CALL(__tsan_init, void) {}
CALL(__tsan_func_entry, void *at) { (void)at; }
CALL(__tsan_func_exit, void *at) { (void)at; }
