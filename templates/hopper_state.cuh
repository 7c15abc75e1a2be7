// hopper_state.cuh - rows of heads that several passes touch.
//
// In: a tile's sums and their denominators, and what earlier passes left of the
// same rows, f32. Out: both as one, left to the next pass or ready to be
// written. The state of a row is (O, lse), O already divided; (0, -infinity)
// when no pass has seen a key of it.
#pragma once

// The state's rows are [batches, queries, H].
DEVICE long long state_row(const hopper_launch &run, int batch, int n,
                           int head) {
  return ((long long)batch * run.queries + n) * run.heads + head;
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

// One of a thread's two rows: its elements 4 g + 2 half and the next. A factor
// of 0 reads nothing.
template <int half>
DEVICE void join_row(const float *from, float theirs, float mine,
                     float (&o)[VALUE_WIDTH / 2]) {
#pragma unroll
  for (int g = 0; g < VALUE_DIM / 8; g++) {
    float2 two = make_float2(0, 0);
    if (theirs != 0) two = *(const float2 *)(from + 8 * g);
    o[4 * g + 2 * half] = o[4 * g + 2 * half] * mine + theirs * two.x;
    o[4 * g + 2 * half + 1] = o[4 * g + 2 * half + 1] * mine + theirs * two.y;
  }
}
template <int half>
DEVICE void leave_row(float *to, const float (&o)[VALUE_WIDTH / 2]) {
#pragma unroll
  for (int g = 0; g < VALUE_DIM / 8; g++)
    *(float2 *)(to + 8 * g) =
        make_float2(o[4 * g + 2 * half], o[4 * g + 2 * half + 1]);
}

// Row number `row` of the state, by the four threads that hold it.
template <int half>
DEVICE void finish_row(const hopper_launch &run, long long row, int finish,
                       float &lse, float mine, float (&o)[VALUE_WIDTH / 2]) {
  int lane = thread_index() % 4;
  bool adds = finish & HOPPER_ADD;
  float *state = run.state_o + row * VALUE_DIM + lane * 2, theirs = 0;
  if (finish & HOPPER_RESUME)
    theirs = adds ? 1 : merge_row(run.state_lse[row], lse, mine);
  join_row<half>(state, theirs, mine, o);
  if (!(finish & HOPPER_LEAVE)) return;
  leave_row<half>(state, o);
  __syncwarp(15u << (thread_index() & 28)); // all four have read the old lse
  if (lane == 0 && !adds) run.state_lse[row] = lse;
}
