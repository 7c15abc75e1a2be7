/* papers.h - masks of published patterns, each filled pair by pair from the
 * definition of its paper or of the paper's code. Nothing here knows dil. */
#ifndef DIL_TESTS_SUPPORT_PAPERS_H
#define DIL_TESTS_SUPPORT_PAPERS_H

#include <stdbool.h>
#include <stdint.h>

enum { PAPER_MOST = 400 }; /* positions */

/* One head over M positions. */
typedef struct paper_mask {
  const char *defines; /* "wide=9 k=3": the parameters of the pattern */
  int64_t h, H, M;
  /* Of a call with N queries at the end, what it brings: */
  int64_t N;
  bool chosen[PAPER_MOST];           /* global tokens */
  int64_t document[PAPER_MOST];      /* the number of each token's document */
  int64_t parent[PAPER_MOST];        /* of each draft; -1: the accepted text */
  bool sees[PAPER_MOST][PAPER_MOST]; /* [query position][key] */
} paper_mask;

/* The value of NAME=VALUE in the defines; `otherwise` where there is none. */
int64_t paper_number(const paper_mask *m, const char *name, int64_t otherwise);

typedef void paper(paper_mask *m); /* fills `sees`, which is all false */
paper paper_dense, paper_window, paper_streaming, paper_prefix;
paper paper_dilated_window;
paper paper_strided, paper_fixed, paper_longformer, paper_longformer_global;
paper paper_bigbird, paper_longnet, paper_swin, paper_neighborhood;
paper paper_block_causal, paper_block_diffusion, paper_tree, paper_documents;
/* Takes pairs away, where the defines say `ahead`. */
paper paper_look_back;

#endif
