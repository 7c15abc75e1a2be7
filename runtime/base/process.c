/* process.c - the number of this process, without a call of the kernel each
 * time that somebody asks. */
#include "process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

static _Atomic pid_t own; /* 0: not known */
static pthread_once_t at_fork_once = PTHREAD_ONCE_INIT;
static bool at_fork_known; /* a forked child will call process_forget */

static void process_forget(void) { atomic_store(&own, 0); }

static void process_register_fork(void) {
  at_fork_known = pthread_atfork(NULL, NULL, process_forget) == 0;
}

pid_t process_own(void) {
  pid_t number = atomic_load_explicit(&own, memory_order_relaxed);
  if (number) return number;
  pthread_once(&at_fork_once, process_register_fork);
  number = getpid();
  if (at_fork_known) atomic_store(&own, number);
  return number;
}
