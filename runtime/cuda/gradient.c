/* gradient.c - launches templates/general/gradient.cu. In: a call, where its
 * gradients go, and a pass. Out: launches whose tiles hold query rows (dQ) or
 * keys (dK, dV). */
#include "general.h"
#include "gradient.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/cuda/launch/nvidia.h"

_Static_assert(sizeof(dil_gradient_params) == DIL_GRADIENT_BYTES,
               "templates/shared/launch.h counts otherwise");

enum {
  ENTRY_PASS,
  ENTRY_DELTA,
  ENTRY_ROUND,
  ENTRY_SINKS,
  ENTRY_INPUT,
  ENTRY_CLEAR
};
enum {
  ROW_WARPS = 8, /* of a block of dil_round and the like */
  SINK_ROWS = 32 /* of a block of dil_sink_inputs at once */
};

static void gradient_fill_strides(const dil_tensor *t, long long out[3]) {
  for (int axis = 0; axis < 3; axis++) out[axis] = t->stride[axis];
}

static dil_gradient gradient_view(const gradient_target *target, bool first) {
  const dil_tensor *to = target->to;
  dil_gradient out = {
      .data = to->data, .wide = to->dtype == DIL_F32, .add = !first,
      .marks = target->marks};
  gradient_fill_strides(to, out.stride);
  if (!to->data || !target->sums) return out;
  out.data = target->sums;
  out.wide = 1;
  out.stride[2] = to->shape[3];
  out.stride[1] = to->shape[2] * out.stride[2];
  out.stride[0] = to->shape[1] * out.stride[1];
  return out;
}

/* All but tiles. */
static void gradient_fill(const gradient_run *g, bool first,
                          dil_gradient_params *p) {
  p->o = g->o.data;
  p->o_wide = g->o.dtype == DIL_F32;
  gradient_fill_strides(&g->o, p->o_stride);
  p->lse = g->lse;
  for (int axis = 0; axis < 3; axis++)
    p->lse_stride[axis] = g->lse_stride[axis];
  p->lse_gradient = g->lse_gradient->data;
  if (p->lse_gradient) { /* [B, H, N] */
    p->lse_gradient_stride[0] = g->lse_gradient->stride[0];
    p->lse_gradient_stride[1] = g->lse_gradient->stride[2];
    p->lse_gradient_stride[2] = g->lse_gradient->stride[1];
  }
  p->facts = g->facts;
  p->fact_states = g->fact_states;
  p->only_if = g->only_if;
  p->q = gradient_view(&g->q, first);
  p->k = gradient_view(&g->k, first);
  p->v = gradient_view(&g->v, first);
}

/* Launches that rarely have anything to do are small, and their blocks take
 * several tiles or rows. */
static int64_t gradient_grid(const gradient_run *g, const unsigned *only_if,
                             int64_t blocks) {
  enum { SMALL = 4 };
  if (!only_if) return blocks;
  return minimum(blocks, SMALL * g->of->device->facts.processors);
}

static dil_status gradient_launch_rows(const gradient_run *g, int64_t rows,
                                       const cuda_code *code, int32_t entry,
                                       dil_gradient_params *p) {
  return cuda_launch(g->of, code, entry,
                     gradient_grid(g, p->only_if, (rows + ROW_WARPS - 1) / ROW_WARPS),
                     32 * ROW_WARPS, 0, p);
}

dil_status gradient_delta(const gradient_run *g, const cuda_code *code) {
  dil_gradient_params p = {0};
  dil_status status = general_fill(g->of, 0, false, code, &p.of);
  if (status) return status;
  gradient_fill(g, true, &p);
  int64_t rows = cuda_rows(g->of) * g->of->table->heads; /* as dil_delta counts */
  int64_t warps = (rows * DIL_ROW_LANES(g->of->table->value_dim) + 31) / 32;
  int64_t most = ROW_WARPS * DIL_FACT_BLOCKS * g->of->device->facts.processors;
  return gradient_launch_rows(g, minimum(warps, most), code, ENTRY_DELTA, &p);
}

/* Returns whether a code makes something that is wanted. */
static bool gradient_is_wanted(const gradient_run *g, int32_t makes) {
  return (makes & GRADIENT_Q && g->q.to->data) ||
         (makes & GRADIENT_K && g->k.to->data) ||
         (makes & GRADIENT_V && g->v.to->data);
}

dil_status gradient_pass(const gradient_run *g, int32_t pass, bool first,
                         const cuda_code *code) {
  dil_gradient_params p = {0};
  int32_t makes = code->about.knob[GRADIENT_KNOB_MAKES];
  if (!gradient_is_wanted(g, makes)) return DIL_OK;
  dil_status status =
      general_fill(g->of, pass, !(makes & GRADIENT_Q), code, &p.of);
  if (status) return status;
  gradient_fill(g, first, &p);
  return cuda_launch(g->of, code, ENTRY_PASS, gradient_grid(g, p.only_if, p.of.items),
                     code->about.threads, code->about.shared, &p);
}

dil_status gradient_round(const gradient_run *g, const gradient_target *target,
                          const cuda_code *code) {
  const dil_tensor *to = target->to;
  const gradient_target plain = {.to = to};
  if (!to->data || !target->sums) return DIL_OK;
  dil_gradient_params p = {.of = {.batches = (int)to->shape[0]},
                           .sums = target->sums,
                           .rounded = gradient_view(&plain, true),
                           .only_if = target->round_if,
                           .sum_rows = (int)to->shape[1],
                           .sum_heads = (int)to->shape[2],
                           .sum_size = (int)to->shape[3]};
  int64_t fours = (dil_tensor_count(to) + 3) / 4; /* a lane rounds one */
  return gradient_launch_rows(g, (fours + 31) / 32, code, ENTRY_ROUND, &p);
}

dil_status gradient_clear(const gradient_run *g, const gradient_target *target,
                          bool keys, const cuda_code *code) {
  enum { BLOCKS_A_PROCESSOR = 3 };
  const dil_tensor *to = target->to;
  if (!to->data) return DIL_OK;
  dil_gradient_params p = {0};
  dil_status status = general_fill(g->of, 0, false, code, &p.of);
  p.rounded = gradient_view(target, true);
  p.sum_rows = (int)to->shape[1];
  p.sum_heads = (int)to->shape[2];
  p.sum_size = (int)to->shape[3];
  p.sum_keys = keys;
  p.only_if = g->only_if;
  int64_t rows = to->shape[1] * to->shape[2];
  int64_t blocks = (rows + ROW_WARPS - 1) / ROW_WARPS;
  int64_t most = BLOCKS_A_PROCESSOR * g->of->device->facts.processors;
  return status ? status
                : cuda_launch(g->of, code, ENTRY_CLEAR, minimum(blocks, most),
                              32 * ROW_WARPS, 0, &p);
}

/* ---- gradients of inputs ------------------------------------------------- */

/* Blocks of `lists` lists: so many for each choice of items that are apart. */
static int64_t gradient_blocks(const dil_input_sums *sums, int64_t lists,
                               int64_t tiles, int64_t heads, int64_t batches) {
  const int64_t size[3] = {tiles, heads, batches};
  int64_t blocks = tiles && heads && batches ? lists : 0;
  for (int32_t k = 0; k < 3; k++)
    if (sums->apart[k]) blocks *= size[k];
  return blocks;
}

dil_status gradient_input_pass(const gradient_run *g, int32_t pass,
                               const dil_input_sums *sums,
                               const cuda_code *code) {
  dil_gradient_params p = {0};
  dil_status status = general_fill(g->of, pass, false, code, &p.of);
  if (status) return status;
  gradient_fill(g, true, &p);
  p.of.spread = 0; /* tiles of a head follow each other */
  p.input = *sums;
  int64_t heads = p.of.heads / p.of.pack, units = heads * g->of->B;
  int64_t tiles = units ? p.of.items / units : 0;
  return cuda_launch(
      g->of, code, ENTRY_PASS,
      gradient_blocks(sums, sums->lists, tiles, heads, g->of->B),
      code->about.threads, code->about.shared, &p);
}

dil_status gradient_input_sinks(const gradient_run *g,
                                const dil_input_sums *sums,
                                const cuda_code *code) {
  dil_gradient_params p = {0};
  dil_status status = general_fill(g->of, 0, false, code, &p.of);
  if (status) return status;
  gradient_fill(g, true, &p);
  p.input = *sums;
  int64_t blocks = gradient_blocks(
      sums, (int64_t)sums->lists * sums->copies,
      (g->of->N + SINK_ROWS - 1) / SINK_ROWS, g->of->table->heads, g->of->B);
  return cuda_launch(g->of, code, ENTRY_SINKS, blocks, SINK_ROWS, 0, &p);
}

dil_status gradient_input_end(const gradient_run *g,
                              const dil_input_sums *sums,
                              const cuda_code *code) {
  dil_gradient_params p = {.input = *sums};
  bool few = sums->lists * sums->copies < 32; /* as dil_input_end counts */
  return gradient_launch_rows(g, few ? sums->count / 32 + 1 : sums->count, code,
                              ENTRY_INPUT, &p);
}

/* ---- the family ---------------------------------------------------------- */

static const char *gradient_refusal(const cuda_run *r, int32_t pass,
                                    const cuda_code *code) {
  (void)r;
  (void)pass;
  (void)code;
  return "it makes gradients";
}

const cuda_family cuda_gradient = {
    .name = "gradient",
    .entry = {"dil_gradient_pass", "dil_delta", "dil_round", "dil_sink_inputs",
              "dil_input_end", "dil_clear"},
    .refusal = gradient_refusal};
const cuda_family cuda_gradient_keys = {.name = "gradient keys",
                                        .entry = {"dil_gradient_pass"},
                                        .refusal = gradient_refusal};
