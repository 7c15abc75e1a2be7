/* cover.c - the questions a walk asks before it computes: what a predicate
 * makes of a whole box of positions, and which sizes the inputs must have. */
#include "cpu.h"
#include <math.h>
#include <stddef.h>

/* ---- inputs over a box --------------------------------------------------- */

/* env->range(env, index, axis, at, first, last, &low, &high). */
static void call_range(build *b, interval_box *x, const expr *tree, ref axis,
                       ref first, ref last) {
  const emit *e = &b->emit;
  ref_type type[] = {e->pointer, e->i32, e->i32,     e->pointer,
                     e->i32,     e->i32, e->pointer, e->pointer};
  ref argument[] = {x->site.env,
                    emit_word(e, tree->integer),
                    axis,
                    x->at,
                    emit_convert(e, LLVMTrunc, first, e->i32),
                    emit_convert(e, LLVMTrunc, last, e->i32),
                    x->low,
                    x->high};
  ref entry = emit_load(
      e, e->pointer,
      emit_offset(e, x->site.env, (int64_t)offsetof(dil_env, range)), 8);
  LLVMBuildCall2(e->builder, LLVMFunctionType(e->nothing, type, 8, false),
                 entry, argument, 8, "");
}

/* The values of x->low and x->high, as bounds of the element type. NaNs come as
 * -inf..inf. */
static bounds range_bounds(build *b, interval_box *x, bool real) {
  const emit *e = &b->emit;
  ref low = emit_load(e, e->f64, x->low, 8);
  ref high = emit_load(e, e->f64, x->high, 8);
  ref none = emit_truth(e, false);
  if (!real) {
    ref least = emit_double(e, INT32_MIN), most = emit_double(e, INT32_MAX);
    low = emit_greater(e, low, least);
    high = emit_lesser(e, high, most);
    return (bounds){emit_convert(e, LLVMFPToSI, low, e->i64),
                    emit_convert(e, LLVMFPToSI, high, e->i64), none};
  }
  ref all =
      emit_and(e, emit_compare(e, IS_EQUAL, low, emit_double(e, -INFINITY)),
               emit_compare(e, IS_EQUAL, high, emit_double(e, INFINITY)));
  return (bounds){emit_convert(e, LLVMFPTrunc, low, e->f32),
                  emit_convert(e, LLVMFPTrunc, high, e->f32), all};
}

/* Asks the run time when at most one index varies over the box. */
bounds input_bounds(build *b, interval_box *x, const expr *tree) {
  emit *e = &b->emit;
  bool real = tree->type == TYPE_F32;
  ref axis = emit_word(e, 0), first = emit_long(e, 0), last = first;
  ref varying = emit_word(e, 0);
  for (int32_t k = 0; k < tree->count; k++) {
    bounds index = bounds_of(b, x, tree->arg[k]);
    ref moves = emit_compare(e, IS_UNEQUAL, index.low, index.high);
    ref taken = k == 0 ? emit_truth(e, true) : moves;
    axis = emit_select(e, taken, emit_word(e, k), axis);
    first = emit_select(e, taken, index.low, first);
    last = emit_select(e, taken, index.high, last);
    varying = emit_add(e, varying, emit_convert(e, LLVMZExt, moves, e->i32));
    emit_store(e, emit_convert(e, LLVMTrunc, index.low, e->i32),
               emit_offset(e, x->at, k * CELL), CELL);
  }
  emit_store(e, emit_double(e, -INFINITY), x->low, 8);
  emit_store(e, emit_double(e, INFINITY), x->high, 8);
  branch_block known;
  branch_begin(e, &known, "range",
               emit_compare(e, IS_LESS_EQUAL, varying, emit_word(e, 1)));
  call_range(b, x, tree, axis, first, last);
  branch_end(e, &known);
  return range_bounds(b, x, real);
}

/* ---- cover --------------------------------------------------------------- */

/* `in`, and first <= x < end; end 0: there is no end. */
static bounds range_bounded(const emit *e, bounds in, bounds x, int64_t first,
                            int64_t end) {
  if (first > 0) {
    ref low = emit_long(e, first);
    in.low = emit_and(e, in.low, emit_compare(e, IS_GREATER_EQUAL, x.low, low));
    in.high =
        emit_and(e, in.high, emit_compare(e, IS_GREATER_EQUAL, x.high, low));
  }
  if (end > 0) {
    ref high = emit_long(e, end);
    in.low = emit_and(e, in.low, emit_compare(e, IS_LESS, x.high, high));
    in.high = emit_and(e, in.high, emit_compare(e, IS_LESS, x.low, high));
  }
  return in;
}

/* Bounds of a window and ranges of keys and rows over the box, all in i64. */
static bounds window_bounds(build *b, interval_box *x,
                            const dil_predicate *window) {
  const emit *e = &b->emit;
  ref least = emit_sub(e, x->j.low, x->i.high);
  ref most = emit_sub(e, x->j.high, x->i.low);
  ref all = emit_truth(e, true), some = all;
  if (window->left != DIL_ENDLESS) {
    ref left = emit_long(e, -window->left);
    all = emit_compare(e, IS_GREATER_EQUAL, least, left);
    some = emit_compare(e, IS_GREATER_EQUAL, most, left);
  }
  if (window->right != DIL_ENDLESS) {
    ref right = emit_long(e, window->right);
    all = emit_and(e, all, emit_compare(e, IS_LESS_EQUAL, most, right));
    some = emit_and(e, some, emit_compare(e, IS_LESS_EQUAL, least, right));
  }
  bounds in = {all, some, emit_truth(e, false)};
  in = range_bounded(e, in, x->j, window->key_first, window->key_end);
  return range_bounded(e, in, x->i, window->row_first, window->row_end);
}

static ref verdict(build *b, bounds condition) {
  const emit *e = &b->emit;
  return emit_select(e, condition.low, emit_word(e, DIL_FULL),
                     emit_select(e, condition.high, emit_word(e, DIL_PARTIAL),
                                 emit_word(e, DIL_EMPTY)));
}

/* The masks are looked at only where the window leaves something. */
static void cover_predicate(build *b, interval_box *x, int index) {
  emit *e = &b->emit;
  const dil_predicate *window = &b->plan->table.predicates[index];
  bounds kept = window_bounds(b, x, window);
  if (!window->masked) {
    emit_return(e, verdict(b, kept));
    return;
  }
  branch_block open;
  branch_begin(e, &open, "masks", kept.high);
  exact_begin(b, &x->mode);
  bounds mask = bounds_of(b, x, b->plan->predicate[index]);
  ref both = verdict(
      b, (bounds){emit_and(e, kept.low, mask.low), mask.high, mask.nan});
  exact_end(b, &x->mode);
  branch_end(e, &open);
  emit_return(e, branch_merge(e, &open, both, emit_word(e, DIL_EMPTY)));
}

/* A block for each number of 0..count-1 and one for all else, which returns
 * `other`; the builder is left to fill the blocks. */
static void cases_begin(build *b, ref number, int count, ref other,
                        LLVMBasicBlockRef *block) {
  emit *e = &b->emit;
  LLVMBasicBlockRef none =
      LLVMAppendBasicBlockInContext(e->context, e->function, "none");
  ref choice = LLVMBuildSwitch(e->builder, number, none, (unsigned)count);
  for (int i = 0; i < count; i++) {
    block[i] = LLVMAppendBasicBlockInContext(e->context, e->function, "case");
    LLVMAddCase(choice, emit_word(e, i), block[i]);
  }
  LLVMPositionBuilderAtEnd(e->builder, none);
  emit_return(e, other);
}

static bounds position_bounds(build *b, int low, int high) {
  const emit *e = &b->emit;
  return (bounds){emit_convert(e, LLVMSExt, emit_parameter(e, low), e->i64),
                  emit_convert(e, LLVMSExt, emit_parameter(e, high), e->i64),
                  emit_truth(e, false)};
}

void cover_function(build *b) {
  emit *e = &b->emit;
  LLVMBasicBlockRef block[DIL_PART_MAX];
  interval_box x;
  emit_function(e, "cover", 'w', "wpwwww");
  x.at = emit_room(e, e->i32, DIL_RANK_MAX, 16);
  x.mode = exact_open(b);
  x.low = emit_room(e, e->f64, 1, 8);
  x.high = emit_room(e, e->f64, 1, 8);
  site_open(b, &x.site, emit_parameter(e, 1));
  x.i = position_bounds(b, 2, 3);
  x.j = position_bounds(b, 4, 5);
  int count = b->plan->table.predicate_count;
  cases_begin(b, emit_parameter(e, 0), count, emit_word(e, DIL_PARTIAL), block);
  for (int i = 0; i < count; i++) {
    LLVMPositionBuilderAtEnd(e->builder, block[i]);
    cover_predicate(b, &x, i);
  }
}

/* ---- dimension ----------------------------------------------------------- */

void dimension_function(build *b) {
  emit *e = &b->emit;
  LLVMBasicBlockRef block[DIL_INPUT_MAX * DIL_RANK_MAX];
  const pattern *p = b->plan->pattern;
  site s;
  emit_function(e, "dimension", 'l', "wwp");
  site_open(b, &s, emit_parameter(e, 2));
  ref number = emit_add(e, emit_shift_left(e, emit_parameter(e, 0), 2),
                        emit_parameter(e, 1));
  _Static_assert(DIL_RANK_MAX == 4, "an input has four numbers here");
  int count = pattern_reads(p) * DIL_RANK_MAX;
  cases_begin(b, number, count, emit_long(e, 0), block);
  for (int i = 0; i < count; i++) {
    const dil_input *input = &p->input[i / DIL_RANK_MAX];
    LLVMPositionBuilderAtEnd(e->builder, block[i]);
    ref size = emit_word(e, 0);
    if (i % DIL_RANK_MAX < input->rank)
      size = expression_value(b, &s,
                              p->dimension[i / DIL_RANK_MAX][i % DIL_RANK_MAX]);
    emit_return(e, emit_convert(e, LLVMSExt, size, e->i64));
  }
}

/* ---- keeps beside a choice ----------------------------------------------- */

/* Returns whether some keep of the level but the choice holds; NULL: it has no
 * other. */
static ref level_holds(build *b, site *s, const keeps *level) {
  const emit *e = &b->emit;
  ref any = NULL;
  for (int32_t k = 0; k < level->count; k++) {
    if (level->keep[k].kind != KEEP_EXPR) continue;
    ref one = expression_value(b, s, level->keep[k].condition);
    any = any ? emit_or(e, any, one) : one;
  }
  return any;
}

static bool level_chooses(const keeps *level) {
  for (int32_t k = 0; k < level->count; k++)
    if (level->keep[k].kind != KEEP_EXPR) return true;
  return false;
}

static void keeps_of(build *b, site *s, exact *mode, const branch *of) {
  emit *e = &b->emit;
  bool first = level_chooses(&of->keeps[0]);
  exact_begin(b, mode);
  ref held = level_holds(b, s, &of->keeps[first ? 0 : 1]);
  ref let = level_holds(b, s, &of->keeps[first ? 1 : 0]);
  exact_end(b, mode);
  ref none = emit_word(e, 0);
  ref bits = held ? emit_select(e, held, emit_word(e, DIL_KEEPS_HELD), none) : none;
  ref through = emit_word(e, DIL_KEEPS_LET);
  if (let) through = emit_select(e, let, through, none);
  emit_return(e, emit_or(e, bits, through));
}

void keeps_function(build *b) {
  emit *e = &b->emit;
  const dil_table *t = &b->plan->table;
  LLVMBasicBlockRef block[DIL_BRANCH_MAX];
  site s;
  emit_function(e, "keeps", 'w', "wpww");
  exact mode = exact_open(b);
  site_open(b, &s, emit_parameter(e, 1));
  site_open_inputs(b, &s);
  s.i = emit_parameter(e, 2);
  s.j = emit_parameter(e, 3);
  cases_begin(b, emit_parameter(e, 0), t->choice_count, emit_word(e, 0), block);
  for (int32_t c = 0; c < t->choice_count; c++) {
    LLVMPositionBuilderAtEnd(e->builder, block[c]);
    keeps_of(b, &s, &mode, &b->plan->pattern->branch[t->choices[c].branch]);
  }
}
