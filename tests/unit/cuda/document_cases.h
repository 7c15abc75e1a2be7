/* document_cases.h - inputs that number documents, for masks of test_hopper.c, and its
 * calls whose masks keep documents apart and nothing else. */
#ifndef DIL_TESTS_UNIT_CUDA_DOCUMENT_CASES_H
#define DIL_TESTS_UNIT_CUDA_DOCUMENT_CASES_H

#include "tests/support/gpu_case.h"

/* Numbers of documents: sorted, but for one element of the second batch row or
 * head. Of inputs 1 and 2: the ends of a row's keys. */
static double documents(int32_t index, const int64_t *at, const int64_t *shape) {
  static const int64_t first[] = {0, 5, 130, 131, 400, 512, 700};
  int64_t n = 0, count = sizeof first / sizeof *first, i = at[1];
  (void)shape;
  while (n + 1 < count && first[n + 1] <= i) n++;
  if (index == 1) return (double)(first[n] - i % 3);
  if (index == 2) return n + 1 < count ? (double)first[n + 1] : 900;
  return at[0] == 1 && i == 333 ? 1 : (double)(n + n / 3);
}
/* One that is not sorted; and so many that they are too short. */
static double mixed_documents(int32_t index, const int64_t *at, const int64_t *shape) {
  return at[1] == 333 ? 1 : documents(index, at, shape);
}
static double short_documents(int32_t index, const int64_t *at, const int64_t *shape) {
  (void)index;
  (void)shape;
  return (double)(at[1] / 20 - 99);
}
/* Of one axis, and a sink for each head. */
static double long_documents(int32_t index, const int64_t *at, const int64_t *shape) {
  (void)shape;
  return index ? 0.5 + 0.25 * (double)at[0] : (double)(at[0] / 90);
}
#define DOCUMENTS(b, n, m, how) \
  {.batch = b, .queries = n, .keys = m, .seed = 7, .layout = how, \
   .input = documents}
#define DOC "input doc : i32[B, M]; mask doc[b, i] == doc[b, j]; "

#define MANY(heads, d) "heads " #heads "; head_dim " #d "; dtype bf16;"

/* Calls whose masks keep documents apart alone: they run as packed calls where the input
 * is sorted, and has few documents. */
static const gpu_case document_cases[] = {
    {P(MANY(30, 64), "causal; " DOC "branch { }"), 0, DOCUMENTS(1, 901, 901, 0)},
    {P(MANY(30, 64), "causal; " DOC "branch { }"), 0,
     {.batch = 1, .queries = 901, .keys = 901, .seed = 7, .input = mixed_documents}},
    {P(MANY(30, 64), "causal; " DOC "branch { }"), 0, DOCUMENTS(2, 901, 901, 0)},
    {P(MANY(30, 64), "causal; " DOC "branch { }"), 0,
     {.batch = 1, .queries = 901, .keys = 901, .seed = 7, .input = short_documents}},
    {P("heads 36 kv 2; head_dim 128; dtype f16;", DOC "branch { window 200, 90; }"), 0,
     DOCUMENTS(1, 777, 777, 1)},
    {P(MANY(40, 32), "input doc : i32[M]; input z : f32[H]; causal; sink z[h]; "
                    "mask doc[j] == doc[i]; score 5 * tanh(s / 5); branch { }"), 0,
     {.batch = 2, .queries = 700, .keys = 700, .seed = 7, .input = long_documents}},
};
enum { DOCUMENT_CASES = sizeof document_cases / sizeof *document_cases };

#endif
