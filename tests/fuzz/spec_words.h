/* spec_words.h - the words that spec.c makes random patterns of: for each
 * statement the texts that it may have. */
#ifndef DIL_TESTS_FUZZ_SPEC_WORDS_H
#define DIL_TESTS_FUZZ_SPEC_WORDS_H

#include <stdint.h>

static const char *const dtypes[] = {"f32", "bf16", "f16"};
static const char *const combines[] = {"softmax", "union", "mean", "sum"};
static const char *const phases[] = {"",   "each",      "cycle", "block", "branch",
                                     "kv", "h / 2 + 1", "3 - h", "1",
                                     "each - 2", "each", "each - 1", "each"};
static const char *const masks[] = {
    "", "j % 3 != 1", "i - j < 20 || j < 4", "(i + j) % 5 < 3",
    "hash(h, i / 8, j / 8) % 4 != 0", "0.75 * i >= 0.5 * j - 3",
    "doc[b, i] == doc[b, j]", "!(i == j) || i % 2 == 0",
    "abs(i - j) <= 7 * (h + 1)", "i / 16 >= j / 16", "(i % 2 == 0 ? j < 50 : "
    "j % 4 == 2)", "flag[(i + j) % 7] == 1 || j == i", "min(i, j) % 9 < 6",
    "i * j % 11 != 3", "j < M - 5 && i >= N / 8", "N > 1 || b == 0",
    "-j / 4 + 9 > -i",
    /* indices out of range, division by zero, 32 bits that wrap */
    "i / (j - 5) < 3", "j % h == 0 || i % (h - 1) < 2",
    "doc[b, i + 7] <= doc[b, j - 20]", "flag[j - i] == 1 || j < 30",
    "i * 2000000000 < j * 1999999999", "hash(i, -1, j) % 2 == 0",
    "tab[h, i % 5, j % 3] == 1", "tab[i % 3, (i / 3) % 5, j % 4] == 0",
    /* ranges of keys of each row, guards */
    "doc[b, j] == doc[b, i] && (j <= i || h > 0)",
    "doc[b, i] * 20 <= j && j < doc[b, i] * 20 + 50", "j >= i / 2 && j <= 2 * i",
    "(i + 13) / 40 == (j + 13) / 40", "(j - 9) / 33 == (i - 9) / 33 || b == 1",
    "b == 1 && j <= i || h == 1 && doc[b, i] == doc[b, j]",
    /* floats */
    "1.0 * i / (j - 3) > 0.3", "0.1 * i + 0.2 * j - 0.3 * (i - j) > 0.7",
    "floor(0.3 * i) == floor(0.3 * j) || j % 2 == 0",
    "ceil(i / 2.5) % 3 == 1.0", "min(0.5 * i, j) < 20",
    /* single keys and rows, edges of tiles */
    "j == 0", "i == M - 1 || j == 17", "i - j < 40 || j < 20 || j >= 90",
    "i % 3 == j % 3 && i - j < 60", "j <= i || j < 33 && doc[b, j] == 1",
    "(j - i) % 5 == 0 && abs(i - j) <= 70", "j >= 16 && j < 81 && i - j < 30",
    "i > 70 && i < 75", "j >= 128", "abs(i - j) % 64 < 2",
    "i - j == 64 || i == j", "i - j >= 40",
    "i - j < 20 || (i - j) % 6 == 0", "j - i > 3 && j - i < 90", "max(i, j) / 10 == min(i, j) / 10",
    "B == 1 || HKV < 3 || j < D",
    /* rows */
    "(row + 2 * j) % 5 != 1", "row > 40 || j < row", "pair[b, row, j] > -0.5",
    "flag[row % 9] == 1 || row / 16 == j / 16",
    /* floats that become integers */
    "int(0.37 * i - 0.21 * j) % 4 != 1", "int(0.7 * (i - j)) < 12 || j < 9",
    "int(1e10 * (j - i)) <= 0", "int((i % 3) / (0.0 * j)) < 1 || j % 2 == 1",
    "int(pair[b, row, j]) == 0",
    "doc[b, int(0.5 * i)] == doc[b, int(j / 2.0)]"};
/* No jumps in s: there a rounding, and no mistake, decides the value. */
static const char *const scores[] = {
    "", "s * 0.5", "s - slope[h] * abs(i - j)", "4 * tanh(s / 4)",
    "j % 5 == 2 ? -inf : s", "s + 0.01 * (i - j)", "min(s, 1.5)",
    "s + log(1 + exp(-abs(s)))", "s + floor(0.25 * (j % 99)) * 0.125",
    "s + sqrt(abs(s))", "s - 0.125 * (h - b)",
    "s * wide[h, j]", "s + wide[h, i - j]", "s - slope[j]", "0", "-s",
    "i % 3 == 0 ? -inf : s", "tanh(s) * exp(-0.01 * abs(i - j))",
    "s + wide[h, row]", "s + pair[b, row, j]", "s * pair[b, row - 9, j % 40]",
    "s + wide[h, int(0.7 * abs(i - j))]", "s + 0.1 * int(slope[h] * (j % 50))"};
static const char *const sinks[] = {
    "", "0.5", "slope[h]", "0.03 * i - 1", "wide[h, row]", "log(2.0) - 0.5 * b",
    "i % 3 == 0 ? -inf : 1.5", "h", "-2 + exp(-0.1 * abs(i - M))",
    "20 * slope[i % 7]"};
static const char *const keeps[] = {
    "", "local(1)", "local(2) || global(1)", "strided(3) || local(0)",
    "random(0.5, 9)", "bi >= bj && bi - bj < 5", "hierarchical(1, 1, 3, 4)",
    "bj < nb - 1", "abs(bi - bj) <= 1 && i % 3 != 0", "random(0.2, 1)",
    "bi % 2 == bj % 2 && S > 3", "from rows, cols", "from kept",
    "from rows, cols; keep bj == bi"};
static const char *const choices[] = {
    "", "top 1 by mean", "top 3 by mean", "top 99 by mean", "top 2 by mean each",
    "top 4 by gate", "top 5 by mean each", "mass 0.6, 4 by mean",
    "mass 0.9, 9 by gate", "mass 0.3, 2 by mean each", "mass 1, 7 by mean"};
/* The words of a branch over two axes, or over three. */
static const char *const reaches[][10] = {
    {"", "neighborhood 3 x 5;", "window 2 x (1, 0);",
     "neighborhood 4 x 3; dilation 2 x 1;", "causal y; window 3 x 3;",
     "neighborhood 3 x 3; causal y, x; dilation 2 x 3;",
     "window inf x 2; dilation 1 x 2;", "neighborhood 7 x inf; causal x;",
     "neighborhood 13 x 5; window (3, 0) x inf;",
     "mask iy + jx < 20; window 4 x 4;"},
    {"", "neighborhood 3 x 3 x 3;", "window 1 x 2 x (0, 3);",
     "neighborhood 2 x 5 x 3; dilation 1 x 2 x 2;", "causal z;",
     "neighborhood 3 x 3 x 5; causal z, x;", "window inf x 1 x 2; causal z, y;",
     "neighborhood inf x 3 x 3; dilation 2 x 1 x 1;",
     "neighborhood 5 x 5 x 5; window 2 x inf x (2, inf);",
     "mask iz != jz || ix >= jy; neighborhood 3 x 7 x 7;"}};
static const char *const scales[] = {"", "0.25", "runtime", "1.0 / 3", "-0.2",
                                     "0"};
static const int32_t widths[] = {1,  3,  8,  16, 16, 17, 20, 32,
                                 32, 33, 40, 64, 64, 80, 128};
static const int32_t lengths[] = {1, 2, 7, 15, 16, 17, 31, 33, 64, 65, 100,
                                  127, 128, 129, 150, 200, 257, 300};

#endif
