/* lists.cuh - lists of blocks, or of keys, become the tables that they stand for,
 * once a call. A warp makes one row of a table: a query block of a batch row and
 * head, or all keys of a head. Entries may stand in any order and any number of
 * times; those outside the table are left out.
 *
 * Gradients of keys read tables of bits turned round (cover.cuh). dil_turn makes
 * these of the others, 32 x 32 bits a warp. */
#ifndef DIL_TEMPLATES_SHARED_LISTS_H
#define DIL_TEMPLATES_SHARED_LISTS_H
#include "templates/shared/bounds.cuh"
#include "templates/shared/key_list.cuh"

/* Marks the entries, first, first + 1 .. end - 1, that are numbers below `count`.
 * One lane writes what several lanes read, since lists may say a thing twice. The
 * whole warp comes here. */
DIL_INLINE void mark_entries(unsigned char *to, const int *entry, long long stride,
                             long long first, long long end, long long count) {
  int lane = threadIdx.x & 31;
#pragma unroll 1
  for (long long from = first; from < end; from += 32) {
    int number = from + lane < end ? entry[(from + lane) * stride] : -1;
    unsigned same = __match_any_sync(0xffffffffu, number);
    if (number >= 0 && number < count && __ffs((int)same) - 1 == lane)
      to[number] = 1;
    __syncwarp();
  }
}

#if LISTED
/* Sorts the keys that any head of a K/V head lists. */
DIL_INLINE void sort_group(const dil_params &p, int made, long long row) {
  const dil_device_input &list = p.input[dil_inputs[made].rows];
  int last = dil_inputs[made].rank - 1;
  long long keys = list_keys(p, made);
  unsigned char *marks = group_marks(p, made, row);
  for (long long k = threadIdx.x & 31; k < keys; k += 32) marks[k] = 0;
  __syncwarp();
#pragma unroll 1
  for (long long h = row * LIST_HEADS; h < (row + 1) * LIST_HEADS; h++)
    mark_entries(marks, (const int *)list.data + row_offset(list, last + 1, h),
                 list.stride[last], 0, list.dim[last], keys);
  sort_keys(marks, keys, group_list(p, made, row));
}
#endif

/* Row `row` of all rows of a table of keys. */
DIL_INLINE void key_table_row(const dil_params &p, int made, long long row) {
  const dil_device_input &table = p.input[made];
  const dil_device_input &list = p.input[dil_inputs[made].rows];
  int last = dil_inputs[made].rank - 1, lane = threadIdx.x & 31;
  const int *entry = (const int *)list.data + row_offset(list, last + 1, row);
  unsigned char *to = (unsigned char *)table.data + row * table.dim[last];
  for (long long k = lane; k < table.dim[last]; k += 32) to[k] = 0;
  __syncwarp();
  mark_entries(to, entry, list.stride[last], 0, list.dim[last], table.dim[last]);
#if LISTED
  if (!is_walked(made)) return;
  sort_keys(to, table.dim[last], key_list_row(p, made, row));
  if (has_group_lists(p, made) && row % LIST_HEADS == 0)
    sort_group(p, made, row / LIST_HEADS);
#endif
}

/* Row `row` of all rows of a table, a bit for each block of keys. */
DIL_INLINE void list_row(const dil_params &p, int made, long long row) {
  if (dil_inputs[made].keys) {
    key_table_row(p, made, row);
    return;
  }
  const dil_device_input &table = p.input[made];
  int rank = dil_inputs[made].rank, lane = threadIdx.x & 31;
  const dil_device_input &rows = p.input[dil_inputs[made].rows];
  const dil_device_input &cols = p.input[dil_inputs[made].cols];
  long long queries = table.dim[rank - 2], keys = table.dim[rank - 1];
  long long line = row / queries, block = row % queries;
  const int *start = (const int *)rows.data + row_offset(rows, rank - 1, line);
  const int *entry = (const int *)cols.data + row_offset(cols, rank - 1, line);
  long long stride = cols.stride[rank - 2], apart = rows.stride[rank - 2];
  long long first = start[block * apart], end = start[(block + 1) * apart];
  if (first < 0) first = 0;
  if (end > cols.dim[rank - 2]) end = cols.dim[rank - 2];
  long long words = table.stride[rank - 2] / 32;
  unsigned *to = (unsigned *)table.data + row * words;
  for (long long k = lane; k < words; k += 32) to[k] = 0;
  __syncwarp();
  for (long long e = first + lane; e < end; e += 32) {
    int key = entry[e * stride];
    if (key >= 0 && key < keys) atomicOr(&to[key / 32], 1u << key % 32);
  }
}

extern "C" __global__ void dil_lists(const __grid_constant__ dil_params p) {
  if (p.only_if && !*p.only_if) return;
  long long warp = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
#pragma unroll 1
  for (int i = 0; i < INPUTS; i++) {
    int rank = dil_inputs[i].rank;
    if (dil_inputs[i].rows == dil_inputs[i].cols && !dil_inputs[i].keys)
      continue;
    bool chosen = dil_inputs[i].rows >= INPUTS - MADE_TABLES;
    if (chosen && p.flags & DIL_OWN_LISTS) continue;
    long long count = p.input[i].dim[rank - 1] ? 1 : 0;
#pragma unroll 1
    for (int axis = 0; axis + 1 < rank; axis++) count *= p.input[i].dim[axis];
    if (warp >= 0 && warp < count) list_row(p, i, warp);
    warp -= count;
  }
}

/* Square `square` of a table of bits, counted along its rows. */
DIL_INLINE void turn_square(const dil_device_input &in, int rank,
                            long long square) {
  long long queries = in.dim[rank - 2], keys = in.dim[rank - 1];
  long long words = in.stride[rank - 2] / 32, turned = turned_words(in, rank);
  int word = (int)(square % words), lane = threadIdx.x & 31;
  int down = (int)(square / words % turned);
  long long table = square / words / turned;
  long long row = 32ll * down + lane, key = 32ll * word + lane;
  unsigned bits = 0, mine = 0;
  if (row < queries)
    bits = ((const unsigned *)in.data)[(table * queries + row) * words + word];
#pragma unroll
  for (int n = 0; n < 32; n++) {
    unsigned column = __ballot_sync(0xffffffffu, bits >> n & 1);
    if (lane == n) mine = column;
  }
  if (key < keys)
    turned_bits(in)[(table * keys + key) * turned + down] = mine;
}

extern "C" __global__ void dil_turn(const __grid_constant__ dil_params p) {
  if (p.only_if && !*p.only_if) return;
  long long warp = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  long long warps = (long long)gridDim.x * blockDim.x / 32;
#pragma unroll 1
  for (int i = 0; i < INPUTS; i++) {
    const dil_device_input &in = p.input[i];
    int rank = dil_inputs[i].rank;
    if (dil_inputs[i].rows == dil_inputs[i].cols || !in.bounds) continue;
    long long count = in.stride[rank - 2] / 32 * turned_words(in, rank);
#pragma unroll 1
    for (int axis = 0; axis + 2 < rank; axis++) count *= in.dim[axis];
#pragma unroll 1
    for (long long at = warp; at < count; at += warps) turn_square(in, rank, at);
  }
}

#endif
