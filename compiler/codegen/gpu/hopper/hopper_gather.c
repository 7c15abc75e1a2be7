/* hopper_gather.c - the strategies for rows that choose blocks of keys, each for itself,
 * on Hopper (sm_90a): templates/hopper/gather.cu, and gather_backward.cu for gradients.
 *
 * In: a plan with one branch, whose choice (`keep top`, `keep mass`) alone decides over
 * pairs, besides causality. Out: kernels that depend on head sizes, element type and
 * the size of blocks of keys. Other strategies take the calls that they refuse. */
#include "hopper_config.h"
#include "runtime/base/arithmetic.h"
#include "runtime/cuda/chips.h"
#include "runtime/rowset/walk.h"
#include "templates/hopper/gather_launch.h"
#include <string.h>

enum { WARPGROUPS = 2, QUERY_STAGES = 2, ROWS = 64 * WARPGROUPS };
enum { KEYS_LEAST = 64, KEYS_MOST = 128, WIDTH_MOST = 128, SHARED_MOST = 232448 };

/* Keys of a visit, so that those of a block fill their visits. */
static int32_t gather_keys(int32_t block) {
  int32_t visits = (block + KEYS_MOST - 1) / KEYS_MOST;
  int32_t keys = (int32_t)round_up((block + visits - 1) / visits, 16);
  return keys < KEYS_LEAST ? KEYS_LEAST : keys;
}

/* The shared memory of a thread block, as templates/hopper/gather.cu lays it out:
 * items, barriers and messages have less than the last number. */
static int32_t gather_bytes(const dil_table *t, int32_t keys, int32_t stages) {
  int32_t q = hopper_width(t->head_dim) * 2, v = hopper_width(t->value_dim) * 2;
  return ROWS * QUERY_STAGES * (q + 8) + stages * keys * (q + v) + 512;
}

static int32_t gather_stages(const dil_table *t, int32_t keys) {
  int32_t stages = 4;
  while (stages > 2 && gather_bytes(t, keys, stages) > SHARED_MOST) stages--;
  return stages;
}

static const dil_choice *gather_choice(const dil_table *t) {
  return t->choice_count == 1 && t->choices[0].alone ? &t->choices[0] : NULL;
}

static bool gather_has_window(const dil_predicate *p) {
  bool causal = p->right == 0 || p->right == DIL_ENDLESS;
  return p->left != DIL_ENDLESS || !causal || dil_predicate_has_range(p);
}

static const char *gather_refusal(const dil_table *t) {
  const dil_choice *c = gather_choice(t);
  if (!c || c->query_block != 1) return "no rows that choose blocks alone";
  const dil_branch *b = &t->branches[c->branch];
  if (t->inputs[c->rows + 2].cell[0]) return "blocks of cells";
  if (t->dtype == DIL_F32) return "f32";
  if (t->head_dim % 8 || t->value_dim % 8)
    return "a head_dim that is no multiple of 8";
  if (t->head_dim > WIDTH_MOST || t->value_dim > WIDTH_MOST)
    return "heads of more than 128 elements";
  if (!hopper_is_whole(t)) return "segments, or several branches";
  if (gather_has_window(&t->predicates[b->predicate])) return "a window";
  if (t->scored) return "scores";
  return NULL;
}

static bool gather_says(const gpu_request *r, const char *refusal, char *reason,
                        size_t size) {
  const char *fast = cuda_chip_fast(r->arch);
  if (!fast || strcmp(fast, "hopper")) refusal = "wgmma needs sm_90a";
  else if (r->knobs) refusal = "a schedule's tiles hold neighbouring rows";
  if (refusal) snprintf(reason, size, "%s", refusal);
  return !refusal;
}

static bool gather_can(const gpu_request *r, char *reason, size_t size) {
  return gather_says(r, gather_refusal(&r->common.plan->table), reason, size);
}

static void gather_put_plan(const gpu_request *r, int32_t keys, int32_t stages,
                            source_text *text) {
  const dil_table *t = &r->common.plan->table;
  hopper_put_widths(t, text);
  put(text, "#define WARPGROUPS %d\n#define TILE_KEYS %d\n#define STAGES %d\n",
      WARPGROUPS, keys, stages);
  put(text, "#define CAUSAL %d\n", gather_choice(t)->right == 0);
  put_tables(text, r->common.plan);
  if (t->sinks) put_expressions(text, r->common.plan);
  put(text, "#undef DROPOUT\n#define DROPOUT 0\n");
}

static bool gather_write(const gpu_request *r, int32_t variant, int32_t fallback,
                         dil_cuda_code *code, source_text *text) {
  const dil_table *t = &r->common.plan->table;
  const dil_choice *c = gather_choice(t);
  if (variant || fallback) return false;
  int32_t keys = gather_keys(c->block), stages = gather_stages(t, keys);
  *code = (dil_cuda_code){.family = "hopper_gather",
                          .arch = r->arch,
                          .passes = 1,
                          .threads = 128 * (WARPGROUPS + 1),
                          .shared = gather_bytes(t, keys, stages),
                          .tile_rows = ROWS,
                          .tile_keys = keys};
  snprintf(code->variant, sizeof code->variant, "hopper gather %s %dx%d d%d",
           dil_dtype_name(t->dtype), ROWS, keys, t->head_dim);
  gather_put_plan(r, keys, stages, text);
  put_template(text, "templates/hopper/gather.cu");
  return true;
}

/* There is nothing to tune. */
static bool gather_propose(int32_t index, knobs *k) {
  (void)index;
  (void)k;
  return false;
}

const gpu_strategy strategy_hopper_gather = {"hopper gather", 0, gather_can,
                                             gather_write, gather_propose};

/* ---- gradients ----------------------------------------------------------- */

/* A kernel of gradients: what it makes, the widest rows of a streamed block, and what
 * follows from the width of heads. */
typedef struct gather_gradient {
  int32_t makes;
  const char *name;
  int32_t keys, stages, held;
  bool turns;
} gather_gradient;

enum { NARROW = 64 };

/* Kernel number `variant` of a plan; `makes` 0: there is none. */
static gather_gradient gather_gradient_of(const dil_table *t, int32_t variant) {
  static const gather_gradient all[2][2] = {
      {{GRADIENT_Q, "dq", 128, 4, 2, false},
       {GRADIENT_K | GRADIENT_V, "dkv", 128, 4, 2, false}},
      {{GRADIENT_Q, "dq", 128, 2, 1, true},
       {GRADIENT_K | GRADIENT_V, "dkv", 64, 4, 1, true}}};
  if (variant > 1) return (gather_gradient){0};
  bool wide = t->head_dim > NARROW || t->value_dim > NARROW;
  gather_gradient made = all[wide][variant];
  if (made.makes == GRADIENT_Q) made.keys = gather_keys(gather_choice(t)->block);
  return made;
}

/* As templates/hopper/gather_backward.cu lays it out: tiles, their items, facts of
 * streamed rows; messages and barriers have less than the last number. */
static int32_t gather_gradient_bytes(const dil_table *t, const gather_gradient *s) {
  enum { ITEMS = 4 * ROWS * 8, REST = 1024 };
  int32_t row = (hopper_width(t->head_dim) + hopper_width(t->value_dim)) * 2;
  bool keys = s->makes != GRADIENT_Q;
  return s->held * ROWS * row + s->stages * s->keys * row +
         (keys ? s->stages * (s->keys * 12 + 16) : ITEMS) + REST;
}

static bool gather_gradient_can(const gpu_request *r, char *reason, size_t size) {
  const dil_table *t = &r->common.plan->table;
  const char *refusal = gather_refusal(t);
  if (!refusal && t->dropout > 0) refusal = "dropout";
  if (!refusal && backward_asks_states(t)) refusal = "a softmax for each branch";
  if (!refusal && r->gradients_of_shards) refusal = "shards";
  return gather_says(r, refusal, reason, size);
}

static bool gather_gradient_write(const gpu_request *r, int32_t variant,
                                  int32_t fallback, dil_cuda_code *code,
                                  source_text *text) {
  const dil_table *t = &r->common.plan->table;
  const gather_gradient s = gather_gradient_of(t, variant);
  const launch_layout layout = layout_of(t, false);
  if (!s.makes || fallback) return false;
  *code = (dil_cuda_code){.family = "gather gradient",
                          .arch = r->arch,
                          .threads = 128 * (WARPGROUPS + 1),
                          .shared = gather_gradient_bytes(t, &s),
                          .tile_rows = ROWS,
                          .tile_keys = s.keys,
                          .knob = {[GRADIENT_KNOB_MAKES] = s.makes}};
  snprintf(code->variant, sizeof code->variant, "hopper gather gradient %s %s %dx%d d%d",
           s.name, dil_dtype_name(t->dtype), ROWS, s.keys, t->head_dim);
  put(text, "#define MAKES %d\n#define QUERY_STAGES %d\n#define PINGPONG %d\n",
      s.makes, s.held, s.turns);
  put(text, "#define SHARED_LIMIT %d\n", code->shared);
  hopper_put_layout(&layout, text);
  gather_put_plan(r, s.keys, s.stages, text);
  put_template(text, "templates/hopper/gather_backward.cu");
  return true;
}

const gpu_strategy strategy_gather_gradient = {
    "gather gradient", 0, gather_gradient_can, gather_gradient_write, gather_propose};
