/* npy.c - reads and writes arrays as .npy files.
 *
 * In: a path, or a tensor. Out: a row-major tensor that owns its memory, or a
 * file. The data is read, and mapped only for those who ask for it: a file that
 * shrinks while it is in use must not end the process. */
#include "npy.h"
#include "npy_header.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  MAGIC_SIZE = 6,
  HEADER_MAX = 1 << 20,
  ALIGNMENT = 64 /* of data in memory and, as numpy has it, in the file */
};
static const char magic[MAGIC_SIZE] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

/* ---- reading ------------------------------------------------------------- */

typedef struct npy_reader {
  const char *path;
  int file;
  int64_t size;   /* of a regular file; -1: not known */
  int64_t offset;
} npy_reader;

/* Up to `size` bytes, fewer only at the end of the file; -1: an error. */
static int64_t read_some(npy_reader *r, void *bytes, size_t size) {
  size_t done = 0;
  while (done < size) {
    ssize_t got = read(r->file, (char *)bytes + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += (size_t)got;
  }
  r->offset += (int64_t)done;
  return (int64_t)done;
}

static dil_status read_bytes(npy_reader *r, void *bytes, size_t size,
                             const char *what) {
  int64_t got = read_some(r, bytes, size);
  if (got < 0)
    return dil_fail(DIL_ENVIRONMENT, "cannot read '%s': %m", r->path);
  if ((size_t)got < size)
    return dil_fail(DIL_INPUT, "'%s' ends within its %s", r->path, what);
  return DIL_OK;
}

static dil_status read_preamble(npy_reader *r, uint32_t *length) {
  unsigned char start[MAGIC_SIZE + 2] = {0}, bytes[4] = {0};
  int64_t got = read_some(r, start, sizeof start);
  if (got < 0)
    return dil_fail(DIL_ENVIRONMENT, "cannot read '%s': %m", r->path);
  if (memcmp(start, magic, MAGIC_SIZE))
    return dil_fail(DIL_INPUT, "'%s' is not a .npy file", r->path);
  if (got < (int64_t)sizeof start)
    return dil_fail(DIL_INPUT, "'%s' ends within its header", r->path);
  unsigned version = start[MAGIC_SIZE], minor = start[MAGIC_SIZE + 1];
  if (version < 1 || version > 3 || minor != 0)
    return dil_fail(DIL_INPUT, "'%s' is of version %u.%u; 1.0 to 3.0 are read",
                    r->path, version, minor);
  dil_status status = read_bytes(r, bytes, version == 1 ? 2 : 4, "header");
  *length = bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
            (uint32_t)bytes[3] << 24;
  if (!status && *length > HEADER_MAX)
    return dil_fail(DIL_INPUT, "'%s' says that its header has %u bytes",
                    r->path, *length);
  return status;
}

static dil_status read_npy_header(npy_reader *r, npy_header *header) {
  uint32_t length = 0;
  dil_status status = read_preamble(r, &length);
  if (status) return status;
  char *text = malloc((size_t)length + 1);
  if (!text) return dil_fail(DIL_MEMORY, "no memory to read '%s'", r->path);
  status = read_bytes(r, text, length, "header");
  if (!status) status = npy_header_parse(r->path, text, length, header);
  free(text);
  return status;
}

/* Elements, and their bytes in the file; a regular file must have just those:
 * a second array behind the first would go unread. */
static dil_status check_file_size(const npy_reader *r, const npy_header *header,
                                  int64_t *count, size_t *bytes) {
  dil_tensor t = dil_tensor_make(NULL, header->kind->dtype, header->rank,
                                 header->shape);
  *count = dil_tensor_count(&t);
  if (*count < 0 ||
      __builtin_mul_overflow((size_t)*count, header->kind->size, bytes) ||
      *bytes > INT64_MAX / 2)
    return dil_fail(DIL_INPUT, "'%s': the shape is too large", r->path);
  if (r->size >= 0 && r->size - r->offset != (int64_t)*bytes)
    return dil_fail(DIL_INPUT,
                    "'%s' has %lld bytes of data where its shape needs %zu",
                    r->path, (long long)(r->size - r->offset), *bytes);
  return DIL_OK;
}

static void *take_array_memory(const char *path, size_t size) {
  size_t rounded = size / ALIGNMENT * ALIGNMENT + ALIGNMENT;
  void *memory = aligned_alloc(ALIGNMENT, rounded);
  if (!memory)
    dil_fail(DIL_MEMORY, "no memory for %zu bytes of '%s'", size, path);
  return memory;
}

static dil_status read_data(npy_reader *r, size_t bytes, void **data) {
  char more;
  *data = take_array_memory(r->path, bytes);
  if (!*data) return DIL_MEMORY;
  dil_status status = read_bytes(r, *data, bytes, "data");
  if (!status && read_some(r, &more, 1) != 0)
    status = dil_fail(DIL_INPUT, "'%s' goes on behind its data", r->path);
  if (!status) return DIL_OK;
  free(*data);
  return status;
}

/* ---- conversion and order ------------------------------------------------ */

/* One element of a kind that is converted; false: it does not fit. */
static bool convert_element(const npy_kind *kind, const char *from, char *to) {
  if (kind->dtype == DIL_I32) {
    int64_t value;
    memcpy(&value, from, sizeof value);
    int32_t narrow = (int32_t)value;
    memcpy(to, &narrow, sizeof narrow);
    return narrow == value;
  }
  double value;
  memcpy(&value, from, sizeof value);
  float narrow = (float)value;
  memcpy(to, &narrow, sizeof narrow);
  return !isinf(narrow) || isinf(value);
}

/* Steps an index to the next in row-major order. */
static void next_index(const int64_t *shape, int32_t rank, int64_t *at) {
  for (int32_t axis = rank; axis-- > 0;) {
    if (++at[axis] < shape[axis]) return;
    at[axis] = 0;
  }
}

/* Returns the element's place in a file in Fortran order, where the first axis
 * is the fastest. */
static int64_t fortran_place(const npy_header *h, const int64_t *at) {
  int64_t place = 0;
  for (int32_t axis = h->rank; axis-- > 0;)
    place = place * h->shape[axis] + at[axis];
  return place;
}

static dil_status reorder_elements(const char *path, const npy_header *h,
                                   int64_t count, const char *from, char *to) {
  size_t size = dil_dtype_size(h->kind->dtype);
  int64_t at[DIL_RANK_MAX] = {0};
  for (int64_t i = 0; i < count; i++, next_index(h->shape, h->rank, at)) {
    int64_t place = h->fortran ? fortran_place(h, at) : i;
    const char *source = from + (size_t)place * h->kind->size;
    if (!h->kind->converted)
      memcpy(to + (size_t)i * size, source, size);
    else if (!convert_element(h->kind, source, to + (size_t)i * size))
      return dil_fail(DIL_INPUT, "'%s': element %lld does not fit %s", path,
                      (long long)i, dil_dtype_name(h->kind->dtype));
  }
  return DIL_OK;
}

/* Replaces the bytes of the file by the elements in memory. */
static dil_status arrange_elements(const char *path, const npy_header *h,
                                   int64_t count, void **data) {
  if (!h->kind->converted && (!h->fortran || h->rank < 2)) return DIL_OK;
  size_t size = (size_t)count * dil_dtype_size(h->kind->dtype);
  char *to = take_array_memory(path, size);
  dil_status status =
      to ? reorder_elements(path, h, count, *data, to) : DIL_MEMORY;
  free(*data);
  *data = to;
  if (status) free(to);
  return status;
}

static dil_status read_array(npy_reader *r, dil_npy *array) {
  npy_header header = {0};
  int64_t count = 0;
  size_t bytes = 0;
  void *data = NULL;
  dil_status status = read_npy_header(r, &header);
  if (!status) status = check_file_size(r, &header, &count, &bytes);
  if (!status) status = read_data(r, bytes, &data);
  if (!status) status = arrange_elements(r->path, &header, count, &data);
  if (!status)
    array->tensor = dil_tensor_make(data, header.kind->dtype, header.rank,
                                    header.shape);
  return status;
}

/* A mapped array is used as it stands. */
static dil_status check_as_is(const npy_reader *r, const npy_header *h) {
  const char *how = r->size < 0                        ? "is no regular file"
                    : h->kind->converted               ? "has to be converted"
                    : h->fortran && h->rank > 1        ? "is in Fortran order"
                    : r->offset % (int64_t)h->kind->size ? "is not aligned"
                                                       : NULL;
  if (!how) return DIL_OK;
  return dil_fail(DIL_INPUT, "'%s' %s: only float32, float16, int32 and uint8 "
                  "in C order can be used in place", r->path, how);
}

static dil_status map_array(npy_reader *r, dil_npy *array) {
  npy_header header = {0};
  int64_t count = 0;
  size_t bytes = 0;
  dil_status status = read_npy_header(r, &header);
  if (!status) status = check_as_is(r, &header);
  if (!status) status = check_file_size(r, &header, &count, &bytes);
  if (status) return status;
  size_t size = (size_t)r->offset + bytes;
  char *map = mmap(NULL, size, PROT_READ, MAP_SHARED, r->file, 0);
  if (map == MAP_FAILED)
    return dil_fail(DIL_ENVIRONMENT, "cannot map '%s': %m", r->path);
  *array = (dil_npy){dil_tensor_make(map + r->offset, header.kind->dtype,
                                     header.rank, header.shape), map, size};
  return DIL_OK;
}

static dil_status with_reader(const char *path, dil_npy *array,
                              dil_status (*get)(npy_reader *r,
                                                dil_npy *array)) {
  memset(array, 0, sizeof *array);
  struct stat about;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return dil_fail(DIL_ENVIRONMENT, "cannot open '%s': %m", path);
  npy_reader r = {path, file, -1, 0};
  if (!fstat(file, &about) && S_ISREG(about.st_mode)) r.size = about.st_size;
  dil_status status = get(&r, array);
  close(file);
  return status;
}

dil_status dil_npy_read(const char *path, dil_npy *array) {
  return with_reader(path, array, read_array);
}

dil_status dil_npy_map(const char *path, dil_npy *array) {
  return with_reader(path, array, map_array);
}

void dil_npy_free(dil_npy *array) {
  if (array->map) munmap(array->map, array->map_size);
  else free(array->tensor.data);
  array->map = array->tensor.data = NULL;
}
