/* listed_keys.cuh - from a tile to the keys of its list: a part of walk.cuh. In:
 * the sorted lists of key_list.cuh. Out: the keys of the tile's head and batch row.
 */
#ifndef DIL_TEMPLATES_SHARED_LISTED_KEYS_H
#define DIL_TEMPLATES_SHARED_LISTED_KEYS_H

#if LISTED
/* The keys of the tile's list that its batch row has. */
DIL_INLINE dil_keys listed_keys(const dil_params &p, const dil_tile &t,
                                int branch) {
  const dil_device_input &in = p.input[LISTED_TABLE];
  int rank = dil_inputs[LISTED_TABLE].rank, b = t.b + p.batch;
  long long row = rank > 1 ? t.head : 0;
  if (rank > 2) row += b * in.dim[rank - 2];
  bool there = (rank < 2 || t.head < in.dim[rank - 2]) &&
               (rank < 3 || b < in.dim[rank - 3]);
  const int *list = key_list_row(p, there ? row : 0);
  int low = 0, high = there ? list[0] : 0;
#pragma unroll 1
  while (low < high) {
    int middle = (low + high) / 2;
    if (list[1 + middle] < t.keys) low = middle + 1;
    else high = middle;
  }
  return {branch, 0, 1, 0, low, list + 1};
}
#endif

#endif
