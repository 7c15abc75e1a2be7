/* main.c - the `dil` program: finds the verb, has its options read, runs
 * it, and turns the status into an exit code (see `dil help`). */
#include "command.h"
#include "runtime/observe/observe.h"
#include "runtime/observe/trace.h"
#include <errno.h>
#include <signal.h>
#include <string.h>

static dil_status (*const commands[VERB_COUNT])(arena *, const options *) = {
#define VERB(id, name, operand, summary, examples) command_##id,
#include "options.def"
};

static bool is_pattern(const char *name) {
  size_t length = strlen(name);
  return !strncmp(name, "preset:", 7) ||
         (length > 4 && !strcmp(name + length - 4, ".dil"));
}

static const char *verb_hint(arena *a, const char *name) {
  const char *near = options_verb_nearest(name);
  if (is_pattern(name))
    return arena_print(a, "a verb stands before the file: `dil run %s`", name);
  return near ? arena_print(a, "did you mean '%s'?", near)
              : "`dil help` lists them";
}

static dil_status unknown_verb(arena *a, const char *name) {
  if (*name == '-')
    return message_error(DIL_USAGE,
                         "options stand behind a verb; `dil --help` and "
                         "`dil --version` have none",
                         "there is no verb '%s'", name);
  return message_error(DIL_USAGE, verb_hint(a, name), "there is no verb '%s'",
                       name);
}

static dil_status run_help(arena *a, int argc, char **argv) {
  if (argc < 3) {
    options_help(stdout);
    return DIL_OK;
  }
  if (argc > 3)
    return message_error(DIL_USAGE, NULL, "`dil %s` takes one verb, got '%s' "
                         "too", argv[1], argv[3]);
  verb which = options_verb(argv[2]);
  if (which == VERB_COUNT) return unknown_verb(a, argv[2]);
  options_verb_help(which, stdout);
  return DIL_OK;
}

static dil_status run_verb(arena *a, verb which, int argc, char **argv) {
  options o;
  dil_status status = options_read(a, which, argc, argv, &o);
  if (status) return status;
  if (!o.help) return commands[which](a, &o);
  options_verb_help(which, stdout);
  return DIL_OK;
}

static dil_status run_version(int argc, char **argv) {
  if (argc > 2)
    return message_error(DIL_USAGE, NULL, "`dil %s` takes nothing, got '%s'",
                         argv[1], argv[2]);
  puts("dil " DIL_VERSION);
  return DIL_OK;
}

static dil_status run_command(arena *a, int argc, char **argv) {
  if (argc < 2) {
    options_help(stderr);
    return DIL_USAGE;
  }
  const char *word = argv[1];
  if (!strcmp(word, "--version") || !strcmp(word, "-V"))
    return run_version(argc, argv);
  if (!strcmp(word, "help") || !strcmp(word, "--help") || !strcmp(word, "-h"))
    return run_help(a, argc, argv);
  verb which = options_verb(word);
  if (which == VERB_COUNT) return unknown_verb(a, word);
  return run_verb(a, which, argc - 1, argv + 1);
}

/* The statuses that have no exit code of their own. */
static int exit_code(dil_status status) {
  if (status == DIL_MEMORY) return DIL_ENVIRONMENT;
  if (status == DIL_UNSUPPORTED) return DIL_INPUT;
  if (status == DIL_PEER) return DIL_ENVIRONMENT;
  return (int)status;
}

int main(int argc, char **argv) {
  arena *a = arena_new();
  signal(SIGXFSZ, SIG_IGN); /* a write past the limit on files then fails */
  message_begin_json();
  dil_status status = dil_observe_open();
  if (!status) status = dil_observe_flush(); /* where that can be written */
  if (status) message_error(status, NULL, "%s", dil_last_error());
  dil_trace_name_thread("main");
  if (!status) status = message_end_json(run_command(a, argc, argv));
  arena_free(a);
  if ((fflush(stdout) || ferror(stdout)) && !status)
    status = message_error(DIL_ENVIRONMENT, NULL,
                           "cannot write standard output: %s", strerror(errno));
  if (dil_observe_flush() && !status)
    status = message_error(DIL_ENVIRONMENT, NULL, "%s", dil_last_error());
  return exit_code(status);
}
