/* hopper_block_list.c - the strategies for lists of kept blocks on Hopper (sm_90a):
 * templates/hopper/block_list.cu, and block_list_backward.cu for gradients.
 *
 * In: a plan with one branch, of whose mask conditions on blocks of 64 positions or
 * multiples of them are all, besides causality and windows. Out: a kernel that depends
 * on head sizes, element type, the sizes of blocks and the window. Other strategies take
 * the calls that it refuses. */
#include "hopper_config.h"
#include "runtime/base/arithmetic.h"
#include "runtime/cuda/chips.h"
#include "runtime/rowset/walk.h"
#include "templates/hopper/block_list_launch.h"
#include <string.h>

/* A configuration for heads of at most `width`. Those of one width are in order of
 * preference: visits of 128 keys leave a producing warp 32 registers, which are too few
 * for some windows and blocks. */
typedef struct list_config {
  int32_t width, warpgroups, keys, stages;
} list_config;

static const list_config configs[] = {{64, 3, 128, 2}, {64, 3, 64, 4}, {128, 2, 64, 3}};

/* The shared memory of a thread block, as templates/hopper/block_list.cu lays it out:
 * `rest` holds messages, barriers and the blocks of some words of a list. */
static int32_t list_bytes(const dil_table *t, const list_config *s) {
  int32_t q = hopper_width(t->head_dim) * 2, v = hopper_width(t->value_dim) * 2;
  int32_t rest = s->warpgroups == 2 ? 1024 : 3072;
  int32_t group = BLOCK_LIST_ROWS * q + s->stages * s->keys * (q + v) + rest;
  return s->warpgroups * (int32_t)round_up(group, 1024);
}

static const list_config *list_config_of(const dil_table *t, int32_t fallback) {
  int32_t size = t->head_dim > t->value_dim ? t->head_dim : t->value_dim;
  int32_t count = sizeof configs / sizeof *configs, first = 0;
  while (first < count && configs[first].width < size) first++;
  int32_t i = first + fallback;
  return i < count && configs[i].width == configs[first].width ? &configs[i] : NULL;
}

/* Why neither direction takes a plan; NULL: both do. */
static const char *list_refusal(const plan *p, block_lists *l) {
  const dil_table *t = &p->table;
  const dil_branch *b = &t->branches[0];
  if (!hopper_is_whole(t)) return "segments, or several branches";
  if (b->predicate < 0) return "no lists of blocks";
  block_lists_take(p, l);
  const dil_predicate *rest = &l->rest.table.predicates[b->predicate];
  if (l->of[b->predicate] < 0) return "no lists of blocks";
  if (rest->masked || dil_predicate_has_range(rest)) return "a mask beside the blocks";
  if (l->list[0].query_block % BLOCK_LIST_ROWS || l->list[0].block % BLOCK_LIST_ROWS)
    return "blocks that are no multiples of 64";
  if (t->dtype == DIL_F32) return "f32";
  if (t->head_dim % 8 || t->value_dim % 8)
    return "a head_dim that is no multiple of 8";
  if (t->scored) return "scores";
  return list_config_of(t, 0) ? NULL : "heads of more than 128 elements";
}

static bool list_says(const gpu_request *r, const char *refusal, char *reason,
                      size_t size) {
  const char *fast = cuda_chip_fast(r->arch);
  if (!fast || strcmp(fast, "hopper")) refusal = "wgmma needs sm_90a";
  else if (r->knobs) refusal = "a schedule's tiles are of all warpgroups";
  if (refusal) snprintf(reason, size, "%s", refusal);
  return !refusal;
}

static bool list_can(const gpu_request *r, char *reason, size_t size) {
  block_lists l;
  const char *refusal = list_refusal(r->common.plan, &l);
  if (!refusal && !hopper_has_short_blocks(&l))
    refusal = "blocks that fill the tiles of warpgroups";
  return list_says(r, refusal, reason, size);
}

/* A call has at most HOPPER_FAR rows. */
static void list_put_bound(source_text *text, const char *name, int64_t bound) {
  if (bound >= HOPPER_FAR) put(text, "#define WINDOW_%s DIL_FAR\n", name);
  else put(text, "#define WINDOW_%s %d\n", name, (int)maximum(bound, -HOPPER_FAR));
}

static void list_put_plan(const plan *p, dil_cuda_code *code, source_text *text) {
  block_lists l;
  const dil_table *t = &p->table;
  const dil_predicate *window = &t->predicates[t->branches[0].predicate];
  block_lists_take(p, &l);
  hopper_put_list_knobs(&l, code);
  hopper_put_widths(t, text);
  put(text, "#define QUERY_BLOCK %d\n#define KEY_BLOCK %d\n",
      l.list[0].query_block, l.list[0].block);
  put_tables(text, &l.rest);
  if (t->sinks) put_expressions(text, &l.rest);
  list_put_bound(text, "LEFT", window->left);
  list_put_bound(text, "RIGHT", window->right);
  put_block_lists(text, &l);
  put(text, "#undef DROPOUT\n#define DROPOUT 0\n");
}

static bool list_write(const gpu_request *r, int32_t variant, int32_t fallback,
                       dil_cuda_code *code, source_text *text) {
  const dil_table *t = &r->common.plan->table;
  const list_config *s = list_config_of(t, fallback);
  if (variant || !s) return false;
  *code = (dil_cuda_code){.family = "hopper_block_list",
                          .arch = r->arch,
                          .passes = 1,
                          .threads = 128 * (s->warpgroups + 1),
                          .shared = list_bytes(t, s),
                          .tile_rows = BLOCK_LIST_ROWS,
                          .tile_keys = BLOCK_LIST_ROWS}; /* a unit */
  snprintf(code->variant, sizeof code->variant, "hopper lists %s %dx%dx%d d%d",
           dil_dtype_name(t->dtype), s->warpgroups, BLOCK_LIST_ROWS, s->keys,
           t->head_dim);
  put(text, "#define WARPGROUPS %d\n#define TILE_KEYS %d\n#define STAGES %d\n",
      s->warpgroups, s->keys, s->stages);
  list_put_plan(r->common.plan, code, text);
  put_template(text, "templates/hopper/block_list.cu");
  return true;
}

/* There is nothing to tune. */
static bool list_propose(int32_t index, knobs *k) {
  (void)index;
  (void)k;
  return false;
}

const gpu_strategy strategy_hopper_block_list = {"hopper lists", 0, list_can,
                                                 list_write, list_propose};

/* ---- gradients ----------------------------------------------------------- */

/* A kernel of gradients: what it makes; warpgroups, each with tiles of its own, and
 * stages of units. The sums of dK and dV leave three warpgroups no registers. */
typedef struct list_gradient {
  int32_t makes;
  const char *name;
  int32_t warpgroups, stages;
} list_gradient;

/* Kernel number `variant` of a plan. */
static const list_gradient *list_gradient_of(const dil_table *t, int32_t variant) {
  enum { NARROW = 64 };
  static const list_gradient all[2][2] = {
      {{GRADIENT_Q, "dq", 3, 3}, {GRADIENT_K | GRADIENT_V, "dkv", 2, 4}},
      {{GRADIENT_Q, "dq", 2, 2}, {GRADIENT_K | GRADIENT_V, "dkv", 2, 2}}};
  return &all[t->head_dim > NARROW || t->value_dim > NARROW][variant];
}

/* As templates/hopper/block_list_backward.cu lays it out: a tile, units and their facts;
 * messages, barriers and the blocks of some words have less than the last number. */
static int32_t list_gradient_bytes(const dil_table *t, const list_gradient *s) {
  enum { FACTS = BLOCK_LIST_ROWS * 8 + 16, REST = 1280 };
  int32_t row = (hopper_width(t->head_dim) + hopper_width(t->value_dim)) * 2;
  int32_t unit = BLOCK_LIST_ROWS * row + (s->makes == GRADIENT_Q ? 0 : FACTS);
  int32_t group = BLOCK_LIST_ROWS * row + s->stages * unit + REST;
  return s->warpgroups * (int32_t)round_up(group, 1024);
}

static bool list_gradient_can(const gpu_request *r, char *reason, size_t size) {
  block_lists l;
  const dil_table *t = &r->common.plan->table;
  const char *refusal = list_refusal(r->common.plan, &l);
  if (!refusal && t->dropout > 0) refusal = "dropout";
  if (!refusal && backward_asks_states(t)) refusal = "a softmax for each branch";
  if (!refusal && r->gradients_of_shards) refusal = "shards";
  return list_says(r, refusal, reason, size);
}

static bool list_gradient_write(const gpu_request *r, int32_t variant, int32_t fallback,
                                dil_cuda_code *code, source_text *text) {
  const dil_table *t = &r->common.plan->table;
  const launch_layout layout = layout_of(t, false);
  if (variant > 1 || fallback) return false;
  const list_gradient *s = list_gradient_of(t, variant);
  *code = (dil_cuda_code){.family = "list gradient",
                          .arch = r->arch,
                          .threads = 128 * (s->warpgroups + 1),
                          .shared = list_gradient_bytes(t, s),
                          .tile_rows = BLOCK_LIST_ROWS,
                          .tile_keys = BLOCK_LIST_ROWS, /* a unit */
                          .knob = {[GRADIENT_KNOB_MAKES] = s->makes}};
  snprintf(code->variant, sizeof code->variant, "hopper list gradient %s %s %dx%dx%d d%d",
           s->name, dil_dtype_name(t->dtype), s->warpgroups, BLOCK_LIST_ROWS,
           BLOCK_LIST_ROWS, t->head_dim);
  put(text, "#define MAKES %d\n#define CONSUMERS %d\n#define STAGES %d\n",
      s->makes, s->warpgroups, s->stages);
  put(text, "#define SHARED_LIMIT %d\n", code->shared);
  hopper_put_layout(&layout, text);
  list_put_plan(r->common.plan, code, text);
  put_template(text, "templates/hopper/block_list_backward.cu");
  return true;
}

const gpu_strategy strategy_list_gradient = {
    "list gradient", 0, list_gradient_can, list_gradient_write, list_propose};
