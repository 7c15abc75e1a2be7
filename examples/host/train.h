/* train.h - the attention of train.c, in one process (train_one.c) or in the
 * processes of an MPI job (train_ranks.c), each of which has some letters of
 * every sequence. */
#ifndef TRAIN_H
#define TRAIN_H

#ifdef TRAIN_RANKS
#include <dil/dil.h>
#else
#include "libattend.h"
#endif

enum {
  BATCH = 4,
  LETTERS = 64, /* of a sequence */
  ROWS = BATCH * LETTERS,
  HEADS = 2,    /* as train.dil says */
  HEAD_DIM = 16,
  WIDTH = HEADS * HEAD_DIM
};

/* The attention of one layer, over the letters that this process has. */
typedef struct attended {
  DLTensor q, k, v, o, lse, slope;
  int64_t row_shape[4], qkv_strides[4], o_strides[4];
  int64_t slope_shape[1], lse_shape[3];
} attended;

/* Prints why, and ends the process without success. */
void stop(const char *why);

/* Joins the processes; returns how many letters of a sequence this one has, and
 * puts their places there into `place`. */
int attention_begin(int place[LETTERS]);
void attention_end(void);
/* Whether this process prints. */
int attention_speaks(void);
/* Writes o and lse. */
void attention_forward(const attended *a);
/* From the gradient of o to those of q, k and v, and to this process's share of
 * the slopes'. */
void attention_back(const attended *a, const DLTensor *d_o, DLTensor *dq,
                    DLTensor *dk, DLTensor *dv, DLTensor *dslope);
/* Makes numbers the sums over all processes. */
void attention_sum(float *numbers, int count);

#endif
