/* ast_print.c - the tree as text: one statement a line in the form
 * (word name choice option args children), terms in prefix form. */
#include "ast.h"
#include "compiler/pattern/expr_rules.h"

static void print_term(const term *t, FILE *out) {
  switch (t->kind) {
  case TERM_INT: fprintf(out, "%lld", (long long)t->integer); return;
  case TERM_REAL: expr_print_real(t->real, out); return;
  case TERM_NAME: fputs(t->name, out); return;
  case TERM_INDEX: fprintf(out, "([] %s", t->name); break;
  case TERM_CALL: fprintf(out, "(%s", t->name); break;
  case TERM_PAIR: fputs("(,", out); break;
  case TERM_OPERATOR: fprintf(out, "(%s", expr_op_text(t->op)); break;
  }
  for (const term *arg = t->first; arg; arg = arg->next) {
    fputc(' ', out);
    print_term(arg, out);
  }
  fputc(')', out);
}

static void print_statement(const statement *s, int indent, FILE *out) {
  fprintf(out, "%*s(%s", indent, "", s->word ? word_text(s->word) : s->name);
  if (s->word && s->name) fprintf(out, " %s", s->name);
  if (s->choice) fprintf(out, " %s", word_text(s->choice));
  if (s->option) fprintf(out, " %s", word_text(s->option));
  for (const term *arg = s->args.first; arg; arg = arg->next) {
    fputc(' ', out);
    print_term(arg, out);
  }
  for (const statement *child = s->child; child; child = child->next) {
    fputc('\n', out);
    print_statement(child, indent + 2, out);
  }
  fputc(')', out);
}

void ast_print(const statement *items, FILE *out) {
  for (const statement *s = items; s; s = s->next) {
    print_statement(s, 0, out);
    fputc('\n', out);
  }
}
