/* fault.h - calls of the C library that fail when a test says so.
 *
 * A suite that is linked with `--wrap` for these names (see the Makefile) goes
 * through here; no other program has any of it. */
#ifndef DIL_TESTS_SUPPORT_FAULT_H
#define DIL_TESTS_SUPPORT_FAULT_H

#include <stdbool.h>

/* X(name): each is counted, and may fail. */
#define FAULT_CALLS(X)                                                     \
  X(malloc) X(calloc) X(realloc) X(open) X(openat) X(read) X(write) X(fsync) \
  X(rename) X(renameat)

typedef enum fault_call {
#define X(name) FAULT_##name,
  FAULT_CALLS(X)
#undef X
  FAULT_CALL_COUNT
} fault_call;

typedef enum fault_way {
  FAULT_ERROR,   /* fails with the given errno */
  FAULT_SHORT,   /* read, write: half of it */
  FAULT_KILL,    /* the process ends, as if by kill -9 */
  FAULT_STOP     /* the process stops there, and the call is good after that */
} fault_way;

/* From now on the call number `at` (from 0) of `call` goes wrong, and with
 * `ever` all after it; the counts begin anew. */
void fault_set(fault_call call, int at, fault_way way, int error, bool ever);
void fault_clear(void);
/* How often the call was made since fault_set or fault_clear. */
int fault_count(fault_call call);
const char *fault_name(fault_call call);

#endif
