/* pattern_text.c - a pattern as canonical .dil text.
 *
 * In: a pattern. Out: text that the front end reads back as an equal pattern:
 * constants folded, names spelled out, and everything that a branch inherits
 * written in the branch. Patterns are the same when these texts are. */
#include "expr_rules.h"
#include "pattern.h"
#include <stdlib.h>
#include <string.h>

static const char *const combine_text[] = {
    [DIL_COMBINE_SOFTMAX] = "softmax",
    [DIL_COMBINE_UNION] = "union",
    [DIL_COMBINE_MEAN] = "mean",
    [DIL_COMBINE_SUM] = "sum",
};

static const char *const phase_text[] = {
    [PHASE_CYCLE] = "cycle",
    [PHASE_BLOCK] = "block",
    [PHASE_BRANCH] = "branch",
    [PHASE_KV] = "kv",
    [PHASE_EACH] = "each",
};

const char *pattern_combine_text(dil_combine combine) {
  return combine_text[combine];
}

typedef struct pattern_printer {
  const pattern *pattern;
  arena *arena;     /* for trees that join several keeps */
  FILE *out;
  bool keeps_above; /* the pattern's keeps stand in the pattern */
  bool split;       /* `heads split` stands in the pattern */
} pattern_printer;

static void print_expr(const pattern_printer *p, const char *word,
                       const expr *e) {
  fprintf(p->out, "%s ", word);
  expr_print(e, p->pattern->input, p->out);
  fputs(";\n", p->out);
}

/* ---- keeps --------------------------------------------------------------- */

static bool is_all_expr(const keeps *level) {
  for (int32_t k = 0; k < level->count; k++)
    if (level->keep[k].kind != KEEP_EXPR) return false;
  return true;
}

/* Two levels become one condition, unless one of them is no condition. */
static bool needs_two_levels(const pattern *p) {
  for (int32_t b = 0; b < p->branch_count; b++) {
    const keeps *level = p->branch[b].keeps;
    if (level[0].count == 0 || level[1].count == 0) continue;
    if (!is_all_expr(&level[0]) || !is_all_expr(&level[1])) return true;
  }
  return false;
}

static expr *joined(const pattern_printer *p, expr_op op, expr *a, expr *b) {
  expr *e = ARENA_NEW(p->arena, expr);
  e->op = op;
  e->count = 2;
  e->arg = ARENA_ARRAY(p->arena, expr *, 2);
  e->arg[0] = a;
  e->arg[1] = b;
  return e;
}

static expr *united(const pattern_printer *p, const keeps *level) {
  expr *all = level->keep[0].condition;
  for (int32_t k = 1; k < level->count; k++)
    all = joined(p, EXPR_OR, all, level->keep[k].condition);
  return all;
}

static void print_estimate(const pattern_printer *p, const keep *k) {
  const char *word = k->estimate == DIL_ESTIMATE_INPUT
                         ? p->pattern->input[k->gate].name
                     : k->estimate == DIL_ESTIMATE_EACH ? "mean each"
                                                        : "mean";
  fprintf(p->out, " by %s;\n", word);
}

static void print_keep(const pattern_printer *p, const keep *k,
                       const char *indent) {
  fputs(indent, p->out);
  switch (k->kind) {
  case KEEP_EXPR: print_expr(p, "keep", k->condition); return;
  case KEEP_TOP:
    fprintf(p->out, "keep top %.0f", k->amount);
    print_estimate(p, k);
    return;
  case KEEP_MASS:
    fputs("keep mass ", p->out);
    expr_print_real(k->share, p->out);
    fprintf(p->out, ", %.0f", k->amount);
    print_estimate(p, k);
    return;
  }
  abort();
}

static void print_bound(const pattern_printer *p, int64_t bound) {
  if (bound == DIL_ENDLESS)
    fputs("inf", p->out);
  else
    fprintf(p->out, "%lld", (long long)bound);
}

/* "word 13 x 13;" */
static void print_extents(const pattern_printer *p, const char *word,
                          const int64_t *extent) {
  for (int32_t a = 0; a < p->pattern->grid.axes; a++) {
    fputs(a ? " x " : word, p->out);
    print_bound(p, extent[a]);
  }
  fputs(";\n", p->out);
}

static void print_block(const pattern_printer *p, const keeps *level,
                        const char *indent) {
  fputs(indent, p->out);
  if (level->cell[0]) print_extents(p, "block ", level->cell);
  else if (level->query_block != level->block)
    fprintf(p->out, "block %lld, %lld;\n", (long long)level->query_block,
            (long long)level->block);
  else fprintf(p->out, "block %lld;\n", (long long)level->block);
}

static void print_level(const pattern_printer *p, const keeps *level,
                        const char *indent) {
  if (level->block > 0) print_block(p, level, indent);
  for (int32_t k = 0; k < level->count; k++)
    print_keep(p, &level->keep[k], indent);
}

static void print_both_levels(const pattern_printer *p, const keeps level[2],
                              const char *indent) {
  keep both = {.kind = KEEP_EXPR,
               .condition = joined(p, EXPR_AND, united(p, &level[0]),
                                   united(p, &level[1]))};
  keeps joint = level[1];
  joint.count = 1;
  joint.keep = &both;
  print_level(p, &joint, indent);
}

static void print_keeps(const pattern_printer *p, const branch *b) {
  const char *indent = "        ";
  const keeps *level = b->keeps;
  if (p->keeps_above) {
    keeps own = level[1];
    own.block = level[0].block;
    own.query_block = level[0].query_block;
    memcpy(own.cell, level[0].cell, sizeof own.cell);
    print_level(p, &own, indent);
    return;
  }
  if (level[0].count > 0 && level[1].count > 0)
    print_both_levels(p, level, indent);
  else if (level[0].count + level[1].count > 0)
    print_level(p, &level[level[0].count == 0], indent);
}

/* ---- grids --------------------------------------------------------------- */

static bool is_all(const grid *g, const int64_t *number, int64_t each) {
  for (int32_t a = 0; a < g->axes; a++)
    if (number[a] != each) return false;
  return true;
}

static void print_sides(const pattern_printer *p, const grid_reach *r) {
  for (int32_t a = 0; a < p->pattern->grid.axes; a++) {
    fputs(a ? " x (" : "        window (", p->out);
    print_bound(p, r->left[a]);
    fputs(", ", p->out);
    print_bound(p, r->right[a]);
    fputs(")", p->out);
  }
  fputs(";\n", p->out);
}

static void print_causal_axes(const pattern_printer *p, const grid_reach *r) {
  const char *before = "        causal ";
  for (int32_t a = 0; a < p->pattern->grid.axes; a++) {
    if (!r->causal[a]) continue;
    fprintf(p->out, "%s%s", before, grid_axis_name(&p->pattern->grid, a));
    before = ", ";
  }
  if (before[0] == ',') fputs(";\n", p->out);
}

static void print_reach(const pattern_printer *p, const grid_reach *r) {
  const grid *g = &p->pattern->grid;
  if (!is_all(g, r->kernel, DIL_ENDLESS))
    print_extents(p, "        neighborhood ", r->kernel);
  if (!is_all(g, r->left, DIL_ENDLESS) || !is_all(g, r->right, DIL_ENDLESS))
    print_sides(p, r);
  if (!is_all(g, r->dilation, 1))
    print_extents(p, "        dilation ", r->dilation);
  print_causal_axes(p, r);
}

char *pattern_reach_text(arena *a, const pattern *p, int32_t index) {
  char *text = NULL, *said;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  if (!out) abort();
  print_reach(&(pattern_printer){.pattern = p, .arena = a, .out = out},
              &p->branch[index].reach);
  if (fclose(out)) abort();
  said = arena_copy(a, text + strspn(text, " "), length - strspn(text, " "));
  free(text);
  /* ";\n        " between statements becomes ", ". */
  char *to = said;
  for (const char *from = said; *from; from++) {
    if (*from != ';') {
      *to++ = *from;
      continue;
    }
    from += strspn(from + 1, "\n ");
    if (from[1]) *to++ = ',', *to++ = ' ';
  }
  *to = 0;
  return *said ? said : "the whole grid";
}

static void print_grid(const pattern_printer *p) {
  const grid *g = &p->pattern->grid;
  for (int32_t a = 0; a < g->axes; a++) {
    fputs(a ? " x " : "    grid ", p->out);
    if (g->extent[a]) print_bound(p, g->extent[a]);
    else fputs("any", p->out);
  }
  if (g->axes) fputs(";\n", p->out);
}

/* ---- branches ------------------------------------------------------------ */

static void print_window(const pattern_printer *p, const branch *b) {
  if (b->left == DIL_ENDLESS && b->right == DIL_ENDLESS) return;
  fputs("        window ", p->out);
  print_bound(p, b->left);
  fputs(", ", p->out);
  print_bound(p, b->right);
  fputs(";\n", p->out);
}

static void print_phase(const pattern_printer *p, const branch *b) {
  if (b->phase_kind == PHASE_EXPR)
    print_expr(p, "        phase", b->phase_expr);
  else if (b->shift)
    fprintf(p->out, "        phase each - %lld;\n", (long long)b->shift);
  else
    fprintf(p->out, "        phase %s;\n", phase_text[b->phase_kind]);
}

static void print_scores(const pattern_printer *p, const branch *b,
                         const char *word) {
  for (int32_t k = 0; k < b->score_count; k++)
    print_expr(p, word, b->score[k]);
}

static void print_sinks(const pattern_printer *p, expr *const *sink,
                        int32_t count, const char *word) {
  for (int32_t k = 0; k < count; k++) print_expr(p, word, sink[k]);
}

static void print_segment(const pattern_printer *p, const branch *b) {
  if (b->segment > 0)
    fprintf(p->out, "        segment %lld;\n", (long long)b->segment);
  fprintf(p->out, "        dilation %lld;\n", (long long)b->dilation);
  print_phase(p, b);
}

static void print_branch(const pattern_printer *p, const branch *b) {
  fprintf(p->out, "    branch %s%s{\n", b->name ? b->name : "",
          b->name ? " " : "");
  bool axes = p->pattern->grid.axes > 0;
  if (!axes) print_segment(p, b);
  if (!p->split)
    fprintf(p->out, "        heads %d..%d;\n", b->head_first, b->head_last);
  if (b->causal) fputs("        causal;\n", p->out);
  if (axes) print_reach(p, &b->reach);
  else print_window(p, b);
  for (int32_t k = b->reach.mask_count; k < b->mask_count; k++)
    print_expr(p, "        mask", b->mask[k]);
  if (p->pattern->combine != DIL_COMBINE_UNION)
    print_scores(p, b, "        score");
  print_keeps(p, b);
  if (b->shared && branch_choice(b)) fputs("        shared kv;\n", p->out);
  print_sinks(p, b->sink, b->sink_count, "        sink");
  fputs("    }\n", p->out);
}

/* ---- patterns ------------------------------------------------------------ */

/* A branch without a head can only come from `heads split`. */
static bool has_empty_share(const pattern *p) {
  for (int32_t b = 0; b < p->branch_count; b++)
    if (p->branch[b].head_first > p->branch[b].head_last) return true;
  return false;
}

void pattern_print_shape(const pattern *p, int32_t index, FILE *out) {
  for (int32_t axis = 0; axis < p->input[index].rank; axis++) {
    const expr *size = p->dimension[index][axis];
    if (axis > 0) fputs(", ", out);
    if (size->op == EXPR_INT && size->integer == DIL_ANY_SIZE) fputc('*', out);
    else expr_print(size, p->input, out);
  }
}

/* Lists that a choice makes, and their table, follow from the keep. */
static bool is_chosen(const pattern *p, int32_t index) {
  const dil_input *input = &p->input[index];
  return index >= p->input_count &&
         (!dil_input_is_table(input) || input->rows >= p->input_count);
}

static void print_input(const pattern_printer *p, int32_t index) {
  const dil_input *input = &p->pattern->input[index];
  fprintf(p->out, "    input %s : %s[", input->name,
          dil_dtype_name(input->dtype));
  pattern_print_shape(p->pattern, index, p->out);
  fprintf(p->out, "]%s", input->gradient ? " gradient" : "");
  if (index >= p->pattern->input_count)
    fprintf(p->out, " from %s", p->pattern->input[input->rows].name);
  if (input->rows != input->cols)
    fprintf(p->out, ", %s", p->pattern->input[input->cols].name);
  for (int32_t a = 0; input->cell[0] && a < p->pattern->grid.axes; a++)
    fprintf(p->out, "%s%d", a ? " x " : " block ", input->cell[a]);
  fputs(";\n", p->out);
}

static void print_scale(const pattern_printer *p) {
  if (p->pattern->scale_kind == SCALE_RUNTIME)
    fputs("    scale runtime;\n", p->out);
  if (p->pattern->scale_kind != SCALE_FIXED) return;
  fputs("    scale ", p->out);
  expr_print_real(p->pattern->scale, p->out);
  fputs(";\n", p->out);
}

static void print_dropout(const pattern_printer *p) {
  if (p->pattern->dropout == 0) return;
  fputs("    dropout ", p->out);
  expr_print_real(p->pattern->dropout, p->out);
  fputs(";\n", p->out);
}

static void print_head(const pattern_printer *p) {
  const pattern *of = p->pattern;
  fprintf(p->out, "    heads %lld kv %lld;\n", (long long)of->heads,
          (long long)of->kv_heads);
  if (p->split) fputs("    heads split;\n", p->out);
  fprintf(p->out, "    head_dim %lld value %lld;\n", (long long)of->head_dim,
          (long long)of->value_dim);
  fprintf(p->out, "    dtype %s%s;\n", dil_dtype_name(of->dtype),
          of->fast ? " fast" : "");
  print_scale(p);
  fprintf(p->out, "    combine %s;\n", combine_text[of->combine]);
  print_dropout(p);
  fprintf(p->out, "    gradient %s;\n", of->detached ? "detached" : "exact");
}

void pattern_print(const pattern *p, FILE *out) {
  arena *a = arena_new();
  if (!a) abort();
  pattern_print_within(a, p, out);
  arena_free(a);
}

void pattern_print_within(arena *a, const pattern *p, FILE *out) {
  pattern_printer all = {p, a, out, needs_two_levels(p), has_empty_share(p)};
  fprintf(out, "pattern %s {\n", p->name);
  print_head(&all);
  print_grid(&all);
  for (int32_t k = 0; k < pattern_reads(p); k++)
    if (!is_chosen(p, k)) print_input(&all, k);
  /* A union has its scores above, where alone they may stand. */
  if (p->combine == DIL_COMBINE_UNION)
    print_scores(&all, &p->branch[0], "    score");
  print_sinks(&all, p->sink, p->sink_count, "    sink");
  if (all.keeps_above) print_level(&all, &p->branch[0].keeps[0], "    ");
  for (int32_t b = 0; b < p->branch_count; b++)
    print_branch(&all, &p->branch[b]);
  fputs("}\n", out);
}
