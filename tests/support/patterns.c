/* patterns.c - patterns built in C, and random ones: every kind of geometry
 * and condition the language has, at sizes where all pairs can be listed. */
#include "patterns.h"
#include "runtime/base/arithmetic.h"
#include <math.h>

arena *memory;

void open_memory(void) { memory = arena_new(); }
void close_memory(void) { arena_free(memory); }

arena *fresh_memory(void) {
  close_memory();
  open_memory();
  return memory;
}

pattern *make_pattern(arena *a, int64_t heads, int64_t kv_heads,
                      int64_t head_dim, int64_t value_dim, int32_t branches) {
  pattern *p = ARENA_NEW(a, pattern);
  p->name = "sample";
  p->heads = heads;
  p->kv_heads = kv_heads;
  p->head_dim = head_dim;
  p->value_dim = value_dim;
  p->scale = 1 / sqrt((double)head_dim);
  p->branch_count = branches;
  p->branch = ARENA_ARRAY(a, branch, branches);
  for (int32_t k = 0; k < branches; k++) {
    branch *b = &p->branch[k];
    b->dilation = 1;
    b->head_last = (int32_t)heads - 1;
    b->left = b->right = DIL_ENDLESS;
  }
  set_phases(a, p);
  return p;
}

static int64_t phase_of(const pattern *p, int32_t index, int64_t h) {
  const branch *b = &p->branch[index];
  const expr_point point = {.h = (int32_t)h};
  int64_t r = b->dilation;
  switch (b->phase_kind) {
  case PHASE_CYCLE: return h % r;
  case PHASE_BLOCK: return h / (p->heads / r + (p->heads % r != 0));
  case PHASE_BRANCH: return index % r;
  case PHASE_KV: return h * p->kv_heads / p->heads % r;
  case PHASE_EACH: return 0;
  default: return floor_mod(expr_eval(b->phase_expr, &point, false).integer, r);
  }
}

void set_phases(arena *a, pattern *p) {
  for (int32_t k = 0; k < p->branch_count; k++) {
    branch *b = &p->branch[k];
    b->phase = ARENA_ARRAY(a, int32_t, p->heads);
    for (int64_t h = 0; h < p->heads; h++)
      b->phase[h] = (int32_t)phase_of(p, k, h);
  }
}

void add_inputs(arena *a, pattern *p) {
  static const dil_input given[GIVEN_COUNT] = {
      [DOC] = {.name = "doc", .dtype = DIL_I32, .rank = 2},
      [SLOPE] = {.name = "slope", .dtype = DIL_F32, .rank = 1},
      [KEPT] = {.name = "kept", .dtype = DIL_U8, .rank = 3}};
  p->input_count = GIVEN_COUNT;
  for (int32_t k = 0; k < GIVEN_COUNT; k++) p->input[k] = given[k];
  expr *m = make_leaf(a, EXPR_M_), *heads = make_int(a, p->heads);
  expr *more = make_number(a, EXPR_ADD, m, make_int(a, GIVEN_BLOCK - 1));
  expr *blocks = make_number(a, EXPR_DIV, more, make_int(a, GIVEN_BLOCK));
  p->dimension[DOC][0] = make_leaf(a, EXPR_BATCH);
  p->dimension[DOC][1] = m;
  p->dimension[SLOPE][0] = heads;
  p->dimension[KEPT][0] = heads;
  p->dimension[KEPT][1] = p->dimension[KEPT][2] = blocks;
}

static void *grow_array(arena *a, const void *old, size_t count, size_t size) {
  char *all = arena_take(a, count + 1, size);
  for (size_t k = 0; k < count * size; k++) all[k] = ((const char *)old)[k];
  return all;
}

void add_mask(arena *a, branch *b, expr *mask) {
  b->mask = grow_array(a, b->mask, (size_t)b->mask_count, sizeof *b->mask);
  b->mask[b->mask_count++] = mask;
}

void add_score(arena *a, branch *b, expr *score) {
  b->score = grow_array(a, b->score, (size_t)b->score_count, sizeof *b->score);
  b->score[b->score_count++] = score;
}

void add_keep(arena *a, keeps *level, int64_t block, keep one) {
  level->keep =
      grow_array(a, level->keep, (size_t)level->count, sizeof *level->keep);
  level->keep[level->count++] = one;
  level->block = level->query_block = block;
}

/* ---- random conditions and scores ---------------------------------------- */

static expr *distance_expr(arena *a, expr *x, expr *y) {
  return make_number(a, EXPR_ABS, make_number(a, EXPR_SUB, x, y), NULL);
}

static expr *blocks_of(arena *a, expr_op leaf, int64_t size) {
  return make_number(a, EXPR_DIV, make_leaf(a, leaf), make_int(a, size));
}

static expr *hash_is_small(arena *a, uint64_t *state) {
  int64_t size = random_in(state, 1, 4);
  expr *hash = make_expr(a, EXPR_HASH, TYPE_I32, 3,
                         blocks_of(a, EXPR_I_, size),
                         blocks_of(a, EXPR_J_, size),
                         random_chance(state, 50) ? make_leaf(a, EXPR_H_)
                                                  : make_int(a, 7));
  return make_condition(a, EXPR_LT,
                        make_number(a, EXPR_MOD, hash, make_int(a, 10)),
                        make_int(a, random_in(state, 2, 9)));
}

static expr *of_one_document(arena *a) {
  expr *b = make_leaf(a, EXPR_B_);
  return make_condition(
      a, EXPR_EQ, make_input(a, DOC, TYPE_I32, b, make_leaf(a, EXPR_I_)),
      make_input(a, DOC, TYPE_I32, b, make_leaf(a, EXPR_J_)));
}

static expr *is_near_or_global(arena *a, uint64_t *state) {
  expr *i = make_leaf(a, EXPR_I_), *j = make_leaf(a, EXPR_J_);
  expr *near = make_condition(a, EXPR_LE, distance_expr(a, i, j),
                              make_int(a, random_in(state, 0, 5)));
  expr *first = make_int(a, random_in(state, 0, 3));
  return make_condition(
      a, EXPR_OR, near,
      make_condition(a, EXPR_OR, make_condition(a, EXPR_LT, i, first),
                     make_condition(a, EXPR_LT, j, first)));
}

static expr *is_residue(arena *a, uint64_t *state) {
  int64_t m = random_in(state, 2, 5);
  expr *sum = make_number(a, EXPR_ADD, make_leaf(a, EXPR_I_),
                          make_number(a, EXPR_MUL, make_leaf(a, EXPR_J_),
                                      make_int(a, random_in(state, -3, 3))));
  return make_condition(a, EXPR_NE,
                        make_number(a, EXPR_MOD, sum, make_int(a, m)),
                        make_int(a, random_in(state, 0, m - 1)));
}

static expr *is_strided(arena *a, uint64_t *state) {
  expr *i = make_leaf(a, EXPR_I_), *j = make_leaf(a, EXPR_J_);
  bool back = random_chance(state, 50);
  expr *gap = make_number(a, EXPR_SUB, back ? j : i, back ? i : j);
  return make_condition(
      a, EXPR_LT,
      make_number(a, EXPR_MOD, gap, make_int(a, random_in(state, 2, 7))),
      make_int(a, random_in(state, 1, 4)));
}

static expr *is_float_near(arena *a, uint64_t *state) {
  expr *slope =
      make_input(a, SLOPE, TYPE_F32, make_leaf(a, EXPR_H_), NULL);
  expr *steep = make_number(
      a, EXPR_MUL, slope,
      distance_expr(a, make_leaf(a, EXPR_I_), make_leaf(a, EXPR_J_)));
  return make_condition(a, EXPR_LT, steep,
                        make_real(a, (double)random_in(state, 0, 40) / 10));
}

static expr *any_mask(arena *a, uint64_t *state) {
  switch (random_in(state, 0, 7)) {
  case 0: return hash_is_small(a, state);
  case 1: return of_one_document(a);
  case 2: return is_near_or_global(a, state);
  case 3: return is_residue(a, state);
  case 4: return is_float_near(a, state);
  case 5: return is_strided(a, state);
  case 6:
    return make_condition(a, EXPR_NOT, is_residue(a, state), NULL);
  default:
    return make_condition(a, EXPR_LT, make_leaf(a, EXPR_J_),
                          make_number(a, EXPR_SUB, make_leaf(a, EXPR_M_),
                                      make_int(a, random_in(state, 0, 9))));
  }
}

/* An element of a table of blocks for each head. */
static expr *kept_of(arena *a, expr *bi, expr *bj) {
  expr *e = make_expr(a, EXPR_INPUT, TYPE_I32, 3, make_leaf(a, EXPR_H_), bi, bj);
  e->integer = KEPT;
  return e;
}

static keep any_keep(arena *a, uint64_t *state, int64_t block) {
  expr *bi = blocks_of(a, EXPR_I_, block), *bj = blocks_of(a, EXPR_J_, block);
  if (block == GIVEN_BLOCK && random_chance(state, 40))
    return (keep){.condition = make_condition(a, EXPR_NE, kept_of(a, bi, bj),
                                              make_int(a, 0))};
  if (random_chance(state, 50))
    return (keep){.condition =
                      make_condition(a, EXPR_LE, distance_expr(a, bi, bj),
                                     make_int(a, random_in(state, 0, 2)))};
  return (keep){.condition = make_condition(
                    a, EXPR_EQ, make_number(a, EXPR_MOD, bj, make_int(a, 3)),
                    make_int(a, 0))};
}

static expr *any_score(arena *a, uint64_t *state) {
  expr *s = make_leaf(a, EXPR_S_);
  expr *i = make_leaf(a, EXPR_I_), *j = make_leaf(a, EXPR_J_);
  switch (random_in(state, 0, 3)) {
  case 0: {
    expr *third = make_number(a, EXPR_DIV, s, make_int(a, 3));
    return make_number(a, EXPR_MUL, make_int(a, 3),
                       make_number(a, EXPR_TANH, third, NULL));
  }
  case 1: {
    expr *slope =
        make_input(a, SLOPE, TYPE_F32, make_leaf(a, EXPR_H_), NULL);
    return make_number(a, EXPR_SUB, s,
                       make_number(a, EXPR_MUL, slope, distance_expr(a, i, j)));
  }
  case 2:
    return make_expr(a, EXPR_CHOOSE, TYPE_F32, 3, is_residue(a, state), s,
                     make_real(a, -INFINITY));
  default: return make_number(a, EXPR_MUL, s, make_real(a, 0.75));
  }
}

/* ---- random patterns ----------------------------------------------------- */

static void random_geometry(arena *a, uint64_t *state, const pattern *p,
                            branch *b) {
  if (random_chance(state, 75)) b->segment = random_in(state, 1, 14);
  if (random_chance(state, 65)) b->dilation = random_in(state, 1, 6);
  b->phase_kind = (phase_kind)random_in(state, PHASE_CYCLE, PHASE_EACH);
  if (b->phase_kind == PHASE_EACH)
    b->shift = random_in(state, 0, b->dilation - 1);
  if (b->phase_kind == PHASE_EXPR)
    b->phase_expr = make_number(a, EXPR_SUB, make_leaf(a, EXPR_H_),
                                make_int(a, random_in(state, 0, 5)));
  b->causal = random_chance(state, 30);
  if (random_chance(state, 20)) b->left = random_in(state, 0, 9);
  if (random_chance(state, 20)) b->right = random_in(state, 0, 9);
  if (!random_chance(state, 30)) return;
  b->head_first = (int32_t)random_in(state, 0, p->heads - 1);
  b->head_last = (int32_t)random_in(state, b->head_first, p->heads - 1);
}

static void random_conditions(arena *a, uint64_t *state, int64_t block,
                              branch *b) {
  for (int64_t k = random_in(state, -2, 2); k > 0; k--)
    add_mask(a, b, any_mask(a, state));
  for (int level = 0; level < 2; level++) {
    if (!random_chance(state, 20)) continue;
    for (int64_t k = random_in(state, 1, 2); k > 0; k--)
      add_keep(a, &b->keeps[level], block, any_keep(a, state, block));
  }
}

static void random_scores(arena *a, uint64_t *state, pattern *p) {
  expr *shared = any_score(a, state);
  bool with_shared = random_chance(state, 40);
  for (int32_t k = 0; k < p->branch_count; k++) {
    if (with_shared) add_score(a, &p->branch[k], shared);
    if (p->combine != DIL_COMBINE_UNION && random_chance(state, 25))
      add_score(a, &p->branch[k], any_score(a, state));
  }
}

static expr *any_sink(arena *a, uint64_t *state) {
  expr *slope = make_input(a, SLOPE, TYPE_F32, make_leaf(a, EXPR_H_), NULL);
  expr *i = make_leaf(a, EXPR_I_);
  switch (random_in(state, 0, 3)) {
  case 0:
    return slope;
  case 1:
    return make_number(a, EXPR_MUL, slope,
                       make_number(a, EXPR_MOD, i, make_int(a, 5)));
  case 2:
    return make_expr(a, EXPR_CHOOSE, TYPE_F32, 3,
                     make_condition(a, EXPR_LT, i, make_int(a, 4)), slope,
                     make_real(a, -INFINITY));
  default:
    return make_int(a, random_in(state, -2, 2));
  }
}

static void add_sinks(arena *a, uint64_t *state, expr ***sink, int32_t *count) {
  *count = (int32_t)random_in(state, 0, 2);
  *sink = ARENA_ARRAY(a, expr *, *count);
  for (int32_t k = 0; k < *count; k++) (*sink)[k] = any_sink(a, state);
}

static bool reads_slope(expr *const *list, int32_t count) {
  for (int32_t k = 0; k < count; k++)
    if (expr_uses(list[k], EXPR_INPUT)) return true;
  return false;
}

void random_sinks(arena *a, uint64_t *state, pattern *p) {
  add_sinks(a, state, &p->sink, &p->sink_count);
  for (int32_t k = 0; k < p->branch_count; k++)
    if (random_chance(state, 40))
      add_sinks(a, state, &p->branch[k].sink, &p->branch[k].sink_count);
}

/* Scores and sinks read no other input. */
void random_gradient(uint64_t *state, pattern *p) {
  bool read = reads_slope(p->sink, p->sink_count);
  for (int32_t k = 0; k < p->branch_count; k++) {
    const branch *b = &p->branch[k];
    read |= reads_slope(b->score, b->score_count) ||
            reads_slope(b->sink, b->sink_count);
  }
  p->input[SLOPE].gradient = read && random_chance(state, 50);
}

pattern *random_pattern(arena *a, uint64_t *state, bool scores) {
  int64_t kv = random_in(state, 1, 3), heads = kv * random_in(state, 1, 3);
  pattern *p = make_pattern(a, heads, kv, random_in(state, 1, 9),
                            random_in(state, 1, 9),
                            (int32_t)random_in(state, 1, 4));
  p->combine = (dil_combine)random_in(state, 0, 3);
  add_inputs(a, p);
  bool conditions = random_chance(state, 50);
  int64_t block = random_in(state, 1, 4);
  for (int32_t k = 0; k < p->branch_count; k++) {
    branch *b = &p->branch[k];
    if (k > 0 && random_chance(state, 15)) {
      *b = p->branch[k - 1];
      continue;
    }
    random_geometry(a, state, p, b);
    if (conditions) random_conditions(a, state, block, b);
  }
  if (scores) random_scores(a, state, p);
  set_phases(a, p);
  return p;
}
