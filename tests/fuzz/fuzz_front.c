/* fuzz_front.c - any bytes as a .dil file: the front end must answer with a
 * program or with errors, and print both. A pattern that it accepts keeps its
 * invariants, and its canonical text means the same. */
#include "compiler/front/program.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static FILE *nothing(void) {
  static FILE *out;
  if (!out) out = fopen("/dev/null", "w");
  if (!out) abort();
  return out;
}

static void print_again(arena *a, const pattern *p) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  if (!out) abort();
  pattern_verify(p);
  pattern_print(p, out);
  fclose(out);
  program *again = program_parse(a, diag_new(a), "again.dil", text, length,
                                 NULL, 0);
  if (!again || !pattern_same(p, again->pattern[0])) {
    fprintf(stderr, "not the same:\n%s", text);
    abort();
  }
  free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  arena *a = arena_new();
  if (!a) abort();
  diag *d = diag_new(a);
  program *p = program_parse(a, d, "fuzz.dil", (const char *)bytes, size,
                             NULL, 0);
  if ((p == NULL) != (diag_errors(d) > 0)) abort();
  diag_print(d, nothing(), false);
  diag_print(d, nothing(), true);
  for (int32_t i = 0; p && i < p->pattern_count; i++)
    print_again(a, p->pattern[i]);
  arena_free(a);
  return 0;
}
