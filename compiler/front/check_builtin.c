/* check_builtin.c - the names of the language (i, M, bi, HKV, ...) and the
 * named predicates of blocks (local, strided, ...), spelled out as operators
 * on i, j and constants. Errors: a name where it is not known, and why. */
#include "checker.h"
#include <math.h>
#include <string.h>

/* ---- names --------------------------------------------------------------- */

typedef enum builtin_kind {
  BUILTIN_LEAF,    /* a leaf of the tree */
  BUILTIN_SIZE,    /* a constant of the pattern */
  BUILTIN_BLOCK,   /* made of i, j or M and the block size */
  BUILTIN_ROW,     /* made of i, M and N */
  BUILTIN_CELL,    /* a coordinate of i or j in a grid */
  BUILTIN_INFINITY,
} builtin_kind;

static const char only_rows[] =
    "positions are known only at run time: in mask, score, keep and sink";
static const char only_pairs[] =
    "keys are known only at run time: in mask, score and keep";
static const char only_run_time[] =
    "sizes are known only at run time, and a new length never compiles "
    "anything again; they may stand in mask, score, keep, sink and the "
    "dimensions of inputs";
static const char only_heads[] =
    "a kernel serves all heads; `h` is known in phase, mask, score, keep and "
    "sink";
static const char only_score[] = "`s` is the score so far, known in score";
static const char only_patterns[] = "it is a size of a pattern";

#define CONTEXT_SIZED  (CONTEXT_ROW | CONTEXT_DIMENSION)
#define CONTEXT_INSIDE (CONTEXT_SIZED | CONTEXT_CONSTANT | CONTEXT_PHASE)

static const struct builtin {
  const char *name;
  builtin_kind kind;
  expr_op op;            /* of a leaf */
  unsigned contexts;     /* where it is known */
  const char *why;       /* it is not known elsewhere */
  bool reserved;         /* no let, input, branch, ... may have the name */
} builtins[] = {
    {"b", BUILTIN_LEAF, EXPR_B_, CONTEXT_ROW, only_rows, true},
    {"h", BUILTIN_LEAF, EXPR_H_, CONTEXT_ROW | CONTEXT_PHASE, only_heads,
     true},
    {"i", BUILTIN_LEAF, EXPR_I_, CONTEXT_ROW, only_rows, true},
    {"j", BUILTIN_LEAF, EXPR_J_, CONTEXT_PAIR, only_pairs, true},
    {"s", BUILTIN_LEAF, EXPR_S_, CONTEXT_SCORE, only_score, true},
    {"bi", BUILTIN_BLOCK, EXPR_I_, CONTEXT_ROW, only_rows, true},
    {"bj", BUILTIN_BLOCK, EXPR_J_, CONTEXT_PAIR, only_pairs, true},
    {"nb", BUILTIN_BLOCK, EXPR_M_, CONTEXT_SIZED, only_run_time, true},
    {"B", BUILTIN_LEAF, EXPR_BATCH, CONTEXT_SIZED, only_run_time, true},
    {"N", BUILTIN_LEAF, EXPR_N_, CONTEXT_SIZED, only_run_time, true},
    {"M", BUILTIN_LEAF, EXPR_M_, CONTEXT_SIZED, only_run_time, true},
    {"nbq", BUILTIN_BLOCK, EXPR_M_, CONTEXT_SIZED, only_run_time, false},
    {"SQ", BUILTIN_SIZE, EXPR_INT, CONTEXT_INSIDE, only_patterns, false},
    {"S", BUILTIN_SIZE, EXPR_INT, CONTEXT_INSIDE, only_patterns, true},
    {"H", BUILTIN_SIZE, EXPR_INT, CONTEXT_INSIDE, only_patterns, true},
    {"HKV", BUILTIN_SIZE, EXPR_INT, CONTEXT_INSIDE, only_patterns, true},
    {"D", BUILTIN_SIZE, EXPR_INT, CONTEXT_INSIDE, only_patterns, true},
    {"inf", BUILTIN_INFINITY, EXPR_REAL, ~0u, NULL, true},
    {"row", BUILTIN_ROW, EXPR_I_, CONTEXT_ROW, only_rows, false},
    {"iz", BUILTIN_CELL, EXPR_I_, CONTEXT_ROW, only_rows, false},
    {"iy", BUILTIN_CELL, EXPR_I_, CONTEXT_ROW, only_rows, false},
    {"ix", BUILTIN_CELL, EXPR_I_, CONTEXT_ROW, only_rows, false},
    {"jz", BUILTIN_CELL, EXPR_J_, CONTEXT_PAIR, only_pairs, false},
    {"jy", BUILTIN_CELL, EXPR_J_, CONTEXT_PAIR, only_pairs, false},
    {"jx", BUILTIN_CELL, EXPR_J_, CONTEXT_PAIR, only_pairs, false},
};
enum { BUILTIN_COUNT = sizeof builtins / sizeof *builtins };

static const struct builtin *builtin_find(const char *name) {
  for (int32_t i = 0; i < BUILTIN_COUNT; i++)
    if (!strcmp(builtins[i].name, name)) return &builtins[i];
  return NULL;
}

bool is_reserved(const char *name) {
  const struct builtin *b = builtin_find(name);
  return b && b->reserved;
}

int32_t builtin_names(const char *names[BUILTIN_MAX]) {
  _Static_assert((int)BUILTIN_COUNT <= (int)BUILTIN_MAX, "names fit");
  for (int32_t i = 0; i < BUILTIN_COUNT; i++) names[i] = builtins[i].name;
  return BUILTIN_COUNT;
}

static int64_t size_by_name(const scope *s, const char *name) {
  if (!strcmp(name, "S")) return s->block;
  if (!strcmp(name, "SQ")) return s->query_block;
  if (!strcmp(name, "H")) return s->heads;
  if (!strcmp(name, "HKV")) return s->kv_heads;
  return s->head_dim;
}

/* A size of the pattern, or wrong: `head_dim D`, or `S` without a block. */
static operand size_operand(const scope *s, span at, const char *user,
                            const char *size) {
  int64_t known = size_by_name(s, size);
  if (known > 0) return operand_integer(at, known);
  if (known == SIZE_UNKNOWN && size[0] == 'S')
    check_error(s->c, at, "`block 64;` cuts positions into blocks of 64",
                "'%s' needs a block", user);
  else if (known == SIZE_UNKNOWN)
    check_error(s->c, at, NULL, "'%s' is not known yet in %s", user, s->what);
  return operand_wrong(at);
}

operand operand_apply_two(const scope *s, span at, expr_op op, operand a,
                          operand b) {
  return operand_apply(s, at, op, (operand[]){a, b}, 2);
}

/* bi = i / SQ, bj = j / S, nbq = ceil(M / SQ), nb = ceil(M / S). */
static operand block_operand(const scope *s, span at, const char *name) {
  bool query = !strcmp(name, "bi") || !strcmp(name, "nbq");
  operand size = size_operand(s, at, name, query ? "SQ" : "S");
  operand x = operand_leaf(s, at, builtin_find(name)->op, TYPE_I32);
  if (size.wrong) return size;
  if (s->cell[0] && name[0] == 'n') return grid_blocks(s, at);
  if (s->cell[0]) return grid_block(s, at, builtin_find(name)->op);
  if (name[0] == 'n')
    x = operand_apply_two(s, at, EXPR_ADD, x,
                          operand_integer(at, size.integer - 1));
  return operand_apply_two(s, at, EXPR_DIV, x, size);
}

/* row = i - (M - N): bounds, loops and printers know all three, and where
 * `lengths` are given M is that of the batch row, as it is for i. */
static operand row_operand(const scope *s, span at) {
  operand first =
      operand_apply_two(s, at, EXPR_SUB, operand_leaf(s, at, EXPR_M_, TYPE_I32),
                operand_leaf(s, at, EXPR_N_, TYPE_I32));
  return operand_apply_two(s, at, EXPR_SUB, operand_leaf(s, at, EXPR_I_, TYPE_I32),
                   first);
}

/* iy of `grid 128 x 128;`: the name's second letter is the axis. */
static operand cell_operand(const scope *s, const term *t, expr_op position) {
  int32_t back = t->name[1] == 'x' ? 0 : t->name[1] == 'y' ? 1 : 2;
  if (s->grid && s->grid->axes > back)
    return grid_coordinate(s, t->at, position, s->grid->axes - 1 - back);
  check_error(s->c, t->at,
              s->grid ? "`grid 30 x 48 x 80;` has three axes"
                      : "`grid 128 x 128;` says that positions are cells",
              s->grid ? "'%s' needs a grid of three axes"
                      : "'%s' needs a grid",
              t->name);
  return operand_wrong(t->at);
}

bool builtin_name(const scope *s, const term *t, operand *result) {
  const struct builtin *b = builtin_find(t->name);
  if (!b) return false;
  *result = operand_wrong(t->at);
  if (!(b->contexts & s->context)) {
    check_error(s->c, t->at, b->why, "'%s' cannot stand in %s", b->name,
                s->what);
    return true;
  }
  if (b->op == EXPR_S_ && s->whole) {
    check_error(s->c, t->at, "scores differ between machines in their last "
                "bits, and every one must read the same element",
                "'s' cannot stand in int()");
    return true;
  }
  switch (b->kind) {
  case BUILTIN_LEAF:
    *result = operand_leaf(s, t->at, b->op,
                           b->op == EXPR_S_ ? TYPE_F32 : TYPE_I32);
    break;
  case BUILTIN_SIZE: *result = size_operand(s, t->at, b->name, b->name); break;
  case BUILTIN_BLOCK: *result = block_operand(s, t->at, b->name); break;
  case BUILTIN_ROW: *result = row_operand(s, t->at); break;
  case BUILTIN_CELL: *result = cell_operand(s, t, b->op); break;
  case BUILTIN_INFINITY:
    *result = (operand){.known = true, .type = TYPE_F32, .at = t->at,
                        .real = INFINITY};
    break;
  }
  return true;
}

/* ---- predicates ---------------------------------------------------------- */

static operand block_distance(const scope *s, span at) {
  operand apart = operand_apply_two(s, at, EXPR_SUB, block_operand(s, at, "bi"),
                            block_operand(s, at, "bj"));
  return operand_apply(s, at, EXPR_ABS, &apart, 1);
}

/* local(W): abs(bi - bj) <= W */
static operand predicate_local(const scope *s, span at, const operand *arg,
                               int32_t count) {
  (void)count;
  return operand_apply_two(s, at, EXPR_LE, block_distance(s, at), arg[0]);
}

/* global(G): bi < G || bj < G */
static operand predicate_global(const scope *s, span at, const operand *arg,
                                int32_t count) {
  (void)count;
  return operand_apply_two(
      s, at, EXPR_OR,
      operand_apply_two(s, at, EXPR_LT, block_operand(s, at, "bi"), arg[0]),
      operand_apply_two(s, at, EXPR_LT, block_operand(s, at, "bj"), arg[0]));
}

/* strided(K): bj % K == 0 */
static operand predicate_strided(const scope *s, span at, const operand *arg,
                                 int32_t count) {
  (void)count;
  return operand_apply_two(
      s, at, EXPR_EQ,
      operand_apply_two(s, at, EXPR_MOD, block_operand(s, at, "bj"), arg[0]),
      operand_integer(at, 0));
}

/* random(P, X): hash(h, bi, bj, X) % 10000 < P * 10000 */
static operand predicate_random(const scope *s, span at, const operand *arg,
                                int32_t count) {
  (void)count;
  operand hashed[] = {operand_leaf(s, at, EXPR_H_, TYPE_I32),
                      block_operand(s, at, "bi"), block_operand(s, at, "bj"),
                      arg[1]};
  operand all = operand_integer(at, 10000);
  return operand_apply_two(s, at, EXPR_LT,
                   operand_apply_two(s, at, EXPR_MOD,
                             operand_apply(s, at, EXPR_HASH, hashed, 4), all),
                   operand_apply_two(s, at, EXPR_MUL, arg[0], all));
}

/* hierarchical(s1, w1, s2, w2, ...): bi % s == 0 && abs(bi - bj) <= w, or'ed
 * over the levels. */
static operand predicate_hierarchical(const scope *s, span at,
                                      const operand *arg, int32_t count) {
  operand any = operand_wrong(at);
  for (int32_t k = 0; k < count; k += 2) {
    operand rest =
        operand_apply_two(s, at, EXPR_MOD, block_operand(s, at, "bi"), arg[k]);
    operand level =
        operand_apply_two(s, at, EXPR_AND,
                  operand_apply_two(s, at, EXPR_EQ, rest, operand_integer(at, 0)),
                  operand_apply_two(s, at, EXPR_LE, block_distance(s, at), arg[k + 1]));
    any = k ? operand_apply_two(s, at, EXPR_OR, any, level) : level;
  }
  return any;
}

static const struct predicate {
  const char *name;
  int32_t arguments;     /* -1: pairs of them */
  operand (*spell)(const scope *s, span at, const operand *arg,
                   int32_t count);
} predicates[] = {
    {"local", 1, predicate_local},
    {"global", 1, predicate_global},
    {"strided", 1, predicate_strided},
    {"random", 2, predicate_random},
    {"hierarchical", -1, predicate_hierarchical},
};
enum { PREDICATE_COUNT = sizeof predicates / sizeof *predicates };

/* All terms of the tree get the location of the call in the user's text. */
static operand predicate_call(const scope *s, const struct predicate *p,
                              const term *t, const operand *args) {
  if (!(s->context & CONTEXT_PAIR)) {
    check_error(s->c, t->name_at, only_pairs, "'%s' cannot stand in %s",
                p->name, s->what);
    return operand_wrong(t->at);
  }
  if (size_operand(s, t->name_at, p->name, "S").wrong)
    return operand_wrong(t->at);
  if (s->block != s->query_block) {
    check_error(s->c, t->name_at,
                "with two sizes `bi` and `bj` are compared by hand: "
                "`abs(bi * SQ - bj * S) <= W`",
                "'%s' needs blocks of one size, not %lld and %lld", p->name,
                (long long)s->query_block, (long long)s->block);
    return operand_wrong(t->at);
  }
  return p->spell(s, t->at, args, t->count);
}

/* ---- calls --------------------------------------------------------------- */

static bool is_function_op(expr_op op) {
  return op >= EXPR_ABS;
}

bool is_whole_call(const term *t) {
  return t->kind == TERM_CALL && !strcmp(t->name, expr_op_text(EXPR_TO_INT));
}

int32_t builtin_functions(const char *names[BUILTIN_MAX]) {
  int32_t count = 0;
  for (int32_t i = 0; i < PREDICATE_COUNT; i++)
    names[count++] = predicates[i].name;
  for (expr_op op = 0; op < EXPR_OP_COUNT; op++)
    if (is_function_op(op) && count < BUILTIN_MAX)
      names[count++] = expr_op_text(op);
  return count;
}

static bool arguments_fit(const scope *s, const term *t, int32_t wanted) {
  if (wanted == t->count) return true;
  check_error(s->c, t->at, NULL, "'%s' takes %d argument%s, got %d", t->name,
              wanted, wanted == 1 ? "" : "s", t->count);
  return false;
}

static bool pairs_fit(const scope *s, const term *t) {
  if (t->count % 2 == 0) return true;
  check_error(s->c, t->at, "`hierarchical(1, 4, 8, 32)`: stride, width, ...",
              "'%s' takes pairs of arguments, got %d", t->name, t->count);
  return false;
}

bool builtin_call(const scope *s, const term *t, const operand *args,
                  operand *result) {
  *result = operand_wrong(t->at);
  for (int32_t i = 0; i < PREDICATE_COUNT; i++) {
    const struct predicate *p = &predicates[i];
    if (strcmp(p->name, t->name)) continue;
    bool fit = p->arguments < 0 ? pairs_fit(s, t)
                                : arguments_fit(s, t, p->arguments);
    if (fit) *result = predicate_call(s, p, t, args);
    return true;
  }
  for (expr_op op = 0; op < EXPR_OP_COUNT; op++) {
    if (!is_function_op(op) || strcmp(expr_op_text(op), t->name)) continue;
    int32_t wanted = operator_arguments(op);
    if (wanted < 0 || arguments_fit(s, t, wanted))
      *result = operand_apply(s, t->at, op, args, t->count);
    return true;
  }
  return false;
}
