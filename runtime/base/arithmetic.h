/* arithmetic.h - whole numbers of positions, rows and tiles. Divisors are
 * above 0; what is divided may be negative, and is floored. */
#ifndef DIL_RUNTIME_BASE_ARITHMETIC_H
#define DIL_RUNTIME_BASE_ARITHMETIC_H

#include <assert.h>
#include <stdint.h>

static inline int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t maximum(int64_t a, int64_t b) { return a > b ? a : b; }

static inline int64_t floor_div(int64_t a, int64_t b) {
  assert(b > 0);
  return a / b - (a % b < 0);
}
static inline int64_t floor_mod(int64_t a, int64_t b) { /* 0 <= it < b */
  assert(b > 0);
  int64_t rest = a % b;
  return rest < 0 ? rest + b : rest;
}
/* The multiples of `to` around n. */
static inline int64_t floor_to(int64_t n, int64_t to) {
  return n - floor_mod(n, to);
}
static inline int64_t round_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

/* Of 0 and b it is b. */
static inline int64_t greatest_divisor(int64_t a, int64_t b) {
  while (b) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a < 0 ? -a : a;
}
/* INT64_MAX where it is larger; 0 of 0. */
static inline int64_t least_multiple(int64_t a, int64_t b) {
  int64_t product;
  if (a == 0 || b == 0) return 0;
  if (__builtin_mul_overflow(a / greatest_divisor(a, b), b, &product))
    return INT64_MAX;
  return product < 0 ? -product : product;
}

#endif
