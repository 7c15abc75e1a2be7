/* key_list.c - the keys of lists (`keys NAME`), sorted, each once.
 *
 * In: the tables of a call, which have a byte for each key. Out: for each line of a
 * table the positions of its keys. A pass of one branch then packs and visits these
 * keys alone, so that its time follows the list and not the sequence. */
#include "key_list.h"
#include "runtime/base/arithmetic.h"

static bool is_listed(const dil_table *t, int32_t index) {
  for (int32_t b = 0; b < t->branch_count; b++)
    if (t->branches[b].listed == index) return true;
  return false;
}

/* Lines of a table, and the most keys that one of them has. */
static int64_t lines_of(const cpu_run *r, int32_t index) {
  int64_t count = 1;
  for (int32_t axis = 0; axis + 1 < r->read[index].rank; axis++)
    count *= r->read[index].shape[axis];
  return count;
}

static int64_t room_of(const cpu_run *r, int32_t index) {
  const dil_tensor *list = &r->read[r->table->inputs[index].rows];
  return minimum(list->shape[list->rank - 1], r->M);
}

/* A line has its number of keys before them, and room for a position behind. */
static int64_t line_length(const cpu_run *r, int32_t index) {
  return room_of(r, index) + 2;
}

int64_t key_list_bytes(const cpu_run *r) {
  int64_t bytes = 0;
  for (int32_t i = r->table->input_count; i < dil_table_reads(r->table); i++)
    if (is_listed(r->table, i))
      bytes += round_up(lines_of(r, i) * line_length(r, i) *
                            (int64_t)sizeof(int32_t), 64);
  return bytes;
}

static void fill_line(const uint8_t *table, int64_t keys, int32_t *line) {
  int32_t count = 0;
  for (int64_t key = 0; key < keys; key++)
    if (table[key]) line[1 + count++] = (int32_t)key;
  line[0] = count;
  line[1 + count] = 0;
}

void key_list_fill(cpu_run *r, char *memory) {
  for (int32_t i = r->table->input_count; i < dil_table_reads(r->table); i++) {
    const uint8_t *table = r->read[i].data;
    if (!is_listed(r->table, i)) continue;
    int32_t *line = r->listed[i] = (int32_t *)memory;
    for (int64_t n = 0; n < lines_of(r, i); n++, line += line_length(r, i))
      fill_line(table + n * r->M, r->M, line);
    memory = (char *)r->listed[i] +
             round_up((char *)line - (char *)r->listed[i], 64);
  }
}

int64_t key_list_room(const cpu_run *r, const dil_pass *pass) {
  int32_t index = dil_pass_list(r->table, pass);
  return index < 0 ? -1 : room_of(r, index);
}

bool key_list_is_of_heads(const dil_table *t, const dil_pass *pass) {
  int32_t index = dil_pass_list(t, pass);
  return index >= 0 && t->inputs[index].rank > 1;
}

int32_t *key_list_line(const cpu_run *r, int32_t index, int64_t b,
                       int32_t head, int32_t *count) {
  int32_t rank = r->read[index].rank;
  int64_t line = (rank > 2 ? b * r->table->heads : 0) + (rank > 1 ? head : 0);
  int32_t *at = r->listed[index] + line * line_length(r, index);
  *count = at[0];
  return at + 1;
}

void key_list_open(const cpu_run *r, const dil_pass *pass, int64_t b,
                   int32_t head, class_table *s) {
  int32_t index = dil_pass_list(r->table, pass);
  dil_progression keys = cpu_run_key_progression(r, b);
  class_table_reset(s, &keys);
  if (index < 0) return;
  int32_t count;
  int32_t *line = key_list_line(r, index, b, head, &count);
  class_table_list(s, line, count);
}
