/* cover.c - masks as CUDA C in interval arithmetic, so that a tile may be known
 * empty or full before any pair is evaluated. In: the plan's typed trees. Out:
 * dil_cover, written with the functions of templates/shared/cover.cuh, which
 * are overloaded by type. */
#include "emit.h"
#include <string.h>

static const char *const names[EXPR_OP_COUNT] = {
    [EXPR_ADD] = "add",   [EXPR_SUB] = "sub", [EXPR_MUL] = "mul",
    [EXPR_DIV] = "div",   [EXPR_MOD] = "mod", [EXPR_NEG] = "neg",
    [EXPR_EQ] = "eq",     [EXPR_NE] = "ne",   [EXPR_LT] = "lt",
    [EXPR_LE] = "le",     [EXPR_GT] = "gt",   [EXPR_GE] = "ge",
    [EXPR_AND] = "and",   [EXPR_OR] = "or",   [EXPR_NOT] = "not",
    [EXPR_ABS] = "abs",   [EXPR_MIN] = "min", [EXPR_MAX] = "max",
    [EXPR_FLOOR] = "floor", [EXPR_CEIL] = "ceil", [EXPR_CHOOSE] = "choose",
    [EXPR_TO_INT] = "whole",
};

static const char *const leaves[EXPR_OP_COUNT] = {
    [EXPR_B_] = "r_int(at.b)", [EXPR_H_] = "h",           [EXPR_I_] = "i",
    [EXPR_J_] = "j",           [EXPR_BATCH] = "r_int(at.B)",
    [EXPR_N_] = "r_int(at.N)", [EXPR_M_] = "r_int(at.M)",
};

static void put_range(source_text *s, const plan *p, const expr *e);

static void put_range_leaf(source_text *s, const expr *e) {
  float real = (float)e->real;
  uint32_t bits;
  memcpy(&bits, &real, sizeof bits);
  switch (e->op) {
  case EXPR_INT:
    put(s, "r_int((int)0x%xu)", (uint32_t)(uint64_t)e->integer);
    return;
  case EXPR_TRUTH: put(s, "r_int(%d)", e->integer != 0); return;
  case EXPR_REAL: put(s, "r_float(__uint_as_float(0x%08xu))", bits); return;
  default: put(s, "%s", leaves[e->op]); return;
  }
}

static void put_range_indices(source_text *s, const plan *p, const expr *e) {
  for (int32_t k = 0; k < DIL_RANK_MAX; k++) {
    put(s, ", ");
    if (k < e->count) put_range(s, p, e->arg[k]);
    else put(s, "r_int(0)");
  }
}

static void put_range_input(source_text *s, const plan *p, const expr *e) {
  const dil_input *input = &p->pattern->input[e->integer];
  put(s, "r_read_%s(at.input[%d], %d",
      dil_input_is_bits(input) ? "bit" : dil_dtype_name(input->dtype),
      (int)e->integer, input->rank);
  put_range_indices(s, p, e);
  put(s, ")");
}

static void put_range_hash(source_text *s, const plan *p, const expr *e) {
  put(s, "r_hash_end(");
  for (int32_t k = 0; k < e->count; k++) put(s, "r_hash_step(");
  put(s, "r_hash_begin()");
  for (int32_t k = 0; k < e->count; k++) {
    put(s, ", ");
    put_range(s, p, e->arg[k]);
    put(s, ")");
  }
  put(s, ")");
}

/* Integers are converted if any argument is a float. The condition of a choice
 * is never converted. */
static void put_range_call(source_text *s, const plan *p, const expr *e) {
  bool real = e->type == TYPE_F32;
  for (int32_t k = 0; k < e->count; k++) real |= e->arg[k]->type == TYPE_F32;
  put(s, "r_%s(", names[e->op]);
  for (int32_t k = 0; k < e->count; k++) {
    bool widen = real && e->arg[k]->type == TYPE_I32;
    put(s, k ? ", %s" : "%s", widen ? "r_real(" : "");
    put_range(s, p, e->arg[k]);
    if (widen) put(s, ")");
  }
  put(s, ")");
}

void put_alike_spans(source_text *s, const plan *p, const key_span *x) {
  put(s, "spans_alike(at.input[%d], %d, at.M", (int)x->row->integer,
      p->pattern->input[x->row->integer].rank);
  put_range_indices(s, p, x->row);
  put(s, ")");
}

/* Elements of a row and a key that are equal: by their spans, or by bounds. */
static void put_range_alike(source_text *s, const plan *p, const expr *e,
                            const key_span *x) {
  put(s, "r_alike(");
  put_alike_spans(s, p, x);
  put(s, ", at.M, j, [&] { return ");
  put_range_call(s, p, e);
  put(s, "; })");
}

static void put_range(source_text *s, const plan *p, const expr *e) {
  key_span x = key_span_of(e);
  if (x.kind == SPAN_ALIKE)
    put_range_alike(s, p, e, &x);
  else if (e->op == EXPR_INPUT)
    put_range_input(s, p, e);
  else if (e->op == EXPR_HASH)
    put_range_hash(s, p, e);
  else if (e->count == 0)
    put_range_leaf(s, e);
  else
    put_range_call(s, p, e);
}

void put_condition_range(source_text *s, const plan *p, const expr *e) {
  put_range(s, p, e);
}

void put_cover(source_text *s, const plan *p) {
  put(s, "#include \"templates/shared/spans.cuh\"\n#line 1 \"cover of %s\"\n"
         "DIL_INLINE dil_range dil_cover(int predicate, dil_range i, "
         "dil_range j, dil_range h, const dil_pair &at) {\n"
         "  switch (predicate) {\n", p->table.name);
  for (int32_t k = 0; k < p->table.predicate_count; k++) {
    if (!p->predicate[k]) continue;
    put(s, "  case %d: return ", k);
    put_range(s, p, p->predicate[k]);
    put(s, ";\n");
  }
  put(s, "  default: return r_int(1);\n  }\n}\n");
}
