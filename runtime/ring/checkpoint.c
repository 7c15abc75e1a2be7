/* checkpoint.c - the files in which runs keep their state. In: blocks of bytes.
 * Out: the same, whole or not at all; see checkpoint.h. A block in the file is
 * its length, its bytes, and the sum of all blocks so far. */
#include "checkpoint.h"
#include "runtime/base/module.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct checkpoint_file {
  FILE *in;
  uint64_t sum;
  char path[];
};

uint64_t checkpoint_sum(uint64_t sum, const void *bytes, int64_t count) {
  const uint64_t prime = 0x100000001b3;
  const char *at = bytes;
  uint64_t word = 0;
  int64_t n = 0;
  for (; n + (int64_t)sizeof word <= count; n += (int64_t)sizeof word) {
    memcpy(&word, at + n, sizeof word);
    sum = (sum ^ word) * prime;
  }
  word = 0;
  if (n < count) memcpy(&word, at + n, (size_t)(count - n));
  return n < count ? (sum ^ word) * prime : sum;
}

/* ---- writing ------------------------------------------------------------- */

static bool put(FILE *out, const void *bytes, int64_t count) {
  return !count || fwrite(bytes, (size_t)count, 1, out) == 1;
}

static bool write_blocks(FILE *out, const checkpoint_block *blocks,
                         int32_t count) {
  uint64_t sum = CHECKPOINT_SUM;
  bool good = true;
  for (int32_t i = 0; i < count && good; i++) {
    const checkpoint_block *b = &blocks[i];
    sum = checkpoint_sum(checkpoint_sum(sum, &b->count, sizeof b->count),
                         b->bytes, b->count);
    good = put(out, &b->count, sizeof b->count) &&
           put(out, b->bytes, b->count) && put(out, &sum, sizeof sum);
  }
  return good && !fflush(out) && !fsync(fileno(out));
}

dil_status checkpoint_write(const char *path, const checkpoint_block *blocks,
                            int32_t count) {
  char aside[DIL_PATH_MAX];
  if (snprintf(aside, sizeof aside, "%s.new", path) >= (int)sizeof aside)
    return dil_fail(DIL_USAGE, "the name '%s' is too long", path);
  FILE *out = fopen(aside, "wb");
  bool good = out && write_blocks(out, blocks, count);
  if (out) good &= fclose(out) == 0;
  if (good && !rename(aside, path)) return DIL_OK;
  dil_status status =
      dil_fail(DIL_ENVIRONMENT, "cannot write the state '%s': %s", aside,
               strerror(errno));
  unlink(aside);
  return status;
}

/* ---- reading ------------------------------------------------------------- */

static dil_status damaged(const checkpoint_file *f) {
  return dil_fail(DIL_INPUT, "the state '%s' is damaged", f->path);
}

static bool get(checkpoint_file *f, void *bytes, int64_t count) {
  return !count || fread(bytes, (size_t)count, 1, f->in) == 1;
}

/* Passes over the next block; false: it is not as it was written. */
static bool is_good(checkpoint_file *f, char *room, int64_t size) {
  int64_t count;
  uint64_t sum;
  if (!get(f, &count, sizeof count) || count < 0) return false;
  f->sum = checkpoint_sum(f->sum, &count, sizeof count);
  for (int64_t n = 0; n < count; n += size) {
    int64_t here = count - n < size ? count - n : size;
    if (!get(f, room, here)) return false;
    f->sum = checkpoint_sum(f->sum, room, here);
  }
  return get(f, &sum, sizeof sum) && sum == f->sum;
}

static bool is_over(checkpoint_file *f) {
  int next = fgetc(f->in);
  if (next != EOF) ungetc(next, f->in);
  return next == EOF;
}

/* All of the file, before any of it is believed. */
static dil_status check(checkpoint_file *f) {
  enum { ROOM = 1 << 20 }; /* a multiple of what sums take at a time */
  char *room = malloc(ROOM);
  if (!room) return dil_fail(DIL_MEMORY, "no memory to read '%s'", f->path);
  bool good = !is_over(f);
  while (good && !is_over(f)) good = is_good(f, room, ROOM);
  free(room);
  if (!good) return damaged(f);
  rewind(f->in);
  return DIL_OK;
}

dil_status checkpoint_open(const char *path, checkpoint_file **file) {
  checkpoint_file *f = calloc(1, sizeof *f + strlen(path) + 1);
  if (!f) return dil_fail(DIL_MEMORY, "no memory to read '%s'", path);
  strcpy(f->path, path);
  f->sum = CHECKPOINT_SUM;
  f->in = fopen(path, "rb");
  dil_status status =
      f->in ? check(f)
            : dil_fail(DIL_ENVIRONMENT, "cannot open the state '%s': %s", path,
                       strerror(errno));
  if (status) checkpoint_close(f);
  else *file = f;
  return status;
}

dil_status checkpoint_read(checkpoint_file *f, void *bytes, int64_t count) {
  int64_t there;
  uint64_t sum;
  bool good = get(f, &there, sizeof there) && there == count &&
              get(f, bytes, count) && get(f, &sum, sizeof sum);
  return good ? DIL_OK : damaged(f);
}

void checkpoint_close(checkpoint_file *f) {
  if (!f) return;
  if (f->in) fclose(f->in);
  free(f);
}
