// hopper_softmax.cuh - the online softmax (arXiv:1805.02867) over score
// fragments.
//
// In: scores of 64 queries by TILE_KEYS keys, in the fragment layout of
// hopper_mma.cuh. A thread holds two rows, `lane / 4` and `lane / 4 + 8`. Out:
// weights, and the rows' state advanced. Exponents are in units of log2.
#pragma once

// The form of the only score chain; see hopper_score.cuh. What else a form
// defines is in compiler/codegen/gpu/emit/emit.h.
#define SCORE_ANY 1
#define SCORE_LINEAR 2
#define SCORE_CAPPED 3
#define DISTANCE_KEY 1   // j
#define DISTANCE_AWAY 2  // j - i
#define DISTANCE_SIZE 3  // |j - i|
#ifndef SCORE_FORM
#define SCORE_FORM 0     // 0: no scores
#endif
#if SCORE_FORM != SCORE_LINEAR
#define SCORE_SLOPES 0
#define SCORE_ROWS 0
#endif
// BASES: blocks leave a part of a row's scores to the row.
#define BASES (SCORE_SLOPES && SCORE_DISTANCE != DISTANCE_SIZE)
#define LOG2_E 1.44269504088896340736f
#if SCORE_FORM == SCORE_CAPPED
#define CAP_EXPONENT (SCORE_CAP * LOG2_E)
#else
#define CAP_EXPONENT 0.0f
#endif
#ifndef SCORED
#define SCORED 0
#define HIDING 0
#define SINKS 0
#define MULTIPLICITY 1
#endif
// Where a cap bounds all scores, every row has the same peak, 8 below the cap,
// and none is looked for. Weights then reach from 2^8 down to 2^-100 at least,
// for which f16 has no room.
#define STEADY                                                                 \
  (SCORE_FORM == SCORE_CAPPED && ELEMENT == 1 && 2 * CAP_EXPONENT - 8 <= 100)
#define STEADY_PEAK (CAP_EXPONENT - 8)
// The state of a thread's two rows. `sum` covers only the thread's own columns.
struct row_state {
  float peak[2]; // largest score so far, or up to `slack` less; LOWEST at first
  float sum[2];
  bool moved;      // some row of the warp raised its peak in this block
  float factor[2]; // if so, the factor for earlier sums
#if BASES
  float base[2];   // what the scores of the block still lack
#endif
};
// The scale and slack of scores; capped ones are exponents already.
DEVICE float scale_of(const hopper_launch &run) {
  return SCORE_FORM == SCORE_CAPPED ? 1.0f : run.scale;
}
DEVICE float slack_of(const hopper_launch &run) {
  return SCORE_FORM == SCORE_CAPPED ? 8.0f : run.slack;
}
// x and what scores of row `row` of the thread lack.
DEVICE float based(float x, const row_state &r, int row) {
#if BASES
  return x + r.base[row];
#else
  return x;
#endif
}
// The negative peak of a row, for scores that lack its base.
DEVICE float below_peak(const row_state &r, int row) {
#if BASES
  return r.base[row] - r.peak[row];
#else
  return -r.peak[row];
#endif
}

// The addresses of the random words of a thread's rows and columns; see
// hopper_drop.cuh. Only kernels with dropout use them.
struct drop_words {
  u32 rows, keys;
};
// Returns where a key of a block has its word. A thread reads those of keys
// 16 n + 2 c, + 1, + 8 and + 9 at once.
DEVICE u32 key_word_at(u32 key) {
  return (key / 16 * 16 + key % 8 / 2 * 4 + key % 16 / 8 * 2 + key % 2) * 4;
}

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
  r.moved = false;
  if (STEADY) return;
  float a0 = s[0], a1 = s[2], b0 = s[4], b1 = s[6];
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i += 8) {
    a0 = fmaxf(a0, fmaxf(s[i], s[i + 1]));
    a1 = fmaxf(a1, fmaxf(s[i + 2], s[i + 3]));
    b0 = fmaxf(b0, fmaxf(s[i + 4], s[i + 5]));
    b1 = fmaxf(b1, fmaxf(s[i + 6], s[i + 7]));
  }
  a0 = based(fmaxf(a0, b0), r, 0);
  a1 = based(fmaxf(a1, b1), r, 1);
  r.moved = __any_sync(~0u, a0 > r.peak[0] + slack || a1 > r.peak[1] + slack);
  if (r.moved) raise_peaks(r, a0, a1, scale, slack);
}

// Where the shift of row `row` is large, subtracts the peak from the scores
// themselves, and the bias alone is left of the shift.
template <int row>
DEVICE void subtract_peak(float (&s)[TILE_KEYS / 2], float below, float bias,
                          float &shift) {
  if (fabsf(shift) < LARGE_SHIFT) return;
  shift = bias;
#pragma unroll
  for (int i = 2 * row; i < TILE_KEYS / 2; i += 4) {
    s[i] += below;
    s[i + 1] += below;
  }
}
DEVICE float weight_of(float s, float scale, float shift) {
  if (STEADY) return exp2_fast(MULTIPLICITY ? s + shift : s);
  return exp2_fast(fmaf(s, scale, shift));
}

// Multiplies the dropped weights among elements i to i + 7 by `by`: 0 drops them
// (the factor of the others is in the launch's `weight`), and -1 marks them. `columns`
// are the words of the thread's four columns. Returns a number that follows from all
// of this. A product costs less than a choice, which would keep the units of
// comparisons busy.
DEVICE u32 scale_dropped(float (&s)[TILE_KEYS / 2], int i, u32 row0, u32 row1,
                         int4 columns, float by) {
  u32 last = 0;
#if DROPS
  u32 column[4] = {(u32)columns.x, (u32)columns.y, (u32)columns.z,
                   (u32)columns.w};
#pragma unroll
  for (int x = 0; x < 8; x++) {
    last = dil_drop_number(x & 2 ? row1 : row0, column[x / 4 * 2 + x % 2]);
    asm("{.reg .pred p;\nsetp.lt.u32 p, %1, %2;\n"
        "@p mul.f32 %0, %0, %3;}"
        : "+f"(s[i + x])
        : "r"(last), "n"(DROPOUT), "f"(by));
  }
#endif
  return last;
}

// The exponents' shifts of a thread's rows, and the sums of its weights: each
// row has two chains.
struct row_weights {
  float shift[2], odd[2], even[2];
};

// Turns elements i to i + 7 into weights.
DEVICE void weigh_some(float (&s)[TILE_KEYS / 2], int i, float scale,
                       row_weights &w) {
#pragma unroll
  for (int n = i; n < i + 8; n += 4) {
    float(&sum)[2] = n & 4 ? w.odd : w.even;
#pragma unroll
    for (int x = n; x < n + 4; x++)
      s[x] = weight_of(s[x], scale, w.shift[x >> 1 & 1]);
    sum[0] += s[n] + s[n + 1];
    sum[1] += s[n + 2] + s[n + 3];
  }
}
DEVICE void pack_some(const float (&s)[TILE_KEYS / 2],
                      u32 (&p)[TILE_KEYS / 4], int i) {
#pragma unroll
  for (int n = i; n < i + 8; n += 2) p[n / 2] = pack(s[n], s[n + 1]);
}

// Turns scores into weights, of which dropout takes some. The random numbers of
// some pairs are made while the next are exponentiated. ptxas would put all of
// the one behind all of the other; so the exponents after the next follow from
// the numbers, by `zero` of the launch.
DEVICE void weigh_dropping(float (&s)[TILE_KEYS / 2], u32 (&p)[TILE_KEYS / 4],
                           row_weights &w, float scale, u32 zero,
                           const drop_words &words) {
  u32 row0 = shared_word(words.rows), row1 = shared_word(words.rows + 32);
#pragma unroll
  for (int i = 0; i <= TILE_KEYS / 2; i += 8) {
    if (i < TILE_KEYS / 2) weigh_some(s, i, scale, w);
    if (i == 0) continue;
    int4 keys = shared_load(words.keys + (i - 8) * 8);
    u32 none = scale_dropped(s, i - 8, row0, row1, keys, 0) & zero;
#pragma unroll
    for (int x = 0; x < 2; x++)
      w.shift[x] = __uint_as_float(__float_as_uint(w.shift[x]) | none);
    pack_some(s, p, i - 8);
  }
}

// Turns scores into weights. Packing them in the same loop hides behind the
// exponentials.
DEVICE void weigh(float (&s)[TILE_KEYS / 2], u32 (&p)[TILE_KEYS / 4],
                  row_state &r, float scale, float bias, u32 zero,
                  const drop_words &words) {
  const float below[2] = {STEADY ? 0 : below_peak(r, 0),
                          STEADY ? 0 : below_peak(r, 1)};
  row_weights w = {{fmaf(below[0], scale, bias), fmaf(below[1], scale, bias)},
                   {r.sum[0], r.sum[1]},
                   {0, 0}};
  bool small = fmaxf(fabsf(w.shift[0]), fabsf(w.shift[1])) < LARGE_SHIFT;
  // The warp votes, so that one branch covers both rows. A row without any key
  // so far has a large shift and only hidden scores, which stay -inf.
  if (!STEADY && __any_sync(~0u, !small)) {
    subtract_peak<0>(s, below[0], bias, w.shift[0]);
    subtract_peak<1>(s, below[1], bias, w.shift[1]);
  }
#if DROPS
  weigh_dropping(s, p, w, scale, zero, words);
#else
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i += 8) {
    weigh_some(s, i, scale, w);
    pack_some(s, p, i);
  }
#endif
  r.sum[0] = w.odd[0] + w.even[0];
  r.sum[1] = w.odd[1] + w.even[1];
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

// The thread's columns of a row left of `end`, which counts from the thread's
// own first column: bit 2 g + e is column 8 g + e.
DEVICE u32 columns_below(int end) {
  end = max(0, min(end, TILE_KEYS));
  int count = end / 8 * 2 + min(end % 8, 2);
  return count < 32 ? (1u << count) - 1 : ~0u;
}

// Hides the pairs without a bit. Several bits become predicates at once, so
// that windows with two bounds cost little more than those with one.
DEVICE void hide_columns(float (&s)[TILE_KEYS / 2], const u32 (&kept)[2]) {
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i++)
    if (!(kept[i >> 1 & 1] >> (i / 4 * 2 + (i & 1)) & 1)) s[i] = MINUS_INFINITY;
}

DEVICE void scale_rows(float (&o)[VALUE_COLUMNS / 2], float row0, float row1) {
#pragma unroll
  for (int i = 0; i < VALUE_COLUMNS / 2; i += 4) {
    o[i] *= row0;
    o[i + 1] *= row0;
    o[i + 2] *= row1;
    o[i + 3] *= row1;
  }
}
