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

const char *knobs_text(const knobs *k, char text[KNOBS_TEXT]) {
  int length = 0;
  text[0] = 0;
  for (int32_t i = 0; i < KNOB_COUNT; i++) {
    if (!knob_given(k, i)) continue;
    length += sprintf(text + length, "%s%s", length ? " " : "", rows[i].name);
    for (int32_t v = 0; v < rows[i].values; v++)
      length += sprintf(text + length, "%s %d", v ? "," : "", k->value[i][v]);
    length += sprintf(text + length, ";");
  }
  return text;
}

/* ---- what may be said ---------------------------------------------------- */

static int32_t find_knob(const char *name) {
  int32_t i = 0;
  while (i < KNOB_COUNT && strcmp(rows[i].name, name)) i++;
  return i;
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

void schedule_read(arena *a, diag *d, const schedule *s, unsigned device,
                   knobs *k) {
  char reason[160];
  *k = (knobs){0};
  for (int32_t i = 0; i < s->knob_count; i++) {
    const knob *given = &s->knob[i];
    int32_t id = find_knob(given->name);
    if (id == KNOB_COUNT) report_unknown(a, d, given);
    else if (!(rows[id].devices & device)) report_device(a, d, given, device);
    else if (!take_values(id, given->value, given->count, k, reason,
                          sizeof reason))
      diag_report(d, SEVERITY_ERROR, given->at, NULL, "%s", reason);
  }
}

/* ---- text ---------------------------------------------------------------- */

static const char *skip_blanks(const char *at) {
  while (*at == ' ') at++;
  return at;
}

/* "name 1, 2;" at *text, which moves behind it. */
static bool read_one(const char **text, unsigned device, knobs *k,
                     char *reason, size_t size) {
  const char *at = *text;
  char name[32];
  int64_t number[KNOB_VALUES];
  int32_t count = 0;
  size_t length = strcspn(at, " ;");
  snprintf(name, sizeof name, "%.*s",
           (int)(length < sizeof name ? length : sizeof name - 1), at);
  int32_t id = find_knob(name);
  if (id == KNOB_COUNT || !(rows[id].devices & device)) {
    snprintf(reason, size, "the device has no knob '%s'", name);
    return false;
  }
  for (at += length; count < KNOB_VALUES; at = skip_blanks(at) + 1) {
    char *end;
    at = skip_blanks(at);
    if (!isdigit((unsigned char)*at)) break;
    number[count++] = strtol(at, &end, 10);
    at = end;
    if (*skip_blanks(at) != ',') break;
  }
  at = skip_blanks(at);
  if (*at != ';') {
    snprintf(reason, size, "knob '%s' does not end in ';'", name);
    return false;
  }
  *text = skip_blanks(at + 1);
  return take_values(id, number, count, k, reason, size);
}

bool knobs_read(const char *text, unsigned device, knobs *k, char *reason,
                size_t size) {
  *k = (knobs){0};
  for (text = skip_blanks(text); *text;)
    if (!read_one(&text, device, k, reason, size)) return false;
  return true;
}
