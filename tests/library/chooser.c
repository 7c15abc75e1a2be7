/* chooser.c - a program that asks a library which blocks it chose: built by
 * build.sh, never with the suites. It finds the blocks itself, by the means of
 * blocks written out here, and compares them with the lists. */
#include "libchooser.h"
#include <stdio.h>
#include <stdlib.h>

enum { N = 64, D = chooser_head_dim, SIZE = 8, BLOCKS = N / SIZE, KEPT = 3 };

static float q[N * D], k[N * D], v[N * D], o[N * D];
static int32_t rows[BLOCKS + 1], cols[BLOCKS * KEPT];

static DLTensor tensor(void *data, DLDataTypeCode code, int rank,
                       int64_t *shape) {
  DLTensor t = {0};
  t.data = data;
  t.device.device_type = kDLCPU;
  t.ndim = rank;
  t.dtype.code = (uint8_t)code;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}

static double mean_product(int bi, int bj) {
  double sum = 0;
  for (int d = 0; d < D; d++) {
    double of_q = 0, of_k = 0;
    for (int n = 0; n < SIZE; n++) {
      of_q += q[(bi * SIZE + n) * D + d];
      of_k += k[(bj * SIZE + n) * D + d];
    }
    sum += of_q * of_k;
  }
  return sum;
}

/* The number of blocks before `bi` that are better than `bj`. */
static int better(int bi, int bj) {
  int count = 0;
  for (int other = 0; other < bi; other++)
    count += mean_product(bi, other) > mean_product(bi, bj);
  return count;
}

static int is_listed(int bi, int bj) {
  for (int32_t e = rows[bi]; e < rows[bi + 1]; e++)
    if (cols[e] == bj) return 1;
  return 0;
}

static int count_wrong(void) {
  int wrong = 0;
  for (int bi = 0; bi < BLOCKS; bi++) {
    wrong += !is_listed(bi, bi);
    for (int bj = 0; bj < bi; bj++)
      wrong += is_listed(bi, bj) != (better(bi, bj) < KEPT - 1);
  }
  return wrong;
}

int main(void) {
  int64_t shape[] = {1, N, 1, D}, of_rows[] = {1, 1, BLOCKS + 1};
  int64_t of_cols[] = {1, 1, BLOCKS * KEPT};
  for (int i = 0; i < N * D; i++) {
    q[i] = (float)(i * 37 % 101) / 101 - 0.5f;
    k[i] = (float)(i * 53 % 103) / 103 - 0.5f;
    v[i] = (float)(i % 17);
  }
  DLTensor tq = tensor(q, kDLFloat, 4, shape), tk = tensor(k, kDLFloat, 4, shape);
  DLTensor tv = tensor(v, kDLFloat, 4, shape), to = tensor(o, kDLFloat, 4, shape);
  DLTensor tr = tensor(rows, kDLInt, 3, of_rows);
  DLTensor tc = tensor(cols, kDLInt, 3, of_cols);
  DLTensor *selection[] = {&tr, &tc};
  chooser_arguments a = CHOOSER_ARGUMENTS_INIT;
  a.q = &tq, a.k = &tk, a.v = &tv, a.o = &to, a.selection = selection;
  if (chooser(NULL, &a)) {
    puts(chooser_last_error());
    return 1;
  }
  printf("%d blocks chosen, %d wrong\n", (int)rows[BLOCKS], count_wrong());
  return count_wrong() != 0;
}
