/* isa.c - the instruction sets as the code generator sees them: rows of
 * runtime/cpu/x86/isa.def, weakest first. A new one is a row there and, where
 * its blocks are shaped otherwise, a file beside tile.c. */
#include "cpu.h"
#include "runtime/cpu/isa.h"
#include <string.h>

#define ISA_ROW(join, id, name, processor, features, needs, vector, bits,      \
                width, registers, key_block, value_block, scales_by_power,     \
                dot_bf16, tiles)                                               \
  {name,      processor, features,    bits,            width,                  \
   registers, key_block, value_block, scales_by_power, dot_bf16, tiles},

/* A tile fits what the run time has room for, a block what a loop carries. */
#define ISA_FITS(join, id, name, processor, features, needs, vector, bits,     \
                 width, registers, key_block, value_block, ...)                \
  _Static_assert(width * registers <= DIL_LANES_MAX, name);                    \
  _Static_assert(registers <= REGISTERS_MAX, name);                            \
  _Static_assert(key_block * registers <= LOOP_CARRIED_MAX, name);             \
  _Static_assert(value_block * registers <= LOOP_CARRIED_MAX, name);
CPU_ISAS(ISA_FITS)

static const isa table[] = {CPU_ISAS(ISA_ROW)};
enum { ISA_COUNT = sizeof table / sizeof *table };

const isa *isa_find(const char *name) {
  for (int i = 0; i < ISA_COUNT; i++)
    if (strcmp(table[i].name, name) == 0) return &table[i];
  return NULL;
}

const char *const *isa_list(void) {
  static const char *const names[] = {CPU_ISAS(CPU_ISA_NAME) NULL};
  return names;
}
