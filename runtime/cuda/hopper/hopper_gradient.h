/* hopper_gradient.h - launches of the Hopper kernels of gradients
 * (templates/hopper/backward.cu). One code holds query rows and makes dQ,
 * others hold keys and make dK, dV or both. */
#ifndef DIL_RUNTIME_CUDA_HOPPER_HOPPER_GRADIENT_H
#define DIL_RUNTIME_CUDA_HOPPER_HOPPER_GRADIENT_H

#include "runtime/cuda/launch/gradient_run.h"
#include "runtime/tables/launch_layout.h"
#include "templates/hopper/backward_launch.h"

/* No pass of a forward call takes these families. The second is the fused form:
 * one code makes all gradients of q, k and v, and adds dQ to sums in f32. */
extern const cuda_family cuda_hopper_gradient, cuda_hopper_fused;

/* The parts of the workspace that these kernels use. */
typedef struct hopper_gradient_space {
  float *facts;        /* [B, H, N][DIL_FACTS]; those of the general kernels, but
                          where each pass has its own */
  unsigned *spoiled;   /* where a sum is not finite it becomes 1, and the
                          general kernels make all gradients again */
  float *tops;         /* three, of f16: see hopper_facts_launch */
  unsigned *row_words; /* of dropout: [B, H, N], and [B, H, M] of keys */
  unsigned *key_words;
  float *query_sums;   /* of the fused form */
  char *lists;         /* of kernels that gather rows, or walk lists: see
                          gather_gradient.h and list_gradient.h. Of packed calls:
                          hopper_launch.document_tiles */
  bool alone;          /* documents that a mask keeps apart, and no fast kernel has that
                          mask: where there are none, `spoiled` is set */
} hopper_gradient_space;

/* The order of the entries of both. */
enum {
  HOPPER_ENTRY_PASS,
  HOPPER_ENTRY_CLEAR,
  HOPPER_ENTRY_FACTS,
  HOPPER_ENTRY_SETTLE,
  HOPPER_ENTRY_DOCUMENTS,
  HOPPER_ENTRY_ROUND
};

enum { HOPPER_SPACE_HEAD = 256 }; /* bytes of the flag and of what f16 needs */
/* The words of dropout of all rows and keys; 0 without it. */
int64_t hopper_gradient_words(const cuda_run *r);
/* The bytes that a call needs beside its facts, and the space there. */
int64_t hopper_gradient_bytes(const cuda_run *r);
hopper_gradient_space hopper_gradient_place(const gradient_run *g,
                                            char *memory);

/* The bytes of the sums of dQ that a fused code needs; they begin as 0. Other
 * codes need none. */
int64_t hopper_gradient_sums(const cuda_run *r, const cuda_code *code);

/* The bytes of the tiles of documents that a code needs in `lists`. */
int64_t hopper_gradient_documents(const cuda_run *r, const cuda_code *code);

/* Returns why these kernels cannot make the gradients of a call; NULL: they
 * can. `code` makes dQ. */
const char *hopper_gradient_refusal(const gradient_run *g,
                                    const cuda_code *code);
/* The facts of all query rows, and the words of dropout. `code`: any of a
 * call's. Where each pass has its own facts, they are made before each; the
 * general kernels' go to g->facts. state_lse: see hopper_facts_launch. */
dil_status hopper_gradient_facts(const gradient_run *g, int32_t pass,
                                 const float *state_lse,
                                 const hopper_gradient_space *space,
                                 const cuda_code *code);
/* Marks rows of a state, of which a pass will open those that it sees. */
dil_status hopper_gradient_mark(const cuda_run *r, float *state_lse,
                                int64_t rows);
/* Returns whether the first pass of a code has all rows of a call, and so need not
 * find sums of 0. */
bool hopper_gradient_opens(const gradient_run *g, const cuda_code *code);
/* Returns whether the first pass of a code rounds the rows of a call that no later pass
 * has. The others are left to hopper_gradient_settle, behind the last pass. */
bool hopper_gradient_settles(const gradient_run *g, const cuda_code *code);
dil_status hopper_gradient_settle(const gradient_run *g,
                                  const hopper_gradient_space *space,
                                  const cuda_code *code);
/* The gradients that a code makes of a pass, where they are wanted. Several
 * passes add to the sums of their targets. The first pass of a whole call, and of a
 * shard that opens its sums, begins them. */
dil_status hopper_gradient_pass(const gradient_run *g, int32_t pass,
                                const hopper_gradient_space *space,
                                const cuda_code *code);
/* Fills a launch of a code that MAKES some gradients, but for maps and what follows
 * from the sizes of the call. */
void hopper_gradient_fill(const gradient_run *g, const hopper_gradient_space *space,
                          int32_t makes, hopper_backward_launch *l);
/* Writes a kernel's launch to the parameter, and returns its bytes. */
int64_t hopper_gradient_pack(const launch_layout *layout,
                             const hopper_backward_launch *l, char *parameter);
/* Makes dQ of the sums after the last pass of a fused code. */
dil_status hopper_gradient_round(const gradient_run *g,
                                 const hopper_gradient_space *space,
                                 const cuda_code *code);

#endif
