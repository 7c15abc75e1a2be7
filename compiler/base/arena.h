/* arena.h - memory by lifetime, growing text, interned names. */
#ifndef DIL_COMPILER_BASE_ARENA_H
#define DIL_COMPILER_BASE_ARENA_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One arena a compilation, dropped whole. arena_new returns NULL without
 * memory; taking never does: out of memory jumps to arena_catch's `out` with
 * 1, or aborts when there is none. Memory is zeroed. */
typedef struct arena arena;
arena *arena_new(void);
jmp_buf *arena_catch(arena *a, jmp_buf *out); /* the former value */
/* Memory is lacking elsewhere: goes where arena_take would. */
_Noreturn void arena_lack(arena *a);
void arena_free(arena *a);
void *arena_take(arena *a, size_t count, size_t size); /* overflow-checked */
char *arena_copy(arena *a, const char *bytes, size_t length); /* NUL added */
char *arena_print(arena *a, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
const char *arena_name(arena *a, const char *bytes, size_t length); /* interned:
                                          equal names are equal pointers */
#define ARENA_NEW(a, type) ((type *)arena_take((a), 1, sizeof(type)))
#define ARENA_ARRAY(a, type, count) \
  ((type *)arena_take((a), (size_t)(count), sizeof(type)))

#endif
