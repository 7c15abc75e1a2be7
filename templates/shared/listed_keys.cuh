/* listed_keys.cuh - the keys that a tile of query rows walks, by arithmetic or by a
 * list, and the rows of a tile that holds listed keys: a part of walk.cuh. In: the
 * sorted lists of key_list.cuh. */
#ifndef DIL_TEMPLATES_SHARED_LISTED_KEYS_H
#define DIL_TEMPLATES_SHARED_LISTED_KEYS_H

/* Keys start + n * step for first <= n < end: all that the tile's rows see of
 * a branch, and possibly more where masks and windows cut. */
struct dil_keys {
  int branch;
  int start, step;
  int first, end;
#if LISTED_COLUMNS
  const int *list; /* not NULL: key n stands at list[n] */
#endif
};

/* The position of key n; of those behind the end, the last one's. */
DIL_INLINE int key_position(const dil_keys &k, int n) {
#if LISTED_COLUMNS
  if (k.list) return k.list[least(n, k.end - 1)];
#endif
  return k.start + n * k.step;
}

/* The position of a tile's last row. */
DIL_INLINE long long last_position(const dil_tile &t) {
#if LISTED_ROWS
  if (t.list) return t.list[t.count - 1];
#endif
  return t.low + (long long)(t.count - 1) * t.step;
}

#if LISTED_COLUMNS
/* The keys of the tile's list that its batch row has. */
DIL_INLINE dil_keys listed_keys(const dil_params &p, const dil_tile &t,
                                int branch, int made) {
  const dil_device_input &in = p.input[made];
  int rank = dil_inputs[made].rank, b = t.b + p.batch;
  long long row = rank > 1 ? t.head : 0;
  if (rank > 2) row += b * in.dim[rank - 2];
  bool there = (rank < 2 || t.head < in.dim[rank - 2]) &&
               (rank < 3 || b < in.dim[rank - 3]);
  const int *line = key_list_row(p, made, there ? row : 0);
  return {branch, 0, 1, 0, there ? keys_below(line, t.keys) : 0, line + 1};
}
#endif

#if LISTED_ROWS
/* The tile's rows are keys number block * rows and on of its list. */
DIL_INLINE void take_listed_rows(const dil_params &p, dil_tile &t, int block,
                                 int rows) {
  int made = PASS(p.pass).list, rank = dil_inputs[made].rank;
  bool groups = has_group_lists(p, made);
  int heads = groups ? KV_HEADS : HEADS, b = t.b + p.batch;
  long long row = rank > 1 ? t.head / (groups ? LIST_HEADS : 1) : 0;
  if (rank > 2) row += (long long)b * heads;
  const int *line = groups ? group_list(p, made, row) : key_list_row(p, made, row);
  int from = block * rows, count = keys_below(line, t.keys) - from;
  t.count = t.written = count < 0 ? 0 : count < rows ? count : rows;
  t.list = line + 1 + from;
  t.step = 1;
  if (!t.count) return;
  t.low = t.list[0];
  t.branches = class_of(p, t.head, t.low);
}
#endif

#endif
