/* hopper_packing.c - tile packing: the last rows of a class may share a tile
 * with another class (see hopper_class).
 *
 * In: a launch with the tables of its pass and the height of its tiles. Out: in
 * its classes, which class has packed rows of which other class. The rows of a
 * cell rarely fill its last tile. For example, in LongNet's segments of 2048
 * (arXiv:2307.02486) one class leaves 64 rows of 192. Two other classes leave
 * 128 rows, which read the same keys and some more. All follows from the tables
 * by arithmetic. */
#include "hopper.h"

static int64_t packing_rows_of(const hopper_class *k) {
  return k->cell / k->stride;
}

/* The rows of a cell that full tiles leave over, and the offset of the
 * first. */
static int64_t packing_rest_of(const hopper_launch *l, const hopper_class *k) {
  return packing_rows_of(k) % l->tile_rows;
}
static int64_t packing_rest_at(const hopper_launch *l, const hopper_class *k) {
  return (packing_rows_of(k) - packing_rest_of(l, k)) * k->stride;
}

/* The keys of a whole cell that a class reads: their residues modulo the
 * launch's `residues`. `ranges` counts the key ranges that hold them, from the
 * class's last on. False: some key would come twice, or residues do not repeat
 * evenly. */
typedef struct cell_keys {
  uint64_t residues;
  int32_t ranges;
} cell_keys;

static bool packing_keys_of_cell(const hopper_launch *l, const hopper_class *k,
                                 cell_keys *to) {
  *to = (cell_keys){0};
  while (to->ranges < k->ranges) {
    const hopper_key_range *p =
        &l->ranges[k->range + k->ranges - 1 - to->ranges];
    if (p->side != HOPPER_WHOLE || p->outer != k->cell) break;
    if (l->residues % p->stride) return false;
    for (int32_t x = p->offset; x < l->residues; x += p->stride) {
      if (to->residues >> x & 1) return false;
      to->residues |= 1ull << x;
    }
    to->ranges++;
  }
  return true;
}

/* Whether every row sees itself and all keys before it, and all windows have
 * the right bound `right`. Then no warpgroup enters a tile late or without any
 * key. */
static bool packing_sees_back(const hopper_launch *l, const hopper_class *k,
                              int32_t right) {
  for (int32_t i = k->range; i < k->range + k->ranges; i++)
    if (l->ranges[i].left != HOPPER_FAR || l->ranges[i].right < 0 ||
        l->ranges[i].right != right || l->ranges[i].low > 0 ||
        l->ranges[i].high < HOPPER_FAR || l->ranges[i].row_low > -HOPPER_FAR ||
        l->ranges[i].row_high < HOPPER_FAR)
      return false;
  return true;
}

/* Whether a class has cells of one length that fit the call, and neither has
 * packed rows nor is packed itself. */
static bool packing_is_free(const hopper_launch *l, const hopper_class *k) {
  return k->cell && k->cell <= l->span && !k->crossing && !k->packed_class &&
         !k->is_packed && k->phases == 1;
}

/* Whether the last rows of g may be packed into k's last tile. Where the ends
 * of the call cut a cell, k has rows in that tile if g has any. */
static bool packing_is_possible(const hopper_launch *l, const hopper_class *k,
                                const hopper_class *g) {
  cell_keys whole, own;
  int32_t right = l->ranges[k->range].right;
  int64_t rest = packing_rest_of(l, k), packed = packing_rest_of(l, g);
  if (g->shape != k->shape || g->cell != k->cell || g->cell % g->stride ||
      k->cell % k->stride || k->ranges > HOPPER_PLAN_RUNS)
    return false;
  if (!rest || rest > l->tile_rows - 64 || !packed || packed > 64 ||
      packing_rest_at(l, g) <= packing_rest_at(l, k) + k->stride)
    return false;
  for (int32_t i = g->range; i < g->range + g->ranges; i++)
    if (l->ranges[i].bias != 0) return false;
  return packing_sees_back(l, k, right) && packing_sees_back(l, g, right) &&
         packing_keys_of_cell(l, k, &whole) &&
         packing_keys_of_cell(l, g, &own) && own.ranges == g->ranges &&
         own.residues == whole.residues;
}

static void packing_set(hopper_launch *l, hopper_class *k, int32_t packed) {
  cell_keys keys;
  packing_keys_of_cell(l, k, &keys);
  k->packed_class = (short)(packed + 1);
  k->packed_ranges = (short)keys.ranges;
  l->classes[packed].is_packed = 1;
}

void hopper_packing_fill(const hopper_table *table, hopper_launch *l) {
  if (!table->packs || l->shard || !table->interval || table->relative ||
      l->residues > HOPPER_PERIOD || l->tile_rows != HOPPER_PACKING_ROWS)
    return;
  for (int32_t i = 0; i < l->class_count; i++)
    for (int32_t g = 0; g < l->class_count; g++) {
      hopper_class *k = &l->classes[i];
      if (g != i && packing_is_free(l, k) &&
          packing_is_free(l, &l->classes[g]) &&
          packing_is_possible(l, k, &l->classes[g]))
        packing_set(l, k, g);
    }
}
