/* diag.c - located messages: gathered while a file is read, printed in order
 * of location, as text with caret lines or as one JSON object a line.
 *
 * A location is a byte range of a source; its line and column are computed only
 * here. Columns count bytes from 1; a range that leaves its first line is
 * clipped to it. */
#include "diag.h"
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
  ERROR_MAX = 20,
  WARNING_MAX = 100,
  LINE_MAX_BYTES = 160, /* of a source line; more is cut around the caret */
  LINE_BEFORE = 80,     /* bytes kept before the caret of a cut line */
  NEAREST_MAX = 64,     /* longer names get no suggestion */
};

typedef struct diag_message {
  severity level;
  span at;
  const char *text, *hint;
  int32_t order;        /* of reporting */
} diag_message;

struct diag {
  arena *arena;
  diag_message *messages;
  int32_t count, room;
  int32_t errors, warnings;
  bool stopped;         /* an error more than ERROR_MAX was reported */
  int32_t hidden;       /* warnings beyond WARNING_MAX */
};

/* A location as people read it. */
typedef struct location {
  int32_t line, column; /* from 1 */
  int32_t end_column;   /* one past the last byte; > column */
  int32_t start, end;   /* the line: bytes of the source */
} location;

/* ---- gathering ----------------------------------------------------------- */

diag *diag_new(arena *a) {
  diag *d = ARENA_NEW(a, diag);
  d->arena = a;
  return d;
}

int diag_errors(const diag *d) { return d->errors; }

bool diag_full(const diag *d) { return d->errors >= ERROR_MAX; }

static const char *diag_text(diag *d, const char *format, va_list args) {
  va_list again;
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, again);
  va_end(again);
  char *text = ARENA_ARRAY(d->arena, char, (size_t)length + 1);
  vsnprintf(text, (size_t)length + 1, format, args);
  return text;
}

/* A statement that several branches inherit is checked for each of them; the
 * reader hears of it once. */
static bool is_known(const diag *d, span at, const char *text) {
  for (int32_t i = 0; i < d->count; i++) {
    const diag_message *m = &d->messages[i];
    if (m->at.source == at.source && m->at.start == at.start &&
        !strcmp(m->text, text))
      return true;
  }
  return false;
}

static void message_add(diag *d, diag_message m) {
  if (d->count == d->room) {
    d->room = d->room ? 2 * d->room : 16;
    diag_message *grown = ARENA_ARRAY(d->arena, diag_message, d->room);
    if (d->count)
      memcpy(grown, d->messages, (size_t)d->count * sizeof(diag_message));
    d->messages = grown;
  }
  m.order = d->count;
  d->messages[d->count++] = m;
}

/* Counts a message that there is no room for. */
static bool is_beyond(diag *d, severity level) {
  bool error = level == SEVERITY_ERROR;
  bool beyond = error ? diag_full(d) : d->warnings == WARNING_MAX;
  if (beyond && error) d->stopped = true;
  if (beyond && !error) d->hidden++;
  return beyond;
}

void diag_report(diag *d, severity level, span at, const char *hint,
                 const char *format, ...) {
  va_list args;
  va_start(args, format);
  const char *text = diag_text(d, format, args);
  va_end(args);
  if (is_known(d, at, text) || is_beyond(d, level)) return;
  d->errors += level == SEVERITY_ERROR;
  d->warnings += level == SEVERITY_WARNING;
  message_add(d, (diag_message){level, at, text, hint, 0});
}

/* ---- locations ----------------------------------------------------------- */

static location location_of(span at) {
  const char *text = at.source->text;
  int32_t length = (int32_t)at.source->length;
  int32_t from = at.start < length ? at.start : length;
  location p = {.line = 1};
  for (int32_t i = 0; i < from; i++)
    if (text[i] == '\n') {
      p.line++;
      p.start = i + 1;
    }
  for (p.end = from; p.end < length && text[p.end] != '\n';) p.end++;
  int32_t to = at.end < p.end ? at.end : p.end;
  p.column = from - p.start + 1;
  p.end_column = (to > from ? to : from + 1) - p.start + 1;
  return p;
}

const char *diag_location(arena *a, span at) {
  if (!at.source) return "";
  location p = location_of(at);
  return arena_print(a, "%s:%d:%d", at.source->path, p.line, p.column);
}

static int message_compare(const void *left, const void *right) {
  const diag_message *a = left, *b = right;
  int32_t at = a->at.source ? a->at.source->index + 1 : 0;
  int32_t bt = b->at.source ? b->at.source->index + 1 : 0;
  if (at != bt) return at < bt ? -1 : 1;
  if (at && a->at.start != b->at.start)
    return a->at.start < b->at.start ? -1 : 1;
  return a->order < b->order ? -1 : a->order > b->order;
}

/* ---- text ---------------------------------------------------------------- */

static bool is_continuation(char c) {
  return ((unsigned char)c & 0xC0) == 0x80;
}

/* Bytes that would move the cursor or drive the terminal become blanks. */
static void print_source_line(const char *text, int32_t from, int32_t to,
                              FILE *out) {
  for (int32_t i = from; i < to; i++) {
    unsigned char c = (unsigned char)text[i];
    fputc(c == '\t' || (c >= ' ' && c != 0x7F) ? c : ' ', out);
  }
  fputc('\n', out);
}

/* One blank a character, tabs kept, so that the caret stands under its text
 * whatever the width of a tab. */
static void print_caret(const char *text, int32_t from, int32_t caret,
                        int32_t to, FILE *out) {
  for (int32_t i = from; i < caret; i++)
    if (!is_continuation(text[i])) fputc(text[i] == '\t' ? '\t' : ' ', out);
  fputc('^', out);
  for (int32_t i = caret + 1; i < to; i++)
    if (!is_continuation(text[i])) fputc('^', out);
  fputc('\n', out);
}

static void print_source(const source *s, location p, FILE *out) {
  int32_t caret = p.start + p.column - 1, to = p.start + p.end_column - 1;
  if (p.end - p.start > LINE_MAX_BYTES) {
    if (caret - p.start > LINE_BEFORE) p.start = caret - LINE_BEFORE;
    if (p.end - p.start > LINE_MAX_BYTES) p.end = p.start + LINE_MAX_BYTES;
  }
  print_source_line(s->text, p.start, p.end, out);
  /* A caret may stand one past the line's end; the text has no byte there. */
  if (to > p.end) to = p.end;
  print_caret(s->text, p.start, caret, to, out);
}

static const char *const level_text[] = {
    [SEVERITY_ERROR] = "error", [SEVERITY_WARNING] = "warning"};

static bool print_message_text(const diag_message *m, FILE *out) {
  const source *s = m->at.source;
  location p = {0};
  if (s) {
    p = location_of(m->at);
    fprintf(out, "%s:%d:%d: ", s->path, p.line, p.column);
  }
  fprintf(out, "%s: %s\n", level_text[m->level], m->text);
  if (s) print_source(s, p, out);
  if (m->hint) fprintf(out, "hint: %s\n", m->hint);
  return true;
}

/* ---- JSON ---------------------------------------------------------------- */

/* Paths may hold bytes that are not UTF-8; JSON cannot. NULL without memory. */
json_t *diag_json(const char *text) {
  if (!text) return json_null();
  json_t *string = json_string(text);
  bool plain = true;
  for (const char *c = text; *c; c++) plain = plain && (unsigned char)*c < 0x80;
  if (string || plain) return string;
  char *ascii = strdup(text);
  if (!ascii) return NULL;
  for (char *c = ascii; *c; c++)
    if ((unsigned char)*c >= 0x80) *c = '?';
  string = json_string(ascii);
  free(ascii);
  return string;
}

static json_t *json_number(const source *s, int32_t number) {
  return s ? json_integer(number) : json_null();
}

/* False without memory; whether the text could be written, `out` knows. */
static bool print_message_json(const diag_message *m, FILE *out) {
  const source *s = m->at.source;
  location p = s ? location_of(m->at) : (location){0};
  json_t *object = json_object();
  bool lacks = json_object_set_new(object, "file", diag_json(s ? s->path : NULL)) ||
               json_object_set_new(object, "line", json_number(s, p.line)) ||
               json_object_set_new(object, "column", json_number(s, p.column)) ||
               json_object_set_new(object, "end_column", json_number(s, p.end_column)) ||
               json_object_set_new(object, "severity", diag_json(level_text[m->level])) ||
               json_object_set_new(object, "message", diag_json(m->text)) ||
               json_object_set_new(object, "hint", diag_json(m->hint)) ||
               json_dumpf(object, out, JSON_COMPACT);
  fputc('\n', out);
  json_decref(object);
  return !lacks || ferror(out);
}

static void print_message(const diag *d, const diag_message *m, FILE *out, bool json) {
  if (!(json ? print_message_json : print_message_text)(m, out)) arena_lack(d->arena);
}

void diag_print(const diag *d, FILE *out, bool json) {
  diag_message *sorted = ARENA_ARRAY(d->arena, diag_message, d->count);
  if (d->count)
    memcpy(sorted, d->messages, (size_t)d->count * sizeof(diag_message));
  qsort(sorted, (size_t)d->count, sizeof(diag_message), message_compare);
  for (int32_t i = 0; i < d->count; i++) print_message(d, &sorted[i], out, json);
  diag_message hidden = {.level = SEVERITY_WARNING};
  hidden.text = arena_print(d->arena, "%d more warnings", d->hidden);
  if (d->hidden) print_message(d, &hidden, out, json);
  diag_message last = {.level = SEVERITY_ERROR};
  last.text = arena_print(d->arena, "stopped after %d errors", ERROR_MAX);
  if (d->stopped) print_message(d, &last, out, json);
}

/* ---- did you mean -------------------------------------------------------- */

/* Edits that make b of a: insert, delete, replace, swap of neighbours. A
 * letter in the other case is free. */
static int32_t edit_distance(const char *a, const char *b) {
  int32_t rows[3][NEAREST_MAX + 1];
  int32_t *two = rows[0], *one = rows[1], *now = rows[2];
  int32_t n = (int32_t)strlen(a), m = (int32_t)strlen(b);
  for (int32_t j = 0; j <= m; j++) one[j] = j;
  for (int32_t i = 1; i <= n; i++) {
    now[0] = i;
    for (int32_t j = 1; j <= m; j++) {
      bool same = !strncasecmp(&a[i - 1], &b[j - 1], 1);
      int32_t best = one[j - 1] + !same;
      if (one[j] + 1 < best) best = one[j] + 1;
      if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] &&
                     a[i - 2] == b[j - 1];
      if (swapped && two[j - 2] + 1 < best) best = two[j - 2] + 1;
      now[j] = best;
    }
    int32_t *spare = two;
    two = one, one = now, now = spare;
  }
  return one[m];
}

const char *diag_nearest(const char *name, const char *const *names,
                         int32_t count) {
  size_t length = strlen(name);
  if (length > NEAREST_MAX) return NULL;
  const char *nearest = NULL;
  int32_t best = (int32_t)length / 3 + 1;
  for (int32_t i = 0; i < count; i++) {
    if (strlen(names[i]) > NEAREST_MAX) continue;
    int32_t distance = edit_distance(name, names[i]);
    if (distance < best) {
      best = distance;
      nearest = names[i];
    }
  }
  return nearest;
}

const char *diag_list(const char *const *names, int32_t count,
                      char text[DIAG_LIST]) {
  static const char more[] = ", ...";
  int at = 0;
  text[0] = 0;
  for (int32_t i = 0; i < count; i++) {
    size_t room = DIAG_LIST - (size_t)at - sizeof more;
    if (strlen(names[i]) + 2 > room) return strcpy(text + at, more), text;
    at += sprintf(text + at, i ? ", %s" : "%s", names[i]);
  }
  return text;
}

const char *diag_guess(const char *name, const char *const *names,
                       int32_t count, char text[DIAG_GUESS]) {
  _Static_assert(DIAG_GUESS > NEAREST_MAX + 20, "the longest fits");
  const char *near = diag_nearest(name, names, count);
  char list[DIAG_LIST];
  if (near)
    snprintf(text, DIAG_GUESS, ", did you mean '%s'?", near);
  else
    snprintf(text, DIAG_GUESS, count ? "; it has %s" : "%s",
             diag_list(names, count, list));
  return text;
}
