/* environment.c - reads the environment: texts, words, sizes, paths of files.
 *
 * In: names of variables. Out: values, or a status with the offending text:
 * a setting that cannot be followed is never passed over. */
#include "environment.h"
#include "launcher.h"
#include "status.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *environment_text(const char *name) {
  const char *text = secure_getenv(name);
  return text && *text ? text : NULL;
}

/* A number as people write it: m * 10^ten * 2^two, where the digits m have lost
 * their point. */
typedef struct written {
  uint64_t digits;
  int32_t ten, two;
} written;

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/* Adds the digits at `text`; NULL where they are more than 64 bits hold. */
static const char *read_digits(const char *text, uint64_t *number) {
  for (; is_digit(*text); text++)
    if (__builtin_mul_overflow(*number, 10, number) ||
        __builtin_add_overflow(*number, (uint64_t)(*text - '0'), number))
      return NULL;
  return text;
}

/* "e6"; exponents beyond any number's are cut to one of these. */
static const char *read_exponent(const char *text, int32_t *ten) {
  enum { MOST = 1000 };
  int32_t exponent = 0;
  if ((*text != 'e' && *text != 'E') || !is_digit(text[1])) return text;
  for (text++; is_digit(*text); text++)
    if (exponent < MOST) exponent = 10 * exponent + (*text - '0');
  *ten += exponent;
  return text;
}

static const char *read_unit(const char *text, int32_t *two) {
  static const char units[] = "kmgtKMGT";
  const char *unit = *text ? strchr(units, *text) : NULL;
  if (unit) *two = 10 * (int32_t)((unit - units) % 4 + 1);
  return text + (unit != NULL);
}

/* Everything of the text; NUMBER_WRONG: there is more, or no digit. */
static environment_number read_written(const char *text, written *w) {
  if (!is_digit(*text)) return NUMBER_WRONG;
  const char *at = read_digits(text, &w->digits);
  if (at && *at == '.' && is_digit(at[1])) {
    const char *point = at++;
    at = read_digits(at, &w->digits);
    if (at) w->ten = (int32_t)(point + 1 - at);
  }
  if (!at) return NUMBER_LARGE;
  at = read_unit(read_exponent(at, &w->ten), &w->two);
  return *at ? NUMBER_WRONG : NUMBER_WHOLE;
}

environment_number environment_read_number(const char *text, uint64_t *number) {
  written w = {0};
  environment_number found = read_written(text, &w);
  if (found) return found;
  unsigned __int128 value = (unsigned __int128)w.digits << w.two;
  for (; w.ten < 0 && value; w.ten++, value /= 10)
    if (value % 10) return NUMBER_BROKEN;
  for (; w.ten > 0 && value && value <= UINT64_MAX; w.ten--) value *= 10;
  *number = (uint64_t)value;
  return value > UINT64_MAX ? NUMBER_LARGE : NUMBER_WHOLE;
}

dil_status environment_read_bytes(const char *what, const char *text,
                              int64_t *bytes) {
  uint64_t number;
  environment_number found = environment_read_number(text, &number);
  if (found || number > INT64_MAX)
    return dil_fail(DIL_USAGE,
                    "%s is '%.99s', not a number of bytes such as 64M or 2G",
                    what, text);
  *bytes = (int64_t)number;
  return DIL_OK;
}

dil_status environment_bytes(const char *name, int64_t *bytes) {
  const char *text = environment_text(name);
  return text ? environment_read_bytes(name, text, bytes) : DIL_OK;
}

dil_status environment_count(const char *name, int64_t max, int64_t *count) {
  const char *text = environment_text(name);
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

dil_status environment_word(const char *name, const char *text,
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

/* The text that a mark of a path stands for; NULL: it is no mark. */
static const char *meaning(char mark, char text[65]) {
  if (mark == 'p') snprintf(text, 65, "%ld", (long)getpid());
  else if (mark == 'h' && !gethostname(text, 65)) text[64] = 0;
  else if (mark == 'r')
    snprintf(text, 65, "%s", launch_rank() ? launch_rank() : "0");
  else return NULL;
  return text;
}

dil_status environment_path(const char *name, const char *text, char *path,
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
