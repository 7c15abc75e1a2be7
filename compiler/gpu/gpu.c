/* gpu.c - the provider: every strategy asked in turn, every member of it taken
 * through its attempts until the gate lets one pass. */
#include "gpu.h"
#include <stdlib.h>
#include <string.h>

/* The general one is last: it takes what the others leave. */
static const gpu_strategy *const strategies[] = {&strategy_hopper,
                                                &strategy_general};

static void show_source(FILE *out, const dil_cuda_code *code,
                        const source_text *text) {
  if (!out || text->lost) return;
  fprintf(out, "// %s, sm_%d%s: %d threads, %d bytes of shared memory\n%s\n",
          code->variant, code->arch, code->arch == 90 ? "a" : "",
          code->threads, code->shared, text->text);
}

/* One attempt; *more tells whether there was one. */
static dil_status attempt_one(const gpu_request *r, const gpu_strategy *s,
                              int32_t member, int32_t attempt,
                              dil_cuda_code *code, bool *more) {
  source_text text = {0};
  *more = s->write(r, member, attempt, code, &text);
  dil_status status = DIL_OK;
  if (*more) {
    show_source(r->cuda, code, &text);
    if (r->source_only) {
      free(text.text);
      return DIL_OK;
    }
    if (r->ptxas)
      fprintf(r->ptxas, "%s, sm_%d%s\n", code->variant, code->arch,
              code->arch == 90 ? "a" : "");
    status = nvrtc_compile(&text, code, r->ptxas);
    if (status == DIL_UNSUPPORTED && r->ptxas)
      fprintf(r->ptxas, "%s\n", dil_last_error());
  }
  free(text.text);
  return status;
}

/* The first attempt that passes. *more: whether there is such a member. A
 * member all of whose attempts were refused is left out, which only the
 * general strategy may not do. */
static dil_status make_member(const gpu_request *r, const gpu_strategy *s,
                              int32_t member, gpu_codes *out, bool *more) {
  dil_cuda_code code;
  dil_status status = attempt_one(r, s, member, 0, &code, more);
  bool again = *more;
  for (int32_t attempt = 1; again && status == DIL_UNSUPPORTED; attempt++) {
    dil_status next = attempt_one(r, s, member, attempt, &code, &again);
    if (again) status = next;
  }
  if (!*more) return DIL_OK;
  if (status == DIL_OK && !r->source_only) out->code[out->count++] = code;
  bool spared = status == DIL_UNSUPPORTED && s != &strategy_general;
  return spared ? DIL_OK : status;
}

static dil_status make_strategy(const gpu_request *r, const gpu_strategy *s,
                                gpu_codes *out) {
  char reason[256] = "";
  if (r->only && strcmp(r->only, s->name)) return DIL_OK;
  if (!s->can(r, reason, sizeof reason)) {
    if (r->ptxas) fprintf(r->ptxas, "%s: %s\n", s->name, reason);
    if (s != &strategy_general) return DIL_OK;
    return dil_fail(DIL_UNSUPPORTED, "no kernel for sm_%d: %s", r->arch,
                    reason);
  }
  dil_status status = DIL_OK;
  bool more = true;
  for (int32_t m = 0; more && !status && out->count < GPU_CODES_MAX; m++)
    status = make_member(r, s, m, out, &more);
  return status;
}

static dil_status compile(const gpu_request *request, gpu_codes *out) {
  dil_status status = DIL_OK;
  out->count = 0;
  for (size_t i = 0; !status && i < sizeof strategies / sizeof *strategies; i++)
    status = make_strategy(request, strategies[i], out);
  if (!status) return DIL_OK;
  while (out->count > 0) free(out->code[--out->count].cubin);
  return status;
}

DIL_API const gpu_backend *dil_gpu_backend_init(void);
const gpu_backend *dil_gpu_backend_init(void) {
  static const gpu_backend table = {.version = GPU_BACKEND_VERSION,
                                    .compile = compile,
                                    .peak = peak_compile,
                                    .versions = nvrtc_version};
  return &table;
}
