/* test_paged_call.c - pages of a cache through the public interface: the bits of
 * the call without them, and what is refused. */
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGES = 6, ROWS = 16, WIDTH = 2 * 16, KEYS = PAGES * ROWS };

/* A call of one batch row, whose keys may stand in pages. */
typedef struct paged_call {
  host_call call;
  dil_arguments *a;
  DLTensor *k, *v;
  int32_t numbers[2 * PAGES], length;
  int64_t shape[2], stride[2], one;
  DLTensor pages, lengths;
} paged_call;

static void make_call(paged_call *p, const dil_kernel *k) {
  const int32_t numbers[] = {4, 1, 5, 0, 3, 2};
  *p = (paged_call){.length = KEYS, .shape = {1, PAGES}, .one = 1};
  host_call_make(&p->call, k, &host_sizes);
  p->a = &p->call.arguments;
  p->k = &p->call.tensor[DIL_TENSOR_K];
  p->v = &p->call.tensor[DIL_TENSOR_V];
  memcpy(p->numbers, numbers, sizeof numbers);
  p->pages = (DLTensor){.data = p->numbers,
                        .device = {kDLCPU, 0},
                        .ndim = 2,
                        .dtype = {kDLInt, 32, 1},
                        .shape = p->shape};
  p->lengths = p->pages;
  p->lengths.data = &p->length;
  p->lengths.ndim = 1;
  p->lengths.shape = &p->one;
}

/* Rows of key 16 n to 16 n + 15 go to page numbers[n]. */
static void move_rows(const paged_call *p, const DLTensor *t) {
  size_t page = ROWS * WIDTH * sizeof(float);
  char *data = t->data, *from = malloc(PAGES * page);
  memcpy(from, data, PAGES * page);
  for (size_t n = 0; n < PAGES; n++)
    memcpy(data + (size_t)p->numbers[n] * page, from + n * page, page);
  free(from);
}

static void take_pages(paged_call *p) {
  move_rows(p, p->k);
  move_rows(p, p->v);
  for (int i = 0; i < 2; i++) {
    int64_t *shape = p->call.shape[i ? DIL_TENSOR_V : DIL_TENSOR_K];
    shape[0] = PAGES;
    shape[1] = ROWS;
  }
  p->a->pages = &p->pages;
  p->a->lengths = &p->lengths;
}

START_TEST(the_bits_of_a_call_without_pages) {
  static float o[KEYS * WIDTH];
  dil_kernel *k = host_kernel(NULL, host_text);
  paged_call p;
  make_call(&p, k);
  float *to = p.call.tensor[DIL_TENSOR_O].data;
  host_must(dil_kernel_run(k, p.a));
  memcpy(o, to, sizeof o);
  memset(to, 0xFF, sizeof o);
  take_pages(&p);
  host_must(dil_kernel_run(k, p.a));
  ck_assert(!memcmp(o, to, sizeof o));
  /* A host that knows of no pages has a smaller struct. */
  p.a->size = offsetof(dil_arguments, pages);
  host_refused(dil_kernel_run(k, p.a), DIL_USAGE,
               "k must be [1, 16, 2, 16], got [6, 16, 2, 16]");
  host_call_free(&p.call);
  dil_kernel_free(k);
}
END_TEST

static void type(paged_call *p) { p->pages.dtype.bits = 64; }
static void rank(paged_call *p) { p->pages.ndim = 1; }
static void batch(paged_call *p) { p->shape[0] = 2; }
static void nowhere(paged_call *p) { p->pages.data = NULL; }
static void apart(paged_call *p) {
  p->stride[0] = 2 * PAGES;
  p->stride[1] = 2;
  p->pages.strides = p->stride;
}
static void device(paged_call *p) { p->pages.device.device_type = kDLCUDA; }
static void no_lengths(paged_call *p) { p->a->lengths = NULL; }
static void long_one(paged_call *p) { p->length = KEYS + 1; }
static void below(paged_call *p) { p->numbers[3] = -1; }
static void behind(paged_call *p) { p->numbers[5] = PAGES; }
static void odd_rows(paged_call *p) {
  p->call.shape[DIL_TENSOR_K][0] = p->call.shape[DIL_TENSOR_V][0] = 2;
  p->call.shape[DIL_TENSOR_K][1] = p->call.shape[DIL_TENSOR_V][1] = 48;
}
static void other_pool(paged_call *p) {
  p->call.shape[DIL_TENSOR_V][0] = PAGES - 1;
}
static void is_output(paged_call *p) {
  p->pages.data = p->call.tensor[DIL_TENSOR_O].data;
}

static const struct {
  void (*spoil)(paged_call *p);
  const char *words;
} refusals[] = {
    {type, "pages must be i32, got int64 (DLPack code 0, lanes 1)"},
    {rank, "pages must be i32 [1, pages of a batch row], got i32 [1]"},
    {batch, "pages must be i32 [1, pages of a batch row], got i32 [2, 6]"},
    {nowhere, "pages has no memory"},
    {apart, "the last dimension of pages must be contiguous, its stride is 2"},
    {device, "pages is on cuda:0, the kernel is on cpu"},
    {no_lengths, "pages want lengths, the keys that each batch row has"},
    {long_one, "lengths[0] must be within 0 and 96, got 97"},
    {below, "pages[0, 3] is -1, and k and v have 6 pages"},
    {behind, "pages[0, 5] is 6, and k and v have 6 pages"},
    {odd_rows, "a page of k has 48 rows, which is no power of two: with pages, k "
               "and v are [pages, rows, heads, elements]"},
    {other_pool, "v must be [6, 16, 2, 16], got [5, 16, 2, 16]"},
    {is_output, "o is an output and shares memory with pages"},
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

START_TEST(refusals_name_what_is_wrong) {
  dil_kernel *k = host_kernel(NULL, host_text);
  paged_call p;
  make_call(&p, k);
  take_pages(&p);
  refusals[_i].spoil(&p);
  host_refused(dil_kernel_run(k, p.a), DIL_USAGE, refusals[_i].words);
  const float *o = p.call.tensor[DIL_TENSOR_O].data;
  for (int i = 0; i < KEYS * WIDTH; i++) ck_assert(isnan(o[i]));
  host_call_free(&p.call);
  dil_kernel_free(k);
}
END_TEST

/* Pages behind a length are not looked at. */
START_TEST(numbers_behind_a_length) {
  dil_kernel *k = host_kernel(NULL, host_text);
  paged_call p;
  make_call(&p, k);
  take_pages(&p);
  p.length = 3 * ROWS + 1;
  p.numbers[4] = -9;
  p.numbers[5] = INT32_MAX;
  host_must(dil_kernel_run(k, p.a));
  p.length = 0;
  p.pages.data = NULL;
  p.shape[1] = 0;
  host_must(dil_kernel_run(k, p.a));
  host_call_free(&p.call);
  dil_kernel_free(k);
}
END_TEST

START_TEST(dropout_is_refused) {
  dil_kernel *k = host_kernel(NULL, "pattern p { heads 2; head_dim 16; dtype "
                                    "f32; dropout 0.1; branch { } }");
  paged_call p;
  make_call(&p, k);
  take_pages(&p);
  host_must(dil_kernel_run(k, p.a));
  p.a->train = 1;
  host_refused(dil_kernel_run(k, p.a), DIL_UNSUPPORTED,
               "pages of a cache cannot be used with dropout");
  host_call_free(&p.call);
  dil_kernel_free(k);
}
END_TEST

START_TEST(gradients_are_refused) {
  dil_context *context;
  dil_program *program;
  dil_kernel *k;
  dil_kernel_options options = DIL_KERNEL_OPTIONS_INIT;
  dil_gradients g = DIL_GRADIENTS_INIT;
  paged_call p;
  options.backward = 1;
  host_must(dil_context_new(NULL, &context));
  host_must(dil_program_parse(context, "p.dil", host_text, strlen(host_text),
                              NULL, &program));
  host_must(dil_program_kernel(program, NULL, &options, &k));
  make_call(&p, k);
  take_pages(&p);
  g.forward = p.a;
  host_refused(dil_kernel_backward(k, &g), DIL_UNSUPPORTED,
               "pages of a cache cannot be used with gradients");
  host_call_free(&p.call);
  dil_kernel_free(k);
  dil_program_free(program);
  dil_context_free(context);
}
END_TEST

int main(void) {
  host_modules();
  alarm(300); /* a hang is a failure */
  Suite *suite = suite_create("paged_call");
  TCase *t = tcase_create("paged_call");
  tcase_set_timeout(t, 60);
  tcase_add_test(t, the_bits_of_a_call_without_pages);
  tcase_add_loop_test(t, refusals_name_what_is_wrong, 0, REFUSALS);
  tcase_add_test(t, numbers_behind_a_length);
  tcase_add_test(t, dropout_is_refused);
  tcase_add_test(t, gradients_are_refused);
  suite_add_tcase(suite, t);
  return suite_run(suite, CK_NOFORK);
}
