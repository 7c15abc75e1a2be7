/* test_cpu_rows.c - the row kernel against plain loops in float64, with keys
 * and values at the very end of readable memory, and the dropout of tiles and
 * rows against Philox, weight by weight. */
#include "interface.h"
#include "runtime/base/random.h"
#include "tests/support/cpu_code.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const char *const sets[] = {"avx2", "avx512"};
enum { SET_COUNT = 2, KEYS_MAX = 100, LANES_MAX = 32 };

/* `count` rows of `size` elements, each `stride` elements after the last one,
 * the last one right before the wall; NaN between them. */
static char *stored_rows(dil_dtype dtype, int count, int size, int stride) {
  size_t element = dil_dtype_size(dtype);
  int64_t total = (int64_t)(count - 1) * stride + size;
  char *rows = room_at_wall((size_t)total * element);
  for (int64_t i = 0; i < total; i++)
    dil_element_write(rows, dtype, i, i % stride < size ? noise() : NAN);
  return rows;
}

/* ---- products ------------------------------------------------------------ */

static void check_row_qk(const dil_code *code, const dil_table *table, int n,
                         int gap) {
  int dim = table->head_dim, stride = dim + gap;
  char *k = stored_rows(table->dtype, n, dim, stride);
  float *q = room_at_wall((size_t)dim * 4), *s = room_of((size_t)n + 16, 4);
  for (int d = 0; d < dim; d++) q[d] = noise();
  code->row_qk(q, k, stride * (int64_t)dil_dtype_size(table->dtype), s, n);
  for (int key = 0; key < n; key++) {
    double want = 0;
    for (int d = 0; d < dim; d++)
      want +=
          q[d] * dil_element_read(k, table->dtype, (int64_t)key * stride + d);
    ck_assert_msg(fabs(s[key] - want) <= 1e-6 * (1 + dim), "key %d of %d: %g",
                  key, n, s[key] - want);
  }
  free(s);
}

/* Rows of weight 0 are NaN: they must not be read. */
static void check_row_pv(const dil_code *code, const dil_table *table, int n,
                         int gap) {
  int dim = table->value_dim, stride = dim + gap;
  char *v = stored_rows(table->dtype, n, dim, stride);
  float *s = room_of((size_t)n + 16, 4);
  float *acc = room_at_wall((size_t)dim * 4), alpha = noise();
  double want[256];
  for (int key = 0; key < n; key++)
    s[key] = key % 3 == 1 ? (key % 2 ? 0.0f : -0.0f) : noise();
  for (int d = 0; d < dim; d++) {
    acc[d] = noise();
    want[d] = (double)alpha * acc[d];
    for (int key = 0; key < n; key++) {
      int64_t at = (int64_t)key * stride + d;
      want[d] += s[key] * dil_element_read(v, table->dtype, at);
      if (s[key] == 0) dil_element_write(v, table->dtype, at, NAN);
    }
  }
  code->row_pv(s, v, stride * (int64_t)dil_dtype_size(table->dtype), acc, alpha,
               n);
  for (int d = 0; d < dim; d++)
    ck_assert_msg(fabs(acc[d] - want[d]) <= 1e-6 * (2 + n), "dim %d: %g", d,
                  acc[d] - want[d]);
  free(s);
}

START_TEST(products) {
  static const dil_dtype dtypes[] = {DIL_F32, DIL_BF16, DIL_F16};
  static const int dims[] = {1, 2, 7, 8, 15, 16, 17, 64, 100, 255, 256};
  static const int counts[] = {1, 7, 8, 9, 31};
  const char *isa = sets[_i / 3];
  if (lacks(isa)) return;
  for (int i = 0; i < 11; i++) {
    code_case c;
    code_case_open(&c, dims[i], 257 - dims[i], dtypes[_i % 3]);
    code_loaded l = code_make(&c, isa, DIL_ROWS, false);
    for (int k = 0; k < 5; k++) {
      check_row_qk(&l.code, &c.plan.table, counts[k], k % 2 * 3);
      check_row_pv(&l.code, &c.plan.table, counts[k], k % 2 * 3);
    }
    code_drop(&l);
  }
}
END_TEST

/* ---- softmax ------------------------------------------------------------- */

static void close_to(double got, double want, double relative) {
  if (isnan(want))
    ck_assert(isnan(got));
  else
    ck_assert_msg(fabs(got - want) <= relative * fabs(want) + 1.2e-38,
                  "got %.9g, not %.9g", got, want);
}

static void check_row_softmax(const dil_code *code, int n, float m, float l,
                              bool nothing) {
  float *s = room_of((size_t)n + 16, 4), scores[KEYS_MAX];
  float state[2] = {m, l}, c2 = 1.2f, bias = 0.75f, mx = -INFINITY;
  for (int key = 0; key < n; key++) {
    s[key] = scores[key] = nothing || key % 5 == 2 ? -INFINITY : 6 * noise();
    mx = fmaxf(mx, s[key]);
  }
  float top = fmaxf(m, c2 * mx), safe = top == -INFINITY ? 0 : top;
  float alpha = code->row_softmax(s, n, c2, bias, state);
  close_to(alpha, top == -INFINITY ? 1 : exp2(m - safe), 6e-7);
  double sum = (double)alpha * l;
  for (int key = 0; key < n; key++) {
    double want = exp2((double)c2 * scores[key] + (bias - safe));
    close_to(s[key], want, 3e-6);
    ck_assert(want != 0 || s[key] == 0);
    sum += want;
  }
  ck_assert(state[0] == top);
  close_to(state[1], sum, 5e-6);
  free(s);
}

START_TEST(softmax) {
  code_case c;
  if (lacks(sets[_i])) return;
  code_case_open(&c, 4, 4, DIL_F32);
  code_loaded l = code_make(&c, sets[_i], DIL_ROWS, false);
  for (int n = 1; n < KEYS_MAX; n += 1 + n / 4) {
    check_row_softmax(&l.code, n, -INFINITY, 0, false);
    check_row_softmax(&l.code, n, -INFINITY, 0, true);
    check_row_softmax(&l.code, n, 1.5f, 2, false);
    check_row_softmax(&l.code, n, 1.5f, 2, true);
    check_row_softmax(&l.code, n, -90, 2, false);
  }
  float s[20] __attribute__((aligned(64))) = {1, NAN, 3};
  float state[2] = {-INFINITY, 0};
  l.code.row_softmax(s, 3, 1, 0, state);
  ck_assert(isnan(state[1]));
  code_drop(&l);
}
END_TEST

/* ---- dropout ------------------------------------------------------------- */

static const double share = 0.3;
static const dil_env env = {.batch = 3,
                            .head = 5,
                            .seed_low = 0xabcdef01,
                            .seed_high = 0x12345678,
                            .scale = 1};

static uint32_t word_of(int32_t position, dil_dropout_side side) {
  const uint32_t counter[4] = {(uint32_t)position, (uint32_t)env.head,
                               (uint32_t)env.batch, side};
  const uint32_t key[2] = {env.seed_low, env.seed_high};
  uint32_t word[4];
  dil_philox(counter, key, word);
  return word[0];
}

static bool dropped(int32_t t, int32_t j) {
  uint32_t u =
      (word_of(t, DIL_DROPOUT_ROW) ^ word_of(j, DIL_DROPOUT_KEY)) * 0x7feb352d;
  return (u ^ u >> 15) * 0x846ca68b < (uint32_t)floor(share * 0x1p32);
}

/* The words of n positions, which end at unreadable memory. */
static uint32_t *words_of(const dil_code *code, const int32_t *at, int n,
                          dil_dropout_side side) {
  uint32_t *words = room_at_wall((size_t)n * 4);
  code->dropout_words(at, n, side, &env, words);
  for (int i = 0; i < n; i++) ck_assert_uint_eq(words[i], word_of(at[i], side));
  return words;
}

/* Positions that go on by one, jump, and come back. */
static void make_positions(int32_t *j, int n) {
  for (int key = 0; key < n; key++)
    j[key] = key % 10 < 7 ? 3 + key : 1000 + 977 * key;
}

static void check_drop_row(const char *isa) {
  code_case c;
  float s[64] __attribute__((aligned(64))),
      plain[64] __attribute__((aligned(64)));
  float state[2] = {-INFINITY, 0}, same[2] = {-INFINITY, 0};
  code_case_open(&c, 4, 4, DIL_F32);
  c.plan.table.dropout = share;
  code_loaded l = code_make(&c, isa, DIL_ROWS, false);
  for (int n = 1; n <= 41; n += 5) {
    int32_t *j = room_at_wall((size_t)n * 4), t = -n;
    make_positions(j, n);
    for (int key = 0; key < n; key++) s[key] = plain[key] = noise();
    l.code.row_softmax(plain, n, 1, 0, same);
    l.code.row_softmax_drop(s, n, 1, 0, state,
                            *words_of(&l.code, &t, 1, DIL_DROPOUT_ROW),
                            words_of(&l.code, j, n, DIL_DROPOUT_KEY));
    ck_assert(memcmp(state, same, sizeof state) == 0);
    for (int key = 0; key < n; key++)
      ck_assert(
          s[key] ==
          (dropped(t, j[key]) ? 0 : plain[key] * (float)(1 / (1 - share))));
  }
  code_drop(&l);
}

static float weight_at(const void *p, const dil_code *code, int key, int lane) {
  int64_t row = (int64_t)(key / code->pack) * code->lanes + lane;
  if (code->pack == DIL_PACK_F32) return ((const float *)p)[row];
  return dil_bf16_to_f32(((const uint16_t *)p)[row * 2 + key % 2]);
}

static void check_drop_tile(const char *isa, dil_dtype dtype) {
  code_case c;
  enum { N = 33 };
  int32_t t[LANES_MAX] __attribute__((aligned(64))), j[N];
  float *s = room_of(48 * LANES_MAX, 4), *p = room_of(48 * LANES_MAX, 4);
  float *row = room_of(5 * LANES_MAX, 4); /* mx, m, l, alpha, l again */
  code_case_open(&c, 4, 4, dtype);
  c.plan.table.dropout = share;
  code_loaded l = code_make(&c, isa, DIL_TILES, true);
  int lanes = l.code.lanes, gone = 0;
  make_positions(j, N);
  for (int i = 0; i < N * lanes; i++) s[i] = noise();
  for (int i = 0; i < lanes; i++) {
    t[i] = 7 * i - 20;
    row[i] = 1;
    row[lanes + i] = -INFINITY;
    row[2 * lanes + i] = row[4 * lanes + i] = 0;
  }
  uint32_t rows[LANES_MAX] __attribute__((aligned(64)));
  l.code.dropout_words(t, lanes, DIL_DROPOUT_ROW, &env, rows);
  l.code.softmax_drop(s, p, N, 1, 0, row, row + lanes, row + 2 * lanes,
                      row + 3 * lanes, rows,
                      words_of(&l.code, j, N, DIL_DROPOUT_KEY));
  for (int i = 0; i < N * lanes; i++) {
    double want = exp2((double)s[i] - 1);
    row[4 * lanes + i % lanes] += (float)want;
    bool drop = dropped(t[i % lanes], j[i / lanes]);
    gone += drop;
    close_to(weight_at(p, &l.code, i / lanes, i % lanes),
             drop ? 0 : want / (1 - share),
             l.code.pack == DIL_PACK_BF16_PAIRS ? 4e-3 : 5e-6);
  }
  for (int i = 0; i < lanes; i++)
    close_to(row[2 * lanes + i], row[4 * lanes + i], 1e-5);
  ck_assert(abs(gone - (int)(share * N * lanes)) < N * lanes / 10);
  code_drop(&l);
  free(s);
  free(p);
  free(row);
}

START_TEST(dropout) {
  if (lacks(sets[_i])) return;
  check_drop_row(sets[_i]);
  check_drop_tile(sets[_i], DIL_F32);
  if (_i == 1 && !lacks("avx512bf16")) check_drop_tile("avx512bf16", DIL_BF16);
}
END_TEST

/* ---- the interface ------------------------------------------------------- */

START_TEST(refusals) {
  const cpu_backend *cpu = linked_backend();
  code_case c;
  cpu_code out;
  code_case_open(&c, 4, 4, DIL_F32);
  cpu_request request = {.common = {&c.plan}, .isa = "sse9"};
  ck_assert_int_eq(cpu->runs("sse9"), DIL_USAGE);
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "sse9"));
  ck_assert_int_eq(cpu->common.can(&request.common), DIL_USAGE);
  ck_assert_int_eq(cpu->common.compile(&request.common, &out), DIL_USAGE);
  ck_assert_int_eq(cpu->common.version, DIL_INTERFACE);
  ck_assert_ptr_nonnull(strstr(cpu->common.versions(), "LLVM"));
  ck_assert_int_eq(cpu->runs(cpu->host()), DIL_OK);
}
END_TEST

static bool text_holds(FILE *file, const char *word) {
  static char text[400000];
  rewind(file);
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  return strstr(text, word) != NULL;
}

/* The same request gives the same bytes, with its texts on the side. */
START_TEST(texts) {
  code_case c;
  cpu_code out[2];
  code_case_open(&c, 24, 24, DIL_F32);
  cpu_request request = {.common = {&c.plan}, .isa = "avx2"};
  ck_assert_int_eq(linked_backend()->common.compile(&request.common, &out[0]),
                   DIL_OK);
  request.ir = tmpfile();
  request.assembly = tmpfile();
  ck_assert_int_eq(linked_backend()->common.compile(&request.common, &out[1]),
                   DIL_OK);
  ck_assert(text_holds(request.ir, "define void @softmax("));
  ck_assert(text_holds(request.assembly, "vfmadd231ps"));
  ck_assert_uint_eq(out[0].size, out[1].size);
  ck_assert(memcmp(out[0].bytes, out[1].bytes, out[0].size) == 0);
  free(out[0].bytes);
  free(out[1].bytes);
}
END_TEST

/* Compiles on threads side by side give what one alone gives. */
static void *compile_alone(void *place) {
  code_case c;
  cpu_code *out = place;
  code_case_open(&c, 24, 24, DIL_BF16);
  cpu_request request = {.common = {&c.plan}, .isa = "avx512"};
  if (linked_backend()->common.compile(&request.common, out) != DIL_OK)
    out->bytes = NULL;
  return NULL;
}

START_TEST(threads) {
  enum { THREADS = 4 };
  pthread_t thread[THREADS];
  cpu_code out[THREADS];
  for (int i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&thread[i], NULL, compile_alone, &out[i]),
                     0);
  for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
  for (int i = 0; i < THREADS; i++) {
    ck_assert_ptr_nonnull(out[i].bytes);
    ck_assert_uint_eq(out[i].size, out[0].size);
    ck_assert(memcmp(out[i].bytes, out[0].bytes, out[0].size) == 0);
  }
  for (int i = 0; i < THREADS; i++) free(out[i].bytes);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cpu rows");
  TCase *rows = tcase_create("rows");
  tcase_set_timeout(rows, 60);
  tcase_add_loop_test(rows, products, 0, 3 * SET_COUNT);
  tcase_add_loop_test(rows, softmax, 0, SET_COUNT);
  tcase_add_loop_test(rows, dropout, 0, SET_COUNT);
  tcase_add_test(rows, refusals);
  tcase_add_test(rows, texts);
  tcase_add_test(rows, threads);
  suite_add_tcase(suite, rows);
  return suite_run(suite, CK_FORK_GETENV);
}
