/* npy_write.c - writes a tensor as a .npy file, whole or not at all.
 *
 * In: a path and a strided tensor. Out: the file, version 1.0, C order. */
#include "npy.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_UNIT = 64, NAMES_MAX = 1000 };

static const char *const codes[DIL_DTYPE_COUNT] = {
    [DIL_F32] = "<f4", [DIL_BF16] = "<f4", [DIL_F16] = "<f2",
    [DIL_I32] = "<i4", [DIL_U8] = "|u1",
};

/* ---- contents ------------------------------------------------------------ */

/* Magic, version, length and dictionary, padded to a multiple of 64. */
static void put_header(FILE *out, const dil_tensor *t) {
  char text[256], shape[128] = "";
  int used = 0;
  for (int32_t axis = 0; axis < t->rank; axis++)
    used += snprintf(shape + used, sizeof shape - (size_t)used, "%s%lld%s",
                     axis ? ", " : "", (long long)t->shape[axis],
                     t->rank == 1 ? "," : "");
  int length = snprintf(text, sizeof text,
                        "{'descr': '%s', 'fortran_order': False, "
                        "'shape': (%s), }", codes[t->dtype], shape);
  int total = (10 + length + 1 + HEADER_UNIT - 1) / HEADER_UNIT * HEADER_UNIT;
  fwrite("\x93NUMPY\1\0", 1, 8, out);
  fputc((total - 10) & 0xff, out);
  fputc((total - 10) >> 8, out);
  fprintf(out, "%-*s\n", total - 11, text);
}

static void put_element(FILE *out, const dil_tensor *t, int64_t place) {
  size_t size = dil_dtype_size(t->dtype);
  const char *from = (const char *)t->data + place * (int64_t)size;
  if (t->dtype == DIL_BF16) {
    float wide = (float)dil_element_read(t->data, DIL_BF16, place);
    fwrite(&wide, sizeof wide, 1, out);
  } else {
    fwrite(from, size, 1, out);
  }
}

/* All elements below the first `axis` indices, which lead to `place`. */
static void put_axis(FILE *out, const dil_tensor *t, int32_t axis,
                     int64_t place) {
  if (axis == t->rank) {
    put_element(out, t, place);
    return;
  }
  int64_t extent = t->shape[axis], size = (int64_t)dil_dtype_size(t->dtype);
  if (axis == t->rank - 1 && t->stride[axis] == 1 && t->dtype != DIL_BF16) {
    fwrite((const char *)t->data + place * size, (size_t)size, (size_t)extent,
           out);
    return;
  }
  for (int64_t i = 0; i < extent; i++)
    put_axis(out, t, axis + 1, place + i * t->stride[axis]);
}

/* Ends the stream in any case; false with errno set when anything failed. */
static bool put_file(int file, const dil_tensor *t) {
  FILE *out = fdopen(file, "wb");
  if (!out) {
    close(file);
    return false;
  }
  put_header(out, t);
  if (dil_tensor_count(t) > 0) put_axis(out, t, 0, 0);
  bool written = !fflush(out) && !ferror(out);
  int error = errno;
  if (fclose(out)) return false;
  errno = error;
  return written;
}

/* ---- the place ----------------------------------------------------------- */

static dil_status refused(const char *path) {
  return dil_fail(DIL_ENVIRONMENT, "cannot write '%s': %m", path);
}

/* Opens a new file beside `path` and leaves its name in `part`. */
static int open_part(const char *path, char part[PATH_MAX]) {
  for (int i = 0; i < NAMES_MAX; i++) {
    int length = snprintf(part, PATH_MAX, "%s.part-%d-%d", path, (int)getpid(),
                          i);
    if (length >= PATH_MAX) {
      errno = ENAMETOOLONG;
      return -1;
    }
    int file = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0 || errno != EEXIST) return file;
  }
  return -1;
}

/* `old`: what stands at the place now, or NULL; its rights are kept. */
static dil_status replace(const char *path, const struct stat *old,
                          const dil_tensor *t) {
  char part[PATH_MAX];
  int file = open_part(path, part);
  if (file < 0) return refused(path);
  if (old && fchmod(file, old->st_mode & 0777)) {
    dil_status status = refused(path);
    close(file);
    unlink(part);
    return status;
  }
  if (put_file(file, t) && !rename(part, path)) return DIL_OK;
  dil_status status = refused(path);
  unlink(part);
  return status;
}

static dil_status write_straight(const char *path, const dil_tensor *t) {
  int file = open(path, O_WRONLY | O_CLOEXEC);
  return file >= 0 && put_file(file, t) ? DIL_OK : refused(path);
}

dil_status dil_npy_write(const char *path, const dil_tensor *tensor) {
  struct stat about;
  char real[PATH_MAX]; /* a symbolic link stays, the file behind it changes */
  if (dil_tensor_count(tensor) < 0)
    return dil_fail(DIL_USAGE, "a tensor for '%s' is too large", path);
  if (stat(path, &about)) {
    if (errno != ENOENT) return refused(path);
    return replace(path, NULL, tensor);
  }
  if (!S_ISREG(about.st_mode)) return write_straight(path, tensor);
  return realpath(path, real) ? replace(real, &about, tensor) : refused(path);
}
