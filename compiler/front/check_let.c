/* check_let.c - lets, and the -D options of the command line that replace
 * their values. A let sees those above it; everything else sees all. */
#include "checker.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct define_value {
  const char *name, *text;
  operand meaning;
  bool used;
};

static const span nowhere = {0};

/* ---- -D ------------------------------------------------------------------ */

/* An integer or a float with digits on both sides of its point; a sign may
 * stand in front. */
static bool parse_number(const char *text, operand *meaning) {
  const char *digits = text + (*text == '-' || *text == '+');
  size_t length = strlen(text);
  if (!isdigit((unsigned char)*digits) ||
      !isdigit((unsigned char)text[length - 1]) || strchr(text, 'x') ||
      strchr(text, 'X'))
    return false;
  char *end;
  errno = 0;
  *meaning = operand_integer(nowhere, strtoll(text, &end, 10));
  if (!*end) return errno != ERANGE;
  errno = 0;
  meaning->type = TYPE_F32;
  meaning->real = strtod(text, &end);
  return !*end && errno != ERANGE;
}

static define_value *define_find(const checker *c, const char *name) {
  for (int32_t i = 0; i < c->define_count; i++)
    if (c->defines[i].name == name) return &c->defines[i];
  return NULL;
}

void check_defines(checker *c, const define *defines, int32_t count) {
  c->defines = ARENA_ARRAY(c->arena, define_value, count);
  for (int32_t i = 0; i < count; i++) {
    const char *name = arena_name(c->arena, defines[i].name,
                                  strlen(defines[i].name));
    define_value d = {.name = name, .text = defines[i].value};
    if (define_find(c, name)) {
      check_error(c, nowhere, NULL, "-D %s is given twice", name);
      continue;
    }
    if (!parse_number(d.text, &d.meaning)) {
      check_error(c, nowhere, NULL, "-D %s=%s: '%s' is not a number", name,
                  d.text, d.text);
      d.meaning.wrong = true;
    }
    c->defines[c->define_count++] = d;
  }
}

/* "the lets are w, g": the lets that -D may name. */
static const char *lets_hint(checker *c, const char **lets, int32_t count) {
  enum { MOST = 12 };
  const char *text = count == 1 ? "the let is" : "the lets are";
  for (int32_t i = 0; i < count && i < MOST; i++)
    text = arena_print(c->arena, "%s%s %s", text, i ? "," : "", lets[i]);
  if (count == 0) return "the file has no let";
  return count > MOST ? arena_print(c->arena, "%s, ...", text) : text;
}

void check_defines_used(checker *c) {
  int32_t count;
  const char **lets = symbol_names(c, SYMBOL_LET, &count);
  for (int32_t i = 0; i < c->define_count; i++) {
    const define_value *d = &c->defines[i];
    if (d->used) continue;
    const char *near = check_meant(c, d->name, lets, count);
    check_error(c, nowhere, near ? near : lets_hint(c, lets, count),
                "-D %s=%s: no let is called '%s'", d->name, d->text, d->name);
  }
}

/* ---- let ----------------------------------------------------------------- */

static operand let_value(checker *c, const statement *s) {
  scope outside = {.c = c, .context = CONTEXT_LET, .what = "let"};
  operand o = check_term(&outside, argument(s, 0));
  if (!o.wrong && o.type == TYPE_CONDITION) {
    check_error(c, argument(s, 0)->at,
                "`c ? 1 : 0` makes a number of a condition",
                "let '%s' must be a number, got a condition", s->name);
    o.wrong = true;
  }
  define_value *d = define_find(c, s->name);
  if (!d) return o;
  d->used = true;
  return d->meaning;
}

void check_let(checker *c, const statement *s) {
  operand *meaning = ARENA_NEW(c->arena, operand);
  *meaning = let_value(c, s);
  symbol *let = symbol_add(c, SYMBOL_LET, s);
  if (let) let->meaning = meaning;
}
