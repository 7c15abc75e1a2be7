/* hopper_cases.h - the problems of hopper_bench: sizes, branches, windows.
 *
 * Every one is checked; those marked TIMED are timed as well. A row is sizes
 * and element, then branches, segments, dilations and phases, the window, and
 * flags. */
#ifndef DIL_TESTS_GPU_HOPPER_CASES_H
#define DIL_TESTS_GPU_HOPPER_CASES_H

#include "hopper_reference.h"

typedef enum phases { CYCLE, ZERO, BLOCK, BY_BRANCH } phases;

typedef struct bench_case {
  const char *name;
  int B, N, M, H, Hkv, D, Dv;
  int element; /* 1 bf16, 2 f16 */
  int branches;
  int segment[BRANCHES], dilation[BRANCHES];
  phases phase;
  int left, right; /* -1: no bound */
  int flags;
} bench_case;

enum { TIMED = 1, UNION = 2, MULTISET = 4, SPLIT = 8, SPOIL = 16 };

#define LONGNET 3, {2048, 4096, 8192}, {1, 2, 4}, CYCLE
#define PAPER 5, {2048, 4096, 8192, 16384, 32768}, {1, 2, 4, 6, 12}, CYCLE
#define DENSE 1, {0}, {1}, CYCLE
#define FULL -1, -1
#define CAUSAL -1, 0

static const bench_case cases[] = {
  {"tiny", 1, 128, 128, 1, 1, 64, 64, 1, DENSE, FULL, TIMED},
  {"tiny causal", 1, 128, 200, 1, 1, 64, 64, 1, DENSE, CAUSAL, 0},
  {"few 1k", 1, 1024, 1024, 8, 8, 64, 64, 1, DENSE, FULL, TIMED},
  {"few 2k", 1, 2048, 2048, 8, 8, 64, 64, 1, DENSE, FULL, TIMED},
  {"few 2k causal", 1, 2048, 2048, 8, 8, 64, 64, 1, DENSE, CAUSAL, TIMED},
  {"few 4k", 1, 4096, 4096, 4, 4, 64, 64, 1, LONGNET, FULL, TIMED},
  {"few 2k d128", 1, 2048, 2048, 8, 8, 128, 128, 1, DENSE, FULL, TIMED},
  {"longnet 8k", 1, 8192, 8192, 8, 8, 64, 64, 1, LONGNET, FULL, TIMED},
  {"longnet 8k multiset", 1, 8192, 8192, 8, 8, 64, 64, 1, LONGNET, FULL, TIMED | MULTISET},
  {"longnet 8k causal", 1, 8192, 8192, 8, 8, 64, 64, 1, LONGNET, CAUSAL, TIMED},
  {"longnet 8k f16 causal", 1, 8192, 8192, 8, 8, 64, 64, 2, LONGNET, CAUSAL, 0},
  {"longnet 8k d128", 1, 8192, 8192, 4, 4, 128, 128, 1, LONGNET, FULL, 0},
  {"longnet 8k d128 causal", 1, 8192, 8192, 4, 4, 128, 128, 1, LONGNET, CAUSAL, 0},
  {"longnet union", 1, 8192, 8192, 4, 4, 64, 64, 1, LONGNET, FULL, UNION},
  {"longnet tail", 2, 13001, 13001, 4, 4, 64, 64, 1, LONGNET, FULL, 0},
  {"longnet tail causal", 2, 13001, 13001, 4, 4, 64, 64, 1, LONGNET, CAUSAL, 0},
  {"longnet N<M causal", 1, 3001, 13001, 4, 2, 64, 64, 1, LONGNET, CAUSAL, 0},
  {"longnet window", 1, 9000, 9000, 4, 4, 64, 64, 1, LONGNET, 700, 300, 0},
  {"longnet block phases", 1, 8192, 8192, 8, 8, 64, 64, 1,
   3, {2048, 4096, 8192}, {1, 2, 4}, BLOCK, FULL, 0},
  {"longnet split heads", 1, 8192, 8192, 7, 7, 64, 64, 1, LONGNET, FULL, SPLIT},
  {"paper 33000", 1, 33000, 33000, 12, 12, 64, 64, 1, PAPER, FULL, 0},
  {"paper 33000 causal", 1, 33000, 33000, 12, 12, 64, 64, 1, PAPER, CAUSAL, 0},
  {"dense 4000", 1, 4000, 4000, 4, 4, 64, 64, 1, DENSE, FULL, 0},
  {"dense causal gqa", 2, 4000, 4000, 8, 2, 128, 128, 1, DENSE, CAUSAL, 0},
  {"dense N>M", 1, 4000, 1500, 4, 4, 64, 64, 1, DENSE, FULL, 0},
  {"dense N>M causal", 1, 4000, 1500, 4, 4, 64, 64, 1, DENSE, CAUSAL, 0},
  {"dense N<M causal", 1, 100, 5000, 4, 4, 128, 128, 2, DENSE, CAUSAL, 0},
  {"sliding", 1, 5000, 5000, 4, 4, 64, 64, 1, DENSE, 511, 0, 0},
  {"sliding N<M nan", 1, 1000, 5000, 4, 4, 64, 64, 1, DENSE, 511, 100, SPOIL},
  {"segment 1000", 1, 5500, 5500, 4, 4, 64, 64, 1, 1, {1000}, {1}, CYCLE, FULL, 0},
  {"dilated 4 nan", 1, 8192, 8192, 4, 4, 64, 64, 1, 1, {4096}, {4}, ZERO, FULL, SPOIL},
  {"dilated 3 nan causal", 1, 7001, 7001, 4, 4, 64, 64, 1, 1, {2000}, {3}, ZERO, CAUSAL, SPOIL},
  {"longnet tail d32", 1, 9001, 9001, 4, 4, 32, 32, 1, LONGNET, CAUSAL, 0},
  {"dense tail d96", 2, 1111, 1111, 4, 4, 96, 96, 1, DENSE, CAUSAL, 0},
  {"dense few rows", 3, 64, 700, 4, 4, 64, 64, 1, DENSE, CAUSAL, 0},
  {"dilated dense 5", 1, 7001, 7001, 4, 4, 128, 128, 1, 1, {0}, {5}, CYCLE, CAUSAL, 0},
  {"longnet 128k", 1, 131072, 131072, 12, 12, 64, 64, 1, LONGNET, FULL, TIMED},
  {"longnet 128k multiset", 1, 131072, 131072, 12, 12, 64, 64, 1, LONGNET, FULL, TIMED | MULTISET},
  {"longnet 128k causal", 1, 131072, 131072, 12, 12, 64, 64, 1, LONGNET, CAUSAL, TIMED},
  {"longnet 128k d128", 1, 131072, 131072, 16, 16, 128, 128, 1, LONGNET, FULL, TIMED},
  {"longnet 128k d128 causal", 1, 131072, 131072, 16, 16, 128, 128, 1, LONGNET, CAUSAL, TIMED},
  {"paper 132072", 1, 132072, 132072, 12, 12, 64, 64, 1, PAPER, FULL, TIMED},
  {"single r1 d64", 1, 32768, 32768, 16, 16, 64, 64, 1, 1, {2048}, {1}, CYCLE, FULL, TIMED},
  {"single r16 d64", 1, 524288, 524288, 16, 16, 64, 64, 1, 1, {32768}, {16}, CYCLE, FULL, TIMED},
  {"single r16 d128", 1, 524288, 524288, 16, 16, 128, 128, 1, 1, {32768}, {16}, CYCLE, FULL, TIMED},
  {"single r1 d128", 1, 32768, 32768, 16, 16, 128, 128, 1, 1, {2048}, {1}, CYCLE, FULL, TIMED},
  {"single r4 d128", 1, 131072, 131072, 16, 16, 128, 128, 1, 1, {8192}, {4}, CYCLE, FULL, TIMED},
  {"dense 16k d128", 1, 16384, 16384, 16, 16, 128, 128, 1, DENSE, FULL, TIMED},
  {"dense 16k d128 causal", 1, 16384, 16384, 16, 16, 128, 128, 1, DENSE, CAUSAL, TIMED},
};

#endif
