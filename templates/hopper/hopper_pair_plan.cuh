// hopper_pair_plan.cuh - the planner where masks decide over pairs.
//
// In: a tile of the launch; gradients also have tiles of keys, which stream query
// rows. Out: its plans, without blocks in which no pair is kept. The planner
// evaluates the masks by interval arithmetic (dil_cover), one lane for each block
// and once for the rows of each warpgroup. Where blocks are many, it first evaluates
// 32 blocks together.
#pragma once

#ifndef PAIR_BOUNDS
#define PAIR_BOUNDS 0 // 1: gradients of predicates with ranges of rows or keys
#endif

// A run of a plan holds up to 32 blocks: {position, keys, row in the map,
// where}, {predicates, chain, bias, 1 / stride}. Words with a bit for each
// block follow: {blocks that warpgroup 0, 1, 2 takes part in, blocks to load}
// and {blocks in which warpgroup 0, 1, 2 evaluates pairs, -}. Last, each
// warpgroup has a word for each block: the result of dil_known.
enum { PAIR_MANY = 256 }; // more blocks than this are evaluated by groups first

// The share of a box of positions that a predicate's list holds; without a list, all.
DEVICE int cover_listed(const hopper_launch &run, int predicate,
                        dil_range rows, dil_range keys, const dil_pair &at) {
#if LISTS
  int list = dil_list_of[predicate];
  if (list >= 0) return cover_list(run, list, rows, keys, at);
#endif
  return DIL_FULL;
}

// Whether a predicate's window and ranges of rows hold all pairs of a box of
// positions, some, or none.
DEVICE int cover_window(int predicate, dil_range rows, dil_range keys) {
  const dil_predicate_row &w = dil_predicates[predicate];
  if (w.right != DIL_FAR && keys.low - rows.high > w.right) return DIL_EMPTY;
  if (w.left != DIL_FAR && rows.low - keys.high > w.left) return DIL_EMPTY;
  const bool bounds = BACKWARD ? PAIR_BOUNDS : ROW_RANGES;
  if (bounds && (rows.high < w.row_first || rows.low >= w.row_end))
    return DIL_EMPTY;
  bool within = !bounds || (rows.low >= w.row_first && rows.high < w.row_end);
  if (PAIR_BOUNDS) {
    if (keys.high < w.first || keys.low >= w.end) return DIL_EMPTY;
    within &= keys.low >= w.first && keys.high < w.end;
  }
  bool full = within &&
              (w.right == DIL_FAR || keys.high - rows.low <= w.right) &&
              (w.left == DIL_FAR || rows.high - keys.low <= w.left);
  return full ? DIL_FULL : DIL_PARTIAL;
}

// The same for its masks, where the rest of it says `held`.
DEVICE int cover_masks(int predicate, dil_range rows, dil_range keys,
                       const dil_pair &at, int held) {
  if (held == DIL_EMPTY || !dil_predicates[predicate].masked) return held;
  dil_range kept = dil_cover(predicate, rows, keys, r_int(at.h), at);
  return !kept.high ? DIL_EMPTY : kept.low ? held : DIL_PARTIAL;
}

// The same for all of it.
DEVICE int cover_predicate(const hopper_launch &run, int predicate,
                           dil_range rows, dil_range keys,
                           const dil_pair &at) {
  int held = cover_window(predicate, rows, keys);
  if (held != DIL_EMPTY)
    held = min(held, cover_listed(run, predicate, rows, keys, at));
  return cover_masks(predicate, rows, keys, at, held);
}

// The same for the union of a run's predicates. Without a predicate all pairs
// are kept.
DEVICE int cover_box(const hopper_launch &run, u32 predicates, dil_range rows,
                     dil_range keys, const dil_pair &at) {
  int best = predicates ? DIL_EMPTY : DIL_FULL;
#pragma unroll 1
  for (; predicates && best < DIL_FULL; predicates &= predicates - 1)
    best = max(best, cover_predicate(run, __ffs(predicates) - 1, rows, keys, at));
  return best;
}

// The keys of one key range of a tile, and the values that masks read besides
// positions.
struct pair_run {
  const hopper_key_range &range;
  key_run keys;
  dil_pair at;
};

// The positions of a run's blocks `from` to `from + count - 1`, and of the
// tile's rows `row` to `row + rows - 1`. Blocks beyond the run's end are empty.
struct pair_box {
  dil_range rows, keys;
  bool some, whole; // some keys and rows exist; all keys exist
};
DEVICE pair_box box_of(const tile &x, const pair_run &r, int stride, int from,
                       int count, int row, int rows) {
  int left = r.keys.count - from * TILE_KEYS, all = count * TILE_KEYS;
  int low = r.keys.position + from * TILE_KEYS * r.range.stride;
  int top = x.position + row * stride;
  return {{top, top + (min(rows, x.rows - row) - 1) * stride},
          {low, low + (min(left, all) - 1) * r.range.stride},
          left > 0 && row < x.rows,
          left >= all};
}
// The positions of a box's query rows, and of its keys: tiles may hold either.
DEVICE dil_range queries_in(const pair_box &box) {
  return HOLDS_KEYS ? box.keys : box.rows;
}
DEVICE dil_range keys_in(const pair_box &box) {
  return HOLDS_KEYS ? box.rows : box.keys;
}
DEVICE int cover_blocks(const hopper_launch &run, const pair_run &r,
                        const pair_box &box) {
  if (!box.some) return DIL_EMPTY;
  int best = cover_box(run, r.range.predicates, queries_in(box), keys_in(box),
                       r.at);
  return best == DIL_FULL && !box.whole ? DIL_PARTIAL : best;
}

#if LISTS
// The list that alone decides about a run's pairs of blocks, if the blocks of the
// run are those of the list and each warpgroup's rows are in one of its query
// blocks; -1: there is none.
DEVICE int list_of_run(const tile &x, const pair_run &r, int stride) {
  u32 predicates = r.range.predicates;
  int list = predicates ? dil_list_of[__ffs(predicates) - 1] : -1;
  if (list < 0 || predicates & (predicates - 1)) return -1;
  bool meets = stride == 1 && r.range.stride == 1 && x.position % 64 == 0 &&
               r.keys.position % TILE_KEYS == 0 &&
               dil_lists[list].block == TILE_KEYS &&
               dil_lists[list].query_block % 64 == 0;
  return meets ? list : -1;
}

// The words of such a list for the 32 blocks of a group, a word for each
// warpgroup. They are loaded together: one by one they would be what limits the
// planner.
struct listed_words {
  u32 word[WARPGROUPS];
};
DEVICE listed_words words_of(const hopper_launch &run, const tile &x,
                             const pair_run &r, int list, int group) {
  listed_words words;
  int size = dil_lists[list].query_block;
  int key = r.keys.position / TILE_KEYS + group * 32;
#pragma unroll
  for (int w = 0; w < WARPGROUPS; w++)
    words.word[w] = w * 64 < x.rows
                        ? list_word(run, list, r.at,
                                    dil_div(x.position + w * 64, size), key)
                        : 0;
  return words;
}

// cover_blocks for a block of which the word of such a list says `kept`.
DEVICE int cover_kept(const pair_run &r, const pair_box &box, bool kept) {
  int predicate = __ffs(r.range.predicates) - 1;
  if (!kept || !box.some) return DIL_EMPTY;
  int held = cover_window(predicate, box.rows, box.keys);
  held = cover_masks(predicate, box.rows, box.keys, r.at, held);
  return held == DIL_FULL && !box.whole ? DIL_PARTIAL : held;
}
#endif

#if KEY_SPANS && !HOLDS_KEYS
// Leaves out the keys at both ends of a run that no row of the tile sees by its
// masks.
DEVICE void narrow_run(const tile &x, int stride, pair_run &r) {
  dil_range rows = {x.position, x.position + (x.rows - 1) * stride};
  dil_range keys = {DIL_INT_MOST, DIL_INT_LEAST}; // none
  int step = r.range.stride;
  if (!r.range.predicates || !r.keys.count) return;
#pragma unroll 1
  for (u32 rest = r.range.predicates; rest; rest &= rest - 1)
    keys = r_hull(keys,
                  dil_keys_of(__ffs(rest) - 1, rows, r_int(r.at.h), r.at));
  long long from = max(keys.low - r.keys.position, 0ll);
  int before = (int)min((from + step - 1) / step, (long long)r.keys.count);
  r.keys.position += before * step;
  r.keys.count -= before;
  long long last = keys.high - r.keys.position;
  r.keys.count =
      last < 0 ? 0 : (int)min(last / step + 1, (long long)r.keys.count);
}
#endif

// The planner's state during a tile.
struct pair_planner {
  const hopper_launch &run;
  u32 base, plans, tiles; // plans: the number of this plan
  int runs;               // runs of the plan that is being written
  int what;               // PLAN_TILE until the tile's first plan is sent; then
                          // 0
  int head;               // the head of the keys, or of the streamed rows
};

DEVICE void pair_send(pair_planner &p, const tile &x, int last) {
  const hopper_instance &m = p.run.instances[x.instance];
  plan_send(p.base, p.plans++, p.what | last | m.finish << PLAN_FINISH,
            p.runs, p.head, p.tiles);
  p.what = p.runs = 0;
}

DEVICE void pair_begin(pair_planner &p, const tile &x) {
  u32 plan = plan_of(p.base, p.plans & 1);
  barrier_wait(p.base + AT_PLAN_EMPTY + 8 * (p.plans & 1),
               ~p.plans >> 1 & 1);
  plan_tile(p.run, x, plan);
}

// Writes the result of the masks for the 32 blocks of a group to the run at `to`, a
// lane for each block. For each warpgroup: the blocks that it takes part in, and the
// blocks in which it evaluates pairs. Returns the blocks that any of them needs. In
// gradients one warpgroup comes after the other, as the planner has few registers.
DEVICE u32 pair_cover(const hopper_launch &run, const tile &x,
                      const pair_run &r, int stride, int group, u32 to) {
  constexpr int at_once = BACKWARD ? 1 : WARPGROUPS;
  int lane = thread_index() % 32;
  u32 all = 0;
#if LISTS
  int list = list_of_run(x, r, stride);
  listed_words listed = {};
  if (list >= 0) listed = words_of(run, x, r, list, group);
#endif
#pragma unroll at_once
  for (int w = 0; w < WARPGROUPS; w++) {
    pair_box box = box_of(x, r, stride, group * 32 + lane, 1, w * 64, 64);
#if LISTS
    int cover = list < 0 ? cover_blocks(run, r, box)
                         : cover_kept(r, box, listed.word[w] >> lane & 1);
#else
    int cover = cover_blocks(run, r, box);
#endif
    u32 takes = __ballot_sync(~0u, cover != DIL_EMPTY);
    u32 asks = __ballot_sync(~0u, cover == DIL_PARTIAL);
    all |= takes;
    if (lane == 0) {
      shared_set(to + 32 + 4 * w, takes);
      shared_set(to + 48 + 4 * w, asks);
    }
#if KNOWN_PARTS
    shared_set(to + 64 + 128 * w + 4 * lane,
               dil_known(queries_in(box), keys_in(box), r_int(r.at.h), r.at));
#endif
  }
  return all;
}

// Adds the 32 blocks of a group to the plan as a run, if any pair of them is
// kept.
DEVICE void pair_group(pair_planner &p, const tile &x, const pair_run &r,
                       int group) {
  if (p.runs == PLAN_RUNS) {
    pair_send(p, x, 0);
    pair_begin(p, x);
  }
  u32 to = plan_of(p.base, p.plans & 1) + 48 + p.runs * RUN_BYTES;
  u32 all = pair_cover(p.run, x, r, p.run.classes[x.klass].stride, group, to);
  if (!all) return;
  p.runs++;
  int keys = group * 32 * TILE_KEYS;
  int position = r.keys.position + keys * r.range.stride;
  map_row at =
      map_row_of(position - p.run.key_low + streamed_away(x.away),
                 r.range.stride, r.range.slot, p.run.key_rest[r.range.slot]);
  if (thread_index() % 32) return;
  shared_store(to, position, r.keys.count - keys, at.row,
               at.phase | at.map << WHERE_MAP | r.range.stride << WHERE_STRIDE);
  shared_store(to + 16, r.range.predicates, r.range.chain,
               __float_as_int(r.range.bias),
               __float_as_int(__fdividef(1, r.range.stride)));
  shared_set(to + 44, all);
}

// Bit n: some pair of the 32 blocks of group `first + n` may be kept.
DEVICE u32 pair_groups(const hopper_launch &run, const tile &x,
                       const pair_run &r, int stride, int first) {
  int blocks = (r.keys.count + TILE_KEYS - 1) / TILE_KEYS;
  int group = first + thread_index() % 32;
  bool some = group * 32 < blocks;
  if (blocks > PAIR_MANY)
    some = cover_blocks(run, r, box_of(x, r, stride, group * 32, 32, 0,
                                  TILE_ROWS)) != DIL_EMPTY;
  return __ballot_sync(~0u, some);
}

// Writes a run of one block that no warpgroup takes part in. The block is
// copied all the same. It starts at row 0, since no other row need exist, and
// takes the map that exists for it.
DEVICE void pair_nothing(pair_planner &p, u32 plan) {
  map_row at = map_row_of(0, 1, 0, p.run.key_rest[0]);
  p.runs = 1;
  if (thread_index() % 32) return;
  shared_store(plan + 48, 0, 0, at.row,
               at.phase | at.map << WHERE_MAP | 1 << WHERE_STRIDE);
  shared_store(plan + 64, 0, 0, 0, 0);
  shared_store(plan + 80, 0, 0, 0, 1);
  shared_store(plan + 96, 0, 0, 0, 0);
}

// Adds the blocks of one key range to the plans of a tile.
DEVICE void plan_range_pairs(pair_planner &p, const tile &x, int i, int head) {
  const hopper_class &k = p.run.classes[x.klass];
  const hopper_key_range &range = p.run.ranges[k.range + i];
  pair_run r = {range, keys_of(&p.run, &x, &range),
                pair_at(p.run, x.batch, head, x.away)};
#if KEY_SPANS && !HOLDS_KEYS
  narrow_run(x, k.stride, r);
#endif
#pragma unroll 1
  for (int first = 0; first * 32 * TILE_KEYS < r.keys.count; first += 32)
#pragma unroll 1
    for (u32 rest = pair_groups(p.run, x, r, k.stride, first); rest;
         rest &= rest - 1)
      pair_group(p, x, r, first + __ffs(rest) - 1);
}

// Makes all plans of a tile. If no block has a kept pair, the tile gets one
// block that no warpgroup takes part in, so that its rows are written. It is
// dropped if its rows keep the state of other passes. A tile of keys streams the
// query heads of its key head in turn, each in plans of its own.
DEVICE int plan_next(const hopper_launch &run, u32 base, const tile &x,
                     u32 &plans, int, u32 tiles, bool &begun) {
  int own = run.instances[x.instance].head;
  pair_planner p = {run, base, plans, tiles, 0, PLAN_TILE, own / run.group};
  pair_begin(p, x);
  int ranges = run.classes[x.klass].ranges;
#if HOLDS_KEYS
#pragma unroll 1
  for (int head = own * run.group; head < (own + 1) * run.group; head++) {
    if (p.runs) {
      pair_send(p, x, 0);
      pair_begin(p, x);
    }
    p.head = head;
#pragma unroll 1
    for (int i = 0; i < ranges; i++) plan_range_pairs(p, x, i, head);
  }
#else
#pragma unroll 1
  for (int i = 0; i < ranges; i++) plan_range_pairs(p, x, i, own);
#endif
  begun = !p.what || p.runs || !run.instances[x.instance].finish;
  if (!begun) return 0;
  // Gradients: a last plan without runs still says that the tile ends.
  if (!p.runs && (BACKWARD || p.what))
    pair_nothing(p, plan_of(base, p.plans & 1));
  pair_send(p, x, PLAN_LAST);
  plans = p.plans;
  return 0;
}
