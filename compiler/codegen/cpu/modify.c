/* modify.c - final scores: the softmax scale, a chain of score expressions and
 * the predicates that say which pairs are kept. A pair stays when some
 * predicate of the given set holds; all others get -inf. */
#include "cpu.h"
#include <assert.h>
#include <math.h>
#include <stddef.h>

/* base + reach as a position, held inside i32: beyond it every position, or
 * none, satisfies the comparison. */
static ref bound_after(build *b, ref base, int64_t reach) {
  emit *e = &b->emit;
  ref wide = emit_convert(e, LLVMSExt, base, e->i64);
  ref bound = emit_add(e, wide, emit_long(e, reach));
  bound = reach < 0 ? emit_greater(e, bound, emit_long(e, INT32_MIN))
                    : emit_lesser(e, bound, emit_long(e, INT32_MAX));
  return emit_convert(e, LLVMTrunc, bound, e->i32);
}

static ref bound_before(build *b, ref base, int64_t reach) {
  return bound_after(b, base, -reach);
}

/* -left <= j - t <= right; the arithmetic is done on the scalar of the two. */
static ref window_condition(build *b, const dil_predicate *window, ref t,
                            ref j) {
  emit *e = &b->emit;
  const int64_t far = INT64_C(1) << 33; /* beyond any distance of positions */
  ref kept = emit_truth(e, true);
  if (window->left < far)
    kept = emit_is_vector(t) ? emit_compare(e, IS_LESS_EQUAL, t,
                                            bound_after(b, j, window->left))
                             : emit_compare(e, IS_GREATER_EQUAL, j,
                                            bound_before(b, t, window->left));
  if (window->right < far) {
    ref right = emit_is_vector(t)
                    ? emit_compare(e, IS_GREATER_EQUAL, t,
                                   bound_before(b, j, window->right))
                    : emit_compare(e, IS_LESS_EQUAL, j,
                                   bound_after(b, t, window->right));
    kept = window->left < far ? emit_and(e, kept, right) : right;
  }
  return kept;
}

/* `kept`, and first <= x < end; end 0: there is no end. */
static ref range_condition(build *b, ref x, int64_t first, int64_t end,
                           ref kept) {
  emit *e = &b->emit;
  ref low = emit_word(e, (int32_t)first);
  if (first > 0)
    kept = emit_and(e, kept, emit_compare(e, IS_GREATER_EQUAL, x, low));
  if (end > 0 && end <= INT32_MAX)
    kept = emit_and(e, kept,
                    emit_compare(e, IS_LESS, x, emit_word(e, (int32_t)end)));
  return kept;
}

/* Condition `index` of the plan at a site: its window, its ranges of keys and
 * rows, and its masks. */
static ref predicate_condition(build *b, site *s, int index) {
  emit *e = &b->emit;
  const dil_predicate *window = &b->plan->table.predicates[index];
  ref kept = window_condition(b, window, s->i, s->j);
  kept = range_condition(b, s->j, window->key_first, window->key_end, kept);
  kept = range_condition(b, s->i, window->row_first, window->row_end, kept);
  if (!window->masked) return kept;
  ref mask = expression_value(b, s, b->plan->predicate[index]);
  build_locate(b, b->plan->pattern->at);
  return emit_and(e, kept, mask);
}

static ref predicate_chosen(build *b, ref predicates, int index) {
  const emit *e = &b->emit;
  ref bit =
      emit_and(e, predicates, emit_long(e, (int64_t)(UINT64_C(1) << index)));
  return emit_compare(e, IS_UNEQUAL, bit, emit_long(e, 0));
}

/* score[reg] where some chosen predicate holds, else -inf; `some` becomes a
 * word with a bit for each lane that any register keeps. */
static void keep_scores(build *b, site *s, int registers, ref predicates,
                        ref *score, ref *some) {
  emit *e = &b->emit;
  ref kept[REGISTERS_MAX];
  ref all = emit_compare(e, IS_EQUAL, predicates, emit_long(e, 0));
  for (int reg = 0; reg < registers; reg++)
    kept[reg] = emit_select(e, all, score[reg],
                             emit_splat(e, emit_real(e, -INFINITY), e->width));
  ref any = emit_select(e, all, emit_long(e, -1), emit_long(e, 0));
  for (int p = 0; p < b->plan->table.predicate_count; p++) {
    branch_block chosen;
    ref with[REGISTERS_MAX], any_with = any;
    branch_begin(e, &chosen, "predicate", predicate_chosen(b, predicates, p));
    for (int reg = 0; reg < registers; reg++) {
      ref holds = predicate_condition(b, &s[reg], p);
      with[reg] = emit_select(e, holds, score[reg], kept[reg]);
      any_with = emit_or(e, any_with, emit_lanes_word(e, holds));
    }
    branch_end(e, &chosen);
    for (int reg = 0; reg < registers; reg++)
      kept[reg] = branch_merge(e, &chosen, with[reg], kept[reg]);
    any = branch_merge(e, &chosen, any_with, any);
  }
  for (int reg = 0; reg < registers; reg++) score[reg] = kept[reg];
  *some = any;
}

ref score_value(build *b, site *s, const expr *x) {
  const emit *e = &b->emit;
  ref result = expression_value(b, s, x);
  if (!emit_is_float(result))
    result = emit_convert(e, LLVMSIToFP, result, e->f32);
  if (!emit_is_vector(result)) result = emit_splat(e, result, e->width);
  return result;
}

/* scale * score through the chain. Unless slope is NULL, *slope becomes the
 * derivative of the result by scale * score. */
static ref chain_score(build *b, site *s, ref scale, ref score, int chain,
                       ref *slope) {
  const emit *e = &b->emit;
  ref next = emit_mul(e, score, scale);
  if (slope) *slope = emit_splat(e, emit_real(e, 1), e->width);
  expr **x = b->plan->chain[chain];
  for (int i = 0; x[i] != NULL; i++) {
    s->score = next;
    if (slope)
      *slope = emit_mul(e, *slope,
                        score_slope(b, s, b->plan->slopes[chain].slope[i]));
    next = score_value(b, s, x[i]);
  }
  build_locate(b, b->plan->pattern->at);
  return next;
}

/* Work that the loop over `leaf` would repeat. */
static void hoist_all(build *b, site *s, int chain, expr_op leaf) {
  for (expr **x = b->plan->chain[chain]; *x != NULL; x++)
    site_hoist(b, s, *x, leaf);
  for (int p = 0; p < b->plan->table.predicate_count; p++)
    if (b->plan->table.predicates[p].masked)
      site_hoist(b, s, b->plan->predicate[p], leaf);
}

static void modify_name(char *name, size_t size, const char *stem, int chain) {
  snprintf(name, size, "%s%d", stem, chain);
}

static ref env_scale(build *b, ref env) {
  const emit *e = &b->emit;
  return emit_load(
      e, e->f32, emit_offset(e, env, (int64_t)offsetof(dil_env, scale)), CELL);
}

/* ---- tiles: lanes of t, one key after the other -------------------------- */

/* The word of `seen` that this key's bit belongs to, with the bit in it. */
static ref seen_word(build *b, ref key, ref word, ref any) {
  const emit *e = &b->emit;
  ref bit = emit_and(e, key, emit_long(e, 63));
  ref fresh = emit_compare(e, IS_EQUAL, bit, emit_long(e, 0));
  ref some = emit_compare(e, IS_UNEQUAL, any, emit_long(e, 0));
  ref shifted = LLVMBuildShl(e->builder,
                             emit_convert(e, LLVMZExt, some, e->i64), bit, "");
  return emit_or(e, emit_select(e, fresh, emit_long(e, 0), word), shifted);
}

/* One key: its row of scores becomes final. `slopes`: the derivatives of the
 * chain go to the row of parameter 8. */
static void modify_key(build *b, site *s, ref key, ref scale, ref row,
                       int chain, bool slopes, ref *mx, ref *any) {
  emit *e = &b->emit;
  int registers = b->isa->registers;
  ref score[REGISTERS_MAX], slope[REGISTERS_MAX];
  ref j =
      emit_at(e, emit_parameter(e, 4), emit_mul(e, key, emit_long(e, CELL)));
  tile_load_row(b, emit_vector(e->f32, e->width), row, score);
  for (int reg = 0; reg < registers; reg++) {
    s[reg].j = reg == 0 ? emit_load(e, e->i32, j, CELL) : s[0].j;
    score[reg] = chain_score(b, &s[reg], scale, score[reg], chain,
                             slopes ? &slope[reg] : NULL);
  }
  if (slopes)
    tile_store_row(b, slope, tile_row_at(b, emit_parameter(e, 8), key));
  keep_scores(b, s, registers, emit_parameter(e, 5), score, any);
  for (int reg = 0; reg < registers; reg++)
    mx[reg] = emit_greater(e, score[reg], mx[reg]);
  tile_store_row(b, score, row);
}

/* Sites of the registers: they differ in the lanes of t. */
static void open_sites(build *b, site *s, int chain) {
  emit *e = &b->emit;
  ref t[REGISTERS_MAX];
  tile_load_row(b, emit_vector(e->i32, e->width), emit_parameter(e, 3), t);
  site_open(b, &s[0], emit_parameter(e, 6));
  site_open_inputs(b, &s[0]);
  for (int reg = 1; reg < b->isa->registers; reg++) s[reg] = s[0];
  for (int reg = 0; reg < b->isa->registers; reg++) {
    s[reg].i = t[reg];
    hoist_all(b, &s[reg], chain, EXPR_J_);
  }
}

void tile_modify(build *b, int chain, bool slopes) {
  emit *e = &b->emit;
  char name[32];
  int registers = b->isa->registers;
  int64_t words = (b->plan->table.tile_keys + 63) / 64;
  ref carried[REGISTERS_MAX + 1], next[REGISTERS_MAX + 1], any;
  site s[REGISTERS_MAX];
  modify_name(name, sizeof name, slopes ? "slope" : "modify", chain);
  emit_function(e, name, 'v', slopes ? "pplpplppp" : "pplpplpp");
  emit_noalias(e, 0);
  ref room = emit_room(e, e->i64, words, 8), seen = emit_parameter(e, 7);
  ref wanted =
      emit_select(e, LLVMBuildIsNull(e->builder, seen, ""), room, seen);
  exact mode = exact_open(b);
  exact_begin(b, &mode);
  ref scale = env_scale(b, emit_parameter(e, 6));
  open_sites(b, s, chain);
  for (int reg = 0; reg < registers; reg++)
    carried[reg] = emit_splat(e, emit_real(e, -INFINITY), e->width);
  carried[registers] = emit_long(e, 0);
  loop key;
  loop_begin(e, &key, "keys", emit_long(e, 0), emit_parameter(e, 2), 1, carried,
             registers + 1);
  for (int reg = 0; reg < registers; reg++) next[reg] = key.carried[reg];
  ref row = tile_row_at(b, emit_parameter(e, 0), key.index);
  modify_key(b, s, key.index, scale, row, chain, slopes, next, &any);
  next[registers] = seen_word(b, key.index, key.carried[registers], any);
  ref word = emit_shift_left(e, emit_shift_right(e, key.index, 6), 3);
  emit_store(e, next[registers], emit_at(e, wanted, word), 8);
  loop_end(e, &key, next);
  tile_store_row(b, key.carried, emit_parameter(e, 1));
  exact_end(b, &mode);
  emit_return(e, NULL);
}

/* ---- rows: one t, lanes of keys ------------------------------------------ */

void row_modify(build *b, int chain) {
  emit *e = &b->emit;
  char name[32];
  site s;
  ref any, n, scale;
  modify_name(name, sizeof name, "row_modify", chain);
  emit_function(e, name, 'v', "plwplp");
  emit_noalias(e, 0);
  exact mode = exact_open(b);
  exact_begin(b, &mode);
  n = emit_parameter(e, 1);
  scale = env_scale(b, emit_parameter(e, 5));
  site_open(b, &s, emit_parameter(e, 5));
  site_open_inputs(b, &s);
  s.i = emit_parameter(e, 2);
  hoist_all(b, &s, chain, EXPR_J_);
  loop key;
  loop_begin(e, &key, "keys", emit_long(e, 0), n, e->width, NULL, 0);
  ref bytes = emit_mul(e, key.index, emit_long(e, CELL));
  ref place = emit_at(e, emit_parameter(e, 0), bytes);
  s.j = emit_load_masked(e, emit_vector(e->i32, e->width),
                         emit_at(e, emit_parameter(e, 3), bytes),
                         lanes_before(b, emit_sub(e, n, key.index)), CELL);
  ref score = emit_load(e, emit_vector(e->f32, e->width), place, 32);
  score = chain_score(b, &s, scale, score, chain, NULL);
  keep_scores(b, &s, 1, emit_parameter(e, 4), &score, &any);
  emit_store(e, score, place, 32);
  loop_end(e, &key, NULL);
  exact_end(b, &mode);
  emit_return(e, NULL);
}
