/* command_cache.c - `dil cache list|verify|gc|clear`: the stored kernels.
 * In: the folder that the environment names. Out: a line for each entry, its
 * fault, or a count of removed entries. A missing folder counts as empty. */
#include "command.h"
#include "runtime/base/environment.h"
#include "runtime/base/status.h"
#include "runtime/cache/cache.h"
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct store {
  arena *arena;
  const options *options;
  cache_options wanted;
  char path[PATH_MAX];
  int folder;           /* -1: there is none */
  cache_file *file;     /* [count] */
  int32_t count;
} store;

static dil_status open_store(store *s) {
  dil_status status = cache_options_read(&s->wanted, s->path);
  s->folder = -1;
  if (status) return status;
  if (!s->wanted.folder)
    return dil_fail(DIL_ENVIRONMENT, "neither DIL_CACHE_DIR nor HOME says "
                                     "where the cache is");
  bool read_only = s->wanted.mode == CACHE_READ_ONLY;
  s->folder = cache_folder_open(s->path, false, read_only);
  if (s->folder < 0) return errno == ENOENT ? DIL_OK : DIL_ENVIRONMENT;
  return cache_folder_list(s->folder, &s->file, &s->count);
}

static void close_store(store *s) {
  free(s->file);
  if (s->folder >= 0) close(s->folder);
}

/* The fault of an entry; NULL: it has none. *stale: it was good once. */
static const char *read_entry(const store *s, const cache_file *f,
                              cache_entry *e, bool *stale) {
  bool read_only = s->wanted.mode == CACHE_READ_ONLY;
  *stale = false;
  if (!cache_file_read(s->folder, f->name, read_only, e)) return NULL;
  *stale = errno == ESTALE;
  return dil_last_error();
}

static const char *entries_word(int32_t count) {
  return count == 1 ? "entry" : "entries";
}

/* ---- list ---------------------------------------------------------------- */

static void print_entry_json(const cache_file *f, const cache_entry *e,
                             const char *wrong) {
  json_t *o = json_object();
  json_object_set_new(o, "name", json_string(f->name));
  json_object_set_new(o, "bytes", json_integer(f->bytes));
  json_object_set_new(o, "label",
                      wrong ? json_null()
                            : json_stringn(e->label, e->label_size));
  json_object_set_new(o, "seconds",
                      wrong ? json_null() : json_real(e->seconds));
  json_object_set_new(o, "made", wrong ? json_null() : json_integer(e->made));
  json_object_set_new(o, "used", json_integer(f->used.tv_sec));
  json_object_set_new(o, "wrong", wrong ? json_string(wrong) : json_null());
  message_json(o);
}

static void print_entry_line(const cache_file *f, const cache_entry *e,
                             const char *wrong) {
  char bytes[QUANTITY_TEXT], took[QUANTITY_TEXT], made[32] = "";
  quantity_bytes((double)f->bytes, bytes);
  if (wrong) {
    printf("%12s  %s\n", bytes, wrong);
    return;
  }
  time_t when = (time_t)e->made;
  strftime(made, sizeof made, "%Y-%m-%d %H:%M", localtime(&when));
  printf("%12s  made %s in %-8s %.*s\n", bytes, made,
         quantity_time(e->seconds, took), (int)e->label_size, e->label);
}

static dil_status list_entries(store *s) {
  int64_t total = 0;
  int32_t entries = 0;
  char bytes[QUANTITY_TEXT], most[QUANTITY_TEXT];
  for (int32_t i = s->count - 1; i >= 0; i--) { /* the latest used first */
    cache_entry e;
    bool stale;
    if (s->file[i].temporary) continue;
    const char *wrong = read_entry(s, &s->file[i], &e, &stale);
    (s->options->json ? print_entry_json : print_entry_line)(&s->file[i], &e,
                                                             wrong);
    free(e.image);
    total += s->file[i].bytes;
    entries++;
  }
  if (!s->options->json)
    printf("%s: %d %s, %s of at most %s\n", s->path, entries,
           entries_word(entries),
           quantity_bytes((double)total, bytes),
           quantity_bytes((double)s->wanted.disk_max, most));
  return DIL_OK;
}

/* ---- verify, gc, clear --------------------------------------------------- */

/* Why entries are stale: a compiler that changed makes all of its own so. */
typedef struct cause {
  const char *reason; /* without the entry's name */
  int32_t entries;
} cause;

static void count_cause(const store *s, cause *causes, const char *wrong) {
  const char *reason = strstr(wrong, ": ");
  reason = reason ? reason + 2 : wrong;
  while (causes->entries && strcmp(causes->reason, reason)) causes++;
  if (!causes->entries++)
    causes->reason = arena_copy(s->arena, reason, strlen(reason));
}

/* The findings of `verify`. Stale entries are refused at use, but nothing is wrong
 * with them: each cause has a line, not each of them. */
typedef struct findings {
  int32_t entries, bad, stale;
  cause *causes; /* of the stale ones; the last has no entries */
  json_t *bad_list, *stale_list; /* {"name", "wrong"} each */
} findings;

static void note_entry(const store *s, findings *f, const char *name,
                       const char *wrong, bool stale) {
  f->entries++;
  if (!wrong) return;
  f->stale += stale;
  f->bad += !stale;
  json_array_append_new(stale ? f->stale_list : f->bad_list,
                        json_pack("{s:o, s:o}", "name", diag_json(name),
                                  "wrong", diag_json(wrong)));
  if (stale)
    count_cause(s, f->causes, wrong);
  else if (!s->options->json)
    printf("%s\n", wrong);
}

static void print_findings(const store *s, const findings *f) {
  for (const cause *c = f->causes; c->entries; c++)
    printf("%d stale %s: %s\n", c->entries, entries_word(c->entries),
           c->reason);
  printf("%s: %d %s, %d bad, %d stale%s\n", s->path, f->entries,
         entries_word(f->entries), f->bad, f->stale,
         f->bad + f->stale ? "; `dil cache gc` removes what cannot be used"
                           : "");
}

static dil_status verify_entries(store *s) {
  findings f = {.causes = ARENA_ARRAY(s->arena, cause, s->count + 1),
                .bad_list = json_array(),
                .stale_list = json_array()};
  for (int32_t i = 0; i < s->count; i++) {
    cache_entry e;
    bool stale;
    if (s->file[i].temporary) continue;
    const char *wrong = read_entry(s, &s->file[i], &e, &stale);
    note_entry(s, &f, s->file[i].name, wrong, stale);
    free(e.image);
  }
  if (!s->options->json) print_findings(s, &f);
  json_t *all =
      json_pack("{s:o, s:i, s:o, s:o}", "folder", diag_json(s->path), "entries",
                f.entries, "bad", f.bad_list, "stale", f.stale_list);
  if (s->options->json)
    message_json(all);
  else
    json_decref(all);
  return f.bad ? DIL_MISMATCH : DIL_OK;
}

static dil_status remove_file(const store *s, const cache_file *f,
                              int64_t *bytes, int32_t *removed) {
  if (unlinkat(s->folder, f->name, 0) && errno != ENOENT)
    return dil_fail(DIL_ENVIRONMENT, "cannot remove %s: %s", f->name,
                    strerror(errno));
  *bytes += f->bytes;
  ++*removed;
  return DIL_OK;
}

static void print_removed(const store *s, int32_t removed, int64_t bytes) {
  char text[QUANTITY_TEXT];
  if (s->options->json) {
    message_json(json_pack("{s:o, s:i, s:I}", "folder", diag_json(s->path),
                           "removed", removed, "bytes", (json_int_t)bytes));
    return;
  }
  printf("removed %d %s, %s\n", removed, removed == 1 ? "file" : "files",
         quantity_bytes((double)bytes, text));
}

/* Removes entries that cannot be used, then the oldest ones until the cache
 * fits. */
static dil_status collect_garbage(store *s) {
  int64_t max = s->wanted.disk_max, gone = 0, left = 0, before = 0;
  int32_t removed = 0, trimmed = 0;
  dil_status status = DIL_OK;
  if (s->options->seen[OPTION_MAX_SIZE])
    status = environment_read_bytes("--max-size", s->options->max_size, &max);
  for (int32_t i = 0; !status && i < s->count; i++) {
    cache_entry e;
    bool stale;
    if (s->file[i].temporary) {
      if (cache_file_is_stale(s->folder, &s->file[i]))
        status = remove_file(s, &s->file[i], &gone, &removed);
      continue;
    }
    if (read_entry(s, &s->file[i], &e, &stale))
      status = remove_file(s, &s->file[i], &gone, &removed);
    else
      before += s->file[i].bytes;
    free(e.image);
  }
  if (!status && s->folder >= 0)
    status = cache_folder_trim(s->folder, max, max, &left, &trimmed);
  if (!status) print_removed(s, removed + trimmed, gone + before - left);
  return status;
}

static dil_status clear_entries(store *s) {
  int64_t bytes = 0;
  int32_t removed = 0;
  dil_status status = DIL_OK;
  for (int32_t i = 0; !status && i < s->count; i++)
    status = remove_file(s, &s->file[i], &bytes, &removed);
  if (!status) print_removed(s, removed, bytes);
  return status;
}

/* ---- the subcommand ------------------------------------------------------ */

static const struct {
  const char *word;
  dil_status (*act)(store *s);
  bool writes;
} acts[] = {{"list", list_entries, false},
            {"verify", verify_entries, false},
            {"gc", collect_garbage, true},
            {"clear", clear_entries, true}};
enum { ACTS = sizeof acts / sizeof *acts };

static dil_status unknown_action(arena *a, const char *word) {
  const char *words[ACTS];
  for (int32_t i = 0; i < ACTS; i++) words[i] = acts[i].word;
  const char *near = diag_nearest(word, words, ACTS);
  return message_error(
      DIL_USAGE, near ? arena_print(a, "did you mean '%s'?", near) : NULL,
      "`dil cache` takes list, verify, gc or clear, got '%s'", word);
}

dil_status command_cache(arena *a, const options *o) {
  store s = {.arena = a, .options = o};
  int32_t i = 0;
  while (i < ACTS && strcmp(acts[i].word, o->file[0])) i++;
  if (i == ACTS) return unknown_action(a, o->file[0]);
  if (acts[i].act != collect_garbage && o->seen[OPTION_MAX_SIZE])
    return message_error(DIL_USAGE, NULL,
                         "--max-size has no effect with `dil cache %s`",
                         acts[i].word);
  dil_status status = open_store(&s);
  if (!status && acts[i].writes && s.wanted.mode == CACHE_READ_ONLY)
    status = dil_fail(DIL_USAGE, "DIL_CACHE=ro keeps `dil cache %s` from "
                                 "removing anything", acts[i].word);
  if (!status) status = acts[i].act(&s);
  close_store(&s);
  if (!status || status == DIL_MISMATCH) return status;
  return message_error(status, NULL, "%s", dil_last_error());
}
