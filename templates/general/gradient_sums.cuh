/* gradient_sums.cuh - sums of the gradients of inputs, in an order that the
 * shape alone fixes. In: parts of a gradient, from all lanes of a warp at once.
 * Out: the copies of dil_input_sums, advanced. Lanes that add to one element
 * are added up first, in order; what is one after the other in a list of tiles
 * adds to the same copy. */
#pragma once
#include "templates/shared/pair.cuh"
#include "templates/shared/softmax.cuh"
#include "templates/shared/walk.cuh"

#define DIL_OUTSIDE (-1ll << 62) /* a read of no element */
#define DIL_METHOD __device__ __forceinline__

struct dil_adder {
  const dil_input_sums &sums;
  long long copy; /* its first element */
  float weight;   /* a factor of all parts */
  float row[ROW_READS];

  DIL_METHOD bool wants(int input) const { return sums.input == input; }
  /* Of the element at these indices. */
  DIL_METHOD long long place(int rank, int a, int b, int c, int d) const {
    const int at[4] = {a, b, c, d};
    long long place = 0;
    bool inside = true;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      if (k >= rank) continue;
      inside = inside && at[k] >= 0 && at[k] < sums.dim[k];
      place += at[k] * sums.stride[k];
    }
    return inside ? place : DIL_OUTSIDE;
  }
  /* The gradient of a sink; lse in units of log2. */
  DIL_METHOD float sink_slope(float sink, float lse, float delta) const {
    float below = fmaf(sink, DIL_LOG2_E, -lse);
    float weight = power_of_2(below > 0 ? 0.0f : below);
    return sink == DIL_NONE || weight == 0 ? 0.0f : -weight * delta;
  }
  DIL_METHOD void begin_rows() {
#pragma unroll
    for (int k = 0; k < ROW_READS; k++) row[k] = 0;
  }
  DIL_METHOD void add_row(int k, float part) { row[k] += part; }
  /* Four lanes share a row. */
  DIL_METHOD void end_row(int k, long long place) {
    float sum = row_sum(row[k]);
    add(place, threadIdx.x & 3 ? 0.0f : sum);
  }
  DIL_METHOD void put(long long place, float part) {
    if (sums.direct)
      ((float *)sums.data)[copy + place] += part;
    else
      ((double *)sums.data)[copy + place] += part;
  }
  DIL_METHOD void add(long long place, float part) {
    if (part == 0) place = DIL_OUTSIDE;
    if (sums.single) {
      if (place != DIL_OUTSIDE) put(place, part * weight);
      return;
    }
    if (!sums.turns) {
      add_lanes(place, part * weight);
      return;
    }
#pragma unroll 1
    for (int warp = 0; warp < blockDim.x / 32; warp++) {
      if (warp == threadIdx.x / 32) add_lanes(place, part * weight);
      __syncthreads();
    }
  }
  DIL_METHOD void add_lanes(long long place, float part) {
    int lane = threadIdx.x & 31;
    bool inside = place != DIL_OUTSIDE;
    if (!__any_sync(0xffffffffu, inside)) return;
    unsigned peers = __match_any_sync(0xffffffffu, place);
    unsigned rest = inside ? peers : 0;
    float sum = 0;
#pragma unroll 1
    while (__any_sync(0xffffffffu, rest != 0)) {
      float x =
          __shfl_sync(0xffffffffu, part, rest ? __ffs((int)rest) - 1 : lane);
      if (rest) sum += x;
      rest &= rest - 1;
    }
    if (inside && lane == __ffs((int)peers) - 1) put(place, sum);
    __syncwarp();
  }
};

/* ---- lists of tiles ------------------------------------------------------ */

/* Tiles of a head, heads or groups of them, and batch rows: an item is a tile
 * of one of each. A list has one tile for each choice of those that are apart.
 */
struct dil_items {
  unsigned size[3];
};

/* How many items may add to one element. */
DIL_INLINE unsigned items_together(const dil_input_sums &to,
                                   const dil_items &items) {
  unsigned count = 1;
#pragma unroll
  for (int k = 0; k < 3; k++) count *= to.apart[k] ? 1 : items.size[k];
  return count;
}

/* Item `turn` of those, for choice `apart` of the others. */
DIL_INLINE unsigned item_of(const dil_input_sums &to, const dil_items &items,
                            unsigned apart, unsigned turn) {
  unsigned item = 0, scale = 1;
#pragma unroll
  for (int k = 0; k < 3; k++) {
    int size = (int)items.size[k];
    int digit = to.apart[k] ? take_digit(apart, size) : take_digit(turn, size);
    item += (unsigned)digit * scale;
    scale *= items.size[k];
  }
  return item;
}
