/* check_choice.c - `keep top` and `keep mass`: blocks chosen by their scores.
 *
 * In: branches with their keeps. Out: for each branch that chooses, three arrays
 * that a call does not bring: the lists that the run time makes, and the table
 * that these lists stand for. The keep's condition reads the table, as that of
 * `keep from` does. */
#include "checker.h"
#include <string.h>

/* ---- numbers ------------------------------------------------------------- */

static void check_most(const scope *s, const term *t, const char *what,
                       keep *k) {
  scope inner = scope_at(s, CONTEXT_CONSTANT, what);
  int64_t blocks = 1;
  check_count(&inner, t, 1, COUNT_MAX, NULL, &blocks);
  k->amount = (double)blocks;
}

static void check_share_of(const scope *s, const term *t, keep *k) {
  scope inner = scope_at(s, CONTEXT_CONSTANT, "keep mass");
  k->share = 1;
  if (!check_real(&inner, t, &k->share)) return;
  if (k->share <= 0 || k->share > 1)
    check_error(s->c, t->at, "it is a share of the whole",
                "keep mass must be above 0 and at most 1, got %g", k->share);
}

void check_choice_numbers(const scope *s, pattern *p, const statement *given,
                          keep *k) {
  const statement *by = given->child;
  bool top = k->kind == KEEP_TOP;
  const term *most = argument(given, top ? 0 : 1);
  k->amount = 1;
  if (!top) check_share_of(s, argument(given, 0), k);
  if (most)
    check_most(s, most, top ? "keep top" : "the most blocks of keep mass", k);
  else
    check_error(s->c, given->at,
                "`keep mass 0.9, 32 by mean;` keeps at most 32 blocks",
                "keep mass needs the most blocks that it keeps");
  k->estimate = by->word == WORD_INPUT ? DIL_ESTIMATE_INPUT
                : by->name             ? DIL_ESTIMATE_EACH
                                       : DIL_ESTIMATE_MEAN;
  k->gate = by->word == WORD_INPUT ? check_gate(s, p, by) : -1;
}

/* ---- keeps beside a choice ----------------------------------------------- */

/* Returns whether a condition asks of i and j only which blocks they are in. */
static bool is_of_blocks(const expr *e, const expr *bi, const expr *bj) {
  if (expr_same(e, bi) || expr_same(e, bj)) return true;
  if (e->op == EXPR_I_ || e->op == EXPR_J_) return false;
  for (int32_t k = 0; k < e->count; k++)
    if (!is_of_blocks(e->arg[k], bi, bj)) return false;
  return true;
}

static scope level_scope(const scope *s, const keeps *level) {
  scope inner = scope_at(s, CONTEXT_KEEP, "keep");
  inner.block = level->block;
  inner.query_block = level->query_block;
  memcpy(inner.cell, level->cell, sizeof inner.cell);
  return inner;
}

static expr *block_name(const scope *s, const char *name, span at) {
  term t = {.kind = TERM_NAME, .at = at, .name = name};
  operand o;
  if (!builtin_name(s, &t, &o) || o.wrong) return NULL;
  return expr_fold(s->c->arena, operand_tree(s, &o));
}

static void check_others(const scope *s, const keeps *level) {
  for (int32_t k = 0; k < level->count; k++) {
    const keep *one = &level->keep[k];
    if (one->kind != KEEP_EXPR || !one->condition) continue;
    scope inner = level_scope(s, level);
    const expr *bi = block_name(&inner, "bi", one->at);
    const expr *bj = block_name(&inner, "bj", one->at);
    if (bi && bj && !is_of_blocks(one->condition, bi, bj))
      check_error(s->c, one->at,
                  "write it with `bi` and `bj`, or as a mask",
                  "a keep beside `keep top` or `keep mass` must take whole "
                  "blocks");
  }
}

/* ---- made arrays --------------------------------------------------------- */

static bool is_taken(const scope *s, const pattern *p, const char *name) {
  for (int32_t k = 0; k < pattern_reads(p); k++)
    if (p->input[k].name == name) return true;
  return symbol_find(s->c, SYMBOL_LET, name) != NULL;
}

static const char *free_name(const scope *s, const pattern *p,
                             const char *stem) {
  const char *name = arena_name(s->c->arena, stem, strlen(stem));
  for (int32_t k = 2; is_taken(s, p, name); k++) {
    const char *next = arena_print(s->c->arena, "%s%d", stem, k);
    name = arena_name(s->c->arena, next, strlen(next));
  }
  return name;
}

static expr *dimension(const scope *s, const char *name, span at) {
  term t = {.kind = TERM_NAME, .at = at, .name = name};
  scope inner = *s;
  inner.context = CONTEXT_DIMENSION;
  return check_integer(&inner, &t);
}

static void add_made(const scope *s, pattern *p, const keep *k,
                     const dil_input *made, expr *const *size) {
  int32_t at = pattern_reads(p);
  p->input[at] = *made;
  p->input[at].query_block = (int32_t)s->query_block;
  p->input[at].block = (int32_t)s->block;
  for (int32_t a = 0; s->grid && a < s->grid->axes; a++)
    p->input[at].cell[a] = (int32_t)s->cell[a];
  p->dimension[at][0] = dimension(s, "B", k->at);
  p->dimension[at][1] = dimension(s, "H", k->at);
  for (int32_t axis = 2; axis < made->rank; axis++)
    p->dimension[at][axis] = size[axis - 2];
  p->made_count++;
}

static expr *integer(const scope *s, span at, int64_t number) {
  expr *e = ARENA_NEW(s->c->arena, expr);
  *e = (expr){.op = EXPR_INT, .type = TYPE_I32, .at = at, .integer = number};
  return e;
}

static expr *one_more(const scope *s, expr *than) {
  expr *more = ARENA_NEW(s->c->arena, expr);
  *more = (expr){.op = EXPR_ADD, .type = TYPE_I32, .at = than->at, .count = 2};
  more->arg = ARENA_ARRAY(s->c->arena, expr *, 2);
  more->arg[0] = than;
  more->arg[1] = integer(s, than->at, 1);
  return expr_fold(s->c->arena, more);
}

static void make_arrays(const scope *s, pattern *p, keep *k) {
  int32_t rows = pattern_reads(p);
  expr *queries = dimension(s, "nbq", k->at), *keys = dimension(s, "nb", k->at);
  if (!queries || !keys) return;
  if (rows + 3 > DIL_INPUT_MAX) {
    check_error(s->c, k->at, "each choice of blocks takes three of them",
                "a pattern reads at most %d inputs and tables made of lists",
                DIL_INPUT_MAX);
    return;
  }
  check_cells(s, &p->input[rows], k->at);
  k->chosen = rows;
  expr *row_size[] = {one_more(s, queries)};
  expr *col_size[] = {integer(s, k->at, DIL_ANY_SIZE)};
  expr *table_size[] = {queries, keys};
  dil_input made = {.name = free_name(s, p, "chosen_rows"), .dtype = DIL_I32,
                    .rank = 3};
  add_made(s, p, k, &made, row_size);
  made.name = free_name(s, p, "chosen_cols");
  add_made(s, p, k, &made, col_size);
  made = (dil_input){.name = free_name(s, p, "chosen"), .dtype = DIL_U8,
                     .rank = 4, .rows = (uint8_t)rows,
                     .cols = (uint8_t)(rows + 1)};
  add_made(s, p, k, &made, table_size);
  k->condition = check_table_condition(s, p, rows + 2, k->at);
}

/* ---- branches ------------------------------------------------------------ */

static bool is_choice(const keep *k) { return k->kind != KEEP_EXPR; }

static int32_t count_choices(const branch *b) {
  int32_t count = 0;
  for (int32_t level = 0; level < 2; level++)
    for (int32_t k = 0; k < b->keeps[level].count; k++)
      count += is_choice(&b->keeps[level].keep[k]);
  return count;
}

/* Branches that inherit one keep choose each by itself. */
static void make_choice(const scope *s, pattern *p, keeps *level) {
  keep *own = ARENA_ARRAY(s->c->arena, keep, level->count);
  scope inner = level_scope(s, level);
  for (int32_t k = 0; k < level->count; k++) {
    own[k] = level->keep[k];
    if (is_choice(&own[k])) make_arrays(&inner, p, &own[k]);
  }
  level->keep = own;
}

static void check_one(const scope *s, pattern *p, branch *b) {
  for (int32_t level = 0; level < 2; level++) check_others(s, &b->keeps[level]);
  for (int32_t level = 0; level < 2; level++)
    for (int32_t k = 0; k < b->keeps[level].count; k++)
      if (is_choice(&b->keeps[level].keep[k])) {
        make_choice(s, p, &b->keeps[level]);
        break;
      }
}

static span choice_at(const branch *b) {
  for (int32_t level = 1; level >= 0; level--)
    for (int32_t k = b->keeps[level].count; k-- > 0;)
      if (is_choice(&b->keeps[level].keep[k]))
        return b->keeps[level].keep[k].at;
  return b->at;
}

void check_choices(const scope *s, pattern *p, const statement *shared) {
  int32_t all = 0;
  for (int32_t k = 0; k < p->branch_count; k++) {
    branch *b = &p->branch[k];
    int32_t count = count_choices(b);
    all += count;
    if (count > 1)
      check_error(s->c, choice_at(b), "give it a branch of its own",
                  "a branch has one `keep top` or `keep mass`, this is its "
                  "second");
    else if (count == 1 && s->grid && b->reach.mask_count)
      check_error(s->c, choice_at(b), "a branch of its own may have them",
                  "blocks of a grid are chosen among all: a branch that chooses "
                  "has no window, neighborhood, dilation or causal axis");
    else if (count == 1 && branch_has_each(b))
      check_error(s->c, choice_at(b), "a branch of each phase may have a choice",
                  "a branch of `phase each` cannot choose blocks by their "
                  "scores in this version");
    else if (count == 1)
      check_one(s, p, b);
  }
  if (shared && !all)
    check_error(s->c, shared->at, "`keep top 16 by mean;` chooses",
                "'shared kv' has no choice of blocks to share");
}
