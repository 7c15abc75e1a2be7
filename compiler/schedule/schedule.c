/* schedule.c - the knobs of the back ends, as one table (knobs.def). In: a
 * `schedule` block, or a line of text. Out: numbers a back end can take, or an
 * error that says which knobs there are. Whether a kernel can be made of them
 * is the back end's to say. */
#include "schedule.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct knob_row {
  const char *name;
  int32_t values;
  unsigned devices;
  int32_t least, most;
  const char *of;
} knob_row;

static const knob_row rows[KNOB_COUNT] = {
#define KNOB(id, name, values, devices, least, most, of)                       \
  [KNOB_##id] = {name, values, devices, least, most, of},
#include "knobs.def"
#undef KNOB
};

/* The words of knobs that take words. */
static const struct {
  int32_t id, value;
  const char *word;
} words[] = {
#define KNOB(id, name, values, devices, least, most, of)
#define KNOB_WORD(id, value, word) {KNOB_##id, value, word},
#include "knobs.def"
#undef KNOB
};
enum { WORDS = sizeof words / sizeof *words };

/* Names that knobs had before. */
static const struct {
  int32_t id;
  const char *name;
} old[] = {
#define KNOB(id, name, values, devices, least, most, of)
#define KNOB_OLD(id, name) {KNOB_##id, name},
#include "knobs.def"
#undef KNOB
};
enum { OLD = sizeof old / sizeof *old };

/* The word for a value; NULL: the knob takes numbers. */
static const char *word_of(int32_t id, int32_t number) {
  for (int32_t i = 0; i < WORDS; i++)
    if (words[i].id == id && words[i].value == number) return words[i].word;
  return NULL;
}

static int knob_write(const knobs *k, int32_t id, char *text) {
  int length = sprintf(text, "%s", rows[id].name);
  for (int32_t v = 0; v < rows[id].values; v++) {
    const char *word = word_of(id, k->value[id][v]);
    length += sprintf(text + length, "%s ", v ? "," : "");
    length += word ? sprintf(text + length, "%s", word)
                   : sprintf(text + length, "%d", k->value[id][v]);
  }
  return length + sprintf(text + length, ";");
}

const char *knobs_text(const knobs *k, char text[KNOBS_TEXT]) {
  int length = 0;
  text[0] = 0;
  for (int32_t i = 0; i < KNOB_COUNT; i++) {
    if (!knob_given(k, i)) continue;
    if (length) length += sprintf(text + length, " ");
    length += knob_write(k, i, text + length);
  }
  return text;
}

/* ---- what may be said ---------------------------------------------------- */

static int32_t find_knob(const char *name) {
  int32_t i = 0;
  while (i < KNOB_COUNT && strcmp(rows[i].name, name)) i++;
  return i;
}

/* The knob that had this name before; KNOB_COUNT: none. */
static int32_t find_old(const char *name) {
  for (int32_t i = 0; i < OLD; i++)
    if (!strcmp(old[i].name, name)) return old[i].id;
  return KNOB_COUNT;
}

/* A knob's value as a word; `reason` tells what is wrong with it. */
static bool take_word(int32_t id, const char *word, knobs *k, char *reason,
                      size_t size) {
  for (int32_t i = 0; i < WORDS; i++) {
    if (words[i].id != id || strcmp(words[i].word, word)) continue;
    k->value[id][0] = words[i].value;
    k->given |= 1u << id;
    return true;
  }
  if (word_of(id, rows[id].least))
    snprintf(reason, size, "knob '%s' is %s, got '%s'", rows[id].name,
             rows[id].of, word);
  else
    snprintf(reason, size, "knob '%s' takes %d number%s (%s), got '%s'",
             rows[id].name, rows[id].values, rows[id].values == 1 ? "" : "s",
             rows[id].of, word);
  return false;
}

/* Numbers of one knob; `reason` tells what is wrong with them. */
static bool take_values(int32_t id, const int64_t *number, int32_t count,
                        knobs *k, char *reason, size_t size) {
  const knob_row *row = &rows[id];
  if (count != row->values) {
    snprintf(reason, size, "knob '%s' takes %d number%s (%s), got %d",
             row->name, row->values, row->values == 1 ? "" : "s", row->of,
             count);
    return false;
  }
  for (int32_t i = 0; i < count; i++) {
    if (number[i] < row->least || number[i] > row->most) {
      snprintf(reason, size, "knob '%s' must be within %d and %d, got %lld",
               row->name, row->least, row->most, (long long)number[i]);
      return false;
    }
    k->value[id][i] = (int32_t)number[i];
  }
  k->given |= 1u << id;
  return true;
}

/* ---- a block ------------------------------------------------------------- */

/* "tile, stages and split", those of some devices. */
static const char *knob_list(arena *a, unsigned devices) {
  const char *list = "", *last = NULL;
  for (int32_t i = 0; i < KNOB_COUNT; i++) {
    if (!(rows[i].devices & devices)) continue;
    if (last) list = arena_print(a, "%s%s%s", list, *list ? ", " : "", last);
    last = rows[i].name;
  }
  return *list ? arena_print(a, "%s and %s", list, last) : last;
}

static void report_unknown(arena *a, diag *d, const knob *given) {
  const char *names[KNOB_COUNT];
  for (int32_t i = 0; i < KNOB_COUNT; i++) names[i] = rows[i].name;
  const char *near = diag_nearest(given->name, names, KNOB_COUNT);
  diag_report(d, SEVERITY_ERROR, given->at,
              near ? arena_print(a, "did you mean '%s'?", near)
                   : arena_print(a, "there are %s", knob_list(a, KNOB_ANY)),
              "no back end has a knob '%s'", given->name);
}

static void report_device(arena *a, diag *d, const knob *given,
                          unsigned device) {
  const char *here = device == KNOB_CPU ? "cpu" : "cuda";
  const char *there = device == KNOB_CPU ? "cuda" : "cpu";
  diag_report(d, SEVERITY_ERROR, given->at,
              arena_print(a, "it is one of device %s; device %s has %s", there,
                          here, knob_list(a, device)),
              "device %s has no knob '%s'", here, given->name);
}

/* A knob's value in a file. Numbers are of a knob's old name where it takes
 * words. */
static bool take_given(const knob *given, int32_t id, bool is_old, knobs *k,
                       char *reason, size_t size) {
  if (given->word) return take_word(id, given->word, k, reason, size);
  if (is_old || !word_of(id, rows[id].least))
    return take_values(id, given->value, given->count, k, reason, size);
  snprintf(reason, size, "knob '%s' is %s", rows[id].name, rows[id].of);
  return false;
}

/* A name that a knob had: still read, with its new spelling. */
static void report_old(arena *a, diag *d, const knob *given, int32_t id,
                       const knobs *k) {
  const char *word = word_of(id, k->value[id][0]);
  diag_report(d, SEVERITY_WARNING, given->at,
              word ? arena_print(a, "write `%s %s;`", rows[id].name, word)
                   : NULL,
              "knob '%s' is called '%s' now", given->name, rows[id].name);
}

static void read_given(arena *a, diag *d, const knob *given, unsigned device,
                       knobs *k) {
  char reason[160];
  int32_t id = find_knob(given->name);
  bool is_old = id == KNOB_COUNT && find_old(given->name) != KNOB_COUNT;
  if (is_old) id = find_old(given->name);
  if (id == KNOB_COUNT)
    report_unknown(a, d, given);
  else if (!(rows[id].devices & device))
    report_device(a, d, given, device);
  else if (knob_given(k, id))
    diag_report(d, SEVERITY_ERROR, given->at, NULL, "knob '%s' stands twice",
                rows[id].name);
  else if (!take_given(given, id, is_old, k, reason, sizeof reason))
    diag_report(d, SEVERITY_ERROR, given->at, NULL, "%s", reason);
  else if (is_old)
    report_old(a, d, given, id, k);
}

void schedule_read(arena *a, diag *d, const schedule *s, unsigned device,
                   knobs *k) {
  *k = (knobs){0};
  for (int32_t i = 0; i < s->knob_count; i++)
    read_given(a, d, &s->knob[i], device, k);
}

/* ---- text ---------------------------------------------------------------- */

static const char *skip_blanks(const char *at) {
  while (*at == ' ') at++;
  return at;
}

enum { WORD_ROOM = 32 };

/* The numbers or the word of a knob, up to its ';', which *text moves behind. */
static bool read_values(const char **text, char word[WORD_ROOM], knob *given,
                        char *reason, size_t size) {
  const char *at = skip_blanks(*text);
  size_t length = strcspn(at, " ;");
  if (isalpha((unsigned char)*at)) {
    snprintf(word, WORD_ROOM, "%.*s",
             (int)(length < WORD_ROOM ? length : WORD_ROOM - 1), at);
    given->word = word;
    at += length;
  }
  for (; !given->word && given->count < KNOB_VALUES; at = skip_blanks(at) + 1) {
    char *end;
    at = skip_blanks(at);
    if (!isdigit((unsigned char)*at)) break;
    given->value[given->count++] = strtol(at, &end, 10);
    at = end;
    if (*skip_blanks(at) != ',') break;
  }
  at = skip_blanks(at);
  if (*at != ';') {
    snprintf(reason, size, "knob '%s' does not end in ';'", given->name);
    return false;
  }
  *text = skip_blanks(at + 1);
  return true;
}

/* "name 1, 2;" or "name word;" at *text, which moves behind it. */
static bool read_one(const char **text, unsigned device, knobs *k,
                     char *reason, size_t size) {
  char name[WORD_ROOM], word[WORD_ROOM];
  knob given = {.name = name};
  size_t length = strcspn(*text, " ;");
  snprintf(name, sizeof name, "%.*s",
           (int)(length < sizeof name ? length : sizeof name - 1), *text);
  int32_t id = find_knob(name);
  bool is_old = id == KNOB_COUNT && find_old(name) != KNOB_COUNT;
  if (is_old) id = find_old(name);
  if (id == KNOB_COUNT || !(rows[id].devices & device)) {
    snprintf(reason, size, "the device has no knob '%s'", name);
    return false;
  }
  *text += length;
  return read_values(text, word, &given, reason, size) &&
         take_given(&given, id, is_old, k, reason, size);
}

bool knobs_read(const char *text, unsigned device, knobs *k, char *reason,
                size_t size) {
  *k = (knobs){0};
  for (text = skip_blanks(text); *text;)
    if (!read_one(&text, device, k, reason, size)) return false;
  return true;
}
