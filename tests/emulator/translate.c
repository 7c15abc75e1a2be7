/* translate.c - preprocessed CUDA C to C++ that a compiler for the host takes.
 * In: a kernel's source, its words replaced by chip.h. Out: the same, where
 *
 *   asm("op.mods %0, [%1];" : "=r"(x) : "r"(y));   calls ptx_op_mods(x, y),
 *   extern __shared__ char name[];                 is the block's memory,
 *   const __grid_constant__ type p                 is a reference, and its
 *                                                  size is told to the driver.
 *
 * PTX is read as what it is, instruction by instruction: one that chip.h does
 * not have is an error of the compiler that names it. */
#include "translate.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { OPERANDS = 256, KERNELS = 16, NAME = 64 };

typedef struct asm_operand {
  const char *constraint, *text;
  int length;
} asm_operand;

typedef struct asm_statement {  /* one asm */
  char *ptx;                    /* its strings, joined */
  asm_operand operand[OPERANDS];
  int outputs, count;
} asm_statement;

typedef struct translation {
  const char *at;               /* what is left of the source */
  FILE *out;
  struct {
    char name[NAME], type[NAME];
  } kernel[KERNELS];
  int kernels;
  char *problem;
  size_t size;
  bool bad;
} translation;

static void complain(translation *t, const char *what, const char *where) {
  if (!t->bad)
    snprintf(t->problem, t->size, "%s: %.60s", what, where);
  t->bad = true;
}

/* ---- words of C ---------------------------------------------------------- */

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

static const char *skip_space(const char *s) {
  while (isspace((unsigned char)*s)) s++;
  return s;
}

static const char *skip_word(const char *s) {
  while (is_word(*s)) s++;
  return s;
}

/* Behind the quote that ends what the quote at s begins. */
static const char *skip_quoted(const char *s) {
  char quote = *s++;
  while (*s && *s != quote) s += *s == '\\' && s[1] ? 2 : 1;
  return *s ? s + 1 : s;
}

static bool begins(const char *s, const char *word) {
  size_t n = strlen(word);
  return !strncmp(s, word, n) && !is_word(s[n]);
}

/* Behind the bracket that closes the one at s. */
static const char *skip_brackets(const char *s) {
  int depth = 0;
  do {
    if (*s == '"' || *s == '\'') {
      s = skip_quoted(s);
      continue;
    }
    depth += (*s == '(') - (*s == ')');
    s++;
  } while (*s && depth);
  return s;
}

/* ---- an asm statement ----------------------------------------------------- */

/* Adjacent strings, joined and without their escapes; malloced. */
static char *read_strings(const char **from) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  const char *s = skip_space(*from);
  for (; *s == '"'; s = skip_space(s)) {
    const char *end = skip_quoted(s) - 1;
    for (s++; s < end; s++) {
      if (*s != '\\') fputc(*s, out);
      else fputc(*++s == 'n' ? '\n' : *s == 't' ? ' ' : *s, out);
    }
    s++;
  }
  fclose(out);
  *from = s;
  return text;
}

/* "constraint"(expression), ... up to a colon or the end. */
static const char *read_operands(translation *t, const char *s,
                                 asm_statement *a) {
  for (s = skip_space(s); *s == '"'; s = skip_space(s)) {
    const char *open = skip_space(skip_quoted(s));
    if (*open != '(' || a->count == OPERANDS) {
      complain(t, "an operand of asm", s);
      return s;
    }
    const char *close = skip_brackets(open);
    a->operand[a->count++] = (asm_operand){s + 1, open, (int)(close - open)};
    s = skip_space(close);
    if (*s == ',') s++;
  }
  return s;
}

static const char *read_statement(translation *t, const char *s,
                                  asm_statement *a) {
  const char *end = skip_brackets(s);
  s++;
  a->ptx = read_strings(&s);
  if (*s == ':') s = read_operands(t, s + 1, a);
  a->outputs = a->count;
  if (*s == ':') s = read_operands(t, s + 1, a);
  return end; /* clobbers say nothing to us */
}

/* ---- its instructions ------------------------------------------------------ */

static char letter_of(const asm_operand *o) {
  const char *s = o->constraint;
  while (*s == '=' || *s == '+' || *s == '&') s++;
  return *s;
}

static void write_operands(translation *t, const asm_statement *a) {
  for (int i = 0; i < a->count; i++) {
    const asm_operand *o = &a->operand[i];
    if (i < a->outputs)
      fprintf(t->out, "auto &ptx_%d = %.*s; ", i, o->length, o->text);
    else
      fprintf(t->out, "auto ptx_%d = ptx_in_%c(%.*s); ", i, letter_of(o),
              o->length, o->text);
  }
}

/* Names of PTX as names of C. */
static void write_name(FILE *out, const char *prefix, const char *s, int n) {
  fputs(prefix, out);
  for (int i = 0; i < n; i++) fputc(is_word(s[i]) ? s[i] : '_', out);
}

/* Operands from s to end: registers, [addresses], {lists}. */
static void write_arguments(FILE *out, const char *s, const char *end) {
  while (s < end) {
    if (*s == '[' || *s == ']' || isspace((unsigned char)*s)) s++;
    else if (*s == '{') fputs("ptx_list(", out), s++;
    else if (*s == '}') fputc(')', out), s++;
    else if (*s == '%' && isdigit((unsigned char)s[1])) {
      fprintf(out, "ptx_%d", atoi(s + 1));
      for (s++; isdigit((unsigned char)*s);) s++;
    } else if (*s == '%') { /* a special register: %%tid.x */
      const char *name = s + strspn(s, "%");
      for (s = name; is_word(*s) || *s == '.';) s++;
      write_name(out, "ptx_special_", name, (int)(s - name));
      fputs("()", out);
    } else if (*s == '_' && !is_word(s[1])) fputs("ptx_none", out), s++;
    else fputc(*s++, out);
  }
}

static void write_instruction(translation *t, const char *s, const char *end) {
  const char *name = s;
  while (s < end && !isspace((unsigned char)*s)) s++;
  if (!strncmp(name, "bra", 3)) {
    s = skip_space(s);
    fprintf(t->out, "goto ptx_at_%.*s; ", (int)(end - s), s);
    return;
  }
  write_name(t->out, "ptx_", name, (int)(s - name));
  fputc('(', t->out);
  write_arguments(t->out, s, end);
  fputs("); ", t->out);
}

/* One line of PTX, without its semicolon. */
static void write_line(translation *t, const char *s, const char *end) {
  while (s < end && (isspace((unsigned char)*s) || *s == '{' || *s == '}')) s++;
  while (end > s && isspace((unsigned char)end[-1])) end--;
  const char *word = skip_word(s);
  if (word > s && *word == ':' && word[1] != ':') {
    fprintf(t->out, "ptx_at_%.*s:; ", (int)(word - s), s);
    write_line(t, word + 1, end);
    return;
  }
  if (s == end) return;
  if (*s == '.') { /* .reg .pred p, q */
    const char *names = end;
    while (names[-1] != '.') names--;
    const char *type = begins(names, "pred")  ? "bool"
                       : begins(names, "b64") ? "unsigned long long"
                                              : "unsigned";
    names = skip_space(skip_word(names));
    fprintf(t->out, "%s %.*s; ", type, (int)(end - names), names);
    return;
  }
  if (*s == '@') {
    bool negated = s[1] == '!';
    const char *name = s + 1 + negated;
    s = skip_word(name);
    fprintf(t->out, "if (%s%.*s) ", negated ? "!" : "", (int)(s - name), name);
    s = skip_space(s);
  }
  write_instruction(t, s, end);
}

static void drop_comments(char *ptx) {
  for (char *s; (s = strstr(ptx, "//"));)
    while (*s && *s != '\n') *s++ = ' ';
}

/* Labels belong to the statement alone, wherever it is inlined. */
static void write_labels(translation *t, const char *ptx) {
  for (const char *s = ptx; *s; s++) {
    const char *end = skip_word(s);
    bool label = end > s && *end == ':' && end[1] != ':' &&
                 (s == ptx || !strchr(":._", s[-1])) &&
                 (s == ptx || !is_word(s[-1]));
    if (label)
      fprintf(t->out, "__label__ ptx_at_%.*s; ", (int)(end - s), s);
    if (end > s) s = end - 1;
  }
}

static void write_statement(translation *t, asm_statement *a) {
  drop_comments(a->ptx);
  fputs("do { ", t->out);
  write_labels(t, a->ptx);
  write_operands(t, a);
  for (const char *s = a->ptx; *s;) {
    const char *end = s + strcspn(s, ";");
    write_line(t, s, end);
    s = *end ? end + 1 : end;
  }
  fputs("} while (0)", t->out);
}

static void take_asm(translation *t) {
  const char *s = skip_space(skip_word(t->at));
  if (begins(s, "volatile")) s = skip_space(skip_word(s));
  asm_statement *a = calloc(1, sizeof *a);
  t->at = read_statement(t, s, a);
  write_statement(t, a);
  free(a->ptx);
  free(a);
}

/* ---- declarations ----------------------------------------------------------- */

/* extern __shared__ ALIGNMENT type name[]; */
static void take_shared(translation *t) {
  const char *end = strchr(t->at, ';'), *open = strchr(t->at, '[');
  if (!end || !open || open > end || open[1] != ']') {
    complain(t, "shared memory of fixed size", t->at);
    return;
  }
  const char *name = open, *type = skip_space(strstr(t->at, "__shared__") + 10);
  while (is_word(name[-1])) name--;
  if (begins(type, "__attribute__"))
    type = skip_space(skip_brackets(skip_word(type)));
  fprintf(t->out, "static %.*s *const &%.*s = *(%.*s *const *)&chip_shared",
          (int)(name - type), type, (int)(open - name), name,
          (int)(name - type), type);
  t->at = end;
}

/* NAME(const __grid_constant__ type p): `const` is out already. */
static void take_parameter(translation *t, const char *source) {
  const char *type = skip_space(skip_word(t->at)), *behind = skip_word(type);
  const char *open = t->at;
  while (open > source && *open != '(') open--;
  const char *name_end = open, *name;
  while (name_end > source && isspace((unsigned char)name_end[-1])) name_end--;
  for (name = name_end; name > source && is_word(name[-1]);) name--;
  if (t->kernels == KERNELS || name_end - name >= NAME ||
      behind - type >= NAME) {
    complain(t, "a kernel too many, or a long name", t->at);
    return;
  }
  snprintf(t->kernel[t->kernels].name, NAME, "%.*s", (int)(name_end - name),
           name);
  snprintf(t->kernel[t->kernels++].type, NAME, "%.*s", (int)(behind - type),
           type);
  fprintf(t->out, "%.*s &", (int)(behind - type), type);
  t->at = behind;
}

static void take_word(translation *t, const char *source) {
  const char *end = skip_word(t->at);
  if (begins(t->at, "asm")) take_asm(t);
  else if (begins(t->at, "__grid_constant__")) take_parameter(t, source);
  else if (begins(t->at, "extern") && begins(skip_space(end), "__shared__"))
    take_shared(t);
  else {
    fwrite(t->at, 1, (size_t)(end - t->at), t->out);
    t->at = end;
  }
}

bool translate(const char *source, FILE *out, char *problem, size_t size) {
  translation t = {.at = source, .out = out, .problem = problem, .size = size};
  while (*t.at && !t.bad) {
    if (*t.at == '"' || *t.at == '\'') {
      const char *end = skip_quoted(t.at);
      fwrite(t.at, 1, (size_t)(end - t.at), out);
      t.at = end;
    } else if (is_word(*t.at) && !isdigit((unsigned char)*t.at))
      take_word(&t, source);
    else if (isdigit((unsigned char)*t.at)) { /* 1u is one word */
      const char *end = skip_word(t.at);
      fwrite(t.at, 1, (size_t)(end - t.at), out);
      t.at = end;
    } else
      fputc(*t.at++, out);
  }
  for (int i = 0; i < t.kernels; i++)
    fprintf(out, "\nextern \"C\" __attribute__((visibility(\"default\"))) "
                 "const unsigned long %s_parameters = sizeof(%s);\n",
            t.kernel[i].name, t.kernel[i].type);
  return !t.bad;
}
