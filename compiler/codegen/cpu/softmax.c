/* softmax.c - weights from scores, with the running maximum m and sum l of
 * each lane: p = 2^(c2 s + bias - m), one fused multiply-add before the power.
 * It is the online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867).
 *
 * m - m and -inf - -inf must not meet: while a lane has seen no finite score
 * its m is -inf, and 0 stands for it, so that weights come out as 0.
 *
 * m is rounded to f32, the product inside the multiply-add is not. From an m of
 * 2^24 on the two may lie more than 1 apart, and from 2^31 on their power
 * overflows. Rows with such an m round each step by itself: the largest score
 * then has the weight 1 again. */
#include "cpu.h"
#include <math.h>

#define LARGE_MAXIMUM 0x1p24

ref softmax_weight(build *b, ref score, const softmax_turn *turn) {
  return math_power(b, emit_fma(&b->emit, turn->scale, score, turn->shift),
                    b->exp_degree);
}

softmax_turn softmax_turn_of(build *b, ref before, ref mx, ref c2, ref bias) {
  emit *e = &b->emit;
  softmax_turn turn = {.scale = c2};
  ref here = emit_mul(e, mx, c2);
  turn.maximum = emit_greater(e, here, before);
  ref none = emit_compare(e, IS_EQUAL, turn.maximum, emit_real(e, -INFINITY));
  turn.base = emit_select(e, none, emit_real(e, 0), turn.maximum);
  ref alpha = math_power(b, emit_sub(e, before, turn.base), b->exp_degree);
  turn.alpha = emit_select(e, none, emit_real(e, 1), alpha);
  turn.shift = emit_sub(e, bias, turn.base);
  return turn;
}

/* ---- large maxima -------------------------------------------------------- */

ref large_of(build *b, const softmax_turn *turn) {
  emit *e = &b->emit;
  return emit_compare(e, IS_GREATER_EQUAL,
                      emit_unary(e, "llvm.fabs", turn->base),
                      emit_real(e, LARGE_MAXIMUM));
}

ref large_any(build *b, ref const *large, int registers) {
  emit *e = &b->emit;
  ref any = large[0];
  for (int reg = 1; reg < registers; reg++) any = emit_or(e, any, large[reg]);
  return emit_compare(e, IS_UNEQUAL, emit_lanes_word(e, any), emit_long(e, 0));
}

ref large_score(build *b, ref score, ref large, const softmax_turn *turn,
                ref bias) {
  emit *e = &b->emit;
  ref below = emit_sub(e, emit_mul(e, turn->scale, score), turn->base);
  return emit_select(e, large, emit_add(e, below, bias), score);
}

void large_settle(build *b, ref large, softmax_turn *turn) {
  emit *e = &b->emit;
  turn->scale = emit_select(e, large, emit_real(e, 1), turn->scale);
  turn->shift = emit_select(e, large, emit_real(e, 0), turn->shift);
}

/* ---- tiles --------------------------------------------------------------- */

/* The values that the loop over keys needs. */
typedef struct softmax_tile {
  ref s, p;
  softmax_turn turn[REGISTERS_MAX];
  ref rows[REGISTERS_MAX], keys; /* words of dropout; keys NULL: none */
} softmax_tile;

/* Stores the weights of `count` (1 or 2) keys from key `index` on. */
static void store_weights(build *b, const softmax_tile *t, ref index,
                          ref weight[2][REGISTERS_MAX], int count) {
  emit *e = &b->emit;
  ref packed[REGISTERS_MAX];
  if (b->pack == DIL_PACK_F32) {
    ref place = tile_row_at(b, t->p, index);
    for (int key = 0; key < count; key++)
      tile_store_row(b, weight[key],
                     emit_offset(e, place, key * tile_row_bytes(b)));
    return;
  }
  for (int reg = 0; reg < b->isa->registers; reg++)
    packed[reg] = host_arch.round_pairs(
        &b->emit, weight[0][reg],
        count == 2 ? weight[1][reg] : emit_zero(LLVMTypeOf(weight[0][0])));
  ref half = emit_long(e, tile_row_bytes(b) / 2);
  tile_store_row(b, packed, emit_at(e, t->p, emit_mul(e, index, half)));
}

/* Drops weights of one key. */
static void drop_row(build *b, const softmax_tile *t, ref key, ref *weight) {
  const emit *e = &b->emit;
  ref place = emit_at(e, t->keys, emit_mul(e, key, emit_long(e, CELL)));
  ref word = emit_load(e, e->i32, place, CELL);
  for (int reg = 0; reg < b->isa->registers; reg++)
    weight[reg] = dropout_weight(b, t->rows[reg], word, weight[reg]);
}

/* Weights of `count` keys from `index` on; `sum` grows by them. */
static void softmax_keys(build *b, const softmax_tile *t, ref index, int count,
                         ref *sum) {
  emit *e = &b->emit;
  int registers = b->isa->registers;
  ref weight[2][REGISTERS_MAX];
  ref place = tile_row_at(b, t->s, index);
  for (int key = 0; key < count; key++) {
    tile_load_row(b, emit_vector(e->f32, e->width),
                  emit_offset(e, place, key * tile_row_bytes(b)), weight[key]);
    for (int reg = 0; reg < registers; reg++)
      weight[key][reg] = softmax_weight(b, weight[key][reg], &t->turn[reg]);
  }
  for (int reg = 0; reg < registers; reg++)
    sum[reg] =
        emit_add(e, sum[reg],
                 count == 1 ? weight[0][reg]
                            : emit_add(e, weight[0][reg], weight[1][reg]));
  for (int key = 0; key < count && t->keys != NULL; key++)
    drop_row(b, t, emit_add(e, index, emit_long(e, key)), weight[key]);
  store_weights(b, t, index, weight, count);
}

/* m and alpha in memory move on. */
static void softmax_rescale(build *b, softmax_tile *t, ref c2, ref bias) {
  emit *e = &b->emit;
  ref_type type = emit_vector(e->f32, e->width);
  ref mx[REGISTERS_MAX], m[REGISTERS_MAX], alpha[REGISTERS_MAX];
  tile_load_row(b, type, emit_parameter(e, 5), mx);
  tile_load_row(b, type, emit_parameter(e, 6), m);
  for (int reg = 0; reg < b->isa->registers; reg++) {
    t->turn[reg] = softmax_turn_of(b, m[reg], mx[reg], c2, bias);
    m[reg] = t->turn[reg].maximum;
    alpha[reg] = t->turn[reg].alpha;
  }
  tile_store_row(b, m, emit_parameter(e, 6));
  tile_store_row(b, alpha, emit_parameter(e, 8));
}

/* The tile's sum joins l, rescaled. */
static void softmax_sum(build *b, ref const *sum) {
  emit *e = &b->emit;
  ref_type type = emit_vector(e->f32, e->width);
  ref l[REGISTERS_MAX], alpha[REGISTERS_MAX];
  tile_load_row(b, type, emit_parameter(e, 7), l);
  tile_load_row(b, type, emit_parameter(e, 8), alpha);
  for (int reg = 0; reg < b->isa->registers; reg++)
    l[reg] = emit_fma(e, alpha[reg], l[reg], sum[reg]);
  tile_store_row(b, l, emit_parameter(e, 7));
}

/* Says what is not the same memory: p may be s where both are f32. */
static void softmax_noalias(build *b) {
  for (int i = 5; i < 9; i++) emit_noalias(&b->emit, i);
  if (b->pack == DIL_PACK_BF16_PAIRS) {
    emit_noalias(&b->emit, 0);
    emit_noalias(&b->emit, 1);
  }
}

/* Keys in twos, as bf16 pairs want them, and the odd one at the end. */
static void softmax_all(build *b, const softmax_tile *t, ref n, ref *sum) {
  emit *e = &b->emit;
  int registers = b->isa->registers;
  for (int reg = 0; reg < registers; reg++)
    sum[reg] = emit_zero(emit_vector(e->f32, e->width));
  ref even = emit_and(e, n, emit_long(e, -2)), next[REGISTERS_MAX];
  loop key;
  loop_begin(e, &key, "keys", emit_long(e, 0), even, 2, sum, registers);
  for (int reg = 0; reg < registers; reg++) next[reg] = key.carried[reg];
  softmax_keys(b, t, key.index, 2, next);
  loop_end(e, &key, next);
  for (int reg = 0; reg < registers; reg++) next[reg] = key.carried[reg];
  branch_block odd;
  branch_begin(e, &odd, "odd", emit_compare(e, IS_LESS, even, n));
  softmax_keys(b, t, even, 1, next);
  branch_end(e, &odd);
  for (int reg = 0; reg < registers; reg++)
    sum[reg] = branch_merge(e, &odd, next[reg], key.carried[reg]);
}

/* Scores of rows with a large maximum lose it before the loop over keys. */
static void softmax_large(build *b, softmax_tile *t, ref n, ref bias) {
  emit *e = &b->emit;
  int registers = b->isa->registers;
  ref_type type = emit_vector(e->f32, e->width);
  ref large[REGISTERS_MAX] = {0}, score[REGISTERS_MAX];
  for (int reg = 0; reg < registers; reg++)
    large[reg] = large_of(b, &t->turn[reg]);
  branch_block some;
  loop key;
  branch_begin(e, &some, "large", large_any(b, large, registers));
  loop_begin(e, &key, "settle", emit_long(e, 0), n, 1, NULL, 0);
  ref place = tile_row_at(b, t->s, key.index);
  tile_load_row(b, type, place, score);
  for (int reg = 0; reg < registers; reg++)
    score[reg] =
        large_score(b, score[reg], large[reg], &t->turn[reg], bias);
  tile_store_row(b, score, place);
  loop_end(e, &key, NULL);
  branch_end(e, &some);
  for (int reg = 0; reg < registers; reg++)
    large_settle(b, large[reg], &t->turn[reg]);
}

void tile_softmax(build *b, bool drop) {
  emit *e = &b->emit;
  ref sum[REGISTERS_MAX];
  emit_function(e, drop ? "softmax_drop" : "softmax", 'v',
                drop ? "pplffpppppp" : "pplffpppp");
  softmax_noalias(b);
  softmax_tile t = {.s = emit_parameter(e, 0), .p = emit_parameter(e, 1)};
  ref n = emit_parameter(e, 2), bias = emit_parameter(e, 4);
  if (drop) {
    t.keys = emit_parameter(e, 10);
    tile_load_row(b, emit_vector(e->i32, e->width), emit_parameter(e, 9),
                  t.rows);
  }
  softmax_rescale(b, &t, emit_parameter(e, 3), bias);
  softmax_large(b, &t, n, bias);
  softmax_all(b, &t, n, sum);
  softmax_sum(b, sum);
  emit_return(e, NULL);
}
