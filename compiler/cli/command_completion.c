/* command_completion.c - `dil completion SHELL`: a script that teaches a shell
 * what dil takes. In: the option table. Out: the script, on standard output. */
#include "command.h"
#include <string.h>

/* ---- what all shells need ------------------------------------------------ */

/* A list "a|b|c" with other signs between its words. */
static void put_words(const char *list, char between) {
  for (; *list; list++) putchar(*list == '|' ? between : *list);
}

/* Text with a backslash before each of `special`; the end of a line becomes a
 * blank, and a quote that would end 'text' is left out. */
static void put_shell_escaped(const char *text, const char *special) {
  for (; *text; text++) {
    if (*text == '\'') continue;
    if (strchr(special, *text)) putchar('\\');
    putchar(*text);
  }
}

static bool takes_files(verb which) {
  return !strncmp(options_verb_text(which).operand, "FILE", 4);
}

/* Words that stand in place of a file. */
static const char *operand_words(verb which) {
  const char *operand = options_verb_text(which).operand;
  return strchr(operand, '|') ? operand : "";
}

static bool names_file(const option_text *o) {
  return o->argument && strstr(o->argument, "F.npy");
}

/* ---- bash ---------------------------------------------------------------- */

static void bash_option(const option_text *o) {
  if (!o->words && !names_file(o)) return;
  fputs("    ", stdout);
  if (o->letter) printf("-%c|", o->letter);
  printf("%s%s)\n", o->dashes, o->name);
  fputs("      COMPREPLY=($(compgen ", stdout);
  if (o->words) {
    fputs("-W '", stdout);
    put_words(o->argument, ' ');
    putchar('\'');
  } else {
    fputs("-f -X '!*.npy'", stdout);
  }
  puts(" -- \"$word\"))\n      return ;;");
}

static void bash_verb(verb which) {
  option_text o;
  printf("  %s)\n    case $before in\n", options_verb_text(which).name);
  for (int32_t i = 0; i < OPTION_COUNT; i++)
    if (options_text(which, i, &o)) bash_option(&o);
  fputs("    esac\n    options='", stdout);
  for (int32_t i = 0; i < OPTION_COUNT; i++)
    if (options_text(which, i, &o)) printf("%s%s ", o.dashes, o.name);
  fputs("'\n    operands='", stdout);
  put_words(operand_words(which), ' ');
  puts("' ;;");
}

static void print_bash(void) {
  puts("# Completion of dil for bash; made by `dil completion bash`.\n"
       "_dil() {\n"
       "  local word=${COMP_WORDS[COMP_CWORD]} options= operands=\n"
       "  local before=${COMP_WORDS[COMP_CWORD - 1]}");
  fputs("  local verbs='", stdout);
  for (int32_t v = 0; v < VERB_COUNT; v++)
    printf("%s ", options_verb_text((verb)v).name);
  puts("help --version'\n"
       "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
       "    COMPREPLY=($(compgen -W \"$verbs\" -- \"$word\"))\n"
       "    return\n"
       "  fi\n"
       "  case ${COMP_WORDS[1]} in");
  for (int32_t v = 0; v < VERB_COUNT; v++) bash_verb((verb)v);
  puts("  help) operands=$verbs ;;\n"
       "  esac\n"
       "  if [ \"${word#-}\" != \"$word\" ]; then\n"
       "    COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
       "  elif [ -n \"$operands\" ]; then\n"
       "    COMPREPLY=($(compgen -W \"$operands\" -- \"$word\"))\n"
       "  else\n"
       "    COMPREPLY=($(compgen -d -- \"$word\")\n"
       "      $(compgen -f -X '!*.dil' -- \"$word\"))\n"
       "  fi\n"
       "}\n"
       "complete -o filenames -F _dil dil");
}

/* ---- zsh ----------------------------------------------------------------- */

static void zsh_option(const option_text *o) {
  bool again = o->argument && strchr(o->argument, '=');
  fputs("      '", stdout);
  if (again || o->words) putchar('*');
  bool joined = o->argument && o->dashes[1];
  printf("%s%s%s[", o->dashes, o->name, joined ? "=" : "");
  put_shell_escaped(o->help, "[]:\\");
  putchar(']');
  if (o->words) {
    printf(":%s:(", o->name);
    put_words(o->argument, ' ');
    putchar(')');
  } else if (o->argument) {
    putchar(':');
    put_shell_escaped(o->argument, "[]:\\");
    printf(":%s", names_file(o) ? "_files -g \"*.npy\"" : " ");
  }
  puts("' \\");
}

static void zsh_verb(verb which) {
  option_text o;
  printf("  %s)\n    _arguments \\\n", options_verb_text(which).name);
  for (int32_t i = 0; i < OPTION_COUNT; i++)
    if (options_text(which, i, &o)) zsh_option(&o);
  if (takes_files(which)) {
    fputs("      '*:file:_files -g \"*.dil\"'", stdout);
  } else {
    fputs("      '1:word:(", stdout);
    put_words(operand_words(which), ' ');
    fputs(")'", stdout);
  }
  puts(" ;;");
}

static void print_zsh(void) {
  puts("#compdef dil\n"
       "# Completion of dil for zsh; made by `dil completion zsh`.\n"
       "_dil() {\n"
       "  local -a verbs\n"
       "  verbs=(");
  for (int32_t v = 0; v < VERB_COUNT; v++) {
    verb_text t = options_verb_text((verb)v);
    printf("    '%s:", t.name);
    put_shell_escaped(t.summary, "\\");
    puts("'");
  }
  puts("    'help:Says what dil, or a verb, takes.'\n"
       "  )\n"
       "  if (( CURRENT == 2 )); then\n"
       "    _describe verb verbs\n"
       "    return\n"
       "  fi\n"
       "  shift words\n"
       "  (( CURRENT-- ))\n"
       "  case $words[1] in");
  for (int32_t v = 0; v < VERB_COUNT; v++) zsh_verb((verb)v);
  puts("  help) _describe verb verbs ;;\n"
       "  esac\n"
       "}\n"
       "if [ \"$funcstack[1]\" = _dil ]; then\n"
       "  _dil \"$@\"\n"
       "else\n"
       "  compdef _dil dil\n"
       "fi");
}

/* ---- fish ---------------------------------------------------------------- */

static void fish_option(verb which, const option_text *o) {
  printf("complete -c dil -n '__fish_seen_subcommand_from %s' -%c %s",
         options_verb_text(which).name, o->dashes[1] ? 'l' : 'o', o->name);
  if (o->letter) printf(" -s %c", o->letter);
  if (o->words) {
    fputs(" -x -a '", stdout);
    put_words(o->argument, ' ');
    putchar('\'');
  } else if (o->argument) {
    fputs(names_file(o) ? " -r" : " -x", stdout);
  }
  fputs(" -d '", stdout);
  put_shell_escaped(o->help, "\\");
  puts("'");
}

static void print_fish(void) {
  option_text o;
  puts("# Completion of dil for fish; made by `dil completion fish`.");
  for (int32_t v = 0; v < VERB_COUNT; v++) {
    verb_text t = options_verb_text((verb)v);
    printf("complete -c dil -f -n __fish_use_subcommand -a %s -d '", t.name);
    put_shell_escaped(t.summary, "\\");
    puts("'");
    for (int32_t i = 0; i < OPTION_COUNT; i++)
      if (options_text((verb)v, i, &o)) fish_option((verb)v, &o);
    if (!*operand_words((verb)v)) continue;
    printf("complete -c dil -f -n '__fish_seen_subcommand_from %s' -a '",
           t.name);
    put_words(operand_words((verb)v), ' ');
    puts("'");
  }
}

/* ---- the command --------------------------------------------------------- */

static const struct {
  const char *name;
  void (*print)(void);
} shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};

dil_status command_completion(arena *a, const options *o) {
  (void)a;
  for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
    if (!strcmp(shells[i].name, o->file[0])) {
      shells[i].print();
      return DIL_OK;
    }
  return message_error(DIL_USAGE, NULL,
                       "`dil completion` is for bash, zsh or fish, not '%s'",
                       o->file[0]);
}
