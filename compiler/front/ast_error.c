/* ast_error.c - syntax errors in words: what stands there, what could stand
 * there, and what was probably meant. In: a place and the parser's list of
 * acceptable tokens. Out: one message in diag. */
#include "ast.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
  EXPECTED_SHOWN = 5,  /* longer lists go to the hint */
  QUOTED_MAX = 40,     /* bytes of a token that a message repeats */
};

/* ---- tokens in messages -------------------------------------------------- */

/* The token at `at` in quotes, cut when long, without control bytes. */
static const char *quote_token(ast_reader *r, span at) {
  const char *text = r->source->text + at.start;
  int32_t length = at.end - at.start;
  if (length == 0) return "end of file";
  bool cut = length > QUOTED_MAX;
  char *quoted = arena_print(r->arena, "'%.*s%s'", cut ? QUOTED_MAX : length,
                             text, cut ? "..." : "");
  for (char *c = quoted; *c; c++)
    if ((unsigned char)*c < ' ' || *c == 0x7F) *c = ' ';
  return quoted;
}

static bool is_one_of(const char *text, const char *const *list) {
  for (; *list; list++)
    if (!strcmp(text, *list)) return true;
  return false;
}

static bool is_expected(const char *text, const char *const *expected,
                        int32_t count) {
  for (int32_t i = 0; i < count; i++)
    if (!strcmp(text, expected[i])) return true;
  return false;
}

static bool is_keyword(const char *text) {
  for (word w = 1; w < WORD_COUNT; w++)
    if (!strcmp(text, word_text(w))) return true;
  return false;
}

/* Where an expression may begin, its six tokens become one thing. Where an
 * expression may go on, its operators are left out: the tokens that end it say
 * more. */
static int32_t expected_shorten(const char **list, const char *const *expected,
                                int32_t count) {
  static const char *const starts[] = {"an integer", "a float", "a name",
                                       "'('", "'!'", "'-'", NULL};
  static const char *const operators[] = {
      "'*'", "'/'", "'%'", "'+'", "'-'", "'<'", "'>'", "'?'", "<=",
      ">=",  "==",  "!=",  "&&",  "||",  "'('", "'['", NULL};
  bool begins = is_expected("'!'", expected, count);
  bool goes_on = is_expected("'*'", expected, count);
  int32_t kept = 0;
  for (int32_t i = 0; i < count; i++) {
    bool folded = (begins && is_one_of(expected[i], starts)) ||
                  (goes_on && is_one_of(expected[i], operators)) ||
                  !strcmp(expected[i], "end of file");
    if (!folded) list[kept++] = expected[i];
  }
  if (begins) list[kept++] = "an expression";
  return kept;
}

/* "a, b or c"; signs and keywords in quotes. */
static const char *expected_list(ast_reader *r, const char *const *list,
                                 int32_t count) {
  const char *text = "";
  for (int32_t i = 0; i < count; i++) {
    const char *comma = i == 0 ? "" : i == count - 1 ? " or " : ", ";
    bool bare = strchr(list[i], ' ') || list[i][0] == '\'';
    text = arena_print(r->arena, bare ? "%s%s%s" : "%s%s'%s'", text, comma,
                       list[i]);
  }
  return text;
}

/* ---- habits from elsewhere ------------------------------------------------ */

typedef struct habit {
  const char *wrote, *hint;
} habit;

#define QUERY_HABIT "the position of the query is `i`"
#define KEY_HABIT "the position of the key is `j`"
#define KV_HABIT "`heads 32 kv 8;` says both"

static const habit words[] = {
    {"and", "'and' is written &&"},
    {"or", "'or' is written ||"},
    {"not", "'not' is written !"},
    {"q_idx", QUERY_HABIT},
    {"query", QUERY_HABIT},
    {"q", QUERY_HABIT},
    {"kv_idx", KEY_HABIT},
    {"key", KEY_HABIT},
    {"k", KEY_HABIT},
    {"float32", "it is called 'f32' here"},
    {"float16", "it is called 'f16' here"},
    {"half", "it is called 'f16' here"},
    {"bfloat16", "it is called 'bf16' here"},
    {"int32", "it is called 'i32' here"},
    {"int64", "integers of an input are 'i32' or 'u8'"},
    {"i64", "integers of an input are 'i32' or 'u8'"},
    {"uint8", "it is called 'u8' here"},
    {"bool", "a `u8` holds 0 or 1"},
    {"true", "there is no word for it: write `causal;` or leave it out"},
    {"false", "there is no word for it: write `causal;` or leave it out"},
    {"True", "a mask that is left out is true"},
    {"num_heads", "it is called 'heads' here"},
    {"n_heads", "it is called 'heads' here"},
    {"plan", "`--from plan` reads what `dil print --after plan` printed"},
    {"kv_heads", KV_HABIT},
    {"num_kv_heads", KV_HABIT},
};

static const habit signs[] = {
    {"&", "'and' is written &&"},
    {"|", "'or' is written ||"},
    {"=>", "'=>' is written >="},
    {"^", "a power is written as a product, or as its number"},
    {"'", "a string is written \"in these\""},
    {"/*", "a comment begins with #"},
    {"\xE2\x89\xA4", "it is written <="},
    {"\xE2\x89\xA5", "it is written >="},
    {"\xE2\x89\xA0", "it is written !="},
    {"\xC2\xA0", "this blank is one of typesetting: write an ordinary one"},
    {"\xEF\xBB\xBF", "a byte order mark: save the file without one"},
};

const char *ast_habit(const char *text) {
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (!strcmp(words[i].wrote, text)) return words[i].hint;
  return NULL;
}

static bool stands_at(const source *s, int32_t at, const char *text) {
  size_t length = strlen(text);
  return at >= 0 && (size_t)at + length <= (size_t)s->length &&
         !memcmp(s->text + at, text, length);
}

/* A statement that another block has. */
static const char *place_habit(ast_reader *r, const char *got,
                               const char *const *expected, int32_t count) {
  static const char *const of_pattern[] = {
      "head_dim", "dtype",   "scale",    "combine", "input",
      "dropout",  "gradient", "segments", "dilations", "grid", NULL};
  bool in_pattern = is_expected("branch", expected, count);
  bool in_branch = !in_pattern && is_expected("segment", expected, count);
  if (in_pattern && !strcmp(got, "kv")) return KV_HABIT;
  if (in_pattern && !strcmp(got, "segment"))
    return "it stands in a branch: `branch { segment ...; }`";
  if (!in_branch || !is_one_of(got, of_pattern)) return NULL;
  return arena_print(r->arena, "'%s' stands in the pattern, outside of a branch",
                     got);
}

/* named: a name alone may stand here; goes_on: an expression may go on. */
static const char *order_habit(ast_reader *r, span at, bool named,
                               bool goes_on) {
  const char *last = r->source->text + r->last.start;
  char sign = r->source->text[at.start];
  if (sign == '=' && goes_on) return "equality is written ==";
  if (sign == ';' && *last == '}') return "no ';' follows a '}'";
  if (sign == '-' && !goes_on && isalpha((unsigned char)*last))
    return "a name is of letters, digits and '_'";
  return sign == '{' && named
             ? arena_print(r->arena, "it has a name: `%.*s NAME { ... }`",
                           (int)(r->last.end - r->last.start), last)
             : NULL;
}

/* Whether the first bar of the line that is no part of `||` stands where an
 * operand begins: |i - j|. */
static bool bars_enclose(ast_reader *r, span at) {
  const char *text = r->source->text;
  int32_t line = at.start, bar, end;
  while (line > 0 && text[line - 1] != '\n') line--;
  for (bar = line; bar < at.start; bar++) {
    bool either = stands_at(r->source, bar, "||");
    if (text[bar] == '|' && !either) break;
    bar += either;
  }
  for (end = bar; end > line && text[end - 1] == ' ';) end--;
  int32_t begin = end;
  while (begin > line && (isalnum((unsigned char)text[begin - 1]) ||
                          text[begin - 1] == '_'))
    begin--;
  if (begin < end)
    return is_keyword(
        arena_copy(r->arena, text + begin, (size_t)(end - begin)));
  return end == line || !strchr(")]", text[end - 1]);
}

/* valued: what stands before wants a value: `segment: 64;`, `segment = 64;` */
static const char *sign_habit(ast_reader *r, span at, bool valued) {
  const source *s = r->source;
  if (s->text[at.start] == '|' && bars_enclose(r, at))
    return "the size of a number is abs(x)";
  for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
    if (stands_at(s, at.start, signs[i].wrote)) return signs[i].hint;
  if (stands_at(s, at.start, "//")) return "a comment begins with #";
  if (stands_at(s, at.start - 1, "//"))
    return "`/` of integers rounds down; a comment begins with #";
  if (stands_at(s, at.start - 1, "**"))
    return "a power is written as a product, or as its number";
  const char *last = arena_copy(r->arena, s->text + r->last.start,
                                (size_t)(r->last.end - r->last.start));
  bool assigns = s->text[at.start] == ':' || s->text[at.start] == '=';
  return assigns && valued && is_keyword(last)
             ? arena_print(r->arena, "a value follows its word: `%s VALUE;`",
                           last)
             : NULL;
}

/* ---- one message each ---------------------------------------------------- */

static const char *meant_token(ast_reader *r, span at, const char *const *list,
                               int32_t count) {
  const char *got = arena_copy(r->arena, r->source->text + at.start,
                               (size_t)(at.end - at.start));
  const char *known = ast_habit(got), *near = diag_nearest(got, list, count);
  if (known) return known;
  if (!near || !is_keyword(near)) return NULL;
  return arena_print(r->arena, "did you mean '%s'?", near);
}

static bool has_line_break(const source *s, int32_t from, int32_t to) {
  return memchr(s->text + from, '\n', (size_t)(to - from)) != NULL;
}

/* A forgotten ';' is told where it belongs, not where the next line begins. */
static void missing_end(ast_reader *r, span at, const char *hint) {
  span place = at;
  if (has_line_break(r->source, r->last.end, at.start))
    place = (span){r->source, r->last.end, r->last.end};
  diag_report(r->diag, SEVERITY_ERROR, place, hint, "expected ';' before %s",
              quote_token(r, at));
}

static void unknown_statement(ast_reader *r, span at, bool is_name,
                              const char *hint, const char *const *list,
                              int32_t count) {
  if (!hint)
    hint = arena_print(r->arena, "these may stand here: %s",
                       expected_list(r, list, count));
  diag_report(r->diag, SEVERITY_ERROR, at, hint,
              is_name ? "unknown statement %s" : "unexpected %s",
              quote_token(r, at));
}

/* Told behind the last token: the file may end in blank lines. */
static void unexpected_end(ast_reader *r) {
  span end = {r->source, r->last.end, r->last.end};
  if (r->depth > 0)
    diag_report(r->diag, SEVERITY_ERROR, end, "a '{' is not closed",
                "unexpected end of file");
  else
    diag_report(r->diag, SEVERITY_ERROR, end, NULL,
                "the file ends inside a statement");
}

void ast_unexpected(ast_reader *r, span at, const char *got,
                    const char *const *expected, int32_t count) {
  const char **list = ARENA_ARRAY(r->arena, const char *, count + 1);
  int32_t kept = expected_shorten(list, expected, count);
  bool keyword = is_keyword(got), name = !strcmp(got, "a name");
  bool named = kept == 1 && !strcmp(list[0], "a name");
  const char *hint =
      name ? meant_token(r, at, list, kept) : sign_habit(r, at, !named);
  if (!hint && keyword) hint = place_habit(r, got, list, kept);
  if (!hint)
    hint = order_habit(r, at, named, is_expected("'*'", expected, count));
  if (at.start == at.end)
    unexpected_end(r);
  else if (keyword && named)
    diag_report(r->diag, SEVERITY_ERROR, at,
                arena_print(r->arena, "'my_%s' would do", got),
                "%s is a keyword and cannot be a name", quote_token(r, at));
  else if (is_expected("';'", list, kept))
    missing_end(r, at, hint);
  else if (kept > EXPECTED_SHOWN)
    unknown_statement(r, at, name, hint, list, kept);
  else
    diag_report(r->diag, SEVERITY_ERROR, at, hint, "expected %s, got %s",
                expected_list(r, list, kept), quote_token(r, at));
}

void ast_expect_by(ast_reader *r, span at, const char *name) {
  if (strcmp(name, "x") == 0) return;
  diag_report(r->diag, SEVERITY_ERROR, at,
              "`x` stands between the extents of a grid, and ';' ends a "
              "statement",
              "expected 'x' or ';', got '%s'", name);
}

void ast_expect_axis(ast_reader *r, span at, const char *name) {
  const char *hint = ast_habit(name);
  if (strlen(name) == 1 && strchr("xyz", *name)) return;
  diag_report(r->diag, SEVERITY_ERROR, at,
              hint ? hint : "`causal y, x;` names axes of a grid",
              "expected ';' before '%s'", name);
}

void ast_expect_each(ast_reader *r, span at, const char *name) {
  if (strcmp(name, "each") == 0) return;
  diag_report(r->diag, SEVERITY_ERROR, at,
              "`by mean` takes the mean of a block's queries, `by mean each` "
              "each of its queries",
              "expected 'each' or ';', got '%s'", name);
}

void ast_too_deep(ast_reader *r, span at) {
  if (r->stop) return;
  r->stop = true;
  diag_report(r->diag, SEVERITY_ERROR, at,
              "`mask a && b` may be two masks, `keep a || b` two keeps",
              "expression is nested more than %d deep", NESTING_MAX);
}

/* ---- the scanner's ------------------------------------------------------- */

void ast_bad_character(ast_reader *r, span at) {
  unsigned char c = (unsigned char)r->source->text[at.start];
  bool shown = (c > ' ' && c < 0x7F) || at.end - at.start > 1;
  if (shown)
    diag_report(r->diag, SEVERITY_ERROR, at, sign_habit(r, at, false),
                "unexpected character %s", quote_token(r, at));
  else
    diag_report(r->diag, SEVERITY_ERROR, at, NULL, "unexpected byte 0x%02X",
                c);
}

void ast_bad_number(ast_reader *r, span at) {
  const char *text = r->source->text + at.start;
  size_t length = (size_t)(at.end - at.start);
  bool point = memchr(text, '.', length) != NULL;
  bool spaced = memchr(text, '_', length) || text[1] == 'x' || text[1] == 'X';
  const char *x = memchr(text + 1, 'x', length - 1);
  bool product = x && x < text + length - 1 && x[1] >= '0' && x[1] <= '9' &&
                 text[0] != '0';
  const char *hint = product  ? "blanks stand round the `x` of extents"
                     : point  ? "a float has a digit on both sides of the point"
                     : spaced ? "a number is of the digits 0 to 9 alone"
                              : "a product is written with *";
  diag_report(r->diag, SEVERITY_ERROR, at, hint, "%s is not a number",
              quote_token(r, at));
}

void ast_bad_string(ast_reader *r, span at) {
  diag_report(r->diag, SEVERITY_ERROR, at, NULL,
              "string does not end on its line");
}

int64_t ast_integer(ast_reader *r, span at) {
  int64_t number = 0;
  for (int32_t i = at.start; i < at.end; i++) {
    int digit = r->source->text[i] - '0';
    if (!__builtin_mul_overflow(number, 10, &number) &&
        !__builtin_add_overflow(number, digit, &number))
      continue;
    diag_report(r->diag, SEVERITY_ERROR, at, NULL,
                "integer %s does not fit in 64 bits", quote_token(r, at));
    return 0;
  }
  return number;
}

double ast_real(ast_reader *r, span at) {
  const char *text = arena_copy(r->arena, r->source->text + at.start,
                                (size_t)(at.end - at.start));
  errno = 0;
  double number = strtod(text, NULL);
  if (errno != ERANGE || number < 1) return number;
  diag_report(r->diag, SEVERITY_ERROR, at, "`inf` is a constant",
              "float %s is too large", quote_token(r, at));
  return 0;
}

const char *ast_name(ast_reader *r, span at, word *keyword) {
  int32_t length = at.end - at.start;
  if (length > NAME_MAX_BYTES)
    diag_report(r->diag, SEVERITY_ERROR, at, NULL,
                "name has %d bytes, at most %d", length, NAME_MAX_BYTES);
  const char *name = arena_name(r->arena, r->source->text + at.start,
                                (size_t)length);
  *keyword = WORD_NONE;
  for (word w = 1; w < WORD_COUNT; w++)
    if (!strcmp(name, word_text(w))) *keyword = w;
  bool late = *keyword == WORD_GRID || *keyword == WORD_NEIGHBORHOOD ||
              *keyword == WORD_SHARED || *keyword == WORD_KEYS;
  if (late && !r->begins) *keyword = WORD_NONE;
  return name;
}
