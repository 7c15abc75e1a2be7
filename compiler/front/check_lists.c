/* check_lists.c - `keep from`: tables of blocks, and lists that stand for one.
 *
 * In: the names of one input, a table, or of two, lists in the form CSR. Out:
 * the condition that the keep stands for. Lists become a table that a call does
 * not bring: the run time makes it of them (runtime/base/lists.h). It follows
 * the inputs of the pattern, and conditions read it as they read any other. */
#include "checker.h"
#include <string.h>

/* `name` as it would stand in an input's dimensions, folded; NULL: unknown. */
static expr *dimension_of(const scope *s, span at, const char *name) {
  term t = {.kind = TERM_NAME, .at = at, .name = name};
  scope inner = scope_at(s, CONTEXT_DIMENSION, "keep");
  operand o;
  if (!builtin_name(&inner, &t, &o) || o.wrong) return NULL;
  return expr_fold(s->c->arena, operand_tree(&inner, &o));
}

bool check_is_dimension(const scope *s, const expr *dimension,
                         const char *name) {
  const expr *wanted = dimension_of(s, dimension->at, name);
  return wanted && expr_same(dimension, wanted);
}

int32_t check_find_input(const scope *s, const pattern *p, const char *name,
                          span at) {
  const char *names[DIL_INPUT_MAX];
  for (int32_t k = 0; k < p->input_count; k++) {
    names[k] = p->input[k].name;
    if (names[k] == name) return k;
  }
  check_error(s->c, at, check_meant(s->c, name, names, p->input_count),
              "'%s' is not an input", name);
  return -1;
}

/* Of that type: [nbq, nb], [H, nbq, nb] or [B, H, nbq, nb]. */
static bool is_block_table(const scope *s, const pattern *p, int32_t index,
                           dil_dtype dtype) {
  static const char *const sizes[] = {"B", "H", "nbq", "nb"};
  const dil_input *input = &p->input[index];
  if (input->dtype != dtype || input->rank < 2) return false;
  for (int32_t axis = 0; axis < input->rank; axis++) {
    const expr *dimension = p->dimension[index][axis];
    const char *size = sizes[DIL_RANK_MAX - input->rank + axis];
    if (dimension && !check_is_dimension(s, dimension, size)) return false;
  }
  return true;
}

static expr *expr_node(arena *a, expr_op op, expr_type type, span at,
                       int32_t count) {
  expr *e = ARENA_NEW(a, expr);
  *e = (expr){.op = op, .type = type, .at = at, .count = count};
  if (count) e->arg = ARENA_ARRAY(a, expr *, count);
  return e;
}

expr *check_table_read(const scope *s, const pattern *p, int32_t input,
                       const char *const names[DIL_RANK_MAX], span at) {
  int32_t rank = p->input[input].rank;
  arena *a = s->c->arena;
  expr *read = expr_node(a, EXPR_INPUT, TYPE_I32, at, rank);
  read->integer = input;
  for (int32_t axis = 0; axis < rank; axis++) {
    term t = {.kind = TERM_NAME, .at = at,
              .name = names[DIL_RANK_MAX - rank + axis]};
    operand o;
    if (!builtin_name(s, &t, &o) || o.wrong) return NULL;
    read->arg[axis] = operand_tree(s, &o);
  }
  expr *differs = expr_node(a, EXPR_NE, TYPE_CONDITION, at, 2);
  differs->arg[0] = read;
  differs->arg[1] = expr_node(a, EXPR_INT, TYPE_I32, at, 0);
  return expr_fold(a, differs);
}

/* NAME[bi, bj] != 0, with h and b before where the table has them. */
expr *check_table_condition(const scope *s, const pattern *p, int32_t input,
                            span at) {
  static const char *const names[] = {"b", "h", "bi", "bj"};
  return check_table_read(s, p, input, names, at);
}

static expr *keep_table(const scope *s, const pattern *p,
                        const statement *from) {
  int32_t input = check_find_input(s, p, from->name, from->name_at);
  if (input < 0) return NULL;
  if (is_block_table(s, p, input, DIL_U8))
    return check_table_condition(s, p, input, from->name_at);
  check_error(s->c, from->name_at,
              s->block == s->query_block
                  ? "it is declared `u8[H, nb, nb]`, `u8[nb, nb]` or "
                    "`u8[B, H, nb, nb]`, of the same block"
                  : "it is declared `u8[H, nbq, nb]`, `u8[nbq, nb]` or "
                    "`u8[B, H, nbq, nb]`, of the same blocks",
              "input '%s' is not a table of blocks", from->name);
  return NULL;
}

int32_t check_gate(const scope *s, const pattern *p, const statement *by) {
  int32_t input = check_find_input(s, p, by->name, by->name_at);
  if (input < 0 || is_block_table(s, p, input, DIL_F32)) return input;
  check_error(s->c, by->name_at,
              "it is declared `f32[B, H, nbq, nb]`, `f32[H, nbq, nb]` or "
              "`f32[nbq, nb]`, of the same blocks",
              "input '%s' is not an estimate of blocks", by->name);
  return -1;
}

/* ---- lists --------------------------------------------------------------- */

/* Returns whether two inputs have the types and the leading dimensions of
 * lists, and as many rows as `blocks` says, and one more. */
static bool are_lists(const scope *s, const pattern *p, int32_t rows,
                      int32_t cols, expr *blocks) {
  static const char *const leading[] = {"B", "H"};
  const dil_input *r = &p->input[rows], *c = &p->input[cols];
  if (rows == cols || r->dtype != DIL_I32 || c->dtype != DIL_I32) return false;
  if (r->rank != c->rank || r->rank >= DIL_RANK_MAX) return false;
  int32_t last = r->rank - 1;
  for (int32_t axis = 0; axis < last; axis++) {
    const char *size = leading[2 - last + axis];
    const expr *of_rows = p->dimension[rows][axis];
    const expr *of_cols = p->dimension[cols][axis];
    if (!of_rows || !check_is_dimension(s, of_rows, size)) return false;
    if (!of_cols || !check_is_dimension(s, of_cols, size)) return false;
  }
  if (!blocks || !p->dimension[rows][last]) return false;
  arena *a = s->c->arena;
  expr *one = expr_node(a, EXPR_INT, TYPE_I32, blocks->at, 0);
  expr *more = expr_node(a, EXPR_ADD, TYPE_I32, blocks->at, 2);
  one->integer = 1;
  more->arg[0] = blocks;
  more->arg[1] = one;
  return expr_same(expr_fold(a, more), p->dimension[rows][last]);
}

static bool check_lists(const scope *s, const pattern *p, const statement *from,
                        int32_t rows, int32_t cols, expr *blocks) {
  if (are_lists(s, p, rows, cols, blocks)) return true;
  check_error(s->c, from->at,
              s->block == s->query_block
                  ? "they are declared `rows : i32[H, nb + 1]` and `cols : "
                    "i32[H, *]`, of the same blocks; both without H, or with B, H"
                  : "they are declared `rows : i32[H, nbq + 1]` and `cols : "
                    "i32[H, *]`, of the same blocks; both without H, or with B, H",
              "inputs '%s' and '%s' are not lists of blocks",
              p->input[rows].name, p->input[cols].name);
  return false;
}

const char *check_made_name(const scope *s, const pattern *p, int32_t rows,
                            const char *end) {
  const char *name =
      arena_print(s->c->arena, "%s_%s", p->input[rows].name, end);
  for (int32_t k = 0; k < pattern_reads(p); k++)
    if (!strcmp(p->input[k].name, name)) {
      name = arena_print(s->c->arena, "%s_", name);
      k = -1;
    }
  name = arena_name(s->c->arena, name, strlen(name));
  return symbol_find(s->c, SYMBOL_LET, name)
             ? arena_print(s->c->arena, "%s__", name)
             : name;
}

/* The table of these lists, made before or now; -1 after an error. */
static int32_t made_table(const scope *s, pattern *p, const statement *from,
                          int32_t rows, int32_t cols) {
  const dil_input *lists = &p->input[rows];
  expr *queries = dimension_of(s, from->at, "nbq");
  expr *keys = dimension_of(s, from->at, "nb");
  if (!check_lists(s, p, from, rows, cols, queries)) return -1;
  int32_t at = p->input_count;
  for (; at < pattern_reads(p); at++)
    if (p->input[at].rows == rows && p->input[at].cols == cols &&
        expr_same(p->dimension[at][lists->rank], keys))
      return at;
  if (at == DIL_INPUT_MAX) {
    check_error(s->c, from->at, NULL,
                "a pattern reads at most %d inputs and tables made of lists",
                DIL_INPUT_MAX);
    return -1;
  }
  p->input[at] = (dil_input){.name = check_made_name(s, p, rows,
                                                     p->input[cols].name),
                             .dtype = DIL_U8,
                             .rank = lists->rank + 1,
                             .rows = (uint8_t)rows,
                             .cols = (uint8_t)cols,
                             .query_block = (int32_t)s->query_block,
                             .block = (int32_t)s->block};
  check_cells(s, &p->input[at], from->at);
  for (int32_t axis = 0; axis + 1 < lists->rank; axis++)
    p->dimension[at][axis] = p->dimension[rows][axis];
  p->dimension[at][lists->rank - 1] = queries;
  p->dimension[at][lists->rank] = keys;
  p->made_count++;
  return at;
}

expr *check_keep_from(const scope *s, pattern *p, const statement *from,
                      keep *k) {
  k->table = from->name;
  if (!from->child) return keep_table(s, p, from);
  const term *last = argument(from->child, 1);
  k->cols = last->name;
  int32_t rows = check_find_input(s, p, from->name, from->name_at);
  int32_t cols = check_find_input(s, p, last->name, last->at);
  if (rows < 0 || cols < 0) return NULL;
  int32_t table = made_table(s, p, from, rows, cols);
  return table < 0 ? NULL : check_table_condition(s, p, table, from->name_at);
}

/* The size of blocks that ceil(M / S) counts; 0: it is no such count. */
static int32_t counted_block(const expr *e) {
  if (!e) return 0;
  if (e->op == EXPR_M_) return 1;
  bool quotient = e->op == EXPR_DIV && e->arg[1]->op == EXPR_INT &&
                  e->arg[0]->op == EXPR_ADD && e->arg[0]->arg[0]->op == EXPR_M_;
  if (!quotient || e->arg[0]->arg[1]->op != EXPR_INT) return 0;
  int64_t size = e->arg[1]->integer;
  return e->arg[0]->arg[1]->integer == size - 1 ? (int32_t)size : 0;
}

/* The sizes of the blocks of a table, from its last dimensions or, of cells of a
 * grid, as they are said; 0: the dimensions are no counts of blocks. */
static void table_blocks(scope *s, const pattern *p, const statement *given,
                         int32_t *queries, int32_t *keys) {
  int32_t at = pattern_reads(p), last = given->args.count - 1;
  expr *const *size = p->dimension[at];
  if (!given->child->child) {
    *queries = counted_block(size[last - 1]);
    *keys = counted_block(size[last]);
    return;
  }
  check_block(s, given->child->child);
  if (s->block > 0 && check_is_dimension(s, size[last - 1], "nbq") &&
      check_is_dimension(s, size[last], "nb"))
    *queries = *keys = (int32_t)s->block;
}

void check_made_table(const scope *s, pattern *p, const statement *given) {
  const term *first = argument(given->child, 0);
  const term *second = argument(given->child, 1);
  if (!second) {
    check_made_keys(s, p, given);
    return;
  }
  int32_t rows = check_find_input(s, p, first->name, first->at);
  int32_t cols = check_find_input(s, p, second->name, second->at);
  int32_t at = pattern_reads(p), rank = given->args.count;
  if (rows < 0 || cols < 0) return;
  int32_t axis = 0;
  for (const term *t = given->args.first; t; t = t->next)
    p->dimension[at][axis++] = check_integer(s, t);
  scope inner = *s;
  bool whole = given->choice == WORD_U8 && rank >= 2 &&
               rank == p->input[rows].rank + 1;
  int32_t queries = 0, keys = 0;
  if (whole) table_blocks(&inner, p, given, &queries, &keys);
  if (!queries || !keys)
    check_error(s->c, given->name_at,
                "it is `u8`, has one dimension more than they, and ends in "
                "counts of blocks: `[H, nbq, nb]`",
                "'%s' cannot be a table of the lists '%s' and '%s'",
                given->name, first->name, second->name);
  else if (check_lists(s, p, given, rows, cols, p->dimension[at][rank - 2])) {
    p->input[at] = (dil_input){.name = given->name, .dtype = DIL_U8,
                               .rank = rank, .rows = (uint8_t)rows,
                               .cols = (uint8_t)cols,
                               .query_block = queries, .block = keys};
    if (given->child->child) check_cells(&inner, &p->input[at], given->at);
    p->made_count++;
  }
}
