/* plan_table.h - a plan as plain data: what a compiler fills in and the run
 * time walks. */
#ifndef DIL_RUNTIME_PLAN_TABLE_H
#define DIL_RUNTIME_PLAN_TABLE_H

#include "tensor.h"

#pragma GCC visibility push(default)

enum {
  DIL_BRANCH_MAX = 64,  /* branches of a pattern: bits of a mask */
  DIL_INPUT_MAX = 16,   /* declared inputs */
  DIL_PART_MAX = 64,    /* distinct predicates, and distinct score chains */
  DIL_PERIOD_MAX = 4096, /* largest common period of branches in one pass */
  DIL_HEADS_MAX = 4096,
  DIL_HEAD_DIM_MAX = 256,
  DIL_LANES_MAX = 64,   /* query rows of a tile */
  DIL_SUBTILE_KEYS = 32, /* of a tile that a mask leaves partial */
  DIL_TILE_KEYS_MOST = 128,
};
#define DIL_ENDLESS INT64_MAX /* a window bound or segment without end */

/* Which ways a kernel runs: from q, k and v to o and lse; backward, to the
 * gradients as well. It is part of what names a kernel, wherever kernels are
 * kept. */
typedef enum dil_direction { DIL_FORWARD, DIL_BACKWARD } dil_direction;

typedef enum dil_combine {
  DIL_COMBINE_SOFTMAX, DIL_COMBINE_UNION, DIL_COMBINE_MEAN, DIL_COMBINE_SUM
} dil_combine;

enum { DIL_GRID_AXES = 3 };

/* Positions as cells of a grid: axis 0 is the slowest, the last one is x. */
typedef struct dil_grid {
  int32_t axes;                   /* 2 or 3; 0: positions have no grid */
  int64_t extent[DIL_GRID_AXES];  /* extent[0] 0: M over the others */
} dil_grid;

/* Positions that fill the first extent once; 0: there is no grid. */
static inline int64_t dil_grid_plane(const dil_grid *g) {
  int64_t plane = g->axes > 0;
  for (int32_t a = 1; a < g->axes; a++) plane *= g->extent[a];
  return plane;
}
/* All positions; 0: the first extent is any, or there is no grid. */
static inline int64_t dil_grid_cells(const dil_grid *g) {
  return g->axes ? g->extent[0] * dil_grid_plane(g) : 0;
}

/* The reach of a branch along a grid's axes. Distances of a window are in cells, those
 * of a neighborhood in cells of the query's residue; DIL_ENDLESS: no bound. */
typedef struct dil_reach {
  bool alone;  /* the branch's predicate says the same and nothing more */
  int64_t left[DIL_GRID_AXES], right[DIL_GRID_AXES], kernel[DIL_GRID_AXES];
  int64_t dilation[DIL_GRID_AXES]; /* 0: there is no grid */
  bool causal[DIL_GRID_AXES];
} dil_reach;

typedef struct dil_branch {
  int64_t segment;      /* positions; 0: one segment that holds all */
  int64_t dilation;
  int32_t head_first, head_last; /* inclusive */
  int32_t predicate;    /* index of dil_table.predicates; -1: keeps all */
  int32_t chain;        /* score chain: index of dil_code.modify */
  const int32_t *phase; /* [heads], each 0 <= phase < dilation */
  /* Rows of every residue modulo the dilation are selected, and see the keys of
   * the residue that is `shift` less: (t - j) mod dilation == shift. */
  bool each;
  int64_t shift;        /* 0 <= shift < dilation; 0 unless `each` */
  /* The table of the list of keys that it sees, or -1; and the index of its
   * predicate without that table, as `predicate`. A pass whose branches all see one
   * list may visit that list. */
  int32_t listed, rest;
  dil_reach reach;      /* where the table has a grid */
} dil_branch;

/* Returns whether the branch selects every row of its segments. */
static inline bool dil_branch_selects_all(const dil_branch *b) {
  return b->dilation == 1 || b->each;
}

/* The distance between rows of a segment that the branch selects. */
static inline int64_t dil_branch_step(const dil_branch *b) {
  return b->each ? 1 : b->dilation;
}

/* A condition on (t, j), shared by the branches that have the same one: the
 * window -left <= j - t <= right (DIL_ENDLESS: no bound; causal is right =
 * min(right, 0); where a bound is negative the row itself is outside), the
 * ranges of keys key_first <= j < key_end and of rows row_first <= t < row_end
 * (0: no bound) and, when `masked`, the generated mask expressions. */
typedef struct dil_predicate {
  int64_t left, right;
  bool masked;
  int64_t key_first, key_end;
  int64_t row_first, row_end;
} dil_predicate;

/* One past the last key of the predicate's range of keys, and its last row. */
static inline int64_t dil_predicate_end(const dil_predicate *p) {
  return p->key_end ? p->key_end : DIL_ENDLESS;
}
static inline int64_t dil_predicate_row_end(const dil_predicate *p) {
  return p->row_end ? p->row_end : DIL_ENDLESS;
}
static inline bool dil_predicate_has_rows(const dil_predicate *p) {
  return p->row_first > 0 || p->row_end > 0;
}
static inline bool dil_predicate_has_range(const dil_predicate *p) {
  return p->key_first > 0 || p->key_end > 0 || dil_predicate_has_rows(p);
}
/* Returns whether rows t0..t1 have some in the range of rows; whether all are.
 * Where it has no first row, it has rows before position 0. */
static inline bool dil_predicate_meets_rows(const dil_predicate *p, int64_t t0,
                                            int64_t t1) {
  return !dil_predicate_has_rows(p) ||
         (t0 < dil_predicate_row_end(p) &&
          (!p->row_first || t1 >= p->row_first));
}
static inline bool dil_predicate_holds_rows(const dil_predicate *p, int64_t t0,
                                            int64_t t1) {
  return !dil_predicate_has_rows(p) ||
         (t1 < dil_predicate_row_end(p) &&
          (!p->row_first || t0 >= p->row_first));
}

/* Every row sees the key at its own position. */
static inline bool dil_predicate_holds_row(const dil_predicate *p) {
  return !p->masked && !dil_predicate_has_range(p) && p->left >= 0 &&
         p->right >= 0;
}

/* Branches that run in one loop with one running softmax. */
typedef struct dil_pass {
  uint64_t branches; /* mask */
  int64_t period;    /* least common multiple of their dilations */
} dil_pass;

typedef struct dil_input {
  const char *name;
  dil_dtype dtype;
  int32_t rank;
  bool masks;           /* some mask reads it: worth knowing its bounds */
  bool spans;           /* some mask asks which elements are equal: worth knowing
                         * the range of those where the input is sorted */
  bool gradient;        /* backward computes its gradient */
  /* Of a backward plan: whether scores, and sinks, have a derivative by it; and
   * what tells its elements apart, as bits of DIL_APART_... */
  bool in_scores, in_sinks;
  uint8_t apart;
  /* Of a table that the run time makes of lists of blocks (lists.h): which
   * inputs hold them, and the sizes of its blocks. All 0: the call brings the
   * input. A kernel reads such a table as bits (dil_input_is_bits). */
  uint8_t rows, cols;
  bool keys;            /* of such a table: it has a byte for each key, and the
                         * list of keys is `rows` and `cols` alike */
  int32_t query_block, block;
  int32_t cell[DIL_GRID_AXES]; /* of blocks of cells, their extents; else 0 */
} dil_input;

/* Returns whether something that the call does not bring is the table of lists;
 * otherwise it is a list that a choice makes. */
static inline bool dil_input_is_table(const dil_input *in) {
  return in->rows != in->cols || in->keys;
}

/* Returns whether kernels read a bit for each pair of blocks, in words of 32: strides
 * count bits then, and each row of a table begins a word. */
static inline bool dil_input_is_bits(const dil_input *in) {
  return in->rows != in->cols;
}

/* The estimate of a choice of blocks: by the mean query of a block, by each of
 * its queries, or by numbers of the call. */
typedef enum dil_estimate {
  DIL_ESTIMATE_MEAN, DIL_ESTIMATE_EACH, DIL_ESTIMATE_INPUT
} dil_estimate;

/* `keep top` or `keep mass` of a branch: for each block of queries it chooses
 * blocks of keys among those that the branch reaches, and writes lists of them in
 * the form CSR (runtime/base/lists.h), sorted. */
typedef struct dil_choice {
  int32_t branch;
  int32_t rows;         /* the made inputs: rows, rows + 1 (cols), their table */
  int32_t query_block, block;
  int64_t left, right;  /* the branch's window; causal is right = 0 */
  int32_t most;         /* blocks for a block of queries, the diagonal included */
  double share;         /* of `keep mass`; 0: it is `keep top` */
  dil_estimate estimate;
  int32_t gate;         /* the input of DIL_ESTIMATE_INPUT */
  bool shared;          /* heads of a key/value head choose together */
  bool asks;            /* other keeps decide about blocks: dil_code.keeps */
  bool alone;           /* no other keep and no mask decides over the branch's pairs */
} dil_choice;

/* Blocks of keys that hold a position of one block of queries, at most. */
static inline int64_t dil_choice_diagonals(const dil_choice *c) {
  int64_t a = c->query_block, b = c->block;
  while (b) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return (c->block - a + c->query_block - 1) / c->block + 1;
}
static inline int64_t dil_choice_blocks(int64_t M, int64_t block) {
  return (M + block - 1) / block;
}
/* The position of place `place` where positions are counted block by block: without
 * blocks of cells it is the place itself. The blocks divide the grid of M cells. */
static inline int64_t dil_block_position(const dil_grid *g, const dil_input *in,
                                         int64_t M, int64_t place) {
  int64_t block = place / in->block, inside = place % in->block;
  int64_t position = 0, stride = 1;
  if (!in->cell[0]) return place;
  for (int32_t a = g->axes - 1; a >= 0; a--) {
    int64_t size = in->cell[a];
    int64_t extent = g->extent[a] ? g->extent[a] : M / dil_grid_plane(g);
    position += (block % (extent / size) * size + inside % size) * stride;
    block /= extent / size;
    inside /= size;
    stride *= extent;
  }
  return position;
}
/* Entries that a list has room for where a call has M keys. */
static inline int64_t dil_choice_room(const dil_choice *c, int64_t M) {
  int64_t most = c->most, blocks = dil_choice_blocks(M, c->block);
  if (c->right <= 0 && most < dil_choice_diagonals(c))
    most = dil_choice_diagonals(c);
  return most < blocks ? most : blocks;
}

/* The size of a dimension that is whatever the call brings. */
enum { DIL_ANY_SIZE = -1 };

/* Every read of an input has i, h, b or j, moved by a constant of the call, as one
 * index and the same one: pairs that differ there never read one element. ALL:
 * those of a tile. */
enum {
  DIL_APART_I = 1,
  DIL_APART_H = 2,
  DIL_APART_B = 4,
  DIL_APART_ALL = 7,
  DIL_APART_J = 8
};

typedef struct dil_table {
  const char *name;
  int32_t heads, kv_heads, head_dim, value_dim;
  dil_dtype dtype;          /* of q, k, v, o in memory */
  dil_combine combine;
  bool dedup;               /* visit a key once for all branches that agree */
  bool detached;            /* the gradient takes the branches' shares of a row
                             * as constants */
  bool general;             /* forced: every pass by rows */
  bool runtime_scale;
  double scale;             /* when not runtime_scale */
  double dropout;           /* probability; 0: none */
  int32_t tile_keys;        /* keys a tile: 32..DIL_TILE_KEYS_MOST */
  int32_t branch_count, pass_count, input_count;
  int32_t predicate_count;
  int32_t chain_count;      /* distinct score chains, at least 1 */
  bool scored;              /* some chain rewrites scores */
  bool sinks;               /* rows begin with dil_code.sink */
  uint64_t sink_branches;   /* branches with sinks of their own */
  bool lse_allowed;
  int32_t made_count;       /* tables made of lists and lists that are chosen: they
                             * follow the inputs */
  int32_t choice_count;
  dil_grid grid;
  const dil_branch *branches;
  const dil_pass *passes;
  const dil_predicate *predicates;
  const dil_input *inputs;
  const dil_choice *choices;
} dil_table;

/* Counts the arrays that expressions read: inputs of a call and tables made of
 * them. */
static inline int32_t dil_table_reads(const dil_table *t) {
  return t->input_count + t->made_count;
}

/* The table of the list of keys that all branches of a pass see, which the pass may
 * walk; -1: there is none. */
static inline int32_t dil_pass_list(const dil_table *t, const dil_pass *pass) {
  int32_t list = t->branches[__builtin_ctzll(pass->branches)].listed;
  for (uint64_t rest = pass->branches; rest; rest &= rest - 1)
    if (t->branches[__builtin_ctzll(rest)].listed != list) return -1;
  return list;
}

/* The choice that makes the list at `index` of what expressions read; NULL: no
 * choice makes it. */
static inline const dil_choice *dil_choice_of(const dil_table *t, int32_t index) {
  for (int32_t c = 0; c < t->choice_count; c++)
    if (index == t->choices[c].rows || index == t->choices[c].rows + 1)
      return &t->choices[c];
  return NULL;
}

#pragma GCC visibility pop
#endif
