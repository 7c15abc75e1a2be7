/* arch.h - what the run time asks of the processor's architecture: one table
 * of functions and facts. A folder beside runtime/cpu/x86 that defines
 * dil_host_arch, and a line of runtime/cpu/isa.h, make another architecture. */
#ifndef DIL_RUNTIME_ARCH_H
#define DIL_RUNTIME_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An instruction set: a row of the architecture's isa.def. */
typedef struct arch_isa {
  const char *name;
  bool (*present)(void);  /* on this machine */
  int32_t width;          /* floats in a vector register */
  bool dot_bf16;          /* multiplies pairs of bf16 */
  bool tiles;             /* multiplies them by tiles, 16 x 16 sums at once */
  int32_t pair_operations; /* of a turn of dot_pairs */
  bool (*slow)(void);     /* on this machine the row before it is quicker; NULL: no */
  /* Loops from registers: arch.peak_sums vectors of multiply-adds of f32 a turn; and,
   * only with dot_bf16, pair_operations of bf16. */
  void (*multiply)(int64_t turns);
  void (*dot_pairs)(int64_t turns);
} arch_isa;

/* The range of values that a relocation of an ELF object can store. */
typedef enum arch_range { RANGE_ANY, RANGE_SIGNED, RANGE_UNSIGNED } arch_range;

typedef struct arch_relocation {
  uint32_t width;    /* bytes; 0: nothing to do */
  arch_range limits; /* of the bytes stored */
  bool relative;     /* to the place */
  bool got;          /* the symbol's address stands in a table */
  bool known;
} arch_relocation;

typedef struct dil_arch {
  const char *name; /* as messages say it */

  /* Waiting: one turn of a loop that spins. */
  void (*pause)(void);
  /* The calling thread flushes subnormal numbers from now on; the mode it had
   * is returned, and set again by restore_mode. */
  uint32_t (*flush_subnormals)(void);
  void (*restore_mode)(uint32_t mode);

  /* ELF objects: e_machine, the section type of unwind tables (0: it has none
   * of its own), and relocations by type. */
  uint16_t elf_machine;
  uint32_t elf_unwind;
  size_t relocation_count;
  const arch_relocation *relocations;

  /* By strength: each holds the ones before it. */
  int32_t isa_count;
  const arch_isa *isas;
  int32_t peak_sums;

  /* Rows of n elements, any n. To 16 bits is to the nearest, ties to even; a
   * NaN stays one. */
  void (*f16_to_f32)(const uint16_t *from, int32_t n, float *out);
  void (*bf16_to_f32)(const uint16_t *from, int32_t n, float *out);
  void (*f32_to_f16)(const float *from, int32_t n, uint16_t *out);
  void (*f32_to_bf16)(const float *from, int32_t n, uint16_t *out);
  bool (*is_finite)(const float *row, int32_t n);
  /* out[i] = {even[i], odd[i]} of bf16; true when all are finite. */
  bool (*interleave)(const uint16_t *even, const uint16_t *odd, int32_t n,
                     uint16_t *out);
  /* out[n][lane] = sum of rows[n][d] * panel[d][lane] over d below width, in
   * their order, for 16 lanes; each row has `width` elements. */
  void (*panel)(const float *rows, int32_t count, const float *panel,
                int32_t width, float *out);
  /* words[lane] holds `count` 32-bit words: out[word][lane]. Here and below
   * lanes is a multiple of 8, and what has lanes is aligned to 64 bytes. */
  void (*words_to_lanes)(const float *const *words, int32_t count,
                         int32_t lanes, float *out);
  /* out[lane][d] = o[d][lane] * factor[lane] for d below width. */
  void (*lanes_to_rows)(const float *o, int32_t width, int32_t lanes,
                        const float *factor, float *const *out);
} dil_arch;

/* Of the processor that this build is for. */
#pragma GCC visibility push(default)
extern const dil_arch dil_host_arch;
#pragma GCC visibility pop

#endif
