/* test_oracle_tables.c - the oracle on tables that a call brings: of blocks,
 * and of rows. */
#include "compiler/oracle/oracle.h"
#include "tests/support/definition.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

/* Tables of blocks of 4, by the sizes that they are declared with. */
typedef struct block_table {
  const char *size;
  int32_t rank;
} block_table;

static const block_table block_tables[] = {
    {"nb, nb", 2}, {"H, nb, nb", 3}, {"B, H, nb, nb", 4}};

enum { TABLE_B = 2, TABLE_H = 3, TABLE_N = 21, TABLE_M = 18, TABLE_NB = 5 };

static bool table_keeps(const uint8_t *table, int32_t rank, int b, int h,
                        int t, int j) {
  if (t < 0) return false; /* outside reads 0 */
  int before = rank == 4 ? b * TABLE_H + h : rank == 3 ? h : 0;
  return table[(before * TABLE_NB + t / 4) * TABLE_NB + j / 4] != 0;
}

static pattern *table_pattern(const char *size) {
  const char *text = arena_print(
      memory, "pattern p { heads 3; head_dim 1; dtype f32; block 4; "
      "input kept : u8[%s]; keep from kept; branch { } }", size);
  diag *d = diag_new(memory);
  program *all = program_parse(memory, d, "p", text, strlen(text), NULL, 0);
  ck_assert_ptr_nonnull(all);
  return (pattern *)all->pattern[0];
}

/* Equal scores and values of 2^j: o times the number of keys is their set. */
static void check_set(const pattern *p, const dil_call *call, int b, int n,
                      int h, double set, double count) {
  double o, lse;
  oracle_row(p, call, b, n, h, &o, &lse);
  ck_assert_double_eq(round(o * count), set);
  if (count > 0) ck_assert_double_eq_tol(lse, log(count), 1e-14);
  else ck_assert(lse == -INFINITY);
}

static void check_table_row(const pattern *p, const dil_call *call, int b,
                            int n, int h) {
  const dil_tensor *kept = &call->inputs[0];
  double set = 0, count = 0;
  for (int j = 0; j < TABLE_M; j++)
    if (table_keeps(kept->data, kept->rank, b, h, n + TABLE_M - TABLE_N, j))
      set += pow(2, j), count++;
  check_set(p, call, b, n, h, set, count);
}

static dil_call *table_call(const pattern *p, const dil_tensor *kept,
                            int rows) {
  dil_call *call = sample_call(memory, p, TABLE_B, rows, TABLE_M, 5);
  float *q = call->q.data, *v = call->v.data;
  for (int e = 0; e < TABLE_B * rows * TABLE_H; e++) q[e] = 0;
  for (int e = 0; e < TABLE_B * TABLE_M * TABLE_H; e++)
    v[e] = (float)pow(2, e / TABLE_H % TABLE_M);
  call->inputs = kept;
  call->input_count = 1;
  return call;
}

static dil_tensor random_table(int32_t rank, const int64_t *shape) {
  dil_tensor kept = dil_tensor_make(NULL, DIL_U8, rank, shape);
  int64_t count = dil_tensor_count(&kept);
  uint8_t *bytes = kept.data = ARENA_ARRAY(memory, uint8_t, count);
  uint64_t state = 8;
  for (int64_t e = 0; e < count; e++)
    if (random_chance(&state, 40)) bytes[e] = (uint8_t)random_in(&state, 1, 255);
  return kept;
}

enum { ROWS_LONG = TABLE_N, ROWS_SHORT = 9 }; /* more and fewer than keys */

static const pattern *row_pattern(void) {
  const char *text =
      "pattern p { heads 3; head_dim 1; dtype f32; input kept : u8[B, N, M];"
      " mask kept[b, row, j] != 0; branch { } }";
  diag *d = diag_new(memory);
  program *all = program_parse(memory, d, "p", text, strlen(text), NULL, 0);
  ck_assert_ptr_nonnull(all);
  return all->pattern[0];
}

/* Rows count from 0 in every batch row, whatever their positions. */
START_TEST(rows_are_counted_from_zero) {
  static const int32_t lengths[TABLE_B] = {TABLE_M - 7, TABLE_M};
  int rows = _i ? ROWS_LONG : ROWS_SHORT;
  const pattern *p = row_pattern();
  dil_tensor kept = random_table(3, (int64_t[]){TABLE_B, rows, TABLE_M});
  dil_call *call = table_call(p, &kept, rows);
  call->lengths = lengths;
  for (int b = 0; b < TABLE_B; b++)
    for (int n = 0; n < rows; n++) {
      const uint8_t *line = (uint8_t *)kept.data + (b * rows + n) * TABLE_M;
      double set = 0, count = 0;
      for (int j = 0; j < lengths[b]; j++)
        if (line[j]) set += pow(2, j), count++;
      check_set(p, call, b, n, 1, set, count);
    }
}
END_TEST

/* By itself: what the checker makes of the statement is taken away. */
START_TEST(tables_of_blocks_are_read) {
  pattern *p = table_pattern(block_tables[_i].size);
  p->branch[0].keeps[0].keep[0].condition = make_int(memory, 1);
  const int64_t full[] = {TABLE_B, TABLE_H, TABLE_NB, TABLE_NB};
  int32_t rank = block_tables[_i].rank;
  dil_tensor kept = random_table(rank, full + 4 - rank);
  const dil_call *call = table_call(p, &kept, TABLE_N);
  for (int b = 0; b < TABLE_B; b++)
    for (int n = 0; n < TABLE_N; n++)
      for (int h = 0; h < TABLE_H; h++) check_table_row(p, call, b, n, h);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("oracle_tables");
  TCase *tests = tcase_create("oracle_tables");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(tests, tables_of_blocks_are_read, 0, 3);
  tcase_add_loop_test(tests, rows_are_counted_from_zero, 0, 2);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
