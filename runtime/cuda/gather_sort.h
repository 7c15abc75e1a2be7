/* gather_sort.h - the entries of a call whose rows chose blocks of keys, sorted by
 * blocks, for the kernels that gather rows (templates/hopper/gather_sort.cuh). A line is
 * a batch row and query head. */
#ifndef DIL_RUNTIME_CUDA_GATHER_SORT_H
#define DIL_RUNTIME_CUDA_GATHER_SORT_H

#include "runtime/cuda/launch/family.h"
#include "templates/hopper/gather_launch.h"

/* Entries, tiles and lines of a call; where its arrays stand behind each other. */
typedef struct gather_sizes {
  int64_t blocks, lines, entry_room, tile_room;
  int64_t starts, places, tiles, items, end; /* bytes; counts stand at 0 */
} gather_sizes;

/* The three functions of a code, in the order in which its family has them. */
enum { GATHER_COUNT, GATHER_PLACE, GATHER_ITEMS };

/* The choice of a pass. */
const dil_choice *gather_choice(const cuda_run *r, int32_t pass);
gather_sizes gather_sizes_of(const cuda_run *r, int32_t pass);
/* The lines that are run at once, so that parts of `bytes` for each entry stay within
 * 512 MiB, where one line needs no more. */
int64_t gather_lines_at_once(const gather_sizes *s, int64_t bytes);
/* Fills a call of all lines, whose arrays stand in `memory`. */
void gather_fill(const cuda_run *r, int32_t pass, const gather_sizes *s, char *memory,
                 gather_call *call);
/* Sorts the entries of all lines. `first`: the function that counts them. */
dil_status gather_sort(const cuda_run *r, const cuda_code *code, int32_t first,
                       gather_call *call);
/* Returns why no kernel that gathers rows takes the pass; NULL: one may. */
const char *gather_sort_refusal(const cuda_run *r, int32_t pass);

#endif
