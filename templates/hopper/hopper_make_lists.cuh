// hopper_make_lists.cuh - makes the lists of kept blocks, a bit for each pair of a query
// block and a key block. In: conditions on blocks (dil_listed). Out: rows of bits.
#pragma once

// Makes the row of query block number `block` of a batch row and head, in which `at`
// stands. `keys`: of all batch rows. The whole warp calls this.
DEVICE void make_list_row(const hopper_block_list &to, int list, int keys,
                          const dil_pair &at, int batch, int head, int block) {
  const dil_list_row &form = dil_lists[list];
  unsigned *row = to.bits + batch * to.batch + head * to.head +
                  (long long)(block - to.low) * to.words;
  int lane = thread_index() % 32;
  int blocks = (keys + form.block - 1) / form.block;
#pragma unroll 1
  for (int first = 0; first < to.words; first += 32) {
    u32 mine = 0;
#pragma unroll 1
    for (int n = 0; n < min(to.words - first, 32); n++) {
      int key = (first + n) * 32 + lane;
      bool kept = key < blocks && dil_listed(list, block * form.query_block,
                                             key * form.block, at);
      u32 word = __ballot_sync(~0u, kept);
      if (lane == n) mine = word;
    }
    if (first + lane < to.words) row[first + lane] = mine;
  }
}
