/* stages_print.c - what `dil print --after STAGE` prints of each stage; the
 * stages from cuda on ask a back end for it. In: a compilation at that stage.
 * Out: text in request->dump. */
#include "stages.h"
#include "compiler/analysis/cover.h"
#include "compiler/plan/partition.h"
#include <stdlib.h>

/* ---- from text to plan --------------------------------------------------- */

dil_status stage_print_tokens(const driver_request *r, compilation *c) {
  return program_print_tokens(r->path, r->dump, c->diag, c->arena);
}

dil_status stage_print_ast(const driver_request *r, compilation *c) {
  return program_print_ast(r->path, r->dump, c->diag, c->arena);
}

dil_status stage_print_pattern(const driver_request *r, compilation *c) {
  pattern_print(c->pattern, r->dump);
  return DIL_OK;
}

dil_status stage_print_cover(const driver_request *r, compilation *c) {
  enum { ROWS = 32, KEYS = 128 };
  int64_t N = r->call->q.shape[1], M = r->call->k.shape[1];
  cover_count n;
  cover_pattern(c->pattern, N, M, ROWS, KEYS, r->call, 0, &n);
  fprintf(r->dump,
          "cover %s\n  queries %lld\n  keys %lld\n  pairs %.0f\n"
          "  distinct %.0f\n  uncovered %.0f\n"
          "  tiles of %d x %d: full %.0f, partial %.0f, empty %.0f\n",
          c->pattern->name, (long long)N, (long long)M, n.pairs, n.distinct,
          n.uncovered, ROWS, KEYS, n.full, n.partial, n.empty);
  if (n.estimated) fprintf(r->dump, "  estimates, from a sample of places\n");
  return DIL_OK;
}

dil_status stage_print_place(const driver_request *r, compilation *c) {
  place_print(c->pattern, c->topology, r->dump);
  return DIL_OK;
}

dil_status stage_print_normalise(const driver_request *r, compilation *c) {
  pattern_print(c->normal, r->dump);
  return DIL_OK;
}

dil_status stage_print_fuse(const driver_request *r, compilation *c) {
  plan_print(c->planned, r->dump);
  return DIL_OK;
}

dil_status stage_print_plan(const driver_request *r, compilation *c) {
  plan_print(c->plan, r->dump);
  return DIL_OK;
}

/* ---- GPUs ---------------------------------------------------------------- */

/* Prints the source of every kernel, or compiles them for ptxas's report. */
static dil_status print_codes(const driver_request *r, compilation *c,
                              FILE *cuda, FILE *ptxas) {
  const gpu_backend *gpu;
  gpu_codes codes = {0};
  gpu_request request = {.common = {c->plan},
                         .arch = r->arch,
                         .knobs = &c->knobs,
                         .full_sequences_only = !c->topology,
                         .source_only = ptxas == NULL,
                         .cuda = cuda,
                         .ptxas = ptxas};
  dil_status status = gpu_backend_open(&gpu);
  if (!status) status = gpu->common.compile(&request.common, &codes);
  while (codes.count > 0) free(codes.code[--codes.count].cubin);
  return driver_refused(c, status);
}

/* Prints the source of every kernel, in its preferred configuration; needs no
 * NVRTC. */
dil_status stage_print_cuda(const driver_request *r, compilation *c) {
  return print_codes(r, c, r->dump, NULL);
}

/* Compiles; prints ptxas's report on each configuration and the gate's
 * refusals. */
dil_status stage_print_ptxas(const driver_request *r, compilation *c) {
  return print_codes(r, c, NULL, r->dump);
}

/* ---- the processor ------------------------------------------------------- */

static dil_status make_code(const compilation *c, dil_variant variant, FILE *ir,
                            FILE *assembly, cpu_code *code) {
  cpu_request request = {.common = {c->plan},
                             .isa = c->isa,
                             .variant = variant,
                             .debug = true,
                             .ir = ir,
                             .assembly = assembly};
  const cpu_backend *cpu;
  dil_status status = cpu_backend_open(&cpu);
  return status ? status : cpu->common.compile(&request.common, code);
}

static void print_variant(dil_variant variant, const cpu_code *made,
                          FILE *out) {
  const dil_code *code = &made->code;
  if (variant == DIL_TILES)
    fprintf(out,
            "  tiles: %d query rows by %d keys, %d keys a block, k and v "
            "packed as %s",
            code->lanes, code->tile_keys, code->key_block,
            code->pack == DIL_PACK_BF16_PAIRS ? "bf16 pairs" : "f32");
  else if (variant == DIL_ROWS)
    fprintf(out, "  rows, for few queries: one by one, k and v in place");
  else
    fprintf(out, "  gradients, beside the tiles' functions");
  fprintf(out, "; %zu bytes of object\n", made->size);
}

dil_status stage_print_schedule(const driver_request *r, compilation *c) {
  char text[KNOBS_TEXT];
  fprintf(r->dump, "schedule %s\n  device cpu\n  isa %s\n", c->pattern->name,
          c->isa);
  if (c->knobs.given)
    fprintf(r->dump, "  knobs %s\n", knobs_text(&c->knobs, text));
  for (int32_t v = 0; v < dil_variant_count(c->direction); v++) {
    cpu_code code;
    dil_status status = make_code(c, (dil_variant)v, NULL, NULL, &code);
    if (status) return status;
    print_variant((dil_variant)v, &code, r->dump);
    free(code.bytes);
  }
  return DIL_OK;
}

dil_status stage_print_ir(const driver_request *r, compilation *c) {
  cpu_code code;
  dil_status status = make_code(c, r->variant, r->dump, NULL, &code);
  if (!status) free(code.bytes);
  return status;
}

dil_status stage_print_asm(const driver_request *r, compilation *c) {
  cpu_code code;
  dil_status status = make_code(c, r->variant, NULL, r->dump, &code);
  if (!status) free(code.bytes);
  return status;
}

