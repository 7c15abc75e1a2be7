/* choices.c - `keep top` and `keep mass` as CUDA C. In: a plan. Out: a row of
 * numbers for each choice, and what other keeps say of a pair of blocks, for
 * templates/general/choose.cuh. */
#include "emit.h"

static bool level_chooses(const keeps *level) {
  for (int32_t k = 0; k < level->count; k++)
    if (level->keep[k].kind != KEEP_EXPR) return true;
  return false;
}

/* Whether some keep of the level but the choice holds; `none`, where it has no
 * other. */
static void put_level(source_text *s, const plan *p, const keeps *level,
                      const char *none) {
  int32_t count = 0;
  put(s, "(");
  for (int32_t k = 0; k < level->count; k++) {
    if (level->keep[k].kind != KEEP_EXPR) continue;
    put(s, "%s(", count++ ? " || " : "");
    put_condition(s, p, level->keep[k].condition);
    put(s, ")");
  }
  put(s, "%s)", count ? "" : none);
}

static void put_others(source_text *s, const plan *p) {
  put(s, "DIL_INLINE bool dil_others_leave(int choice, int i, int j, "
         "const dil_pair &at) {\n  switch (choice) {\n");
  for (int32_t c = 0; c < p->table.choice_count; c++) {
    const branch *of = &p->pattern->branch[p->table.choices[c].branch];
    bool first = level_chooses(&of->keeps[0]);
    put(s, "  case %d: return !", c);
    put_level(s, p, &of->keeps[first ? 0 : 1], "false");
    put(s, " && ");
    put_level(s, p, &of->keeps[first ? 1 : 0], "true");
    put(s, ";\n");
  }
  put(s, "  default: return true;\n  }\n}\n");
}

static long long clamped(int64_t x) {
  return x < INT32_MAX ? (long long)x : INT32_MAX;
}

/* The cells of a choice's blocks and of the grid, three axes each. */
static void put_cells(source_text *s, const dil_table *t, const dil_choice *c) {
  const dil_input *lists = &t->inputs[c->rows];
  int32_t more = DIL_GRID_AXES - t->grid.axes;
  bool cells = lists->cell[0] > 0;
  put(s, "{");
  for (int32_t a = 0; a < DIL_GRID_AXES; a++)
    put(s, "%s%lld", a ? ", " : "",
        !cells ? 0 : a < more ? 1 : (long long)lists->cell[a - more]);
  put(s, "}, {");
  for (int32_t a = 0; a < DIL_GRID_AXES; a++)
    put(s, "%s%lld", a ? ", " : "",
        !cells ? 0 : a < more ? 1 : (long long)t->grid.extent[a - more]);
  put(s, "}");
}

/* Whether a window alone says which keys a row of any head may see. */
static bool sees_by_window(const dil_table *t, const dil_branch *b) {
  return b->segment == 0 && b->dilation == 1 && b->head_first == 0 &&
         b->head_last + 1 == t->heads;
}

/* Templates leave out the code that no choice of the plan needs. */
static void put_kinds(source_text *s, const dil_table *t) {
  bool each = false, means = false, cells = false, plain = true, coarse = false;
  for (int32_t k = 0; k < t->choice_count; k++) {
    const dil_choice *c = &t->choices[k];
    bool rows = c->estimate == DIL_ESTIMATE_EACH;
    each |= rows;
    coarse |= rows && c->query_block > 1 && c->share <= 0 && !c->shared;
    means |= c->estimate == DIL_ESTIMATE_MEAN;
    cells |= t->inputs[c->rows].cell[0] > 0;
    plain = plain && c->alone && sees_by_window(t, &t->branches[c->branch]);
  }
  put(s, "#define CHOICES_EACH %d\n#define CHOICES_MEANS %d\n", each, means);
  put(s, "#define CHOICES_CELLS %d\n#define CHOICES_COARSE %d\n", cells, coarse);
  put(s, "#define CHOICES_PLAIN %d\n", plain && !cells);
}

/* The numbers of a single choice are constants of the kernel: the host cannot write to
 * memory that is const, so that the compiler may read it. */
void put_choices(source_text *s, const plan *p, bool wgmma) {
  const dil_table *t = &p->table;
  put(s, "#define CHOICES %d\n", t->choice_count);
  if (!t->choice_count) return;
  put_kinds(s, t);
  put(s, "#define CHOICES_WGMMA %d\n", wgmma);
  put(s, "#include \"templates/shared/choice_row.cuh\"\n"
         "#line 1 \"choices of %s\"\n"
         "%s dil_choice_row dil_choices[CHOICES] = {\n", t->name,
      t->choice_count == 1 ? "__device__ const" : "__constant__");
  for (int32_t k = 0; k < t->choice_count; k++) {
    const dil_choice *c = &t->choices[k];
    put(s, "  {%d, %d, %lld, %lld, %lld, %lld, %d, %d, %d, %d, ", c->branch,
        c->rows, (long long)c->query_block, (long long)c->block,
        clamped(c->left), clamped(c->right), c->most, c->estimate, c->gate,
        c->shared ? t->heads / t->kv_heads : 1);
    put_cells(s, t, c);
    put(s, ", %.17g},\n", c->share);
  }
  put(s, "};\n");
  put_others(s, p);
}
