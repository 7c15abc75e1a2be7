/* sink.c - what rows begin with: the logarithm of the sum of their sinks.
 *
 * In: a run, a head, positions, the branches that select the rows. Out: a
 * number a row, in the units of lse; -inf without sinks, NaN where the row is
 * to be NaN. Whoever starts a row starts it with this; whoever resumes it does
 * not, so that a sink counts once. */
#include "cpu_run.h"
#include "runtime/rowset/walk.h"
#include <math.h>

void cpu_run_sinks(const cpu_run *r, const dil_env *env, uint64_t branches,
                   const int32_t *t, int64_t n, float *s) {
  const dil_code *tiles = r->code[DIL_TILES], *single = r->code[DIL_ROWS];
  for (int64_t i = 0; i < n; i++) s[i] = -INFINITY;
  if (r->table->sinks)
    (tiles->sink ? tiles : single)->sink(branches, t, n, env, s);
  for (int64_t i = 0; i < n; i++)
    if (s[i] == INFINITY) s[i] = NAN;
}

float cpu_run_row_sink(const cpu_run *r, int64_t b, int64_t n, int32_t h,
                       uint64_t among) {
  dil_progression queries = cpu_run_queries(r, b);
  int32_t t = (int32_t)(queries.first + n * queries.step);
  cpu_run_env env;
  float s;
  if (!r->table->sinks) return -INFINITY;
  cpu_run_env_init(r, b, h, &env);
  cpu_run_sinks(r, &env.env, walk_selecting(r->table, among, h, t), &t, 1, &s);
  return s;
}

void cpu_run_bare_row(const cpu_run *r, dil_dtype dtype, float sink, char *o,
                      float *lse) {
  float row[DIL_HEAD_DIM_MAX];
  for (int32_t d = 0; d < r->table->value_dim; d++)
    row[d] = isnan(sink) ? NAN : 0;
  row_from_f32(row, dtype, r->table->value_dim, o);
  if (lse) *lse = sink;
}
