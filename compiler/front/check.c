/* check.c - from the items of a file and its imports to a program: lets
 * first, in order, then patterns, topologies and schedules, then the kernels
 * that bind them. The subjects have files of their own (check_*.c). */
#include "checker.h"

enum { EDITION = 1 };

/* Of an imported file only the lets and patterns count. */
static bool is_item_wanted(const item *i, word w) {
  return i->statement->word == w &&
         (!i->imported || w == WORD_LET || w == WORD_PATTERN ||
          w == WORD_DIL);
}

static int32_t count_items_wanted(const items *all, word w) {
  int32_t count = 0;
  for (int32_t i = 0; i < all->count; i++)
    count += is_item_wanted(&all->item[i], w);
  return count;
}

static void check_edition(checker *c, const statement *s) {
  const term *edition = argument(s, 0);
  if (edition->integer == EDITION) return;
  check_error(c, edition->at, NULL,
              "edition %lld is not known, this compiler has edition %d",
              (long long)edition->integer, EDITION);
}

static void check_each(checker *c, const items *all, word w,
                       void (*check)(checker *, const statement *)) {
  for (int32_t i = 0; i < all->count; i++)
    if (is_item_wanted(&all->item[i], w)) check(c, all->item[i].statement);
}

/* A kind of declared thing: its statements become the program's array, each
 * under its name. Kernels come last, since they name the others. */
#define KINDS(X)                                                              \
  X(PATTERN, pattern)                                                         \
  X(TOPOLOGY, topology)                                                       \
  X(SCHEDULE, schedule)                                                       \
  X(KERNEL, kernel)

#define X(KIND, kind)                                                          \
  static void add_##kind##s(checker *c, const items *all, program *p) {        \
    int32_t room = count_items_wanted(all, WORD_##KIND) + 1;                   \
    p->kind = ARENA_ARRAY(c->arena, kind *, room);                             \
    for (int32_t i = 0; i < all->count; i++) {                                 \
      if (!is_item_wanted(&all->item[i], WORD_##KIND)) continue;               \
      symbol *name = symbol_add(c, SYMBOL_##KIND, all->item[i].statement);     \
      kind *made = check_##kind(c, all->item[i].statement);                    \
      p->kind[p->kind##_count++] = made;                                       \
      if (name) name->meaning = made;                                          \
    }                                                                          \
  }
KINDS(X)
#undef X

/* The one pattern of a file without kernels: its own, or, where it has none,
 * the one that it imports. NULL when there is none or a choice. */
static const pattern *only_pattern(const items *all, const program *p) {
  const pattern *own = NULL, *imported = NULL;
  int32_t own_count = 0, imported_count = 0, k = 0;
  for (int32_t i = 0; i < all->count; i++) {
    if (!is_item_wanted(&all->item[i], WORD_PATTERN)) continue;
    const pattern *next = p->pattern[k++];
    if (all->item[i].imported) imported = next, imported_count++;
    else own = next, own_count++;
  }
  if (own_count == 1) return own;
  return own_count == 0 && imported_count == 1 ? imported : NULL;
}

static void add_implicit_kernel(checker *c, const items *all, program *p) {
  const pattern *only = p->kernel_count ? NULL : only_pattern(all, p);
  if (!only) return;
  kernel *k = ARENA_NEW(c->arena, kernel);
  *k = (kernel){.name = only->name, .at = only->at, .pattern = only};
  p->kernel[p->kernel_count++] = k;
}

static const items *items_copy(arena *a, const items *all) {
  items *kept = ARENA_NEW(a, items);
  *kept = *all;
  return kept;
}

program *check_items(arena *a, diag *d, const items *all,
                     const define *defines, int32_t define_count) {
  checker *c = ARENA_NEW(a, checker);
  *c = (checker){.arena = a, .diag = d, .items = items_copy(a, all)};
  program *p = ARENA_NEW(a, program);
  p->checker = c;
  check_defines(c, defines, define_count);
  check_each(c, all, WORD_DIL, check_edition);
  check_each(c, all, WORD_LET, check_let);
  check_defines_used(c);
#define X(KIND, kind) add_##kind##s(c, all, p);
  KINDS(X)
#undef X
  add_implicit_kernel(c, all, p);
  return diag_errors(d) ? NULL : p;
}

/* ---- other sizes --------------------------------------------------------- */

static bool is_declared_at(const statement *s, word w, span at) {
  return s->word == w && s->name_at.source == at.source &&
         s->name_at.start == at.start;
}

/* The statement that declares a pattern. */
static const statement *pattern_statement(const items *all, span at) {
  int32_t i = 0;
  while (!is_declared_at(all->item[i].statement, WORD_PATTERN, at)) i++;
  return all->item[i].statement;
}

const kernel *program_resize(arena *a, diag *d, const program *p,
                             const kernel *own, const pattern_sizes *sizes) {
  checker c = *p->checker;
  c.arena = a;
  c.diag = d;
  c.sizes = sizes;
  kernel *resized = ARENA_NEW(a, kernel);
  *resized = *own;
  resized->pattern =
      check_pattern(&c, pattern_statement(c.items, own->pattern->at));
  if (!diag_errors(d)) check_share(&c, resized, own->at);
  return diag_errors(d) ? NULL : resized;
}
