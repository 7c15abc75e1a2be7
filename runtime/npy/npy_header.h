/* npy_header.h - the text at the start of a .npy file. */
#ifndef DIL_RUNTIME_NPY_NPY_HEADER_H
#define DIL_RUNTIME_NPY_NPY_HEADER_H

#include "runtime/tensor.h"

/* A kind of element: its form in a file and its type in memory. */
typedef struct npy_kind {
  const char *code;       /* without the byte order: "f4" */
  size_t size;            /* bytes in the file */
  dil_dtype dtype;
  bool converted;         /* not just bytes copied */
} npy_kind;

typedef struct npy_header {
  const npy_kind *kind;
  bool fortran;
  int32_t rank;
  int64_t shape[DIL_RANK_MAX];
} npy_header;

/* Parses `text`, a Python dictionary of descr, fortran_order and shape, each
 * once. `path` is for messages. */
dil_status npy_header_parse(const char *path, const char *text, size_t length,
                            npy_header *header);

#endif
