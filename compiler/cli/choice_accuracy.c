/* choice_accuracy.c - whether the blocks that a kernel chose may be chosen.
 *
 * In: a call that ran, with the lists of its choices. Out: good, or the first
 * list that is wrong and why. A list is right where it holds the whole diagonal,
 * candidates alone, as many as there should be, and none that is below one that
 * is left out by more than the rounding of both estimates in f32. */
#include "accuracy.h"
#include "compiler/oracle/oracle.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Seconds for a number that an estimate is made of. */
#define NUMBER_SECONDS 3e-9

/* A list and what its query block sees. */
typedef struct chosen_list {
  const dil_choice *of;
  const oracle_block *blocks;
  int64_t keys;         /* key blocks */
  const int32_t *entry;
  int64_t count;
  bool *is_in;          /* [keys]: the list has the block */
} chosen_list;

/* A call that ran. */
typedef struct chosen_call {
  const pattern *pattern;
  const dil_call *call;
} chosen_call;

typedef struct list_place {
  int64_t b, h, bi;
} list_place;

static bool fail(choice_accuracy *v, const dil_choice *c, list_place at,
                 const char *why, int64_t block) {
  v->good = false;
  snprintf(v->fault, sizeof v->fault,
           "branch %d, batch row %lld, head %lld, query block %lld: %s %lld",
           c->branch, (long long)at.b, (long long)at.h, (long long)at.bi, why,
           (long long)block);
  return false;
}

/* Entries rise, and are candidates. */
static bool check_entries(const chosen_list *l, list_place at,
                          choice_accuracy *v) {
  for (int64_t k = 0; k < l->keys; k++) l->is_in[k] = false;
  for (int64_t e = 0; e < l->count; e++) {
    int64_t block = l->entry[e];
    if (block < 0 || block >= l->keys || (e && block <= l->entry[e - 1]))
      return fail(v, l->of, at, "the list is not sorted, or outside, at", block);
    if (!l->blocks[block].candidate)
      return fail(v, l->of, at, "no query reaches the chosen block", block);
    l->is_in[block] = true;
  }
  for (int64_t k = 0; k < l->keys; k++)
    if (l->blocks[k].always && !l->is_in[k])
      return fail(v, l->of, at, "the diagonal lacks block", k);
  return true;
}

static double number_of(const oracle_block *b) {
  return isnan(b->estimate) ? -INFINITY : b->estimate;
}

/* No block that is left out is above one that is chosen. */
static bool check_order(const chosen_list *l, list_place at,
                        choice_accuracy *v) {
  const oracle_block *least = NULL, *most = NULL;
  for (int64_t k = 0; k < l->keys; k++) {
    const oracle_block *b = &l->blocks[k];
    if (!b->candidate || b->always) continue;
    if (l->is_in[k] && (!least || number_of(b) + b->error <
                                      number_of(least) + least->error))
      least = b;
    if (!l->is_in[k] && (!most || number_of(b) - b->error >
                                      number_of(most) - most->error))
      most = b;
  }
  if (!least || !most || !(number_of(least) + least->error <
                           number_of(most) - most->error))
    return true;
  return fail(v, l->of, at, "the list should rather have block", most->block);
}

/* The share that the chosen blocks have, and that of all but the least of them,
 * with the most that rounding may add to a weight. */
static void shares_of(const chosen_list *l, double *chosen, double *before,
                      double *slack) {
  double best = NAN, all = 0, sum = 0, least = INFINITY, error = 0;
  for (int64_t k = 0; k < l->keys; k++) {
    const oracle_block *b = &l->blocks[k];
    if (!b->candidate || b->always) continue;
    if (isnan(best) || b->estimate > best) best = b->estimate;
    if (isfinite(b->error)) error = fmax(error, b->error);
  }
  for (int64_t k = 0; k < l->keys; k++) {
    const oracle_block *b = &l->blocks[k];
    if (!b->candidate || b->always) continue;
    double weight = oracle_choice_weight(b->estimate, best);
    all += weight;
    if (!l->is_in[k]) continue;
    sum += weight;
    least = fmin(least, weight);
  }
  *chosen = all > 0 ? sum / all : 1;
  *before = all > 0 ? (sum - least) / all : 0;
  *slack = expm1(4 * error) + 1e-6;
}

/* As many as `top` says; or no more and no fewer than have the share. */
static bool check_count(const chosen_list *l, list_place at,
                        choice_accuracy *v) {
  int64_t always = 0, scored = 0, taken = 0;
  double chosen, before, slack;
  for (int64_t k = 0; k < l->keys; k++) {
    if (!l->blocks[k].candidate) continue;
    if (l->blocks[k].always) always++;
    else scored++, taken += l->is_in[k];
  }
  int64_t room = l->of->most > always ? l->of->most - always : 0;
  int64_t most = room < scored ? room : scored;
  if (taken > most || (!(l->of->share > 0) && taken < most))
    return fail(v, l->of, at, "the list has another length than", most + always);
  if (!(l->of->share > 0) || !most) return true;
  shares_of(l, &chosen, &before, &slack);
  if (taken < most && (taken == 0 || chosen < l->of->share - slack))
    return fail(v, l->of, at, "the share is not reached with blocks:", taken);
  if (taken > 1 && before > l->of->share + slack)
    return fail(v, l->of, at, "the share is reached before blocks:", taken);
  return true;
}

static bool check_list(const chosen_call *b, oracle_choice *x,
                       const dil_choice *c, list_place at, oracle_block *blocks,
                       bool *is_in, choice_accuracy *v) {
  const dil_tensor *made = &b->call->made[c->rows - b->pattern->input_count];
  const int32_t *rows = (const int32_t *)made[0].data +
                        at.b * made[0].stride[0] + at.h * made[0].stride[1];
  const int32_t *cols = (const int32_t *)made[1].data +
                        at.b * made[1].stride[0] + at.h * made[1].stride[1];
  int64_t first = rows[at.bi], end = rows[at.bi + 1];
  const branch *of = &b->pattern->branch[c->branch];
  if (first < 0 || end < first || end > made[1].shape[2])
    return fail(v, c, at, "the list is outside, from", first);
  if (at.h < of->head_first || at.h > of->head_last)
    return end == first || fail(v, c, at, "no branch serves the head of", first);
  oracle_choice_blocks(x, at.b, at.bi, at.h, blocks);
  chosen_list l = {c, blocks, oracle_choice_keys(x), cols + first, end - first,
                   is_in};
  return check_entries(&l, at, v) && check_order(&l, at, v) &&
         check_count(&l, at, v);
}

static int64_t lists_within(const chosen_call *b, const dil_choice *c,
                            int64_t total, double budget) {
  double rows = c->estimate == DIL_ESTIMATE_EACH ? (double)c->query_block : 1;
  double keys = (double)dil_choice_blocks(dil_pages_keys(b->call), c->block);
  double group = c->shared ? (double)(b->pattern->heads / b->pattern->kv_heads)
                           : 1;
  double each = group * (double)b->pattern->head_dim *
                (rows * keys + (double)c->query_block) * NUMBER_SECONDS;
  double lists = budget / each;
  if (lists < 64) lists = 64;
  return lists < (double)total ? (int64_t)lists : total;
}

static dil_status check_choice(const chosen_call *b, int32_t index,
                               double budget, choice_accuracy *v) {
  oracle_choice *x;
  dil_choice c = pattern_choice(b->pattern, index);
  dil_status status =
      oracle_choice_open(b->pattern, b->call, index, ORACLE_NUMBERS, &x);
  if (status) {
    oracle_choice_close(x);
    return status;
  }
  int64_t keys = oracle_choice_keys(x), queries = oracle_choice_queries(x);
  int64_t total = b->call->q.shape[0] * b->pattern->heads * queries;
  int64_t count = lists_within(b, &c, total, budget);
  oracle_block *blocks = calloc((size_t)keys + 1, sizeof *blocks);
  bool *is_in = calloc((size_t)keys + 1, sizeof *is_in);
  if (!blocks || !is_in) status = dil_fail(DIL_MEMORY, "no memory for blocks");
  for (int64_t k = 0; k < count && !status && v->good; k++) {
    int64_t list = accuracy_sample(total, count, k);
    list_place at = {list / queries / b->pattern->heads,
                     list / queries % b->pattern->heads, list % queries};
    check_list(b, x, &c, at, blocks, is_in, v);
  }
  v->lists += count;
  v->total += total;
  free(blocks);
  free(is_in);
  oracle_choice_close(x);
  return status;
}

dil_status choice_accuracy_check(const pattern *p, const dil_call *call,
                                 double budget, choice_accuracy *v) {
  const chosen_call b = {p, call};
  dil_status status = DIL_OK;
  *v = (choice_accuracy){.good = true};
  for (int32_t k = 0; k < p->branch_count && !status; k++)
    if (call->made && branch_choice(&p->branch[k]))
      status = check_choice(&b, k, budget, v);
  return status;
}

void choice_accuracy_print(const choice_accuracy *v, FILE *out) {
  if (!v->total) return;
  fprintf(out, "chosen  %s: %lld of %lld lists of blocks compared\n",
          v->good ? "good" : "BAD", (long long)v->lists, (long long)v->total);
  if (!v->good) fprintf(out, "  %s\n", v->fault);
}
