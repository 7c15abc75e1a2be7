/* build_outputs.c - what `dil build` writes, as bytes in memory. In: a library
 * with its kernels and targets. Out: a list of outputs in the order of --emit.
 */
#include "build.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

/* ---- outputs ------------------------------------------------------------- */

static output *add_output(building *b, const char *path, emitted kind,
                          void *bytes, size_t size) {
  arena *a = b->library.arena;
  if (b->output_count == b->output_room) {
    b->output_room = 2 * b->output_room + 8;
    output *grown = ARENA_ARRAY(a, output, b->output_room);
    for (int32_t i = 0; i < b->output_count; i++) grown[i] = b->output[i];
    b->output = grown;
  }
  output *made = &b->output[b->output_count++];
  *made = (output){path, kind, bytes, size};
  return made;
}

static const char *output_path(const building *b, const char *ending) {
  return arena_print(b->library.arena, "%s.%s", b->library.path, ending);
}

/* Text that grows until text_end makes an output of it. */
typedef struct output_text {
  char *bytes;
  size_t size;
  FILE *out;
} output_text;

static dil_status text_begin(output_text *t) {
  t->out = open_memstream(&t->bytes, &t->size);
  return t->out ? DIL_OK : dil_fail(DIL_MEMORY, "no memory for a text");
}

static dil_status text_end(building *b, output_text *t, const char *path,
                           emitted kind) {
  bool good = !ferror(t->out);
  good = fclose(t->out) == 0 && good;
  if (good) add_output(b, path, kind, t->bytes, t->size);
  else free(t->bytes);
  return good ? DIL_OK : dil_fail(DIL_MEMORY, "no memory for '%s'", path);
}

static dil_status output_header(building *b, emitted kind, FILE *out) {
  (void)kind;
  library_header(&b->library, out);
  return DIL_OK;
}

static dil_status output_pc(building *b, emitted kind, FILE *out) {
  (void)kind;
  library_pc(&b->library, out);
  return DIL_OK;
}

static dil_status output_json(building *b, emitted kind, FILE *out) {
  (void)kind;
  fputs(b->library.meta, out);
  return DIL_OK;
}

static dil_status output_as_text(building *b, emitted kind,
                                 dil_status (*make)(building *, emitted,
                                                    FILE *)) {
  output_text t;
  dil_status status = text_begin(&t);
  if (status) return status;
  status = make(b, kind, t.out);
  dil_status ended = text_end(
      b, &t, output_path(b, options_word(b->library.arena, OPTION_EMIT, kind)),
      kind);
  return status ? status : ended;
}

/* ---- for GPUs ------------------------------------------------------------ */

/* NAME.sm_90a.cubin; with the kernel between where the library has several, and
 * with the member where it is not the first for the chip. */
static const char *chip_path(const building *b, const library_kernel *k,
                             const char *member, int32_t arch,
                             const char *ending) {
  arena *a = b->library.arena;
  const char *name =
      b->library.kernel_count > 1 ? arena_print(a, ".%s", k->name) : "";
  return arena_print(a, "%s%s%s.%s.%s", b->library.path, name, member,
                     library_arch_name(a, arch), ending);
}

/* "" of a chip's first, which calls try before the others; ".general",
 * ".general2", ... of these. */
static const char *member_of(const building *b, const library_kernel *k,
                             int32_t index) {
  int32_t before = 0, same = 0;
  const dil_cuda_code *code = &k->code[index];
  for (int32_t i = 0; i < index; i++) {
    if (k->code[i].arch != code->arch) continue;
    same += before++ && !strcmp(k->code[i].family, code->family);
  }
  arena *a = b->library.arena;
  if (before == 0) return "";
  return same ? arena_print(a, ".%s%d", code->family, same + 1)
              : arena_print(a, ".%s", code->family);
}

static dil_status output_cubins(building *b) {
  for (int32_t i = 0; i < b->library.kernel_count; i++) {
    const library_kernel *k = &b->library.kernel[i];
    for (int32_t c = 0; c < k->code_count; c++) {
      const dil_cuda_code *code = &k->code[c];
      void *copy = malloc(code->size);
      if (!copy) return dil_fail(DIL_MEMORY, "no memory for a cubin");
      memcpy(copy, code->cubin, code->size);
      add_output(b, chip_path(b, k, member_of(b, k, c), code->arch, "cubin"),
                 EMIT_CUBIN, copy, code->size);
    }
  }
  return DIL_OK;
}

static dil_status output_source(building *b, const library_kernel *k,
                                int32_t arch) {
  output_text t;
  gpu_codes none = {0};
  dil_status status = text_begin(&t);
  if (status) return status;
  gpu_request request = {.arch = arch, .source_only = true, .cuda = t.out};
  status = library_compile(&b->library, k, request, &none);
  dil_status ended =
      text_end(b, &t, chip_path(b, k, "", arch, "cu"), EMIT_CU);
  return status ? status : ended;
}

static dil_status output_sources(building *b) {
  const library *l = &b->library;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < l->kernel_count; i++)
    for (int32_t a = 0; !status && a < l->arch_count; a++)
      status = output_source(b, &l->kernel[i], l->arch[a]);
  return status;
}

/* ---- for processors ------------------------------------------------------ */

static void add_object(building *b, const char *ending, void *bytes,
                       size_t size) {
  arena *a = b->library.arena;
  const char *name = arena_print(a, "%s.%s", b->library.base, ending);
  b->object[b->object_count++] = (library_object){name, bytes, size};
}

/* The object and, while it is made, its texts. */
static dil_status output_object(building *b) {
  output_text ir = {0}, assembly = {0};
  cpu_code made = {0};
  dil_status status = DIL_OK, ended = DIL_OK;
  if (b->emit & BIT(LL)) status = text_begin(&ir);
  if (!status && b->emit & BIT(S)) status = text_begin(&assembly);
  if (!status)
    status = library_object_make(&b->library, ir.out, assembly.out, &made);
  if (ir.out) ended = text_end(b, &ir, output_path(b, "ll"), EMIT_LL);
  if (assembly.out && !ended)
    ended = text_end(b, &assembly, output_path(b, "s"), EMIT_S);
  if (!status) add_object(b, "o", made.bytes, made.size);
  return status ? status : ended;
}

static dil_status output_runtime(building *b) {
  void *bytes;
  size_t size;
  dil_status status = library_runtime(&b->library, &bytes, &size);
  if (!status) add_object(b, "runtime.o", bytes, size);
  return status;
}

static dil_status output_archive(building *b) {
  void *bytes;
  size_t size;
  dil_status status = archive_make(b->object, b->object_count, &bytes, &size);
  if (!status) add_output(b, output_path(b, "a"), EMIT_A, bytes, size);
  return status;
}

/* The only object as bytes, which stays the building's; one of several is made
 * by the linker, when it is written. */
static dil_status add_one_object(building *b) {
  const library_object *o = b->object;
  void *copy = b->object_count == 1 ? malloc(o->size) : NULL;
  if (!copy && b->object_count == 1)
    return dil_fail(DIL_MEMORY, "no memory for an object");
  if (copy) memcpy(copy, o->bytes, o->size);
  add_output(b, output_path(b, "o"), EMIT_O, copy, copy ? o->size : 0);
  return DIL_OK;
}

static dil_status output_objects(building *b) {
  dil_status status = output_object(b);
  if (!status && b->library.standalone) status = output_runtime(b);
  if (!status && b->emit & BIT(A)) status = output_archive(b);
  if (!status && b->emit & BIT(O)) status = add_one_object(b);
  if (!status && b->emit & BIT(SO))
    add_output(b, output_path(b, "so"), EMIT_SO, NULL, 0);
  return status;
}

dil_status build_make(building *b, const compilation **at) {
  dil_status status = library_make(&b->library, at);
  if (!status && b->emit & EMIT_OBJECTS) status = output_objects(b);
  if (!status && b->emit & BIT(H))
    status = output_as_text(b, EMIT_H, output_header);
  if (!status && b->emit & BIT(PC))
    status = output_as_text(b, EMIT_PC, output_pc);
  if (!status && b->emit & BIT(JSON))
    status = output_as_text(b, EMIT_JSON, output_json);
  if (!status && b->emit & BIT(CU)) status = output_sources(b);
  if (!status && b->emit & BIT(CUBIN)) status = output_cubins(b);
  return status;
}
