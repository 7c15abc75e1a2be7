/* host.c - the compiler as a library: dil.h in terms of driver.h.
 *
 * In: text or a file, options. Out: programs, and kernels that keep alive what
 * they need of them. Diagnostics become the text of the failure; running out of
 * memory anywhere in the compiler ends here, as a status. */
#include "compiler/dil.h"
#include "compiler/driver.h"
#include "compiler/front/ast.h"
#include "compiler/plan/partition.h"
#include "runtime/api/usage.h"
#include "runtime/base/status.h"
#include "runtime/observe/log.h"
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct dil_program {
  atomic_int uses;           /* the host's, and one a kernel */
  dil_context *context;
  compilation made;
  char *warnings;            /* malloced */
};

/* One compilation; the kernel's, and gone with it. */
typedef struct host_kernel {
  kernel_code code;          /* first: what the kernel's hooks get */
  compilation made;
  dil_program *program;
} host_kernel;

/* Hosts built before there were ranks give 64 bytes, and the last four of these are
 * padding: a field there would have any value. */
_Static_assert(offsetof(dil_kernel_options, ranks) == 64,
               "a field at the end makes a struct grow");

/* ---- running out of memory ----------------------------------------------- */

typedef struct host_job {
  dil_program *program;
  host_kernel *kernel; /* NULL: the program itself */
  driver_request request;
  const dil_sizes *sizes;    /* of its calls; NULL: not known */
  bool json;
  bool ranks;                /* a rank may take the kernel */
} host_job;

typedef dil_status (*work)(host_job *j);

static dil_status no_memory(void) {
  return dil_fail(DIL_MEMORY, "out of memory in the compiler");
}

/* Does the work; what its arena cannot give ends it with DIL_MEMORY. */
static dil_status guard(arena *a, work todo, host_job *j) {
  jmp_buf out;
  arena_catch(a, &out);
  dil_status status = setjmp(out) ? no_memory() : todo(j);
  arena_catch(a, NULL);
  return status;
}

/* ---- diagnostics --------------------------------------------------------- */

/* diag_print; false when memory was lacking. */
static bool print_messages(arena *a, const diag *d, bool json, FILE *out) {
  jmp_buf lost, *before = arena_catch(a, &lost);
  bool whole = !setjmp(lost);
  if (whole) diag_print(d, out, json);
  arena_catch(a, before);
  return whole && !ferror(out);
}

/* All messages as one malloced text; NULL without memory. */
static char *messages_of(arena *a, const diag *d, bool json) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  if (!out) return NULL;
  bool whole = print_messages(a, d, json, out);
  if (fclose(out) == 0 && whole) return text;
  free(text);
  return NULL;
}

/* The status of a stage; its diagnostics become the text of the failure. */
static dil_status told(const compilation *c, bool json, dil_status status) {
  diag *d = c->diag;
  if (!status || status == DIL_MEMORY) return status;
  if (diag_errors(d) == 0 && !json) return status;
  if (diag_errors(d) == 0)
    diag_report(d, SEVERITY_ERROR, (span){0}, NULL, "%s", dil_last_error());
  char *text = messages_of(c->arena, d, json);
  if (!text) return no_memory();
  size_t length = strlen(text);
  if (length && text[length - 1] == '\n') text[length - 1] = 0;
  dil_fail_text(status, text);
  free(text);
  return status;
}

/* ---- programs ------------------------------------------------------------ */

static const char *kept(arena *a, const char *text) {
  return text ? arena_copy(a, text, strlen(text)) : NULL;
}

/* Texts of the host, which it may free once the program is made. */
static void keep_request(arena *a, driver_request *r) {
  define *copies = ARENA_ARRAY(a, define, r->define_count);
  for (int32_t i = 0; i < r->define_count; i++)
    copies[i] = (define){kept(a, r->defines[i].name),
                         kept(a, r->defines[i].value)};
  r->defines = copies;
  r->path = kept(a, r->path);
  /* A longer text is refused without a look at it. */
  if (r->text && r->length <= FILE_MAX)
    r->text = arena_copy(a, r->text, r->length);
}

static dil_status read_it(host_job *j) {
  compilation *c = &j->program->made;
  c->diag = diag_new(c->arena);
  keep_request(c->arena, &j->request);
  dil_status status = driver_read(&j->request, c);
  status = told(c, j->json, status);
  if (status) return status;
  j->program->warnings = messages_of(c->arena, c->diag, j->json);
  return j->program->warnings ? DIL_OK : no_memory();
}

static void program_drop(dil_program *p) {
  if (!p || atomic_fetch_sub(&p->uses, 1) > 1) return;
  arena_free(p->made.arena);
  free(p->warnings);
  dil_context_drop(p->context);
  free(p);
}

static dil_program *program_new(dil_context *context) {
  dil_program *p = calloc(1, sizeof *p);
  arena *a = p ? arena_new() : NULL;
  if (!a) {
    free(p);
    return NULL;
  }
  p->made.arena = a;
  atomic_store(&p->uses, 1);
  p->context = dil_context_keep(context);
  return p;
}

/* The definitions of a host. */
static dil_status definitions_check(const dil_define *given, int32_t count) {
  dil_status status =
      dil_usage_list("definitions", count, DEFINE_MAX, given);
  for (int32_t i = 0; i < count && !status; i++)
    status = dil_usage_given("name of a definition", given[i].name,
                             "value of a definition", given[i].value, NULL);
  return status;
}

static dil_status make_program(dil_context *context, driver_request request,
                               const dil_program_options *options,
                               dil_program **out) {
  dil_program_options o = DIL_PROGRAM_OPTIONS_INIT;
  dil_status status = dil_context_check(context);
  if (!status && options)
    status = dil_struct_read(&o, sizeof o, options, "dil_program_options");
  if (!status) status = definitions_check(o.defines, o.define_count);
  if (status) return status;
  dil_program *p = program_new(context);
  if (!p) return no_memory();
  request.defines = o.defines;
  request.define_count = o.define_count;
  host_job j = {.program = p, .request = request, .json = o.json != 0};
  status = guard(p->made.arena, read_it, &j);
  if (status) program_drop(p);
  else *out = p;
  return status;
}

dil_status dil_program_read(dil_context *context, const char *path,
                            const dil_program_options *options,
                            dil_program **out) {
  dil_status status =
      dil_usage_given("place for the program", out, "path", path, NULL);
  if (out) *out = NULL;
  if (status) return status;
  dil_call_begin();
  return dil_call_end(make_program(context, (driver_request){.path = path},
                                   options, out));
}

dil_status dil_program_parse(dil_context *context, const char *name,
                             const char *text, size_t length,
                             const dil_program_options *options,
                             dil_program **out) {
  driver_request request = {
      .path = name ? name : "<text>", .text = text, .length = length};
  int64_t bytes = length > INT64_MAX ? INT64_MAX : (int64_t)length;
  dil_status status =
      dil_usage_given("place for the program", out, "text", text, NULL);
  if (!status) status = dil_usage_bytes("text", text, bytes);
  if (out) *out = NULL;
  if (status) return status;
  dil_call_begin();
  return dil_call_end(make_program(context, request, options, out));
}

void dil_program_free(dil_program *p) {
  dil_call_begin();
  program_drop(p);
  dil_call_end(DIL_OK);
}

const char *dil_program_warnings(const dil_program *p) {
  return p ? p->warnings : "";
}

int32_t dil_program_kernel_count(const dil_program *p) {
  return p ? p->made.program->kernel_count : 0;
}

const char *dil_program_kernel_name(const dil_program *p,
                                    int32_t index) {
  bool there = index >= 0 && index < dil_program_kernel_count(p);
  return there ? p->made.program->kernel[index]->name : NULL;
}

/* ---- topologies ---------------------------------------------------------- */

static dil_status find_topology(const program *p, const char *name,
                                const topology **found) {
  for (int32_t i = 0; i < p->topology_count && name; i++)
    if (!strcmp(p->topology[i]->name, name)) *found = p->topology[i];
  if (!name && p->topology_count == 1) *found = p->topology[0];
  if (*found) return DIL_OK;
  return name ? dil_fail(DIL_INPUT, "the program has no topology '%.80s'", name)
              : dil_fail(DIL_INPUT, "the program has %d topologies: name one",
                         p->topology_count);
}

dil_status dil_program_topology(const dil_program *p, const char *name,
                                dil_topology_info *info) {
  dil_topology_info all;
  const topology *t = NULL;
  dil_status status =
      dil_usage_given("program", p, "place for the topology", info, NULL);
  if (!status)
    status = dil_struct_read(&all, sizeof all, info, "dil_topology_info");
  if (!status) status = find_topology(p->made.program, name, &t);
  if (status) return status;
  const program *made = p->made.program;
  static const pattern none;
  mesh m = place_mesh(made->kernel_count    ? made->kernel[0]->pattern
                      : made->pattern_count ? made->pattern[0]
                                            : &none,
                      t);
  all = (dil_topology_info){sizeof all, t->name, t->devices,
                            m.ring,     m.heads, m.batch,
                            (int32_t)m.layout,   m.gathered != 0,
                            t->timeout};
  dil_struct_write(info, &all, sizeof all);
  return DIL_OK;
}

/* ---- kernels ------------------------------------------------------------- */

/* Messages that are no errors go to the log. */
static dil_status log_warnings(const host_job *j, const compilation *c) {
  char *text = messages_of(c->arena, c->diag, false);
  if (!text) return no_memory();
  size_t length = strlen(text);
  if (length && text[length - 1] == '\n') text[length - 1] = 0;
  if (length) LOG(dil_log_of(j->program->context), DIL_LOG_WARNING, "%s", text);
  free(text);
  return DIL_OK;
}

static dil_status make_code(host_job *j, compilation *c) {
  code_request request = driver_code_request(c, j->program->context);
  request.lazy = request.full_sequences_only = !j->ranks;
  return driver_code(c, &request, &j->kernel->code);
}

/* With what is remembered, and without it where that cannot be had. */
static dil_status make_source(host_job *j, compilation *c) {
  dil_context *context = j->program->context;
  const dil_sizes *s = j->sizes;
  const int64_t size[3] = {s ? s->batch : 0, s ? s->queries : 0,
                           s ? s->keys : 0};
  char text[KNOBS_TEXT];
  bool applied = driver_apply_wisdom(c, context, s ? size : NULL);
  dil_status status = make_code(j, c);
  knobs_text(&c->knobs, text);
  if (applied && (status == DIL_INPUT || status == DIL_UNSUPPORTED)) {
    LOG(dil_log_of(context), DIL_LOG_WARNING, WISDOM_LOST, text,
        dil_last_error());
    driver_drop_knobs(c);
    applied = false;
    status = make_code(j, c);
  }
  j->kernel->code.source.remembered = applied;
  j->kernel->code.source.schedule = kept(c->arena, knobs_text(&c->knobs, text));
  return status;
}

static dil_status compile_it(host_job *j) {
  compilation *c = &j->kernel->made;
  c->diag = diag_new(c->arena);
  j->request.isa = kept(c->arena, j->request.isa);
  c->program = j->program->made.program;
  dil_status status = driver_compile(&j->request, c);
  if (!status) status = make_source(j, c);
  return status ? told(c, j->json, status) : log_warnings(j, c);
}

static void kernel_drop(void *context) {
  host_kernel *k = context;
  kernel_code_free(&k->code);
  arena_free(k->made.arena);
  program_drop(k->program);
  free(k);
}

static host_kernel *kernel_made_new(dil_program *p) {
  host_kernel *k = calloc(1, sizeof *k);
  arena *a = k ? arena_new() : NULL;
  if (!a) {
    free(k);
    return NULL;
  }
  k->made.arena = a;
  k->program = p;
  atomic_fetch_add(&p->uses, 1);
  return k;
}

static dil_status check_force(uint32_t set) {
  const char *clash = plan_force_clash(set);
  if (clash) return dil_fail(DIL_USAGE, "force: %s exclude each other", clash);
  if (!(set & ~(uint32_t)FORCE_ALL)) return DIL_OK;
  return dil_fail(DIL_USAGE, "force is 0x%x, and has bits beyond 0x%x",
                  (unsigned)set, (unsigned)FORCE_ALL);
}

static dil_status make_kernel(dil_program *p, const char *name,
                              const dil_kernel_options *options,
                              dil_kernel **out) {
  dil_kernel_options o = DIL_KERNEL_OPTIONS_INIT;
  dil_status status =
      dil_usage_given("place for the kernel", out, "program", p, NULL);
  if (out) *out = NULL;
  if (!status) status = dil_context_check(p->context);
  if (!status && options)
    status = dil_struct_read(&o, sizeof o, options, "dil_kernel_options");
  if (!status) status = check_force(o.force);
  if (!status && o.sizes) status = dil_usage_sizes(o.sizes);
  if (status) return status;
  bool gpu = dil_context_arch(p->context) != 0;
  if (gpu && o.isa)
    return dil_fail(DIL_USAGE, "instruction set '%s' says nothing to device "
                    "%s", o.isa, dil_context_device(p->context));
  host_kernel *k = kernel_made_new(p);
  if (!k) return no_memory();
  host_job j = {
      .program = p,
      .kernel = k,
      .json = o.json != 0,
      .ranks = o.ranks != 0,
      .sizes = o.sizes};
  j.request =
      (driver_request){.kernel = name,
                       .force = o.force,
                       .isa = o.isa,
                       .dtype = o.dtype,
                       .sizes = {.heads = o.heads,
                                 .kv_heads = o.kv_heads,
                                 .head_dim = o.head_dim,
                                 .value_dim = o.value_dim},
                       .direction = o.backward ? DIL_BACKWARD : DIL_FORWARD,
                       .device = gpu ? KNOB_CUDA : KNOB_CPU,
                       .last = gpu ? STAGE_plan : STAGE_schedule};
  status = guard(k->made.arena, compile_it, &j);
  k->code.source.release = kernel_drop;
  if (!status) status = dil_kernel_make(p->context, &k->code.source, out);
  kernel_code_free_cubins(&k->code);
  if (status) kernel_drop(k);
  return status;
}

dil_status dil_program_kernel(dil_program *p, const char *name,
                              const dil_kernel_options *options,
                              dil_kernel **out) {
  dil_call_begin();
  return dil_call_end(make_kernel(p, name, options, out));
}
