/* stream_bound.c - how much memory is at hand. In: what the system tells. Out:
 * a bound in bytes. */
#include "stream_bound.h"
#include "runtime/base/arithmetic.h"
#include "runtime/pool/pool.h"
#include "runtime/rowset/walk.h"
#include <stdio.h>
#include <sys/resource.h>

/* "MemAvailable:   123 kB"; what the machine has in all where it is silent. */
static int64_t machine_has(void) {
  long long kilobytes = -1;
  char line[128];
  FILE *in = fopen("/proc/meminfo", "re");
  while (in && kilobytes < 0 && fgets(line, sizeof line, in))
    if (sscanf(line, "MemAvailable: %lld", &kilobytes) != 1) kilobytes = -1;
  if (in) fclose(in);
  return kilobytes < 0 ? INT64_MAX : kilobytes * 1024;
}

/* "max" is none. */
static int64_t group_has(void) {
  long long most = 0, used = 0;
  FILE *limit = fopen("/sys/fs/cgroup/memory.max", "re");
  FILE *now = fopen("/sys/fs/cgroup/memory.current", "re");
  bool bounded = limit && now && fscanf(limit, "%lld", &most) == 1 &&
                 fscanf(now, "%lld", &used) == 1;
  if (limit) fclose(limit);
  if (now) fclose(now);
  return bounded ? maximum(most - used, 0) : INT64_MAX;
}

static int64_t limit_of(int resource) {
  struct rlimit l;
  if (getrlimit(resource, &l) || l.rlim_cur == RLIM_INFINITY) return INT64_MAX;
  return l.rlim_cur > INT64_MAX ? INT64_MAX : (int64_t)l.rlim_cur;
}

static int64_t host_has(void) {
  int64_t limits = minimum(limit_of(RLIMIT_DATA), limit_of(RLIMIT_AS));
  return minimum(minimum(machine_has(), group_has()), limits);
}

dil_status stream_bound(int64_t memory, int64_t *bytes) {
  pool_options set = {0};
  dil_status status = dil_pool_options_read(&set);
  *bytes = set.max ? set.max : (memory ? memory : host_has()) / 2;
  return status;
}
