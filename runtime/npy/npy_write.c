/* npy_write.c - writes a tensor as a .npy file, whole or not at all: at once,
 * or in place by whoever computes it.
 *
 * In: a path and a strided tensor, or its shape. Out: the file, version 1.0, C
 * order. */
#include "npy.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
static bool put_npy_file(int file, const dil_tensor *t) {
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

static dil_status write_refused(const char *path) {
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
    int file = open(part, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0 || errno != EEXIST) return file;
  }
  return -1;
}

/* `old`: what stands at the place now, or NULL; its rights are kept. */
static dil_status replace_file(const char *path, const struct stat *old,
                               const dil_tensor *t) {
  char part[PATH_MAX];
  int file = open_part(path, part);
  if (file < 0) return write_refused(path);
  if (old && fchmod(file, old->st_mode & 0777)) {
    dil_status status = write_refused(path);
    close(file);
    unlink(part);
    return status;
  }
  if (put_npy_file(file, t) && !rename(part, path)) return DIL_OK;
  dil_status status = write_refused(path);
  unlink(part);
  return status;
}

static dil_status write_straight(const char *path, const dil_tensor *t) {
  int file = open(path, O_WRONLY | O_CLOEXEC);
  return file >= 0 && put_npy_file(file, t) ? DIL_OK : write_refused(path);
}

dil_status dil_npy_write(const char *path, const dil_tensor *tensor) {
  struct stat about;
  char real[PATH_MAX]; /* a symbolic link stays, the file behind it changes */
  if (dil_tensor_count(tensor) < 0)
    return dil_fail(DIL_USAGE, "a tensor for '%s' is too large", path);
  if (stat(path, &about)) {
    if (errno != ENOENT) return write_refused(path);
    return replace_file(path, NULL, tensor);
  }
  if (!S_ISREG(about.st_mode)) return write_straight(path, tensor);
  return realpath(path, real) ? replace_file(real, &about, tensor)
                              : write_refused(path);
}

/* ---- in place ------------------------------------------------------------ */

/* Writes the header into the file at its begin, or compares it with what is
 * there; its length, or -1 with errno, or 0: it is another one. */
static long place_header(int file, const dil_tensor *t, bool again) {
  char *text = NULL, there[4 * HEADER_UNIT + 256];
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  if (!out) return -1;
  put_header(out, t);
  long result = -1;
  if (!fclose(out) && length < sizeof there) {
    ssize_t moved = again ? pread(file, there, length, 0)
                          : pwrite(file, text, length, 0);
    if (moved == (ssize_t)length) result = (long)length;
    if (again && moved >= 0 && (result < 0 || memcmp(text, there, length)))
      result = 0;
  }
  free(text);
  return result;
}

/* A file with a header and room for the rest, mapped; on failure errno, 0: it
 * was begun as another one. */
static bool map_part(int file, bool again, dil_npy_output *out) {
  struct stat about;
  long header = place_header(file, &out->tensor, again);
  if (header == 0) errno = 0; /* an earlier call may have set it */
  if (header <= 0) return false;
  out->map_size = (size_t)header + (size_t)dil_tensor_count(&out->tensor) *
                                       dil_dtype_size(out->tensor.dtype);
  errno = again ? 0 : posix_fallocate(file, 0, (off_t)out->map_size);
  if (errno || fstat(file, &about)) return false;
  if ((size_t)about.st_size != out->map_size) return errno = 0, false;
  char *map = mmap(NULL, out->map_size, PROT_READ | PROT_WRITE, MAP_SHARED,
                   file, 0);
  if (map == MAP_FAILED) return false;
  out->map = map;
  out->tensor.data = map + header;
  return true;
}

static void end_output(dil_npy_output *out) {
  if (out->map) munmap(out->map, out->map_size);
  free(out->path);
  free(out->part);
  *out = (dil_npy_output){0};
}

/* The path of an output, and the rights of the file that stands there. */
typedef struct npy_place {
  char path[PATH_MAX];
  bool there;
  mode_t rights;
} npy_place;

static dil_status find_npy_place(const char *path, npy_place *p) {
  struct stat about;
  p->there = !stat(path, &about);
  if (!p->there && errno != ENOENT) return write_refused(path);
  if (p->there && !S_ISREG(about.st_mode))
    return dil_fail(DIL_INPUT, "'%s' is no regular file: it cannot be written "
                    "in place", path);
  p->rights = about.st_mode & 0777;
  if (p->there) return realpath(path, p->path) ? DIL_OK : write_refused(path);
  if (snprintf(p->path, PATH_MAX, "%s", path) < PATH_MAX) return DIL_OK;
  errno = ENAMETOOLONG;
  return write_refused(path);
}

dil_status dil_npy_probe(const char *path) {
  struct stat about;
  char part[PATH_MAX];
  npy_place to;
  bool there = !stat(path, &about);
  if (there && S_ISDIR(about.st_mode)) {
    errno = EISDIR;
    return write_refused(path);
  }
  if (there && !S_ISREG(about.st_mode)) return DIL_OK; /* written straight */
  dil_status status = find_npy_place(path, &to);
  if (status) return status;
  int file = open_part(to.path, part);
  if (file < 0) return write_refused(path);
  close(file);
  unlink(part);
  return DIL_OK;
}

static dil_status new_output(dil_npy_output *out, const char *path,
                             dil_dtype dtype, int32_t rank,
                             const int64_t *shape) {
  *out = (dil_npy_output){.tensor = dil_tensor_make(NULL, dtype, rank, shape)};
  if (dil_tensor_count(&out->tensor) >= 0) return DIL_OK;
  return dil_fail(DIL_USAGE, "a tensor for '%s' is too large", path);
}

dil_status dil_npy_create(const char *path, dil_dtype dtype, int32_t rank,
                          const int64_t *shape, dil_npy_output *out) {
  char part[PATH_MAX];
  npy_place to;
  dil_status status = new_output(out, path, dtype, rank, shape);
  if (!status) status = find_npy_place(path, &to);
  if (status) return status;
  int file = open_part(to.path, part);
  if (file < 0) return write_refused(path);
  out->path = strdup(to.path);
  out->part = strdup(part);
  bool good = out->path && out->part &&
              !(to.there && fchmod(file, to.rights)) &&
              map_part(file, false, out);
  status = good ? DIL_OK : write_refused(path);
  close(file);
  if (good) return DIL_OK;
  unlink(part);
  end_output(out);
  return status;
}

/* A file is moved from one name to another within a file system alone. */
static dil_status check_move(int file, const char *part, const char *path) {
  char folder[PATH_MAX];
  struct stat here, there;
  const char *slash = strrchr(path, '/');
  int length = slash ? (int)(slash - path) + 1 : 1;
  snprintf(folder, sizeof folder, "%.*s", length, slash ? path : ".");
  if (fstat(file, &here) || stat(folder, &there)) return write_refused(path);
  if (here.st_dev == there.st_dev) return DIL_OK;
  return dil_fail(DIL_USAGE, "'%s' and '%s' must lie on one file system: the "
                  "first becomes the second", part, path);
}

static dil_status map_kept(int file, const char *path, bool again,
                           dil_npy_output *out) {
  npy_place to;
  dil_status status = path ? find_npy_place(path, &to) : DIL_OK;
  if (!status && path) status = check_move(file, out->part, to.path);
  if (status) return status;
  if (path && !(out->path = strdup(to.path))) return write_refused(path);
  if (path && to.there && fchmod(file, to.rights)) return write_refused(path);
  if (map_part(file, again, out)) return DIL_OK;
  if (errno) return write_refused(out->part);
  return dil_fail(DIL_INPUT, "'%s' was begun with another shape or type",
                  out->part);
}

dil_status dil_npy_create_at(const char *path, const char *part, bool again,
                             dil_dtype dtype, int32_t rank,
                             const int64_t *shape, dil_npy_output *out) {
  dil_status status = new_output(out, part, dtype, rank, shape);
  if (status) return status;
  out->kept = true;
  int file = open(part, O_RDWR | O_CLOEXEC | (again ? 0 : O_CREAT | O_TRUNC),
                  0666);
  bool published = file < 0 && again && path && errno == ENOENT;
  if (published) file = open(path, O_RDWR | O_CLOEXEC);
  out->part = strdup(published ? path : part);
  if (file < 0 || !out->part)
    status = again ? dil_fail(DIL_ENVIRONMENT, "cannot open '%s': %m", part)
                   : write_refused(part);
  else
    status = map_kept(file, path, again, out);
  if (file >= 0) close(file);
  if (status && file >= 0 && !again) unlink(part);
  if (status) end_output(out);
  return status;
}

dil_status dil_npy_publish(dil_npy_output *out) {
  bool good = !msync(out->map, out->map_size, MS_SYNC) &&
              !rename(out->part, out->path);
  dil_status status = good ? DIL_OK : write_refused(out->path);
  if (!good && !out->kept) unlink(out->part);
  end_output(out);
  return status;
}

void dil_npy_discard(dil_npy_output *out) {
  if (out->part && !out->kept) unlink(out->part);
  end_output(out);
}
