/* dil.y - the grammar: tokens in, statements and terms (ast.h) out.
 *
 * Actions only build; names, types and numbers are check's business. After an
 * error the parser goes on behind the next ';' or '}' of the same depth, so
 * that one run tells of several. `%expect 0` is to be kept: a conflict is
 * mended, not counted. */

%define api.pure full
%define api.prefix {grammar_}
%define api.token.prefix {TOKEN_}
%define api.value.type union
%define api.location.type {span}
%define parse.error custom
%define parse.lac full
%expect 0
%locations
%param {ast_reader *r}
%lex-param {void *scanner}
%parse-param {void *scanner}

%code requires {
#include "compiler/front/ast.h"
}
%code provides {
/* dil.l */
void *scan_open(ast_reader *r);
int scan_token(GRAMMAR_STYPE *meaning, span *at, void *scanner);
/* tokens.c: the next token of the parser, and the tokens of a source, one a line:
 * line:column, kind, text */
int grammar_lex(GRAMMAR_STYPE *meaning, span *at, ast_reader *r, void *scanner);
void grammar_tokens(ast_reader *r, FILE *out);
/* dil.y: the whole of a source; 0, or not when that is no use */
int grammar_read(ast_reader *r);
}

%code {
#define YYLTYPE_IS_TRIVIAL 1
/* The stacks lie in the arena, so that whoever leaves the parser by running
 * out of memory leaves nothing behind. */
static _Thread_local arena *stacks;
#define YYMALLOC(size) arena_take(stacks, 1, size)
#define YYFREE(stack) ((void)(stack))
#define YYMAXDEPTH 4000 /* NESTING_MAX levels of the widest production fit */
#define YYLLOC_DEFAULT(now, rhs, count) \
  ((now) = (count) ? (span){YYRHSLOC(rhs, 1).source, YYRHSLOC(rhs, 1).start, \
                            YYRHSLOC(rhs, count).end} \
                   : (span){YYRHSLOC(rhs, 0).source, YYRHSLOC(rhs, 0).end, \
                            YYRHSLOC(rhs, 0).end})

static void yyerror(const span *at, ast_reader *r, void *scanner,
                    const char *text);
}

%token YYEOF 0 "end of file"
%token <const char *> NAME "a name" STRING "a string"
%token <int64_t> INT "an integer"
%token <double> REAL "a float"
%token EQ "==" NE "!=" LE "<=" GE ">=" AND "&&" OR "||" DOTS ".."
%token DIL "dil" IMPORT "import" LET "let" PATTERN "pattern"
%token TOPOLOGY "topology" SCHEDULE "schedule" KERNEL "kernel"
%token HEADS "heads" KV "kv" SPLIT "split" HEAD_DIM "head_dim" VALUE "value"
%token DTYPE "dtype" FAST "fast" SCALE "scale" RUNTIME "runtime"
%token SEGMENTS "segments" DILATIONS "dilations" COMBINE "combine"
%token SOFTMAX "softmax" UNION "union" MEAN "mean" SUM "sum" INPUT "input"
%token DROPOUT "dropout" GRADIENT "gradient" EXACT "exact"
%token DETACHED "detached" BRANCH "branch"
%token F32 "f32" BF16 "bf16" F16 "f16" I32 "i32" U8 "u8"
%token SEGMENT "segment" DILATION "dilation" CAUSAL "causal" PHASE "phase"
%token CYCLE "cycle" BLOCK "block" WINDOW "window" MASK "mask" SCORE "score"
%token SINK "sink" KEEP "keep" FROM "from" TOP "top" MASS "mass" BY "by"
%token GRID "grid" NEIGHBORHOOD "neighborhood" SHARED "shared" KEYS "keys"
%token DEVICES "devices" RING "ring" BATCH "batch" TIMEOUT "timeout"
%token LAYOUT "layout" CONTIGUOUS "contiguous" ZIGZAG "zigzag"
%token STRIPED "striped" LINK "link" THREAD "thread" MPI "mpi"
%token PROCESS "process" NCCL "nccl"
%token EXCHANGE "exchange" GATHER "gather" AUTO "auto"
%token ON "on" WITH "with" FORWARD "forward" BACKWARD "backward"

%right '?' ':'
%left "||"
%left "&&"
%left "==" "!="
%left '<' "<=" '>' ">="
%left '+' '-'
%left '*' '/' '%'
%precedence UNARY

%nterm <statement *> edition item import let pattern topology schedule kernel
%nterm <statement *> pattern_statement branch_statement common
%nterm <statement *> topology_statement knob on with estimate cells
%nterm <statement_list> items pattern_block pattern_statements
%nterm <statement_list> branch_block branch_statements
%nterm <statement_list> topology_block topology_statements
%nterm <statement_list> knob_block knobs
%nterm <word> float_type element_type differentiated combine phase_word gradient
%nterm <word> layout link exchange direction count_word
%nterm <const char *> branch_name
%nterm <term *> expr number side
%nterm <term_list> exprs dimensions extents sides axes

%%

file:
  %empty
| edition       { r->items = $1; }
| items         { r->items = $1.first; }
| edition items { r->items = $1; $1->next = $2.first; }

edition:
  "dil" INT ';' {
    $$ = statement_new(r, WORD_DIL, @1);
    term *edition = term_new(r, TERM_INT, @INT);
    edition->integer = $INT;
    $$->args = term_list_add($$->args, edition);
  }

/* Not empty, so that an error in the first item can be recovered from. */
items:
  item       { $$ = statement_list_add((statement_list){0}, $1); }
| items item { $$ = statement_list_add($1, $2); }

item:
  import | let | pattern | topology | schedule | kernel
| error ';' { $$ = NULL; yyerrok; }
| error '}' { $$ = NULL; yyerrok; }

import:
  "import" STRING ';' {
    $$ = ast_named(statement_new(r, WORD_IMPORT, @1), $STRING, @STRING);
  }

let:
  "let" NAME '=' expr ';' {
    $$ = ast_named(ast_plain(r, WORD_LET, @1, $expr, NULL), $NAME, @NAME);
  }

/* ---- pattern ---- */

pattern:
  "pattern" NAME pattern_block {
    $$ = ast_block(ast_named(statement_new(r, WORD_PATTERN, @1), $NAME, @NAME),
                   $3);
  }

pattern_block:
  '{' pattern_statements '}'       { $$ = $2; }
| '{' pattern_statements error '}' { $$ = $2; yyerrok; }

pattern_statements:
  %empty                               { $$ = (statement_list){0}; }
| pattern_statements pattern_statement { $$ = statement_list_add($1, $2); }

pattern_statement:
  common
| "heads" expr ';' { $$ = ast_plain(r, WORD_HEADS, @1, $2, NULL); }
| "heads" expr "kv" expr ';' { $$ = ast_plain(r, WORD_HEADS, @1, $2, $4); }
| "heads" "split" ';' { $$ = statement_new(r, WORD_SPLIT, @2); }
| "head_dim" expr ';' { $$ = ast_plain(r, WORD_HEAD_DIM, @1, $2, NULL); }
| "head_dim" expr "value" expr ';' {
    $$ = ast_plain(r, WORD_HEAD_DIM, @1, $2, $4);
  }
| "dtype" float_type ';' { $$ = ast_chosen(r, WORD_DTYPE, @1, $2, @2); }
| "dtype" "f32" "fast" ';' {
    $$ = ast_chosen(r, WORD_DTYPE, @1, WORD_F32, @2);
    $$->option = WORD_FAST;
  }
| "scale" expr ';' { $$ = ast_plain(r, WORD_SCALE, @1, $2, NULL); }
| "scale" "runtime" ';' {
    $$ = ast_chosen(r, WORD_SCALE, @1, WORD_RUNTIME, @2);
  }
| "dilation" expr ';' {
    $$ = ast_plain(r, WORD_DILATION, @1, $2, NULL); /* refused */
  }
| "segments" exprs ';' { $$ = ast_listed(r, WORD_SEGMENTS, @1, $2); }
| "dilations" exprs ';' { $$ = ast_listed(r, WORD_DILATIONS, @1, $2); }
| "combine" combine ';' { $$ = ast_chosen(r, WORD_COMBINE, @1, $2, @2); }
| "input" NAME ':' element_type '[' dimensions ']' differentiated ';' {
    $$ = ast_chosen(r, WORD_INPUT, @1, $element_type, @element_type);
    ast_named($$, $NAME, @NAME)->args = $dimensions;
    $$->option = $differentiated;
  }
| "input" NAME[name] ':' element_type '[' dimensions ']' "from" NAME[rows] ','
  NAME[cols] cells ';' {
    $$ = ast_chosen(r, WORD_INPUT, @1, $element_type, @element_type);
    ast_named($$, $name, @name)->args = $dimensions;
    $$->child = ast_from_lists(r, @rows, $rows, @cols, $cols);
    $$->child->child = $cells;
  }
| "input" NAME[name] ':' element_type '[' dimensions ']' "from" NAME[list] ';' {
    $$ = ast_chosen(r, WORD_INPUT, @1, $element_type, @element_type);
    ast_named($$, $name, @name)->args = $dimensions;
    $$->child = ast_from_lists(r, @list, $list, @list, NULL);
  }
| "grid" expr ';' {
    $$ = ast_gridded(r, WORD_GRID, @1, ast_alone($2)); /* refused */
  }
| "grid" extents ';' { $$ = ast_gridded(r, WORD_GRID, @1, $2); }
| "dropout" expr ';' { $$ = ast_plain(r, WORD_DROPOUT, @1, $2, NULL); }
| "gradient" gradient ';' { $$ = ast_chosen(r, WORD_GRADIENT, @1, $2, @2); }
| "branch" branch_name branch_block {
    $$ = ast_block(ast_named(statement_new(r, WORD_BRANCH, @1), $2, @2), $3);
  }
| error ';' { $$ = NULL; yyerrok; }

branch_name:
  %empty { $$ = NULL; }
| NAME

/* `*` is whatever the call brings. */
dimensions:
  exprs
| '*' { $$ = term_list_add((term_list){0}, term_name(r, @1, "*")); }
| exprs ',' '*' { $$ = term_list_add($1, term_name(r, @3, "*")); }

differentiated: %empty { $$ = WORD_NONE; } | "gradient" { $$ = WORD_GRADIENT; }

float_type: "f32" { $$ = WORD_F32; } | "bf16" { $$ = WORD_BF16; }
          | "f16" { $$ = WORD_F16; }
element_type: float_type | "i32" { $$ = WORD_I32; } | "u8" { $$ = WORD_U8; }
combine: "softmax" { $$ = WORD_SOFTMAX; } | "union" { $$ = WORD_UNION; }
       | "mean" { $$ = WORD_MEAN; } | "sum" { $$ = WORD_SUM; }
gradient: "exact" { $$ = WORD_EXACT; } | "detached" { $$ = WORD_DETACHED; }

/* ---- branch ---- */

branch_block:
  '{' branch_statements '}'       { $$ = $2; }
| '{' branch_statements error '}' { $$ = $2; yyerrok; }

branch_statements:
  %empty                             { $$ = (statement_list){0}; }
| branch_statements branch_statement { $$ = statement_list_add($1, $2); }

branch_statement:
  common
| "segment" expr ';' { $$ = ast_plain(r, WORD_SEGMENT, @1, $2, NULL); }
| "dilation" expr ';' { $$ = ast_plain(r, WORD_DILATION, @1, $2, NULL); }
| "heads" expr ".." expr ';' { $$ = ast_plain(r, WORD_HEADS, @1, $2, $4); }
| "keys" NAME ';' { $$ = ast_named(statement_new(r, WORD_KEYS, @1), $2, @2); }
| error ';' { $$ = NULL; yyerrok; }

common:
  "causal" ';' { $$ = statement_new(r, WORD_CAUSAL, @1); }
| "causal" axes ';' { $$ = ast_gridded(r, WORD_CAUSAL, @1, $2); }
| "dilation" extents ';' { $$ = ast_gridded(r, WORD_DILATION, @1, $2); }
| "neighborhood" expr ';' {
    $$ = ast_gridded(r, WORD_NEIGHBORHOOD, @1, ast_alone($2)); /* refused */
  }
| "neighborhood" extents ';' { $$ = ast_gridded(r, WORD_NEIGHBORHOOD, @1, $2); }
| "window" sides ';' { $$ = ast_gridded(r, WORD_WINDOW, @1, $2); }
| "block" extents ';' { $$ = ast_gridded(r, WORD_BLOCK, @1, $2); }
| "phase" phase_word ';' { $$ = ast_chosen(r, WORD_PHASE, @1, $2, @2); }
| "phase" expr ';' { $$ = ast_plain(r, WORD_PHASE, @1, $2, NULL); }
| "window" expr ',' expr ';' { $$ = ast_plain(r, WORD_WINDOW, @1, $2, $4); }
| "window" expr ';' {
    $$ = ast_plain(r, WORD_WINDOW, @1, $2, NULL); /* refused */
  }
| "mask" expr ';' { $$ = ast_plain(r, WORD_MASK, @1, $2, NULL); }
| "score" expr ';' { $$ = ast_plain(r, WORD_SCORE, @1, $2, NULL); }
| "sink" expr ';' { $$ = ast_plain(r, WORD_SINK, @1, $2, NULL); }
| "block" expr ';' { $$ = ast_plain(r, WORD_BLOCK, @1, $2, NULL); }
| "block" expr ',' expr ';' { $$ = ast_plain(r, WORD_BLOCK, @1, $2, $4); }
| "keep" expr ';' { $$ = ast_plain(r, WORD_KEEP, @1, $2, NULL); }
| "keep" "from" NAME ';' {
    $$ = ast_named(ast_chosen(r, WORD_KEEP, @1, WORD_FROM, @2), $3, @3);
  }
| "keep" "from" NAME[rows] ',' NAME[cols] ';' {
    $$ = ast_named(ast_chosen(r, WORD_KEEP, @1, WORD_FROM, @2), $rows, @rows);
    $$->child = ast_from_lists(r, @rows, $rows, @cols, $cols);
  }
| "keep" "top" expr "by" estimate ';' {
    $$ = ast_chosen(r, WORD_KEEP, @1, WORD_TOP, @2);
    $$->args = ast_alone($3);
    $$->child = $estimate;
  }
| "keep" "mass" expr "by" estimate ';' {
    $$ = ast_chosen(r, WORD_KEEP, @1, WORD_MASS, @2);
    $$->args = ast_alone($3); /* refused */
    $$->child = $estimate;
  }
| "keep" "mass" expr[share] ',' expr[most] "by" estimate ';' {
    $$ = ast_chosen(r, WORD_KEEP, @1, WORD_MASS, @2);
    $$->args = term_list_add(ast_alone($share), $most);
    $$->child = $estimate;
  }
| "shared" "kv" ';' { $$ = statement_new(r, WORD_SHARED, @1); }

/* What blocks are chosen by; an input has a name. */
estimate:
  "mean"      { $$ = statement_new(r, WORD_MEAN, @1); }
| "mean" NAME {
    ast_expect_each(r, @2, $2);
    $$ = ast_named(statement_new(r, WORD_MEAN, @1), $2, @2);
  }
| NAME        { $$ = ast_named(statement_new(r, WORD_INPUT, @1), $1, @1); }

/* Of a table of lists: its blocks, where they are blocks of cells. */
cells:
  %empty          { $$ = NULL; }
| "block" extents { $$ = ast_gridded(r, WORD_BLOCK, @1, $2); }

axes:
  NAME          { $$ = ast_alone(term_axis(r, @1, $1)); }
| axes ',' NAME { $$ = term_list_add($1, term_axis(r, @3, $3)); }

/* One an axis of a grid, two at least. */
extents:
  expr NAME expr    { $$ = ast_crossed(r, ast_alone($1), @2, $2, $3); }
| extents NAME expr { $$ = ast_crossed(r, $1, @2, $2, $3); }

sides:
  side NAME side  { $$ = ast_crossed(r, ast_alone($1), @2, $2, $3); }
| sides NAME side { $$ = ast_crossed(r, $1, @2, $2, $3); }

side:
  expr
| '(' expr ',' expr ')' { $$ = term_pair(r, @$, $2, $4); }

phase_word: "cycle" { $$ = WORD_CYCLE; } | "block" { $$ = WORD_BLOCK; }
          | "branch" { $$ = WORD_BRANCH; } | "kv" { $$ = WORD_KV; }

/* ---- topology ---- */

topology:
  "topology" NAME topology_block {
    $$ = ast_block(ast_named(statement_new(r, WORD_TOPOLOGY, @1), $NAME, @NAME),
                   $3);
  }

topology_block:
  '{' topology_statements '}'       { $$ = $2; }
| '{' topology_statements error '}' { $$ = $2; yyerrok; }

topology_statements:
  %empty                                 { $$ = (statement_list){0}; }
| topology_statements topology_statement { $$ = statement_list_add($1, $2); }

topology_statement:
  count_word expr ';' { $$ = ast_plain(r, $1, @1, $2, NULL); }
| "timeout" number NAME ';' {
    $$ = ast_named(ast_plain(r, WORD_TIMEOUT, @1, $number, NULL), $NAME, @NAME);
  }
| "timeout" number ';' { $$ = ast_plain(r, WORD_TIMEOUT, @1, $number, NULL); }
| "layout" layout ';' { $$ = ast_chosen(r, WORD_LAYOUT, @1, $2, @2); }
| "link" link ';' { $$ = ast_chosen(r, WORD_LINK, @1, $2, @2); }
| "exchange" exchange ';' { $$ = ast_chosen(r, WORD_EXCHANGE, @1, $2, @2); }
| error ';' { $$ = NULL; yyerrok; }

count_word: "devices" { $$ = WORD_DEVICES; } | "ring" { $$ = WORD_RING; }
          | "heads" { $$ = WORD_HEADS; } | "batch" { $$ = WORD_BATCH; }
layout: "contiguous" { $$ = WORD_CONTIGUOUS; } | "zigzag" { $$ = WORD_ZIGZAG; }
      | "striped" { $$ = WORD_STRIPED; }
link: "thread" { $$ = WORD_THREAD; } | "mpi" { $$ = WORD_MPI; }
    | "process" { $$ = WORD_PROCESS; } | "nccl" { $$ = WORD_NCCL; }
exchange: "ring" { $$ = WORD_RING; } | "gather" { $$ = WORD_GATHER; }
        | "auto" { $$ = WORD_AUTO; }

/* ---- schedule ---- */

schedule:
  "schedule" NAME knob_block {
    $$ = ast_block(ast_named(statement_new(r, WORD_SCHEDULE, @1), $NAME, @NAME),
                   $3);
  }

knob_block:
  '{' knobs '}'       { $$ = $2; }
| '{' knobs error '}' { $$ = $2; yyerrok; }

knobs:
  %empty     { $$ = (statement_list){0}; }
| knobs knob { $$ = statement_list_add($1, $2); }

knob:
  NAME exprs ';' {
    $$ = ast_named(ast_listed(r, WORD_NONE, @1, $exprs), $NAME, @1);
  }
| NAME "fast" ';' {
    $$ = ast_named(ast_chosen(r, WORD_NONE, @1, WORD_FAST, @2), $NAME, @1);
  }
| error ';' { $$ = NULL; yyerrok; }

/* ---- kernel: its pattern, topology and schedule are its children ---- */

kernel:
  "kernel" NAME '=' NAME[pattern] on with direction ';' {
    statement *p = ast_named(statement_new(r, WORD_PATTERN, @pattern), $pattern,
                             @pattern);
    statement_list parts = statement_list_add((statement_list){0}, p);
    parts = statement_list_add(parts, $on);
    $$ = ast_named(statement_new(r, WORD_KERNEL, @1), $2, @2);
    ast_block($$, statement_list_add(parts, $with));
    $$->choice = $direction;
    $$->choice_at = @direction;
  }

on:
  %empty    { $$ = NULL; }
| "on" NAME { $$ = ast_named(statement_new(r, WORD_ON, @1), $2, @2); }

with:
  %empty      { $$ = NULL; }
| "with" NAME { $$ = ast_named(statement_new(r, WORD_WITH, @1), $2, @2); }

direction:
  %empty     { $$ = WORD_NONE; }
| "forward"  { $$ = WORD_FORWARD; }
| "backward" { $$ = WORD_BACKWARD; }

/* ---- expressions ---- */

exprs:
  expr           { $$ = term_list_add((term_list){0}, $1); }
| exprs ',' expr { $$ = term_list_add($1, $3); }

number:
  INT  { $$ = term_new(r, TERM_INT, @1); $$->integer = $1; }
| REAL { $$ = term_new(r, TERM_REAL, @1); $$->real = $1; }

expr:
  number
| NAME               { $$ = term_name(r, @1, $1); }
| NAME '(' exprs ')' { $$ = term_apply(r, @$, TERM_CALL, term_name(r, @1, $1),
                                       $3); }
| NAME '[' exprs ']' { $$ = term_apply(r, @$, TERM_INDEX, term_name(r, @1, $1),
                                       $3); }
| '(' expr ')'       { $$ = term_group(r, @$, $2); }
| '-' expr %prec UNARY { $$ = term_operator(r, @$, EXPR_NEG, $2, NULL, NULL); }
| '!' expr %prec UNARY { $$ = term_operator(r, @$, EXPR_NOT, $2, NULL, NULL); }
| expr '*' expr  { $$ = term_operator(r, @$, EXPR_MUL, $1, $3, NULL); }
| expr '/' expr  { $$ = term_operator(r, @$, EXPR_DIV, $1, $3, NULL); }
| expr '%' expr  { $$ = term_operator(r, @$, EXPR_MOD, $1, $3, NULL); }
| expr '+' expr  { $$ = term_operator(r, @$, EXPR_ADD, $1, $3, NULL); }
| expr '-' expr  { $$ = term_operator(r, @$, EXPR_SUB, $1, $3, NULL); }
| expr '<' expr  { $$ = term_operator(r, @$, EXPR_LT, $1, $3, NULL); }
| expr "<=" expr { $$ = term_operator(r, @$, EXPR_LE, $1, $3, NULL); }
| expr '>' expr  { $$ = term_operator(r, @$, EXPR_GT, $1, $3, NULL); }
| expr ">=" expr { $$ = term_operator(r, @$, EXPR_GE, $1, $3, NULL); }
| expr "==" expr { $$ = term_operator(r, @$, EXPR_EQ, $1, $3, NULL); }
| expr "!=" expr { $$ = term_operator(r, @$, EXPR_NE, $1, $3, NULL); }
| expr "&&" expr { $$ = term_operator(r, @$, EXPR_AND, $1, $3, NULL); }
| expr "||" expr { $$ = term_operator(r, @$, EXPR_OR, $1, $3, NULL); }
| expr '?' expr ':' expr { $$ = term_operator(r, @$, EXPR_CHOOSE, $1, $3,
                                              $5); }

%%

int grammar_read(ast_reader *r) {
  stacks = r->arena;
  return yyparse(r, scan_open(r));
}

/* ---- what went wrong ----------------------------------------------------- */

/* Only the parser's stack can overflow, which nesting does. */
static void yyerror(const span *at, ast_reader *r, void *scanner,
                    const char *text) {
  (void)scanner, (void)text;
  ast_too_deep(r, *at);
}

/* Recovery can use a ';' or '}' as it stands; a '{' was counted already. */
static void panic_start(ast_reader *r, yysymbol_kind_t got) {
  r->panic = got != YYTRANSLATE(';') && got != YYTRANSLATE('}') &&
             got != YYSYMBOL_YYEOF;
  r->panic_depth = r->depth - (got == YYTRANSLATE('{'));
}

static int yyreport_syntax_error(const yypcontext_t *context, ast_reader *r,
                                 void *scanner) {
  (void)scanner;
  if (r->stop) return 0;
  yysymbol_kind_t kinds[YYNTOKENS];
  const char *expected[YYNTOKENS];
  int count = yypcontext_expected_tokens(context, kinds, YYNTOKENS);
  for (int i = 0; i < count; i++) expected[i] = yysymbol_name(kinds[i]);
  yysymbol_kind_t got = yypcontext_token(context);
  r->stop = diag_full(r->diag); /* this one is too many */
  ast_unexpected(r, *yypcontext_location(context), yysymbol_name(got),
                 expected, count);
  panic_start(r, got);
  return 0;
}
