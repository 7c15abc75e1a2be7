/* plan_serial.c - a plan as one run of bytes without pointers: what a library
 * or a cache keeps of a kernel besides its machine code.
 *
 * In: a dil_table, or bytes from anywhere. Out: bytes, or a table that a run
 * can walk. Whatever damage the bytes have is refused: a sum finds accidents,
 * and what a run relies on is checked field by field. The fields of each
 * structure are listed once, for both ways. */
#include "plan_serial.h"
#include "runtime/base/status.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SERIAL_MAGIC = 0x676d6964 /* "dimg" */, SERIAL_VERSION = 10 };

typedef struct head {
  uint32_t magic, version;
  uint64_t size; /* of all bytes */
  uint64_t sum;  /* of what follows the head */
} head;

/* Moves fields between structures and bytes. Without bytes it only counts. */
typedef struct codec {
  bool reading;
  bool bad;          /* the bytes are too few, or no such value exists */
  char *bytes;
  size_t used, size;
  char *block;       /* reading: room that is left for arrays and names */
} codec;

static void codec_move(codec *c, void *value, size_t size) {
  size_t at = c->used;
  c->used += size;
  if (!c->bytes) return;
  c->bad |= c->used > c->size || c->used < at;
  if (c->bad) return;
  if (c->reading) memcpy(value, c->bytes + at, size);
  else memcpy(c->bytes + at, value, size);
}

#define FIELD(c, field) codec_move(c, &(field), sizeof(field))

/* A byte that is neither 0 nor 1 must not become a bool. */
static void codec_flag(codec *c, bool *value) {
  uint8_t byte = c->reading ? 0 : *value;
  FIELD(c, byte);
  c->bad |= byte > 1;
  if (c->reading) *value = byte == 1;
}

/* Arrays are cut from the block, those of wider elements first. */
static void *codec_take(codec *c, size_t size) {
  void *memory = c->block;
  c->block += size;
  return memory;
}

static void codec_name(codec *c, const char **text) {
  uint32_t length = c->reading ? 0 : (uint32_t)strlen(*text);
  FIELD(c, length);
  c->bad |= c->reading && length > c->size - c->used;
  if (c->bad) return;
  char *letters = c->reading ? codec_take(c, length + 1) : (char *)*text;
  codec_move(c, letters, length);
  if (!c->reading) return;
  c->bad |= length == 0 || memchr(letters, 0, length);
  letters[length] = 0;
  *text = letters;
}

/* ---- the fields ---------------------------------------------------------- */

static void table_fields(codec *c, dil_table *t) {
  FIELD(c, t->heads);
  FIELD(c, t->kv_heads);
  FIELD(c, t->head_dim);
  FIELD(c, t->value_dim);
  FIELD(c, t->dtype);
  FIELD(c, t->combine);
  codec_flag(c, &t->dedup);
  codec_flag(c, &t->detached);
  codec_flag(c, &t->general);
  codec_flag(c, &t->runtime_scale);
  codec_flag(c, &t->scored);
  codec_flag(c, &t->sinks);
  FIELD(c, t->sink_branches);
  codec_flag(c, &t->lse_allowed);
  FIELD(c, t->grid.axes);
  for (int32_t a = 0; a < DIL_GRID_AXES; a++) FIELD(c, t->grid.extent[a]);
  FIELD(c, t->scale);
  FIELD(c, t->dropout);
  FIELD(c, t->tile_keys);
  FIELD(c, t->branch_count);
  FIELD(c, t->pass_count);
  FIELD(c, t->input_count);
  FIELD(c, t->made_count);
  FIELD(c, t->choice_count);
  FIELD(c, t->predicate_count);
  FIELD(c, t->chain_count);
}

static void reach_fields(codec *c, dil_reach *r) {
  codec_flag(c, &r->alone);
  for (int32_t a = 0; a < DIL_GRID_AXES; a++) {
    FIELD(c, r->left[a]);
    FIELD(c, r->right[a]);
    FIELD(c, r->kernel[a]);
    FIELD(c, r->dilation[a]);
    codec_flag(c, &r->causal[a]);
  }
}

static void branch_fields(codec *c, dil_branch *b) {
  FIELD(c, b->segment);
  FIELD(c, b->dilation);
  FIELD(c, b->head_first);
  FIELD(c, b->head_last);
  FIELD(c, b->predicate);
  FIELD(c, b->chain);
  codec_flag(c, &b->each);
  FIELD(c, b->shift);
  FIELD(c, b->listed);
  FIELD(c, b->rest);
  reach_fields(c, &b->reach);
}

static void pass_fields(codec *c, dil_pass *p) {
  FIELD(c, p->branches);
  FIELD(c, p->period);
}

static void predicate_fields(codec *c, dil_predicate *p) {
  FIELD(c, p->left);
  FIELD(c, p->right);
  codec_flag(c, &p->masked);
  FIELD(c, p->key_first);
  FIELD(c, p->key_end);
  FIELD(c, p->row_first);
  FIELD(c, p->row_end);
}

static void input_fields(codec *c, dil_input *in) {
  codec_name(c, &in->name);
  FIELD(c, in->dtype);
  FIELD(c, in->rank);
  codec_flag(c, &in->masks);
  codec_flag(c, &in->spans);
  codec_flag(c, &in->gradient);
  codec_flag(c, &in->in_scores);
  codec_flag(c, &in->in_sinks);
  FIELD(c, in->apart);
  FIELD(c, in->rows);
  FIELD(c, in->cols);
  codec_flag(c, &in->keys);
  FIELD(c, in->query_block);
  FIELD(c, in->block);
  for (int32_t a = 0; a < DIL_GRID_AXES; a++) FIELD(c, in->cell[a]);
}

static void choice_fields(codec *c, dil_choice *x) {
  FIELD(c, x->branch);
  FIELD(c, x->rows);
  FIELD(c, x->query_block);
  FIELD(c, x->block);
  FIELD(c, x->left);
  FIELD(c, x->right);
  FIELD(c, x->most);
  FIELD(c, x->share);
  FIELD(c, x->estimate);
  FIELD(c, x->gate);
  codec_flag(c, &x->shared);
  codec_flag(c, &x->asks);
}

/* Bytes of one of the table's arrays: of its elements, `count` of them. */
#define ARRAY_BYTES(t, name, count) ((size_t)(t)->count * sizeof *(t)->name)

static size_t inputs_bytes(const dil_table *t) {
  return (size_t)dil_table_reads(t) * sizeof *t->inputs;
}

static size_t phase_bytes(const dil_table *t) {
  return (size_t)t->heads * sizeof(int32_t);
}

/* The data behind the table's own fields; reading, the arrays are taken. */
static void array_fields(codec *c, dil_table *t) {
  if (c->reading) {
    t->branches = codec_take(c, ARRAY_BYTES(t, branches, branch_count));
    t->passes = codec_take(c, ARRAY_BYTES(t, passes, pass_count));
    t->predicates = codec_take(c, ARRAY_BYTES(t, predicates, predicate_count));
    t->inputs = codec_take(c, inputs_bytes(t));
    t->choices = codec_take(c, ARRAY_BYTES(t, choices, choice_count));
  }
  for (int32_t i = 0; i < t->branch_count; i++) {
    dil_branch *b = (dil_branch *)&t->branches[i];
    branch_fields(c, b);
    if (c->reading) b->phase = codec_take(c, phase_bytes(t));
    codec_move(c, (void *)b->phase, phase_bytes(t));
  }
  for (int32_t i = 0; i < t->pass_count; i++)
    pass_fields(c, (dil_pass *)&t->passes[i]);
  for (int32_t i = 0; i < t->predicate_count; i++)
    predicate_fields(c, (dil_predicate *)&t->predicates[i]);
  for (int32_t i = 0; i < dil_table_reads(t); i++)
    input_fields(c, (dil_input *)&t->inputs[i]);
  for (int32_t i = 0; i < t->choice_count; i++)
    choice_fields(c, (dil_choice *)&t->choices[i]);
  codec_name(c, &t->name);
}

/* ---- writing ------------------------------------------------------------- */

/* FNV-1a: every step is one-to-one, so that no single byte changes unseen. */
static uint64_t sum_of(const char *bytes, size_t size) {
  uint64_t sum = 0xcbf29ce484222325;
  for (size_t i = 0; i < size; i++)
    sum = (sum ^ (unsigned char)bytes[i]) * 0x100000001b3;
  return sum;
}

static size_t write_fields(const dil_table *table, char *bytes, size_t size) {
  codec c = {.bytes = bytes, .size = size, .used = sizeof(head)};
  dil_table copy = *table;
  table_fields(&c, &copy);
  array_fields(&c, &copy);
  return c.used;
}

dil_status dil_plan_serialise(const dil_table *table, void **bytes,
                           size_t *size) {
  *size = write_fields(table, NULL, 0);
  char *serial = malloc(*size);
  *bytes = serial;
  if (!serial)
    return dil_fail(DIL_MEMORY, "no memory for %zu bytes of a plan", *size);
  write_fields(table, serial, *size);
  head h = {SERIAL_MAGIC, SERIAL_VERSION, *size,
            sum_of(serial + sizeof h, *size - sizeof h)};
  memcpy(serial, &h, sizeof h);
  return DIL_OK;
}

/* ---- what a run relies on ------------------------------------------------ */

static bool is_within(int64_t value, int64_t low, int64_t high) {
  return low <= value && value <= high;
}

static bool sizes_hold(const dil_table *t) {
  return is_within(t->heads, 1, DIL_HEADS_MAX) &&
         is_within(t->kv_heads, 1, t->heads) && t->heads % t->kv_heads == 0 &&
         is_within(t->head_dim, 1, DIL_HEAD_DIM_MAX) &&
         is_within(t->value_dim, 1, DIL_HEAD_DIM_MAX) &&
         is_within(t->dtype, DIL_F32, DIL_F16) &&
         is_within(t->combine, DIL_COMBINE_SOFTMAX, DIL_COMBINE_SUM) &&
         is_within(t->tile_keys, 32, 128) &&
         (t->runtime_scale || isfinite(t->scale)) && t->dropout >= 0 &&
         t->dropout < 1;
}

static bool grid_holds(const dil_grid *g) {
  bool good = g->axes == 0 || is_within(g->axes, 2, DIL_GRID_AXES);
  int64_t cells = 1;
  for (int32_t a = 0; good && a < g->axes; a++) {
    good = is_within(g->extent[a], a > 0, INT32_MAX);
    if (g->extent[a]) cells *= g->extent[a];
    good &= cells <= INT32_MAX;
  }
  return good;
}

static bool counts_hold(const dil_table *t) {
  return is_within(t->branch_count, 1, DIL_BRANCH_MAX) &&
         is_within(t->pass_count, 1, t->branch_count) &&
         is_within(t->input_count, 0, DIL_INPUT_MAX) &&
         is_within(t->made_count, 0, DIL_INPUT_MAX - t->input_count) &&
         is_within(t->choice_count, 0, t->branch_count) &&
         is_within(t->predicate_count, 0, DIL_PART_MAX) &&
         is_within(t->chain_count, 1, DIL_PART_MAX);
}

static bool reach_holds(const dil_table *t, const dil_reach *r) {
  for (int32_t a = 0; a < t->grid.axes; a++)
    if (r->dilation[a] < 1 || r->dilation[a] > INT32_MAX || r->kernel[a] < 1 ||
        r->left[a] < -INT32_MAX || r->right[a] < -INT32_MAX)
      return false;
  return true;
}

/* A list of keys is visited where no segment or residue leaves some out. */
static bool listed_holds(const dil_table *t, const dil_branch *b) {
  if (b->listed == -1) return b->rest == -1;
  return is_within(b->listed, t->input_count, dil_table_reads(t) - 1) &&
         t->inputs[b->listed].keys && b->segment == 0 && b->dilation == 1 &&
         is_within(b->rest, -1, t->predicate_count - 1);
}

static bool branch_holds(const dil_table *t, const dil_branch *b) {
  bool good = reach_holds(t, &b->reach) && b->segment >= 0 && b->dilation >= 1 &&
              is_within(b->head_first, 0, t->heads) &&
              is_within(b->head_last, b->head_first - 1, t->heads - 1) &&
              is_within(b->predicate, -1, t->predicate_count - 1) &&
              is_within(b->chain, 0, t->chain_count - 1) &&
              is_within(b->shift, 0, b->each ? b->dilation - 1 : 0) &&
              listed_holds(t, b);
  for (int32_t h = 0; good && h < t->heads; h++)
    good = is_within(b->phase[h], 0, b->dilation - 1);
  return good;
}

/* Each branch belongs to one pass; a period repeats all of its branches. */
static bool passes_hold(const dil_table *t) {
  uint64_t all = ~0ull >> (DIL_BRANCH_MAX - t->branch_count), seen = 0;
  for (int32_t i = 0; i < t->pass_count; i++) {
    const dil_pass *p = &t->passes[i];
    bool alone = (p->branches & (p->branches - 1)) == 0;
    if (!p->branches || p->branches & (seen | ~all)) return false;
    if (p->period < 1 || (!alone && p->period > DIL_PERIOD_MAX)) return false;
    for (uint64_t rest = p->branches; rest; rest &= rest - 1) {
      int64_t dilation = t->branches[__builtin_ctzll(rest)].dilation;
      if (alone ? p->period != dilation : p->period % dilation != 0)
        return false;
    }
    seen |= p->branches;
  }
  return seen == all;
}

/* A choice has three inputs that are made, and they have its blocks. */
static bool choice_holds(const dil_table *t, const dil_choice *c) {
  bool good = is_within(c->branch, 0, t->branch_count - 1) &&
              is_within(c->rows, t->input_count, dil_table_reads(t) - 3) &&
              is_within(c->estimate, 0, DIL_ESTIMATE_INPUT) && c->most > 0 &&
              c->query_block > 0 && c->block > 0 && c->left >= 0 &&
              c->right >= 0 && c->share >= 0 && c->share <= 1;
  if (!good) return false;
  const dil_input *made = &t->inputs[c->rows + 2];
  return made->rows == c->rows && made->cols == c->rows + 1 &&
         (c->estimate != DIL_ESTIMATE_INPUT ||
          (is_within(c->gate, 0, t->input_count - 1) &&
           t->inputs[c->gate].rank >= 2));
}

/* A table of the keys of a list has as many dimensions as the list. */
static bool key_table_holds(const dil_table *t, int32_t index) {
  const dil_input *in = &t->inputs[index];
  return in->dtype == DIL_U8 && in->rows == in->cols &&
         in->rows < t->input_count && t->inputs[in->rows].dtype == DIL_I32 &&
         t->inputs[in->rows].rank == in->rank;
}

/* Blocks of cells have an extent for each axis of the grid. */
static bool cells_hold(const dil_table *t, const dil_input *in) {
  int64_t size = 1;
  if (!in->cell[0]) return true;
  for (int32_t a = 0; a < t->grid.axes; a++) {
    int64_t extent = t->grid.extent[a];
    if (in->cell[a] < 1 || extent % in->cell[a] || size > in->block) return false;
    size *= in->cell[a];
  }
  return size == in->block;
}

/* A table that is made of lists has one dimension more than they. */
static bool input_holds(const dil_table *t, int32_t index) {
  const dil_input *in = &t->inputs[index];
  bool good = is_within(in->dtype, 0, DIL_DTYPE_COUNT - 1) &&
              is_within(in->rank, 1, DIL_RANK_MAX);
  if (index < t->input_count)
    return good && !in->rows && !in->cols && !in->keys;
  good = good && in->query_block > 0 && in->block > 0 && cells_hold(t, in);
  if (in->keys) return good && key_table_holds(t, index);
  if (!in->rows && !in->cols) return good && in->dtype == DIL_I32 && in->rank == 3;
  good = good && in->dtype == DIL_U8 && in->rows != in->cols && in->rank >= 2 &&
         in->rows < index && in->cols < index;
  return good && t->inputs[in->rows].rank + 1 == in->rank &&
         t->inputs[in->cols].rank + 1 == in->rank;
}

/* A window's bound may be negative, but then the other one is no less far. */
static bool predicate_holds(const dil_predicate *p) {
  const int64_t least = INT32_MIN;
  return p->left >= least && p->right >= least &&
         (p->left >= 0 || p->right >= -p->left) &&
         (p->right >= 0 || p->left >= -p->right) && p->key_first >= 0 &&
         p->key_end >= 0 && p->row_first >= 0 && p->row_end >= 0;
}

static bool arrays_hold(const dil_table *t) {
  bool good = true;
  for (int32_t i = 0; i < t->branch_count; i++)
    good &= branch_holds(t, &t->branches[i]);
  for (int32_t i = 0; i < t->predicate_count; i++)
    good &= predicate_holds(&t->predicates[i]);
  for (int32_t i = 0; i < dil_table_reads(t); i++)
    good &= input_holds(t, i);
  for (int32_t i = 0; good && i < t->choice_count; i++)
    good = choice_holds(t, &t->choices[i]);
  return good && passes_hold(t);
}

/* ---- reading ------------------------------------------------------------- */

static dil_status serial_damaged(const char *what) {
  return dil_fail(DIL_INPUT, "the image of a plan is damaged: %s", what);
}

static dil_status check_head(const void *bytes, size_t size) {
  head h;
  if (size < sizeof h) return serial_damaged("it is shorter than its head");
  memcpy(&h, bytes, sizeof h);
  if (h.magic != SERIAL_MAGIC) return serial_damaged("it is no image");
  if (h.version != SERIAL_VERSION)
    return dil_fail(DIL_INPUT, "the image of a plan has version %u, this "
                               "build reads %d",
                    h.version, SERIAL_VERSION);
  if (h.size != size) return serial_damaged("it has another size than it says");
  if (h.sum != sum_of((const char *)bytes + sizeof h, size - sizeof h))
    return serial_damaged("its sum is wrong");
  return DIL_OK;
}

/* Names take no more than the serialised plan's own bytes, and a NUL each. */
static size_t table_block_bytes(const dil_table *t, size_t serial) {
  return sizeof *t + ARRAY_BYTES(t, branches, branch_count) +
         ARRAY_BYTES(t, passes, pass_count) +
         ARRAY_BYTES(t, predicates, predicate_count) +
         inputs_bytes(t) + ARRAY_BYTES(t, choices, choice_count) +
         (size_t)t->branch_count * phase_bytes(t) + serial +
         (size_t)dil_table_reads(t) + 1;
}

static dil_status read_arrays(codec *c, const dil_table *fixed,
                              dil_table **table) {
  char *block = malloc(table_block_bytes(fixed, c->size));
  if (!block) return dil_fail(DIL_MEMORY, "no memory for a plan");
  dil_table *t = (dil_table *)block;
  *t = *fixed;
  c->block = block + sizeof *t;
  array_fields(c, t);
  bool good = !c->bad && c->used == c->size && arrays_hold(t);
  if (good) *table = t;
  else free(block);
  return good ? DIL_OK : serial_damaged("a part of it is none of a plan's");
}

dil_status dil_plan_deserialise(const void *bytes, size_t size,
                                dil_table **table) {
  codec c = {.reading = true,
             .bytes = (char *)bytes,
             .size = size,
             .used = sizeof(head)};
  dil_table fixed = {0};
  *table = NULL;
  dil_status status = check_head(bytes, size);
  if (status) return status;
  table_fields(&c, &fixed);
  if (c.bad || !sizes_hold(&fixed) || !grid_holds(&fixed.grid) ||
      !counts_hold(&fixed))
    return serial_damaged("its sizes are none of a plan's");
  return read_arrays(&c, &fixed, table);
}
