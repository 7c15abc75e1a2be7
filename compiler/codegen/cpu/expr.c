/* expr.c - mask and score expressions as IR, at a site where one position is a
 * scalar and the other a vector of lanes (or both are scalars). Scalars stay
 * scalar until they meet lanes. Meanings are those of compiler/pattern/expr.c;
 * float operations are single roundings, nothing is contracted. */
#include "cpu.h"
#include <stddef.h>
#include <stdlib.h>

int element_bytes(dil_dtype dtype) {
  static const int bytes[DIL_DTYPE_COUNT] = {
      [DIL_F32] = 4, [DIL_BF16] = 2, [DIL_F16] = 2, [DIL_I32] = 4, [DIL_U8] = 1,
  };
  return bytes[dtype];
}

/* ---- the site ------------------------------------------------------------ */

#define ENV_OFFSET(field) ((int64_t)offsetof(dil_env, field))

static ref env_load(build *b, ref env, ref_type type, int64_t offset) {
  const emit *e = &b->emit;
  unsigned align = type == e->pointer || type == e->i64 ? 8 : 4;
  return emit_load(e, type, emit_offset(e, env, offset), align);
}

/* All that an expression may ask for; what none does is never computed. */
void site_open(build *b, site *s, ref env) {
  const emit *e = &b->emit;
  *s = (site){.env = env};
  s->b = env_load(b, env, e->i32, ENV_OFFSET(batch));
  s->h = env_load(b, env, e->i32, ENV_OFFSET(head));
  s->batch = env_load(b, env, e->i32, ENV_OFFSET(B));
  s->queries = env_load(b, env, e->i32, ENV_OFFSET(N));
  s->keys = env_load(b, env, e->i32, ENV_OFFSET(M));
}

void site_open_inputs(build *b, site *s) {
  const emit *e = &b->emit;
  const pattern *p = b->plan->pattern;
  if (pattern_reads(p) == 0) return;
  ref inputs = env_load(b, s->env, e->pointer, ENV_OFFSET(inputs));
  for (int k = 0; k < pattern_reads(p); k++) {
    int64_t start = k * (int64_t)sizeof(dil_env_input);
    site_input *input = &s->input[k];
    input->data =
        env_load(b, inputs, e->pointer, start + offsetof(dil_env_input, data));
    for (int axis = 0; axis < p->input[k].rank; axis++) {
      input->dim[axis] = env_load(
          b, inputs, e->i64, start + offsetof(dil_env_input, dim) + axis * 8);
      input->stride[axis] =
          env_load(b, inputs, e->i64,
                   start + offsetof(dil_env_input, stride) + axis * 8);
    }
  }
}

static bool depends(const expr *e, expr_op leaf) {
  if (e->op == leaf) return true;
  for (int32_t k = 0; k < e->count; k++)
    if (depends(e->arg[k], leaf)) return true;
  return false;
}

/* Computes ahead of a loop the largest parts of `x` that the loop's own
 * position (`leaf`) and the score do not change. */
void site_hoist(build *b, site *s, const expr *x, expr_op leaf) {
  if (x->count == 0 || s->ready_count == SITE_READY_MAX) return;
  if (depends(x, leaf) || depends(x, EXPR_S_)) {
    for (int32_t k = 0; k < x->count; k++) site_hoist(b, s, x->arg[k], leaf);
    return;
  }
  ref ready = expression_value(b, s, x);
  s->ready[s->ready_count].x = x;
  s->ready[s->ready_count++].value = ready;
}

/* ---- integers ------------------------------------------------------------ */

static ref to_double(build *b, ref x) {
  return emit_convert(&b->emit, LLVMSIToFP, x, b->emit.f64);
}

static ref floor_to_word(build *b, ref x) {
  return emit_convert(&b->emit, LLVMFPToSI,
                      emit_unary(&b->emit, "llvm.floor", x), b->emit.i32);
}

/* Two i32 have a quotient that a float64 division never lifts to the next
 * integer: it lies at least 1/|b| below, the rounding is under 2^-21/|b|. */
static ref divide_any(build *b, ref x, ref y) {
  const emit *e = &b->emit;
  emit_match(e, &x, &y);
  ref zero = emit_compare(e, IS_EQUAL, y, emit_word(e, 0));
  ref minus = emit_compare(e, IS_EQUAL, y, emit_word(e, -1));
  ref safe = emit_select(e, emit_or(e, zero, minus), emit_word(e, 1), y);
  ref q = floor_to_word(b, emit_divide(e, to_double(b, x), to_double(b, safe)));
  q = emit_select(e, minus, emit_sub(e, emit_word(e, 0), x), q);
  return emit_select(e, zero, emit_word(e, 0), q);
}

/* (x + 1/2) / y is never within 1/(2y) of an integer, so the rounded inverse
 * is good enough. */
static ref divide_constant(build *b, ref x, int64_t y) {
  const emit *e = &b->emit;
  ref middle = emit_add(e, to_double(b, x), emit_double(e, 0.5));
  return floor_to_word(b, emit_mul(e, middle, emit_double(e, 1.0 / (double)y)));
}

/* The divisor when it is a constant above 0, else 0. */
static int64_t constant_divisor(ref y) {
  if (LLVMIsAConstantInt(y) == NULL) return 0;
  int64_t number = LLVMConstIntGetSExtValue(y);
  return number > 0 ? number : 0;
}

static ref integer_divide(build *b, ref x, ref y) {
  int64_t number = constant_divisor(y);
  if (number == 0) return divide_any(b, x, y);
  if ((number & (number - 1)) == 0)
    return emit_shift_arithmetic(&b->emit, x, __builtin_ctzll(number));
  return divide_constant(b, x, number);
}

static ref integer_modulo(build *b, ref x, ref y) {
  const emit *e = &b->emit;
  int64_t number = constant_divisor(y);
  if (number != 0 && (number & (number - 1)) == 0)
    return emit_and(e, x, emit_word(e, number - 1));
  ref rest = emit_sub(e, x, emit_mul(e, integer_divide(b, x, y), y));
  if (number != 0) return rest;
  ref zero = emit_compare(e, IS_EQUAL, y, emit_word(e, 0));
  return emit_select(e, zero, emit_word(e, 0), rest);
}

static ref integer_absolute(build *b, ref x) {
  const emit *e = &b->emit;
  ref negative = emit_compare(e, IS_LESS, x, emit_word(e, 0));
  return emit_select(e, negative, emit_sub(e, emit_word(e, 0), x), x);
}

static ref integer_value(build *b, expr_op op, ref x, ref y) {
  const emit *e = &b->emit;
  switch (op) {
  case EXPR_ADD: return emit_add(e, x, y);
  case EXPR_SUB: return emit_sub(e, x, y);
  case EXPR_MUL: return emit_mul(e, x, y);
  case EXPR_DIV: return integer_divide(b, x, y);
  case EXPR_MOD: return integer_modulo(b, x, y);
  case EXPR_NEG: return emit_sub(e, emit_word(e, 0), x);
  case EXPR_ABS: return integer_absolute(b, x);
  case EXPR_MIN: return emit_lesser(e, x, y);
  case EXPR_MAX: return emit_greater(e, x, y);
  case EXPR_FLOOR:
  case EXPR_CEIL: return x;
  default: abort();
  }
}

ref hash_start(const build *b) {
  return emit_word(&b->emit, 0x9E3779B9);
}

ref hash_step(const build *b, ref h, ref argument) {
  const emit *e = &b->emit;
  h = emit_xor(e, h, argument);
  h = emit_xor(e, h, emit_shift_right(e, h, 16));
  h = emit_mul(e, h, emit_word(e, 0x7FEB352D));
  h = emit_xor(e, h, emit_shift_right(e, h, 15));
  h = emit_mul(e, h, emit_word(e, 0x846CA68B));
  return emit_xor(e, h, emit_shift_right(e, h, 16));
}

ref hash_end(const build *b, ref h) {
  return emit_shift_right(&b->emit, h, 1);
}

static ref hash_value(build *b, site *s, const expr *x) {
  ref h = hash_start(b);
  for (int32_t k = 0; k < x->count; k++)
    h = hash_step(b, h, expression_value(b, s, x->arg[k]));
  return hash_end(b, h);
}

/* ---- floats -------------------------------------------------------------- */

static ref as_real(build *b, ref x) {
  if (emit_is_float(x)) return x;
  return emit_convert(&b->emit, LLVMSIToFP, x, b->emit.f32);
}

/* NaN when either side is; the second side when both are equal. */
static ref real_extreme(build *b, emit_relation relation, ref x, ref y) {
  const emit *e = &b->emit;
  ref first = emit_or(e, emit_compare(e, relation, x, y),
                      emit_compare(e, IS_UNEQUAL, x, x));
  return emit_select(e, first, x, y);
}

static ref real_modulo(build *b, ref x, ref y) {
  emit *e = &b->emit;
  ref turns = emit_unary(e, "llvm.floor", emit_divide(e, x, y));
  return emit_sub(e, x, emit_mul(e, turns, y));
}

/* The functions of math.c work on whole vectors. */
static ref through_lanes(build *b, ref (*function)(build *, ref), ref x) {
  if (emit_is_vector(x)) return function(b, x);
  return emit_lane(&b->emit,
                   function(b, emit_splat(&b->emit, x, b->emit.width)), 0);
}

static ref real_value(build *b, expr_op op, ref x, ref y) {
  emit *e = &b->emit;
  switch (op) {
  case EXPR_ADD: return emit_add(e, x, y);
  case EXPR_SUB: return emit_sub(e, x, y);
  case EXPR_MUL: return emit_mul(e, x, y);
  case EXPR_DIV: return emit_divide(e, x, y);
  case EXPR_MOD: return real_modulo(b, x, y);
  case EXPR_NEG: return LLVMBuildFNeg(e->builder, x, "");
  case EXPR_ABS: return emit_unary(e, "llvm.fabs", x);
  case EXPR_MIN: return real_extreme(b, IS_LESS, x, y);
  case EXPR_MAX: return real_extreme(b, IS_GREATER, x, y);
  case EXPR_FLOOR: return emit_unary(e, "llvm.floor", x);
  case EXPR_CEIL: return emit_unary(e, "llvm.ceil", x);
  case EXPR_SQRT: return emit_unary(e, "llvm.sqrt", x);
  case EXPR_EXP: return through_lanes(b, math_exp, x);
  case EXPR_LOG: return through_lanes(b, math_log, x);
  case EXPR_TANH: return through_lanes(b, math_tanh, x);
  default: abort();
  }
}

/* ---- inputs -------------------------------------------------------------- */

/* The raw element at a byte offset, as i32 with zeros above it. A lane or
 * scalar that is not inside reads the environment in its place. */
static ref load_scalar(build *b, site *s, ref data, ref offset, ref inside,
                       dil_dtype dtype) {
  const emit *e = &b->emit;
  int size = element_bytes(dtype);
  ref place = emit_select(e, inside, emit_at(e, data, offset), s->env);
  ref_type type = LLVMIntTypeInContext(e->context, 8 * (unsigned)size);
  ref bits = emit_load(e, type, place, (unsigned)size);
  return size == 4 ? bits : emit_convert(e, LLVMZExt, bits, e->i32);
}

/* Lanes are gathered as aligned words, also for narrower elements: the word
 * around an element never leaves its page. */
static ref load_lanes(build *b, ref data, ref offset, ref inside,
                      dil_dtype dtype) {
  emit *e = &b->emit;
  int size = element_bytes(dtype);
  ref base = LLVMBuildPtrToInt(e->builder, data, e->i64, "");
  ref address = emit_add(e, offset, base);
  ref word = emit_and(e, address, emit_long(e, -4));
  ref place = emit_convert(e, LLVMIntToPtr, word, e->pointer);
  ref_type words = emit_type_like(e->i32, place);
  ref argument[] = {place, emit_word(e, 4),
                    emit_is_vector(inside) ? inside
                                           : emit_splat(e, inside, e->width),
                    emit_zero(words)};
  ref_type overload[] = {words, LLVMTypeOf(place)};
  ref bits = emit_intrinsic(e, "llvm.masked.gather", overload, 2, argument, 4);
  if (size == 4) return bits;
  ref within =
      emit_convert(e, LLVMTrunc, emit_and(e, address, emit_long(e, 3)), e->i32);
  bits = LLVMBuildLShr(e->builder, bits, emit_shift_left(e, within, 3), "");
  return emit_and(e, bits, emit_word(e, (1 << 8 * size) - 1));
}

static ref element_of_bits(build *b, ref bits, dil_dtype dtype) {
  const emit *e = &b->emit;
  switch (dtype) {
  case DIL_F32: return emit_bits(e, bits, e->f32);
  case DIL_BF16: return emit_bits(e, emit_shift_left(e, bits, 16), e->f32);
  case DIL_F16: {
    ref half = emit_convert(e, LLVMTrunc, bits, e->i16);
    return emit_convert(e, LLVMFPExt, emit_bits(e, half, e->f16), e->f32);
  }
  default: return bits;
  }
}

/* The bit at an offset in bits, as i32 (dil_input_is_bits). */
static ref load_bit(build *b, site *s, ref data, ref offset, ref inside) {
  emit *e = &b->emit;
  ref place = emit_shift_left(e, emit_shift_right(e, offset, 5), 2);
  ref bits = emit_is_vector(offset)
                 ? load_lanes(b, data, place, inside, DIL_I32)
                 : load_scalar(b, s, data, place, inside, DIL_I32);
  ref within = emit_convert(e, LLVMTrunc, emit_and(e, offset, emit_long(e, 31)),
                            e->i32);
  bits = LLVMBuildLShr(e->builder, bits, within, "");
  bits = emit_and(e, bits, emit_word(e, 1));
  return emit_is_vector(offset) ? bits
                                : emit_select(e, inside, bits, emit_word(e, 0));
}

static ref input_value(build *b, site *s, const expr *x) {
  const emit *e = &b->emit;
  const dil_input *input = &b->plan->pattern->input[x->integer];
  const site_input *at = &s->input[x->integer];
  ref offset = emit_long(e, 0), inside = emit_truth(e, true);
  for (int32_t axis = 0; axis < x->count; axis++) {
    ref index =
        emit_convert(e, LLVMSExt, expression_value(b, s, x->arg[axis]), e->i64);
    ref below, dim = at->dim[axis];
    emit_match(e, &index, &dim);
    below = emit_below(e, index, dim); /* a negative index is huge */
    inside = axis == 0 ? below : emit_and(e, inside, below);
    offset = emit_add(e, offset, emit_mul(e, index, at->stride[axis]));
  }
  if (dil_input_is_bits(input)) return load_bit(b, s, at->data, offset, inside);
  offset = emit_mul(e, offset, emit_long(e, element_bytes(input->dtype)));
  if (!emit_is_vector(offset))
    return element_of_bits(
        b,
        emit_select(e, inside,
                    load_scalar(b, s, at->data, offset, inside, input->dtype),
                    emit_word(e, 0)),
        input->dtype);
  return element_of_bits(
      b, load_lanes(b, at->data, offset, inside, input->dtype), input->dtype);
}

/* ---- trees --------------------------------------------------------------- */

static ref leaf_value(build *b, site *s, const expr *x) {
  const emit *e = &b->emit;
  switch (x->op) {
  case EXPR_INT: return emit_word(e, x->integer);
  case EXPR_TRUTH: return emit_truth(e, x->integer != 0);
  case EXPR_REAL: return emit_real(e, (double)(float)x->real);
  case EXPR_B_: return s->b;
  case EXPR_H_: return s->h;
  case EXPR_I_: return s->i;
  case EXPR_J_: return s->j;
  case EXPR_S_: return s->score;
  case EXPR_BATCH: return s->batch;
  case EXPR_N_: return s->queries;
  case EXPR_M_: return s->keys;
  case EXPR_INPUT: return input_value(b, s, x);
  default: abort();
  }
}

static const emit_relation relation_of[EXPR_OP_COUNT] = {
    [EXPR_EQ] = IS_EQUAL,   [EXPR_NE] = IS_UNEQUAL,
    [EXPR_LT] = IS_LESS,    [EXPR_LE] = IS_LESS_EQUAL,
    [EXPR_GT] = IS_GREATER, [EXPR_GE] = IS_GREATER_EQUAL,
};

static ref two_sides(build *b, const expr *x, ref left, ref right) {
  const emit *e = &b->emit;
  bool real = emit_is_float(left) || emit_is_float(right);
  if (real) {
    left = as_real(b, left);
    right = as_real(b, right);
  }
  switch (x->op) {
  case EXPR_EQ:
  case EXPR_NE:
  case EXPR_LT:
  case EXPR_LE:
  case EXPR_GT:
  case EXPR_GE: return emit_compare(e, relation_of[x->op], left, right);
  case EXPR_AND: return emit_and(e, left, right);
  case EXPR_OR: return emit_or(e, left, right);
  default: break;
  }
  if (x->type != TYPE_F32) return integer_value(b, x->op, left, right);
  return real_value(b, x->op, as_real(b, left), as_real(b, right));
}

static ref tree_value(build *b, site *s, const expr *x) {
  const emit *e = &b->emit;
  ref first = expression_value(b, s, x->arg[0]);
  if (x->op == EXPR_NOT) return emit_not(e, first);
  if (x->op == EXPR_TO_INT) return emit_whole(&b->emit, first);
  if (x->op == EXPR_CHOOSE) {
    ref yes = expression_value(b, s, x->arg[1]);
    ref no = expression_value(b, s, x->arg[2]);
    if (x->type == TYPE_F32) {
      yes = as_real(b, yes);
      no = as_real(b, no);
    }
    return emit_select(e, first, yes, no);
  }
  return two_sides(b, x, first,
                   x->count == 1 ? first : expression_value(b, s, x->arg[1]));
}

ref expression_value(build *b, site *s, const expr *x) {
  build_locate(b, x->at);
  for (int i = 0; i < s->ready_count; i++)
    if (s->ready[i].x == x) return s->ready[i].value;
  if (x->op == EXPR_HASH) return hash_value(b, s, x);
  if (x->op == EXPR_INPUT || x->count == 0) return leaf_value(b, s, x);
  return tree_value(b, s, x);
}
