// hopper_operands.cuh - the operands of a consumer's products: waits for their stages,
// and matrix descriptors. Needs `consumer`, as hopper_consumer.cuh does.
#pragma once

DEVICE void wait_queries(const consumer &c, u32 tile) {
  barrier_wait(c.base + AT_QUERY_FULL + 8 * query_stage(tile),
               query_parity(tile));
}
DEVICE u32 query_descriptor(const consumer &c, u32 tile) {
  u32 group = c.group;
  asm volatile("" : "+r"(group)); // shift here, as in own_flags
  return descriptor_low(c.base + AT_QUERY + group * QUERY_BYTES +
                            query_stage(tile) * (WARPGROUPS * QUERY_BYTES),
                        16);
}

DEVICE u32 key_descriptor(const consumer &c, u32 stage) {
  return descriptor_low(c.base + AT_KEY + stage * KEY_BYTES, 16);
}
DEVICE u32 value_descriptor(const consumer &c, u32 stage) {
  return descriptor_low(c.base + AT_VALUE + stage * VALUE_BYTES,
                        TILE_KEYS * VALUE_CHUNK * 2);
}
DEVICE void wait_keys(const consumer &c, const ring<STAGES> &block) {
  barrier_wait(c.base + AT_KEY_FULL + 8 * block.stage(), block.phase());
}
DEVICE void wait_values(const consumer &c, const ring<STAGES> &block) {
  barrier_wait(c.base + AT_VALUE_FULL + 8 * block.stage(), block.phase());
}
