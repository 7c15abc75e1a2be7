/* emit.c - the vocabulary of emit.h over the LLVM C API: functions, constants,
 * memory and control. Arithmetic stands in arith.c. */
#include "emit.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- functions ----------------------------------------------------------- */

ref_type emit_type(const emit *e, char letter) {
  switch (letter) {
  case 'p':
    return e->pointer;
  case 'l':
    return e->i64;
  case 'w':
    return e->i32;
  case 'f':
    return e->f32;
  default:
    assert(letter == 'v');
    return e->nothing;
  }
}

static LLVMAttributeRef attribute_of(const emit *e, const char *name) {
  unsigned kind = LLVMGetEnumAttributeKindForName(name, strlen(name));
  return LLVMCreateEnumAttribute(e->context, kind, 0);
}

static void function_attributes(emit *e) {
  ref f = e->function;
  LLVMAddTargetDependentFunctionAttr(f, "target-cpu", e->processor);
  LLVMAddTargetDependentFunctionAttr(f, "target-features", e->features);
  LLVMAddTargetDependentFunctionAttr(f, "prefer-vector-width", e->vector_bits);
  LLVMAddTargetDependentFunctionAttr(f, "min-legal-vector-width",
                                     e->vector_bits);
  LLVMAddAttributeAtIndex(f, (LLVMAttributeIndex)LLVMAttributeFunctionIndex,
                          attribute_of(e, "nounwind"));
}

static void function_lines(emit *e, const char *name) {
  LLVMMetadataRef none = LLVMDIBuilderCreateSubroutineType(
      e->lines, e->file, NULL, 0, LLVMDIFlagZero);
  e->scope = LLVMDIBuilderCreateFunction(
      e->lines, e->file, name, strlen(name), name, strlen(name), e->file,
      e->line, none, false, true, e->line, LLVMDIFlagZero, true);
  LLVMSetSubprogram(e->function, e->scope);
  emit_locate(e, e->line, e->column);
}

enum { NAME_ROOM = 256 };

static const char *full_name(const emit *e, const char *name,
                             char room[NAME_ROOM]) {
  if (e->family == NULL) return name;
  int length = snprintf(room, NAME_ROOM, "%s.%s", e->family, name);
  assert(length < NAME_ROOM);
  return room;
}

ref emit_find(const emit *e, const char *name) {
  char room[NAME_ROOM];
  return LLVMGetNamedFunction(e->module, full_name(e, name, room));
}

void emit_function(emit *e, const char *name, char result,
                   const char *parameters) {
  char room[NAME_ROOM];
  ref_type type[16];
  unsigned count = (unsigned)strlen(parameters);
  assert(count <= 16);
  for (unsigned i = 0; i < count; i++)
    type[i] = emit_type(e, parameters[i]);
  e->function = LLVMAddFunction(
      e->module, full_name(e, name, room),
      LLVMFunctionType(emit_type(e, result), type, count, false));
  if (e->family != NULL) LLVMSetLinkage(e->function, LLVMInternalLinkage);
  function_attributes(e);
  LLVMPositionBuilderAtEnd(e->builder, LLVMAppendBasicBlockInContext(
                                           e->context, e->function, "entry"));
  if (e->lines != NULL) function_lines(e, name);
}

ref emit_parameter(const emit *e, int index) {
  return LLVMGetParam(e->function, (unsigned)index);
}

void emit_noalias(emit *e, int index) {
  LLVMAddAttributeAtIndex(e->function, (LLVMAttributeIndex)(index + 1),
                          attribute_of(e, "noalias"));
}

void emit_return(emit *e, ref result) {
  if (result == NULL)
    LLVMBuildRetVoid(e->builder);
  else
    LLVMBuildRet(e->builder, result);
}

void emit_locate(emit *e, unsigned line, unsigned column) {
  if (e->lines == NULL) return;
  LLVMSetCurrentDebugLocation2(
      e->builder, LLVMDIBuilderCreateDebugLocation(e->context, line, column,
                                                   e->scope, NULL));
}

/* ---- constants and types ------------------------------------------------- */

ref emit_long(const emit *e, int64_t number) {
  return LLVMConstInt(e->i64, (unsigned long long)number, true);
}

ref emit_word(const emit *e, int64_t number) {
  return LLVMConstInt(e->i32, (unsigned long long)number, true);
}

ref emit_real(const emit *e, double number) {
  return LLVMConstReal(e->f32, number);
}

ref emit_double(const emit *e, double number) {
  return LLVMConstReal(e->f64, number);
}

ref emit_truth(const emit *e, bool truth) {
  return LLVMConstInt(e->i1, truth, false);
}

ref emit_zero(ref_type type) {
  return LLVMConstNull(type);
}

ref_type emit_vector(ref_type element, int lanes) {
  return LLVMVectorType(element, (unsigned)lanes);
}

bool emit_is_vector(ref value) {
  return LLVMGetTypeKind(LLVMTypeOf(value)) == LLVMVectorTypeKind;
}

ref_type emit_element(ref_type type) {
  return LLVMGetTypeKind(type) == LLVMVectorTypeKind ? LLVMGetElementType(type)
                                                     : type;
}

bool emit_is_float(ref value) {
  LLVMTypeKind kind = LLVMGetTypeKind(emit_element(LLVMTypeOf(value)));
  return kind == LLVMFloatTypeKind || kind == LLVMDoubleTypeKind;
}

ref_type emit_type_like(ref_type element, ref like) {
  if (!emit_is_vector(like)) return element;
  return LLVMVectorType(element, LLVMGetVectorSize(LLVMTypeOf(like)));
}

ref emit_iota(const emit *e) {
  ref lane[64];
  assert(e->width <= 64);
  for (int i = 0; i < e->width; i++) lane[i] = emit_word(e, i);
  return LLVMConstVector(lane, (unsigned)e->width);
}

/* ---- memory -------------------------------------------------------------- */

ref emit_at(const emit *e, ref base, ref bytes) {
  return LLVMBuildGEP2(e->builder, e->i8, base, &bytes, 1, "");
}

ref emit_offset(const emit *e, ref base, int64_t bytes) {
  return bytes == 0 ? base : emit_at(e, base, emit_long(e, bytes));
}

ref emit_load(const emit *e, ref_type type, ref place, unsigned align) {
  ref value = LLVMBuildLoad2(e->builder, type, place, "");
  LLVMSetAlignment(value, align);
  return value;
}

void emit_store(const emit *e, ref value, ref place, unsigned align) {
  LLVMSetAlignment(LLVMBuildStore(e->builder, value, place), align);
}

ref emit_room(const emit *e, ref_type type, int64_t count, unsigned align) {
  assert(LLVMGetInsertBlock(e->builder) == LLVMGetEntryBasicBlock(e->function));
  ref room = LLVMBuildArrayAlloca(e->builder, type, emit_long(e, count), "");
  LLVMSetAlignment(room, align);
  return room;
}

ref emit_load_masked(emit *e, ref_type type, ref place, ref mask,
                     unsigned align) {
  ref argument[] = {place, emit_word(e, align), mask, emit_zero(type)};
  ref_type overload[] = {type, e->pointer};
  return emit_intrinsic(e, "llvm.masked.load", overload, 2, argument, 4);
}

void emit_store_masked(emit *e, ref value, ref place, ref mask,
                       unsigned align) {
  ref argument[] = {value, place, emit_word(e, align), mask};
  ref_type overload[] = {LLVMTypeOf(value), e->pointer};
  emit_intrinsic(e, "llvm.masked.store", overload, 2, argument, 4);
}

/* ---- control ------------------------------------------------------------- */

static LLVMBasicBlockRef block_new(emit *e, const char *name) {
  return LLVMAppendBasicBlockInContext(e->context, e->function, name);
}

void emit_block(emit *e, const char *name) {
  LLVMBasicBlockRef next = block_new(e, name);
  LLVMBuildBr(e->builder, next);
  LLVMPositionBuilderAtEnd(e->builder, next);
}

void loop_begin(emit *e, loop *l, const char *name, ref first, ref end,
                int64_t step, ref const *start, int count) {
  assert(count <= LOOP_CARRIED_MAX);
  LLVMBasicBlockRef before = LLVMGetInsertBlock(e->builder);
  l->header = block_new(e, name);
  LLVMBuildBr(e->builder, l->header);
  LLVMPositionBuilderAtEnd(e->builder, l->header);
  l->index = LLVMBuildPhi(e->builder, e->i64, "");
  LLVMAddIncoming(l->index, &first, &before, 1);
  for (int i = 0; i < count; i++) {
    ref from = start[i];
    l->carried[i] = LLVMBuildPhi(e->builder, LLVMTypeOf(from), "");
    LLVMAddIncoming(l->carried[i], &from, &before, 1);
  }
  l->step = step;
  l->count = count;
  LLVMBasicBlockRef body = block_new(e, "body");
  l->done = block_new(e, "done");
  ref more = LLVMBuildICmp(e->builder, LLVMIntSLT, l->index, end, "");
  LLVMBuildCondBr(e->builder, more, body, l->done);
  LLVMPositionBuilderAtEnd(e->builder, body);
}

void loop_end(emit *e, loop *l, ref const *next) {
  ref index = LLVMBuildNSWAdd(e->builder, l->index, emit_long(e, l->step), "");
  LLVMBasicBlockRef last = LLVMGetInsertBlock(e->builder);
  LLVMAddIncoming(l->index, &index, &last, 1);
  for (int i = 0; i < l->count; i++) {
    ref from = next[i];
    LLVMAddIncoming(l->carried[i], &from, &last, 1);
  }
  LLVMBuildBr(e->builder, l->header);
  LLVMMoveBasicBlockAfter(l->done, last);
  LLVMPositionBuilderAtEnd(e->builder, l->done);
}

void branch_begin(emit *e, branch_block *b, const char *name, ref condition) {
  b->before = LLVMGetInsertBlock(e->builder);
  b->yes = block_new(e, name);
  b->done = block_new(e, "join");
  b->no = NULL;
  LLVMBuildCondBr(e->builder, condition, b->yes, b->done);
  LLVMPositionBuilderAtEnd(e->builder, b->yes);
}

void branch_else(emit *e, branch_block *b) {
  LLVMBuildBr(e->builder, b->done);
  b->yes = LLVMGetInsertBlock(e->builder);
  b->no = block_new(e, "else");
  LLVMSetSuccessor(LLVMGetBasicBlockTerminator(b->before), 1, b->no);
  LLVMPositionBuilderAtEnd(e->builder, b->no);
}

void branch_end(emit *e, branch_block *b) {
  LLVMBasicBlockRef last = LLVMGetInsertBlock(e->builder);
  LLVMBuildBr(e->builder, b->done);
  if (b->no == NULL) {
    b->yes = last;
    b->no = b->before;
  } else {
    b->no = last;
  }
  LLVMMoveBasicBlockAfter(b->done, last);
  LLVMPositionBuilderAtEnd(e->builder, b->done);
}

ref branch_merge(emit *e, const branch_block *b, ref yes, ref no) {
  ref merged = LLVMBuildPhi(e->builder, LLVMTypeOf(yes), "");
  LLVMBasicBlockRef from[] = {b->yes, b->no};
  ref value[] = {yes, no};
  LLVMAddIncoming(merged, value, from, 2);
  return merged;
}
