/* head_partition.c - the partition of heads over ranks: which heads a rank
 * takes, and the plan's table for these heads alone. See ring.h. */
#include "ring.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/walk.h"
#include <string.h>

/* Piece `index` of `count` cut into `pieces`; the first pieces get one more. */
static void deal(int32_t count, int32_t pieces, int32_t index, int32_t *first,
                 int32_t *size) {
  int32_t each = count / pieces, more = count % pieces;
  *first = index * each + (index < more ? index : more);
  *size = each + (index < more);
}

/* More ranks than K/V groups: each group gets some of the ranks, and these
 * ranks share the group's query heads. */
static head_partition partition_group(int32_t group, int32_t groups,
                                      int32_t ranks, int32_t index) {
  head_partition s = {.kv_heads = 1};
  for (int32_t g = 0; g < groups; g++) {
    int32_t first, size;
    deal(ranks, groups, g, &first, &size);
    if (index < first || index >= first + size) continue;
    s.kv_head = g;
    deal(group, size, index - first, &s.head, &s.heads);
    s.head += g * group;
  }
  return s;
}

head_partition partition_heads(int32_t heads, int32_t kv_heads, int32_t ranks,
                               int32_t index) {
  int32_t group = heads / kv_heads;
  if (ranks > kv_heads) return partition_group(group, kv_heads, ranks, index);
  head_partition s = {0};
  deal(kv_heads, ranks, index, &s.kv_head, &s.kv_heads);
  s.head = s.kv_head * group;
  s.heads = s.kv_heads * group;
  return s;
}

size_t head_partition_size(const dil_table *table) {
  return (size_t)table->branch_count * sizeof(dil_branch);
}

/* A branch that serves none of these heads gets an empty range of heads. */
dil_table head_partition_table(const dil_table *table, head_partition share,
                               void *memory) {
  dil_table made = *table;
  dil_branch *branches = memory;
  memcpy(branches, table->branches, head_partition_size(table));
  for (int32_t b = 0; b < table->branch_count; b++) {
    dil_branch *branch = &branches[b];
    int32_t last = branch->head_last - share.head;
    branch->phase += share.head;
    branch->head_first = (int32_t)maximum(branch->head_first - share.head, 0);
    branch->head_last = (int32_t)minimum(last, share.heads - 1);
  }
  made.branches = branches;
  made.heads = share.heads;
  made.kv_heads = share.kv_heads;
  return made;
}
