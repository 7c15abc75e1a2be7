/* npy.h - arrays in files, in the .npy format of Python's numpy. */
#ifndef DIL_RUNTIME_NPY_NPY_H
#define DIL_RUNTIME_NPY_NPY_H

#include "runtime/tensor.h"

#pragma GCC visibility push(default)

typedef struct dil_npy {
  dil_tensor tensor; /* row-major; its data is owned by this */
  void *map;         /* NULL: it is memory */
  size_t map_size;
} dil_npy;

/* Reads versions 1 to 3, C or Fortran order, up to DIL_RANK_MAX dimensions,
 * little-endian: f2 -> f16, f4 and f8 -> f32, i4 and i8 -> i32, u1 and b1 ->
 * u8. An i8 beyond i32, or a finite f8 beyond f32, is an error; other f8 are
 * rounded to nearest. Anything else in the file is an error that names the
 * file: DIL_ENVIRONMENT when it cannot be read, DIL_INPUT when it is wrong.
 * On failure there is nothing to free. */
dil_status dil_npy_read(const char *path, dil_npy *array);
/* The same without reading: the file's own bytes, to be looked at only. In C
 * order, f2, f4, i4 or u1, of a regular file; DIL_INPUT names what else it is.
 * While it is mapped the file must not become shorter: the system ends a
 * process that looks beyond its end (SIGBUS). */
dil_status dil_npy_map(const char *path, dil_npy *array);
void dil_npy_free(dil_npy *array);

/* Writes version 1 in C order whatever the strides; bf16, which the format
 * lacks, goes out as f4. The file appears whole or not at all: it is written
 * beside its place and renamed. A file that is not regular (a pipe) is written
 * directly. DIL_ENVIRONMENT when the system refuses. */
dil_status dil_npy_write(const char *path, const dil_tensor *tensor);
/* Tries whether the file can be begun, before a long computation. It changes
 * nothing. DIL_ENVIRONMENT: it cannot. */
dil_status dil_npy_probe(const char *path);

/* An array that is written in place, larger than memory if need be: the file
 * has its room at once, and lies beside its place until it is published. */
typedef struct dil_npy_output {
  dil_tensor tensor; /* row-major, all 0 at first; bf16 is not to be had */
  void *map;         /* NULL: there is none */
  size_t map_size;
  char *path, *part;
  bool kept;         /* by the caller's name, until it is published */
} dil_npy_output;
dil_status dil_npy_create(const char *path, dil_dtype dtype, int32_t rank,
                          const int64_t *shape, dil_npy_output *output);
/* The same, but until it is published the file is `part`, and while `kept` is
 * true discarding leaves it there for `again`, which goes on with what an
 * earlier one has written, even if that came as far as to publish it:
 * DIL_INPUT if it is of another shape or type. path NULL: it is not to be
 * published. */
dil_status dil_npy_create_at(const char *path, const char *part, bool again,
                             dil_dtype dtype, int32_t rank,
                             const int64_t *shape, dil_npy_output *output);
/* The file is whole: it takes its place. Either way the output is over. */
dil_status dil_npy_publish(dil_npy_output *output);
void dil_npy_discard(dil_npy_output *output); /* also after publishing */

#pragma GCC visibility pop
#endif
