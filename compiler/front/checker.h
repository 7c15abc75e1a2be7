/* checker.h - types and functions that the files of check share. (The test
 * library Check has the plain name.)
 *
 * check turns statements and terms (ast.h) into a program (program.h). All that
 * a user can get wrong in a file is found here or in the parser. A function
 * that meets an error reports it and goes on with a harmless value; the program
 * is dropped at the end when anything was reported. */
#ifndef DIL_COMPILER_FRONT_CHECKER_H
#define DIL_COMPILER_FRONT_CHECKER_H

#include "ast.h"

/* ---- check_name.c: what files declare ------------------------------------ */

typedef enum symbol_kind {
  SYMBOL_LET,
  SYMBOL_PATTERN,
  SYMBOL_TOPOLOGY,
  SYMBOL_SCHEDULE,
  SYMBOL_KERNEL,
  SYMBOL_KIND_COUNT
} symbol_kind;

typedef struct symbol {
  const char *name; /* interned */
  span at;
  const void *meaning; /* operand, pattern, topology, schedule, kernel */
} symbol;

typedef struct symbols { /* a hash set by name's address */
  symbol **slot;
  int32_t count, room; /* room is 0 or a power of two */
} symbols;

typedef struct define_value define_value;

typedef struct checker {
  arena *arena;
  diag *diag;
  symbols symbols[SYMBOL_KIND_COUNT];
  define_value *defines; /* of the command line */
  int32_t define_count;
  const struct items *items;  /* all that the files declare */
  const pattern_sizes *sizes; /* in place of a pattern's; NULL: none */
} checker;

#define check_error(c, at, hint, ...)                                          \
  diag_report((c)->diag, SEVERITY_ERROR, at, hint, __VA_ARGS__)

/* NULL when there is none. */
symbol *symbol_find(const checker *c, symbol_kind kind, const char *name);
/* Reports reserved names and doubles; NULL then. */
symbol *symbol_add(checker *c, symbol_kind kind, const statement *declared);
/* Returns the meaning of `name`, or NULL after an error at `at`. */
const void *symbol_resolve(checker *c, symbol_kind kind, const char *name,
                           span at);
/* Names of a kind, for did-you-mean; count through *count. */
const char **symbol_names(const checker *c, symbol_kind kind, int32_t *count);
/* "did you mean 'x'?" or NULL; sorts the names. */
const char *check_meant(checker *c, const char *name, const char **names,
                        int32_t count);
bool check_reserved(checker *c, const char *name, span at);

/* The first statement of each word in a block. */
typedef struct clauses {
  const statement *of[WORD_COUNT];
} clauses;

/* Reports statements that may stand once and stand twice. */
void clauses_collect(checker *c, const statement *block, clauses *out);

/* ---- check_expr.c: terms to operands ------------------------------------- */

/* The contexts that a term may stand in, a bit each. Each name is known in some
 * of them. */
typedef enum term_context {
  CONTEXT_LET = 1,      /* also topology and schedule */
  CONTEXT_CONSTANT = 2, /* inside a pattern */
  CONTEXT_PHASE = 4,
  CONTEXT_DIMENSION = 8,
  CONTEXT_MASK = 16,
  CONTEXT_KEEP = 32,
  CONTEXT_SCORE = 64,
  CONTEXT_SINK = 128,
  CONTEXT_FIXED = CONTEXT_LET | CONTEXT_CONSTANT,
  CONTEXT_PAIR = CONTEXT_MASK | CONTEXT_KEEP | CONTEXT_SCORE,
  CONTEXT_ROW = CONTEXT_PAIR | CONTEXT_SINK,
  CONTEXT_EXACT =
      CONTEXT_MASK | CONTEXT_KEEP | CONTEXT_PHASE | CONTEXT_DIMENSION,
} term_context;

enum { SIZE_UNKNOWN = 0, SIZE_WRONG = -1 /* told already */ };

typedef struct scope {
  checker *c;
  term_context context;
  const char *what;                         /* the statement, for messages */
  int64_t heads, kv_heads, head_dim, block; /* or SIZE_ */
  int64_t query_block;                      /* the block of queries, likewise */
  const grid *grid;       /* of the pattern; NULL: none */
  int64_t cell[GRID_AXES]; /* of a block of cells; else 0 */
  const pattern *pattern; /* whose inputs are seen; NULL: none */
  bool whole;             /* inside int(): computed as masks are, everywhere */
} scope;

/* The value of a term: a constant, or a tree. Integer constants have 64 bits
 * until they meet a run-time value; floats are computed in float64 where the
 * context is compile-time and stay trees elsewhere. */
typedef struct operand {
  bool wrong;   /* an error was reported: the rest says nothing */
  bool known;   /* a constant */
  bool divided; /* an integer constant made with `/` */
  expr_type type;
  span at;
  int64_t integer;
  double real;
  expr *tree;   /* when not known */
  int32_t size; /* nodes of the tree */
} operand;

/* Of one spelled-out expression: a predicate may repeat its argument. */
enum { TREE_MAX = 1 << 16 };

operand check_term(const scope *s, const term *t);
/* A condition for mask and keep, a number for score and sink, folded; NULL
 * when wrong. */
expr *check_condition(const scope *s, const term *t);
expr *check_number(const scope *s, const term *t);
/* An integer for phase and input dimensions. */
expr *check_integer(const scope *s, const term *t);

/* Constants of compile-time contexts. false when wrong, *result untouched. */
bool check_count(const scope *s, const term *t, int64_t low, int64_t high,
                 const char *hint, int64_t *result);
bool check_real(const scope *s, const term *t, double *result);
enum { COUNT_MAX = INT32_MAX };

/* ---- check_operand.c: operators ------------------------------------------ */

/* One operator on checked arguments: types, constants, trees. */
operand operand_apply(const scope *s, span at, expr_op op, const operand *args,
                      int32_t count);
operand operand_wrong(span at);
operand operand_integer(span at, int64_t integer);
operand operand_leaf(const scope *s, span at, expr_op op, expr_type type);
/* A leaf gets arguments. */
operand operand_join(const scope *s, operand node, const operand *args,
                     int32_t count);
/* The tree of an operand; reports a constant that does not fit. */
expr *operand_tree(const scope *s, const operand *o);
const char *operand_text(const scope *s, const operand *o); /* its value */
/* A hint that says how an integer is made of it; NULL: there is none. */
const char *operand_integer_hint(const operand *o);
int32_t operator_arguments(expr_op op); /* -1: any number from one */

/* ---- check_builtin.c: what the language declares ------------------------- */

bool is_reserved(const char *name);
/* Returns whether the term is a call of int(). */
bool is_whole_call(const term *t);
/* false when `name` is none of them. */
bool builtin_name(const scope *s, const term *t, operand *result);
bool builtin_call(const scope *s, const term *t, const operand *args,
                  operand *result);
/* Texts of all names, and of all functions, for did-you-mean. */
enum { BUILTIN_MAX = 32 };
int32_t builtin_names(const char *names[BUILTIN_MAX]);
int32_t builtin_functions(const char *names[BUILTIN_MAX]);

/* A scope for the statement `what`. */
scope scope_at(const scope *s, term_context at, const char *what);
const term *argument(const statement *s, int32_t index);

/* ---- the subjects -------------------------------------------------------- */

pattern *check_pattern(checker *c, const statement *s);
void check_branches(const scope *s, pattern *p, const statement *block,
                    const clauses *own);
/* check_lists.c: the condition of `keep from`, a table or lists; NULL when
 * wrong. It adds the table that is made of lists to the pattern. */
expr *check_keep_from(const scope *s, pattern *p, const statement *from,
                      keep *k);
/* The table of `keep from`: the condition that reads it; and the input of a
 * choice `by NAME`, or -1 after an error. */
expr *check_table_condition(const scope *s, const pattern *p, int32_t input,
                            span at);
int32_t check_gate(const scope *s, const pattern *p, const statement *by);
/* check_choice.c: the numbers of `keep top` and `keep mass`. */
void check_choice_numbers(const scope *s, pattern *p, const statement *given,
                          keep *k);
/* All choices of blocks, after the branches are known; the first `shared kv`. */
void check_choices(const scope *s, pattern *p, const statement *shared);
/* check_keys.c: `keys NAME;` of a branch, which adds a table of the list's keys to
 * the pattern and a mask to the branch; NULL: there is none. */
void check_keys(const scope *s, pattern *p, const statement *given, branch *b);
/* An input that is declared `from list`; its name and dimensions are known. */
void check_made_keys(const scope *s, pattern *p, const statement *given);
/* The index of an input of the call, or -1 after an error. */
int32_t check_find_input(const scope *s, const pattern *p, const char *name,
                         span at);
/* Returns whether a dimension of an input is this name. */
bool check_is_dimension(const scope *s, const expr *dimension, const char *name);
/* A name for a table that is made of inputs; nothing else has it. */
const char *check_made_name(const scope *s, const pattern *p, int32_t rows,
                            const char *end);
/* Reads the table at these coordinates, of which it has the last: input[..] != 0. */
expr *check_table_read(const scope *s, const pattern *p, int32_t input,
                       const char *const names[DIL_RANK_MAX], span at);
/* An input that is declared `from rows, cols`, as patterns are printed. */
void check_made_table(const scope *s, pattern *p, const statement *given);
/* check_each.c: whether a phase statement, if any, is `phase each`, which then is
 * the branch's; a let of that name hides the word. */
bool check_phase_each(const scope *s, const statement *phase, branch *b);
/* check_grid.c: sets the cells of a table of blocks, whose blocks must divide the
 * grid. */
void check_cells(const scope *s, dil_input *made, span at);
/* `grid 128 x 128;`. */
void check_grid(scope *s, pattern *p, const statement *grid);
/* Reports what cannot stand beside a grid, or without one, in a pattern's
 * statements (`above`) or in a branch's. */
void check_beside_grid(const scope *s, const statement *block, bool above);
/* `block S;`, `block SQ, S;` or `block 4 x 4;`: the sizes of *s. */
void check_block(scope *s, const statement *block);
/* The statements of a pattern and of a branch over a grid; false: an error. */
bool check_reach(const scope *s, const clauses *over, const clauses *own,
                 branch *b);
/* check_window_bound is of check_branch.c. */
int64_t check_window_bound(const scope *s, const term *t);
/* grid_tree.c: the masks and the window that a branch's reach stands for. */
void grid_spell(const scope *s, branch *b);
/* The coordinate of a position, i or j, along an axis. */
operand grid_coordinate(const scope *s, span at, expr_op position,
                        int32_t axis);
/* The block of cells that a position lies in, and the number of blocks. */
operand grid_block(const scope *s, span at, expr_op position);
operand grid_blocks(const scope *s, span at);
operand operand_apply_two(const scope *s, span at, expr_op op, operand a,
                          operand b);
/* The sinks of a block, that of the pattern or of a branch. */
expr **check_sinks(const scope *s, const statement *block, int32_t *count);
void check_warnings(checker *c, const pattern *p, const statement *block);
/* A topology can share out the heads of the kernel's pattern. */
void check_share(checker *c, const kernel *k, span at);
topology *check_topology(checker *c, const statement *s);
schedule *check_schedule(checker *c, const statement *s);
kernel *check_kernel(checker *c, const statement *s);
void check_let(checker *c, const statement *s);
/* -D: parses the values, and reports each that no let took. */
void check_defines(checker *c, const define *defines, int32_t count);
void check_defines_used(checker *c);

/* ---- check_read.c: files ------------------------------------------------- */

/* The statements of a program's files, those of imports in their place. */
typedef struct item {
  const statement *statement;
  bool imported;         /* only its lets and patterns count */
} item;

typedef struct items {
  item *item;
  int32_t count, room;
} items;

/* check.c: NULL when anything was reported. */
program *check_items(arena *a, diag *d, const items *all,
                     const define *defines, int32_t define_count);

#endif
