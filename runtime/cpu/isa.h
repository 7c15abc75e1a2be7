/* isa.h - the instruction sets of the architecture that dil is built for: the
 * rows of its isa.def, and their names as messages list them. */
#ifndef DIL_RUNTIME_CPU_ISA_H
#define DIL_RUNTIME_CPU_ISA_H

/* One line an architecture. */
#if defined __x86_64__
#include "runtime/cpu/x86/isa.def"
#else
#define CPU_ISAS(X)
#define CPU_ISA_LEAST "an instruction set that kernels are made for"
#endif

/* A row as an element of a list of names. */
#define CPU_ISA_NAME(join, id, name, ...) name,
/* "avx2, avx512, avx512bf16 and amx", and the same with "or". */
#define CPU_ISA_NAMES "" CPU_ISAS(CPU_ISA_AND)
#define CPU_ISA_CHOICE "" CPU_ISAS(CPU_ISA_OR)

#define CPU_ISA_AND(join, id, name, ...) CPU_ISA_AND_##join name
#define CPU_ISA_AND_FIRST
#define CPU_ISA_AND_NEXT ", "
#define CPU_ISA_AND_LAST " and "
#define CPU_ISA_OR(join, id, name, ...) CPU_ISA_OR_##join name
#define CPU_ISA_OR_FIRST
#define CPU_ISA_OR_NEXT ", "
#define CPU_ISA_OR_LAST " or "

#endif
