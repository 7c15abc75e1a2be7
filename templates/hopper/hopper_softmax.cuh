// hopper_softmax.cuh - the online softmax (arXiv:1805.02867) over score
// fragments.
//
// In: scores of 64 queries by TILE_KEYS keys, in the fragment layout of
// hopper_mma.cuh. A thread holds two rows, `lane / 4` and `lane / 4 + 8`. Out:
// weights, and the rows' state advanced. Exponents are in units of log2.
#pragma once

// The state of a thread's two rows. `sum` covers only the thread's own columns.
struct row_state {
  float peak[2]; // largest score so far, or up to `slack` less; LOWEST at first
  float sum[2];
  bool moved;      // some row of the warp raised its peak in this block
  float factor[2]; // if so, the factor for earlier sums
#if DROPOUT
  u32 word[2];     // random words of the rows
#endif
};

// Random words of a block's keys: lane x of a warp holds those of keys x, x +
// 32, ... Without dropout there are none.
struct key_words {
#if DROPOUT
  u32 of[TILE_KEYS / 32];
  bool drops;
#endif
};

DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#define MINUS_INFINITY __int_as_float(0xff800000)
#ifndef SCORED
#define SCORED 0
#define HIDING 0
#define SINKS 0
#define DROPOUT 0
#endif
// The smallest finite float: no finite score is below it, and a difference of
// two peaks is never NaN.
#define LOWEST (-3.4028234664e38f)
// From this shift on, rounding to f32 may change a product by more than 1. From
// 2^31 on, the power of that difference overflows.
#define LARGE_SHIFT 16777216.0f

DEVICE void state_clear(row_state &r) {
  r.peak[0] = r.peak[1] = LOWEST;
  r.sum[0] = r.sum[1] = 0;
}

// The maximum, and the sum, over the four threads of a row.
DEVICE float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
DEVICE float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// A row keeps its peak until a score exceeds it by `slack`, which is a factor
// of 2^8 in weights. Weights stay below 2^8 times the multiplicity, and few
// blocks need to rescale. Each row decides for itself; the warp only votes
// whether any row must.
DEVICE void raise_peaks(row_state &r, float top0, float top1, float scale,
                        float slack) {
  top0 = row_max(top0);
  top1 = row_max(top1);
  bool up0 = top0 > r.peak[0] + slack, up1 = top1 > r.peak[1] + slack;
  r.factor[0] = up0 ? exp2_fast((r.peak[0] - top0) * scale) : 1;
  r.factor[1] = up1 ? exp2_fast((r.peak[1] - top1) * scale) : 1;
  r.sum[0] *= r.factor[0];
  r.sum[1] *= r.factor[1];
  r.peak[0] = up0 ? top0 : r.peak[0];
  r.peak[1] = up1 ? top1 : r.peak[1];
}

// Finds the maxima of a block. Each row has two chains of maxima, since a
// single chain stalls on latency. A thread votes by its own scores, so the four
// threads of a row need not exchange their maxima first.
DEVICE void find_peaks(float (&s)[TILE_KEYS / 2], row_state &r, float scale,
                       float slack) {
  float a0 = s[0], a1 = s[2], b0 = s[4], b1 = s[6];
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i += 8) {
    a0 = fmaxf(a0, fmaxf(s[i], s[i + 1]));
    a1 = fmaxf(a1, fmaxf(s[i + 2], s[i + 3]));
    b0 = fmaxf(b0, fmaxf(s[i + 4], s[i + 5]));
    b1 = fmaxf(b1, fmaxf(s[i + 6], s[i + 7]));
  }
  a0 = fmaxf(a0, b0);
  a1 = fmaxf(a1, b1);
  r.moved = __any_sync(~0u, a0 > r.peak[0] + slack || a1 > r.peak[1] + slack);
  if (r.moved) raise_peaks(r, a0, a1, scale, slack);
}

// Where the shift of row `row` is large, subtracts the peak from the scores
// themselves, and the bias alone is left of the shift.
template <int row>
DEVICE void subtract_peak(float (&s)[TILE_KEYS / 2], float peak, float bias,
                          float &shift) {
  if (fabsf(shift) < LARGE_SHIFT) return;
  shift = bias;
#pragma unroll
  for (int i = 2 * row; i < TILE_KEYS / 2; i += 4) {
    s[i] -= peak;
    s[i + 1] -= peak;
  }
}
DEVICE float weight_of(float s, float scale, float shift) {
  return exp2_fast(fmaf(s, scale, shift));
}

// Sets the dropped weights among elements i to i + 3 to 0. The factor of the
// others is in the launch's `weight`.
DEVICE void drop_weights(float (&s)[TILE_KEYS / 2], int i, const row_state &r,
                         const key_words &keys) {
#if DROPOUT
  if (!keys.drops) return;
  int group = i / 4; // eight columns, of which the thread holds two
  int lane = group % 4 * 8 + thread_index() % 4 * 2;
  u32 even = __shfl_sync(~0u, keys.of[group / 4], lane);
  u32 odd = __shfl_sync(~0u, keys.of[group / 4], lane + 1);
  if (dil_dropped(r.word[0], even)) s[i] = 0;
  if (dil_dropped(r.word[0], odd)) s[i + 1] = 0;
  if (dil_dropped(r.word[1], even)) s[i + 2] = 0;
  if (dil_dropped(r.word[1], odd)) s[i + 3] = 0;
#endif
}

// Turns scores into weights. Packing them in the same loop hides behind the
// exponentials. Each row has two chains of sums.
DEVICE void weigh(float (&s)[TILE_KEYS / 2], u32 (&p)[TILE_KEYS / 4],
                  row_state &r, float scale, float bias,
                  const key_words &keys) {
  float shift0 = fmaf(r.peak[0], -scale, bias);
  float shift1 = fmaf(r.peak[1], -scale, bias);
  bool small = fmaxf(fabsf(shift0), fabsf(shift1)) < LARGE_SHIFT;
  // The warp votes, so that one branch covers both rows. A row without any key
  // so far has a large shift and only hidden scores, which stay -inf.
  if (__any_sync(~0u, !small)) {
    subtract_peak<0>(s, r.peak[0], bias, shift0);
    subtract_peak<1>(s, r.peak[1], bias, shift1);
  }
  float even0 = 0, even1 = 0;
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i += 4) {
    s[i] = weight_of(s[i], scale, shift0);
    s[i + 1] = weight_of(s[i + 1], scale, shift0);
    s[i + 2] = weight_of(s[i + 2], scale, shift1);
    s[i + 3] = weight_of(s[i + 3], scale, shift1);
    if (i & 4) {
      r.sum[0] += s[i] + s[i + 1];
      r.sum[1] += s[i + 2] + s[i + 3];
    } else {
      even0 += s[i] + s[i + 1];
      even1 += s[i + 2] + s[i + 3];
    }
    drop_weights(s, i, r, keys);
    p[i / 2] = pack(s[i], s[i + 1]);
    p[i / 2 + 1] = pack(s[i + 2], s[i + 3]);
  }
  r.sum[0] += even0;
  r.sum[1] += even1;
}

// hide_after hides the columns of a row from `end` on, hide_before those left
// of `first`. `column` is the thread's own first column. Each element costs a
// compare of a constant with a register, and a select.
DEVICE void hide_after(float (&s)[TILE_KEYS / 2], int end0, int end1,
                       int column) {
  end0 -= column;
  end1 -= column;
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i++)
    if (i / 4 * 8 + (i & 1) >= (i & 2 ? end1 : end0)) s[i] = MINUS_INFINITY;
}
DEVICE void hide_before(float (&s)[TILE_KEYS / 2], int first0, int first1,
                        int column) {
  first0 -= column;
  first1 -= column;
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i++)
    if (i / 4 * 8 + (i & 1) < (i & 2 ? first1 : first0)) s[i] = MINUS_INFINITY;
}

DEVICE void scale_rows(float (&o)[VALUE_WIDTH / 2], float row0, float row1) {
#pragma unroll
  for (int i = 0; i < VALUE_WIDTH / 2; i += 4) {
    o[i] *= row0;
    o[i + 1] *= row0;
    o[i + 2] *= row1;
    o[i + 3] *= row1;
  }
}
