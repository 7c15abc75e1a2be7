/* spec_simplify.c - makes a random pattern and its call simpler, one small step
 * at a time, so that a fault is told by the smallest that still shows it. */
#include "spec.h"
#include <string.h>

static void drop_branch(spec *s, int32_t which) {
  if (which >= s->branch_count || s->branch_count == 1) return;
  for (int32_t i = which; i + 1 < s->branch_count; i++)
    s->branch[i] = s->branch[i + 1];
  memset(&s->branch[--s->branch_count], 0, sizeof s->branch[0]);
}

/* One head for one key head; branches then serve it all. */
static void one_head(spec *s) {
  s->heads = s->kv_heads = 1;
  for (int32_t i = 0; i < s->branch_count; i++)
    s->branch[i].head_first = s->branch[i].head_last = 0;
}

static void simplify_branch(spec_branch *b, int32_t step, int32_t heads) {
  switch (step) {
  case 0: b->mask = 0; break;
  case 1: b->score = 0; break;
  case 2: b->phase = 0; break;
  case 3: b->causal = 0; break;
  case 4: b->left = b->right = -1; break;
  case 5: b->dilation = 1; break;
  case 6: b->segment = 0; break;
  case 7: b->head_first = 0, b->head_last = heads - 1; break;
  case 8: b->sink = 0; break;
  case 9: b->reach = 0; break;
  case 10: b->keys = 0; break;
  case 11: b->choice = b->shared = 0; break;
  case 12: b->shared = 0; break;
  }
}

/* The call keeps the cells of the grid. */
static void simplify_grid(spec *s, int32_t axis) {
  if (!spec_has_grid(s) || s->grid[axis] < 2) return;
  s->grid[axis] = (s->grid[axis] + 1) / 2;
  s->queries = s->keys = (s->grid[0] ? s->grid[0] : 1) * s->grid[1] * s->grid[2];
}

static void simplify_length(spec *s, int32_t step) {
  if (spec_has_grid(s)) {
    simplify_grid(s, step - 19 < 3 ? step - 19 : 0);
    return;
  }
  switch (step) {
  case 19: s->queries = (s->queries + 1) / 2; break;
  case 20: s->keys = (s->keys + 1) / 2; break;
  case 21: s->queries = s->keys > 0 ? s->keys : s->queries; break;
  case 22: s->queries -= s->queries > 1; break;
  case 23: s->keys -= s->keys > 1; break;
  }
}

static void simplify_whole(spec *s, int32_t step) {
  switch (step) {
  case 0: s->mask = 0; break;
  case 1: s->score = 0; break;
  case 2: s->keep = 0; break;
  case 3: s->left = s->right = -1; break;
  case 4: s->dropout = 0; break;
  case 5: s->scale = 0; break;
  case 6: s->phase = 0; break;
  case 7: s->split = 0; break;
  case 8: s->causal = 0; break;
  case 9: s->combine = 0; break;
  case 10: s->batch = 1; break;
  case 11: s->lengths = 0; break;
  case 12: s->layout = 0; break;
  case 13: s->threads = 1; break;
  case 14: s->force = 0; break;
  case 15: s->dtype = 0; break;
  case 16: one_head(s); break;
  case 17: s->head_dim = 16; break;
  case 18: s->value_dim = 16; break;
  case 24: s->sink = 0; break;
  default: simplify_length(s, step);
  }
}

bool spec_simplify(spec *s, int32_t step) {
  enum { WHOLE = 25, EACH = 13 };
  if (step < SPEC_BRANCHES) {
    drop_branch(s, step);
    return true;
  }
  step -= SPEC_BRANCHES;
  if (step < WHOLE) {
    simplify_whole(s, step);
    return true;
  }
  step -= WHOLE;
  if (step >= s->branch_count * EACH) return false;
  simplify_branch(&s->branch[step / EACH], step % EACH, s->heads);
  return true;
}
