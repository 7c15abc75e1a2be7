/* tensor.h - element types and views of memory. */
#ifndef DIL_RUNTIME_TENSOR_H
#define DIL_RUNTIME_TENSOR_H

#include "dilrt.h"
#include <stdbool.h>

#pragma GCC visibility push(default)

typedef enum dil_dtype {
  DIL_F32, DIL_BF16, DIL_F16, DIL_I32, DIL_U8, DIL_DTYPE_COUNT
} dil_dtype;

static inline bool dil_dtype_is_real(dil_dtype dtype) {
  return dtype == DIL_F32 || dtype == DIL_BF16 || dtype == DIL_F16;
}
size_t dil_dtype_size(dil_dtype dtype);      /* bytes an element */
const char *dil_dtype_name(dil_dtype dtype); /* "f32", ... */

/* A strided view of memory that somebody else owns. Strides count elements. */
typedef struct dil_tensor {
  void *data;
  dil_dtype dtype;
  int32_t rank;
  int64_t shape[DIL_RANK_MAX];
  int64_t stride[DIL_RANK_MAX];
} dil_tensor;

/* A row-major tensor over `data`; rank at most DIL_RANK_MAX. */
dil_tensor dil_tensor_make(void *data, dil_dtype dtype, int32_t rank,
                           const int64_t *shape);
/* Elements; -1 when an extent is negative or the product does not fit. */
int64_t dil_tensor_count(const dil_tensor *tensor);
/* Whether elements lie as dil_tensor_make has them. Without elements any do. */
bool dil_tensor_is_row_major(const dil_tensor *tensor);
/* "f16 [2, 4, 5]", for messages; returns the text. */
enum { DIL_TENSOR_TEXT = 128 };
const char *dil_tensor_text(const dil_tensor *tensor,
                            char text[DIL_TENSOR_TEXT]);

uint16_t dil_f32_to_bf16(float value); /* round to nearest even */
uint16_t dil_f32_to_f16(float value);
float dil_bf16_to_f32(uint16_t bits);
float dil_f16_to_f32(uint16_t bits);
double dil_element_read(const void *data, dil_dtype dtype, int64_t index);
void dil_element_write(void *data, dil_dtype dtype, int64_t index,
                       double value);

#pragma GCC visibility pop
#endif
