/* expr_print.c - expressions as canonical source text.
 *
 * In: a typed tree and the names of the inputs. Out: text with just the
 * parentheses that C's precedence asks for; parsed, checked and folded again
 * it is the same tree. A folded condition prints as a comparison of integers,
 * for the language has no word for it. */
#include "expr_rules.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The precedence of operators, as in C. */
enum {
  LEVEL_CHOOSE, LEVEL_OR, LEVEL_AND, LEVEL_EQUAL, LEVEL_ORDER, LEVEL_SUM,
  LEVEL_PRODUCT, LEVEL_UNARY, LEVEL_PRIMARY
};

static int level_of(const expr *e) {
  switch (e->op) {
  case EXPR_CHOOSE: return LEVEL_CHOOSE;
  case EXPR_OR: return LEVEL_OR;
  case EXPR_AND: return LEVEL_AND;
  case EXPR_EQ:
  case EXPR_NE:
  case EXPR_TRUTH: return LEVEL_EQUAL;
  case EXPR_LT:
  case EXPR_LE:
  case EXPR_GT:
  case EXPR_GE: return LEVEL_ORDER;
  case EXPR_ADD:
  case EXPR_SUB: return LEVEL_SUM;
  case EXPR_MUL:
  case EXPR_DIV:
  case EXPR_MOD: return LEVEL_PRODUCT;
  case EXPR_NEG:
  case EXPR_NOT: return LEVEL_UNARY;
  case EXPR_INT: return e->integer < 0 ? LEVEL_UNARY : LEVEL_PRIMARY;
  case EXPR_REAL: return signbit(e->real) ? LEVEL_UNARY : LEVEL_PRIMARY;
  default: return LEVEL_PRIMARY;
  }
}

/* Adds ".0" before the exponent, or at the end, of digits without a point. */
static void print_digits(const char *digits, FILE *out) {
  size_t whole = strcspn(digits, ".e");
  if (digits[whole] == '.')
    fputs(digits, out);
  else
    fprintf(out, "%.*s.0%s", (int)whole, digits, digits + whole);
}

void expr_print_real(double x, FILE *out) {
  if (isinf(x)) {
    fputs(x < 0 ? "-inf" : "inf", out);
    return;
  }
  char digits[40];
  if (fabs(x) < 1e15 && x == floor(x)) {
    fprintf(out, "%.1f", x);
    return;
  }
  for (int precision = 1; precision <= 17; precision++) {
    snprintf(digits, sizeof digits, "%.*g", precision, x);
    if (strtod(digits, NULL) == x) break;
  }
  print_digits(digits, out);
}

typedef struct expr_printer {
  const dil_input *inputs;
  FILE *out;
} expr_printer;

static void print(const expr_printer *p, const expr *e);

static void print_at(const expr_printer *p, const expr *e, int least) {
  bool inside = level_of(e) < least;
  if (inside) fputc('(', p->out);
  print(p, e);
  if (inside) fputc(')', p->out);
}

static void print_list(const expr_printer *p, const expr *e, char open,
                       char close) {
  fputc(open, p->out);
  for (int32_t k = 0; k < e->count; k++) {
    if (k > 0) fputs(", ", p->out);
    print(p, e->arg[k]);
  }
  fputc(close, p->out);
}

/* `--x` would be two signs to a person and a puzzle to a scanner. */
static void print_unary(const expr_printer *p, const expr *e) {
  bool twice = e->op == EXPR_NEG && level_of(e->arg[0]) == LEVEL_UNARY;
  fputs(expr_op_text(e->op), p->out);
  print_at(p, e->arg[0], twice ? LEVEL_PRIMARY : LEVEL_UNARY);
}

static void print_choice(const expr_printer *p, const expr *e) {
  print_at(p, e->arg[0], LEVEL_CHOOSE + 1);
  fputs(" ? ", p->out);
  print(p, e->arg[1]);
  fputs(" : ", p->out);
  print(p, e->arg[2]);
}

/* All binary operators lean left. */
static void print_binary(const expr_printer *p, const expr *e) {
  print_at(p, e->arg[0], level_of(e));
  fprintf(p->out, " %s ", expr_op_text(e->op));
  print_at(p, e->arg[1], level_of(e) + 1);
}

static void print(const expr_printer *p, const expr *e) {
  switch (e->op) {
  case EXPR_INT: fprintf(p->out, "%lld", (long long)e->integer); return;
  case EXPR_REAL: expr_print_real(e->real, p->out); return;
  case EXPR_TRUTH: fputs(e->integer ? "0 == 0" : "0 == 1", p->out); return;
  case EXPR_INPUT:
    fputs(p->inputs[e->integer].name, p->out);
    print_list(p, e, '[', ']');
    return;
  case EXPR_CHOOSE: print_choice(p, e); return;
  case EXPR_NEG:
  case EXPR_NOT: print_unary(p, e); return;
  default: break;
  }
  if (level_of(e) < LEVEL_PRIMARY) {
    print_binary(p, e);
    return;
  }
  fputs(expr_op_text(e->op), p->out);
  if (e->count > 0) print_list(p, e, '(', ')');
}

void expr_print(const expr *e, const dil_input *inputs, FILE *out) {
  expr_printer p = {inputs, out};
  print(&p, e);
}
