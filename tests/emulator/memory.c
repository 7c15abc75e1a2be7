/* memory.c - memory of devices: pages of the host that only the emulator can
 * touch. Every block ends in guard bytes and a page that nobody may touch, no
 * address is handed out twice, and new memory is full of NaN, which are large
 * numbers where integers are read.
 *
 * The pages have a protection key where the processor has such keys: then a
 * thread opens all of them by one instruction. Elsewhere every block's pages are
 * protected one by one, which takes about half the time of a suite of rings. */
#include "memory.h"
#include "driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, GUARD_LEAST = 128, GUARD_BYTE = 0xA5 };
static const size_t REGION = 1ull << 38; /* addresses of a device */

typedef struct memory_block {
  char *at;
  size_t size, pages; /* bytes asked for; with guards, without the last page */
  bool live;
} memory_block;

static struct region {
  char *base;
  size_t used;
  int64_t live_bytes;
  memory_block *blocks;
  int count, room, first_live;
} regions[DEVICES_MOST];

typedef struct pinned {
  const char *at;
  size_t size;
  struct pinned *next;
} pinned;
static pinned *pins;
static int openings; /* without a key: of all threads */
static _Thread_local int own_openings; /* with one: of this thread */
static char problem[300];

const char *memory_problem(void) { return problem; }

int64_t memory_left(int device) {
  return wish("FAKE_MEMORY", 1ll << 34) - regions[device].live_bytes;
}

/* ---- looking up --------------------------------------------------------------- */

int memory_device(const void *at) {
  const char *p = at;
  for (int d = 0; d < DEVICES_MOST; d++)
    if (regions[d].base && p >= regions[d].base &&
        p < regions[d].base + REGION)
      return d;
  return -1;
}

const char *memory_region(int device, size_t *size) {
  return *size = REGION, regions[device].base;
}

/* The last block that begins at or before it; NULL: none. */
static memory_block *block_of(const void *at) {
  int device = memory_device(at), low = 0;
  if (device < 0) return NULL;
  struct region *r = &regions[device];
  for (int high = r->count; low < high;) {
    int middle = (low + high) / 2;
    if (r->blocks[middle].at <= (const char *)at) low = middle + 1;
    else high = middle;
  }
  return low ? &r->blocks[low - 1] : NULL;
}

bool memory_pinned(const void *at, size_t size) {
  const char *p = at;
  for (const pinned *x = pins; x; x = x->next)
    if (p >= x->at && p + size <= x->at + x->size) return true;
  return false;
}

static bool says(const char *what, const void *at, size_t size) {
  snprintf(problem, sizeof problem, "%zu bytes at %p: %s", size, at, what);
  return false;
}

bool memory_holds(const void *at, size_t size, int device) {
  int owner = memory_device(at);
  if (owner < 0)
    return memory_pinned(at, size) ||
           says("memory of the host that is not pinned", at, size);
  if (device >= 0 && !device_reaches(device, owner))
    return says("memory of a device that is no peer", at, size);
  const memory_block *b = block_of(at);
  if (!b) return says("no memory was taken there", at, size);
  if (!b->live) return says("memory that was given back", at, size);
  return (const char *)at + size <= b->at + b->size ||
         says("beyond the end of its block", at, size);
}

/* ---- taking and giving ---------------------------------------------------------- */

/* The key of all devices' memory; below 0: there is none. */
static int memory_key(void) {
  enum { UNKNOWN = -2 };
  static int key = UNKNOWN;
  if (key == UNKNOWN)
    key = wish("EMULATED_KEYS", 1) ? pkey_alloc(0, PKEY_DISABLE_ACCESS) : -1;
  return key;
}

static bool region_open(struct region *r) {
  if (r->base) return true;
  void *base = mmap(NULL, REGION, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return false;
  r->base = base;
  return true;
}

static memory_block *block_new(struct region *r) {
  if (r->count == r->room) {
    r->room = r->room ? 2 * r->room : 256;
    r->blocks = realloc(r->blocks, (size_t)r->room * sizeof *r->blocks);
    if (!r->blocks) abort();
  }
  return &r->blocks[r->count++];
}

void memory_spoil(void *at, size_t size) {
  static const uint16_t fresh = 0x7fff; /* NaN in f16, bf16, f32 and f64 */
  char *to = at;
  for (size_t i = 0; i + 1 < size; i += 2) memcpy(to + i, &fresh, 2);
  if (size % 2) to[size - 1] = 0x7f;
}

void *memory_take(int device, size_t size) {
  struct region *r = &regions[device];
  size_t pages = (size + GUARD_LEAST + PAGE - 1) / PAGE * PAGE;
  if (!region_open(r) || (int64_t)size > memory_left(device) ||
      pages + PAGE > REGION - r->used)
    return NULL;
  memory_block *b = block_new(r);
  *b = (memory_block){r->base + r->used, size, pages, true};
  r->used += pages + PAGE;
  r->live_bytes += (int64_t)size;
  mprotect(b->at, pages, PROT_READ | PROT_WRITE);
  memory_spoil(b->at, size);
  memset(b->at + size, GUARD_BYTE, pages - size);
  if (memory_key() >= 0)
    pkey_mprotect(b->at, pages, PROT_READ | PROT_WRITE, memory_key());
  else if (!openings) mprotect(b->at, pages, PROT_NONE);
  return b->at;
}

/* All bytes are guards when the first is, and each is the one before it. */
static bool is_intact(const memory_block *b) {
  const char *first = b->at + b->size;
  if ((unsigned char)*first == GUARD_BYTE &&
      !memcmp(first, first + 1, b->pages - b->size - 1))
    return true;
  for (size_t i = b->size; i < b->pages; i++)
    if ((unsigned char)b->at[i] != GUARD_BYTE) {
      snprintf(problem, sizeof problem, "%zu bytes at %p are followed by a byte "
               "that was written, %zu behind their end", b->size,
               (void *)b->at, i - b->size);
      break;
    }
  return false;
}

/* Blocks that are gone for good are not looked at again. */
static void skip_gone(struct region *r) {
  while (r->first_live < r->count && !r->blocks[r->first_live].live)
    r->first_live++;
}

bool memory_give(void *at) {
  memory_block *b = block_of(at);
  if (!b || b->at != at || !b->live)
    return says(b && b->at == at ? "it was given back before"
                                 : "no block begins there", at, 0);
  memory_open();
  bool intact = is_intact(b);
  memory_close();
  struct region *r = &regions[memory_device(at)];
  b->live = false;
  r->live_bytes -= (int64_t)b->size;
  skip_gone(r);
  madvise(b->at, b->pages, MADV_DONTNEED);
  mprotect(b->at, b->pages, PROT_NONE);
  return intact;
}

/* ---- who may touch it --------------------------------------------------------------- */

static void protect(const struct region *r, int how) {
  for (int i = r->first_live; i < r->count; i++)
    if (r->blocks[i].live) mprotect(r->blocks[i].at, r->blocks[i].pages, how);
}

static void protect_all(int how) {
  for (int d = 0; d < DEVICES_MOST; d++) protect(&regions[d], how);
}

void memory_open(void) {
  if (memory_key() < 0) {
    if (!openings++) protect_all(PROT_READ | PROT_WRITE);
  } else if (!own_openings++) pkey_set(memory_key(), 0);
}

void memory_close(void) {
  if (memory_key() < 0) {
    if (!--openings) protect_all(PROT_NONE);
  } else if (!--own_openings) pkey_set(memory_key(), PKEY_DISABLE_ACCESS);
}

bool memory_intact(void) {
  for (int d = 0; d < DEVICES_MOST; d++)
    for (int i = regions[d].first_live; i < regions[d].count; i++)
      if (regions[d].blocks[i].live && !is_intact(&regions[d].blocks[i]))
        return false;
  return true;
}

/* ---- the host's pages ----------------------------------------------------------------- */

void memory_pin(const void *at, size_t size) {
  pinned *x = malloc(sizeof *x);
  if (!x) abort();
  *x = (pinned){at, size, pins};
  pins = x;
}

bool memory_unpin(const void *at, size_t *size) {
  for (pinned **x = &pins; *x; x = &(*x)->next)
    if ((*x)->at == at) {
      pinned *gone = *x;
      *size = gone->size;
      *x = gone->next;
      free(gone);
      return true;
    }
  return false;
}
