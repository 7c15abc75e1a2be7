/* tile_need.c - which keys of a block its few queries may see.
 *
 * In: a block of a pass whose branches all have masks, as lists of blocks have. Out:
 * whether a tile of keys is seen by no query of the block, by intervals. To pack
 * keys takes longer than attention of a few rows over the listed ones. */
#include "tile_need.h"
#include "key_list.h"
#include "runtime/base/arithmetic.h"

enum {
  ROWS_MOST = 128, /* queries of a block; more of them see most tiles */
  ROWS_PART = 32   /* that are asked for together: seldom of two blocks */
};

/* Keys are packed in the order of their positions, and walked tile by tile. */
static bool is_plain(const dil_table *t, const dil_pass *pass) {
  if (dil_pass_list(t, pass) >= 0) return false;
  for (uint64_t rest = pass->branches; rest; rest &= rest - 1) {
    const dil_branch *b = &t->branches[__builtin_ctzll(rest)];
    if (b->segment || b->dilation > 1 || b->predicate < 0 ||
        !t->predicates[b->predicate].masked)
      return false;
  }
  return true;
}

int64_t tile_need_step(const tile_blocks *of, const tile_block *bk) {
  const dil_code *code = of->run->code[DIL_TILES];
  bool asks = !of->run->shard && !of->patched && code->tile_keys % code->pack == 0 &&
              bk->last - bk->first <= ROWS_MOST &&
              is_plain(of->run->table, of->pass);
  return asks ? code->tile_keys : 0;
}

/* Whether a predicate may hold for some pair of a box of positions; it is asked for
 * halves of the keys where they may be of several blocks. */
static bool box_needs(const tile_blocks *of, const dil_env *env, int32_t predicate,
                      int64_t t0, int64_t t1, int64_t low, int64_t high) {
  int32_t cover = of->run->code[DIL_TILES]->cover(
      predicate, env, (int32_t)t0, (int32_t)t1, (int32_t)low, (int32_t)high - 1);
  int64_t middle = low + round_up(high - low, 2 * DIL_SUBTILE_KEYS) / 2;
  if (cover != DIL_PARTIAL || middle >= high) return cover != DIL_EMPTY;
  return box_needs(of, env, predicate, t0, t1, low, middle) ||
         box_needs(of, env, predicate, t0, t1, middle, high);
}

/* Whether queries of one head may see a key. */
static bool head_needs(const tile_blocks *of, const tile_block *bk, int32_t head,
                       int64_t low, int64_t high) {
  const dil_table *table = of->run->table;
  cpu_run_env env;
  cpu_run_env_init(of->run, bk->b, head, &env);
  for (int64_t t = bk->first, next; t < bk->last; t = next) {
    next = minimum(floor_to(t, ROWS_PART) + ROWS_PART, bk->last);
    uint64_t served = walk_served(table, of->pass, head);
    for (; served; served &= served - 1)
      if (box_needs(of, &env.env,
                    table->branches[__builtin_ctzll(served)].predicate, t,
                    next - 1, low, high))
        return true;
  }
  return false;
}

bool tile_needs(const tile_blocks *of, const tile_block *bk, int64_t low,
                int64_t high) {
  for (int32_t h = bk->head; h < bk->head + bk->heads; h++)
    if (head_needs(of, bk, h, low, high)) return true;
  return false;
}
