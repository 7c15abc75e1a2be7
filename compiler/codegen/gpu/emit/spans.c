/* spans.c - masks that keep a range of the keys of each row, as CUDA C. In: the
 * plan's typed trees. Out: dil_keys_of, which narrows the keys of a tile, and
 * the ranges of single rows for dil_mask_bits (templates/shared/spans.cuh). */
#include "emit.h"

static const char *const names[EXPR_OP_COUNT] = {
    [EXPR_LT] = "lt", [EXPR_LE] = "le", [EXPR_GT] = "gt",
    [EXPR_GE] = "ge", [EXPR_EQ] = "eq",
};

void put_row_span(source_text *s, const plan *p, const key_span *x) {
  const expr *row = x->row;
  if (x->kind == SPAN_ALIKE) {
    put(s, "span_alike(at.input[%d], %d, at.M", (int)row->integer,
        p->pattern->input[row->integer].rank);
    put_indices(s, p, row);
  } else if (x->kind == SPAN_SEGMENT) {
    put(s, "span_segment(i, %lld, %lld", (long long)x->segment,
        (long long)x->offset);
  } else {
    put(s, "span_%s(", names[x->op]);
    put_condition(s, p, row);
  }
  put(s, ")");
}

static bool has_spans(const expr *e) {
  if (e->op == EXPR_AND || e->op == EXPR_OR)
    return has_spans(e->arg[0]) || has_spans(e->arg[1]);
  return key_span_of(e).kind != SPAN_NONE;
}

/* The keys that a condition may keep for rows of a range. */
static void put_keys(source_text *s, const plan *p, const expr *e) {
  key_span x = key_span_of(e);
  if (e->op == EXPR_AND || e->op == EXPR_OR) {
    put(s, e->op == EXPR_AND ? "r_meet(" : "r_hull(");
    put_keys(s, p, e->arg[0]);
    put(s, ", ");
    put_keys(s, p, e->arg[1]);
  } else if (x.kind == SPAN_ALIKE) {
    put(s, "r_keys_alike(");
    put_alike_spans(s, p, &x);
  } else if (x.kind == SPAN_SEGMENT) {
    put(s, "r_keys_segment(i, %lld, %lld", (long long)x.segment,
        (long long)x.offset);
  } else if (x.kind == SPAN_GUARD) {
    put(s, "r_keys_if(");
    put_condition_range(s, p, e);
  } else if (x.kind == SPAN_BESIDE) {
    put(s, "r_keys_%s(", names[x.op]);
    put_condition_range(s, p, x.row);
  } else {
    put(s, "r_any(");
  }
  put(s, ")");
}

void put_key_spans(source_text *s, const plan *p) {
  bool some = false;
  for (int32_t k = 0; k < p->table.predicate_count; k++)
    some |= p->predicate[k] && has_spans(p->predicate[k]);
  put(s, "#define KEY_SPANS %d\n", some);
  if (!some) return;
  put(s, "#line 1 \"spans of %s\"\nDIL_INLINE dil_range dil_keys_of(int "
         "predicate, dil_range i, dil_range h, const dil_pair &at) {\n"
         "  switch (predicate) {\n", p->table.name);
  for (int32_t k = 0; k < p->table.predicate_count; k++) {
    if (!p->predicate[k] || !has_spans(p->predicate[k])) continue;
    put(s, "  case %d: return ", k);
    put_keys(s, p, p->predicate[k]);
    put(s, ";\n");
  }
  put(s, "  default: return r_any();\n  }\n}\n");
}

int32_t mask_documents(const plan *p) {
  const expr *mask = p->table.predicate_count ? p->predicate[0] : NULL;
  key_span x = mask ? key_span_of(mask) : (key_span){.kind = SPAN_NONE};
  if (x.kind != SPAN_ALIKE) return -1;
  bool own = x.row->count == 2 && x.row->arg[0]->op == EXPR_B_;
  bool takes = p->pattern->input[x.row->integer].dtype == DIL_I32 &&
               (own || x.row->count == 1);
  return takes ? (int32_t)x.row->integer : -1;
}
