/* hopper_blocks.c - places of the lists of kept blocks of a call.
 *
 * In: the sizes of a call, and those of a code's blocks. Out: for each list the
 * numbers of its query blocks, the words of a row, and where they stand. A list
 * has a row for each query block in which the call has rows, and a bit for each
 * key block. */
#include "hopper_blocks.h"
#include "runtime/base/arithmetic.h"

static int64_t lists_fill_one(const cuda_run *r, const int32_t *form,
                              int64_t keys, hopper_block_list *to) {
  const dil_progression rows = cuda_queries(r);
  int64_t size = form[HOPPER_LIST_QUERIES];
  /* rows of a batch row with fewer keys stand that much earlier */
  int64_t first = rows.first - (r->call->lengths ? keys : 0);
  int64_t low = floor_to(first, size) / size;
  int64_t last = floor_to(rows.first + rows.count - 1, size) / size;
  to->low = (int)low;
  to->rows = (int)(last - low + 1);
  int64_t blocks = (keys + form[HOPPER_LIST_KEYS] - 1) / form[HOPPER_LIST_KEYS];
  to->words = (int)((blocks + 31) / 32);
  int64_t line = (int64_t)to->rows * to->words;
  bool heads = form[HOPPER_LIST_LINES] & HOPPER_LIST_HEADS;
  bool batches = form[HOPPER_LIST_LINES] & HOPPER_LIST_BATCHES;
  to->heads = heads ? r->table->heads : 1;
  to->batches = batches ? (int)r->B : 1;
  to->head = heads ? line : 0;
  to->batch = batches ? line * to->heads : 0;
  return round_up(line * to->heads * to->batches * (int64_t)sizeof(unsigned),
                  256);
}

int64_t hopper_blocks_fill(const cuda_run *r, const cuda_code *code,
                          char *memory, hopper_launch *l) {
  int64_t bytes = 0;
  const int32_t *form = &code->about.knob[HOPPER_KNOB_LIST];
  for (int32_t n = 0; n < code->about.knob[HOPPER_KNOB_LISTS]; n++) {
    int64_t size = lists_fill_one(r, form + n * HOPPER_LIST_KNOBS, l->keys,
                                  &l->lists[n]);
    if (memory) l->lists[n].bits = (unsigned *)(memory + bytes);
    bytes += size;
  }
  return bytes;
}
