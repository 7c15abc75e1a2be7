/* test_launch.c - launches on a GPU: captured into graphs and replayed, on
 * streams at once, from threads at once, and what they cost the host. In:
 * DIL_TEST_DEVICE=cuda. Every result must be the bits of a run by itself. */
#include "runtime/base/random.h"
#include "tests/support/gpu.h"
#include "tests/support/suite.h"
#include <check.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the driver ---------------------------------------------------------- */

typedef struct stream_handle *stream;
typedef struct graph_handle *graph;
typedef struct exec_handle *exec;

static struct driver {
  int (*device)(int *, int);
  int (*retain)(void **, int);
  int (*enter)(void *);
  int (*stream_new)(stream *, unsigned);
  int (*stream_free)(stream);
  int (*wait)(stream);
  int (*capture)(stream, int);
  int (*captured)(stream, graph *);
  int (*instantiate)(exec *, graph, unsigned long long);
  int (*replay)(exec, stream);
  int (*exec_free)(exec);
  int (*graph_free)(graph);
} cu;

static const struct { void *to; const char *symbol; } symbols[] = {
    {&cu.device, "cuDeviceGet"},
    {&cu.retain, "cuDevicePrimaryCtxRetain"},
    {&cu.enter, "cuCtxSetCurrent"},
    {&cu.stream_new, "cuStreamCreate"},
    {&cu.stream_free, "cuStreamDestroy_v2"},
    {&cu.wait, "cuStreamSynchronize"},
    {&cu.capture, "cuStreamBeginCapture_v2"},
    {&cu.captured, "cuStreamEndCapture"},
    {&cu.instantiate, "cuGraphInstantiateWithFlags"},
    {&cu.replay, "cuGraphLaunch"},
    {&cu.exec_free, "cuGraphExecDestroy"},
    {&cu.graph_free, "cuGraphDestroy"}};

static void *context;

static void driver_open(void) {
  int device;
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  ck_assert_msg(library != NULL, "%s", dlerror());
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    void *found = dlsym(library, symbols[i].symbol);
    ck_assert_msg(found != NULL, "no %s", symbols[i].symbol);
    memcpy(symbols[i].to, &found, sizeof found);
  }
  gpu_device(); /* which starts the driver */
  ck_assert_int_eq(cu.device(&device, 0), 0);
  ck_assert_int_eq(cu.retain(&context, device), 0);
  ck_assert_int_eq(cu.enter(context), 0);
}

static stream stream_new(void) {
  enum { NON_BLOCKING = 1 };
  stream s;
  ck_assert_int_eq(cu.stream_new(&s, NON_BLOCKING), 0);
  return s;
}

/* ---- calls whose results are known --------------------------------------- */

enum { N = 4096, HEADS = 4, OUTPUTS = 6, ELEMENTS = N * HEADS * 64 };
enum { BYTES = ELEMENTS * 2, LSE_BYTES = N * HEADS * 4, SLACK = 4096 };

static const char *const texts[] = {
    "pattern p { heads 4; head_dim 64; dtype bf16; "
    "segments 1024, 2048, 4096; dilations 1, 2, 4; }",
    "pattern p { heads 4; head_dim 64; dtype bf16; causal; "
    "segments 1024, 2048, 4096; dilations 1, 2, 4; }",
    /* keys that are split, a state that is resumed: workspace */
    "pattern p { heads 4; head_dim 64; dtype f16; causal; combine mean; "
    "branch { segment 1024; } branch { dilation 4; } }"};
enum { TEXTS = sizeof texts / sizeof *texts };

typedef struct launch_problem {
  tested_pattern *tested;
  kernel_made *made;
  dil_cuda_kernel *kernel;
  dil_tensor q, k, v;
  void *input[3], *output[OUTPUTS], *lse[OUTPUTS];
  void *length;            /* i32[1]; NULL: all keys */
  unsigned char *right, *right_lse, *found;
} launch_problem;

static void *take(int64_t bytes) {
  void *memory;
  ck_assert_int_eq(gpu_module()->take(gpu_device(), bytes, &memory), DIL_OK);
  return memory;
}

static void *take_random(dil_dtype dtype, uint32_t seed) {
  unsigned char *bytes = malloc(BYTES);
  void *memory = take(BYTES);
  for (int64_t i = 0; i < ELEMENTS; i++)
    dil_element_write(bytes, dtype, i, dil_normal(seed, 0, (uint64_t)i));
  ck_assert_int_eq(
      gpu_module()->upload(gpu_device(), memory, bytes, BYTES), DIL_OK);
  free(bytes);
  return memory;
}

static dil_call call_of(const launch_problem *p, int output) {
  const int64_t shape[4] = {1, N, HEADS, 64}, rows[3] = {1, HEADS, N};
  dil_dtype dtype = p->tested->pattern->dtype;
  dil_call call = {
      .size = sizeof call,
      .q = dil_tensor_make(p->input[0], dtype, 4, shape),
      .k = dil_tensor_make(p->input[1], dtype, 4, shape),
      .v = dil_tensor_make(p->input[2], dtype, 4, shape),
      .o = dil_tensor_make(p->output[output], dtype, 4, shape),
      .lengths = p->length};
  if (p->made->plan->table.lse_allowed)
    call.lse = dil_tensor_make(p->lse[output], DIL_F32, 3, rows);
  return call;
}

static void launch(const launch_problem *p, int output, stream s) {
  dil_call call = call_of(p, output);
  dil_status status = gpu_module()->run(p->kernel, &call, s);
  ck_assert_msg(status == DIL_OK, "%s", dil_last_error());
}

static void poison(const launch_problem *p, int output) {
  gpu_module()->fill(gpu_device(), p->output[output], 0xA5, BYTES);
  gpu_module()->fill(gpu_device(), p->lse[output], 0xA5, LSE_BYTES);
  ck_assert_int_eq(cu.wait(NULL), 0);
}

static void download(const launch_problem *p, int output, unsigned char *o,
                     unsigned char *lse) {
  const dil_cuda_module *m = gpu_module();
  ck_assert_int_eq(m->download(gpu_device(), o, p->output[output], BYTES),
                   DIL_OK);
  ck_assert_int_eq(m->download(gpu_device(), lse, p->lse[output], LSE_BYTES),
                   DIL_OK);
}

static void expect_right(const launch_problem *p, int output,
                         const char *what) {
  download(p, output, p->found, p->found + BYTES);
  ck_assert_msg(!memcmp(p->found, p->right, BYTES), "%s: o differs", what);
  ck_assert_msg(!memcmp(p->found + BYTES, p->right_lse, LSE_BYTES),
                "%s: lse differs", what);
}

static void problem_open(launch_problem *p, const char *text) {
  driver_open();
  *p = (launch_problem){.tested = tested_pattern_new("launch", text, NULL, 0)};
  ck_assert_msg(p->tested->pattern != NULL, "%s", p->tested->problem);
  p->made = kernel_make(p->tested, (recipe){0});
  p->kernel = gpu_kernel_make(p->made->plan, false, p->made->problem,
                              sizeof p->made->problem);
  ck_assert_msg(p->kernel != NULL, "%s", p->made->problem);
  for (uint32_t i = 0; i < 3; i++)
    p->input[i] = take_random(p->tested->pattern->dtype, i + 1);
  for (int i = 0; i < OUTPUTS; i++) {
    p->output[i] = take(BYTES + SLACK);
    p->lse[i] = take(LSE_BYTES);
    poison(p, i);
  }
  p->right = malloc(BYTES);
  p->right_lse = malloc(LSE_BYTES);
  p->found = malloc(BYTES + LSE_BYTES);
  launch(p, 0, NULL);
  ck_assert_int_eq(cu.wait(NULL), 0);
  download(p, 0, p->right, p->right_lse);
}

static void problem_close(launch_problem *p) {
  for (int i = 0; i < 3; i++) gpu_module()->give(gpu_device(), p->input[i]);
  for (int i = 0; i < OUTPUTS; i++) {
    gpu_module()->give(gpu_device(), p->output[i]);
    gpu_module()->give(gpu_device(), p->lse[i]);
  }
  free(p->right);
  free(p->right_lse);
  free(p->found);
  gpu_kernel_unmake(p->kernel);
  kernel_unmake(p->made);
  tested_pattern_free(p->tested);
}

/* ---- graphs -------------------------------------------------------------- */

static exec capture(const launch_problem *p, stream s, int first, int count) {
  enum { GLOBAL = 0 };
  graph g;
  exec e;
  ck_assert_int_eq(cu.capture(s, GLOBAL), 0);
  for (int i = 0; i < count; i++) launch(p, first + i, s);
  ck_assert_int_eq(cu.captured(s, &g), 0);
  ck_assert_int_eq(cu.instantiate(&e, g, 0), 0);
  ck_assert_int_eq(cu.graph_free(g), 0);
  return e;
}

START_TEST(graph_is_replayed) {
  launch_problem p;
  problem_open(&p, texts[_i]);
  stream s = stream_new();
  exec e = capture(&p, s, 1, 2);
  for (int round = 0; round < 100; round++) {
    poison(&p, 1);
    poison(&p, 2);
    ck_assert_int_eq(cu.replay(e, s), 0);
    if (round % 10 == 0) launch(&p, 3, s); /* behind a replay */
    ck_assert_int_eq(cu.wait(s), 0);
    expect_right(&p, 1, "first of a graph");
    expect_right(&p, 2, "second of a graph");
  }
  expect_right(&p, 3, "behind a graph");
  ck_assert_int_eq(cu.exec_free(e), 0);
  ck_assert_int_eq(cu.stream_free(s), 0);
  problem_close(&p);
}
END_TEST

/* The keys of a batch row are read when a graph runs. */
START_TEST(graph_reads_lengths) {
  static const int32_t lengths[] = {2500, 0, N, 1};
  launch_problem p;
  problem_open(&p, texts[_i]);
  p.length = take(sizeof *lengths);
  stream s = stream_new();
  exec e = capture(&p, s, 1, 1);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    ck_assert_int_eq(gpu_module()->upload(gpu_device(), p.length, &lengths[i],
                                          sizeof lengths[i]), DIL_OK);
    launch(&p, 0, NULL);
    ck_assert_int_eq(cu.wait(NULL), 0);
    download(&p, 0, p.right, p.right_lse);
    poison(&p, 1);
    ck_assert_int_eq(cu.replay(e, s), 0);
    ck_assert_int_eq(cu.wait(s), 0);
    expect_right(&p, 1, "a graph of another length");
  }
  ck_assert_int_eq(cu.exec_free(e), 0);
  ck_assert_int_eq(cu.stream_free(s), 0);
  gpu_module()->give(gpu_device(), p.length);
  problem_close(&p);
}
END_TEST

/* Two streams, and two graphs on two more, all busy at once. */
START_TEST(streams_overlap) {
  launch_problem p;
  problem_open(&p, texts[_i]);
  stream s[4];
  for (int i = 0; i < 4; i++) s[i] = stream_new();
  exec e[2] = {capture(&p, s[2], 3, 1), capture(&p, s[3], 4, 1)};
  for (int round = 0; round < 20; round++) {
    for (int i = 1; i <= 4; i++) poison(&p, i);
    for (int i = 0; i < 10; i++) {
      launch(&p, 1, s[0]);
      ck_assert_int_eq(cu.replay(e[0], s[2]), 0);
      launch(&p, 2, s[1]);
      ck_assert_int_eq(cu.replay(e[1], s[3]), 0);
    }
    for (int i = 0; i < 4; i++) ck_assert_int_eq(cu.wait(s[i]), 0);
    for (int i = 1; i <= 4; i++) expect_right(&p, i, "beside others");
  }
  for (int i = 0; i < 2; i++) ck_assert_int_eq(cu.exec_free(e[i]), 0);
  for (int i = 0; i < 4; i++) ck_assert_int_eq(cu.stream_free(s[i]), 0);
  problem_close(&p);
}
END_TEST

/* ---- threads ------------------------------------------------------------- */

typedef struct launch_worker {
  const launch_problem *problem;
  int output;
} launch_worker;

static void *work(void *argument) {
  const launch_worker *w = argument;
  ck_assert_int_eq(cu.enter(context), 0);
  stream s = stream_new();
  for (int i = 0; i < 200; i++) launch(w->problem, w->output, s);
  ck_assert_int_eq(cu.wait(s), 0);
  ck_assert_int_eq(cu.stream_free(s), 0);
  return NULL;
}

START_TEST(threads_share_a_kernel) {
  launch_problem p;
  pthread_t thread[OUTPUTS];
  launch_worker w[OUTPUTS];
  problem_open(&p, texts[_i]);
  for (int i = 0; i < OUTPUTS; i++) {
    w[i] = (launch_worker){&p, i};
    ck_assert_int_eq(pthread_create(&thread[i], NULL, work, &w[i]), 0);
  }
  for (int i = 0; i < OUTPUTS; i++) pthread_join(thread[i], NULL);
  for (int i = 0; i < OUTPUTS; i++) expect_right(&p, i, "among threads");
  problem_close(&p);
}
END_TEST

/* ---- the cost ------------------------------------------------------------ */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of the host a launch, the best of a few batches that the device's
 * queue takes without waiting. step: how far o moves from launch to launch. */
static double cost(const launch_problem *p, stream s, int64_t step) {
  enum { BATCHES = 20, EACH = 200 };
  double best = 1;
  for (int batch = 0; batch < BATCHES; batch++) {
    dil_call call = call_of(p, 1);
    double began = now();
    for (int i = 0; i < EACH; i++) {
      ck_assert_int_eq(gpu_module()->run(p->kernel, &call, s), DIL_OK);
      call.o.data = (char *)call.o.data + step;
    }
    double each = (now() - began) / EACH;
    if (each < best) best = each;
    ck_assert_int_eq(cu.wait(s), 0);
  }
  return best;
}

/* More tensors in turn than maps are kept for: those of o are always made
 * anew, one a stride, and now and then those of q, k and v. */
START_TEST(launches_are_cheap) {
  enum { MAPS = 3, STEP = 16 };
  launch_problem p;
  problem_open(&p, texts[0]);
  stream s = stream_new();
  double kept = cost(&p, s, 0), moved = cost(&p, s, STEP);
  printf("a launch costs the host %.2f us; %.2f us with a new tensor, "
         "%.2f us a map\n", kept * 1e6, moved * 1e6,
         (moved - kept) / MAPS * 1e6);
  ck_assert_double_lt(kept, 10e-6);
  ck_assert_double_lt(moved - kept, MAPS * 1e-6);
  ck_assert_int_eq(cu.stream_free(s), 0);
  problem_close(&p);
}
END_TEST

int main(void) {
  if (!gpu_wanted()) {
    puts("ok skipped: launches need a GPU (DIL_TEST_DEVICE=cuda)");
    return 0;
  }
  Suite *suite = suite_create("launch");
  TCase *tests = tcase_create("launch");
  tcase_set_timeout(tests, 120);
  tcase_add_loop_test(tests, graph_is_replayed, 0, TEXTS);
  tcase_add_loop_test(tests, graph_reads_lengths, 0, TEXTS);
  tcase_add_loop_test(tests, streams_overlap, 0, TEXTS);
  tcase_add_loop_test(tests, threads_share_a_kernel, 0, TEXTS);
  tcase_add_test(tests, launches_are_cheap);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
