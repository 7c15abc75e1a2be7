/* choose_blocks.c - which blocks of keys can be chosen, and the best of them.
 *
 * In: a choice, a block of queries, estimates in f32. Out: the candidates, by
 * segment, dilation, window and the other keeps; and the chosen ones, sorted.
 * Ties go to the smaller block number, and NaN is the smallest estimate. */
#include "choose.h"
#include "runtime/base/arithmetic.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- candidates ---------------------------------------------------------- */

int64_t choose_position(const cpu_run *r, const dil_choice *c, int64_t place) {
  return dil_block_position(&r->table->grid, &r->table->inputs[c->rows], r->M,
                            place);
}

choose_place choose_place_of(const cpu_run *r, const dil_choice *c, int64_t b,
                             int64_t bi) {
  int64_t M = cpu_run_keys(r, b);
  int64_t first = maximum(bi * c->query_block, maximum(M - r->N, 0));
  int64_t end = minimum((bi + 1) * c->query_block, M);
  return (choose_place){b, bi, first, end - 1, M};
}

/* The first and the last position of low..high with this phase, counted from
 * `start`; none where *low > *high. */
static void narrow(int64_t start, int64_t dilation, int64_t phase, int64_t *low,
                   int64_t *high) {
  int64_t rest = (phase - (*low - start)) % dilation;
  *low += rest < 0 ? rest + dilation : rest;
  rest = (*high - start - phase) % dilation;
  *high -= rest < 0 ? rest + dilation : rest;
}

/* Returns whether a distance between keys j0..j1 and queries t0..t1 of one phase
 * lies in the window: distances are all multiples of the dilation that there
 * are. */
static bool window_meets(const dil_choice *c, int64_t dilation, int64_t t0,
                         int64_t t1, int64_t j0, int64_t j1) {
  if (t0 > t1 || j0 > j1) return false;
  int64_t least = j0 - t1, most = j1 - t0;
  if (c->left != DIL_ENDLESS && -c->left > least) {
    int64_t rest = (-c->left - least) % dilation;
    least = -c->left + (rest ? dilation - rest : 0);
  }
  if (c->right != DIL_ENDLESS) most = minimum(most, c->right);
  return least <= most;
}

static bool head_reaches(const cpu_run *r, const dil_choice *c,
                         const choose_place *at, int32_t h, int64_t bj) {
  const dil_branch *b = &r->table->branches[c->branch];
  int64_t j0 = bj * c->block, j1 = minimum(j0 + c->block, at->M) - 1;
  int64_t s = b->segment, phase = b->phase[h];
  if (h < b->head_first || h > b->head_last || at->first > at->last || j0 > j1)
    return false;
  int64_t from = s ? maximum(at->first, j0) / s : 0; /* segments of both */
  int64_t to = s ? minimum(at->last, j1) / s : 0;
  for (int64_t k = from; k <= to; k++) {
    int64_t start = k * s, end = s ? start + s - 1 : at->M;
    int64_t t0 = maximum(at->first, start), t1 = minimum(at->last, end);
    int64_t k0 = maximum(j0, start), k1 = minimum(j1, end);
    narrow(start, b->dilation, phase, &t0, &t1);
    narrow(start, b->dilation, phase, &k0, &k1);
    if (window_meets(c, b->dilation, t0, t1, k0, k1)) return true;
  }
  return false;
}

/* Returns whether the key block has a position of the query block, where no key
 * after a query is seen. */
static bool is_diagonal(const dil_choice *c, int64_t bi, int64_t bj) {
  return c->right <= 0 && bj * c->block < (bi + 1) * c->query_block &&
         bi * c->query_block < (bj + 1) * c->block;
}

static bool others_leave(const cpu_run *r, int32_t choice,
                         const choose_place *at, int32_t h, int64_t bj) {
  const dil_choice *c = &r->table->choices[choice];
  if (!c->asks) return true;
  const dil_code *tiles = r->code[DIL_TILES];
  const dil_code *code = tiles && tiles->keeps ? tiles : r->code[DIL_ROWS];
  cpu_run_env env;
  cpu_run_env_init(r, at->b, h, &env);
  int32_t bits =
      code->keeps(choice, &env.env, (int32_t)choose_position(r, c, at->first),
                  (int32_t)choose_position(r, c, bj * c->block));
  return bits == DIL_KEEPS_LET;
}

choose_kind choose_kind_of(const cpu_run *r, int32_t choice,
                           const choose_place *at, int32_t h, int32_t end,
                           int64_t bj) {
  const dil_choice *c = &r->table->choices[choice];
  for (; h < end; h++)
    if (head_reaches(r, c, at, h, bj) && others_leave(r, choice, at, h, bj))
      return is_diagonal(c, at->bi, bj) ? CHOOSE_ALWAYS : CHOOSE_SCORED;
  return CHOOSE_NONE;
}

/* ---- the best ------------------------------------------------------------ */

/* Greater for the better block: its estimate, then the smaller number. */
static uint64_t rank_of(float estimate, int64_t block) {
  uint32_t bits = 0;
  float number = estimate + 0.0f; /* -0 is 0 */
  memcpy(&bits, &number, sizeof bits);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  if (isnan(estimate)) bits = 0;
  return (uint64_t)bits << 32 | (0xffffffffu - (uint32_t)block);
}

static int64_t block_of(uint64_t rank) {
  return (int64_t)(0xffffffffu - (uint32_t)rank);
}

static void swap(uint64_t *a, uint64_t *b) {
  uint64_t kept = *a;
  *a = *b;
  *b = kept;
}

/* The `wanted` greatest ranks come first, in any order. All differ. */
static void bring_best(uint64_t *rank, int64_t count, int64_t wanted) {
  int64_t low = 0, high = count - 1;
  while (low < high) {
    uint64_t pivot = rank[low + (high - low) / 2];
    int64_t i = low, j = high;
    while (i <= j) {
      while (rank[i] > pivot) i++;
      while (rank[j] < pivot) j--;
      if (i <= j) swap(&rank[i++], &rank[j--]);
    }
    if (wanted - 1 <= j) high = j;
    else if (wanted - 1 >= i) low = i;
    else return;
  }
}

static int by_rank(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x < y) - (x > y);
}

/* e^(estimate - best); equal ones, infinite ones too, weigh 1. */
static double weight_of(float estimate, float best) {
  if (isnan(best)) return 1;
  if (isnan(estimate)) return 0;
  return estimate == best ? 1 : exp((double)estimate - (double)best);
}

/* How many of the candidates, best first, have the share; at least one, unless
 * there is no room. */
static int64_t count_mass(const dil_choice *c, const float *estimate,
                          uint64_t *rank, int64_t count, int64_t rest) {
  double all = 0, sum = 0;
  qsort(rank, (size_t)count, sizeof *rank, by_rank);
  float best = count ? estimate[block_of(rank[0])] : 0;
  for (int64_t k = 0; k < count; k++)
    all += weight_of(estimate[block_of(rank[k])], best);
  for (int64_t k = 0; k < minimum(count, rest); k++) {
    sum += weight_of(estimate[block_of(rank[k])], best);
    if (sum >= c->share * all) return k + 1;
  }
  return minimum(count, rest);
}

static int by_number(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

int64_t choose_best(const dil_choice *c, const uint8_t *kind,
                    const float *estimate, int64_t nb, uint64_t *room,
                    int32_t *out) {
  int64_t scored = 0, chosen = 0;
  for (int64_t bj = 0; bj < nb; bj++) {
    if (kind[bj] == CHOOSE_ALWAYS) out[chosen++] = (int32_t)bj;
    if (kind[bj] == CHOOSE_SCORED) room[scored++] = rank_of(estimate[bj], bj);
  }
  int64_t rest = maximum(c->most - chosen, 0), taken = minimum(rest, scored);
  if (c->share > 0) taken = count_mass(c, estimate, room, scored, rest);
  else if (taken && taken < scored) bring_best(room, scored, taken);
  for (int64_t k = 0; k < taken; k++)
    out[chosen++] = (int32_t)block_of(room[k]);
  qsort(out, (size_t)chosen, sizeof *out, by_number);
  return chosen;
}
