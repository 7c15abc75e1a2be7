/* hopper_problem.c - a case in numbers. In: a row of hopper_cases.h. Out: the
 * plan's table, what the reference reads, how much work it is, and which of its
 * rows are compared. */
#include "hopper_bench.h"
#include <math.h>

static int phase_of(const bench_case *c, int b, int h) {
  int r = c->dilation[b], each = (c->H + r - 1) / r;
  int phase[] = {[CYCLE] = h, [ZERO] = 0, [BLOCK] = h / each, [BY_BRANCH] = b};
  return phase[c->phase] % r;
}

static int64_t multiple(int64_t a, int64_t b) {
  int64_t x = a;
  while (x % b) x += a;
  return x;
}

/* With SPLIT each branch has its own share of the heads. */
static void heads_of(const bench_case *c, int b, int *first, int *last) {
  *first = c->flags & SPLIT ? c->H * b / c->branches : 0;
  *last = c->flags & SPLIT ? c->H * (b + 1) / c->branches - 1 : c->H - 1;
}

void plan_fill(const bench_case *c, plan_data *p) {
  *p = (plan_data){.pass = {(1ull << c->branches) - 1, 1}};
  bool bounded = c->left >= 0 || c->right >= 0;
  p->predicate =
      (dil_predicate){c->left < 0 ? DIL_ENDLESS : c->left,
                      c->right < 0 ? DIL_ENDLESS : c->right, false, 0, 0, 0, 0};
  for (int b = 0; b < c->branches; b++) {
    p->pass.period = multiple(p->pass.period, c->dilation[b]);
    p->branch[b] = (dil_branch){.segment = c->segment[b],
                                .dilation = c->dilation[b],
                                .predicate = bounded ? 0 : -1,
                                .phase = p->phase[b]};
    heads_of(c, b, &p->branch[b].head_first, &p->branch[b].head_last);
    for (int h = 0; h < c->H; h++) p->phase[b][h] = phase_of(c, b, h);
  }
  p->table = (dil_table){.name = c->name,
                         .heads = c->H,
                         .kv_heads = c->Hkv,
                         .head_dim = c->D,
                         .value_dim = c->Dv,
                         .dtype = c->element == 1 ? DIL_BF16 : DIL_F16,
                         .combine = c->flags & UNION ? DIL_COMBINE_UNION
                                                     : DIL_COMBINE_SOFTMAX,
                         .dedup = !(c->flags & MULTISET),
                         .branch_count = c->branches,
                         .pass_count = 1,
                         .predicate_count = bounded,
                         .chain_count = 1,
                         .lse_allowed = true,
                         .branches = p->branch,
                         .passes = &p->pass,
                         .predicates = &p->predicate};
}

void problem_fill(const bench_case *c, problem *p) {
  *p = (problem){.B = c->B, .N = c->N, .M = c->M, .H = c->H,
                 .group = c->H / c->Hkv, .D = c->D, .Dv = c->Dv,
                 .element = c->element, .combine_union = !!(c->flags & UNION),
                 .branches = c->branches, .scale = 1 / sqrt(c->D)};
  for (int b = 0; b < c->branches; b++) {
    reference_branch *x = &p->branch[b];
    *x = (reference_branch){.segment = c->segment[b],
                            .dilation = c->dilation[b],
                            .left = c->left,
                            .right = c->right};
    heads_of(c, b, &x->head_first, &x->head_last);
    for (int h = 0; h < c->H; h++) x->phase[h] = phase_of(c, b, h);
  }
}

/* The keys of a row at t of head h, in a branch. */
static int64_t count_keys(const bench_case *c, const reference_branch *x, int h,
                          int64_t t) {
  int64_t s = x->segment ? x->segment : 1 << 30, r = x->dilation;
  int64_t low = t >= 0 ? t / s * s : 0, phase = x->phase[h];
  if (t < 0 || (t - low) % r != phase) return 0;
  int64_t first = low, end = low + s < c->M ? low + s : c->M;
  if (c->left >= 0 && t - c->left > first) first = t - c->left;
  if (c->right >= 0 && t + c->right + 1 < end) end = t + c->right + 1;
  int64_t from = low + phase;
  first = first <= from ? from : from + (first - from + r - 1) / r * r;
  return first < end ? (end - 1 - first) / r + 1 : 0;
}

double count_pairs(const bench_case *c, const problem *p) {
  double pairs = 0;
  for (int b = 0; b < c->branches; b++)
    for (int h = p->branch[b].head_first; h <= p->branch[b].head_last; h++)
      for (int64_t t = c->M - c->N; t < c->M; t++)
        pairs += (double)count_keys(c, &p->branch[b], h, t);
  return pairs;
}

static uint32_t next_random(uint32_t *state) {
  return *state = *state * 1664525u + 1013904223u;
}

void choose_samples(const bench_case *c, int sample[3 * SAMPLES]) {
  uint32_t state = 12345;
  int border = c->segment[0] ? c->segment[0] : 128;
  for (int i = 0; i < SAMPLES; i++) {
    int n = (int)((uint64_t)next_random(&state) * (uint64_t)c->N >> 32);
    if (i < 48) n = i;
    else if (i < 96) n = c->N - 1 - (i - 48);
    else if (i < 160) n = n / border * border - 4 + i % 8;
    sample[3 * i] = i % c->B;
    sample[3 * i + 1] = n < 0 ? 0 : n >= c->N ? c->N - 1 : n;
    sample[3 * i + 2] = (int)((next_random(&state) >> 8) % (unsigned)c->H);
  }
}
