// hopper_state.cuh - the running state of heads that several passes compute.
//
// In: a tile's sums with their lse, and the f32 state that earlier passes left
// for the same rows. Out: both merged, as the state for the next pass or as the
// output. A row's state is (O, lse), with O already normalised; it is (0,
// -infinity) if no pass has seen a key of the row.
#pragma once

#include "templates/hopper/hopper_merge.cuh"

// The index of a row's entry in the state, [batches, state_rows, H].
DEVICE long long state_row(const hopper_launch &run, int batch, int n,
                           int head) {
  int row = quotient_by(n, run.state_stride_ratio, run.state_stride_shift);
  return ((long long)batch * run.state_rows + row) * run.heads + head;
}

// A thread's two rows of a tile: which of them exist, and the indices of their
// state.
struct state_rows {
  u32 there; // a bit each
  long long number[2];
};
DEVICE bool is_there(const state_rows &rows, int i) {
  return rows.there >> i & 1;
}

DEVICE float *state_of(const hopper_launch &run, long long number) {
  return run.state_o + number * VALUE_DIM + thread_index() % 4 * 2;
}

// Computes for both rows the factor of the sums (in `mine`), the factor of the
// earlier state (`theirs`, 0 before) and the merged lse. `adds`: outputs are
// added.
DEVICE void weigh_states(const hopper_launch &run, const state_rows &rows,
                         bool adds, float (&lse)[2], float (&mine)[2],
                         float (&theirs)[2]) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (!is_there(rows, i)) continue;
    theirs[i] = 1;
    if (!adds)
      theirs[i] = merge_row(run.state_lse[rows.number[i]], lse[i], mine[i]);
  }
}

// Adds the earlier state of one row, times `theirs`, to its sums. `half` says
// which of the thread's rows it is. With a factor of 0 the state may hold
// anything and is not read.
template <int half>
DEVICE void add_row(const float *from, float theirs,
                    float (&o)[VALUE_COLUMNS / 2]) {
  if (theirs == 0) return;
#pragma unroll
  for (int g = 0; g < VALUE_DIM / 8; g++) {
    float2 two = *(const float2 *)(from + 8 * g);
    o[4 * g + 2 * half] += theirs * two.x;
    o[4 * g + 2 * half + 1] += theirs * two.y;
  }
}
template <int half>
DEVICE void leave_row(float *to, const float (&o)[VALUE_COLUMNS / 2]) {
#pragma unroll
  for (int g = 0; g < VALUE_DIM / 8; g++)
    *(float2 *)(to + 8 * g) =
        make_float2(o[4 * g + 2 * half], o[4 * g + 2 * half + 1]);
}

// Stores the rows as the new state. The caller has made sure that all four
// threads of a row have read the old lse.
DEVICE void leave_rows(const hopper_launch &run, const state_rows &rows,
                       int finish, const float (&lse)[2],
                       const float (&o)[VALUE_COLUMNS / 2]) {
  if (is_there(rows, 0)) leave_row<0>(state_of(run, rows.number[0]), o);
  if (is_there(rows, 1)) leave_row<1>(state_of(run, rows.number[1]), o);
  if (thread_index() % 4 || finish & HOPPER_ADD) return;
  if (is_there(rows, 0)) run.state_lse[rows.number[0]] = lse[0];
  if (is_there(rows, 1)) run.state_lse[rows.number[1]] = lse[1];
}
