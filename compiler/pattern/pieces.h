/* pieces.h - conjunctions of a mask, between the files that read them, part
 * them and make branches of them. */
#ifndef DIL_COMPILER_PATTERN_PIECES_H
#define DIL_COMPILER_PATTERN_PIECES_H

#include "pattern.h"

enum { PIECES = 64, PIECE_TERMS = 16 };

typedef struct piece {
  pair_bounds pairs;
  int64_t each, shift; /* (i - j) % each == shift; each 1: any pair */
  int32_t head_first, head_last; /* inclusive */
  int32_t rest_count;
  expr *rest[PIECE_TERMS]; /* conditions that stay masks */
} piece;

typedef struct pieces {
  bool full; /* there were more than fit */
  int32_t count;
  piece of[PIECES];
} pieces;

/* pieces_read.c: narrows all pieces by a condition; appends pieces. */
void pieces_and(arena *a, pieces *p, expr *e);
void pieces_append(pieces *to, const pieces *from);
/* pieces_part.c: pieces that have no pair in common and together the same
 * pairs. False: some two have pairs in common that no bounds tell. */
bool pieces_part(pieces *p);

#endif
