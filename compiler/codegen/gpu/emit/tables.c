/* tables.c - the plan's numbers as macros and tables of CUDA C, see
 * templates/shared/plan.cuh. Lengths are clamped to FAR_SIZE, the most
 * positions that a call may have: beyond it they mean the same. */
#include "emit.h"

enum { FAR_SIZE = 1 << 30 };

static int64_t clamped(int64_t x) {
  return x < FAR_SIZE ? x : FAR_SIZE;
}

static void put_number(source_text *s, const char *name, int64_t x) {
  put(s, "#define %s %lld\n", name, (long long)x);
}

bool has_multiplicity(const dil_table *t) {
  return t->branch_count > 1 && t->dedup && t->combine == DIL_COMBINE_SOFTMAX;
}

static bool is_masked(const dil_table *t) {
  bool masked = false;
  for (int32_t i = 0; i < t->predicate_count; i++)
    masked |= t->predicates[i].masked;
  return masked;
}

static bool has_each(const dil_table *t) {
  bool some = false;
  for (int32_t b = 0; b < t->branch_count; b++) some |= t->branches[b].each;
  return some;
}

bool has_row_ranges(const dil_table *t) {
  bool some = false;
  for (int32_t i = 0; i < t->predicate_count; i++)
    some |= dil_predicate_has_rows(&t->predicates[i]);
  return some;
}

static void put_sizes(source_text *s, const plan *p) {
  static const int element[DIL_DTYPE_COUNT] = {
      [DIL_F32] = 0, [DIL_BF16] = 1, [DIL_F16] = 2};
  const dil_table *t = &p->table;
  put_number(s, "HEADS", t->heads);
  put_number(s, "KV_HEADS", t->kv_heads);
  put_number(s, "HEAD_DIM", t->head_dim);
  put_number(s, "VALUE_DIM", t->value_dim);
  put_number(s, "ELEMENT", element[t->dtype]);
  put_number(s, "FAST", p->pattern->fast);
  put_number(s, "COMBINE", t->combine);
  put_number(s, "SCORED", t->scored);
  put_number(s, "HIDING", is_hiding(p));
  put_number(s, "MASKED", is_masked(t));
  put_number(s, "ROW_RANGES", has_row_ranges(t));
  put_number(s, "DEDUP", t->dedup || t->combine == DIL_COMBINE_UNION);
  put_number(s, "MULTIPLICITY", has_multiplicity(t));
  put_number(s, "SINKS", t->sinks);
  put(s, "#define SINK_BRANCHES 0x%llxull\n",
      (unsigned long long)t->sink_branches);
  put(s, "#define DROPOUT %lluu\n",
      (unsigned long long)(t->dropout * 4294967296.0));
  put(s, "#define DROPOUT_KEPT %.9ef\n", 1 / (1 - t->dropout));
  put_number(s, "EACH", has_each(t));
  put_number(s, "BRANCHES", t->branch_count);
  put_number(s, "PASSES", t->pass_count);
  put_number(s, "PREDICATES", t->predicate_count ? t->predicate_count : 1);
  put_number(s, "INPUTS", dil_table_reads(t));
  put_number(s, "MADE_TABLES", t->made_count);
}

static void put_branches(source_text *s, const dil_table *t) {
  put(s, "PLAN_TABLE dil_branch_row dil_branches[BRANCHES] = {\n");
  for (int32_t b = 0; b < t->branch_count; b++) {
    const dil_branch *row = &t->branches[b];
    put(s, "  {%lld, %lld, %d, %d, %d, %d, %lld},\n",
        (long long)clamped(row->segment), (long long)clamped(row->dilation),
        row->head_first, row->head_last, row->predicate, row->chain,
        row->each ? (long long)clamped(row->shift) : -1);
  }
  put(s, "};\n__device__ const int dil_phases[BRANCHES * HEADS] = {\n");
  for (int32_t b = 0; b < t->branch_count; b++) {
    put(s, " ");
    for (int32_t h = 0; h < t->heads; h++)
      put(s, " %lld,", (long long)clamped(t->branches[b].phase[h]));
    put(s, "\n");
  }
  put(s, "};\n");
}

static void put_passes(source_text *s, const dil_table *t) {
  put(s, "PLAN_TABLE dil_pass_row dil_passes[PASSES] = {\n");
  for (int32_t i = 0; i < t->pass_count; i++)
    put(s, "  {0x%llxull, %lld, %d},\n",
        (unsigned long long)t->passes[i].branches,
        (long long)clamped(t->passes[i].period),
        dil_pass_list(t, &t->passes[i]));
  put(s, "};\n");
}

static void put_inputs(source_text *s, const dil_table *t) {
  static const char *const kind[DIL_DTYPE_COUNT] = {
      [DIL_F32] = "F32", [DIL_BF16] = "BF16", [DIL_F16] = "F16",
      [DIL_I32] = "I32", [DIL_U8] = "U8"};
  put(s, "__constant__ dil_input_row dil_inputs[%d] = {\n",
      dil_table_reads(t) ? dil_table_reads(t) : 1);
  for (int32_t i = 0; i < dil_table_reads(t); i++)
    put(s, "  {DIL_INPUT_%s, %d, %d, %d, %d, %d},\n", kind[t->inputs[i].dtype],
        t->inputs[i].rank, t->inputs[i].rows, t->inputs[i].cols,
        t->inputs[i].keys, t->inputs[i].spans);
  put(s, dil_table_reads(t) ? "};\n" : "  {0, 0, 0, 0, 0, 0}};\n");
}

static int64_t bound(int64_t x) { return x < INT32_MAX ? x : INT32_MAX; }

/* Without a first row the range has rows before position 0. */
static int64_t row_bound(int64_t x) { return x > 0 ? bound(x) : -INT32_MAX; }

static void put_predicates(source_text *s, const dil_table *t) {
  put(s, "PLAN_TABLE dil_predicate_row dil_predicates[%d] = {\n",
      t->predicate_count ? t->predicate_count : 1);
  for (int32_t i = 0; i < t->predicate_count; i++)
    put(s, "  {%lld, %lld, %d, %lld, %lld, %lld, %lld},\n",
        (long long)bound(t->predicates[i].left),
        (long long)bound(t->predicates[i].right), t->predicates[i].masked,
        (long long)bound(t->predicates[i].key_first),
        (long long)bound(dil_predicate_end(&t->predicates[i])),
        (long long)row_bound(t->predicates[i].row_first),
        (long long)bound(dil_predicate_row_end(&t->predicates[i])));
  put(s, t->predicate_count ? "};\n"
                            : "  {DIL_FAR, DIL_FAR, 0, 0, DIL_FAR, -DIL_FAR, "
                              "DIL_FAR}};\n");
}

void put_tables(source_text *s, const plan *p) {
  put(s, "#define DIL_PLAN 1\n#include \"templates/shared/plan.cuh\"\n#include "
         "\"templates/shared/pair.cuh\"\n");
  put(s, "#line 1 \"tables of %s\"\n", p->table.name);
  put_sizes(s, p);
  put_branches(s, &p->table);
  put_passes(s, &p->table);
  put_predicates(s, &p->table);
  put_inputs(s, &p->table);
}
