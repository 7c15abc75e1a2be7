/* test_cuda.c - the host's half of GPU launches, with a driver that only takes
 * notes: which tensor maps are made anew, which counter a launch gets, what is
 * cleared after an error. Needs no GPU. */
#include "runtime/cuda/launch/counters.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/spans.h"
#include "runtime/cuda/workspace.h"
#include "runtime/observe/observe.h"
#include "tests/support/gpu.h"
#include "tests/support/noted_driver.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NO_RESOURCES = 701, ILLEGAL_INSTRUCTION = 715 };

/* ---- a LongNet kernel on that driver ------------------------------------- */

/* A length that the strides divide: one map a stride and tensor. */
enum { N = 8192, STRIDES = 3, TENSORS = 4 };

typedef struct host {
  tested_pattern *tested;
  arena *memory;
  dil_cuda device;
  dil_cuda_kernel *kernel;
  dil_call call;
} host;

static dil_call call_at(uintptr_t q, uintptr_t o) {
  const int64_t shape[4] = {1, N, 8, 64}, rows[3] = {1, 8, N};
  return (dil_call){
      .size = sizeof(dil_call),
      .q = dil_tensor_make((void *)q, DIL_BF16, 4, shape),
      .k = dil_tensor_make((void *)(uintptr_t)0x20000, DIL_BF16, 4, shape),
      .v = dil_tensor_make((void *)(uintptr_t)0x30000, DIL_BF16, 4, shape),
      .o = dil_tensor_make((void *)o, DIL_BF16, 4, shape),
      .lse = dil_tensor_make((void *)(uintptr_t)0x50000, DIL_F32, 3, rows)};
}

static void host_open(host *h) {
  static const dil_cuda_code code = {
      .family = "hopper", .variant = "noted", .passes = 1, .threads = 512,
      .shared = 232448, .tile_rows = 192, .tile_keys = 128};
  memset(&notes, 0, sizeof notes);
  *h = (host){.tested = tested_pattern_new(
                  "longnet",
                  "pattern p { heads 8; head_dim 64; dtype bf16; "
                  "segments 2048, 4096, 8192; dilations 1, 2, 4; }",
                  NULL, 0)};
  ck_assert_msg(h->tested->pattern != NULL, "%s", h->tested->problem);
  h->memory = arena_new();
  const plan *p =
      plan_make(h->memory, diag_new(h->memory), h->tested->pattern, 0);
  h->device.driver = &noted_driver;
  h->device.facts.processors = 132;
  ck_assert_int_eq(counters_new(&noted_driver, &h->device.counters), DIL_OK);
  dil_status status = kernel_new(&h->device, &p->table, &code, 1, NULL, NULL, NULL,
                                 &h->kernel);
  ck_assert_msg(status == DIL_OK, "%s", dil_last_error());
  h->call = call_at(0x10000, 0x40000);
}

static void host_close(host *h) {
  kernel_free(h->kernel);
  counters_free(h->device.counters);
  noted_end_graphs();
  arena_free(h->memory);
  tested_pattern_free(h->tested);
}

static cu_pointer run_on(host *h, uintptr_t stream) {
  dil_status status = kernel_run(h->kernel, &h->call, (void *)stream);
  ck_assert_msg(status == DIL_OK, "%s", dil_last_error());
  return notes.counters;
}

/* ---- tensor maps --------------------------------------------------------- */

START_TEST(maps_are_kept) {
  host h;
  host_open(&h);
  run_on(&h, 1);
  ck_assert_int_eq(notes.maps, STRIDES * TENSORS);
  for (int i = 0; i < 100; i++) run_on(&h, 1);
  ck_assert_int_eq(notes.maps, STRIDES * TENSORS);
  h.call = call_at(0x10000, 0x60000); /* another o */
  run_on(&h, 1);
  ck_assert_int_eq(notes.maps, STRIDES * (TENSORS + 1));
  h.call = call_at(0x10000, 0x40000); /* and the first again */
  run_on(&h, 1);
  ck_assert_int_eq(notes.maps, STRIDES * (TENSORS + 1));
  h.call.q.stride[1] *= 2; /* the same bytes, read otherwise */
  run_on(&h, 1);
  ck_assert_int_eq(notes.maps, STRIDES * (TENSORS + 2));
  host_close(&h);
}
END_TEST

/* More tensors than are kept: the oldest give way, and come back right. */
START_TEST(maps_give_way) {
  host h;
  host_open(&h);
  for (uintptr_t i = 0; i < 500; i++) {
    h.call = call_at(0x100000 + i % 100 * 16, 0x40000);
    run_on(&h, 1);
    ck_assert_int_eq(notes.launches, (int)i + 1);
  }
  ck_assert_int_gt(notes.maps, 500 * STRIDES);
  host_close(&h);
}
END_TEST

/* ---- counters ------------------------------------------------------------ */

START_TEST(streams_have_counters) {
  host h;
  host_open(&h);
  cu_pointer one = run_on(&h, 1), two = run_on(&h, 2);
  ck_assert_uint_ne(one, two);
  ck_assert_uint_eq(one, run_on(&h, 1));
  ck_assert_uint_eq(two, run_on(&h, 2));
  ck_assert_uint_ne(one, run_on(&h, 1 + 4096)); /* the same hash */
  ck_assert_uint_eq(one % COUNTER_BYTES, 0);
  ck_assert_int_eq(notes.fills, 0);
  host_close(&h);
}
END_TEST

/* Streams without end: the last ones take counters in their own order. */
START_TEST(streams_without_end) {
  host h;
  host_open(&h);
  for (uintptr_t i = 1; i <= 5000; i++) run_on(&h, i);
  ck_assert_int_gt(notes.fills, 0); /* of those taken in order */
  ck_assert_int_eq(notes.ordered, 0); /* all given back */
  int32_t fills = notes.fills;
  ck_assert_uint_eq(run_on(&h, 1), run_on(&h, 1));
  ck_assert_int_eq(notes.fills, fills);
  host_close(&h);
}
END_TEST

START_TEST(captures_have_counters) {
  host h;
  host_open(&h);
  cu_pointer plain = run_on(&h, 1);
  notes.capture = 1;
  cu_pointer first = run_on(&h, 1), second = run_on(&h, 1);
  ck_assert_uint_ne(first, second);
  ck_assert_uint_ne(first, plain);
  ck_assert_int_eq(notes.objects, 2);
  noted_end_graphs(); /* their counters are lent again, however often */
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 12288; i++) run_on(&h, 1);
    ck_assert_int_eq(notes.fills, 0);
    noted_end_graphs();
  }
  for (int i = 0; i < 12289; i++) run_on(&h, 1);
  ck_assert_int_eq(notes.fills, 1); /* no more are free */
  notes.capture = 0;
  ck_assert_uint_eq(plain, run_on(&h, 1));
  host_close(&h);
}
END_TEST

START_TEST(cleared_after_error) {
  host h;
  host_open(&h);
  cu_pointer counter = run_on(&h, 1);
  notes.launch = NO_RESOURCES;
  ck_assert_int_eq(kernel_run(h.kernel, &h.call, (void *)1), DIL_ENVIRONMENT);
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "launch a kernel"));
  notes.launch = 0;
  run_on(&h, 2);
  ck_assert_int_eq(notes.fills, 0);
  run_on(&h, 1);
  ck_assert_int_eq(notes.fills, 1);
  ck_assert_uint_eq(notes.filled, counter);
  run_on(&h, 1);
  ck_assert_int_eq(notes.fills, 1);
  host_close(&h);
}
END_TEST

/* After a fault the driver is asked nothing more, and the cause is told once. */
START_TEST(a_lost_context_is_told_once) {
  host h;
  host_open(&h);
  notes.launch = ILLEGAL_INSTRUCTION;
  ck_assert_int_eq(kernel_run(h.kernel, &h.call, NULL), DIL_ENVIRONMENT);
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "(715); the context of the "
                                                 "device is lost"));
  int32_t launches = notes.launches;
  notes.launch = 0;
  ck_assert_int_eq(kernel_run(h.kernel, &h.call, NULL), DIL_ENVIRONMENT);
  ck_assert_str_eq(dil_last_error(),
                   "the context of device cuda:0 is lost since an earlier "
                   "failure; only a new process gets another");
  ck_assert_int_eq(notes.launches, launches);
  atomic_store(&h.device.lost, false); /* what is left is the host's */
  host_close(&h);
}
END_TEST

/* ---- workspace ----------------------------------------------------------- */

static void open_pooled(dil_cuda *d, const char *word, const char *max) {
  *d = (dil_cuda){.driver = &noted_driver};
  memset(&notes, 0, sizeof notes);
  if (word) setenv("DIL_POOL", word, 1);
  if (max) setenv("DIL_POOL_MAX", max, 1);
  ck_assert_int_eq(workspace_open(d), DIL_OK);
  unsetenv("DIL_POOL");
  unsetenv("DIL_POOL_MAX");
}

/* One run's worth; what it was given. */
static char *work_on(const dil_cuda *d, uintptr_t stream, int64_t bytes) {
  workspace w;
  ck_assert_int_eq(workspace_take(d, (void *)stream, bytes, &w), DIL_OK);
  char *memory = w.memory;
  ck_assert_int_eq(workspace_give(d, (void *)stream, &w), DIL_OK);
  return memory;
}

START_TEST(the_driver_gives_workspace) {
  dil_cuda d;
  open_pooled(&d, NULL, NULL);
  ck_assert_ptr_nonnull(d.pool);
  workspace_close(&d);
  open_pooled(&d, "off", NULL);
  ck_assert_ptr_null(d.pool);
  ck_assert_ptr_eq(work_on(&d, 1, 100), (void *)(uintptr_t)(2 * MEMORY));
  ck_assert_int_eq(notes.ordered, 0);
  ck_assert_ptr_null(work_on(&d, 1, 0));
  workspace_close(&d);
}
END_TEST

START_TEST(a_pool_follows_streams) {
  dil_cuda d;
  open_pooled(&d, "on", NULL);
  char *one = work_on(&d, 1, 100000);
  ck_assert_uint_eq(notes.recorded, 1);
  for (int i = 0; i < 10; i++) ck_assert_ptr_eq(work_on(&d, 1, 100000), one);
  ck_assert_int_eq(notes.taken, 1);
  char *two = work_on(&d, 2, 100000); /* the first stream is at work yet */
  ck_assert_ptr_ne(two, one);
  notes.done = true;
  pool_block *block;
  ck_assert_int_eq(dil_pool_take_block(d.pool, 100000, (void *)(uintptr_t)2,
                                       &block), DIL_OK);
  char *three = work_on(&d, 2, 100000);
  ck_assert(three == one || three == two);
  ck_assert_int_eq(notes.taken, 2);
  ck_assert_int_eq(notes.waits, 0);
  dil_pool_give_block(d.pool, block);
  workspace_close(&d);
  ck_assert_int_eq(notes.taken, 0);
  ck_assert_int_eq(notes.events, 0);
}
END_TEST

START_TEST(at_its_bound_a_pool_has_streams_wait) {
  dil_cuda d;
  open_pooled(&d, NULL, "200K");
  char *one = work_on(&d, 1, 150000);
  ck_assert_ptr_eq(work_on(&d, 2, 150000), one);
  ck_assert_int_eq(notes.waits, 1);
  workspace w;
  ck_assert_int_eq(workspace_take(&d, NULL, 250000, &w), DIL_MEMORY);
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "DIL_POOL_MAX"));
  workspace_close(&d);
  ck_assert_int_eq(notes.taken, 0);
}
END_TEST

START_TEST(a_capture_has_memory_of_its_graph) {
  dil_cuda d;
  open_pooled(&d, "on", NULL);
  notes.capture = 1;
  ck_assert_ptr_eq(work_on(&d, 1, 100), (void *)(uintptr_t)(2 * MEMORY));
  ck_assert_int_eq(notes.taken, 0);
  workspace_close(&d);
}
END_TEST

/* ---- spans --------------------------------------------------------------- */

static void put_spans(cuda_spans *s, int count, uintptr_t stream) {
  for (int i = 0; i < count; i++) {
    int32_t number = spans_begin(s, (void *)stream);
    ck_assert_int_ge(number, 0);
    spans_end(s, number, (void *)stream, "pass", "noted", i);
  }
}

static int count_lines(const char *path, const char *words) {
  char line[1024];
  int count = 0;
  FILE *f = fopen(path, "r");
  ck_assert_ptr_nonnull(f);
  while (fgets(line, sizeof line, f)) count += strstr(line, words) != NULL;
  fclose(f);
  return count;
}

/* Whether or not events pass in time, each pass is in the trace, once. */
START_TEST(passes_are_traced_by_their_streams) {
  char path[] = "/tmp/dil-test-cuda-XXXXXX";
  int file = mkstemp(path);
  dil_cuda d = {.driver = &noted_driver, .device = 3};
  ck_assert_int_ge(file, 0);
  memset(&notes, 0, sizeof notes);
  notes.timed = true;
  ck_assert_ptr_null(spans_new(&d)); /* nothing is traced yet */
  setenv("DIL_TRACE", path, 1);
  ck_assert_int_eq(dil_observe_open(), DIL_OK);
  cuda_spans *s = spans_new(&d);
  ck_assert_ptr_nonnull(s);
  put_spans(s, 300, 7);
  notes.done = true;
  put_spans(s, 300, 8);
  notes.capture = 1;
  ck_assert_int_eq(spans_begin(s, NULL), -1);
  spans_free(s);
  ck_assert_int_eq(notes.events, 0);
  ck_assert_int_eq(dil_observe_flush(), DIL_OK);
  ck_assert_int_eq(count_lines(path, "\"cat\":\"gpu\",\"name\":\"pass\""), 600);
  ck_assert_int_eq(count_lines(path, "\"name\":\"gpu 3 stream 7\""), 1);
  ck_assert_int_eq(count_lines(path, "\"name\":\"gpu 3 stream 8\""), 1);
  ck_assert_int_eq(count_lines(path, "\"dur\":1000.000"), 600);
  unlink(path);
  close(file);
}
END_TEST

/* ---- the cost ------------------------------------------------------------ */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Our own share of a launch, the driver's left out: the best of many batches,
 * since the machine does other work too. */
START_TEST(launches_are_cheap) {
  enum { BATCHES = 50, EACH = 100 };
  double best = 1;
  host h;
  host_open(&h);
  for (int batch = 0; batch < BATCHES; batch++) {
    double began = now();
    for (int i = 0; i < EACH; i++) run_on(&h, 1);
    double each = (now() - began) / EACH;
    if (each < best) best = each;
  }
  printf("a launch costs the host %.2f us, without the driver\n", best * 1e6);
  ck_assert_double_lt(best, 8e-6);
  host_close(&h);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cuda");
  TCase *tests = tcase_create("cuda");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, maps_are_kept);
  tcase_add_test(tests, maps_give_way);
  tcase_add_test(tests, streams_have_counters);
  tcase_add_test(tests, streams_without_end);
  tcase_add_test(tests, captures_have_counters);
  tcase_add_test(tests, cleared_after_error);
  tcase_add_test(tests, a_lost_context_is_told_once);
  tcase_add_test(tests, the_driver_gives_workspace);
  tcase_add_test(tests, a_pool_follows_streams);
  tcase_add_test(tests, at_its_bound_a_pool_has_streams_wait);
  tcase_add_test(tests, a_capture_has_memory_of_its_graph);
  tcase_add_test(tests, passes_are_traced_by_their_streams);
  tcase_add_test(tests, launches_are_cheap);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
