/* options_argument.c - reads one argument of an option as its kind wants it. In:
 * a row of the table, the text. Out: the field's value, or a message on standard
 * error. */
#include "options.h"
#include "runtime/base/environment.h"
#include "runtime/base/processors.h"
#include <stdlib.h>
#include <string.h>

/* Returns the place of the word of `length` bytes in a list "a|b|c"; -1: the
 * list does not have it. */
static int32_t word_index(const char *list, const char *word, size_t length) {
  for (int32_t index = 0;; index++) {
    size_t size = strcspn(list, "|");
    if (size == length && !memcmp(list, word, length)) return index;
    if (!list[size]) return -1;
    list += size + 1;
  }
}

/* Why it is none, where the range does not say it; or NULL. */
static const char *integer_hint(arena *a, environment_number found,
                                const char *text) {
  if (found == NUMBER_WRONG && *text != '-')
    return "an integer is written as 65536, 64k or 1e6; k, M, G and T are "
           "powers of 1024";
  if (found == NUMBER_BROKEN)
    return arena_print(a,
                       "'%s' is not a whole number; k, M, G and T are powers "
                       "of 1024",
                       text);
  return NULL;
}

static dil_status read_integer(arena *a, const option_row *row,
                               const char *text, uint64_t low, uint64_t high,
                               uint64_t *number) {
  environment_number found = environment_read_number(text, number);
  if (!found && *number >= low && *number <= high) return DIL_OK;
  return message_error(DIL_USAGE, integer_hint(a, found, text),
                       "--%s must be an integer from %llu to %llu, got '%s'",
                       row->name, (unsigned long long)low,
                       (unsigned long long)high, text);
}

static dil_status read_real(const option_row *row, const char *text,
                            double *number) {
  char *end;
  *number = strtod(text, &end);
  if (end == text || *end || !(*number - *number == 0))
    return message_error(DIL_USAGE, NULL,
                         "--%s must be a finite number, got '%s'", row->name,
                         text);
  return DIL_OK;
}

static dil_status word_error(arena *a, const option_row *row,
                             const char *text) {
  const char *word[16];
  int32_t count = 0;
  for (const char *list = row->argument; *list && count < 16;) {
    size_t size = strcspn(list, "|");
    word[count++] = arena_copy(a, list, size);
    list += size + (list[size] == '|');
  }
  const char *near = strncmp(text, "gpu", 3) ? diag_nearest(text, word, count)
                                             : "cuda";
  const char *hint = near ? arena_print(a, "did you mean '%s'?", near) : NULL;
  return message_error(DIL_USAGE, hint, "--%s must be one of %s, got '%s'",
                       row->name, row->argument, text);
}

static dil_status read_set(arena *a, const option_row *row, const char *text,
                           sets *list) {
  unsigned set = 0;
  for (const char *at = text;; at++) {
    size_t size = strcspn(at, ",");
    int32_t index = word_index(row->argument, at, size);
    if (index < 0) return word_error(a, row, arena_copy(a, at, size));
    set |= 1u << index;
    at += size;
    if (!*at) break;
  }
  unsigned *grown = ARENA_ARRAY(a, unsigned, list->count + 1);
  for (int32_t i = 0; i < list->count; i++) grown[i] = list->set[i];
  grown[list->count++] = set;
  list->set = grown;
  return DIL_OK;
}

static dil_status read_counts(arena *a, const option_row *row,
                              const char *text, counts *list) {
  int32_t most = 1;
  for (const char *at = text; *at; at++) most += *at == ',';
  *list = (counts){0, ARENA_ARRAY(a, int64_t, most)};
  for (const char *at = text;; at++) {
    size_t size = strcspn(at, ",");
    uint64_t number;
    dil_status status = read_integer(a, row, arena_copy(a, at, size), 0,
                                     DIL_LENGTH_MAX, &number);
    if (status) return status;
    list->number[list->count++] = (int64_t)number;
    at += size;
    if (!*at) return DIL_OK;
  }
}

static dil_status read_pair(arena *a, const option_row *row, const char *text,
                            settings *list) {
  const char *equal = strchr(text, '=');
  if (!equal || equal == text || !equal[1])
    return message_error(DIL_USAGE, NULL, "--%s must be %s, got '%s'",
                         row->name, row->argument, text);
  define *grown = ARENA_ARRAY(a, define, list->count + 1);
  for (int32_t i = 0; i < list->count; i++) grown[i] = list->pair[i];
  grown[list->count].name = arena_copy(a, text, (size_t)(equal - text));
  grown[list->count++].value = equal + 1;
  list->pair = grown;
  return DIL_OK;
}

static dil_status read_device_choice(arena *a, const option_row *row,
                                     const char *text, device_choice *device) {
  size_t size = strcspn(text, ":");
  uint64_t number = 0;
  device->word = word_index(row->argument, text, size);
  bool numbered = text[size] && device->word == DEVICE_CUDA;
  if (device->word < 0 || (text[size] && !numbered))
    return word_error(a, row, text);
  dil_status status =
      numbered ? read_integer(a, row, text + size + 1, 0, 255, &number)
               : DIL_OK;
  device->number = (int32_t)number;
  device->numbered = numbered;
  return status;
}

static dil_status read_room(const option_row *row, const char *text,
                            int64_t *bytes) {
  char what[32];
  snprintf(what, sizeof what, "--%s", row->name);
  if (environment_read_bytes(what, text, bytes))
    return message_error(DIL_USAGE, NULL, "%s", dil_last_error());
  if (*bytes) return DIL_OK;
  return message_error(DIL_USAGE,
                       "without a number, the bytes are half of "
                       "the memory at hand",
                       "%s must be above 0, got '%s'", what, text);
}

static dil_status read_whole_number(arena *a, const option_row *row,
                                    const char *text, uint64_t least,
                                    int64_t *field) {
  uint64_t number = 0, most = row->kind == KIND_THREADS  ? THREADS_MAX
                              : row->kind == KIND_LENGTH ? DIL_LENGTH_MAX
                                                         : INT32_MAX;
  dil_status status = read_integer(a, row, text, least, most, &number);
  *field = (int64_t)number;
  return status;
}

dil_status option_read(arena *a, const option_row *row, const char *text,
                       void *field) {
  uint64_t number = 0;
  dil_status status = DIL_OK;
  switch (row->kind) {
  case KIND_FLAG:
    *(bool *)field = true;
    break;
  case KIND_TEXT:
    *(const char **)field = text;
    break;
  case KIND_REAL:
    return read_real(row, text, field);
  case KIND_SET:
    return read_set(a, row, text, field);
  case KIND_PAIR:
    return read_pair(a, row, text, field);
  case KIND_COUNTS:
    return read_counts(a, row, text, field);
  case KIND_DEVICE:
    return read_device_choice(a, row, text, field);
  case KIND_SEED:
    return read_integer(a, row, text, 0, UINT64_MAX, field);
  case KIND_WORD:
    status = read_integer(a, row, text, 0, UINT32_MAX, &number);
    *(uint32_t *)field = (uint32_t)number;
    break;
  case KIND_ROOM:
    return text ? read_room(row, text, field) : DIL_OK;
  case KIND_COUNT:
  case KIND_LENGTH:
    return read_whole_number(a, row, text, 0, field);
  case KIND_POSITIVE:
  case KIND_THREADS:
    return read_whole_number(a, row, text, 1, field);
  case KIND_CHOICE:
    *(int32_t *)field = word_index(row->argument, text, strlen(text));
    if (*(int32_t *)field < 0) status = word_error(a, row, text);
    break;
  }
  return status;
}
