/* setting.c - reads the environment: texts, words, sizes, paths of files.
 *
 * In: names of variables. Out: values, or a status with the offending text:
 * a setting that cannot be followed is never passed over. */
#include "setting.h"
#include "launcher.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *setting_text(const char *name) {
  const char *text = secure_getenv(name);
  return text && *text ? text : NULL;
}

dil_status setting_read_bytes(const char *what, const char *text,
                              int64_t *bytes) {
  static const char units[] = "KMGT";
  char *end = NULL;
  errno = 0;
  bool digits = *text >= '0' && *text <= '9';
  unsigned long long number = strtoull(text, &end, 10);
  const char *unit = *end ? strchr(units, *end) : NULL;
  int shift = unit ? 10 * (int)(unit - units + 1) : 0;
  bool whole = digits && !errno && (!*end || (unit && !end[1]));
  if (!whole || number > (unsigned long long)INT64_MAX >> shift)
    return dil_fail(DIL_USAGE,
                    "%s is '%.99s', not a number of bytes such as 64M or 2G",
                    what, text);
  *bytes = (int64_t)number << shift;
  return DIL_OK;
}

dil_status setting_bytes(const char *name, int64_t *bytes) {
  const char *text = setting_text(name);
  return text ? setting_read_bytes(name, text, bytes) : DIL_OK;
}

dil_status setting_count(const char *name, int64_t max, int64_t *count) {
  const char *text = setting_text(name);
  char *end = NULL;
  if (!text) return DIL_OK;
  errno = 0;
  bool digits = *text >= '0' && *text <= '9';
  long long number = strtoll(text, &end, 10);
  if (!digits || *end || errno || number > max)
    return dil_fail(DIL_USAGE, "%s is '%.99s', not a number in 0..%lld", name,
                    text, (long long)max);
  *count = number;
  return DIL_OK;
}

dil_status setting_word(const char *name, const char *text,
                        const char *const *words, int32_t count,
                        int32_t *index) {
  char all[256] = "";
  size_t used = 0;
  for (int32_t i = 0; i < count; i++) {
    if (!strcmp(text, words[i])) {
      *index = i;
      return DIL_OK;
    }
    used += (size_t)snprintf(all + used, sizeof all - used, "%s%s",
                             i ? ", " : "", words[i]);
    if (used >= sizeof all) used = sizeof all - 1;
  }
  return dil_fail(DIL_USAGE, "%s is '%.99s', not one of %s", name, text, all);
}

/* What a mark of a path stands for; NULL: nothing, it is text. */
static const char *meaning(char mark, char text[65]) {
  if (mark == 'p') snprintf(text, 65, "%ld", (long)getpid());
  else if (mark == 'h' && !gethostname(text, 65)) text[64] = 0;
  else if (mark == 'r')
    snprintf(text, 65, "%s", launch_rank() ? launch_rank() : "0");
  else return NULL;
  return text;
}

dil_status setting_path(const char *name, const char *text, char *path,
                        size_t size) {
  size_t used = 0;
  char piece[65];
  for (; *text && used < size; text++) {
    const char *put = *text == '%' ? meaning(text[1], piece) : NULL;
    if (put) text++;
    used += (size_t)(put ? snprintf(path + used, size - used, "%s", put)
                         : snprintf(path + used, size - used, "%c", *text));
  }
  if (used < size) return DIL_OK;
  return dil_fail(DIL_USAGE, "the path of %s is longer than %zu bytes", name,
                  size - 1);
}
