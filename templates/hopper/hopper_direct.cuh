// hopper_direct.cuh - rows of O from registers to memory, without a buffer.
#pragma once

// Stores one of a thread's two rows, `half`, if it is `there`. Two neighbouring threads
// exchange words, so that each holds 8 bytes of one of two groups of columns. The four
// threads of a row then write 32 bytes together.
DEVICE void store_row(const float (&o)[VALUE_COLUMNS / 2], int half, bool there,
                      unsigned short *to) {
  int lane = thread_index() % 4, column = lane % 2 * 8 + lane / 2 * 4;
  bool odd = lane & 1;
#pragma unroll
  for (int g = 0; g < VALUE_COLUMNS / 8; g += 2) {
    const float *x = o + 4 * g + half * 2;
    u32 first = pack(x[0], x[1]), second = pack(x[4], x[5]);
    u32 other = __shfl_xor_sync(~0u, odd ? first : second, 1);
    store_if(there && 8 * g + column < VALUE_DIM, to + 8 * g + column,
             odd ? other : first, odd ? second : other);
  }
}
