// hopper_stage.cuh - rows of O in the output buffer of a warp, from where TMA stores
// them.
#pragma once

// The offset of 16 bytes of a row in the output buffer, swizzled as the tensor map
// of o expects.
DEVICE u32 output_unit(u32 row, u32 unit) {
  const u32 width = VALUE_CHUNK * 2, units = VALUE_CHUNK / 8;
  u32 swizzle = width == 128 ? row & 7 : row >> 1 & 3;
  return unit / units * (16 * width) + row * width +
         ((unit % units ^ swizzle) << 4);
}

// Writes a warp's sixteen rows to its output buffer, which earlier stores have
// read.
DEVICE void stage_rows(u32 area, float (&o)[VALUE_COLUMNS / 2], u32 lane) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < VALUE_COLUMNS / 16; i++)
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::
            "r"(area + output_unit(lane & 15, 2 * i + (lane >> 4))),
        "r"(pack(o[8 * i], o[8 * i + 1])),
        "r"(pack(o[8 * i + 2], o[8 * i + 3])),
        "r"(pack(o[8 * i + 4], o[8 * i + 5])),
        "r"(pack(o[8 * i + 6], o[8 * i + 7]))
        : "memory");
}
