/* measure.c - the counts of a call's pattern, and the peak of this machine,
 * on the threads that the call would use. */
#include "call_setup.h"
#include "runtime/base/documents.h"
#include "runtime/base/status.h"
#include "runtime/code.h"
#include "runtime/cpu/peak.h"
#include <stdlib.h>
#include <string.h>

static void add_cover_count(cover_count *sum, const cover_count *one,
                            double times) {
  sum->pairs += times * one->pairs;
  sum->distinct += times * one->distinct;
  sum->uncovered += times * one->uncovered;
  sum->empty += times * one->empty;
  sum->partial += times * one->partial;
  sum->full += times * one->full;
  sum->asked += times * one->asked;
  sum->together += times * one->together;
  sum->estimated |= one->estimated;
}

static bool expr_reads_batch(const expr *e) {
  return expr_uses(e, EXPR_B_);
}

static bool branch_reads_batch(const branch *b) {
  for (int32_t i = 0; i < b->mask_count; i++)
    if (expr_reads_batch(b->mask[i])) return true;
  for (int32_t level = 0; level < 2; level++)
    for (int32_t i = 0; i < b->keeps[level].count; i++) {
      const keep *k = &b->keeps[level].keep[i];
      if (expr_reads_batch(k->condition)) return true;
    }
  return false;
}

/* Returns whether one batch row may keep other pairs than the next of its
 * length. */
static bool differs_by_batch(const pattern *p) {
  for (int32_t i = 0; i < p->branch_count; i++)
    if (branch_reads_batch(&p->branch[i])) return true;
  return false;
}

/* A count is of pairs alone, of rows without keys too, or of tiles as well. */
typedef struct measured {
  enum { PAIRS, ROWS, TILES } what;
  int32_t tile_rows, tile_keys;
} measured;

static void measure_row(const call_setup *b, int64_t row, measured m,
                        cover_count *count) {
  const pattern *p = b->pattern;
  int64_t N = call_setup_queries(b, row), M = call_setup_keys(b, row);
  if (m.what == TILES)
    cover_pattern(p, N, M, m.tile_rows, m.tile_keys, &b->call, row, count);
  else if (m.what == ROWS) cover_rows(p, N, M, &b->call, row, count);
  else cover_pairs(p, N, M, &b->call, row, count);
}

static void measure(const call_setup *b, measured m, cover_count *sum) {
  int64_t B = documents_count(&b->call);
  bool alike = !b->call.lengths && !documents_given(&b->call) &&
               !differs_by_batch(b->pattern);
  cover_count one;
  *sum = (cover_count){0};
  for (int64_t row = 0; row < (alike && B ? 1 : B); row++) {
    measure_row(b, row, m, &one);
    add_cover_count(sum, &one, alike ? (double)B : 1);
  }
}

void measure_cover(const call_setup *b, int32_t tile_rows, int32_t tile_keys,
                   cover_count *sum) {
  measure(b, (measured){TILES, tile_rows, tile_keys}, sum);
}

void measure_rows(const call_setup *b, cover_count *sum) {
  measure(b, (measured){.what = ROWS}, sum);
}

void measure_pairs(const call_setup *b, cover_count *sum) {
  measure(b, (measured){.what = PAIRS}, sum);
}

typedef struct peak_work {
  const char *isa;
  bool bf16;
  double seconds, *rate;
} peak_work;

static void measure_one(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const peak_work *w = context;
  w->rate[index] = 1e9 * dil_peak_flops(w->isa, w->bf16, w->seconds);
}

cost_products measure_products(const pattern *p, const char *isa) {
  if (p->dtype != DIL_BF16 || !dil_isa_has_pairs(isa)) return COST_F32;
  if (!dil_isa_has_tiles(isa)) return COST_PAIRS;
  bool tiles = !p->grid.axes && dil_code_fits_tiles(p->head_dim, p->value_dim);
  return tiles ? COST_TILES : COST_F32;
}

dil_status measure_peak(const call_setup *b, const char *isa, double seconds,
                        double *peak) {
  int32_t count = dil_threads_count(b->threads);
  double *rate = calloc((size_t)count, sizeof *rate);
  if (!rate) return dil_fail(DIL_MEMORY, "no memory to measure the peak");
  bool bf16 = measure_products(b->pattern, isa) != COST_F32;
  peak_work work = {isa, bf16, seconds, rate};
  dil_status status = dil_threads_run(b->threads, count, measure_one, &work);
  *peak = 0;
  if (!status && rate[0] == 0)
    status = dil_fail(DIL_ENVIRONMENT,
                      "this processor has no instruction set '%s'", isa);
  for (int32_t i = 0; i < count; i++) *peak += rate[i];
  free(rate);
  return status;
}
