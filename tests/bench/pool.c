/* pool.c - what a block of scratch memory costs: from the pool, from the pool
 * that counts nothing, and from the C library, on the sizes that kernels take.
 * `touched` writes a byte in every page, as a run does, so that pages which the
 * library has given back to the system are paid for. Prints a table; the least
 * of many rounds. Not a test. */
#include "runtime/pool/pool.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 40, PAGE = 4096 };

static pool *kept;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *library_take(int64_t bytes) {
  return aligned_alloc(POOL_ALIGNMENT, (size_t)bytes);
}
static void library_give(void *memory) { free(memory); }
static void *kept_take(int64_t bytes) { return pool_take(kept, bytes); }
static void kept_give(void *memory) { pool_give(kept, memory); }

/* Seconds of one block taken and given back, in turns. */
static double once(void *(*take)(int64_t), void (*give)(void *), int64_t bytes,
                   bool touched) {
  double best = 1;
  int turns = bytes > 1 << 20 ? 20 : 400;
  for (int round = 0; round < ROUNDS; round++) {
    double start = now();
    for (int i = 0; i < turns; i++) {
      volatile char *memory = take(bytes);
      if (!memory) exit(3);
      for (int64_t at = 0; touched && at < bytes; at += PAGE) memory[at] = 1;
      give((void *)(uintptr_t)memory);
    }
    double seconds = (now() - start) / turns;
    if (seconds < best) best = seconds;
  }
  return best;
}

static double of_pool(bool plain, int64_t bytes, bool touched) {
  kept = pool_new_host(NULL, &(pool_options){.plain = plain,
                                             .idle = 10000000000});
  if (!kept) exit(3);
  double seconds = once(kept_take, kept_give, bytes, touched);
  dil_pool_free(kept);
  return seconds;
}

int main(void) {
  static const int64_t sizes[] = {4 << 10,   64 << 10, 455 << 10,
                                  6750 << 10, 64 << 20};
  puts("   bytes  touched     pool    plain  library  (microseconds)");
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int touched = 0; touched < 2; touched++)
      printf("%8lldK  %7s %8.3f %8.3f %8.3f\n", (long long)sizes[i] / 1024,
             touched ? "yes" : "no", 1e6 * of_pool(false, sizes[i], touched),
             1e6 * of_pool(true, sizes[i], touched),
             1e6 * once(library_take, library_give, sizes[i], touched));
  return 0;
}
