// hopper_pair_score.cuh - masks on the consumers' fragments, and which of
// several score chains a block has.
//
// In: a block's message, with its predicates and score chain. Out: which of a
// thread's pairs are kept, evaluated while the products run; final scores, and
// minus infinity for hidden pairs.
#pragma once

#include "templates/hopper/hopper_pair_bits.cuh"

// The thread's rows and the first column of a block. `step`: between columns.
DEVICE dil_block pair_block(const pair_tile &t, int first, int step) {
  int row = t.rows.x + pair_row(thread_index()) * t.rows.y;
  return {{row, row + 8 * t.rows.y}, first, step, 0};
}

#if LISTS
// The pairs of a block that the list holds. All its predicates with a list have
// the same.
DEVICE dil_bits listed_bits(const consumer &c, int4 m,
                            const ring<STAGES> &block) {
  int4 what = shared_load(message_of(c.base, block.slot()) + 16);
  pair_tile t = pair_tile_of(c, m);
  return list_bits(c.run, 0, pair_block(t, m.z, what.w), what.z, t.at);
}
#endif

// The pairs of a block that any of its predicates keeps.
DEVICE dil_bits keep_pairs(const consumer &c, int4 m,
                           const ring<STAGES> &block,
                           const listed_pairs &listed) {
  u32 message = message_of(c.base, block.slot());
  int4 what = shared_load(message + 16);
  pair_tile t = pair_tile_of(c, m);
  dil_block x = pair_block(t, m.z, what.w);
#if KNOWN_PARTS
  x.known = shared_word(message + 48 + 4 * c.group);
#endif
  return predicate_bits(x, m, what, t.rows.y, t.at, listed);
}

// ---- how a block's scores become final -------------------------------------

#if SCORED && SCORE_FORM == SCORE_ANY
template <int chain>
DEVICE void run_chains(const consumer &c, float (&s)[TILE_KEYS / 2], int4 m,
                       int4 what) {
  if (what.y == chain) rewrite_scores<chain>(c, s, m, what.w);
  if constexpr (chain + 1 < CHAINS) run_chains<chain + 1>(c, s, m, what);
}
#endif

typedef dil_bits kept_pairs;
DEVICE kept_pairs ask_pairs(const consumer &c, int4 m,
                            const ring<STAGES> &block,
                            const listed_pairs &listed) {
  return masks(c, m) ? keep_pairs(c, m, block, listed) : bits_all(true);
}
DEVICE void hide_block(const consumer &c, int4 m, float (&s)[TILE_KEYS / 2],
                       const ring<STAGES> &, const kept_pairs &kept) {
  if (masks(c, m)) hide_pairs(s, kept);
}
