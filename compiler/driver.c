/* driver.c - the compiler: a list of stages, of which each makes something,
 * verifies it and can print it.
 *
 * In: a request. Out: a compilation, see driver.h. The steps of the list are in
 * stages.h. */
#include "stages.h"
#include "runtime/base/status.h"
#include "runtime/observe/trace.h"

/* A stage of a compilation: its step, and what must hold after it. */
#define MADE(name, make, verify) \
  [STAGE_##name] = {#name, make, verify, stage_print_##name}
/* A stage that only `dil print` asks for: it leaves the compilation as it is.
 * Stage pattern makes tokens and tree on the way; machine code is made when a
 * kernel or a call needs it. */
#define SHOWN(name) [STAGE_##name] = {#name, NULL, NULL, stage_print_##name}

static const struct {
  const char *name;
  dil_status (*make)(const driver_request *r, compilation *c);
  void (*verify)(const compilation *c);
  dil_status (*print)(const driver_request *r, compilation *c);
} stages[STAGE_COUNT] = {
    SHOWN(tokens),
    SHOWN(ast),
    MADE(pattern, stage_read, stage_verify_pattern),
    SHOWN(cover),
    MADE(place, stage_place, NULL),
    MADE(normalise, stage_normalise, stage_verify_normal),
    MADE(fuse, stage_fuse, stage_verify_passes),
    MADE(plan, stage_plan, stage_verify_plan),
    SHOWN(cuda),
    SHOWN(ptxas),
    MADE(schedule, stage_isa, NULL),
    SHOWN(ir),
    SHOWN(asm),
};

/* A plan's text already holds the choices of these options. */
static dil_status check_request(const driver_request *r) {
  if (!r->from_plan) return DIL_OK;
  if (r->last < STAGE_plan)
    return dil_fail(DIL_USAGE, "a plan's text begins at stage plan: there is "
                               "nothing before it to print");
  const char *useless = r->kernel         ? "--kernel"
                        : r->topology     ? "--topology"
                        : r->define_count ? "--define"
                        : r->force        ? "--force"
                        : r->dtype        ? "--dtype"
                                          : stage_sizes_option(r);
  if (!useless) return DIL_OK;
  return dil_fail(DIL_USAGE,
                  "%s cannot change a plan that is read from its text",
                  useless);
}

dil_status driver_compile(const driver_request *r, compilation *c) {
  dil_status status = check_request(r);
  if (status) return status;
  for (int32_t s = 0; s <= (int32_t)r->last; s++) {
    if (!stages[s].make) continue;
    int64_t begin = trace_begin();
    status = stages[s].make(r, c);
    if (status) return status;
    if (stages[s].verify) stages[s].verify(c);
    trace_end(begin, "stage", stages[s].name, r->path, -1);
  }
  return r->dump ? stages[r->last].print(r, c) : DIL_OK;
}

/* True when an earlier kernel has taken the same pattern through its plan. */
static bool planned_before(const program *p, int32_t index) {
  for (int32_t i = 0; i < index; i++)
    if (p->kernel[i]->pattern == p->kernel[index]->pattern) return true;
  return false;
}

dil_status driver_check(const driver_request *r, compilation *c) {
  dil_status status = driver_read(r, c);
  for (int32_t i = 0; !status && i < c->program->kernel_count; i++) {
    c->kernel = c->program->kernel[i];
    if (diag_full(c->diag)) break;
    status = stage_pattern(r, c);
    if (status) break;
    stage_place(r, c);
    if (planned_before(c->program, i) || stage_normalise(r, c)) continue;
    if (!stage_fuse(r, c)) stage_plan(r, c);
  }
  return status ? status : diag_errors(c->diag) ? DIL_INPUT : DIL_OK;
}
