/* gradient_cases.h - the patterns and sizes of test_gradients_cuda.c, each of
 * which is compared in every type. */
#ifndef DIL_TESTS_UNIT_CUDA_GRADIENT_CASES_H
#define DIL_TESTS_UNIT_CUDA_GRADIENT_CASES_H

#include <stdint.h>

#define P(sizes, body) "pattern p { " sizes "; dtype f32; " body " }"
#define SMALL          "heads 2; head_dim 32"

static const struct {
  const char *name, *text;
  int64_t batch, queries, keys;
} cases[] = {
    {"dense", P(SMALL, "branch { }"), 1, 70, 70},
    {"more keys", P(SMALL, "branch { }"), 2, 33, 130},
    {"more queries", P(SMALL, "branch { }"), 1, 130, 40},
    {"more queries, one branch twice",
     P(SMALL, "branch { window inf, 8; } branch { window inf, 8; }"), 1, 130,
     40},
    {"causal", P(SMALL, "causal; branch { }"), 1, 150, 150},
    {"window", P(SMALL, "window 20, 7; branch { }"), 1, 150, 170},
    {"causal window", P(SMALL, "causal; window 30, 0; branch { }"), 1, 140,
     100},
    {"segments", P(SMALL, "causal; branch { segment 48; }"), 1, 133, 150},
    {"dilated", P(SMALL, "branch { segment 64; dilation 3; }"), 1, 150, 150},
    {"late queries, dilated", P(SMALL, "branch { dilation 2; }"), 1, 150, 90},
    {"longnet",
     P("heads 4; head_dim 16", "causal; segments 32, 64, 128; "
                               "dilations 1, 2, 4;"),
     1, 150, 150},
    {"nested", P(SMALL, "segments 24, 48, 96; dilations 1, 2, 4;"), 2, 100,
     100},
    {"crossed",
     P(SMALL, "branch { segment 40; } branch { segment 56; dilation 2; "
              "}"),
     1, 130, 130},
    {"grouped", P("heads 6 kv 2; head_dim 16", "causal; branch { }"), 1, 90,
     90},
    {"grouped, few", P("heads 4 kv 1; head_dim 16", "branch { }"), 2, 3, 100},
    {"grouped longnet",
     P("heads 4 kv 2; head_dim 16", "causal; segments 32, 64; dilations 1, 2;"),
     1, 150, 150},
    {"values of another size",
     P("heads 2; head_dim 24 value 40", "causal; branch { }"), 1, 80, 80},
    {"odd sizes", P("heads 1; head_dim 13 value 7", "branch { }"), 1, 50, 61},
    {"wide heads", P("heads 1; head_dim 256", "causal; branch { }"), 1, 70, 70},
    {"masks", P(SMALL, "mask (i - j) % 3 == 0 || j < 5; branch { }"), 1, 100,
     120},
    {"windows before rows",
     P(SMALL, "causal; mask i - j < 9 || (i - j) % 4 == 0; branch { }"), 1, 100,
     120},
    {"ranges of rows and keys",
     P(SMALL, "mask abs(i - j) < 9 || i < 12 || j < 30; branch { }"), 1, 100,
     120},
    {"blocks", P(SMALL, "block 16; keep bi == bj || bj == 0; branch { }"), 1,
     130, 130},
    {"every phase", P(SMALL, "causal; branch { dilation 5; phase each; }"), 1,
     100, 120},
    {"every phase less one, in segments",
     P(SMALL, "branch { segment 42; dilation 4; phase each - 1; } branch { }"),
     1, 100, 90},
    {"union of dilations",
     P(SMALL, "combine union; branch { dilation 4; } branch { dilation 3; "
              "window 30, 9; } branch { dilation 6; phase each; }"),
     1, 100, 120},
    {"union",
     P(SMALL, "combine union; branch { window 10, 10; } branch { mask j "
              "< 20; } branch { dilation 4; }"),
     1, 110, 110},
    {"mean", P(SMALL, "combine mean; segments 32, 64; dilations 1, 2;"), 1, 100,
     100},
    {"sum", P(SMALL, "combine sum; branch { causal; } branch { dilation 2; }"),
     1, 90, 90},
    {"heads split",
     P("heads 4; head_dim 16", "segments 32, 64; dilations 1, 2; "
                               "heads split;"),
     1, 100, 100},
    {"dropout", P(SMALL, "dropout 0.2; causal; branch { }"), 1, 80, 80},
    {"sinks", P(SMALL, "causal; sink 0.5 - 0.01 * i; branch { }"), 1, 80, 80},
    {"sinks, mean",
     P(SMALL, "combine mean; sink 0.2; branch { sink 1.0; causal; "
              "} branch { dilation 2; }"),
     1, 70, 70},
    {"dropout, grouped",
     P("heads 4 kv 2; head_dim 16", "dropout 0.4; branch { }"), 2, 40, 70},
    {"dropout, grouped segments",
     P("heads 4 kv 2; head_dim 64",
       "dropout 0.3; causal; segments 32, 64; dilations 1, 2;"),
     2, 150, 150},
    {"dropout, late queries",
     P("heads 2; head_dim 40", "dropout 0.1; window 50, 9; branch { }"), 1, 90,
     170},
    {"narrow values", P("heads 2; head_dim 192 value 128", "branch { }"), 1, 70,
     100},
    {"wide values, dropout",
     P("heads 2 kv 1; head_dim 160 value 224",
       "dropout 0.2; causal; branch { dilation 2; }"),
     1, 90, 90},
    {"tanh", P(SMALL, "score 4.0 * tanh(s / 4.0); branch { }"), 1, 60, 90},
    {"bias and squares",
     P(SMALL, "causal; score s * s - 0.1 * (i - j); score "
              "max(s, 0.5 * s) + 1.0; branch { }"),
     1, 90, 90},
    {"scores of branches",
     P(SMALL,
       "branch { segment 32; score s + 0.5; } branch { dilation 2; score "
       "abs(s); }"),
     1, 100, 100},
    {"slopes of distances",
     P("heads 4 kv 2; head_dim 64",
       "causal; dropout 0.2; sink 0.3; phase kv; segments 64, 96; "
       "dilations 1, 2; score s - 0.1 * (h + 1) * abs(i - j) + 0.01 * i;"),
     2, 120, 150},
    {"slopes of keys, mean",
     P("heads 4 kv 2; head_dim 48",
       "combine mean; score s + 0.05 * j - 0.02 * h * i; "
       "branch { segment 64; } branch { window 30, 8; }"),
     1, 130, 110},
    {"steep slopes",
     P(SMALL, "score s - 100000.0 * abs(i - j); branch { }"), 1, 80, 90},
    {"caps, dropout",
     P("heads 4 kv 2; head_dim 64",
       "dropout 0.3; causal; score 3 * tanh(s / 3); branch { }"),
     2, 100, 130},
    {"caps of wide heads, detached",
     P("heads 2; head_dim 192 value 128",
       "gradient detached; score tanh(2 * s); branch { segment 64; } "
       "branch { window 20, 20; }"),
     1, 80, 90},
    {"scores that hide pairs",
     P(SMALL, "causal; score s + log(max(0.0, 1 - 0.05 * (i - j))); branch { }"),
     1, 100, 120},
    {"scores that hide pairs by their value",
     P(SMALL, "score log(max(0.0, s)); branch { }"), 1, 80, 100},
    {"masks of dilated segments, grouped",
     P("heads 4 kv 2; head_dim 64",
       "causal; phase kv; sink 0.2; branch { segment 96; dilation 2; "
       "mask (i + j + h) % 3 > 0; } branch { window 30, 0; }"),
     2, 150, 170},
    {"masks, dropout, caps",
     P("heads 2; head_dim 64",
       "dropout 0.2; mask i * j % 3 < 2; score 3 * tanh(s / 3); branch { }"),
     1, 180, 120},
    {"masks and derivatives of scores",
     P("heads 2; head_dim 128",
       "mask i * j % 3 < 2; score s * s - 0.1 * s * (i - j); branch { }"),
     1, 90, 140},
    {"blocks of 64",
     P("heads 4 kv 2; head_dim 64",
       "causal; block 64; keep hash(h, bi, bj) % 10 < 4 || bi == bj; branch { }"),
     2, 200, 270},
    {"blocks of 128, wide",
     P("heads 2; head_dim 128", "block 128; keep (bi + bj) % 3 < 2; branch { }"),
     1, 270, 300},
    {"rows and keys without pairs",
     P("heads 2; head_dim 64",
       "causal; mask i % 100 < 60 && j % 100 < 50; branch { }"),
     1, 250, 250},
    {"blocks without pairs",
     P("heads 2; head_dim 64",
       "block 64; keep bi % 3 == 0 && bj % 2 == 0; branch { }"),
     1, 300, 300},
    {"masks of every phase, more queries",
     P("heads 2; head_dim 64",
       "causal; branch { dilation 4; phase each; mask (i + j) % 3 > 0; }"),
     1, 260, 150},
    {"union of windows and masks",
     P("heads 2; head_dim 64",
       "combine union; branch { segment 64; } branch { dilation 2; "
       "window 50, 9; } branch { mask i * j % 5 == 0; }"),
     1, 140, 200},
    {"negative scale", P(SMALL, "scale -0.3; branch { }"), 1, 60, 60},
    {"heads split, mean",
     P("heads 4; head_dim 16", "combine mean; segments 32, 64; dilations 1, 2; "
                               "heads split;"),
     1, 100, 100},
    /* gradients of inputs */
    {"temperature",
     P(SMALL, "causal; input t : f32[H] gradient; score s * t[h]; branch { }"),
     2, 130, 150},
    {"distances",
     P(SMALL, "causal; input r : f32[H, 40] gradient; "
              "score s + r[h, min(i - j, 50)]; branch { }"),
     1, 150, 150},
    {"one element a pair",
     P(SMALL, "input z : f32[B, H, M, M] gradient; score s + z[b, h, i, j]; "
              "branch { segment 32; } branch { dilation 2; }"),
     2, 70, 90},
    {"a bias of all heads",
     P(SMALL, "causal; input z : f32[N, M] gradient; score s + z[row, j]; "
              "branch { }"),
     2, 90, 130},
    {"a matrix and its transpose",
     P(SMALL, "input z : f32[M, M] gradient; score s + z[i, j] - 0.5 * z[j, i]; "
              "branch { }"),
     1, 90, 90},
    {"rows of all heads",
     P("heads 6 kv 2; head_dim 16", "input t : f32[M] gradient; "
                                    "score s * t[i]; branch { }"),
     2, 9, 60},
    {"keys, 16 bits",
     P(SMALL, "input t : bf16[M] gradient; input u : f16[2, H] gradient; "
              "score tanh(s * t[j]) + u[j % 3, h]; branch { }"),
     1, 80, 90},
    /* The index runs from -2 on, and past the table. */
    {"a table read at an index of keys, and outside",
     P(SMALL, "input at : i32[M]; input t : f32[H, 2] gradient; "
              "score s + t[h, at[j] * 3 - 2]; branch { }"),
     1, 50, 70},
    {"keys of a list",
     P(SMALL, "input cols : i32[B, H, *]; causal; branch { window 9, 0; } "
              "branch { keys cols; mask i - j > 9; }"),
     2, 50, 70},
    {"keys of a list alone",
     P("heads 4 kv 2; head_dim 16",
       "input cols : i32[B, H, *]; causal; sink 0.2; "
       "branch { keys cols; window 60, 0; mask (i + j) % 3 != 0; }"),
     2, 90, 140},
    {"keys of a list of all heads, in a window",
     P("heads 4 kv 2; head_dim 16",
       "input cols : i32[*]; branch { keys cols; window 30, 50; }"),
     2, 10, 300},
    {"many lists of blocks",
     P("heads 4 kv 2; head_dim 16",
       "causal; block 4, 2; input rows : i32[H, nbq + 1]; "
       "input cols : i32[H, *]; keep from rows, cols; branch { }"),
     2, 150, 150},
    {"lists of single rows",
     P(SMALL, "block 1, 8; input rows : i32[B, 2, nbq + 1]; "
              "input cols : i32[B, 2, *]; keep from rows, cols; branch { }"),
     2, 90, 140},
    {"chosen blocks",
     P("heads 4 kv 2; head_dim 16",
       "causal; block 16; keep top 3 by mean; branch { }"),
     2, 150, 150},
    {"blocks chosen by mass, heads together",
     P("heads 4 kv 2; head_dim 24", "block 8; keep mass 0.6, 5 by mean each; "
                                    "shared kv; branch { }"),
     1, 90, 130},
    {"single rows choose by a gate, with dropout and sinks",
     P("heads 4 kv 2; head_dim 16",
       "input gate : f32[B, H, nbq, nb]; causal; dropout 0.2; sink 0.3; "
       "block 1, 8; keep top 4 by gate; branch { }"),
     2, 70, 100},
    {"single rows choose long blocks, which tiles do not meet",
     P("heads 2; head_dim 64",
       "causal; block 1, 40; keep top 2 by mean each; branch { }"),
     1, 110, 150},
    {"tall blocks choose short ones",
     P("heads 2; head_dim 64", "block 36, 8; keep top 7 by mean; branch { }"),
     1, 130, 150},
    {"chosen blocks beside a window",
     P(SMALL, "causal; block 16; input t : f32[H] gradient; score s * t[h]; "
              "branch { window 20, 0; } branch { keep top 2 by mean; }"),
     2, 110, 130},
    {"blocks of two choices, detached",
     P("heads 4; head_dim 16",
       "gradient detached; block 8; branch { heads 0..2; keep top 3 by mean; } "
       "branch { causal; keep mass 0.5, 4 by mean each; }"),
     1, 100, 100},
    {"chosen blocks of 64, caps",
     P("heads 4 kv 2; head_dim 64", "causal; block 64; score 3 * tanh(s / 3); "
                                    "keep top 2 by mean; branch { }"),
     2, 270, 270},
    {"blocks of 128 chosen by mass, wide",
     P("heads 2; head_dim 128",
       "block 128; keep mass 0.7, 2 by mean each; branch { }"),
     1, 140, 300},
    {"tables of rows and keys by an index",
     P("heads 4 kv 2; head_dim 16",
       "input doc : i32[B, M]; input t : f32[2, 3] gradient; "
       "score s * (1 + t[doc[b, i], doc[b, j]]); branch { }"),
     2, 40, 60},
    {"inputs before and after",
     P(SMALL, "input t : f32[9] gradient; score s * t[4] + t[j]; "
              "score s + t[0] * s * s; branch { }"),
     1, 60, 70},
    {"inputs of branches",
     P(SMALL, "input t : f32[H] gradient; causal; branch { segment 32; score "
              "s * t[h]; } branch { dilation 2; score s - t[h] * i; }"),
     1, 100, 100},
    {"inputs, shared keys",
     P(SMALL, "input t : f32[H, M] gradient; segments 24, 48, 96; dilations 1, "
              "2, 4; score s * t[h, j];"),
     1, 100, 100},
    {"inputs, union",
     P(SMALL,
       "combine union; input t : f32[H] gradient; score s * t[h]; branch "
       "{ window 10, 10; } branch { mask j < 20; } branch { dilation 4; "
       "}"),
     1, 110, 110},
    {"inputs, sum",
     P(SMALL,
       "combine sum; input t : f32[M] gradient; score s + t[i]; branch { "
       "causal; } branch { dilation 2; }"),
     1, 90, 90},
    {"inputs, dropout",
     P(SMALL, "dropout 0.3; input t : f32[H] gradient; score s * t[h]; branch "
              "{ }"),
     1, 60, 60},
    {"inputs too many for copies",
     P(SMALL, "input t : f32[2200000] gradient; "
              "score s + t[hash(h, i / 2, j / 2) % 2200000]; branch { }"),
     1, 70, 70},
    {"learned sinks",
     P("heads 4 kv 2; head_dim 16", "causal; window 20, 0; input z : f32[H] "
                                    "gradient; sink z[h]; branch { }"),
     2, 90, 90},
    {"sinks of branches",
     P(SMALL, "input z : bf16[2] gradient; input y : f32[M] gradient; sink "
              "z[0]; branch { segment 32; sink z[1] - y[i]; } branch { "
              "dilation 2; sink 2.0 * z[1]; }"),
     2, 90, 90},
    {"learned sinks, mean",
     P("heads 4; head_dim 16", "combine mean; input z : f32[H] gradient; input "
                               "y : f32[H] gradient; sink z[h]; branch { sink "
                               "y[h]; causal; } branch { dilation 2; score s * "
                               "z[h]; heads 1..2; }"),
     1, 70, 70},
    /* detached */
    {"detached",
     P(SMALL, "gradient detached; causal; segments 32, 64; dilations 1, 2;"), 1,
     100, 100},
    {"detached, grouped",
     P("heads 4 kv 2; head_dim 16", "gradient detached; branch { segment 40; } "
                                    "branch { dilation 3; mask j > 5; }"),
     2, 90, 90},
    {"detached sinks",
     P("heads 4; head_dim 16",
       "gradient detached; input z : f32[H] gradient; "
       "sink z[h]; branch { segment 32; sink 2.0 * "
       "z[0]; score s * z[h]; } branch { dilation 2; "
       "heads 1..2; } branch { causal; heads 2..3; sink "
       "-z[h] * 0.01 * i; }"),
     1, 100, 100},
    {"sum, some heads in some passes",
     P("heads 4; head_dim 16", "combine sum; branch { heads 0..1; segment 40; } "
                               "branch { heads 1..3; window 30, 7; }"),
     2, 130, 150},
    {"detached",
     P(SMALL, "gradient detached; phase block; segments 24, 48, 96; dilations "
              "1, 2, 4;"),
     2, 130, 130},
    {"detached, sinks of branches",
     P(SMALL, "gradient detached; sink 0.1; branch { segment 48; sink 1.5; } "
              "branch { segment 96; dilation 2; sink 0.02 * i; }"),
     2, 130, 130},
    {"detached, sinks of late queries",
     P(SMALL, "gradient detached; causal; branch { segment 48; sink 0.5; } "
              "branch { dilation 2; }"),
     1, 130, 90},
};
enum { CASES = sizeof cases / sizeof *cases };

#endif
