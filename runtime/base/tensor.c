/* tensor.c - element types, views of memory, one element at a time.
 *
 * In: a dil_dtype and bits, or a dil_tensor. Out: numbers. Conversions work on
 * the bits with integers, so they are the same whatever the processor's
 * rounding and flush-to-zero state. */
#include "runtime/tensor.h"
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct dtype_row {
  const char *name;
  size_t size;
} dtype_row;

static const dtype_row dtypes[DIL_DTYPE_COUNT] = {
    [DIL_F32] = {"f32", 4}, [DIL_BF16] = {"bf16", 2}, [DIL_F16] = {"f16", 2},
    [DIL_I32] = {"i32", 4}, [DIL_U8] = {"u8", 1},
};

size_t dil_dtype_size(dil_dtype dtype) {
  assert(dtype < DIL_DTYPE_COUNT);
  return dtypes[dtype].size;
}

const char *dil_dtype_name(dil_dtype dtype) {
  assert(dtype < DIL_DTYPE_COUNT);
  return dtypes[dtype].name;
}

dil_tensor dil_tensor_make(void *data, dil_dtype dtype, int32_t rank,
                           const int64_t *shape) {
  assert(rank >= 0 && rank <= DIL_RANK_MAX);
  dil_tensor tensor = {.data = data, .dtype = dtype, .rank = rank};
  int64_t stride = 1;
  for (int32_t axis = rank; axis-- > 0;) {
    tensor.shape[axis] = shape[axis];
    tensor.stride[axis] = stride;
    if (__builtin_mul_overflow(stride, shape[axis], &stride))
      stride = INT64_MAX; /* no memory is that large: dil_tensor_count says */
  }
  return tensor;
}

int64_t dil_tensor_count(const dil_tensor *tensor) {
  int64_t count = 1;
  bool fits = true, empty = false;
  for (int32_t axis = 0; axis < tensor->rank; axis++) {
    if (tensor->shape[axis] < 0) return -1;
    empty |= tensor->shape[axis] == 0;
    fits &= !__builtin_mul_overflow(count, tensor->shape[axis], &count);
  }
  return empty ? 0 : fits ? count : -1;
}

bool dil_tensor_is_row_major(const dil_tensor *tensor) {
  int64_t stride = 1;
  if (dil_tensor_count(tensor) == 0) return true;
  for (int32_t axis = tensor->rank; axis-- > 0;) {
    if (tensor->shape[axis] > 1 && tensor->stride[axis] != stride) return false;
    stride *= tensor->shape[axis];
  }
  return true;
}

const char *dil_tensor_text(const dil_tensor *tensor,
                            char text[DIL_TENSOR_TEXT]) {
  int at = sprintf(text, "%s [", dil_dtype_name(tensor->dtype));
  for (int32_t axis = 0; axis < tensor->rank; axis++)
    at += sprintf(text + at, axis ? ", %lld" : "%lld",
                  (long long)tensor->shape[axis]);
  strcpy(text + at, "]");
  return text;
}

/* ---- conversions --------------------------------------------------------- */

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* bits / 2^shift to the nearest integer, ties to even; 0 < shift < 32. */
static uint32_t round_shift(uint32_t bits, int shift) {
  uint32_t half = 1u << (shift - 1), kept = bits >> shift;
  uint32_t lost = bits & (2 * half - 1);
  return kept + (lost > half || (lost == half && (kept & 1)));
}

uint16_t dil_f32_to_bf16(float value) {
  uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) /* NaN: rounding could make it inf */
    return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)round_shift(bits, 16);
}

float dil_bf16_to_f32(uint16_t bits) {
  return float_of((uint32_t)bits << 16);
}

uint16_t dil_f32_to_f16(float value) {
  uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000;
  uint32_t size = bits & 0x7fffffff;
  int exponent = (int)(size >> 23);
  if (size > 0x7f800000) /* NaN, with the top of its payload */
    return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff));
  if (size >= 0x47800000) /* 2^16 and more: infinity */
    return (uint16_t)(sign | 0x7c00);
  if (exponent >= 113) /* normal; a carry may reach infinity, rightly */
    return (uint16_t)(sign | round_shift(size - 0x38000000, 13));
  if (exponent < 102) /* below half of the smallest subnormal */
    return (uint16_t)sign;
  uint32_t significand = (size & 0x7fffff) | 0x800000;
  return (uint16_t)(sign | round_shift(significand, 126 - exponent));
}

float dil_f16_to_f32(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
  uint32_t exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  if (exponent == 31) return float_of(sign | 0x7f800000 | fraction << 13);
  if (exponent > 0)
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
  if (fraction == 0) return float_of(sign);
  int shift = __builtin_clz(fraction) - 21; /* moves the top bit to place 10 */
  return float_of(sign | (uint32_t)(113 - shift) << 23 |
                  (fraction << shift & 0x3ff) << 13);
}

/* To f32 by rounding to odd, after which rounding to 16 bits gives what one
 * rounding from float64 would have given. */
static float narrow_odd(double value) {
  float narrow = (float)value;
  if (isnan(narrow) || (double)narrow == value) return narrow;
  uint32_t bits = bits_of(narrow);
  if (fabs((double)narrow) > fabs(value)) bits--;
  return float_of(bits | 1);
}

static int32_t narrow_integer(double value, int32_t low, int32_t high) {
  if (isnan(value)) return 0;
  if (value <= low) return low;
  if (value >= high) return high;
  return (int32_t)nearbyint(value);
}

/* ---- one element --------------------------------------------------------- */

double dil_element_read(const void *data, dil_dtype dtype, int64_t index) {
  const char *at = (const char *)data + index * (int64_t)dil_dtype_size(dtype);
  uint32_t word = 0;
  memcpy(&word, at, dil_dtype_size(dtype));
  switch (dtype) {
    case DIL_F32: return (double)float_of(word);
    case DIL_BF16: return (double)dil_bf16_to_f32((uint16_t)word);
    case DIL_F16: return (double)dil_f16_to_f32((uint16_t)word);
    case DIL_I32: return (int32_t)word;
    case DIL_U8: return word;
    case DIL_DTYPE_COUNT: break;
  }
  assert(!"a dtype");
  return 0;
}

void dil_element_write(void *data, dil_dtype dtype, int64_t index,
                       double value) {
  char *at = (char *)data + index * (int64_t)dil_dtype_size(dtype);
  uint32_t word = 0;
  switch (dtype) {
    case DIL_F32: word = bits_of((float)value); break;
    case DIL_BF16: word = dil_f32_to_bf16(narrow_odd(value)); break;
    case DIL_F16: word = dil_f32_to_f16(narrow_odd(value)); break;
    case DIL_I32:
      word = (uint32_t)narrow_integer(value, INT32_MIN, INT32_MAX);
      break;
    case DIL_U8: word = (uint32_t)narrow_integer(value, 0, UINT8_MAX); break;
    case DIL_DTYPE_COUNT: assert(!"a dtype");
  }
  memcpy(at, &word, dil_dtype_size(dtype)); /* little-endian: the low bytes */
}
