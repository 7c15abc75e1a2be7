/* hopper_check.c - whether a kernel does a case right. In: a case, a variant.
 * Out: a line; right is: sampled rows near the exact ones, no element unwritten
 * and none beside the output written, the same bits in a second run, and, where
 * the window ends at the query, rows that do not see what comes behind. */
#include "hopper_bench.h"
#include <math.h>

enum { POISON = 0xff, POISONED = 0xffff /* a NaN of either element */ };

/* ---- on the device ------------------------------------------------------- */

typedef struct tally {
  uint64_t poisoned, sum;
} tally;

/* 16-bit elements that are still poison, and a sum that any bit changes. */
static tally inspect(bench *x, const void *p, uint64_t n) {
  tally found = {0};
  inspect_job job = {p, n, x->counts, x->counts + 1, POISONED};
  must(device_fill(x->device, x->counts, 0, sizeof found));
  bench_launch(x, x->inspect, 512, 256, &job);
  must(device_download(x->device, &found, x->counts, sizeof found));
  return found;
}

static void poison(bench *x, setup *s) {
  must(device_fill(x->device, s->room, POISON,
                   (int64_t)(s->o_count + 2 * BENCH_GUARD) * 2));
  must(device_fill(x->device, s->lse, POISON, (int64_t)s->lse_count * 4));
}

/* Elements beside the output that somebody wrote. */
static uint64_t count_stray(bench *x, const setup *s) {
  const uint16_t *behind = s->o + s->o_count;
  return 2 * BENCH_GUARD - inspect(x, s->room, BENCH_GUARD).poisoned -
         inspect(x, behind, BENCH_GUARD).poisoned;
}

/* ---- beside the definition ----------------------------------------------- */

typedef struct difference {
  double o;     /* relative */
  double lse;   /* the largest */
  int bad;      /* NaN, or infinities that are not the same */
} difference;

static difference compare(bench *x, setup *s) {
  static float found[SAMPLES * ROW];
  int Dv = s->c->Dv;
  gather_job job = {s->o, s->lse, x->sample, x->found,
                    s->c->N, s->c->H, Dv, s->c->element};
  bench_launch(x, x->gather, SAMPLES, 64, &job);
  must(device_download(x->device, found, x->found,
                       (int64_t)SAMPLES * (Dv + 1) * 4));
  difference off = {0};
  double square = 0, total = 0;
  for (int i = 0; i < SAMPLES; i++)
    for (int d = 0; d <= Dv; d++) {
      double have = found[i * (Dv + 1) + d], want = s->exact[i * (Dv + 1) + d];
      if (d == Dv && isinf(want)) off.bad += have != want;
      else if (isnan(have)) off.bad++;
      else if (d == Dv) off.lse = fmax(off.lse, fabs(have - want));
      else square += (have - want) * (have - want), total += want * want;
    }
  off.o = sqrt(square / (total > 0 ? total : 1));
  return off;
}

/* Other keys and values from some row on: no row before it may change. */
static bool is_causal(bench *x, setup *s, const variant *v) {
  const bench_case *c = s->c;
  if (c->right != 0 || c->B != 1) return true;
  int at = c->M - c->N / 3;
  uint64_t before = (uint64_t)(at - (c->M - c->N)) * c->H * c->Dv;
  tally first = inspect(x, s->o, before);
  setup_fill(x, s, at);
  setup_run(x, s, v);
  tally second = inspect(x, s->o, before);
  setup_fill(x, s, c->M);
  return first.sum == second.sum;
}

/* ---- all ----------------------------------------------------------------- */

bool check_variant(bench *x, setup *s, variant *v) {
  const char *left = cuda_hopper.open(&s->plan.table, &v->code)
                         ? dil_last_error()
                         : cuda_hopper.refusal(&s->run, 0, &v->code);
  if (left) {
    printf("%-26s %-14s refused: %s\n", s->c->name, v->name, left);
    return false;
  }
  poison(x, s);
  setup_run(x, s, v);
  tally o = inspect(x, s->o, s->o_count);
  tally lse = inspect(x, s->lse, s->lse_count * 2);
  uint64_t stray = count_stray(x, s);
  difference off = compare(x, s);
  setup_run(x, s, v);
  bool same = inspect(x, s->o, s->o_count).sum == o.sum &&
              inspect(x, s->lse, s->lse_count * 2).sum == lse.sum;
  bool causal = is_causal(x, s, v);
  double most = s->c->element == 1 ? 3e-3 : 4e-4;
  bool right = off.o < most && off.lse < 1e-4 && !off.bad && same && causal &&
               !o.poisoned && !stray;
  printf("%-26s %-14s %s: error %.1e lse %.0e nan %d unwritten %lld stray %lld"
         "%s%s\n", s->c->name, v->name, right ? "right" : "WRONG", off.o,
         off.lse, off.bad, (long long)o.poisoned, (long long)stray,
         same ? "" : " NOT THE SAME BITS", causal ? "" : " NOT CAUSAL");
  x->wrong += !right;
  return right;
}
