/* call_lists.c - lists of blocks (`keep from rows, cols`) or of keys (`keys cols`)
 * of a call.
 *
 * In: the arrays of a call setup, or the word `random` in their place. Out:
 * random lists that hold about a tenth of the blocks or keys; and the tables that
 * lists stand for, of blocks as bits, since counts of pairs read these. */
#include "call_setup.h"
#include "runtime/base/lists.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"

enum { SHARE = 10 }; /* one block or key in so many */

int32_t call_lists_of(const pattern *p, int32_t input) {
  for (int32_t made = p->input_count; made < pattern_reads(p); made++)
    if (dil_input_is_table(&p->input[made]) &&
        (p->input[made].rows == input || p->input[made].cols == input))
      return made;
  return -1;
}

/* Blocks of queries and of keys of a table. */
static void count_blocks(const call_setup *b, int32_t made, int64_t *queries,
                         int64_t *keys) {
  const dil_input *in = &b->pattern->input[made];
  *queries = (b->size[CALL_M] + in->query_block - 1) / in->query_block;
  *keys = (b->size[CALL_M] + in->block - 1) / in->block;
}

static int64_t random_length(int64_t keys) {
  return (keys + SHARE - 1) / SHARE;
}

int64_t call_lists_length(const call_setup *b, int32_t input) {
  int64_t queries, keys;
  int32_t made = call_lists_of(b->pattern, input);
  if (made < 0) return 0;
  count_blocks(b, made, &queries, &keys);
  if (b->pattern->input[made].keys) return random_length(keys);
  return queries * random_length(keys);
}

static uint32_t random_word(uint32_t seed, uint32_t number, uint64_t element) {
  uint32_t counter[4] = {(uint32_t)element, (uint32_t)(element >> 32), 0, 0};
  uint32_t key[2] = {seed, number}, out[4];
  dil_philox(counter, key, out);
  return out[0];
}

bool call_lists_random(call_setup *b, int32_t input, uint32_t number) {
  int32_t made = call_lists_of(b->pattern, input);
  if (made < 0) return false;
  dil_tensor *t = &b->inputs[input];
  int64_t queries, keys, count = dil_tensor_count(t);
  const dil_input *table = &b->pattern->input[made];
  bool rows = table->rows == input && !table->keys;
  count_blocks(b, made, &queries, &keys);
  for (int64_t e = 0; e < count; e++) {
    int64_t start = e % (queries + 1) * random_length(keys);
    uint32_t word = random_word(b->options->random, number, (uint64_t)e);
    int64_t entry = keys ? (int64_t)(word % (uint64_t)keys) : 0;
    dil_element_write(t->data, t->dtype, e, (double)(rows ? start : entry));
  }
  return true;
}

dil_status call_lists_table(call_setup *b, int32_t made,
                            const dil_tensor *rows) {
  const dil_input *in = &b->pattern->input[made];
  dil_tensor table = dil_lists_bits(in, rows, b->size[CALL_M], NULL), bytes;
  const int64_t size = dil_lists_bytes(in, &table);
  dil_status status = call_tensor_new(b, DIL_U8, 1, &size, &bytes);
  table.data = status ? NULL : bytes.data;
  b->inputs[made] = table;
  return status;
}

dil_status call_lists_make(call_setup *b) {
  const pattern *p = b->pattern;
  dil_status status = DIL_OK;
  for (int32_t made = p->input_count; made < pattern_reads(p) && !status;
       made++) {
    const dil_input *in = &p->input[made];
    const dil_tensor *rows = &b->inputs[in->rows], *cols = &b->inputs[in->cols];
    if (!dil_input_is_table(in) || in->rows >= p->input_count) continue;
    if (b->call.packed.queries) continue; /* the run refuses it by name */
    b->inputs[made] = dil_lists_bits(in, rows, b->size[CALL_M], NULL);
    if (!rows->data || !cols->data) continue;
    status = dil_lists_check(in, p->input, rows, cols, &b->inputs[made]);
    if (!status) status = call_lists_table(b, made, rows);
    if (!status) dil_lists_fill(in, rows, cols, &b->inputs[made]);
  }
  return status;
}
