/* retriever.c - what does each word of a long document attend to most?
 *
 *   cc retriever.c $(pkg-config --cflags --libs dil) -lm -o retriever
 *   ./retriever ../data freedom price
 *
 * The queries and keys are those that a language model computes from the text
 * in the folder (see its README.md). A kernel returns sums of values, not the
 * weights of these sums; but with unit vectors for values the sums are the
 * weights. So the kernel runs once for every WIDTH keys, each key's value a 1
 * in a place of its own, and no table of all pairs is ever made by hand. */
#include <dil/dil.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 128, SHOWN = 5, FOUND_MAX = 3, TOKENS_MAX = 65536 };

typedef struct document {
  int64_t tokens, heads, head_dim;
  uint16_t *q, *k;   /* f16 [tokens, heads, head_dim] */
  char (*word)[24];  /* [tokens] word pieces */
} document;

/* ---- files --------------------------------------------------------------- */

static int complain(const char *what, const char *why) {
  fprintf(stderr, "retriever: %s: %s\n", what, why);
  return 1;
}

/* Float16 [tokens, heads, head_dim] of a .npy file; a status. */
static int read_npy(const char *folder, const char *name, document *d,
                    uint16_t **data) {
  char path[4096], head[512] = "";
  long long n = 0, h = 0, w = 0;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  if (!file) return complain(path, "cannot be opened");
  size_t length = 0;
  if (fread(head, 1, 10, file) == 10)
    length = (size_t)((unsigned char)head[8] | (unsigned char)head[9] << 8);
  const char *shape = NULL;
  if (length && length < sizeof head && fread(head, 1, length, file) == length)
    shape = strstr(head, "'shape': (");
  if (!shape || !strstr(head, "'<f2'") ||
      sscanf(shape, "'shape': (%lld, %lld, %lld", &n, &h, &w) != 3 || n < 1 ||
      n > TOKENS_MAX || h < 1 || w < 1 || (d->q && n != d->tokens)) {
    fclose(file);
    return complain(path, "is not float16 [tokens, heads, head_dim]");
  }
  d->tokens = n;
  d->heads = h;
  d->head_dim = w;
  size_t count = (size_t)(n * h * w);
  *data = malloc(count * sizeof **data);
  int whole = *data && fread(*data, sizeof **data, count, file) == count;
  fclose(file);
  return whole ? 0 : complain(path, "is too short");
}

static int read_words(const char *folder, document *d) {
  char path[4096];
  snprintf(path, sizeof path, "%s/tokens.txt", folder);
  FILE *file = fopen(path, "r");
  if (!file) return complain(path, "cannot be opened");
  d->word = calloc((size_t)d->tokens, sizeof *d->word);
  int64_t count = 0;
  while (d->word && count < d->tokens &&
         fscanf(file, "%23s", d->word[count]) == 1)
    count++;
  fclose(file);
  return count == d->tokens ? 0 : complain(path, "has too few words");
}

/* ---- attention ----------------------------------------------------------- */

static float from_f16(uint16_t bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float size = exponent ? ldexpf((float)(fraction + 1024), exponent - 25)
                        : ldexpf((float)fraction, -24);
  return bits >> 15 ? -size : size;
}

static dil_status make_kernel(const document *d, dil_kernel **kernel) {
  static const int64_t segments[] = {256, 1024, 2048}, dilations[] = {1, 4, 8};
  dil_attention_options o = DIL_ATTENTION_OPTIONS_INIT;
  o.heads = (int32_t)d->heads;
  o.head_dim = (int32_t)d->head_dim;
  o.value_dim = WIDTH;
  o.dtype = "f16";
  o.branch_count = 3;
  o.segments = segments;
  o.dilations = dilations;
  dil_context *processor;
  dil_status status = dil_context_new(NULL, &processor);
  if (!status) status = dil_attention(processor, &o, kernel);
  if (!status) dil_context_free(processor); /* the kernel keeps it alive */
  return status;
}

/* Adds the mean over the heads of each weight of keys first..first + WIDTH. */
static void add_weights(const document *d, const uint16_t *o, int64_t first,
                        float *weight) {
  for (int64_t n = 0; n < d->tokens; n++)
    for (int64_t h = 0; h < d->heads; h++)
      for (int64_t x = 0; x < WIDTH && first + x < d->tokens; x++)
        weight[n * d->tokens + first + x] +=
            from_f16(o[(n * d->heads + h) * WIDTH + x]) / (float)d->heads;
}

static DLTensor tensor_of(void *data, int64_t *shape) {
  return (DLTensor){.data = data,
                    .device = {kDLCPU, 0},
                    .ndim = 4,
                    .dtype = {kDLFloat, 16, 1},
                    .shape = shape};
}

/* weight[n][m]: how much token n attends to token m; a row sums to 1. */
static dil_status attend(const document *d, dil_kernel *kernel, uint16_t *v,
                         uint16_t *o, float *weight) {
  int64_t shape[] = {1, d->tokens, d->heads, d->head_dim};
  int64_t wide[] = {1, d->tokens, d->heads, WIDTH};
  DLTensor q = tensor_of(d->q, shape), k = tensor_of(d->k, shape);
  DLTensor values = tensor_of(v, wide), output = tensor_of(o, wide);
  dil_arguments a = DIL_ARGUMENTS_INIT;
  a.q = &q;
  a.k = &k;
  a.v = &values;
  a.o = &output;
  for (int64_t first = 0; first < d->tokens; first += WIDTH) {
    memset(v, 0, (size_t)(d->tokens * d->heads * WIDTH) * sizeof *v);
    for (int64_t x = 0; x < WIDTH && first + x < d->tokens; x++)
      for (int64_t h = 0; h < d->heads; h++)
        v[((first + x) * d->heads + h) * WIDTH + x] = 0x3c00; /* 1 */
    dil_status status = dil_kernel_run(kernel, &a);
    if (status) return status;
    add_weights(d, o, first, weight);
  }
  return DIL_OK;
}

/* ---- telling ------------------------------------------------------------- */

static void print_around(const document *d, int64_t at) {
  for (int64_t i = at - 5; i <= at + 5; i++) {
    if (i < 0 || i >= d->tokens) continue;
    const char *word = d->word[i];
    int piece = !strncmp(word, "##", 2);
    printf(i == at ? "%s[%s]" : "%s%s", piece ? "" : " ", word + 2 * piece);
  }
  putchar('\n');
}

static int print_most(const document *d, int64_t at, float *row) {
  double sum = 0;
  for (int64_t m = 0; m < d->tokens; m++) sum += (double)row[m];
  printf("\ntoken %lld:", (long long)at);
  print_around(d, at);
  for (int i = 0; i < SHOWN; i++) {
    int64_t most = 0;
    for (int64_t m = 1; m < d->tokens; m++)
      if (row[m] > row[most]) most = m;
    printf("  %5.1f %%  %4lld:", 100 * (double)row[most] / sum,
           (long long)most);
    print_around(d, most);
    row[most] = 0;
  }
  if (fabs(sum - 1) < 0.01) return 0;
  return complain("the weights of a token", "do not add up to 1");
}

static int print_word(const document *d, const char *word, float *weight) {
  int found = 0, status = 0;
  for (int64_t n = 0; n < d->tokens && found < FOUND_MAX && !status; n++) {
    if (strcmp(d->word[n], word)) continue;
    found++;
    status = print_most(d, n, weight + n * d->tokens);
  }
  return found ? status : complain(word, "does not stand in the text");
}

static int retrieve(const document *d, dil_kernel *kernel, char **words) {
  size_t wide = (size_t)(d->tokens * d->heads * WIDTH);
  uint16_t *v = malloc(wide * sizeof *v), *o = malloc(wide * sizeof *o);
  float *weight =
      calloc((size_t)(d->tokens * d->tokens), sizeof *weight);
  int status = 0;
  if (!v || !o || !weight) status = complain("the document", "out of memory");
  else if (attend(d, kernel, v, o, weight))
    status = complain("attention", dil_last_error());
  for (; *words && !status; words++) status = print_word(d, *words, weight);
  free(v);
  free(o);
  free(weight);
  return status;
}

int main(int argc, char **argv) {
  static char *usual[] = {"freedom", "price", NULL};
  const char *folder = argc > 1 ? argv[1] : "../data";
  document d = {0};
  dil_kernel *kernel = NULL;
  int status = read_npy(folder, "q.npy", &d, &d.q);
  if (!status) status = read_npy(folder, "k.npy", &d, &d.k);
  if (!status) status = read_words(folder, &d);
  if (!status && make_kernel(&d, &kernel))
    status = complain("the pattern", dil_last_error());
  if (!status) status = retrieve(&d, kernel, argc > 2 ? argv + 2 : usual);
  dil_kernel_free(kernel);
  free(d.q);
  free(d.k);
  free(d.word);
  return status;
}
