/* arch.c - x86-64 as the code generator asks for it. */
#include "compiler/codegen/cpu/emit/arch.h"
#include "runtime/cpu/x86/x86.h"
#include <assert.h>
#include <llvm-c/Target.h>
#include <stddef.h>

static void x86_initialize(void) {
  LLVMInitializeX86TargetInfo();
  LLVMInitializeX86Target();
  LLVMInitializeX86TargetMC();
  LLVMInitializeX86AsmPrinter();
}

static void x86_read_mode(emit *e, ref place) {
  emit_intrinsic(e, "llvm.x86.sse.stmxcsr", NULL, 0, &place, 1);
}

static void x86_write_mode(emit *e, ref place) {
  emit_intrinsic(e, "llvm.x86.sse.ldmxcsr", NULL, 0, &place, 1);
}

/* vscalefps: only where isa.scales_by_power. */
static ref x86_scale_by_power(emit *e, ref x, ref n) {
  ref argument[] = {x, n, emit_zero(LLVMTypeOf(x)),
                    LLVMConstInt(e->i16, 0xffff, false), emit_word(e, 4)};
  return emit_intrinsic(e, "llvm.x86.avx512.mask.scalef.ps.512", NULL, 0,
                        argument, 5);
}

static ref x86_nearest_words(emit *e, ref x) {
  assert(e->width == 8);
  return emit_intrinsic(e, "llvm.x86.avx.cvt.ps2dq.256", NULL, 0, &x, 1);
}

static ref x86_dot_pairs(emit *e, ref sum, ref cell, ref row) {
  ref argument[] = {sum, cell, row};
  return emit_intrinsic(e, "llvm.x86.avx512bf16.dpbf16ps.512", NULL, 0,
                        argument, 3);
}

static ref x86_round_rows(emit *e, ref first, ref second) {
  ref argument[] = {second, first};
  return emit_intrinsic(e, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", NULL, 0,
                        argument, 2);
}

static ref x86_round_pairs(emit *e, ref first, ref second) {
  int lane[64], width = e->width;
  ref both = x86_round_rows(e, first, second);
  for (int i = 0; i < 2 * width; i++) lane[i] = i % 2 * width + i / 2;
  return emit_shuffle(e, both, both, lane, 2 * width);
}

/* ---- tiles --------------------------------------------------------------- */

enum { TILES = 8, TILE_ROWS = 16, TILE_BYTES = 64 };

/* Palette 1, all tiles whole: bytes of a row from byte 16 on, two each; rows from byte
 * 48 on. */
static void x86_tiles_open(emit *e, ref room) {
  ref word[16];
  for (int i = 0; i < 16; i++) {
    int64_t bits = i == 0 ? 1 : 0;
    if (i >= 4 && i < 4 + TILES / 2) bits = TILE_BYTES | TILE_BYTES << 16;
    if (i >= 12 && i < 12 + TILES / 4) bits = TILE_ROWS * 0x01010101;
    word[i] = emit_word(e, bits);
  }
  emit_store(e, LLVMConstVector(word, 16), room, 64);
  emit_intrinsic(e, "llvm.x86.ldtilecfg", NULL, 0, &room, 1);
}

static void x86_tiles_close(emit *e) {
  emit_intrinsic(e, "llvm.x86.tilerelease", NULL, 0, NULL, 0);
}

static ref tile_number(emit *e, int tile) {
  return LLVMConstInt(e->i8, (unsigned long long)tile, false);
}

static void x86_tile_clear(emit *e, int tile) {
  ref argument = tile_number(e, tile);
  emit_intrinsic(e, "llvm.x86.tilezero", NULL, 0, &argument, 1);
}

static void x86_tile_load(emit *e, int tile, ref place, int64_t stride) {
  ref argument[] = {tile_number(e, tile), place, emit_long(e, stride)};
  emit_intrinsic(e, "llvm.x86.tileloadd64", NULL, 0, argument, 3);
}

static void x86_tile_store(emit *e, int tile, ref place, int64_t stride) {
  ref argument[] = {tile_number(e, tile), place, emit_long(e, stride)};
  emit_intrinsic(e, "llvm.x86.tilestored64", NULL, 0, argument, 3);
}

static void x86_tile_multiply(emit *e, int sum, int a, int b) {
  ref argument[] = {tile_number(e, sum), tile_number(e, a), tile_number(e, b)};
  emit_intrinsic(e, "llvm.x86.tdpbf16ps", NULL, 0, argument, 3);
}

const arch host_arch = {
    .name = "x86-64",
    .triple = "x86_64-unknown-linux-gnu",
    .plain = {.processor = "x86-64",
              .features = "",
              .vector_bits = "256",
              .width = 4,
              .registers = 1},
    .initialize = x86_initialize,
    .subnormal_bits = X86_FLUSH_SUBNORMALS,
    .read_mode = x86_read_mode,
    .write_mode = x86_write_mode,
    .scale_by_power = x86_scale_by_power,
    .nearest_words = x86_nearest_words,
    .dot_pairs = x86_dot_pairs,
    .round_pairs = x86_round_pairs,
    .round_rows = x86_round_rows,
    .tiles_open = x86_tiles_open,
    .tiles_close = x86_tiles_close,
    .tile_clear = x86_tile_clear,
    .tile_load = x86_tile_load,
    .tile_store = x86_tile_store,
    .tile_multiply = x86_tile_multiply,
};
