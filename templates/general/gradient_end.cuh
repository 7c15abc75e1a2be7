/* gradient_end.cuh - how the rows of gradient.cu end, and the small kernels over
 * rows. */
#pragma once
#include "templates/shared/documents.cuh"

/* Whether the tile has rows to sum or to write. Rows that no branch selects are
 * written by the first pass; those of later passes leave them. */
DIL_INLINE bool has_rows(const dil_gradient_params &g, const dil_tile &t) {
#if HOLDS_KEYS
  return t.written && !((MAKES & MAKES_K ? g.k.add : g.v.add) && !t.count);
#else
  return t.count && (t.branches || !(MAKES & MAKES_INPUTS || g.q.add));
#endif
}

/* Row n of head h, counted from the call's first, of the batch row at `from`. */
DIL_INLINE void put_element(const dil_gradient &out, long long from,
                            long long n, int h, int d, float x) {
  long long at = from + n * out.stride[1] + h * out.stride[2] + d;
  if (!out.wide) ((element *)out.data)[at] = narrow(x);
  else ((float *)out.data)[at] = out.add ? ((float *)out.data)[at] + x : x;
}

/* One row of the sums of a warp, from where end_sums has put them. */
template <int DIM>
DIL_INLINE void end_row(const dil_params &p, const dil_tile &t,
                        const dil_gradient &out, int row, const float *sums) {
  int position, h;
  bool there = find_row(p, t, row, &position, &h);
#if HOLDS_KEYS
  if (row >= t.written) return;
  position = tile_position(t, row);
  h = t.kv;
#else
  if (!there) return;
  h -= p.head;
#endif
  int n = row_at(p, t, position);
#if SHARDS
  int heads = HOLDS_KEYS ? tile_heads(p) : p.heads;
  int rows = HOLDS_KEYS ? p.key_rows : p.rows;
  if (out.marks && !out.marks[((long long)t.b * heads + h) * rows + n]) return;
#endif
  long long from = batch_place(p, t, HOLDS_KEYS, out.stride);
#pragma unroll 1
  for (int d = threadIdx.x & 31; d < DIM; d += 32)
    put_element(out, from, n, h, d, there ? sums[d] : 0.0f);
}

/* Sums of a warp's rows through shared memory, so that rows are written whole.
 * `factor`: of the first and of the second row of a thread. */
template <int DIM, int TILES>
DIL_INLINE void end_sums(const dil_params &p, const dil_tile &t,
                         const dil_gradient &out, const float (&sums)[TILES][4],
                         const float (&factor)[2]) {
  constexpr int pitch = DIM | 1;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float *place = (float *)(shared + SHARED_Q) + warp * 16 * pitch;
  if (!out.data) return;
  __syncwarp();
#pragma unroll
  for (int e = 0; e < 4 * TILES; e++) {
    int r = e >> 1 & 1;
    if (column_of(e) < DIM)
      place[(lane / 4 + 8 * r) * pitch + column_of(e)] =
          sums[e >> 2][e & 3] * factor[r];
  }
  __syncwarp();
#pragma unroll 1
  for (int row = 0; row < 16; row++)
    end_row<DIM>(p, t, out, 16 * warp + row, place + row * pitch);
}

template <class SUMS>
DIL_INLINE void end_tile(const dil_gradient_params &g, const dil_tile &t,
                         const SUMS &sums) {
  const dil_params &p = g.of;
#if SCORES_MATTER
  float scale = p.scale * p.weight;
  const float scored[2] = {ELEMENT == 2 ? sums.unit[0] * scale : scale,
                           ELEMENT == 2 ? sums.unit[1] * scale : scale};
  end_sums<HEAD_DIM>(p, t, HOLDS_KEYS ? g.k : g.q, sums.scored[0], scored);
#endif
#if MAKES & MAKES_V
  const float weighted[2] = {p.weight * WEIGHT_UNIT, p.weight * WEIGHT_UNIT};
  __syncthreads(); /* warps have places of another size */
  end_sums<VALUE_DIM>(p, t, g.v, sums.weighted[0], weighted);
#endif
}

/* ---- all rows ------------------------------------------------------------ */

#if MAKES & MAKES_Q
template <class T, int COUNT> struct alignas(COUNT * sizeof(T)) neighbours {
  T at[COUNT];
};
typedef neighbours<element, 4> four_elements;

/* Eight elements of a row from number i on, UNIT of them a load; 0 behind its end. */
template <int UNIT, class T>
DIL_INLINE void load_eight(T (&x)[8], const T *row, int i) {
#pragma unroll
  for (int k = 0; k < 8; k += UNIT) {
    neighbours<T, UNIT> some = {};
    if (i + k < VALUE_DIM) some = *(const neighbours<T, UNIT> *)(row + i + k);
#pragma unroll
    for (int e = 0; e < UNIT; e++) x[k + e] = some.at[e];
  }
}

/* An element, or a number of f32. */
template <class T> DIL_INLINE float to_float(T x) {
  return sizeof x == sizeof(float) ? (float)x : widen((element)x);
}

/* How many elements of any row of dO, and of o, one load reads: these stand where
 * their number divides addresses. */
DIL_INLINE int output_unit(const dil_gradient_params &g) {
  unsigned long long steps = 0;
#pragma unroll
  for (int k = 0; k < 3; k++) steps |= g.of.o_stride[k] | g.o_stride[k];
  steps *= sizeof(element);
  steps |= (unsigned long long)g.of.o | (unsigned long long)g.o;
  if (VALUE_DIM % 8 == 0 && steps % (8 * sizeof(element)) == 0) return 8;
  return VALUE_DIM % 4 == 0 && steps % (4 * sizeof(element)) == 0 ? 4 : 1;
}

/* lse of a row in units of log2, and its delta. */
DIL_INLINE void put_facts(const dil_gradient_params &g, const dil_place &at,
                          long long index, float sum) {
  const dil_params &p = g.of;
  long long h = at.h - p.head;
  float lse = g.lse[queries_place(p, at.b, g.lse_stride) +
                    at.n * g.lse_stride[1] + h * g.lse_stride[2]];
  if (g.lse_gradient) /* the weight is a factor of all gradients */
    sum -= g.lse_gradient[queries_place(p, at.b, g.lse_gradient_stride) +
                          at.n * g.lse_gradient_stride[1] +
                          h * g.lse_gradient_stride[2]] /
           p.weight;
  float *facts = g.facts + DIL_FACTS * index * g.fact_states;
  facts[0] = lse == DIL_NONE ? -lse : lse * DIL_LOG2_E;
  facts[1] = sum;
}

/* The place of row `index`, which is so many batch rows, rows and heads behind `at`.
 * Divisions of long numbers would take longer than the row. */
DIL_INLINE dil_place place_behind(const dil_params &p, dil_place at,
                                  const dil_place &step, long long index) {
  if (is_packed(p)) return place_of(p, index);
  at.h += step.h;
  int more = at.h >= p.head + p.heads;
  at.h -= more ? p.heads : 0;
  at.n += step.n + more;
  more = at.n >= p.rows;
  at.n -= more ? p.rows : 0;
  at.b += step.b + more;
  return at;
}

/* A lane's part of dO . o of a row. O is what o has. */
template <int UNIT, class O>
DIL_INLINE float dot_output(const dil_gradient_params &g, const dil_place &at,
                            int lane) {
  const dil_params &p = g.of;
  const int lanes = DIL_ROW_LANES(VALUE_DIM);
  const element *there = output_row(p, at.b, at.n, at.h);
  const O *here = (const O *)g.o + queries_place(p, at.b, g.o_stride) +
                  at.n * g.o_stride[1] + (at.h - p.head) * g.o_stride[2];
  float sum = 0;
#pragma unroll
  for (int i = 8 * lane; i < VALUE_DIM; i += 8 * lanes) {
    element d[8];
    O o[8];
    load_eight<UNIT>(d, there, i);
    load_eight<UNIT>(o, here, i);
#pragma unroll
    for (int e = 0; e < 8; e++) sum += widen(d[e]) * to_float(o[e]);
  }
  return sum;
}

/* Rows are taken in turns, a few lanes each; all of a warp take part in the sums. */
template <int UNIT, class O>
DIL_INLINE void make_facts(const dil_gradient_params &g) {
  const dil_params &p = g.of;
  const int lanes = DIL_ROW_LANES(VALUE_DIM);
  int lane = threadIdx.x % lanes, own = threadIdx.x % 32 / lanes;
  long long rows = all_rows(p), step = (long long)gridDim.x * blockDim.x / lanes;
  long long first =
      ((long long)blockIdx.x * blockDim.x + threadIdx.x / 32 * 32) / lanes;
  dil_place at = place_of(p, first + own < rows ? first + own : 0), apart = {};
  if (!is_packed(p)) apart = place_of(p, step);
  apart.h -= p.head;
#pragma unroll 1
  for (; first < rows; first += step) {
    long long row = first + own;
    bool there = row < rows && at.b >= 0;
    float sum = there && g.o ? dot_output<UNIT, O>(g, at, lane) : 0;
#pragma unroll
    for (int away = lanes / 2; away; away >>= 1)
      sum += __shfl_xor_sync(0xffffffffu, sum, away);
    if (there && lane == 0) put_facts(g, at, row, sum);
    if (row + step < rows) at = place_behind(p, at, apart, row + step);
  }
}

extern "C" __global__ void __launch_bounds__(256, DIL_FACT_BLOCKS)
dil_delta(const __grid_constant__ dil_gradient_params g) {
  if (g.only_if && !*g.only_if) return;
  if (g.o_wide) return make_facts<1, float>(g);
  switch (output_unit(g)) {
  case 8: return make_facts<VALUE_DIM % 8 ? 1 : 8, element>(g);
  case 4: return make_facts<VALUE_DIM % 4 ? 1 : 4, element>(g);
  default: return make_facts<1, element>(g);
  }
}

/* Whether groups of four elements of `rounded` stand where one store writes them. */
DIL_INLINE bool rounds_four(const dil_gradient_params &g) {
  const dil_gradient &to = g.rounded;
  long long steps = to.stride[0] | to.stride[1] | to.stride[2] | g.sum_size;
  return !to.wide && steps % 4 == 0 &&
         (unsigned long long)to.data % sizeof(four_elements) == 0;
}

/* Elements d to d + SIZE - 1 of a row. */
template <int SIZE>
DIL_INLINE void round_elements(const dil_gradient_params &g, long long row,
                               int d) {
  int h, n;
  long long b = divide(divide(row, g.sum_heads, &h), g.sum_rows, &n);
  const float *sums = g.sums + row * g.sum_size + d;
  long long from = b * g.rounded.stride[0];
  if (SIZE == 1) return put_element(g.rounded, from, n, h, d, *sums);
  float4 x = *(const float4 *)sums;
  long long at = from + n * g.rounded.stride[1] + h * g.rounded.stride[2] + d;
  *(four_elements *)((element *)g.rounded.data + at) = {
      {narrow(x.x), narrow(x.y), narrow(x.z), narrow(x.w)}};
}

template <int SIZE> DIL_INLINE void round_rows(const dil_gradient_params &g) {
  long long rows = (long long)g.of.batches * g.sum_rows * g.sum_heads;
  int units = g.sum_size / SIZE, unit;
  long long step = (long long)gridDim.x * blockDim.x;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i < rows * units; i += step) {
    long long row = divide(i, units, &unit);
    round_elements<SIZE>(g, row, unit * SIZE);
  }
}

extern "C" __global__ void
dil_round(const __grid_constant__ dil_gradient_params g) {
  if (g.only_if && !*g.only_if) return;
  if (rounds_four(g)) round_rows<4>(g);
  else round_rows<1>(g);
}

/* Rows of `rounded` become 0: all, or those that no document of a packed call has,
 * of queries or of keys. */
extern "C" __global__ void
dil_clear(const __grid_constant__ dil_gradient_params g) {
  const dil_params &p = g.of;
  if (g.only_if && !*g.only_if) return;
  const int *offsets = g.sum_keys ? p.offsets_k : p.offsets_q;
  long long first = 0, end = (long long)g.sum_rows * g.sum_heads;
  if (is_packed(p))
    first = first_of_nobody(offsets, p.batches, g.sum_rows,
                            g.sum_keys ? p.M : p.rows);
  else end *= p.batches;
  long long step = (long long)gridDim.x * blockDim.x / 32;
  long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
#pragma unroll 1
  for (row += first * g.sum_heads; row < end; row += step) {
    int h, n;
    long long b = divide(divide(row, g.sum_heads, &h), g.sum_rows, &n);
#pragma unroll 1
    for (int d = threadIdx.x % 32; d < g.sum_size; d += 32)
      put_element(g.rounded, b * g.rounded.stride[0], n, h, d, 0.0f);
  }
}
#endif
