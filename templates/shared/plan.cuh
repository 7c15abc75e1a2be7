/* plan.cuh - one plan as macros, tables and device functions. The compiler
 * writes all of this in front of a kernel and defines DIL_PLAN; without it the
 * defaults below stand: causal attention, so that a template compiles by
 * itself. */
#ifndef DIL_TEMPLATES_SHARED_PLAN_H
#define DIL_TEMPLATES_SHARED_PLAN_H

#include "templates/shared/launch.h"

struct dil_branch_row {
  int segment, dilation; /* segment 0: the whole sequence */
  int head_first, head_last;
  int predicate, chain;  /* predicate -1: keeps all */
  int shift;             /* `phase each`: a row sees the keys that stand shift +
                          * n * dilation before it; -1: rows of one phase */
};
struct dil_pass_row {
  unsigned long long branches;
  int period;
  int list;              /* the table of the list of keys that its branches see */
};
struct dil_predicate_row {
  int left, right;       /* DIL_FAR: no bound */
  int masked;
  int first, end;        /* the range of keys; DIL_FAR: no end */
  int row_first, row_end; /* the range of rows; -DIL_FAR, DIL_FAR: no bound */
};
struct dil_input_row {
  int dtype, rank;       /* dtype: DIL_INPUT_... */
  int rows, cols;        /* of a table made of lists: its inputs; else equal */
  int keys;              /* such a table has a byte for each key, of one list */
  int spans;             /* bool: its elements are compared with each other */
};
#define DIL_FAR 0x7fffffff

/* A row of a table by its number. With PLAN_KNOWN, which a kernel of one branch may
 * define, the compiler knows the numbers of tables that have one row. */
#ifdef PLAN_KNOWN
#define PLAN_TABLE __device__ const
#define PLAN_ROW(count, i) ((count) == 1 ? 0 : (i))
#else
#define PLAN_TABLE __constant__
#define PLAN_ROW(count, i) (i)
#endif
#define BRANCH(b) dil_branches[PLAN_ROW(BRANCHES, b)]
#define PASS(p) dil_passes[PLAN_ROW(PASSES, p)]
#define PREDICATE(p) dil_predicates[PLAN_ROW(PREDICATES, p)]

#ifndef DIL_PLAN
#define DIL_PLAN 1
#define HEADS 8
#define KV_HEADS 8
#define HEAD_DIM 64
#define VALUE_DIM 64
#define ELEMENT 1        /* 0 f32, 1 bf16, 2 f16 */
#define FAST 0           /* f32: one tf32 product */
#define COMBINE 0        /* 0 softmax, 1 union, 2 mean, 3 sum */
#define SCORED 0         /* some chain rewrites scores */
#define HIDING 0         /* which may make them -inf */
#define MASKED 0         /* some predicate has masks */
#define ROW_RANGES 0     /* some predicate has a range of rows */
#define DEDUP 1          /* a key of several branches is visited once */
#define MULTIPLICITY 0   /* ... and may count several times */
#define SINKS 0          /* rows begin with sinks */
#define SINK_BRANCHES 0  /* bit set: branches with sinks of their own */
#define DROPOUT 0        /* its threshold among 2^32 */
#define DROPOUT_KEPT 1.0f /* 1 / (1 - P) */
#define EACH 0           /* some branch has every phase */
#define BRANCHES 1
#define PASSES 1
#define PREDICATES 1
#define INPUTS 0         /* of the call, and the tables made of lists */
#define MADE_TABLES 0    /* of them, tables made of lists */
PLAN_TABLE dil_branch_row dil_branches[BRANCHES] = {{0, 1, 0, 7, 0, 0, -1}};
PLAN_TABLE dil_pass_row dil_passes[PASSES] = {{1ull, 1, -1}};
PLAN_TABLE dil_predicate_row dil_predicates[1] = {
    {DIL_FAR, 0, 0, 0, DIL_FAR, -DIL_FAR, DIL_FAR}};
__constant__ dil_input_row dil_inputs[1] = {{0, 0, 0, 0, 0, 0}};
__device__ const int dil_phases[BRANCHES * HEADS] = {0};
#include "templates/shared/pair.cuh"
static __device__ __forceinline__ bool dil_mask(int, int, int,
                                                const dil_pair &) {
  return true;
}
static __device__ __forceinline__ float dil_chain(int, float s, int, int,
                                                  const dil_pair &) {
  return s;
}
static __device__ __forceinline__ float dil_sink(int, int, const dil_pair &) {
  return 0;
}
#include "templates/shared/cover.cuh"
DIL_INLINE dil_range dil_cover(int, dil_range, dil_range, dil_range,
                               const dil_pair &) {
  return r_int(1);
}
#endif

#endif
