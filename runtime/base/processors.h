/* processors.h - how many threads are worth having. */
#ifndef DIL_RUNTIME_BASE_PROCESSORS_H
#define DIL_RUNTIME_BASE_PROCESSORS_H

#include "runtime/dilrt.h"

enum { THREADS_MAX = 4096 };

/* The processors that this process may use: its affinity mask, and no more
 * than its control group's time allows. At least 1. */
int32_t processors_count(void);

/* Processors' worth of time, rounded up, that the control groups listed in
 * the file `membership` (as /proc/self/cgroup) allow, by the files under
 * `root` (as /sys/fs/cgroup); THREADS_MAX when nothing limits it. */
int32_t processors_quota(const char *membership, const char *root);

/* Returns how many threads a caller gets who asks for so many. For 0 that is
 * the number in DIL_THREADS, or else the number of processors. */
dil_status processors_choose(int32_t asked, int32_t *count);

#endif
