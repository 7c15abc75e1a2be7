/* library_link.c - shared libraries, and objects made of several: the system's
 * C compiler, $CC or cc, links them. In: objects in memory, the name of the
 * library. Out: the file, or the compiler's own words about why not. */
#include "library.h"
#include "runtime/base/module.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { ARGUMENTS_MAX = 32, WORDS_MAX = 1500 };

/* A folder of its own for what the linker reads, and its words. */
typedef struct link_folder {
  const library *library;
  char folder[64];
  const char *file[4], *words;
  int32_t file_count;
} link_folder;

static dil_status write_object(link_folder *b, const library_object *o) {
  arena *a = b->library->arena;
  const char *path = arena_print(a, "%s/%s", b->folder, o->name);
  b->file[b->file_count++] = path;
  return library_file_write(path, o->bytes, o->size);
}

static dil_status link_folder_open(link_folder *b) {
  const char *wish = getenv("TMPDIR");
  snprintf(b->folder, sizeof b->folder, "%.40s/dil-XXXXXX",
           wish && strlen(wish) <= 40 ? wish : "/tmp");
  if (!mkdtemp(b->folder))
    return dil_fail(DIL_ENVIRONMENT, "cannot make a folder '%s': %s",
                    b->folder, strerror(errno));
  b->words = arena_print(b->library->arena, "%s/words", b->folder);
  return DIL_OK;
}

static void link_folder_close(link_folder *b) {
  for (int32_t i = 0; i < b->file_count; i++) unlink(b->file[i]);
  if (b->words) unlink(b->words);
  rmdir(b->folder);
}

/* ---- the compiler -------------------------------------------------------- */

static const char *compiler_words(void) {
  const char *wish = getenv("CC");
  return wish && *wish ? wish : "cc";
}

static dil_status no_compiler(void) {
  return dil_fail(DIL_ENVIRONMENT,
                  "shared libraries, and objects that stand alone, are linked "
                  "by the C compiler, and '%s' cannot be run; --emit=a,h needs "
                  "none",
                  compiler_words());
}

/* The first word of $CC, in the folders of $PATH. */
const char *library_linker(arena *a) {
  const char *words = compiler_words(), *folders = getenv("PATH");
  const char *name = arena_copy(a, words, strcspn(words, " "));
  if (strchr(name, '/') && !access(name, X_OK)) return name;
  while (folders && *folders && !strchr(name, '/')) {
    int length = (int)strcspn(folders, ":");
    const char *path = arena_print(a, "%.*s/%s", length, folders, name);
    if (!access(path, X_OK)) return path;
    folders += length + (folders[length] == ':');
  }
  no_compiler();
  return NULL;
}

/* ---- the command --------------------------------------------------------- */

/* A command as it grows; a NULL ends it. */
typedef struct command {
  int32_t count;
  const char *word[ARGUMENTS_MAX];
} command;

static void command_add(command *w, const char *word) {
  w->word[w->count++] = word;
}

static void command_add_shared(command *w, const library *l,
                               const char *runtime) {
  command_add(w, "-Xlinker"); /* not -Wl: a name may have a comma */
  command_add(w, "-soname");
  command_add(w, "-Xlinker");
  command_add(w, arena_print(l->arena, "%s.so", l->base));
  command_add(w, "-Wl,--build-id=none");
  command_add(w, "-Wl,-z,relro,-z,now,-z,noexecstack,-z,defs");
  /* contexts keep threads and pointers to code: closing must not unmap it */
  command_add(w, "-Wl,-z,nodelete");
  command_add(w, "-Wl,--as-needed");
  if (!l->standalone) command_add(w, runtime);
  command_add(w, "-lm");
  command_add(w, "-lpthread");
}

/* $CC may be several words: a shell takes them apart. */
static command list_arguments(const link_folder *b, bool shared,
                              const char *path, const char *runtime) {
  command w = {0};
  command_add(&w, "sh");
  command_add(&w, "-c");
  command_add(&w, "exec ${CC:-cc} \"$@\"");
  command_add(&w, "sh");
  command_add(&w, shared ? "-shared" : "-r");
  if (!shared) command_add(&w, "-nostdlib");
  command_add(&w, "-o");
  command_add(&w, path);
  for (int32_t i = 0; i < b->file_count; i++) command_add(&w, b->file[i]);
  if (shared) command_add_shared(&w, b->library, runtime);
  command_add(&w, NULL);
  return w;
}

/* The compiler's output, to the end of a line. */
static const char *read_words(const link_folder *b) {
  char text[WORDS_MAX];
  FILE *in = fopen(b->words, "rb");
  size_t length = in ? fread(text, 1, sizeof text, in) : 0;
  if (in) fclose(in);
  while (length && text[length - 1] == '\n') length--;
  return length ? arena_copy(b->library->arena, text, length) : "no reason";
}

static dil_status run_compiler(const link_folder *b, const char **argument) {
  posix_spawn_file_actions_t actions;
  pid_t child;
  int state = 0;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, b->words,
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  int failed = posix_spawnp(&child, "sh", &actions, NULL,
                            (char *const *)argument, environ);
  posix_spawn_file_actions_destroy(&actions);
  while (!failed && waitpid(child, &state, 0) < 0 && errno == EINTR) {}
  if (!failed && WIFEXITED(state) && WEXITSTATUS(state) == 0) return DIL_OK;
  bool missing = failed || (WIFEXITED(state) && WEXITSTATUS(state) == 127);
  if (missing) return no_compiler();
  return dil_fail(DIL_ENVIRONMENT, "the C compiler could not link '%s': %s",
                  b->library->base, read_words(b));
}

dil_status library_link(const library *l, const library_object *object,
                        int32_t count, bool shared, const char *path) {
  char runtime[DIL_PATH_MAX] = "";
  link_folder b = {.library = l};
  dil_status status =
      l->standalone ? DIL_OK : dil_module_find(LIBRARY_LINKED, runtime);
  if (!status) status = link_folder_open(&b);
  if (status) return status;
  for (int32_t i = 0; !status && i < count; i++)
    status = write_object(&b, &object[i]);
  command w = list_arguments(&b, shared, path, runtime);
  if (!status) status = run_compiler(&b, w.word);
  link_folder_close(&b);
  return status;
}
