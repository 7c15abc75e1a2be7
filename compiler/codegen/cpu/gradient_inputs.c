/* gradient_inputs.c - derivatives of score chains, and the gradients of the
 * inputs that they read.
 *
 * In: raw scores and dS before the slope, for a tile. Out: for each read of an
 * input with a gradient, dS times the derivative of the final score by what was
 * read, added to the element's sum. Lanes that read one element are added up
 * first. The order of all sums is fixed. */
#include "cpu.h"
#include <assert.h>
#include <stddef.h>

ref score_slope(build *b, site *s, const expr *slope) {
  if (slope == NULL) return emit_real(&b->emit, 0);
  return score_value(b, s, slope);
}

lanes_room lanes_room_open(build *b) {
  emit *e = &b->emit;
  return (lanes_room){emit_room(e, e->f32, e->width, 64),
                      emit_room(e, e->i64, e->width, 64),
                      emit_room(e, e->i32, e->width, 64)};
}

/* The function for one chain. */
typedef struct inputs_tile {
  expr *const *chain;
  const plan_slopes *slopes;
  lanes_room room;
} inputs_tile;

/* ---- one key ------------------------------------------------------------- */

/* Row-major number of the element that a read reads; *inside: there is one. */
static ref element_number(build *b, site *s, const expr *x, ref *inside) {
  const emit *e = &b->emit;
  ref number = emit_long(e, 0);
  *inside = emit_truth(e, true);
  for (int32_t axis = 0; axis < x->count; axis++) {
    ref index =
        emit_convert(e, LLVMSExt, expression_value(b, s, x->arg[axis]), e->i64);
    ref dim = s->input[x->integer].dim[axis];
    ref below_dim = dim, place = index;
    emit_match(e, &place, &below_dim);
    *inside = emit_and(e, *inside, emit_below(e, place, below_dim));
    number = emit_add(e, emit_mul(e, number, dim), index);
  }
  return number;
}

/* sums[input][number] += value, where the input's sums are wanted. */
static void add_scalar(build *b, int64_t input, ref sums, ref number,
                       ref inside, ref part) {
  emit *e = &b->emit;
  ref list = emit_load(e, e->pointer, emit_offset(e, sums, input * 8), 8);
  ref wanted = emit_not(e, LLVMBuildIsNull(e->builder, list, ""));
  branch_block some;
  branch_begin(e, &some, "add", emit_and(e, wanted, inside));
  ref place = emit_at(e, list, emit_mul(e, number, emit_long(e, 8)));
  ref wide = emit_convert(e, LLVMFPExt, part, e->f64);
  emit_store(e, emit_add(e, emit_load(e, e->f64, place, 8), wide), place, 8);
  branch_end(e, &some);
}

static void add_lanes(build *b, const lanes_room *room, int64_t input, ref sums,
                      ref number, ref inside, ref part) {
  emit *e = &b->emit;
  loop lane;
  if (!emit_is_vector(inside)) inside = emit_splat(e, inside, e->width);
  emit_store(e, part, room->part, 4);
  emit_store(e, number, room->number, 8);
  emit_store(e, emit_convert(e, LLVMZExt, inside, e->i32), room->inside, 4);
  loop_begin(e, &lane, "lanes", emit_long(e, 0), emit_long(e, e->width), 1,
             NULL, 0);
  ref at4 = emit_mul(e, lane.index, emit_long(e, 4));
  ref at8 = emit_mul(e, lane.index, emit_long(e, 8));
  ref is_inside = emit_load(e, e->i32, emit_at(e, room->inside, at4), 4);
  add_scalar(b, input, sums,
             emit_load(e, e->i64, emit_at(e, room->number, at8), 8),
             emit_compare(e, IS_UNEQUAL, is_inside, emit_word(e, 0)),
             emit_load(e, e->f32, emit_at(e, room->part, at4), 4));
  loop_end(e, &lane, NULL);
}

void element_add(build *b, site *s, const lanes_room *room, const expr *read,
                 ref sums, ref part) {
  ref inside, number = element_number(b, s, read, &inside);
  if (emit_is_vector(number))
    add_lanes(b, room, read->integer, sums, number, inside, part);
  else
    add_scalar(b, read->integer, sums, number, inside, emit_sum(&b->emit, part));
}

/* Scores before each expression of a chain, and the derivative of the final
 * score by each expression's value. */
enum { STEPS_MAX = 64 };
typedef struct chain_steps {
  ref score[STEPS_MAX], after[STEPS_MAX];
  int count;
} chain_steps;

static chain_steps steps_of(build *b, site *s, const inputs_tile *tile,
                            ref scale, ref raw) {
  const emit *e = &b->emit;
  expr *const *x = tile->chain;
  chain_steps steps = {.count = 0};
  ref next = emit_mul(e, raw, scale);
  for (; x[steps.count] != NULL; steps.count++) {
    assert(steps.count < STEPS_MAX);
    s->score = steps.score[steps.count] = next;
    next = score_value(b, s, x[steps.count]);
  }
  ref slope = emit_splat(e, emit_real(e, 1), e->width);
  for (int i = steps.count - 1; i >= 0; i--) {
    steps.after[i] = slope;
    s->score = steps.score[i];
    slope = emit_mul(e, slope, score_slope(b, s, tile->slopes->slope[i]));
  }
  return steps;
}

/* Adds the gradient of one read in a key's lanes; lanes of weight 0 add 0. */
static void add_read(build *b, site *s, const inputs_tile *tile,
                     const plan_read *read, const chain_steps *steps,
                     ref plain, ref sums) {
  emit *e = &b->emit;
  s->score = steps->score[read->step];
  ref factor =
      emit_mul(e, score_value(b, s, read->slope), steps->after[read->step]);
  ref part = slope_product(e, plain, factor);
  element_add(b, s, &tile->room, read->element, sums, part);
}

/* ---- a tile -------------------------------------------------------------- */

/* Parameters of inputs%d, in order. */
typedef enum inputs_parameter {
  INPUTS_RAW, INPUTS_PLAIN, INPUTS_N, INPUTS_T, INPUTS_J, INPUTS_ENV,
  INPUTS_SUMS
} inputs_parameter;

static void inputs_key(build *b, site *s, const inputs_tile *tile, ref key) {
  emit *e = &b->emit;
  ref_type floats = emit_vector(e->f32, e->width);
  ref raw[REGISTERS_MAX], plain[REGISTERS_MAX];
  ref at = emit_mul(e, key, emit_long(e, CELL));
  ref j = emit_load(e, e->i32, emit_at(e, emit_parameter(e, INPUTS_J), at),
                    CELL);
  ref scale =
      emit_load(e, e->f32,
                emit_offset(e, emit_parameter(e, INPUTS_ENV),
                            (int64_t)offsetof(dil_env, scale)),
                CELL);
  tile_load_row(b, floats, tile_row_at(b, emit_parameter(e, INPUTS_RAW), key),
                raw);
  tile_load_row(b, floats, tile_row_at(b, emit_parameter(e, INPUTS_PLAIN), key),
                plain);
  for (int reg = 0; reg < b->isa->registers; reg++) {
    s[reg].j = j;
    chain_steps steps = steps_of(b, &s[reg], tile, scale, raw[reg]);
    for (int i = 0; i < tile->slopes->read_count; i++)
      add_read(b, &s[reg], tile, &tile->slopes->read[i], &steps, plain[reg],
               emit_parameter(e, INPUTS_SUMS));
  }
}

void tile_inputs(build *b, int chain) {
  emit *e = &b->emit;
  char name[32];
  site s[REGISTERS_MAX];
  ref t[REGISTERS_MAX];
  loop key;
  inputs_tile tile = {.chain = b->plan->chain[chain],
                      .slopes = &b->plan->slopes[chain]};
  snprintf(name, sizeof name, "inputs%d", chain);
  emit_function(e, name, 'v', "pplpppp");
  tile.room = lanes_room_open(b);
  exact mode = exact_open(b);
  exact_begin(b, &mode);
  tile_load_row(b, emit_vector(e->i32, e->width),
                emit_parameter(e, INPUTS_T), t);
  site_open(b, &s[0], emit_parameter(e, INPUTS_ENV));
  site_open_inputs(b, &s[0]);
  for (int reg = 1; reg < b->isa->registers; reg++) s[reg] = s[0];
  for (int reg = 0; reg < b->isa->registers; reg++) s[reg].i = t[reg];
  loop_begin(e, &key, "keys", emit_long(e, 0), emit_parameter(e, INPUTS_N), 1,
             NULL, 0);
  inputs_key(b, s, &tile, key.index);
  loop_end(e, &key, NULL);
  exact_end(b, &mode);
  emit_return(e, NULL);
}
