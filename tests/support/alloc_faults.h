/* alloc_faults.h - allocations and their like that fail when a test says so.
 *
 * A program linked with the --wrap options of the Makefile has every call of
 * malloc, mmap, pthread_create, ... from our own objects go through here. What
 * is allocated and not given back is counted. */
#ifndef DIL_TESTS_SUPPORT_ALLOC_FAULTS_H
#define DIL_TESTS_SUPPORT_ALLOC_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

/* The n-th such call from now on fails; with `ever` all after it, too. */
void faults_arm(int64_t n, bool ever);
/* Calls work again. The name of the function that failed first; NULL: fewer
 * than n were made. */
const char *faults_disarm(void);
/* How many such calls were made so far. */
int64_t faults_calls(void);
/* Blocks and mappings that are alive. */
int64_t faults_live(void);

#endif
