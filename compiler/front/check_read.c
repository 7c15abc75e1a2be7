/* check_read.c - files: reads a .dil file or a preset and what it imports, each
 * once, and hands all of their items to check in the order of the text.
 * Bounded: the size of a file, the depth of imports; an import cycle is an
 * error. */
#include "checker.h"
#include "preset.h"
#include "grammar/parser.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { IMPORT_MAX = 16 };

typedef struct source_file {
  dev_t device;
  ino_t inode;
  const char *path;      /* NULL: a preset */
  bool open;             /* it is being read: to import it is a cycle */
  struct source_file *next;
} source_file;

typedef struct source_loader {
  arena *arena;
  diag *diag;
  items items;
  source_file *files; /* read from disk so far */
  int32_t source_count;
  bool unreadable;       /* the machine lacks a file */
} source_loader;

static const span nowhere = {0};

/* ---- bytes --------------------------------------------------------------- */

static void cannot_read(source_loader *l, span at, const char *path,
                        const char *reason) {
  l->unreadable = true;
  const char *hint = dil_preset_text(path)
                         ? arena_print(l->arena, "'" PRESET_PREFIX "%s' is one "
                                       "that comes with dil", path)
                         : NULL;
  diag_report(l->diag, SEVERITY_ERROR, at, hint, "cannot read '%s': %s", path,
              reason);
}

static const source *source_new(source_loader *l, const char *path,
                                const char *text, size_t length) {
  source *s = ARENA_NEW(l->arena, source);
  *s = (source){.path = path, .text = text, .length = length,
                .index = l->source_count++};
  return s;
}

static bool is_too_large(source_loader *l, span at, const char *path,
                         size_t length) {
  if (length <= FILE_MAX) return false;
  diag_report(l->diag, SEVERITY_ERROR, at, NULL,
              "'%s' has more than %d bytes", path, FILE_MAX);
  return true;
}

/* Bytes of a file. Memory is taken before it is opened, so that nothing stays
 * open where there is none. */
typedef struct bytes {
  char *text;            /* [FILE_MAX + 2] */
  size_t length;
  struct stat info;
} bytes;

static bytes bytes_new(source_loader *l) {
  return (bytes){.text = ARENA_ARRAY(l->arena, char, FILE_MAX + 2)};
}

/* All of an open file, up to one byte more than it may have; 0 or errno. */
static int descriptor_read(int descriptor, bytes *b) {
  if (fstat(descriptor, &b->info)) return errno;
  if (S_ISDIR(b->info.st_mode)) return EISDIR; /* standard input, too */
  for (;;) {
    ssize_t got = read(descriptor, b->text + b->length,
                       FILE_MAX + 1 - b->length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return 0;
    b->length += (size_t)got;
  }
}

/* A shell hands such paths over: <(...) is one. */
static bool is_handed(const char *path) {
  static const char *const begins[] = {"/dev/fd/", "/proc/self/fd/"};
  bool handed = !strcmp(path, "/dev/stdin");
  for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
    handed |= !strncmp(path, begins[i], strlen(begins[i]));
  return handed;
}

enum { NOT_REGULAR = -1 };

static const char *read_reason(int error) {
  return error == NOT_REGULAR ? "it is not a regular file" : strerror(error);
}

/* Only a file that the user chose may be waited for, as a terminal is. */
static int check_kind(int descriptor, const char *path, bool chosen) {
  struct stat info;
  if (fstat(descriptor, &info)) return errno;
  if (S_ISREG(info.st_mode)) return 0;
  if (S_ISDIR(info.st_mode)) return EISDIR;
  if (!chosen || !(S_ISCHR(info.st_mode) || is_handed(path)))
    return NOT_REGULAR;
  return fcntl(descriptor, F_SETFL, 0) ? errno : 0; /* reads may wait again */
}

/* A pipe that has no writer is not waited for. The descriptor, or -1. */
static int path_open(const char *path, bool chosen, int *error) {
  int descriptor =
      open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  *error = descriptor < 0 ? errno : check_kind(descriptor, path, chosen);
  if (!*error) return descriptor;
  if (descriptor >= 0) close(descriptor);
  return -1;
}

FILE *program_open(const char *path, const char **reason) {
  int error;
  int descriptor = path_open(path, true, &error);
  FILE *in = error ? NULL : fdopen(descriptor, "rb");
  if (!error && !in) {
    error = errno;
    close(descriptor);
  }
  *reason = in ? NULL : read_reason(error);
  return in;
}

static int path_read(const char *path, bool chosen, bytes *b) {
  int error;
  int descriptor = path_open(path, chosen, &error);
  if (!error) error = descriptor_read(descriptor, b);
  if (descriptor >= 0) close(descriptor);
  return error;
}

/* A file with a byte 0 is a program, a library or an array, and no text. */
static bool is_no_text(source_loader *l, span at, const char *path,
                       const bytes *b) {
  if (!memchr(b->text, 0, b->length)) return false;
  diag_report(l->diag, SEVERITY_ERROR, at,
              "a library of `dil build` is run with --library",
              "'%s' is not text", path);
  return true;
}

/* The source of a file that was read; NULL and a message where there is
 * none. */
static const source *bytes_source(source_loader *l, const bytes *b, int error,
                                  span at, const char *path) {
  if (error) cannot_read(l, at, path, read_reason(error));
  if (error || is_too_large(l, at, path, b->length) ||
      is_no_text(l, at, path, b))
    return NULL;
  return source_new(l, path, b->text, b->length);
}

/* ---- presets ------------------------------------------------------------- */

static bool is_preset(const char *path) {
  return !strncmp(path, PRESET_PREFIX, strlen(PRESET_PREFIX));
}

static const source *preset_source(source_loader *l, const char *path,
                                   span at) {
  const char *name = path + strlen(PRESET_PREFIX);
  const char *text = dil_preset_text(name);
  if (text) return source_new(l, path, text, strlen(text));
  diag_report(l->diag, SEVERITY_ERROR, at, preset_hint(l->arena, name),
              "there is no preset '%s'", name);
  return NULL;
}

/* ---- files --------------------------------------------------------------- */

/* The file of an identity, or a new one. */
static source_file *file_find(source_loader *l, const struct stat *info,
                              bool *known) {
  for (source_file *f = l->files; f; f = f->next) {
    *known = f->device == info->st_dev && f->inode == info->st_ino;
    if (*known) return f;
  }
  source_file *f = ARENA_NEW(l->arena, source_file);
  *f = (source_file){
      .device = info->st_dev, .inode = info->st_ino, .next = l->files};
  l->files = f;
  *known = false;
  return f;
}

static void source_add(source_loader *l, const source *s, int32_t depth);

static void file_add(source_loader *l, const bytes *b, int error, span at,
                     const char *path, int32_t depth) {
  bool known = false;
  source_file *f = error ? NULL : file_find(l, &b->info, &known);
  if (known && f->open)
    diag_report(l->diag, SEVERITY_ERROR, at, NULL, "'%s' imports itself",
                path);
  if (known) return;
  const source *s = bytes_source(l, b, error, at, path);
  if (!s) return;
  f->path = path;
  f->open = true;
  source_add(l, s, depth);
  f->open = false;
}

/* A preset's text is as good as a file that is read once. */
static void preset_add(source_loader *l, const char *path, span at,
                       int32_t depth) {
  bool known = false;
  const source *s = preset_source(l, path, at);
  if (!s) return;
  file_find(l, &(struct stat){.st_ino = (ino_t)(uintptr_t)s->text}, &known);
  if (!known) source_add(l, s, depth);
}

static void path_add(source_loader *l, const char *path, span at,
                     int32_t depth) {
  if (is_preset(path)) {
    preset_add(l, path, at, depth);
    return;
  }
  bytes b = bytes_new(l);
  int error = path_read(path, depth == 0, &b);
  file_add(l, &b, error, at, path, depth);
}

/* ---- imports ------------------------------------------------------------- */

/* `name` relative to the folder of the file that imports it. */
static const char *import_path(source_loader *l, const source *from,
                               const char *name) {
  const char *slash = strrchr(from->path, '/');
  if (name[0] == '/' || !slash || is_preset(name)) return name;
  return arena_print(l->arena, "%.*s/%s", (int)(slash - from->path),
                     from->path, name);
}

static void import_add(source_loader *l, const source *from, const statement *s,
                       int32_t depth) {
  if (depth == IMPORT_MAX)
    diag_report(l->diag, SEVERITY_ERROR, s->name_at, NULL,
                "imports are nested more than %d deep", IMPORT_MAX);
  else
    path_add(l, import_path(l, from, s->name), s->name_at, depth + 1);
}

static void item_add(source_loader *l, const statement *s, bool imported) {
  items *all = &l->items;
  if (all->count == all->room) {
    all->room = all->room ? 2 * all->room : 64;
    item *grown = ARENA_ARRAY(l->arena, item, all->room);
    if (all->count)
      memcpy(grown, all->item, (size_t)all->count * sizeof *grown);
    all->item = grown;
  }
  all->item[all->count++] = (item){s, imported};
}

static void source_add(source_loader *l, const source *s, int32_t depth) {
  const statement *next = ast_parse(l->arena, l->diag, s);
  for (; next && !diag_full(l->diag); next = next->next) {
    if (next->word == WORD_IMPORT) import_add(l, s, next, depth);
    else item_add(l, next, depth > 0);
  }
}

/* ---- programs ------------------------------------------------------------ */

static void main_add(source_loader *l, const char *path) {
  if (strcmp(path, "-")) {
    path_add(l, path, nowhere, 0);
    return;
  }
  bytes b = bytes_new(l);
  int error = descriptor_read(STDIN_FILENO, &b);
  const source *s = bytes_source(l, &b, error, nowhere, "<stdin>");
  if (s) source_add(l, s, 0);
}

/* A file that was not understood is not checked: half of it would give
 * errors of their own. */
static program *program_of(source_loader *l, const define *defines,
                           int32_t define_count) {
  if (diag_errors(l->diag)) return NULL;
  return check_items(l->arena, l->diag, &l->items, defines, define_count);
}

/* In the order of reading; the list has the last first. */
static void list_files(const source_loader *l, program *p) {
  for (const source_file *f = l->files; f; f = f->next)
    p->file_count += f->path != NULL;
  p->file = ARENA_ARRAY(l->arena, const char *, p->file_count);
  int32_t i = p->file_count;
  for (const source_file *f = l->files; f; f = f->next)
    if (f->path) p->file[--i] = f->path;
}

program *program_read(arena *a, diag *d, const char *path,
                      const define *defines, int32_t define_count,
                      dil_status *status) {
  source_loader l = {.arena = a, .diag = d};
  main_add(&l, path);
  program *p = program_of(&l, defines, define_count);
  if (p) list_files(&l, p);
  *status = p ? DIL_OK : l.unreadable ? DIL_ENVIRONMENT : DIL_INPUT;
  return p;
}

program *program_parse(arena *a, diag *d, const char *path, const char *text,
                       size_t length, const define *defines,
                       int32_t define_count) {
  source_loader l = {.arena = a, .diag = d};
  if (is_too_large(&l, nowhere, path, length)) return NULL;
  source_add(&l, source_new(&l, path, text, length), 0);
  return program_of(&l, defines, define_count);
}

/* ---- dil print ----------------------------------------------------------- */

/* The one file alone: imports stand in it as they are written. */
static const source *source_read(source_loader *l, const char *path) {
  if (is_preset(path)) return preset_source(l, path, nowhere);
  bool standard = !strcmp(path, "-");
  bytes b = bytes_new(l);
  int error = standard ? descriptor_read(STDIN_FILENO, &b)
                       : path_read(path, true, &b);
  return bytes_source(l, &b, error, nowhere, standard ? "<stdin>" : path);
}

static dil_status read_status(const source_loader *l) {
  return l->unreadable            ? DIL_ENVIRONMENT
         : diag_errors(l->diag) ? DIL_INPUT
                                  : DIL_OK;
}

dil_status program_print_tokens(const char *path, FILE *out, diag *d,
                                arena *a) {
  source_loader l = {.arena = a, .diag = d};
  const source *s = source_read(&l, path);
  if (s) grammar_tokens(&(ast_reader){.arena = a, .diag = d, .source = s}, out);
  return read_status(&l);
}

dil_status program_print_ast(const char *path, FILE *out, diag *d, arena *a) {
  source_loader l = {.arena = a, .diag = d};
  const source *s = source_read(&l, path);
  const statement *first = s ? ast_parse(a, d, s) : NULL;
  if (read_status(&l) == DIL_OK) ast_print(first, out);
  return read_status(&l);
}
