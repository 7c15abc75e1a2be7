/* reads.c - the gradients of inputs that scores and sinks read, as CUDA C. In:
 * the derivatives of a backward plan. Out: dil_chain_reads, dil_chain_rows and
 * dil_sink_reads (emit.h), which give each part of a gradient to an adder
 * (templates/general/gradient_sums.cuh). A read whose index does not depend on
 * the key goes to a sum of its row first. */
#include "emit.h"

/* Where the element stands that a read reads. */
static void put_place(source_text *s, const plan *p, const expr *read) {
  put(s, "to.place(%d", p->pattern->input[read->integer].rank);
  put_indices(s, p, read);
  put(s, ")");
}

/* Reads of which the pairs of a row have one element in common. */
static int32_t chain_rows(const plan_slopes *s) {
  int32_t rows = 0;
  for (int32_t i = 0; i < s->read_count; i++) rows += !s->read[i].paired;
  return rows;
}

/* The score before each expression of a chain: s0, s1, ... */
static void put_scores(source_text *s, const plan *p, int32_t chain) {
  expr *const *x = p->chain[chain];
  put(s, "    const float s0 = s;\n");
  for (int32_t n = 1; x[n - 1] && x[n]; n++) {
    put(s, "    s = ");
    put_f32(s, p, x[n - 1]);
    put(s, ";\n    const float s%d = s;\n", n);
  }
}

/* A part of the gradient, by the read with this number among its chain's. */
static void put_part(source_text *s, const plan *p, const plan_slopes *of,
                     int32_t number) {
  const plan_read *read = &of->read[number];
  int32_t row = 0;
  for (int32_t i = 0; i < number; i++) row += !of->read[i].paired;
  put(s, "    if (to.wants(%d)) to.", (int)read->element->integer);
  if (read->paired) {
    put(s, "add(");
    put_place(s, p, read->element);
  } else {
    put(s, "add_row(%d", row);
  }
  put(s, ", dil_slopes(plain, dil_slopes(after, ");
  put_f32(s, p, read->slope);
  put(s, ")));\n");
}

/* From the last expression of a chain to the first, with the derivative of what
 * comes after each. */
static void put_chain(source_text *s, const plan *p, int32_t chain) {
  const plan_slopes *of = &p->slopes[chain];
  int32_t steps = 0;
  if (of->read_count == 0) return;
  while (p->chain[chain][steps]) steps++;
  put(s, "  case %d: {\n", chain);
  put_scores(s, p, chain);
  put(s, "    float after = 1;\n");
  for (int32_t n = steps - 1; n >= 0; n--) {
    put(s, "    s = s%d;\n", n);
    for (int32_t i = 0; i < of->read_count; i++)
      if (of->read[i].step == n) put_part(s, p, of, i);
    if (n == 0) break;
    put(s, "    after = dil_slopes(after, ");
    if (of->slope[n])
      put_f32(s, p, of->slope[n]);
    else
      put(s, "0.0f");
    put(s, ");\n");
  }
  put(s, "    break;\n  }\n");
}

static void put_chain_rows(source_text *s, const plan *p, int32_t chain) {
  const plan_slopes *of = &p->slopes[chain];
  int32_t row = 0;
  if (chain_rows(of) == 0) return;
  put(s, "  case %d:\n", chain);
  for (int32_t i = 0; i < of->read_count; i++) {
    const expr *read = of->read[i].element;
    if (of->read[i].paired) continue;
    put(s, "    if (to.wants(%d)) to.end_row(%d, ", (int)read->integer, row++);
    put_place(s, p, read);
    put(s, ");\n");
  }
  put(s, "    break;\n");
}

static void put_sink_list(source_text *s, const plan *p, expr *const *sink,
                          const plan_slopes *of, const char *chosen) {
  for (int32_t i = 0; i < of->read_count; i++) {
    const plan_read *read = &of->read[i];
    put(s, "  if (to.wants(%d))\n    to.add(", (int)read->element->integer);
    put_place(s, p, read->element);
    put(s, ", dil_slopes(%s ? to.sink_slope(", chosen);
    put_f32(s, p, sink[read->step]);
    put(s, ", lse, delta) : 0.0f, ");
    put_f32(s, p, read->slope);
    put(s, "));\n");
  }
}

static void put_sink_reads(source_text *s, const plan *p) {
  const pattern *of = p->pattern;
  char chosen[32];
  put(s,
      "template <class To>\nDIL_INLINE void dil_sink_reads(bool own, unsigned "
      "long long branches, int i,\n    const dil_pair &at, float lse, float "
      "delta, To &to) {\n");
  put_sink_list(s, p, of->sink, &p->sinks, "own");
  for (int32_t b = 0; b < of->branch_count; b++) {
    snprintf(chosen, sizeof chosen, "branches >> %d & 1", b);
    put_sink_list(s, p, of->branch[b].sink, &p->branch_sinks[b], chosen);
  }
  put(s, "}\n");
}

void put_reads(source_text *s, const plan *p) {
  int32_t rows = 1;
  for (int32_t c = 0; c < p->table.chain_count; c++)
    if (chain_rows(&p->slopes[c]) > rows) rows = chain_rows(&p->slopes[c]);
  put(s, "#line 1 \"gradients of inputs of %s\"\n", p->table.name);
  put(s, "#define ROW_READS %d\n", rows);
  put(s,
      "template <class To>\nDIL_INLINE void dil_chain_reads(int chain, float "
      "s, int i, int j,\n    const dil_pair &at, float plain, To &to) {\n"
      "  switch (chain) {\n");
  for (int32_t c = 0; c < p->table.chain_count; c++) put_chain(s, p, c);
  put(s, "  default: break;\n  }\n}\ntemplate <class To>\nDIL_INLINE void "
         "dil_chain_rows(int chain, int i, const dil_pair &at,\n    To &to) {\n"
         "  switch (chain) {\n");
  for (int32_t c = 0; c < p->table.chain_count; c++) put_chain_rows(s, p, c);
  put(s, "  default: break;\n  }\n}\n");
  put_sink_reads(s, p);
}

bool has_score_reads(const dil_table *t) {
  for (int32_t i = 0; i < t->input_count; i++)
    if (t->inputs[i].in_scores) return true;
  return false;
}
