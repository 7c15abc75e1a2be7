/* document.h - where a document of a packed call stands in a tensor. In C, too: the host
 * walks launches of the Hopper kernel. */
#ifndef DIL_TEMPLATES_SHARED_DOCUMENT_H
#define DIL_TEMPLATES_SHARED_DOCUMENT_H
#ifdef __CUDACC__
#include "templates/shared/ptx.cuh"
#else
#define DIL_INLINE static inline
#endif

/* The rows of a document: the first one, and how many. */
typedef struct dil_extent {
  int first, count;
} dil_extent;

/* None where its offsets fall or leave the tensor; no more than the call says that
 * documents have. */
DIL_INLINE dil_extent document_of(const int *offsets, int b, int rows, int longest) {
  int first = offsets[b], end = offsets[b + 1];
  dil_extent none = {0, 0}, some = {first, end - first < longest ? end - first : longest};
  return first >= 0 && end >= first && end <= rows ? some : none;
}

#endif
