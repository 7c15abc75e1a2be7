/* choose_sizes.c - the memory that templates/general/choose.cuh needs. In: a call
 * and its choices of blocks. Out: counts of blocks, and where each array stands. */
#include "nvidia.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/lists.h"

_Static_assert(sizeof(dil_choose_params) == DIL_CHOOSE_BYTES,
               "templates/general/choose.cuh has another dil_choose_params");

enum { BLOCKS_A_PROCESSOR = 4 /* of dil_choose */ };

static int32_t rows_at_once(const dil_table *t, const dil_choice *c) {
  bool each = c->estimate == DIL_ESTIMATE_EACH;
  return DIL_CHOOSE_IS_TALL(c->query_block, each, dil_dtype_size(t->dtype))
             ? DIL_CHOOSE_TALL
             : DIL_CHOOSE_ROWS;
}

/* Blocks of queries for which the lanes of a thread block choose at once. */
static int32_t chosen_at_once(int32_t keys) {
  int32_t each = keys <= 32 * DIL_CHOOSE_FEW ? DIL_CHOOSE_FEW : DIL_CHOOSE_MOST;
  int32_t lanes = 1;
  while (lanes < 32 && lanes * each < keys) lanes *= 2;
  return DIL_CHOOSE_THREADS / lanes;
}

/* Blocks of queries that a thread block takes together: they share reads of means. */
static int32_t strip_of(const dil_table *t, const dil_choice *c, int32_t keys) {
  int32_t rows = rows_at_once(t, c);
  if (c->estimate == DIL_ESTIMATE_INPUT)
    return (int32_t)minimum(chosen_at_once(keys), DIL_CHOOSE_TALL);
  if (c->estimate != DIL_ESTIMATE_EACH || c->query_block == 1) return rows;
  return c->query_block < rows ? rows / c->query_block : 1;
}

/* Lists that a thread block moves: where there are few, the lengths of all are soon
 * added up. */
static int32_t joined_of(int32_t queries) {
  enum { FEW = 2048, FEW_JOINED = 32 };
  return queries <= FEW ? FEW_JOINED : DIL_CHOOSE_THREADS;
}

/* Whether blocks of queries have means of their own in memory: those of many rows, which
 * several warps add up faster than the threads that meet key blocks. */
static bool has_query_means(const dil_choice *c) {
  enum { MANY = 16 };
  return c->estimate == DIL_ESTIMATE_MEAN && c->query_block >= MANY;
}

int32_t cuda_choose_shared(const dil_table *t, int32_t choice) {
  int32_t rows = rows_at_once(t, &t->choices[choice]);
  bool tall = rows == DIL_CHOOSE_TALL; /* of elements as they are */
  int32_t numbers = rows * DIL_CHOOSE_PITCH(t->head_dim);
  size_t size = tall ? dil_dtype_size(t->dtype) : sizeof(float);
  return numbers * (int32_t)size + DIL_CHOOSE_SHARED;
}

static int32_t power_above(int32_t count) {
  int32_t power = 1;
  while (power < count) power *= 2;
  return power;
}

dil_choose_params cuda_choose_sizes(const cuda_run *r, int32_t choice) {
  const dil_choice *c = &r->table->choices[choice];
  dil_choose_params p = {.choice = choice};
  p.queries = (int)dil_choice_blocks(r->M, c->query_block);
  p.keys = (int)dil_choice_blocks(r->M, c->block);
  p.width = (int)round_up(p.keys, 32);
  p.sorted = c->share > 0 ? power_above(p.keys) : 0;
  p.room = (int)dil_choice_room(c, r->M);
  p.strip = strip_of(r->table, c, p.keys);
  p.joined = joined_of(p.queries);
  int64_t estimates = p.strip * (int64_t)p.width;
  p.own_bytes = estimates * (c->shared ? 2 : 1) * (int64_t)sizeof(float) +
                (p.width + p.sorted) * (int64_t)sizeof(uint64_t);
  return p;
}

static int64_t heads_that_choose(const dil_table *t, const dil_choice *c) {
  return c->shared ? t->kv_heads : t->heads;
}

cuda_choose_layout cuda_choose_lay_out(const cuda_run *r,
                                       const dil_choose_params *p) {
  const dil_table *t = r->table;
  const dil_choice *c = &t->choices[p->choice];
  int64_t strips = (p->queries + p->strip - 1) / p->strip;
  int64_t lines = r->B * t->heads * p->queries;
  bool means = c->estimate != DIL_ESTIMATE_INPUT;
  cuda_choose_layout at = {
      .blocks = minimum(BLOCKS_A_PROCESSOR * r->device->facts.processors,
                        r->B * heads_that_choose(t, c) * strips)};
  int64_t mean = DIL_CHOOSE_DEPTH(t->head_dim) * (int64_t)sizeof(float);
  at.query_means = means ? round_up(r->B * t->kv_heads * mean * p->width, 256) : 0;
  at.list = at.query_means;
  if (has_query_means(c))
    at.list += round_up(r->B * t->heads * p->queries * mean, 256);
  at.length = at.list + round_up(lines * p->room * 4, 256);
  at.own = at.length + round_up(lines * 4, 256);
  at.end = at.own + round_up(at.blocks * p->own_bytes, 256);
  return at;
}

int64_t cuda_choose_bytes(const cuda_run *r) {
  int64_t most = 0;
  for (int32_t k = 0; k < r->table->choice_count; k++) {
    dil_choose_params p = cuda_choose_sizes(r, k);
    most = maximum(most, cuda_choose_lay_out(r, &p).end);
  }
  return most;
}
