/* x86.h - what the files of this folder share; arch.c makes a dil_arch of
 * it. */
#ifndef DIL_RUNTIME_CPU_X86_X86_H
#define DIL_RUNTIME_CPU_X86_X86_H

#include "isa.def"
#include <stdbool.h>
#include <stdint.h>

/* Bits of MXCSR: results and operands. */
#define X86_FLUSH_SUBNORMALS 0x8040

/* ---- multiply.c: turns of PEAK_SUMS multiply-adds ------------------------ */

enum { X86_PEAK_SUMS = 14 };
#define X86_LOOPS(join, id, ...)                                               \
  void x86_multiply_##id(int64_t turns);                                       \
  void x86_dot_pairs_##id(int64_t turns);
CPU_ISAS(X86_LOOPS)
#undef X86_LOOPS
/* Products of tiles, four a turn. */
enum { X86_TILE_OPERATIONS = 4 * 16 * 16 * 32 * 2 };
void x86_multiply_tiles(int64_t turns);

/* ---- rows.c: as in dil_arch ---------------------------------------------- */

void x86_f16_to_f32(const uint16_t *from, int32_t n, float *out);
void x86_bf16_to_f32(const uint16_t *from, int32_t n, float *out);
void x86_f32_to_f16(const float *from, int32_t n, uint16_t *out);
void x86_f32_to_bf16(const float *from, int32_t n, uint16_t *out);
bool x86_is_finite(const float *row, int32_t n);
bool x86_interleave(const uint16_t *even, const uint16_t *odd, int32_t n,
                    uint16_t *out);
void x86_panel(const float *rows, int32_t count, const float *panel,
               int32_t width, float *out);
void x86_words_to_lanes(const float *const *words, int32_t count,
                        int32_t lanes, float *out);
void x86_lanes_to_rows(const float *o, int32_t width, int32_t lanes,
                       const float *factor, float *const *out);

#endif
