/* library.c - kernels ahead of time: one object file that holds the machine
 * code of many plans and instruction sets, data that points to it, and
 * functions for the world that hand the data on. In: a backend_library, which
 * says what is where. Out: the bytes of an ELF object, without line tables, so
 * that they depend on nothing but the library.
 *
 * Every function carries its own instruction set as an attribute; whatever has
 * none runs on any machine of the architecture. */
#include "cpu.h"
#include "runtime/base/status.h"
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- data with pointers in it -------------------------------------------- */

/* Bytes and pointers in turn, as the fields of a packed struct. */
typedef struct fields {
  emit *emit;
  ref *field;
  unsigned count;
  const char *bytes;
  size_t done; /* bytes that stand in a field already */
} fields;

static void put_bytes(fields *f, size_t end) {
  if (end > f->done)
    f->field[f->count++] = LLVMConstStringInContext2(
        f->emit->context, f->bytes + f->done, end - f->done, true);
  f->done = end;
}

static void put_pointer(fields *f, size_t offset, ref to) {
  put_bytes(f, offset);
  f->field[f->count++] = to;
  f->done = offset + sizeof(void *);
}

static dil_status fields_open(emit *e, const void *bytes, int32_t pointers,
                              fields *f) {
  size_t most = 2 * (size_t)pointers + 1;
  *f = (fields){.emit = e, .bytes = bytes};
  f->field = malloc(most * sizeof(ref));
  return f->field ? DIL_OK : dil_fail(DIL_MEMORY, "no memory for a library");
}

static ref fields_close(fields *f, size_t size) {
  put_bytes(f, size);
  ref whole =
      LLVMConstStructInContext(f->emit->context, f->field, f->count, true);
  free(f->field);
  return whole;
}

static ref add_global(emit *e, const char *symbol, ref content, bool writable,
                      unsigned alignment) {
  ref global = LLVMAddGlobal(e->module, LLVMTypeOf(content), symbol);
  LLVMSetInitializer(global, content);
  LLVMSetLinkage(global, LLVMInternalLinkage);
  LLVMSetGlobalConstant(global, !writable);
  LLVMSetAlignment(global, alignment);
  return global;
}

/* ---- parts: code and the dil_code that points to it ---------------------- */

typedef struct code_place {
  size_t offset;
  ref function;
} code_place;

static int by_offset(const void *a, const void *b) {
  size_t x = ((const code_place *)a)->offset,
         y = ((const code_place *)b)->offset;
  return (x > y) - (x < y);
}

static void find_place(const emit *e, const char *name, size_t offset,
                       code_place *list, int32_t *count) {
  ref function = emit_find(e, name);
  if (function != NULL) list[(*count)++] = (code_place){offset, function};
}

/* Lists the places of the current family's functions in a dil_code. */
static int32_t list_places(const build *b, dil_variant variant,
                           code_place *list) {
  const emit *e = &b->emit;
  int32_t count = 0;
#define X(of, name)                                                            \
  if (variant == DIL_##of)                                                     \
    find_place(e, #name, offsetof(dil_code, name), list, &count);
  DIL_CODE_FUNCTIONS(X)
#undef X
  for (int32_t c = 0; c < b->plan->table.chain_count; c++) {
    char name[32];
#define X(of, stem)                                                            \
  snprintf(name, sizeof name, #stem "%d", c);                                  \
  if (variant == DIL_##of)                                                     \
    find_place(e, name, offsetof(dil_code, stem) + (size_t)c * sizeof(void *), \
               list, &count);
    DIL_CODE_CHAINS(X)
#undef X
  }
  qsort(list, (size_t)count, sizeof *list, by_offset);
  return count;
}

enum { PLACE_MAX = 32 + 2 * DIL_PART_MAX };

static void write_code(build *b, const backend_part *part, dil_code *code) {
  const isa *set = part->isa != NULL ? isa_find(part->isa) : &host_arch.plain;
  assert(set != NULL);
  b->emit.family = part->symbol;
  build_aim(b, part->plan, set);
  *code = (dil_code){0};
  if (part->isa != NULL)
    build_variant(b, part->variant, code);
  else
    dimension_function(b);
}

static dil_status write_part(build *b, const backend_part *part) {
  code_place list[PLACE_MAX];
  dil_code code;
  fields f;
  write_code(b, part, &code);
  int32_t count = list_places(b, part->variant, list);
  dil_status status = fields_open(&b->emit, &code, count, &f);
  if (status != DIL_OK) return status;
  for (int32_t i = 0; i < count; i++)
    put_pointer(&f, list[i].offset, list[i].function);
  add_global(&b->emit, part->symbol, fields_close(&f, sizeof code), false,
             _Alignof(dil_code));
  return DIL_OK;
}

/* ---- data and entries ---------------------------------------------------- */

/* A function of another object is declared where it is first called. */
static ref find_symbol(emit *e, const char *symbol) {
  ref global = LLVMGetNamedGlobal(e->module, symbol);
  if (global == NULL) global = LLVMGetNamedFunction(e->module, symbol);
  return global != NULL ? global : LLVMAddGlobal(e->module, e->i8, symbol);
}

static dil_status write_data(emit *e, const backend_data *data) {
  fields f;
  dil_status status =
      fields_open(e, data->bytes, data->pointer_count, &f);
  if (status != DIL_OK) return status;
  for (int32_t i = 0; i < data->pointer_count; i++)
    put_pointer(&f, data->pointer[i].offset,
                find_symbol(e, data->pointer[i].symbol));
  ref content = fields_close(&f, data->size);
  ref global =
      add_global(e, data->symbol, content, data->writable, data->alignment);
  if (data->section != NULL) LLVMSetSection(global, data->section);
  return DIL_OK;
}

static void write_entry(emit *e, const backend_entry *entry) {
  ref_type type[8];
  ref argument[8];
  unsigned count = (unsigned)strlen(entry->parameters);
  unsigned first = entry->data != NULL;
  assert(count + first <= 8);
  type[0] = e->pointer;
  for (unsigned i = 0; i < count; i++)
    type[first + i] = emit_type(e, entry->parameters[i]);
  ref_type result = emit_type(e, entry->result);
  ref_type inner = LLVMFunctionType(result, type, count + first, false);
  ref_type outer = LLVMFunctionType(result, type + first, count, false);
  ref function = LLVMAddFunction(e->module, entry->symbol, outer);
  ref callee = LLVMGetNamedFunction(e->module, entry->callee);
  if (callee == NULL)
    callee = LLVMAddFunction(e->module, entry->callee, inner);
  LLVMPositionBuilderAtEnd(
      e->builder, LLVMAppendBasicBlockInContext(e->context, function, "entry"));
  if (first) argument[0] = LLVMGetNamedGlobal(e->module, entry->data);
  for (unsigned i = 0; i < count; i++)
    argument[first + i] = LLVMGetParam(function, i);
  ref call =
      LLVMBuildCall2(e->builder, inner, callee, argument, count + first, "");
  LLVMSetTailCall(call, true);
  emit_return(e, entry->result == 'v' ? NULL : call);
}

dil_status library_build(const backend_library *library, cpu_code *out) {
  build b = {0};
  dil_status status = build_open(&b, library->name, NULL);
  for (int32_t i = 0; status == DIL_OK && i < library->part_count; i++)
    status = write_part(&b, &library->part[i]);
  b.emit.family = NULL;
  for (int32_t i = 0; status == DIL_OK && i < library->data_count; i++)
    status = write_data(&b.emit, &library->data[i]);
  if (status == DIL_OK) {
    for (int32_t i = 0; i < library->entry_count; i++)
      write_entry(&b.emit, &library->entry[i]);
    status = build_object(&b, library->ir, library->assembly, out);
  }
  build_close(&b);
  return status;
}
