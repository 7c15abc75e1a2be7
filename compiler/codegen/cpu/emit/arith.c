/* arith.c - the arithmetic of emit.h: each operation takes scalars or vectors,
 * integers or floats, and picks LLVM's instruction for them. */
#include "emit.h"
#include <assert.h>
#include <string.h>

ref emit_splat(const emit *e, ref scalar, int lanes) {
  if (LLVMIsConstant(scalar)) {
    ref lane[64];
    assert(lanes <= 64);
    for (int i = 0; i < lanes; i++) lane[i] = scalar;
    return LLVMConstVector(lane, (unsigned)lanes);
  }
  ref_type type = emit_vector(LLVMTypeOf(scalar), lanes);
  ref first = LLVMBuildInsertElement(e->builder, LLVMGetPoison(type), scalar,
                                     emit_word(e, 0), "");
  return LLVMBuildShuffleVector(e->builder, first, LLVMGetPoison(type),
                                emit_zero(emit_vector(e->i32, lanes)), "");
}

static ref spread_like(const emit *e, ref value, ref like) {
  if (!emit_is_vector(like) || emit_is_vector(value)) return value;
  return emit_splat(e, value, (int)LLVMGetVectorSize(LLVMTypeOf(like)));
}

void emit_match(const emit *e, ref *a, ref *b) {
  *a = spread_like(e, *a, *b);
  *b = spread_like(e, *b, *a);
}

static ref binary(const emit *e, LLVMOpcode of_integers, LLVMOpcode of_floats,
                  ref a, ref b) {
  emit_match(e, &a, &b);
  return LLVMBuildBinOp(e->builder, emit_is_float(a) ? of_floats : of_integers,
                        a, b, "");
}

ref emit_add(const emit *e, ref a, ref b) {
  return binary(e, LLVMAdd, LLVMFAdd, a, b);
}

ref emit_sub(const emit *e, ref a, ref b) {
  return binary(e, LLVMSub, LLVMFSub, a, b);
}

ref emit_mul(const emit *e, ref a, ref b) {
  return binary(e, LLVMMul, LLVMFMul, a, b);
}

ref emit_divide(const emit *e, ref a, ref b) {
  assert(emit_is_float(a));
  return binary(e, LLVMFDiv, LLVMFDiv, a, b);
}

ref emit_and(const emit *e, ref a, ref b) {
  return binary(e, LLVMAnd, LLVMAnd, a, b);
}

ref emit_or(const emit *e, ref a, ref b) {
  return binary(e, LLVMOr, LLVMOr, a, b);
}

ref emit_xor(const emit *e, ref a, ref b) {
  return binary(e, LLVMXor, LLVMXor, a, b);
}

ref emit_not(const emit *e, ref a) {
  return LLVMBuildNot(e->builder, a, "");
}

static ref shift(const emit *e, LLVMOpcode how, ref a, int bits) {
  ref amount = LLVMConstInt(emit_element(LLVMTypeOf(a)),
                            (unsigned long long)bits, false);
  return binary(e, how, how, a, amount);
}

ref emit_shift_left(const emit *e, ref a, int bits) {
  return shift(e, LLVMShl, a, bits);
}

ref emit_shift_right(const emit *e, ref a, int bits) {
  return shift(e, LLVMLShr, a, bits);
}

ref emit_shift_arithmetic(const emit *e, ref a, int bits) {
  return shift(e, LLVMAShr, a, bits);
}

ref emit_compare(const emit *e, emit_relation relation, ref a, ref b) {
  static const struct {
    LLVMIntPredicate integer;
    LLVMRealPredicate real;
  } predicate[RELATION_COUNT] = {
      [IS_EQUAL] = {LLVMIntEQ, LLVMRealOEQ},
      [IS_UNEQUAL] = {LLVMIntNE, LLVMRealUNE},
      [IS_LESS] = {LLVMIntSLT, LLVMRealOLT},
      [IS_LESS_EQUAL] = {LLVMIntSLE, LLVMRealOLE},
      [IS_GREATER] = {LLVMIntSGT, LLVMRealOGT},
      [IS_GREATER_EQUAL] = {LLVMIntSGE, LLVMRealOGE},
  };
  emit_match(e, &a, &b);
  if (emit_is_float(a))
    return LLVMBuildFCmp(e->builder, predicate[relation].real, a, b, "");
  return LLVMBuildICmp(e->builder, predicate[relation].integer, a, b, "");
}

ref emit_below(const emit *e, ref a, ref b) {
  emit_match(e, &a, &b);
  return LLVMBuildICmp(e->builder, LLVMIntULT, a, b, "");
}

ref emit_select(const emit *e, ref condition, ref yes, ref no) {
  emit_match(e, &yes, &no);
  yes = spread_like(e, yes, condition);
  no = spread_like(e, no, condition);
  return LLVMBuildSelect(e->builder, condition, yes, no, "");
}

ref emit_greater(const emit *e, ref a, ref b) {
  return emit_select(e, emit_compare(e, IS_GREATER, a, b), a, b);
}

ref emit_lesser(const emit *e, ref a, ref b) {
  return emit_select(e, emit_compare(e, IS_LESS, a, b), a, b);
}

ref emit_fma(emit *e, ref a, ref b, ref c) {
  emit_match(e, &a, &b);
  emit_match(e, &a, &c);
  emit_match(e, &b, &c);
  ref argument[] = {a, b, c};
  ref_type type = LLVMTypeOf(c);
  return emit_intrinsic(e, "llvm.fma", &type, 1, argument, 3);
}

ref emit_bits(const emit *e, ref value, ref_type element) {
  return LLVMBuildBitCast(e->builder, value, emit_type_like(element, value),
                          "");
}

ref emit_convert(const emit *e, LLVMOpcode how, ref value, ref_type element) {
  return LLVMBuildCast(e->builder, how, value, emit_type_like(element, value),
                       "");
}

ref emit_shuffle(const emit *e, ref a, ref b, const int *lane, int count) {
  ref index[64];
  assert(count <= 64);
  for (int i = 0; i < count; i++) index[i] = emit_word(e, lane[i]);
  return LLVMBuildShuffleVector(e->builder, a, b,
                                LLVMConstVector(index, (unsigned)count), "");
}

ref emit_lane(const emit *e, ref vector, int lane) {
  return LLVMBuildExtractElement(e->builder, vector, emit_word(e, lane), "");
}

ref emit_unary(emit *e, const char *intrinsic, ref a) {
  ref_type type = LLVMTypeOf(a);
  return emit_intrinsic(e, intrinsic, &type, 1, &a, 1);
}

ref emit_whole(emit *e, ref a) {
  ref floored = emit_unary(e, "llvm.floor", a);
  ref_type overload[] = {emit_type_like(e->i32, a), LLVMTypeOf(a)};
  return emit_intrinsic(e, "llvm.fptosi.sat", overload, 2, &floored, 1);
}

ref emit_intrinsic(emit *e, const char *name, ref_type *overload,
                   unsigned overload_count, ref *argument, unsigned count) {
  unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
  assert(id != 0);
  ref function =
      LLVMGetIntrinsicDeclaration(e->module, id, overload, overload_count);
  return LLVMBuildCall2(e->builder, LLVMGlobalGetValueType(function), function,
                        argument, count, "");
}

ref emit_lanes_word(const emit *e, ref mask) {
  if (!emit_is_vector(mask)) return LLVMBuildZExt(e->builder, mask, e->i64, "");
  ref_type bits =
      LLVMIntTypeInContext(e->context, LLVMGetVectorSize(LLVMTypeOf(mask)));
  return LLVMBuildZExt(e->builder, LLVMBuildBitCast(e->builder, mask, bits, ""),
                       e->i64, "");
}

/* The upper half of the lanes combined with the lower, down to one. */
static ref fold_halves(const emit *e, ref vector,
                       ref (*combine)(const emit *, ref, ref)) {
  int lanes = (int)LLVMGetVectorSize(LLVMTypeOf(vector));
  while (lanes > 1) {
    int low[32], high[32];
    lanes /= 2;
    for (int i = 0; i < lanes; i++) {
      low[i] = i;
      high[i] = lanes + i;
    }
    vector = combine(e, emit_shuffle(e, vector, vector, low, lanes),
                     emit_shuffle(e, vector, vector, high, lanes));
  }
  return emit_lane(e, vector, 0);
}

ref emit_sum(const emit *e, ref vector) {
  return fold_halves(e, vector, emit_add);
}

ref emit_largest(const emit *e, ref vector) {
  return fold_halves(e, vector, emit_greater);
}
