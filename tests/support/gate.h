/* gate.h - kernels through the real NVRTC and the gate: which ones the compiler's report
 * lets pass. No GPU is needed. */
#ifndef DIL_TESTS_SUPPORT_GATE_H
#define DIL_TESTS_SUPPORT_GATE_H

#include "gpu.h"

/* Whether NVRTC is here; if not, says so once. */
bool gate_has_compiler(void);
/* The plan of a pattern; a pattern with a problem fails the test. */
plan *gate_plan(const tested_pattern *s, unsigned force);
plan *gate_backward_plan(const tested_pattern *s);
/* Compiles the variants of one family, as common.compile does: those that the gate
 * refuses are left out. The caller frees their cubins. */
void gate_compile_family(const gpu_request *request, const char *family,
                         gpu_codes *made);

#endif
