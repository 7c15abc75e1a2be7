/* options_help.c - what `dil help` and --help say. In: the option table. Out:
 * text, wrapped. */
#include "command.h"
#include <string.h>

enum { HELP_COLUMN = 26, HELP_WIDTH = 79 };

/* Words of `text` from column `at` on, broken before HELP_WIDTH. */
static void print_wrapped(FILE *out, int at, const char *text) {
  for (bool first = true; *text; first = false) {
    int size = (int)strcspn(text, " ");
    if (first || at + 1 + size > HELP_WIDTH) {
      bool fresh = !first || at > HELP_COLUMN;
      fprintf(out, "%s%*s", fresh ? "\n" : "",
              fresh ? HELP_COLUMN : HELP_COLUMN - at, "");
      at = HELP_COLUMN;
    } else {
      fputc(' ', out);
      at++;
    }
    fwrite(text, 1, (size_t)size, out);
    at += size;
    text += size + (text[size] == ' ');
  }
  fputc('\n', out);
}

static void print_examples(const char *examples, FILE *out) {
  fputs("\nexamples:\n", out);
  while (*examples) {
    int size = (int)strcspn(examples, "\n");
    fprintf(out, "  %.*s\n", size, examples);
    examples += size + 1;
  }
}

static void print_option(const option_text *row, FILE *out) {
  char letter[] = "    ";
  if (row->letter) snprintf(letter, sizeof letter, "-%c, ", row->letter);
  int at = fprintf(out, "  %s%s%s", letter[0] == '-' ? letter : "    ",
                   row->dashes, row->name);
  if (row->optional) at += fprintf(out, "%s", row->optional);
  if (row->argument) at += fprintf(out, " %s", row->argument);
  /* at least two blanks between the option and what it does */
  print_wrapped(out, at + 2 > HELP_COLUMN ? HELP_COLUMN + 1 : at, row->help);
}

void options_verb_help(verb which, FILE *out) {
  verb_text t = options_verb_text(which);
  fprintf(out, "usage: dil %s [OPTION...]%s%s\n\n%s\n", t.name,
          *t.operand ? " " : "", t.operand, t.summary);
  print_examples(t.examples, out);
  fputs("\noptions:\n", out);
  option_text row;
  for (int32_t i = 0; i < OPTION_COUNT; i++)
    if (options_text(which, i, &row)) print_option(&row, out);
}

void options_help(FILE *out) {
  fputs("usage: dil VERB [OPTION...] FILE\n\n"
        "A compiler for attention: patterns in, kernels out.\n"
        "\nexamples:\n",
        out);
  for (int32_t v = 0; v < VERB_COUNT; v++) {
    const char *examples = options_verb_text((verb)v).examples;
    fprintf(out, "  %.*s\n", (int)strcspn(examples, "\n"), examples);
  }
  fputs("\nverbs:\n", out);
  for (int32_t v = 0; v < VERB_COUNT; v++) {
    verb_text t = options_verb_text((verb)v);
    fprintf(out, "  %-11s%s\n", t.name, t.summary);
  }
  fputs("  help       Says this, or with a verb what that one takes.\n"
        "\n`dil --version` says which version this is. Exit codes: 0 good, 1 "
        "the input is\nwrong, 2 bad command line, 3 the machine lacks "
        "something, 4 a result differs\nfrom the oracle, 70 a bug of dil.\n",
        out);
}
