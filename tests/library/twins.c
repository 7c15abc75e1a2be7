/* twins.c - a program with two libraries of one pattern, whose keys lie less
 * than NEAR_KEYS and WIDE_KEYS rows back: built by build.sh, never with the
 * suites. It attends with both over numbers of its own and compares each with
 * the definition written out here. */
#include "libnear.h"
#include "libwide.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N = 100, H = near_heads, D = near_head_dim, NEAR_KEYS = 8,
       WIDE_KEYS = 50 };

static float q[N][H][D], k[N][H][D], v[N][H][D], o[N][H][D];

static void fill(float *x, unsigned seed) {
  for (int i = 0; i < N * H * D; i++) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (float)(seed >> 8) / (float)(1 << 24) - 0.5f;
  }
}

static double weight(int n, int j, int h) {
  double score = 0;
  for (int d = 0; d < D; d++) score += (double)q[n][h][d] * k[j][h][d];
  return exp(score / sqrt(D));
}

/* The largest difference of a row's output and its definition. */
static double row_error(int n, int h, int keys) {
  double sum = 0, want[D] = {0}, worst = 0;
  for (int j = n < keys ? 0 : n - keys + 1; j <= n; j++) {
    double w = weight(n, j, h);
    sum += w;
    for (int d = 0; d < D; d++) want[d] += w * v[j][h][d];
  }
  for (int d = 0; d < D; d++)
    worst = fmax(worst, fabs(want[d] / sum - o[n][h][d]));
  return worst;
}

static int tell(const char *name, int status, int keys) {
  double worst = 0;
  for (int n = 0; n < N; n++)
    for (int h = 0; h < H; h++) worst = fmax(worst, row_error(n, h, keys));
  int good = status == 0 && worst < 1e-5;
  printf("%s %s: status %d, error %g\n", good ? "ok" : "not ok", name, status,
         worst);
  memset(o, 0, sizeof o);
  return !good;
}

int main(void) {
  int64_t shape[] = {1, N, H, D};
  DLTensor t[] = {{.data = q}, {.data = k}, {.data = v}, {.data = o}};
  for (int i = 0; i < 4; i++) {
    t[i].device.device_type = kDLCPU;
    t[i].dtype = (DLDataType){kDLFloat, 32, 1};
    t[i].ndim = 4;
    t[i].shape = shape;
    if (i < 3) fill(t[i].data, (unsigned)i);
  }
  near_arguments a = NEAR_ARGUMENTS_INIT;
  wide_arguments b = WIDE_ARGUMENTS_INIT;
  a.q = b.q = &t[0], a.k = b.k = &t[1], a.v = b.v = &t[2], a.o = b.o = &t[3];
  int bad = tell("near", near(NULL, &a), NEAR_KEYS);
  if (bad) puts(near_last_error());
  int worse = tell("wide", wide(NULL, &b), WIDE_KEYS);
  if (worse) puts(wide_last_error());
  return bad || worse;
}
