/* hopper_gradient.c - the strategy for gradients on Hopper (sm_90a):
 * templates/hopper/backward.cu.
 *
 * In: a backward plan with at most one score chain. Out: a kernel that makes dQ
 * and one that makes dK and dV, or one for each of these where heads are wide; the
 * same once more for calls with dropout. Where gradients may be added in any
 * order and heads have at most 64 elements, one kernel makes all three (the fused
 * form). All depend on head sizes and a few properties of the passes; the launch
 * brings the pattern, but for masks and scores, which are compiled in. The general
 * kernels of gradients take all other calls. */
#include "hopper_config.h"
#include "runtime/base/arithmetic.h"
#include "runtime/cuda/chips.h"
#include "runtime/tables/hopper_gradient_table.h"
#include <string.h>

typedef struct gradient_config {
  int32_t width; /* heads up to this; for dK and dV half of both sums' widths */
  int32_t rows;  /* of a streamed block */
  int32_t stages; /* of streamed blocks */
  int32_t held;   /* tiles of held rows in shared memory */
  bool turns;     /* warpgroups take turns to issue products */
  int32_t producer, consumer; /* registers of a thread; 0: the template's */
} gradient_config;

enum { GRADIENT_CONFIGS = 7, GRADIENT_WARPGROUPS = 2 };

/* A kernel: what it makes, its name, and its configurations by width. Sums of
 * more than 256 columns leave no registers for dK and dV at once. */
typedef struct gradient_made {
  int32_t makes;
  const char *name;
  gradient_config configs[GRADIENT_CONFIGS]; /* until one of width 0 */
  gradient_config sloped[GRADIENT_CONFIGS];  /* where each pair has a derivative
                                                of its score in a register */
  gradient_config masked[GRADIENT_CONFIGS];  /* where masks decide over pairs */
} gradient_made;

static const gradient_made made_queries = {GRADIENT_Q,
                                           "dq",
                                           {{64, 128, 4, 2, false, 0, 0},
                                            {128, 128, 2, 1, true, 0, 0},
                                            {128, 64, 2, 1, false, 0, 0},
                                            {192, 80, 2, 1, true, 0, 0},
                                            {224, 64, 2, 1, true, 0, 0},
                                            {256, 48, 2, 1, true, 0, 0},
                                            {256, 32, 2, 1, false, 0, 0}},
                                           {{64, 96, 4, 2, false, 0, 0},
                                            {64, 64, 4, 2, false, 0, 0},
                                            {128, 80, 2, 1, true, 0, 0},
                                            {128, 64, 2, 1, false, 0, 0},
                                            {192, 64, 2, 1, true, 0, 0},
                                            {256, 48, 2, 1, true, 0, 0},
                                            {256, 32, 2, 1, false, 0, 0}},
                                           {{64, 128, 4, 2, false, 104, 200},
                                            {64, 64, 4, 2, false, 104, 200},
                                            {64, 64, 4, 2, false, 152, 176},
                                            {128, 64, 2, 1, false, 104, 200},
                                            {128, 64, 2, 1, false, 136, 184},
                                            {128, 32, 2, 1, false, 152, 176}}};
static const gradient_made made_both = {GRADIENT_K | GRADIENT_V,
                                        "dkv",
                                        {{64, 128, 4, 2, false, 0, 0},
                                         {128, 64, 3, 2, true, 0, 0},
                                         {128, 64, 2, 2, true, 0, 0},
                                         {128, 32, 2, 2, false, 0, 0}},
                                        {{64, 80, 4, 2, false, 0, 0},
                                         {64, 64, 4, 2, false, 0, 0},
                                         {128, 48, 3, 2, true, 0, 0},
                                         {128, 32, 3, 2, true, 0, 0},
                                         {128, 32, 2, 2, false, 0, 0}},
                                         {{64, 64, 4, 2, false, 104, 200},
                                          {64, 64, 4, 2, false, 136, 184},
                                          {64, 32, 4, 2, false, 152, 176},
                                          {128, 32, 2, 2, false, 104, 200},
                                          {128, 32, 2, 2, false, 136, 184}}};
static const gradient_made made_keys = {GRADIENT_K,
                                        "dk",
                                        {{192, 80, 2, 1, true, 0, 0},
                                         {224, 64, 2, 1, true, 0, 0},
                                         {256, 48, 2, 1, true, 0, 0},
                                         {256, 32, 2, 1, false, 0, 0}},
                                        {{192, 64, 2, 1, true, 0, 0},
                                         {256, 48, 2, 1, true, 0, 0},
                                         {256, 32, 2, 1, false, 0, 0}},
                                         {{0}}};
/* dV needs no derivatives. */
static const gradient_made made_values = {
    GRADIENT_V,
    "dv",
    {{192, 96, 2, 1, true, 0, 0}, {256, 64, 2, 1, true, 0, 0}},
    {{0}},
    {{0}}};

/* The fused form. Heads of 128 would leave it blocks of 64 rows, with which it is
 * slower than the two kernels (tests/bench/NOTES.md). */
static const gradient_made made_fused = {GRADIENT_Q | GRADIENT_K | GRADIENT_V,
                                         "dqkv",
                                         {{64, 128, 2, 2, false, 0, 0}},
                                         {{0}},
                                         {{0}}};
enum { FUSED_CHUNK = 64 };

/* Whether masks, or different windows of a union, decide over pairs of some
 * pass. */
static bool gradient_asks_pairs(const dil_table *t) {
  bool asks = false;
  for (int32_t p = 0; p < t->pass_count; p++) asks |= hopper_asks_pairs(t, p);
  return asks;
}

static int32_t gradient_round_up(int32_t n) {
  return (n + 31) / 32 * 32;
}
static int32_t gradient_head(const dil_table *t) {
  return gradient_round_up(t->head_dim);
}
static int32_t gradient_value(const dil_table *t) {
  return gradient_round_up(t->value_dim);
}

/* A variant: a kernel, with dropout or without. */
typedef struct gradient_variant {
  const gradient_made *made; /* NULL: there is no such variant */
  bool drops;
} gradient_variant;

static int32_t gradient_width(const dil_table *t, const gradient_made *made) {
  int32_t head = gradient_head(t), wide = gradient_value(t);
  int32_t mean = gradient_round_up((head + wide) / 2);
  if (made == &made_both || made == &made_fused) return mean;
  return (int32_t)maximum(made == &made_values ? wide : head, mean);
}

/* As templates/hopper/backward.cu lays it out: tiles; the facts and words of a
 * stage, its messages and barriers; plans, the other barriers and the slopes of
 * four tiles; dS of the fused form. With masks plans and messages are longer, and
 * with documents plans of keys are. */
static int32_t gradient_bytes(const dil_table *t, const gradient_variant *v,
                              const gradient_config *s) {
  enum { STAGE_REST = 152, REST = 800, SLOPES = 16, SLOPES_REST = 32 };
  enum { MASKS = 768, STAGE_MASKS = 32, DOCUMENTS = 32 };
  enum { HELD_ROWS = 64 * GRADIENT_WARPGROUPS };
  int32_t head = gradient_head(t) * 2, wide = gradient_value(t) * 2;
  bool keys = v->made->makes != GRADIENT_Q, scored = v->made != &made_values;
  int32_t facts = (keys ? s->rows * 8 + 16 : 0) +
                  (v->drops ? (s->rows + HELD_ROWS) * 4 : 0);
  int32_t slopes =
      v->made == &made_fused ? 2 * HELD_ROWS * s->rows * 2 + SLOPES_REST : 0;
  return HELD_ROWS * s->held * (head + (scored ? wide : 0)) + slopes +
         s->stages * (s->rows * (head + wide) + facts + STAGE_REST) + REST +
         (keys ? DOCUMENTS : 0) + (t->scored ? SLOPES : 0) +
         (gradient_asks_pairs(t) ? MASKS + s->stages * STAGE_MASKS : 0);
}

static bool gradient_is_one(const expr *e) {
  return e && ((e->op == EXPR_REAL && e->real == 1) ||
               (e->op == EXPR_INT && e->integer == 1));
}

/* Returns whether the derivative of each score by its product is 1. */
static bool gradient_has_unit_slopes(const plan *p) {
  bool unit = true;
  for (int32_t n = 0; p->table.scored && p->chain[0][n]; n++)
    unit &= gradient_is_one(p->slopes[0].slope[n]);
  return unit || score_kind_of(p) == SCORE_LINEAR;
}

/* The configurations of a variant. */
static const gradient_config *gradient_configs(const plan *p,
                                               const gradient_variant *v) {
  if (gradient_asks_pairs(&p->table)) return v->made->masked;
  if (v->made == &made_values || gradient_has_unit_slopes(p))
    return v->made->configs;
  return v->made->sloped;
}

/* Whether a streamed block of so many rows would hold several of a list's. */
static bool gradient_is_coarse(const plan *p, int32_t rows) {
  enum { SHORT_BLOCK = 64 };
  block_lists l;
  if (rows <= SHORT_BLOCK || !gradient_asks_pairs(&p->table)) return false;
  block_lists_take(p, &l);
  return hopper_has_short_blocks(&l);
}

/* Configuration number `fallback` of a variant; NULL: there is none. */
static const gradient_config *gradient_config_of(const plan *p,
                                                 const gradient_variant *v,
                                                 int32_t fallback) {
  const dil_table *t = &p->table;
  int32_t width = 0;
  if (!v->made) return NULL;
  const gradient_config *list = gradient_configs(p, v);
  for (int32_t i = 0; i < GRADIENT_CONFIGS; i++) {
    const gradient_config *s = &list[i];
    if (s->width < gradient_width(t, v->made) || (width && s->width > width) ||
        gradient_bytes(t, v, s) > HOPPER_SHARED_MOST ||
        gradient_is_coarse(p, s->rows) ||
        (v->made == &made_fused && gradient_head(t) > FUSED_CHUNK))
      continue;
    width = s->width;
    if (fallback-- == 0) return s;
  }
  return NULL;
}

/* f16 with dropout would spill registers. Shards add to the sums of others.
 * Scores and masks have the two kernels. */
static bool gradient_is_fused(const gpu_request *r) {
  const dil_table *t = &r->common.plan->table;
  const gradient_variant v = {&made_fused, false};
  bool spills = t->dtype == DIL_F16 && t->dropout > 0;
  return r->any_order && !r->gradients_of_shards && !spills && !t->scored &&
         !gradient_asks_pairs(t) &&
         gradient_config_of(r->common.plan, &v, 0);
}

static gradient_variant gradient_variant_of(const gpu_request *r,
                                            int32_t number) {
  static const gradient_made *const fused[] = {&made_fused};
  static const gradient_made *const narrow[] = {&made_queries, &made_both};
  static const gradient_made *const wide[] = {&made_queries, &made_keys,
                                              &made_values};
  const dil_table *t = &r->common.plan->table;
  bool is_wide = gradient_head(t) + gradient_value(t) > 256;
  const gradient_made *const *list = is_wide ? wide : narrow;
  int32_t count = is_wide ? 3 : 2;
  if (gradient_is_fused(r)) {
    list = fused;
    count = 1;
  }
  gradient_variant v = {NULL, number >= count};
  if (number < count * (1 + (t->dropout > 0))) v.made = list[number % count];
  return v;
}

static bool hopper_gradient_can(const gpu_request *r, char *reason,
                                size_t size) {
  const char *fast = cuda_chip_fast(r->arch);
  const dil_table *t = &r->common.plan->table;
  hopper_table made;
  if (!fast || strcmp(fast, "hopper")) {
    snprintf(reason, size, "wgmma needs sm_90a");
    return false;
  }
  if (has_score_reads(t)) {
    snprintf(reason, size, "gradients of an input that scores read");
    return false;
  }
  for (int32_t n = 0;; n++) {
    gradient_variant v = gradient_variant_of(r, n);
    const gradient_config *s = gradient_config_of(r->common.plan, &v, 0);
    if (!v.made) return true;
    if (!s) {
      snprintf(reason, size, "gradients of %sa head_dim of %d by %d",
               gradient_asks_pairs(t) ? "masks with " : "", t->head_dim,
               t->value_dim);
      return false;
    }
    for (int32_t p = 0; p < t->pass_count; p++)
      if (!hopper_gradient_table_fill(t, p, v.made != &made_queries, s->rows,
                                      &made, reason, size))
        return false;
  }
}

static void gradient_put_features(const gpu_request *r, bool keys, int32_t rows,
                                  source_text *text) {
  const dil_table *t = &r->common.plan->table;
  char reason[128];
  hopper_table made;
  bool left = false, back = false, some = false, shifts = false, nested = true;
  bool each = false;
  launch_layout layout = layout_of(t, false);
  if (!r->gradients_of_shards) layout_add_phases(&layout, t);
  for (int32_t p = 0; p < t->pass_count; p++) {
    if (!hopper_gradient_table_fill(t, p, keys, rows, &made, reason,
                                    sizeof reason))
      continue;
    layout_add(&layout, &made);
    nested &= hopper_is_nested(t, t->passes[p].branches);
    shifts |= made.relative || made.period != made.interval;
    for (int32_t i = 0; i < made.class_count; i++)
      each |= made.classes[i].phases > 1;
    for (int32_t i = 0; i < made.range_count; i++) {
      left |= made.ranges[i].left < HOPPER_FAR;
      back |= made.ranges[i].right < 0;
      some |= made.ranges[i].row_low > -HOPPER_FAR ||
              made.ranges[i].row_high < HOPPER_FAR;
    }
  }
  hopper_put_layout(&layout, text);
  put(text, "#define NESTED %d\n#define SHIFTS %d\n#define LEFT_WINDOWS %d\n",
      nested, shifts, left);
  put(text, "#define BACK_WINDOWS %d\n#undef ROW_RANGES\n", back);
  put(text, "#define ROW_RANGES %d\n", some);
  put(text, "#define EACH_PHASE %d\n#define SUMS %d\n#define MARKS %d\n", each,
      t->pass_count > 1 || r->gradients_of_shards, r->gradients_of_shards);
}

/* Whether some predicate has a range of rows or of keys. */
static bool gradient_has_bounds(const dil_table *t) {
  bool some = has_row_ranges(t);
  for (int32_t i = 0; i < t->predicate_count; i++)
    some |= t->predicates[i].key_first > 0 ||
            dil_predicate_end(&t->predicates[i]) < INT32_MAX;
  return some;
}

/* Writes what decides over pairs, where masks do. */
static void gradient_put_masks(const plan *p, bool keys, source_text *text) {
  bool asks = gradient_asks_pairs(&p->table);
  if (!asks) return;
  put(text, "#define PAIRWISE 1\n#define BITS_TURNED %d\n", keys);
  put(text, "#define PAIR_BOUNDS %d\n", gradient_has_bounds(&p->table));
  put_cover(text, p);
  put_mask_bits(text, p);
  put_key_spans(text, p);
}

/* Writes the plan's expressions, in front of the other macros. */
static void gradient_put_plan(const plan *p, source_text *text) {
  if (!p->table.scored && !gradient_asks_pairs(&p->table)) return;
  put(text, "#define EAGER 1\n");
  put_tables(text, p);
  put_expressions(text, p);
  if (!p->table.scored) {
    put(text, "#undef DROPOUT\n");
    return;
  }
  put_slopes(text, p);
  put_score_form(text, p);
  put(text, "#define UNIT_SLOPES %d\n#undef DROPOUT\n",
      gradient_has_unit_slopes(p));
}

/* Whether the kernel takes packed calls. */
static bool gradient_takes_documents(const gpu_request *r, const gradient_variant *v) {
  const plan *p = r->common.plan;
  return hopper_config_is_nested(&p->table) && !gradient_asks_pairs(&p->table) &&
         !v->drops && v->made != &made_fused && !r->gradients_of_shards &&
         !reads_batch_row(p);
}

static void gradient_describe(const gpu_request *r, const gradient_variant *v,
                              const gradient_config *s, dil_cuda_code *code) {
  const dil_table *t = &r->common.plan->table;
  *code = (dil_cuda_code){.family = v->made == &made_fused ? "hopper fused"
                                                           : "hopper gradient",
                          .arch = r->arch,
                          .threads = 128 * (GRADIENT_WARPGROUPS + 1),
                          .shared = gradient_bytes(t, v, s),
                          .tile_rows = 64 * GRADIENT_WARPGROUPS,
                          .tile_keys = s->rows,
                          .knob = {[GRADIENT_KNOB_MAKES] = v->made->makes,
                                   [GRADIENT_KNOB_DROPS] = v->drops,
                                   [GRADIENT_KNOB_SHARDS] =
                                       r->gradients_of_shards,
                                   [GRADIENT_KNOB_DOCUMENTS] =
                                       gradient_takes_documents(r, v)}};
  snprintf(code->variant, sizeof code->variant,
           "hopper gradient %s %s%s%s%s %dx%d d%d", v->made->name,
           gradient_asks_pairs(t) ? "pairs " : "", t->scored ? "scores " : "",
           v->drops ? "dropout " : "",
           dil_dtype_name(t->dtype), code->tile_rows, s->rows, t->head_dim);
}

static bool hopper_gradient_write(const gpu_request *r, int32_t variant,
                                  int32_t fallback, dil_cuda_code *code,
                                  source_text *text) {
  const dil_table *t = &r->common.plan->table;
  gradient_variant v = gradient_variant_of(r, variant);
  const gradient_config *s =
      gradient_config_of(r->common.plan, &v, fallback);
  if (!s) return false;
  gradient_describe(r, &v, s, code);
  gradient_put_plan(r->common.plan, text);
  put(text, "#define MAKES %d\n#define ELEMENT %d\n", v.made->makes,
      t->dtype == DIL_BF16 ? 1 : 2);
  hopper_put_widths(t, text);
  put(text, "#define HEAD_DIM %d\n#define VALUE_DIM %d\n", t->head_dim,
      t->value_dim);
  put(text, "#define WARPGROUPS %d\n#define TILE_KEYS %d\n#define STAGES %d\n",
      GRADIENT_WARPGROUPS, s->rows, s->stages);
  put(text, "#define QUERY_STAGES %d\n#define PINGPONG %d\n", s->held,
      s->turns);
  put(text, "#define SHARED_LIMIT %d\n#define DOCUMENTS %d\n", code->shared,
      code->knob[GRADIENT_KNOB_DOCUMENTS]);
  put(text, "#define DROPS %d\n#define DROPOUT %lluu\n", v.drops,
      (unsigned long long)(t->dropout * 4294967296.0));
  if (s->producer)
    put(text, "#define PRODUCER_REGISTERS %d\n#define CONSUMER_REGISTERS %d\n",
        s->producer, s->consumer);
  gradient_put_features(r, v.made != &made_queries, s->rows, text);
  gradient_put_masks(r->common.plan, v.made != &made_queries, text);
  put_template(text, "templates/hopper/backward.cu");
  return true;
}

static bool hopper_gradient_propose(int32_t index, knobs *k) {
  (void)index;
  (void)k;
  return false;
}

const gpu_strategy strategy_hopper_gradient = {
    "hopper gradient", 0, hopper_gradient_can, hopper_gradient_write,
    hopper_gradient_propose};
