/* library.c - what goes into a kernel library: its name, its kernels, their
 * machine code for GPUs. In: plans and targets. Out: a library whose object,
 * header and description can be written. */
#include "library.h"
#include "runtime/base/status.h"
#include "runtime/cuda/chips.h"
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* ---- names --------------------------------------------------------------- */

/* Words that C or C++ keep for themselves. */
static const char *const kept_words[] = {
    "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor",
    "bool", "break", "case", "catch", "char", "class", "compl", "const",
    "const_cast", "constexpr", "continue", "decltype", "default", "delete",
    "do", "double", "dynamic_cast", "else", "enum", "explicit", "export",
    "extern", "false", "float", "for", "friend", "goto", "if", "inline", "int",
    "long", "main", "mutable", "namespace", "new", "noexcept", "not", "not_eq",
    "nullptr", "operator", "or", "or_eq", "private", "protected", "public",
    "register", "reinterpret_cast", "requires", "restrict", "return", "short",
    "signed", "sizeof", "static", "static_assert", "static_cast", "struct",
    "switch", "template", "this", "thread_local", "throw", "true", "try",
    "typedef", "typeid", "typename", "typeof", "union", "unsigned", "using",
    "virtual", "void", "volatile", "wchar_t", "while", "xor", "xor_eq"};

static bool is_kept_word(const char *name) {
  for (size_t i = 0; i < sizeof kept_words / sizeof *kept_words; i++)
    if (!strcmp(kept_words[i], name)) return true;
  return false;
}

/* A library that has a function of this name would take it from the program. */
static bool is_of_the_c_library(const char *name) {
  static const char *const files[] = {"libc.so.6", "libm.so.6"};
  bool found = false;
  for (int i = 0; i < 2 && !found; i++) {
    void *file = dlopen(files[i], RTLD_LAZY | RTLD_LOCAL);
    found = file && dlsym(file, name);
    if (file) dlclose(file);
  }
  return found;
}

static dil_status check_kernel_name(const char *name) {
  const char *whose = NULL;
  if (is_kept_word(name)) whose = "a word of C or C++";
  else if (!strncmp(name, "dil_", 4)) whose = "a name of the run time";
  else if (is_of_the_c_library(name)) whose = "a function of the C library";
  if (!whose) return DIL_OK;
  return dil_fail(DIL_USAGE,
                  "kernel '%s' cannot become a C function: that is %s; give "
                  "it another name with `kernel NAME = PATTERN;` or --name",
                  name, whose);
}

/* Members of the generated structs, of which inputs become members, too. */
static const char *const of_arguments[] = {
    "size",   "q",     "k",    "v",     "o",        "lse", "lengths",
    "stream", "scale", "seed", "train", "reserved", "offsets_q", "offsets_k",
    "longest_q", "longest_k", "pages", "selection", NULL};
static const char *const of_gradients[] = {
    "forward",         "d_o", "dlse", "dq", "dk", "dv", "workspace",
    "workspace_bytes", NULL};

static bool is_in_list(const char *name, const char *const *list) {
  for (; *list; list++)
    if (!strcmp(*list, name)) return true;
  return false;
}

static dil_status check_input_names(const plan *p) {
  bool backward = p->direction == DIL_BACKWARD;
  for (int32_t i = 0; i < p->table.input_count; i++) {
    const char *name = p->table.inputs[i].name;
    if (is_kept_word(name) || is_in_list(name, of_arguments) ||
        (backward && is_in_list(name, of_gradients)))
      return dil_fail(DIL_USAGE,
                      "input '%s' cannot become a member of a C struct: the "
                      "name is taken",
                      name);
  }
  return DIL_OK;
}

static bool has_ending(const char *base) {
  static const char *const endings[] = {".so", ".a",  ".o", ".h",     ".pc",
                                        ".ll", ".s", ".cu", ".cubin", ".json"};
  for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
    size_t size = strlen(endings[i]), length = strlen(base);
    if (length > size && !strcmp(base + length - size, endings[i])) return true;
  }
  return false;
}

/* Told before anything is compiled. */
static dil_status check_library_folder(const library *l, const char *path,
                                       const char *slash) {
  const char *folder =
      slash ? arena_copy(l->arena, path, (size_t)(slash - path + 1)) : ".";
  if (!access(folder, W_OK | X_OK)) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "cannot write '%s': %s", path,
                  strerror(errno));
}

static dil_status take_name(library *l, const char *given) {
  bool good = isalpha((unsigned char)*given);
  for (const char *at = given; *at; at++)
    good &= isalnum((unsigned char)*at) || *at == '_';
  l->name = given;
  if (good) return DIL_OK;
  return dil_fail(DIL_USAGE,
                  "--name must be a C name that begins with a letter, got '%s'",
                  given);
}

/* The last part of the path, without `lib`, as a C name. */
static dil_status make_name(library *l, const char *path) {
  const char *from = l->base + (strncmp(l->base, "lib", 3) ? 0 : 3);
  char *name = arena_copy(l->arena, from, strlen(from));
  for (char *at = name; *at; at++)
    if (!isalnum((unsigned char)*at)) *at = '_';
  l->name = name;
  if (isalpha((unsigned char)*name)) return DIL_OK;
  return dil_fail(DIL_USAGE, "-o wants NAME or libNAME, where NAME begins with "
                             "a letter, got '%s'", path);
}

dil_status library_name(library *l, const char *path, const char *given) {
  const char *slash = strrchr(path, '/');
  l->path = path;
  l->base = slash ? slash + 1 : path;
  if (has_ending(l->base))
    return dil_fail(DIL_USAGE,
                    "-o wants a name without its ending, got '%s'; --emit says "
                    "what is written",
                    path);
  for (const char *at = l->base; *at; at++)
    if (iscntrl((unsigned char)*at))
      return dil_fail(DIL_USAGE,
                      "-o wants a name that is of one line, got '%s'", path);
  dil_status status = check_library_folder(l, path, slash);
  if (status) return status;
  return given ? take_name(l, given) : make_name(l, path);
}

/* Names that go with a name in the header. */
static const char *const of_kernels[] = {
    "arguments", "prepare",   "heads",    "kv_heads",           "head_dim",
    "value_dim", "gradients", "backward", "backward_workspace", "packed",
    "saved",     NULL};
static const char *const of_libraries[] = {"last_error", "context",
                                           "context_new", "context_free", NULL};

static bool is_name_of(const char *name, const char *owner,
                       const char *const *rests) {
  size_t length = strlen(owner);
  if (strncmp(name, owner, length) || name[length] != '_') return false;
  return is_in_list(name + length + 1, rests);
}

/* Macros have the names in capitals, where a and A are the same. */
static dil_status check_apart(const char *name, const char *other) {
  if (!strcmp(name, other))
    return dil_fail(DIL_USAGE, "two kernels of the library are called '%s'",
                    name);
  if (!strcasecmp(name, other) || is_name_of(name, other, of_kernels) ||
      is_name_of(other, name, of_kernels))
    return dil_fail(DIL_USAGE,
                    "kernels '%s' and '%s' cannot stand in one C header", other,
                    name);
  return DIL_OK;
}

/* Of kernel `index` and those before it. */
static dil_status check_all_apart(const library *l, int32_t index) {
  const char *name = l->kernel[index].name;
  dil_status status = DIL_OK;
  if (is_name_of(name, l->name, of_libraries))
    return dil_fail(DIL_USAGE,
                    "kernel '%s' would have the name of a function of library "
                    "'%s'", name, l->name);
  for (int32_t i = 0; i < index && !status; i++)
    status = check_apart(name, l->kernel[i].name);
  return status;
}

dil_status library_name_kernels(library *l, bool given, bool several) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; !status && i < l->kernel_count; i++) {
    library_kernel *k = &l->kernel[i];
    const char *first = given ? l->name : "", *own = k->own;
    if (given && !several) own = "";
    k->name = arena_print(l->arena, "%s%s%s%s", first,
                          *first && *own ? "_" : "", own, k->ending);
    status = check_kernel_name(k->name);
    if (!status) status = check_all_apart(l, i);
  }
  return status;
}

dil_status library_add(library *l, const char *own, const char *ending,
                       const compilation *c) {
  dil_status status = check_input_names(c->plan);
  if (status) return status;
  library_kernel *grown =
      ARENA_ARRAY(l->arena, library_kernel, l->kernel_count + 1);
  for (int32_t i = 0; i < l->kernel_count; i++) grown[i] = l->kernel[i];
  library_kernel *k = &grown[l->kernel_count++];
  *k = (library_kernel){.own = own, .ending = ending, .plan = c->plan};
  k->compilation = ARENA_NEW(l->arena, compilation);
  *k->compilation = *c;
  l->kernel = grown;
  return DIL_OK;
}

const char *library_printed(arena *a,
                            void (*print)(const pattern *, int32_t, FILE *),
                            const pattern *p, int32_t index) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  if (!out) abort();
  print(p, index, out);
  if (fclose(out)) abort();
  const char *copy = arena_copy(a, text, length);
  free(text);
  return copy;
}

/* ---- GPUs ---------------------------------------------------------------- */

const char *library_arch_name(arena *a, int32_t arch) {
  return arena_print(a, "sm_%d%s", arch, cuda_chip_suffix(arch));
}

static void take_codes(library *l, library_kernel *k, const gpu_codes *codes) {
  int32_t count = k->code_count + codes->count;
  dil_cuda_code *grown = ARENA_ARRAY(l->arena, dil_cuda_code, count);
  for (int32_t i = 0; i < count; i++)
    grown[i] = i < k->code_count ? k->code[i] : codes->code[i - k->code_count];
  k->code = grown;
  k->code_count = count;
}

static dil_status compile_cubins(const library *l, compilation *c,
                                 gpu_request r, gpu_codes *codes) {
  r.common.plan = c->plan;
  r.knobs = &c->knobs;
  return driver_refused(c, l->gpu->common.compile(&r.common, codes));
}

static void library_note(const library *l, const char *text) {
  if (l->note) l->note(text);
}

dil_status library_compile(const library *l, const library_kernel *k,
                           gpu_request r, gpu_codes *codes) {
  compilation c = *k->compilation;
  char text[KNOBS_TEXT];
  const char *chip = arena_print(l->arena, "sm_%d", r.arch);
  bool applied = !l->no_wisdom && driver_apply_wisdom_chip(&c, chip);
  if (applied)
    library_note(l, arena_print(l->arena, "%s for %s with what is remembered: "
                                          "%s",
                                k->name, chip, knobs_text(&c.knobs, text)));
  dil_status status = compile_cubins(l, &c, r, codes);
  if (!applied || (status != DIL_INPUT && status != DIL_UNSUPPORTED))
    return status;
  library_note(l, arena_print(l->arena, WISDOM_LOST,
                              knobs_text(&c.knobs, text), dil_last_error()));
  driver_drop_knobs(&c);
  return compile_cubins(l, &c, r, codes);
}

static dil_status make_kernel_cubins(library *l, library_kernel *k) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; !status && i < l->arch_count; i++) {
    gpu_codes codes = {0};
    gpu_request request = {
        .arch = l->arch[i],
        .only = k->plan->force & FORCE_GENERAL ? "general" : NULL,
        .full_sequences_only = true}; /* a rank needs more than a library has */
    status = library_compile(l, k, request, &codes);
    if (!status) take_codes(l, k, &codes);
  }
  return status;
}

dil_status library_make(library *l, const compilation **at) {
  dil_status status = DIL_OK;
  *at = NULL;
  if (l->arch_count) status = gpu_backend_open(&l->gpu);
  if (!status && l->has_object) status = cpu_backend_open(&l->cpu);
  for (int32_t i = 0; !status && i < l->kernel_count; i++) {
    status = make_kernel_cubins(l, &l->kernel[i]);
    if (status) *at = l->kernel[i].compilation;
  }
  return status ? status : library_describe(l);
}

void library_free(library *l) {
  for (int32_t i = 0; i < l->kernel_count; i++)
    for (int32_t c = 0; c < l->kernel[i].code_count; c++)
      free(l->kernel[i].code[c].cubin);
}
