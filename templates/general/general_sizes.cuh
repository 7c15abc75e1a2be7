/* general_sizes.cuh - sizes of the general kernels: tiles, rows in shared memory,
 * fragments. The compiler writes those of tiles in front of a kernel. */
#pragma once

constexpr int most_of(int a, int b) { return a > b ? a : b; }

#ifndef WARPS
#define WARPS 4
#endif
#ifndef ROW_GROUPS
#define ROW_GROUPS 2 /* of 16 rows, a warp */
#endif
#ifndef TILE_KEYS
#define TILE_KEYS 64 /* at most 64: bits of a thread */
#endif
#ifndef BLOCKS
#define BLOCKS 1 /* of a processor, at least: what registers must allow */
#endif
#define THREADS (32 * WARPS)
#define TILE_ROWS (16 * ROW_GROUPS * WARPS)
#define DEPTH (ELEMENT ? 16 : 8) /* of one product */
#define WIDTH_K ((HEAD_DIM + DEPTH - 1) / DEPTH * DEPTH)
#define WIDTH_V ((VALUE_DIM + DEPTH - 1) / DEPTH * DEPTH)
/* An odd number of 16-byte units: neither ldmatrix nor plain loads collide. */
#define PITCH_K (WIDTH_K * ELEMENT_BYTES + 16)
#define PITCH_V (WIDTH_V * ELEMENT_BYTES + 16)
#define PITCH_END ((VALUE_DIM + 2) | 1) /* floats: m, l, sums */
#define SCORE_TILES (TILE_KEYS / 8)
#define VALUE_TILES (WIDTH_V / 8)
#ifndef SCRATCH_BYTES
#define SCRATCH_BYTES 512
#endif
#ifndef Q_IN_REGISTERS
#define Q_IN_REGISTERS 0 /* queries stay in registers */
#endif
#define Q_FRAGMENTS (Q_IN_REGISTERS ? WIDTH_K / DEPTH : 1)

#define PART_ROUNDS ((TILE_ROWS / 16 + 3) / 4)

/* Shared memory: [scratch][Q][K][V][flags of bad value rows][multiplicity of
 * keys][random words of keys, with dropout]; in the end [scratch][sums of the
 * warps' rows]. Gradients hold a second tensor behind V, and facts of rows
 * behind all. */
#define SHARED_Q SCRATCH_BYTES
#define SHARED_K (SHARED_Q + TILE_ROWS * PITCH_K)
#define SHARED_V (SHARED_K + TILE_KEYS * PITCH_K)
#define ROWS_V (TILE_KEYS + (GRADIENT ? TILE_ROWS : 0))
#define SHARED_BAD (SHARED_V + ROWS_V * PITCH_V)
#define SHARED_TIMES (SHARED_BAD + TILE_KEYS)
#define SHARED_WORDS (SHARED_TIMES + 4 * TILE_KEYS) /* of dropout */

/* The tables of patches (general_patch.cuh) end the scratch memory. */
#define PATCH_BYTES                                                           \
  (PATCH_AXES ? 2 * TILE_KEYS * 16 + TILE_ROWS * (PATCH_AXES * 8 + 4) : 0)
#define SHARED_PATCH (SCRATCH_BYTES - PATCH_BYTES)

extern __shared__ __align__(16) char shared[];
