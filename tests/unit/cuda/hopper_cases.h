/* hopper_cases.h - the patterns and calls of test_hopper.c: those that the Hopper
 * kernels take, those with dropout, and those that they leave. */
#ifndef DIL_TESTS_UNIT_CUDA_HOPPER_CASES_H
#define DIL_TESTS_UNIT_CUDA_HOPPER_CASES_H

#include "document_cases.h"
#include "packed_shapes.h"

#define BF16(d) "heads 2; head_dim " #d "; dtype bf16;"
#define F16(d) "heads 2; head_dim " #d "; dtype f16;"
#define LISTED "input rows : i32"
#define COLUMNS "input cols : i32"
#define LONG "segments 512, 1024, 2048; dilations 1, 2, 4;"

static const gpu_case cases[] = {
    /* head sizes */
    {P(BF16(256), "branch { segment 600; }"), 0, SHAPE(1, 1300, 1300, 0)},
    {P(BF16(256), "causal; " THREE), 0, SHAPE(1, 1300, 1300, 0)},
    {P(F16(256), "causal; branch { }"), 0, SHAPE(2, 401, 700, 1)},
    {P(BF16(192), THREE), 0, SHAPE(1, 1500, 1500, 0)},
    {P(F16(192), "causal; branch { window 300, 0; }"), 0,
     SHAPE(1, 1000, 1000, 1)},
    {P("heads 4 kv 2; head_dim 192 value 128; dtype bf16;", "causal; " THREE),
     0, SHAPE(1, 1100, 1100, 0)},
    {P("heads 2; head_dim 64 value 256; dtype bf16;", "branch { }"), 0,
     SHAPE(1, 300, 777, 0)},
    {P(BF16(160), "causal; branch { }"), 0, SHAPE(1, 500, 500, 0)},
    {P(BF16(224), THREE), 0, SHAPE(1, 1100, 1100, 0)},
    {P(BF16(200), "causal; branch { segment 500; dilation 3; }"), 0,
     SHAPE(1, 1100, 1100, 1)},
    {P(F16(104), "causal; branch { }"), 0, SHAPE(1, 600, 600, 0)},
    {P(BF16(40), "causal; " THREE), 0, SHAPE(1, 1100, 1100, 0)},
    {P(F16(8), "branch { segment 512; }"), 0, SHAPE(1, 1100, 1100, 0)},
    /* rows that are guests in another class's tiles, which are many */
    {P(BF16(64), LONG), 0, SHAPE(3, 3000, 3000, 0)},
    {P(BF16(64), "causal; " LONG), 0, SHAPE(3, 2900, 3100, 1)},
    {P("heads 4 kv 2; head_dim 32; dtype f16;", "causal; " LONG), 0,
     SHAPE(2, 2500, 2500, 0)},
    {P(BF16(64), "combine union; " LONG), 0, SHAPE(3, 3000, 2900, 1)},
    {P(BF16(64), "causal; " LONG), 0, RAGGED(3000, 3000, 0)},
    {P(BF16(64), "causal; branch { segment 512; } "
                 "branch { segment 1024; dilation 2; } "
                 "branch { segment 2048; dilation 4; } "
                 "branch { dilation 150; }"), 0, SHAPE(3, 3000, 3000, 0)},
    /* chains */
    {P(BF16(64), "causal; " THREE), FORCE_CHAIN, SHAPE(1, 1300, 1300, 0)},
    {P(BF16(64), THREE), FORCE_CHAIN, SHAPE(2, 1100, 1300, 1)},
    {P(F16(128), "causal; " THREE), FORCE_CHAIN, SHAPE(1, 1300, 1300, 0)},
    {P(BF16(192), THREE), FORCE_CHAIN, SHAPE(1, 1100, 1100, 0)},
    {P(BF16(256), "causal; " THREE), FORCE_CHAIN, SHAPE(1, 1100, 1100, 0)},
    {P(BF16(64), "combine mean; " THREE), 0, SHAPE(1, 1300, 1300, 0)},
    {P(F16(64), "combine sum; causal; " THREE), 0, SHAPE(1, 1300, 1300, 0)},
    {P("heads 6; head_dim 64; dtype bf16;",
       "branch { segment 512; heads 0..3; } "
       "branch { segment 1024; dilation 2; heads 2..5; }"),
     FORCE_CHAIN, SHAPE(1, 1300, 1300, 0)},
    /* every row of the second pass is empty before: no branch has r = 1 */
    {P(BF16(64), "segments 512, 1024; dilations 4, 8;"), FORCE_CHAIN,
     SHAPE(1, 2100, 2100, 0)},
    /* segments that are not nested */
    {P(BF16(64), CROSSING), 0, SHAPE(1, 2500, 2500, 0)},
    {P(BF16(64), "causal; " CROSSING), 0, SHAPE(1, 2500, 2500, 1)},
    {P(F16(64), CROSSING), FORCE_FUSE | FORCE_MULTISET, SHAPE(2, 1500, 1999, 0)},
    {P(BF16(64), CROSSING), FORCE_CHAIN, SHAPE(1, 2500, 2500, 0)},
    {P(BF16(64), "combine union; " CROSSING), 0, SHAPE(1, 2500, 2500, 0)},
    {P(BF16(128), "combine union; causal; " CROSSING), 0,
     SHAPE(1, 1700, 1700, 0)},
    {P(BF16(256), "segments 512, 750; dilations 1, 2;"), 0,
     SHAPE(1, 1300, 1300, 0)},
    {P("heads 4 kv 2; head_dim 64; dtype bf16;",
       "phase kv; branch { segment 1100; } "
       "branch { segment 1300; dilation 3; } branch { dilation 5; }"),
     0, SHAPE(1, 1900, 1900, 0)},
    {P(BF16(64), CROSSING " mask (i / 64 + j / 64) % 3 != 0;"), 0,
     SHAPE(1, 1900, 1900, 0)},
    /* dilations that do not divide their segments, and large ones */
    {P(BF16(64), "segments 256, 512, 1024, 2048, 4096; "
                 "dilations 1, 2, 4, 6, 12;"), FORCE_CHAIN,
     SHAPE(1, 5000, 5000, 0)},
    {P(BF16(64), "causal; branch { segment 700; dilation 9; }"), 0,
     SHAPE(1, 2500, 2500, 0)},
    {P(BF16(128), "branch { segment 650; dilation 7; }"), 0,
     SHAPE(2, 2500, 2400, 1)},
    {P(BF16(64), "branch { segment 250; dilation 7; }"), 0,
     SHAPE(1, 1000, 1100, 0)},
    {P(BF16(64), "branch { segment 9000; dilation 100; }"), 0,
     SHAPE(1, 9500, 9500, 0)},
    {P(F16(40), "branch { segment 9000; dilation 129; }"), 0,
     SHAPE(2, 9500, 9500, 1)},
    {P(BF16(64), "branch { segment 512; } branch { dilation 150; }"), 0,
     SHAPE(1, 6000, 6000, 0)},
    /* every phase: alone and beside windows, shifted, in segments, with few
     * rows of a residue, masks, scores, rows before position 0, lengths */
    {P(BF16(64), "causal; mask i - j < 50 || (i - j) % 8 == 0; branch { }"), 0,
     SHAPE(1, 700, 700, 0)},
    {P(F16(32), "causal; mask i - j < 20 || (i - j) % 64 == 0; branch { }"), 0,
     SHAPE(1, 500, 300, 0)},
    {P("heads 6 kv 2; head_dim 64; dtype bf16;",
       "causal; branch { dilation 3; phase each; }"), 0, SHAPE(2, 901, 1001, 1)},
    {P(F16(128), "branch { dilation 100; phase each - 37; }"), 0,
     SHAPE(1, 333, 1150, 0)},
    {P(BF16(64), "causal; branch { segment 611; dilation 7; phase each - 3; "
                 "window 300, 0; } branch { window 9, 0; }"), 0,
     SHAPE(2, 1300, 1300, 1)},
    {P(BF16(64), "branch { dilation 31; phase each; mask j % 5 != i % 3; }"), 0,
     SHAPE(1, 700, 655, 0)},
    {P(BF16(64), "causal; branch { dilation 40; phase each - 1; "
                 "score s - 0.1 * (i - j); }"), 0, SHAPE(1, 500, 700, 0)},
    {P(BF16(64), "combine mean; branch { dilation 5; phase each; } "
                 "branch { segment 512; }"), 0, SHAPE(1, 777, 777, 0)},
    {P(BF16(256), "causal; branch { dilation 20; phase each; heads 1..1; } "
                  "branch { window 60, 0; }"), 0, SHAPE(1, 700, 700, 1)},
    {P(BF16(64), "branch { dilation 9; phase each - 2; window 99, 40; }"), 0,
     SHAPE(1, 1500, 700, 0)},
    {P("heads 4 kv 2; head_dim 64; dtype bf16;",
       "causal; branch { dilation 6; phase each; }"), 0, RAGGED(1100, 1300, 0)},
    {P(F16(64), "causal; mask i - j < 30 || (i - j) % 50 == 7; branch { }"), 0,
     RAGGED(1100, 1100, 1)},
    {P(BF16(64), "causal; branch { dilation 4; phase each - 3; }"), 0,
     BAD(2, 500, 700, 1)},
    /* rows before position 0 */
    {P(BF16(64), THREE), 0, SHAPE(1, 1500, 1100, 0)},
    {P(BF16(64), "causal; " THREE), FORCE_CHAIN, SHAPE(2, 1500, 1100, 1)},
    {P(BF16(64), "branch { dilation 3; }"), 0, SHAPE(1, 1500, 700, 0)},
    /* batch rows of fewer keys: none, one, all, fewer than queries */
    {P(BF16(64), "causal; branch { }"), 0, RAGGED(1100, 1100, 0)},
    {P(F16(64), "branch { }"), 0, RAGGED(800, 1100, 1)},
    {P(BF16(32), "causal; branch { window 130, 0; }"), 0,
     RAGGED(1100, 1300, 0)},
    {P(BF16(64), "branch { window 99, 40; dilation 3; }"), 0,
     RAGGED(300, 1100, 0)},
    {P("heads 4 kv 2; head_dim 128; dtype bf16;", "causal; " THREE), 0,
     RAGGED(1100, 1100, 0)},
    {P(F16(64), THREE), FORCE_CHAIN, RAGGED(900, 1100, 1)},
    {P(BF16(64), "combine mean; " THREE), 0, RAGGED(1100, 1200, 0)},
    {P(BF16(64), "causal; " CROSSING), FORCE_CHAIN, RAGGED(1100, 1100, 0)},
    {P(BF16(64), "branch { segment 250; dilation 7; }"), 0,
     RAGGED(1000, 1100, 0)},
    {P(BF16(64), "segments 256, 512; dilations 2, 4;"), FORCE_CHAIN,
     RAGGED(1000, 1100, 0)},
    {P(BF16(64), "causal; mask j % 5 > 0; branch { segment 512; dilation 4; }"),
     0, RAGGED(1100, 1200, 1)},
    {P(BF16(40), "branch { segment 9000; dilation 100; }"), 0,
     RAGGED(1100, 1100, 1)},
    {P("heads 4 kv 1; head_dim 192 value 128; dtype f16;", "causal; " THREE),
     0, RAGGED(1100, 1100, 0)},
    {P(BF16(256), "causal; branch { segment 600; }"), 0,
     RAGGED(1100, 1100, 0)},
    {P("heads 2; head_dim 192 value 256; dtype bf16;", "branch { }"), 0,
     RAGGED(200, 1100, 0)},
    {P(BF16(64), "causal; mask (M - i + j) % 3 != 1; branch { }"), 0,
     RAGGED(1100, 1100, 0)},
    {P(F16(64), "input doc : i32[B, M]; mask doc[b, i] == doc[b, j]; "
                "score s * 0.5 - j % M % 7; " THREE), 0,
     RAGGED(1000, 1100, 1)},
    {P(BF16(64), "causal; branch { segment 100; }"), 0,
     {.batch = 3, .queries = 300, .keys = 300, .seed = 7,
      .lengths = nearest_lengths, .told = outside_lengths}},
    {P(F16(32), "mask j % 3 != i % 2; branch { dilation 2; }"), 0,
     {.batch = 3, .queries = 290, .keys = 300, .seed = 7,
      .lengths = nearest_lengths, .told = outside_lengths}},
    /* packed calls: values that are not finite in windows; keys apart; segments,
     * bare rows, chains, every phase; wide heads */
    {P(BF16(64), "causal; branch { window 30, 0; }"), 0, PACKED(0)},
    {P("heads 4 kv 2; head_dim 128; dtype f16;", "causal; branch { window 99, 0; }"), 0,
     PACKED(1)},
    {P(BF16(64), "causal; branch { }"), 0, PACKED_APART(0)},
    {P("heads 6 kv 2; head_dim 64; dtype bf16;", "branch { }"), 0, PACKED_APART(1)},
    {P(F16(128), "branch { window 99, 40; dilation 3; }"), 0, PACKED_APART(0)},
    {P(BF16(64), "causal; " THREE), 0, PACKED_APART(0)},
    {P(BF16(64), THREE), FORCE_CHAIN, PACKED_APART(1)},
    {P(F16(40), "combine mean; " THREE), 0, PACKED_APART(0)},
    {P(BF16(64), "phase cycle; segments 100, 300; dilations 2, 6;"), 0, PACKED_APART(0)},
    {P(BF16(32), "causal; branch { segment 250; dilation 7; }"), 0, PACKED_APART(0)},
    {P(BF16(64), "causal; mask i - j < 50 || (i - j) % 8 == 0; branch { }"), 0,
     PACKED_APART(0)},
    {P("heads 2; head_dim 192 value 128; dtype bf16;", "causal; " THREE), 0,
     PACKED_APART(0)},
    {P(BF16(256), "branch { dilation 3; }"), 0, PACKED_APART(0)},
    {P(BF16(32), "causal; branch { dilation 5; phase each - 2; }"), 0,
     {.batch = 1, .queries = 292, .keys = 1, .seed = 7, .clean = true,
      .offsets = lonely_rows, .key_offsets = lonely_keys, .documents = 3}},
    {P(BF16(64), "causal; " THREE), 0, PACKED_UNEVEN},
    {P("heads 1; head_dim 32; dtype bf16;", "heads split; branch { } branch { }"), 0,
     PACKED(0)},
    {P(BF16(64), "branch { }"), 0,
     {.batch = 1, .queries = 900, .keys = 900, .seed = 7, .clean = true,
      .offsets = many_rows, .documents = 701}},
    {P(BF16(64), "input slope : f32[H]; causal; score s - slope[h] * (i - j); branch { }"),
     0, PACKED_APART(0)},
    {P(F16(128), "score 5 * tanh(s / 5); branch { segment 300; }"), 0, PACKED_APART(1)},
    {P(BF16(64), "causal; score s + 0.02 * j - 0.01 * i; branch { }"), 0, PACKED(0)},
    {P(BF16(64), "input z : f32[H]; causal; sink z[h]; branch { window 100, 0; }"), 0,
     PACKED(1)},
    /* masks that keep nothing of some tiles, and of all */
    {P(BF16(64), "mask i < 0; branch { }"), 0, SHAPE(1, 300, 300, 0)},
    {P(BF16(64), "mask i > 9; branch { dilation 4; }"), 0, SHAPE(1, 300, 3, 0)},
    {P(F16(32), "mask i > 400; branch { segment 512; dilation 2; }"), 0,
     SHAPE(2, 1025, 1025, 0)},
    {P(BF16(64), "combine union; causal; branch { window 20, 0; } "
                 "branch { mask j < 9; }"), 0, SHAPE(1, 700, 90, 0)},
    {P(BF16(64), "combine sum; branch { mask i < 0; } branch { }"), 0,
     SHAPE(1, 300, 301, 0)},
    /* masks: of pairs, of rows and keys alone, of heads; none kept; all but */
    {P(BF16(64), "causal; mask (i - j) % 3 != 1; branch { }"), 0,
     SHAPE(1, 500, 500, 0)},
    {P(BF16(64), "mask (i + h) % 2 == j % 2 || j < 9; branch { }"), 0,
     SHAPE(2, 300, 700, 1)},
    {P(F16(64), "mask i % 4 == 1 && j > 90; branch { }"), 0,
     SHAPE(1, 400, 400, 0)},
    {P(BF16(64), "mask !(i / 100 == j / 100); branch { window 400, 200; }"), 0,
     SHAPE(1, 900, 900, 0)},
    {P(F16(32), "mask hash(i / 3, j) % 4 != 0; " THREE), 0,
     SHAPE(1, 1300, 1300, 0)},
    {P(BF16(64), "block 32; keep local(2) || bj % 5 == 0; branch { }"), 0,
     SHAPE(1, 777, 777, 0)},
    {P(BF16(128), "causal; mask (i / 50 + j / 70) % 3 > 0; branch { }"), 0,
     SHAPE(1, 500, 600, 0)},
    {P(BF16(64), "mask i / 128 == j / 128 || i / 512 == j / 512 && "
                 "i % 2 == h % 2 && j % 2 == h % 2; branch { }"), 0,
     SHAPE(1, 1400, 1400, 0)},
    /* windows without the row itself, also behind segments */
    {P(BF16(64), "mask i - j >= 90; branch { segment 512; }"), 0,
     SHAPE(2, 700, 600, 1)},
    {P(BF16(64), "mask j - i > 30 && j - i < 300; branch { }"), 0,
     SHAPE(1, 400, 700, 1)},
    /* ranges of rows: whole tiles, parts of tiles, beside residues */
    {P(BF16(64), "mask abs(i - j) < 40 || i < 70 || j < 70; branch { }"), 0,
     SHAPE(1, 700, 700, 0)},
    {P(BF16(64), "mask i < 100 || i >= 290 && j < 300; branch { segment 512; }"),
     0, SHAPE(2, 600, 700, 1)},
    {P(BF16(64), "mask i < 90 && (i + j) % 3 > 0; branch { }"), 0,
     SHAPE(1, 300, 300, 1)},
    /* unions in which branches differ in their windows and masks */
    {P(BF16(64), "combine union; branch { window 40, 40; } "
                 "branch { mask i < 9 || j < 9; }"), 0,
     SHAPE(1, 700, 700, 0)},
    {P(BF16(64), "combine union; branch { window 30, 0; } "
                 "branch { segment 512; window 0, 90; } "
                 "branch { segment 1024; dilation 2; }"), 0,
     SHAPE(1, 1100, 1100, 0)},
    {P(F16(64), "combine union; causal; branch { segment 256; } "
                "branch { segment 512; dilation 2; mask j % 5 != 3; } "
                "branch { segment 1024; dilation 4; }"), 0,
     SHAPE(1, 1300, 1300, 0)},
    /* branches with masks and chains of their own, together and in a row */
    {P(BF16(64), "branch { segment 256; mask (i + j) % 7 > 2; } "
                 "branch { segment 512; dilation 2; } "
                 "branch { segment 1024; dilation 4; score s * 0.5; }"), 0,
     SHAPE(1, 1300, 1300, 0)},
    {P(F16(64), "causal; mask (i + 2 * j) % 3 != 0; " THREE), FORCE_CHAIN,
     SHAPE(1, 1300, 1300, 0)},
    {P(BF16(64), "combine mean; branch { segment 256; mask i != j; } "
                 "branch { segment 512; dilation 2; }"), 0,
     SHAPE(1, 1100, 1100, 0)},
    /* scores */
    {P("heads 6 kv 3; head_dim 64; dtype bf16;",
       "causal; score 20 * tanh(s / 20); branch { segment 512; } "
       "branch { segment 1024; dilation 2; }"), 0,
     SHAPE(1, 1100, 1100, 0)},
    {P(BF16(64), "scale -0.2; score s + 0.5; score s * 2; branch { }"), 0,
     SHAPE(1, 300, 500, 0)},
    {P(F16(64), "score j % 3 == i % 3 ? s : -inf; branch { window 200, 50; }"),
     0, SHAPE(1, 600, 600, 0)},
    {P(F16(64), "score i < 300 ? (i % 2 == 0 ? -1e12 : -2e38) : s; "
                "branch { segment 300; } branch { segment 600; dilation 2; }"),
     0, SHAPE(1, 700, 700, 0)},
    /* linear scores: of the distance, its size, the key, the row alone; steep
     * ones; with merged keys, packed rows, sinks, states, lengths, masks */
    {P(BF16(64), "score s - 0.1 * (h + 1) * abs(i - j); branch { }"), 0,
     SHAPE(1, 300, 500, 0)},
    {P(BF16(64), "causal; score s - (h + 1) * 0.01 * abs(i - j); " LONG), 0,
     SHAPE(3, 2900, 3100, 1)},
    {P(F16(128), "input slope : f32[H]; score s + slope[h] * (i - j); "
                 "branch { window 100, 99; }"), 0, SHAPE(2, 700, 600, 1)},
    {P(BF16(64), "sink 0.5; score s + 0.01 * j - 0.02 * i; score s + i % 3; "
                 "branch { segment 512; }"), 0, SHAPE(1, 1100, 1100, 0)},
    {P(BF16(256), "causal; score s + h - i % 5; branch { }"), 0,
     SHAPE(1, 500, 600, 0)},
    {P(BF16(64), "causal; score s - 40.5 * (i - j); branch { dilation 3; }"),
     0, SHAPE(1, 900, 900, 0)},
    {P(BF16(64), "causal; score s - 0.3 * (i - j); " THREE), FORCE_CHAIN,
     SHAPE(1, 1300, 1300, 0)},
    {P(BF16(64), "combine mean; causal; score 0.25 * j + s; " CROSSING), 0,
     SHAPE(1, 1300, 1300, 0)},
    {P(BF16(64), "causal; score s - (M - h) * 0.0001 * (i - j); branch { }"),
     0, RAGGED(1100, 1100, 0)},
    {P(BF16(64), "causal; mask (i - j) % 3 != 1; score s - 0.1 * (i - j); "
                 "branch { }"), 0, SHAPE(1, 500, 500, 0)},
    {P("heads 2; head_dim 192 value 128; dtype f16;",
       "score s * 0.5 - abs(i - j) % 7; branch { window 300, 2; }"), 0,
     SHAPE(1, 500, 500, 0)},
    /* capped scores: with one peak for all rows, and without */
    {P(BF16(64), "causal; score 30 * tanh(s / 30); " LONG), 0,
     SHAPE(3, 2900, 3100, 0)},
    {P(BF16(64), "scale 100; score 30 * tanh(s / 30); sink -20.0; "
                 "branch { window 99, 2; }"), 0, SHAPE(2, 700, 700, 1)},
    {P(F16(128), "scale -3; score tanh(0.5 * s) * 20; branch { }"), 0,
     SHAPE(1, 500, 600, 0)},
    {P(BF16(256), "causal; score 50 * tanh(s / 50); branch { }"), 0,
     SHAPE(1, 500, 500, 0)},
    {P(BF16(64), "score 30 * tanh(s / 30); " THREE), FORCE_CHAIN,
     SHAPE(1, 1300, 1300, 0)},
    {P(BF16(64), "causal; score 30 * tanh(s / 30); branch { }"), 0,
     RAGGED(1100, 1300, 0)},
    {P(BF16(64), "score 30 * tanh(s / 30); mask j % 3 != i % 2; branch { }"),
     0, SHAPE(1, 500, 500, 0)},
    /* sinks that count as infinite */
    {P(BF16(64), "sink h == 0 ? 2.5e38 : h == 1 ? -2.5e38 : 0.5; "
                 "branch { segment 256; }"), 0, SHAPE(1, 300, 300, 0)},
    /* sinks of branches, among them one that selects every second row */
    {P(BF16(64), "causal; sink 0.25; branch { segment 256; } "
                 "branch { segment 512; dilation 2; sink 0.5 * h - i % 3; }"),
     0, SHAPE(1, 1300, 1300, 0)},
    {P("heads 6 kv 3; head_dim 64; dtype f16;",
       "combine union; branch { segment 512; } "
       "branch { segment 1024; dilation 4; heads 2..5; sink 2.0; } "
       "branch { dilation 3; sink 1.0; }"), 0, SHAPE(2, 1100, 1300, 1)},
    /* sinks of several passes: of rows that a pass has all of, of others that
     * begin with a state, and of the padding that GigaPath attends to */
    {P(BF16(64), "causal; sink 0.25; sink 0.1 * h; " THREE), FORCE_CHAIN,
     SHAPE(1, 1300, 1300, 0)},
    {P(F16(64), "sink 0.5; branch { segment 256; dilation 2; sink 0.25 * h; } "
                "branch { segment 512; dilation 4; sink 1 - i % 3; }"),
     FORCE_CHAIN, SHAPE(2, 1100, 1100, 1)},
    {P("heads 4; head_dim 48; dtype f16;",
       "phase block; branch { segment 256; } "
       "branch { segment 500; dilation 2; "
       "sink i / 500 == (M - 1) / 500 ? log(150.0) : -inf; } "
       "branch { segment 1024; dilation 4; sink log(7.0); }"), FORCE_CHAIN,
     SHAPE(1, 1300, 1300, 0)},
    /* inputs */
    {P(F16(32), "input doc : i32[B, M]; input slope : f32[H]; "
                "mask doc[b, i] == doc[b, j]; "
                "score s - slope[h] * abs(i - j); branch { }"), 0,
     SHAPE(2, 300, 700, 1)},
    {P(BF16(64), "input w : bf16[M]; input k : u8[H, M]; causal; "
                 "mask k[h, j] > 1 || j > i - 8; score s + w[j]; branch { }"),
     0, SHAPE(1, 500, 500, 0)},
    /* ranges of keys by sorted inputs, and by inputs that say their ends */
    {P(BF16(64), "causal; " DOC "branch { }"), 0, DOCUMENTS(2, 901, 901, 0)},
    {P("heads 4 kv 2; head_dim 32; dtype f16;", DOC "branch { window 200, 90; }"),
     0, DOCUMENTS(3, 401, 777, 1)},
    {P(BF16(128), DOC "branch { dilation 3; }"), 0, DOCUMENTS(1, 900, 850, 0)},
    {P(BF16(64), "input doc : u8[H, M]; mask doc[h, j] == doc[h, i] || j < 9; "
                 "score s - 0.1 * abs(i - j); branch { segment 500; }"), 0,
     DOCUMENTS(1, 800, 800, 1)},
    {P(BF16(64), "input doc : i32[B, M]; input low : i32[B, M]; "
                 "input high : i32[B, M]; branch { mask low[b, i] <= j && "
                 "j < high[b, i] && doc[b, i] != 3; }"), 0,
     DOCUMENTS(2, 700, 700, 0)},
    {P(BF16(64), "combine union; causal; " DOC "branch { window 300, 0; } "
                 "branch { mask j > i - 3 || j == i / 2; }"), 0,
     DOCUMENTS(1, 901, 901, 0)},
    {P(BF16(64), "mask (i + 100) / 250 == (j + 100) / 250; branch { }"), 0,
     SHAPE(2, 777, 901, 1)},
    {P(F16(64), "combine union; branch { mask (j - 90) / 199 == (i - 90) / 199; } "
                "branch { window 40, 0; mask b == 1 || h == 1 && N < 999; }"), 0,
     SHAPE(2, 700, 700, 0)},
    {P(BF16(64), "input used : i32[B]; mask (i + 3) / 128 == (j + 3) / 128 && "
                 "(b == 1 || j >= used[b]); branch { dilation 2; }"), 0,
     SHAPE(2, 900, 850, 0)},
    {P(BF16(64), DOC "branch { }"), 0,
     {.batch = 4, .queries = 900, .keys = 1100, .seed = 7, .lengths = ragged_lengths,
      .input = documents}},
    {P(F16(64), "causal; " DOC "branch { }"), 0,
     {.batch = 2, .queries = 500, .keys = 600, .seed = 7, .layout = 1,
      .input = documents, .element = bad_values}},
    /* lists of blocks: those of 64 and 128, rows that begin inside a block,
     * several blocks in a tile, with windows, masks, scores, unions, lengths */
    {P(BF16(64), "block 64; " LISTED "[H, nbq + 1]; " COLUMNS "[H, *]; "
                 "keep from rows, cols; branch { }"), 0,
     SHAPE(2, 1300, 1300, 1)},
    {P(F16(64), "block 128; causal; input T : u8[B, H, nbq, nb]; "
                "keep from T; branch { window 700, 0; }"), 0,
     SHAPE(2, 500, 1333, 0)},
    {P(BF16(128), "block 128; " LISTED "[nbq + 1]; " COLUMNS "[*]; "
                  "keep from rows, cols; mask (i + j) % 3 != 1; branch { }"), 0,
     SHAPE(1, 1100, 1100, 1)},
    {P(BF16(64), "block 16, 32; " LISTED "[B, H, nbq + 1]; "
                 COLUMNS "[B, H, *]; keep from rows, cols; branch { }"), 0,
     SHAPE(2, 700, 655, 0)},
    {P(BF16(64), "block 80; " LISTED "[H, nbq + 1]; " COLUMNS "[H, *]; "
                 "keep from rows, cols; score s - 0.1 * abs(i - j); branch { }"),
     0, SHAPE(1, 700, 900, 1)},
    {P(BF16(64), "combine union; block 64; " LISTED "[H, nbq + 1]; "
                 COLUMNS "[H, *]; branch { keep from rows, cols; } "
                 "branch { window 90, 0; }"), 0, SHAPE(1, 900, 900, 0)},
    {P(BF16(64), "causal; block 64; " LISTED "[B, H, nbq + 1]; "
                 COLUMNS "[B, H, *]; keep from rows, cols; branch { }"), 0,
     RAGGED(1100, 1300, 0)},
    {P(BF16(64), "block 64; " LISTED "[H, nbq + 1]; " COLUMNS "[H, *]; "
                 "keep from rows, cols; branch { }"), 0, BAD(1, 500, 510, 0)},
    /* values that are not finite behind the edges of windows */
    {P(BF16(64), "causal; branch { }"), 0, BAD(2, 500, 700, 1)},
    {P(F16(64), "branch { window 99, 40; }"), 0, BAD(1, 900, 900, 0)},
    {P(BF16(64), "causal; " LONG), 0, BAD(1, 2900, 3100, 1)},
    {P(BF16(128), "branch { window 200, 0; }"), 0, BAD(2, 700, 700, 0)},
    {P(BF16(256), "causal; branch { segment 300; }"), 0,
     BAD(1, 500, 600, 0)},
    {P(BF16(64), "causal; score s - 0.1 * (i - j); branch { }"), 0,
     BAD(1, 500, 500, 0)},
    {P(BF16(64), "causal; score 30 * tanh(s / 30); branch { }"), 0,
     BAD(1, 500, 500, 0)},
};
/* Patterns with dropout: calls that train, and the same that do not. */
static const gpu_case dropping[] = {
    {P(BF16(64), "dropout 0.3; causal; branch { }"), 0, SHAPE(2, 700, 700, 1)},
    {P(F16(32), "dropout 0.1; branch { window 99, 40; dilation 3; }"), 0,
     SHAPE(1, 900, 1100, 0)},
    {P("heads 4 kv 2; head_dim 128; dtype bf16;",
       "dropout 0.2; causal; " THREE), 0, SHAPE(1, 1300, 1300, 0)},
    {P("heads 4 kv 1; head_dim 192 value 128; dtype f16;",
       "dropout 0.5; causal; branch { }"), 0, SHAPE(1, 500, 600, 0)},
    {P(BF16(96), "dropout 0.2; branch { segment 512; }"), 0,
     SHAPE(1, 1100, 1100, 0)},
    {P(BF16(256), "dropout 0.2; causal; " THREE), FORCE_CHAIN,
     SHAPE(1, 1100, 1100, 0)},
    /* keys that count several times, rows that are packed, chains, residues
     * that shift, rows before position 0, lengths */
    {P(BF16(64), "dropout 0.3; causal; " LONG), 0, SHAPE(3, 2900, 3100, 1)},
    {P(BF16(64), "dropout 0.3; causal; " LONG), 0, RAGGED(3000, 3000, 0)},
    {P(BF16(64), "dropout 0.3; causal; " THREE), FORCE_CHAIN,
     SHAPE(1, 1300, 1300, 0)},
    {P(F16(64), "dropout 0.3; combine mean; " THREE), 0,
     SHAPE(1, 1300, 1300, 0)},
    {P(BF16(64), "dropout 0.3; " CROSSING), 0, SHAPE(1, 1500, 1999, 0)},
    {P(BF16(64), "dropout 0.3; branch { segment 250; dilation 7; }"), 0,
     RAGGED(1000, 1100, 0)},
    {P(BF16(64), "dropout 0.3; " THREE), 0, SHAPE(1, 1500, 1100, 0)},
    {P(BF16(64), "dropout 0.3; sink 0.5; causal; branch { }"), 0,
     SHAPE(2, 401, 700, 1)},
    {P(BF16(64), "dropout 0.3; causal; "
                 "branch { dilation 17; phase each - 5; }"), 0,
     SHAPE(1, 700, 800, 1)},
    /* values that are not finite */
    {P(BF16(64), "dropout 0.3; branch { }"), 0, BAD(2, 500, 700, 1)},
    {P("heads 4 kv 2; head_dim 32; dtype f16;", "dropout 0.5; " LONG), 0,
     BAD(1, 2500, 2500, 0)},
    {P(F16(128), "dropout 0.1; " THREE), FORCE_CHAIN, BAD(1, 1100, 1100, 0)},
    {P(BF16(256), "dropout 0.3; branch { segment 300; }"), 0,
     BAD(1, 500, 600, 0)},
    /* masks and scores, unions of windows */
    {P(BF16(64), "dropout 0.3; causal; mask (i - j) % 3 != 1; branch { }"), 0,
     SHAPE(1, 500, 500, 0)},
    {P(F16(128), "dropout 0.3; score 20 * tanh(s / 20); " THREE), 0,
     SHAPE(1, 1100, 1100, 0)},
    {P(BF16(64), "dropout 0.3; causal; score s - 0.1 * (i - j); " LONG), 0,
     SHAPE(1, 2500, 2500, 0)},
    {P(BF16(64), "dropout 0.3; score 30 * tanh(s / 30); branch { }"), 0,
     BAD(2, 500, 700, 1)},
    {P(BF16(64), "dropout 0.3; combine union; branch { window 30, 0; } "
                 "branch { segment 1024; dilation 2; }"), 0,
     SHAPE(1, 1100, 1100, 0)},
};
/* Calls that are left to the general kernel by what they bring. */
static const gpu_case left_cases[] = {
    {P(BF16(64), "causal; " CROSSING), FORCE_FUSE, RAGGED(1100, 1100, 0)},
    {P(F16(64), "branch { segment 256; } branch { dilation 3; }"), FORCE_FUSE,
     RAGGED(900, 1100, 1)},
    {P(BF16(64), "branch { segment 256; }"), 0, SHAPE(2, 300, 0, 0)},
    {P(F16(32), "causal; mask i % 4 == j % 4 && i >= 30 || i < 9; branch { }"), 0,
     SHAPE(1, 500, 300, 0)},
    {P(BF16(64), "causal; mask (i + j) % 3 != 1; branch { }"), 0, PACKED_APART(0)},
    {P(BF16(64), "causal; score s - 0.001 * M * (i - j); branch { }"), 0, PACKED_APART(0)},
    {P(F16(64), "causal; sink 0.5; branch { }"), 0, PACKED_APART(0)},
    {P(F16(64), "input z : f32[B]; causal; sink z[b]; branch { }"), 0, PACKED(0)},
    {P(BF16(64), CROSSING), FORCE_FUSE, PACKED_APART(0)},
    {P(BF16(64), "branch { segment 256; } branch { dilation 3; }"), FORCE_FUSE,
     PACKED_APART(1)},
    {P(BF16(64), "causal; branch { dilation 4; }"), 0, PACKED_UNEVEN},
};
enum {
  CASES = sizeof cases / sizeof cases[0],
  DROPPING = sizeof dropping / sizeof dropping[0],
  LEFT = sizeof left_cases / sizeof left_cases[0]
};

#endif
