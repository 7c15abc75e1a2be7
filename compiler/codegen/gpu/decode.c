/* decode.c - the strategy for calls with few rows on sm_90:
 * templates/decode/decode.cu. In: a plan in bf16 or f16 with heads of up to 256
 * elements. Out: one kernel, which has all of a processor's shared memory. The
 * general strategy takes the calls that it refuses. */
#include "gpu.h"
#include "runtime/cuda/chips.h"
#include "templates/decode/decode_launch.h"
#include <string.h>

enum { ROWS = 16, WIDTH_MOST = 256 };

static bool decode_can(const gpu_request *r, char *reason, size_t size) {
  const dil_table *t = &r->common.plan->table;
  const char *fast = cuda_chip_fast(r->arch);
  if (!fast || strcmp(fast, "hopper"))
    snprintf(reason, size, "tensor copies need sm_90");
  else if (t->dtype == DIL_F32)
    snprintf(reason, size, "f32");
  else if (t->head_dim > WIDTH_MOST || t->value_dim > WIDTH_MOST)
    snprintf(reason, size, "a head_dim of %d by %d", t->head_dim, t->value_dim);
  else if (t->head_dim % 8 || t->value_dim % 8)
    snprintf(reason, size, "a head_dim that is no multiple of 8");
  else
    return true;
  return false;
}

/* The keys of a stage, which has 16 KiB at most. */
static int32_t decode_keys(const dil_table *t) {
  int32_t width = (t->head_dim + 31) / 32 * 32 + (t->value_dim + 31) / 32 * 32;
  return width <= 128 ? 64 : width <= 256 ? 32 : 16;
}

/* Teams of warps: the sums of wide heads take more registers. */
static int32_t decode_teams(const dil_table *t) {
  int32_t width = t->head_dim > t->value_dim ? t->head_dim : t->value_dim;
  return width <= 128 ? 4 : width <= 192 ? 3 : 2;
}

static bool decode_write(const gpu_request *r, int32_t variant,
                         int32_t fallback, dil_cuda_code *code,
                         source_text *text) {
  const dil_table *t = &r->common.plan->table;
  if (variant || fallback) return false;
  *code = (dil_cuda_code){.family = "decode",
                          .arch = r->arch,
                          .passes = UINT64_MAX,
                          .threads = decode_teams(t) * DECODE_TEAM_THREADS,
                          .shared = (int32_t)gpu_shared_limit(r->arch),
                          .tile_rows = ROWS,
                          .tile_keys = decode_keys(t)};
  snprintf(code->variant, sizeof code->variant, "decode %s %dx%d d%d",
           dil_dtype_name(t->dtype), ROWS, code->tile_keys, t->head_dim);
  if (t->branch_count == 1)
    put(text, "#define PLAN_KNOWN 1\n");
  put(text, "#define EAGER 1\n"); /* a slope is read once a row, not once a pair */
  put_tables(text, r->common.plan);
  put(text, "#undef DROPOUT\n#define DROPOUT 0\n");
  put_expressions(text, r->common.plan);
  put_cover(text, r->common.plan);
  put(text, "#define ROW_GROUPS %d\n#define TILE_KEYS %d\n#define SHARDS 0\n",
      ROWS / 16, code->tile_keys);
  put(text, "#define TEAMS %d\n", decode_teams(t));
  put(text, "#define SCRATCH_BYTES %lld\n#define SHARED_BYTES %d\n",
      (long long)(general_scratch_bytes(t) + 15) / 16 * 16, code->shared);
  put_template(text, "templates/decode/decode.cu");
  return true;
}

/* There is nothing to tune. */
static bool decode_propose(int32_t index, knobs *k) {
  (void)index;
  (void)k;
  return false;
}

const gpu_strategy strategy_decode = {"decode", 0, decode_can, decode_write,
                                      decode_propose};
