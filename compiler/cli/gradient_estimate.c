/* gradient_estimate.c - a dry run of gradients: see gradient_estimate.h. In: a
 * backward plan and sizes. Out: a gradient_estimate, and lines about it. On a
 * GPU each kernel has the preferred configuration of its strategy. */
#include "gradient_estimate.h"
#include "runtime/api/device_cuda.h"
#include "runtime/api/kernel.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/patch.h"
#include <string.h>

/* ---- a call without memory ----------------------------------------------- */

/* A row-major tensor whose memory nobody reads. */
static dil_tensor absent_tensor(dil_dtype dtype, int32_t rank,
                                const int64_t *shape) {
  return dil_tensor_make((void *)(uintptr_t)4096, dtype, rank, shape);
}

/* A call of all gradients, with the o and lse of its run forward. */
static dil_backward_call absent_call(const call_setup *b, const dil_table *t) {
  int64_t B = b->size[CALL_B], N = b->size[CALL_N], M = b->size[CALL_M];
  const int64_t q[] = {B, N, t->heads, t->head_dim},
                k[] = {B, M, t->kv_heads, t->head_dim},
                v[] = {B, M, t->kv_heads, t->value_dim},
                o[] = {B, N, t->heads, t->value_dim}, lse[] = {B, t->heads, N};
  dil_backward_call call = {.size = sizeof call, .forward = b->call};
  dil_call *f = &call.forward;
  f->size = sizeof *f;
  f->q = call.dq = absent_tensor(t->dtype, 4, q);
  f->k = call.dk = absent_tensor(t->dtype, 4, k);
  f->v = call.dv = absent_tensor(t->dtype, 4, v);
  f->o = call.output = absent_tensor(t->dtype, 4, o);
  if (t->lse_allowed) f->lse = absent_tensor(DIL_F32, 3, lse);
  f->scale = 1; /* any that is positive */
  f->inputs = b->inputs;
  f->input_count = t->input_count;
  for (int32_t i = 0; i < t->input_count; i++)
    if (t->inputs[i].gradient)
      call.inputs[i] = absent_tensor(b->inputs[i].dtype, b->inputs[i].rank,
                                     b->inputs[i].shape);
  return call;
}

/* ---- on the processor ---------------------------------------------------- */

dil_status gradient_estimate_cpu(const call_setup *b, const compilation *c,
                                 const plan *backward, const cost_case *spot,
                                 gradient_estimate *out) {
  dil_kernel *made;
  kernel_code code = {0};
  code_request request = driver_code_request(c, b->context);
  request.plan = backward;
  dil_backward_call call = absent_call(b, &backward->table);
  *out = (gradient_estimate){
      .cost = cost_gradients_of(backward->pattern, spot->count->pairs, spot->B,
                                spot->N, spot->M),
      .seconds = cost_gradient_seconds(backward->pattern, spot)};
  dil_status status = kernel_code_make(&request, &code);
  if (!status) status = dil_kernel_make(b->context, &code.source, &made);
  if (status) return status;
  status = dil_kernel_backward_describe(made, &call, &out->facts);
  dil_kernel_free(made);
  kernel_code_free(&code);
  return status;
}

/* ---- on a GPU ------------------------------------------------------------ */

static gpu_request estimate_request(const compilation *c, const plan *backward,
                                    int32_t arch) {
  bool general = backward->force & FORCE_GENERAL;
  return (gpu_request){.common = {backward},
                       .arch = arch,
                       .knobs = &c->knobs,
                       .full_sequences_only = true,
                       .only = general ? "general" : NULL};
}

const char *gradient_estimate_reason(const compilation *c, const plan *backward,
                                     int32_t arch, const char *refusal) {
  const gpu_backend *gpu;
  char reason[256];
  gpu_request request = estimate_request(c, backward, arch);
  if (!refusal) return NULL;
  if (request.only) return "--force general asks for the general kernels";
  if (gpu_backend_open(&gpu)) return refusal;
  for (int32_t p = 0; p < backward->table.pass_count; p++)
    if (gpu->refuses(&request, p, reason, sizeof reason))
      return arena_print(c->arena, "%s", reason);
  return refusal;
}

/* Counts blocks where all passes have patches of a grid. A box of keys has the queries of
 * its patch of keys turned round: as many. False: they have none. */
static bool estimate_patches(const dil_table *t, const dil_cuda_code *code,
                             int64_t batch, int64_t cells, cover_count *count) {
  const patch_tile_shape shape = {.lanes = code->tile_rows,
                                  .key_block = code->tile_keys,
                                  .pack = 1,
                                  .whole = true};
  double blocks = 0;
  for (int32_t i = 0; i < t->pass_count; i++) {
    patch_plan p;
    int32_t own = __builtin_ctzll(t->passes[i].branches);
    const dil_branch *b = &t->branches[own];
    if (!patch_may(t, &t->passes[i]) ||
        !patch_plan_make(t, own, cells, &shape, &p))
      return false;
    blocks += (b->head_last - b->head_first + 1) *
              patch_plan_blocks(&p, code->tile_keys);
  }
  *count = (cover_count){.partial = (double)batch * blocks};
  return true;
}

static bool is_patched(const dil_cuda_code *code) {
  return !strcmp(code->family, "grid gradient");
}

/* Counts the boxes of the fast kernels for grids. */
static void estimate_boxes(const call_setup *planned, const dil_table *t,
                           const dil_cuda_code *code, cover_count *count) {
  enum { LANES = 16 }; /* rows of a warp, all along the last axis */
  const int32_t *of = code->knob;
  bool keys = of[GRADIENT_KNOB_MAKES] != GRADIENT_Q, solid = t->grid.axes == 3;
  int32_t z = of[GRID_KNOB_Z], y = of[GRID_KNOB_Y];
  int32_t box_y = of[GRID_KNOB_BOX_Y], box_x = of[GRID_KNOB_BOX_X];
  const int32_t size[DIL_GRID_AXES] = {solid ? z : y, solid ? y : LANES, LANES};
  const int32_t box[DIL_GRID_AXES] = {solid ? 1 : box_y, solid ? box_y : box_x, box_x};
  patch_plan p;
  *count = (cover_count){0};
  if (patch_plan_of(t, 0, planned->size[CALL_M], size, &p))
    count->partial = (double)planned->size[CALL_B] * t->heads *
                     patch_plan_boxes(&p, box, keys ? patch_queries : patch_keys);
}

static bool gathers(const dil_cuda_code *code) {
  return !strcmp(code->family, "gather gradient");
}

/* Counts the blocks of kernels that gather rows: as if each block of keys were chosen
 * as often as the others. It leaves half a tile, or half a block of rows. */
static void estimate_gathered(const call_setup *planned, const dil_table *t,
                              const dil_cuda_code *code, cover_count *count) {
  const dil_choice *c = &t->choices[0];
  bool keys = code->knob[GRADIENT_KNOB_MAKES] & (GRADIENT_K | GRADIENT_V);
  int64_t M = planned->size[CALL_M], blocks = dil_choice_blocks(M, c->block);
  int32_t rows = keys ? code->tile_keys : code->tile_rows;
  double entries = (double)planned->size[CALL_N] * (double)dil_choice_room(c, M);
  double block = (double)round_up(c->block, keys ? code->tile_rows : code->tile_keys);
  count->full = (double)planned->size[CALL_B] * t->heads *
                (entries + (double)blocks * rows / 2) * block /
                ((double)code->tile_rows * code->tile_keys);
  count->partial = 0;
}

/* Threads copy the gathered rows, and dQ of each entry is written and read once more:
 * the seconds of a kernel with both, measured on an H200 (tests/bench/NOTES.md). */
static double gathering_seconds(const call_setup *planned, const dil_table *t,
                                const dil_cuda_code *code, double seconds,
                                const dil_cuda_facts *facts) {
  const double copying = 1.45;
  int64_t M = planned->size[CALL_M];
  double part = (double)planned->size[CALL_B] * t->heads *
                (double)planned->size[CALL_N] *
                (double)dil_choice_room(&t->choices[0], M) * t->head_dim * 4;
  const cost_gradients moved = {.read = part, .written = part};
  bool parts = code->knob[GRADIENT_KNOB_MAKES] == GRADIENT_Q;
  return seconds * copying +
         (parts ? cost_gpu_gradient_rows_seconds(&moved, facts) : 0);
}

/* Seconds of one kernel, by its tiles: of query rows, or of keys. */
static double estimate_kernel(const call_setup *planned, const dil_table *t,
                              const dil_cuda_code *code, bool fast,
                              const dil_cuda_facts *facts) {
  cover_count count;
  bool keys = code->knob[GRADIENT_KNOB_MAKES] & (GRADIENT_K | GRADIENT_V);
  if (is_patched(code))
    estimate_boxes(planned, t, code, &count);
  else if (fast || !estimate_patches(t, code, planned->size[CALL_B],
                                     planned->size[CALL_M], &count))
    measure_cover(planned, keys ? code->tile_keys : code->tile_rows,
                  keys ? code->tile_rows : code->tile_keys, &count);
  if (gathers(code)) estimate_gathered(planned, t, code, &count);
  const cost_gpu_case spot = {.facts = facts,
                              .code = code,
                              .count = &count,
                              .B = planned->size[CALL_B],
                              .N = planned->size[CALL_N],
                              .M = planned->size[CALL_M],
                              .dedup = t->dedup && fast};
  double seconds = cost_gpu_gradient_seconds(planned->pattern, &spot, fast);
  return gathers(code) ? gathering_seconds(planned, t, code, seconds, facts) : seconds;
}

/* Adds what a kernel computes, and how long that takes. */
static void estimate_add(const call_setup *planned, const dil_cuda_code *code,
                         const plan *backward, const dil_cuda_facts *facts,
                         double pairs, gradient_estimate *out) {
  int32_t makes = code->knob[GRADIENT_KNOB_MAKES];
  out->computed += cost_gpu_gradient_flops(planned->pattern, code, pairs);
  out->fused |= (makes & GRADIENT_Q) && (makes & GRADIENT_K);
  out->seconds +=
      estimate_kernel(planned, &backward->table, code, !out->reason, facts);
}

dil_status gradient_estimate_gpu(const call_setup *b, const compilation *c,
                                 const plan *backward,
                                 const gpu_estimate *forward,
                                 gradient_estimate *out) {
  const gpu_backend *gpu;
  const dil_cuda_module *cuda;
  const dil_table *t = &backward->table;
  int32_t arch = forward->facts.arch;
  gpu_request request = estimate_request(c, backward, arch);
  dil_backward_call call = absent_call(b, t);
  call.forward.saved = call.forward.q.data; /* `run` and `bench` keep it, too */
  gpu_codes codes;
  cover_count count;
  call_setup planned = *b;
  planned.pattern = backward->pattern;
  measure_pairs(&planned, &count);
  *out = (gradient_estimate){
      .cost = cost_gradients_of(backward->pattern, count.pairs, b->size[CALL_B],
                                b->size[CALL_N], b->size[CALL_M])};
  dil_status status = gpu_backend_open(&gpu);
  if (!status) status = dil_cuda_module_open(&cuda);
  if (!status) status = gpu->estimate(&request, &codes);
  if (!status)
    status = cuda->backward_estimate(&forward->facts, t, codes.code,
                                     codes.count, &call, &out->facts);
  if (status) return status;
  out->reason = gradient_estimate_reason(c, backward, arch, out->facts.refusal);
  out->seconds = cost_gpu_gradient_rows_seconds(&out->cost, &forward->facts);
  for (int32_t i = 0; i < out->facts.count; i++)
    estimate_add(&planned, &codes.code[out->facts.code[i]], backward,
                 &forward->facts, count.pairs, out);
  return status;
}

/* ---- for people, and for programs ---------------------------------------- */

void gradient_estimate_print(const gradient_estimate *e, FILE *out) {
  char flops[QUANTITY_TEXT], text[QUANTITY_TEXT], other[QUANTITY_TEXT];
  const cost_gradients *g = &e->cost;
  fprintf(out, "gradients  %sFLOP by the definition, 5 products a pair\n",
          quantity_scaled(g->flops, flops));
  fprintf(out, "           %s read, of them %s saved from the run forward,\n",
          quantity_bytes(g->read, text), quantity_bytes(g->saved, other));
  fprintf(out, "           %s written; workspace %s\n",
          quantity_bytes(g->written, text),
          quantity_bytes((double)e->facts.workspace, other));
  if (e->computed > 0)
    fprintf(out, "           %sFLOP computed, %s\n",
            quantity_scaled(e->computed, text),
            e->fused ? "fused: one kernel adds dQ in any order"
                     : "every sum in a fixed order");
  fprintf(out, "           predicted %s by %s\n",
          quantity_time(e->seconds, text), e->facts.variant);
  if (e->reason)
    fprintf(out, "           not by the Hopper kernels: %s\n", e->reason);
  fprintf(out, "forward    what follows is the run forward\n");
}

json_t *gradient_estimate_json(const gradient_estimate *e) {
  const cost_gradients *g = &e->cost;
  return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:s?, s:f}",
                   "flops",
                   (json_int_t)g->flops, "read_bytes", (json_int_t)g->read,
                   "written_bytes", (json_int_t)g->written, "saved_bytes",
                   (json_int_t)g->saved, "workspace_bytes",
                   (json_int_t)e->facts.workspace, "computed_flops",
                   (json_int_t)e->computed, "fused", e->fused, "variant",
                   e->facts.variant,
                   "reason", e->reason, "predicted_seconds", e->seconds);
}
