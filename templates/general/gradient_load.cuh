/* gradient_load.cuh - the rows of gradient.cu into shared memory: those that a
 * tile holds, those of a visit, and the facts of query rows. */
#pragma once

/* What a tile holds besides rows of HEAD_DIM: dO of query rows, V of keys. */
typedef shared_rows<SHARED_HELD, PITCH_V, VALUE_DIM, WIDTH_V> held_rows;

struct dil_facts {
  float lse, delta; /* lse in units of log2; +inf: the row has no keys */
};
#define FACTS ((dil_facts *)(shared + SHARED_FACTS))

DIL_INLINE dil_facts facts_of(const dil_gradient_params &g, int b, int n,
                              int h) {
  return ((const dil_facts *)g.facts)[row_number(g.of, b, n, h) * g.fact_states];
}

#if HOLDS_KEYS
DIL_INLINE void load_held(const dil_params &p, const dil_tile &t) {
  load_tile<HEAD_DIM, PITCH_K>(p, t, shared + SHARED_Q, p.flags & DIL_WHOLE_K,
                               p.k, p.k_stride);
  if (SCORES_MATTER)
    load_tile<VALUE_DIM, PITCH_V>(p, t, shared + SHARED_HELD,
                                  p.flags & DIL_WHOLE_V, p.v, p.v_stride);
}

DIL_INLINE void load_streamed(const dil_gradient_params &g, const dil_tile &t,
                              const dil_visit &v) {
  const dil_params &p = g.of;
  long long h = v.head - p.head;
  load_series<TILE_KEYS, HEAD_DIM, PITCH_K>(
      p, shared + SHARED_K, p.flags & DIL_WHOLE_Q,
      (const element *)p.q + batch_place(p, t, false, p.q_stride) +
          h * p.q_stride[2],
      t.origin, p.q_stride[1], v);
  load_series<TILE_KEYS, VALUE_DIM, PITCH_V>(
      p, shared + SHARED_V, p.flags & DIL_WHOLE_O,
      (const element *)p.o + batch_place(p, t, false, p.o_stride) +
          h * p.o_stride[2],
      t.origin, p.o_stride[1], v);
#pragma unroll 1
  for (int i = threadIdx.x; i < TILE_KEYS; i += THREADS)
    if (v.n + i < v.keys.end)
      FACTS[i] = facts_of(
          g, t.b, (column_position(v, i) - t.origin) / column_step(p), v.head);
    else FACTS[i] = {__int_as_float(0x7f800000), 0.0f};
}
#else
DIL_INLINE void load_held(const dil_params &p, const dil_tile &t) {
  load_queries(p, t);
  load_tile<VALUE_DIM, PITCH_V>(p, t, shared + SHARED_HELD,
                                p.flags & DIL_WHOLE_O, p.o, p.o_stride);
}

DIL_INLINE void load_streamed(const dil_gradient_params &g, const dil_tile &t,
                              const dil_visit &v) {
  load_keys(g.of, t, v);
  load_values(g.of, t, v);
}
#endif

/* The facts of the tile's own rows. */
DIL_INLINE void load_row_facts(const dil_gradient_params &g,
                               const dil_tile &t) {
  int position, h;
#pragma unroll 1
  for (int i = threadIdx.x; i < TILE_ROWS; i += THREADS)
    if (find_row(g.of, t, i, &position, &h))
      FACTS[i] = facts_of(g, t.b, row_at(g.of, t, position), h);
    else FACTS[i] = {__int_as_float(0x7f800000), 0.0f};
}
