// hopper_layout.cuh - offsets in shared memory of plans, tiles' messages and the
// mbarriers that both directions have. In: AT_BLOCK, where the messages of blocks
// begin, and their sizes. Out: AT_MORE, where a direction's own mbarriers begin.
// An mbarrier has 8 bytes.
#pragma once

#define AT_TILE (AT_BLOCK + 2 * STAGES * MESSAGE_BYTES)
#define AT_PLAN (AT_TILE + TILE_SLOTS * TILE_BYTES)
#define AT_PLAN_FULL (AT_PLAN + 2 * PLAN_BYTES)
#define AT_PLAN_EMPTY (AT_PLAN_FULL + 2 * 8)
#define AT_QUERY_FULL (AT_PLAN_EMPTY + 2 * 8)
#define AT_QUERY_EMPTY (AT_QUERY_FULL + 2 * 8)
#define AT_KEY_FULL (AT_QUERY_EMPTY + 2 * 8)
#define AT_KEY_EMPTY (AT_KEY_FULL + STAGES * 8)
#define AT_VALUE_FULL (AT_KEY_EMPTY + STAGES * 8)
#define AT_VALUE_EMPTY (AT_VALUE_FULL + STAGES * 8)
#define AT_MORE (AT_VALUE_EMPTY + STAGES * 8)
