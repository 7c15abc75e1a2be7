/* dropout.c - which weights stay: Philox 4x32-10 with counter (j >> 2, t, h, b)
 * and the call's seed as key, word j & 3 of its four. Lanes hold the queries
 * in a tile and the keys in a row. */
#include "cpu.h"
#include <math.h>
#include <stddef.h>

enum { ROUNDS = 10 };

/* The 64-bit products of the lanes of x with a constant: low and high words. */
static void multiply_wide(build *b, ref x, uint32_t factor, ref *low,
                          ref *high) {
  const emit *e = &b->emit;
  int64_t lower = 0xffffffff;
  ref pairs =
      LLVMBuildBitCast(e->builder, x, emit_vector(e->i64, e->width / 2), "");
  ref even = emit_mul(e, emit_and(e, pairs, emit_long(e, lower)),
                      emit_long(e, factor));
  ref odd = emit_mul(e, emit_shift_right(e, pairs, 32), emit_long(e, factor));
  ref words = emit_or(e, emit_and(e, even, emit_long(e, lower)),
                      emit_shift_left(e, odd, 32));
  ref tops = emit_or(e, emit_shift_right(e, even, 32),
                     emit_and(e, odd, emit_long(e, ~lower)));
  *low = LLVMBuildBitCast(e->builder, words, LLVMTypeOf(x), "");
  *high = LLVMBuildBitCast(e->builder, tops, LLVMTypeOf(x), "");
}

/* counter[4] lanes and key[2] in, the four random words out. */
static void philox(build *b, ref *counter, ref const *key) {
  emit *e = &b->emit;
  ref carried[6], next[6], low[2], high[2];
  for (int i = 0; i < 4; i++)
    carried[i] = emit_is_vector(counter[i])
                     ? counter[i]
                     : emit_splat(e, counter[i], e->width);
  carried[4] = key[0];
  carried[5] = key[1];
  loop turn;
  loop_begin(e, &turn, "philox", emit_long(e, 0), emit_long(e, ROUNDS), 1,
             carried, 6);
  multiply_wide(b, turn.carried[0], 0xD2511F53, &low[0], &high[0]);
  multiply_wide(b, turn.carried[2], 0xCD9E8D57, &low[1], &high[1]);
  next[0] = emit_xor(e, emit_xor(e, high[1], turn.carried[1]), turn.carried[4]);
  next[1] = low[1];
  next[2] = emit_xor(e, emit_xor(e, high[0], turn.carried[3]), turn.carried[5]);
  next[3] = low[0];
  next[4] = emit_add(e, turn.carried[4], emit_word(e, 0x9E3779B9));
  next[5] = emit_add(e, turn.carried[5], emit_word(e, 0xBB67AE85));
  loop_end(e, &turn, next);
  for (int i = 0; i < 4; i++) counter[i] = turn.carried[i];
}

/* Weights that stay are divided by 1 - P, the others are 0. */
static ref keep_weight(build *b, ref weight, ref word) {
  const emit *e = &b->emit;
  double share = b->plan->table.dropout;
  ref limit = emit_word(e, (int64_t)floor(share * 0x1p32));
  return emit_select(e, emit_below(e, word, limit), emit_real(e, 0),
                     emit_mul(e, weight, emit_real(e, 1 / (1 - share))));
}

/* Counter and key of a call, but for the positions. */
typedef struct stream {
  ref batch, head, key[2];
} stream;

static stream stream_of(build *b, ref env) {
  const emit *e = &b->emit;
  ref word[4];
  static const size_t offset[4] = {
      offsetof(dil_env, batch), offsetof(dil_env, head),
      offsetof(dil_env, seed_low), offsetof(dil_env, seed_high)};
  for (int i = 0; i < 4; i++)
    word[i] =
        emit_load(e, e->i32, emit_offset(e, env, (int64_t)offset[i]), CELL);
  return (stream){word[0], word[1], {word[2], word[3]}};
}

/* ---- tiles --------------------------------------------------------------- */

/* void dropout_words(words, t, quad, env): four rows of random lanes, one a
 * key of the quad j >> 2. Stands once in the module: it is long. */
static ref words_function(build *b) {
  emit *e = &b->emit;
  ref t[REGISTERS_MAX];
  emit_function(e, "dropout_words", 'v', "ppwp");
  LLVMSetLinkage(e->function, LLVMInternalLinkage);
  stream from = stream_of(b, emit_parameter(e, 3));
  tile_load_row(b, emit_vector(e->i32, e->width), emit_parameter(e, 1), t);
  for (int reg = 0; reg < b->isa->registers; reg++) {
    ref counter[4] = {emit_parameter(e, 2), t[reg], from.head, from.batch};
    philox(b, counter, from.key);
    for (int word = 0; word < 4; word++)
      emit_store(e, counter[word],
                 emit_offset(e, emit_parameter(e, 0),
                             word * tile_row_bytes(b) + reg * e->width * CELL),
                 (unsigned)e->width * CELL);
  }
  emit_return(e, NULL);
  return e->function;
}

void dropout_open(build *b, dropout *d) {
  d->function = words_function(b);
}

void dropout_tile(build *b, dropout *d, ref t, ref j, ref env) {
  const emit *e = &b->emit;
  d->t = t;
  d->j = j;
  d->env = env;
  d->words = emit_room(e, e->i32, 4 * b->lanes, 64);
  d->quad = emit_room(e, e->i32, 1, CELL);
  emit_store(e, emit_word(e, -1), d->quad, CELL); /* no j has it */
}

/* Keys in a row share their quad: its words are made when j >> 2 changes. */
static void refresh_words(build *b, dropout *d, ref quad) {
  emit *e = &b->emit;
  branch_block fresh;
  ref argument[] = {d->words, d->t, quad, d->env};
  branch_begin(
      e, &fresh, "fresh",
      emit_compare(e, IS_UNEQUAL, quad, emit_load(e, e->i32, d->quad, CELL)));
  emit_store(e, quad, d->quad, CELL);
  LLVMBuildCall2(e->builder, LLVMGlobalGetValueType(d->function), d->function,
                 argument, 4, "");
  branch_end(e, &fresh);
}

void dropout_row(build *b, dropout *d, ref key, ref *weight) {
  emit *e = &b->emit;
  ref word[REGISTERS_MAX];
  ref j = emit_load(
      e, e->i32, emit_at(e, d->j, emit_mul(e, key, emit_long(e, CELL))), CELL);
  refresh_words(b, d, emit_shift_right(e, j, 2));
  ref which =
      emit_convert(e, LLVMZExt, emit_and(e, j, emit_word(e, 3)), e->i64);
  tile_load_row(b, emit_vector(e->i32, e->width),
                tile_row_at(b, d->words, which), word);
  for (int reg = 0; reg < b->isa->registers; reg++)
    weight[reg] = keep_weight(b, weight[reg], word[reg]);
}

/* ---- rows ---------------------------------------------------------------- */

ref dropout_lanes(build *b, dropout *d, ref j, ref weight) {
  emit *e = &b->emit;
  stream from = stream_of(b, d->env);
  ref counter[4] = {emit_shift_right(e, j, 2), d->t, from.head, from.batch};
  philox(b, counter, from.key);
  ref which = emit_and(e, j, emit_word(e, 3)), word = counter[0];
  for (int i = 1; i < 4; i++)
    word = emit_select(e, emit_compare(e, IS_EQUAL, which, emit_word(e, i)),
                       counter[i], word);
  return keep_weight(b, weight, word);
}
