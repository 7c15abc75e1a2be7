/* general.cu - the kernel for everything: any head_dim up to 256, any strides,
 * any plan, sm_80 and up, by mma.sync. One block a tile of rows; its keys are
 * walked branch by branch with one running softmax (design: one pass). K of
 * the next tile travels while this one's scores are turned into weights, V
 * while they are made. Correct for all; hopper.cu is the fast one.
 *
 *   dil_pass   one pass of the plan, or one of its splits over keys
 *   dil_merge  the splits of a row, in order, into its end
 *   dil_bounds bounds of the inputs that masks read (bounds.cuh)
 *   dil_begin  an empty state for the rows that several passes touch
 *   dil_end    that state rounded once to o; heads that nobody serves get 0 */
#include "plan.cuh"
#include "bounds.cuh"
#include "element.cuh"
#include "epilogue.cuh"
#include "score.cuh"
#include "softmax.cuh"

#ifndef WARPS
#define WARPS 4
#endif
#ifndef TILE_KEYS
#define TILE_KEYS 64 /* at most 64: bits of a thread */
#endif
#ifndef BLOCKS
#define BLOCKS 1 /* of a processor, at least: what registers must allow */
#endif
#define THREADS (32 * WARPS)
#define TILE_ROWS (16 * WARPS)
#define DEPTH (ELEMENT ? 16 : 8) /* of one product */
#define WIDTH_K ((HEAD_DIM + DEPTH - 1) / DEPTH * DEPTH)
#define WIDTH_V ((VALUE_DIM + DEPTH - 1) / DEPTH * DEPTH)
/* An odd number of 16-byte pieces: neither ldmatrix nor plain loads collide. */
#define PITCH_K (WIDTH_K * ELEMENT_BYTES + 16)
#define PITCH_V (WIDTH_V * ELEMENT_BYTES + 16)
#define SCORE_TILES (TILE_KEYS / 8)
#define VALUE_TILES (WIDTH_V / 8)
#define HOLD_Q (ELEMENT && WIDTH_K <= 64) /* queries stay in registers */

/* Shared memory: [Q][K][V][flags of bad value rows]. */
#define SHARED_K (TILE_ROWS * PITCH_K)
#define SHARED_V (SHARED_K + TILE_KEYS * PITCH_K)
#define SHARED_BAD (SHARED_V + TILE_KEYS * PITCH_V)
#define SHARED_BYTES (SHARED_BAD + TILE_KEYS)

extern __shared__ __align__(16) char shared[];

#include "general_load.cuh"

/* ---- products ------------------------------------------------------------ */

#if ELEMENT
typedef struct query_part {
  unsigned x[4];
} query_part;
DIL_INLINE void load_query_part(query_part &q, int kk) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int row = 16 * warp + (lane >> 3 & 1) * 8 + (lane & 7);
  load_matrices(q.x, shared_address(shared + row * PITCH_K +
                                    (16 * kk + (lane >> 4) * 8) * 2));
}

/* s = Q K^T */
DIL_INLINE void make_scores(const query_part *held,
                            float (&s)[SCORE_TILES][4]) {
  int lane = threadIdx.x & 31;
  int row = (lane >> 4) * 8 + (lane & 7);
  unsigned keys = shared_address(shared + SHARED_K + row * PITCH_K +
                                 (lane >> 3 & 1) * 16);
#pragma unroll
  for (int g = 0; g < SCORE_TILES; g++)
    s[g][0] = s[g][1] = s[g][2] = s[g][3] = 0;
#pragma unroll
  for (int kk = 0; kk < WIDTH_K / 16; kk++) {
    query_part q;
    if (HOLD_Q) q = held[kk];
    else load_query_part(q, kk);
#pragma unroll
    for (int g = 0; g < SCORE_TILES; g += 2) {
      unsigned b[4];
      load_matrices(b, keys + 8 * g * PITCH_K + 32 * kk);
      multiply_16(s[g], q.x, b[0], b[1]);
      multiply_16(s[g + 1], q.x, b[2], b[3]);
    }
  }
}

/* o += P V */
DIL_INLINE void add_values(const float (&w)[SCORE_TILES][4],
                           float (&o)[VALUE_TILES][4]) {
  int lane = threadIdx.x & 31;
  int row = (lane >> 3 & 1) * 8 + (lane & 7);
  unsigned values = shared_address(shared + SHARED_V + row * PITCH_V +
                                   (lane >> 4) * 16);
#pragma unroll
  for (int kk = 0; kk < TILE_KEYS / 16; kk++) {
    unsigned a[4] = {pack_pair(w[2 * kk][0], w[2 * kk][1]),
                     pack_pair(w[2 * kk][2], w[2 * kk][3]),
                     pack_pair(w[2 * kk + 1][0], w[2 * kk + 1][1]),
                     pack_pair(w[2 * kk + 1][2], w[2 * kk + 1][3])};
#pragma unroll
    for (int g = 0; g < VALUE_TILES; g += 2) {
      unsigned b[4];
      load_matrices_turned(b, values + 16 * kk * PITCH_V + 16 * g);
      multiply_16(o[g], a, b[0], b[1]);
      multiply_16(o[g + 1], a, b[2], b[3]);
    }
  }
}
#else
typedef struct query_part {
  two_parts x[4];
} query_part;
DIL_INLINE void load_query_part(query_part &q, int kk) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const char *from = shared + (16 * warp + lane / 4) * PITCH_K +
                     (8 * kk + lane % 4) * 4;
  q.x[0] = split_tf32(*(const float *)from);
  q.x[1] = split_tf32(*(const float *)(from + 8 * PITCH_K));
  q.x[2] = split_tf32(*(const float *)(from + 16));
  q.x[3] = split_tf32(*(const float *)(from + 8 * PITCH_K + 16));
}

/* s = Q K^T */
DIL_INLINE void make_scores(const query_part *, float (&s)[SCORE_TILES][4]) {
  int lane = threadIdx.x & 31;
  const char *keys = shared + SHARED_K + lane / 4 * PITCH_K + lane % 4 * 4;
#pragma unroll
  for (int g = 0; g < SCORE_TILES; g++)
    s[g][0] = s[g][1] = s[g][2] = s[g][3] = 0;
#pragma unroll 4
  for (int kk = 0; kk < WIDTH_K / 8; kk++) {
    query_part q;
    load_query_part(q, kk);
#pragma unroll
    for (int g = 0; g < SCORE_TILES; g++) {
      const char *from = keys + 8 * g * PITCH_K + 32 * kk;
      multiply_8(s[g], q.x, split_tf32(*(const float *)from),
                 split_tf32(*(const float *)(from + 16)));
    }
  }
}

/* o += P V. The order of a tile's keys is free: a thread's columns 2c, 2c + 1
 * are slots c and c + 4 of the product. Each tile is summed from zero, since
 * the tensor cores cut where f32 addition rounds. */
DIL_INLINE void add_values(const float (&w)[SCORE_TILES][4],
                           float (&o)[VALUE_TILES][4]) {
  int lane = threadIdx.x & 31;
  const char *values = shared + SHARED_V + lane % 4 * 2 * PITCH_V + lane / 4 * 4;
#pragma unroll
  for (int g = 0; g < VALUE_TILES; g++) {
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int kk = 0; kk < SCORE_TILES; kk++) {
      two_parts a[4] = {split_tf32(w[kk][0]), split_tf32(w[kk][2]),
                        split_tf32(w[kk][1]), split_tf32(w[kk][3])};
      const char *from = values + 8 * kk * PITCH_V + 32 * g;
      multiply_8(sum, a, split_tf32(*(const float *)from),
                 split_tf32(*(const float *)(from + PITCH_V)));
    }
#pragma unroll
    for (int e = 0; e < 4; e++) o[g][e] += sum[e];
  }
}
#endif

/* ---- values that are not finite ------------------------------------------ */

/* NaN and Inf have every bit of the exponent. */
#define EXPONENT (ELEMENT == 2 ? 0x7c00u : ELEMENT == 1 ? 0x7f80u : 0u)
DIL_INLINE bool is_bad(unsigned word) {
  unsigned high = ELEMENT ? EXPONENT << 16 : 0x7f800000u;
  return (word & high) == high || (ELEMENT && (word & EXPONENT) == EXPONENT);
}

/* A piece of 16 bytes; padding is zero. */
DIL_INLINE bool is_bad_piece(const char *at) {
  uint4 x = *(const uint4 *)at;
  return is_bad(x.x) || is_bad(x.y) || is_bad(x.z) || is_bad(x.w);
}

/* A partial tile must not meet 0 * NaN: rows with NaN or Inf are taken out of
 * the product and given to the pairs that are kept, one by one. */
DIL_INLINE void take_bad_values(const float (&w)[SCORE_TILES][4],
                                float (&o)[VALUE_TILES][4]) {
  char *bad = shared + SHARED_BAD;
  constexpr int pieces = WIDTH_V * ELEMENT_BYTES / 16;
  bool found = false;
#pragma unroll 4
  for (int i = threadIdx.x; i < TILE_KEYS * pieces; i += THREADS)
    found |= is_bad_piece(shared + SHARED_V + i / pieces * PITCH_V +
                          i % pieces * 16);
  if (!__syncthreads_or(found)) return;
#pragma unroll 1
  for (int i = threadIdx.x; i < TILE_KEYS; i += THREADS) {
    bad[i] = 0;
#pragma unroll 1
    for (int k = 0; k < pieces; k++)
      if (is_bad_piece(shared + SHARED_V + i * PITCH_V + 16 * k)) bad[i] = 1;
  }
  __syncthreads();
  int lane = threadIdx.x & 31;
#pragma unroll 1
  for (int key = 0; key < TILE_KEYS; key++) {
    if (!bad[key]) continue;
    unsigned x = 0, y = 0; /* the weights of the key, in this lane or not */
#pragma unroll
    for (int g = 0; g < SCORE_TILES; g++) {
      unsigned here = key >> 3 == g ? 0xffffffffu : 0;
      x |= here & __float_as_uint(key & 1 ? w[g][1] : w[g][0]);
      y |= here & __float_as_uint(key & 1 ? w[g][3] : w[g][2]);
    }
    int owner = (lane & ~3) | (key >> 1 & 3);
    float first = __uint_as_float(__shfl_sync(0xffffffffu, x, owner));
    float second = __uint_as_float(__shfl_sync(0xffffffffu, y, owner));
    const element *row = (const element *)(shared + SHARED_V + key * PITCH_V);
#pragma unroll
    for (int e = 0; e < 4 * VALUE_TILES; e++) {
      float weight = e & 2 ? second : first;
      if (weight != 0)
        o[e >> 2][e & 3] += weight * widen(row[column_of(e)]);
      }
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < TILE_KEYS * VALUE_DIM; i += THREADS)
    if (bad[i / VALUE_DIM])
      ((element *)(shared + SHARED_V + i / VALUE_DIM * PITCH_V))
          [i % VALUE_DIM] = 0;
  __syncthreads();
}

/* ---- the keys of a tile, in order ---------------------------------------- */

struct dil_cursor {
  unsigned long long rest; /* branches not begun */
  dil_keys keys;
  int n;                   /* the next tile of keys */
  int skip, take;          /* of all tiles: those of this split */
};

DIL_INLINE dil_cursor cursor_begin(const dil_params &p, const dil_tile &t) {
  dil_cursor c = {t.branches, {0, 0, 1, 0, 0}, 0, 0, 0x7fffffff};
  if (p.splits == 1) return c;
  long long all = 0;
  for (unsigned long long rest = t.branches; rest; rest &= rest - 1) {
    dil_keys k = keys_of(t, __ffsll((long long)rest) - 1);
    if (k.end > k.first) all += (k.end - k.first - 1) / TILE_KEYS + 1;
  }
  c.skip = (int)(all * t.split / p.splits);
  c.take = (int)(all * (t.split + 1) / p.splits) - c.skip;
  return c;
}

DIL_INLINE bool cursor_step(const dil_tile &t, dil_cursor &c, dil_visit &v) {
  for (;;) {
    while (c.n >= c.keys.end) {
      if (!c.rest) return false;
      c.keys = keys_of(t, __ffsll((long long)c.rest) - 1);
      c.rest &= c.rest - 1;
      c.n = c.keys.first;
    }
    v.keys = c.keys;
    v.n = c.n;
    c.n += TILE_KEYS;
    if (c.skip > 0) {
      c.skip--;
      continue;
    }
    return c.take-- > 0;
  }
}

/* After an empty tile: over LEAP tiles at once while they are empty too. */
DIL_INLINE void leap(const dil_params &p, const dil_tile &t, dil_cursor &c) {
  enum { LEAP = 16 * TILE_KEYS };
  while (p.splits == 1 && c.n < c.keys.end &&
         cover_of(p, t, c.keys, c.n, LEAP) == DIL_EMPTY)
    c.n += LEAP;
}

/* The next tile that keeps some pair, with this thread's bits of it. */
DIL_INLINE bool next_visit(const dil_params &p, const dil_tile &t,
                           const dil_rows &rows, dil_cursor &c, dil_visit &v,
                           unsigned &bits, bool &full) {
  while (cursor_step(t, c, v)) {
    int cover = cover_of(p, t, v.keys, v.n, TILE_KEYS);
    full = cover == DIL_FULL;
    bits = 0xffffffffu;
    if (full) return true;
    if (cover == DIL_EMPTY) {
      leap(p, t, c);
      continue;
    }
    if (is_window(t, v.keys.branch)) {
      bits = window_bits(t, rows, v);
      return true;
    }
    bits = keep_bits<TILE_KEYS>(p, t, rows, v);
    if (__syncthreads_or(bits != 0)) return true;
  }
  return false;
}

/* ---- one tile ------------------------------------------------------------ */

DIL_INLINE dil_rows rows_of(const dil_params &p, const dil_tile &t) {
  dil_rows rows;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int row = 16 * (threadIdx.x >> 5) + (threadIdx.x & 31) / 4 + 8 * r;
    int n = row / p.pack;
    rows.valid[r] = n < t.count;
    rows.t[r] = rows.valid[r] ? t.low + n * t.step : t.low;
    rows.n[r] = rows.t[r] - t.origin;
    rows.h[r] = t.head + row % p.pack;
  }
  return rows;
}

/* An empty state, or what an earlier pass left. */
DIL_INLINE void begin_rows(const dil_params &p, const dil_tile &t,
                           const dil_rows &rows, dil_state &state,
                           float (&o)[VALUE_TILES][4]) {
#pragma unroll
  for (int e = 0; e < 4 * VALUE_TILES; e++) o[e >> 2][e & 3] = 0;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    state.m[r] = DIL_NONE;
    state.l[r] = 0;
    if (t.split || !rows.valid[r] || finish_of(rows.h[r]) != FINISH_RESUME)
      continue;
    long long row = row_number(p, t.b, rows.n[r], rows.h[r]);
    float lse = p.state_lse[row];
    if (lse == DIL_NONE) continue;
    state.m[r] = lse * DIL_LOG2_E;
    state.l[r] = (threadIdx.x & 3) == 0 ? 1.0f : 0.0f;
#pragma unroll
    for (int e = 0; e < 4 * VALUE_TILES; e++)
      if ((e >> 1 & 1) == r && column_of(e) < VALUE_DIM)
        o[e >> 2][e & 3] = p.state_o[row * VALUE_DIM + column_of(e)];
  }
}

DIL_INLINE void end_rows(const dil_params &p, const dil_tile &t,
                         const dil_rows &rows, dil_state &state,
                         float (&o)[VALUE_TILES][4]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float l = row_sum(state.l[r]), m = state.m[r];
    if (!rows.valid[r]) continue;
    int n = rows.n[r], h = rows.h[r], how = finish_of(h);
    bool leads = (threadIdx.x & 3) == 0;
    float factor = row_factor(p, l);
    float *part = nullptr;
    if (p.splits > 1) {
      long long count = (long long)p.B * p.N * HEADS;
      part = p.partial + (t.split * count + row_number(p, t.b, n, h)) *
                             (2 + VALUE_DIM);
      if (leads) part[0] = m;
      if (leads) part[1] = l;
    } else if (leads) {
      finish_lse(p, how, t.b, n, h, row_lse(m, l));
    }
#pragma unroll
    for (int e = 0; e < 4 * VALUE_TILES; e++) {
      int d = column_of(e);
      if ((e >> 1 & 1) != r || d >= VALUE_DIM) continue;
      if (part) part[2 + d] = o[e >> 2][e & 3];
      else
        finish_element(p, how, t.b, n, h, d,
                       l == 0 ? 0.0f : o[e >> 2][e & 3] * factor);
    }
  }
}

/* Scores to weights: scale, chain, predicate, softmax, dropout. */
DIL_INLINE void make_weights(const dil_params &p, const dil_tile &t,
                             const dil_rows &rows, const dil_visit &v,
                             unsigned bits, bool full,
                             float (&s)[SCORE_TILES][4], dil_state &state,
                             float (&alpha)[2]) {
  bool natural = SCORED || !(p.scale > 0);
  if (natural) rewrite_scores<SCORE_TILES>(p, t, rows, v, s);
  if (!full) {
#pragma unroll
    for (int e = 0; e < 4 * SCORE_TILES; e++)
      if (!(bits >> e & 1)) s[e >> 2][e & 3] = DIL_NONE;
  }
  softmax_step<SCORE_TILES>(state, s,
                            natural ? DIL_LOG2_E : p.scale * DIL_LOG2_E,
                            alpha);
#if DROPOUT
  if (p.flags & DIL_DROP) {
    unsigned gone = drop_bits<TILE_KEYS>(p, t, rows, v);
#pragma unroll
    for (int e = 0; e < 4 * SCORE_TILES; e++)
      s[e >> 2][e & 3] = gone >> e & 1 ? 0.0f
                                       : s[e >> 2][e & 3] * DROPOUT_KEPT;
  }
#endif
}

DIL_INLINE void run_tile(const dil_params &p, const dil_tile &t) {
  dil_rows rows = rows_of(p, t);
  dil_state state;
  float o[VALUE_TILES][4];
  dil_cursor cursor = cursor_begin(p, t);
  dil_visit v;
  unsigned bits = 0;
  bool full = false;
  begin_rows(p, t, rows, state, o);
  load_queries(p, t);
  bool more = next_visit(p, t, rows, cursor, v, bits, full);
  if (more) load_keys(p, t, v);
  copy_commit();
  copy_wait<0>();
  __syncthreads();
#if HOLD_Q
  query_part held[WIDTH_K / 16];
#pragma unroll
  for (int kk = 0; kk < WIDTH_K / 16; kk++) load_query_part(held[kk], kk);
#else
  const query_part *held = nullptr;
#endif
  while (more) {
    float s[SCORE_TILES][4], alpha[2];
    load_values(p, t, v);
    copy_commit();
    make_scores(held, s);
    __syncthreads(); /* K is free */
    dil_visit next;
    unsigned next_bits;
    bool next_full;
    more = next_visit(p, t, rows, cursor, next, next_bits, next_full);
    if (more) load_keys(p, t, next);
    copy_commit();
    make_weights(p, t, rows, v, bits, full, s, state, alpha);
#pragma unroll
    for (int e = 0; e < 4 * VALUE_TILES; e++)
      o[e >> 2][e & 3] *= alpha[e >> 1 & 1];
    copy_wait<1>();
    __syncthreads(); /* V is here */
    if (!full) take_bad_values(s, o);
    add_values(s, o);
    copy_wait<0>();
    __syncthreads(); /* V is free, K is here */
    v = next;
    bits = next_bits;
    full = next_full;
  }
  end_rows(p, t, rows, state, o);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    dil_pass(const __grid_constant__ dil_params p) {
  clear_padding();
  __syncthreads();
  for (long long item = blockIdx.x; item < p.items; item += gridDim.x) {
    dil_tile t = find_tile(p, item, TILE_ROWS);
    if (t.count) run_tile(p, t);
    __syncthreads();
  }
}

/* ---- rows whose state is in memory --------------------------------------- */

/* Row number `index` of [B, N, H]. */
struct dil_place {
  int b, n, h;
};
DIL_INLINE dil_place place_of(const dil_params &p, long long index) {
  dil_place at;
  at.h = (int)(index % HEADS);
  at.n = (int)(index / HEADS % p.N);
  at.b = (int)(index / HEADS / p.N);
  return at;
}

#define WARP_ROWS(p, index)                                                   \
  for (long long index = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / \
                         32;                                                  \
       index < (long long)(p).B * (p).N * HEADS;                              \
       index += (long long)gridDim.x * blockDim.x / 32)

extern "C" __global__ void dil_merge(const __grid_constant__ dil_params p) {
  long long rows = (long long)p.B * p.N * HEADS;
  WARP_ROWS(p, index) {
    dil_place at = place_of(p, index);
    if (!pass_serves(p.pass, at.h)) continue;
    const float *part = p.partial + index * (2 + VALUE_DIM);
    float top = DIL_NONE, l = 0;
#pragma unroll 1
    for (int s = 0; s < p.splits; s++)
      top = fmaxf(top, part[s * rows * (2 + VALUE_DIM)]);
    float base = top == DIL_NONE ? 0.0f : top;
#pragma unroll 1
    for (int s = 0; s < p.splits; s++) {
      const float *one = part + s * rows * (2 + VALUE_DIM);
      l += one[1] * power_of_2(one[0] - base);
    }
    int how = finish_of(at.h);
    float factor = row_factor(p, l);
#pragma unroll 1
    for (int d = threadIdx.x % 32; d < VALUE_DIM; d += 32) {
      float sum = 0;
#pragma unroll 1
      for (int s = 0; s < p.splits; s++) {
        const float *one = part + s * rows * (2 + VALUE_DIM);
        sum += one[2 + d] * power_of_2(one[0] - base);
      }
      finish_element(p, how, at.b, at.n, at.h, d, l == 0 ? 0.0f : sum * factor);
    }
    if (threadIdx.x % 32 == 0)
      finish_lse(p, how, at.b, at.n, at.h, row_lse(top, l));
  }
}

extern "C" __global__ void dil_begin(const __grid_constant__ dil_params p) {
  WARP_ROWS(p, index) {
    if (passes_of((int)(index % HEADS)) <= 1) continue;
#pragma unroll 1
    for (int d = threadIdx.x % 32; d < VALUE_DIM; d += 32)
      p.state_o[index * VALUE_DIM + d] = 0;
    if (threadIdx.x % 32 == 0) p.state_lse[index] = DIL_NONE;
  }
}

extern "C" __global__ void dil_end(const __grid_constant__ dil_params p) {
  WARP_ROWS(p, index) {
    dil_place at = place_of(p, index);
    int passes = passes_of(at.h);
    if (passes == 1) continue;
#pragma unroll 1
    for (int d = threadIdx.x % 32; d < VALUE_DIM; d += 32)
      output_row(p, at.b, at.n, at.h)[d] =
          narrow(passes ? p.state_o[index * VALUE_DIM + d] : 0.0f);
    if (threadIdx.x % 32 == 0)
      write_lse(p, at.b, at.n, at.h, passes ? p.state_lse[index] : DIL_NONE);
  }
}
