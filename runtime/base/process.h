/* process.h - the number of this process, and how another of this host is. */
#ifndef DIL_RUNTIME_BASE_PROCESS_H
#define DIL_RUNTIME_BASE_PROCESS_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* getpid() without a system call. A child of fork() has its own number; one of
 * a bare clone() or _Fork() has that of its parent. */
pid_t process_own(void);

/* 'R', 'S', 'T' stopped, 'Z' ended but not waited for; 0: it is gone. */
static inline char process_state(int pid) {
  char path[40], text[512], *end;
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return kill(pid, 0) && errno == ESRCH ? 0 : 'R';
  ssize_t count = read(file, text, sizeof text - 1);
  close(file);
  if (count <= 0) return 0;
  text[count] = 0;
  end = strrchr(text, ')');
  return end && end[1] && end[2] ? end[2] : 'R';
}

#endif
