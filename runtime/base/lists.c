/* lists.c - lists of blocks, or of keys, become a table, once a call.
 *
 * In: the arrays of a call in the form CSR, or a list of keys. Out: a byte or a bit
 * for each pair of a query block and a key block, or a byte for each key, 1 where the
 * lists hold it; or an error that says which entry is none. The order of entries and
 * their number do not matter. */
#include "lists.h"
#include "arithmetic.h"
#include "status.h"
#include <string.h>

/* One line of rows and of cols: those of a batch row and a head. */
typedef struct lists_line {
  const int32_t *rows, *cols;
  int64_t row_stride, col_stride;
  int64_t queries, keys, entries; /* blocks of queries, of keys; length of cols */
} lists_line;

static int64_t line_offset(const dil_tensor *t, int64_t line) {
  int64_t offset = 0;
  for (int32_t axis = t->rank - 2; axis >= 0; axis--) {
    offset += line % t->shape[axis] * t->stride[axis];
    line /= t->shape[axis];
  }
  return offset;
}

static lists_line line_of(const dil_tensor *rows, const dil_tensor *cols,
                          const dil_tensor *blocks, int64_t line) {
  int32_t last = rows->rank - 1;
  return (lists_line){
      .rows = (const int32_t *)rows->data + line_offset(rows, line),
      .cols = (const int32_t *)cols->data + line_offset(cols, line),
      .row_stride = rows->stride[last],
      .col_stride = cols->stride[last],
      .queries = blocks->shape[blocks->rank - 2],
      .keys = blocks->shape[blocks->rank - 1],
      .entries = cols->shape[last]};
}

/* Lines of a table whose last `own` dimensions are of one line. */
static int64_t line_count(const dil_tensor *table, int32_t own) {
  int64_t count = 1;
  for (int32_t axis = 0; axis + own < table->rank; axis++)
    count *= table->shape[axis];
  return count;
}

/* The entries first..end - 1 of a query block, cut to those that there are. */
static void line_range(const lists_line *l, int64_t block, int64_t *first,
                       int64_t *end) {
  *first = l->rows[block * l->row_stride];
  *end = l->rows[(block + 1) * l->row_stride];
  if (*first < 0) *first = 0;
  if (*end > l->entries) *end = l->entries;
}

/* The shape of the table, row-major. */
static dil_tensor lists_table(const dil_input *made, const dil_tensor *rows,
                              int64_t M, void *data) {
  int64_t shape[DIL_RANK_MAX];
  for (int32_t axis = 0; axis < rows->rank; axis++)
    shape[axis] = rows->shape[axis];
  shape[made->rank - 1] = M;
  if (made->keys) return dil_tensor_make(data, DIL_U8, made->rank, shape);
  shape[made->rank - 2] = (M + made->query_block - 1) / made->query_block;
  shape[made->rank - 1] = (M + made->block - 1) / made->block;
  return dil_tensor_make(data, DIL_U8, made->rank, shape);
}

enum { WORD_BITS = 32 };

dil_tensor dil_lists_bits(const dil_input *made, const dil_tensor *rows,
                          int64_t M, void *data) {
  dil_tensor t = lists_table(made, rows, M, data);
  if (!dil_input_is_bits(made)) return t;
  int64_t stride = round_up(t.shape[t.rank - 1], WORD_BITS);
  for (int32_t axis = t.rank - 2; axis >= 0; axis--) {
    t.stride[axis] = stride;
    stride *= t.shape[axis];
  }
  return t;
}

int64_t dil_lists_bytes(const dil_input *made, const dil_tensor *table) {
  return dil_input_is_bits(made) ? table->shape[0] * table->stride[0] / 8
                                 : dil_tensor_count(table);
}

/* ---- choices ------------------------------------------------------------- */

dil_tensor dil_choice_list(const dil_choice *c, int64_t heads, int64_t B,
                           int64_t M, bool cols, void *data) {
  int64_t blocks = dil_choice_blocks(M, c->query_block);
  const int64_t shape[] = {B, heads,
                           cols ? blocks * dil_choice_room(c, M) : blocks + 1};
  return dil_tensor_make(data, DIL_I32, 3, shape);
}

/* The number of a choice's list in a host's selection. */
static int32_t list_number(const dil_table *t, int32_t index) {
  for (int32_t c = 0; c < t->choice_count; c++)
    if (t->choices[c].rows == index || t->choices[c].rows + 1 == index)
      return 2 * c + (t->choices[c].rows != index);
  return -1;
}

dil_status dil_choice_check(const dil_table *table, const dil_call *call,
                            int32_t index, const dil_tensor *list) {
  char want[DIL_TENSOR_TEXT], got[DIL_TENSOR_TEXT];
  if (list->shape[2] > INT32_MAX)
    return dil_fail(DIL_UNSUPPORTED, "the lists of blocks of a head have room for "
                    "%lld entries, and at most 2^31 - 1 can be numbered",
                    (long long)list->shape[2]);
  const dil_tensor *place =
      call->made ? &call->made[index - table->input_count] : NULL;
  if (!place || !place->data) return DIL_OK;
  bool fits = place->dtype == list->dtype && place->rank == list->rank;
  for (int32_t axis = 0; axis < list->rank && fits; axis++)
    fits = place->shape[axis] == list->shape[axis];
  if (fits) return DIL_OK;
  return dil_fail(DIL_USAGE, "selection[%d] must be %s, got %s",
                  list_number(table, index), dil_tensor_text(list, want),
                  dil_tensor_text(place, got));
}

/* ---- checking ------------------------------------------------------------ */

static dil_status check_row(const lists_line *l, int64_t line, int64_t block,
                            const char *rows, const char *cols) {
  int64_t first = l->rows[block * l->row_stride];
  int64_t end = l->rows[(block + 1) * l->row_stride];
  if (first < 0 || end < first || end > l->entries)
    return dil_fail(DIL_USAGE, "input '%s' says that the list of query block "
                    "%lld (line %lld) is %lld..%lld, and '%s' has %lld entries",
                    rows, (long long)block, (long long)line, (long long)first,
                    (long long)end, cols, (long long)l->entries);
  for (int64_t e = first; e < end; e++) {
    int64_t key = l->cols[e * l->col_stride];
    if (key < 0 || key >= l->keys)
      return dil_fail(DIL_USAGE, "entry %lld of input '%s' (line %lld, query "
                      "block %lld) is %lld, and the key blocks are 0..%lld",
                      (long long)e, cols, (long long)line, (long long)block,
                      (long long)key, (long long)l->keys - 1);
  }
  return DIL_OK;
}

/* One key of a list; -1 and what is outside are none. */
static int64_t key_at(const dil_tensor *list, int64_t line, int64_t entry) {
  int64_t at = line_offset(list, line) + entry * list->stride[list->rank - 1];
  return ((const int32_t *)list->data)[at];
}

static dil_status check_keys(const char *name, const dil_tensor *list,
                             const dil_tensor *table) {
  int64_t keys = table->shape[table->rank - 1];
  for (int64_t line = 0; line < line_count(table, 1); line++)
    for (int64_t e = 0; e < list->shape[list->rank - 1]; e++) {
      int64_t key = key_at(list, line, e);
      if (key >= -1 && key < keys) continue;
      return dil_fail(DIL_USAGE, "entry %lld of input '%s' (line %lld) is %lld, "
                      "and the keys are 0..%lld; -1 is none", (long long)e, name,
                      (long long)line, (long long)key, (long long)keys - 1);
    }
  return DIL_OK;
}

dil_status dil_lists_check(const dil_input *made, const dil_input *inputs,
                           const dil_tensor *rows, const dil_tensor *cols,
                           const dil_tensor *blocks) {
  if (made->keys) return check_keys(inputs[made->rows].name, rows, blocks);
  const char *of_rows = inputs[made->rows].name;
  const char *of_cols = inputs[made->cols].name;
  dil_status status = DIL_OK;
  for (int64_t line = 0; line < line_count(blocks, 2); line++) {
    lists_line l = line_of(rows, cols, blocks, line);
    for (int64_t block = 0; block < l.queries && !status; block++)
      status = check_row(&l, line, block, of_rows, of_cols);
  }
  return status;
}

dil_status dil_lists_refuse(const dil_table *table, int32_t made) {
  const dil_input *in = &table->inputs[made];
  if (!dil_input_is_table(in) || in->rows >= table->input_count)
    return dil_fail(DIL_UNSUPPORTED, "blocks chosen by their scores (`keep top`, "
                    "`keep mass`) do not go with ranks, chunks or packed calls");
  if (in->keys)
    return dil_fail(DIL_UNSUPPORTED, "keys by a list ('%s') do not go with ranks, "
                    "chunks or packed calls", table->inputs[in->rows].name);
  return dil_fail(DIL_UNSUPPORTED, "lists of blocks ('%s', '%s') do not go with "
                  "ranks, chunks or packed calls: a table goes with the first "
                  "two",
                  table->inputs[in->rows].name, table->inputs[in->cols].name);
}

/* ---- filling ------------------------------------------------------------- */

static void fill_keys(const dil_tensor *list, const dil_tensor *table) {
  int64_t keys = table->shape[table->rank - 1];
  uint8_t *row = table->data;
  for (int64_t line = 0; line < line_count(table, 1); line++, row += keys) {
    memset(row, 0, (size_t)keys);
    for (int64_t e = 0; e < list->shape[list->rank - 1]; e++) {
      int64_t key = key_at(list, line, e);
      if (key >= 0 && key < keys) row[key] = 1;
    }
  }
}

static void fill_row_bits(const lists_line *l, int64_t block, uint32_t *row,
                          int64_t words) {
  int64_t first, end;
  line_range(l, block, &first, &end);
  memset(row, 0, (size_t)words * sizeof *row);
  for (int64_t e = first; e < end; e++) {
    int64_t key = l->cols[e * l->col_stride];
    if (key >= 0 && key < l->keys)
      row[key / WORD_BITS] |= UINT32_C(1) << key % WORD_BITS;
  }
}

void dil_lists_fill(const dil_input *made, const dil_tensor *rows,
                    const dil_tensor *cols, const dil_tensor *blocks) {
  uint32_t *row = blocks->data;
  if (!dil_input_is_bits(made)) {
    fill_keys(rows, blocks);
    return;
  }
  int64_t words = blocks->stride[blocks->rank - 2] / WORD_BITS;
  for (int64_t line = 0; line < line_count(blocks, 2); line++) {
    lists_line l = line_of(rows, cols, blocks, line);
    for (int64_t block = 0; block < l.queries; block++, row += words)
      fill_row_bits(&l, block, row, words);
  }
}
