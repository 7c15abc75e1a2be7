/* memory.h - see memory.c: memory of the emulated devices. */
#ifndef DIL_TESTS_EMULATOR_MEMORY_H
#define DIL_TESTS_EMULATOR_MEMORY_H

#include "driver.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NULL when the device has no more. */
void *memory_take(int device, size_t size);
/* Fills memory with what nobody should read. */
void memory_spoil(void *at, size_t size);
/* False when it is none, or written beside its end: memory_problem. */
bool memory_give(void *at);
/* The device whose memory that is, -1: of none. */
int memory_device(const void *at);
/* Whether all of the bytes may be read and written by `device` (-1: any):
 * its own memory, that of its peers, or pages that the host has pinned. */
SHOWN bool memory_holds(const void *at, size_t size, int device);
const char *memory_problem(void);
/* The addresses of a device. */
const char *memory_region(int device, size_t *size);
int64_t memory_left(int device);
/* Pages of the host that devices reach. */
void memory_pin(const void *at, size_t size);
bool memory_unpin(const void *at, size_t *size);
bool memory_pinned(const void *at, size_t size);
/* Between these two, memory of devices can be touched; outside of them a host
 * that touches it faults, as it would. They nest. */
SHOWN void memory_open(void);
SHOWN void memory_close(void);
/* Whether every block's guards are as they were: false with memory_problem. */
bool memory_intact(void);

#endif
