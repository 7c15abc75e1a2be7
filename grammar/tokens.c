/* tokens.c - tokens on their way from the scanner (dil.l) to the parser (dil.y),
 * which sees none of a broken statement; and their list for `dil print --after
 * tokens`. */
#include "grammar/parser.h"
#include <stdio.h>

/* Drops what stands before the end of a broken statement: a ';' of its own
 * depth, the '}' of a block that it opened (handed on as ';'), or the '}' of
 * the block that it stands in. */
static int token_drop(ast_reader *r, int token) {
  if (token == TOKEN_YYEOF) r->panic = false;
  if (token == ';' && r->depth == r->panic_depth) r->panic = false;
  if (token == '}' && r->depth <= r->panic_depth) {
    r->panic = false;
    return r->depth < r->panic_depth ? '}' : ';';
  }
  return token;
}

int grammar_lex(GRAMMAR_STYPE *meaning, span *at, ast_reader *r, void *scanner) {
  int token;
  do {
    if (r->stop) return TOKEN_YYEOF;
    bool full = diag_full(r->diag);
    token = scan_token(meaning, at, scanner);
    if (token == TOKEN_GRAMMAR_error && full) r->stop = true;
    r->last = r->now;
    r->now = *at;
    if (token == TOKEN_GRAMMAR_error && !r->panic) {
      r->panic = true;
      r->panic_depth = r->depth;
      return token;
    }
    r->depth += (token == '{') - (token == '}');
    if (r->panic) token = token_drop(r, token);
  } while (r->panic);
  return token;
}

static const char *token_kind(int token) {
  switch (token) {
  case TOKEN_NAME: return "name";
  case TOKEN_STRING: return "string";
  case TOKEN_INT: return "integer";
  case TOKEN_REAL: return "float";
  case TOKEN_GRAMMAR_error: return "error";
  default: return token < TOKEN_DIL ? "sign" : "keyword";
  }
}

void grammar_tokens(ast_reader *r, FILE *out) {
  void *scanner = scan_open(r);
  const char *text = r->source->text;
  int32_t line = 1, line_start = 0, seen = 0;
  GRAMMAR_STYPE meaning;
  span at;
  for (;;) {
    int token = scan_token(&meaning, &at, scanner);
    if (token == TOKEN_YYEOF) return;
    for (; seen < at.start; seen++)
      if (text[seen] == '\n') {
        line++;
        line_start = seen + 1;
      }
    fprintf(out, "%d:%d %s %.*s\n", line, at.start - line_start + 1,
            token_kind(token), at.end - at.start, text + at.start);
  }
}
