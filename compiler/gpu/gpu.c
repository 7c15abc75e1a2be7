/* gpu.c - the provider: every strategy asked in turn, every member of it taken
 * through its attempts until the gate lets one pass. */
#include "gpu.h"
#include <stdlib.h>
#include <string.h>

/* The general one is last: it takes what the others leave. */
static const gpu_strategy *const strategies[] = {
    &strategy_hopper, &strategy_hopper_pair, &strategy_general};

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

/* ---- whom the knobs speak of --------------------------------------------- */

static const char *const knob_names[KNOB_COUNT] = {
#define KNOB(id, name, values, devices, least, most, of) [KNOB_##id] = name,
#include "../knobs.def"
#undef KNOB
};

static const gpu_strategy *speaks_of(const gpu_request *r) {
  char unused[256];
  gpu_request plain = *r;
  plain.knobs = NULL;
  const gpu_strategy *fast = &strategy_hopper;
  bool can = fast->can(&plain, unused, sizeof unused);
  if (!can && strategy_hopper_pair.can(&plain, unused, sizeof unused)) {
    fast = &strategy_hopper_pair;
    can = true;
  }
  if (knob_given(r->knobs, KNOB_HOPPER))
    return r->knobs->value[KNOB_HOPPER][0] ? fast : &strategy_general;
  bool only_general = r->only && !strcmp(r->only, strategy_general.name);
  return can && !only_general ? fast : &strategy_general;
}

/* The strategy that takes the knobs; NULL: there are none. */
static dil_status turn(const gpu_request *r, const gpu_strategy **turned) {
  char reason[256] = "";
  *turned = NULL;
  if (!r->knobs || !r->knobs->given) return DIL_OK;
  const gpu_strategy *s = speaks_of(r);
  unsigned strange = r->knobs->given & ~(s->knobs | 1u << KNOB_HOPPER);
  if (strange)
    return dil_fail(DIL_INPUT, "the %s kernel has no knob '%s'", s->name,
                    knob_names[__builtin_ctz(strange)]);
  if (r->only && strcmp(r->only, s->name))
    return dil_fail(DIL_INPUT, "`hopper 1` asks for the one kernel and --force "
                               "%s for the other", r->only);
  if (!s->can(r, reason, sizeof reason))
    return dil_fail(DIL_INPUT, "no %s kernel for sm_%d has these knobs: %s",
                    s->name, r->arch, reason);
  *turned = s;
  return DIL_OK;
}

/* ---- all codes ----------------------------------------------------------- */

/* The first attempt that passes. *more: whether there is such a member. A
 * member all of whose attempts were refused is left out, unless it must be: the
 * general strategy has nothing behind it, and knobs are never ignored. */
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
  bool spared =
      status == DIL_UNSUPPORTED && s != &strategy_general && !r->knobs;
  return spared ? DIL_OK : status;
}

static dil_status make_strategy(const gpu_request *r, const gpu_strategy *s,
                                gpu_codes *out) {
  char reason[256] = "";
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

/* `hopper 0` leaves the general kernels alone. */
static bool is_wanted(const gpu_request *r, const gpu_strategy *s,
                      const gpu_strategy *turned) {
  if (r->only && strcmp(r->only, s->name)) return false;
  bool refused = knob_given(r->knobs, KNOB_HOPPER) &&
                 turned == &strategy_general && s != turned;
  return !refused;
}

static dil_status compile(const gpu_request *request, gpu_codes *out) {
  const gpu_strategy *turned;
  dil_status status = turn(request, &turned);
  out->count = 0;
  for (size_t i = 0; !status && i < sizeof strategies / sizeof *strategies;
       i++) {
    gpu_request own = *request;
    if (strategies[i] != turned) own.knobs = NULL;
    if (is_wanted(request, strategies[i], turned))
      status = make_strategy(&own, strategies[i], out);
  }
  if (!status) return DIL_OK;
  while (out->count > 0) free(out->code[--out->count].cubin);
  return status;
}

/* ---- what may be tried --------------------------------------------------- */

/* Whether a kernel can be written with these knobs; its code's facts. */
static bool is_candidate(const gpu_request *r, const gpu_strategy *s,
                         gpu_candidate *c) {
  source_text text = {0};
  char unused[256];
  gpu_request own = *r;
  own.knobs = &c->knobs;
  bool good = s->can(&own, unused, sizeof unused) &&
              s->write(&own, 0, 0, &c->code, &text);
  free(text.text);
  return good;
}

static int32_t candidates(const gpu_request *r, gpu_candidate *list,
                          int32_t room) {
  int32_t count = 0;
  for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
    const gpu_strategy *s = strategies[i];
    if (r->only && strcmp(r->only, s->name)) continue;
    for (int32_t n = 0; count < room; n++) {
      list[count] = (gpu_candidate){0};
      if (!s->propose(n, &list[count].knobs)) break;
      count += is_candidate(r, s, &list[count]);
    }
  }
  return count;
}

DIL_API const gpu_backend *dil_gpu_backend_init(void);
const gpu_backend *dil_gpu_backend_init(void) {
  static const gpu_backend table = {.version = GPU_BACKEND_VERSION,
                                    .compile = compile,
                                    .candidates = candidates,
                                    .peak = peak_compile,
                                    .versions = nvrtc_version,
                                    .origin = nvrtc_origin};
  return &table;
}
