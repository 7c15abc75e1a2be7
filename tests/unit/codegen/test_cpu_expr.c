/* test_cpu_expr.c - generated masks, scores and cover against the evaluator of
 * compiler/pattern/expr.c: random expressions of every operator and element
 * type, bit for bit, in tiles and in rows. */
#include "tests/support/cpu_code.h"
#include "tests/support/cpu_random.h"
#include "tests/support/suite.h"
#include <check.h>
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const sets[] = {"avx2", "avx512"};
enum { SET_COUNT = 2, KEYS = 37, PREDICATES = 4, LANES_MAX = 32 };

/* ---- what expressions see ------------------------------------------------ */

static float reals[3][64]; /* as f32, whatever the storage */
static uint16_t halves[2][64];
static int32_t words[64];
static uint8_t bytes[64];
static dil_env_input bound[INPUTS];

static void bind_inputs(void) {
  static const float odd[] = {NAN, INFINITY, -INFINITY, 0, -0.0f, 1e-41f};
  for (int k = 0; k < 64; k++) {
    words[k] = random_below(8) == 0 ? (int32_t)random_below(UINT32_MAX)
                                    : (int32_t)random_below(9) - 3;
    bytes[k] = (uint8_t)random_below(256);
    reals[0][k] = random_below(9) == 0 ? odd[random_below(6)]
                                       : (float)random_below(4000) / 100 - 20;
    halves[0][k] = (uint16_t)random_below(65536);
    halves[1][k] = (uint16_t)random_below(65536);
    reals[1][k] = dil_bf16_to_f32(halves[0][k]);
    reals[2][k] = dil_f16_to_f32(halves[1][k]);
  }
  bound[0] = (dil_env_input){words, {21}, {3}};
  bound[1] = (dil_env_input){bytes, {9, 7}, {7, 1}};
  bound[2] = (dil_env_input){reals[0], {7, 9}, {1, 7}};
  bound[3] = (dil_env_input){halves[0], {40}, {1}};
  bound[4] = (dil_env_input){halves[1], {3, 4, 5}, {20, 5, 1}};
}

static value read_input(void *context, int32_t index, const int32_t *at) {
  int64_t offset = 0;
  (void)context;
  for (int k = 0; k < random_inputs[index].rank; k++) {
    if (at[k] < 0 || at[k] >= bound[index].dim[k]) return (value){0};
    offset += at[k] * bound[index].stride[k];
  }
  switch (index) {
  case 0:
    return (value){.integer = words[offset]};
  case 1:
    return (value){.integer = bytes[offset]};
  default:
    return (value){.real = reals[index - 2][offset]};
  }
}

/* As dil_env asks it: NaNs are -inf..inf. */
static void range(const dil_env *env, int32_t index, int32_t axis,
                  const int32_t *at, int32_t first, int32_t last, double *low,
                  double *high) {
  (void)env;
  *low = INFINITY;
  *high = -INFINITY;
  int64_t size = bound[index].dim[axis];
  if (first < 0 || last >= size) *low = *high = 0; /* it reads 0 there */
  for (int64_t x = first < 0 ? 0 : first; x <= last && x < size; x++) {
    int32_t place[DIL_RANK_MAX];
    memcpy(place, at, sizeof place);
    place[axis] = (int32_t)x;
    value v = read_input(NULL, index, place);
    double number = index < 2 ? (double)v.integer : v.real;
    *low = isnan(number) ? -INFINITY : fmin(*low, number);
    *high = isnan(number) ? INFINITY : fmax(*high, number);
  }
}

static interval box_range(void *context, int32_t index, int32_t axis,
                          const int32_t *at, int32_t first, int32_t last) {
  interval x = {0};
  (void)context;
  range(NULL, index, axis, at, first, last, &x.low, &x.high);
  x.nan = isinf(x.low) && isinf(x.high);
  return x;
}

/* ---- one random kernel --------------------------------------------------- */

static code_case made;
static dil_env env;

static int64_t make_bound(void) {
  static const int64_t some[] = {
      0, 1, 3, 17, INT32_MAX, INT64_C(1) << 32, DIL_ENDLESS};
  return some[random_below(7)];
}

static void make_case(uint32_t seed) {
  random_seed(seed);
  bind_inputs();
  code_case_open(&made, 8, 8, DIL_F32);
  memcpy(made.pattern.input, random_inputs, sizeof random_inputs);
  made.pattern.input_count = made.plan.table.input_count = INPUTS;
  random_sizes = true;
  for (int k = 0; k < INPUTS; k++)
    for (int axis = 0; axis < random_inputs[k].rank; axis++)
      made.pattern.dimension[k][axis] = random_word(2);
  random_sizes = false;
  made.plan.table.predicate_count = PREDICATES;
  for (int p = 0; p < PREDICATES; p++) {
    made.predicate[p] =
        (dil_predicate){make_bound(), make_bound(), p != 0, 0, 0, 0, 0};
    random_scores = false;
    made.mask[p] = p == 0 ? NULL : random_truth(3 + (int)random_below(2));
  }
  random_scores = true;
  made.chain[0] = ARENA_ARRAY(random_memory, expr *, 3);
  made.chain[0][0] = random_real(3);
  made.chain[0][1] = random_number(2);
  env = (dil_env){.batch = (int32_t)random_below(3),
                  .head = (int32_t)random_below(7),
                  .B = 3,
                  .N = 50,
                  .M = 41,
                  .scale = 0.3f,
                  .inputs = bound,
                  .range = range};
}

static expr_point point_of(int32_t t, int32_t j, float s) {
  return (expr_point){.b = env.batch,
                      .h = env.head,
                      .i = t,
                      .j = j,
                      .B = env.B,
                      .N = env.N,
                      .M = env.M,
                      .s = s,
                      .input = read_input};
}

static bool holds(int p, int32_t t, int32_t j) {
  expr_point point = point_of(t, j, 0);
  int64_t distance = (int64_t)j - t;
  bool inside = distance <= made.predicate[p].right &&
                -distance <= made.predicate[p].left;
  return inside && (made.mask[p] == NULL ||
                    expr_eval(made.mask[p], &point, false).integer != 0);
}

static bool kept(uint64_t predicates, int32_t t, int32_t j) {
  bool any = predicates == 0;
  for (int p = 0; p < PREDICATES; p++)
    any = any || ((predicates >> p & 1) && holds(p, t, j));
  return any;
}

static float final_score(float s, int32_t t, int32_t j) {
  float score = env.scale * s;
  for (expr **x = made.chain[0]; *x != NULL; x++) {
    expr_point point = point_of(t, j, score);
    value v = expr_eval(*x, &point, false);
    score = (*x)->type == TYPE_F32 ? (float)v.real : (float)v.integer;
  }
  return score;
}

static void same_float(float got, float want, int32_t t, int32_t j) {
  bool same = (isnan(got) && isnan(want)) || memcmp(&got, &want, 4) == 0;
  ck_assert_msg(same, "t %d j %d: got %a, not %a", t, j, got, want);
}

static int32_t position(bool query) {
  static const int32_t far[] = {INT32_MAX, INT32_MAX - 2, 1 << 30};
  if (random_below(9) == 0)
    return query && random_below(2) ? INT32_MIN + (int32_t)random_below(3)
                                    : far[random_below(3)];
  return (int32_t)random_below(60) - (query ? 8 : 0);
}

/* Workers flush subnormal numbers; expressions must not. */
static void flush_subnormals(bool flush) {
  _mm_setcsr(flush ? _mm_getcsr() | 0x8040u : _mm_getcsr() & ~0x8040u);
}

/* ---- tiles and rows ------------------------------------------------------ */

static void check_tile(const dil_code *code, uint64_t predicates) {
  float s[KEYS * LANES_MAX] __attribute__((aligned(64)));
  float mx[LANES_MAX] __attribute__((aligned(64)));
  int32_t t[LANES_MAX] __attribute__((aligned(64))), j[KEYS];
  float before[KEYS * LANES_MAX];
  uint64_t seen = 0xdeadbeef, want_seen = 0;
  int lanes = code->lanes, base = (int)random_below(9);
  for (int lane = 0; lane < lanes; lane++)
    t[lane] = random_below(2) ? position(true) : base + lane;
  for (int key = 0; key < KEYS; key++)
    j[key] = random_below(2) ? position(false) : key;
  for (int k = 0; k < KEYS * lanes; k++)
    s[k] = before[k] = (float)random_below(2000) / 77 - 13;
  flush_subnormals(true);
  code->modify[0](s, mx, KEYS, t, j, predicates, &env,
                  predicates % 2 ? NULL : &seen);
  flush_subnormals(false);
  for (int lane = 0; lane < lanes; lane++) {
    float largest = -INFINITY;
    for (int key = 0; key < KEYS; key++) {
      bool stays = kept(predicates, t[lane], j[key]);
      float want =
          stays ? final_score(before[key * lanes + lane], t[lane], j[key])
                : -INFINITY;
      want_seen |= (uint64_t)stays << key;
      same_float(s[key * lanes + lane], want, t[lane], j[key]);
      largest = want > largest ? want : largest;
    }
    ck_assert(mx[lane] == largest);
  }
  if (predicates % 2 == 0)
    ck_assert_msg((seen & ((UINT64_C(1) << KEYS) - 1)) == want_seen,
                  "seen %llx, not %llx", (long long)seen, (long long)want_seen);
}

static void check_row(const dil_code *code, uint64_t predicates) {
  float s[KEYS + 16] __attribute__((aligned(64)));
  float before[KEYS + 16];
  int32_t t = position(true), j[KEYS];
  for (int key = 0; key < KEYS; key++)
    j[key] = random_below(2) ? position(false) : key;
  for (int k = 0; k < KEYS + 16; k++)
    s[k] = before[k] = (float)random_below(2000) / 77 - 13;
  flush_subnormals(true);
  code->row_modify[0](s, KEYS, t, j, predicates, &env);
  flush_subnormals(false);
  for (int key = 0; key < KEYS; key++)
    same_float(s[key],
               kept(predicates, t, j[key]) ? final_score(before[key], t, j[key])
                                           : -INFINITY,
               t, j[key]);
}

/* ---- cover and dimension ------------------------------------------------- */

/* What expr_bounds makes of it, window left aside. */
static int32_t bounds_verdict(int p, int32_t t0, int32_t t1, int32_t j0,
                              int32_t j1) {
  expr_box box = {.point = point_of(0, 0, 0),
                  .i0 = t0,
                  .i1 = t1,
                  .j0 = j0,
                  .j1 = j1,
                  .range = box_range};
  interval x = expr_bounds(made.mask[p], &box);
  return x.low == 1 ? DIL_FULL : x.high == 0 ? DIL_EMPTY : DIL_PARTIAL;
}

static void check_box(const dil_code *code, int p) {
  int32_t t0 = position(true) / 2, j0 = position(false) / 2;
  int32_t t1 = t0 + (int32_t)random_below(9),
          j1 = j0 + (int32_t)random_below(9);
  flush_subnormals(true);
  int32_t got = code->cover(p, &env, t0, t1, j0, j1);
  flush_subnormals(false);
  int count = 0, all = (t1 - t0 + 1) * (j1 - j0 + 1);
  for (int32_t t = t0; t <= t1; t++)
    for (int32_t j = j0; j <= j1; j++) count += holds(p, t, j);
  ck_assert(got == DIL_PARTIAL || got == (count ? DIL_FULL : DIL_EMPTY));
  ck_assert(got != DIL_FULL || count == all);
  /* Never wider than the bounds of compiler/pattern/expr_bounds.c. */
  int64_t least = (int64_t)j0 - t1, most = (int64_t)j1 - t0;
  const dil_predicate *w = &made.predicate[p];
  if (most < -w->left || least > w->right)
    ck_assert_int_eq(got, DIL_EMPTY);
  else if (p == 0)
    ck_assert(got == (count == all ? DIL_FULL : DIL_PARTIAL));
  else if (least >= -w->left && most <= w->right &&
           bounds_verdict(p, t0, t1, j0, j1) != DIL_PARTIAL)
    ck_assert_int_eq(got, bounds_verdict(p, t0, t1, j0, j1));
}

static void check_dimensions(const dil_code *code) {
  for (int k = 0; k < INPUTS; k++)
    for (int axis = 0; axis < random_inputs[k].rank; axis++) {
      const expr *size = made.pattern.dimension[k][axis];
      expr_point point = point_of(0, 0, 0);
      ck_assert_int_eq(code->dimension(k, axis, &env),
                       expr_eval(size, &point, false).integer);
    }
}

/* ---- the tests ----------------------------------------------------------- */

enum { KERNELS = 40 };

static void check_kernel(const char *isa, uint32_t seed) {
  random_memory = arena_new();
  make_case(seed);
  code_loaded tile = code_make(&made, isa, DIL_TILES, seed % 4 == 0);
  code_loaded row = code_make(&made, isa, DIL_ROWS, seed % 4 == 1);
  for (uint64_t predicates = 0; predicates < 1 << PREDICATES; predicates++) {
    check_tile(&tile.code, predicates);
    check_row(&row.code, predicates);
  }
  for (int k = 0; k < 200; k++)
    check_box(k % 2 ? &tile.code : &row.code, k % PREDICATES);
  check_dimensions(&tile.code);
  code_drop(&tile);
  code_drop(&row);
  arena_free(random_memory);
}

START_TEST(random_expressions) {
  if (lacks(sets[_i])) return;
  for (uint32_t seed = 1; seed <= KERNELS; seed++) check_kernel(sets[_i], seed);
}
END_TEST

/* A score that is one function of s. */
static code_loaded make_function(const char *isa, expr_op op) {
  code_case_open(&made, 8, 8, DIL_F32);
  made.chain[0] = ARENA_ARRAY(random_memory, expr *, 2);
  made.chain[0][0] = random_node(op, TYPE_F32, 1);
  made.chain[0][0]->arg[0] = random_node(EXPR_S_, TYPE_F32, 0);
  return code_make(&made, isa, DIL_ROWS, false);
}

static double units_apart(float got, double want) {
  if (isnan(want) || isinf((float)want) || want == 0)
    return (isnan(got) && isnan(want)) || (double)got == (double)(float)want
               ? 0
               : INFINITY;
  double unit = ldexp(1, ilogb(want) - 23);
  return fabs(got - want) / fmax(unit, 0x1p-149);
}

/* Every 16-bit upper half of an f32 with some lower bits. */
static double worst_units(const dil_code *code, double (*function)(double)) {
  float s[32] __attribute__((aligned(64))), x[16];
  int32_t j[16] = {0};
  double worst = 0;
  dil_env plain = {.scale = 1};
  for (uint32_t high = 0; high < 65536; high += 16) {
    for (uint32_t k = 0; k < 16; k++) {
      uint32_t bits = (high + k) << 16 | ((high * 40503u + k * 7919u) & 0xffff);
      memcpy(&x[k], &bits, 4);
      s[k] = x[k];
    }
    code->row_modify[0](s, 16, 0, j, 0, &plain);
    for (int k = 0; k < 16; k++) {
      double apart = units_apart(s[k], function(x[k]));
      worst = fmax(worst, apart);
    }
  }
  return worst;
}

START_TEST(functions) {
  static const struct {
    expr_op op;
    double (*function)(double);
    double bound;
  } cases[] = {{EXPR_EXP, exp, 2},
               {EXPR_LOG, log, 2},
               {EXPR_TANH, tanh, 2},
               {EXPR_SQRT, sqrt, 0.501}};
  if (lacks(sets[_i])) return;
  random_memory = arena_new();
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    code_loaded l = make_function(sets[_i], cases[k].op);
    double worst = worst_units(&l.code, cases[k].function);
    ck_assert_msg(worst <= cases[k].bound, "%s is %.2f units off",
                  expr_op_text(cases[k].op), worst);
    code_drop(&l);
  }
  arena_free(random_memory);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cpu expressions");
  TCase *cases = tcase_create("expressions");
  tcase_set_timeout(cases, 120);
  tcase_add_loop_test(cases, random_expressions, 0, SET_COUNT);
  tcase_add_loop_test(cases, functions, 0, SET_COUNT);
  suite_add_tcase(suite, cases);
  return suite_run(suite, CK_FORK_GETENV);
}
