/* options.c - reads a command line by the one table of options.def. In: argv.
 * Out: a struct options, or a message on standard error with what was probably
 * meant. */
#include "options.h"
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

enum verb_bits {
#define VERB(id, name, operand, summary, examples) id = 1 << VERB_##id,
#include "options.def"
};

static const option_row rows[OPTION_COUNT] = {
#define OPTION(id, name, letter, argument, kind, field, verbs, help)           \
  {name, letter, argument, KIND_##kind, offsetof(options, field), verbs, help},
#include "options.def"
};

/* Each field has the type that its kind is read as. */
#define X(name, type) typedef type kind_##name;
OPTION_KINDS(X)
#undef X
#define OPTION(id, name, letter, argument, kind, field, verbs, help)           \
  _Static_assert(                                                              \
      _Generic(&((options *)0)->field, kind_##kind * : 1, default : 0),        \
      "type of the field of --" name);
#include "options.def"

static const struct {
  const char *name, *operand, *summary, *examples;
} verbs[VERB_COUNT] = {
#define VERB(id, name, operand, summary, examples)                             \
  {name, operand, summary, examples},
#include "options.def"
};

static const char *const verb_names[] = {
#define VERB(id, name, operand, summary, examples) name,
#include "options.def"
    "help",
};

verb options_verb(const char *name) {
  int32_t v = 0;
  while (v < VERB_COUNT && strcmp(verbs[v].name, name)) v++;
  return (verb)v;
}

const char *options_verb_nearest(const char *name) {
  return diag_nearest(name, verb_names, VERB_COUNT + 1);
}

unsigned sets_union(const sets *list) {
  unsigned all = 0;
  for (int32_t i = 0; i < list->count; i++) all |= list->set[i];
  return all;
}

/* -MD and -MF, as C compilers have them. */
static bool is_compilers(const char *name) {
  return name[0] >= 'A' && name[0] <= 'Z';
}

/* An argument that may be left out stands behind "=" when it does not. */
static bool is_optional(const option_row *row) {
  return row->argument && row->argument[0] == '[';
}

verb_text options_verb_text(verb which) {
  return (verb_text){verbs[which].name, verbs[which].operand,
                     verbs[which].summary, verbs[which].examples};
}

bool options_text(verb which, int32_t index, option_text *text) {
  const option_row *row = &rows[index];
  *text = (option_text){.dashes = is_compilers(row->name) ? "-" : "--",
                        .name = row->name,
                        .argument = is_optional(row) ? NULL : row->argument,
                        .optional = is_optional(row) ? row->argument : NULL,
                        .help = row->help,
                        .letter = row->letter,
                        .words = row->kind == KIND_CHOICE ||
                                 row->kind == KIND_DEVICE ||
                                 row->kind == KIND_SET};
  return row->verbs >> which & 1;
}

unsigned options_force(const options *o) {
  return sets_union(&o->force);
}

const char *options_word(arena *a, option_id option, int32_t index) {
  const char *list = rows[option].argument;
  while (index-- > 0) list = strchr(list, '|') + 1;
  return arena_copy(a, list, strcspn(list, "|"));
}

/* ---- the command line ---------------------------------------------------- */

/* getopt's tables for one verb: the long names and, after ':', the letters. */
typedef struct tables {
  struct option longs[OPTION_COUNT + 1];
  char letters[2 * OPTION_COUNT + 2];
} tables;

enum { LONG_ONLY = 256 }; /* getopt's value of option i: LONG_ONLY + i */

static void make_tables(verb which, tables *t) {
  char *letter = t->letters;
  int32_t count = 0;
  *letter++ = ':';
  for (int32_t i = 0; i < OPTION_COUNT; i++) {
    if (!(rows[i].verbs >> which & 1)) continue;
    int has = is_optional(&rows[i]) ? optional_argument
              : rows[i].argument   ? required_argument
                                   : no_argument;
    t->longs[count++] = (struct option){rows[i].name, has, NULL, LONG_ONLY + i};
    if (!rows[i].letter) continue;
    *letter++ = rows[i].letter;
    if (rows[i].argument) *letter++ = ':';
  }
  *letter = 0;
  t->longs[count] = (struct option){0};
}

/* The words as getopt wants long options: with two dashes. */
static void spell_out(arena *a, verb which, int argc, char **argv) {
  for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
    for (int32_t r = 0; r < OPTION_COUNT; r++)
      if (is_compilers(rows[r].name) && rows[r].verbs >> which & 1 &&
          argv[i][0] == '-' && !strcmp(argv[i] + 1, rows[r].name))
        argv[i] = arena_print(a, "-%s", argv[i]);
}

/* By getopt's value: LONG_ONLY + index, or a letter. */
static const option_row *option_row_of(int found) {
  if (found >= LONG_ONLY) return &rows[found - LONG_ONLY];
  for (int32_t i = 0; i < OPTION_COUNT; i++)
    if (rows[i].letter == found) return &rows[i];
  return NULL;
}

/* "it is an option of `dil run`, `dil show`"; NULL: no verb has it. */
static const char *verbs_with_option(arena *a, unsigned with) {
  const char *list = NULL;
  for (int32_t v = 0; v < VERB_COUNT; v++)
    if (with >> v & 1)
      list = list ? arena_print(a, "%s, `dil %s`", list, verbs[v].name)
                  : arena_print(a, "`dil %s`", verbs[v].name);
  return list ? arena_print(a, "it is an option of %s", list) : NULL;
}

/* The longest of the names that `name` begins with, as --sequence does with
 * --seq; or NULL. */
static const char *longest_start(const char *name, const char *const *names,
                                 int32_t count) {
  size_t longest = 2; /* a letter or two begin anything */
  const char *found = NULL;
  for (int32_t i = 0; i < count; i++) {
    size_t length = strlen(names[i]);
    if (length <= longest || strncmp(name, names[i], length)) continue;
    longest = length;
    found = names[i];
  }
  return found;
}

/* The option that the user probably meant by `name`; or NULL. */
static const char *unknown_hint(arena *a, verb which, const char *name) {
  const char *names[OPTION_COUNT];
  int32_t count = 0;
  unsigned with = 0;
  for (int32_t i = 0; i < OPTION_COUNT; i++) {
    if (!strcmp(rows[i].name, name)) with |= rows[i].verbs;
    if (rows[i].verbs >> which & 1) names[count++] = rows[i].name;
  }
  if (with) return verbs_with_option(a, with);
  const char *near = diag_nearest(name, names, count);
  if (!near) near = longest_start(name, names, count);
  return near ? arena_print(a, "did you mean '--%s'?", near)
              : arena_print(a, "`dil help %s` lists them", verbs[which].name);
}

static int32_t count_prefix(verb which, const char *name) {
  int32_t count = 0;
  for (int32_t i = 0; i < OPTION_COUNT; i++)
    count += rows[i].verbs >> which & 1 &&
             !strncmp(rows[i].name, name, strlen(name));
  return count;
}

/* getopt returned '?': a letter is in optopt, a long one in the last word. */
static dil_status unknown_option(arena *a, verb which, const char *word) {
  if (strncmp(word, "--", 2) != 0) {
    const option_row *row = option_row_of(optopt);
    const char *hint =
        row ? verbs_with_option(a, row->verbs)
            : arena_print(a, "`dil help %s` lists them", verbs[which].name);
    return message_error(DIL_USAGE, hint, "`dil %s` has no option '-%c'",
                         verbs[which].name, optopt);
  }
  const char *name = arena_copy(a, word + 2, strcspn(word + 2, "="));
  if (optopt >= LONG_ONLY)
    return message_error(DIL_USAGE, NULL, "--%s takes no argument",
                         option_row_of(optopt)->name);
  if (count_prefix(which, name) > 1)
    return message_error(DIL_USAGE, unknown_hint(a, which, name),
                         "'--%s' can mean several options", name);
  return message_error(DIL_USAGE, unknown_hint(a, which, name),
                       "`dil %s` has no option '--%s'", verbs[which].name,
                       name);
}

static dil_status missing_argument(void) {
  const option_row *row = option_row_of(optopt);
  return message_error(DIL_USAGE, NULL, "--%s wants %s", row->name,
                       row->argument);
}

static dil_status missing_operand(verb which) {
  char hint[64];
  snprintf(hint, sizeof hint, "`dil help %s` has examples", verbs[which].name);
  return message_error(DIL_USAGE, hint, "`dil %s` needs %s", verbs[which].name,
                       verbs[which].operand);
}

/* --list prints all that is remembered: no other option goes with it. */
static dil_status check_list(const options *o) {
  if (o->file_count > 0)
    return message_error(DIL_USAGE, NULL,
                         "`dil tune --list` takes no file, got '%s'",
                         o->file[0]);
  for (int32_t i = 0; i < OPTION_COUNT; i++)
    if (o->seen[i] && i != OPTION_LIST && i != OPTION_JSON &&
        i != OPTION_ERROR_FORMAT)
      return message_error(DIL_USAGE, NULL,
                           "--%s has no effect with `dil tune --list`",
                           rows[i].name);
  return DIL_OK;
}

static dil_status too_many(const options *o) {
  bool word = strchr(verbs[o->verb].operand, '|') != NULL;
  bool bare = o->seen[OPTION_STREAM] && !o->stream;
  return message_error(DIL_USAGE,
                       bare ? "--stream takes its bytes behind a =, as in "
                              "--stream=4G"
                            : NULL,
                       "`dil %s` takes one %s, got '%s' too",
                       verbs[o->verb].name, word ? "word" : "file", o->file[1]);
}

static dil_status check_operands(const options *o) {
  const char *operand = verbs[o->verb].operand;
  if (o->help) return DIL_OK;
  if (o->list) return check_list(o);
  if (o->seen[OPTION_LIBRARY]) {
    if (o->file_count == 0) return DIL_OK;
    return message_error(DIL_USAGE, NULL,
                         "--library runs its own kernel: it takes no file, got "
                         "'%s'",
                         o->file[0]);
  }
  if (!*operand && o->file_count > 0)
    return message_error(DIL_USAGE, NULL, "`dil %s` takes no file, got '%s'",
                         verbs[o->verb].name, o->file[0]);
  if (o->file_count == 0 && *operand)
    return missing_operand(o->verb);
  if (o->file_count > 1 && !strstr(operand, "...")) return too_many(o);
  return DIL_OK;
}

static dil_status check_force_options(const options *o) {
  for (int32_t i = 0; i < o->force.count; i++) {
    unsigned set = o->verb == VERB_bench ? o->force.set[i] : options_force(o);
    const char *clash = plan_force_clash(set);
    if (clash)
      return message_error(DIL_USAGE, NULL, "--force %s exclude each other",
                           clash);
  }
  return DIL_OK;
}

/* Lists grow; of anything else the last would take the place of the first. */
static bool is_list(const option_row *row) {
  return row->kind == KIND_FLAG || row->kind == KIND_SET ||
         row->kind == KIND_PAIR;
}

static dil_status note_seen(options *o, const option_row *row,
                            const char *text, const char **before) {
  bool *seen = &o->seen[row - rows];
  text = text ? text : "";
  if (*seen && !is_list(row) && strcmp(*before, text))
    return message_error(DIL_USAGE, NULL, "--%s is given twice: '%s' and '%s'",
                         row->name, *before, text);
  *before = text;
  *seen = true;
  return DIL_OK;
}

dil_status options_read(arena *a, verb which, int argc, char **argv,
                        options *o) {
  tables t;
  const char *given[OPTION_COUNT];
  make_tables(which, &t);
  spell_out(a, which, argc, argv);
  *o = (options){.verb = which, .batch = 1};
  opterr = 0;
  optind = 1;
  for (int found;
       (found = getopt_long(argc, argv, t.letters, t.longs, NULL)) != -1;) {
    if (found == '?') return unknown_option(a, which, argv[optind - 1]);
    if (found == ':') return missing_argument();
    const option_row *row = option_row_of(found);
    dil_status status = note_seen(o, row, optarg, &given[row - rows]);
    if (!status)
      status = option_read(a, row, optarg, (char *)o + row->offset);
    if (status) return status;
  }
  o->file_count = argc - optind;
  o->file = (const char **)argv + optind;
  dil_status status = check_operands(o);
  return status ? status : check_force_options(o);
}

/* ---- what all subcommands ask of the compiler ---------------------------- */

driver_request command_request(const options *o, int32_t index) {
  return (driver_request){
      .path = o->file[index],
      .kernel = o->kernel,
      .topology = o->topology,
      .joins = o->verb == VERB_run || o->verb == VERB_explain ||
               o->verb == VERB_print || o->verb == VERB_check,
      .from_plan = o->seen[OPTION_FROM],
      .defines = o->define.pair,
      .define_count = o->define.count,
      .force = options_force(o),
      .direction = o->backward ? DIL_BACKWARD : DIL_FORWARD,
      .dtype = o->seen[OPTION_AS] ? dil_dtype_name((dil_dtype)o->as) : NULL,
      .sizes = {.heads = o->heads,
                .kv_heads = o->kv_heads,
                .head_dim = o->head_dim,
                .value_dim = o->value_dim},
      .isa = o->cpu,
      .variant = (dil_variant)o->variant,
      .last = STAGE_plan};
}
