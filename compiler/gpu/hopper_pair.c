/* hopper_pair.c - the strategy for Hopper (sm_90a) where masks or scores decide
 * over pairs: templates/hopper.cu behind the plan's tables and expressions.
 *
 * In: a plan with such passes. Out: a kernel of this plan alone. An attempt
 * leaves the planner and the consumers registers enough for most expressions;
 * the next ones leave more. */
#include "gpu.h"
#include "../../runtime/cuda/hopper.h"
#include <string.h>

/* A way to cut one head size, in order of preference. */
typedef struct shape {
  int32_t width;               /* head_dim and value_dim up to this */
  int32_t warpgroups, keys, stages;
  int32_t producer, consumer;  /* registers of a thread */
} shape;

static const shape shapes[] = {
    {64, 2, 128, 4, 104, 200},  {64, 2, 128, 4, 152, 176},
    {64, 2, 64, 4, 152, 176},   {128, 2, 128, 2, 88, 208},
    {128, 2, 64, 4, 104, 200},  {128, 2, 64, 4, 136, 184},
};

static int32_t rounded(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

static int32_t width_of(const dil_table *t) {
  return rounded(t->head_dim > t->value_dim ? t->head_dim : t->value_dim, 32);
}

/* Attempt number `attempt` at heads of this size; NULL: there is none. */
static const shape *shape_of(const dil_table *t, int32_t attempt) {
  int32_t width = 0;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const shape *s = &shapes[i];
    if (s->width < width_of(t) || (width && s->width > width)) continue;
    width = s->width;
    if (attempt-- == 0) return s;
  }
  return NULL;
}

/* The layout at the top of templates/hopper.cu, barriers and messages in the
 * last 3 KiB. */
static int32_t shared_bytes(const dil_table *t, const shape *s) {
  int32_t q = rounded(t->head_dim, 32) * 2, v = rounded(t->value_dim, 32) * 2;
  return s->warpgroups * 64 * (2 * q + v) + s->stages * s->keys * (q + v) +
         3072;
}

enum { SHARED = 227 * 1024 };

/* ---- knobs --------------------------------------------------------------- */

/* The first attempt with a schedule's numbers in place of its own; three
 * warpgroups leave each fewer registers. */
static shape turned_shape(const gpu_request *r) {
  shape s = *shape_of(&r->plan->table, 0);
  if (knob_given(r->knobs, KNOB_TILE)) {
    s.warpgroups = r->knobs->value[KNOB_TILE][0] / 64;
    s.keys = r->knobs->value[KNOB_TILE][1];
  }
  if (knob_given(r->knobs, KNOB_STAGES))
    s.stages = r->knobs->value[KNOB_STAGES][0];
  if (s.warpgroups == 3) {
    s.producer = s.keys > 96 ? 56 : 80;
    s.consumer = s.keys > 96 ? 152 : 144;
  }
  return s;
}

static bool knobs_fit(const gpu_request *r, char *reason, size_t size) {
  shape s = turned_shape(r);
  int32_t shared = shared_bytes(&r->plan->table, &s);
  int32_t rows = knob_given(r->knobs, KNOB_TILE) ? r->knobs->value[KNOB_TILE][0]
                                                 : 64 * s.warpgroups;
  if (rows != 128 && rows != 192)
    snprintf(reason, size, "%d rows are not 64 for each of 2 or 3 warpgroups",
             rows);
  else if (s.keys % 32 || s.keys > 128)
    snprintf(reason, size, "%d keys are none of 32, 64, 96 and 128", s.keys);
  else if (shared > SHARED)
    snprintf(reason, size, "%d bytes of shared memory are more than %d", shared,
             SHARED);
  else
    return true;
  return false;
}

/* The shape of an attempt; knobs leave one. */
static bool find_shape(const gpu_request *r, int32_t attempt, shape *s) {
  const shape *found = shape_of(&r->plan->table, attempt);
  if (found) *s = r->knobs ? turned_shape(r) : *found;
  return found && (!r->knobs || attempt == 0);
}

/* ---- what it takes ------------------------------------------------------- */

static bool can(const gpu_request *r, char *reason, size_t size) {
  const dil_table *t = &r->plan->table;
  shape s;
  if (r->arch != 90) {
    snprintf(reason, size, "wgmma needs sm_90a");
    return false;
  }
  if (!find_shape(r, 0, &s)) {
    snprintf(reason, size, "masks or scores with a head_dim of %d by %d",
             t->head_dim, t->value_dim);
    return false;
  }
  if (r->knobs && !knobs_fit(r, reason, size)) return false;
  return hopper_passes(t, s.keys, true, reason, size) != 0;
}

static void put_shape(source_text *text, const dil_table *t, const shape *s) {
  put(text, "#define PAIRED 1\n#define CHAINS %d\n", t->chain_count);
  put(text, "#define HEAD_WIDTH %d\n#define VALUE_WIDTH %d\n",
      rounded(t->head_dim, 32), rounded(t->value_dim, 32));
  put(text, "#define WARPGROUPS %d\n#define TILE_KEYS %d\n#define STAGES %d\n",
      s->warpgroups, s->keys, s->stages);
  put(text, "#define CHAINED %d\n#define NESTED %d\n", hopper_chained(t),
      hopper_nested(t));
  put(text, "#define PRODUCER_REGISTERS %d\n#define CONSUMER_REGISTERS %d\n",
      s->producer, s->consumer);
}

static bool write(const gpu_request *r, int32_t member, int32_t attempt,
                  dil_cuda_code *code, source_text *text) {
  const dil_table *t = &r->plan->table;
  char reason[256];
  shape s;
  if (member || !find_shape(r, attempt, &s)) return false;
  *code = (dil_cuda_code){
      .family = "hopper",
      .arch = r->arch,
      .passes = hopper_passes(t, s.keys, true, reason, sizeof reason),
      .threads = 128 * (s.warpgroups + 1),
      .shared = shared_bytes(t, &s),
      .tile_rows = 64 * s.warpgroups,
      .tile_keys = s.keys};
  snprintf(code->variant, sizeof code->variant, "hopper pairs %s %dx%d d%d",
           dil_dtype_name(t->dtype), code->tile_rows, s.keys, t->head_dim);
  put_shape(text, t, &s);
  put_tables(text, r->plan);
  put_expressions(text, r->plan);
  put_cover(text, r->plan);
  put_mask_bits(text, r->plan);
  put_template(text, "hopper.cu");
  return true;
}

static bool propose(int32_t index, knobs *k) {
  static const int32_t keys[] = {64, 96, 128};
  enum { HEIGHTS = 2, WIDTHS = sizeof keys / sizeof *keys, DEPTHS = 3 };
  if (index >= HEIGHTS * WIDTHS * DEPTHS) return false;
  k->given = 1u << KNOB_HOPPER | 1u << KNOB_TILE | 1u << KNOB_STAGES;
  k->value[KNOB_HOPPER][0] = 1;
  k->value[KNOB_TILE][0] = 64 * (2 + index % HEIGHTS);
  k->value[KNOB_TILE][1] = keys[index / HEIGHTS % WIDTHS];
  k->value[KNOB_STAGES][0] = 2 + index / HEIGHTS / WIDTHS;
  return true;
}

const gpu_strategy strategy_hopper_pair = {
    "hopper pairs", 1 << KNOB_TILE | 1 << KNOB_STAGES, can, write,
    propose};
