/* library_read.c - files whole, out and in, and the description of a library
 * from its file. In: the path of a .so, .o or .a, from anywhere. Out: its JSON,
 * parsed, or why there is none. Nothing of the file is run. */
#include "library.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A pipe that nobody writes to must not be waited for. */
static FILE *open_library_file(const char *path) {
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  FILE *in = file < 0 ? NULL : fdopen(file, "rb");
  if (file >= 0 && !in) close(file);
  return in;
}

dil_status library_file(const char *path, void **bytes, size_t *size) {
  struct stat about;
  FILE *in = open_library_file(path);
  bool good = in && !fstat(fileno(in), &about);
  if (good && !S_ISREG(about.st_mode)) {
    fclose(in);
    return dil_fail(DIL_ENVIRONMENT, "cannot read '%s': it is no file", path);
  }
  *size = good ? (size_t)about.st_size : 0;
  *bytes = good ? malloc(*size + 1) : NULL;
  good = *bytes && fread(*bytes, 1, *size, in) == *size;
  int why = errno;
  if (in) fclose(in);
  if (good) return DIL_OK;
  free(*bytes);
  return dil_fail(DIL_ENVIRONMENT, "cannot read '%s': %s", path,
                  strerror(why));
}

dil_status library_file_write(const char *path, const void *bytes,
                              size_t size) {
  FILE *out = fopen(path, "wb");
  bool good = out && fwrite(bytes, 1, size, out) == size;
  if (out) good = fclose(out) == 0 && good;
  if (good) return DIL_OK;
  int why = errno;
  if (out) unlink(path);
  return dil_fail(DIL_ENVIRONMENT, "cannot write '%s': %s", path,
                  strerror(why));
}

/* Members of an archive lie on even places; objects are read on places that
 * are multiples of eight. */
static bool find_in_member(arena *a, const char *member, size_t length,
                           const char **text, size_t *size) {
  char *copy = malloc(length + 1);
  if (!copy) return false;
  memcpy(copy, member, length);
  const char *data;
  bool found =
      elf_find_section(copy, length, DIL_LIBRARY_SECTION, &data, size);
  if (found) *text = arena_copy(a, data, *size);
  free(copy);
  return found;
}

static bool find_text(arena *a, const char *bytes, size_t size,
                      const char **text, size_t *length) {
  const char *member;
  size_t at = 0;
  if (find_in_member(a, bytes, size, text, length)) return true;
  while (archive_next(bytes, size, &at, &member, length))
    if (find_in_member(a, member, *length, text, length)) return true;
  return false;
}

dil_status library_read(arena *a, const char *path, json_t **described) {
  void *bytes;
  size_t size, length;
  const char *text;
  json_error_t error;
  dil_status status = library_file(path, &bytes, &size);
  if (status) return status;
  bool found = find_text(a, bytes, size, &text, &length);
  free(bytes);
  if (!found)
    return dil_fail(DIL_INPUT, "'%s' is no library of `dil build`", path);
  *described = json_loads(text, 0, &error);
  if (*described) return DIL_OK;
  return dil_fail(DIL_INPUT, "the description in '%s' is damaged: %s", path,
                  error.text);
}

/* ---- its parts ----------------------------------------------------------- */

static dil_status meta_damaged(const char *path, const json_error_t *error) {
  return dil_fail(DIL_INPUT, "the description in '%s' is damaged: %s", path,
                  error->text);
}

dil_status library_about(const char *path, json_t *described,
                         library_facts *f) {
  json_error_t error;
  *f = (library_facts){0};
  json_t *cpu, *cuda;
  int failed = json_unpack_ex(
      described, &error, 0, "{s:s, s:s, s:s, s:i, s:b, s:{s:o, s:o}, s:o}",
      "library", &f->name, "dil", &f->version, "hash", &f->hash, "abi", &f->abi,
      "standalone", &f->standalone, "compilers", "cpu", &cpu, "cuda", &cuda,
      "kernels", &f->kernels);
  if (failed) return meta_damaged(path, &error);
  f->cpu = json_string_value(cpu);
  f->cuda = json_string_value(cuda);
  return DIL_OK;
}

/* Returns whether each part of a list is a text or, with names (NULL ends), an
 * object that has texts of these names. */
static bool has_texts(const json_t *list, const char *const *names) {
  size_t index;
  json_t *part;
  bool good = json_is_array(list);
  json_array_foreach(list, index, part) {
    good &= names || json_is_string(part);
    for (const char *const *name = names; name && *name; name++)
      good &= json_is_string(json_object_get(part, *name));
  }
  return good;
}

static dil_status check_lists(const char *path, const library_kernel_facts *f) {
  static const char *const of_inputs[] = {"name", "dtype", "shape", NULL};
  static const char *const of_codes[] = {"arch", "variant", NULL};
  if (has_texts(f->isas, NULL) && has_texts(f->inputs, of_inputs) &&
      has_texts(f->codes, of_codes))
    return DIL_OK;
  return dil_fail(DIL_INPUT, "the description in '%s' is damaged: its lists "
                  "hold what is no text", path);
}

dil_status library_about_kernel(const char *path, json_t *entry,
                                library_kernel_facts *f) {
  json_error_t error;
  json_t *scale = json_object_get(entry, "scale");
  *f = (library_kernel_facts){.takes_scale = json_is_string(scale)};
  int failed = json_unpack_ex(
      entry, &error, 0,
      "{s:s, s:s, s:i, s:i, s:i, s:i, s:s, s:s, s:b, s:F, s:o, s:i, s:s, s:o, "
      "s:o, s:s}",
      "name", &f->name, "pattern", &f->pattern, "heads", &f->heads, "kv_heads",
      &f->kv_heads, "head_dim", &f->head_dim, "value_dim", &f->value_dim,
      "dtype", &f->dtype, "combine", &f->combine, "lse", &f->lse, "dropout",
      &f->dropout, "inputs", &f->inputs, "passes", &f->passes, "plan_hash",
      &f->plan_hash, "cpu", &f->isas, "cuda", &f->codes, "text", &f->text);
  return failed ? meta_damaged(path, &error) : check_lists(path, f);
}
