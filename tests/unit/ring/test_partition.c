/* test_partition.c - which rows travel, against the definition: a key row goes
 * to a rank just when some query of that rank reaches it, and a query row just
 * when it reaches some key of that rank. The rows that go back are the same. */
#include "compiler/analysis/cover.h"
#include "compiler/exchange/exchange.h"
#include "compiler/plan/planner.h"
#include "runtime/ring/ring_device.h"
#include "tests/support/patterns.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 400 };

static expr *leaf(arena *a, expr_op op) { return make_leaf(a, op); }

static expr *over(arena *a, expr_op position, int64_t block) {
  return make_number(a, EXPR_DIV, leaf(a, position), make_int(a, block));
}

static expr *rest_is(arena *a, expr *x, int64_t divisor, expr_op is,
                     int64_t rest) {
  return make_condition(a, is,
                        make_number(a, EXPR_MOD, x, make_int(a, divisor)),
                        make_int(a, rest));
}

/* Causal; blocks near and striding; random blocks; random pairs, otherwise for
 * each head; and one that no bounds settle before single pairs. */
static expr *sample_mask(arena *a, uint64_t *state) {
  expr *i = leaf(a, EXPR_I_), *j = leaf(a, EXPR_J_);
  expr *near = make_number(a, EXPR_SUB, over(a, EXPR_I_, 8),
                           over(a, EXPR_J_, 8));
  switch (random_in(state, 0, 4)) {
  case 0: return make_condition(a, EXPR_GE, i, j);
  case 1:
    return make_condition(
        a, EXPR_OR,
        make_condition(a, EXPR_LE, make_number(a, EXPR_ABS, near, NULL),
                       make_int(a, 1)),
        rest_is(a, over(a, EXPR_J_, 8), 5, EXPR_EQ, 0));
  case 2:
    return rest_is(a, make_expr(a, EXPR_HASH, TYPE_I32, 3, over(a, EXPR_I_, 4),
                                over(a, EXPR_J_, 4), make_int(a, 7)),
                   100, EXPR_LT, 5);
  case 3:
    return rest_is(a, make_expr(a, EXPR_HASH, TYPE_I32, 3, leaf(a, EXPR_H_), i,
                                j), 100, EXPR_LT, 2);
  default: return rest_is(a, make_number(a, EXPR_MUL, i, j), 61, EXPR_EQ, 1);
  }
}

static pattern *sample(arena *a, uint64_t *state) {
  static const int32_t heads[][2] = {{1, 1}, {4, 4}, {6, 2}, {5, 1}};
  int64_t pick = random_in(state, 0, 3);
  pattern *p = make_pattern(a, heads[pick][0], heads[pick][1], 8, 8,
                            (int32_t)random_in(state, 1, 3));
  for (int32_t i = 0; i < p->branch_count; i++) {
    branch *b = &p->branch[i];
    b->segment = random_chance(state, 30) ? 0 : random_in(state, 1, 60);
    b->dilation = random_in(state, 1, 7);
    b->phase_kind = (phase_kind)random_in(state, PHASE_CYCLE, PHASE_KV);
    if (random_chance(state, 30)) b->phase_kind = PHASE_EACH;
    if (b->phase_kind == PHASE_EACH)
      b->shift = random_in(state, 0, b->dilation - 1);
    b->causal = random_chance(state, 40);
    if (random_chance(state, 40)) b->left = random_in(state, 0, 20);
    if (random_chance(state, 40)) b->right = random_in(state, 0, 20);
    if (random_chance(state, 50)) add_mask(a, b, sample_mask(a, state));
  }
  set_phases(a, p);
  return p;
}

enum { ROWS_MOST = 160 }; /* queries, and keys */

static ring_shape random_shape(const plan *p, uint64_t *state) {
  ring_shape r = {.table = &p->table};
  r.layout = (dil_layout)random_in(state, 0, 2);
  r.ranks = (int32_t)random_in(state, 2, 5);
  r.N = random_in(state, 1, ROWS_MOST);
  r.M = random_in(state, 1, ROWS_MOST);
  r.gathered = (uint64_t)random_in(state, 0, 7);
  return r;
}

/* By one of these branches. */
static bool is_needed(const pattern *p, const ring_shape *r, int32_t to,
                      int32_t kv, int64_t j, uint64_t branches) {
  positions asking = partition_queries(r, to);
  int64_t group = p->heads / p->kv_heads;
  expr_point point = {.B = 1, .N = (int32_t)r->N, .M = (int32_t)r->M};
  for (int32_t c = 0; c < asking.count; c++)
    for (int64_t i = 0; i < asking.progression[c].count; i++)
      for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int32_t b = 0; b < p->branch_count; b++)
          if ((branches >> b & 1) &&
              pattern_reaches(p, b, h,
                              asking.progression[c].first +
                                  i * asking.progression[c].step,
                              j, &point))
            return true;
  return false;
}

typedef struct seen {
  int64_t last, count;
  bool row[512];
} seen;

static void note(void *context, const row_range *rows_found) {
  seen *s = context;
  for (int64_t base = rows_found->low; base < rows_found->high;
       base += rows_found->period)
    for (int32_t i = 0; i < rows_found->count; i++) {
      int64_t j = base + rows_found->offset[i];
      if (j >= rows_found->high) break;
      ck_assert_int_gt(j, s->last);
      s->last = j;
      s->row[j] = true;
      s->count++;
    }
}

static seen see_part(const ring_shape *r, int32_t from, int32_t to, int32_t kv,
                     exchange_phase part) {
  seen s = {.last = -1};
  int64_t count;
  bool exact;
  ck_assert_int_eq(partition_rows(r, from, to, kv, part, note, &s), DIL_OK);
  ck_assert_int_eq(partition_count(r, from, to, kv, part, &count, &exact),
                   DIL_OK);
  ck_assert(exact);
  ck_assert_int_eq(count, s.count);
  return s;
}

/* Rows of gathered branches come first, all others that are needed after them,
 * and none comes twice. */
static void check_pair(const pattern *p, const ring_shape *r, int32_t from,
                       int32_t to, int32_t kv) {
  seen first = see_part(r, from, to, kv, EXCHANGE_GATHERED);
  seen rest = see_part(r, from, to, kv, EXCHANGE_ROTATED);
  int64_t owned_count = 0;
  positions owned = partition_keys(r, from);
  for (int32_t c = 0; c < owned.count; c++)
    for (int64_t i = 0; i < owned.progression[c].count; i++) {
      int64_t j = owned.progression[c].first + i * owned.progression[c].step;
      bool early = is_needed(p, r, to, kv, j, r->gathered);
      bool late = !early && is_needed(p, r, to, kv, j, ~r->gathered);
      ck_assert_msg(first.row[j] == early && rest.row[j] == late,
                    "row %d from %d to %d of %d, layout %d: %d and %d", (int)j,
                    from, to, r->ranks, r->layout, first.row[j], rest.row[j]);
      owned_count += early + late;
    }
  ck_assert_int_eq(owned_count, first.count + rest.count);
}

START_TEST(rows_that_travel) {
  uint64_t state = (uint64_t)_i * 77 + 1;
  arena *a = arena_new();
  pattern *p = sample(a, &state);
  plan *made = plan_make(a, diag_new(a), p, 0);
  ck_assert_ptr_nonnull(made);
  ring_shape r = random_shape(made, &state);
  mask_bounds bounds = {made, 1, r.N, r.M};
  partition_mask mask = mask_bounds_of(&bounds);
  if (mask.bounds) r.mask = &mask;
  for (int32_t from = 0; from < r.ranks; from++)
    for (int32_t to = 0; to < r.ranks; to++)
      for (int32_t kv = 0; kv < p->kv_heads && from != to; kv++)
        check_pair(made->pattern, &r, from, to, kv);
  arena_free(a);
}
END_TEST

/* Whether query t of a head reaches some key of rank `to` by these branches. */
static bool is_wanted(const pattern *p, const ring_shape *r, int32_t to,
                      int32_t head, int64_t t, uint64_t branches) {
  positions keys = partition_keys(r, to);
  expr_point point = {.B = 1, .N = (int32_t)r->N, .M = (int32_t)r->M};
  for (int32_t c = 0; c < keys.count; c++)
    for (int64_t j = 0; j < keys.progression[c].count; j++)
      for (int32_t b = 0; b < p->branch_count; b++)
        if ((branches >> b & 1) &&
            pattern_reaches(p, b, head, t,
                            keys.progression[c].first +
                                j * keys.progression[c].step, &point))
          return true;
  return false;
}

/* The queries of a list, each noted at its place behind M - N. */
typedef struct seen_queries {
  int64_t origin;
  int32_t times[ROWS_MOST];
} seen_queries;

static void note_query(void *context, const row_range *rows_found) {
  seen_queries *s = context;
  for (int64_t base = rows_found->low; base < rows_found->high;
       base += rows_found->period)
    for (int32_t i = 0; i < rows_found->count; i++) {
      int64_t t = base + rows_found->offset[i];
      if (t >= rows_found->high) break;
      ck_assert(t >= s->origin && t < s->origin + ROWS_MOST);
      s->times[t - s->origin]++;
    }
}

static void check_queries(const pattern *p, const ring_shape *r, int32_t from,
                          int32_t to, int32_t head) {
  seen_queries part[EXCHANGE_PHASES] = {{r->M - r->N, {0}}, {r->M - r->N, {0}}};
  positions owned = partition_queries(r, from);
  uint64_t going = ~r->left_out;
  for (int phase = 0; phase < EXCHANGE_PHASES; phase++)
    ck_assert_int_eq(partition_rows(r, from, to, head, (exchange_phase)phase,
                                    note_query, &part[phase]),
                     DIL_OK);
  for (int32_t c = 0; c < owned.count; c++)
    for (int64_t i = 0; i < owned.progression[c].count; i++) {
      int64_t t = owned.progression[c].first + i * owned.progression[c].step;
      int64_t at = t - (r->M - r->N);
      bool early = is_wanted(p, r, to, head, t, r->gathered & going);
      bool late = !early && is_wanted(p, r, to, head, t, ~r->gathered & going);
      ck_assert_msg(part[EXCHANGE_GATHERED].times[at] == early &&
                        part[EXCHANGE_ROTATED].times[at] == late,
                    "query %d of head %d from %d to %d of %d, layout %d: %d "
                    "and %d", (int)t, (int)head, from, to, r->ranks, r->layout,
                    part[0].times[at], part[1].times[at]);
      part[0].times[at] = part[1].times[at] = 0;
    }
  for (int64_t at = 0; at < ROWS_MOST; at++)
    ck_assert(!part[0].times[at] && !part[1].times[at]);
}

/* Queries before position 0 are among them, and branches that are left out. */
START_TEST(queries_that_travel) {
  uint64_t state = (uint64_t)_i * 91 + 5;
  arena *a = arena_new();
  pattern *p = sample(a, &state);
  plan *made = plan_make(a, diag_new(a), p, 0);
  ck_assert_ptr_nonnull(made);
  ring_shape r = random_shape(made, &state);
  r.left_out = (uint64_t)random_in(&state, 0, 3);
  r.queries = true;
  mask_bounds bounds = {made, 1, r.N, r.M};
  partition_mask mask = mask_bounds_of(&bounds);
  if (mask.bounds) r.mask = &mask;
  for (int32_t from = 0; from < r.ranks; from++)
    for (int32_t to = 0; to < r.ranks; to++)
      for (int32_t h = 0; h < p->heads && from != to; h++)
        check_queries(made->pattern, &r, from, to, h);
  arena_free(a);
}
END_TEST

static void expect_same_list(const route *a, const route *b) {
  ck_assert(a->rows == b->rows && a->low == b->low && a->high == b->high);
  ck_assert_int_eq(a->owned.count, b->owned.count);
  ck_assert(!memcmp(a->owned.progression, b->owned.progression,
                    sizeof a->owned.progression));
  ck_assert_int_eq(a->run_count, b->run_count);
  for (int32_t i = 0; i < a->run_count; i++) {
    const route_run *x = &a->run[i], *y = &b->run[i];
    int64_t rows_here = route_run_rows(a, i);
    ck_assert_int_eq(rows_here, route_run_rows(b, i));
    ck_assert(x->kv == y->kv && x->progression == y->progression);
    for (int64_t n = 0; n < rows_here; n++)
      ck_assert_int_eq(route_position(a, x, n), route_position(b, y, n));
  }
}

static void check_reverse(const ring_shape *r, int32_t from, int32_t to,
                          exchange_phase phase) {
  route there, back, again;
  int copy;
  ck_assert_int_eq(route_new(r, from, to, phase, &there), DIL_OK);
  there.copy = &copy; /* a device has it */
  ck_assert_int_eq(route_reverse(&there, &back), DIL_OK);
  ck_assert_int_eq(route_reverse(&back, &again), DIL_OK);
  ck_assert(back.from == to && back.to == from && back.back);
  ck_assert(again.from == from && again.to == to && !again.back);
  ck_assert(!back.copy && !again.copy);
  expect_same_list(&there, &back);
  route_free(&back);
  expect_same_list(&there, &again);
  route_free(&again);
  route_free(&there);
}

START_TEST(routes_reverse) {
  uint64_t state = (uint64_t)_i * 53 + 3;
  arena *a = arena_new();
  plan *made = plan_make(a, diag_new(a), sample(a, &state), 0);
  ring_shape r = random_shape(made, &state);
  for (int32_t from = 0; from < r.ranks; from++)
    for (int32_t to = 0; to < r.ranks; to++)
      for (int phase = 0; phase < EXCHANGE_PHASES && from != to; phase++)
        check_reverse(&r, from, to, (exchange_phase)phase);
  arena_free(a);
}
END_TEST

/* A message of ones, added twice: the rows of the route have 2, others 0. */
START_TEST(the_processor_adds_a_message) {
  arena *a = arena_new();
  uint64_t state = 3;
  plan *made = plan_make(a, diag_new(a), sample(a, &state), 0);
  const dil_table *t = &made->table;
  ring_shape r = {.table = t, .layout = DIL_STRIPED, .ranks = 3,
                  .N = 60, .M = 60};
  route there, back;
  ring_device *d;
  ck_assert_int_eq(ring_cpu_new(NULL, 1, &d), DIL_OK);
  ck_assert_int_eq(route_new(&r, 1, 2, EXCHANGE_ROTATED, &there), DIL_OK);
  ck_assert_int_eq(route_reverse(&there, &back), DIL_OK);
  int64_t width = t->head_dim + t->value_dim;
  int64_t elements = 20 * t->kv_heads * width, sent = back.rows * width;
  float *sums = calloc((size_t)elements + 1, sizeof *sums);
  float *message = calloc((size_t)sent + 1, sizeof *message);
  const int64_t k[] = {1, 20, t->kv_heads, t->head_dim};
  const int64_t v[] = {1, 20, t->kv_heads, t->value_dim};
  ring_keys keys = {
      {dil_tensor_make(sums, DIL_F32, 4, k)},
      {dil_tensor_make(sums + 20 * t->kv_heads * t->head_dim, DIL_F32, 4, v)}};
  double all = 0;
  for (int64_t i = 0; i < sent; i++) message[i] = 1;
  for (int i = 0; i < 2; i++)
    ck_assert_int_eq(d->calls->reduce(d, &back, message, &keys), DIL_OK);
  for (int64_t i = 0; i < elements; i++) {
    ck_assert(sums[i] == 0 || sums[i] == 2);
    all += (double)sums[i];
  }
  ck_assert_double_eq(all, 2.0 * (double)sent);
  free(sums);
  free(message);
  route_free(&there);
  route_free(&back);
  ring_device_free(d);
  arena_free(a);
}
END_TEST

START_TEST(shards_cover) {
  uint64_t state = (uint64_t)_i + 5;
  int64_t rows_all = random_in(&state, 0, 200);
  int32_t ranks = (int32_t)random_in(&state, 1, 9);
  for (int layout = 0; layout < DIL_LAYOUT_COUNT; layout++) {
    int32_t owners[200] = {0};
    for (int32_t rank = 0; rank < ranks; rank++) {
      positions s =
          partition_owned((dil_layout)layout, rows_all, 0, ranks, rank);
      ck_assert_int_le(positions_count(&s), (rows_all + ranks - 1) / ranks + 1);
      for (int32_t c = 0; c < s.count; c++)
        for (int64_t i = 0; i < s.progression[c].count; i++)
          owners[s.progression[c].first + i * s.progression[c].step]++;
    }
    for (int64_t i = 0; i < rows_all; i++) ck_assert_int_eq(owners[i], 1);
  }
}
END_TEST

/* What gathers has room and saves time, or the topology says so; what does not
 * travel is said not to. */
START_TEST(choices_of_exchange) {
  uint64_t state = (uint64_t)_i * 31 + 7;
  arena *a = arena_new();
  plan *made = plan_make(a, diag_new(a), sample(a, &state), 0);
  char room[32];
  topology t = {.exchange = (exchange_kind)random_in(&state, 0, 2),
                .link = random_chance(&state, 50) ? LINK_MPI : LINK_NCCL};
  mesh m = {.ring = (int32_t)random_in(&state, 1, 9), .heads = 1, .batch = 1,
            .layout = (dil_layout)random_in(&state, 0, 2)};
  uint64_t all = ((uint64_t)1 << made->table.branch_count) - 1;
  if (t.exchange == EXCHANGE_GATHER) m.gathered = ~(uint64_t)0;
  snprintf(room, sizeof room, "%d", (int)random_in(&state, 0, 20000));
  ck_assert_int_eq(setenv("DIL_GATHER_MAX", room, 1), 0);
  exchange_choice found;
  int64_t N = random_in(&state, 1, 300), M = random_in(&state, 1, 300);
  ck_assert_int_eq(exchange_choose(a, &made->table, &m, &t, t.link == LINK_NCCL,
                                   2, N, M, &found),
                   DIL_OK);
  double bytes = 0;
  for (int32_t b = 0; b < found.branch_count; b++) {
    const exchange_branch *of = &found.branch[b];
    ck_assert_int_eq(of->reason == EXCHANGE_NOTHING, of->bytes == 0);
    ck_assert_int_eq(of->messages > 0, of->bytes > 0);
    if (found.gathered >> b & 1) bytes += 2 * of->bytes;
    else ck_assert(of->reason != EXCHANGE_GAIN);
  }
  if (t.exchange == EXCHANGE_AUTO) {
    ck_assert(bytes <= atof(room));
    ck_assert_int_eq(found.saved > 0, found.gathered != 0);
  } else
    ck_assert_uint_eq(found.gathered & all,
                      t.exchange == EXCHANGE_GATHER ? all : 0);
  arena_free(a);
}
END_TEST

START_TEST(heads_are_dealt_out_once) {
  static const int32_t cases[][3] = {{12, 12, 5}, {6, 2, 4}, {8, 2, 2},
                                     {8, 1, 8}, {7, 7, 7}, {32, 8, 16}};
  for (int i = 0; i < 6; i++) {
    int32_t heads = cases[i][0], kv = cases[i][1], ranks = cases[i][2];
    int32_t next = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
      head_partition s = partition_heads(heads, kv, ranks, rank);
      ck_assert_int_eq(s.head, next);
      ck_assert_int_gt(s.heads, 0);
      ck_assert_int_eq(s.heads % s.kv_heads, 0);
      for (int32_t h = 0; h < s.heads; h++)
        ck_assert_int_eq(s.kv_head + h / (s.heads / s.kv_heads),
                         (s.head + h) / (heads / kv));
      next += s.heads;
    }
    ck_assert_int_eq(next, heads);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("place");
  TCase *tests = tcase_create("place");
  tcase_set_timeout(tests, 120);
  tcase_add_loop_test(tests, rows_that_travel, 0, CASES);
  tcase_add_loop_test(tests, queries_that_travel, 0, CASES);
  tcase_add_loop_test(tests, routes_reverse, 0, 50);
  tcase_add_test(tests, the_processor_adds_a_message);
  tcase_add_test(tests, heads_are_dealt_out_once);
  tcase_add_loop_test(tests, shards_cover, 0, 50);
  tcase_add_loop_test(tests, choices_of_exchange, 0, 200);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
