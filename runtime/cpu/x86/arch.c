/* arch.c - x86-64 as the run time asks for it. */
#include "x86.h"
#include "runtime/arch.h"
#include <elf.h>
#include <immintrin.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

static void x86_pause(void) {
  _mm_pause();
}

static uint32_t x86_flush_subnormals(void) {
  uint32_t mode = _mm_getcsr();
  _mm_setcsr(mode | X86_FLUSH_SUBNORMALS);
  return mode;
}

static void x86_restore_mode(uint32_t mode) {
  _mm_setcsr(mode);
}

static const arch_relocation x86_relocations[] = {
    [R_X86_64_NONE] = {0, RANGE_ANY, false, false, true},
    [R_X86_64_64] = {8, RANGE_ANY, false, false, true},
    [R_X86_64_PC64] = {8, RANGE_ANY, true, false, true},
    [R_X86_64_32] = {4, RANGE_UNSIGNED, false, false, true},
    [R_X86_64_32S] = {4, RANGE_SIGNED, false, false, true},
    [R_X86_64_PC32] = {4, RANGE_SIGNED, true, false, true},
    [R_X86_64_PLT32] = {4, RANGE_SIGNED, true, false, true},
    [R_X86_64_GOTPCREL] = {4, RANGE_SIGNED, true, true, true},
    [R_X86_64_GOTPCRELX] = {4, RANGE_SIGNED, true, true, true},
    [R_X86_64_REX_GOTPCRELX] = {4, RANGE_SIGNED, true, true, true},
};

/* Linux lets a process use tiles when it asks: the threads' states become larger. */
static bool x86_may_use_tiles(void) {
  enum { REQUEST = 0x1023 /* ARCH_REQ_XCOMP_PERM */, TILE_DATA = 18 };
  static atomic_int known; /* 1: no, 2: yes */
  int may = atomic_load(&known);
  if (!may) may = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) ? 1 : 2;
  atomic_store(&known, may);
  return may == 2;
}

#define HAS(what) __builtin_cpu_supports(what)
#define X86_PRESENT(join, id, name, processor, features, needs, ...)           \
  static bool x86_has_##id(void) {                                             \
    return needs;                                                              \
  }
CPU_ISAS(X86_PRESENT)

/* Intel's processors (measured: Sapphire Rapids) begin a vdpbf16ps in every second
 * cycle, and two multiply-adds of f32 in each: half as many products. */
static bool x86_pairs_are_slow(void) {
  return __builtin_cpu_is("intel");
}

#define X86_ISA(join, id, name, processor, features, needs, vector, bits,      \
                width, registers, key_block, value_block, scales_by_power,     \
                dot_bf16, tiles)                                               \
  {name,                                                                       \
   x86_has_##id,                                                               \
   width,                                                                      \
   dot_bf16,                                                                   \
   tiles,                                                                      \
   (tiles) ? X86_TILE_OPERATIONS : X86_PEAK_SUMS * 4 * (width),                \
   (dot_bf16) && !(tiles) ? x86_pairs_are_slow : NULL,                         \
   x86_multiply_##id,                                                          \
   (tiles) ? x86_multiply_tiles : x86_dot_pairs_##id},
static const arch_isa x86_isas[] = {CPU_ISAS(X86_ISA)};

const dil_arch dil_host_arch = {
    .name = "x86-64",
    .pause = x86_pause,
    .flush_subnormals = x86_flush_subnormals,
    .restore_mode = x86_restore_mode,
    .elf_machine = EM_X86_64,
    .elf_unwind = SHT_X86_64_UNWIND,
    .relocation_count = sizeof x86_relocations / sizeof *x86_relocations,
    .relocations = x86_relocations,
    .isa_count = sizeof x86_isas / sizeof *x86_isas,
    .isas = x86_isas,
    .peak_sums = X86_PEAK_SUMS,
    .f16_to_f32 = x86_f16_to_f32,
    .bf16_to_f32 = x86_bf16_to_f32,
    .f32_to_f16 = x86_f32_to_f16,
    .f32_to_bf16 = x86_f32_to_bf16,
    .is_finite = x86_is_finite,
    .interleave = x86_interleave,
    .panel = x86_panel,
    .words_to_lanes = x86_words_to_lanes,
    .lanes_to_rows = x86_lanes_to_rows,
};
