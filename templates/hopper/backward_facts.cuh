// backward_facts.cuh - the facts of query rows: their lse in units of log2, and
// their delta.
//
// In: the launch. Out: where keys are held, the facts of each streamed block in
// shared memory, from which the multiplicity of the block's pairs is taken off.
#pragma once

#define INFINITE_LSE __int_as_float(0x7f800000) // exp2(s - it) is 0

struct row_facts {
  float lse, delta;
};

// The facts of query row n.
DEVICE row_facts facts_of(const hopper_backward_launch &run, int batch,
                          int head, int n) {
  long long row = ((long long)batch * run.query_heads + head) * run.query_rows;
  float2 both = ((const float2 *)run.facts)[row + n];
  return {both.x, both.y};
}

// The address of the facts of a stage: those of lse, then those of delta.
DEVICE u32 facts_at(u32 base, u32 stage) {
  return base + AT_FACTS + stage * FACT_BYTES;
}
DEVICE u32 facts_barrier(u32 base, u32 stage) {
  return base + AT_FACTS_FULL + 8 * stage;
}

// From here on the rounding of lse shows in weights, and some would be above 1.
DEVICE bool is_large(float lse) {
  return fabsf(lse) > 1024 && lse < INFINITE_LSE;
}

// Lane x of the warp holds the facts of the rows x, x + 32, ... of a block.
#define OWN_FACTS ((TILE_KEYS + 31) / 32)

DEVICE void read_block_facts(const hopper_backward_launch &run, u32 message,
                             row_facts (&f)[OWN_FACTS]) {
  float bias = __int_as_float(shared_word(message + 4));
  int count = min(shared_word(message + 24), TILE_KEYS);
  int4 at = shared_load(message + 32); // {row, where, head, batch}
  int step = at.y >> WHERE_STRIDE, phase = at.y & ((1 << WHERE_MAP) - 1);
#pragma unroll
  for (int k = 0; k < OWN_FACTS; k++) {
    int i = thread_index() % 32 + 32 * k;
    f[k] = {INFINITE_LSE, 0};
    if (i < count) f[k] = facts_of(run, at.w, at.z, (at.x + i) * step + phase);
  }
#pragma unroll
  for (int k = 0; k < OWN_FACTS; k++) f[k].lse -= bias;
}

DEVICE void write_block_facts(const row_facts (&f)[OWN_FACTS], u32 to) {
  bool large = false;
#pragma unroll
  for (int k = 0; k < OWN_FACTS; k++) {
    int i = thread_index() % 32 + 32 * k;
    if (i >= TILE_KEYS) continue;
    shared_set(to + 4 * i, __float_as_int(f[k].lse));
    shared_set(to + 4 * (TILE_KEYS + i), __float_as_int(f[k].delta));
    large |= is_large(f[k].lse);
  }
  large = __any_sync(~0u, large);
  if (thread_index() % 32 == 0) shared_set(to + 8 * TILE_KEYS, large);
}

// The last warp of the producer warpgroup runs this.
DEVICE void load_facts(const hopper_backward_launch &run, u32 base) {
  for (ring<2 * STAGES> sent = {0};; sent.next()) {
    u32 slot = sent.stage(), stage = slot % STAGES, phase = slot / STAGES;
    u32 message = message_of(base, slot);
    barrier_wait(base + AT_MESSAGE_FULL + 8 * slot, sent.phase());
    if (shared_word(message) & BLOCK_END) break;
    row_facts f[OWN_FACTS];
    read_block_facts(run, message, f);
    barrier_wait(base + AT_KEY_EMPTY + 8 * stage, phase ^ 1);
    write_block_facts(f, facts_at(base, stage));
    barrier_arrive(facts_barrier(base, stage)); // each lane for its own writes
  }
}

DEVICE float2 shared_pair(u32 address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(x.x), "=f"(x.y)
               : "r"(address)
               : "memory");
  return x;
}
