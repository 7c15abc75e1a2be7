/* dropout.c - which weights stay. Each row and each key of a head has a random
 * word: word 0 of Philox 4x32-10 with counter (position, h, b, side) and the
 * call's seed as key. A pair mixes its two words by multiplications, after the
 * hash of Wellons ("Prospecting for Hash Functions", 2018). Lanes hold the
 * queries in a tile and the keys in a row. */
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

/* counter[4] lanes and key[2] in, the first of the four random words out. */
static ref philox(build *b, ref const *counter, ref const *key) {
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
  return turn.carried[0];
}

static ref env_word(build *b, ref env, size_t offset) {
  const emit *e = &b->emit;
  return emit_load(e, e->i32, emit_offset(e, env, (int64_t)offset), CELL);
}

void dropout_words(build *b) {
  emit *e = &b->emit;
  emit_function(e, "dropout_words", 'v', "plwpp");
  ref n = emit_parameter(e, 1), env = emit_parameter(e, 3);
  const ref key[2] = {env_word(b, env, offsetof(dil_env, seed_low)),
                      env_word(b, env, offsetof(dil_env, seed_high))};
  ref head = env_word(b, env, offsetof(dil_env, head));
  ref batch = env_word(b, env, offsetof(dil_env, batch));
  loop at;
  loop_begin(e, &at, "positions", emit_long(e, 0), n, e->width, NULL, 0);
  ref bytes = emit_mul(e, at.index, emit_long(e, CELL));
  ref there = lanes_before(b, emit_sub(e, n, at.index));
  ref position =
      emit_load_masked(e, emit_vector(e->i32, e->width),
                       emit_at(e, emit_parameter(e, 0), bytes), there, CELL);
  const ref counter[4] = {position, head, batch, emit_parameter(e, 2)};
  emit_store_masked(e, philox(b, counter, key),
                    emit_at(e, emit_parameter(e, 4), bytes), there, CELL);
  loop_end(e, &at, NULL);
  emit_return(e, NULL);
}

ref dropout_weight(build *b, ref row, ref key, ref weight) {
  const emit *e = &b->emit;
  double share = b->plan->table.dropout;
  ref u = emit_mul(e, emit_xor(e, row, key), emit_word(e, 0x7FEB352D));
  u = emit_xor(e, u, emit_shift_right(e, u, 15));
  u = emit_mul(e, u, emit_word(e, 0x846CA68B));
  ref limit = emit_word(e, (int64_t)floor(share * 0x1p32));
  return emit_select(e, emit_below(e, u, limit), emit_real(e, 0),
                     emit_mul(e, weight, emit_real(e, 1 / (1 - share))));
}
