/* chip_calls.h - what emulated kernels (C++) call in the emulator (C). Shared
 * addresses are offsets, as on the device. */
#ifndef DIL_TESTS_EMULATOR_CHIP_CALLS_H
#define DIL_TESTS_EMULATOR_CHIP_CALLS_H

#ifndef CHIP_TYPES
typedef struct chip_index { unsigned x, y, z; } chip_index;
#endif

typedef struct chip_thread {
  chip_index thread, block, threads, grid;
} chip_thread;

#pragma GCC visibility push(default)
extern chip_thread *chip_now; /* the thread that runs */
extern char *chip_shared;     /* of its block */

enum { CHIP_SYNC, CHIP_BALLOT, CHIP_MIN, CHIP_MATCH };
enum { CHIP_BF16, CHIP_F16, CHIP_TF32 };

unsigned chip_shared_address(const void *p);
/* Of all of a warp that mask names. */
unsigned chip_ballot(int kind, unsigned mask, unsigned x);
unsigned chip_shuffle(unsigned mask, unsigned x, int lane);
/* Of `threads` threads; whether any of them said yes. Arriving waits for
 * nobody. */
int chip_barrier(unsigned number, unsigned threads, int yes);
void chip_barrier_arrive(unsigned number, unsigned threads);

/* cp.async: `given` of `size` bytes, then zeros. */
void chip_copy(unsigned to, const void *from, int size, int given);
void chip_copy_commit(void);
void chip_copy_wait(int left);

void chip_shared_read(unsigned from, void *to, unsigned size);
void chip_shared_write(unsigned to, const void *from, unsigned size);
/* A number that is counted up, and a thread that looks at it when it has been:
 * sooner it would see nothing new. */
void chip_shared_add(unsigned at, unsigned x);
void chip_pause(void);
unsigned chip_global_add(void *at, unsigned x);
/* Past the first cache: for what another block has written, and then counted. */
void chip_fresh_read(const void *from, void *to, unsigned size);
void chip_load_matrices(unsigned from, int turned, unsigned *x);
void chip_store_matrices(unsigned to, const unsigned *x);
/* mma.sync: sum[4] += a[4] b[2], in x. */
void chip_multiply(int type, float *sum, const unsigned *x);

/* ---- Hopper ---------------------------------------------------------------- */

void chip_mbarrier_init(unsigned at, unsigned count);
void chip_mbarrier_arrive(unsigned at, unsigned bytes);
int chip_mbarrier_wait(unsigned at, unsigned parity);
/* Boxes of a tensor map, to and from shared memory. */
void chip_box_load(unsigned to, const void *map, const int *at,
                   unsigned mbarrier);
/* Bytes that lie side by side, from global to shared memory. */
void chip_bulk_load(unsigned to, const void *from, unsigned bytes,
                    unsigned mbarrier);
void chip_box_store(const void *map, const int *at, unsigned from);
void chip_box_commit(void);
void chip_box_wait(int left, int read_only);
void chip_fence_proxy(void);
void chip_registers(int count, int more);
/* wgmma: sums[width / 2] of each thread; a of registers where a_at is 0.
 * `turned`: bit 0 of b, bit 1 of a. */
void chip_group_multiply(int type, int width, float *sums, const unsigned *a,
                         unsigned long long a_at, unsigned long long b_at,
                         int add, int turned);
void chip_group_fence(void);
void chip_group_commit(void);
void chip_group_wait(int left);
#pragma GCC visibility pop

#endif
