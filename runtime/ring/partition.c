/* partition.c - the partition of a sequence, and the rows that travel; see
 * partition.h. A row_need stands for the keys of one branch and phase that one
 * progression of the receiver's queries reaches. In a range of keys where no
 * row_need changes, the needed keys are a few residues of a common period. */
#include "needed_rows.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include <stdlib.h>

/* ---- shards -------------------------------------------------------------- */

/* Piece `index` of `count` rows in `pieces`; the first pieces get one more. */
static dil_progression positions_piece(int64_t count, int64_t origin,
                                       int64_t pieces, int64_t index) {
  int64_t each = count / pieces, more = count % pieces;
  return (dil_progression){origin + index * each + minimum(index, more), 1,
                           each + (index < more)};
}

static void positions_add(positions *s, dil_progression progression) {
  dil_progression *last = s->count ? &s->progression[s->count - 1] : NULL;
  if (progression.count == 0) return;
  if (last && progression_end(*last) == progression.first)
    last->count += progression.count;
  else s->progression[s->count++] = progression;
}

positions partition_owned(dil_layout layout, int64_t count, int64_t origin,
                          int32_t ranks, int32_t rank) {
  positions s = {0};
  if (layout == DIL_CONTIGUOUS)
    positions_add(&s, positions_piece(count, origin, ranks, rank));
  else if (layout == DIL_ZIGZAG) {
    positions_add(&s, positions_piece(count, origin, 2 * ranks, rank));
    positions_add(
        &s, positions_piece(count, origin, 2 * ranks, 2 * ranks - 1 - rank));
  } else
    positions_add(
        &s, (dil_progression){origin + rank, ranks,
                              maximum(count - rank + ranks - 1, 0) / ranks});
  return s;
}

int64_t positions_count(const positions *s) {
  int64_t rows_owned = 0;
  for (int32_t i = 0; i < s->count; i++) rows_owned += s->progression[i].count;
  return rows_owned;
}

positions partition_queries(const ring_shape *r, int32_t rank) {
  return partition_owned(r->layout, r->N, r->M - r->N, r->ranks, rank);
}

positions partition_keys(const ring_shape *r, int32_t rank) {
  return partition_owned(r->layout, r->M, 0, r->ranks, rank);
}

positions partition_travelling(const ring_shape *r, int32_t rank) {
  return r->queries ? partition_queries(r, rank) : partition_keys(r, rank);
}

int32_t partition_lists(const ring_shape *r) {
  return r->queries ? r->table->heads : r->table->kv_heads;
}

/* ---- arithmetic ---------------------------------------------------------- */

/* A saturating sum. */
static int64_t add(int64_t a, int64_t b) {
  int64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return b > 0 ? INT64_MAX : INT64_MIN;
  return sum;
}

static int64_t between(int64_t x, int64_t low, int64_t high) {
  return maximum(low, minimum(x, high));
}

/* The first x >= low with x = a mod r and x = b mod s; INT64_MAX if there is
 * none. */
static int64_t first_common(int64_t low, int64_t a, int64_t r, int64_t b,
                            int64_t s) {
  int64_t x = low + floor_mod(a - low, r);
  for (int64_t tries = 0; tries < s; tries++, x += r)
    if (floor_mod(x - b, s) == 0) return x;
  return INT64_MAX;
}

/* ---- row_need ------------------------------------------------------------ */

/* The first and the last query in low..high-1 that the residue selects; *every
 * is their distance. False: there is none. */
static bool row_need_queries(const row_need *d, int64_t residue, int64_t low,
                             int64_t high, int64_t *t_min, int64_t *t_max,
                             int64_t *every) {
  const dil_progression *q = &d->queries;
  int64_t r = d->branch->dilation;
  *every = least_multiple(r, q->step);
  low = maximum(low, d->row_first);
  high = minimum(high, d->row_end);
  *t_min = first_common(maximum(low, q->first), residue, r, q->first, q->step);
  high = minimum(high, progression_end(*q));
  if (*t_min >= high) return false;
  *t_max = *t_min + (high - 1 - *t_min) / *every * *every;
  return true;
}

/* The start of the next segment that may hold queries of the receiver. */
static int64_t row_need_skip(const row_need *d, int64_t high) {
  int64_t s = d->branch->segment;
  if (!s || progression_end(d->queries) <= high) return INT64_MAX;
  return maximum(high, floor_to(d->queries.first, s));
}

static needed_keys row_need_at(const row_need *d, int64_t at) {
  int64_t s = d->branch->segment, low = s ? floor_to(at, s) : 0;
  int64_t high = s ? low + s : INT64_MAX, t_min, t_max;
  needed_keys w = {.residue = low + d->phase, .until = high};
  if (!row_need_queries(d, w.residue, s ? low : INT64_MIN / 2, high, &t_min,
                        &t_max, &w.every)) {
    w.until = row_need_skip(d, high);
    return w;
  }
  int64_t from = d->left == DIL_ENDLESS ? INT64_MIN : t_min - d->left;
  int64_t to = d->right == DIL_ENDLESS ? INT64_MAX : add(t_max + 1, d->right);
  int64_t border[4] = {from, between(t_min, from, to),
                       between(t_max + 1, from, to), to};
  int32_t zone = 0; /* 1: before the first query; 2: among; 3: after the last */
  while (zone < 4 && border[zone] <= at) zone++;
  if (zone < 4) w.until = minimum(high, border[zone]);
  if (at < d->end)
    w.until = minimum(w.until, at < d->first ? d->first : d->end);
  w.some = zone >= 1 && zone <= 3 && at >= d->first && at < d->end;
  w.inside = zone == 2 || d->left < 0 || d->right < 0;
  w.query = t_min;
  w.last = t_max;
  return w;
}

/* Returns whether a query reaches key j by its window; with a bound without end
 * the first or the last query does. */
static bool row_need_sees(const row_need *d, const needed_keys *w, int64_t j) {
  if (d->left == DIL_ENDLESS || d->right == DIL_ENDLESS) return true;
  int64_t next = j - d->right + floor_mod(w->query - (j - d->right), w->every);
  return maximum(next, w->query) <= minimum(j + d->left, w->last);
}

static bool row_need_has(const row_need *d, const needed_keys *w, int64_t j) {
  int64_t r = d->branch->dilation;
  if (!w->some || floor_mod(j + d->shift - w->residue, r)) return false;
  return !w->inside || row_need_sees(d, w, j);
}

/* ---- the rows of a pair of ranks ----------------------------------------- */

enum { NEEDS_MAX = 512, QUESTIONS_MAX = 1 << 17 };

/* The phases (exchange_phase) whose rows are asked for. */
typedef struct asking_for {
  uint64_t gathered;      /* branches that gather, as bits */
  bool first, rest;       /* rows that these branches need; all other rows */
  uint64_t left_out;      /* branches that need none */
  bool queries;           /* rows of queries, for keys */
} asking_for;

/* All row_needs of a pair of ranks, and the range of keys not yet passed to
 * the visitor. */
typedef struct row_needs {
  asking_for part;
  int32_t count;
  row_need of[NEEDS_MAX];
  needed_keys want[NEEDS_MAX];
  mask_search search;     /* mask NULL: masks are ignored */
  int32_t progression_index;
  dil_progression progression; /* of the sender's keys */
  int64_t low, high;      /* the range; none: low == high */
  bool keeps[NEEDS_MAX];  /* the row_needs with keys of the range */
  int32_t offset[DIL_PERIOD_MAX];
  partition_visitor visit;
  void *context;
} row_needs;

static bool row_need_is_same(const row_needs *all, const row_need *a,
                             const row_need *b) {
  bool heads = a->masked && all->search.mask->by_head;
  return a->branch == b->branch && a->phase == b->phase &&
         a->queries.first == b->queries.first &&
         (!heads || a->head == b->head);
}

static bool row_needs_add(row_needs *all, row_need d) {
  for (int32_t i = 0; i < all->count; i++)
    if (row_need_is_same(all, &all->of[i], &d)) return true;
  if (all->count == NEEDS_MAX) return false;
  all->of[all->count++] = d;
  return true;
}

static void exchange_numbers(int64_t *a, int64_t *b) {
  int64_t kept = *a;
  *a = *b;
  *b = kept;
}

/* The same pairs, seen from the keys: the queries that reach them are needed. */
static void row_need_turn(row_need *d) {
  d->shift = -d->shift;
  exchange_numbers(&d->left, &d->right);
  exchange_numbers(&d->first, &d->row_first);
  exchange_numbers(&d->end, &d->row_end);
}

/* The row_need of one head and branch, without its queries. */
static row_need row_need_new(row_needs *all, const dil_table *t, int32_t b,
                             int32_t h) {
  const dil_branch *branch = &t->branches[b];
  row_need d = {.branch = branch,
                .phase = branch->phase[h],
                .shift = branch->shift,
                .head = h,
                .gathered = all->part.gathered >> b & 1,
                .left = DIL_ENDLESS,
                .right = DIL_ENDLESS,
                .end = DIL_ENDLESS,
                .row_first = INT64_MIN / 2,
                .row_end = DIL_ENDLESS};
  if (branch->predicate < 0) {
    if (all->part.queries) row_need_turn(&d);
    return d;
  }
  const dil_predicate *p = &t->predicates[branch->predicate];
  const partition_mask *mask = all->search.mask;
  d.left = p->left;
  d.right = p->right;
  d.first = p->key_first;
  d.end = dil_predicate_end(p);
  if (p->row_first > 0) d.row_first = p->row_first;
  d.row_end = dil_predicate_row_end(p);
  if (all->part.queries) row_need_turn(&d);
  d.masked = p->masked && mask && mask->bounded >> branch->predicate & 1;
  if (p->masked && !d.masked) all->search.exact = false;
  return d;
}

/* A branch with every phase has needs of each. */
static bool row_needs_add_phases(row_needs *all, row_need d,
                                 const positions *asking) {
  int64_t end = d.branch->each ? d.branch->dilation : d.phase + 1;
  for (; d.phase < end; d.phase++)
    for (int32_t i = 0; i < asking->count; i++) {
      d.queries = asking->progression[i];
      if (!row_needs_add(all, d)) return false;
    }
  return true;
}

static dil_status row_needs_gather(const dil_table *t, const positions *asking,
                                   int32_t list, row_needs *all) {
  int32_t group = all->part.queries ? 1 : t->heads / t->kv_heads;
  for (int32_t h = list * group; h < (list + 1) * group; h++)
    for (int32_t b = 0; b < t->branch_count; b++) {
      if (h < t->branches[b].head_first || h > t->branches[b].head_last ||
          all->part.left_out >> b & 1)
        continue;
      if (!row_needs_add_phases(all, row_need_new(all, t, b, h), asking))
        return dil_fail(DIL_UNSUPPORTED,
                        "more than %d phases of branches "
                        "share a K/V head",
                        NEEDS_MAX);
    }
  return DIL_OK;
}

/* Fills all->want for position `at`; returns where the first one changes. */
static int64_t row_needs_ask(row_needs *all, int64_t at) {
  int64_t until = INT64_MAX;
  for (int32_t i = 0; i < all->count; i++) {
    all->want[i] = row_need_at(&all->of[i], at);
    until = minimum(until, all->want[i].until);
  }
  return until;
}

/* The period of the needed rows in positions; 0: no row is needed. */
static int64_t row_needs_period(const row_needs *all) {
  int64_t period = 0;
  for (int32_t i = 0; i < all->count; i++) {
    const needed_keys *w = &all->want[i];
    if (!all->keeps[i]) continue;
    if (!period) period = all->progression.step;
    period = least_multiple(
        period, w->inside ? w->every : all->of[i].branch->dilation);
  }
  return period;
}

/* Returns whether key j is needed, in a phase that is asked for. */
static bool row_needs_have(const row_needs *all, int64_t j) {
  bool first = false, any = false;
  for (int32_t i = 0; i < all->count && !first; i++) {
    if (!all->keeps[i] || !row_need_has(&all->of[i], &all->want[i], j))
      continue;
    any = true;
    first = all->of[i].gathered || all->part.first == all->part.rest;
  }
  return first ? all->part.first : any && all->part.rest;
}

/* Passes the range to the visitor. */
static dil_status row_needs_flush(row_needs *all) {
  row_range found = {.progression = all->progression_index,
                     .low = all->low,
                     .high = all->high,
                     .offset = all->offset,
                     .period = row_needs_period(all)};
  int64_t length = minimum(found.period, found.high - found.low);
  if (length > DIL_PERIOD_MAX)
    return dil_fail(DIL_UNSUPPORTED, "dilations with a common period of %lld "
                    "in a sequence of parts (at most %d)",
                    (long long)found.period, DIL_PERIOD_MAX);
  for (int64_t o = 0; o < length; o++)
    if (floor_mod(found.low + o - all->progression.first,
                  all->progression.step) == 0 &&
        row_needs_have(all, found.low + o))
      all->offset[found.count++] = (int32_t)o;
  if (found.count) all->visit(all->context, &found);
  all->low = all->high;
  return DIL_OK;
}

/* Adds low..high-1 to the range if the same row_needs have keys of both; else
 * it flushes the range and begins a new one. */
static dil_status row_needs_extend(row_needs *all, int64_t low, int64_t high,
                                   const mask_answer *answer) {
  bool same = all->low < all->high && all->high == low;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < all->count && same; i++)
    same = all->keeps[i] == (answer[i] != MASK_NONE);
  if (!same) {
    status = row_needs_flush(all);
    all->low = low;
    for (int32_t i = 0; i < all->count; i++)
      all->keeps[i] = answer[i] != MASK_NONE;
  }
  all->high = high;
  return status;
}

/* Returns the position to cut a range at: the multiple of the largest power of
 * two inside. */
static int64_t round_middle(int64_t low, int64_t high) {
  int64_t bit = 1;
  if (low < 0 && high > 0) return 0;
  for (int64_t differ = low ^ (high - 1); differ > 1; differ /= 2) bit *= 2;
  return floor_to(high - 1, bit);
}

/* Cuts low..high-1 until each row_need has all of a range or nothing, as far as
 * masks go. */
static dil_status row_needs_settle(row_needs *all, int64_t low, int64_t high,
                                   const mask_answer *before) {
  mask_answer answer[NEEDS_MAX];
  bool mixed = false;
  for (int32_t i = 0; i < all->count; i++) {
    answer[i] = before[i] != MASK_MIXED
                    ? before[i]
                    : mask_ask(&all->search, &all->of[i], &all->want[i], low,
                               high);
    mixed |= answer[i] == MASK_MIXED;
  }
  if (!mixed) return row_needs_extend(all, low, high, answer);
  int64_t middle = round_middle(low, high);
  dil_status status = row_needs_settle(all, low, middle, answer);
  return status ? status : row_needs_settle(all, middle, high, answer);
}

/* Visits the rows that travel out of one progression of the sender. */
static dil_status row_needs_visit(row_needs *all, int32_t index,
                                  dil_progression progression) {
  int64_t end = progression_end(progression);
  dil_status status = DIL_OK;
  all->progression_index = index;
  all->progression = progression;
  all->low = all->high = 0;
  for (int64_t at = progression.first; at < end && !status;) {
    mask_answer first[NEEDS_MAX];
    int64_t high = minimum(row_needs_ask(all, at), end);
    for (int32_t i = 0; i < all->count; i++)
      first[i] = !all->want[i].some     ? MASK_NONE
                 : all->of[i].masked ? MASK_MIXED
                                     : MASK_ALL;
    status = row_needs_settle(all, at, high, first);
    if (!status) status = row_needs_flush(all); /* before all->want changes */
    at = high;
  }
  return status;
}

static dil_status reach(const dil_table *t, const partition_mask *mask,
                        const positions *owned, const positions *asking,
                        int32_t list, asking_for part,
                        partition_visitor visit, void *context, bool *exact) {
  row_needs *all = calloc(1, sizeof *all);
  if (!all) return dil_fail(DIL_MEMORY, "no memory to place a sequence");
  all->part = part;
  all->search = (mask_search){mask, part.queries, QUESTIONS_MAX, true};
  all->visit = visit;
  all->context = context;
  dil_status status = row_needs_gather(t, asking, list, all);
  for (int32_t i = 0; i < owned->count && !status; i++)
    status = row_needs_visit(all, i, owned->progression[i]);
  *exact = all->search.exact;
  free(all);
  return status;
}

dil_status partition_reach(const dil_table *t, const positions *owned,
                           const positions *asking, int32_t kv_head,
                           partition_visitor visit, void *context) {
  bool exact;
  return reach(t, NULL, owned, asking, kv_head,
               (asking_for){.first = true, .rest = true}, visit, context,
               &exact);
}

uint64_t partition_branches(const dil_table *t) {
  return t->branch_count < 64 ? ((uint64_t)1 << t->branch_count) - 1
                              : ~(uint64_t)0;
}

bool partition_gathers_all(const ring_shape *r) {
  return !(partition_branches(r->table) & ~r->gathered);
}

/* If all branches gather, or all rotate, one phase has all rows. */
static dil_status ring_reach(const ring_shape *r, int32_t from, int32_t to,
                             int32_t list, exchange_phase phase,
                             partition_visitor visit, void *context,
                             bool *exact) {
  positions owned = partition_travelling(r, from);
  positions asking =
      r->queries ? partition_keys(r, to) : partition_queries(r, to);
  uint64_t all = partition_branches(r->table) & ~r->left_out;
  uint64_t mine = phase == EXCHANGE_GATHERED ? r->gathered : ~r->gathered;
  bool alone = !(all & ~mine);
  asking_for what = {r->gathered, alone || phase == EXCHANGE_GATHERED,
                     alone || phase == EXCHANGE_ROTATED, r->left_out,
                     r->queries};
  *exact = true;
  if (!(all & mine)) return DIL_OK;
  return reach(r->table, r->mask, &owned, &asking, list, what, visit, context,
               exact);
}

dil_status partition_rows(const ring_shape *r, int32_t from, int32_t to,
                          int32_t list, exchange_phase phase,
                          partition_visitor visit, void *context) {
  bool exact;
  return ring_reach(r, from, to, list, phase, visit, context, &exact);
}

int64_t row_range_count(const row_range *s) {
  int64_t length = s->high - s->low, rest = length % s->period;
  int64_t count = length / s->period * s->count;
  for (int32_t i = 0; i < s->count && s->offset[i] < rest; i++) count++;
  return count;
}

static void count_rows(void *context, const row_range *rows_found) {
  *(int64_t *)context += row_range_count(rows_found);
}

dil_status partition_count(const ring_shape *r, int32_t from, int32_t to,
                           int32_t list, exchange_phase phase,
                           int64_t *count, bool *exact) {
  *count = 0;
  return ring_reach(r, from, to, list, phase, count_rows, count, exact);
}
