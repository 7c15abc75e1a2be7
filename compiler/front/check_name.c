/* check_name.c - what files declare, each kind in its own name space, and the
 * statements of a block by their keyword. Errors: doubles, reserved names,
 * names that nothing declares. */
#include "checker.h"
#include <stdlib.h>
#include <string.h>

static int32_t span_line(span at) {
  int32_t line = 1;
  for (int32_t i = 0; i < at.start; i++) line += at.source->text[i] == '\n';
  return line;
}

static const char *first_declared_at(checker *c, span at) {
  return arena_print(c->arena, "the first stands at %s:%d", at.source->path,
                     span_line(at));
}

/* ---- symbols ------------------------------------------------------------- */

static const char *const kind_text[] = {
    [SYMBOL_LET] = "let",           [SYMBOL_PATTERN] = "pattern",
    [SYMBOL_TOPOLOGY] = "topology", [SYMBOL_SCHEDULE] = "schedule",
    [SYMBOL_KERNEL] = "kernel"};

static symbol **symbol_slot(const symbols *set, const char *name) {
  uint64_t hash = (uint64_t)(uintptr_t)name * 0x9E3779B97F4A7C15u >> 32;
  int32_t mask = set->room - 1;
  for (int32_t at = (int32_t)(hash & (uint32_t)mask);; at = (at + 1) & mask)
    if (!set->slot[at] || set->slot[at]->name == name) return &set->slot[at];
}

static void symbols_grow(checker *c, symbols *set) {
  symbols old = *set;
  set->room = old.room ? 2 * old.room : 32;
  set->slot = ARENA_ARRAY(c->arena, symbol *, set->room);
  for (int32_t i = 0; i < old.room; i++)
    if (old.slot[i]) *symbol_slot(set, old.slot[i]->name) = old.slot[i];
}

symbol *symbol_find(const checker *c, symbol_kind kind, const char *name) {
  const symbols *set = &c->symbols[kind];
  return set->room ? *symbol_slot(set, name) : NULL;
}

bool check_reserved(checker *c, const char *name, span at) {
  if (!is_reserved(name)) return false;
  check_error(c, at, "it is a name of the language", "'%s' is reserved", name);
  return true;
}

symbol *symbol_add(checker *c, symbol_kind kind, const statement *declared) {
  const char *name = declared->name;
  if (check_reserved(c, name, declared->name_at)) return NULL;
  symbol *there = symbol_find(c, kind, name);
  if (there) {
    check_error(c, declared->name_at, first_declared_at(c, there->at),
                "%s '%s' is declared twice", kind_text[kind], name);
    return NULL;
  }
  symbols *set = &c->symbols[kind];
  if (2 * (set->count + 1) > set->room) symbols_grow(c, set);
  symbol *added = ARENA_NEW(c->arena, symbol);
  *added = (symbol){.name = name, .at = declared->name_at};
  *symbol_slot(set, name) = added;
  set->count++;
  return added;
}

const char **symbol_names(const checker *c, symbol_kind kind,
                          int32_t *count) {
  const symbols *set = &c->symbols[kind];
  const char **names = ARENA_ARRAY(c->arena, const char *, set->count + 1);
  *count = 0;
  for (int32_t i = 0; i < set->room; i++)
    if (set->slot[i]) names[(*count)++] = set->slot[i]->name;
  return names;
}

const void *symbol_resolve(checker *c, symbol_kind kind, const char *name,
                           span at) {
  symbol *there = symbol_find(c, kind, name);
  if (there) return there->meaning;
  int32_t count;
  const char **names = symbol_names(c, kind, &count);
  const char *hint = check_meant(c, name, names, count);
  char list[DIAG_LIST];
  if (!hint)
    hint = count == 0 ? "there is none"
                      : arena_print(c->arena, "there %s %s",
                                    count == 1 ? "is" : "are",
                                    diag_list(names, count, list));
  check_error(c, at, hint, "unknown %s '%s'", kind_text[kind], name);
  return NULL;
}

static int name_compare(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Of equally near names the first in the alphabet, so that messages do not
 * depend on addresses. */
const char *check_meant(checker *c, const char *name, const char **names,
                        int32_t count) {
  qsort(names, (size_t)count, sizeof *names, name_compare);
  const char *near = diag_nearest(name, names, count);
  return near ? arena_print(c->arena, "did you mean '%s'?", near) : NULL;
}

/* ---- statements ---------------------------------------------------------- */

static bool may_repeat(word w) {
  return w == WORD_NONE || w == WORD_MASK || w == WORD_SCORE ||
         w == WORD_SINK || w == WORD_KEEP || w == WORD_INPUT ||
         w == WORD_BRANCH;
}

void clauses_collect(checker *c, const statement *block, clauses *out) {
  *out = (clauses){0};
  for (const statement *s = block; s; s = s->next) {
    const statement *first = out->of[s->word];
    if (!first)
      out->of[s->word] = s;
    else if (!may_repeat(s->word))
      check_error(c, s->at, first_declared_at(c, first->at),
                  "'%s' stands twice",
                  s->word == WORD_SPLIT ? "heads split" : word_text(s->word));
  }
}
