/* documents.cuh - the rows of a packed call that no document has. */
#pragma once

/* Returns the first row behind all documents, to all threads of a block; 0 where
 * an offset is wrong: then all rows are cleared before those of good documents
 * are written. */
DIL_INLINE int first_of_nobody(const int *offsets, int count, int rows,
                               int longest) {
  bool wrong = offsets[0] != 0 || offsets[count] > rows;
#pragma unroll 1
  for (int b = (int)threadIdx.x; b < count; b += (int)blockDim.x) {
    long long length = (long long)offsets[b + 1] - offsets[b];
    wrong = wrong || length < 0 || length > longest;
  }
  return __syncthreads_or(wrong) ? 0 : offsets[count];
}
