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

/* ---- lists --------------------------------------------------------------- */

static const block_table lists_of[] = {
    {"", 1}, {"H, ", 2}, {"B, H, ", 3}};

enum { LIST_MOST = 9 }; /* entries of a line */

static const pattern *lists_pattern(const char *leading) {
  const char *text = arena_print(
      memory, "pattern p { heads 3; head_dim 1; dtype f32; block 8, 4; "
      "input rows : i32[%snbq + 1]; input cols : i32[%s*]; "
      "keep from rows, cols; branch { } }", leading, leading);
  diag *d = diag_new(memory);
  program *all = program_parse(memory, d, "p", text, strlen(text), NULL, 0);
  ck_assert_ptr_nonnull(all);
  return all->pattern[0];
}

/* Three query blocks of 8: of entries 0..4, none and 4..8, with repeats. */
static void fill_lists(dil_tensor lists[2], int32_t rank) {
  static const int32_t start[] = {0, 4, 4, LIST_MOST};
  static const int32_t entry[] = {3, 0, 3, 1, 4, 2, 2, 4, 0};
  const int64_t rows[] = {TABLE_B, TABLE_H, 4}, cols[] = {TABLE_B, TABLE_H, 9};
  lists[0] = dil_tensor_make(NULL, DIL_I32, rank, rows + 3 - rank);
  lists[1] = dil_tensor_make(NULL, DIL_I32, rank, cols + 3 - rank);
  for (int k = 0; k < 2; k++) {
    int64_t count = dil_tensor_count(&lists[k]), last = k ? 9 : 4;
    int32_t *to = lists[k].data = ARENA_ARRAY(memory, int32_t, count);
    for (int64_t e = 0; e < count; e++)
      to[e] = k ? (int32_t)((entry[e % last] + e / last) % TABLE_NB)
                : start[e % last];
  }
}

static bool list_holds(const dil_tensor lists[2], int line, int block, int key) {
  const int32_t *rows = (int32_t *)lists[0].data + line * 4;
  const int32_t *cols = (int32_t *)lists[1].data + line * LIST_MOST;
  for (int e = rows[block]; e < rows[block + 1]; e++)
    if (cols[e] == key) return true;
  return false;
}

/* By itself, and through the table that the run time makes of lists. */
START_TEST(lists_of_blocks_are_read) {
  int32_t rank = lists_of[_i / 2].rank;
  const pattern *p = lists_pattern(lists_of[_i / 2].size);
  keep *written = &p->branch[0].keeps[0].keep[0];
  if (_i % 2) written->condition = make_int(memory, 1);
  else written->table = NULL;
  dil_tensor lists[2];
  fill_lists(lists, rank);
  dil_call *call = table_call(p, lists, TABLE_M);
  call->input_count = 2;
  for (int at = 0; at < TABLE_B * TABLE_M * TABLE_H; at++) {
    int h = at % TABLE_H, n = at / TABLE_H % TABLE_M, b = at / TABLE_H / TABLE_M;
    int line = rank == 3 ? b * TABLE_H + h : rank == 2 ? h : 0;
    double set = 0, count = 0;
    for (int j = 0; j < TABLE_M; j++)
      if (list_holds(lists, line, n / 8, j / 4)) set += pow(2, j), count++;
    check_set(p, call, b, n, h, set, count);
  }
}
END_TEST

/* A mask reads two lines of one list: key h + 3 e of head h, and of head 1 - h. */
START_TEST(lists_of_keys_are_read_at_any_line) {
  const char *text = "pattern p { heads 3; head_dim 1; dtype f32; "
                     "input listed : i32[H, *]; input held : u8[H, M] from listed; "
                     "mask held[1 - h, j] != 0 || held[h, j] != 0; branch { } }";
  program *all = program_parse(memory, diag_new(memory), "p", text, strlen(text),
                               NULL, 0);
  ck_assert_ptr_nonnull(all);
  const int64_t shape[] = {TABLE_H, 4};
  int32_t entry[TABLE_H * 4];
  for (int e = 0; e < TABLE_H * 4; e++) entry[e] = e / 4 + e % 4 * 3;
  dil_tensor list = dil_tensor_make(entry, DIL_I32, 2, shape);
  const dil_call *call = table_call(all->pattern[0], &list, TABLE_M);
  for (int h = 0; h < TABLE_H; h++) {
    double set = 0, count = 0;
    for (int j = 0; j < TABLE_M; j++) {
      bool one = h <= 1 && j % 3 == 1 - h && j / 3 < 4; /* no line is -1 */
      bool other = j % 3 == h && j / 3 < 4;
      if (one || other) set += pow(2, j), count++;
    }
    check_set(all->pattern[0], call, 1, 7, h, set, count);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("oracle_tables");
  TCase *tests = tcase_create("oracle_tables");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(tests, tables_of_blocks_are_read, 0, 3);
  tcase_add_loop_test(tests, lists_of_blocks_are_read, 0, 6);
  tcase_add_loop_test(tests, rows_are_counted_from_zero, 0, 2);
  tcase_add_test(tests, lists_of_keys_are_read_at_any_line);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
