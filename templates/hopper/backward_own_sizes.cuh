// backward_own_sizes.cuh - constants of kernels of gradients in which each consumer
// warpgroup has tiles for itself: block_list_backward.cu and grid_backward.cu.
//
// In: what is made, CONSUMERS, sizes of heads. Out: what backward_consume.cuh asks for.
#pragma once

#define FUSED 0
#define MAKES_SCORED 1
#define MAKES_WEIGHTED (MAKES >> 2)
#define WARPGROUPS 1     // of a tile
#define QUERY_STAGES 1
#define PRODUCER_REGISTERS 56
#define CONSUMER_REGISTERS (CONSUMERS == 2 ? 224 : 152)
#define PINGPONG 0
#define SUMS 0
#define MARKS 0
#define NESTED 1
#define SHIFTS 0
#define LEFT_WINDOWS 0
#define DROPS 0
#define BACKWARD 1
#define CHECKS 0
#define PAIRWISE 0
#define TURNS 0
#define TILE_PACKING 0
#define GATHERS 0
#define GATHERS_HELD 0
#define OWN_TILES 1
#define CHUNK (HEAD_WIDTH % 64 ? 32 : 64)
#define VALUE_CHUNK (VALUE_WIDTH % 64 ? 32 : 64)
#define THREADS (128 * (CONSUMERS + 1))
#define SLOPED 0
#define SLOPE_UNIT 1.0f
