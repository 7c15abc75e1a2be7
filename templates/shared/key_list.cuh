/* key_list.cuh - the keys of a list, sorted and once each, where a plan is one
 * branch that sees no others (LISTED). In: the table of keys that the list stands
 * for. Out: the memory behind the table, a row for each of the table's: how many
 * keys there are, then the keys. */
#ifndef DIL_TEMPLATES_SHARED_KEY_LIST_H
#define DIL_TEMPLATES_SHARED_KEY_LIST_H
#include "templates/shared/plan.cuh"

#ifndef LISTED
#define LISTED 0 /* 1: the only branch sees the keys of table LISTED_TABLE */
#endif

#if LISTED
DIL_INLINE int *key_list_row(const dil_params &p, long long row) {
  const dil_device_input &table = p.input[LISTED_TABLE];
  const dil_device_input &list = p.input[dil_inputs[LISTED_TABLE].rows];
  int last = dil_inputs[LISTED_TABLE].rank - 1;
  long long bytes = table.dim[last];
#pragma unroll
  for (int axis = 0; axis < 3; axis++)
    if (axis < last) bytes *= table.dim[axis];
  int *rows = (int *)((char *)table.data + (bytes + 255) / 256 * 256);
  return rows + row * (list.dim[last] + 1);
}

/* Writes the keys that a row of the table marks. The whole warp comes here. */
DIL_INLINE void sort_keys(const dil_params &p, const unsigned char *marks,
                          long long count, long long row) {
  int lane = threadIdx.x & 31, found = 0;
  int *to = key_list_row(p, row);
#pragma unroll 8
  for (long long k = 0; k < count; k += 32) {
    bool held = k + lane < count && marks[k + lane];
    unsigned all = __ballot_sync(0xffffffffu, held);
    if (held) to[1 + found + __popc(all & ((1u << lane) - 1))] = (int)k + lane;
    found += __popc(all);
  }
  if (lane == 0) to[0] = found;
}
#endif

#endif
