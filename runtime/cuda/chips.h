/* chips.h - chips.def as a table, for the compiler, the run time and the
 * emulator: a GPU's facts by its number. */
#ifndef DIL_RUNTIME_CUDA_CHIPS_H
#define DIL_RUNTIME_CUDA_CHIPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The columns are explained in chips.def. */
typedef struct cuda_chip {
  int32_t number;
  const char *suffix, *fast;
  int64_t shared; /* bytes */
  int32_t registers;
  bool q_in_registers;
  const char *model;
  int32_t processors;
  double rate_16, rate_32, memory;
} cuda_chip;

/* Row `index` of the table; NULL: there are fewer. */
static inline const cuda_chip *cuda_chip_row(int32_t index) {
  static const cuda_chip rows[] = {
#define CHIP(number, suffix, fast, shared, registers, q_in_registers, model,   \
             processors, rate_16, rate_32, memory)                             \
  {number, suffix,     fast,    (shared) * 1024, registers, q_in_registers,    \
   model,  processors, rate_16, rate_32,         memory},
#include "chips.def"
#undef CHIP
  };
  return index < (int32_t)(sizeof rows / sizeof *rows) ? &rows[index] : NULL;
}

/* The chip's own row; NULL: it has none. */
static inline const cuda_chip *cuda_chip_of(int32_t arch) {
  const cuda_chip *chip;
  for (int32_t i = 0; (chip = cuda_chip_row(i)) && chip->number != arch; i++)
    continue;
  return chip;
}

/* The chip's own row, or the row before it; NULL: the chip is older than all
 * rows. */
static inline const cuda_chip *cuda_chip_like(int32_t arch) {
  const cuda_chip *found = NULL, *chip;
  for (int32_t i = 0; (chip = cuda_chip_row(i)) && chip->number <= arch; i++)
    found = chip;
  return found;
}

/* "a" for 90, which is compiled as sm_90a. */
static inline const char *cuda_chip_suffix(int32_t arch) {
  const cuda_chip *chip = cuda_chip_of(arch);
  return chip ? chip->suffix : "";
}

/* The family of fast kernels of this chip; NULL: it has none. */
static inline const char *cuda_chip_fast(int32_t arch) {
  const cuda_chip *chip = cuda_chip_of(arch);
  return chip ? chip->fast : NULL;
}

/* Returns whether a family is the fast one of some chip, or that of its grids, of
 * its gathered rows or of its lists of blocks. */
static inline bool cuda_is_fast(const char *family) {
  const cuda_chip *chip;
  for (int32_t i = 0; (chip = cuda_chip_row(i)); i++) {
    size_t size = chip->fast ? strlen(chip->fast) : 0;
    if (size && !strncmp(chip->fast, family, size) &&
        (!family[size] || !strcmp(family + size, "_grid") ||
         !strcmp(family + size, "_gather") ||
         !strcmp(family + size, "_block_list")))
      return true;
  }
  return false;
}

/* Returns the chip that stands for an unknown one: the first row with a fast
 * family and figures. */
static inline const cuda_chip *cuda_chip_measured(void) {
  const cuda_chip *chip;
  for (int32_t i = 0; (chip = cuda_chip_row(i)); i++)
    if (chip->model && chip->fast) return chip;
  return cuda_chip_row(0);
}

#endif
