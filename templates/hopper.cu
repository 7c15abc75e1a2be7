// hopper.cu - attention forward on Hopper, all branches of a pattern at once.
//
// One block a multiprocessor. The first warpgroup produces: a planning warp
// finds tiles and their runs of keys, one loading thread starts the copies, the
// other warps clear the rows that no branch selects. The other warpgroups
// consume, 64 query rows each: S = Q K^T, softmax, O += P V, taking turns so
// that one multiplies while the others exponentiate.
//
// Only the planner knows tiles, classes and branches. To the consumers it is
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
#define PLAN_RUNS 24
#define PLAN_BYTES (48 + PLAN_RUNS * 32)

// Offsets from the start of dynamic shared memory; barriers are 8 bytes.
#define AT_QUERY 0
#define AT_KEY (AT_QUERY + 2 * WARPGROUPS * QUERY_BYTES)
#define AT_VALUE (AT_KEY + STAGES * KEY_BYTES)
#define AT_OUTPUT (AT_VALUE + STAGES * VALUE_BYTES)
#define AT_BLOCK (AT_OUTPUT + WARPGROUPS * OUTPUT_BYTES) // messages, 32 bytes
#define AT_TILE (AT_BLOCK + 2 * STAGES * 32)
#define AT_PLAN (AT_TILE + TILE_SLOTS * 32)
#define AT_PLAN_FULL (AT_PLAN + 2 * PLAN_BYTES)
#define AT_PLAN_EMPTY (AT_PLAN_FULL + 2 * 8)
#define AT_QUERY_FULL (AT_PLAN_EMPTY + 2 * 8)
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

// ---- the planner -----------------------------------------------------------

// A plan tells the loader of one tile, or of more runs of its keys: a head of
// {what, runs, key head, tile} and the tile's message, then the runs. A run is
// {position, keys, row in the map, where} and {left, right, bias, 1 / stride}.
enum { PLAN_TILE = 1, PLAN_LAST = 2, PLAN_END = 4 }; // what
enum { WHERE_MAP = 8, WHERE_STRIDE = 16 };           // shifts; phase below
DEVICE u32 plan_of(u32 base, u32 stage) {
  return base + AT_PLAN + stage * PLAN_BYTES;
}

// A row number as the maps count.
struct map_row {
  int row, phase, map;
};
DEVICE map_row map_row_of(int n, int stride, int slot, int rest) {
  int row = n / stride, phase = n - row * stride;
  return {row, phase, slot * 2 + (phase >= rest)};
}

// The tile's message; also its class and member, behind the plan's head.
DEVICE void plan_tile(const hopper_launch &run, const tile &x, u32 plan) {
  const hopper_class &k = run.classes[x.klass];
  map_row at = map_row_of(x.position - (run.keys - run.queries), k.stride,
                          k.slot, run.query_rest[k.slot]);
  shared_store(plan + 32, at.row, at.phase, at.map, x.batch);
  shared_store(plan + 16, x.position, k.stride, x.rows,
               run.members[x.member].head);
  shared_store(plan, 0, x.klass, x.member, 0);
}

// Run number `lane` of the pieces from `from` on; none: no keys.
DEVICE key_run plan_run(const hopper_launch &run, int at, u32 plan) {
  tile x;
  x.klass = shared_word(plan + 4);
  x.member = shared_word(plan + 8);
  x.position = shared_word(plan + 16);
  x.rows = shared_word(plan + 24);
  const hopper_class &k = run.classes[x.klass];
  if (at >= k.pieces) return {0, 0};
  return keys_of(run, x, run.pieces[k.piece + at]);
}

// One run of keys a lane, those without keys left out; their number. A tile
// that sees none gets one block of hidden keys, so that its rows are written.
DEVICE int plan_runs(const hopper_launch &run, int from, bool must, u32 plan) {
  u32 lane = thread_index() % 32;
  key_run keys = {0, 0};
  if (lane < PLAN_RUNS) keys = plan_run(run, from + lane, plan);
  u32 all = __ballot_sync(~0u, keys.count > 0);
  if (!all && must) all = 1;
  if (all >> lane & 1) {
    u32 to = plan + 48 + __popc(all & ((1u << lane) - 1)) * 32;
    const hopper_piece &p =
        run.pieces[run.classes[shared_word(plan + 4)].piece + from + lane];
    if (keys.count <= 0) keys = {0, 0};
    map_row at = map_row_of(keys.position, p.stride, p.slot,
                            run.key_rest[p.slot]);
    shared_store(to, keys.position, keys.count, at.row,
                 at.phase | at.map << WHERE_MAP | p.stride << WHERE_STRIDE);
    shared_store(to + 16, p.left, p.right, __float_as_int(p.bias),
                 __float_as_int(__fdividef(1, p.stride)));
  }
  return __popc(all);
}

// Counters of tiles and of finished blocks, zero before and after a launch;
// launches that overlap have slots of their own, 64 bytes apart.
__device__ unsigned counters[HOPPER_SLOTS][16];

// The next tile's number. A block claims no tile before there is room for its
// plan, or the last ones would wait in a busy block's queue.
DEVICE int claim_tile(const hopper_launch &run) {
  int t = 0;
  if (thread_index() % 32 == 0) t = count_up(counters[run.slot]) + gridDim.x;
  return __shfl_sync(~0u, t, 0);
}

DEVICE void plan_send(u32 base, u32 plans, int what, int runs, int head,
                      u32 tiles) {
  __syncwarp();
  if (is_elected()) {
    shared_store(plan_of(base, plans & 1), what, runs, head, tiles);
    barrier_arrive(base + AT_PLAN_FULL + 8 * (plans & 1));
  }
  __syncwarp();
}

// Plan number `plans`, of a tile from its piece `from` on. Returns where the next
// plan of the tile goes on, or 0; *must: no keys of the tile so far.
DEVICE int plan_part(const hopper_launch &run, u32 base, u32 plans, int from,
                     u32 tiles, bool &must) {
  u32 plan = plan_of(base, plans & 1);
  int next = from + PLAN_RUNS;
  if (next >= run.classes[shared_word(plan + 4)].pieces) next = 0;
  int runs = plan_runs(run, from, must && !next, plan);
  int head = run.members[shared_word(plan + 8)].head / run.group;
  must = must && !runs;
  plan_send(base, plans,
            (from ? 0 : PLAN_TILE) | (next ? 0 : PLAN_LAST), runs, head,
            tiles);
  return next;
}

// Tiles in their order: the first by the block's number, the next ones by a
// counter. The last block to finish leaves the counters as it found them.
DEVICE void make_plans(const hopper_launch &run, u32 base) {
  u32 plans = 0, tiles = 0;
  bool must = true;
  for (int t = blockIdx.x, from = 0; t < run.tiles;) {
    barrier_wait(base + AT_PLAN_EMPTY + 8 * (plans & 1), ~plans >> 1 & 1);
    tile x;
    if (tile_find(run, t % run.section_tiles, 0,
                  run.class_count - run.bare_count, t / run.section_tiles,
                  x)) {
      plan_tile(run, x, plan_of(base, plans & 1));
      __syncwarp();
      from = plan_part(run, base, plans++, from, tiles, must);
      if (from) continue;
      tiles++;
      barrier_wait(base + AT_PLAN_EMPTY + 8 * (plans & 1), ~plans >> 1 & 1);
    }
    must = true;
    t = claim_tile(run);
  }
  barrier_wait(base + AT_PLAN_EMPTY + 8 * (plans & 1), ~plans >> 1 & 1);
  plan_send(base, plans, PLAN_END, 0, 0, tiles);
  if (thread_index() % 32 == 0 &&
      count_up(counters[run.slot] + 1) == gridDim.x - 1) {
    counters[run.slot][0] = 0;
    counters[run.slot][1] = 0;
  }
}

// ---- the loader ------------------------------------------------------------

// Few registers are left to it: what a plan says is read anew at each use.
struct loader {
  const hopper_launch &run;
  u32 base;
  ring<STAGES> block;
  int hidden; // keys behind the end of the last block's run
  u32 plan;   // address
};
DEVICE u32 tile_number(const loader &l) { return shared_word(l.plan + 12); }

// Queries of a tile, one box a warpgroup, and the tile's message.
DEVICE void load_queries(loader &l) {
  int4 at = shared_load(l.plan + 32);
  const hopper_map *map = &l.run.q[0][0] + at.z;
  u32 tile = tile_number(l), stage = tile & 1; // see tile_of
  u32 full = l.base + AT_QUERY_FULL + 8 * stage;
  u32 to = l.base + AT_QUERY + stage * (WARPGROUPS * QUERY_BYTES);
  u32 message = l.base + AT_TILE + tile % TILE_SLOTS * 32;
  barrier_wait(l.base + AT_QUERY_EMPTY + 8 * stage, ~tile >> 1 & 1);
  shared_store(message + 16, at.x, at.y, at.z, at.w);
  int4 t = shared_load(l.plan + 16);
  shared_store(message, t.x, t.y, t.z, t.w);
  int boxes = (t.z + 63) / 64;
  barrier_expect(full, boxes * QUERY_BYTES);
#pragma unroll 1
  for (int w = 0; w < boxes; w++)
#pragma unroll
    for (int c = 0; c < HEAD_WIDTH / CHUNK; c++)
      load_box(to + w * QUERY_BYTES + c * (64 * CHUNK * 2), map, full,
               c * CHUNK, at.x + w * 64, at.y, t.w, at.w, KEEP_FIRST);
}

// Which warpgroups take part in a block of a run and which of them must mask.
// One that sees no more of a tile's last run may leave, but for the tile's
// first block: each writes its rows.
DEVICE int block_flags(const loader &l, u32 from, int position, int count,
                       bool may_leave) {
  int end = position +
            (TILE_KEYS - 1) * (shared_word(from + 12) >> WHERE_STRIDE);
  int left = shared_word(from + 16), right = shared_word(from + 20);
  int low = shared_word(l.plan + 16), stride = shared_word(l.plan + 20);
  int flags = 0;
#pragma unroll 1
  for (int w = 0; w * 64 < shared_word(l.plan + 24); w++) {
    int high = low + 63 * stride;
    if (!may_leave || position <= high + right)
      flags |= 1 << (BLOCK_TAKES + w);
    if (count < TILE_KEYS || end > low + right || position < high - left)
      flags |= 1 << (BLOCK_MASKS + w);
    low = high + stride;
  }
  return flags;
}

// The message of a block, into a free stage.
DEVICE void tell_block(loader &l, u32 from, int n) {
  u32 message = message_of(l.base, l.block.stage, l.block.phase ^ 1);
  int step = shared_word(from + 12) >> WHERE_STRIDE;
  int position = shared_word(from) + n * step;
  int count = shared_word(from + 4) - n;
  int what = shared_word(l.plan), runs = shared_word(l.plan + 4);
  bool first = what & PLAN_TILE && from + n == l.plan + 48;
  bool last = what & PLAN_LAST && from == l.plan + 16 + runs * 32;
  int flags = block_flags(l, from, position, count, last && !first);
  flags |= first | tile_number(l) % TILE_SLOTS << BLOCK_TILE |
           l.hidden << BLOCK_HIDDEN;
  shared_store(message, flags, shared_word(from + 24), position,
               shared_word(from + 28));
  shared_store(message + 16, shared_word(from + 16), shared_word(from + 20),
               count, 0);
  l.hidden = max(TILE_KEYS - count, 0);
}

// A box of the keys or values of a run, from its key n on.
template <int width, int chunk>
DEVICE void load_tile(loader &l, u32 to, u32 full, const hopper_map *maps,
                      u32 from, int n) {
  int where = shared_word(from + 12), row = shared_word(from + 8) + n;
  int head = shared_word(l.plan + 8), batch = shared_word(l.plan + 44);
  int phase = where & ((1 << WHERE_MAP) - 1);
  const hopper_map *map =
      maps + (where >> WHERE_MAP & ((1 << (WHERE_STRIDE - WHERE_MAP)) - 1));
  barrier_expect(full, TILE_KEYS * width * 2);
#pragma unroll
  for (int c = 0; c < width / chunk; c++)
    load_box(to + c * TILE_KEYS * chunk * 2, map, full, c * chunk, row, phase,
             head, batch, KEEP_LAST);
}

DEVICE void load_block(loader &l, u32 from, int n) {
  u32 stage = l.block.stage, phase = l.block.phase;
  barrier_wait(l.base + AT_KEY_EMPTY + 8 * stage, phase);
  tell_block(l, from, n);
  load_tile<HEAD_WIDTH, CHUNK>(l, l.base + AT_KEY + stage * KEY_BYTES,
                               l.base + AT_KEY_FULL + 8 * stage,
                               &l.run.k[0][0], from, n);
  barrier_wait(l.base + AT_VALUE_EMPTY + 8 * stage, phase);
  load_tile<VALUE_WIDTH, VALUE_CHUNK>(
      l, l.base + AT_VALUE + stage * VALUE_BYTES,
      l.base + AT_VALUE_FULL + 8 * stage, &l.run.v[0][0], from, n);
  l.block.next();
}

// Whether a run has a key n, and the last row of the tile sees it.
DEVICE bool is_seen(const loader &l, u32 from, int n) {
  int position =
      shared_word(from) + n * (shared_word(from + 12) >> WHERE_STRIDE);
  int last = shared_word(l.plan + 16) +
             (shared_word(l.plan + 24) - 1) * shared_word(l.plan + 20);
  return n < shared_word(from + 4) && position <= last + shared_word(from + 20);
}

DEVICE void load_plans(const hopper_launch &run, u32 base) {
  loader l = {run, base, {0, 1}, 0, 0};
  for (u32 plans = 0;; plans++) {
    l.plan = plan_of(base, plans & 1);
    barrier_wait(base + AT_PLAN_FULL + 8 * (plans & 1), plans >> 1 & 1);
    int what = shared_word(l.plan);
    if (what & PLAN_END) break;
    if (what & PLAN_TILE) load_queries(l);
    u32 end = l.plan + 48 + shared_word(l.plan + 4) * 32;
    for (u32 from = l.plan + 48; from < end; from += 32) {
      int n = 0;
      do load_block(l, from, n);
      while (is_seen(l, from, n += TILE_KEYS));
    }
    barrier_arrive(base + AT_PLAN_EMPTY + 8 * (plans & 1));
  }
  u32 stage = l.block.stage;
  barrier_wait(base + AT_KEY_EMPTY + 8 * stage, l.block.phase);
  shared_store(message_of(base, stage, l.block.phase ^ 1),
               BLOCK_END | BLOCK_NEW | tile_number(l) % TILE_SLOTS << BLOCK_TILE |
                   l.hidden << BLOCK_HIDDEN,
               0, 0, 0);
  barrier_arrive(base + AT_KEY_FULL + 8 * stage);
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
  for (int t = blockIdx.x * 2 + threadIdx.x / 32 - 2; t < run.bare_tiles;
       t += gridDim.x * 2) {
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
    barrier_init(base + AT_PLAN_FULL + 8 * i, 1);
    barrier_init(base + AT_PLAN_EMPTY + 8 * i, 1);
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
    if (threadIdx.x >= 64) clear_rows(run);
    else if (threadIdx.x >= 32) make_plans(run, base);
    else if (is_elected()) load_plans(run, base);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(
        CONSUMER_REGISTERS));
    consume({run, base, (int)threadIdx.x / 128 - 1, threadIdx.x % 128 == 0});
  }
}
