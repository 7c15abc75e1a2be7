/* stream_walk.c - which chunk of a streamed call comes when, into which buffer,
 * and which of its rows. In: a shape and a bound. Out: jobs, one by one; the
 * same for whoever runs them and whoever only counts. */
#include "stream.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include <math.h>

/* ---- sizes --------------------------------------------------------------- */

static int64_t value_bytes(const dil_table *t) {
  return (int64_t)dil_dtype_size(t->dtype);
}

/* Two buffers of q, two of o and lse before they are written back, and the
 * state. */
static int64_t query_cost(const dil_table *t) {
  int64_t state = run_states(t) * (t->value_dim + 1) * (int64_t)sizeof(float);
  int64_t out = t->value_dim * value_bytes(t) + (int64_t)sizeof(float);
  return t->heads * (2 * t->head_dim * value_bytes(t) + 2 * out + state);
}

/* Two buffers of k and v, and what threads pack of one head; or the message in
 * which they come to a device. */
static int64_t key_cost(const dil_table *t, int32_t threads) {
  enum { PACKED_AHEAD = 2 };
  int64_t width = t->head_dim + t->value_dim;
  int64_t row = t->kv_heads * width * value_bytes(t);
  return threads ? 2 * row + (threads + PACKED_AHEAD) * width *
                                 (int64_t)sizeof(float)
                 : 3 * row;
}

/* Cuts are at ends of segments where they can be: fewer keys are shared. */
static int64_t cut_well(const dil_table *t, int64_t rows_asked, int64_t all) {
  enum { TILES = 128 };
  int64_t unit = rows_asked < TILES ? 1 : TILES;
  if (rows_asked >= all) return maximum(all, 1);
  for (int32_t b = 0; b < t->branch_count; b++)
    if (t->branches[b].segment <= rows_asked)
      unit = maximum(unit, t->branches[b].segment);
  return rows_asked / unit * unit;
}

/* Below a tile of keys a pass rounds the state more than it adds to it. */
enum { KEYS_LEAST = 128 };

/* A call that fits still comes in pieces: passes begin with the first. */
static int64_t cut_chunks(int64_t keys) {
  enum { PIECES = 8, LEAST = 4096 };
  return maximum((keys + PIECES - 1) / PIECES, minimum(keys, LEAST));
}

/* Bytes that a row of each takes. */
typedef struct row_costs {
  int64_t query, key;
} row_costs;

/* One part in `parts` of the bound is keys. */
static stream_chunks cut_both(const stream_shape *s, row_costs cost,
                              int64_t bound, int64_t parts) {
  int64_t least = minimum(s->M, KEYS_LEAST);
  int64_t keys = minimum(s->M, maximum(bound / parts / cost.key, least));
  if (bound - keys * cost.key < cost.query)
    keys = (bound - cost.query) / cost.key;
  int64_t asking = minimum(s->N, (bound - keys * cost.key) / cost.query);
  if (asking == s->N && parts == 2)
    keys = minimum(s->M, (bound - asking * cost.query) / cost.key);
  return (stream_chunks){1, cut_well(s->table, asking, s->N),
                         cut_well(s->table, keys, s->M)};
}

/* About the seconds that a device waits with these cuts: for all rows that are
 * loaded, for the cost of each pass besides its pairs, and for the first chunks,
 * which no pass hides. Speeds as seen on an H200 (tests/bench/NOTES.md). */
static dil_status seconds_of(const stream_shape *s, double *seconds) {
  const double rate = 26e9, pass = 50e-6; /* bytes a second; seconds */
  const dil_table *t = s->table;
  stream_facts facts;
  dil_status status = stream_count(s, &facts);
  double first = (double)(s->chunks.queries * t->heads * t->head_dim *
                              value_bytes(t) +
                          s->chunks.keys * t->kv_heads * route_row_bytes(t));
  *seconds = ((double)facts.loaded + first) / rate +
             (double)facts.chunks * pass;
  return status;
}

/* Where each query wants most keys, fewer keys are brought again with more
 * queries at a time. Where few queries want any, large chunks of both are
 * skipped or full. That is counted, unless there are too many chunks for it. */
static dil_status cut_by_count(stream_shape *s, row_costs cost,
                               int64_t bound) {
  enum { PARTS_MOST = 32, PAIRS_MOST = 4096 };
  stream_chunks best = s->chunks;
  double least = INFINITY, seconds;
  dil_status status = DIL_OK;
  for (int64_t parts = 2; parts <= PARTS_MOST && !status; parts *= 2) {
    s->chunks = cut_both(s, cost, bound, parts);
    if (stream_pairs(s) > PAIRS_MOST) break;
    status = seconds_of(s, &seconds);
    if (status || seconds >= least) continue;
    least = seconds;
    best = s->chunks;
  }
  s->chunks = best;
  return status;
}

dil_status stream_plan(stream_shape *s, int32_t threads, int64_t bound) {
  const dil_table *t = s->table;
  int64_t query = query_cost(t), key = key_cost(t, threads);
  int64_t least = minimum(s->M, KEYS_LEAST);
  if (bound < query + least * key)
    return dil_fail(DIL_USAGE, "%lld bytes are too few to stream this call: "
                    "one query and %lld keys take %lld", (long long)bound,
                    (long long)least, (long long)(query + least * key));
  double sequence = (double)s->N * (double)query + (double)s->M * (double)key;
  stream_chunks *c = &s->chunks;
  if (sequence <= (double)bound) {
    double fit = (double)bound / (sequence + 1);
    int64_t batch = fit < (double)s->B ? (int64_t)fit : s->B;
    *c = (stream_chunks){s->lengths ? 1 : maximum(batch, 1),
                         maximum(s->N, 1), maximum(s->M, 1)};
    if (c->batch == s->B) c->keys = cut_well(t, cut_chunks(c->keys), c->keys);
    return DIL_OK;
  }
  *c = cut_both(s, (row_costs){query, key}, bound, 2);
  return threads ? DIL_OK : cut_by_count(s, (row_costs){query, key}, bound);
}

static int64_t chunks_in(int64_t all, int64_t each) {
  return (all + each - 1) / each;
}

/* Keys of the batch rows of a unit. */
static int64_t unit_keys(const stream_shape *s, int64_t unit) {
  return s->lengths ? s->lengths[unit * s->chunks.batch] : s->M;
}

static int64_t key_chunks(const stream_shape *s, int64_t unit) {
  return chunks_in(unit_keys(s, unit), s->chunks.keys);
}

int64_t stream_queries_before(const stream_shape *s, stream_place at) {
  return at.unit * chunks_in(s->N, s->chunks.queries) + at.query;
}

/* Past the last unit there are no keys to count. */
int64_t stream_pairs_before(const stream_shape *s, stream_place at) {
  int64_t sum = at.key;
  for (int64_t u = 0; u < at.unit; u++)
    sum += key_chunks(s, u) * chunks_in(s->N, s->chunks.queries);
  return at.query ? sum + at.query * key_chunks(s, at.unit) : sum;
}

int64_t stream_pairs(const stream_shape *s) {
  stream_place end = {.unit = chunks_in(s->B, s->chunks.batch)};
  return stream_pairs_before(s, end);
}

/* ---- the walk ------------------------------------------------------------ */

void stream_walk_begin(stream_walk *w, const stream_shape *of,
                       stream_place from) {
  *w = (stream_walk){.shape = of, .at = from, .slot = {1, 1}};
  w->held[0].unit = w->held[1].unit = -1;
}

void stream_walk_end(stream_walk *w) { route_free(&w->job.route); }

static void cut_job_rows(const stream_walk *w, stream_job *j) {
  const stream_shape *s = w->shape;
  int64_t each = j->keys ? s->chunks.keys : s->chunks.queries;
  int64_t all = j->keys ? j->M : s->N;
  j->first = (j->keys ? w->at.key : w->at.query) * each;
  j->rows = (dil_progression){j->first + (j->keys ? 0 : j->M - s->N), 1,
                              minimum(each, all - j->first)};
}

static void begin_job(stream_walk *w, bool keys) {
  const stream_shape *s = w->shape;
  stream_job *j = &w->job;
  route_free(&j->route);
  *j = (stream_job){.keys = keys, .at = w->at,
                    .batch = w->at.unit * s->chunks.batch,
                    .M = unit_keys(s, w->at.unit), .skipped = j->skipped};
  j->batches = minimum(s->chunks.batch, s->B - j->batch);
  cut_job_rows(w, j);
}

static void bring_queries(stream_walk *w) {
  const dil_table *t = w->shape->table;
  stream_job *j = &w->job;
  begin_job(w, false);
  j->slot = w->slot[0] ^= 1;
  j->whole = true;
  j->bytes = j->batches * j->rows.count * t->heads * t->head_dim *
             value_bytes(t);
}

static dil_progression queries_of(const stream_walk *w) {
  stream_job j = {.M = unit_keys(w->shape, w->at.unit)};
  cut_job_rows(w, &j);
  return j.rows;
}

/* A buffer with these keys, all of them; or the one that is older. */
static void choose_slot(stream_walk *w) {
  stream_job *j = &w->job;
  for (int32_t i = 0; i < 2; i++)
    if (w->held[i].unit == w->at.unit && w->held[i].key == w->at.key &&
        w->held[i].whole) {
      j->there = true;
      w->slot[1] = i;
    }
  if (!j->there) w->slot[1] ^= 1;
  j->slot = w->slot[1];
  if (j->there) return;
  w->held[j->slot].unit = w->at.unit;
  w->held[j->slot].key = w->at.key;
  w->held[j->slot].whole = j->whole;
  j->bytes = j->batches * j->route.rows * route_row_bytes(w->shape->table);
}

/* False: no query of the pair has a key in it. */
static bool bring_keys(stream_walk *w, dil_status *status) {
  const dil_table *t = w->shape->table;
  stream_job *j = &w->job;
  begin_job(w, true);
  positions owned = {1, {j->rows}}, asking = {1, {queries_of(w)}};
  *status = route_between(t, &owned, &asking, &j->route);
  if (*status || !j->route.rows) return false;
  j->whole = j->route.rows == j->rows.count * t->kv_heads;
  choose_slot(w);
  return true;
}

/* To the next pair. */
static void next_pair(stream_walk *w) {
  const stream_shape *s = w->shape;
  if (++w->at.key < key_chunks(s, w->at.unit)) return;
  w->at.key = 0;
  w->begun = false;
  if (++w->at.query < chunks_in(s->N, s->chunks.queries)) return;
  w->at.query = 0;
  w->at.unit++;
}

bool stream_walk_next(stream_walk *w, dil_status *status) {
  const stream_shape *s = w->shape;
  bool found = false;
  *status = DIL_OK;
  w->job.skipped = 0;
  int64_t units = s->N ? chunks_in(s->B, s->chunks.batch) : 0;
  while (!found && !*status && w->at.unit < units) {
    if (!w->begun) {
      bring_queries(w);
      w->begun = true;
      if (w->at.key >= key_chunks(s, w->at.unit)) next_pair(w);
      return true;
    }
    found = bring_keys(w, status);
    w->job.skipped += !found;
    next_pair(w);
  }
  return found;
}

dil_status stream_count(const stream_shape *of, stream_facts *facts) {
  stream_walk w;
  dil_status status;
  *facts = (stream_facts){0};
  stream_walk_begin(&w, of, (stream_place){0});
  while (stream_walk_next(&w, &status)) {
    facts->chunks += w.job.keys;
    facts->skipped += w.job.skipped;
    facts->loaded += w.job.bytes;
  }
  facts->skipped += w.job.skipped;
  stream_walk_end(&w);
  return status;
}
