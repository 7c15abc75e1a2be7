/* train_one.c - the attention of train.c in one process: a library that was made
 * ahead of time. */
#include "train.h"

/* Does not compile where train.dil has other heads. */
enum {
  SAME_HEADS = 1 / ((int)attend_heads == (int)HEADS &&
                    (int)attend_head_dim == (int)HEAD_DIM)
};

int attention_begin(int place[LETTERS]) {
  for (int i = 0; i < LETTERS; i++) place[i] = i;
  return LETTERS;
}

void attention_end(void) {}

int attention_speaks(void) {
  return 1;
}

static attend_arguments arguments_of(const attended *a, DLTensor *o,
                                     DLTensor *lse) {
  attend_arguments call = ATTEND_ARGUMENTS_INIT;
  *o = a->o;
  *lse = a->lse;
  call.q = &a->q;
  call.k = &a->k;
  call.v = &a->v;
  call.o = o;
  call.lse = lse;
  call.slope = &a->slope;
  return call;
}

void attention_forward(const attended *a) {
  DLTensor o, lse;
  attend_arguments call = arguments_of(a, &o, &lse);
  if (attend(NULL, &call)) stop(attend_last_error());
}

void attention_back(const attended *a, const DLTensor *d_o, DLTensor *dq,
                    DLTensor *dk, DLTensor *dv, DLTensor *dslope) {
  DLTensor o, lse;
  attend_arguments call = arguments_of(a, &o, &lse);
  attend_gradients g = ATTEND_GRADIENTS_INIT;
  g.forward = &call;
  g.d_o = d_o;
  g.dq = dq;
  g.dk = dk;
  g.dv = dv;
  g.slope = dslope;
  if (attend_backward(NULL, &g)) stop(attend_last_error());
}

void attention_sum(float *numbers, int count) {
  (void)numbers, (void)count; /* they are the sums */
}
