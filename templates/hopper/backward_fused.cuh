// backward_fused.cuh - dQ in the kernel that makes dK and dV.
//
// In: dS of a block, in the registers of both warpgroups, and the held K. Out: dS K
// is added to run.query_sums, [batches, H, query rows, HEAD_WIDTH] in f32, by
// atomic additions whose order varies; hopper_round makes dQ of the sums.
//
// The warpgroups exchange dS through shared memory, and each multiplies 64 of the
// 128 rows of dQ of a block. A block is multiplied while the next one is: dS has
// two buffers with mbarriers, and the warpgroups may be a block apart.
//
// Sixteen columns of a row stand in the order in which the four threads of a row
// have them, so that a thread adds four floats at once: {0, 1, 8, 9}, {2, 3, 10,
// 11} and so on.
#pragma once

#if FUSED
static_assert(WARPGROUPS == 2 && TILE_KEYS == 128, "each makes 64 rows of dQ");
static_assert(HEAD_WIDTH == CHUNK, "a row of K is one chunk");

// One m64 product of sixteen keys, of two operands in shared memory whose rows
// are what is summed over. `add` 0: the sums begin here.
#define SLOPE_FUNCTION(N, line, x0, x1, x2, x3, x4)                        \
  template <int add>                                                       \
  DEVICE void mma_slopes(float(&d)[N / 2], u64 a, u64 b) {                 \
    asm volatile(                                                          \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." MMA_TYPE         \
        " {" NAMES_##line "}, " x0 ", " x1 ", " x2 ", 1, 1, 1, 1;\n"       \
        : TIED_##line                                                      \
        : "l"(a), "l"(b), "n"(add));                                       \
  }
INSTANTIATE_WIDTH(HEAD_WIDTH, SLOPE_FUNCTION)

// The query rows of a thread in a block: its first row and the row 8 below it.
struct query_rows {
  float *first; // the thread's columns
  int step;     // rows of the sums between neighbours
  int left;     // rows of the block from the first one on
};

// The thread's row of a block, as fragments of dQ have it.
DEVICE int slope_row() {
  u32 thread = thread_index();
  return warp_row(thread) + thread % 32 / 4;
}

DEVICE query_rows query_rows_of(const hopper_backward_launch &run,
                                const consumer &c, const ring<STAGES> &block) {
  u32 message = message_of(c.base, block.slot());
  int4 at = shared_load(message + 32); // {row, where, head, batch}
  int count = min(shared_word(message + 24), TILE_KEYS), row = slope_row();
  if (!run.query_sums) count = 0; // dQ is not wanted
  int step = at.y >> WHERE_STRIDE, phase = at.y & ((1 << WHERE_MAP) - 1);
  int column = thread_index() % 4 * 4;
  long long head = (long long)at.w * run.query_heads + at.z;
  long long n = head * run.query_rows + (long long)(at.x + row) * step + phase;
  return {run.query_sums + n * HEAD_WIDTH + column, step, count - row};
}

// The buffers of dS are taken in turn.
struct slopes {
  u32 number; // blocks that this warpgroup has shared
};
DEVICE u32 slopes_at(const consumer &c, u32 number) {
  return c.base + AT_SLOPES + number % 2 * SLOPE_BYTES;
}

// The dS of keys that the tile does not have becomes 0.
DEVICE void hide_missing_keys(u32 (&ds)[TILE_KEYS / 4], int keys) {
  u32 thread = thread_index();
  int row = warp_row(thread) + thread % 32 / 4;
  if (keys >= 64 * WARPGROUPS) return;
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 4; i++)
    if (row + i % 2 * 8 >= keys) ds[i] = 0;
}

// Writes dS where both warpgroups read it, [key][query].
DEVICE void share_slopes(const consumer &c, slopes &x,
                         const u32 (&ds)[TILE_KEYS / 4]) {
  u32 thread = thread_index(), lane = thread % 32, row = lane % 16;
  u32 to = slopes_at(c, x.number) + (warp_row(thread) + row) * 128;
  barrier_wait(c.base + AT_SLOPES_EMPTY + x.number % 2 * 8,
               (x.number / 2 & 1) ^ 1);
#pragma unroll
  for (u32 i = 0; i < TILE_KEYS / 16; i++) {
    u32 unit = i % 4 * 2 + lane / 16;
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::
            "r"(to + i / 4 * SLOPE_CHUNK + ((unit ^ row % 8) << 4)),
        "r"(ds[4 * i]), "r"(ds[4 * i + 1]), "r"(ds[4 * i + 2]),
        "r"(ds[4 * i + 3])
        : "memory");
  }
  proxy_fence();
  release(c.base + AT_SLOPES_FULL + x.number % 2 * 8);
  x.number++;
}

// Starts dQ of shared block `number`, of which `there` is false in front of a
// tile's first block: the products are then of no use, but a branch around them
// would make ptxas serialise all.
DEVICE void multiply_slopes(const consumer &c, u32 tile, u32 number, bool there,
                            float (&added)[HEAD_WIDTH / 2]) {
  const u32 chunk = 64 * CHUNK * 2;
  u32 a = slopes_at(c, number) + c.group * SLOPE_CHUNK;
  u32 b = c.base + AT_QUERY + query_stage(tile) * (WARPGROUPS * QUERY_BYTES);
  a = uniform(a >> 4 | 1 << 16);
  b = uniform(b >> 4 | chunk >> 4 << 16);
  if (there)
    barrier_wait(c.base + AT_SLOPES_FULL + number % 2 * 8, number / 2 & 1);
  mma_fence();
#pragma unroll
  for (int i = 0; i < 4 * WARPGROUPS; i++) {
    u32 keys = i / 4 * (QUERY_BYTES / 16) + i % 4 * CHUNK * 2;
    u64 slope = descriptor(a + i * 128, DESCRIPTOR_HIGH(128));
    u64 key = descriptor(b + keys, DESCRIPTOR_HIGH(CHUNK * 2));
    if (i == 0) mma_slopes<0>(added, slope, key);
    else mma_slopes<1>(added, slope, key);
  }
  mma_commit();
}

DEVICE void add_four(float *to, float a, float b, float x, float y) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to),
               "f"(a), "f"(b), "f"(x), "f"(y)
               : "memory");
}

// The products of dQ are there: their buffer is free, and they are added to the
// sums.
DEVICE void add_queries(const consumer &c, u32 number, const query_rows &at,
                        float (&added)[HEAD_WIDTH / 2]) {
  settle(added);
  release(c.base + AT_SLOPES_EMPTY + number % 2 * 8);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float *to = at.first + (long long)(8 * half) * at.step * HEAD_WIDTH;
    if (8 * half >= at.left) continue;
#pragma unroll
    for (int i = 0; i < HEAD_WIDTH / 16; i++) {
      const float *x = added + 8 * i + 2 * half;
      add_four(to + 16 * i, x[0], x[1], x[4], x[5]);
    }
  }
}

// The held K of keys that the tile does not have becomes 0: it may be NaN, and 0
// * NaN is NaN.
DEVICE void clear_missing_keys(const consumer &c, u32 tile, int keys) {
  const int units = CHUNK / 8; // units of 16 bytes in a row of a chunk
  u32 at = query_stage(tile) * WARPGROUPS + c.group;
  u32 to = c.base + AT_QUERY + at * QUERY_BYTES;
  int own = max(keys - 64 * c.group, 0);
  if (own >= 64) return;
#pragma unroll 1
  for (int i = own * units + thread_index() % 128; i < 64 * units; i += 128)
#pragma unroll
    for (int chunk = 0; chunk < HEAD_WIDTH / CHUNK; chunk++)
      shared_store(to + chunk * (64 * CHUNK * 2) + i * 16, 0, 0, 0, 0);
  proxy_fence();
  named_barrier_sync(8 + c.group, 128);
}

// ---- dQ of the sums --------------------------------------------------------

// One thread makes sixteen columns of a row.
extern "C" __global__ void
hopper_round(const __grid_constant__ hopper_backward_launch run) {
  const int parts = HEAD_WIDTH / 16;
  long long rows = (long long)run.of.batches * run.query_heads * run.query_rows;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  float factor =
      run.scored_factor * power_of_2(-(WEIGHT_BITS + unit_bits(run)));
  bool finite = true;
  for (; i < rows * parts; i += (long long)gridDim.x * blockDim.x) {
    int part = (int)(i % parts), n = (int)(i / parts % run.query_rows);
    long long head = i / parts / run.query_rows;
    const float4 *from = (const float4 *)(run.query_sums + i * 16);
    unsigned short *to = (unsigned short *)run.fused.data +
                         head / run.query_heads * run.fused.batch +
                         head % run.query_heads * run.fused.head +
                         n * run.fused.row + part * 16;
    u32 word[2][4];
#pragma unroll
    for (int x = 0; x < 4; x++) {
      float4 f = from[x];
      word[0][x] = pack(f.x * factor, f.y * factor);
      word[1][x] = pack(f.z * factor, f.w * factor);
      float none = fmaf(f.x, 0, fmaf(f.y, 0, fmaf(f.z, 0, f.w * 0)));
      finite = finite && none == 0;
    }
#pragma unroll
    for (int x = 0; x < 2; x++)
      if (part * 16 + x * 8 < HEAD_DIM)
        *(int4 *)(to + x * 8) = make_int4((int)word[x][0], (int)word[x][1],
                                          (int)word[x][2], (int)word[x][3]);
  }
  if (!finite) *(volatile unsigned *)run.spoiled = 1;
}
#endif
