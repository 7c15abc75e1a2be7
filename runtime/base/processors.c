/* processors.c - how many processors this process may use.
 *
 * In: the affinity mask, the cpu quota of the control groups (versions 1 and
 * 2) and DIL_THREADS. Out: a number of threads. */
#include "processors.h"
#include "status.h"
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of DIL_THREADS; 0 when it is not set. */
static dil_status read_wish(int32_t *count) {
  const char *text = getenv("DIL_THREADS");
  *count = 0;
  if (!text) return DIL_OK;
  char *end = NULL;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (end == text || *end || errno || value < 1 || value > THREADS_MAX)
    return dil_fail(DIL_USAGE, "DIL_THREADS is '%.99s', not a number in 1..%d",
                    text, THREADS_MAX);
  *count = (int32_t)value;
  return DIL_OK;
}

static int32_t affinity_count(void) {
  for (int size = CPU_SETSIZE; size <= 1 << 20; size *= 2) {
    cpu_set_t *set = CPU_ALLOC(size);
    if (!set) break;
    int failed = sched_getaffinity(0, CPU_ALLOC_SIZE(size), set);
    int count = failed ? 0 : CPU_COUNT_S(CPU_ALLOC_SIZE(size), set);
    CPU_FREE(set);
    if (count > 0) return count;
    if (errno != EINVAL) break; /* EINVAL: the kernel's mask is larger */
  }
  return 1;
}

/* ---- control groups ------------------------------------------------------ */

static int32_t whole_processors(double quota, double period) {
  if (quota <= 0 || period <= 0 || quota > period * THREADS_MAX)
    return THREADS_MAX;
  int32_t whole = (int32_t)(quota / period);
  return whole * period < quota ? whole + 1 : whole;
}

/* Reads the first line of directory/name; false when there is none. */
static bool read_line(const char *directory, const char *name, char line[64]) {
  char path[PATH_MAX];
  int length = snprintf(path, sizeof path, "%s/%s", directory, name);
  FILE *file = length < PATH_MAX ? fopen(path, "re") : NULL;
  if (!file) return false;
  bool read = fgets(line, 64, file) != NULL;
  fclose(file);
  return read;
}

static int32_t group_quota(const char *directory) {
  char line[64];
  double quota = 0, period = 0;
  if (read_line(directory, "cpu.max", line)) {
    if (sscanf(line, "%lf %lf", &quota, &period) != 2) return THREADS_MAX;
  } else if (read_line(directory, "cpu.cfs_quota_us", line)) {
    quota = strtod(line, NULL);
    if (read_line(directory, "cpu.cfs_period_us", line))
      period = strtod(line, NULL);
  }
  return whole_processors(quota, period);
}

/* The smallest quota of a group and those above it, up to `root`. In a
 * container the group's own folder may not be seen; the root's is its own. */
static int32_t path_quota(const char *root, const char *group) {
  char path[PATH_MAX];
  size_t stem = strlen(root);
  int length = snprintf(path, sizeof path, "%s%s", root, group);
  if (length < 0 || length >= PATH_MAX) return THREADS_MAX;
  int32_t least = group_quota(path);
  for (char *slash; (slash = strrchr(path + stem, '/')) != NULL;) {
    *slash = 0;
    int32_t quota = group_quota(path);
    least = quota < least ? quota : least;
  }
  return least;
}

/* Returns whether `name` is in a comma list. */
static bool lists(const char *list, const char *name) {
  size_t length = strlen(name);
  for (;;) {
    size_t item = strcspn(list, ",");
    if (item == length && !strncmp(list, name, length)) return true;
    if (!list[item]) return false;
    list += item + 1;
  }
}

/* One line, "number:controllers:/path"; version 2 names no controller. */
static int32_t line_quota(char *line, const char *root) {
  char *controllers = strchr(line, ':');
  char *group = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!group) return THREADS_MAX;
  *group++ = 0;
  controllers++;
  group[strcspn(group, "\n")] = 0;
  if (!*controllers) return path_quota(root, group);
  if (!lists(controllers, "cpu")) return THREADS_MAX;
  char mount[PATH_MAX];
  int length = snprintf(mount, sizeof mount, "%s/cpu", root);
  return length < PATH_MAX ? path_quota(mount, group) : THREADS_MAX;
}

int32_t processors_quota(const char *membership, const char *root) {
  int32_t least = THREADS_MAX;
  char *line = NULL;
  size_t room = 0;
  FILE *file = fopen(membership, "re");
  if (!file) return least;
  while (getline(&line, &room, file) > 0) {
    int32_t quota = line_quota(line, root);
    least = quota < least ? quota : least;
  }
  free(line);
  fclose(file);
  return least < 1 ? 1 : least;
}

int32_t processors_count(void) {
  int32_t affinity = affinity_count();
  int32_t quota = processors_quota("/proc/self/cgroup", "/sys/fs/cgroup");
  return affinity < quota ? affinity : quota;
}

dil_status processors_choose(int32_t asked, int32_t *count) {
  *count = asked;
  if (asked < 0 || asked > THREADS_MAX)
    return dil_fail(DIL_USAGE, "%d threads are not in 1..%d", (int)asked,
                    THREADS_MAX);
  if (asked > 0) return DIL_OK;
  dil_status status = read_wish(count);
  if (!status && *count == 0) *count = processors_count();
  return status;
}
