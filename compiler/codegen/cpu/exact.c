/* exact.c - expressions are IEEE arithmetic with subnormal numbers, whatever
 * the caller's mode: worker threads flush them to zero for the sake of the
 * matrix products, and a mask must keep the same pairs on every target. */
#include "cpu.h"

exact exact_open(build *b) {
  const emit *e = &b->emit;
  return (exact){emit_room(e, e->i32, 1, CELL), emit_room(e, e->i32, 1, CELL)};
}

void exact_begin(build *b, const exact *x) {
  emit *e = &b->emit;
  host_arch.read_mode(&b->emit, x->before);
  ref word = emit_and(e, emit_load(e, e->i32, x->before, CELL),
                      emit_word(e, ~host_arch.subnormal_bits));
  emit_store(e, word, x->during, CELL);
  host_arch.write_mode(&b->emit, x->during);
  emit_block(e, "exact"); /* no arithmetic moves up across it */
}

void exact_end(build *b, const exact *x) {
  emit_block(&b->emit, "after");
  host_arch.write_mode(&b->emit, x->before);
}
