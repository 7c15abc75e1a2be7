/* random.c - counter-based random numbers: the same everywhere, in any order.
 *
 * In: a counter and a key. Out: Philox 4x32-10 words (Salmon, Moraes, Dror and
 * Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and standard
 * normals made of them. */
#include "random.h"
#include <math.h>
#include <string.h>

enum { ROUNDS = 10 };

void dil_philox(const uint32_t counter[4], const uint32_t key[2],
                uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < ROUNDS; round++) {
    uint64_t p0 = UINT64_C(0xD2511F53) * c0;
    uint64_t p1 = UINT64_C(0xCD9E8D57) * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  memcpy(out, (uint32_t[4]){c0, c1, c2, c3}, 4 * sizeof *out);
}

double dil_normal(uint32_t seed, uint32_t tensor, uint64_t element) {
  const double pi = 3.14159265358979323846;
  uint32_t counter[4] = {(uint32_t)element, (uint32_t)(element >> 32), 0, 0};
  uint32_t key[2] = {seed, tensor}, word[4];
  dil_philox(counter, key, word);
  double radius = (word[0] + 0.5) * 0x1p-32, angle = (word[1] + 0.5) * 0x1p-32;
  return (float)(sqrt(-2 * log(radius)) * cos(2 * pi * angle));
}

static double stored(dil_dtype dtype, double number) {
  switch (dtype) {
  case DIL_BF16: return dil_bf16_to_f32(dil_f32_to_bf16((float)number));
  case DIL_F16: return dil_f16_to_f32(dil_f32_to_f16((float)number));
  default: return (float)number;
  }
}

void dil_normal_row(const dil_call *call, const dil_tensor *tensor,
                    int64_t start, int64_t count, double *to) {
  uint32_t number = tensor == &call->q ? 0 : tensor == &call->k ? 1 : 2;
  for (int64_t d = 0; d < count; d++)
    to[d] = stored(tensor->dtype,
                   dil_normal(call->random, number, (uint64_t)(start + d)));
}
