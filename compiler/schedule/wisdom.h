/* wisdom.h - schedules that were measured and are remembered, in FFTW's manner:
 * text, harmless when wrong or lost.
 *
 * One record a line, fields apart by tabs; `#` begins a comment:
 *   dil 0.1.0 / device / pattern / batch, queries, keys / knobs / seconds / name
 * A record speaks of one version of dil, one device, one meaning of a pattern
 * (whatever its name) and one class of shapes: sizes to the nearest power of
 * two. Calls with fewer than 64 queries have the batch 0, which stands for any.
 * Of several records the last one holds. */
#ifndef DIL_COMPILER_SCHEDULE_WISDOM_H
#define DIL_COMPILER_SCHEDULE_WISDOM_H

#include "schedule.h"

typedef struct wisdom_key {
  const char *device;     /* "cpu AMD EPYC 9B45 avx512", "cuda NVIDIA H200 sm_90" */
  uint64_t pattern;       /* wisdom_pattern */
  int64_t size[3];        /* batch, queries, keys: wisdom_class of each */
} wisdom_key;

typedef struct wisdom_record {
  wisdom_key key;
  knobs knobs;            /* none given: the compiler's choice was the best */
  double seconds;         /* of a call as it was measured */
  const char *name;       /* of the pattern then, for people */
} wisdom_record;

typedef struct wisdom {
  int32_t count;
  wisdom_record *record;  /* of this version, in the order of the file */
  int32_t bad_count, bad_line; /* records that cannot be read; the first */
  const char *reason;     /* why that record is wrong */
} wisdom;

/* Returns the path of the wisdom file: DIL_WISDOM, or wisdom in the folder dil
 * of XDG_STATE_HOME or ~/.local/state. NULL: DIL_WISDOM is `off`, or there is
 * no home. */
const char *wisdom_path(arena *a);
/* Equal for patterns that mean the same but for names, in one direction. */
uint64_t wisdom_pattern(arena *a, const pattern *p, dil_direction direction);
int64_t wisdom_class(int64_t size);
/* A file that is not there holds nothing. DIL_ENVIRONMENT: it is, and cannot
 * be read. */
dil_status wisdom_read(arena *a, const char *path, wisdom *w);
/* The record of this key; NULL: there is none. */
const wisdom_record *wisdom_find(const wisdom *w, const wisdom_key *key);
/* Adds a record in place of one with its key, and makes the folder if it must.
 * Other records stay, also those of other versions; other processes see the
 * file as it was or as it is. */
dil_status wisdom_add(arena *a, const char *path, const wisdom_record *r);
/* Tries whether wisdom_add can write now. It makes the folder, and leaves the
 * file as it is. */
dil_status wisdom_probe(arena *a, const char *path);

#endif
