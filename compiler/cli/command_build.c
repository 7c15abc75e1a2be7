/* command_build.c - `dil build FILE... -o NAME`: kernels ahead of time. In:
 * files, targets, what to write. Out: the files of a library and, when asked,
 * their names or a rule for make. Nothing is written before all is made. */
#include "build.h"
#include "runtime/cuda/chips.h"
#include <stdlib.h>
#include <string.h>

/* ---- targets ------------------------------------------------------------- */

dil_status command_arch(const char **list, int32_t *arch) {
  char *end = NULL;
  const char *at = *list;
  bool named = !strncmp(at, "sm_", 3) && at[3] >= '0' && at[3] <= '9';
  long number = named ? strtol(at + 3, &end, 10) : 0;
  const char *suffix = cuda_chip_suffix((int32_t)number);
  if (end && !strncmp(end, suffix, strlen(suffix))) end += strlen(suffix);
  bool ends = end && (!*end || (*end == ',' && end[1]));
  if (!ends || number < 10 || number > 999)
    return message_error(DIL_USAGE, NULL,
                         "--cuda must be chips such as sm_80,sm_90a, got '%s'",
                         at);
  *arch = (int32_t)number;
  *list = end + (*end == ',');
  return DIL_OK;
}

static dil_status read_chips(building *b) {
  library *l = &b->library;
  const char *list = b->options->cuda;
  for (bool more = list != NULL; more; more = *list) {
    int32_t arch, have = 0;
    dil_status status = command_arch(&list, &arch);
    if (status) return status;
    while (have < l->arch_count && l->arch[have] != arch) have++;
    if (have == LIBRARY_TARGETS_MAX)
      return message_error(DIL_USAGE, NULL, "--cuda takes at most %d chips",
                           LIBRARY_TARGETS_MAX);
    if (have == l->arch_count) l->arch[l->arch_count++] = arch;
  }
  if (b->emit & EMIT_CHIPS && !l->arch_count)
    return message_error(DIL_USAGE, NULL,
                         "--emit=%s needs chips: --cuda ARCH,...",
                         b->emit & BIT(CUBIN) ? "cubin" : "cu");
  return DIL_OK;
}

static bool is_word_of(const char *list, const char *word) {
  size_t length = strlen(word);
  for (; list; list = strchr(list, ',')) {
    list += *list == ',';
    if (!strncmp(list, word, length) && (!list[length] || list[length] == ','))
      return true;
  }
  return false;
}

static dil_status check_isas(const char *list, const char *const *known) {
  for (const char *at = list;; at++) {
    size_t length = strcspn(at, ",");
    int32_t i = 0;
    while (known[i] &&
           (strlen(known[i]) != length || strncmp(known[i], at, length)))
      i++;
    if (!known[i])
      return message_error(DIL_USAGE, NULL,
                           "--cpu must be instruction sets such as "
                           "avx2,avx512, or none; got '%.*s'",
                           (int)length, at);
    at += length;
    if (!*at) return DIL_OK;
  }
}

/* In the back end's order, not the user's; all of them without --cpu. */
static dil_status read_isas(building *b) {
  library *l = &b->library;
  const char *list = b->options->cpu;
  /* a description is of the whole library */
  l->has_object = (b->emit & ~EMIT_CHIPS) != 0;
  if (!l->has_object && list && strcmp(list, "none"))
    return message_error(DIL_USAGE, NULL,
                         "--cpu has no effect with this "
                         "--emit");
  if (!l->has_object || (list && !strcmp(list, "none"))) return DIL_OK;
  const cpu_backend *cpu;
  dil_status status = cpu_backend_open(&cpu);
  if (status) return message_compiled(b->options, &b->compilation, status);
  const char *const *known = cpu->isas();
  if (list) status = check_isas(list, known);
  for (int32_t i = 0; !status && known[i]; i++)
    if (!list || is_word_of(list, known[i])) l->isa[l->isa_count++] = known[i];
  return status;
}

static dil_status check_build_options(const building *b) {
  const options *o = b->options;
  if (!o->seen[OPTION_OUT])
    return message_error(DIL_USAGE, NULL, "`dil build` needs -o NAME");
  if (o->seen[OPTION_FROM] && o->seen[OPTION_DTYPE])
    return message_error(
        DIL_USAGE, NULL,
        "--dtype cannot change a plan that is read from its text");
  if (o->standalone && !(b->emit & EMIT_LIBRARY))
    return message_error(DIL_USAGE, NULL,
                         "--standalone has no effect with this --emit");
  return DIL_OK;
}

static dil_status check_targets(const building *b) {
  const library *l = &b->library;
  if (l->isa_count || l->arch_count || !l->has_object) return DIL_OK;
  return message_error(DIL_USAGE, NULL,
                       "--cpu none leaves nothing to build without --cuda");
}

/* ---- kernels ------------------------------------------------------------- */

/* The pattern in another dtype; `fast` belongs to f32. */
static dil_status add_dtype(building *b, const char *name, compilation c,
                            dil_dtype dtype) {
  pattern *p = ARENA_NEW(c.arena, pattern);
  *p = *c.pattern;
  p->dtype = dtype;
  p->fast = p->fast && dtype == DIL_F32;
  c.pattern = p;
  c.planned = plan_make_for(c.arena, c.diag, p, options_force(b->options),
                            c.direction,
                            b->library.isa_count ? NULL : &plan_target_gpu);
  if (!c.planned) return DIL_INPUT;
  driver_apply_knobs(&c, &c.knobs);
  const char *ending = arena_print(c.arena, "_%s", dil_dtype_name(dtype));
  return library_add(&b->library, name, ending, &c);
}

/* A kernel that came to its plan, once for each dtype. */
static dil_status add_kernel(building *b, const compilation *c) {
  unsigned dtypes = sets_union(&b->options->dtype);
  const char *name = c->kernel ? c->kernel->name : c->pattern->name;
  dil_status status = DIL_OK;
  b->source_count++;
  if (!dtypes) return library_add(&b->library, name, "", c);
  for (int32_t d = 0; !status && dtypes >> d; d++)
    if (dtypes >> d & 1) status = add_dtype(b, name, *c, (dil_dtype)d);
  return status;
}

/* All kernels of a file; a first look finds everything that is wrong. */
static dil_status add_all(building *b, driver_request *r) {
  compilation *c = &b->compilation;
  dil_status status = driver_check(r, c);
  for (int32_t i = 0; !status && i < c->program->kernel_count; i++) {
    compilation one = *c;
    r->kernel = c->program->kernel[i]->name;
    status = driver_compile(r, &one);
    if (!status) status = add_kernel(b, &one);
  }
  return status;
}

static dil_status add_kernel_of(building *b, const driver_request *r) {
  dil_status status = driver_compile(r, &b->compilation);
  return status ? status : add_kernel(b, &b->compilation);
}

static void note_file(building *b, const char *path) {
  const char **grown =
      ARENA_ARRAY(b->library.arena, const char *, b->file_count + 1);
  for (int32_t i = 0; i < b->file_count; i++) grown[i] = b->file[i];
  grown[b->file_count++] = path;
  b->file = grown;
}

/* The file and what it imports; a plan's text imports nothing. */
static void note_files(building *b, const driver_request *r) {
  const program *p = b->compilation.program;
  if (!p) note_file(b, r->path);
  for (int32_t i = 0; p && i < p->file_count; i++) note_file(b, p->file[i]);
}

static dil_status add_kernels_of(building *b, int32_t index) {
  compilation *c = &b->compilation;
  driver_request r = command_request(b->options, index);
  r.device = b->library.arch_count == 0  ? KNOB_CPU
             : b->library.isa_count == 0 ? KNOB_CUDA
                                         : 0;
  *c = (compilation){.arena = c->arena, .diag = diag_new(c->arena)};
  dil_status status =
      r.kernel || r.from_plan ? add_kernel_of(b, &r) : add_all(b, &r);
  if (!status) note_files(b, &r);
  return message_compiled(b->options, c, status);
}

static dil_status add_files(building *b) {
  const options *o = b->options;
  dil_status status = DIL_OK;
  if (o->kernel && o->file_count > 1)
    return message_error(DIL_USAGE, NULL,
                         "--kernel chooses from one file, got %d",
                         o->file_count);
  for (int32_t i = 0; !status && i < o->file_count; i++)
    status = add_kernels_of(b, i);
  if (!status && b->library.kernel_count == 0)
    return message_error(DIL_INPUT, NULL, "the files have no kernel");
  return status;
}

/* ---- the command --------------------------------------------------------- */

static dil_status tell_failure(building *b, dil_status status) {
  return status ? message_compiled(b->options, &b->compilation, status)
                : DIL_OK;
}

static dil_status name_library(building *b) {
  const options *o = b->options;
  return tell_failure(b, library_name(&b->library, o->out, o->name));
}

static dil_status name_kernels(building *b) {
  b->compilation.diag = diag_new(b->library.arena); /* the files' own are told */
  return tell_failure(b, library_name_kernels(&b->library,
                                              b->options->name != NULL,
                                              b->source_count > 1));
}

/* It takes them for the ends of a module's name. */
static void note_pc(const building *b) {
  if (b->emit & BIT(PC) && strpbrk(b->library.base, " ,"))
    message_note("pkg-config cannot ask for '%s.pc', because the name has a "
                 "blank or a comma: copy it to another name",
                 b->library.base);
}

static dil_status read_targets(building *b) {
  dil_status status = read_chips(b);
  if (!status) status = read_isas(b);
  return status ? status : check_targets(b);
}

static dil_status make_and_write(building *b) {
  const compilation *at = NULL;
  dil_status status = build_make(b, &at);
  if (!status) status = build_write(b);
  if (!status) note_pc(b);
  if (!status) return DIL_OK;
  b->compilation.diag = diag_new(b->library.arena);
  return message_compiled(b->options, at ? at : &b->compilation, status);
}

static void print_note(const char *text) { message_note("%s", text); }

dil_status command_build(arena *a, const options *o) {
  building b = {.options = o,
                .emit = o->seen[OPTION_EMIT] ? sets_union(&o->emit)
                                             : BIT(SO) | BIT(H),
                .compilation = {.arena = a, .diag = diag_new(a)},
                .library = {.arena = a,
                            .no_wisdom = o->no_wisdom,
                            .note = print_note,
                            .standalone = o->standalone}};
  dil_status status = check_build_options(&b);
  if (!status) status = name_library(&b);
  if (!status) status = read_targets(&b);
  if (!status) status = add_files(&b);
  if (!status) status = name_kernels(&b);
  if (!status) status = make_and_write(&b);
  build_free(&b);
  return status;
}
