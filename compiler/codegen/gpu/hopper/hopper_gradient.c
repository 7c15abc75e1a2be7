/* hopper_gradient.c - the strategy for gradients on Hopper (sm_90a):
 * templates/hopper/backward.cu.
 *
 * In: a backward plan without masks, scores and dropout. Out: a
 * kernel that makes dQ and one that makes dK and dV. Both depend on head sizes
 * and a few properties of the passes; the launch brings the pattern. The
 * general kernels of gradients take all other calls. */
#include "hopper_config.h"
#include "runtime/cuda/chips.h"
#include "runtime/tables/hopper_gradient_table.h"
#include <string.h>

typedef struct gradient_config {
  int32_t width;  /* heads up to this */
  int32_t rows;   /* of a streamed block */
  int32_t stages; /* of streamed blocks */
  int32_t held;   /* tiles of held rows in shared memory */
  bool turns;     /* warpgroups take turns to issue products */
} gradient_config;

enum { VARIANT_Q, VARIANT_KEYS, VARIANTS };
enum { GRADIENT_CONFIGS = 3, GRADIENT_WARPGROUPS = 2 };

/* By variant, and width. The sums of dK and dV of 128 elements leave no
 * registers for blocks of more than 64 rows. */
static const gradient_config configs[VARIANTS][GRADIENT_CONFIGS] = {
    {{64, 128, 4, 2, false}, {128, 128, 2, 1, true}, {128, 64, 2, 1, false}},
    {{64, 128, 4, 2, false}, {128, 64, 3, 2, true}, {128, 32, 2, 2, false}}};

static int32_t gradient_width(const dil_table *t) {
  return (t->head_dim + 31) / 32 * 32;
}

/* Configuration number `fallback` of a variant; NULL: there is none. */
static const gradient_config *
gradient_config_of(const dil_table *t, int32_t variant, int32_t fallback) {
  int32_t width = 0;
  if (variant >= VARIANTS) return NULL;
  for (int32_t i = 0; i < GRADIENT_CONFIGS; i++) {
    const gradient_config *s = &configs[variant][i];
    if (s->width < gradient_width(t) || (width && s->width > width)) continue;
    width = s->width;
    if (fallback-- == 0) return s;
  }
  return NULL;
}

/* As templates/hopper/backward.cu lays it out: tiles; the facts of a stage, its
 * messages and barriers; plans and the other barriers. */
static int32_t gradient_bytes(const dil_table *t, bool keys,
                              const gradient_config *s) {
  enum { STAGE_REST = 152, REST = 800 };
  int32_t row = gradient_width(t) * 2 * 2; /* of both tensors */
  int32_t facts = keys ? s->rows * 8 + 16 : 0;
  return GRADIENT_WARPGROUPS * 64 * s->held * row +
         s->stages * (s->rows * row + facts + STAGE_REST) + REST;
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
  for (int32_t v = 0; v < VARIANTS; v++) {
    const gradient_config *s = gradient_config_of(t, v, 0);
    if (!s) {
      snprintf(reason, size, "gradients of a head_dim of %d by %d", t->head_dim,
               t->value_dim);
      return false;
    }
    for (int32_t p = 0; p < t->pass_count; p++)
      if (!hopper_gradient_table_fill(t, p, v == VARIANT_KEYS, s->rows, &made,
                                      reason, size))
        return false;
  }
  return true;
}

static void gradient_put_features(const dil_table *t, bool keys, int32_t rows,
                                  source_text *text) {
  char reason[128];
  hopper_table made;
  bool left = false, shifts = false, nested = true;
  for (int32_t p = 0; p < t->pass_count; p++) {
    if (!hopper_gradient_table_fill(t, p, keys, rows, &made, reason,
                                    sizeof reason))
      continue;
    nested &= hopper_is_nested(t, t->passes[p].branches);
    shifts |= made.relative || made.period != made.interval;
    for (int32_t i = 0; i < made.range_count; i++)
      left |= made.ranges[i].left < HOPPER_FAR;
  }
  put(text, "#define NESTED %d\n#define SHIFTS %d\n#define LEFT_WINDOWS %d\n",
      nested, shifts, left);
  put(text, "#define SUMS %d\n", t->pass_count > 1);
}

static bool hopper_gradient_write(const gpu_request *r, int32_t variant,
                                  int32_t fallback, dil_cuda_code *code,
                                  source_text *text) {
  const dil_table *t = &r->common.plan->table;
  const gradient_config *s = gradient_config_of(t, variant, fallback);
  bool keys = variant == VARIANT_KEYS;
  if (!s) return false;
  *code = (dil_cuda_code){
      .family = "hopper gradient",
      .arch = r->arch,
      .threads = 128 * (GRADIENT_WARPGROUPS + 1),
      .shared = gradient_bytes(t, keys, s),
      .tile_rows = 64 * GRADIENT_WARPGROUPS,
      .tile_keys = s->rows,
      .knob = {[GRADIENT_KNOB_MAKES] =
                   keys ? GRADIENT_K | GRADIENT_V : GRADIENT_Q}};
  snprintf(code->variant, sizeof code->variant,
           "hopper gradient %s %s %dx%d d%d", keys ? "dkv" : "dq",
           dil_dtype_name(t->dtype), code->tile_rows, s->rows, t->head_dim);
  put(text, "#define HOLDS_KEYS %d\n#define HEAD_WIDTH %d\n", keys,
      gradient_width(t));
  put(text, "#define HEAD_DIM %d\n#define VALUE_DIM %d\n", t->head_dim,
      t->value_dim);
  put(text, "#define WARPGROUPS %d\n#define TILE_KEYS %d\n#define STAGES %d\n",
      GRADIENT_WARPGROUPS, s->rows, s->stages);
  put(text, "#define QUERY_STAGES %d\n#define PINGPONG %d\n", s->held,
      s->turns);
  put(text, "#define SHARED_LIMIT %d\n", code->shared);
  gradient_put_features(t, keys, s->rows, text);
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
