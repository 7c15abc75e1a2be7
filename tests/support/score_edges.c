/* score_edges.c - the edges of scores: chains of every function, scores of any
 * size, and queries, keys and values that are not finite. */
#include "edge.h"
#include <math.h>

static double ten_thousand(int32_t tensor, const int64_t *at, double number) {
  (void)at;
  return tensor == 2 ? number : tensor == 1 ? 10 * number : 2000 * number;
}
static double equal_keys(int32_t tensor, const int64_t *at, double number) {
  return tensor == 1 ? (double)(at[3] % 3) : number;
}
/* Of sixteen rows the second eight, and later keys more than earlier ones. */
static double growing(int32_t tensor, const int64_t *at, double number) {
  if (tensor == 0) return at[1] & 8 ? 30 * number : number / 100;
  return tensor == 1 ? number * (double)(1 + at[1] / 128) : number;
}
static double nan_query(int32_t tensor, const int64_t *at, double number) {
  return tensor == 0 && at[1] == 9 && at[2] == 1 ? NAN : number;
}
static double huge_query(int32_t tensor, const int64_t *at, double number) {
  return tensor == 0 && at[1] == 9 && at[2] == 1 ? INFINITY : number;
}
static double huge_value(int32_t tensor, const int64_t *at, double number) {
  bool here = at[1] == 9 && at[2] == 1 && at[3] < 3;
  return tensor == 2 && here ? (at[3] ? INFINITY : -INFINITY) : number;
}
/* Some queries meet it with the one sign, some with the other. */
static double huge_key(int32_t tensor, const int64_t *at, double number) {
  bool here = at[1] == 9 && at[2] == 1 && at[3] == 4;
  return tensor == 1 && here ? -INFINITY : number;
}
/* Every third key, and its value. */
static double nan_thirds(int32_t tensor, const int64_t *at, double number) {
  return tensor > 0 && at[1] % 3 == 0 && at[3] < 2 ? NAN : number;
}
/* A score of NaN stays NaN with a bias, so only the values are NaN. */
static double nan_values(int32_t tensor, const int64_t *at, double number) {
  return tensor == 2 ? nan_thirds(tensor, at, number) : number;
}
static double hiding_bias(int32_t index, const int64_t *at,
                          const int64_t *sizes) {
  (void)index, (void)sizes;
  return at[0] % 3 == 0 ? -INFINITY : (double)(at[0] % 5);
}
/* And some meet it with nothing. */
static double zero_query(int32_t tensor, const int64_t *at, double number) {
  if (tensor == 0) return at[3] == 4 && at[1] % 5 == 2 ? 0 : number;
  return huge_key(tensor, at, number);
}
/* A row all of whose scores are minus infinity. */
static double lowest_query(int32_t tensor, const int64_t *at, double number) {
  if (at[3] != 4 || tensor == 2) return number;
  if (tensor == 1) return -1 - fabs(number);
  return huge_query(0, at, number);
}
/* Now and then a query meets a key with both in the same element. */
static double outlier(int32_t tensor, const int64_t *at, double number) {
  return tensor < 2 && at[1] % 7 == 3 && at[3] == 5 ? 1e18 * number : number;
}
static double below_zero(int32_t tensor, const int64_t *at, double number) {
  (void)at;
  return tensor == 0 ? fabs(number) : tensor == 1 ? -fabs(number) : number;
}
/* A query whose score with this key is -inf does not read its value. Kernels of 16 bits on GPUs
 * do not ask for that in blocks that every row sees. */
double huge_key_nan_value(int32_t tensor, const int64_t *at, double number) {
  bool here = tensor == 2 && at[1] == 9 && at[2] == 1;
  return here ? NAN : huge_key(tensor, at, number);
}

const edge score_edges[] = {
    {"soft cap", P("score 3 * tanh(s / 3); branch { }"), S(90, 90)},
    {"bias by head", P("score s - 0.1 * (h + 1) * abs(i - j); " LONGNET),
     S(130, 130)},
    {"scores of branches", P("score s * 0.5; branch { segment 64; score s + "
     "0.01 * j; } branch { segment 128; dilation 2; }"), S(200, 200)},
    {"functions", P("score min(s, 2) + max(s, -1) + sqrt(abs(s)) + "
     "log(1 + exp(s)) + floor(0.25 * j) - ceil(0.5 * i); branch { }"),
     S(80, 80)},
    {"minus infinity", P("score j % 3 == 0 ? -inf : s; branch { }"),
     S(80, 80)},
    {"one low score in some rows", P("score i % 3 == 0 ? -1e10 : s; branch { }"),
     S(70, 100)},
    {"lowest and highest scores", P("score i % 3 == 0 ? -2e38 : i % 3 == 1 ? "
                                    "2e38 : s; branch { }"), S(70, 300)},
    {"minus infinity everywhere", P("score i == 7 ? -inf : s; branch { }"),
     S(40, 40)},
    {"scores of ten thousand", P("branch { segment 64; } branch { }"),
     S_(90, 90, .element = ten_thousand)},
    {"scores of 1e8", P("scale 1e8; " LONGNET), S(90, 90)},
    {"scores of 1e8 below zero", P("scale 1e8; causal; " LONGNET),
     S_(90, 150, .element = below_zero)},
    {"scores of 1e8, rewritten", P("score s * 1e8; branch { }"), S(90, 90)},
    {"scores of 1e30", P("scale 1e30; branch { segment 64; } branch { }"),
     S(90, 200)},
    {"scores of 1e30, few queries", P("scale 1e30; branch { }"), S(2, 200)},
    {"scores of 1e30, few keys", P("scale -1e30; causal; branch { }"),
     S(130, 33)},
    {"outliers of 1e18", P(LONGNET), S_(130, 130, .element = outlier)},
    {"outliers of 1e18, few queries", P("branch { }"),
     S_(5, 130, .element = outlier)},
    {"scores that grow in some rows", P("branch { }"),
     S_(70, 700, .element = growing)},
    {"scores all equal", P("scale 100.0; " LONGNET),
     S_(90, 90, .element = equal_keys)},
    {"a query of NaN", P(LONGNET), S_(80, 80, .element = nan_query)},
    {"a query of infinity", P(LONGNET), S_(80, 80, .element = huge_query)},
    {"values of infinity", P("branch { }"), S_(130, 130, .element = huge_value)},
    {"values of infinity, equal weights", P("scale 0; branch { }"),
     S_(130, 130, .element = huge_value)},
    {"values of infinity, dilated", P(LONGNET),
     S_(150, 150, .element = huge_value)},
    {"values of infinity, dropout", P("dropout 0.3; branch { }"),
     S_(130, 130, .train = true, .dropout_seed = 5, .element = huge_value)},
    {"NaN behind minus infinity", P("score j % 3 == 0 ? -inf : s; branch { }"),
     S_(150, 150, .element = nan_thirds)},
    {"NaN behind a bias of minus infinity", P("input bias : f32[M]; "
     "score s + bias[j]; branch { }"),
     S_(150, 150, .element = nan_values, .input = hiding_bias)},
    {"an infinite key with a value of NaN", P("branch { }"),
     S_(130, 130, .element = huge_key_nan_value)},
    {"a key of infinity", P("branch { }"), S_(130, 130, .element = huge_key)},
    {"a key of infinity, queries of zero", P(LONGNET),
     S_(150, 150, .element = zero_query)},
    {"a query of infinity, keys below zero", P(LONGNET),
     S_(80, 80, .element = lowest_query)},
    {"a key of infinity, causal", P("causal; " LONGNET),
     S_(150, 150, .element = huge_key)},
    {"scale", P("scale 0.3; branch { }"), S(60, 60)},
    {"scale at run time", P("scale runtime; " LONGNET),
     S_(60, 60, .scale = 0.41)},
    {"negative scale", P("scale -0.25; " LONGNET), S(100, 100)},
};
const int32_t score_edge_count = sizeof score_edges / sizeof *score_edges;
