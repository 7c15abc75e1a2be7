/* decode_sizes.cuh - sizes of decode.cu, and where all stands in shared memory. */
#pragma once

#ifndef TILE_KEYS
#define TILE_KEYS 64
#endif
#ifndef ROW_GROUPS
#define ROW_GROUPS 1 /* of 16 rows, a tile */
#endif
#ifndef SHARED_BYTES
#define SHARED_BYTES (227 * 1024)
#endif
#ifndef SCRATCH_BYTES
#define SCRATCH_BYTES 512
#endif
#ifndef TEAMS
#define TEAMS 4
#endif
#define TEAM_WARPS DECODE_TEAM_WARPS
#define THREADS (TEAMS * DECODE_TEAM_THREADS)
#define TILE_ROWS (16 * ROW_GROUPS)
#define PART_ROUNDS ((ROW_GROUPS + 3) / 4)
#define SCORE_TILES (TILE_KEYS / 8)
#define WIDTH_K ((HEAD_DIM + 15) / 16 * 16) /* of products */
#define WIDTH_V ((VALUE_DIM + 15) / 16 * 16)
#define VALUE_TILES (WIDTH_V / 8)
#define Q_IN_REGISTERS (WIDTH_K <= 128)
#define Q_FRAGMENTS (Q_IN_REGISTERS ? WIDTH_K / 16 : 1)

/* A box of the tensor copies has 32 or 64 columns (runtime/cuda/hopper/maps.c). */
#define CHUNK_K ((HEAD_DIM + 31) / 32 % 2 ? 32 : 64)
#define CHUNK_V ((VALUE_DIM + 31) / 32 % 2 ? 32 : 64)
#define BOXES_K ((HEAD_DIM + CHUNK_K - 1) / CHUNK_K)
#define BOXES_V ((VALUE_DIM + CHUNK_V - 1) / CHUNK_V)
#define KEY_BYTES (BOXES_K * CHUNK_K * 2 * TILE_KEYS)
#define STAGE_BYTES (KEY_BYTES + BOXES_V * CHUNK_V * 2 * TILE_KEYS)

/* Of a team: messages, tiles of queries, tiles that have ended. */
#define MESSAGES 8
#define QUERIES 2
#define ENDED_TILES 3 /* counted, waiting, and being merged (decode_tiles.cuh) */
#define PITCH_Q (WIDTH_K * 2 + 16) /* an odd number of 16-byte units */
#define PITCH_END ((VALUE_DIM + 31) / 32 * 32 + 8) /* floats: sums, m, l */
#define PITCH_PART DECODE_PART(VALUE_DIM)          /* floats: sums, m, l */
#define PART_PEAK (PITCH_PART - 8)

#define MESSAGE_BYTES ((88 + 8 * PART_ROUNDS + 15) / 16 * 16)
#define TIMES_BYTES (MULTIPLICITY * TILE_KEYS * 4)
#define UNIT_BYTES 96
#define STAGES_MOST 16 /* of all teams */

/* Shared memory: [stages][queries][units][tiles that have ended][messages]
 * [multiplicities of keys][scratch of the teams][m and l of the warps][sums of the
 * teams][complete tiles of the teams][mbarriers]. A ring of a team lies behind that of
 * the team before. */
#define REST_BYTES                                                            \
  (TEAMS * (QUERIES * (TILE_ROWS * PITCH_Q + UNIT_BYTES) +                    \
            ENDED_TILES * UNIT_BYTES +                                        \
            MESSAGES * (MESSAGE_BYTES + TIMES_BYTES) + SCRATCH_BYTES +        \
            TEAM_WARPS * TILE_ROWS * 8 + TILE_ROWS * PITCH_END * 4 + 16 +     \
            16 * (MESSAGES + QUERIES)) +                                      \
   16 * STAGES_MOST)
#define STAGES_FIT ((SHARED_BYTES - REST_BYTES) / STAGE_BYTES)
#define STAGES_TAKEN (STAGES_FIT < STAGES_MOST ? STAGES_FIT : STAGES_MOST)
#define TEAM_STAGES (STAGES_TAKEN / TEAMS)
#define STAGES (TEAMS * TEAM_STAGES)
static_assert(TEAM_STAGES >= 2, "too few stages fit");

#define AT_QUERY (STAGES * STAGE_BYTES)
#define AT_UNIT (AT_QUERY + TEAMS * QUERIES * TILE_ROWS * PITCH_Q)
#define AT_TILES (AT_UNIT + TEAMS * QUERIES * UNIT_BYTES)
#define AT_MESSAGE (AT_TILES + TEAMS * ENDED_TILES * UNIT_BYTES)
#define AT_TIMES (AT_MESSAGE + TEAMS * MESSAGES * MESSAGE_BYTES)
#define AT_SCRATCH (AT_TIMES + TEAMS * MESSAGES * TIMES_BYTES)
#define AT_PEAKS (AT_SCRATCH + TEAMS * SCRATCH_BYTES)
#define AT_SUMS (AT_PEAKS + TEAMS * TEAM_WARPS * TILE_ROWS * 8)
#define AT_COMPLETE (AT_SUMS + TEAMS * TILE_ROWS * PITCH_END * 4)
#define AT_BARRIERS (AT_COMPLETE + TEAMS * 16)
#define BARRIERS (2 * (STAGES + TEAMS * (MESSAGES + QUERIES)))
static_assert(AT_BARRIERS + 8 * BARRIERS <= SHARED_BYTES, "shared memory");

/* The producing warps come first, one a team; the scratch memory is theirs. */
#define SCRATCH_AT (AT_SCRATCH + (int)threadIdx.x / 32 * SCRATCH_BYTES)

extern __shared__ __align__(1024) char shared[];

#define BARRIER(n) (shared_address(shared + AT_BARRIERS) + 8 * (n))
#define STAGE_FULL(n) BARRIER(n)
#define STAGE_EMPTY(n) BARRIER(STAGES + (n))
#define MESSAGE_FULL(n) BARRIER(2 * STAGES + (n))
#define MESSAGE_EMPTY(n) BARRIER(2 * STAGES + TEAMS * MESSAGES + (n))
#define QUERY_FULL(n) BARRIER(2 * STAGES + 2 * TEAMS * MESSAGES + (n))
#define QUERY_EMPTY(n)                                                        \
  BARRIER(2 * STAGES + TEAMS * (2 * MESSAGES + QUERIES) + (n))
