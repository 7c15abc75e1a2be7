/* file_limit.h - writing where the host bounds the size of files
 * (RLIMIT_FSIZE). A write past that bound sends SIGXFSZ to its thread, which
 * ends the process. Between file_limit_begin and file_limit_end of one thread
 * such a write fails with EFBIG alone; the signal's disposition, which is the
 * host's, stays as it is. Pairs may be nested. */
#ifndef DIL_RUNTIME_BASE_FILE_LIMIT_H
#define DIL_RUNTIME_BASE_FILE_LIMIT_H

#include <signal.h>
#include <stdbool.h>

typedef struct file_limit {
  sigset_t mask;  /* of the thread before */
  bool pending;   /* the host's own signal waits already, and goes on waiting */
} file_limit;

void file_limit_begin(file_limit *limit);
void file_limit_end(const file_limit *limit); /* keeps errno */

#endif
