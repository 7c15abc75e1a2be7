/* choose_sizes.c - the memory that templates/general/choose.cuh needs. In: a call
 * and its choices of blocks. Out: counts of blocks, and where each array stands. */
#include "choices.h"
#include "nvidia.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/lists.h"

_Static_assert(sizeof(dil_choose_params) == DIL_CHOOSE_BYTES,
               "templates/general/choose.cuh has another dil_choose_params");

/* Of dil_choose: four hide more latency, but two need less memory. */
enum { BLOCKS_A_PROCESSOR = 4, FEW_BLOCKS = 2, MUCH_MEMORY = 512 << 10 };

/* Bytes of a row of queries, or of a mean of them, in parts of 16 bits. */
static int32_t row_bytes(const dil_table *t, int32_t parts) {
  return parts * DIL_CHOOSE_PITCH(t->head_dim) * 2;
}

static bool has_query_means(const dil_choice *c) {
  return DIL_CHOOSE_HAS_MEANS(c->query_block, c->estimate == DIL_ESTIMATE_MEAN);
}

static int64_t heads_that_choose(const dil_table *t, const dil_choice *c) {
  return c->shared ? t->kv_heads : t->heads;
}

/* Whether a thread block sorts the key blocks of each block of queries. */
static bool sorts(const dil_choice *c, int32_t keys) {
  return c->share > 0 && !DIL_CHOOSE_BY_LANES(keys);
}

/* Blocks of queries for which the lanes of a thread block choose at once. */
static int32_t chosen_at_once(int32_t keys) {
  int32_t lanes = 1, own = DIL_CHOOSE_OF_LANE(keys);
  while (lanes < 32 && lanes * own < keys) lanes *= 2;
  return DIL_CHOOSE_THREADS / lanes;
}

/* Tall strips of means read the means of keys less often. But all processors shall have
 * strips, a thread block sorts for one block of queries at a time, and estimates shall
 * stay in a cache. */
static int32_t strip_of_means(const cuda_run *r, const dil_choice *c, int32_t queries,
                              int32_t keys) {
  enum { HALF = DIL_CHOOSE_STRIP / 2, MOST_BYTES = 40 << 10, MOST_ESTIMATES = 64 << 10 };
  int64_t lines = r->B * heads_that_choose(r->table, c) * queries;
  int64_t processors = r->device->facts.processors;
  bool whole = DIL_CHOOSE_STRIP * row_bytes(r->table, DIL_CHOOSE_PARTS) <= MOST_BYTES &&
               DIL_CHOOSE_STRIP * (int64_t)keys <= MOST_ESTIMATES &&
               2 * lines >= 3 * processors * DIL_CHOOSE_STRIP && !sorts(c, keys);
  return whole ? DIL_CHOOSE_STRIP : HALF;
}

/* Blocks whose rows meet key blocks in turn: one for each warp that chooses, if all
 * processors have strips then. */
static int32_t strip_of_rows(const cuda_run *r, const dil_choice *c, int32_t rows,
                             int32_t queries, int32_t keys) {
  int32_t strip = c->query_block < rows ? rows / c->query_block : 1;
  int64_t lines = r->B * heads_that_choose(r->table, c) * queries;
  int64_t places = (int64_t)BLOCKS_A_PROCESSOR * r->device->facts.processors;
  while (DIL_CHOOSE_BY_LANES(keys) && strip < DIL_CHOOSE_WARPS &&
         2 * lines >= 3 * strip * places)
    strip *= 2;
  return strip;
}

/* Bytes of so many rows, as choose_coarse_mma.cuh or choose_coarse_wgmma.cuh has them. */
static int32_t coarse_rows(const dil_table *t, int64_t count) {
  int64_t mma = round_up(count, DIL_CHOOSE_TALL) * row_bytes(t, 1);
  int64_t wgmma = (DIL_COARSE_WHOLE(count) + 1) * DIL_CHOOSE_DEPTH(t->head_dim) * 2;
  return (int32_t)maximum(mma, wgmma);
}

/* Blocks whose rows meet coarse means at once, with the same condition. Shared memory has
 * room for their estimates, and that of a processor for two thread blocks. */
static int32_t strip_of_coarse(const cuda_run *r, const dil_choice *c, int32_t queries,
                               int32_t width) {
  enum { AT_ONCE = 2, EACH = 1 << 10 /* bytes that each takes besides */ };
  int32_t strip = DIL_COARSE_ROWS_OF(r->table->head_dim) / c->query_block;
  int64_t lines = r->B * r->table->heads * queries;
  int64_t places = (int64_t)AT_ONCE * r->device->facts.processors;
  int64_t room = (r->device->facts.shared_block + EACH) / AT_ONCE - EACH - DIL_CHOOSE_SHARED;
  for (; strip > 1; strip /= 2) {
    int64_t more = strip * (int64_t)DIL_COARSE_MORE_OF(width);
    if (2 * lines >= 3 * strip * places && more <= DIL_COARSE_MORE &&
        coarse_rows(r->table, strip * c->query_block) + more <= room)
      break;
  }
  return strip;
}

/* Blocks of queries that a thread block takes together: they share reads of means. */
static int32_t strip_of(const cuda_run *r, const dil_choice *c, int32_t queries,
                        int32_t keys) {
  bool tall = cuda_choice_is_tall(c, r->table->dtype);
  int32_t rows = tall ? DIL_CHOOSE_TALL : DIL_CHOOSE_ROWS;
  if (c->estimate == DIL_ESTIMATE_INPUT)
    return (int32_t)minimum(chosen_at_once(keys), DIL_CHOOSE_TALL);
  if (has_query_means(c)) return strip_of_means(r, c, queries, keys);
  if (c->estimate == DIL_ESTIMATE_EACH && c->query_block > 1)
    return strip_of_rows(r, c, rows, queries, keys);
  return rows;
}

/* Lists that a thread block moves: where there are few, the lengths of all are soon
 * added up. */
static int32_t joined_of(int32_t queries) {
  enum { FEW = 2048, FEW_JOINED = 32 };
  return queries <= FEW ? FEW_JOINED : DIL_CHOOSE_THREADS;
}

int32_t cuda_choose_shared(const dil_table *t, const dil_choose_params *p) {
  const dil_choice *c = &t->choices[p->choice];
  int32_t rows = DIL_CHOOSE_ROWS * row_bytes(t, 2); /* of f32 */
  if (cuda_choice_is_tall(c, t->dtype)) rows = DIL_CHOOSE_TALL * row_bytes(t, 1);
  if (has_query_means(c)) rows = p->strip * row_bytes(t, DIL_CHOOSE_PARTS);
  if (c->share > 0 && DIL_CHOOSE_BY_LANES(p->keys)) /* weights stand there, too */
    rows = (int32_t)maximum(rows, DIL_CHOOSE_THREADS * DIL_CHOOSE_OF_LANE(p->keys) *
                                      (int64_t)sizeof(int32_t));
  if (p->coarse_bytes) rows = p->coarse_bytes + p->strip * DIL_COARSE_MORE_OF(p->width);
  return rows + DIL_CHOOSE_SHARED;
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
  p.sorted = sorts(c, p.keys) ? power_above(p.keys) : 0;
  p.room = (int)dil_choice_room(c, r->M);
  p.joined = joined_of(p.queries);
  if (cuda_choice_is_coarse(c, r->table->dtype, r->table->head_dim, p.keys)) {
    p.strip = strip_of_coarse(r, c, p.queries, p.width);
    p.coarse_bytes = coarse_rows(r->table, p.strip * c->query_block);
    return p;
  }
  p.strip = strip_of(r, c, p.queries, p.keys);
  int64_t estimates = p.strip * (int64_t)p.width;
  p.own_bytes = estimates * (c->shared ? 2 : 1) * (int64_t)sizeof(float) +
                (p.width + p.sorted) * (int64_t)sizeof(uint64_t);
  return p;
}

cuda_choose_layout cuda_choose_lay_out(const cuda_run *r,
                                       const dil_choose_params *p) {
  const dil_table *t = r->table;
  const dil_choice *c = &t->choices[p->choice];
  int64_t strips = (p->queries + p->strip - 1) / p->strip;
  int64_t lines = r->B * t->heads * p->queries;
  bool means = c->estimate != DIL_ESTIMATE_INPUT;
  cuda_choose_layout at = {.has_query_means = has_query_means(c),
                           .is_coarse = p->coarse_bytes > 0};
  bool few = p->own_bytes >= MUCH_MEMORY;
  at.blocks = r->B * heads_that_choose(t, c) * strips;
  if (!at.is_coarse)
    at.blocks = minimum((few ? FEW_BLOCKS : BLOCKS_A_PROCESSOR) *
                            r->device->facts.processors, at.blocks);
  int64_t depth = DIL_CHOOSE_DEPTH(t->head_dim);
  int64_t mean = depth * (int64_t)sizeof(float), key_blocks = r->B * t->kv_heads * p->width;
  at.query_means = means ? round_up(key_blocks * mean, 256) : 0;
  at.coarse = at.query_means;
  if (at.has_query_means)
    at.coarse += round_up(r->B * t->heads * p->queries * mean, 256);
  at.lost = at.coarse;
  if (at.is_coarse) at.lost += round_up(key_blocks * depth * 2, 256);
  at.list = at.lost;
  if (at.is_coarse) at.list += round_up(key_blocks * (int64_t)sizeof(float), 256);
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
