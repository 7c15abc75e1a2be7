/* key_list.cuh - the keys of lists, sorted and once each, for passes whose branches
 * all see one list (LISTED). In: the table of keys that a list stands for. Out: the
 * memory behind the table, a line for each of its rows: how many keys there are,
 * then the keys. Gradients of keys hold the keys that any query head of a K/V head
 * sees. Where heads have lists of their own, each K/V head has such a line, too
 * (DIL_GROUP_LISTS), and marks of its keys before these lines. */
#ifndef DIL_TEMPLATES_SHARED_KEY_LIST_H
#define DIL_TEMPLATES_SHARED_KEY_LIST_H
#include "templates/shared/plan.cuh"

#ifndef LISTED
#define LISTED 0 /* 1: some pass sees the keys of a list */
#endif
#define LISTED_COLUMNS (LISTED && !HOLDS_KEYS)
#define LISTED_ROWS (LISTED && HOLDS_KEYS)

#if LISTED
enum { LIST_HEADS = HEADS / KV_HEADS }; /* query heads of a K/V head */

DIL_INLINE long long list_bytes(long long bytes) {
  return (bytes + 255) / 256 * 256;
}

/* Rows of a table of keys: batch rows by heads. */
DIL_INLINE long long list_rows(const dil_params &p, int made) {
  long long rows = 1;
#pragma unroll
  for (int axis = 0; axis < 3; axis++)
    if (axis < dil_inputs[made].rank - 1) rows *= p.input[made].dim[axis];
  return rows;
}

/* The keys of a row of a table, and the most that a list of it has. */
DIL_INLINE long long list_keys(const dil_params &p, int made) {
  return p.input[made].dim[dil_inputs[made].rank - 1];
}
DIL_INLINE long long list_length(const dil_params &p, int made) {
  return p.input[dil_inputs[made].rows].dim[dil_inputs[made].rank - 1];
}

DIL_INLINE char *behind_table(const dil_params &p, int made) {
  return (char *)p.input[made].data +
         list_bytes(list_rows(p, made) * list_keys(p, made));
}

DIL_INLINE int *key_list_row(const dil_params &p, int made, long long row) {
  return (int *)behind_table(p, made) + row * (list_length(p, made) + 1);
}

/* Whether K/V heads have lines of their own. */
DIL_INLINE bool has_group_lists(const dil_params &p, int made) {
  return LIST_HEADS > 1 && dil_inputs[made].rank > 1 &&
         p.flags & DIL_GROUP_LISTS;
}
/* The marks of a K/V head's keys, and its line. `row` counts K/V heads. */
DIL_INLINE unsigned char *group_marks(const dil_params &p, int made,
                                      long long row) {
  long long lists = list_rows(p, made) * (list_length(p, made) + 1) * 4;
  return (unsigned char *)behind_table(p, made) + list_bytes(lists) +
         row * list_keys(p, made);
}
DIL_INLINE int *group_list(const dil_params &p, int made, long long row) {
  long long rows = list_rows(p, made) / LIST_HEADS, keys = list_keys(p, made);
  long long most = list_length(p, made) * LIST_HEADS;
  int *first = (int *)(group_marks(p, made, 0) + list_bytes(rows * keys));
  return first + row * ((most < keys ? most : keys) + 1);
}

/* Whether a pass walks the list of a table. */
DIL_INLINE bool is_walked(int made) {
  bool some = false;
#pragma unroll 1
  for (int pass = 0; pass < PASSES; pass++)
    some = some || PASS(pass).list == made;
  return some;
}

/* Writes the keys that a row of bytes marks. The whole warp comes here. */
DIL_INLINE void sort_keys(const unsigned char *marks, long long count, int *to) {
  int lane = threadIdx.x & 31, found = 0;
#pragma unroll 8
  for (long long k = 0; k < count; k += 32) {
    bool held = k + lane < count && marks[k + lane];
    unsigned all = __ballot_sync(0xffffffffu, held);
    if (held) to[1 + found + __popc(all & ((1u << lane) - 1))] = (int)k + lane;
    found += __popc(all);
  }
  if (lane == 0) to[0] = found;
}

/* How many of a line's keys are below `end`: they rise. A call without keys has
 * left the line as it was. */
DIL_INLINE int keys_below(const int *line, int end) {
  int low = 0, high = end > 0 ? line[0] : 0;
#pragma unroll 1
  while (low < high) {
    int middle = (low + high) / 2;
    if (line[1 + middle] < end) low = middle + 1;
    else high = middle;
  }
  return low;
}
#endif

#endif
