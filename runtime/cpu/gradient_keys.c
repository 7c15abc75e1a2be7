/* gradient_keys.c - the packed keys of a block backward.
 *
 * In: the classes of a block, its keys and values. Out: both in the layouts
 * that the products want, packed once for all query tiles; a mark for each
 * stretch of rows in which an element is not finite. */
#include "gradient.h"
#include "runtime/base/arithmetic.h"
#include <string.h>

static packed_keys cut_keys(cutter *c, const cpu_run *r, int64_t rows) {
  const dil_table *table = r->table;
  dil_pack pack = r->code[DIL_TILES]->pack;
  int64_t k = rows * pack_key_bytes(table->head_dim, pack);
  int64_t v = rows * pack_key_bytes(table->value_dim, pack);
  packed_keys keys = {.k_values = cutter_cut(c, k),
                      .v_values = cutter_cut(c, v)};
  bool pairs = pack == DIL_PACK_BF16_PAIRS;
  keys.k_keys = pairs ? cutter_cut(c, k) : keys.k_values;
  keys.v_keys = pairs ? cutter_cut(c, v) : keys.v_values;
  keys.marks = cutter_cut(c, rows / MARK_ROWS + 1);
  return keys;
}

int64_t packed_keys_bytes(const cpu_run *r, int64_t rows) {
  cutter c = {NULL, 0};
  cut_keys(&c, r, rows);
  return c.used;
}

packed_keys packed_keys_at(const cpu_run *r, int64_t rows, char *memory) {
  cutter c = {memory, 0};
  return cut_keys(&c, r, rows);
}

/* Rows n0..n1-1 of a class in both layouts; true: all are finite. */
static bool pack_both(const gradient_worker *wk, const packed_range *of,
                      const row_view *rows, char *keys, char *values) {
  const class_table *s = &wk->tile.streamed;
  dil_pack pack = wk->tile.code->pack;
  keys += of->base * pack_key_bytes(rows->width, pack);
  values += of->base * pack_value_bytes(rows->width, pack);
  if (pack == DIL_PACK_BF16_PAIRS)
    pack_keys(rows, s, of->c, of->cell.low, of->n0, of->n1, pack, keys);
  return pack_values(rows, s, of->c, of->cell.low, of->n0, of->n1, pack,
                     values);
}

void packed_keys_fill(const gradient_worker *wk, packed_range of,
                      const row_view *k, const row_view *v) {
  const packed_keys *keys = &wk->keys;
  int64_t first = maximum(of.base + of.n0, wk->from);
  int64_t end = minimum(of.base + of.n1, wk->to);
  for (int64_t at = first; at < end; at = of.base + of.n1) {
    int64_t mark = at / MARK_ROWS;
    of.n0 = at - of.base;
    of.n1 = minimum((mark + 1) * MARK_ROWS, end) - of.base;
    if (!pack_both(wk, &of, k, keys->k_keys, keys->k_values))
      keys->marks[mark] |= MARK_KEYS;
    if (!pack_both(wk, &of, v, keys->v_keys, keys->v_values))
      keys->marks[mark] |= MARK_VALUES;
  }
}

uint8_t packed_keys_marks(const packed_keys *keys, int64_t first, int64_t end) {
  uint8_t marks = 0;
  for (int64_t at = first / MARK_ROWS; at * MARK_ROWS < end; at++)
    marks |= keys->marks[at];
  return marks;
}
