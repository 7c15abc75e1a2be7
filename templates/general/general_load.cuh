/* general_load.cuh - rows of q, k and v into the shared memory of general.cu:
 * by 16-byte units in flight where they are whole, else element by element.
 * Needs the sizes that general.cu defines. */
#pragma once
#include "templates/shared/pages.cuh"

/* Row r comes from at(r), or is zeros when that is NULL. */
template <int ROWS, int WIDTH, int PITCH, class At>
DIL_INLINE void load_rows(char *to, bool whole, At at) {
  constexpr int units = WIDTH * ELEMENT_BYTES / 16;
  if (whole && units > 0) {
#pragma unroll 2
    for (int i = threadIdx.x; i < ROWS * units; i += THREADS) {
      int row = i / (units ? units : 1), unit = i % (units ? units : 1);
      const element *from = at(row);
      const char *bytes = from ? (const char *)from + 16 * unit
                               : (const char *)to; /* nothing is read */
      copy_16(shared_address(to + row * PITCH + 16 * unit), bytes,
              from != nullptr);
    }
    return;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < ROWS * WIDTH; i += THREADS) {
    const element *from = at(i / WIDTH);
    ((element *)(to + i / WIDTH * PITCH))[i % WIDTH] =
        from ? from[i % WIDTH] : (element)0;
  }
}

/* Columns that no row fills, once. */
DIL_INLINE void clear_padding() {
  constexpr int pad_k = WIDTH_K - HEAD_DIM, pad_v = WIDTH_V - VALUE_DIM;
#pragma unroll 1
  for (int i = threadIdx.x; i < (TILE_ROWS + TILE_KEYS) * pad_k; i += THREADS)
    ((element *)(shared + SHARED_Q + i / most(pad_k, 1) * PITCH_K))
        [HEAD_DIM + i % most(pad_k, 1)] = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < ROWS_V * pad_v; i += THREADS)
    ((element *)(shared + SHARED_V + i / most(pad_v, 1) * PITCH_V))
        [VALUE_DIM + i % most(pad_v, 1)] = 0;
}

/* The rows of the tile from a tensor of such rows. */
template <int WIDTH, int PITCH>
DIL_INLINE void load_tile(const dil_params &p, const dil_tile &t, char *to,
                          bool whole, const void *tensor,
                          const long long (&stride)[3]) {
  const element *from =
      (const element *)tensor + batch_place(p, t, HOLDS_KEYS, stride);
  int head = HOLDS_KEYS ? t.kv : t.head - p.head;
  load_rows<TILE_ROWS, WIDTH, PITCH>(to, whole, [&](int row) -> const element * {
    int n = row / p.pack;
    if (n >= t.count) return nullptr;
    long long at = row_at(p, t, tile_position(t, n));
    return from + at * stride[1] + (head + row % p.pack) * stride[2];
  });
}

DIL_INLINE void load_queries(const dil_params &p, const dil_tile &t) {
  load_tile<HEAD_DIM, PITCH_K>(p, t, shared + SHARED_Q, p.flags & DIL_WHOLE_Q,
                               p.q, p.q_stride);
}

#if PATCHES || LISTED_COLUMNS
/* The rows of a visit by the positions of its columns: those of a patch, or of a list,
 * follow each other at several distances. */
template <int ROWS, int WIDTH, int PITCH>
DIL_INLINE void load_columns(const dil_params &p, char *to, bool whole,
                            const element *from, int origin, long long stride,
                            const dil_visit &v) {
  load_rows<ROWS, WIDTH, PITCH>(to, whole, [&](int row) -> const element * {
    int away = column_position(v, row) - origin;
    if (SHARDS && column_step(p) > 1) away /= column_step(p);
    return v.n + row < v.keys.end ? from + away * stride : nullptr;
  });
}
#endif

/* Rows `stride` elements apart, of which the first of the tensor stands at
 * position `origin`: the rows that one thread copies follow each
 * other at one distance. */
template <int ROWS, int WIDTH, int PITCH>
DIL_INLINE void load_series(const dil_params &p, char *to, bool whole,
                            const element *from, int origin, long long stride,
                            const dil_visit &v) {
#if PATCHES
  load_columns<ROWS, WIDTH, PITCH>(p, to, whole, from, origin, stride, v);
#else
#if LISTED_COLUMNS
  if (v.keys.list) {
    load_columns<ROWS, WIDTH, PITCH>(p, to, whole, from, origin, stride, v);
    return;
  }
#endif
  constexpr int units = most_of(WIDTH * ELEMENT_BYTES / 16, 1);
  int away = v.keys.start - origin, step = v.keys.step;
  if (SHARDS && column_step(p) > 1) {
    away /= column_step(p);
    step /= column_step(p);
  }
  from += (away + (long long)v.n * step) * stride;
  stride *= step;
  int left = v.keys.end - v.n;
  if (!whole || THREADS % units) {
    load_rows<ROWS, WIDTH, PITCH>(to, whole, [&](int row) -> const element * {
      return row < left ? from + row * stride : nullptr;
    });
    return;
  }
  constexpr int together = THREADS / units;
  int row = threadIdx.x / units, unit = threadIdx.x % units;
  unsigned at = shared_address(to + row * PITCH + 16 * unit);
  const char *bytes = (const char *)(from + row * stride) + 16 * unit;
#pragma unroll
  for (int k = 0; k < ROWS; k += together) {
    if (together > ROWS && row >= ROWS) break;
    copy_16(at + k * PITCH, row + k < left ? bytes : (const char *)from,
            row + k < left);
    bytes += together * stride * ELEMENT_BYTES;
  }
#endif
}

/* Rows of a visit that stand in pages. */
template <int ROWS, int WIDTH, int PITCH>
DIL_INLINE void load_paged(const dil_params &p, const dil_tile &t,
                           const dil_visit &v, char *to, bool whole,
                           const void *pool, const long long (&stride)[3]) {
  const element *from = (const element *)pool + t.kv * stride[2];
  load_rows<ROWS, WIDTH, PITCH>(to, whole, [&](int row) -> const element * {
    int n = v.n + row;
    if (n >= v.keys.end) return nullptr;
    return page_row(p, from, t.b, key_position(v.keys, n), stride);
  });
}

DIL_INLINE void load_keys(const dil_params &p, const dil_tile &t,
                          const dil_visit &v) {
  if (is_paged(p))
    return load_paged<TILE_KEYS, HEAD_DIM, PITCH_K>(
        p, t, v, shared + SHARED_K, p.flags & DIL_WHOLE_K, p.k, p.k_stride);
  load_series<TILE_KEYS, HEAD_DIM, PITCH_K>(
      p, shared + SHARED_K, p.flags & DIL_WHOLE_K,
      (const element *)p.k + batch_place(p, t, true, p.k_stride) +
          t.kv * p.k_stride[2],
      p.key_first, p.k_stride[1], v);
}

DIL_INLINE void load_values(const dil_params &p, const dil_tile &t,
                            const dil_visit &v) {
  if (is_paged(p))
    return load_paged<TILE_KEYS, VALUE_DIM, PITCH_V>(
        p, t, v, shared + SHARED_V, p.flags & DIL_WHOLE_V, p.v, p.v_stride);
  load_series<TILE_KEYS, VALUE_DIM, PITCH_V>(
      p, shared + SHARED_V, p.flags & DIL_WHOLE_V,
      (const element *)p.v + batch_place(p, t, true, p.v_stride) +
          t.kv * p.v_stride[2],
      p.key_first, p.v_stride[1], v);
}

#if DROPOUT
/* The random words of a visit's keys, into shared memory. */
DIL_INLINE void load_words(const dil_params &p, const dil_tile &t,
                           const dil_visit &v) {
  if (!(p.flags & DIL_DROP) || p.pack != 1) return;
#pragma unroll 1
  for (int i = threadIdx.x; i < TILE_KEYS; i += THREADS)
    ((unsigned *)(shared + SHARED_WORDS))[i] = key_word(p, t, t.head, v, i);
}
#else
struct dil_row_words {};
#endif
