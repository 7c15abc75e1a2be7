/* divide.cuh - rows of a call counted through, as batch row, position and head. */
#pragma once

/* Returns a / b and leaves the rest. Most numbers fit into 32 bits, where a
 * division takes a third of the instructions. */
static __device__ __forceinline__ long long divide(long long a, int b,
                                                   int *rest) {
  if (a >> 32) {
    *rest = (int)(a % b);
    return a / b;
  }
  unsigned quotient = (unsigned)a / (unsigned)b;
  *rest = (int)((unsigned)a - quotient * (unsigned)b);
  return quotient;
}
