/* bits.c - masks as CUDA C over a block of keys. In: the plan's typed trees.
 * Out: dil_mask_bits and dil_known, written with the functions of
 * templates/shared/bits.cuh. A tree is split at its && and || into terms. A
 * term is evaluated once for each row, key, block or pair, as its variables need. The
 * first terms that depend on keys have a number. By it dil_known reports terms
 * that interval arithmetic settles for a whole block. */
#include "emit.h"

enum { PARTS_MOST = 16 }; /* terms with a number: two bits each, in one word */

static bool depends_on(const expr *e, expr_op op) {
  bool found = e->op == op;
  for (int32_t k = 0; k < e->count; k++) found |= depends_on(e->arg[k], op);
  return found;
}

static bool is_joint(const expr *e) {
  return e->op == EXPR_AND || e->op == EXPR_OR || e->op == EXPR_NOT;
}

/* ---- terms that interval arithmetic may settle --------------------------- */

/* Writes the statements of dil_known for the terms of a tree. */
static void put_settled(source_text *s, const plan *p, const expr *e,
                        int32_t *part) {
  for (int32_t k = 0; k < e->count && is_joint(e); k++)
    put_settled(s, p, e->arg[k], part);
  if (is_joint(e) || !depends_on(e, EXPR_J_) || *part == PARTS_MOST) return;
  put(s, "  known |= bits_settled(%d, ", (*part)++);
  put_condition_range(s, p, e);
  put(s, ");\n");
}

static void put_known(source_text *s, const plan *p) {
  int32_t parts = 0;
  put(s, "DIL_INLINE unsigned dil_known(dil_range i, dil_range j, dil_range h, "
         "const dil_pair &at) {\n  unsigned known = 0;\n");
  for (int32_t k = 0; k < p->table.predicate_count; k++)
    if (p->predicate[k]) put_settled(s, p, p->predicate[k], &parts);
  put(s, "  return known;\n}\n#define KNOWN_PARTS %d\n", parts);
}

/* ---- evaluating ---------------------------------------------------------- */

static int32_t next_part(int32_t *part) {
  return *part < PARTS_MOST ? (*part)++ : -1;
}

/* Writes a term that keeps a range of the keys of each row. */
static void put_span(source_text *s, const plan *p, const expr *e,
                     const key_span *x, int32_t *part) {
  bool asks = x->kind == SPAN_ALIKE;
  put(s, "bits_%s<%d>(x, [&](int i) { return ", asks ? "spans" : "ranges",
      next_part(part));
  put_row_span(s, p, x);
  if (!asks) {
    put(s, "; })");
    return;
  }
  put(s, "; },\n    [&](int i, int j) { return ");
  put_condition(s, p, e);
  put(s, "; })");
}

/* Writes the beginning of a term of rows and keys, up to its condition. */
static void put_pairs(source_text *s, const expr *e, int32_t part) {
  int32_t query_block, block;
  if (is_condition_of_blocks(e, &query_block, &block))
    put(s, "bits_blocks<%d, %d, %d>", part, query_block, block);
  else
    put(s, "bits_pairs<%d>", part);
  put(s, "(x, [&](int i, int j) { return ");
}

/* Writes a term: a condition that is not &&, || or !. */
static void put_part(source_text *s, const plan *p, const expr *e,
                     int32_t *part) {
  bool row = depends_on(e, EXPR_I_), key = depends_on(e, EXPR_J_);
  key_span x = key_span_of(e);
  if (x.kind != SPAN_NONE && x.kind != SPAN_GUARD) {
    put_span(s, p, e, &x, part);
    return;
  }
  if (row && key) {
    put_pairs(s, e, next_part(part));
  } else if (key) {
    put(s, "bits_columns<%d>(x, [&](int j) { return ", next_part(part));
  } else {
    put(s, row ? "bits_rows(x, [&](int i) { return " : "bits_all(");
  }
  put_condition(s, p, e);
  put(s, row || key ? "; })" : ")");
}

static void put_bits(source_text *s, const plan *p, const expr *e,
                     int32_t *part) {
  if (e->op == EXPR_NOT) {
    put(s, "bits_not(");
    put_bits(s, p, e->arg[0], part);
    put(s, ")");
  } else if (is_joint(e)) {
    put(s, e->op == EXPR_AND ? "bits_and(" : "bits_or(");
    put_bits(s, p, e->arg[0], part);
    put(s, ",\n    [&] { return ");
    put_bits(s, p, e->arg[1], part);
    put(s, "; })");
  } else {
    put_part(s, p, e, part);
  }
}

void put_mask_bits(source_text *s, const plan *p) {
  int32_t part = 0;
  put(s, "#include \"templates/shared/bits.cuh\"\n#line 1 \"bits of %s\"\n",
      p->table.name);
  put_known(s, p);
  put(s, "DIL_INLINE dil_bits dil_mask_bits(int predicate, const dil_block &x, "
         "const dil_pair &at) {\n  switch (predicate) {\n");
  for (int32_t k = 0; k < p->table.predicate_count; k++) {
    if (!p->predicate[k]) continue;
    put(s, "  case %d: return ", k);
    put_bits(s, p, p->predicate[k], &part);
    put(s, ";\n");
  }
  put(s, "  default: return bits_all(true);\n  }\n}\n");
}
