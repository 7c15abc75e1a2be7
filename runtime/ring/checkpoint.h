/* checkpoint.h - what a run keeps of itself in a file, to go on from: blocks of
 * bytes, the first of which says whose they are, and a sum over all of it. */
#ifndef DIL_RUNTIME_RING_CHECKPOINT_H
#define DIL_RUNTIME_RING_CHECKPOINT_H

#include "runtime/dilrt.h"

/* FNV-1a over 64-bit words, the last one filled up with 0; of several stretches
 * one after the other, which begins with CHECKPOINT_SUM. */
#define CHECKPOINT_SUM UINT64_C(0xcbf29ce484222325)
uint64_t checkpoint_sum(uint64_t sum, const void *bytes, int64_t count);

typedef struct checkpoint_block {
  const void *bytes;
  int64_t count;
} checkpoint_block;

/* Written aside and moved into place, so that whoever dies leaves the file as it
 * was. DIL_ENVIRONMENT: it cannot be. */
dil_status checkpoint_write(const char *path, const checkpoint_block *blocks,
                            int32_t count);

/* A file that is read block by block, in the sizes that it was written in.
 * DIL_ENVIRONMENT: it cannot be opened; DIL_INPUT: it is damaged, and nothing
 * of it is read. */
typedef struct checkpoint_file checkpoint_file;
dil_status checkpoint_open(const char *path, checkpoint_file **file);
/* DIL_INPUT: it has less. */
dil_status checkpoint_read(checkpoint_file *file, void *bytes, int64_t count);
void checkpoint_close(checkpoint_file *file);

#endif
