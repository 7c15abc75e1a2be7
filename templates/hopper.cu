// hopper.cu - attention forward on Hopper, all branches of a pattern at once.
//
// One block a multiprocessor. The first warpgroup produces: one thread finds
// tiles and runs of keys and starts the copies; its other warps clear the rows
// that no branch selects. The other warpgroups consume, 64 query rows each:
// S = Q K^T, softmax, O += P V, taking turns so that one multiplies while the
// others exponentiate.
//
// Only the producer knows tiles, classes and branches. To the consumers it is
// one endless stream of key blocks, each with a message of what to do with it.
// They multiply the queries with one block and the weights with the values of
// the block before, across the borders of tiles: a tile costs its epilogue and
// no drained pipeline.

#ifndef WARPGROUPS
#define WARPGROUPS 3     // consumers: 2, 3 or 4
#endif
#ifndef TILE_KEYS
#define TILE_KEYS 128
#endif
#ifndef STAGES
#define STAGES 4         // of keys and values
#endif
#ifndef HEAD_WIDTH
#define HEAD_WIDTH 64    // head_dim, a multiple of 32
#endif
#ifndef VALUE_WIDTH
#define VALUE_WIDTH 64
#endif
#ifndef VALUE_DIM
#define VALUE_DIM VALUE_WIDTH // columns that there really are
#endif
#ifndef ELEMENT
#define ELEMENT 1        // 1 bf16, 2 f16
#endif

#define CHUNK (HEAD_WIDTH % 64 ? 32 : 64)
#define VALUE_CHUNK (VALUE_WIDTH % 64 ? 32 : 64)
#define PRODUCER_REGISTERS (WARPGROUPS == 2 ? 40 : 32)
#define CONSUMER_REGISTERS \
  (WARPGROUPS == 2 ? 232 : WARPGROUPS == 3 ? 160 : 112)
#define THREADS (128 * (WARPGROUPS + 1))

#include "hopper_launch.h"
#include "hopper_async.cuh"
#include "hopper_mma.cuh"
#include "hopper_softmax.cuh"
#include "hopper_walk.cuh"

// ---- shared memory ---------------------------------------------------------

#define QUERY_BYTES (64 * HEAD_WIDTH * 2) // of a warpgroup
#define KEY_BYTES (TILE_KEYS * HEAD_WIDTH * 2)
#define VALUE_BYTES (TILE_KEYS * VALUE_WIDTH * 2)
#define OUTPUT_BYTES (64 * VALUE_WIDTH * 2) // of a warpgroup
#define TILE_SLOTS 4

// Offsets from the start of dynamic shared memory; barriers are 8 bytes.
#define AT_QUERY 0
#define AT_KEY (AT_QUERY + 2 * WARPGROUPS * QUERY_BYTES)
#define AT_VALUE (AT_KEY + STAGES * KEY_BYTES)
#define AT_OUTPUT (AT_VALUE + STAGES * VALUE_BYTES)
#define AT_BLOCK (AT_OUTPUT + WARPGROUPS * OUTPUT_BYTES) // messages, 32 bytes
#define AT_TILE (AT_BLOCK + 2 * STAGES * 32)
#define AT_QUERY_FULL (AT_TILE + TILE_SLOTS * 32)
#define AT_QUERY_EMPTY (AT_QUERY_FULL + 2 * 8)
#define AT_KEY_FULL (AT_QUERY_EMPTY + 2 * 8)
#define AT_KEY_EMPTY (AT_KEY_FULL + STAGES * 8)
#define AT_VALUE_FULL (AT_KEY_EMPTY + STAGES * 8)
#define AT_VALUE_EMPTY (AT_VALUE_FULL + STAGES * 8)
#define SHARED_BYTES (AT_VALUE_EMPTY + STAGES * 8)
static_assert(SHARED_BYTES <= 232448, "tiles do not fit shared memory");

// A stage of a ring of `size` and the parity to wait for.
template <int size> struct ring {
  u32 stage, phase;
  DEVICE void next() {
    if (++stage == size) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// ---- messages --------------------------------------------------------------

// Of a block of keys: 16 bytes {flags, bias, first position, 1 / stride}, and
// 16 more {left, right, visible keys, -} that only masking reads. There are
// twice as many as stages: a stage is released before its block is masked.
enum {
  BLOCK_NEW = 1,        // a tile begins
  BLOCK_END = 2,        // nothing follows
  BLOCK_TILE = 4,       // shift: slot of the tile
  BLOCK_TAKES = 8,      // shift: warpgroups that take part
  BLOCK_MASKS = 16,     // shift: warpgroups that must mask
  BLOCK_HIDDEN = 20     // shift: hidden keys at the end of the block before
};
DEVICE u32 message_of(u32 base, u32 stage, u32 phase) {
  return base + AT_BLOCK + (stage + phase * STAGES) * 32;
}
// Of a tile: {position of row 0, stride, rows, head} and
// {row and phase of row 0 in the map of o, map, batch row}.

// ---- the producer ----------------------------------------------------------

struct producer {
  const hopper_launch &run;
  u32 base;
  ring<STAGES> block;
  int tiles;  // so far
  int hidden; // keys behind the end of the last block's run
};

// A row number as the maps count.
struct map_row {
  int row, phase, map;
};
DEVICE map_row map_row_of(int n, int stride, int slot, int rest) {
  int row = n / stride, phase = n - row * stride;
  return {row, phase, slot * 2 + (phase >= rest)};
}

// Queries of a tile, one box a warpgroup, and the tile's message.
DEVICE void produce_queries(producer &p, const tile &x) {
  const hopper_class &k = p.run.classes[x.klass];
  int head = p.run.members[x.member].head;
  map_row at = map_row_of(x.position - (p.run.keys - p.run.queries), k.stride,
                          k.slot, p.run.query_rest[k.slot]);
  const hopper_map *map = &p.run.q[0][0] + at.map;
  u32 stage = p.tiles & 1, phase = ~p.tiles >> 1 & 1; // see tile_of
  u32 full = p.base + AT_QUERY_FULL + 8 * stage;
  u32 to = p.base + AT_QUERY + stage * (WARPGROUPS * QUERY_BYTES);
  int boxes = (x.rows + 63) / 64;
  barrier_wait(p.base + AT_QUERY_EMPTY + 8 * stage, phase);
  barrier_expect(full, boxes * QUERY_BYTES);
  for (int w = 0; w < boxes; w++)
    for (int c = 0; c < HEAD_WIDTH / CHUNK; c++)
      load_box(to + w * QUERY_BYTES + c * (64 * CHUNK * 2), map, full,
               c * CHUNK, at.row + w * 64, at.phase, head, x.batch,
               KEEP_FIRST);
  u32 message = p.base + AT_TILE + p.tiles % TILE_SLOTS * 32;
  shared_store(message, x.position, k.stride, x.rows, head);
  shared_store(message + 16, at.row, at.phase, at.map, x.batch);
}

// Which warpgroups take part in a block and which of them must mask. One that
// sees no more of a tile's last run may leave, but for the tile's first block:
// each writes its rows.
DEVICE int block_flags(const tile &x, int stride, const hopper_piece &piece,
                       key_run keys, bool may_leave) {
  int flags = 0, end = keys.position + (TILE_KEYS - 1) * piece.stride;
#pragma unroll
  for (int w = 0; w < WARPGROUPS; w++) {
    if (w * 64 >= x.rows) break;
    int low = x.position + w * 64 * stride, high = low + 63 * stride;
    if (!may_leave || keys.position <= high + piece.right)
      flags |= 1 << (BLOCK_TAKES + w);
    if (keys.count < TILE_KEYS || end > low + piece.right ||
        keys.position < high - piece.left)
      flags |= 1 << (BLOCK_MASKS + w);
  }
  return flags;
}

// One block of keys and values, when their stage is free.
DEVICE void produce_block(producer &p, const hopper_piece &piece, int flags,
                          key_run keys, map_row at, int head, int batch) {
  const hopper_launch &run = p.run;
  u32 stage = p.block.stage;
  u32 message = message_of(p.base, stage, p.block.phase ^ 1);
  u32 full = p.base + AT_KEY_FULL + 8 * stage;
  barrier_wait(p.base + AT_KEY_EMPTY + 8 * stage, p.block.phase);
  shared_store(message, flags | p.hidden << BLOCK_HIDDEN,
               __float_as_int(piece.bias), keys.position,
               __float_as_int(1.0f / piece.stride));
  p.hidden = max(TILE_KEYS - keys.count, 0);
  shared_store(message + 16, piece.left, piece.right, keys.count, 0);
  barrier_expect(full, KEY_BYTES);
#pragma unroll
  for (int c = 0; c < HEAD_WIDTH / CHUNK; c++)
    load_box(p.base + AT_KEY + stage * KEY_BYTES + c * TILE_KEYS * CHUNK * 2,
             &run.k[0][0] + at.map, full, c * CHUNK, at.row, at.phase, head,
             batch, KEEP_LAST);
  full = p.base + AT_VALUE_FULL + 8 * stage;
  barrier_wait(p.base + AT_VALUE_EMPTY + 8 * stage, p.block.phase);
  barrier_expect(full, VALUE_BYTES);
#pragma unroll
  for (int c = 0; c < VALUE_WIDTH / VALUE_CHUNK; c++)
    load_box(p.base + AT_VALUE + stage * VALUE_BYTES +
                 c * TILE_KEYS * VALUE_CHUNK * 2,
             &run.v[0][0] + at.map, full, c * VALUE_CHUNK, at.row, at.phase,
             head, batch, KEEP_LAST);
  p.block.next();
}

// All keys of a tile. A tile that sees none gets one block of hidden keys, so
// that its rows are written: 0 and -infinity.
DEVICE void produce_keys(producer &p, const tile &x) {
  const hopper_launch &run = p.run;
  const hopper_class &k = run.classes[x.klass];
  int head = run.members[x.member].head / run.group;
  int tell = BLOCK_NEW | p.tiles % TILE_SLOTS << BLOCK_TILE;
  for (int i = 0; i < k.pieces; i++) {
    const hopper_piece &piece = run.pieces[k.piece + i];
    key_run keys = keys_of(run, x, piece);
    bool last = i + 1 == k.pieces;
    if (keys.count <= 0) {
      if (!last || !(tell & BLOCK_NEW)) continue;
      keys.position = keys.count = 0;
    }
    map_row at = map_row_of(keys.position, piece.stride, piece.slot,
                            run.key_rest[piece.slot]);
    do {
      produce_block(p, piece,
                    tell | block_flags(x, k.stride, piece, keys,
                                       last && !(tell & BLOCK_NEW)),
                    keys, at, head, x.batch);
      tell &= ~BLOCK_NEW;
      keys.position += TILE_KEYS * piece.stride;
      keys.count -= TILE_KEYS;
      at.row += TILE_KEYS;
    } while (keys.count > 0);
  }
}

// Counters of tiles and of finished blocks, zero before and after a launch;
// launches that overlap have slots of their own, 64 bytes apart.
__device__ unsigned counters[HOPPER_SLOTS][16];

// Tiles in their order: the first by the block's number, the next ones by a
// counter. The last block to finish leaves the counters as it found them.
DEVICE void produce(const hopper_launch &run, u32 base) {
  producer p = {run, base, {0, 1}, 0, 0};
  unsigned *counter = counters[run.slot];
  for (int t = blockIdx.x; t < run.tiles;) {
    int next = count_up(counter) + gridDim.x;
    int section = t / run.section_tiles;
    tile x;
    if (tile_find(run, t - section * run.section_tiles, 0,
                  run.class_count - run.bare_count, section, x)) {
      produce_queries(p, x);
      produce_keys(p, x);
      p.tiles++;
    }
    t = next;
  }
  u32 stage = p.block.stage;
  barrier_wait(base + AT_KEY_EMPTY + 8 * stage, p.block.phase);
  shared_store(message_of(base, stage, p.block.phase ^ 1),
               BLOCK_END | BLOCK_NEW | p.tiles % TILE_SLOTS << BLOCK_TILE |
                   p.hidden << BLOCK_HIDDEN,
               0, 0, 0);
  barrier_arrive(base + AT_KEY_FULL + 8 * stage);
  if (count_up(counter + 1) == gridDim.x - 1) {
    counter[0] = 0;
    counter[1] = 0;
  }
}

// ---- rows that no branch selects -------------------------------------------

DEVICE void clear_tile(const hopper_launch &run, const tile &x) {
  int lane = threadIdx.x % 32;
  const int units = VALUE_DIM / 8, together = 32 / units; // of 16 bytes; rows
  int n = x.position - (run.keys - run.queries);
  int head = run.members[x.member].head, stride = run.classes[x.klass].stride;
  char *to = (char *)run.o_data +
             2 * (x.batch * run.o_batch + head * run.o_head +
                  (n + lane / units * stride) * run.o_row + lane % units * 8);
  for (int row = lane / units; row < x.rows && lane < together * units;
       row += together, to += 2 * together * stride * run.o_row)
    *(int4 *)to = make_int4(0, 0, 0, 0);
  if (!run.lse) return;
  float *lse = run.lse + x.batch * run.lse_batch + head * run.lse_head;
  for (int row = lane; row < x.rows; row += 32)
    lse[(n + row * stride) * run.lse_row] = MINUS_INFINITY;
}

// By the idle warps of the producing warpgroup, dealt out in turn.
DEVICE void clear_rows(const hopper_launch &run) {
  for (int t = blockIdx.x * 3 + threadIdx.x / 32 - 1; t < run.bare_tiles; t += gridDim.x * 3) {
    tile x;
    if (tile_find(run, t, run.class_count - run.bare_count, run.bare_count, 0,
                  x))
      clear_tile(run, x);
  }
}

// ---- consumers -------------------------------------------------------------

struct consumer {
  const hopper_launch &run;
  u32 base;
  int group; // of warps
  bool lead; // releases stages for the warpgroup
};
// Of this thread's warp: its first row in the tile.
DEVICE int warp_row(u32 thread) { return (thread / 32 - 4) * 16; }

// Turns at the tensor cores go round the warpgroups.
DEVICE void wait_turn(const consumer &c) { turn_wait(2 + c.group, 256); }
DEVICE void pass_turn(const consumer &c) {
  turn_pass(2 + (c.group + 1) % WARPGROUPS, 256);
}

// Column x of a block stands `x / stride` keys from its first: exact while x
// and the stride are below 2^20 and 2^12.
DEVICE int keys_within(int distance, float per_stride) {
  const int most = 1 << 20;
  distance = max(-1, min(distance, most));
  return __float2int_rd((distance + 0.5f) * per_stride);
}

DEVICE void mask_block(const consumer &c, float (&s)[TILE_KEYS / 2],
                       const ring<STAGES> &block) {
  u32 message = message_of(c.base, block.stage, block.phase);
  int4 m = shared_load(message), window = shared_load(message + 16);
  int4 t = shared_load(c.base + AT_TILE + (m.x >> BLOCK_TILE & 3) * 32);
  float per_stride = __int_as_float(m.w);
  u32 thread = thread_index();
  int first[2], width[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int row = warp_row(thread) + thread % 32 / 4 + half * 8;
    int from = t.x + row * t.y - m.z; // position of the row in the block
    first[half] = keys_within(from - window.x - 1, per_stride) + 1;
    int end = min(keys_within(from + window.y, per_stride) + 1, window.z);
    width[half] = max(end - first[half], 0);
  }
  hide(s, first, width, thread % 4 * 2);
}

// Values that no row of the tile sees may hold NaN, and 0 * NaN is NaN: they
// are cleared. Each warpgroup does it for itself, zeros over zeros.
DEVICE void clear_values(const consumer &c, u32 values, int visible) {
  const int units = VALUE_CHUNK / 8; // of 16 bytes, a row of a chunk
#pragma unroll 1
  for (int i = visible * units + thread_index() % 128; i < TILE_KEYS * units;
       i += 128)
#pragma unroll
    for (int chunk = 0; chunk < VALUE_WIDTH / VALUE_CHUNK; chunk++)
      shared_store(values + chunk * (TILE_KEYS * VALUE_CHUNK * 2) + i * 16, 0,
                   0, 0, 0);
  proxy_fence();
  turn_wait(8 + c.group, 128);
}

// Sixteen rows of a warp that are all inside of the tile leave in one box.
DEVICE void store_rows(const consumer &c, float (&o)[VALUE_WIDTH / 2],
                       u32 thread, int4 to, int head) {
  const int width = VALUE_CHUNK * 2, groups = VALUE_CHUNK / 16;
  u32 area = c.base + AT_OUTPUT + warp_row(thread) * VALUE_WIDTH * 2;
  u32 lane = thread % 32, row = lane & 15;
  u32 swizzle = width == 128 ? row & 7 : row >> 1 & 3;
  if (lane == 0) store_wait_read();
  __syncwarp();
#pragma unroll
  for (int i = 0; i < VALUE_WIDTH / 16; i++) {
    u32 unit = i % groups * 2 + (lane >> 4);
    u32 at = area + i / groups * (16 * width) + row * width +
             ((unit ^ swizzle) << 4);
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::
            "r"(at),
        "r"(pack(o[8 * i], o[8 * i + 1])),
        "r"(pack(o[8 * i + 2], o[8 * i + 3])),
        "r"(pack(o[8 * i + 4], o[8 * i + 5])),
        "r"(pack(o[8 * i + 6], o[8 * i + 7]))
        : "memory");
  }
  proxy_fence();
  __syncwarp();
  if (lane != 0) return;
  for (int i = 0; i < VALUE_WIDTH / VALUE_CHUNK; i++)
    store_box(&c.run.o[0][0] + to.z, area + i * (16 * width), i * VALUE_CHUNK,
              to.x + warp_row(thread), to.y, head, to.w);
  store_commit();
}

// Rows at the end of a tile that is not full: a box would reach into rows of
// another cell.
DEVICE void store_single(const consumer &c, float (&o)[VALUE_WIDTH / 2],
                         u32 thread, int4 t, int batch) {
  int row = warp_row(thread) + thread % 32 / 4;
  int n = t.x - (c.run.keys - c.run.queries);
  u32 *out = (u32 *)((unsigned short *)c.run.o_data + batch * c.run.o_batch +
                     t.w * c.run.o_head + thread % 4 * 2);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    if (row + half * 8 >= t.z) break;
    u32 *to = out + (n + (row + half * 8) * t.y) * c.run.o_row / 2;
#pragma unroll
    for (int g = 0; g < VALUE_DIM / 8; g++)
      to[g * 4] = pack(o[4 * g + half * 2], o[4 * g + half * 2 + 1]);
  }
}

// The log of a row's denominator, by one of its four threads.
DEVICE void store_lse(const consumer &c, u32 thread, int4 t, int batch,
                      float sum0, float sum1, const float (&peak)[2]) {
  const float ln_2 = 0.69314718055994530942f;
  int row = warp_row(thread) + thread % 32 / 4;
  float *to = c.run.lse + batch * c.run.lse_batch + t.w * c.run.lse_head +
              (t.x - (c.run.keys - c.run.queries) + row * t.y) * c.run.lse_row;
  sum0 = (peak[0] * c.run.scale + log2_fast(sum0)) * ln_2; // log2 0 is -inf
  sum1 = (peak[1] * c.run.scale + log2_fast(sum1)) * ln_2;
  if (thread % 4 || row >= t.z) return;
  *to = sum0;
  if (row + 8 < t.z) to[8 * t.y * c.run.lse_row] = sum1;
}

// The end of a tile: divides by the sums and writes O and lse.
DEVICE void finish_tile(const consumer &c, float (&o)[VALUE_WIDTH / 2],
                        const row_state &r, int slot) {
  u32 message = c.base + AT_TILE + slot * 32, thread = thread_index();
  int4 t = shared_load(message);
  int row = warp_row(thread);
  float sum0 = row_sum(r.sum[0]), sum1 = row_sum(r.sum[1]);
  scale_rows(o, sum0 == 0 ? 0 : __fdividef(c.run.weight, sum0),
             sum1 == 0 ? 0 : __fdividef(c.run.weight, sum1));
  int4 to = shared_load(message + 16);
  if (c.run.lse) store_lse(c, thread, t, to.w, sum0, sum1, r.peak);
  if (row + 16 <= t.z) store_rows(c, o, thread, to, t.w);
  else if (row < t.z) store_single(c, o, thread, t, to.w);
}

DEVICE bool takes(const consumer &c, int4 m) {
  return m.x >> (BLOCK_TAKES + c.group) & 1;
}
DEVICE bool masks(const consumer &c, int4 m) {
  return m.x >> (BLOCK_MASKS + c.group) & 1;
}
// The slot of a block's tile, and of the tile that runs up to this block. They
// count tiles modulo four: bit 0 is the stage of its queries, bit 1 the parity.
DEVICE u32 tile_of(int4 m) { return m.x >> BLOCK_TILE & (TILE_SLOTS - 1); }
DEVICE u32 tile_before(int4 m) {
  return ((m.x >> BLOCK_TILE) - (m.x & BLOCK_NEW)) & (TILE_SLOTS - 1);
}
DEVICE void wait_queries(const consumer &c, u32 tile) {
  barrier_wait(c.base + AT_QUERY_FULL + 8 * (tile & 1), tile >> 1);
}
DEVICE void release_queries(const consumer &c, u32 tile) {
  if (c.lead) barrier_arrive(c.base + AT_QUERY_EMPTY + 8 * (tile & 1));
}
DEVICE u32 query_descriptor(const consumer &c, u32 tile) {
  return descriptor_low(c.base + AT_QUERY + c.group * QUERY_BYTES +
                            (tile & 1) * (WARPGROUPS * QUERY_BYTES),
                        16);
}

// A block in which this warpgroup has no rows, or none that see anything: it
// only keeps turns and stages moving. The turn also orders its reads of the
// message before the release.
DEVICE void idle(const consumer &c, int4 m, const ring<STAGES> &block) {
  if (m.x & BLOCK_NEW) {
    wait_queries(c, tile_of(m));
    release_queries(c, tile_of(m));
  }
  wait_turn(c);
  pass_turn(c);
  if (c.lead) barrier_arrive(c.base + AT_KEY_EMPTY + 8 * block.stage);
  barrier_wait(c.base + AT_VALUE_FULL + 8 * block.stage, block.phase);
  if (c.lead) barrier_arrive(c.base + AT_VALUE_EMPTY + 8 * block.stage);
}

DEVICE void consume(const consumer &c) {
  const hopper_launch &run = c.run;
  ring<STAGES> block = {0, 0};
  if (c.group == 0) turn_pass(2, 256);
#pragma unroll 1
  for (;;) {
    barrier_wait(c.base + AT_KEY_FULL + 8 * block.stage, block.phase);
    int4 m = shared_load(message_of(c.base, block.stage, block.phase));
    if (m.x & BLOCK_END) break;
    if (!takes(c, m)) {
      idle(c, m, block);
      block.next();
      continue;
    }
    float o[VALUE_WIDTH / 2];
    u32 p[TILE_KEYS / 4];
    row_state r;
    u32 q = query_descriptor(c, tile_of(m));
    ring<STAGES> before;
    { // the first block of a tile that no other runs into
      float s[TILE_KEYS / 2];
      wait_queries(c, tile_of(m));
      wait_turn(c);
      multiply_keys(
          s, q, descriptor_low(c.base + AT_KEY + block.stage * KEY_BYTES, 16));
      pass_turn(c);
      mma_wait<0>();
      settle(s);
      if (c.lead) barrier_arrive(c.base + AT_KEY_EMPTY + 8 * block.stage);
      if (masks(c, m)) mask_block(c, s, block);
      state_clear(r);
      softmax(s, r, run.scale, __int_as_float(m.y));
      pack_weights(s, p);
#pragma unroll
      for (int i = 0; i < VALUE_WIDTH / 2; i++) o[i] = 0;
    }
#pragma unroll 1
    for (;;) {
      before = block;
      block.next();
      u32 k = descriptor_low(c.base + AT_KEY + block.stage * KEY_BYTES, 16);
      u32 values = c.base + AT_VALUE + before.stage * VALUE_BYTES;
      u32 v = descriptor_low(values, TILE_KEYS * VALUE_CHUNK * 2);
      barrier_wait(c.base + AT_KEY_FULL + 8 * block.stage, block.phase);
      m = shared_load(message_of(c.base, block.stage, block.phase));
      bool leaves = !takes(c, m);
      if (m.x >> BLOCK_HIDDEN) {
        barrier_wait(c.base + AT_VALUE_FULL + 8 * before.stage, before.phase);
        clear_values(c, values, TILE_KEYS - (m.x >> BLOCK_HIDDEN));
      }
      if ((m.x & BLOCK_NEW) || leaves) {
        release_queries(c, tile_before(m));
        if (leaves) break;
        q = query_descriptor(c, tile_of(m));
        wait_queries(c, tile_of(m));
      }
      float s[TILE_KEYS / 2];
      wait_turn(c);
      multiply_keys(s, q, k);
      barrier_wait(c.base + AT_VALUE_FULL + 8 * before.stage, before.phase);
      settle(o);
      multiply_values(o, p, v);
      pass_turn(c);
      mma_wait<1>();
      settle(s);
      if (c.lead) barrier_arrive(c.base + AT_KEY_EMPTY + 8 * block.stage);
      if (masks(c, m)) mask_block(c, s, block);
      row_state done = r;
      if (m.x & BLOCK_NEW) state_clear(r);
      softmax(s, r, run.scale, __int_as_float(m.y));
      settle(s);
      settle(r.sum);
      // Two arms with waits of different text: were they one, ptxas would
      // hoist it above the exponentials, and nothing would overlap.
      if (m.x & BLOCK_NEW) {
        asm volatile("wgmma.wait_group.sync.aligned 0; // end of a tile" ::
                         : "memory");
        settle(o);
        if (c.lead) barrier_arrive(c.base + AT_VALUE_EMPTY + 8 * before.stage);
        pack_weights(s, p);
        finish_tile(c, o, done, tile_before(m));
#pragma unroll
        for (int i = 0; i < VALUE_WIDTH / 2; i++) o[i] = 0;
      } else {
        mma_wait<0>();
        settle(o);
        if (c.lead) barrier_arrive(c.base + AT_VALUE_EMPTY + 8 * before.stage);
        pack_weights(s, p);
        if (r.moved) scale_rows(o, r.factor[0], r.factor[1]);
      }
    }
    barrier_wait(c.base + AT_VALUE_FULL + 8 * before.stage, before.phase);
    settle(o);
    multiply_values(o, p,
                    descriptor_low(c.base + AT_VALUE +
                                       before.stage * VALUE_BYTES,
                                   TILE_KEYS * VALUE_CHUNK * 2));
    mma_wait<0>();
    settle(o);
    if (c.lead) barrier_arrive(c.base + AT_VALUE_EMPTY + 8 * before.stage);
    finish_tile(c, o, r, tile_before(m));
  }
  store_wait();
}

// ---- the kernel ------------------------------------------------------------

DEVICE void init_barriers(u32 base) {
  for (int i = 0; i < 2; i++) {
    barrier_init(base + AT_QUERY_FULL + 8 * i, 1);
    barrier_init(base + AT_QUERY_EMPTY + 8 * i, WARPGROUPS);
  }
  for (int i = 0; i < STAGES; i++) {
    barrier_init(base + AT_KEY_FULL + 8 * i, 1);
    barrier_init(base + AT_KEY_EMPTY + 8 * i, WARPGROUPS);
    barrier_init(base + AT_VALUE_FULL + 8 * i, 1);
    barrier_init(base + AT_VALUE_EMPTY + 8 * i, WARPGROUPS);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    hopper_forward(const __grid_constant__ hopper_launch run) {
  extern __shared__ __align__(1024) unsigned char memory[];
  u32 base = shared_address(memory);
  if (threadIdx.x == 0) init_barriers(base);
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(
        PRODUCER_REGISTERS));
    if (threadIdx.x >= 32) clear_rows(run);
    else if (is_elected()) produce(run, base);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(
        CONSUMER_REGISTERS));
    consume({run, base, (int)threadIdx.x / 128 - 1, threadIdx.x % 128 == 0});
  }
}
