/* driver.c - the compiler's stages as a table: each row makes, verifies and
 * prints one stage. In: a request. Out: a compilation, see driver.h. */
#include "driver.h"
#include "compiler/analysis/cover.h"
#include "compiler/front/ast.h"
#include "compiler/plan/partition.h"
#include "interface.h"
#include "runtime/base/module.h"
#include "runtime/base/status.h"
#include "runtime/cpu/peak.h"
#include "runtime/observe/trace.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef dil_status (*step)(const driver_request *r, compilation *c);

/* ---- reading ------------------------------------------------------------- */

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

static dil_status read_kernel(const driver_request *r, compilation *c) {
  if (r->from_plan) return DIL_OK;
  dil_status status = c->program ? DIL_OK : driver_read(r, c);
  if (status) return status;
  status = r->kernel ? named_kernel(c->program, r->kernel, &c->kernel)
                     : only_kernel(c->program, &c->kernel);
  if (status) return status;
  c->pattern = c->kernel->pattern;
  return r->dtype ? retype(c, r->dtype) : DIL_OK;
}

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
  c->pattern = c->planned->pattern;
  return DIL_OK;
}

/* ---- stages -------------------------------------------------------------- */

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
static dil_status place_kernel(const driver_request *r, compilation *c) {
  const kernel *k = c->kernel;
  int before = diag_errors(c->diag);
  dil_status status = DIL_OK;
  c->topology = k ? k->topology : NULL;
  if (r->topology)
    status = named_topology(c->program, r->topology, &c->topology);
  if (status) return status;
  if (c->topology) join_devices(r, c);
  if (k && k->backward)
    diag_report(c->diag, SEVERITY_ERROR, k->at,
                "this build runs kernels forward",
                "backward kernel '%s' is not supported by this build", k->name);
  if (k && k->schedule)
    schedule_read(c->arena, c->diag, k->schedule,
                  r->device ? r->device : KNOB_ANY, &c->knobs);
  return diag_errors(c->diag) > before ? DIL_INPUT : DIL_OK;
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

/* Whether the buffers of every back end have room for the head sizes. */
static bool widths_fit(const compilation *c) {
  const pattern *p = c->pattern;
  if (!width_fits(c, p->head_dim_at, "head_dim", p->head_dim)) return false;
  return width_fits(c, p->value_dim_at, "value head_dim", p->value_dim);
}

static dil_status make_plan(const driver_request *r, compilation *c) {
  dil_status status = r->from_plan ? read_plan(r, c) : DIL_OK;
  if (status) return status;
  if (!widths_fit(c)) return DIL_INPUT;
  if (!r->from_plan)
    c->planned = plan_make_for(c->arena, c->diag, c->pattern, r->force,
                               r->device == KNOB_CUDA);
  if (c->planned) driver_turn(c, &c->knobs);
  return c->planned ? DIL_OK : DIL_INPUT;
}

dil_status driver_refused(compilation *c, dil_status status) {
  const schedule *s = c->kernel ? c->kernel->schedule : NULL;
  bool unfit = status == DIL_INPUT || status == DIL_UNSUPPORTED;
  if (!unfit || !s || !c->knobs.given) return status;
  diag_report(c->diag, SEVERITY_ERROR, s->at, NULL,
              "schedule '%s' cannot be had: %s", s->name, dil_last_error());
  return DIL_INPUT;
}

void driver_turn(compilation *c, const knobs *k) {
  plan *turned = ARENA_NEW(c->arena, plan);
  *turned = *c->planned;
  if (knob_given(k, KNOB_TILE_KEYS))
    turned->table.tile_keys = k->value[KNOB_TILE_KEYS][0];
  c->knobs = *k;
  c->plan = turned;
}

/* Asks the run time for the processor's instruction set. The back end is not
 * opened for it, since the code may lie in the cache. */
static dil_status choose_isa(const driver_request *r, compilation *c) {
  c->isa = r->isa ? r->isa : dil_host_isa();
  return dil_isa_check(c->isa);
}

dil_status driver_backend(const backend **opened) {
  void *symbol;
  dil_status status =
      dil_module_open("dil-cpu.so", DIL_BACKEND_SYMBOL, &symbol);
  if (status) return status;
  *opened = ((backend_init)symbol)();
  if (*opened && (*opened)->version == DIL_INTERFACE) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "dil-cpu.so is of another version of dil");
}

static dil_status make_code(const compilation *c, dil_variant variant, FILE *ir,
                            FILE *assembly, backend_code *code) {
  backend_request request = {.plan = c->plan,
                             .isa = c->isa,
                             .variant = variant,
                             .debug = true,
                             .ir = ir,
                             .assembly = assembly};
  const backend *cpu;
  dil_status status = driver_backend(&cpu);
  return status ? status : cpu->compile(&request, code);
}

/* ---- printing ------------------------------------------------------------ */

static dil_status print_tokens(const driver_request *r, compilation *c) {
  return program_print_tokens(r->path, r->dump, c->diag, c->arena);
}

static dil_status print_ast(const driver_request *r, compilation *c) {
  return program_print_ast(r->path, r->dump, c->diag, c->arena);
}

static dil_status print_pattern(const driver_request *r, compilation *c) {
  pattern_print(c->pattern, r->dump);
  return DIL_OK;
}

static dil_status print_cover(const driver_request *r, compilation *c) {
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

static dil_status print_place(const driver_request *r, compilation *c) {
  place_print(c->pattern, c->topology, r->dump);
  return DIL_OK;
}

static dil_status print_plan(const driver_request *r, compilation *c) {
  plan_print(c->plan, r->dump);
  return DIL_OK;
}

/* Prints the source of every kernel, of its first attempt; needs no NVRTC. */
static dil_status print_cuda(const driver_request *r, compilation *c) {
  const gpu_backend *gpu;
  gpu_codes codes = {0};
  gpu_request request = {.plan = c->plan,
                         .arch = r->arch,
                         .knobs = &c->knobs,
                         .whole = !c->topology,
                         .source_only = true,
                         .cuda = r->dump};
  dil_status status = gpu_compiler_open(&gpu);
  return status ? status : driver_refused(c, gpu->compile(&request, &codes));
}

/* Compiles; prints ptxas's report on each attempt and the gate's refusals. */
static dil_status print_ptxas(const driver_request *r, compilation *c) {
  const gpu_backend *gpu;
  gpu_codes codes = {0};
  gpu_request request = {.plan = c->plan,
                         .arch = r->arch,
                         .knobs = &c->knobs,
                         .whole = !c->topology,
                         .ptxas = r->dump};
  dil_status status = gpu_compiler_open(&gpu);
  if (!status) status = gpu->compile(&request, &codes);
  while (codes.count > 0) free(codes.code[--codes.count].cubin);
  return driver_refused(c, status);
}

static void print_variant(dil_variant variant, const backend_code *made,
                          FILE *out) {
  const dil_code *code = &made->code;
  if (variant == DIL_TILES)
    fprintf(out,
            "  tiles: %d query rows by %d keys, %d keys a block, k and v "
            "packed as %s",
            code->lanes, code->tile_keys, code->key_block,
            code->pack == 2 ? "bf16 pairs" : "f32");
  else
    fprintf(out, "  rows, for few queries: one by one, k and v in place");
  fprintf(out, "; %zu bytes of object\n", made->size);
}

static dil_status print_schedule(const driver_request *r, compilation *c) {
  char text[KNOBS_TEXT];
  fprintf(r->dump, "schedule %s\n  device cpu\n  isa %s\n", c->pattern->name,
          c->isa);
  if (c->knobs.given)
    fprintf(r->dump, "  knobs %s\n", knobs_text(&c->knobs, text));
  for (int32_t v = 0; v < DIL_VARIANT_COUNT; v++) {
    backend_code code;
    dil_status status = make_code(c, (dil_variant)v, NULL, NULL, &code);
    if (status) return status;
    print_variant((dil_variant)v, &code, r->dump);
    free(code.bytes);
  }
  return DIL_OK;
}

static dil_status print_ir(const driver_request *r, compilation *c) {
  backend_code code;
  dil_status status = make_code(c, r->variant, r->dump, NULL, &code);
  if (!status) free(code.bytes);
  return status;
}

static dil_status print_asm(const driver_request *r, compilation *c) {
  backend_code code;
  dil_status status = make_code(c, r->variant, NULL, r->dump, &code);
  if (!status) free(code.bytes);
  return status;
}

/* ---- the stages in order ------------------------------------------------- */

static void verify_pattern(const compilation *c) {
  if (c->pattern) pattern_verify(c->pattern);
}

static void verify_plan(const compilation *c) {
  plan_verify(c->plan);
}

/* Stages without `make` exist to be printed. Stage pattern makes tokens and
 * tree on the way; machine code is made when a kernel or a call needs it. */
static const struct {
  step make;
  void (*verify)(const compilation *c);
  step print;
} stages[STAGE_COUNT] = {
    [STAGE_tokens] = {NULL, NULL, print_tokens},
    [STAGE_ast] = {NULL, NULL, print_ast},
    [STAGE_pattern] = {read_kernel, verify_pattern, print_pattern},
    [STAGE_cover] = {NULL, NULL, print_cover},
    [STAGE_place] = {place_kernel, NULL, print_place},
    [STAGE_plan] = {make_plan, verify_plan, print_plan},
    [STAGE_cuda] = {NULL, NULL, print_cuda},
    [STAGE_ptxas] = {NULL, NULL, print_ptxas},
    [STAGE_schedule] = {choose_isa, NULL, print_schedule},
    [STAGE_ir] = {NULL, NULL, print_ir},
    [STAGE_asm] = {NULL, NULL, print_asm},
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
                                          : NULL;
  if (!useless) return DIL_OK;
  return dil_fail(DIL_USAGE, "a plan's text is past what %s decides", useless);
}

static const char *const stage_names[STAGE_COUNT] = {
#define X(name) #name,
    DRIVER_STAGES(X)
#undef X
};

dil_status driver_compile(const driver_request *r, compilation *c) {
  dil_status status = check_request(r);
  if (status) return status;
  for (int32_t s = 0; s <= (int32_t)r->last; s++) {
    int64_t begin = stages[s].make ? trace_begin() : 0;
    status = stages[s].make ? stages[s].make(r, c) : DIL_OK;
    if (status) return status;
    if (stages[s].verify) stages[s].verify(c);
    trace_end(begin, "stage", stage_names[s], r->path, -1);
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
    c->pattern = c->kernel->pattern;
    if (diag_full(c->diag)) break;
    place_kernel(r, c);
    if (!planned_before(c->program, i)) make_plan(r, c);
  }
  return status ? status : diag_errors(c->diag) ? DIL_INPUT : DIL_OK;
}

dil_status driver_shapes_decide(const compilation *c) {
  int before = diag_errors(c->diag);
  for (int32_t b = 0; b < c->pattern->branch_count; b++)
    for (int32_t level = 0; level < 2; level++) {
      const keeps *all = &c->pattern->branch[b].keeps[level];
      for (int32_t k = 0; k < all->count; k++)
        if (all->keep[k].kind == KEEP_TOP || all->keep[k].kind == KEEP_MASS)
          diag_report(c->diag, SEVERITY_ERROR, all->keep[k].at, NULL,
                      "`keep %s` chooses blocks by the numbers in q and k, "
                      "which are not known here",
                      all->keep[k].kind == KEEP_TOP ? "top" : "mass");
    }
  return diag_errors(c->diag) > before ? DIL_INPUT : DIL_OK;
}
