/* generated.c - a host of a library that `dil build` wrote: no compiler here,
 * and no file of patterns. The same source is linked to either kind:
 *
 *   dil build longnet_text.dil -o liblongnet_text
 *   cc generated.c -L. -llongnet_text $(pkg-config --libs dilrt) -lm
 *
 *   dil build longnet_text.dil -o liblongnet_text --standalone --emit=a,h
 *   cc generated.c liblongnet_text.a -lm -lpthread
 */
#include "liblongnet_text.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum {
  N = 512,
  H = longnet_text_heads,
  D = longnet_text_head_dim,
  COUNT = N * H * D
};

static uint16_t numbers[4][COUNT]; /* q, k, v, o as f16 */
static float lse[H][N];

int main(void) {
  int64_t shape[] = {1, N, H, D}, lse_shape[] = {1, H, N};
  DLTensor tensor[5];
  for (int i = 0; i < 4; i++)
    tensor[i] = (DLTensor){.data = numbers[i],
                           .device = {kDLCPU, 0},
                           .ndim = 4,
                           .dtype = {kDLFloat, 16, 1},
                           .shape = shape};
  tensor[4] = (DLTensor){.data = lse,
                         .device = {kDLCPU, 0},
                         .ndim = 3,
                         .dtype = {kDLFloat, 32, 1},
                         .shape = lse_shape};
  /* Keys of zeros: every score is 0, a row's output the mean of its values,
   * which are all 1, and its lse the logarithm of how many there are. */
  for (int i = 0; i < COUNT; i++) {
    numbers[0][i] = 0x3c00;
    numbers[2][i] = 0x3c00;
  }
  longnet_text_arguments a = LONGNET_TEXT_ARGUMENTS_INIT;
  a.q = &tensor[0];
  a.k = &tensor[1];
  a.v = &tensor[2];
  a.o = &tensor[3];
  a.lse = &tensor[4];
  if (longnet_text(NULL, &a)) {
    fprintf(stderr, "%s\n", longnet_text_last_error());
    return 1;
  }
  printf("row 0 of head 0 saw %.0f keys\n", exp((double)lse[0][0]));
  for (int i = 0; i < COUNT; i++)
    if (numbers[3][i] != 0x3c00) {
      fprintf(stderr, "element %d is not 1\n", i);
      return 1;
    }
  a.o = (DLTensor *)&tensor[0]; /* the queries: refused before it starts */
  if (longnet_text(NULL, &a) == 0) return 1;
  printf("refused: %s\n", longnet_text_last_error());
  return 0;
}
