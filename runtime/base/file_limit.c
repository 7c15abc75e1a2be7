/* file_limit.c - keeps SIGXFSZ from ending the host; see file_limit.h. In: a
 * thread that is about to write to files. Out: its mask of signals as it was,
 * without a signal of its own writes. */
#include "file_limit.h"
#include <errno.h>
#include <pthread.h>
#include <time.h>

static sigset_t only_ours(void) {
  sigset_t ours;
  sigemptyset(&ours);
  sigaddset(&ours, SIGXFSZ);
  return ours;
}

void file_limit_begin(file_limit *limit) {
  sigset_t ours = only_ours(), waiting;
  pthread_sigmask(SIG_BLOCK, &ours, &limit->mask);
  limit->pending = !sigpending(&waiting) && sigismember(&waiting, SIGXFSZ) == 1;
}

void file_limit_end(const file_limit *limit) {
  const struct timespec at_once = {0};
  sigset_t ours = only_ours();
  int kept = errno;
  bool waits = !limit->pending;
  while (waits)
    waits = sigtimedwait(&ours, NULL, &at_once) > 0 || errno == EINTR;
  pthread_sigmask(SIG_SETMASK, &limit->mask, NULL);
  errno = kept;
}
