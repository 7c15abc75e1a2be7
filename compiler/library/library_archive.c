/* library_archive.c - static libraries in the format of ar, with its table of
 * symbols, so that no tool is needed. In: object files. Out: the bytes of an
 * archive without dates and owners: the same objects give the same bytes. Also
 * the way back: walking over the members of an archive from anywhere. */
#include "library.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

static const char magic[] = "!<arch>\n";
enum { MAGIC = 8, HEAD = 60, NAME_FIELD = 16, SIZE_AT = 48, SIZE_FIELD = 10 };

/* ---- writing ------------------------------------------------------------- */

typedef struct archive {
  FILE *out;
  const library_object *object;
  int32_t count;
  uint64_t symbol_count, symbol_bytes;
  uint32_t offset; /* of the member whose symbols are written */
} archive;

static void count_symbol(void *context, const char *name) {
  archive *a = context;
  a->symbol_count++;
  a->symbol_bytes += strlen(name) + 1;
}

/* Numbers of the symbol table have the high byte first. */
static void put_symbol_number(FILE *out, uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8)
    fputc((int)(number >> shift & 0xff), out);
}

static void put_offset(void *context, const char *name) {
  archive *a = context;
  (void)name;
  put_symbol_number(a->out, a->offset);
}

static void put_symbol_name(void *context, const char *name) {
  archive *a = context;
  fwrite(name, 1, strlen(name) + 1, a->out);
}

static void each_symbol(archive *a, int32_t index,
                        void (*visit)(void *, const char *)) {
  const library_object *o = &a->object[index];
  elf_each_global(o->bytes, o->size, visit, a);
}

static void put_member_head(FILE *out, const char *name, size_t size) {
  fprintf(out, "%-16s%-12d%-6d%-6d%-8s%-10zu`\n", name, 0, 0, 0, "100644",
          size);
}

static size_t even_size(size_t size) { return size + size % 2; }

static size_t names_size(const archive *a) {
  size_t size = 0;
  for (int32_t i = 0; i < a->count; i++)
    size += strlen(a->object[i].name) + 2;
  return size;
}

/* Offsets of all members, then all names. */
static void put_symbols(archive *a, size_t size) {
  uint32_t start =
      (uint32_t)(MAGIC + 2 * HEAD + even_size(size) + even_size(names_size(a)));
  put_member_head(a->out, "/", size);
  put_symbol_number(a->out, (uint32_t)a->symbol_count);
  a->offset = start;
  for (int32_t i = 0; i < a->count; i++) {
    each_symbol(a, i, put_offset);
    a->offset += (uint32_t)(HEAD + even_size(a->object[i].size));
  }
  for (int32_t i = 0; i < a->count; i++) each_symbol(a, i, put_symbol_name);
  if (size % 2) fputc('\n', a->out);
}

/* Names of members stand in a table of their own: they may be long. */
static void put_long_names(archive *a) {
  size_t size = names_size(a);
  put_member_head(a->out, "//", size);
  for (int32_t i = 0; i < a->count; i++)
    fprintf(a->out, "%s/\n", a->object[i].name);
  if (size % 2) fputc('\n', a->out);
}

static void put_members(archive *a) {
  size_t name_at = 0;
  for (int32_t i = 0; i < a->count; i++) {
    const library_object *o = &a->object[i];
    char name[NAME_FIELD + 8];
    snprintf(name, sizeof name, "/%zu", name_at);
    name_at += strlen(o->name) + 2;
    put_member_head(a->out, name, o->size);
    fwrite(o->bytes, 1, o->size, a->out);
    if (o->size % 2) fputc('\n', a->out);
  }
}

dil_status archive_make(const library_object *object, int32_t count,
                        void **bytes, size_t *size) {
  char *made = NULL;
  FILE *out = open_memstream(&made, size);
  if (!out) return dil_fail(DIL_MEMORY, "no memory for an archive");
  archive a = {.out = out, .object = object, .count = count};
  for (int32_t i = 0; i < count; i++) each_symbol(&a, i, count_symbol);
  fwrite(magic, 1, MAGIC, out);
  put_symbols(&a, 4 + 4 * a.symbol_count + a.symbol_bytes);
  put_long_names(&a);
  put_members(&a);
  bool good = !ferror(out);
  good = fclose(out) == 0 && good;
  *bytes = made;
  if (good) return DIL_OK;
  free(made);
  return dil_fail(DIL_MEMORY, "no memory for an archive");
}

/* ---- reading ------------------------------------------------------------- */

bool archive_next(const char *bytes, size_t size, size_t *at,
                  const char **member, size_t *length) {
  if (*at == 0) {
    if (size < MAGIC || memcmp(bytes, magic, MAGIC)) return false;
    *at = MAGIC;
  }
  if (*at > size || size - *at < HEAD) return false;
  char digits[SIZE_FIELD + 1] = "";
  memcpy(digits, bytes + *at + SIZE_AT, SIZE_FIELD);
  char *end;
  unsigned long long wide = strtoull(digits, &end, 10);
  *at += HEAD;
  if (end == digits || wide > size - *at) return false;
  *member = bytes + *at;
  *length = (size_t)wide;
  *at += even_size(*length);
  return true;
}
