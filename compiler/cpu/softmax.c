/* softmax.c - weights from scores, with the running maximum m and sum l of
 * each lane: p = 2^(c2 s + bias - m), one fused multiply-add before the power.
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

ref softmax_weight(build *b, ref score, ref c2, const softmax_turn *turn,
                   bool careful) {
  emit *e = &b->emit;
  ref x = emit_fma(e, c2, score, turn->shift);
  if (careful) {
    ref below = emit_sub(e, emit_mul(e, c2, score), turn->base);
    x = emit_select(e, turn->large, emit_add(e, below, turn->bias), x);
  }
  return math_power(b, x, b->exp_degree);
}

ref softmax_is_large(build *b, const softmax_turn *turn, int parts) {
  emit *e = &b->emit;
  ref any = turn[0].large;
  for (int part = 1; part < parts; part++)
    any = emit_or(e, any, turn[part].large);
  return emit_compare(e, IS_UNEQUAL, emit_lanes_word(e, any), emit_long(e, 0));
}

softmax_turn softmax_turn_of(build *b, ref before, ref mx, ref c2, ref bias) {
  emit *e = &b->emit;
  softmax_turn turn = {.bias = bias};
  ref here = emit_mul(e, mx, c2);
  turn.maximum = emit_greater(e, here, before);
  ref none = emit_compare(e, IS_EQUAL, turn.maximum, emit_real(e, -INFINITY));
  turn.base = emit_select(e, none, emit_real(e, 0), turn.maximum);
  ref alpha = math_power(b, emit_sub(e, before, turn.base), b->exp_degree);
  turn.alpha = emit_select(e, none, emit_real(e, 1), alpha);
  turn.shift = emit_sub(e, bias, turn.base);
  turn.large =
      emit_compare(e, IS_GREATER_EQUAL, emit_unary(e, "llvm.fabs", turn.base),
                   emit_real(e, LARGE_MAXIMUM));
  return turn;
}

/* What the loop over keys needs. */
typedef struct softmax_tile {
  ref s, p, c2;
  bool careful; /* some row of the tile has a large maximum */
  softmax_turn turn[PARTS_MAX];
  dropout *drop; /* NULL: none */
} softmax_tile;

/* Two rows of weights as bf16 pairs: lane by lane (first, second). */
static ref pack_pair(build *b, ref first, ref second) {
  emit *e = &b->emit;
  int lane[64], width = e->width;
  ref argument[] = {second, first};
  ref both = emit_intrinsic(e, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", NULL, 0,
                            argument, 2);
  for (int i = 0; i < 2 * width; i++) lane[i] = i % 2 * width + i / 2;
  return emit_shuffle(e, both, both, lane, 2 * width);
}

/* Stores the weights of `count` (1 or 2) keys from key `index` on. */
static void store_weights(build *b, const softmax_tile *t, ref index,
                          ref weight[2][PARTS_MAX], int count) {
  emit *e = &b->emit;
  ref packed[PARTS_MAX];
  if (b->pack == 1) {
    ref place = tile_row_at(b, t->p, index);
    for (int key = 0; key < count; key++)
      tile_store_row(b, weight[key],
                     emit_offset(e, place, key * tile_row_bytes(b)));
    return;
  }
  for (int part = 0; part < b->isa->parts; part++)
    packed[part] = pack_pair(b, weight[0][part],
                             count == 2 ? weight[1][part]
                                        : emit_zero(LLVMTypeOf(weight[0][0])));
  ref half = emit_long(e, tile_row_bytes(b) / 2);
  tile_store_row(b, packed, emit_at(e, t->p, emit_mul(e, index, half)));
}

/* Weights of `count` keys from `index` on; `sum` grows by them. */
static void softmax_keys(build *b, const softmax_tile *t, ref index, int count,
                         ref *sum) {
  emit *e = &b->emit;
  int parts = b->isa->parts;
  ref weight[2][PARTS_MAX];
  ref place = tile_row_at(b, t->s, index);
  for (int key = 0; key < count; key++) {
    tile_load_row(b, emit_vector(e->f32, e->width),
                  emit_offset(e, place, key * tile_row_bytes(b)), weight[key]);
    for (int part = 0; part < parts; part++)
      weight[key][part] = softmax_weight(b, weight[key][part], t->c2,
                                         &t->turn[part], t->careful);
  }
  for (int part = 0; part < parts; part++)
    sum[part] =
        emit_add(e, sum[part],
                 count == 1 ? weight[0][part]
                            : emit_add(e, weight[0][part], weight[1][part]));
  for (int key = 0; key < count && t->drop != NULL; key++)
    dropout_row(b, t->drop, emit_add(e, index, emit_long(e, key)), weight[key]);
  store_weights(b, t, index, weight, count);
}

/* m and alpha in memory move on. */
static void softmax_rescale(build *b, softmax_tile *t, ref bias) {
  emit *e = &b->emit;
  ref_type type = emit_vector(e->f32, e->width);
  ref mx[PARTS_MAX], m[PARTS_MAX], alpha[PARTS_MAX];
  tile_load_row(b, type, emit_parameter(e, 5), mx);
  tile_load_row(b, type, emit_parameter(e, 6), m);
  for (int part = 0; part < b->isa->parts; part++) {
    t->turn[part] = softmax_turn_of(b, m[part], mx[part], t->c2, bias);
    m[part] = t->turn[part].maximum;
    alpha[part] = t->turn[part].alpha;
  }
  tile_store_row(b, m, emit_parameter(e, 6));
  tile_store_row(b, alpha, emit_parameter(e, 8));
}

/* The tile's sum joins l, rescaled. */
static void softmax_sum(build *b, ref const *sum) {
  emit *e = &b->emit;
  ref_type type = emit_vector(e->f32, e->width);
  ref l[PARTS_MAX], alpha[PARTS_MAX];
  tile_load_row(b, type, emit_parameter(e, 7), l);
  tile_load_row(b, type, emit_parameter(e, 8), alpha);
  for (int part = 0; part < b->isa->parts; part++)
    l[part] = emit_fma(e, alpha[part], l[part], sum[part]);
  tile_store_row(b, l, emit_parameter(e, 7));
}

/* Says what is not the same memory: p may be s where both are f32. */
static void softmax_noalias(build *b) {
  for (int i = 5; i < 9; i++) emit_noalias(&b->emit, i);
  if (b->pack == 2) {
    emit_noalias(&b->emit, 0);
    emit_noalias(&b->emit, 1);
  }
}

/* Keys in twos, as bf16 pairs want them, and the odd one at the end. */
static void softmax_all(build *b, const softmax_tile *t, ref n, ref *sum) {
  emit *e = &b->emit;
  int parts = b->isa->parts;
  for (int part = 0; part < parts; part++)
    sum[part] = emit_zero(emit_vector(e->f32, e->width));
  ref even = emit_and(e, n, emit_long(e, -2)), next[PARTS_MAX];
  loop key;
  loop_begin(e, &key, "keys", emit_long(e, 0), even, 2, sum, parts);
  for (int part = 0; part < parts; part++) next[part] = key.carried[part];
  softmax_keys(b, t, key.index, 2, next);
  loop_end(e, &key, next);
  for (int part = 0; part < parts; part++) next[part] = key.carried[part];
  branch_block odd;
  branch_begin(e, &odd, "odd", emit_compare(e, IS_LESS, even, n));
  softmax_keys(b, t, even, 1, next);
  branch_end(e, &odd);
  for (int part = 0; part < parts; part++)
    sum[part] = branch_merge(e, &odd, next[part], key.carried[part]);
}

/* The loop over keys twice: few tiles need the careful one. */
static void softmax_either(build *b, softmax_tile *t, ref n, ref *sum) {
  emit *e = &b->emit;
  int parts = b->isa->parts;
  ref careful[PARTS_MAX];
  branch_block large;
  branch_begin(e, &large, "large", softmax_is_large(b, t->turn, parts));
  t->careful = true;
  softmax_all(b, t, n, careful);
  branch_else(e, &large);
  t->careful = false;
  softmax_all(b, t, n, sum);
  branch_end(e, &large);
  for (int part = 0; part < parts; part++)
    sum[part] = branch_merge(e, &large, careful[part], sum[part]);
}

void tile_softmax(build *b, bool drop) {
  emit *e = &b->emit;
  ref sum[PARTS_MAX];
  dropout state;
  if (drop) dropout_open(b, &state);
  emit_function(e, drop ? "softmax_drop" : "softmax", 'v',
                drop ? "pplffppppppp" : "pplffpppp");
  softmax_noalias(b);
  softmax_tile t = {.s = emit_parameter(e, 0),
                    .p = emit_parameter(e, 1),
                    .c2 = emit_parameter(e, 3)};
  if (drop) {
    dropout_tile(b, &state, emit_parameter(e, 9), emit_parameter(e, 10),
                 emit_parameter(e, 11));
    t.drop = &state;
  }
  softmax_rescale(b, &t, emit_parameter(e, 4));
  softmax_either(b, &t, emit_parameter(e, 2), sum);
  softmax_sum(b, sum);
  emit_return(e, NULL);
}
