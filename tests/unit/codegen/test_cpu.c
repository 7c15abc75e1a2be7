/* test_cpu.c - each function of a compiled tile against plain loops in
 * float64: every instruction set that this machine has, odd sizes, tails,
 * infinities and NaNs. */
#include "runtime/base/arithmetic.h"
#include "runtime/cpu/isa.h"
#include "runtime/cpu/peak.h"
#include "tests/support/cpu_code.h"
#include "tests/support/numeric.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const sets[] = {CPU_ISAS(CPU_ISA_NAME)};
enum { SET_COUNT = 3, LANES_MAX = 32, KEYS_MAX = 128, ROOM_KEYS = 144 };

static void fill(float *x, int count) {
  for (int i = 0; i < count; i++) x[i] = noise();
}

/* One packed operand as pv and qk read it: f32 or bf16. */
static double packed(const void *bytes, int pack, int64_t index) {
  if (pack == DIL_PACK_F32) return ((const float *)bytes)[index];
  return dil_bf16_to_f32(((const uint16_t *)bytes)[index]);
}

static void pack_into(void *bytes, int pack, int64_t index, float x) {
  if (pack == DIL_PACK_F32)
    ((float *)bytes)[index] = x;
  else
    ((uint16_t *)bytes)[index] = dil_f32_to_bf16(x);
}

/* ---- qk ------------------------------------------------------------------ */

typedef struct qk_case {
  const dil_code *code;
  int depth, n; /* head_dim rounded up to the pack */
  void *k, *qt;
  float *s, *mx;
} qk_case;

static double qk_score(const qk_case *c, int key, int lane) {
  int pack = c->code->pack;
  double sum = 0;
  for (int d = 0; d < c->depth; d++) {
    int64_t q = ((int64_t)(d / pack) * c->code->lanes + lane) * pack + d % pack;
    sum += packed(c->k, pack, (int64_t)key * c->depth + d) *
           packed(c->qt, pack, q);
  }
  return sum;
}

static void qk_compare(const qk_case *c, int nan_key) {
  for (int lane = 0; lane < c->code->lanes; lane++) {
    float mx = -INFINITY;
    for (int key = 0; key < c->n; key++) {
      float got = c->s[key * c->code->lanes + lane];
      double want = qk_score(c, key, lane);
      if (key == nan_key)
        ck_assert(isnan(got));
      else
        ck_assert_double_le(fabs(got - want), 1e-6 * c->depth);
      if (got > mx) mx = got;
    }
    ck_assert(c->mx[lane] == mx);
  }
}

static void check_qk(const dil_code *code, int head_dim, int n, int nan_key) {
  qk_case c = {.code = code,
               .depth = (int32_t)round_up(head_dim, code->pack),
               .n = n};
  int rows = (int)round_up(n, code->key_block), pack = code->pack;
  c.k = room_of((size_t)(rows * c.depth), 4);
  c.qt = room_of((size_t)(c.depth * code->lanes), 4);
  c.s = room_of(ROOM_KEYS * LANES_MAX, 4);
  c.mx = room_of(LANES_MAX, 4);
  for (int i = 0; i < rows * c.depth; i++) {
    bool real = i % c.depth < head_dim, there = i < n * c.depth;
    pack_into(c.k, pack, i, !there ? 1e30f : real ? noise() : 0);
  }
  for (int i = 0; i < c.depth * code->lanes; i++) {
    bool real = i / (code->lanes * pack) * pack + i % pack < head_dim;
    pack_into(c.qt, pack, i, real ? noise() : 0);
  }
  if (nan_key >= 0) pack_into(c.k, pack, nan_key * c.depth, NAN);
  code->qk(c.k, c.qt, c.s, c.mx, n);
  qk_compare(&c, nan_key);
  for (int i = rows * code->lanes; i < ROOM_KEYS * code->lanes; i++)
    ck_assert(isnan(c.s[i])); /* nothing written beyond the last block */
  free(c.k);
  free(c.qt);
  free(c.s);
  free(c.mx);
}

/* ---- pv ------------------------------------------------------------------ */

static void check_pv(const dil_code *code, int value_dim, int n) {
  int pack = code->pack, pairs = (n + pack - 1) / pack, lanes = code->lanes;
  void *v = room_of((size_t)(pairs * value_dim), 4);
  void *p = room_of((size_t)(pairs * lanes), 4);
  float *o = room_of((size_t)(value_dim * lanes), 4);
  float *before = room_of((size_t)(value_dim * lanes), 4);
  float *alpha = room_of(LANES_MAX, 4);
  for (int i = 0; i < pairs * value_dim * pack; i++)
    pack_into(v, pack, i,
              i / (value_dim * pack) * pack + i % pack < n ? noise() : 0);
  for (int i = 0; i < pairs * lanes * pack; i++)
    pack_into(p, pack, i,
              i / (lanes * pack) * pack + i % pack < n ? noise() : 0);
  fill(alpha, lanes);
  fill(before, value_dim * lanes);
  memcpy(o, before, (size_t)(value_dim * lanes) * 4);
  code->pv(v, p, o, alpha, n);
  for (int d = 0; d < value_dim; d++)
    for (int lane = 0; lane < lanes; lane++) {
      double want = (double)alpha[lane] * before[d * lanes + lane];
      for (int key = 0; key < pairs * pack; key++)
        want +=
            packed(v, pack,
                   ((int64_t)(key / pack) * value_dim + d) * pack +
                       key % pack) *
            packed(p, pack,
                   ((int64_t)(key / pack) * lanes + lane) * pack + key % pack);
      ck_assert_double_le(fabs(o[d * lanes + lane] - want), 1e-6 * (n + 4));
    }
  for (int i = value_dim * lanes; i % 16 != 0; i++) ck_assert(isnan(o[i]));
  free(v);
  free(p);
  free(o);
  free(before);
  free(alpha);
}

/* ---- softmax ------------------------------------------------------------- */

typedef struct softmax_case {
  const dil_code *code;
  int n;
  float c2, bias;
  float *s, *mx, *m, *l, *alpha;
  void *p;
  float m_before[LANES_MAX], l_before[LANES_MAX];
  bool exact; /* f32 storage: the longer polynomial */
} softmax_case;

static void softmax_open(softmax_case *c) {
  c->s = room_of(ROOM_KEYS * LANES_MAX, 4);
  c->p = room_of(ROOM_KEYS * LANES_MAX, 4);
  c->mx = room_of(LANES_MAX, 4);
  c->m = room_of(LANES_MAX, 4);
  c->l = room_of(LANES_MAX, 4);
  c->alpha = room_of(LANES_MAX, 4);
}

static void softmax_close(softmax_case *c) {
  free(c->s);
  free(c->p);
  free(c->mx);
  free(c->m);
  free(c->l);
  free(c->alpha);
}

/* Scores with a -inf here and there, and one lane that has nothing else. */
static void softmax_fill(softmax_case *c, bool first, float spread) {
  int lanes = c->code->lanes;
  for (int i = 0; i < c->n * lanes; i++) {
    bool none = i % lanes == 5 || i % 7 == 3;
    c->s[i] = none ? -INFINITY : spread * noise();
  }
  for (int lane = 0; lane < lanes; lane++) {
    c->mx[lane] = -INFINITY;
    for (int key = 0; key < c->n; key++)
      c->mx[lane] = fmaxf(c->mx[lane], c->s[key * lanes + lane]);
    c->m[lane] = first ? -INFINITY : 2 * spread * noise();
    c->l[lane] = first ? 0 : 1 + noise();
    c->m_before[lane] = c->m[lane];
    c->l_before[lane] = c->l[lane];
  }
}

static void close_to(double got, double want, double relative) {
  if (isnan(want))
    ck_assert(isnan(got));
  else
    ck_assert_msg(fabs(got - want) <= relative * fabs(want) + 1.2e-38,
                  "got %.9g, not %.9g", got, want);
}

static void softmax_compare(const softmax_case *c, int lane, const float *s) {
  int lanes = c->code->lanes, pack = c->code->pack;
  double m = fmax(c->m_before[lane], (float)(c->c2 * c->mx[lane]));
  double safe = m == -INFINITY ? 0 : m;
  double alpha = m == -INFINITY ? 1 : exp2(c->m_before[lane] - safe);
  double l = alpha * c->l_before[lane], bound = c->exact ? 6e-7 : 5e-6;
  ck_assert(c->m[lane] == (float)m);
  close_to(c->alpha[lane], alpha, bound);
  for (int key = 0; key < c->n; key++) {
    float shift = c->bias - (float)safe;
    double want = exp2((double)c->c2 * s[key * lanes + lane] + shift);
    double got = packed(
        c->p, pack, ((int64_t)(key / pack) * lanes + lane) * pack + key % pack);
    double x = fabs((double)c->c2 * s[key * lanes + lane] + shift);
    double step = isfinite(x) ? x * 1e-7 : 0; /* rounding of the exponent */
    close_to(got, want,
             bound + step + (pack == DIL_PACK_BF16_PAIRS ? 0x1.01p-8 : 0));
    if (want == 0) ck_assert(got == 0);
    l += want;
  }
  if (pack == DIL_PACK_BF16_PAIRS && c->n % 2 == 1)
    ck_assert(packed(c->p, 2, ((int64_t)(c->n / 2) * lanes + lane) * 2 + 1) ==
              0);
  close_to(c->l[lane], l, 2 * bound + 1e-5);
}

static void check_softmax(const dil_code *code, int n, bool first, bool exact,
                          float spread) {
  softmax_case c = {
      .code = code, .n = n, .c2 = 1.3f, .bias = 1.5f, .exact = exact};
  softmax_open(&c);
  softmax_fill(&c, first, spread);
  code->softmax(c.s, c.p, n, c.c2, c.bias, c.mx, c.m, c.l, c.alpha);
  for (int lane = 0; lane < code->lanes; lane++) softmax_compare(&c, lane, c.s);
  softmax_close(&c);
}

/* p may be s itself where it is f32. */
static void check_softmax_in_place(const dil_code *code, int n) {
  softmax_case c = {.code = code, .n = n, .c2 = 1.3f, .exact = true};
  float s[ROOM_KEYS * LANES_MAX];
  softmax_open(&c);
  softmax_fill(&c, true, 3);
  memcpy(s, c.s, sizeof s);
  code->softmax(c.s, c.s, n, c.c2, c.bias, c.mx, c.m, c.l, c.alpha);
  free(c.p);
  c.p = c.s;
  for (int lane = 0; lane < code->lanes; lane++) softmax_compare(&c, lane, s);
  c.p = NULL;
  softmax_close(&c);
}

/* One bad score spoils its own lane and no other. */
static void check_softmax_spoiled(const dil_code *code, float bad) {
  softmax_case c = {.code = code, .n = 9, .c2 = 1, .exact = true};
  softmax_open(&c);
  softmax_fill(&c, true, 3);
  c.s[4 * code->lanes + 2] = bad;
  if (bad > 0) c.mx[2] = bad;
  code->softmax(c.s, c.p, c.n, c.c2, c.bias, c.mx, c.m, c.l, c.alpha);
  for (int lane = 0; lane < code->lanes; lane++)
    ck_assert_msg(isnan(c.l[lane]) == (lane == 2), "lane %d has %g", lane,
                  c.l[lane]);
  softmax_close(&c);
}

/* ---- the tests ----------------------------------------------------------- */

static const int head_dims[] = {1, 2, 3, 7, 8, 16, 32, 33, 64, 65, 127, 128, 256};
static const int key_counts[] = {1, 2, 5, 6, 7, 8, 9, 16, 17, 31, 64, 127, 128};
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* Widths of 32 and its multiples stand together: tiles take both or none. */
static void products(const char *isa, dil_dtype dtype, int dim) {
  int value_dim = dim % 32 ? 257 - dim : 288 - dim;
  code_case c;
  code_case_open(&c, dim, value_dim, dtype);
  code_loaded l = code_make(&c, isa, DIL_TILES, dim == 33);
  for (int i = 0; i < COUNT(key_counts); i++) {
    check_qk(&l.code, dim, key_counts[i], -1);
    check_pv(&l.code, value_dim, key_counts[i]);
  }
  check_qk(&l.code, dim, 13, 3);
  check_qk(&l.code, dim, 13, 12);
  code_drop(&l);
}

START_TEST(matrix_products) {
  const char *isa = sets[_i / 2];
  if (lacks(isa)) return;
  for (int i = 0; i < COUNT(head_dims); i++)
    products(isa, _i % 2 ? DIL_BF16 : DIL_F32, head_dims[i]);
}
END_TEST

START_TEST(softmax) {
  const char *isa = sets[_i / 2];
  code_case c;
  if (lacks(isa)) return;
  code_case_open(&c, 8, 8, _i % 2 ? DIL_BF16 : DIL_F32);
  code_loaded l = code_make(&c, isa, DIL_TILES, false);
  for (int i = 0; i < COUNT(key_counts); i++)
    for (int first = 0; first < 2; first++) {
      check_softmax(&l.code, key_counts[i], first, _i % 2 == 0, 4);
      check_softmax(&l.code, key_counts[i], first, _i % 2 == 0, 1e4f);
    }
  if (l.code.pack == DIL_PACK_F32 && _i % 2 == 0)
    check_softmax_in_place(&l.code, 77);
  check_softmax_spoiled(&l.code, NAN);
  check_softmax_spoiled(&l.code, INFINITY);
  code_drop(&l);
}
END_TEST

/* ---- tiles that a table leaves out --------------------------------------- */

static void (*plain_qk)(const void *k, const void *qt, float *s, float *mx,
                        int64_t n);
static int64_t visits; /* of the thread that runs */

static void counted_qk(const void *k, const void *qt, float *s, float *mx,
                       int64_t n) {
  visits++;
  plain_qk(k, qt, s, mx, n);
}

/* The kernel's code is made again, and counts its tiles. */
static void count_visits(kernel_made *k) {
  const char *isa = dil_host_isa();
  code_case c = {.plan = *k->plan};
  code_loaded tiles = code_make(&c, isa, DIL_TILES, false);
  code_loaded rows = code_make(&c, isa, DIL_ROWS, false);
  const dil_code *const ready[] = {&tiles.code, &rows.code, NULL};
  plain_qk = tiles.code.qk;
  tiles.code.qk = counted_qk;
  visits = 0;
  cpu_kernel_free(k->kernel);
  ck_assert_int_eq(cpu_kernel_take(&k->plan->table, ready, &k->kernel), DIL_OK);
}

/* The block that block `row` of head `h` names, besides the first. */
static int64_t named_block(int64_t h, int64_t row) {
  return (row * 5 + h) % (row + 1);
}

/* A list for each row or each block of rows, or a table of blocks by blocks. */
static double named_input(int32_t index, const int64_t *at,
                          const int64_t *shape) {
  (void)index;
  if (shape[2] == shape[1])
    return at[2] == 0 || at[2] == named_block(at[0], at[1]);
  return (double)named_block(at[0], shape[1] > 64 ? at[1] / 64 : at[1]);
}

static int64_t visits_of(const char *table) {
  char text[400];
  snprintf(text, sizeof text,
           "pattern p { heads 2; head_dim 16; dtype f32; block 64; causal; %s "
           "branch { } }", table);
  tested_pattern *s = tested_pattern_new("table", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  data *d = data_new(s, (call_shape){.batch = 1, .queries = 640, .keys = 640,
                                     .input = named_input});
  kernel_made *k = kernel_make(s, (recipe){.threads = 1});
  ck_assert_msg(k->kernel != NULL, "%s", k->problem);
  count_visits(k);
  const char *problem = data_problem(d, k);
  ck_assert_msg(*problem == 0, "%s", problem);
  kernel_unmake(k);
  data_free(d);
  tested_pattern_free(s);
  return visits;
}

/* No index moves within a tile, or one does that is not the last. What lies
 * outside of a list names the first block. */
static const char *const named_tables[] = {
    "input ids : i32[H, nb, 1]; keep ids[h, bi, 0] == bj || "
    "ids[h, bi, 1] == bj;",
    "input ids : i32[H, N, 1]; keep ids[h, i, 0] == bj || ids[h, i, 1] == bj;",
};

START_TEST(tables_skip_tiles) {
  if (dil_host_isa() == NULL) return;
  int64_t fewest = visits_of("input kept : u8[H, nb, nb]; "
                             "keep kept[h, bi, bj] != 0;");
  int64_t got = visits_of(named_tables[_i]);
  ck_assert_msg(got == fewest, "%d tiles, not %d", (int)got, (int)fewest);
}
END_TEST

/* ---- gradients ----------------------------------------------------------- */

/* Code of gradients has products of its own only where V's rows are not as wide
 * as K's. */
START_TEST(products_are_shared) {
  static const char *const shared[] = {"dp", "dq", "dv"};
  code_case c;
  if (dil_host_isa() == NULL) return;
  code_case_open(&c, 8, _i ? 24 : 8, DIL_F32);
  c.plan.direction = DIL_BACKWARD;
  code_loaded gradients = code_make(&c, dil_host_isa(), DIL_GRADIENTS, false);
  ck_assert_ptr_nonnull(dil_object_symbol(gradients.object, "dk"));
  for (size_t i = 0; i < COUNT(shared); i++)
    ck_assert_int_eq(dil_object_symbol(gradients.object, shared[i]) != NULL,
                     _i);
  code_drop(&gradients);
}
END_TEST

/* ---- scratch ------------------------------------------------------------- */

/* Dilations longer than the sequence, alone and beside others. */
static const char *const far_branches[] = {
    "branch { dilation 2147483647; }",
    "branch { dilation 2147483647; phase 5; }",
    "branch { segment 9; dilation 1000000; phase 3; }",
    "branch { dilation 64; phase 7; } branch { dilation 63; phase 7; }",
};

/* Residues of a dilation that have no row take no memory. */
START_TEST(scratch_follows_rows) {
  char text[300];
  int64_t bytes = 0;
  if (dil_host_isa() == NULL) return;
  snprintf(text, sizeof text, "pattern p { heads 1; head_dim 8; dtype f32; "
           "combine union; %s }", far_branches[_i / 2]);
  tested_pattern *s = tested_pattern_new("far", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  data *d = data_new(s, (call_shape){.batch = 1, .queries = _i % 2 ? 40 : 23,
                                     .keys = 23});
  kernel_made *k = kernel_make(s, (recipe){.threads = 1});
  ck_assert_msg(k->kernel != NULL, "%s", k->problem);
  const char *problem = data_problem(d, k);
  ck_assert_msg(*problem == 0, "%s", problem);
  dil_threads *threads = dil_threads_new(1);
  ck_assert_int_eq(cpu_kernel_workspace(k->kernel, threads, &d->call, &bytes),
                   DIL_OK);
  ck_assert_int_lt(bytes, 1 << 16);
  dil_threads_free(threads);
  kernel_unmake(k);
  data_free(d);
  tested_pattern_free(s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cpu");
  TCase *tiles = tcase_create("tiles");
  tcase_set_timeout(tiles, 60);
  tcase_add_loop_test(tiles, matrix_products, 0, 2 * SET_COUNT);
  tcase_add_loop_test(tiles, softmax, 0, 2 * SET_COUNT);
  tcase_add_loop_test(tiles, tables_skip_tiles, 0, COUNT(named_tables));
  tcase_add_loop_test(tiles, products_are_shared, 0, 2);
  tcase_add_loop_test(tiles, scratch_follows_rows, 0, 2 * COUNT(far_branches));
  suite_add_tcase(suite, tiles);
  return suite_run(suite, CK_FORK_GETENV);
}
