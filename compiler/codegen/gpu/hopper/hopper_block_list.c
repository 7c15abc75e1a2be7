/* hopper_block_list.c - the strategy for lists of kept blocks on Hopper (sm_90a):
 * templates/hopper/block_list.cu.
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
  if (!hopper_has_short_blocks(l)) return "blocks that fill the tiles of warpgroups";
  if (t->dtype == DIL_F32) return "f32";
  if (t->head_dim % 8 || t->value_dim % 8)
    return "a head_dim that is no multiple of 8";
  if (t->scored || t->sinks) return "scores or sinks";
  return list_config_of(t, 0) ? NULL : "heads of more than 128 elements";
}

static bool list_can(const gpu_request *r, char *reason, size_t size) {
  block_lists l;
  const char *fast = cuda_chip_fast(r->arch);
  const char *refusal = list_refusal(r->common.plan, &l);
  if (!fast || strcmp(fast, "hopper")) refusal = "wgmma needs sm_90a";
  else if (r->knobs) refusal = "a schedule's tiles are of all warpgroups";
  if (refusal) snprintf(reason, size, "%s", refusal);
  return !refusal;
}

/* A call has at most HOPPER_FAR rows. */
static void list_put_bound(source_text *text, const char *name, int64_t bound) {
  if (bound >= HOPPER_FAR) put(text, "#define WINDOW_%s DIL_FAR\n", name);
  else put(text, "#define WINDOW_%s %d\n", name, (int)maximum(bound, -HOPPER_FAR));
}

static void list_put_plan(const plan *p, const list_config *s, dil_cuda_code *code,
                          source_text *text) {
  block_lists l;
  const dil_table *t = &p->table;
  const dil_predicate *window = &t->predicates[t->branches[0].predicate];
  block_lists_take(p, &l);
  hopper_put_list_knobs(&l, code);
  hopper_put_widths(t, text);
  put(text, "#define WARPGROUPS %d\n#define TILE_KEYS %d\n#define STAGES %d\n",
      s->warpgroups, s->keys, s->stages);
  put(text, "#define QUERY_BLOCK %d\n#define KEY_BLOCK %d\n",
      l.list[0].query_block, l.list[0].block);
  put_tables(text, &l.rest);
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
  list_put_plan(r->common.plan, s, code, text);
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
