/* ast.c - builds the tree of a source: the parser is driven here, and its
 * actions call the constructors below. Depth is counted while building, so
 * that every later walk over a term may recurse. */
#include "ast.h"
#include "grammar/parser.h"
#include <assert.h>

const char *word_text(word w) {
  static const char *const texts[] = {
      [WORD_NONE] = "",
#define KEYWORD(token, text) [WORD_##token] = text,
#include "grammar/keywords.def"
#undef KEYWORD
  };
  assert((int)w >= 0 && w < WORD_COUNT);
  return texts[w];
}

statement *ast_parse(arena *a, diag *d, const source *s) {
  ast_reader r = {.arena = a, .diag = d, .source = s};
  r.now = r.last = (span){s, 0, 0};
  int before = diag_errors(d);
  int failed = grammar_read(&r);
  assert(!failed || diag_errors(d) > before || diag_full(d));
  return r.items;
}

/* ---- terms --------------------------------------------------------------- */

term *term_new(ast_reader *r, term_kind kind, span at) {
  term *t = ARENA_NEW(r->arena, term);
  t->kind = kind;
  t->at = t->name_at = at;
  return t;
}

term *term_name(ast_reader *r, span at, const char *name) {
  term *t = term_new(r, TERM_NAME, at);
  t->name = name;
  return t;
}

term_list term_list_add(term_list list, term *t) {
  if (list.last) list.last->next = t;
  else list.first = t;
  list.last = t;
  list.count++;
  return list;
}

static void set_depth(ast_reader *r, term *t, int32_t depth) {
  t->depth = depth;
  if (depth > NESTING_MAX) ast_too_deep(r, t->at);
}

static void set_arguments(ast_reader *r, term *t, term_list args) {
  int32_t deepest = 0;
  for (term *arg = args.first; arg; arg = arg->next)
    if (arg->depth > deepest) deepest = arg->depth;
  t->first = args.first;
  t->count = args.count;
  set_depth(r, t, deepest + 1);
}

term *term_operator(ast_reader *r, span at, expr_op op, term *a, term *b,
                    term *c) {
  term *t = term_new(r, TERM_OPERATOR, at);
  t->op = op;
  term_list args = term_list_add((term_list){0}, a);
  if (b) args = term_list_add(args, b);
  if (c) args = term_list_add(args, c);
  set_arguments(r, t, args);
  return t;
}

term *term_apply(ast_reader *r, span at, term_kind kind, term *name,
                 term_list args) {
  term *t = term_new(r, kind, at);
  t->name = name->name;
  t->name_at = name->at;
  set_arguments(r, t, args);
  return t;
}

term *term_axis(ast_reader *r, span at, const char *name) {
  ast_expect_axis(r, at, name);
  return term_name(r, at, name);
}

term *term_pair(ast_reader *r, span at, term *a, term *b) {
  term *t = term_new(r, TERM_PAIR, at);
  term_list both = term_list_add((term_list){0}, a);
  set_arguments(r, t, term_list_add(both, b));
  return t;
}

term *term_group(ast_reader *r, span at, term *inner) {
  inner->at = at;
  set_depth(r, inner, inner->depth + 1);
  return inner;
}

/* ---- statements ---------------------------------------------------------- */

statement *statement_new(ast_reader *r, word w, span at) {
  statement *s = ARENA_NEW(r->arena, statement);
  s->word = w;
  s->at = at;
  return s;
}

/* A statement that was not understood is NULL and left out. */
statement_list statement_list_add(statement_list list, statement *s) {
  if (!s) return list;
  if (list.last) list.last->next = s;
  else list.first = s;
  list.last = s;
  return list;
}

/* ---- productions of dil.y ------------------------------------------------ */

statement *ast_plain(ast_reader *r, word w, span at, term *a, term *b) {
  statement *s = statement_new(r, w, at);
  if (a) s->args = term_list_add(s->args, a);
  if (b) s->args = term_list_add(s->args, b);
  return s;
}

statement *ast_listed(ast_reader *r, word w, span at, term_list args) {
  statement *s = statement_new(r, w, at);
  s->args = args;
  return s;
}

statement *ast_chosen(ast_reader *r, word w, span at, word choice,
                      span choice_at) {
  statement *s = statement_new(r, w, at);
  s->choice = choice;
  s->choice_at = choice_at;
  return s;
}

statement *ast_named(statement *s, const char *name, span at) {
  s->name = name;
  s->name_at = at;
  return s;
}

statement *ast_gridded(ast_reader *r, word w, span at, term_list args) {
  statement *s = ast_listed(r, w, at, args);
  s->choice = WORD_GRID;
  return s;
}

term_list ast_alone(term *t) { return term_list_add((term_list){0}, t); }

term_list ast_crossed(ast_reader *r, term_list list, span at,
                      const char *name, term *next) {
  ast_expect_by(r, at, name);
  return term_list_add(list, next);
}

statement *ast_block(statement *s, statement_list children) {
  s->child = children.first;
  return s;
}

statement *ast_from_lists(ast_reader *r, span rows_at, const char *rows,
                          span cols_at, const char *cols) {
  return ast_plain(r, WORD_FROM, rows_at, term_name(r, rows_at, rows),
                   cols ? term_name(r, cols_at, cols) : NULL);
}
