/* hopper_table.c - makes the Hopper kernel's tables for a pass of the plan.
 * templates/hopper/hopper_launch.h explains the terms.
 *
 * In: branches (segment, dilation, phases, heads, window). Out: intervals,
 * grouped into shapes. Each shape has its classes of rows, with the cells that
 * segments cut from an interval, and each class has its key ranges
 * (hopper_keys.c). The work is O(heads x branches x period), never O(N). */
#include "hopper_builder.h"
#include <string.h>

/* ---- what the kernel has no code for ------------------------------------- */

bool hopper_is_nested(const dil_table *table, uint64_t branches) {
  const table_builder builder = {.table = table};
  EACH_BRANCH(a, branches) {
    int64_t s = segment_of(&builder, a);
    for (int32_t b = 0; b < table->branch_count; b++) {
      int64_t o = segment_of(&builder, (uint64_t)b);
      if ((branches >> b & 1) && s < o && o < ENDLESS && o % s) return false;
    }
  }
  return true;
}

static bool table_is_alone(const table_builder *builder) {
  return !(builder->pass->branches & (builder->pass->branches - 1));
}

/* Returns whether some branch selects the rows of every phase. */
static bool table_has_each(const table_builder *builder) {
  bool has = false;
  EACH_BRANCH(b, builder->pass->branches)
    has |= builder->table->branches[b].each;
  return has;
}

static bool table_accept_period(table_builder *builder) {
  int64_t most = table_is_alone(builder) ? HOPPER_DILATION : HOPPER_PERIOD;
  return builder->pass->period <= most ||
         REFUSE(builder, "a period of %lld, above %lld",
                (long long)builder->pass->period, (long long)most);
}

/* Returns whether the branches' predicates differ. */
static bool table_predicates_differ(const table_builder *builder) {
  int32_t first =
      builder->table->branches[__builtin_ctzll(builder->pass->branches)]
          .predicate;
  EACH_BRANCH(b, builder->pass->branches)
  if (builder->table->branches[b].predicate != first) return true;
  return false;
}

/* Returns whether the kernel must ask which pairs are kept: for masks, or
 * different windows in a union, where a key counts once. */
static bool table_asks_pairs(const table_builder *builder) {
  bool asks = false;
  if (builder->table->combine == DIL_COMBINE_UNION)
    asks |= table_predicates_differ(builder);
  EACH_BRANCH(b, builder->pass->branches) {
    int32_t p = builder->table->branches[b].predicate;
    asks |= p >= 0 && builder->table->predicates[p].masked;
  }
  return asks;
}

bool hopper_asks_pairs(const dil_table *table, int32_t pass) {
  const table_builder builder = {.table = table, .pass = &table->passes[pass]};
  return table_asks_pairs(&builder);
}

static bool table_accept(table_builder *builder) {
  const dil_table *t = builder->table;
  if (t->dtype != DIL_BF16 && t->dtype != DIL_F16)
    return REFUSE(builder, "elements of 32 bits");
  if (t->head_dim % 8 || t->value_dim % 8 || t->head_dim > DIL_HEAD_DIM_MAX)
    return REFUSE(builder, "a head_dim of %d by %d", t->head_dim, t->value_dim);
  if (t->general) return REFUSE(builder, "the general path is forced");
  if (table_has_each(builder) && !table_is_alone(builder))
    return REFUSE(builder, "a branch of every phase beside others");
  builder->out->pairwise = t->scored || table_asks_pairs(builder);
  if (builder->out->pairwise && t->predicate_count > HOPPER_PREDICATES)
    return REFUSE(builder, "more than %d conditions", HOPPER_PREDICATES);
  if (t->sinks && t->pass_count > 1 && t->combine >= DIL_COMBINE_MEAN)
    return REFUSE(builder, "sinks of several passes whose outputs are added");
  if (t->combine == DIL_COMBINE_UNION && table_predicates_differ(builder) &&
      !hopper_is_nested(t, builder->pass->branches))
    return REFUSE(builder,
                  "a union of windows over segments that are not nested");
  return table_accept_period(builder);
}

/* ---- intervals and shapes
 * ---------------------------------------------------- */

/* Returns whether all branches have the same segment. Residues may then count
 * from its start. */
static bool table_is_uniform(const table_builder *builder) {
  int64_t first = segment_of(builder, __builtin_ctzll(builder->pass->branches));
  EACH_BRANCH(b, builder->pass->branches)
  if (segment_of(builder, b) != first) return false;
  return first != ENDLESS;
}

/* The interval if no residue shifts: the longest segment. Where segments cut
 * one another, the interval is a few of these, because its border divides tiles
 * too. */
static int64_t table_steady_interval(const table_builder *builder,
                                     int64_t longest) {
  enum { LONG = 8192 };
  if (!longest || hopper_is_nested(builder->table, builder->pass->branches))
    return longest;
  return longest * (longest < LONG ? LONG / longest : 1);
}

/* A branch whose dilation divides its segment has the same residue in every
 * segment; so has one of every phase, whose residues are those of its rows. The
 * interval is the greatest common divisor of all other branches' segments. */
static bool table_choose_interval(table_builder *builder) {
  hopper_table *out = builder->out;
  int64_t interval = 0, longest = 0, period = 1;
  EACH_BRANCH(b, builder->pass->branches) {
    int64_t s = segment_of(builder, b),
            r = dil_branch_step(&builder->table->branches[b]);
    out->endless |= s == ENDLESS;
    if (s == ENDLESS) continue;
    if (s > longest) longest = s;
    if (s % r == 0) continue;
    interval = greatest_divisor(s, interval);
    int64_t repeats = s / greatest_divisor(s, r) * r;
    period = repeats > ENDLESS ? repeats : least_multiple(period, repeats);
    if (period > ENDLESS) period = ENDLESS + 1;
  }
  out->relative = interval && table_is_uniform(builder);
  if (!interval || out->relative)
    interval = period = table_steady_interval(builder, longest);
  if (period > ENDLESS) return REFUSE(builder, "residues that hardly repeat");
  out->interval = interval;
  out->period = least_multiple(period, interval ? interval : 1);
  return true;
}

static residues residues_of(const table_builder *builder, int32_t head,
                            int64_t low) {
  residues x = {0};
  EACH_BRANCH(b, builder->pass->branches) {
    const dil_branch *branch = &builder->table->branches[b];
    if (head < branch->head_first || head > branch->head_last) continue;
    int64_t s = segment_of(builder, b), start = s == ENDLESS ? 0 : low / s * s;
    if (builder->out->relative) start = 0;
    x.served |= 1ull << b;
    x.of[b] =
        (int32_t)floor_mod(start + branch->phase[head], branch->dilation);
  }
  return x;
}

static residues residues_shift(const table_builder *builder,
                               const residues *from, int32_t shift) {
  residues x = *from;
  EACH_BRANCH(b, x.served)
  x.of[b] =
      (int32_t)floor_mod(x.of[b] - shift, builder->table->branches[b].dilation);
  return x;
}

/* Shifts the residues so that they are least in lexical order; returns the
 * shift. */
static int32_t residues_normalise(const table_builder *builder, residues *x) {
  residues given = *x;
  int32_t best = 0;
  if (!(x->served & (x->served - 1))) { /* a single residue becomes 0 */
    int32_t *only = &x->of[__builtin_ctzll(x->served)];
    best = *only;
    *only = 0;
    return best;
  }
  for (int32_t shift = 1; shift < builder->pass->period; shift++) {
    residues other = residues_shift(builder, &given, shift);
    if (memcmp(other.of, x->of, sizeof x->of) < 0) {
      *x = other;
      best = shift;
    }
  }
  return best;
}

static bool table_add_instance(table_builder *builder, int32_t shape,
                               int32_t head, int64_t interval, int32_t shift) {
  hopper_table *out = builder->out;
  if (out->instance_count == HOPPER_INSTANCES)
    return REFUSE(builder, "more than %d heads and phase intervals",
                  HOPPER_INSTANCES);
  hopper_instance *m = &out->instances[out->instance_count++];
  *m = (hopper_instance){.head = (short)head,
                         .interval = (short)interval,
                         .shift = (short)shift,
                         .shape = (signed char)shape};
  out->shapes[shape].instances++;
  return true;
}

static int32_t table_find_shape(table_builder *builder, const residues *x) {
  hopper_table *out = builder->out;
  int32_t s = 0;
  while (s < out->shape_count && memcmp(&builder->shape[s], x, sizeof *x)) s++;
  if (s == out->shape_count && s < HOPPER_SHAPES) {
    builder->shape[s] = *x;
    out->shape_count++;
  }
  return s;
}

static int64_t table_intervals(const table_builder *builder) {
  return builder->out->interval ? builder->out->period / builder->out->interval
                                : 1;
}

/* Visits all (interval, head) in this order and finds their shapes; instances
 * of shape `only` are added (-1: none are). */
static bool table_each_instance(table_builder *builder, int32_t only) {
  for (int64_t interval = 0; interval < table_intervals(builder); interval++)
    for (int32_t h = 0; h < builder->table->heads; h++) {
      residues x = residues_of(builder, h, interval * builder->out->interval);
      if (!x.served) continue;
      int32_t shift = residues_normalise(builder, &x),
              s = table_find_shape(builder, &x);
      if (s == HOPPER_SHAPES)
        return REFUSE(builder, "more than %d shapes of residues",
                      HOPPER_SHAPES);
      if (s == only && !table_add_instance(builder, s, h, interval, shift))
        return false;
    }
  return true;
}

static void table_list_by_interval(hopper_table *out, int64_t intervals) {
  int32_t count = 0;
  for (int64_t interval = 0; interval < intervals; interval++) {
    int32_t first = count;
    for (int32_t i = 0; i < out->instance_count; i++) {
      int32_t at = count;
      if (out->instances[i].interval != interval) continue;
      for (; at > first && out->instances[out->by_interval[at - 1]].head >
                               out->instances[i].head;
           at--)
        out->by_interval[at] = out->by_interval[at - 1];
      out->by_interval[at] = (short)i;
      count++;
    }
  }
}

/* Lists the instances, those of one shape together. */
static bool table_find_shapes(table_builder *builder) {
  hopper_table *out = builder->out;
  if (table_intervals(builder) > INT16_MAX)
    return REFUSE(builder, "residues that hardly repeat");
  if (!table_each_instance(builder, -1)) return false;
  for (int32_t s = 0; s < out->shape_count; s++) {
    out->shapes[s].instance = (short)out->instance_count;
    if (!table_each_instance(builder, s)) return false;
  }
  table_list_by_interval(out, table_intervals(builder));
  return true;
}

/* ---- classes ------------------------------------------------------------- */

/* Sets how segments cut an interval into the cells of a class. Returns the mean
 * length of a cell; 0: there are too many segments. */
static double table_set_cells(table_builder *builder, uint64_t branches,
                              hopper_class *k) {
  int64_t interval = builder->out->interval, cell = interval;
  uint64_t crossing = 0;
  double borders = 1;
  k->cell = (int)interval;
  if (!interval) return ENDLESS;
  EACH_BRANCH(b, branches) {
    int64_t s = segment_of(builder, b);
    if (s == ENDLESS || s % interval == 0) continue;
    crossing |= 1ull << b;
    if (s < cell) cell = s;
    borders += (double)interval / (double)s;
  }
  bool nested = interval % cell == 0;
  EACH_BRANCH(b, crossing) nested &= segment_of(builder, b) % cell == 0;
  if (nested) {
    k->cell = (int)cell;
    return (double)cell;
  }
  EACH_BRANCH(b, crossing) {
    int32_t i = builder_segment(builder, b);
    if (i == HOPPER_SEGMENTS) return 0;
    k->crossing |= 1u << i;
  }
  return (double)interval / borders;
}

/* The common fields of the classes that the same branches of a shape select. */
typedef struct class_form {
  hopper_class k;
  double blocks, cell; /* as in hopper_table */
} class_form;

static bool class_form_make(table_builder *builder, int32_t shape,
                            uint64_t branches, class_form *f) {
  f->k = (hopper_class){.shape = (short)shape, .phases = 1};
  f->blocks = 0;
  f->cell = table_set_cells(builder, branches, &f->k);
  if (!f->cell)
    return REFUSE(builder, "more than %d segments that are not nested",
                  HOPPER_SEGMENTS);
  return keys_add(builder, &builder->shape[shape], branches, &f->k, &f->blocks);
}

/* Adds a class for the rows of one progression. Classes with most key blocks
 * come first. */
static bool table_add_rows(table_builder *builder, const class_form *f,
                           progression p) {
  enum { FEW_ROWS = 32 };
  hopper_table *out = builder->out;
  hopper_class k = f->k;
  if (out->class_count == HOPPER_CLASSES)
    return REFUSE(builder, "more than %d classes of rows", HOPPER_CLASSES);
  if (f->cell / p.stride < FEW_ROWS)
    return REFUSE(builder, "cells of %d positions with rows %d apart",
                  (int)f->cell, p.stride);
  k.stride = p.stride;
  k.offset = p.offset;
  k.slot = (short)builder_slot(builder, p.stride);
  if (k.slot == HOPPER_STRIDES)
    return REFUSE(builder, "more than %d strides", HOPPER_STRIDES);
  int32_t at = out->class_count++;
  for (; at && out->blocks[at - 1] < f->blocks; at--) {
    out->blocks[at] = out->blocks[at - 1];
    out->cell[at] = out->cell[at - 1];
    out->classes[at] = out->classes[at - 1];
  }
  out->blocks[at] = f->blocks;
  out->cell[at] = f->cell;
  out->classes[at] = k;
  return true;
}

/* Adds the rows of a shape that `branches` select, one class for each
 * progression. */
static bool table_add_class(table_builder *builder, int32_t shape,
                            uint64_t branches, uint64_t set) {
  class_form f;
  if (!class_form_make(builder, shape, branches, &f)) return false;
  while (set)
    if (!table_add_rows(builder, &f,
                        progression_take(&set, (int32_t)builder->pass->period)))
      return false;
  return true;
}

/* A branch that is alone in its pass may have any dilation: all rows except its
 * own are bare. With every phase, all rows are its own. */
static bool table_add_alone(table_builder *builder) {
  class_form f;
  uint64_t branch = builder->pass->branches;
  progression p = {(int32_t)builder->pass->period,
                   builder->shape[0].of[__builtin_ctzll(branch)]};
  bool each = table_has_each(builder);
  builder->out->bare = !each;
  if (!class_form_make(builder, 0, branch, &f)) return false;
  if (each) f.k.phases = (short)p.stride;
  return table_add_rows(builder, &f, p);
}

/* Marks rows of a shape that no branch selects. They have no class. */
static void table_add_bare(table_builder *builder, int32_t shape,
                           uint64_t set) {
  int32_t period = (int32_t)builder->pass->period;
  for (int32_t at = 0; at < HOPPER_PERIOD; at += period)
    builder->out->shapes[shape].bare |= set << at;
  builder->out->bare = true;
}

static bool table_find_classes(table_builder *builder) {
  int32_t period = (int32_t)builder->pass->period;
  bool each = table_has_each(builder);
  builder->out->residues = each ? 1 : period;
  if (each || period > HOPPER_PERIOD) return table_add_alone(builder);
  for (int32_t s = 0; s < builder->out->shape_count; s++) {
    const residues *x = &builder->shape[s];
    uint64_t left = period == 64 ? ~0ull : (1ull << period) - 1;
    while (left) {
      int32_t first = __builtin_ctzll(left);
      uint64_t branches = builder_selecting(builder, x, x->served, first),
               set = 0;
      for (int32_t p = first; p < period; p++)
        if (builder_selecting(builder, x, x->served, p) == branches)
          set |= 1ull << p;
      left &= ~set;
      if (!branches)
        table_add_bare(builder, s, set);
      else if (!table_add_class(builder, s, branches, set))
        return false;
    }
  }
  return true;
}

/* Returns whether some head is computed by this pass alone. */
static bool table_has_own_head(const table_builder *builder) {
  const dil_table *t = builder->table;
  for (int32_t h = 0; h < t->heads; h++) {
    uint64_t served = 0;
    for (int32_t b = 0; b < t->branch_count; b++)
      if (t->branches[b].head_first <= h && h <= t->branches[b].head_last)
        served |= 1ull << b;
    if (served && !(served & ~builder->pass->branches)) return true;
  }
  return false;
}

/* The kernel clears bare rows as rows without sinks, in heads that no other pass
 * computes. Where others do, a row's sinks are in the state that it begins with. */
static bool table_accept_bare(table_builder *builder) {
  if (builder->table->sinks && builder->out->bare && table_has_own_head(builder))
    return REFUSE(builder, "sinks of rows that no branch selects");
  return true;
}

bool hopper_table_fill(const dil_table *table, int32_t pass, int32_t tile_keys,
                       hopper_table *out, char *reason, size_t size) {
  table_builder builder = {.table = table,
                           .pass = &table->passes[pass],
                           .out = out,
                           .tile_keys = tile_keys,
                           .reason = reason,
                           .size = size};
  memset(out, 0, sizeof *out);
  out->tile_keys = tile_keys;
  out->narrow = HOPPER_ZERO_ROWS(table->value_dim) == HOPPER_BOX_ROWS;
  return table_accept(&builder) && table_choose_interval(&builder) &&
         table_find_shapes(&builder) && table_find_classes(&builder) &&
         table_accept_bare(&builder);
}
