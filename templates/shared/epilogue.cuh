/* epilogue.cuh - how a row of a pass ends. In: m (units of log2), l and sums.
 * Out: the call's o and lse where no other pass touches the head; else the
 * state that the next pass resumes or (`mean`, `sum`) adds to. In a shard of a
 * sequence all is state, and `mean` and `sum` have one state for each pass. */
#ifndef DIL_TEMPLATES_SHARED_EPILOGUE_H
#define DIL_TEMPLATES_SHARED_EPILOGUE_H
#include "templates/shared/element.cuh"
#include "templates/shared/softmax.cuh"
#include "templates/shared/walk.cuh"

enum { FINISH_WRITE, FINISH_RESUME, FINISH_ADD };

DIL_INLINE int finish_of(const dil_params &p, int head) {
  if (is_shard(p)) return FINISH_RESUME;
  if (PASSES == 1 || passes_of(head) <= 1) return FINISH_WRITE;
  return COMBINE >= 2 ? FINISH_ADD : FINISH_RESUME;
}

/* Rows of the state and of partial results. */
DIL_INLINE long long row_number(const dil_params &p, int b, int n, int h) {
  long long first = is_packed(p) ? document_queries(p, b).first
                                 : (long long)b * p.rows;
  return (first + n) * p.heads + h - p.head;
}

DIL_INLINE element *output_row(const dil_params &p, int b, int n, int h) {
  return (element *)p.o + queries_place(p, b, p.o_stride) +
         n * p.o_stride[1] + (h - p.head) * p.o_stride[2];
}

DIL_INLINE void write_lse(const dil_params &p, int b, int n, int h, float lse) {
  if (p.lse)
    p.lse[queries_place(p, b, p.lse_stride) + n * p.lse_stride[1] +
          (h - p.head) * p.lse_stride[2]] = lse;
}

/* The factor of a row's sums, and its lse. NaN sums keep l NaN, not 0. */
DIL_INLINE float row_factor(const dil_params &p, float l) {
  return l == 0 ? 0.0f : p.weight / l;
}
DIL_INLINE float row_lse(float m, float l) {
  return l == 0 ? DIL_NONE : m * DIL_LN_2 + logf(l);
}

/* One element of a finished row. */
DIL_INLINE void finish_element(const dil_params &p, int how, int b, int n,
                               int h, int d, float x) {
  if (how == FINISH_WRITE) {
    output_row(p, b, n, h)[d] = narrow(x);
    return;
  }
  float *state = p.state_o + row_number(p, b, n, h) * VALUE_DIM + d;
  *state = how == FINISH_ADD ? *state + x : x;
}

DIL_INLINE void finish_lse(const dil_params &p, int how, int b, int n, int h,
                           float lse) {
  if (how == FINISH_WRITE) write_lse(p, b, n, h, lse);
  if (how == FINISH_RESUME) p.state_lse[row_number(p, b, n, h)] = lse;
}

#endif
