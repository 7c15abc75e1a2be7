/* partition.h - the partition of a sequence over ranks: which rows each rank
 * owns, and which rows travel between two ranks.
 *
 * In: a plan's table, the shape of a ring, N and M. Out: the positions that a
 * rank owns, as progressions; and for each pair of ranks the key rows that some
 * query of the receiver needs, or the query rows that reach some key of the
 * receiver. The rows are exact for segments, dilations, phases and windows; they
 * come from arithmetic on global positions. Sender and receiver compute the same
 * list, so that no index travels. */
#ifndef DIL_RUNTIME_RING_PARTITION_H
#define DIL_RUNTIME_RING_PARTITION_H

#include "runtime/code.h"
#include "runtime/shard.h"

/* Contiguous: one block of rows a rank. Zigzag: of 2 * ranks blocks, rank r has
 * blocks r and 2 * ranks - 1 - r, which balances causal masks (as the training
 * of Llama 3 does, arXiv:2407.21783). Striped: rank r has rows r, r + ranks,
 * ... (striped attention, Brandon et al. 2023, arXiv:2311.09431). */
typedef enum dil_layout {
  DIL_CONTIGUOUS, DIL_ZIGZAG, DIL_STRIPED, DIL_LAYOUT_COUNT
} dil_layout;

enum { PROGRESSIONS_MOST = 2 }; /* a zigzag shard has two blocks */

/* The positions that a rank owns, as arithmetic progressions. A rank
 * without rows has none. */
typedef struct positions {
  int32_t count;
  dil_progression progression[PROGRESSIONS_MOST]; /* in rising order */
} positions;

/* The positions of a rank among rows 0..count-1, each plus `origin`. */
positions partition_owned(dil_layout layout, int64_t count, int64_t origin,
                          int32_t ranks, int32_t rank);
int64_t positions_count(const positions *s);

/* ---- rows that travel ---------------------------------------------------- */

/* Bounds of a plan's masks, as far as they are known without the inputs. All
 * ranks must get the same answers. */
typedef struct partition_mask {
  /* Returns how much of the box of queries t0..t1 and keys j0..j1 (inclusive
   * positions) the mask of a predicate lets through, its window aside. `head`
   * counts in the whole plan. DIL_PARTIAL also means that it cannot tell.
   * Thread-safe. */
  dil_cover (*bounds)(const void *context, int32_t predicate, int32_t head,
                      int64_t t0, int64_t t1, int64_t j0, int64_t j1);
  const void *context;
  uint64_t bounded,
      exact;              /* predicates as bits: `bounds` knows of them;
                              `bounds` is never partial for a box of one pair */
  bool by_head;           /* some mask differs from head to head */
  int32_t head;           /* the table's first head, as the whole plan counts */
} partition_mask;

/* Two phases of an exchange. EXCHANGE_GATHERED: rows of branches that gather,
 * which travel all at once. EXCHANGE_ROTATED: rows of branches that rotate,
 * which travel step by step. A row that both phases want travels in
 * EXCHANGE_GATHERED. */
typedef enum exchange_phase {
  EXCHANGE_GATHERED,
  EXCHANGE_ROTATED,
  EXCHANGE_PHASES
} exchange_phase;

/* One sequence on a ring. */
typedef struct ring_shape {
  const dil_table *table;
  dil_layout layout;
  int32_t ranks;
  int64_t N, M;
  const partition_mask *mask; /* NULL: rows travel as if there were no masks */
  uint64_t gathered;      /* branches that gather, as bits */
  uint64_t left_out;      /* branches whose rows do not travel, as bits */
  bool queries;           /* rows of queries travel, and not those of keys; each
                             query head has a list, and not each K/V head */
} ring_shape;

/* Returns whether all branches gather. */
bool partition_gathers_all(const ring_shape *r);

positions partition_queries(const ring_shape *r,
                            int32_t rank);                   /* positions t */
positions partition_keys(const ring_shape *r, int32_t rank); /* positions j */
/* The positions, of queries or of keys, whose rows travel, and the number of their
 * lists. */
positions partition_travelling(const ring_shape *r, int32_t rank);
int32_t partition_lists(const ring_shape *r);
/* All branches of a table, as bits. */
uint64_t partition_branches(const dil_table *table);

/* A range of rows that travel: the positions low + offset[i] + n * period
 * below `high`, for 0 <= i < count and n >= 0. The visitor gets the ranges
 * of each progression in rising order. */
typedef struct row_range {
  int32_t progression;     /* of the sender's shard */
  int64_t low, high, period;
  const int32_t *offset;
  int32_t count;
} row_range;
typedef void (*partition_visitor)(void *context, const row_range *rows);

/* Visits the rows of `kv_head` among the `owned` keys that some query of
 * `asking` reaches, each row once. DIL_MEMORY; DIL_UNSUPPORTED: a common period
 * of dilations is above DIL_PERIOD_MAX, or a K/V head has too many phases. */
dil_status partition_reach(const dil_table *table, const positions *owned,
                           const positions *asking, int32_t kv_head,
                           partition_visitor visit, void *context);
/* Visits the rows of one list (partition_lists) that rank `from` sends to rank
 * `to` in one phase. */
dil_status partition_rows(const ring_shape *r, int32_t from, int32_t to,
                          int32_t list, exchange_phase phase,
                          partition_visitor visit, void *context);
/* Counts these rows. *exact: the count is the least that the pattern needs;
 * else a mask may hide some of the rows from every query. */
dil_status partition_count(const ring_shape *r, int32_t from, int32_t to,
                           int32_t list, exchange_phase phase,
                           int64_t *count, bool *exact);
int64_t row_range_count(const row_range *rows);     /* in rows */

#endif
