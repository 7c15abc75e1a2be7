/* decode.h - launches of the kernel for few rows, templates/decode/decode.cu. */
#ifndef DIL_RUNTIME_CUDA_DECODE_H
#define DIL_RUNTIME_CUDA_DECODE_H

#include "runtime/cuda/launch/family.h"

extern const cuda_family cuda_decode;

#endif
