/* check_pattern.c - the statements that a pattern has once: heads, head_dim,
 * dtype, scale, combine, dropout, gradient, and its inputs with their gradients.
 * Branches and what they inherit are in check_branch.c. */
#include "checker.h"
#include <math.h>
#include <string.h>

enum { HEAD_DIM_MAX = 65536 };

static void check_needed(checker *c, const statement *s, const clauses *own) {
  static const word needed[] = {WORD_HEADS, WORD_HEAD_DIM, WORD_DTYPE};
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
    if (!own->of[needed[i]])
      check_error(c, s->name_at, NULL, "pattern '%s' needs '%s'", s->name,
                  word_text(needed[i]));
  if (!own->of[WORD_BRANCH] && !own->of[WORD_SEGMENTS] &&
      !own->of[WORD_DILATIONS])
    check_error(c, s->name_at, "`branch { }` is the whole sequence",
                "pattern '%s' needs a branch", s->name);
}

/* ---- sizes --------------------------------------------------------------- */

static void check_kv(scope *s, const statement *heads) {
  if (heads->args.count < 2) {
    s->kv_heads = s->heads;
    return;
  }
  const term *kv = argument(heads, 1);
  scope inner = scope_at(s, CONTEXT_CONSTANT, "kv heads");
  check_count(&inner, kv, 1, DIL_HEADS_MAX, NULL, &s->kv_heads);
}

static void replace_heads(scope *s) {
  const pattern_sizes *other = s->c->sizes;
  if (!other || s->heads < 0) return;
  bool as_many = s->kv_heads == s->heads;
  if (other->heads) s->heads = other->heads;
  if (other->kv_heads) s->kv_heads = other->kv_heads;
  else if (as_many) s->kv_heads = s->heads;
}

static void check_group(const scope *s, const statement *heads) {
  if (s->heads < 0 || s->kv_heads < 1 || s->heads % s->kv_heads == 0) return;
  const term *kv = argument(heads, heads->args.count > 1);
  check_error(s->c, kv->at,
              s->c->sizes ? "each k/v head serves as many query heads: say the "
                            "number of k/v heads as well"
                          : "each k/v head serves as many query heads",
              "%lld heads cannot share %lld kv heads evenly",
              (long long)s->heads, (long long)s->kv_heads);
}

static void check_heads(scope *s, const statement *heads) {
  s->heads = s->kv_heads = SIZE_UNKNOWN;
  if (heads) {
    scope inner = scope_at(s, CONTEXT_CONSTANT, "heads");
    if (!check_count(&inner, argument(heads, 0), 1, DIL_HEADS_MAX, NULL,
                     &s->heads))
      s->heads = SIZE_WRONG;
    check_kv(s, heads);
    replace_heads(s);
    check_group(s, heads);
  }
  if (s->heads == SIZE_UNKNOWN) s->heads = SIZE_WRONG;
  if (s->kv_heads == SIZE_UNKNOWN) s->kv_heads = SIZE_WRONG;
}

static void replace_head_dim(scope *s, pattern *p) {
  const pattern_sizes *other = s->c->sizes;
  if (!other) return;
  bool as_long = p->value_dim == s->head_dim;
  if (other->head_dim) s->head_dim = other->head_dim;
  if (other->value_dim) p->value_dim = other->value_dim;
  else if (as_long) p->value_dim = s->head_dim;
}

static void check_head_dim(scope *s, pattern *p, const statement *dim) {
  s->head_dim = SIZE_UNKNOWN;
  if (dim) {
    scope inner = scope_at(s, CONTEXT_CONSTANT, "head_dim");
    check_count(&inner, argument(dim, 0), 1, HEAD_DIM_MAX, NULL,
                &s->head_dim);
    p->value_dim = s->head_dim;
    p->head_dim_at = argument(dim, 0)->at;
    inner = scope_at(s, CONTEXT_CONSTANT, "value head_dim");
    if (dim->args.count > 1) {
      p->value_dim_at = argument(dim, 1)->at;
      check_count(&inner, argument(dim, 1), 1, HEAD_DIM_MAX, NULL,
                  &p->value_dim);
    }
    replace_head_dim(s, p);
  }
  if (s->head_dim == SIZE_UNKNOWN) s->head_dim = SIZE_WRONG;
}

/* ---- numbers and words --------------------------------------------------- */

static void check_scale(const scope *s, pattern *p, const statement *scale) {
  if (s->head_dim > 0) p->scale = 1 / sqrt((double)s->head_dim);
  if (!scale) return;
  scope inner = scope_at(s, CONTEXT_CONSTANT, "scale");
  p->scale_kind = scale->choice ? SCALE_RUNTIME : SCALE_FIXED;
  if (!scale->choice) check_real(&inner, argument(scale, 0), &p->scale);
}

static void check_dropout(const scope *s, pattern *p,
                          const statement *dropout) {
  if (!dropout) return;
  scope inner = scope_at(s, CONTEXT_CONSTANT, "dropout");
  const term *t = argument(dropout, 0);
  if (!check_real(&inner, t, &p->dropout)) return;
  if (p->dropout < 0 || p->dropout >= 1)
    check_error(s->c, t->at, "it is the share of weights that is dropped",
                "dropout must be at least 0 and below 1, got %g", p->dropout);
}

static dil_dtype dtype_of(word w) {
  switch (w) {
  case WORD_BF16: return DIL_BF16;
  case WORD_F16: return DIL_F16;
  case WORD_I32: return DIL_I32;
  case WORD_U8: return DIL_U8;
  default: return DIL_F32;
  }
}

static void check_missing_clauses(pattern *p, const clauses *own) {
  const statement *dtype = own->of[WORD_DTYPE];
  const statement *combine = own->of[WORD_COMBINE];
  const statement *gradient = own->of[WORD_GRADIENT];
  if (dtype) {
    p->dtype = dtype_of(dtype->choice);
    p->fast = dtype->option == WORD_FAST;
  }
  if (combine)
    p->combine = combine->choice == WORD_UNION  ? DIL_COMBINE_UNION
                 : combine->choice == WORD_MEAN ? DIL_COMBINE_MEAN
                 : combine->choice == WORD_SUM  ? DIL_COMBINE_SUM
                                                : DIL_COMBINE_SOFTMAX;
  p->detached = gradient && gradient->choice == WORD_DETACHED;
}

/* ---- inputs -------------------------------------------------------------- */

static bool can_declare(const scope *s, const pattern *p,
                        const statement *input) {
  if (check_reserved(s->c, input->name, input->name_at)) return false;
  const symbol *let = symbol_find(s->c, SYMBOL_LET, input->name);
  const char *what = let ? "a let" : NULL;
  for (int32_t i = 0; i < pattern_reads(p); i++)
    if (p->input[i].name == input->name) what = "an input";
  if (what)
    check_error(s->c, input->name_at, NULL, "'%s' is already %s", input->name,
                what);
  else if (pattern_reads(p) == DIL_INPUT_MAX)
    check_error(s->c, input->name_at, NULL,
                "a pattern has at most %d inputs, '%s' is one more",
                DIL_INPUT_MAX, input->name);
  else if (input->args.count > DIL_RANK_MAX)
    check_error(s->c, input->name_at, NULL,
                "input '%s' has %d dimensions, at most %d", input->name,
                input->args.count, DIL_RANK_MAX);
  else
    return true;
  return false;
}

/* `*` as the last dimension: whatever the call brings. */
static bool is_any_size(const term *t) {
  return t->kind == TERM_NAME && !strcmp(t->name, "*");
}

static void check_dimension(const scope *s, const term *t, expr **dimension) {
  if (is_any_size(t)) {
    expr *any = ARENA_NEW(s->c->arena, expr);
    *any = (expr){.op = EXPR_INT, .type = TYPE_I32, .at = t->at,
                  .integer = DIL_ANY_SIZE};
    *dimension = any;
    return;
  }
  expr *e = check_integer(s, t);
  if (e && e->op == EXPR_INT && e->integer < 1)
    check_error(s->c, t->at, NULL, "%s must be at least 1, got %lld", s->what,
                (long long)e->integer);
  *dimension = e;
}

/* `gradient` behind an input. */
static bool check_differentiated(const scope *s, const statement *input) {
  if (input->option != WORD_GRADIENT) return false;
  if (dil_dtype_is_real(dtype_of(input->choice))) return true;
  check_error(s->c, input->choice_at,
              "an input with a gradient is `f32`, `bf16` or `f16`",
              "input '%s' of %s has no gradient", input->name,
              word_text(input->choice));
  return false;
}

static void check_inputs(const scope *s, pattern *p, const statement *block) {
  scope inner = scope_at(s, CONTEXT_DIMENSION, "the dimension of an input");
  inner.pattern = NULL; /* no input gives another its size */
  for (const statement *input = block; input; input = input->next) {
    if (input->word != WORD_INPUT || input->child) continue;
    if (!can_declare(s, p, input)) continue;
    dil_input *added = &p->input[p->input_count];
    added->name = input->name;
    added->dtype = dtype_of(input->choice);
    added->rank = input->args.count;
    added->gradient = check_differentiated(s, input);
    int32_t axis = 0;
    for (const term *t = input->args.first; t; t = t->next)
      check_dimension(&inner, t, &p->dimension[p->input_count][axis++]);
    p->input_count++;
  }
  for (const statement *made = block; made; made = made->next)
    if (made->word == WORD_INPUT && made->child && can_declare(s, p, made))
      check_made_table(&inner, p, made);
}

static bool reads_input(const expr *e, int32_t index) {
  if (e->op == EXPR_INPUT && e->integer == index) return true;
  for (int32_t k = 0; k < e->count; k++)
    if (reads_input(e->arg[k], index)) return true;
  return false;
}

static bool any_reads_input(expr *const *list, int32_t count, int32_t index) {
  for (int32_t k = 0; k < count; k++)
    if (reads_input(list[k], index)) return true;
  return false;
}

/* Returns whether o depends on the input other than by which pairs are kept. */
static bool is_differentiable(const pattern *p, int32_t index) {
  if (any_reads_input(p->sink, p->sink_count, index)) return true;
  for (int32_t k = 0; k < p->branch_count; k++) {
    const branch *b = &p->branch[k];
    if (any_reads_input(b->score, b->score_count, index) ||
        any_reads_input(b->sink, b->sink_count, index))
      return true;
  }
  return false;
}

static void check_gradients(checker *c, const pattern *p,
                            const statement *block) {
  for (const statement *input = block; input; input = input->next) {
    if (input->word != WORD_INPUT || input->child) continue;
    int32_t index = 0;
    while (p->input[index].name != input->name) index++;
    if (p->input[index].gradient && !is_differentiable(p, index))
      check_error(c, input->name_at,
                  "a mask or a keep has no gradient: leave `gradient` out, or "
                  "read it in a score or a sink",
                  "neither a score nor a sink reads input '%s'", input->name);
  }
}

static void check_detached(checker *c, pattern *p, const statement *gradient) {
  if (!p->detached || pattern_mixes_branches(p)) return;
  p->detached = false;
  diag_report(c->diag, SEVERITY_WARNING, gradient->choice_at,
              "it differs where several branches of a head share one softmax: "
              "under `combine softmax`",
              "`gradient detached` is `gradient exact` here");
}

/* ---- the pattern --------------------------------------------------------- */

pattern *check_pattern(checker *c, const statement *s) {
  clauses own;
  clauses_collect(c, s->child, &own);
  check_needed(c, s, &own);
  pattern *p = ARENA_NEW(c->arena, pattern);
  p->name = s->name;
  p->at = s->name_at;
  scope sizes = {.c = c, .pattern = p};
  check_heads(&sizes, own.of[WORD_HEADS]);
  check_head_dim(&sizes, p, own.of[WORD_HEAD_DIM]);
  check_grid(&sizes, p, own.of[WORD_GRID]);
  check_beside_grid(&sizes, s->child, true);
  check_block(&sizes, own.of[WORD_BLOCK]);
  p->heads = sizes.heads;
  p->kv_heads = sizes.kv_heads;
  p->head_dim = sizes.head_dim;
  check_inputs(&sizes, p, s->child);
  check_missing_clauses(p, &own);
  check_scale(&sizes, p, own.of[WORD_SCALE]);
  check_dropout(&sizes, p, own.of[WORD_DROPOUT]);
  p->sink = check_sinks(&sizes, s->child, &p->sink_count);
  check_branches(&sizes, p, s->child, &own);
  /* After an error, a broken `let` say, parts of the pattern may be missing. */
  if (diag_errors(c->diag) > 0) return p;
  check_gradients(c, p, s->child);
  check_detached(c, p, own.of[WORD_GRADIENT]);
  check_warnings(c, p, s->child);
  return p;
}
