/* saver.c - a program that keeps the blocks that a library chose for their gradients:
 * built by build.sh, never with the suites. The gradients are the same bits as those that
 * choose again; where the kept lists are made empty, they are 0, since they are read. */
#include "libsaver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 64, D = saver_head_dim };

static float q[N * D], k[N * D], v[N * D], o[N * D], lse[N], d_o[N * D];
static float own[N * D], again[N * D];

static DLTensor tensor(void *data, int rank, int64_t *shape) {
  DLTensor t = {0};
  t.data = data;
  t.device.device_type = kDLCPU;
  t.ndim = rank;
  t.dtype.code = kDLFloat;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}

static void must(int status) {
  if (!status) return;
  puts(saver_last_error());
  exit(1);
}

static void differentiate(const saver_arguments *a, const DLTensor *d_o_, DLTensor *dk,
                          float *to) {
  saver_gradients g = SAVER_GRADIENTS_INIT;
  dk->data = to;
  g.forward = a, g.d_o = d_o_, g.dk = dk;
  must(saver_backward(NULL, &g));
}

static int zeros(const float *x) {
  int count = 0;
  for (int i = 0; i < N * D; i++) count += x[i] == 0;
  return count;
}

int main(void) {
  int64_t shape[] = {1, N, 1, D}, of_lse[] = {1, 1, N}, bytes;
  for (int i = 0; i < N * D; i++) {
    q[i] = (float)(i * 37 % 101) / 101 - 0.5f;
    k[i] = (float)(i * 53 % 103) / 103 - 0.5f;
    v[i] = (float)(i % 17);
    d_o[i] = (float)(i % 13) - 5.5f;
  }
  DLTensor tq = tensor(q, 4, shape), tk = tensor(k, 4, shape), tv = tensor(v, 4, shape);
  DLTensor to = tensor(o, 4, shape), td = tensor(d_o, 4, shape), tg = td;
  DLTensor tl = tensor(lse, 3, of_lse);
  saver_arguments a = SAVER_ARGUMENTS_INIT;
  a.q = &tq, a.k = &tk, a.v = &tv, a.o = &to, a.lse = &tl;
  must(saver(NULL, &a));
  differentiate(&a, &td, &tg, again);
  must(saver_saved(NULL, 1, N, N, &bytes));
  void *saved = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
  if (!saved) return 1;
  a.saved = saved, a.saved_bytes = bytes;
  must(saver(NULL, &a));
  differentiate(&a, &td, &tg, own);
  int same = !memcmp(own, again, sizeof own);
  memset(saved, 0, (size_t)bytes);
  differentiate(&a, &td, &tg, own);
  printf("%s bits, %d of %d are 0, then %d\n", same ? "the same" : "other",
         zeros(again), N * D, zeros(own));
  a.saved_bytes = bytes - 1;
  int refused = saver(NULL, &a);
  printf("%d: %s\n", refused, saver_last_error());
  free(saved);
  return !same || bytes <= 0;
}
