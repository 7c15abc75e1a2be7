/* plan_serial.h - a plan as bytes without pointers. */
#ifndef DIL_RUNTIME_API_PLAN_SERIAL_H
#define DIL_RUNTIME_API_PLAN_SERIAL_H

#include "runtime/plan_table.h"

#pragma GCC visibility push(default)

/* A plan as one run of bytes without pointers; *bytes is malloced. The same
 * plan gives the same bytes. */
dil_status dil_image_write(const dil_table *table, void **bytes, size_t *size);
/* The table of an image, all in one block that free() gives back. DIL_INPUT
 * for whatever dil_image_write has not written: no damage gets through. */
dil_status dil_image_read(const void *bytes, size_t size, dil_table **table);

#pragma GCC visibility pop
#endif
