/* check_keys.c - `keys NAME;`: a branch whose queries see the keys of a list.
 *
 * In: the name of an input, i32[*], i32[H, *] or i32[B, H, *]. Out: a table that a
 * call does not bring, with a byte for each key, which the run time makes of the
 * list (runtime/base/lists.h); and a mask of the branch that reads it. */
#include "checker.h"
#include <string.h>

static const char *const key_sizes[] = {"B", "H", "M"};

/* Returns whether an input may be a list of keys, or a table of them. */
static bool has_key_sizes(const scope *s, const pattern *p, int32_t index,
                          bool table) {
  const dil_input *in = &p->input[index];
  int32_t last = in->rank - 1;
  if (in->rank < 1 || in->rank > 3) return false;
  if (in->dtype != (table ? DIL_U8 : DIL_I32)) return false;
  for (int32_t axis = 0; axis <= last; axis++) {
    const expr *size = p->dimension[index][axis];
    if (!size) return true; /* told already */
    bool any = size->op == EXPR_INT && size->integer == DIL_ANY_SIZE;
    bool good = axis == last && !table
                    ? any
                    : check_is_dimension(s, size, key_sizes[2 - last + axis]);
    if (!good) return false;
  }
  return true;
}

static expr *size_of_keys(const scope *s, span at) {
  term t = {.kind = TERM_NAME, .at = at, .name = "M"};
  scope inner = scope_at(s, CONTEXT_DIMENSION, "keys");
  return check_integer(&inner, &t);
}

/* The table of a list's keys, made before or now; -1 after an error. */
static int32_t key_table(const scope *s, pattern *p, int32_t list, span at) {
  int32_t made = p->input_count, last = p->input[list].rank - 1;
  for (; made < pattern_reads(p); made++)
    if (p->input[made].keys && p->input[made].rows == list) return made;
  if (made == DIL_INPUT_MAX) {
    check_error(s->c, at, NULL,
                "a pattern reads at most %d inputs and tables made of lists",
                DIL_INPUT_MAX);
    return -1;
  }
  p->input[made] = (dil_input){.name = check_made_name(s, p, list, "keys"),
                               .dtype = DIL_U8, .rank = last + 1,
                               .rows = (uint8_t)list, .cols = (uint8_t)list,
                               .keys = true, .query_block = 1, .block = 1};
  for (int32_t axis = 0; axis < last; axis++)
    p->dimension[made][axis] = p->dimension[list][axis];
  p->dimension[made][last] = size_of_keys(s, at);
  p->made_count++;
  return made;
}

static void add_mask(const scope *s, branch *b, expr *mask) {
  expr **all = ARENA_ARRAY(s->c->arena, expr *, b->mask_count + 1);
  if (b->mask_count)
    memcpy(all, b->mask, (size_t)b->mask_count * sizeof *all);
  all[b->mask_count++] = mask;
  b->mask = all;
}

void check_keys(const scope *s, pattern *p, const statement *given, branch *b) {
  static const char *const names[DIL_RANK_MAX] = {NULL, "b", "h", "j"};
  scope mask = scope_at(s, CONTEXT_MASK, "keys");
  if (!given) return;
  int32_t list = check_find_input(s, p, given->name, given->name_at);
  if (list < 0) return;
  if (!has_key_sizes(s, p, list, false)) {
    check_error(s->c, given->name_at,
                "it is declared `i32[H, *]`, `i32[*]` or `i32[B, H, *]`",
                "input '%s' is not a list of keys", given->name);
    return;
  }
  int32_t table = key_table(s, p, list, given->at);
  if (table >= 0)
    add_mask(s, b, check_table_read(&mask, p, table, names, given->name_at));
}

void check_made_keys(const scope *s, pattern *p, const statement *given) {
  const term *of = argument(given->child, 0);
  int32_t list = check_find_input(s, p, of->name, of->at);
  int32_t at = pattern_reads(p), axis = 0;
  if (list < 0) return;
  for (const term *t = given->args.first; t; t = t->next)
    p->dimension[at][axis++] = check_integer(s, t);
  p->input[at] = (dil_input){.name = given->name,
                             .dtype = given->choice == WORD_U8 ? DIL_U8 : DIL_I32,
                             .rank = given->args.count,
                             .rows = (uint8_t)list, .cols = (uint8_t)list,
                             .keys = true, .query_block = 1, .block = 1};
  if (p->input[at].rank == p->input[list].rank &&
      has_key_sizes(s, p, list, false) && has_key_sizes(s, p, at, true))
    p->made_count++;
  else
    check_error(s->c, given->name_at, "it is `u8`, and ends in M: `u8[H, M]`",
                "'%s' cannot be a table of the keys of '%s'", given->name,
                of->name);
}
