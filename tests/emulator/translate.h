/* translate.h - see translate.c: CUDA C to C++ for the host. */
#ifndef DIL_TESTS_EMULATOR_TRANSLATE_H
#define DIL_TESTS_EMULATOR_TRANSLATE_H

#include <stdbool.h>
#include <stdio.h>

/* Writes the C++ of preprocessed CUDA C to `out`; false with the reason in
 * `problem` where it meets what it does not know. */
bool translate(const char *source, FILE *out, char *problem, size_t size);

#endif
