/* wisdom.c - the file of remembered schedules, see wisdom.h. In: lines of text.
 * Out: records, and a word on what is no record. */
#include "wisdom.h"
#include "runtime/base/status.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { FIELDS = 7, FILE_MOST = 1 << 22 };

/* ---- keys ---------------------------------------------------------------- */

const char *wisdom_path(arena *a) {
  const char *given = secure_getenv("DIL_WISDOM");
  const char *state = secure_getenv("XDG_STATE_HOME");
  const char *home = secure_getenv("HOME");
  if (given && *given) return strcmp(given, "off") ? given : NULL;
  if (state && *state == '/') return arena_print(a, "%s/dil/wisdom", state);
  if (!home || *home != '/') return NULL;
  return arena_print(a, "%s/.local/state/dil/wisdom", home);
}

/* pattern_print; false when memory was lacking. */
static bool print_whole(arena *a, const pattern *p, FILE *out) {
  jmp_buf lost, *before = arena_catch(a, &lost);
  bool whole = !setjmp(lost);
  if (whole) pattern_print_within(a, p, out);
  arena_catch(a, before);
  return whole && !ferror(out);
}

uint64_t wisdom_pattern(arena *a, const pattern *p, dil_direction direction) {
  pattern nameless = *p;
  nameless.name = "p";
  nameless.branch = ARENA_ARRAY(a, branch, p->branch_count);
  for (int32_t b = 0; b < p->branch_count; b++) {
    nameless.branch[b] = p->branch[b];
    nameless.branch[b].name = NULL;
  }
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  if (!out) arena_lack(a);
  bool whole = print_whole(a, &nameless, out);
  if (direction == DIL_BACKWARD) fputs("direction backward\n", out);
  if (fclose(out) || !whole) {
    free(text);
    arena_lack(a);
  }
  uint64_t hash = XXH3_64bits(text, length);
  free(text);
  return hash;
}

int64_t wisdom_class(int64_t size) {
  return size < 2 ? size : (int64_t)exp2(round(log2((double)size)));
}

static bool same_key(const wisdom_key *x, const wisdom_key *y) {
  return !strcmp(x->device, y->device) && x->pattern == y->pattern &&
         !memcmp(x->size, y->size, sizeof x->size);
}

const wisdom_record *wisdom_find(const wisdom *w, const wisdom_key *key) {
  for (int32_t i = w->count; i-- > 0;)
    if (same_key(&w->record[i].key, key)) return &w->record[i];
  return NULL;
}

/* ---- one line ------------------------------------------------------------ */

/* The text of a number as a whole; false when something else stands there. */
static bool read_size(const char **at, char end, int64_t *size) {
  char *stop;
  if (!isdigit((unsigned char)**at)) return false;
  errno = 0;
  *size = strtoll(*at, &stop, 10);
  *at = stop + 1;
  return !errno && *stop == end;
}

static bool read_sizes(const char *at, int64_t size[3]) {
  return read_size(&at, ' ', &size[0]) && read_size(&at, ' ', &size[1]) &&
         read_size(&at, 0, &size[2]);
}

static bool read_pattern(const char *at, uint64_t *hash) {
  char *stop;
  if (strspn(at, "0123456789abcdef") != 16) return false;
  *hash = strtoull(at, &stop, 16);
  return !*stop;
}

static bool read_seconds(const char *at, double *seconds) {
  char *stop;
  *seconds = strtod(at, &stop);
  return stop != at && !*stop && isfinite(*seconds) && *seconds >= 0;
}

/* Cuts a line at its tabs; how many fields there are. */
static int32_t cut(char *line, char *field[FIELDS]) {
  int32_t count = 0;
  for (char *at = line; at && count <= FIELDS; count++) {
    char *tab = strchr(at, '\t');
    if (tab) *tab = 0;
    if (count < FIELDS) field[count] = at;
    at = tab ? tab + 1 : NULL;
  }
  return count;
}

typedef enum line_kind {
  LINE_EMPTY,   /* or a comment */
  LINE_FOREIGN, /* of another version */
  LINE_BAD, LINE_RECORD
} line_kind;

/* A line without its end, which is cut up. */
static line_kind read_line(char *line, wisdom_record *r, char *reason,
                           size_t size) {
  char *field[FIELDS];
  *r = (wisdom_record){0};
  if (!*line || *line == '#') return LINE_EMPTY;
  int32_t count = cut(line, field);
  const char *what = count != FIELDS                       ? "it is no record"
                     : strncmp(field[0], "dil ", 4)        ? "it is no record"
                     : !*field[1]                          ? "it has no device"
                     : !read_pattern(field[2], &r->key.pattern) ? "no pattern"
                     : !read_sizes(field[3], r->key.size)  ? "no sizes"
                     : !read_seconds(field[5], &r->seconds) ? "no time"
                                                            : NULL;
  if (what) {
    snprintf(reason, size, "%s", what);
    return LINE_BAD;
  }
  if (strcmp(field[0] + 4, DIL_VERSION)) return LINE_FOREIGN;
  unsigned device = strncmp(field[1], "cuda ", 5) ? KNOB_CPU : KNOB_CUDA;
  if (!knobs_read(field[4], device, &r->knobs, reason, size)) return LINE_BAD;
  r->key.device = field[1];
  r->name = field[6];
  return LINE_RECORD;
}

static void write_line(const wisdom_record *r, FILE *out) {
  char text[KNOBS_TEXT];
  fprintf(out,
          "dil " DIL_VERSION "\t%s\t%016" PRIx64 "\t%" PRId64 " %" PRId64
          " %" PRId64 "\t%s\t%.4g\t%s\n",
          r->key.device, r->key.pattern, r->key.size[0], r->key.size[1],
          r->key.size[2], knobs_text(&r->knobs, text), r->seconds, r->name);
}

/* ---- the file ------------------------------------------------------------ */

static dil_status failed(const char *doing, const char *path) {
  return dil_fail(DIL_ENVIRONMENT, "cannot %s '%s': %s", doing, path,
                  strerror(errno));
}

/* The whole file in the arena, NUL-terminated; "" when there is none. */
static dil_status read_text(arena *a, const char *path, char **text) {
  struct stat about;
  *text = arena_copy(a, "", 0);
  if (stat(path, &about) && errno == ENOENT) return DIL_OK;
  char *bytes = arena_take(a, FILE_MOST + 1, 1);
  FILE *in = fopen(path, "rb");
  if (!in) return failed("open", path);
  size_t length = fread(bytes, 1, FILE_MOST + 1, in);
  bool good = !ferror(in);
  fclose(in);
  if (!good) return failed("read", path);
  if (length > FILE_MOST)
    return dil_fail(DIL_ENVIRONMENT, "'%s' is larger than %d bytes", path,
                    FILE_MOST);
  bytes[length] = 0;
  *text = bytes;
  return DIL_OK;
}

/* The next line, without its end; NULL: there is none. */
static char *next_line(char **text) {
  char *line = *text;
  if (!*line) return NULL;
  size_t length = strcspn(line, "\n");
  *text = line + length + (line[length] == '\n');
  line[length] = 0;
  return line;
}

static void note_bad(arena *a, wisdom *w, int32_t line, const char *reason) {
  if (w->bad_count++ > 0) return;
  w->bad_line = line;
  w->reason = arena_copy(a, reason, strlen(reason));
}

dil_status wisdom_read(arena *a, const char *path, wisdom *w) {
  char *text, reason[160];
  *w = (wisdom){0};
  dil_status status = read_text(a, path, &text);
  if (status) return status;
  int32_t lines = 1, number = 0;
  for (const char *at = text; *at; at++) lines += *at == '\n';
  w->record = ARENA_ARRAY(a, wisdom_record, lines);
  for (char *line; (line = next_line(&text)) != NULL;) {
    number++;
    line_kind kind =
        read_line(line, &w->record[w->count], reason, sizeof reason);
    if (kind == LINE_RECORD) w->count++;
    if (kind == LINE_BAD) note_bad(a, w, number, reason);
  }
  return DIL_OK;
}

/* ---- adding -------------------------------------------------------------- */

/* All folders of a path. */
static dil_status make_folders(arena *a, const char *path) {
  char *folder = arena_copy(a, path, strlen(path));
  for (char *slash = folder; (slash = strchr(slash + 1, '/')) != NULL;) {
    *slash = 0;
    if (mkdir(folder, 0777) && errno != EEXIST)
      return failed("make the folder", folder);
    *slash = '/';
  }
  return DIL_OK;
}

/* The lines of the old file but that of the same key, then the record. */
static void write_all(arena *a, char *text, const wisdom_record *r, FILE *out) {
  char reason[160];
  wisdom_record old;
  for (char *line; (line = next_line(&text)) != NULL;) {
    char *kept = arena_copy(a, line, strlen(line));
    line_kind kind = read_line(line, &old, reason, sizeof reason);
    bool replaced = kind == LINE_RECORD && same_key(&old.key, &r->key);
    if (!replaced) fprintf(out, "%s\n", kept);
  }
  write_line(r, out);
}

static const char *fresh_path(arena *a, const char *path) {
  return arena_print(a, "%s.%ld", path, (long)getpid());
}

static const char *lock_path(arena *a, const char *path) {
  return arena_print(a, "%s.lock", path);
}

/* A new file in place of the old one. */
static dil_status replace(arena *a, const char *path, const wisdom_record *r) {
  char *text;
  dil_status status = read_text(a, path, &text);
  if (status) return status;
  const char *fresh = fresh_path(a, path);
  FILE *out = fopen(fresh, "wb");
  if (!out) return failed("write", fresh);
  write_all(a, text, r, out);
  bool good = !ferror(out);
  good = fclose(out) == 0 && good;
  if (good && rename(fresh, path) == 0) return DIL_OK;
  status = failed("write", path);
  unlink(fresh);
  return status;
}

dil_status wisdom_add(arena *a, const char *path, const wisdom_record *r) {
  dil_status status = make_folders(a, path);
  if (status) return status;
  const char *name = lock_path(a, path);
  FILE *lock = fopen(name, "ab");
  if (!lock) return failed("lock", name);
  status = flock(fileno(lock), LOCK_EX) ? failed("lock", name)
                                        : replace(a, path, r);
  fclose(lock);
  return status;
}

/* Opens the files that wisdom_add opens, but makes no lock. */
dil_status wisdom_probe(arena *a, const char *path) {
  char *text;
  const char *fresh = fresh_path(a, path), *name = lock_path(a, path);
  dil_status status = make_folders(a, path);
  if (!status) status = read_text(a, path, &text);
  if (status) return status;
  FILE *out = fopen(fresh, "wb");
  if (!out) return failed("write", fresh);
  fclose(out);
  unlink(fresh);
  FILE *lock = access(name, F_OK) ? NULL : fopen(name, "ab");
  if (!lock && errno != ENOENT) return failed("lock", name);
  if (lock) fclose(lock);
  return DIL_OK;
}
