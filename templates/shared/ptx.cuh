/* ptx.cuh - the instructions that CUDA C has no words for: all inline PTX of
 * the general kernels stands here. Shared addresses are 32-bit. */
#ifndef DIL_TEMPLATES_SHARED_PTX_H
#define DIL_TEMPLATES_SHARED_PTX_H

#define DIL_INLINE static __device__ __forceinline__

/* A result below the least normal number is 0: four instructions become one. */
DIL_INLINE float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DIL_INLINE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DIL_INLINE float dil_from_f16(unsigned short x) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x));
  return f;
}

/* Two floats as one register of elements: low half first. */
DIL_INLINE unsigned pack_bf16(float low, float high) {
  unsigned x;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}
DIL_INLINE unsigned pack_f16(float low, float high) {
  unsigned x;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
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

/* Four matrices of 8 x 8 elements; lane l says where row l % 8 of matrix l / 8
 * is, and gets columns 2 (l % 4) and on of row l / 4 of each. */
DIL_INLINE void load_matrices(unsigned (&x)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}
DIL_INLINE void load_matrices_transposed(unsigned (&x)[4], unsigned from) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
      : "r"(from)
      : "memory");
}

/* d += a b: 16 x 16 by 16 x 8, and 16 x 8 by 8 x 8 (tf32: the product ignores
 * the low 13 bits of its operands). */
#define DIL_PRODUCT_16(name, types)                                           \
  DIL_INLINE void name(float (&d)[4], const unsigned (&a)[4], unsigned b0,    \
                       unsigned b1) {                                         \
    asm volatile("mma.sync.aligned.m16n8k16.row.col." types                   \
                 " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"     \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0),       \
                   "r"(b1));                                                  \
  }
DIL_PRODUCT_16(multiply_bf16, "f32.bf16.bf16.f32")
DIL_PRODUCT_16(multiply_f16, "f32.f16.f16.f32")
#undef DIL_PRODUCT_16

DIL_INLINE unsigned round_tf32(unsigned x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
DIL_INLINE void multiply_tf32(float (&d)[4], const unsigned (&a)[4],
                              unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
               " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
