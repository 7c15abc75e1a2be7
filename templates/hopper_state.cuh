// hopper_state.cuh - rows of heads that several passes touch.
//
// In: a tile's sums and their denominators, and what earlier passes left of the
// same rows, f32. Out: both as one, left to the next pass or ready to be
// written. The state of a row is (O, lse), O already divided; (0, -infinity)
// when no pass has seen a key of it.
#pragma once

// The state's rows are [batches, state_rows, H].
DEVICE long long state_row(const hopper_launch &run, int batch, int n,
                           int head) {
  int row = quotient_by(n, run.apart_ratio, run.apart_shift);
  return ((long long)batch * run.state_rows + row) * run.heads + head;
}

// What a row's sums (`mine` so far) and its earlier state are multiplied with,
// and the lse of both. Neither may have seen a key.
DEVICE float merge_row(float before, float &lse, float &mine) {
  const float log2_e = 1.44269504088896340736f;
  float top = fmaxf(before, lse);
  if (before == MINUS_INFINITY && lse == MINUS_INFINITY) top = 0;
  float a = exp2_fast((before - top) * log2_e);
  float b = exp2_fast((lse - top) * log2_e);
  float both = a + b;
  lse = top + log2_fast(both) * 0.69314718055994530942f;
  mine = both == 0 ? 0 : mine * __fdividef(b, both);
  return both == 0 ? 0 : __fdividef(a, both);
}

// A thread's two rows of a tile: which of them there are, and their state.
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

// What the sums of both rows are to be scaled with (`mine` so far), and what was
// left of them (`theirs`, 0 so far); their lse as it goes on.
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

// What was left of one row, onto its sums: this thread's elements 4 g + 2 half
// and the next. With a factor of 0 it may be anything, and is not read.
template <int half>
DEVICE void add_row(const float *from, float theirs,
                    float (&o)[VALUE_WIDTH / 2]) {
  if (theirs == 0) return;
#pragma unroll
  for (int g = 0; g < VALUE_DIM / 8; g++) {
    float2 two = *(const float2 *)(from + 8 * g);
    o[4 * g + 2 * half] += theirs * two.x;
    o[4 * g + 2 * half + 1] += theirs * two.y;
  }
}
template <int half>
DEVICE void leave_row(float *to, const float (&o)[VALUE_WIDTH / 2]) {
#pragma unroll
  for (int g = 0; g < VALUE_DIM / 8; g++)
    *(float2 *)(to + 8 * g) =
        make_float2(o[4 * g + 2 * half], o[4 * g + 2 * half + 1]);
}

// All four threads of a row have read its lse by now.
DEVICE void leave_rows(const hopper_launch &run, const state_rows &rows,
                       int finish, const float (&lse)[2],
                       const float (&o)[VALUE_WIDTH / 2]) {
  if (is_there(rows, 0)) leave_row<0>(state_of(run, rows.number[0]), o);
  if (is_there(rows, 1)) leave_row<1>(state_of(run, rows.number[1]), o);
  if (thread_index() % 4 || finish & HOPPER_ADD) return;
  if (is_there(rows, 0)) run.state_lse[rows.number[0]] = lse[0];
  if (is_there(rows, 1)) run.state_lse[rows.number[1]] = lse[1];
}
