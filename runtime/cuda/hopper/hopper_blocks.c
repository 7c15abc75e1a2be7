/* hopper_blocks.c - places of the lists of kept blocks of a call.
 *
 * In: the sizes of a call, and those of a code's blocks. Out: for each list the
 * numbers of its query blocks, the words of a row, and where they stand. A list
 * has a row for each query block in which the call has rows, and a bit for each
 * key block. Where it is a table of bits that the call has anyway, it stands there.
 * And places for the order of the tiles by their lists. */
#include "hopper_blocks.h"
#include "runtime/base/arithmetic.h"
#include "runtime/cuda/launch/nvidia.h"

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

/* Whether a list is a table of the call, whose rows begin at position 0. */
static bool lists_share(const int32_t *form, const hopper_block_list *list) {
  return form[HOPPER_LIST_TABLE] && list->low >= 0;
}

/* The list becomes that table, of which nothing is to be made. */
static void lists_take_table(const cuda_run *r, const int32_t *form,
                             const dil_device_input *inputs,
                             hopper_block_list *to) {
  enum { WORD_BITS = 32 };
  int32_t number = form[HOPPER_LIST_TABLE] - 1;
  int32_t rank = r->table->inputs[number].rank;
  const dil_device_input *in = &inputs[number];
  *to = (hopper_block_list){
      .bits = (unsigned *)(uintptr_t)in->data,
      .head = rank > 2 ? in->stride[rank - 3] / WORD_BITS : 0,
      .batch = rank > 3 ? in->stride[rank - 4] / WORD_BITS : 0,
      .rows = (int)in->dim[rank - 2],
      .words = (int)(in->stride[rank - 2] / WORD_BITS)};
}

int64_t hopper_list_fill(const cuda_run *r, const cuda_code *code, int32_t n,
                         int64_t keys, const dil_device_input *inputs, char *memory,
                         hopper_block_list *to) {
  const int32_t *form =
      &code->about.knob[HOPPER_KNOB_LIST + n * HOPPER_LIST_KNOBS];
  *to = (hopper_block_list){0};
  int64_t bytes = lists_fill_one(r, form, keys, to);
  if (!lists_share(form, to)) {
    if (memory) to->bits = (unsigned *)(void *)memory;
    return bytes;
  }
  if (inputs) lists_take_table(r, form, inputs, to);
  return 0;
}

int64_t hopper_blocks_fill(const cuda_run *r, const cuda_code *code,
                          char *memory, hopper_launch *l) {
  int64_t bytes = 0;
  for (int32_t n = 0; n < code->about.knob[HOPPER_KNOB_LISTS]; n++)
    bytes += hopper_list_fill(r, code, n, l->keys, l->input,
                              memory ? memory + bytes : NULL, &l->lists[n]);
  return bytes;
}

int64_t hopper_order_fill(const cuda_run *r, const cuda_code *code,
                          char *memory, hopper_launch *l) {
  if (!code->about.knob[HOPPER_KNOB_LISTS] ||
      l->tiles <= r->device->facts.processors)
    return 0;
  int64_t levels = round_up(l->tiles, 256);
  if (memory) l->levels = (unsigned char *)memory;
  if (memory) l->order = (int *)(memory + levels);
  return levels + round_up(l->tiles * (int64_t)sizeof(int), 256);
}
