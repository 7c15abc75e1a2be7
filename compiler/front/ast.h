/* ast.h - a .dil file as a tree: the grammar builds it, and check reads it.
 *
 * Two kinds of nodes: terms (expressions, untyped) and statements (everything
 * that ends in ';' or '}'). All statements share one shape, so that one
 * printer and one walk serve them all; which fields a statement uses is
 * written beside its production in dil.y. */
#ifndef DIL_COMPILER_FRONT_AST_H
#define DIL_COMPILER_FRONT_AST_H

#include "program.h"

typedef enum word {
  WORD_NONE,
#define KEYWORD(token, text) WORD_##token,
#include "grammar/keywords.def"
#undef KEYWORD
  WORD_COUNT
} word;

const char *word_text(word w);

enum {
  FILE_MAX = 1 << 20,  /* bytes of a source */
  NESTING_MAX = 200,   /* operators, calls and parentheses inside each other */
  NAME_MAX_BYTES = 127,
};

typedef enum term_kind {
  TERM_INT,            /* 64 */
  TERM_REAL,           /* 0.5 */
  TERM_NAME,           /* w */
  TERM_INDEX,          /* slope[h] */
  TERM_CALL,           /* abs(i - j) */
  TERM_OPERATOR,       /* a + b, !a, a ? b : c */
  TERM_PAIR,           /* (6, 0), of a window on an axis of a grid */
} term_kind;

typedef struct term {
  term_kind kind;
  span at;
  const char *name;    /* NAME, INDEX, CALL: interned */
  span name_at;
  int64_t integer;     /* INT */
  double real;         /* REAL */
  expr_op op;          /* OPERATOR */
  int32_t count;       /* arguments */
  struct term *first;  /* the arguments, in order, linked by next */
  struct term *next;
  int32_t depth;       /* 0 for a leaf */
} term;

typedef struct term_list {
  term *first, *last;
  int32_t count;
} term_list;

typedef struct statement {
  word word;           /* the keyword that opens it; NONE: a schedule's knob */
  span at;             /* that keyword */
  const char *name;    /* what it declares or names; NULL: nothing */
  span name_at;
  word choice;         /* softmax, cycle, bf16, from, ...; NONE: none */
  span choice_at;
  word option;         /* fast; NONE: none */
  term_list args;
  struct statement *child; /* the statements of its block, in order */
  struct statement *next;
} statement;

typedef struct statement_list {
  statement *first, *last;
} statement_list;

/* The state that the scanner and the parser of one source share. */
typedef struct ast_reader {
  arena *arena;
  diag *diag;
  const source *source;
  int32_t offset;      /* of the next byte to scan */
  span last;           /* the token before the one just read */
  span now;            /* the token just read */
  int32_t depth;       /* open braces */
  bool panic;          /* dropping tokens after an error, see dil.y */
  int32_t panic_depth;
  bool begins, ended;  /* the token begins a statement; it ends one */
  bool stop;           /* nested too deep, too many errors: no more is read */
  statement *items;    /* the result */
} ast_reader;

/* ---- ast.c: building ----------------------------------------------------- */

/* Parses a source; errors go to d. The items of the file, in order. */
statement *ast_parse(arena *a, diag *d, const source *s);

term *term_new(ast_reader *r, term_kind kind, span at);
term *term_name(ast_reader *r, span at, const char *name);
term *term_operator(ast_reader *r, span at, expr_op op, term *a, term *b,
                    term *c);
/* name(args) or name[args] */
term *term_apply(ast_reader *r, span at, term_kind kind, term *name,
                 term_list args);
/* An axis of a grid, x, y or z; reports other names. */
term *term_axis(ast_reader *r, span at, const char *name);
/* (a, b) */
term *term_pair(ast_reader *r, span at, term *a, term *b);
/* A term in parentheses is one level deeper. */
term *term_group(ast_reader *r, span at, term *inner);
term_list term_list_add(term_list list, term *t);

statement *statement_new(ast_reader *r, word w, span at);
statement_list statement_list_add(statement_list list, statement *s);

/* The productions of dil.y make these: a statement with up to two arguments, or
 * with a list of them. */
statement *ast_plain(ast_reader *r, word w, span at, term *a, term *b);
statement *ast_listed(ast_reader *r, word w, span at, term_list args);
statement *ast_chosen(ast_reader *r, word w, span at, word choice,
                      span choice_at);
/* A statement of a grid: an argument for each axis. */
statement *ast_gridded(ast_reader *r, word w, span at, term_list args);
/* The lists that a table is made of: names of two inputs, or of one list of
 * keys, the other being NULL. */
statement *ast_from_lists(ast_reader *r, span rows_at, const char *rows,
                          span cols_at, const char *cols);
/* The same statement, with a name or the statements of its block. */
statement *ast_named(statement *s, const char *name, span at);
statement *ast_block(statement *s, statement_list children);
term_list ast_alone(term *t);
/* `list x next`: what stands between extents is a name like any other. */
term_list ast_crossed(ast_reader *r, term_list list, span at, const char *name,
                      term *next);

/* ---- ast_error.c: messages about a token --------------------------------- */

/* Reports a token that the grammar cannot take. expected: the texts of tokens
 * that it could take, as dil.y spells them. */
void ast_unexpected(ast_reader *r, span at, const char *got,
                    const char *const *expected, int32_t count);
void ast_too_deep(ast_reader *r, span at);
/* Reports a name that is not the `x` between the extents of a grid, or none of
 * its axes. */
void ast_expect_axis(ast_reader *r, span at, const char *name);
void ast_expect_by(ast_reader *r, span at, const char *name);
/* Reports a name behind `mean` that is not `each`. */
void ast_expect_each(ast_reader *r, span at, const char *name);
/* A hint for a word of another language or library; NULL: it is none. */
const char *ast_habit(const char *text);
/* Scanner errors: the bytes at `at` are no token. */
void ast_bad_character(ast_reader *r, span at);
void ast_bad_number(ast_reader *r, span at);
void ast_bad_string(ast_reader *r, span at);
/* INT and REAL tokens; 0 after an error. */
int64_t ast_integer(ast_reader *r, span at);
double ast_real(ast_reader *r, span at);
/* An identifier, or the keyword that it is through *keyword. */
const char *ast_name(ast_reader *r, span at, word *keyword);

/* ---- ast_print.c --------------------------------------------------------- */

void ast_print(const statement *items, FILE *out);

#endif
