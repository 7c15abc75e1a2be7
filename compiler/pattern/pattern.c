/* pattern.c - the meaning of a pattern as data: its invariants, and which
 * keys a branch reaches.
 *
 * In: patterns from check or from a plan's text form. Out: answers; a broken
 * invariant is a bug of ours and aborts. pattern_reaches is the definition
 * read literally, for one pair; whoever counts or computes many pairs is held
 * to it by tests. */
#include "pattern.h"
#include "expr_rules.h"
#include "runtime/base/arithmetic.h"
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- questions ----------------------------------------------------------- */

static char *text_of(const pattern *p, size_t *length) {
  char *text = NULL;
  FILE *out = open_memstream(&text, length);
  if (!out) abort();
  pattern_print(p, out);
  if (fclose(out) != 0) abort();
  return text;
}

/* Two patterns are the same when their canonical texts are. */
bool pattern_same(const pattern *a, const pattern *b) {
  size_t length[2];
  char *text[2] = {text_of(a, &length[0]), text_of(b, &length[1])};
  bool same =
      length[0] == length[1] && memcmp(text[0], text[1], length[0]) == 0;
  free(text[0]);
  free(text[1]);
  return same;
}

static int32_t branches_serving(const pattern *p, int64_t h) {
  int32_t serving = 0;
  for (int32_t b = 0; b < p->branch_count; b++)
    serving += p->branch[b].head_first <= h && h <= p->branch[b].head_last;
  return serving;
}

bool pattern_has_lse(const pattern *p) {
  if (p->combine == DIL_COMBINE_SOFTMAX || p->combine == DIL_COMBINE_UNION)
    return true;
  for (int64_t h = 0; h < p->heads; h++)
    if (branches_serving(p, h) != 1) return false;
  return true;
}

bool pattern_mixes_branches(const pattern *p) {
  if (p->combine != DIL_COMBINE_SOFTMAX) return false;
  for (int64_t h = 0; h < p->heads; h++)
    if (branches_serving(p, h) > 1) return true;
  return false;
}

bool pattern_has_sinks(const pattern *p) {
  int32_t count = p->sink_count;
  for (int32_t b = 0; b < p->branch_count; b++)
    count += p->branch[b].sink_count;
  return count > 0;
}

/* ---- reach --------------------------------------------------------------- */

static bool keep_holds(const keep *k, const expr_point *point) {
  return expr_eval(k->condition, point, false).integer != 0;
}

const keep *branch_choice(const branch *b) {
  for (int32_t level = 0; level < 2; level++)
    for (int32_t k = 0; k < b->keeps[level].count; k++)
      if (b->keeps[level].keep[k].kind != KEEP_EXPR)
        return &b->keeps[level].keep[k];
  return NULL;
}

dil_choice pattern_choice(const pattern *p, int32_t index) {
  const branch *b = &p->branch[index];
  const keep *k = branch_choice(b);
  const dil_input *made = &p->input[k->chosen];
  bool asks = b->keeps[0].count + b->keeps[1].count > 1;
  return (dil_choice){.branch = index,
                      .rows = k->chosen,
                      .query_block = made->query_block,
                      .block = made->block,
                      .left = b->left,
                      .right = b->causal && b->right > 0 ? 0 : b->right,
                      .most = (int32_t)k->amount,
                      .share = k->share,
                      .estimate = k->estimate,
                      .gate = k->gate,
                      .shared = b->shared,
                      .asks = asks,
                      .alone = !asks && b->mask_count == 0};
}

static bool level_holds(const keeps *level, const expr_point *point) {
  for (int32_t k = 0; k < level->count; k++)
    if (keep_holds(&level->keep[k], point)) return true;
  return level->count == 0;
}

static bool is_selected(const branch *b, int64_t h, int64_t position) {
  if (branch_has_each(b)) return true;
  int64_t inside =
      b->segment > 0 ? floor_mod(position, b->segment) : position;
  return floor_mod(inside, b->dilation) == b->phase[h];
}

static bool in_segment(const branch *b, int64_t t, int64_t j) {
  return b->segment == 0 ||
         floor_div(t, b->segment) == floor_div(j, b->segment);
}

static bool in_window(const branch *b, int64_t t, int64_t j) {
  if (b->causal && j > t) return false;
  if (b->left != DIL_ENDLESS && t - j > b->left) return false;
  return b->right == DIL_ENDLESS || j - t <= b->right;
}

static bool conditions_hold(const branch *b, const expr_point *point) {
  for (int32_t m = 0; m < b->mask_count; m++)
    if (expr_eval(b->mask[m], point, false).integer == 0) return false;
  return level_holds(&b->keeps[0], point) &&
         level_holds(&b->keeps[1], point);
}

bool pattern_reaches(const pattern *p, int32_t index, int64_t h, int64_t t,
                     int64_t j, const expr_point *point) {
  const branch *b = &p->branch[index];
  if (h < b->head_first || h > b->head_last) return false;
  if (j < 0 || j >= point->M) return false;
  if (!is_selected(b, h, t) || !is_selected(b, h, j)) return false;
  if (!in_segment(b, t, j) || !in_window(b, t, j)) return false;
  if (branch_has_each(b) && floor_mod(t - j - b->shift, b->dilation))
    return false;
  expr_point here = *point;
  here.h = (int32_t)h;
  here.i = (int32_t)t;
  here.j = (int32_t)j;
  return conditions_hold(b, &here);
}

/* ---- invariants: expressions --------------------------------------------- */

/* The names that an expression may see where it stands. */
typedef struct verify_scope {
  const pattern *pattern;
  bool pair;  /* b, h, i, j and inputs; else h alone or sizes alone */
  bool score; /* s, and the functions that no mask and no int() may call */
  bool sink;  /* no key: neither j nor s */
} verify_scope;

static const int8_t arguments_of[EXPR_OP_COUNT] = {
#define OP(id, text, arguments, rule, derivative) arguments,
#include "ops.def"
#undef OP
};

static void verify_types(const expr *e) {
  expr_rule rule = expr_rule_of(e->op);
  bool condition = rule == RULE_COMPARE || rule == RULE_LOGIC;
  if (condition) assert(e->type == TYPE_CONDITION);
  for (int32_t k = 0; k < e->count; k++) {
    expr_type type = e->arg[k]->type;
    if (rule == RULE_LOGIC || (rule == RULE_CHOOSE && k == 0))
      assert(type == TYPE_CONDITION);
    else if (rule == RULE_LEAF || rule == RULE_HASH)
      assert(type == TYPE_I32);
    else if (e->type != TYPE_CONDITION || rule == RULE_COMPARE)
      assert(type != TYPE_CONDITION);
    if (rule == RULE_WHOLE)
      assert(type == TYPE_F32 && e->type == TYPE_I32);
    else if (!condition && type == TYPE_F32 && rule != RULE_COMPARE)
      assert(e->type == TYPE_F32);
  }
}

static void verify_input(const expr *e, const pattern *p) {
  assert(e->integer >= 0 && e->integer < pattern_reads(p));
  const dil_input *input = &p->input[e->integer];
  assert(e->count == input->rank);
  assert(e->type == (dil_dtype_is_real(input->dtype) ? TYPE_F32 : TYPE_I32));
}

static void verify_expr(const expr *e, const verify_scope *s) {
  assert(e && e->op >= 0 && e->op < EXPR_OP_COUNT);
  int32_t arguments = arguments_of[e->op];
  assert(arguments < 0 ? e->count > 0 : e->count == arguments);
  verify_types(e);
  if (e->op == EXPR_S_ || expr_rule_of(e->op) == RULE_FLOAT) assert(s->score);
  if (e->op == EXPR_I_ || e->op == EXPR_J_ || e->op == EXPR_B_)
    assert(s->pair);
  if (e->op == EXPR_S_ || e->op == EXPR_J_) assert(!s->sink);
  if (e->op == EXPR_INPUT) {
    assert(s->pair);
    verify_input(e, s->pattern);
  }
  verify_scope inside = *s;
  inside.score &= expr_rule_of(e->op) != RULE_WHOLE;
  for (int32_t k = 0; k < e->count; k++) verify_expr(e->arg[k], &inside);
}

/* ---- invariants: branches ------------------------------------------------ */

static int64_t defined_phase(const pattern *p, const branch *b, int64_t h) {
  int64_t r = b->dilation;
  expr_point point = {.h = (int32_t)h};
  switch (b->phase_kind) {
  case PHASE_CYCLE: return h % r;
  case PHASE_BLOCK: return h / ((p->heads + r - 1) / r);
  case PHASE_BRANCH: return (b - p->branch) % r;
  case PHASE_KV: return h / (p->heads / p->kv_heads) % r;
  case PHASE_EACH: return 0;
  case PHASE_EXPR:
    return floor_mod(expr_eval(b->phase_expr, &point, false).integer, r);
  }
  abort();
}

static void verify_phases(const pattern *p, const branch *b) {
  const verify_scope s = {.pattern = p};
  if (b->phase_kind == PHASE_EXPR) verify_expr(b->phase_expr, &s);
  if (b->phase_kind != PHASE_EACH) assert(b->shift == 0);
  assert(b->shift >= 0 && b->shift < b->dilation);
  for (int64_t h = 0; h < p->heads; h++)
    assert(b->phase[h] == defined_phase(p, b, h));
}

static void verify_keep(const pattern *p, const keeps *level, const keep *k) {
  const verify_scope s = {.pattern = p, .pair = true};
  verify_expr(k->condition, &s);
  assert(k->condition->type == TYPE_CONDITION);
  if (k->kind == KEEP_EXPR) return;
  assert(level->block > 0);
  assert(k->amount >= 1 && k->amount == floor(k->amount));
  assert(k->kind == KEEP_TOP ? k->share == 0 : k->share > 0 && k->share <= 1);
  assert(k->chosen >= p->input_count && k->chosen + 2 < pattern_reads(p));
  assert(k->estimate != DIL_ESTIMATE_INPUT ||
         (k->gate >= 0 && k->gate < p->input_count));
}

static void verify_keeps(const pattern *p, const keeps *level) {
  assert(level->block >= 0 && level->count >= 0);
  assert((level->query_block > 0) == (level->block > 0));
  for (int32_t k = 0; k < level->count; k++)
    verify_keep(p, level, &level->keep[k]);
}

static void verify_sinks(const pattern *p, expr *const *sink, int32_t count) {
  const verify_scope sinks = {p, true, true, true};
  assert(count >= 0);
  for (int32_t k = 0; k < count; k++) {
    verify_expr(sink[k], &sinks);
    assert(sink[k]->type != TYPE_CONDITION);
  }
}

static void verify_branch(const pattern *p, const branch *b) {
  const verify_scope masks = {.pattern = p, .pair = true};
  const verify_scope scores = {.pattern = p, .pair = true, .score = true};
  assert(b->segment >= 0 && b->dilation >= 1);
  assert(b->head_first >= 0 && b->head_last < p->heads);
  assert(b->head_first <= b->head_last + 1);
  assert(b->left >= 0 && b->right >= 0);
  verify_phases(p, b);
  for (int32_t k = 0; k < b->mask_count; k++) {
    verify_expr(b->mask[k], &masks);
    assert(b->mask[k]->type == TYPE_CONDITION);
  }
  for (int32_t k = 0; k < b->score_count; k++) {
    verify_expr(b->score[k], &scores);
    assert(b->score[k]->type != TYPE_CONDITION);
  }
  for (int level = 0; level < 2; level++) verify_keeps(p, &b->keeps[level]);
  verify_sinks(p, b->sink, b->sink_count);
}

/* ---- invariants: patterns ------------------------------------------------ */

static void verify_sizes(const pattern *p) {
  assert(p->heads >= 1 && p->heads <= INT32_MAX);
  assert(p->kv_heads >= 1 && p->heads % p->kv_heads == 0);
  assert(p->head_dim >= 1 && p->value_dim >= 1);
  assert(p->dtype == DIL_F32 || p->dtype == DIL_BF16 || p->dtype == DIL_F16);
  assert(!p->fast || p->dtype == DIL_F32);
  assert(p->combine <= DIL_COMBINE_SUM);
  assert(p->scale_kind <= SCALE_RUNTIME);
  assert(p->dropout >= 0 && p->dropout < 1);
  assert(!p->detached || pattern_mixes_branches(p));
  assert(p->branch_count >= 1 && p->branch_count <= DIL_BRANCH_MAX);
}

static void verify_inputs(const pattern *p) {
  const verify_scope sizes = {.pattern = p};
  assert(p->input_count >= 0 && p->made_count >= 0);
  assert(pattern_reads(p) <= DIL_INPUT_MAX);
  for (int32_t k = 0; k < pattern_reads(p); k++) {
    const dil_input *input = &p->input[k];
    assert(k >= p->input_count || !dil_input_is_table(input));
    assert(input->name && input->dtype < DIL_DTYPE_COUNT);
    assert(input->rank >= 1 && input->rank <= DIL_RANK_MAX);
    assert(!input->gradient || dil_dtype_is_real(input->dtype));
    for (int32_t axis = 0; axis < input->rank; axis++) {
      verify_expr(p->dimension[k][axis], &sizes);
      assert(p->dimension[k][axis]->type == TYPE_I32);
    }
  }
}

/* A score of one branch alone has no meaning in a set union. */
static void verify_union(const pattern *p) {
  const branch *first = &p->branch[0];
  for (int32_t b = 1; b < p->branch_count; b++) {
    const branch *other = &p->branch[b];
    assert(other->score_count == first->score_count);
    for (int32_t k = 0; k < first->score_count; k++)
      assert(expr_same(other->score[k], first->score[k]));
  }
}

void pattern_verify(const pattern *p) {
  assert(p->name);
  verify_sizes(p);
  verify_inputs(p);
  for (int32_t b = 0; b < p->branch_count; b++)
    verify_branch(p, &p->branch[b]);
  verify_sinks(p, p->sink, p->sink_count);
  if (p->combine == DIL_COMBINE_UNION) verify_union(p);
}
