/* cpu_code.h - for the tests of generated code: a plan made by hand, compiled
 * by the back end and loaded. */
#ifndef DIL_TESTS_SUPPORT_CPU_CODE_H
#define DIL_TESTS_SUPPORT_CPU_CODE_H

#include "compiler/codegen/cpu_backend.h"
#include "runtime/cpu/object_load.h"

/* A pattern with one branch; fill the fields that a test needs, then call
 * code_make. All memory is the caller's but what `loaded` holds. */
typedef struct code_case {
  pattern pattern;
  plan plan;
  dil_predicate predicate[DIL_PART_MAX];
  expr *mask[DIL_PART_MAX];
  expr **chain[DIL_PART_MAX];
} code_case;

/* One chain without scores, no predicates, f32. */
void code_case_open(code_case *c, int head_dim, int value_dim, dil_dtype dtype);

typedef struct code_loaded {
  dil_code code;
  dil_object *object;
} code_loaded;

/* Aborts the test when it fails. */
code_loaded code_make(const code_case *c, const char *isa, dil_variant variant,
                      bool debug);
void code_drop(code_loaded *loaded);
void *room_of(size_t count, size_t size); /* 64-byte aligned, filled with NaN */

/* Bytes whose end is the end of what may be touched: the next one faults.
 * Never given back. */
void *room_at_wall(size_t bytes);

/* Whether this machine cannot run code for that instruction set. */
bool lacks(const char *isa);
/* In -1..1, the same on every run. */
float noise(void);

extern const backend *dil_backend_init(void);
const cpu_backend *linked_backend(void); /* the same table */

#endif
