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

// Makes all rows of the lists of a call, a warp each. `of`: its parameters, where each
// batch row has `keys(batch)` keys.
template <class function>
DEVICE void make_list_rows(const hopper_block_list &to, const dil_params &of,
                           function keys) {
  int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  int warps = gridDim.x * blockDim.x / 32;
  int rows = to.rows * to.heads * to.batches;
#pragma unroll 1
  for (int n = warp; n < rows; n += warps) {
    int batch = n / (to.rows * to.heads), head = n / to.rows % to.heads;
    dil_pair at = {batch, head, of.B, of.N, keys(batch), of.input};
    make_list_row(to, 0, of.M, at, batch, head, to.low + n % to.rows);
  }
}
