/* exact.c - expressions are IEEE arithmetic with subnormal numbers, whatever
 * the caller's mode: worker threads flush them to zero for the sake of the
 * matrix products, and a mask must keep the same pairs on every target. */
#include "cpu.h"

enum { FLUSH_SUBNORMALS = 0x8040 }; /* of MXCSR: results and operands */

static void control_word(build *b, const char *intrinsic, ref place) {
  emit_intrinsic(&b->emit, intrinsic, NULL, 0, &place, 1);
}

exact exact_open(build *b) {
  const emit *e = &b->emit;
  return (exact){emit_room(e, e->i32, 1, CELL), emit_room(e, e->i32, 1, CELL)};
}

void exact_begin(build *b, const exact *x) {
  emit *e = &b->emit;
  control_word(b, "llvm.x86.sse.stmxcsr", x->before);
  ref word = emit_and(e, emit_load(e, e->i32, x->before, CELL),
                      emit_word(e, ~FLUSH_SUBNORMALS));
  emit_store(e, word, x->during, CELL);
  control_word(b, "llvm.x86.sse.ldmxcsr", x->during);
  emit_block(e, "exact"); /* no arithmetic moves up across it */
}

void exact_end(build *b, const exact *x) {
  emit_block(&b->emit, "after");
  control_word(b, "llvm.x86.sse.ldmxcsr", x->before);
}
