/* pool_cuda.c - what a run's scratch memory costs on a GPU: from the pool, from
 * the pool that counts nothing, from the driver (cuMemAllocAsync) as it is, and
 * from the driver told to keep what it was given back. Three ways to use a
 * block of each size that kernels take:
 *   queue  taken and given back, over and over, on one stream: the host's time
 *   call   taken, written, given back, and the stream waited for: a whole call
 *   two    as call, by two streams in turn
 * Prints microseconds a block, the least of many rounds. Not a test. */
#include "runtime/base/status.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/workspace.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 12, MODES = 3, WAYS = 4, RELEASE_THRESHOLD = 4 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(dil_status status) {
  if (!status) return;
  fprintf(stderr, "%s\n", dil_last_error());
  exit(3);
}

static void can(const dil_cuda *d, cu_result result) {
  must(cuda_check(d->driver, result, "measure"));
}

/* ---- ways to have memory ------------------------------------------------- */

/* The bytes that the driver's own pool keeps from one wait to the next; it
 * gives all back where nobody sets it. */
static void driver_keeps(uint64_t bytes) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  int (*find)(void **, int) =
      library ? (int (*)(void **, int))dlsym(library,
                                             "cuDeviceGetDefaultMemPool")
              : NULL;
  int (*set)(void *, int, void *) =
      library ? (int (*)(void *, int, void *))dlsym(library,
                                                    "cuMemPoolSetAttribute")
              : NULL;
  void *of_driver;
  if (!find || !set || find(&of_driver, 0) ||
      set(of_driver, RELEASE_THRESHOLD, &bytes))
    must(dil_fail(DIL_ENVIRONMENT, "the driver's pool cannot be set"));
}

static const struct {
  const char *name, *setting;
  uint64_t kept;
} ways[WAYS] = {{"pool", "on", 0},
                {"plain", "plain", 0},
                {"driver", "off", 0},
                {"keeping", "off", UINT64_MAX}};

/* ---- one block ----------------------------------------------------------- */

static void use(const dil_cuda *d, cu_stream stream, int64_t bytes,
                bool written) {
  workspace w;
  must(workspace_take(d, stream, bytes, &w));
  if (written)
    can(d, d->driver->fill_ordered((cu_pointer)(uintptr_t)w.memory, 1,
                                   (size_t)bytes, stream));
  must(workspace_give(d, stream, &w));
}

/* Seconds of a block. */
static double once(const dil_cuda *d, cu_stream stream[2], int mode,
                   int64_t bytes) {
  double best = 1;
  for (int round = 0; round < ROUNDS; round++) {
    int turns = mode == 0 ? 64 : 16;
    double start = now();
    for (int i = 0; i < turns; i++) {
      cu_stream on = stream[mode == 2 ? i % 2 : 0];
      use(d, on, bytes, mode != 0);
      if (mode != 0) can(d, d->driver->wait(on));
    }
    double seconds = (now() - start) / turns;
    can(d, d->driver->wait(stream[0]));
    if (seconds < best) best = seconds;
  }
  return best;
}

static void measure(int way, const int64_t *size, int count,
                    double seconds[][MODES][WAYS]) {
  dil_cuda *d;
  cu_stream stream[2];
  setenv("DIL_POOL", ways[way].setting, 1);
  must(device_open(0, &d));
  must(cuda_enter(d));
  driver_keeps(ways[way].kept);
  for (int i = 0; i < 2; i++) can(d, d->driver->stream_new(&stream[i], 1, 0));
  for (int i = 0; i < count; i++)
    for (int mode = 0; mode < MODES; mode++)
      seconds[i][mode][way] = once(d, stream, mode, size[i]);
  for (int i = 0; i < 2; i++) can(d, d->driver->stream_free(stream[i]));
  cuda_leave(d);
  device_close(d);
}

int main(void) {
  static const int64_t sizes[] = {4 << 10,  64 << 10,   455 << 10,
                                  3 << 20,  6750 << 10, 12 << 20,
                                  64 << 20, 512 << 20};
  enum { SIZES = sizeof sizes / sizeof *sizes };
  static const char *const modes[] = {"queue", "call", "two"};
  static double seconds[SIZES][MODES][WAYS];
  dil_cuda *alive; /* or each way would make the device's context anew */
  setenv("DIL_POOL", "off", 1);
  must(device_open(0, &alive));
  for (int way = 0; way < WAYS; way++) measure(way, sizes, SIZES, seconds);
  device_close(alive);
  printf("   bytes    way");
  for (int way = 0; way < WAYS; way++) printf(" %9s", ways[way].name);
  puts("  (microseconds)");
  for (int i = 0; i < SIZES; i++)
    for (int mode = 0; mode < MODES; mode++) {
      printf("%8lldK %6s", (long long)sizes[i] / 1024, modes[mode]);
      for (int way = 0; way < WAYS; way++)
        printf(" %9.2f", 1e6 * seconds[i][mode][way]);
      putchar('\n');
    }
  return 0;
}
