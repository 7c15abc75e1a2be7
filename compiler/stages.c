/* stages.c - the steps of the compiler's stages, see stages.h. */
#include "stages.h"
#include "compiler/front/ast.h"
#include "compiler/plan/partition.h"
#include "runtime/base/status.h"
#include "runtime/cpu/peak.h"
#include "runtime/observe/trace.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- pattern ------------------------------------------------------------- */

enum { NAMES_MAX = 64 }; /* names that a message considers */

static int32_t kernel_names(const program *p, const char *names[NAMES_MAX]) {
  int32_t count = p->kernel_count < NAMES_MAX ? p->kernel_count : NAMES_MAX;
  for (int32_t i = 0; i < count; i++) names[i] = p->kernel[i]->name;
  return count;
}

static dil_status only_kernel(const program *p, const kernel **only) {
  const char *names[NAMES_MAX];
  char list[DIAG_LIST];
  if (p->kernel_count > 1)
    return dil_fail(DIL_USAGE,
                    "the file has %d kernels: choose one by its name: %s",
                    p->kernel_count,
                    diag_list(names, kernel_names(p, names), list));
  if (p->kernel_count == 0)
    return p->pattern_count
               ? dil_fail(DIL_INPUT, "the file has %d patterns and no kernel: "
                                     "`kernel NAME = %s;` in it would say "
                                     "which is meant",
                          p->pattern_count, p->pattern[0]->name)
               : dil_fail(DIL_INPUT, "the file has no pattern");
  *only = p->kernel[0];
  return DIL_OK;
}

static dil_status not_in_file(const char *kind, const char *name,
                              const char *const *names, int32_t count) {
  char guess[DIAG_GUESS];
  return dil_fail(DIL_USAGE, "the file has no %s '%s'%s", kind, name,
                  count ? diag_guess(name, names, count, guess)
                        : ", nor any other");
}

static dil_status named_kernel(const program *p, const char *name,
                               const kernel **named) {
  const char *names[NAMES_MAX];
  for (int32_t i = 0; i < p->kernel_count; i++) {
    *named = p->kernel[i];
    if (!strcmp((*named)->name, name)) return DIL_OK;
  }
  *named = NULL;
  return not_in_file("kernel", name, names, kernel_names(p, names));
}

dil_status driver_read(const driver_request *r, compilation *c) {
  dil_status status = DIL_INPUT;
  int64_t begin = trace_begin();
  if (r->text)
    c->program = program_parse(c->arena, c->diag, r->path, r->text, r->length,
                               r->defines, r->define_count);
  else
    c->program = program_read(c->arena, c->diag, r->path, r->defines,
                            r->define_count, &status);
  trace_end(begin, "stage", "parse and check", r->path, -1);
  return c->program ? DIL_OK : status;
}

/* Replaces the pattern by a copy whose tensors have another dtype. */
static dil_status retype(compilation *c, const char *name) {
  static const dil_dtype stored[] = {DIL_F32, DIL_BF16, DIL_F16};
  for (size_t i = 0; i < sizeof stored / sizeof *stored; i++)
    if (!strcmp(dil_dtype_name(stored[i]), name)) {
      pattern *copy = ARENA_NEW(c->arena, pattern);
      *copy = *c->pattern;
      copy->dtype = stored[i];
      copy->fast &= stored[i] == DIL_F32;
      c->pattern = copy;
      return DIL_OK;
    }
  const char *habit = ast_habit(name);
  return dil_fail(DIL_USAGE, "tensors are stored as f32, bf16 or f16, not as "
                  "'%.40s'%s%s", name, habit ? ": " : "", habit ? habit : "");
}

/* ---- other sizes of the heads -------------------------------------------- */

enum { SIZES_REPLACED = 4 };

static void list_sizes(const pattern_sizes *s, int64_t size[SIZES_REPLACED]) {
  const int64_t all[] = {s->heads, s->kv_heads, s->head_dim, s->value_dim};
  memcpy(size, all, sizeof all);
}

static const struct {
  const char *name, *option;
  int64_t most;
} sizes_replaced[SIZES_REPLACED] = {
    {"heads", "--heads", DIL_HEADS_MAX},
    {"kv_heads", "--kv-heads", DIL_HEADS_MAX},
    {"head_dim", "--head-dim", DIL_HEAD_DIM_MAX},
    {"value_dim", "--value-dim", DIL_HEAD_DIM_MAX}};

const char *stage_sizes_option(const driver_request *r) {
  int64_t size[SIZES_REPLACED];
  list_sizes(&r->sizes, size);
  for (int32_t i = 0; i < SIZES_REPLACED; i++)
    if (size[i]) return sizes_replaced[i].option;
  return NULL;
}

static dil_status check_sizes(const pattern_sizes *s) {
  int64_t size[SIZES_REPLACED];
  list_sizes(s, size);
  for (int32_t i = 0; i < SIZES_REPLACED; i++)
    if (size[i] < 0 || size[i] > sizes_replaced[i].most)
      return dil_fail(DIL_USAGE, "%s must be 1 to %lld, got %lld",
                      sizes_replaced[i].name, (long long)sizes_replaced[i].most,
                      (long long)size[i]);
  return DIL_OK;
}

dil_status stage_pattern(const driver_request *r, compilation *c) {
  dil_status status = check_sizes(&r->sizes);
  if (status) return status;
  if (stage_sizes_option(r)) {
    c->kernel = program_resize(c->arena, c->diag, c->program, c->kernel,
                               &r->sizes);
    if (!c->kernel) return DIL_INPUT;
  }
  c->pattern = c->kernel->pattern;
  return DIL_OK;
}

dil_status stage_read(const driver_request *r, compilation *c) {
  if (r->from_plan) return DIL_OK;
  dil_status status = c->program ? DIL_OK : driver_read(r, c);
  if (status) return status;
  status = r->kernel ? named_kernel(c->program, r->kernel, &c->kernel)
                     : only_kernel(c->program, &c->kernel);
  if (!status) status = stage_pattern(r, c);
  return !status && r->dtype ? retype(c, r->dtype) : status;
}

void stage_verify_pattern(const compilation *c) {
  if (c->pattern) pattern_verify(c->pattern);
}

/* ---- place --------------------------------------------------------------- */

static dil_status named_topology(const program *p, const char *name,
                                 const topology **named) {
  const char *names[NAMES_MAX];
  int32_t count = 0;
  for (int32_t i = 0; i < p->topology_count; i++) {
    *named = p->topology[i];
    if (!strcmp((*named)->name, name)) return DIL_OK;
    if (count < NAMES_MAX) names[count++] = p->topology[i]->name;
  }
  *named = NULL;
  return not_in_file("topology", name, names, count);
}

/* Several devices: the caller must be able to join them, and the build must
 * have their link. */
static void join_devices(const driver_request *r, compilation *c) {
  const topology *t = c->topology;
  bool asked = r->topology && r->joins && r->device == KNOB_CUDA;
  if (t->devices == 1 && !asked) c->topology = NULL; /* a GPU: a ring of one */
  else if (r->joins) place_possible(c->diag, t);
  else
    diag_report(c->diag, SEVERITY_ERROR, t->at,
                "`dil run` and `dil explain` take it",
                "topology '%s' has %lld devices, this runs a kernel on one",
                t->name, (long long)t->devices);
}

/* Takes the topology and the schedule's knobs, and reports at its place what no
 * link or back end of this build supports. */
dil_status stage_place(const driver_request *r, compilation *c) {
  const kernel *k = c->kernel;
  int before = diag_errors(c->diag);
  dil_status status = DIL_OK;
  c->topology = k ? k->topology : NULL;
  if (r->topology)
    status = named_topology(c->program, r->topology, &c->topology);
  if (status) return status;
  if (c->topology) join_devices(r, c);
  c->direction = k && k->backward ? DIL_BACKWARD : r->direction;
  if (k && k->schedule)
    schedule_read(c->arena, c->diag, k->schedule,
                  r->device ? r->device : KNOB_ANY, &c->knobs);
  return diag_errors(c->diag) > before ? DIL_INPUT : DIL_OK;
}

/* ---- normalise, fuse ----------------------------------------------------- */

dil_status stage_normalise(const driver_request *r, compilation *c) {
  if (!r->from_plan) c->normal = plan_normalise(c->arena, c->pattern, r->force);
  return DIL_OK;
}

void stage_verify_normal(const compilation *c) {
  if (c->normal) pattern_verify(c->normal);
}

static bool width_fits(const compilation *c, span at, const char *what,
                       int64_t width) {
  if (width <= DIL_HEAD_DIM_MAX) return true;
  diag_report(c->diag, SEVERITY_ERROR, at,
              arena_print(c->arena, "this build takes at most %d",
                          DIL_HEAD_DIM_MAX),
              "%s %lld is not supported by this build", what,
              (long long)width);
  return false;
}

/* Returns whether every back end's buffers have room for the head sizes. */
static bool widths_fit(const compilation *c) {
  const pattern *p = c->pattern;
  if (!width_fits(c, p->head_dim_at, "head_dim", p->head_dim)) return false;
  return width_fits(c, p->value_dim_at, "value head_dim", p->value_dim);
}

dil_status stage_fuse(const driver_request *r, compilation *c) {
  if (r->from_plan) return DIL_OK;
  if (!widths_fit(c)) return DIL_INPUT;
  c->planned = plan_fuse(c->arena, c->diag, c->normal, r->force,
                         c->direction,
                         r->device == KNOB_CUDA ? &plan_target_gpu : NULL);
  return c->planned ? DIL_OK : DIL_INPUT;
}

void stage_verify_passes(const compilation *c) {
  if (c->planned) plan_verify(c->planned);
}

/* ---- plan ---------------------------------------------------------------- */

/* Reads a whole file into the arena and adds a NUL. */
static dil_status read_text(arena *a, const char *path, char **text,
                            size_t *length) {
  enum { LIMIT = 1 << 24 };
  const char *reason;
  FILE *in = strcmp(path, "-") ? program_open(path, &reason) : stdin;
  if (!in)
    return dil_fail(DIL_ENVIRONMENT, "cannot open '%s': %s", path, reason);
  char *bytes = malloc(LIMIT + 1);
  *length = bytes ? fread(bytes, 1, LIMIT + 1, in) : 0;
  dil_status status = DIL_OK;
  if (!bytes)
    status = dil_fail(DIL_MEMORY, "no memory to read '%s'", path);
  else if (ferror(in) || *length > LIMIT)
    status = dil_fail(DIL_ENVIRONMENT, "cannot read '%s': %s", path,
                      ferror(in) ? strerror(errno) : "more than 16 MiB");
  else
    *text = arena_copy(a, bytes, *length);
  free(bytes);
  if (in != stdin) fclose(in);
  return status;
}

static dil_status read_plan(const driver_request *r, compilation *c) {
  char *text = NULL;
  size_t length = 0;
  dil_status status = read_text(c->arena, r->path, &text, &length);
  if (status) return status;
  c->planned = plan_parse(c->arena, c->diag, r->path, text, length);
  if (!c->planned) return DIL_INPUT;
  if (r->direction != DIL_FORWARD && c->planned->direction == DIL_FORWARD)
    return dil_fail(DIL_USAGE, "--backward cannot change a plan that is read "
                               "from its text: it is forward");
  c->pattern = c->planned->pattern;
  c->direction = c->planned->direction;
  return widths_fit(c) ? DIL_OK : DIL_INPUT;
}

dil_status stage_plan(const driver_request *r, compilation *c) {
  dil_status status = r->from_plan ? read_plan(r, c) : DIL_OK;
  if (!status) driver_apply_knobs(c, &c->knobs);
  return status;
}

void stage_verify_plan(const compilation *c) { plan_verify(c->plan); }

void driver_apply_knobs(compilation *c, const knobs *k) {
  c->knobs = *k;
  c->plan = plan_apply_knobs(c->arena, c->planned, k);
}

void driver_drop_knobs(compilation *c) {
  knobs none = {0};
  driver_apply_knobs(c, &none);
}

wisdom_query driver_wisdom_query(const compilation *c) {
  bool scheduled = c->kernel && c->kernel->schedule;
  return (wisdom_query){.arena = c->arena,
                        .diag = c->diag,
                        .pattern = c->pattern,
                        .direction = c->direction,
                        .isa = c->isa,
                        .free = !scheduled && !(c->plan && c->plan->force)};
}

bool driver_apply_wisdom(compilation *c, const dil_context *context,
                         const int64_t size[3]) {
  wisdom_query q = driver_wisdom_query(c);
  knobs k;
  bool found = wisdom_apply(&q, context, size, &k);
  if (found) driver_apply_knobs(c, &k);
  return found;
}

bool driver_apply_wisdom_chip(compilation *c, const char *chip) {
  wisdom_query q = driver_wisdom_query(c);
  knobs k;
  bool found = wisdom_apply_chip(&q, chip, &k);
  if (found) driver_apply_knobs(c, &k);
  return found;
}

dil_status driver_refused(compilation *c, dil_status status) {
  const schedule *s = c->kernel ? c->kernel->schedule : NULL;
  bool unfit = status == DIL_INPUT || status == DIL_UNSUPPORTED;
  if (!unfit || !s || !c->knobs.given) return status;
  diag_report(c->diag, SEVERITY_ERROR, s->at, NULL,
              "schedule '%s' cannot be had: %s", s->name, dil_last_error());
  return DIL_INPUT;
}

code_request driver_code_request(const compilation *c, dil_context *context) {
  return (code_request){.plan = c->plan,
                        .knobs = c->knobs,
                        .context = context,
                        .isa = c->isa};
}

dil_status driver_code(compilation *c, const code_request *request,
                       kernel_code *code) {
  return driver_refused(c, kernel_code_make(request, code));
}

/* ---- schedule ------------------------------------------------------------ */

/* Asks the run time for the processor's instruction set. The back end is not
 * opened for it, since the code may lie in the cache. */
dil_status stage_isa(const driver_request *r, compilation *c) {
  c->isa = r->isa ? r->isa : dil_host_isa();
  return dil_isa_check(c->isa);
}
