/* arch.h - what the code generator asks of the processor's architecture: one
 * table of functions and facts. A folder beside x86/ that defines host_arch
 * makes another architecture; runtime/arch.h is the run time's side of it. */
#ifndef DIL_COMPILER_CODEGEN_CPU_EMIT_ARCH_H
#define DIL_COMPILER_CODEGEN_CPU_EMIT_ARCH_H

#include "emit.h"

/* A row of runtime/cpu/x86/isa.def, which says what the fields mean. */
typedef struct isa {
  const char *name;      /* as a user says it */
  const char *processor; /* LLVM's names of what may be used */
  const char *features;
  const char *vector_bits; /* of a register */
  int width;             /* floats in a vector register */
  int registers;         /* that hold the lanes of a tile */
  int key_block;         /* keys of a register block of Q K^T */
  int value_block;       /* dimensions of a register block of P V */
  bool scales_by_power;  /* has vscalefps: x * 2^n in one instruction */
  bool dot_bf16;         /* has vdpbf16ps: pairs of bf16 into f32 */
  bool tiles;            /* has tdpbf16ps: 16 x 16 sums of such pairs */
} isa;

typedef struct arch {
  const char *name;   /* as messages say it */
  const char *triple; /* of LLVM's target */
  isa plain; /* of every machine, for code without lanes */
  void (*initialize)(void); /* LLVM's target */

  /* The word that says how arithmetic treats subnormal numbers, to a place on
   * the stack and back, and the bits of it that flush them to zero. */
  void (*read_mode)(emit *e, ref place);
  void (*write_mode)(emit *e, ref place);
  int32_t subnormal_bits;

  /* x * 2^n for an n with integer values, with overflow and underflow; only
   * where isa.scales_by_power. */
  ref (*scale_by_power)(emit *e, ref x, ref n);
  /* The nearest integers, as such; 0x80000000 for what has none. Only where
   * isa.scales_by_power is not. */
  ref (*nearest_words)(emit *e, ref x);
  /* sum += the products of the two bf16 of each lane; only with isa.dot_bf16,
   * as is the next one. */
  ref (*dot_pairs)(emit *e, ref sum, ref cell, ref row);
  /* Two rows of f32 as bf16 pairs: lane by lane (first, second). */
  ref (*round_pairs)(emit *e, ref first, ref second);
  /* The same, but all of the first and then all of the second. */
  ref (*round_rows)(emit *e, ref first, ref second);
  /* Registers of 16 rows of 64 bytes, by number; only with isa.tiles. A function
   * opens them before their first use and closes them before it returns. `room`: 64
   * bytes. tile_multiply: sum[m][n] += the sum over k of the pairs a[m][k] b[k][n]. */
  void (*tiles_open)(emit *e, ref room);
  void (*tiles_close)(emit *e);
  void (*tile_clear)(emit *e, int tile);
  void (*tile_load)(emit *e, int tile, ref place, int64_t stride);
  void (*tile_store)(emit *e, int tile, ref place, int64_t stride);
  void (*tile_multiply)(emit *e, int sum, int a, int b);
} arch;

/* Of the processor that this build is for. */
extern const arch host_arch;

#endif
