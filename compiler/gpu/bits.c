/* bits.c - masks as CUDA C over a block of keys. In: the plan's typed trees.
 * Out: dil_mask_bits, made of the words of templates/bits.cuh: a tree is taken
 * apart at its && and ||, and each part is asked as seldom as what it depends
 * on allows. */
#include "gpu.h"

static bool depends_on(const expr *e, expr_op op) {
  bool found = e->op == op;
  for (int32_t k = 0; k < e->count; k++) found |= depends_on(e->arg[k], op);
  return found;
}

/* A condition that is no && or ||. */
static void put_part(source_text *s, const plan *p, const expr *e) {
  bool row = depends_on(e, EXPR_I_), key = depends_on(e, EXPR_J_);
  if (row && key) {
    put(s, "bits_pairs(x, [&](dil_range i, dil_range j) { return ");
    put_condition_range(s, p, e);
    put(s, "; }, [&](int i, int j) { return ");
  } else {
    put(s, row ? "bits_rows(x, [&](int i) { return "
               : key ? "bits_columns(x, [&](int j) { return " : "bits_all(");
  }
  put_condition(s, p, e);
  put(s, row || key ? "; })" : ")");
}

static void put_bits(source_text *s, const plan *p, const expr *e) {
  if (e->op == EXPR_NOT) {
    put(s, "bits_not(");
    put_bits(s, p, e->arg[0]);
    put(s, ")");
  } else if (e->op == EXPR_AND || e->op == EXPR_OR) {
    put(s, e->op == EXPR_AND ? "bits_and(" : "bits_or(");
    put_bits(s, p, e->arg[0]);
    put(s, ",\n    [&] { return ");
    put_bits(s, p, e->arg[1]);
    put(s, "; })");
  } else {
    put_part(s, p, e);
  }
}

void put_mask_bits(source_text *s, const plan *p) {
  put(s, "#include \"bits.cuh\"\n#line 1 \"bits of %s\"\n"
         "DIL_INLINE dil_bits dil_mask_bits(int predicate, const dil_block &x, "
         "const dil_pair &at) {\n"
         "  dil_range h = r_int(at.h);\n  (void)h;\n"
         "  switch (predicate) {\n", p->table.name);
  for (int32_t k = 0; k < p->table.predicate_count; k++) {
    if (!p->predicate[k]) continue;
    put(s, "  case %d: return ", k);
    put_bits(s, p, p->predicate[k]);
    put(s, ";\n");
  }
  put(s, "  default: return bits_all(true);\n  }\n}\n");
}
