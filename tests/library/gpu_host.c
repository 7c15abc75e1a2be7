/* gpu_host.c - a host that uses a GPU through dil.h and has no CUDA library of
 * its own: what happens before and around a launch; with the argument
 * `compute`, that the sums are right; with `cycles N`, that making and freeing
 * it N times leaves nothing; with `leave`, that exit() ends its threads. Out: ok
 * / not ok lines. */
#include <dil/dil.h>
#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 64, H = 2, D = 16, COUNT = N * H * D };
static const char *text = "pattern p { heads 2; head_dim 16; dtype f32;\n"
                          "  input doc : i32[N]; mask doc[i] == doc[j];\n"
                          "  branch { segment 32; } }\n";
static int bad;

static void is(const char *name, int good) {
  printf("%s %s\n", good ? "ok" : "not ok", name);
  if (!good) printf("  %s\n", dil_last_error());
  bad |= !good;
}

static void refused(const char *words, dil_status status) {
  char name[200];
  snprintf(name, sizeof name, "refused: %s", words);
  is(name, status == DIL_USAGE && strstr(dil_last_error(), words) != NULL);
}

typedef struct tensors {
  DLTensor q, k, v, o, on;
  int64_t shape[4], length;
  const DLTensor *inputs[1];
} tensors;

static DLTensor on_device(dil_context *context, const void *from, size_t bytes,
                          int32_t ndim, int64_t *shape, DLDataType type) {
  DLTensor t = {.device = {kDLCUDA, 0}, .ndim = ndim, .dtype = type};
  t.shape = shape;
  if (dil_memory_take(context, (int64_t)bytes, &t.data) ||
      dil_memory_write(context, t.data, from, (int64_t)bytes))
    is("memory of the device", 0);
  return t;
}

static void make(tensors *t, dil_context *context) {
  static float ones[COUNT];
  static int32_t on[N];
  DLDataType f32 = {kDLFloat, 32, 1}, i32 = {kDLInt, 32, 1};
  for (int i = 0; i < COUNT; i++) ones[i] = 1;
  int64_t shape[] = {1, N, H, D};
  memcpy(t->shape, shape, sizeof shape);
  t->length = N;
  t->q = on_device(context, ones, sizeof ones, 4, t->shape, f32);
  t->k = on_device(context, ones, sizeof ones, 4, t->shape, f32);
  t->v = on_device(context, ones, sizeof ones, 4, t->shape, f32);
  t->o = on_device(context, ones, sizeof ones, 4, t->shape, f32);
  t->on = on_device(context, on, sizeof on, 1, &t->length, i32);
  t->inputs[0] = &t->on;
}

static void give(tensors *t, dil_context *context) {
  DLTensor *all[] = {&t->q, &t->k, &t->v, &t->o, &t->on};
  for (int i = 0; i < 5; i++) dil_memory_give(context, all[i]->data);
}

/* Values of 1 give sums of 1 exactly. */
static void check_sums(dil_context *context, const tensors *t) {
  static float sums[COUNT];
  int good = !dil_context_wait(context, NULL) &&
             !dil_memory_read(context, sums, t->o.data, sizeof sums);
  for (int i = 0; i < COUNT; i++) good &= fabsf(sums[i] - 1) < 1e-6f;
  is("sums of ones are one", good);
}

static dil_arguments arguments_of(tensors *t) {
  dil_arguments a = DIL_ARGUMENTS_INIT;
  a.q = &t->q;
  a.k = &t->k;
  a.v = &t->v;
  a.o = &t->o;
  a.inputs = t->inputs;
  a.input_count = 1;
  return a;
}

static void run(dil_context *context, dil_kernel *kernel, int compute) {
  tensors t;
  dil_sizes sizes = {1, N, N};
  char variant[80];
  make(&t, context);
  dil_arguments a = arguments_of(&t);
  is("prepare", !dil_kernel_prepare(kernel, &sizes));
  is("variant", !dil_kernel_variant(kernel, &sizes, variant, sizeof variant) &&
                    strstr(variant, "general") != NULL);
  is("run", !dil_kernel_run(kernel, &a));
  if (compute) check_sums(context, &t);
  t.k.device.device_type = kDLCPU;
  refused("k is on cpu, the kernel is on cuda:0", dil_kernel_run(kernel, &a));
  t.k.device = (DLDevice){kDLCUDA, 1};
  refused("k is on cuda:1", dil_kernel_run(kernel, &a));
  t.k.device = (DLDevice){kDLCUDAManaged, 0};
  is("managed memory", !dil_kernel_run(kernel, &a));
  a.offsets_q = &t.on;
  refused("longest_q must be the rows of the longest document",
          dil_kernel_run(kernel, &a));
  a.offsets_q = NULL;
  t.length = N - 1;
  refused("of input 'doc' must be 64, got 63", dil_kernel_run(kernel, &a));
  a.o = &t.q;
  refused("o is an output and shares memory with q",
          dil_kernel_run(kernel, &a));
  give(&t, context);
}

/* ---- seeds ----------------------------------------------------------------
 */

enum { ROWS = 96, WIDTH = 64, HALVES = ROWS * H * WIDTH };

/* q, k, v, o and gradients of them, and a seed that kernels read. */
typedef struct dropped {
  DLTensor q, k, v, o, d_o, dq, dk, dv, seed;
  int64_t shape[4];
} dropped;

static void dropped_make(dropped *t, dil_context *context) {
  static _Float16 numbers[HALVES];
  static const int64_t shape[] = {1, ROWS, H, WIDTH};
  DLTensor *all[] = {&t->q,   &t->k,  &t->v,  &t->o,
                     &t->d_o, &t->dq, &t->dk, &t->dv};
  uint32_t random = 1;
  memcpy(t->shape, shape, sizeof shape);
  for (int i = 0; i < 8; i++) {
    for (int e = 0; e < HALVES; e++) {
      random = random * 1664525u + 1013904223u;
      numbers[e] = (_Float16)((double)random / UINT32_MAX - 0.5);
    }
    *all[i] = on_device(context, numbers, sizeof numbers, 4, t->shape,
                        (DLDataType){kDLFloat, 16, 1});
  }
  static const uint64_t seed;
  t->seed = on_device(context, &seed, sizeof seed, 0, NULL,
                      (DLDataType){kDLInt, 64, 1});
}

static void dropped_give(dropped *t, dil_context *context) {
  DLTensor *all[] = {&t->q,  &t->k,  &t->v,  &t->o,   &t->d_o,
                     &t->dq, &t->dk, &t->dv, &t->seed};
  for (int i = 0; i < 9; i++) dil_memory_give(context, all[i]->data);
}

/* o and the gradients of a call with this seed: a number, or told by the
 * device, where the call has another number that counts for nothing. */
static int draw(dil_context *context, dil_kernel *kernel, dropped *t,
                uint64_t seed, int on_device, _Float16 made[4][HALVES]) {
  dil_arguments a = DIL_ARGUMENTS_INIT;
  dil_gradients g = DIL_GRADIENTS_INIT;
  a.q = &t->q, a.k = &t->k, a.v = &t->v, a.o = &t->o;
  a.train = 1;
  a.seed = on_device ? seed + 100 : seed;
  a.seed_tensor = on_device ? &t->seed : NULL;
  g.forward = &a;
  g.d_o = &t->d_o;
  g.dq = &t->dq, g.dk = &t->dk, g.dv = &t->dv;
  const DLTensor *written[] = {&t->o, &t->dq, &t->dk, &t->dv};
  int failed = dil_memory_write(context, t->seed.data, &seed, sizeof seed) ||
               dil_kernel_run(kernel, &a) || dil_kernel_backward(kernel, &g) ||
               dil_context_wait(context, NULL);
  for (int i = 0; i < 4; i++)
    failed |= dil_memory_read(context, made[i], written[i]->data,
                              HALVES * sizeof(_Float16));
  return !failed;
}

static void seeds(dil_context *context, int force, const char *name) {
  static _Float16 number[4][HALVES], tensor[4][HALVES], other[4][HALVES];
  const char *drops = "pattern p { heads 2; head_dim 64; dtype f16;\n"
                      "  dropout 0.5; branch { } }\n";
  dil_kernel_options options = DIL_KERNEL_OPTIONS_INIT;
  dil_program *program;
  dil_kernel *kernel;
  dropped t;
  char text_of[120];
  options.force = (uint32_t)force;
  options.backward = 1;
  is(name, !dil_program_parse(context, "d.dil", drops, strlen(drops), NULL,
                              &program) &&
               !dil_program_kernel(program, NULL, &options, &kernel));
  if (bad) return;
  dropped_make(&t, context);
  is("seeds by number and by tensor",
     draw(context, kernel, &t, 7, 0, number) &&
         draw(context, kernel, &t, 7, 1, tensor) &&
         draw(context, kernel, &t, (uint64_t)7 << 32, 1, other));
  for (int i = 0; i < 4; i++) {
    snprintf(text_of, sizeof text_of, "tensor %d of a seed follows it", i);
    is(text_of, !memcmp(number[i], tensor[i], sizeof number[i]) &&
                    memcmp(number[i], other[i], sizeof number[i]) != 0);
  }
  dropped_give(&t, context);
  dil_program_free(program);
  dil_kernel_free(kernel);
}

/* ---- over and over --------------------------------------------------------
 */

typedef struct footprint {
  long bytes, descriptors, threads;
  size_t of_device;
} footprint;

static long entries(const char *path) {
  long count = 0;
  DIR *folder = opendir(path);
  while (folder && readdir(folder)) count++;
  if (folder) closedir(folder);
  return count;
}

/* Bytes of the device that are taken; 0: the driver does not tell. */
static size_t of_device(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
  int (*retain)(void **, int) =
      (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
  int (*enter)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
  int (*memory)(size_t *, size_t *) =
      (int (*)(size_t *, size_t *))dlsym(driver, "cuMemGetInfo_v2");
  size_t whole = 0, rest = 0;
  if (!retain || !enter || !memory || retain(&context, 0) || enter(context) ||
      memory(&rest, &whole))
    return 0;
  enter(NULL); /* dil brings a context of its own to each call */
  return whole - rest;
}

static footprint measure(void) {
  footprint f = {0};
  malloc_trim(0);
  FILE *file = fopen("/proc/self/statm", "r");
  is("memory is counted", file && fscanf(file, "%*d %ld", &f.bytes) == 1);
  if (file) fclose(file);
  f.bytes *= 4096;
  f.descriptors = entries("/proc/self/fd");
  f.threads = entries("/proc/self/task");
  f.of_device = of_device();
  return f;
}

static int cycle(int number) {
  dil_context_options o = DIL_CONTEXT_OPTIONS_INIT;
  dil_context *context;
  dil_program *program;
  dil_kernel *kernel = NULL;
  tensors t;
  o.device = "cuda:0";
  int failed =
      dil_context_new(&o, &context) ||
      dil_program_parse(context, "p.dil", text, strlen(text), NULL, &program) ||
      dil_program_kernel(program, NULL, NULL, &kernel);
  if (failed) return 1;
  make(&t, context);
  dil_arguments a = arguments_of(&t);
  failed = dil_kernel_run(kernel, &a) || dil_context_wait(context, NULL);
  give(&t, context);
  if (number % 2) dil_program_free(program);
  dil_context_free(context);
  dil_kernel_free(kernel);
  if (number % 2 == 0) dil_program_free(program);
  return failed;
}

/* Contexts, programs and kernels made and freed beside one that stays, since a
 * driver's context takes a tenth of a second by itself. */
static int repeat(int count) {
  /* A driver hands out 2 MiB at a time, also to others on the device. */
  enum { WARM = 40, GROWTH_MOST = 2 << 20, DEVICE_GROWTH_MOST = 8 << 20 };
  dil_context_options o = DIL_CONTEXT_OPTIONS_INIT;
  dil_context *stays;
  int failed = 0;
  o.device = "cuda:0";
  is("a context on a GPU", !dil_context_new(&o, &stays));
  for (int i = 0; i < WARM && !bad; i++) failed |= cycle(i);
  footprint before = measure();
  for (int i = 0; i < count && !bad && !failed; i++) failed |= cycle(i);
  footprint after = measure();
  printf("ok %d cycles: %+ld bytes, %+ld of the device, %ld descriptors, "
         "%ld threads\n",
         count, after.bytes - before.bytes,
         (long)(after.of_device - before.of_device), after.descriptors,
         after.threads);
  is("every cycle succeeds", !failed);
  is("memory is constant", after.bytes - before.bytes <= GROWTH_MOST);
  is("and the device's",
     after.of_device &&
         after.of_device <= before.of_device + DEVICE_GROWTH_MOST);
  is("and descriptors", after.descriptors == before.descriptors);
  is("and threads", after.threads == before.threads);
  dil_context_free(stays);
  return bad;
}

/* ---- the end of a process --------------------------------------------------
 */

/* exit() calls this last of all handlers: it was registered first. */
static void tell_threads(void) {
  long threads = entries("/proc/self/task") - 2; /* besides . and .. */
  printf("%s no thread is left at the end\n", threads == 1 ? "ok" : "not ok");
  fflush(stdout);
  if (threads != 1) _exit(1);
}

/* Exits beside a kernel that is not freed, while a thread waits to compile. */
static int leave(void) {
  const char *plain = "pattern p { heads 2; head_dim 64; dtype f16;\n"
                      "  dropout 0.5; causal; branch { } }\n";
  dil_context_options o = DIL_CONTEXT_OPTIONS_INIT;
  dil_context *context;
  dil_program *program;
  dil_kernel *kernel;
  if (atexit(tell_threads)) return 1;
  o.device = "cuda:0";
  is("a kernel that stays",
     !dil_context_new(&o, &context) &&
         !dil_program_parse(context, "p.dil", plain, strlen(plain), NULL,
                            &program) &&
         !dil_program_kernel(program, NULL, NULL, &kernel));
  is("its thread", entries("/proc/self/task") > 3);
  return bad;
}

int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "leave")) return leave();
  if (argc > 2 && !strcmp(argv[1], "cycles")) return repeat(atoi(argv[2]));
  dil_context_options o = DIL_CONTEXT_OPTIONS_INIT;
  dil_kernel_options general = DIL_KERNEL_OPTIONS_INIT;
  dil_kernel_info info = DIL_KERNEL_INFO_INIT;
  dil_stats stats = DIL_STATS_INIT;
  dil_context *context;
  dil_program *program;
  dil_kernel *kernel;
  o.device = "cuda:0";
  o.threads = 2;
  refused("no threads of the processor", dil_context_new(&o, &context));
  o.threads = 0;
  is("a context on a GPU", !dil_context_new(&o, &context));
  if (bad) return 1;
  is("a program",
     !dil_program_parse(context, "p.dil", text, strlen(text), NULL, &program));
  general.isa = "avx2";
  refused("instruction set 'avx2' says nothing to device cuda:0",
          dil_program_kernel(program, NULL, &general, &kernel));
  general.isa = NULL;
  general.force = DIL_FORCE_GENERAL;
  is("a kernel", !dil_program_kernel(program, NULL, &general, &kernel));
  if (bad) return 1;
  is("which says where it is", !dil_kernel_describe(kernel, &info) &&
                                   !strcmp(info.device, "cuda:0") &&
                                   !strncmp(info.target, "sm_", 3));
  run(context, kernel, argc > 1 && !strcmp(argv[1], "compute"));
  is("statistics", !dil_context_stats(context, &stats) && stats.calls == 2 &&
                       stats.kernels == 1);
  if (argc > 1 && !strcmp(argv[1], "compute")) {
    seeds(context, DIL_FORCE_GENERAL, "dropout, by the general kernel");
    seeds(context, 0, "dropout, by the chip's own kernel");
  }
  dil_program_free(program);
  dil_context_free(context);
  dil_kernel_free(kernel);
  return bad;
}
