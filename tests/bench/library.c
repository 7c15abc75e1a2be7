/* library.c - one pattern compiled at run time and built ahead of time, called
 * in turn in one process: built and run by library.sh. In: the pattern's file,
 * queries, turns. Out: this thread's own time of both, the least and the
 * median, and their ratios. */
#include "liblongnet_f32.h"
#include <dil/dil.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { H = longnet_f32_heads, D = longnet_f32_head_dim, TURNS_MOST = 100000 };

typedef struct call {
  int64_t shape[4];
  DLTensor q, k, v, o;
} call;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static DLTensor tensor(call *c, unsigned seed) {
  size_t count = (size_t)c->shape[1] * H * D;
  float *data = malloc(count * sizeof *data);
  for (size_t i = 0; data && i < count; i++) {
    seed = seed * 1664525u + 1013904223u;
    data[i] = (float)(seed >> 8) / (float)(1 << 24) - 0.5f;
  }
  return (DLTensor){.data = data,
                    .device = {kDLCPU, 0},
                    .ndim = 4,
                    .dtype = {kDLFloat, 32, 1},
                    .shape = c->shape};
}

static dil_kernel *compile(const char *path) {
  dil_context_options options = DIL_CONTEXT_OPTIONS_INIT;
  dil_context *context;
  dil_program *program;
  dil_kernel *made;
  options.threads = 1;
  if (!dil_context_new(&options, &context) &&
      !dil_program_read(context, path, NULL, &program) &&
      !dil_program_kernel(program, NULL, NULL, &made))
    return made;
  fprintf(stderr, "%s\n", dil_last_error());
  exit(1);
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double first[TURNS_MOST], second[TURNS_MOST];

static void turn(dil_kernel *made, longnet_f32_context *own, call *c, int i) {
  dil_arguments a = DIL_ARGUMENTS_INIT;
  longnet_f32_arguments b = LONGNET_F32_ARGUMENTS_INIT;
  a.q = b.q = &c->q;
  a.k = b.k = &c->k;
  a.v = b.v = &c->v;
  a.o = b.o = &c->o;
  double start = now();
  int bad = (int)dil_kernel_run(made, &a);
  double middle = now();
  bad |= longnet_f32(own, &b);
  second[i] = now() - middle;
  first[i] = middle - start;
  if (!bad) return;
  fprintf(stderr, "%s%s\n", dil_last_error(), longnet_f32_last_error());
  exit(1);
}

int main(int argc, char **argv) {
  int turns = argc > 3 ? atoi(argv[3]) : 0;
  if (turns < 1 || turns > TURNS_MOST) return 2;
  call c = {.shape = {1, atoi(argv[2]), H, D}};
  c.q = tensor(&c, 1);
  c.k = tensor(&c, 2);
  c.v = tensor(&c, 3);
  c.o = tensor(&c, 4);
  dil_kernel *made = compile(argv[1]);
  longnet_f32_context *own;
  if (longnet_f32_context_new(1, &own)) return 1;
  turn(made, own, &c, 0); /* all that a first call makes */
  for (int i = 0; i < turns; i++) turn(made, own, &c, i);
  qsort(first, (size_t)turns, sizeof *first, by_size);
  qsort(second, (size_t)turns, sizeof *second, by_size);
  printf("%6lld queries: at run time %.4g ms (median %.4g), ahead of time %.4g "
         "(%.4g), ratio %.4f (%.4f)\n",
         (long long)c.shape[1], 1e3 * first[0], 1e3 * first[turns / 2],
         1e3 * second[0], 1e3 * second[turns / 2], second[0] / first[0],
         second[turns / 2] / first[turns / 2]);
  return 0;
}
