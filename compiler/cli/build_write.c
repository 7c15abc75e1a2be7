/* build_write.c - the outputs of `dil build` to files: bytes as they are,
 * shared libraries by the linker; their names to standard output; a rule for
 * make. In: a list of outputs. Out: files, or a status with the reason. */
#include "build.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static dil_status write_build_output(const building *b, const output *o) {
  if (o->bytes) return library_file_write(o->path, o->bytes, o->size);
  return library_link(&b->library, b->object, b->object_count,
                      o->kind == EMIT_SO, o->path);
}

/* ---- names and rules ----------------------------------------------------- */

/* make takes a blank and a : for ends, a # for a comment, a $ for a name and,
 * in a target alone, a % for any text. */
static void put_make_escaped(const char *path, bool target, FILE *out) {
  for (; *path; path++) {
    if (strchr(target ? " :#%" : " :#", *path)) fputc('\\', out);
    if (*path == '$') fputc('$', out);
    fputc(*path, out);
  }
}

static void put_rule(const building *b, FILE *out) {
  for (int32_t i = 0; i < b->output_count; i++) {
    put_make_escaped(b->output[i].path, true, out);
    fputs(i + 1 < b->output_count ? " " : ":", out);
  }
  for (int32_t i = 0; i < b->file_count; i++) {
    fputs(" \\\n  ", out);
    put_make_escaped(b->file[i], false, out);
  }
  fputc('\n', out);
  /* an import that is gone is no error: the rule says nothing of it */
  for (int32_t i = 0; i < b->file_count; i++) {
    fputc('\n', out);
    put_make_escaped(b->file[i], true, out);
    fputs(":\n", out);
  }
}

static const char *rule_path(const building *b) {
  const options *o = b->options;
  if (o->depend_file) return o->depend_file;
  return o->depend ? arena_print(b->library.arena, "%s.d", b->library.path)
                   : NULL;
}

static dil_status write_rule(const building *b, const char *path) {
  FILE *out = fopen(path, "wb");
  if (out) put_rule(b, out);
  bool good = out && !ferror(out);
  if (out) good = fclose(out) == 0 && good;
  if (good) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "cannot write '%s': %s", path,
                  strerror(errno));
}

dil_status build_write(building *b) {
  const char *rule = rule_path(b);
  if (b->options->list_outputs) {
    for (int32_t i = 0; i < b->output_count; i++) puts(b->output[i].path);
    if (rule) puts(rule);
    return DIL_OK;
  }
  dil_status status = DIL_OK;
  for (int32_t i = 0; !status && i < b->output_count; i++)
    status = write_build_output(b, &b->output[i]);
  return status || !rule ? status : write_rule(b, rule);
}

void build_free(building *b) {
  for (int32_t i = 0; i < b->output_count; i++) free(b->output[i].bytes);
  for (int32_t i = 0; i < b->object_count; i++)
    free((void *)b->object[i].bytes);
  library_free(&b->library);
}
