// hopper_softmax.cuh - the running softmax over score fragments.
//
// In: scores of 64 queries by TILE_KEYS keys in the fragment layout of
// hopper_mma.cuh; a thread holds two rows, `lane / 4` and that + 8. Out:
// weights in place, and the rows' state advanced. Units of log2 throughout.
#pragma once

// The state of a thread's two rows. The sum is the thread's own share.
struct row_state {
  float peak[2]; // largest score so far, or a little less; LOWEST at first
  float sum[2];
  bool moved;      // some row of the warp has a factor other than 1
  float factor[2]; // if so: what earlier sums are to be multiplied with
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
#endif
// Finite, so that differences of peaks are; scores that expressions make may be
// low.
#define LOWEST (SCORED ? -2.3e38f : -1e30f)

DEVICE void state_clear(row_state &r) {
  r.peak[0] = r.peak[1] = LOWEST;
  r.sum[0] = r.sum[1] = 0;
}

// Over the four threads of a row.
DEVICE float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
DEVICE float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// A row keeps its peak until a score exceeds it by `slack`, 2^8 in weights: they
// stay below 2^8 times the multiplicity, and few blocks need any of this. Each
// row decides for itself; the warp only votes on whether one of them must.
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

// Two chains of maxima a row: a single one stalls on latency. A thread votes on
// the scores that it holds: the four of a row need not agree first.
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

// What a row's scores are shifted by, and the weight of one. Where expressions
// make scores, a product that is not rounded as the peak's was may lie far from
// it: each step is rounded by itself.
DEVICE float weight_shift(float peak, float scale, float bias) {
  return SCORED ? -__fmul_rn(peak, scale)
                : fminf(fmaf(peak, -scale, bias), -LOWEST);
}
DEVICE float weight_of(float s, float scale, float from, float bias) {
  return exp2_fast(SCORED ? __fmul_rn(s, scale) + from + bias
                          : fmaf(s, scale, from));
}

// Scores to weights, packed as they come: that hides behind the exponentials.
// Two chains of sums a row. One without any key so far has hidden scores alone,
// and 2^-inf is 0; what is added to them stays finite.
DEVICE void weigh(float (&s)[TILE_KEYS / 2], u32 (&p)[TILE_KEYS / 4],
                  row_state &r, float scale, float bias) {
  float from0 = weight_shift(r.peak[0], scale, bias);
  float from1 = weight_shift(r.peak[1], scale, bias);
  float even0 = 0, even1 = 0;
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i += 4) {
    s[i] = weight_of(s[i], scale, from0, bias);
    s[i + 1] = weight_of(s[i + 1], scale, from0, bias);
    s[i + 2] = weight_of(s[i + 2], scale, from1, bias);
    s[i + 3] = weight_of(s[i + 3], scale, from1, bias);
    if (i & 4) {
      r.sum[0] += s[i] + s[i + 1];
      r.sum[1] += s[i + 2] + s[i + 3];
    } else {
      even0 += s[i] + s[i + 1];
      even1 += s[i + 2] + s[i + 3];
    }
    p[i / 2] = pack(s[i], s[i + 1]);
    p[i / 2 + 1] = pack(s[i + 2], s[i + 3]);
  }
  r.sum[0] += even0;
  r.sum[1] += even1;
}

// Hides the columns of a row from `end` on, and those before `first`; `column`
// is the thread's own first one. Constants against two registers: a compare
// and a select an element.
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
