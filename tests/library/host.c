/* host.c - a program that knows kernels by their libraries' headers
 * alone: built by build.sh, never with the suites. It attends over numbers
 * of its own, compares with the definition written out here, and says which
 * files it has in memory. */
#include "libfirst.h"
#include "libsecond.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 150, H = first_heads, D = first_head_dim, COUNT = N * H * D };

static float q[COUNT], k[COUNT], v[COUNT];

static void fill(float *x, unsigned seed) {
  for (int i = 0; i < COUNT; i++) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (float)(seed >> 8) / (float)(1 << 24) - 0.5f;
  }
}

static const float *row(const float *x, int n, int h) {
  return x + (n * H + h) * D;
}

/* o of one row, and its lse, in double. */
static double definition(int n, int h, int keys, double *o) {
  double weight[N], most = -INFINITY, sum = 0;
  for (int j = 0; j < keys; j++) {
    weight[j] = 0;
    for (int d = 0; d < D; d++)
      weight[j] += (double)row(q, n, h)[d] * row(k, j, h)[d];
    weight[j] /= sqrt(D);
    most = fmax(most, weight[j]);
  }
  memset(o, 0, D * sizeof *o);
  for (int j = 0; j < keys; j++) {
    weight[j] = exp(weight[j] - most);
    sum += weight[j];
    for (int d = 0; d < D; d++) o[d] += weight[j] * row(v, j, h)[d];
  }
  for (int d = 0; d < D; d++) o[d] /= sum;
  return most + log(sum);
}

static double error_of(const float *o, const float *lse, int causal) {
  double want[D], worst = 0;
  for (int n = 0; n < N; n++)
    for (int h = 0; h < H; h++) {
      double l = definition(n, h, causal ? n + 1 : N, want);
      worst = fmax(worst, fabs(l - lse[h * N + n]));
      for (int d = 0; d < D; d++)
        worst = fmax(worst, fabs(want[d] - row(o, n, h)[d]));
    }
  return worst;
}

typedef struct tensors {
  int64_t shape[4], lse_shape[3];
  DLTensor q, k, v, o, lse;
  float out[COUNT], out_lse[N * H];
} tensors;

static DLTensor tensor(float *data, int rank, int64_t *shape) {
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

static tensors *tensors_new(void) {
  tensors *t = calloc(1, sizeof *t);
  const int64_t shape[] = {1, N, H, D}, lse_shape[] = {1, H, N};
  memcpy(t->shape, shape, sizeof shape);
  memcpy(t->lse_shape, lse_shape, sizeof lse_shape);
  t->q = tensor(q, 4, t->shape);
  t->k = tensor(k, 4, t->shape);
  t->v = tensor(v, 4, t->shape);
  t->o = tensor(t->out, 4, t->shape);
  t->lse = tensor(t->out_lse, 3, t->lse_shape);
  return t;
}

static int failed;

static void tell(const char *name, int good) {
  printf("%s %s\n", good ? "ok" : "not ok", name);
  failed |= !good;
}

static int run_first(tensors *t) {
  first_arguments a = FIRST_ARGUMENTS_INIT;
  a.q = &t->q;
  a.k = &t->k;
  a.v = &t->v;
  a.o = &t->o;
  a.lse = &t->lse;
  return first(NULL, &a);
}

static int run_second(tensors *t, double scale) {
  second_arguments a = SECOND_ARGUMENTS_INIT;
  a.q = &t->q;
  a.k = &t->k;
  a.v = &t->v;
  a.o = &t->o;
  a.lse = &t->lse;
  a.scale = scale;
  return second(NULL, &a);
}

static void *turns(void *which) {
  tensors *t = tensors_new();
  double worst = 0;
  for (int turn = 0; turn < 20; turn++) {
    int status = which ? run_second(t, 0.25) : run_first(t);
    double error = error_of(t->out, t->out_lse, !which);
    worst = fmax(worst, status ? INFINITY : error);
  }
  free(t);
  return worst < 1e-4 ? which : (void *)&failed;
}

static void check_threads(void) {
  pthread_t thread[4];
  int good = 1;
  static int mark;
  for (int i = 0; i < 4; i++)
    pthread_create(&thread[i], NULL, turns, i % 2 ? &mark : NULL);
  for (int i = 0; i < 4; i++) {
    void *back;
    pthread_join(thread[i], &back);
    good &= back == (i % 2 ? &mark : NULL);
  }
  tell("both at once on four threads", good);
}

static void check_errors(tensors *t) {
  first_arguments a = FIRST_ARGUMENTS_INIT;
  int status = first(NULL, &a);
  tell("a missing tensor is told by its name",
       status == 2 && !strcmp(first_last_error(), "q is not given"));
  a.size = 8;
  status = first(NULL, &a);
  tell("a struct of another size is refused",
       status == 2 && strstr(first_last_error(), "have 256 bytes") != NULL);
  a.size = sizeof a;
  a.reserved[15] = &a;
  status = first(NULL, &a);
  tell("a reserved word that is not NULL is refused",
       status == 2 && strstr(first_last_error(), "reserved[15]") != NULL);
  a.reserved[15] = NULL;
  t->k.shape = t->lse_shape;
  t->k.ndim = 3;
  status = run_first(t);
  tell("a wrong shape is told",
       status == 2 && strstr(first_last_error(), "k must"));
  t->k = tensor(k, 4, t->shape);
}

/* Rows first..last - 1 of a tensor of rows. */
static DLTensor part_of(float *data, int first, int last, int64_t shape[4]) {
  const int64_t part[] = {1, last - first, H, D};
  memcpy(shape, part, sizeof part);
  return tensor(data + first * H * D, 4, shape);
}

/* A document has the bits of a call of its own. */
static int document_is_alone(const tensors *t, int first_row, int last_row) {
  static float out[COUNT];
  int64_t shape[4];
  DLTensor part[] = {part_of(q, first_row, last_row, shape),
                     part_of(k, first_row, last_row, shape),
                     part_of(v, first_row, last_row, shape),
                     part_of(out, 0, last_row - first_row, shape)};
  first_arguments a = FIRST_ARGUMENTS_INIT;
  a.q = &part[0], a.k = &part[1], a.v = &part[2], a.o = &part[3];
  size_t bytes = (size_t)(last_row - first_row) * H * D * sizeof *out;
  return !first(NULL, &a) && !memcmp(out, t->out + first_row * H * D, bytes);
}

static void check_packed(tensors *t) {
  static int32_t offsets[] = {0, 60, N};
  int64_t count = 3;
  DLTensor at = tensor(NULL, 1, &count);
  at.data = offsets;
  at.dtype.code = kDLInt;
  first_arguments a = FIRST_ARGUMENTS_INIT;
  a.q = &t->q, a.k = &t->k, a.v = &t->v, a.o = &t->o;
  tell("a packed call wants offsets",
       first_packed(NULL, &a) == 2 &&
           strstr(first_last_error(), "wants offsets_q") != NULL);
  a.offsets_q = &at;
  a.longest_q = N - 60;
  tell("documents are attended to apart",
       first_packed(NULL, &a) == 0 && document_is_alone(t, 0, 60) &&
           document_is_alone(t, 60, N));
}

/* ---- contexts of its own ------------------------------------------------- */

#ifdef WITH_DILRT
#include <dil/dilrt.h>
typedef dil_context own_context;
static int own_new(own_context **c) {
  dil_context_options options = DIL_CONTEXT_OPTIONS_INIT;
  options.threads = 2;
  return (int)dil_context_new(&options, c);
}
static void own_free(own_context *c) { dil_context_free(c); }
#else
typedef first_context own_context;
static int own_new(own_context **c) { return first_context_new(2, c); }
static void own_free(own_context *c) { first_context_free(c); }
#endif

/* A number of /proc/self/status: "VmRSS:" in KiB, "Threads:". */
static long number_of(const char *name) {
  char line[256];
  long number = -1;
  FILE *in = fopen("/proc/self/status", "r");
  while (in && fgets(line, sizeof line, in))
    if (!strncmp(line, name, strlen(name)))
      number = strtol(line + strlen(name), NULL, 10);
  if (in) fclose(in);
  return number;
}

/* Threads, once as many for a tenth of a second: one that has been joined counts
 * until the system has buried it. */
static long settled_threads(void) {
  long before = 0, now = number_of("Threads:");
  for (int same = 0; same < 10; same = now == before ? same + 1 : 0) {
    before = now;
    usleep(10000);
    now = number_of("Threads:");
  }
  return now;
}

static int run_own(tensors *t) {
  own_context *c;
  first_arguments a = FIRST_ARGUMENTS_INIT;
  a.q = &t->q;
  a.k = &t->k;
  a.v = &t->v;
  a.o = &t->o;
  int status = own_new(&c);
  if (status) return status;
  for (int i = 0; i < 2 && !status; i++) status = first(c, &a);
  own_free(c);
  return status;
}

static void check_contexts(tensors *t) {
  enum { TURNS = 500 };
  int bad = 0;
  for (int i = 0; i < 20; i++) bad |= run_own(t);
  long memory = number_of("VmRSS:"), threads = settled_threads();
  for (int i = 0; i < TURNS; i++) bad |= run_own(t);
  tell("contexts come and go", bad == 0);
  tell("and leave no thread", settled_threads() == threads);
  tell("and no memory", number_of("VmRSS:") - memory < 1024);
}

static void check_fork(tensors *t) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) _exit(run_first(t));
  int state = 0;
  waitpid(child, &state, 0);
  tell("a child runs by itself", WIFEXITED(state) && !WEXITSTATUS(state));
}

/* Every file in memory, for the script to judge. */
static void show_files(void) {
  char line[4096];
  FILE *in = fopen("/proc/self/maps", "r");
  while (in && fgets(line, sizeof line, in)) {
    char *path = strchr(line, '/');
    if (path) printf("file %s", path);
  }
  if (in) fclose(in);
}

int main(void) {
  fill(q, 1);
  fill(k, 2);
  fill(v, 3);
  tensors *t = tensors_new();
  tell("a call can be prepared", first_prepare(NULL, 1, N, N) == 0);
  tell("but of no negative size", first_prepare(NULL, 1, -1, N) == 2 &&
                                      strstr(first_last_error(), "queries -1"));
  int status = run_first(t);
  tell("the first library runs", status == 0);
  if (status) printf("%d %s\n", status, first_last_error());
  tell("and is right", error_of(t->out, t->out_lse, 1) < 1e-4);
  status = run_second(t, 0.25); /* D is 16 */
  tell("the second library runs", status == 0);
  if (status) printf("%d %s\n", status, second_last_error());
  tell("and is right, too", error_of(t->out, t->out_lse, 0) < 1e-4);
  check_threads();
  check_errors(t);
  check_packed(t);
  check_contexts(t);
  check_fork(t);
  show_files();
  free(t);
  return failed;
}
