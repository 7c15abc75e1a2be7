// rows.cu - the kernels of a ring's rank besides attention. They pack rows into
// a message, spread a message over the places of its rows or add it to them, clear
// these places, and make random rows by their numbers. Any rank can therefore make
// any random row again.

#include "templates/shared/ptx.cuh"
#include "templates/rows.h"

typedef unsigned long long u64;

static_assert(sizeof(dil_rows_run) == DIL_ROWS_RUN_BYTES &&
                  sizeof(dil_rows) == DIL_ROWS_BYTES &&
                  sizeof(dil_rows_random) == DIL_ROWS_RANDOM_BYTES,
              "the run time has another layout");

// The last run that does not begin after `row`.
__device__ __forceinline__ int run_of(const dil_rows &p, long long row) {
  int low = 0, high = p.runs - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (p.run[middle].before <= row) low = middle;
    else high = middle - 1;
  }
  return low;
}

template <class Unit>
__device__ __forceinline__ void add_unit(Unit *to, const Unit *from) {
  float *sums = (float *)to;
  const float *more = (const float *)from;
#pragma unroll
  for (int i = 0; i < (int)(sizeof(Unit) / sizeof(float)); i++)
    sums[i] += more[i];
}

template <class Unit>
__device__ __forceinline__ void move_unit(const dil_rows &p, long long item) {
  int units = p.k_units + p.v_units;
  long long row = item / units, batch = row / p.rows;
  int unit = (int)(item - row * units);
  row -= batch * p.rows;
  const dil_rows_run run = p.run[run_of(p, row)];
  long long index = row - run.before;
  long long at = run.low + index / run.count * run.period +
                 p.offset[run.first + index % run.count];
  at = (at - p.first[run.progression]) / p.step[run.progression];
  bool value = unit >= p.k_units;
  const long long *stride =
      value ? p.v_stride[run.progression] : p.k_stride[run.progression];
  char *place = (value ? p.v[run.progression] : p.k[run.progression]) +
                batch * stride[0] + at * stride[1] + run.kv * stride[2];
  if (value) unit -= p.k_units;
  Unit *there = (Unit *)place + unit, *here = (Unit *)p.message + item;
  if (p.how == DIL_ROWS_CLEAR) *there = Unit{};
  else if (p.how == DIL_ROWS_ADD) add_unit(there, here);
  else if (p.how == DIL_ROWS_SPREAD) *there = *here;
  else *here = *there;
}

extern "C" __global__ void __launch_bounds__(DIL_ROWS_THREADS)
    dil_rows_move(const __grid_constant__ dil_rows p) {
  long long step = (long long)gridDim.x * blockDim.x;
  long long item = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; item < p.items; item += step) {
    if (p.unit_bytes == 16)
      move_unit<uint4>(p, item);
    else if (p.unit_bytes == 4)
      move_unit<unsigned>(p, item);
    else
      move_unit<unsigned short>(p, item);
  }
}

// Philox 4x32-10: two words of a counter below 2^64.
__device__ __forceinline__ void philox_words(u64 element, unsigned seed,
                                             unsigned tensor,
                                             unsigned (&word)[2]) {
  unsigned c0 = (unsigned)element, c1 = (unsigned)(element >> 32), c2 = 0;
  unsigned c3 = 0, k0 = seed, k1 = tensor;
#pragma unroll
  for (int round = 0; round < 10; round++) {
    u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
    c0 = (unsigned)(p1 >> 32) ^ c1 ^ k0;
    c1 = (unsigned)p1;
    c2 = (unsigned)(p0 >> 32) ^ c3 ^ k1;
    c3 = (unsigned)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  word[0] = c0;
  word[1] = c1;
}

// As dil_normal of the run time has it.
__device__ __forceinline__ double normal(const dil_rows_random &p,
                                         u64 element) {
  unsigned word[2];
  philox_words(element, p.seed, p.tensor, word);
  double radius = (word[0] + 0.5) * 0x1p-32, angle = (word[1] + 0.5) * 0x1p-32;
  return sqrt(-2 * log(radius)) * cos(2 * 3.14159265358979323846 * angle);
}

extern "C" __global__ void __launch_bounds__(DIL_ROWS_THREADS)
    dil_rows_random_fill(const __grid_constant__ dil_rows_random p) {
  long long step = (long long)gridDim.x * blockDim.x;
  long long item = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; item < p.items; item += step) {
    long long rest = item / p.width, d = item % p.width;
    long long head = rest % p.heads;
    rest /= p.heads;
    long long row = rest % p.rows, batch = rest / p.rows;
    u64 element = (((batch + p.batch) * p.whole_rows + p.first + row * p.step) *
                       p.whole_heads + p.head + head) * p.width + d;
    float value = (float)normal(p, element);
    if (p.dtype == 0) {
      ((float *)p.data)[item] = value;
      continue;
    }
    unsigned pair = p.dtype == 1 ? pack_bf16(value, 0) : pack_f16(value, 0);
    ((unsigned short *)p.data)[item] = (unsigned short)pair;
  }
}
