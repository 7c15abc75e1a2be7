/* row_visit.c - the keys of one query row: which it sees, then the generated
 * kernels.
 *
 * In: a row whose query is loaded, positions of keys. The keys that the row sees
 * of a branch are found exactly by arithmetic. What masks say of them is asked for
 * ranges first, by intervals: a range without a key is left out, and one that is
 * seen as a whole carries no predicate. Out: the row's state, advanced. */
#include "key_list.h"
#include "query_row.h"
#include "runtime/base/arithmetic.h"
#include <string.h>

/* ---- one visit ------------------------------------------------------------ */

static int64_t key_count(const key_sequence *ks) {
  return (ks->end - ks->first + ks->step - 1) / ks->step;
}

/* Cuts low..high-1 to the keys that the window of a predicate shows row t. */
static void window_clip(const dil_predicate *p, int64_t t, int64_t *low,
                        int64_t *high) {
  if (p->left != DIL_ENDLESS) *low = maximum(*low, t - p->left);
  if (p->right != DIL_ENDLESS) *high = minimum(*high, t + p->right + 1);
  *low = maximum(*low, p->key_first);
  *high = minimum(*high, dil_predicate_end(p));
  if (!dil_predicate_meets_rows(p, t, t)) *high = *low;
}

/* Leaves out the keys at both ends that no predicate's window shows the row. */
static void key_sequence_trim(const row_pass *w, const query_row *q,
                              key_sequence *ks) {
  int64_t first = INT64_MAX, end = ks->first;
  for (uint64_t rest = ks->predicates; rest; rest &= rest - 1) {
    int64_t low = ks->first, high = ks->end;
    window_clip(&w->run->table->predicates[__builtin_ctzll(rest)], q->t, &low,
                &high);
    if (low < high) {
      first = minimum(first, low);
      end = maximum(end, high);
    }
  }
  if (!ks->predicates) return;
  if (first < end) ks->first += round_up(first - ks->first, ks->step);
  ks->end = end;
}

/* The kernels over n keys, at positions wk->j where these are asked for. */
static void row_compute(const row_pass *w, row_worker *wk, query_row *q,
                        const dil_env *env, const row_run *rows, int64_t n,
                        const key_sequence *ks) {
  const dil_code *code = w->code;
  float c2 = env->scale * DIL_LOG2_E;
  code->row_qk(q->q, rows->k, rows->k_stride, wk->s, n);
  if (ks->predicates || w->run->table->scored || !(c2 > 0)) {
    code->row_modify[ks->chain](wk->s, n, (int32_t)q->t, wk->j,
                                ks->predicates, env);
    c2 = DIL_LOG2_E;
  }
  if (w->run->drop)
    code->dropout_words(wk->j, n, DIL_DROPOUT_KEY, env, wk->words);
  float alpha = w->run->drop ? code->row_softmax_drop(wk->s, n, c2, 0, q->state,
                                                      q->word, wk->words)
                             : code->row_softmax(wk->s, n, c2, 0, q->state);
  code->row_pv(wk->s, rows->v, rows->v_stride, q->acc, alpha, n);
}

static void row_visit(const row_pass *w, row_worker *wk, query_row *q,
                      const row_source *at, key_sequence ks) {
  key_sequence_trim(w, q, &ks);
  int64_t n = key_count(&ks);
  if (n <= 0) return;
  row_run rows = paged_rows_take(&wk->gathered, &at->k, &at->v, ks.first,
                                 ks.step, n);
  bool asked = ks.predicates || w->run->table->scored || w->run->drop ||
               !(at->env.env.scale > 0);
  for (int64_t i = 0; i < n && asked; i++)
    wk->j[i] = (int32_t)(ks.first + i * ks.step);
  row_compute(w, wk, q, &at->env.env, &rows, n, &ks);
}

/* ---- what masks leave ----------------------------------------------------- */

static bool has_masks(const row_pass *w, uint64_t predicates) {
  for (; predicates; predicates &= predicates - 1)
    if (w->run->table->predicates[__builtin_ctzll(predicates)].masked)
      return true;
  return false;
}

/* Leaves the predicates that hold for some key, or none where one holds for all;
 * false: no key is kept. */
static bool key_sequence_settle(const row_pass *w, query_row *q,
                                const row_source *at, key_sequence *ks) {
  uint64_t kept = 0;
  int32_t t = (int32_t)q->t, first = (int32_t)ks->first;
  int32_t last = first + (int32_t)((key_count(ks) - 1) * ks->step);
  for (uint64_t rest = ks->predicates; rest; rest &= rest - 1) {
    int32_t cover = w->code->cover(__builtin_ctzll(rest), &at->env.env, t, t,
                                   first, last);
    if (cover == DIL_FULL) {
      ks->predicates = 0;
      q->settled += key_count(ks);
      return true;
    }
    if (cover == DIL_PARTIAL) kept |= rest & -rest;
  }
  ks->predicates = kept;
  if (!kept) q->settled += key_count(ks);
  return kept != 0;
}

/* Neighbours that came out alike are visited together. */
static void row_visit_flush(const row_pass *w, row_worker *wk, query_row *q,
                            const row_source *at) {
  if (key_count(&wk->waiting) > 0) row_visit(w, wk, q, at, wk->waiting);
  wk->waiting.end = wk->waiting.first;
}

static void row_visit_later(const row_pass *w, row_worker *wk, query_row *q,
                            const row_source *at, const key_sequence *ks) {
  key_sequence *last = &wk->waiting;
  int64_t count = key_count(last);
  if (count > 0 && last->predicates == ks->predicates &&
      last->first + count * last->step == ks->first) {
    last->end = ks->end;
    return;
  }
  row_visit_flush(w, wk, q, at);
  *last = *ks;
}

/* The largest power of two that is below n > 1. */
static int64_t power_below(int64_t n) {
  return INT64_C(1) << (63 - __builtin_clzll((uint64_t)n - 1));
}

/* Asks about a range, and about its parts where it is neither empty nor full: cut
 * where blocks begin, if their size is a power of two. */
static void row_visit_settled(const row_pass *w, row_worker *wk, query_row *q,
                              const row_source *at, key_sequence ks) {
  if (!key_sequence_settle(w, q, at, &ks)) return;
  if (!ks.predicates || key_count(&ks) <= DIL_SUBTILE_KEYS) {
    row_visit_later(w, wk, q, at, &ks);
    return;
  }
  key_sequence left = ks, right = ks;
  int64_t part = power_below(ks.end - ks.first);
  left.end = floor_to(ks.first, part) + part;
  right.first += round_up(left.end - ks.first, ks.step);
  row_visit_settled(w, wk, q, at, left);
  if (right.first < right.end) row_visit_settled(w, wk, q, at, right);
}

/* Masks that tell little of a step's ranges, less than a quarter, are asked again
 * after 1, 3, 7 and at last every 15 steps. */
static void row_visit_step(const row_pass *w, row_worker *wk, query_row *q,
                           const row_source *at, const key_sequence *ks) {
  int32_t p = __builtin_ctzll(ks->predicates);
  if (q->rest[p] > 0) {
    q->rest[p]--;
    row_visit_later(w, wk, q, at, ks);
  } else {
    q->settled = 0;
    row_visit_settled(w, wk, q, at, *ks);
    bool vain = 4 * q->settled < key_count(ks);
    q->vain[p] = vain ? (uint8_t)minimum(2 * q->vain[p] + 1, 15) : 0;
    q->rest[p] = q->vain[p];
  }
  row_visit_flush(w, wk, q, at);
}

static void row_visit_chunks(const row_pass *w, row_worker *wk, query_row *q,
                             const row_source *at, key_sequence ks) {
  int64_t end = ks.end;
  bool asks = has_masks(w, ks.predicates);
  for (; ks.first < end; ks.first += ROW_KEYS * ks.step) {
    ks.end = minimum(end, ks.first + ROW_KEYS * ks.step);
    if (asks) row_visit_step(w, wk, q, at, &ks);
    else row_visit(w, wk, q, at, ks);
  }
}

/* ---- where keys are ------------------------------------------------------- */

static int64_t segment_low(const dil_branch *b, int64_t t) {
  return b->segment ? floor_to(t, b->segment) : 0;
}

/* Keeps the keys of a sequence that are among the rows of this call. */
static bool key_sequence_align(key_sequence *ks, const row_view *there) {
  int64_t tries = 0, step = ks->step;
  while ((ks->first - there->first) % there->step && tries++ < there->step)
    ks->first += step;
  while (ks->step % there->step) ks->step += step;
  return tries <= there->step;
}

/* The residue of the keys that the row sees, counted from its segment. */
static int64_t key_phase(const dil_branch *b, const query_row *q,
                         int64_t base) {
  return b->each ? floor_mod(q->t - b->shift - base, b->dilation)
                 : b->phase[q->head];
}

/* The number of the first of `count` positions that is not below `low`. */
static int64_t list_find(const int32_t *positions, int64_t count, int64_t low) {
  int64_t first = 0;
  while (first < count) {
    int64_t middle = (first + count) / 2;
    if (positions[middle] < low) first = middle + 1;
    else count = middle;
  }
  return first;
}

/* The keys of the branch's list in positions low..high-1. Such a branch has neither
 * segments nor a dilation. */
static void row_visit_list(const row_pass *w, row_worker *wk, query_row *q,
                           const row_source *at, const dil_branch *branch,
                           int64_t low, int64_t high) {
  const cpu_run *r = w->run;
  int32_t count;
  const int32_t *list = key_list_line(r, branch->listed, at->env.env.batch,
                                      q->head, &count);
  key_sequence ks = {.chain = branch->chain};
  if (branch->rest >= 0) {
    const dil_predicate *p = &r->table->predicates[branch->rest];
    window_clip(p, q->t, &low, &high);
    if (p->masked) ks.predicates = 1ull << branch->rest;
  }
  int64_t end = list_find(list, count, high);
  for (int64_t i = list_find(list, count, low); i < end; i += ROW_KEYS) {
    int64_t n = minimum(end - i, ROW_KEYS);
    row_run rows = paged_rows_gather(&wk->gathered, &at->k, &at->v, list + i, n);
    memcpy(wk->j, list + i, (size_t)n * sizeof *list);
    row_compute(w, wk, q, &at->env.env, &rows, n, &ks);
  }
}

/* The keys of branch b in positions low..high-1: an arithmetic sequence. */
static void row_visit_branch(const row_pass *w, row_worker *wk, query_row *q,
                             const row_source *at, int32_t b, int64_t low,
                             int64_t high) {
  const dil_branch *branch = &w->run->table->branches[b];
  int64_t base = segment_low(branch, q->t);
  if (branch->listed >= 0) {
    row_visit_list(w, wk, q, at, branch, low, high);
    return;
  }
  key_sequence ks = {.step = branch->dilation, .chain = branch->chain};
  low = maximum(low, base);
  if (branch->segment) high = minimum(high, base + branch->segment);
  if (branch->predicate >= 0) {
    const dil_predicate *p = &w->run->table->predicates[branch->predicate];
    window_clip(p, q->t, &low, &high);
    if (p->masked) ks.predicates = 1ull << branch->predicate;
  }
  int64_t origin = base + key_phase(branch, q, base);
  ks.first = origin + round_up(maximum(low - origin, 0), ks.step);
  ks.end = high;
  if (key_sequence_align(&ks, &at->k)) row_visit_chunks(w, wk, q, at, ks);
}

/* `union`: each residue of the period once, with all branches that reach it. */
static void row_visit_residue(const row_pass *w, row_worker *wk, query_row *q,
                              const row_source *at, uint64_t reach,
                              int64_t first, int64_t high) {
  const dil_table *table = w->run->table;
  key_sequence ks = {first, wk->streamed.period, high, 0,
                     table->branches[__builtin_ctzll(reach)].chain};
  for (; reach; reach &= reach - 1) {
    int32_t p = table->branches[__builtin_ctzll(reach)].predicate;
    if (p < 0) {
      ks.predicates = 0;
      break;
    }
    ks.predicates |= 1ull << p;
  }
  row_visit_chunks(w, wk, q, at, ks);
}

static void row_visit_union(const row_pass *w, row_worker *wk, query_row *q,
                            const row_source *at, int64_t low, int64_t high) {
  walk wa = {.table = w->run->table,
             .pass = w->pass,
             .served = q->selected,
             .head = q->head,
             .round = 1};
  segment_cell held = {q->t, q->t + 1};
  dil_progression there = {at->k.first, at->k.step, 0};
  class_table_reset(&wk->streamed, &there);
  while (low < high) {
    segment_cell c = walk_cell(&wa, low, high);
    uint64_t near = walk_together(&wa, held, c, q->selected);
    if (near) walk_classes(&wa, c, &wk->streamed);
    for (int32_t i = 0; near && i < wk->streamed.count; i++) {
      uint64_t reach = near & wk->streamed.branches[i];
      reach = walk_meeting(&wa, reach, q->t,
                           c.low + wk->streamed.offset[wk->streamed.first[i]]);
      for (int32_t o = wk->streamed.first[i];
           reach && o < wk->streamed.first[i + 1]; o++)
        row_visit_residue(w, wk, q, at, reach, c.low + wk->streamed.offset[o],
                          c.high);
    }
    low = c.high;
  }
}
void row_visit_keys(const row_pass *w, row_worker *wk, query_row *q,
                    const row_source *at, int64_t low, int64_t high) {
  if (w->run->table->combine == DIL_COMBINE_UNION) {
    row_visit_union(w, wk, q, at, low, high);
    return;
  }
  for (uint64_t rest = q->selected; rest; rest &= rest - 1)
    row_visit_branch(w, wk, q, at, __builtin_ctzll(rest), low, high);
}

void row_reach(const row_pass *w, const query_row *q, int64_t *low,
               int64_t *high) {
  for (uint64_t rest = q->selected; rest; rest &= rest - 1) {
    const dil_branch *b =
        &w->run->table->branches[__builtin_ctzll(rest)];
    int64_t from = segment_low(b, q->t);
    int64_t to = b->segment ? from + b->segment : INT64_MAX;
    if (b->predicate >= 0)
      window_clip(&w->run->table->predicates[b->predicate], q->t, &from, &to);
    *low = minimum(*low, from);
    *high = maximum(*high, to);
  }
}

