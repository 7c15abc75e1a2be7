// backward_own_layout.cuh - the part of dynamic shared memory that a consumer warpgroup
// with tiles for itself has. In: OWN_BYTES, of what a kernel adds. Out: offsets in it;
// AT_OWN, where that begins; GROUP_BYTES.
#pragma once

#define QUERY_BYTES (64 * HEAD_WIDTH * 2)
#define HELD_BYTES (64 * VALUE_WIDTH * 2) // dO, or V
#define KEY_BYTES (TILE_KEYS * HEAD_WIDTH * 2)
#define VALUE_BYTES (TILE_KEYS * VALUE_WIDTH * 2)
#define TILE_SLOTS 4
#define PLAN_BYTES 0
#define TILE_BYTES 32
#define MESSAGE_BYTES 48
#define FACT_BYTES (HOLDS_KEYS * (TILE_KEYS * 8 + 16)) // as in backward.cu
#define WORDS_AT FACT_BYTES // unused: there is no dropout

#define AT_QUERY 0
#define AT_HELD (AT_QUERY + QUERY_BYTES)
#define AT_KEY (AT_HELD + HELD_BYTES)
#define AT_VALUE (AT_KEY + STAGES * KEY_BYTES)
#define AT_FACTS (AT_VALUE + STAGES * VALUE_BYTES)
#define AT_BLOCK (AT_FACTS + STAGES * FACT_BYTES)
#include "templates/hopper/hopper_layout.cuh"
#define AT_FACTS_FULL AT_MORE
#define AT_MESSAGE_FULL AT_MORE // unused: the warp that writes messages brings facts
#define AT_OWN ((AT_FACTS_FULL + STAGES * 8 + 15) / 16 * 16)
#define GROUP_BYTES ((AT_OWN + OWN_BYTES + 1023) / 1024 * 1024)
static_assert(CONSUMERS * GROUP_BYTES <= SHARED_LIMIT, "as the compiler counts");
