/* fuse.c - which branches share a pass on a GPU, by counting.
 *
 * In: a plan's table. Out: a list of passes. In one pass keys that several
 * branches reach are visited once and no state travels, but the branches cut
 * rows into classes, whose tiles may be far from full; in passes of their own
 * tiles are full, and the rows that a later pass comes to have a state in
 * memory. Counted by position, in blocks of keys of a full tile, with what the
 * target says of its tiles and classes of rows (target.h): nothing by length. */
#include "planner.h"
#include "compiler/analysis/cost.h"
#include <math.h>

enum { BRANCHES_MOST = 16 };
/* Blocks of keys that the end of a tile takes as long as. */
static const double TILE_END = 0.5;
/* Of the smaller pass, to be gained by one of its own: it is a launch more, and
 * what is counted is not all. */
static const double MARGIN = 0.05;

typedef struct fuser {
  const plan *plan;
  const plan_target *target;
  int32_t height;       /* rows of the tallest tile */
  double block_bytes;   /* as of the target */
  int32_t count;
  struct {
    uint64_t branches;
    double blocks;      /* of a position, over all heads */
    double rows;        /* likewise, that it selects */
  } pass[BRANCHES_MOST];
} fuser;

/* ---- one pass ------------------------------------------------------------ */

/* Of so many rows in tiles of this height, in tiles that are full. */
static double tiles_of(const fuser *f, double rows, int32_t height) {
  double whole = floor(rows / height);
  return whole * f->target->block_time(height) +
         f->target->block_time((int64_t)ceil(rows - whole * height));
}

/* Cells that several segments cut are of all lengths. */
static double crossed_tiles_of(const fuser *f, double rows, int32_t height) {
  return (rows / height + 0.5) * f->target->block_time(height);
}

static double blocks_of(const fuser *f, const fast_class *class, int32_t count,
                        int32_t height) {
  double sum = 0;
  for (int32_t i = 0; i < count; i++) {
    const fast_class *k = &class[i];
    double rows = k->cell / k->stride;
    double tiles = k->is_crossed ? crossed_tiles_of(f, rows, height)
                                 : tiles_of(f, rows, height);
    sum += k->heads * tiles / k->cell * (k->blocks + TILE_END);
  }
  return sum;
}

/* False: the kernel has no code for these branches in one pass. */
static bool fuse_measure(const fuser *f, uint64_t branches, double *blocks,
                         double *rows) {
  dil_pass pass = {branches, walk_period(&f->plan->table, branches)};
  dil_table alone = f->plan->table;
  fast_class class[FAST_CLASSES];
  int32_t count;
  alone.passes = &pass;
  alone.pass_count = 1;
  if (!f->target->classes(&alone, 0, f->target->tile_keys, class, &count))
    return false;
  *blocks = INFINITY;
  for (int32_t height = f->height; height > 0; height -= 64)
    *blocks = fmin(*blocks, blocks_of(f, class, count, height));
  *rows = 0;
  for (int32_t i = 0; i < count; i++) *rows += class[i].heads / class[i].stride;
  return true;
}

/* ---- states -------------------------------------------------------------- */

static bool sees_all(const dil_table *t, uint64_t branches) {
  for (; branches; branches &= branches - 1) {
    const dil_branch *b = &t->branches[__builtin_ctzll(branches)];
    const dil_predicate *p =
        b->predicate < 0 ? NULL : &t->predicates[b->predicate];
    if (dil_branch_selects_all(b) && !b->shift && b->head_first == 0 &&
        b->head_last == t->heads - 1 && (!p || dil_predicate_holds_row(p)))
      return true;
  }
  return false;
}

/* In blocks, for rows of state of a position. */
static double travel_of(const fuser *f, double rows) {
  return cost_gpu_state_bytes(f->plan->pattern, rows) / f->block_bytes;
}

/* Of a list of passes: with a pass that has keys for every row none but those
 * that others select, else an empty state for all as well. */
static double states_of(const fuser *f) {
  double rows = 0;
  bool opened = false;
  for (int32_t i = 0; i < f->count; i++) {
    bool opens = !opened && sees_all(&f->plan->table, f->pass[i].branches);
    opened |= opens;
    if (!opens) rows += f->pass[i].rows;
  }
  if (f->count == 1) return 0;
  return travel_of(f, rows + (opened ? 0 : f->plan->table.heads));
}

/* ---- the choice ---------------------------------------------------------- */

static double total_of(const fuser *f) {
  double sum = states_of(f);
  for (int32_t i = 0; i < f->count; i++) sum += f->pass[i].blocks;
  return sum;
}

/* Passes i < j as one. */
static bool fuse_join(const fuser *f, int32_t i, int32_t j, fuser *joined) {
  *joined = *f;
  joined->pass[i].branches |= f->pass[j].branches;
  joined->pass[j] = f->pass[--joined->count];
  return plan_share_heads(&f->plan->table, f->pass[i].branches,
                          f->pass[j].branches) &&
         plan_share_list(&f->plan->table, f->pass[i].branches,
                         f->pass[j].branches) &&
         fuse_measure(f, joined->pass[i].branches, &joined->pass[i].blocks,
                      &joined->pass[i].rows);
}

/* Joins the two passes that gain most by it, if any do. */
static bool fuse_join_best(fuser *f) {
  fuser best, other;
  double now = total_of(f), most = 0;
  for (int32_t i = 0; i < f->count; i++)
    for (int32_t j = i + 1; j < f->count; j++) {
      if (!fuse_join(f, i, j, &other)) continue;
      double gain = now - total_of(&other) +
                    MARGIN * fmin(f->pass[i].blocks, f->pass[j].blocks);
      if (gain <= most) continue;
      best = other;
      most = gain;
    }
  if (most > 0) *f = best;
  return most > 0;
}

bool fuse_choose(plan *p, const plan_target *target) {
  dil_table *t = &p->table;
  dil_pass *passes = (dil_pass *)t->passes;
  fuser f = {.plan = p,
             .target = target,
             .height = target->tile_rows(t),
             .block_bytes = target->block_bytes(p->pattern),
             .count = t->branch_count};
  if (f.count > BRANCHES_MOST) return false;
  for (int32_t b = 0; b < f.count; b++) {
    f.pass[b].branches = 1ull << b;
    if (!fuse_measure(&f, 1ull << b, &f.pass[b].blocks, &f.pass[b].rows))
      return false;
  }
  while (fuse_join_best(&f)) continue;
  t->pass_count = 0;
  for (int32_t b = 0; b < t->branch_count; b++) /* in the order of branches */
    for (int32_t i = 0; i < f.count; i++)
      if (__builtin_ctzll(f.pass[i].branches) == b)
        passes[t->pass_count++].branches = f.pass[i].branches;
  return true;
}
