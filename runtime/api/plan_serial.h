/* plan_serial.h - a plan as bytes without pointers. */
#ifndef DIL_RUNTIME_API_PLAN_SERIAL_H
#define DIL_RUNTIME_API_PLAN_SERIAL_H

#include "runtime/plan_table.h"

#pragma GCC visibility push(default)

/* A plan as one run of bytes without pointers; *bytes is malloced. The same
 * plan gives the same bytes. */
dil_status dil_plan_serialise(const dil_table *table, void **bytes,
                              size_t *size);
/* The table of a serialised plan, all in one block that free() gives back.
 * DIL_INPUT for whatever dil_plan_serialise has not written: no damage gets
 * through. */
dil_status dil_plan_deserialise(const void *bytes, size_t size,
                                dil_table **table);

#pragma GCC visibility pop
#endif
