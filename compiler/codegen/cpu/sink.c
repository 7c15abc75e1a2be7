/* sink.c - what the softmax of a row begins with: the logarithm of the sum of
 * e^sink, over the pattern's sinks and those of the branches that select the
 * row. -inf adds nothing; inf and NaN give NaN, or inf where it stands alone.
 */
#include "cpu.h"
#include <math.h>

/* log(e^x + e^y). */
static ref sinks_add(build *b, ref x, ref y) {
  emit *e = &b->emit;
  ref largest = emit_greater(e, x, y);
  ref none = emit_compare(e, IS_EQUAL, largest, emit_real(e, -INFINITY));
  ref base = emit_select(e, none, emit_real(e, 0), largest);
  ref sum = emit_add(e, math_exp(b, emit_sub(e, x, base)),
                     math_exp(b, emit_sub(e, y, base)));
  return emit_add(e, base, math_log(b, sum));
}

/* A number from 2.3e38 on counts as infinite, since its product with log2 e is. */
static ref sink_counted(build *b, ref number) {
  emit *e = &b->emit;
  const double sign[] = {INFINITY, -INFINITY};
  ref wide = emit_mul(e, number, emit_real(e, 1.44269504088896340736));
  for (int32_t k = 0; k < 2; k++) {
    ref end = emit_real(e, sign[k]);
    number = emit_select(e, emit_compare(e, IS_EQUAL, wide, end), end, number);
  }
  return number;
}

ref sink_value(build *b, site *s, const expr *x) {
  const emit *e = &b->emit;
  ref number = expression_value(b, s, x);
  if (!emit_is_float(number))
    number = emit_convert(e, LLVMSIToFP, number, e->f32);
  number = emit_is_vector(number) ? number : emit_splat(e, number, e->width);
  return sink_counted(b, number);
}

/* The sum so far (NULL: none yet) and those of a list, which counts where
 * `chosen` is true (NULL: in any case). */
static ref list_add(build *b, site *s, expr *const *sink, int32_t count,
                    ref chosen, ref sum) {
  const emit *e = &b->emit;
  for (int32_t k = 0; k < count; k++) {
    ref one = sink_value(b, s, sink[k]);
    if (chosen != NULL)
      one = emit_select(e, chosen, one,
                        emit_splat(e, emit_real(e, -INFINITY), e->width));
    sum = sum != NULL ? sinks_add(b, one, sum) : one;
  }
  return sum;
}

static ref row_sinks(build *b, site *s, ref branches, bool all) {
  const emit *e = &b->emit;
  const pattern *p = b->plan->pattern;
  ref none = emit_splat(e, emit_real(e, -INFINITY), e->width);
  ref sum = all ? list_add(b, s, p->sink, p->sink_count, NULL, NULL) : none;
  for (int32_t k = 0; k < p->branch_count; k++) {
    ref bit = emit_and(e, branches, emit_long(e, (int64_t)(UINT64_C(1) << k)));
    ref chosen = emit_compare(e, IS_UNEQUAL, bit, emit_long(e, 0));
    sum =
        list_add(b, s, p->branch[k].sink, p->branch[k].sink_count, chosen, sum);
  }
  return sum;
}

void sink_function(build *b, const char *name, bool all) {
  emit *e = &b->emit;
  site s;
  emit_function(e, name, 'v', "lplpp");
  emit_noalias(e, 4);
  exact mode = exact_open(b);
  exact_begin(b, &mode);
  ref n = emit_parameter(e, 2);
  site_open(b, &s, emit_parameter(e, 3));
  site_open_inputs(b, &s);
  loop row;
  loop_begin(e, &row, "rows", emit_long(e, 0), n, e->width, NULL, 0);
  ref bytes = emit_mul(e, row.index, emit_long(e, CELL));
  ref there = lanes_before(b, emit_sub(e, n, row.index));
  s.i = emit_load_masked(e, emit_vector(e->i32, e->width),
                         emit_at(e, emit_parameter(e, 1), bytes), there, CELL);
  emit_store_masked(e, row_sinks(b, &s, emit_parameter(e, 0), all),
                    emit_at(e, emit_parameter(e, 4), bytes), there, CELL);
  build_locate(b, b->plan->pattern->at);
  loop_end(e, &row, NULL);
  exact_end(b, &mode);
  emit_return(e, NULL);
}
