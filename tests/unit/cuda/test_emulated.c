/* test_emulated.c - what the emulated device finds: kernels with one fault each
 * must be stopped with its reason, and work of streams that nothing orders must
 * come in another order. In: BUILD/emulator. Every test is a process of its own,
 * since a driver that has stopped says so for good. */
#include "tests/support/gpu.h"
#include "tests/support/suite.h"
#include <check.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long address;

static struct {
  int (*init)(unsigned);
  int (*retain)(void **, int);
  int (*enter)(void *);
  int (*text)(int, const char **);
  int (*take)(address *, size_t);
  int (*give)(address);
  int (*read)(void *, address, size_t);
  int (*fill)(address, unsigned char, size_t, void *);
  int (*load)(void **, const void *, void *, void *, unsigned, void *, void *,
              unsigned);
  int (*kernel)(void **, void *, const char *);
  int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned,
                unsigned, unsigned, void *, void **, void **);
  int (*wait)(void *);
  int (*stream)(void **, unsigned);
  int (*event)(void **, unsigned);
  int (*record)(void *, void *);
  int (*follow)(void *, void *, unsigned);
  int (*copy)(address, address, size_t, void *);
  int (*create)(void **, const char *, const char *, int, const char *const *,
                const char *const *);
  int (*compile)(void *, int, const char *const *);
  int (*size)(void *, size_t *);
  int (*cubin)(void *, char *);
} cu;

static const struct { void *to; const char *symbol; } symbols[] = {
    {&cu.init, "cuInit"},
    {&cu.retain, "cuDevicePrimaryCtxRetain"},
    {&cu.enter, "cuCtxPushCurrent_v2"},
    {&cu.text, "cuGetErrorString"},
    {&cu.take, "cuMemAlloc_v2"},
    {&cu.give, "cuMemFree_v2"},
    {&cu.read, "cuMemcpyDtoH_v2"},
    {&cu.fill, "cuMemsetD8Async"},
    {&cu.load, "cuLibraryLoadData"},
    {&cu.kernel, "cuLibraryGetKernel"},
    {&cu.launch, "cuLaunchKernel"},
    {&cu.wait, "cuStreamSynchronize"},
    {&cu.stream, "cuStreamCreate"},
    {&cu.event, "cuEventCreate"},
    {&cu.record, "cuEventRecord"},
    {&cu.follow, "cuStreamWaitEvent"},
    {&cu.copy, "cuMemcpyDtoDAsync_v2"},
    {&cu.create, "nvrtcCreateProgram"},
    {&cu.compile, "nvrtcCompileProgram"},
    {&cu.size, "nvrtcGetCUBINSize"},
    {&cu.cubin, "nvrtcGetCUBIN"}};

static address memory; /* 512 bytes of the device */

static void good(int result) {
  const char *text = "";
  if (result) cu.text(result, &text);
  ck_assert_msg(!result, "%d: %s", result, text);
}

/* `order`: of streams; kernels have every access checked. */
static void begin(const char *order) {
  static const char *const names[] = {"libcuda.so.1", "libnvrtc.so.13"};
  void *context, *library[2], *found = NULL;
  char path[4096];
  setenv("EMULATED_ORDER", order, 1);
  setenv("EMULATED_CHECK", "1", 1);
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/emulator/%s",
             getenv("BUILD") ? getenv("BUILD") : "build", names[i]);
    library[i] = dlopen(path, RTLD_NOW);
    ck_assert_msg(library[i] != NULL, "%s", dlerror());
  }
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    found = dlsym(library[0], symbols[i].symbol);
    if (!found) found = dlsym(library[1], symbols[i].symbol);
    ck_assert_msg(found != NULL, "no %s", symbols[i].symbol);
    memcpy(symbols[i].to, &found, sizeof found);
  }
  good(cu.init(0));
  good(cu.retain(&context, 0));
  good(cu.enter(context));
  good(cu.take(&memory, 512));
}

/* ---- faulty kernels --------------------------------------------------------- */

/* Copies bytes from word `from` of p.data to place 16 of shared memory. */
#define BYTES(from, size)                                                      \
  "unsigned at = 0, done = 0; if (threadIdx.x == 0) { "                        \
  "asm volatile(\"mbarrier.init.shared::cta.b64 [%0], %1;\" :: \"r\"(at), "    \
  "\"r\"(1)); "                                                                \
  "asm volatile(\"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\" ::" \
  " \"r\"(at), \"r\"(" size ")); "                                             \
  "asm volatile(\"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::" \
  "bytes [%0], [%1], %2, [%3];\" :: \"r\"(16), \"l\"(p.data + " from            \
  "), \"r\"(" size "), \"r\"(at)); } __syncthreads(); "                        \
  "asm volatile(\"{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta"   \
  ".b64 p, [%0], %1; @!p bra again;}\" :: \"r\"(at), \"r\"(done));"
/* Reads four words from word `from` on. */
#define FRESH(from)                                                            \
  "float x, y, z, w; asm volatile(\"ld.global.cg.v4.f32 {%0, %1, %2, %3}, "     \
  "[%4];\" : \"=f\"(x), \"=f\"(y), \"=f\"(z), \"=f\"(w) : "                     \
  "\"l\"((const float *)p.data + " from ")); "                                 \
  "if (x != x + 0 * y * z * w) p.data[threadIdx.x] = 1;"

static const struct {
  const char *words, *body; /* of a kernel of 128 threads; p.data: one word each */
} cases[] = {
    {NULL, "if (blockIdx.x == 0) p.data[threadIdx.x] = 1;"},
    {"beyond the end of its block",
     "if (!blockIdx.x) p.data[threadIdx.x + 1] = 1;"},
    {"which is memory of the host", "*(int *)p.never = 1;"},
    {"writes 4 bytes at", "int at; if (!blockIdx.x && !threadIdx.x) p.data[at] = 1;"},
    {"of shared memory at 1024, beyond 1024",
     "shared[4 * threadIdx.x + 516] = 1;"},
    {NULL, "shared[threadIdx.x] = 1; __syncthreads();"
           "if (blockIdx.x) p.data[threadIdx.x] = shared[threadIdx.x ^ 1];"},
    {"nothing orders the two",
     "shared[threadIdx.x] = 1; p.data[threadIdx.x] = shared[threadIdx.x ^ 1];"},
    {"nothing orders the two", "p.data[0] = threadIdx.x;"},
    {"nothing orders the two", "if (threadIdx.x == 0) p.data[0] = blockIdx.x;"},
    {"stands still", "if (threadIdx.x < 32) __syncthreads();"},
    {"phase 0 of the mbarrier at 0",
     "unsigned at = 0; if (threadIdx.x == 0) "
     "asm volatile(\"mbarrier.init.shared::cta.b64 [%0], %1;\" :: \"r\"(at), "
     "\"r\"(1)); __syncthreads();"
     "asm volatile(\"{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta"
     ".b64 p, [%0], %1; @!p bra again;}\" :: \"r\"(at), \"r\"(0));"},
    {"there is no mbarrier", "asm volatile(\"mbarrier.arrive.shared::cta.b64 _, "
                             "[%0];\" :: \"r\"(8));"},
    {"are at a vote, it is at a shuffle",
     "int x = threadIdx.x % 2; if (x) x = __shfl_sync(~0u, x, 0); "
     "else x = __any_sync(~0u, x); p.data[threadIdx.x] = x;"},
    {"is no multiple of 16",
     "unsigned x, y, z, w; asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.shared"
     ".b16 {%0,%1,%2,%3}, [%4];\" : \"=r\"(x), \"=r\"(y), \"=r\"(z), \"=r\"(w) "
     ": \"r\"(8)); p.data[threadIdx.x] = x + y + z + w;"},
    {"without a fence",
     "unsigned at = 0; float d[16]; asm volatile(\"st.shared.b32 [%0], %1;\" :: "
     "\"r\"(at), \"r\"(1)); __syncthreads(); "
     "asm volatile(\"wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,"
     "%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %16, 0, 1, 1, 0,"
     " 0;\" : \"+f\"(d[0]), \"+f\"(d[1]), \"+f\"(d[2]), \"+f\"(d[3]), "
     "\"+f\"(d[4]), \"+f\"(d[5]), \"+f\"(d[6]), \"+f\"(d[7]), \"+f\"(d[8]), "
     "\"+f\"(d[9]), \"+f\"(d[10]), \"+f\"(d[11]), \"+f\"(d[12]), "
     "\"+f\"(d[13]), \"+f\"(d[14]), \"+f\"(d[15]) : "
     "\"l\"(0x4000004000000000ull));"
     "asm volatile(\"wgmma.commit_group.sync.aligned;\"); "
     "asm volatile(\"wgmma.wait_group.sync.aligned 0;\");"},
    {"nobody made this map",
     "unsigned at = 0; asm volatile(\"mbarrier.init.shared::cta.b64 [%0], 1;\" "
     ":: \"r\"(at)); asm volatile(\"cp.async.bulk.tensor.5d.shared::cluster."
     "global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %2, %2,"
     " %2, %2}], [%2], %3;\" :: \"r\"(at), \"l\"(p.data), \"r\"(at), "
     "\"l\"(p.data));"},
    /* copies of bytes that lie side by side, and words that other blocks wrote */
    {NULL, BYTES("0", "64") "if (*(int *)(shared + 28) != p.data[3]) "
           "asm volatile(\"mbarrier.arrive.shared::cta.b64 _, [%0];\" :: "
           "\"r\"(8));"},
    {"a copy of 24 bytes", BYTES("0", "24")},
    {"no multiples of 16", BYTES("1", "16")},
    {"a copy of 64 bytes: ", BYTES("120", "64")},
    {NULL, FRESH("124")},
    {"ld.global.cg: ", FRESH("128")},
    {"ld.global.cg of 16 bytes", FRESH("1")},
};

static const char kernel_head[] =
    "struct parameters { int *data, *never; };\n"
    "extern __shared__ unsigned char shared[];\n"
    "extern \"C\" __global__ void run(const __grid_constant__ parameters p) {";

static void *compile(const char *body) {
  char text[4096];
  void *job, *library, *function;
  size_t size;
  snprintf(text, sizeof text, "%s%s}\n", kernel_head, body);
  ck_assert_int_eq(cu.create(&job, text, "case", 0, NULL, NULL), 0);
  ck_assert_msg(!cu.compile(job, 0, NULL), "%s", text);
  ck_assert_int_eq(cu.size(job, &size), 0);
  char *cubin = malloc(size);
  ck_assert_int_eq(cu.cubin(job, cubin), 0);
  good(cu.load(&library, cubin, NULL, NULL, 0, NULL, NULL, 0));
  good(cu.kernel(&function, library, "run"));
  free(cubin);
  return function;
}

static volatile int word_of_host;

static int run_wide(void *function, unsigned threads) {
  struct { address data; volatile int *never; } p = {memory, &word_of_host};
  void *parameters[] = {&p};
  int result = cu.launch(function, 2, 1, 1, threads, 1, 1, 1024, NULL,
                         parameters, NULL);
  return result ? result : cu.wait(NULL);
}

static int run(void *function) {
  return run_wide(function, 128);
}

START_TEST(kernels) {
  const char *text = "";
  begin("now");
  int result = run(compile(cases[_i].body));
  if (result) cu.text(result, &text);
  if (cases[_i].words)
    ck_assert_msg(strstr(text, cases[_i].words) != NULL, "%s: %s",
                  cases[_i].words, text);
  else ck_assert_msg(!result, "%s", text);
}
END_TEST

/* Warpgroups of 384 threads share 168 registers a thread, and what one of them
 * gives back. */
START_TEST(registers) {
  static const char *const bodies[] = {
      "if (threadIdx.x < 128) asm volatile(\"setmaxnreg.dec.sync.aligned.u32 40;"
      "\"); else asm volatile(\"setmaxnreg.inc.sync.aligned.u32 232;\");",
      "if (threadIdx.x < 128) asm volatile(\"setmaxnreg.dec.sync.aligned.u32 32;"
      "\"); else asm volatile(\"setmaxnreg.inc.sync.aligned.u32 240;\");"};
  const char *text = "";
  begin("now");
  int result = run_wide(compile(bodies[_i]), 384);
  if (result) cu.text(result, &text);
  ck_assert_int_eq(strstr(text, "registers a lane") != NULL, _i);
  ck_assert_int_eq(result != 0, _i);
}
END_TEST

/* Three warps meet often between two phases, and the fourth waits for the first
 * of them: it comes too late where it is slow, in some launch. */
START_TEST(slow_warp) {
  const char *text = "";
  int result = 0;
  begin("now");
  void *function = compile(
      "unsigned at = 0; if (threadIdx.x == 0) "
      "asm volatile(\"mbarrier.init.shared::cta.b64 [%0], %1;\" :: \"r\"(at), "
      "\"r\"(1)); __syncthreads();"
      "if (threadIdx.x < 96) for (int i = 0; i < 40; i++) {"
      " if (threadIdx.x == 0 && i % 39 == 0)"
      "  asm volatile(\"mbarrier.arrive.shared::cta.b64 _, [%0];\" :: "
      "\"r\"(at)); "
      " asm volatile(\"bar.sync %0, %1;\" :: \"r\"(1), \"r\"(96)); }"
      "else asm volatile(\"{.reg .pred p; again: mbarrier.try_wait.parity.shared"
      "::cta.b64 p, [%0], %1; @!p bra again;}\" :: \"r\"(at), \"r\"(0));");
  for (int i = 0; i < 64 && !result; i++) result = run(function);
  ck_assert(result);
  cu.text(result, &text);
  ck_assert_msg(strstr(text, "threads 96-127: phase 0") != NULL, "%s", text);
}
END_TEST

/* ---- memory and streams ------------------------------------------------------- */

/* With protection keys, where there are any, and without. */
START_TEST(host_touches) {
  setenv("EMULATED_KEYS", _i ? "0" : "1", 1);
  begin("now");
  *(volatile char *)(uintptr_t)memory = 1;
}
END_TEST

static void *touch_when_it_runs(void *unused) {
  while (!word_of_host) sched_yield();
  *(volatile char *)(uintptr_t)memory = 1;
  word_of_host = 0;
  return unused;
}

/* The kernel runs until the other thread has written to the device's memory, which
 * that thread must not be able to do. */
START_TEST(another_thread_touches) {
  pthread_t other;
  begin("now");
  unsetenv("EMULATED_CHECK"); /* which would refuse the word of the host */
  void *function = compile("if (!blockIdx.x && !threadIdx.x) {"
                           " volatile int *word = p.never; *word = 1; "
                           " while (*word) ; }");
  ck_assert_int_eq(pthread_create(&other, NULL, touch_when_it_runs, NULL), 0);
  run(function);
  pthread_join(other, NULL);
}
END_TEST

static bool has_keys(void) {
  int key = pkey_alloc(0, 0);
  if (key >= 0) pkey_free(key);
  return key >= 0;
}

START_TEST(given_back_twice) {
  const char *text;
  begin("now");
  good(cu.give(memory));
  ck_assert_int_ne(cu.give(memory), 0);
  cu.text(719, &text);
  ck_assert_msg(strstr(text, "given back before") != NULL, "%s", text);
}
END_TEST

/* One stream fills, another copies: with the event between them what was filled,
 * without it what had been there. */
START_TEST(late_streams) {
  void *streams[2], *event;
  address other;
  unsigned char found;
  begin("late");
  good(cu.take(&other, 256));
  good(cu.stream(&streams[0], 1));
  good(cu.stream(&streams[1], 1));
  good(cu.event(&event, 0));
  good(cu.fill(memory, 7, 256, streams[0]));
  good(cu.record(event, streams[0]));
  if (_i) good(cu.follow(streams[1], event, 0));
  good(cu.copy(other, memory, 256, streams[1]));
  good(cu.wait(streams[1]));
  good(cu.read(&found, other, 1));
  ck_assert_int_eq(found, _i ? 7 : 0xff);
}
END_TEST

/* What the run time fills is filled for every stream. */
START_TEST(fill_is_over) {
  void *stream, *filled;
  unsigned char found;
  begin("late");
  good(cu.stream(&stream, 1));
  ck_assert_int_eq(gpu_module()->take(gpu_device(), 256, &filled), DIL_OK);
  ck_assert_int_eq(gpu_module()->fill(gpu_device(), filled, 7, 256), DIL_OK);
  good(cu.copy(memory, (address)(uintptr_t)filled, 256, stream));
  good(cu.wait(stream));
  good(cu.read(&found, memory, 1));
  ck_assert_int_eq(found, 7);
}
END_TEST

/* ---- blocks that a table leaves out ------------------------------------------- */

enum { ROWS = 1024, NAMED = 4, THERE = 512 }; /* keys, and blocks of them */

/* Rows name one of the first blocks. */
static double near_block(int32_t index, const int64_t *at,
                         const int64_t *shape) {
  (void)index, (void)shape;
  return (double)(at[1] % NAMED);
}

/* Kernels that load a block of which no pair is kept read beyond the memory of
 * keys and values: it ends after THERE rows. */
START_TEST(tables_skip_blocks) {
  bool hopper = _i % 2;
  define block = {"size", _i < 2 ? "64" : "16"};
  setenv("FAKE_CHIP", hopper ? "90" : "80", 1);
  setenv("DIL_TEST_DEVICE", "cuda", 1);
  begin("now");
  tested_pattern *s = tested_pattern_new(
      "table",
      "let size = 64; pattern p { heads 1; head_dim 64; dtype bf16; "
      "block size; "
      "input ids : i32[H, nb, 1]; keep ids[h, bi, 0] == bj; branch { } }",
      &block, 1);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  data *d = data_new(s, (call_shape){.batch = 1, .queries = ROWS, .keys = ROWS,
                                     .input = near_block, .clean = true});
  kernel_made *k = kernel_make(s, (recipe){0});
  k->cuda = gpu_kernel_make(k->plan, false, k->problem, sizeof k->problem);
  ck_assert_msg(k->cuda != NULL, "%s", k->problem);
  const char *taken = gpu_variants(d, k->cuda);
  ck_assert_msg(hopper == !!strstr(taken, "hopper"), "%s", taken);
  gpu_copy on;
  data_forget(d);
  gpu_copy_up(d, &on);
  on.call.k.data = gpu_memory(d->call.k.data, THERE * 64 * 2);
  on.call.v.data = gpu_memory(d->call.v.data, THERE * 64 * 2);
  dil_status status = gpu_module()->run(k->cuda, &on.call, NULL);
  if (!status) status = gpu_module()->wait(gpu_device(), NULL);
  ck_assert_msg(!status, "%s", dil_last_error());
  gpu_copy_down(d, &on, true);
  ck_assert_str_eq(data_compare(d), "");
}
END_TEST

/* ---- the suite --------------------------------------------------------------- */

static bool can_run(void) {
#if defined __x86_64__
  return !SANITIZED && system("command -v c++ >/dev/null") == 0;
#else
  return false;
#endif
}

START_TEST(left_out) {}
END_TEST

int main(void) {
  Suite *s = suite_create("emulated");
  TCase *c = tcase_create("faults");
  suite_add_tcase(s, c);
  tcase_set_timeout(c, 120);
  if (!can_run()) tcase_add_test(c, left_out);
  else {
    tcase_add_loop_test(c, kernels, 0, sizeof cases / sizeof *cases);
    tcase_add_loop_test(c, registers, 0, 2);
    tcase_add_test(c, slow_warp);
    tcase_add_loop_test_raise_signal(c, host_touches, SIGSEGV, 0, 2);
    if (has_keys())
      tcase_add_test_raise_signal(c, another_thread_touches, SIGSEGV);
    tcase_add_test(c, given_back_twice);
    tcase_add_loop_test(c, late_streams, 0, 2);
    tcase_add_test(c, fill_is_over);
    tcase_add_loop_test(c, tables_skip_blocks, 0, 4);
  }
  return suite_run(s, CK_FORK_GETENV);
}
