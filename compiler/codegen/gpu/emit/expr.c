/* expr.c - mask and score expressions as CUDA C. In: the plan's typed trees.
 * Out: dil_mask, dil_chain and dil_sink (templates/shared/plan.cuh).
 * compiler/pattern/expr.c defines the meaning of each operator, and
 * templates/shared/pair.cuh holds the functions for them. Float operations are
 * intrinsics that round once, so that the compiler contracts none. */
#include "emit.h"
#include <math.h>
#include <string.h>

/* The spelling of an operator for integers and for floats. */
typedef struct spelling {
  const char *integer, *real;
} spelling;

static const spelling calls[EXPR_OP_COUNT] = {
    [EXPR_ADD] = {"dil_add", "__fadd_rn"},
    [EXPR_SUB] = {"dil_sub", "__fsub_rn"},
    [EXPR_MUL] = {"dil_mul", "__fmul_rn"},
    [EXPR_DIV] = {"dil_div", "__fdiv_rn"},
    [EXPR_MOD] = {"dil_mod", "dil_modf"},
    [EXPR_NEG] = {"dil_sub(0, ", "-("},
    [EXPR_ABS] = {"dil_abs", "fabsf"},
    [EXPR_MIN] = {"dil_min", "dil_minf"},
    [EXPR_MAX] = {"dil_max", "dil_maxf"},
    [EXPR_EXP] = {NULL, "expf"},
    [EXPR_LOG] = {NULL, "logf"},
    [EXPR_SQRT] = {NULL, "__fsqrt_rn"},
    [EXPR_TANH] = {NULL, "tanhf"},
    [EXPR_FLOOR] = {"", "floorf"},
    [EXPR_CEIL] = {"", "ceilf"},
    [EXPR_TO_INT] = {"dil_whole", NULL},
};

static const char *const leaves[EXPR_OP_COUNT] = {
    [EXPR_B_] = "at.b",    [EXPR_H_] = "at.h", [EXPR_I_] = "i",
    [EXPR_J_] = "j",       [EXPR_S_] = "s",    [EXPR_BATCH] = "at.B",
    [EXPR_N_] = "at.N",    [EXPR_M_] = "at.M",
};

static const char *const signs[EXPR_OP_COUNT] = {
    [EXPR_EQ] = "==", [EXPR_NE] = "!=", [EXPR_LT] = "<",  [EXPR_LE] = "<=",
    [EXPR_GT] = ">",  [EXPR_GE] = ">=", [EXPR_AND] = "&&", [EXPR_OR] = "||",
};

static void put_value(source_text *s, const plan *p, const expr *e);

static bool uses(const expr *e, expr_op leaf) {
  if (e->op == leaf) return true;
  for (int32_t k = 0; k < e->count; k++)
    if (uses(e->arg[k], leaf)) return true;
  return false;
}

static bool is_number(const expr *e) {
  return e->op == EXPR_REAL || e->op == EXPR_INT;
}

void put_f32(source_text *s, const plan *p, const expr *e) {
  if (e->type == TYPE_F32) {
    put_value(s, p, e);
    return;
  }
  put(s, "__int2float_rn(");
  put_value(s, p, e);
  put(s, ")");
}

static void put_as(source_text *s, const plan *p, const expr *e, bool real) {
  if (real) put_f32(s, p, e);
  else put_value(s, p, e);
}

static void put_constant(source_text *s, float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (isnan(x)) bits = 0x7fc00000;
  put(s, "__uint_as_float(0x%08xu)", bits);
}

static void put_value_leaf(source_text *s, const expr *e) {
  switch (e->op) {
  case EXPR_INT: put(s, "(int)0x%xu", (uint32_t)(uint64_t)e->integer); return;
  case EXPR_TRUTH: put(s, e->integer ? "true" : "false"); return;
  case EXPR_REAL: put_constant(s, (float)e->real); return;
  default: put(s, "%s", leaves[e->op]); return;
  }
}

void put_indices(source_text *s, const plan *p, const expr *read) {
  for (int32_t k = 0; k < DIL_RANK_MAX; k++) {
    put(s, ", ");
    if (k < read->count) put_value(s, p, read->arg[k]);
    else put(s, "0");
  }
}

static void put_value_input(source_text *s, const plan *p, const expr *e) {
  const dil_input *input = &p->pattern->input[e->integer];
  put(s, "dil_read_%s(at.input[%d], %d",
      dil_input_is_bits(input) ? "bit" : dil_dtype_name(input->dtype),
      (int)e->integer, input->rank);
  put_indices(s, p, e);
  put(s, ")");
}

static void put_value_hash(source_text *s, const plan *p, const expr *e) {
  put(s, "(int)(");
  for (int32_t k = 0; k < e->count; k++) put(s, "dil_hash_step(");
  put(s, "0x9E3779B9u");
  for (int32_t k = 0; k < e->count; k++) {
    put(s, ", ");
    put_value(s, p, e->arg[k]);
    put(s, ")");
  }
  put(s, " >> 1)");
}

static bool has_real(const expr *e) {
  for (int32_t k = 0; k < e->count; k++)
    if (e->arg[k]->type == TYPE_F32) return true;
  return false;
}

static void put_sides(source_text *s, const plan *p, const expr *e) {
  bool real = has_real(e);
  put(s, "(");
  put_as(s, p, e->arg[0], real);
  put(s, " %s ", signs[e->op]);
  put_as(s, p, e->arg[1], real);
  put(s, ")");
}

static void put_choice(source_text *s, const plan *p, const expr *e) {
  bool real = e->type == TYPE_F32;
  put(s, "(");
  put_value(s, p, e->arg[0]);
  put(s, " ? ");
  put_as(s, p, e->arg[1], real);
  put(s, " : ");
  put_as(s, p, e->arg[2], real);
  put(s, ")");
}

/* Division and remainder by 2^k: a shift and a bit mask round down, as the
 * language does. */
static bool put_power(source_text *s, const plan *p, const expr *e) {
  if ((e->op != EXPR_DIV && e->op != EXPR_MOD) || e->type != TYPE_I32 ||
      e->arg[1]->op != EXPR_INT)
    return false;
  int64_t n = e->arg[1]->integer;
  if (n <= 0 || n > INT32_MAX || n & (n - 1)) return false;
  put(s, "(");
  put_value(s, p, e->arg[0]);
  if (e->op == EXPR_DIV) put(s, " >> %d)", __builtin_ctzll((uint64_t)n));
  else put(s, " & %lld)", (long long)(n - 1));
  return true;
}

/* Whether a score goes into an operator that may turn a rounding into a
 * step. */
static bool has_steps(const expr *e) {
  bool step = e->op == EXPR_TO_INT || e->op == EXPR_FLOOR ||
              e->op == EXPR_CEIL || e->op == EXPR_MOD;
  if (step && uses(e, EXPR_S_)) return true;
  for (int32_t k = 0; k < e->count; k++)
    if (has_steps(e->arg[k])) return true;
  return false;
}

static bool is_smooth(const plan *p) {
  for (int32_t c = 0; c < p->table.chain_count; c++)
    for (expr **x = p->chain[c]; *x; x++)
      if (has_steps(*x)) return false;
  return true;
}

/* Functions of the score need not round as masks do. tanh takes two
 * instructions of a unit that has few, and a quotient by a number becomes a
 * product. */
static bool put_of_score(source_text *s, const plan *p, const expr *e) {
  if (e->type != TYPE_F32 || !uses(e->arg[0], EXPR_S_)) return false;
  if ((e->op != EXPR_TANH && e->op != EXPR_DIV) || !is_smooth(p)) return false;
  if (e->op == EXPR_TANH) {
    put(s, "dil_tanh(");
    put_f32(s, p, e->arg[0]);
  } else if (e->op == EXPR_DIV && is_number(e->arg[1])) {
    const expr *by = e->arg[1];
    float inverse =
        (float)(1 / (by->op == EXPR_INT ? (double)by->integer : by->real));
    if (!isnormal(inverse)) return false;
    put(s, "__fmul_rn(");
    put_f32(s, p, e->arg[0]);
    put(s, ", ");
    put_constant(s, inverse);
  } else {
    return false;
  }
  put(s, ")");
  return true;
}

static void put_value_call(source_text *s, const plan *p, const expr *e) {
  if (put_of_score(s, p, e)) return;
  bool real = e->type == TYPE_F32;
  const char *name = real ? calls[e->op].real : calls[e->op].integer;
  size_t length = strlen(name);
  bool open = length && (name[length - 1] == '(' || name[length - 1] == ' ');
  put(s, open ? "%s" : "%s(", name);
  for (int32_t k = 0; k < e->count; k++) {
    if (k) put(s, ", ");
    put_as(s, p, e->arg[k], real);
  }
  put(s, ")");
}

static void put_value(source_text *s, const plan *p, const expr *e) {
  if (e->op == EXPR_INPUT)
    put_value_input(s, p, e);
  else if (e->op == EXPR_HASH)
    put_value_hash(s, p, e);
  else if (e->count == 0)
    put_value_leaf(s, e);
  else if (e->op == EXPR_NOT) {
    put(s, "!");
    put_value(s, p, e->arg[0]);
  } else if (e->op == EXPR_CHOOSE) put_choice(s, p, e);
  else if (signs[e->op]) put_sides(s, p, e);
  else if (!put_power(s, p, e))
    put_value_call(s, p, e);
}

void put_condition(source_text *s, const plan *p, const expr *e) {
  put_value(s, p, e);
}

/* ---- the plan's conditions and chains ------------------------------------ */

static void put_head(source_text *s, const char *type, const char *name,
                     const char *arguments) {
  put(s, "DIL_INLINE %s %s(%s, int i, int j, const dil_pair &at) {\n", type,
      name, arguments);
}

static void put_masks(source_text *s, const plan *p) {
  put_head(s, "bool", "dil_mask", "int predicate");
  put(s, "  switch (predicate) {\n");
  for (int32_t k = 0; k < p->table.predicate_count; k++) {
    if (!p->predicate[k]) continue;
    put(s, "  case %d: return ", k);
    put_value(s, p, p->predicate[k]);
    put(s, ";\n");
  }
  put(s, "  default: return true;\n  }\n}\n");
}

static void put_chains(source_text *s, const plan *p) {
  put_head(s, "float", "dil_chain", "int chain, float s");
  put(s, "  switch (chain) {\n");
  for (int32_t c = 0; c < p->table.chain_count; c++) {
    put(s, "  case %d:\n", c);
    for (expr **x = p->chain[c]; *x; x++) {
      put(s, "    s = ");
      put_f32(s, p, *x);
      put(s, ";\n");
    }
    put(s, "    break;\n");
  }
  put(s, "  }\n  return s;\n}\n");
}

/* The sinks of a list, added up. */
static void put_sink_sum(source_text *s, const plan *p, expr *const *sink,
                         int32_t count) {
  for (int32_t k = 1; k < count; k++) put(s, "dil_sinks_add(");
  put_f32(s, p, sink[0]);
  for (int32_t k = 1; k < count; k++) {
    put(s, ", ");
    put_f32(s, p, sink[k]);
    put(s, ")");
  }
}

static void put_sinks(source_text *s, const plan *p) {
  const pattern *of = p->pattern;
  put(s, "DIL_INLINE float dil_sink(int branch, int i, const dil_pair &at) {\n"
         "  switch (branch) {\n");
  for (int32_t b = 0; b <= of->branch_count; b++) {
    bool own = b < of->branch_count;
    int32_t count = own ? of->branch[b].sink_count : of->sink_count;
    if (count == 0) continue;
    put(s, "  case %d: return ", b);
    put_sink_sum(s, p, own ? of->branch[b].sink : of->sink, count);
    put(s, ";\n");
  }
  put(s, "  default: return __uint_as_float(0xff800000u);\n  }\n}\n");
}

/* One expression of a chain, with its part of the derivative. */
static void put_step(source_text *s, const plan *p, const expr *e,
                     const expr *slope) {
  put(s, "    slope = dil_slopes(slope, ");
  if (slope) put_f32(s, p, slope);
  else put(s, "0.0f");
  put(s, ");\n    s = ");
  put_f32(s, p, e);
  put(s, ";\n");
}

void put_slopes(source_text *s, const plan *p) {
  put(s, "#line 1 \"slopes of %s\"\n", p->table.name);
  put_head(s, "float", "dil_chain_slope", "int chain, float &s");
  put(s, "  float slope = 1;\n  switch (chain) {\n");
  for (int32_t c = 0; c < p->table.chain_count; c++) {
    put(s, "  case %d:\n", c);
    for (int32_t n = 0; p->chain[c][n]; n++)
      put_step(s, p, p->chain[c][n], p->slopes[c].slope[n]);
    put(s, "    break;\n");
  }
  put(s, "  }\n  return slope;\n}\n");
}

static bool hides(const expr *e) {
  if (e->op == EXPR_LOG || (e->op == EXPR_REAL && isinf(e->real))) return true;
  if (e->type == TYPE_F32 && e->op == EXPR_DIV && !is_number(e->arg[1]))
    return true;
  if (e->type == TYPE_F32 && e->op == EXPR_INPUT && uses(e, EXPR_J_)) return true;
  for (int32_t k = 0; k < e->count; k++)
    if (hides(e->arg[k])) return true;
  return false;
}

static bool reads_own_row(const expr *e) {
  return uses(e, EXPR_B_) || uses(e, EXPR_BATCH) || uses(e, EXPR_N_) ||
         uses(e, EXPR_M_);
}

static bool reads_pair(const expr *e) { return uses(e, EXPR_I_) || uses(e, EXPR_J_); }

static bool some_of(expr *const *list, int32_t count, bool (*reads)(const expr *e)) {
  bool some = false;
  for (int32_t n = 0; n < count; n++) some |= reads(list[n]);
  return some;
}

/* Whether some score or sink reads it. */
static bool some_score(const plan *p, bool (*reads)(const expr *e)) {
  const pattern *of = p->pattern;
  const dil_table *t = &p->table;
  bool some = t->sinks && some_of(of->sink, of->sink_count, reads);
  for (int32_t b = 0; b < t->branch_count && t->sinks; b++)
    some |= some_of(of->branch[b].sink, of->branch[b].sink_count, reads);
  for (int32_t c = 0; c < t->chain_count && t->scored; c++)
    for (int32_t n = 0; p->chain[c][n]; n++) some |= reads(p->chain[c][n]);
  return some;
}

bool reads_batch_row(const plan *p) { return some_score(p, reads_own_row); }
bool reads_positions(const plan *p) { return some_score(p, reads_pair); }

bool is_hiding(const plan *p) {
  for (int32_t c = 0; c < p->table.chain_count; c++)
    for (expr **x = p->chain[c]; *x; x++)
      if (hides(*x)) return true;
  return false;
}

void put_expressions(source_text *s, const plan *p) {
  put(s, "#line 1 \"expressions of %s\"\n", p->table.name);
  put_masks(s, p);
  put_chains(s, p);
  put_sinks(s, p);
}
