/* cost.h - the cost of a call: pairs that cover counts, and predicted time. */
#ifndef DIL_COMPILER_ANALYSIS_COST_H
#define DIL_COMPILER_ANALYSIS_COST_H

#include "cover.h"
#include "compiler/pattern/pattern.h"

/* The tiles that are counted where no plan has chosen others. */
enum { COST_TILE_ROWS = 32, COST_TILE_KEYS = 128 };

/* Floating point operations of the definition for that many pairs. */
double cost_flops(const pattern *p, double reached);
/* Bytes of q, k, v and o of one batch row. */
double cost_bytes(const pattern *p, int64_t N, int64_t M);
/* (query, key, head) triples of dense attention over one batch row; causal:
 * those with j <= t. */
double cost_dense(const pattern *p, int64_t N, int64_t M, bool causal);

/* How a kernel multiplies: f32, pairs of bf16, or tiles of them. */
typedef enum cost_products { COST_F32, COST_PAIRS, COST_TILES } cost_products;

/* The facts that cost_seconds needs besides the pattern. */
typedef struct cost_case {
  const cover_count *count; /* of all batch rows */
  int32_t tile_keys;        /* of its tiles, which have COST_TILE_ROWS rows */
  int64_t B, N, M;
  bool rows;  /* run one by one, not in tiles */
  bool dedup; /* keys of several branches are visited once */
  int32_t threads;
  double peak;   /* operations a second of all threads together */
  cost_products products; /* of which the peak is */
  bool backward; /* gradients, of a call whose o and lse are there */
} cost_case;

/* The parts of a call's time, in seconds. */
typedef struct cost_parts {
  double products; /* of q, k and v, and the softmax, for all pairs computed */
  double kept;     /* of these, for pairs that are kept */
  double masks;    /* masks tried on pairs of partial tiles */
  double scores;   /* scores rewritten */
  double fetched;  /* of that, to bring inputs from memory */
  double bounds;   /* masks bounded over boxes, inputs summed up for that */
  double rows;     /* q, k and v packed or read, o written */
} cost_parts;

/* On the cpu. A prediction, not a measurement. */
cost_parts cost_split(const pattern *p, const cost_case *c);
double cost_seconds(const pattern *p, const cost_case *c);

/* ---- cost_gradient.c ----------------------------------------------------- */

/* Operations of the gradients of q, k and v by the definition: five products a
 * pair. */
double cost_gradient_flops(const pattern *p, double reached);

/* Of a whole call, bytes but for flops; without inputs and their gradients. */
typedef struct cost_gradients {
  double flops;
  double read, written; /* q, k, v, o, lse and dO; dq, dk and dv */
  double saved;         /* o and lse, kept from the run forward */
  double workspace;     /* at most, on any device */
} cost_gradients;
cost_gradients cost_gradients_of(const pattern *p, double pairs, int64_t B,
                                 int64_t N, int64_t M);
/* Of the gradients on the processor; `forward`: the case of the run forward. */
double cost_gradient_seconds(const pattern *p, const cost_case *forward);

/* ---- cost_beside.c ------------------------------------------------------- */

/* Dense attention with the pattern's heads and sizes, without its scores. */
const pattern *cost_beside(arena *a, const pattern *p, bool causal);

/* NULL, NULL: it is not slower. */
typedef struct cost_reason {
  const char *text, *hint; /* hint NULL: there is none */
} cost_reason;
/* Why a pattern takes longer than the dense one: what takes most of the
 * difference. */
cost_reason cost_slower(const cost_parts *own, const cost_parts *dense);

/* ---- cost_expr.c --------------------------------------------------------- */

/* Seconds to look at an element of an input while masks are bounded. */
#define COST_ELEMENT_SECONDS 7e-9

/* The work that the masks or the scores of a branch make. */
typedef struct cost_work {
  double cycles;      /* a pair, of a vector */
  double gathered;    /* elements of inputs a pair */
  double fetched;     /* bytes of them a pair that come from memory */
  double key_seconds; /* a key: what all rows of a tile share */
  uint64_t inputs;    /* that are read */
} cost_work;

cost_work cost_masks(const pattern *p, const cost_case *c, const branch *b);
cost_work cost_scores(const pattern *p, const cost_case *c, const branch *b);
/* Seconds to bound the branch's masks over one box of a walk. */
double cost_bound(const pattern *p, const cost_case *c, const branch *b);
/* Elements of an input of that call. */
double cost_input_count(const pattern *p, const cost_case *c, int64_t input);

/* ---- cost_gpu.c ---------------------------------------------------------- */

/* NULL: there are no figures of the chip. */
const struct cuda_chip *cost_gpu_chip_of(int32_t arch);

typedef struct cost_gpu_case {
  const struct dil_cuda_facts *facts;
  const struct dil_cuda_code *code; /* all but its cubin */
  const cover_count *count;         /* of all batch rows, by the code's tiles */
  int64_t B, N, M;
  bool dedup;
  double touched;                   /* share of the rows that the branches
                                       select; 0: all */
  double parts;                     /* that a row's keys are cut into; 0: the
                                       kernel's choice */
} cost_gpu_case;

/* Seconds on a GPU; compare them with one another, not with a clock. */
double cost_gpu_seconds(const pattern *p, const cost_gpu_case *c);
/* To choose blocks before a call attends. */
double cost_gpu_choice_seconds(const pattern *p, const struct dil_cuda_facts *facts,
                               const dil_choice *c, int64_t B, int64_t N, int64_t M);
/* Operations that one kernel of gradients computes for so many pairs. */
double cost_gpu_gradient_flops(const pattern *p,
                               const struct dil_cuda_code *code,
                               double pairs);
/* Of one kernel of gradients. Its tiles hold query rows, or keys; `fast`: it is
 * of the fast family. */
double cost_gpu_gradient_seconds(const pattern *p, const cost_gpu_case *c,
                                 bool fast);
/* To move the tensors of a call for gradients once. */
double cost_gpu_gradient_rows_seconds(const cost_gradients *g,
                                      const struct dil_cuda_facts *facts);
/* Operations a second of all processors, in the type that the pattern
 * multiplies. */
double cost_gpu_peak(const pattern *p, const struct dil_cuda_facts *facts);
/* Of states of so many rows, one head each, that another pass comes to: what
 * goes to memory and comes back, and how long that takes; opened rows are
 * written each time. */
double cost_gpu_state_bytes(const pattern *p, double rows);
double cost_gpu_state_seconds(const pattern *p,
                              const struct dil_cuda_facts *facts, double rows);
/* Bytes that an H200 moves while its processors take a block of keys: 128 of
 * them, 192 rows, by the fast kernel. */
double cost_gpu_block_bytes(const pattern *p);

#endif
