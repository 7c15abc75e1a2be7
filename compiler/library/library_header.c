/* library_header.c - the texts beside a library: its C header, made of the
 * blocks of templates/kernel.h.in, and its file for pkg-config. In: a library.
 * Out: text. A block begins at a line `@@ NAME`; @WORD@ in it is a hole. */
#include "library.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* kernel_template and dlpack_header, embedded when the program was built. */
#include "compiler/library/library_texts.inc"

typedef struct hole {
  const char *name, *text;
} hole;

enum { HOLES_MAX = 32 };

typedef struct holes {
  int32_t count;
  hole list[HOLES_MAX];
} holes;

static void fill_hole(holes *h, const char *name, const char *text) {
  if (h->count == HOLES_MAX) abort();
  h->list[h->count++] = (hole){name, text};
}

static const char *hole_text(const holes *h, const char *name, size_t length) {
  for (int32_t i = 0; i < h->count; i++)
    if (strlen(h->list[i].name) == length &&
        !memcmp(h->list[i].name, name, length))
      return h->list[i].text;
  abort(); /* a hole of the template that nothing fills */
}

/* Between `begin` and `end`, with the holes filled. */
static void put_filled(const char *begin, const char *end, const holes *h,
                       FILE *out) {
  while (begin < end) {
    const char *at = memchr(begin, '@', (size_t)(end - begin));
    fwrite(begin, 1, (size_t)((at ? at : end) - begin), out);
    if (!at) return;
    const char *close = memchr(at + 1, '@', (size_t)(end - at - 1));
    if (!close) abort();
    fputs(hole_text(h, at + 1, (size_t)(close - at - 1)), out);
    begin = close + 1;
  }
}

static void put_block(const char *name, const holes *h, FILE *out) {
  size_t length = strlen(name);
  const char *at = kernel_template;
  while (strncmp(at, "@@ ", 3) || strncmp(at + 3, name, length) ||
         at[3 + length] != '\n') {
    at = strstr(at + 1, "\n@@ ");
    if (!at) abort(); /* there is no such block */
    at++;
  }
  const char *begin = at + 4 + length, *end = strstr(at, "\n@@ ");
  put_filled(begin, end ? end + 1 : begin + strlen(begin), h, out);
}

/* ---- what fills the holes ------------------------------------------------ */

static const char *upper_case(arena *a, const char *name) {
  char *text = arena_copy(a, name, strlen(name));
  for (char *at = text; *at; at++) *at = (char)toupper((unsigned char)*at);
  return text;
}

static const char *number_text(arena *a, int64_t n) {
  return arena_print(a, "%lld", (long long)n);
}

/* The pattern as lines of a comment, which nothing in it may end. */
static void print_comment(const pattern *p, int32_t index, FILE *out) {
  char *text = NULL;
  size_t length = 0;
  FILE *plain = open_memstream(&text, &length);
  (void)index;
  if (!plain) abort();
  pattern_print(p, plain);
  if (fclose(plain)) abort();
  while (length && text[length - 1] == '\n') text[--length] = 0;
  fputs(" *     ", out);
  for (const char *at = text; *at; at++) {
    fputc(*at, out);
    if (*at == '\n') fputs(" *     ", out);
    if (at[0] == '*' && at[1] == '/') fputc(' ', out);
  }
  free(text);
}

/* DLPack's header without what it includes: that stands above it. */
static const char *dlpack_text(arena *a) {
  char *text = arena_copy(a, dlpack_header, strlen(dlpack_header));
  for (char *at = strstr(text, "#include"); at; at = strstr(at, "#include")) {
    char *end = strchr(at, '\n') + 1;
    memmove(at, end, strlen(end) + 1);
  }
  return text;
}

static const char *link_text(const library *l) {
  bool lib = !strncmp(l->base, "lib", 3);
  return arena_print(l->arena, "Link with %s%s%s: %s.", lib ? "-l" : "",
                     lib ? l->base + 3 : l->base, lib ? "" : ".so",
                     l->standalone
                         ? "it wants libc, libm and pthread alone"
                         : "it wants libdilrt, -ldilrt");
}

static void fill_library(const library *l, holes *h) {
  arena *a = l->arena;
  fill_hole(h, "BASE", l->base);
  fill_hole(h, "LIBRARY", l->name);
  fill_hole(h, "LIBRARY_UPPER", upper_case(a, l->name));
  fill_hole(h, "VERSION", DIL_VERSION);
  fill_hole(h, "VERSION_NUM", number_text(a, DIL_VERSION_NUM));
  fill_hole(h, "HASH", arena_print(a, "%016llx", (unsigned long long)l->hash));
  fill_hole(h, "LINK", link_text(l));
  fill_hole(h, "DLPACK", dlpack_text(a));
  fill_hole(h, "CONTEXT",
            l->standalone ? arena_print(a, "%s_context", l->name)
                          : "dil_context");
}

/* The shapes of the lists of a choice, as lines of a comment. */
static const char *choice_text(arena *a, const pattern *p, const dil_choice *c,
                               int32_t number) {
  int64_t most = c->most, diagonals = dil_choice_diagonals(c);
  if (c->right <= 0 && most < diagonals) most = diagonals;
  const char *queries = arena_print(a, "ceil(M / %d)", c->query_block);
  return arena_print(a,
                     "\n                              [%d] rows: i32 [B, %lld, %s + 1],"
                     "\n                              [%d] cols: i32 [B, %lld, %s *"
                     "\n                              min(%lld, ceil(M / %d))]",
                     number, (long long)p->heads, queries, number + 1,
                     (long long)p->heads, queries,
                     (long long)most, c->block);
}

static const char *selection_text(arena *a, const pattern *p) {
  const char *text = "lists of the blocks that are chosen, contiguous,\n"
                     "                              written; NULL, or NULL in it: "
                     "not wanted.";
  int32_t number = 0;
  for (int32_t k = 0; k < p->branch_count; k++) {
    if (!branch_choice(&p->branch[k])) continue;
    dil_choice c = pattern_choice(p, k);
    text = arena_print(a, "%s%s", text, choice_text(a, p, &c, number));
    number += 2;
  }
  return number ? text : "NULL: this kernel chooses no blocks";
}

static const char *saved_text(arena *a, const library_kernel *k) {
  if (k->plan->direction != DIL_BACKWARD) return "NULL: this kernel has no gradients";
  return arena_print(a,
                     "memory on the device of q, aligned to 64 bytes, as long as"
                     "\n                              %s_saved tells: a run leaves there"
                     "\n                              what its gradients would make again,"
                     "\n                              and they read it in `forward`. NULL:"
                     "\n                              they make it again. Not with offsets,"
                     "\n                              pages or a selection",
                     k->name);
}

/* ", 0" for each of `count` members. */
static const char *zeros_text(arena *a, int32_t count) {
  char *text = ARENA_ARRAY(a, char, 3 * count + 1);
  for (int32_t i = 0; i < count; i++) memcpy(text + 3 * i, ", 0", 3);
  return text;
}

/* A zero for every member but the size. */
static const char *all_zeros_text(arena *a, const pattern *p) {
  int32_t rest = p->input_count + (p->scale_kind == SCALE_RUNTIME) +
                 2 * (p->dropout > 0);
  return arena_print(a, "%s, {0}%s", zeros_text(a, DIL_WORD_RESERVED - 1),
                     zeros_text(a, rest));
}

/* The arguments of a call besides q, k, v and o, as lines of a comment. */
static const char *example_text(arena *a, const pattern *p) {
  const char *text = "";
  for (int32_t i = 0; i < p->input_count; i++)
    text = arena_print(a, "%s *   a.%s = &%s;\n", text, p->input[i].name,
                       p->input[i].name);
  if (p->scale_kind == SCALE_RUNTIME)
    text = arena_print(a, "%s *   a.scale = 1 / sqrt(%lld);\n", text,
                       (long long)p->head_dim);
  return text;
}

static void fill_kernel(const library *l, const library_kernel *k, holes *h) {
  arena *a = l->arena;
  const pattern *p = k->plan->pattern;
  fill_hole(h, "NAME", k->name);
  fill_hole(h, "NAME_UPPER", upper_case(a, k->name));
  fill_hole(h, "TEXT", library_printed(a, print_comment, p, 0));
  fill_hole(h, "HEADS", number_text(a, p->heads));
  fill_hole(h, "KV_HEADS", number_text(a, p->kv_heads));
  fill_hole(h, "HEAD_DIM", number_text(a, p->head_dim));
  fill_hole(h, "VALUE_DIM", number_text(a, p->value_dim));
  fill_hole(h, "DTYPE", dil_dtype_name(p->dtype));
  fill_hole(h, "LSE",
            pattern_has_lse(p)
                ? arena_print(a, "f32 [B, %lld, N], written; NULL: not wanted",
                              (long long)p->heads)
                : "NULL: this kernel has none");
  fill_hole(h, "SELECTION", selection_text(a, p));
  fill_hole(h, "SAVED", saved_text(a, k));
  fill_hole(h, "DROPOUT", arena_print(a, "%g", p->dropout));
  fill_hole(h, "ZEROS", all_zeros_text(a, p));
  fill_hole(h, "RESERVED", number_text(a, DIL_WORD_INPUTS - DIL_WORD_RESERVED));
  fill_hole(h, "EXAMPLE", example_text(a, p));
}

/* The types that a gradient may have. */
static const char *gradient_types(arena *a, dil_dtype dtype) {
  return dtype == DIL_F32 ? "f32"
                          : arena_print(a, "%s or f32", dil_dtype_name(dtype));
}

static void put_input(const library *l, const pattern *p, int32_t index,
                      const char *block, const holes *of, FILE *out) {
  holes h = *of;
  fill_hole(&h, "INPUT", p->input[index].name);
  fill_hole(&h, "INPUT_DTYPE", dil_dtype_name(p->input[index].dtype));
  fill_hole(&h, "INPUT_GRADIENT_DTYPE",
            gradient_types(l->arena, p->input[index].dtype));
  fill_hole(&h, "INPUT_SHAPE",
            library_printed(l->arena, pattern_print_shape, p, index));
  put_block(block, &h, out);
}

static void fill_gradients(const library *l, const pattern *p, holes *h) {
  arena *a = l->arena;
  int32_t inputs = 0;
  for (int32_t i = 0; i < p->input_count; i++) inputs += p->input[i].gradient;
  fill_hole(h, "GRADIENT_DTYPE", gradient_types(a, p->dtype));
  fill_hole(h, "DLSE",
            pattern_has_lse(p) ? "the gradient of lse, as lse; NULL: zeros"
                               : "NULL: this kernel has no lse");
  fill_hole(h, "GRADIENTS_RESERVED",
            number_text(a, DIL_GRADIENT_INPUTS - DIL_GRADIENT_RESERVED));
  fill_hole(h, "GRADIENTS_ZEROS",
            arena_print(a, "%s, {0}%s",
                        zeros_text(a, DIL_GRADIENT_RESERVED - 1),
                        zeros_text(a, inputs)));
}

/* Adds the declarations that only a kernel with gradients has. */
static void put_gradients(const library *l, const pattern *p, const holes *of,
                          FILE *out) {
  holes h = *of;
  fill_gradients(l, p, &h);
  put_block("gradients", &h, out);
  for (int32_t i = 0; i < p->input_count; i++)
    if (p->input[i].gradient) put_input(l, p, i, "input gradient", &h, out);
  put_block("backward", &h, out);
}

static void put_kernel_text(const library *l, const library_kernel *k,
                            const holes *of_library, FILE *out) {
  holes h = *of_library;
  const pattern *p = k->plan->pattern;
  fill_kernel(l, k, &h);
  put_block("kernel", &h, out);
  for (int32_t i = 0; i < p->input_count; i++)
    put_input(l, p, i, "input", &h, out);
  if (p->scale_kind == SCALE_RUNTIME) put_block("scale", &h, out);
  if (p->dropout > 0) put_block("dropout", &h, out);
  put_block("entry", &h, out);
  if (k->plan->direction == DIL_BACKWARD) put_gradients(l, p, &h, out);
}

void library_header(const library *l, FILE *out) {
  holes h = {0};
  fill_library(l, &h);
  put_block("head", &h, out);
  put_block(l->standalone ? "context standalone" : "context", &h, out);
  fputc('\n', out);
  for (int32_t i = 0; i < l->kernel_count; i++)
    put_kernel_text(l, &l->kernel[i], &h, out);
  put_block("tail", &h, out);
}

/* ---- pkg-config ---------------------------------------------------------- */

/* A backslash keeps `special` ones as they are. */
static void put_kept(const char *text, const char *special, FILE *out) {
  for (; *text; text++) {
    if (strchr(special, *text)) fputc('\\', out);
    fputc(*text, out);
  }
}

void library_pc(const library *l, FILE *out) {
  bool lib = !strncmp(l->base, "lib", 3);
  fputs("Name: ", out);
  put_kept(l->base, "#", out);
  fputs("\nDescription: attention kernels:", out);
  for (int32_t i = 0; i < l->kernel_count; i++)
    fprintf(out, "%s %s", i ? "," : "", l->kernel[i].name);
  fprintf(out, "\nVersion: %s\n", DIL_VERSION);
  if (!l->standalone) fputs("Requires: dilrt\n", out);
  fprintf(out, "Libs: -L${pcfiledir} -l%s", lib ? "" : ":");
  put_kept(lib ? l->base + 3 : l->base, " #\"'\\", out);
  fputs(lib ? "\n" : ".so\n", out);
  fputs("Libs.private: -lm -lpthread\nCflags: -I${pcfiledir}\n", out);
}
