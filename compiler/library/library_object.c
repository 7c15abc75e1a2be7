/* library_object.c - a library's one object file: for each kernel its plan as
 * data, its machine code, its cubins, a dil_library_kernel that points to all
 * of them, and the C function that hands it to the run time. In: a library.
 * Out: an object, made by the back end, which knows no kernels; and the run
 * time's own object under this library's names. */
#include "library.h"
#include "runtime/api/plan_serial.h"
#include "runtime/base/module.h"
#include <stdlib.h>
#include <string.h>

enum { KERNEL_DATA = 6 /* and two a cubin */, FUNCTIONS = 4 };

/* The lists of a backend_library while they grow. */
typedef struct writer {
  const library *library;
  arena *arena;
  backend_part *part;
  backend_data *data;
  backend_entry *entry;
  backend_library out;
} writer;

static const char *symbol_of(writer *w, const library_kernel *k,
                             const char *rest) {
  return arena_print(w->arena, "%s.%s", k->name, rest);
}

static backend_data *put_data(writer *w, const char *symbol, const void *bytes,
                              size_t size) {
  backend_data *d = &w->data[w->out.data_count++];
  *d = (backend_data){
      .symbol = symbol, .bytes = bytes, .size = size, .alignment = 8};
  return d;
}

static const char *put_text(writer *w, const char *symbol, const char *text) {
  put_data(w, symbol, text, strlen(text) + 1)->alignment = 1;
  return symbol;
}

/* Pointers of one piece of data; at most `room` of them. */
typedef struct pointers {
  backend_pointer *list;
  int32_t count;
} pointers;

static pointers pointers_open(writer *w, int32_t room) {
  return (pointers){ARENA_ARRAY(w->arena, backend_pointer, room), 0};
}

static void pointers_add(pointers *p, size_t offset, const char *symbol) {
  p->list[p->count++] = (backend_pointer){offset, symbol};
}

static void set_pointers(backend_data *d, pointers p) {
  d->pointer = p.list;
  d->pointer_count = p.count;
}

/* ---- machine code -------------------------------------------------------- */

static const char *put_object_part(writer *w, const library_kernel *k,
                                   const char *isa, dil_variant variant,
                                   const char *name) {
  backend_part *part = &w->part[w->out.part_count++];
  *part = (backend_part){.plan = k->plan,
                         .isa = isa,
                         .variant = variant,
                         .symbol = symbol_of(w, k, name)};
  return part->symbol;
}

static const char *put_isas(writer *w, const library_kernel *k) {
  const library *l = w->library;
  size_t row = sizeof(dil_library_code);
  size_t size = (size_t)l->isa_count * row;
  pointers p = pointers_open(w, l->isa_count * (1 + DIL_VARIANT_COUNT));
  for (int32_t i = 0; i < l->isa_count; i++) {
    const char *isa = l->isa[i];
    const char *text = arena_print(w->arena, "isa.%s", isa);
    pointers_add(&p, (size_t)i * row + offsetof(dil_library_code, isa),
                 put_text(w, symbol_of(w, k, text), isa));
    for (int32_t v = 0; v < dil_variant_count(k->plan->direction); v++) {
      const char *name = arena_print(w->arena, "%s.%s", isa,
                                     dil_variant_name((dil_variant)v));
      pointers_add(&p,
                   (size_t)i * row + offsetof(dil_library_code, variant) +
                       (size_t)v * sizeof(void *),
                   put_object_part(w, k, isa, (dil_variant)v, name));
    }
  }
  const char *symbol = symbol_of(w, k, "isas");
  set_pointers(put_data(w, symbol, arena_take(w->arena, 1, size), size), p);
  return symbol;
}

/* ---- GPUs ---------------------------------------------------------------- */

static const char *put_cubin(writer *w, const library_kernel *k, int32_t i) {
  const char *name = arena_print(w->arena, "cubin%d", i);
  const char *symbol = symbol_of(w, k, name);
  put_data(w, symbol, k->code[i].cubin, k->code[i].size)->alignment = 64;
  return symbol;
}

/* Field by field: what lies between them would not be the same every time. */
static void copy_facts(const dil_cuda_code *from, dil_cuda_code *to) {
  snprintf(to->variant, sizeof to->variant, "%s", from->variant);
  to->arch = from->arch;
  to->lenient = from->lenient;
  to->passes = from->passes;
  to->threads = from->threads;
  to->shared = from->shared;
  to->tile_rows = from->tile_rows;
  to->tile_keys = from->tile_keys;
  memcpy(to->knob, from->knob, sizeof to->knob);
  to->size = from->size;
}

static const char *put_cuda(writer *w, const library_kernel *k) {
  size_t row = sizeof(dil_cuda_code);
  dil_cuda_code *rows = ARENA_ARRAY(w->arena, dil_cuda_code, k->code_count);
  pointers p = pointers_open(w, 2 * k->code_count);
  for (int32_t i = 0; i < k->code_count; i++) {
    const char *name = arena_print(w->arena, "family%d", i);
    const char *family = k->code[i].family;
    copy_facts(&k->code[i], &rows[i]);
    pointers_add(&p, (size_t)i * row + offsetof(dil_cuda_code, family),
                 put_text(w, symbol_of(w, k, name), family));
    pointers_add(&p, (size_t)i * row + offsetof(dil_cuda_code, cubin),
                 put_cubin(w, k, i));
  }
  const char *symbol = symbol_of(w, k, "cuda");
  set_pointers(put_data(w, symbol, rows, (size_t)k->code_count * row), p);
  return symbol;
}

/* ---- one kernel ---------------------------------------------------------- */

static dil_status put_image(writer *w, const library_kernel *k,
                            const char **symbol, size_t *size) {
  void *image;
  dil_status status = dil_plan_serialise(&k->plan->table, &image, size);
  if (status) return status;
  *symbol = symbol_of(w, k, "image");
  put_data(w, *symbol, arena_copy(w->arena, image, *size), *size);
  free(image);
  return DIL_OK;
}

static dil_status put_kernel_row(writer *w, const library_kernel *k) {
  const library *l = w->library;
  dil_library_kernel *row = ARENA_NEW(w->arena, dil_library_kernel);
  pointers p = pointers_open(w, 5);
  const char *image;
  dil_status status = put_image(w, k, &image, &row->image_size);
  if (status) return status;
  row->abi = DIL_LIBRARY_ABI;
  row->isa_count = l->isa_count;
  row->cuda_count = k->code_count;
  row->hash = l->hash + (uint64_t)(k - l->kernel);
  row->direction = k->plan->direction;
  row->plan_hash = plan_hash(k->plan);
  pointers_add(&p, offsetof(dil_library_kernel, name),
               put_text(w, symbol_of(w, k, "name"), k->name));
  pointers_add(&p, offsetof(dil_library_kernel, image), image);
  if (dil_table_reads(&k->plan->table))
    pointers_add(&p, offsetof(dil_library_kernel, questions),
                 put_object_part(w, k, NULL, DIL_TILES, "questions"));
  if (l->isa_count)
    pointers_add(&p, offsetof(dil_library_kernel, isas), put_isas(w, k));
  if (k->code_count)
    pointers_add(&p, offsetof(dil_library_kernel, cuda), put_cuda(w, k));
  const char *symbol = symbol_of(w, k, "library");
  set_pointers(put_data(w, symbol, row, sizeof *row), p);
  return DIL_OK;
}

/* ---- functions ----------------------------------------------------------- */

static void put_entry(writer *w, const char *symbol, const char *callee,
                      const char *data, char result, const char *parameters) {
  w->entry[w->out.entry_count++] = (backend_entry){
      .symbol = symbol,
      .callee = arena_print(w->arena, "%s%s", w->library->prefix, callee),
      .data = data,
      .result = result,
      .parameters = parameters};
}

static const char *name_of(writer *w, const char *rest) {
  return arena_print(w->arena, "%s_%s", w->library->name, rest);
}

static void put_backward(writer *w, const library_kernel *k, const char *data) {
  put_entry(w, arena_print(w->arena, "%s_backward", k->name),
            "dil_library_backward", data, 'w', "pp");
  put_entry(w, arena_print(w->arena, "%s_backward_workspace", k->name),
            "dil_library_backward_workspace", data, 'w', "plllp");
  put_entry(w, arena_print(w->arena, "%s_saved", k->name), "dil_library_saved", data,
            'w', "plllp");
}

/* The functions that the header declares; a program without the run time gets
 * those that it needs of it from the library. */
static void put_entries(writer *w) {
  const library *l = w->library;
  for (int32_t i = 0; i < l->kernel_count; i++) {
    const library_kernel *k = &l->kernel[i];
    const char *data = symbol_of(w, k, "library");
    put_entry(w, k->name, "dil_library_run", data, 'w', "pp");
    put_entry(w, arena_print(w->arena, "%s_packed", k->name),
              "dil_library_packed", data, 'w', "pp");
    put_entry(w, arena_print(w->arena, "%s_prepare", k->name),
              "dil_library_prepare", data, 'w', "plll");
    if (k->plan->direction == DIL_BACKWARD) put_backward(w, k, data);
  }
  put_entry(w, name_of(w, "last_error"), "dil_last_error", NULL, 'p', "");
  if (!l->standalone) return;
  put_entry(w, name_of(w, "context_new"), "dil_library_context", NULL, 'w',
            "wp");
  put_entry(w, name_of(w, "context_free"), "dil_context_free", NULL, 'v', "p");
}

static void writer_open(writer *w, const library *l) {
  int32_t data = 1, parts = 0;
  for (int32_t i = 0; i < l->kernel_count; i++) {
    data += KERNEL_DATA + l->isa_count + 2 * l->kernel[i].code_count;
    parts += 1 + l->isa_count * DIL_VARIANT_COUNT;
  }
  w->part = ARENA_ARRAY(w->arena, backend_part, parts);
  w->data = ARENA_ARRAY(w->arena, backend_data, data);
  w->entry =
      ARENA_ARRAY(w->arena, backend_entry, 6 * l->kernel_count + FUNCTIONS);
  w->out.name = l->name;
  w->out.part = w->part;
  w->out.data = w->data;
  w->out.entry = w->entry;
}

dil_status library_object_make(const library *l, FILE *ir, FILE *assembly,
                               cpu_code *out) {
  writer w = {.library = l, .arena = l->arena};
  dil_status status = DIL_OK;
  writer_open(&w, l);
  w.out.ir = ir;
  w.out.assembly = assembly;
  for (int32_t i = 0; !status && i < l->kernel_count; i++)
    status = put_kernel_row(&w, &l->kernel[i]);
  if (status) return status;
  backend_data *meta = put_data(&w, arena_print(l->arena, "%s.meta", l->name),
                                l->meta, strlen(l->meta) + 1);
  meta->section = DIL_LIBRARY_SECTION;
  put_entries(&w);
  return l->cpu->library(&w.out, out);
}

/* ---- the run time's own object ------------------------------------------- */

dil_status library_runtime(const library *l, void **bytes, size_t *size) {
  char path[DIL_PATH_MAX];
  void *plain;
  size_t length;
  dil_status status = dil_module_find(LIBRARY_CARRIED, path);
  if (!status) status = library_file(path, &plain, &length);
  if (status) return status;
  status = elf_rename(plain, length, l->prefix, bytes, size);
  free(plain);
  return status;
}
