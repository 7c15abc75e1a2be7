/* walk.c - cells, classes and rows: the arithmetic of a pass.
 *
 * In: the plan's table, a head, positions of rows in either role. Out: where a
 * cell ends, which rows of it the same branches select, and how many there are.
 * No table has the size of the sequence. */
#include "walk.h"
#include "runtime/base/arithmetic.h"
#include <string.h>

size_t class_table_size(int64_t period) {
  size_t p = (size_t)period;
  return DIL_BRANCH_MAX * sizeof(int64_t) + p * sizeof(uint64_t) +
         (2 * p + 1) * sizeof(int32_t) + 64;
}

void class_table_init(class_table *s, int64_t period, void *memory) {
  *s = (class_table){.period = period, .step = 1, .residue = memory,
                     .listed = -1};
  s->branches = (uint64_t *)(s->residue + DIL_BRANCH_MAX);
  s->first = (int32_t *)(s->branches + period);
  s->offset = s->first + period + 1;
}

void class_table_reset(class_table *s, const dil_progression *progression) {
  s->count = 0;
  s->step = progression->step;
  s->origin = progression->first;
}

/* A period that no cell reaches makes the list one period's offsets. */
void class_table_list(class_table *s, int32_t *positions, int32_t count) {
  s->listed = count;
  s->offset = positions;
  s->period = INT32_MAX;
}

/* The one class of a list. */
static void class_table_classify_list(class_table *s, uint64_t branches) {
  s->count = 1;
  s->branches[0] = branches;
  s->first[0] = 0;
  s->first[1] = s->listed;
}

/* A pass fills tiles while its period is at most this, and the shortest segment
 * still has this many rows of each residue: a tile of queries. So do windows of
 * branches that would select every row of such a tile alone. */
enum { FUSE_PERIOD = 64, FUSE_ROWS = 32 };

int64_t walk_period(const dil_table *table, uint64_t branches) {
  int64_t period = 1;
  for (; branches; branches &= branches - 1)
    period = least_multiple(
        period, table->branches[__builtin_ctzll(branches)].dilation);
  return period;
}

/* Positions of a row's window; INT64_MAX: it has no end. */
static int64_t window_of(const dil_table *table, const dil_branch *b) {
  const dil_predicate *p =
      b->predicate < 0 ? NULL : &table->predicates[b->predicate];
  if (!p || p->left == DIL_ENDLESS || p->right == DIL_ENDLESS)
    return INT64_MAX;
  return p->left + p->right + 1;
}

bool walk_fills_tiles(const dil_table *table, uint64_t branches) {
  int64_t shortest = INT64_MAX, period = walk_period(table, branches);
  if (period > FUSE_PERIOD) return false;
  for (; branches; branches &= branches - 1) {
    const dil_branch *b = &table->branches[__builtin_ctzll(branches)];
    if (b->segment) shortest = minimum(shortest, b->segment);
    if (b->dilation < period) shortest = minimum(shortest, window_of(table, b));
  }
  return shortest / period >= FUSE_ROWS;
}

uint64_t walk_served(const dil_table *table, const dil_pass *pass,
                     int32_t head) {
  uint64_t served = 0;
  for (int32_t b = 0; b < table->branch_count; b++) {
    const dil_branch *branch = &table->branches[b];
    if ((pass->branches >> b & 1) && branch->head_first <= head &&
        head <= branch->head_last)
      served |= 1ull << b;
  }
  return served;
}

static bool walk_selects(const dil_branch *b, int32_t head, int64_t t) {
  if (head < b->head_first || head > b->head_last) return false;
  if (t < 0 && b->segment) return false;
  if (b->each) return true;
  int64_t inside = b->segment ? floor_mod(t, b->segment) : t;
  return floor_mod(inside - b->phase[head], b->dilation) == 0;
}

uint64_t walk_selecting(const dil_table *table, uint64_t among, int32_t head,
                        int64_t t) {
  uint64_t selected = 0;
  for (int32_t b = 0; b < table->branch_count; b++)
    if (among >> b & 1 && walk_selects(&table->branches[b], head, t))
      selected |= 1ull << b;
  return selected;
}

/* A cell ends at the first position after t where some branch begins a
 * segment. Only branches without segments select rows before position 0. */
segment_cell walk_cell(const walk *w, int64_t t, int64_t high) {
  if (t < 0) return (segment_cell){t, minimum(high, 0)};
  for (uint64_t rest = w->served; rest; rest &= rest - 1) {
    int64_t s = w->table->branches[__builtin_ctzll(rest)].segment;
    if (s) high = minimum(high, floor_to(t, s) + s);
  }
  return (segment_cell){t, high};
}

/* The offset in the cell of a branch's first selected row. */
static int64_t walk_first_selected(const walk *w, int32_t b, segment_cell c) {
  const dil_branch *branch = &w->table->branches[b];
  int64_t base = branch->segment ? floor_to(c.low, branch->segment) : 0;
  return floor_mod(base + branch->phase[w->head] - c.low, branch->dilation);
}

/* The branches that serve the head and can select rows of the cell. */
static uint64_t walk_living(const walk *w, segment_cell c) {
  uint64_t alive = w->served;
  for (uint64_t rest = w->served; rest && c.low < 0; rest &= rest - 1) {
    int32_t b = __builtin_ctzll(rest);
    if (w->table->branches[b].segment) alive &= ~(1ull << b);
  }
  return alive;
}

/* The branches that select the row at an offset; 0 where there is no row. */
static uint64_t class_table_selecting(const walk *w, const class_table *s,
                                      int64_t offset) {
  uint64_t mask = 0;
  if (offset % s->step != s->phase) return 0;
  for (uint64_t rest = s->served; rest; rest &= rest - 1) {
    int32_t b = __builtin_ctzll(rest);
    int64_t r = w->table->branches[b].dilation;
    bool each = w->table->branches[b].each;
    if (each || offset % r == s->residue[b]) mask |= 1ull << b;
  }
  return mask;
}

/* The class of these branches that has the residue of offset o; s->count: there
 * is none yet. */
static int32_t class_table_find(const class_table *s, uint64_t mask,
                                int64_t o) {
  int32_t c = 0;
  if (s->modulus >= s->period && mask) return s->count;
  while (c < s->count &&
         (s->branches[c] != mask ||
          (mask && (o - s->offset[s->first[c]]) % s->modulus)))
    c++;
  return c;
}

/* Groups the offsets of one period by the branches that select them. */
static void class_table_classify(const walk *w, class_table *s) {
  int32_t filled = 0;
  s->count = 0;
  for (int64_t o = 0; o < s->period; o++) {
    uint64_t mask = class_table_selecting(w, s, o);
    int32_t c = class_table_find(s, mask, o);
    if (c == s->count) {
      s->branches[c] = mask;
      s->first[c] = filled;
      s->count++;
    }
    int32_t place = c + 1 < s->count ? s->first[c + 1] : filled;
    memmove(s->offset + place + 1, s->offset + place,
            (size_t)(filled - place) * sizeof *s->offset);
    s->offset[place] = (int32_t)o;
    for (int32_t later = c + 1; later < s->count; later++) s->first[later]++;
    filled++;
  }
  s->first[s->count] = filled;
}

/* The least common multiple of the dilations of branches with every phase. */
static int64_t walk_modulus(const dil_table *table, uint64_t branches) {
  int64_t modulus = 1;
  for (; branches; branches &= branches - 1) {
    const dil_branch *b = &table->branches[__builtin_ctzll(branches)];
    if (b->each) modulus = least_multiple(modulus, b->dilation);
  }
  return modulus;
}

void walk_classes(const walk *w, segment_cell c, class_table *s) {
  uint64_t served = walk_living(w, c);
  if (s->listed >= 0) {
    class_table_classify_list(s, served);
    return;
  }
  int64_t phase = floor_mod(s->origin - c.low, s->step);
  bool same = s->count > 0 && served == s->served && phase == s->phase;
  for (uint64_t rest = served; rest; rest &= rest - 1) {
    int32_t b = __builtin_ctzll(rest);
    int64_t residue = walk_first_selected(w, b, c);
    if (!same || residue != s->residue[b]) same = false;
    s->residue[b] = residue;
  }
  s->served = served;
  s->phase = phase;
  s->modulus = walk_modulus(w->table, served);
  if (!same) class_table_classify(w, s);
}

uint64_t walk_together(const walk *w, segment_cell held, segment_cell streamed,
                       uint64_t among) {
  for (uint64_t rest = among; rest; rest &= rest - 1) {
    int32_t i = __builtin_ctzll(rest);
    int64_t s = w->table->branches[i].segment;
    if (s && floor_to(held.low, s) != floor_to(streamed.low, s))
      among &= ~(1ull << i);
  }
  return among;
}

uint64_t walk_meeting(const walk *w, uint64_t among, int64_t t, int64_t j) {
  for (uint64_t rest = among; rest; rest &= rest - 1) {
    int32_t i = __builtin_ctzll(rest);
    const dil_branch *b = &w->table->branches[i];
    if (b->each && floor_mod(t - j - b->shift, b->dilation))
      among &= ~(1ull << i);
  }
  return among;
}

int64_t class_table_rows(const class_table *s, int32_t c, int64_t length) {
  if (length <= 0) return 0;
  int32_t begin = s->first[c], end = s->first[c + 1];
  int64_t rest = length % s->period;
  int32_t low = begin, high = end;
  while (low < high) {
    int32_t middle = (low + high) / 2;
    if (s->offset[middle] < rest) low = middle + 1;
    else high = middle;
  }
  return length / s->period * (end - begin) + (low - begin);
}

int64_t class_table_row(const class_table *s, int32_t c, int64_t n) {
  int32_t begin = s->first[c], count = s->first[c + 1] - begin;
  if (count == 1) return n * s->period + s->offset[begin];
  return n / count * s->period + s->offset[begin + n % count];
}

int64_t walk_packed_rows(const walk *w, segment_cell c, const class_table *s) {
  int64_t packed = 0;
  for (int32_t i = 0; i < s->count; i++)
    if (s->branches[i])
      packed += round_up(class_table_rows(s, i, c.high - c.low), w->round);
  return packed;
}
