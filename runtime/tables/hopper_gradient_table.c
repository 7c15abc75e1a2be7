/* hopper_gradient_table.c - see hopper_gradient_table.h. In: a plan's table.
 * Out: the tables of tiles that hold query rows, or keys, or why there are
 * none. */
#include "hopper_gradient_table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A plan's table as tiles of keys see it: with the heads of K and V, and with
 * windows turned round. */
typedef struct transposed_table {
  dil_table table;
  dil_branch branches[DIL_BRANCH_MAX];
  dil_predicate predicates[DIL_PART_MAX];
  int32_t phase[DIL_BRANCH_MAX][DIL_HEADS_MAX];
} transposed_table;

static const char *gradient_refusal(const dil_table *t) {
  if (t->dtype == DIL_F32) return "f32";
  if (t->head_dim > HOPPER_GRADIENT_WIDTH ||
      t->value_dim > HOPPER_GRADIENT_WIDTH)
    return "heads of more than 256 elements";
  return NULL;
}

/* Returns whether a branch serves the query heads of a key head alike. */
static bool branch_is_grouped(const dil_branch *b, int32_t group) {
  if (b->head_first % group || (b->head_last + 1) % group) return false;
  for (int32_t h = b->head_first; h <= b->head_last; h++)
    if (b->phase[h] != b->phase[h - h % group]) return false;
  return true;
}

/* Returns false if tables cannot describe the transposed pattern. */
static bool transposed_fill(const dil_table *t, transposed_table *to) {
  int32_t group = t->heads / t->kv_heads;
  to->table = *t;
  to->table.heads = t->kv_heads;
  to->table.branches = to->branches;
  to->table.predicates = to->predicates;
  for (int32_t i = 0; i < t->predicate_count; i++) {
    const dil_predicate *p = &t->predicates[i];
    to->predicates[i] = (dil_predicate){.left = p->right,
                                        .right = p->left,
                                        .masked = p->masked,
                                        .key_first = p->row_first,
                                        .key_end = p->row_end,
                                        .row_first = p->key_first,
                                        .row_end = p->key_end};
  }
  for (int32_t b = 0; b < t->branch_count; b++) {
    dil_branch *branch = &to->branches[b];
    *branch = t->branches[b];
    if (!branch_is_grouped(branch, group)) return false;
    for (int32_t h = 0; h < t->kv_heads; h++)
      to->phase[b][h] = branch->phase[h * group];
    branch->phase = to->phase[b];
    branch->shift = (branch->dilation - branch->shift) % branch->dilation;
    branch->head_first /= group;
    branch->head_last /= group;
  }
  return true;
}

/* Query rows that are streamed may stand before position 0, as keys may not. */
static void transposed_open(hopper_table *out) {
  for (int32_t i = 0; i < out->range_count; i++)
    if (out->ranges[i].low == 0) out->ranges[i].low = -HOPPER_FAR;
}

/* Sinks are in lse, so that these tables need not know of them. */
static bool gradient_fill(dil_table *t, int32_t pass, int32_t tile_keys,
                          hopper_table *out, char *reason, size_t size) {
  t->sinks = false;
  t->sink_branches = 0;
  if (!hopper_table_fill(t, pass, tile_keys, out, reason, size)) return false;
  bool grid = t->grid.axes && hopper_asks_pairs(t, pass);
  if (!grid && (!t->scored || t->chain_count == 1)) return true;
  snprintf(reason, size,
           grid ? "gradients of masks over a grid"
                : "gradients of several kinds of scores");
  return false;
}

static bool gradient_fill_keys(const dil_table *table, int32_t pass,
                               int32_t tile_keys, hopper_table *out,
                               char *reason, size_t size) {
  transposed_table *keys = malloc(sizeof *keys);
  bool grouped = keys && transposed_fill(table, keys);
  bool good = grouped &&
              gradient_fill(&keys->table, pass, tile_keys, out, reason, size);
  if (!grouped)
    snprintf(
        reason, size,
        keys ? "grouped heads of different phases"
             : "no memory for its tables");
  free(keys);
  if (good) transposed_open(out);
  return good;
}

bool hopper_gradient_table_fill(const dil_table *table, int32_t pass,
                                bool holds_keys, int32_t tile_keys,
                                hopper_table *out, char *reason, size_t size) {
  const char *refusal = gradient_refusal(table);
  dil_table queries = *table;
  if (refusal) {
    snprintf(reason, size, "gradients of %s", refusal);
    return false;
  }
  if (holds_keys)
    return gradient_fill_keys(table, pass, tile_keys, out, reason, size);
  return gradient_fill(&queries, pass, tile_keys, out, reason, size);
}
