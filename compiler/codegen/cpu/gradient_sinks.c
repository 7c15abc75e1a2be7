/* gradient_sinks.c - the gradients of the inputs that sinks read.
 *
 * In: rows with their lse and delta. Out: for each sink of a row
 * d sink = -e^(sink - lse) delta, times the sink's derivative by what it read,
 * added to the element's sum. A sink of -inf has the gradient 0. */
#include "cpu.h"
#include <math.h>
#include <stddef.h>

/* Parameters of sink_inputs, in order. */
typedef enum sinks_parameter {
  SINKS_OWN, SINKS_BRANCHES, SINKS_T, SINKS_N, SINKS_ENV, SINKS_LSE,
  SINKS_DELTA, SINKS_SUMS
} sinks_parameter;

/* Lanes of rows. */
typedef struct sink_rows {
  site site;
  lanes_room room;
  ref there;      /* i1: the lane has a row */
  ref lse, delta; /* lse in units of log2 */
} sink_rows;

/* d sink, 0 where the lane has none. */
static ref sink_slope(build *b, sink_rows *rows, const expr *sink,
                      ref chosen) {
  emit *e = &b->emit;
  ref zero = emit_splat(e, emit_real(e, 0), e->width);
  ref number = sink_value(b, &rows->site, sink);
  ref below = emit_sub(e, emit_mul(e, number, emit_real(e, M_LOG2E)),
                       rows->lse);
  ref held = emit_select(e, emit_compare(e, IS_GREATER, below, zero), zero,
                         below);
  ref weight = math_power(b, held, b->exp_degree);
  ref none = emit_compare(e, IS_EQUAL, number, emit_real(e, -INFINITY));
  weight = emit_select(e, none, zero, weight);
  ref slope = emit_sub(e, zero, emit_mul(e, weight, rows->delta));
  ref counts = emit_and(e, chosen, emit_compare(e, IS_UNEQUAL, weight, zero));
  return emit_select(e, counts, slope, zero);
}

/* The sinks of a list, where `chosen`. */
static void add_list(build *b, sink_rows *rows, expr *const *sink,
                     const plan_slopes *slopes, ref chosen) {
  emit *e = &b->emit;
  ref zero = emit_real(e, 0);
  for (int32_t i = 0; i < slopes->read_count; i++) {
    const plan_read *read = &slopes->read[i];
    ref slope = sink_slope(b, rows, sink[read->step], chosen);
    ref factor = score_value(b, &rows->site, read->slope);
    ref part = emit_select(e, emit_compare(e, IS_EQUAL, slope, zero), zero,
                           emit_mul(e, slope, factor));
    element_add(b, &rows->site, &rows->room, read->element,
                emit_parameter(e, SINKS_SUMS), part);
  }
}

static void add_sinks(build *b, sink_rows *rows) {
  emit *e = &b->emit;
  const pattern *p = b->plan->pattern;
  ref own = emit_compare(e, IS_UNEQUAL, emit_parameter(e, SINKS_OWN),
                         emit_word(e, 0));
  add_list(b, rows, p->sink, &b->plan->sinks, emit_and(e, rows->there, own));
  for (int32_t k = 0; k < p->branch_count; k++) {
    ref bit = emit_and(e, emit_parameter(e, SINKS_BRANCHES),
                       emit_long(e, (int64_t)(UINT64_C(1) << k)));
    ref chosen = emit_compare(e, IS_UNEQUAL, bit, emit_long(e, 0));
    add_list(b, rows, p->branch[k].sink, &b->plan->branch_sinks[k],
             emit_and(e, rows->there, chosen));
  }
}

/* Lanes of a parameter from byte `at` on. */
static ref row_lanes(build *b, sinks_parameter which, ref_type element, ref at,
                     ref there) {
  emit *e = &b->emit;
  return emit_load_masked(e, emit_vector(element, e->width),
                          emit_at(e, emit_parameter(e, which), at), there,
                          CELL);
}

void sink_inputs(build *b) {
  emit *e = &b->emit;
  sink_rows rows;
  loop row;
  emit_function(e, "sink_inputs", 'v', "wlplpppp");
  rows.room = lanes_room_open(b);
  exact mode = exact_open(b);
  exact_begin(b, &mode);
  ref n = emit_parameter(e, SINKS_N);
  site_open(b, &rows.site, emit_parameter(e, SINKS_ENV));
  site_open_inputs(b, &rows.site);
  loop_begin(e, &row, "rows", emit_long(e, 0), n, e->width, NULL, 0);
  ref at = emit_mul(e, row.index, emit_long(e, CELL));
  rows.there = lanes_before(b, emit_sub(e, n, row.index));
  rows.site.i = row_lanes(b, SINKS_T, e->i32, at, rows.there);
  rows.lse = row_lanes(b, SINKS_LSE, e->f32, at, rows.there);
  rows.delta = row_lanes(b, SINKS_DELTA, e->f32, at, rows.there);
  add_sinks(b, &rows);
  loop_end(e, &row, NULL);
  exact_end(b, &mode);
  emit_return(e, NULL);
}
