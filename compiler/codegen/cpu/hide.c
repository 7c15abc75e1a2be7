/* hide.c - pairs of a grid's patches by bits: which lanes keep a key is a word
 * that the walk makes for each key. In: scores of a tile. Out: the same, -inf
 * where a bit is 0. */
#include "cpu.h"
#include <math.h>

/* The lanes of register `reg` that the word at `place` keeps. */
static ref kept_lanes(const build *b, ref place, int reg) {
  const emit *e = &b->emit;
  unsigned width = (unsigned)e->width;
  ref bits = emit_load(e, LLVMIntTypeInContext(e->context, width),
                       emit_offset(e, place, reg * e->width / 8), 1);
  return LLVMBuildBitCast(e->builder, bits, LLVMVectorType(e->i1, width), "");
}

void tile_hide(build *b) {
  emit *e = &b->emit;
  int registers = b->isa->registers;
  ref hidden = emit_splat(e, emit_real(e, -INFINITY), e->width);
  ref mx[REGISTERS_MAX], score[REGISTERS_MAX];
  emit_function(e, "hide", 'v', "pplp");
  emit_noalias(e, 0);
  for (int reg = 0; reg < registers; reg++) mx[reg] = hidden;
  loop key;
  loop_begin(e, &key, "keys", emit_long(e, 0), emit_parameter(e, 2), 1, mx,
             registers);
  ref row = tile_row_at(b, emit_parameter(e, 0), key.index);
  ref word = emit_at(e, emit_parameter(e, 3),
                     emit_mul(e, key.index, emit_long(e, 4)));
  tile_load_row(b, emit_vector(e->f32, e->width), row, score);
  for (int reg = 0; reg < registers; reg++) {
    score[reg] = emit_select(e, kept_lanes(b, word, reg), score[reg], hidden);
    mx[reg] = emit_greater(e, score[reg], key.carried[reg]);
  }
  tile_store_row(b, score, row);
  loop_end(e, &key, mx);
  tile_store_row(b, key.carried, emit_parameter(e, 1));
  emit_return(e, NULL);
}
