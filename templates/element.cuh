/* element.cuh - elements in memory and in the registers of mma.sync: packing,
 * rounding, and the products of 16 rows by 8 columns. */
#ifndef DIL_ELEMENT_CUH
#define DIL_ELEMENT_CUH
#include "plan.cuh"

#if ELEMENT == 0
typedef float element;
#define ELEMENT_BYTES 4
#else
typedef unsigned short element;
#define ELEMENT_BYTES 2
#endif

DIL_INLINE unsigned shared_address(const void *p) {
  return (unsigned)__cvta_generic_to_shared(p);
}

/* Two floats as one register of elements: low half first. */
DIL_INLINE unsigned pack_pair(float low, float high) {
  unsigned x;
#if ELEMENT == 2
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
#endif
  return x;
}

DIL_INLINE float widen(element x) {
#if ELEMENT == 0
  return x;
#elif ELEMENT == 1
  return dil_from_bf16(x);
#else
  return dil_from_f16(x);
#endif
}

DIL_INLINE element narrow(float x) {
#if ELEMENT == 0
  return x;
#else
  return (element)pack_pair(x, 0.0f);
#endif
}

/* 16 bytes from global to shared memory; zeros when not `inside`. */
DIL_INLINE void copy_16(unsigned to, const void *from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(from), "r"(inside ? 16 : 0)
               : "memory");
}
DIL_INLINE void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> DIL_INLINE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

DIL_INLINE void load_matrices(unsigned (&x)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}
DIL_INLINE void load_matrices_turned(unsigned (&x)[4], unsigned from) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
      : "r"(from)
      : "memory");
}

/* d += a b for 16-bit elements: 16 x 16 by 16 x 8. */
DIL_INLINE void multiply_16(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                            unsigned b1) {
#if ELEMENT == 2
#define DIL_PRODUCT "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#else
#define DIL_PRODUCT "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#endif
  asm volatile(DIL_PRODUCT
               " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#undef DIL_PRODUCT
}

DIL_INLINE unsigned round_tf32(float x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

/* A float as the sum of two tf32 numbers. */
struct two_parts {
  unsigned high, low;
};
DIL_INLINE two_parts split_tf32(float x) {
  two_parts t;
  t.high = round_tf32(x);
  t.low = FAST ? 0u : round_tf32(x - __uint_as_float(t.high));
  return t;
}

DIL_INLINE void multiply_tf32(float (&d)[4], unsigned a0, unsigned a1,
                              unsigned a2, unsigned a3, unsigned b0,
                              unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
               " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* d += a b in f32: 16 x 8 by 8 x 8, the small products first. */
DIL_INLINE void multiply_8(float (&d)[4], const two_parts (&a)[4],
                           two_parts b0, two_parts b1) {
  if (!FAST) {
    multiply_tf32(d, a[0].low, a[1].low, a[2].low, a[3].low, b0.high, b1.high);
    multiply_tf32(d, a[0].high, a[1].high, a[2].high, a[3].high, b0.low,
                  b1.low);
  }
  multiply_tf32(d, a[0].high, a[1].high, a[2].high, a[3].high, b0.high,
                b1.high);
}

#endif
