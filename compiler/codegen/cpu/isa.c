/* isa.c - the table of instruction sets, weakest first. A new one is a row
 * here and, where its blocks are shaped otherwise, a file beside tile.c. */
#include "cpu.h"
#include <string.h>

static bool has_avx2(void) {
  return __builtin_cpu_supports("x86-64-v3") != 0;
}

static bool has_avx512(void) {
  return __builtin_cpu_supports("x86-64-v4") != 0;
}

static bool has_avx512bf16(void) {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") != 0;
}

/* Register blocks: key_block * parts accumulators, `parts` operands and a
 * broadcast must fit 16 (avx2) or 32 registers, and cover the latency of a
 * multiply-add on two pipes. */
static const isa table[] = {
    {.name = "avx2",
     .processor = "x86-64-v3",
     .features = "",
     .present = has_avx2,
     .width = 8,
     .parts = 2,
     .key_block = 6,
     .value_block = 6},
    {.name = "avx512",
     .processor = "x86-64-v4",
     .features = "",
     .present = has_avx512,
     .width = 16,
     .parts = 2,
     .key_block = 8,
     .value_block = 8,
     .scales_by_power = true},
    {.name = "avx512bf16",
     .processor = "x86-64-v4",
     .features = "+avx512bf16",
     .present = has_avx512bf16,
     .width = 16,
     .parts = 2,
     .key_block = 8,
     .value_block = 8,
     .scales_by_power = true,
     .dot_bf16 = true},
};
enum { ISA_COUNT = sizeof table / sizeof *table };

const isa *isa_find(const char *name) {
  for (int i = 0; i < ISA_COUNT; i++)
    if (strcmp(table[i].name, name) == 0) return &table[i];
  return NULL;
}

const isa *isa_host(void) {
  for (int i = ISA_COUNT - 1; i >= 0; i--)
    if (table[i].present()) return &table[i];
  return NULL;
}

const char *const *isa_list(void) {
  static const char *names[ISA_COUNT + 1];
  for (int i = 0; i < ISA_COUNT; i++) names[i] = table[i].name;
  return names;
}
