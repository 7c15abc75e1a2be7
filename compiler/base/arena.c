/* arena.c - memory by lifetime, interned names and floored arithmetic.
 *
 * An arena is a list of chunks and a hash set of names. Everything that one
 * compilation allocates comes from its arena and goes with it. This file
 * depends on the C library alone, so that a loadable back end can carry its
 * own copy. */
#include "arena.h"
#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_SIZE = 64 << 10, ALIGNMENT = 16, FIRST_NAMES = 256 };

typedef struct chunk {
  struct chunk *next;
  size_t used, size; /* bytes of data[] */
  _Alignas(ALIGNMENT) char data[];
} chunk;

typedef struct name {
  size_t length;
  const char *text;
} name;

struct arena {
  chunk *chunks;       /* the newest first */
  jmp_buf *out;        /* NULL: running out of memory aborts */
  name *names;         /* open addressing; text NULL: free */
  size_t name_count, name_room; /* room is a power of two */
};

/* ---- memory -------------------------------------------------------------- */

arena *arena_new(void) {
  return calloc(1, sizeof(arena));
}

void arena_free(arena *a) {
  if (!a) return;
  for (chunk *c = a->chunks, *next; c; c = next) {
    next = c->next;
    free(c);
  }
  free(a);
}

jmp_buf *arena_catch(arena *a, jmp_buf *out) {
  jmp_buf *before = a->out;
  a->out = out;
  return before;
}

_Noreturn void arena_lack(arena *a) {
  if (a->out) longjmp(*a->out, 1);
  abort();
}

static chunk *chunk_add(arena *a, size_t size) {
  size_t room = size > CHUNK_SIZE / 4 ? size : CHUNK_SIZE;
  chunk *c = room <= PTRDIFF_MAX - sizeof(chunk)
                 ? calloc(1, sizeof(chunk) + room)
                 : NULL;
  if (!c) arena_lack(a);
  c->size = room;
  /* A large block gets a chunk of its own behind the one in use. */
  if (room == size && a->chunks) {
    c->next = a->chunks->next;
    a->chunks->next = c;
  } else {
    c->next = a->chunks;
    a->chunks = c;
  }
  return c;
}

void *arena_take(arena *a, size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes) ||
      __builtin_add_overflow(bytes, ALIGNMENT - 1, &bytes))
    arena_lack(a);
  bytes &= ~(size_t)(ALIGNMENT - 1);
  chunk *c = a->chunks;
  if (!c || c->size - c->used < bytes) c = chunk_add(a, bytes);
  void *taken = c->data + c->used;
  c->used += bytes;
  return taken;
}

/* ---- text ---------------------------------------------------------------- */

char *arena_copy(arena *a, const char *bytes, size_t length) {
  if (length == SIZE_MAX) arena_lack(a);
  char *copy = arena_take(a, length + 1, 1);
  if (length) memcpy(copy, bytes, length);
  return copy;
}

char *arena_print(arena *a, const char *format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, args);
  va_end(args);
  assert(length >= 0);
  char *text = arena_take(a, (size_t)length + 1, 1);
  vsnprintf(text, (size_t)length + 1, format, again);
  va_end(again);
  return text;
}

/* FNV-1a. */
static size_t name_hash(const char *bytes, size_t length) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (size_t i = 0; i < length; i++)
    hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001B3u;
  return (size_t)(hash ^ hash >> 32);
}

/* The place of a name in the set, or the free place where it belongs. */
static name *name_find(const arena *a, const char *bytes, size_t length) {
  size_t mask = a->name_room - 1;
  for (size_t at = name_hash(bytes, length) & mask;; at = (at + 1) & mask) {
    name *n = &a->names[at];
    if (!n->text) return n;
    if (n->length == length && !memcmp(n->text, bytes, length)) return n;
  }
}

static void names_grow(arena *a) {
  name *old = a->names;
  size_t room = a->name_room;
  a->name_room = room ? 2 * room : FIRST_NAMES;
  a->names = ARENA_ARRAY(a, name, a->name_room);
  for (size_t i = 0; i < room; i++)
    if (old[i].text) *name_find(a, old[i].text, old[i].length) = old[i];
}

const char *arena_name(arena *a, const char *bytes, size_t length) {
  if (2 * (a->name_count + 1) > a->name_room) names_grow(a);
  name *n = name_find(a, bytes, length);
  if (!n->text) {
    *n = (name){length, arena_copy(a, bytes, length)};
    a->name_count++;
  }
  return n->text;
}
