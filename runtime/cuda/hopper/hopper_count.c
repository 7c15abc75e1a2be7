/* hopper_count.c - counts the key blocks that a launch of the Hopper kernel
 * visits. It walks the tiles with the kernel's own code, hopper_walk.cuh.
 *
 * In: a launch with its tables and sizes. Out: blocks visited, masked and
 * skipped, and the pairs that shared visits save. Of many tiles, a sample is
 * walked and the counts are scaled. */
#include "hopper.h"
#include <math.h>

#define DEVICE static inline
#define WARPGROUPS 4
#define NESTED 0
#define SHIFTS 1
#include "templates/hopper/hopper_walk.cuh"

enum { WALKED = 1 << 15 /* most tiles that a count walks */ };

static int64_t count_blocks(int64_t keys, int32_t tile_keys) {
  return (keys + tile_keys - 1) / tile_keys;
}

/* The number of keys of a run at positions low..high, inclusive. */
static int64_t count_keys_between(const key_run *r, int32_t stride, int64_t low,
                                  int64_t high) {
  int64_t from = low > r->position
                     ? (low - r->position + stride - 1) / stride : 0;
  int64_t to = high < r->position ? 0 : (high - r->position) / stride + 1;
  if (to > r->count) to = r->count;
  return to > from ? to - from : 0;
}

/* The pairs of a run that the tile's rows see, counted row by row. */
static double count_pairs(const tile *x, int32_t row_stride, const key_run *r,
                          const hopper_key_range *p) {
  double pairs = 0;
  for (int32_t i = 0; i < x->rows; i++) {
    int64_t at = x->position + (int64_t)i * row_stride;
    pairs +=
        (double)count_keys_between(r, p->stride, at - p->left, at + p->right);
  }
  return pairs;
}

static int64_t count_last_key(const hopper_launch *l, const tile *x) {
  return x->position + (int64_t)(x->rows - 1) * l->classes[x->klass].stride;
}

/* Counts one key range of a tile, and of its packed rows if they read it too.
 * Its blocks begin where the first row begins to see and end where the last row
 * stops. */
static void count_range(const hopper_launch *l, const tile *x,
                        const tile *packed, const hopper_key_range *p,
                        int32_t tile_keys, dil_cuda_pass *sum) {
  hopper_key_range open = *p;
  open.left = open.right = HOPPER_FAR;
  int32_t row_stride = l->classes[x->klass].stride, first = x->position;
  int64_t last = count_last_key(l, x);
  if (packed) first = lesser(first, packed->position);
  if (packed && count_last_key(l, packed) > last)
    last = count_last_key(l, packed);
  key_run r = keys_of(l, x, p), all = keys_of(l, x, &open);
  int64_t seen = count_keys_between(&r, p->stride, r.position, last + p->right);
  int64_t visited = count_blocks(seen, tile_keys), whole = 0;
  for (int64_t n = 0; n < visited; n++) {
    int64_t from = r.position + n * tile_keys * p->stride;
    int64_t to = from + (int64_t)(tile_keys - 1) * p->stride;
    whole += (n + 1) * tile_keys <= r.count && to <= first + p->right &&
             from >= last - p->left && first >= p->row_low &&
             last < p->row_high;
  }
  sum->visited += (double)visited;
  sum->masked += (double)(visited - whole);
  int64_t skipped = count_blocks(all.count, tile_keys) - visited;
  sum->skipped += skipped > 0 ? (double)skipped : 0;
  if (p->bias > 0)
    sum->saved +=
        (round(exp2(p->bias)) - 1) * count_pairs(x, row_stride, &r, p);
}

static void count_tile(const hopper_launch *l, int32_t t, int32_t tile_keys,
                       dil_cuda_pass *sum) {
  tile x, packed;
  if (!tile_find(l, t % l->section_tiles, 0, l->class_count,
                 t / l->section_tiles, &x))
    return;
  const hopper_class *k = &l->classes[x.klass];
  int32_t alone =
      packed_find(l, &x, &packed) ? k->ranges - k->packed_ranges : k->ranges;
  for (int32_t i = 0; i < k->ranges; i++)
    count_range(l, &x, i < alone ? NULL : &packed, &l->ranges[k->range + i],
                tile_keys, sum);
}

void hopper_count(const hopper_table *table, const hopper_launch *l,
                  int32_t tile_keys, dil_cuda_pass *out) {
  out->visited = out->masked = out->skipped = out->saved =
      table->pairwise ? -1 : 0;
  if (table->pairwise) return;
  /* an odd step, so that the sample meets every place of a cyclic pattern */
  int32_t step = l->tiles / WALKED * 2 + 1;
  int64_t walked = 0;
  for (int64_t t = 0; t < l->tiles; t += step, walked++)
    count_tile(l, (int32_t)t, tile_keys, out);
  if (step == 1) return;
  double times = (double)l->tiles / (double)walked;
  out->visited = round(out->visited * times);
  out->masked = round(out->masked * times);
  out->skipped = round(out->skipped * times);
  out->saved = round(out->saved * times);
  out->estimated = true;
}
