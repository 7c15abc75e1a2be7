/* npy_header.c - parses the header of a .npy file.
 *
 * In: text like {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
 * Out: the kind of element, the order and the shape, or a message with the
 * column at which the text goes wrong. */
#include "npy_header.h"
#include "runtime/base/status.h"
#include <string.h>

static const npy_kind kinds[] = {
    {"f2", 2, DIL_F16, false}, {"f4", 4, DIL_F32, false},
    {"f8", 8, DIL_F32, true},  {"i4", 4, DIL_I32, false},
    {"i8", 8, DIL_I32, true},  {"u1", 1, DIL_U8, false},
    {"b1", 1, DIL_U8, false},
};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds };

typedef struct cursor {
  const char *path, *start, *at, *end;
} cursor;

static dil_status header_wrong(const cursor *c, const char *what) {
  return dil_fail(DIL_INPUT, "'%s': header, column %td: %s", c->path,
                  c->at - c->start + 1, what);
}

static void skip_blank(cursor *c) {
  while (c->at < c->end && strchr(" \t\r\n", *c->at) && *c->at) c->at++;
}

/* Takes the character when it comes next. */
static bool take_character(cursor *c, char wanted) {
  skip_blank(c);
  if (c->at == c->end || *c->at != wanted) return false;
  c->at++;
  return true;
}

static bool take_header_word(cursor *c, const char *word) {
  size_t length = strlen(word);
  skip_blank(c);
  if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length))
    return false;
  c->at += length;
  return true;
}

/* A quoted string of fewer than 32 printable characters, without escapes. */
static bool take_string(cursor *c, char text[32]) {
  skip_blank(c);
  const char *at = c->at;
  if (at == c->end || (*at != '\'' && *at != '"')) return false;
  const char *close = memchr(at + 1, *at, (size_t)(c->end - at - 1));
  if (!close || close - at - 1 >= 32) return false;
  size_t length = (size_t)(close - at - 1);
  for (size_t i = 0; i < length; i++)
    if (at[i + 1] < ' ' || at[i + 1] > '~') return false;
  memcpy(text, at + 1, length);
  text[length] = 0;
  c->at = close + 1;
  return true;
}

/* ---- the three values ---------------------------------------------------- */

static dil_status parse_descr(cursor *c, npy_header *header) {
  char descr[32];
  if (take_character(c, '['))
    return header_wrong(c, "records of several fields are not read");
  if (!take_string(c, descr))
    return header_wrong(c, "the element type is no string");
  if (descr[0] == '>')
    return dil_fail(DIL_INPUT, "'%s' holds big-endian elements; save them "
                    "with astype('<%s')", c->path, descr + 1);
  for (int i = 0; i < KIND_COUNT; i++)
    if (!strcmp(descr + (descr[0] != 0), kinds[i].code) &&
        (descr[0] == '<' || (descr[0] == '|' && kinds[i].size == 1))) {
      header->kind = &kinds[i];
      return DIL_OK;
    }
  return dil_fail(DIL_INPUT, "'%s' holds elements of type '%s'; f2, f4, f8, "
                  "i4, i8, u1 and b1 are read", c->path, descr);
}

static dil_status parse_order(cursor *c, npy_header *header) {
  header->fortran = take_header_word(c, "True");
  return header->fortran || take_header_word(c, "False")
             ? DIL_OK
             : header_wrong(c, "fortran_order is not True or False");
}

static bool take_extent(cursor *c, int64_t *extent) {
  skip_blank(c);
  const char *first = c->at;
  *extent = 0;
  for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
    if (__builtin_mul_overflow(*extent, 10, extent) ||
        __builtin_add_overflow(*extent, *c->at - '0', extent))
      return false;
  return c->at > first;
}

static dil_status parse_shape(cursor *c, npy_header *header) {
  bool comma = true;
  header->rank = 0;
  if (!take_character(c, '(')) return header_wrong(c, "the shape is no tuple");
  while (!take_character(c, ')')) {
    if (!comma) return header_wrong(c, "a comma or ) is missing in the shape");
    if (header->rank == DIL_RANK_MAX)
      return dil_fail(DIL_INPUT, "'%s' has more than %d dimensions", c->path,
                      DIL_RANK_MAX);
    if (!take_extent(c, &header->shape[header->rank]))
      return header_wrong(c, "the shape holds what is no size");
    header->rank++;
    comma = take_character(c, ',');
  }
  /* (3) is a number in Python, (3,) a tuple; (,) is nothing */
  return header->rank == 1 && !comma ? header_wrong(c, "the shape is no tuple")
                                     : DIL_OK;
}

/* ---- the dictionary ------------------------------------------------------ */

static const struct {
  const char *name;
  dil_status (*parse)(cursor *c, npy_header *header);
} entries[] = {
    {"descr", parse_descr},
    {"fortran_order", parse_order},
    {"shape", parse_shape},
};
enum { ENTRY_COUNT = sizeof entries / sizeof *entries };

static dil_status parse_entry(cursor *c, npy_header *header, bool *seen) {
  char key[32];
  int i = 0;
  if (!take_string(c, key)) return header_wrong(c, "a key or } is missing");
  while (i < ENTRY_COUNT && strcmp(entries[i].name, key)) i++;
  if (i == ENTRY_COUNT) return header_wrong(c, "the key before is unknown");
  if (seen[i]) return header_wrong(c, "the key before stands twice");
  if (!take_character(c, ':')) return header_wrong(c, ": is missing");
  seen[i] = true;
  return entries[i].parse(c, header);
}

dil_status npy_header_parse(const char *path, const char *text, size_t length,
                            npy_header *header) {
  cursor c = {path, text, text, text + length};
  bool seen[ENTRY_COUNT] = {false}, comma = true;
  if (!take_character(&c, '{')) return header_wrong(&c, "{ is missing");
  while (!take_character(&c, '}')) {
    if (!comma) return header_wrong(&c, "a comma or } is missing");
    dil_status status = parse_entry(&c, header, seen);
    if (status) return status;
    comma = take_character(&c, ',');
  }
  for (int i = 0; i < ENTRY_COUNT; i++)
    if (!seen[i])
      return dil_fail(DIL_INPUT, "'%s': the header lacks '%s'", path,
                      entries[i].name);
  skip_blank(&c);
  return c.at == c.end ? DIL_OK : header_wrong(&c, "more stands behind the }");
}
