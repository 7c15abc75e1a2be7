/* show.c - which queries attend to which keys, as a grid of cells. In: a
 * pattern, a head and the lengths. Out: for each cell the branch that reaches
 * most of its pairs and how many it reaches; small masks exactly, pair by pair,
 * large ones by pairs taken at random inside each cell, always the same
 * ones. */
#include "show.h"
#include "compiler/analysis/cover.h"
#include "runtime/base/status.h"
#include <ctype.h>
#include <math.h>
#include <string.h>

enum { POINTS = SHOW_POINTS };

typedef struct sampler {
  show_mask *mask;
  const expr_point *point;
  double *tally; /* [rows][branches + 2]: by branch, reached, overlapping */
} sampler;

bool show_serves(const pattern *p, int32_t index, int64_t head) {
  const branch *b = &p->branch[index];
  return head >= b->head_first && head <= b->head_last;
}

/* A number in [0, 1) that depends on nothing but its arguments. */
static double point_jitter(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15u + b * 0xD1B54A32D192ED03u + 1;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}

/* The positions of cell `index` of `cells` over 0..length-1: all of them where
 * there are few, else one of each residue mod POINTS, spread over the cell, so
 * that dilations that divide POINTS are met as often as they should be. */
static int32_t choose_points(int64_t length, int32_t cells, int32_t index,
                             uint64_t salt, int64_t *point) {
  int64_t low = length * index / cells, high = length * (index + 1) / cells;
  if (high - low <= POINTS) {
    for (int64_t i = low; i < high; i++) point[i - low] = i;
    return (int32_t)(high - low);
  }
  int32_t turn = (int32_t)(point_jitter((uint64_t)index, ~salt) * POINTS);
  for (int32_t i = 0; i < POINTS; i++) {
    int64_t rounds = (high - low - i + POINTS - 1) / POINTS;
    int32_t stretch = (5 * i + turn) % POINTS;
    double place =
        stretch + point_jitter((uint64_t)index * POINTS + (uint64_t)i, salt);
    point[i] = low + i + POINTS * (int64_t)(place / POINTS * (double)rounds);
  }
  return POINTS;
}

/* Returns how many branches reach the pair, and counts the pair in hits[b] of
 * each of them. */
static int32_t count_hits(const sampler *s, int64_t t, int64_t j,
                          double *hits) {
  const show_mask *m = s->mask;
  int32_t count = 0;
  for (int32_t b = 0; b < m->pattern->branch_count; b++) {
    if (!show_serves(m->pattern, b, m->head)) continue;
    if (!pattern_reaches(m->pattern, b, m->head, t, j, s->point)) continue;
    hits[b]++;
    count++;
  }
  return count;
}

/* The colour of a cell: overlap where two branches reach most of its pairs, or
 * else the branch that reaches most. */
static uint8_t choose_branch(const show_mask *m, const double *hits,
                             double reach, double overlap) {
  int32_t which = 0;
  if (reach == 0) return SHOW_NONE;
  if (2 * overlap > reach) return SHOW_OVERLAP;
  for (int32_t b = 1; b < m->pattern->branch_count; b++)
    if (hits[b] > hits[which]) which = b;
  return (uint8_t)which;
}

static void judge_cell(const sampler *s, int32_t row, int32_t column,
                       double *tally) {
  const show_mask *m = s->mask;
  int32_t count = m->pattern->branch_count;
  double hits[DIL_BRANCH_MAX] = {0};
  double reach = 0, overlap = 0;
  int64_t n[POINTS], j[POINTS];
  int32_t rows = choose_points(m->N, m->rows, row, (uint64_t)column * 2, n);
  int32_t columns =
      choose_points(m->M, m->columns, column, (uint64_t)row * 2 + 1, j);
  for (int32_t r = 0; r < rows; r++)
    for (int32_t c = 0; c < columns; c++) {
      bool all = m->query < 0;
      int64_t t = all ? n[r] + m->M - m->N : m->query;
      int32_t found = count_hits(s, t, all ? j[c] : n[r] * m->M + j[c], hits);
      reach += found > 0;
      overlap += found > 1;
    }
  double pairs = (double)rows * columns;
  for (int32_t b = 0; b < count; b++) tally[b] += hits[b] / pairs;
  tally[count] += reach / pairs;
  tally[count + 1] += overlap / pairs;
  m->cell[(int64_t)row * m->columns + column] = (show_cell){
      (float)(reach / pairs), choose_branch(m, hits, reach, overlap)};
}

static void judge_row(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const sampler *s = context;
  double *tally = s->tally + index * (s->mask->pattern->branch_count + 2);
  for (int32_t c = 0; c < s->mask->columns; c++)
    judge_cell(s, (int32_t)index, c, tally);
}

static void sum_tallies(arena *a, const sampler *s) {
  show_mask *m = s->mask;
  int32_t count = m->pattern->branch_count;
  double cells = (double)m->rows * m->columns;
  m->share = ARENA_ARRAY(a, double, count);
  for (int32_t r = 0; r < m->rows; r++) {
    const double *tally = s->tally + (int64_t)r * (count + 2);
    for (int32_t b = 0; b < count; b++) m->share[b] += tally[b] / cells;
    m->reach += tally[count] / cells;
    m->overlap += tally[count + 1] / cells;
  }
}

static void note_shown(arena *a, show_mask *m) {
  int64_t count = (int64_t)m->rows * m->columns;
  m->shown = ARENA_ARRAY(a, bool, SHOW_NONE + 1);
  for (int64_t i = 0; i < count; i++) m->shown[m->cell[i].branch] = true;
}

static int32_t smaller_length(int64_t length, int32_t limit) {
  return length < limit ? (int32_t)length : limit;
}

static dil_status check_shown(const pattern *p, int64_t head, int64_t N,
                              int64_t M) {
  if (N < 1 || M < 1)
    return dil_fail(DIL_USAGE,
                    "there is nothing to show with %lld queries "
                    "and %lld keys",
                    (long long)N, (long long)M);
  if (head < 0 || head >= p->heads)
    return dil_fail(DIL_USAGE, "pattern '%s' has heads 0..%lld, not %lld",
                    p->name, (long long)p->heads - 1, (long long)head);
  return DIL_OK;
}

/* Judges the cells of a mask whose lengths are known. */
static dil_status fill_cells(arena *a, int32_t limit, const expr_point *point,
                             dil_threads *threads, show_mask *mask) {
  const pattern *p = mask->pattern;
  int32_t rows = mask->rows = smaller_length(mask->N, limit);
  mask->columns = smaller_length(mask->M, limit);
  mask->cell = ARENA_ARRAY(a, show_cell, (int64_t)rows * mask->columns);
  sampler s = {mask, point,
               ARENA_ARRAY(a, double, (int64_t)rows *(p->branch_count + 2))};
  dil_status status = DIL_OK;
  if (threads)
    status = dil_threads_run(threads, rows, judge_row, &s);
  else
    for (int32_t r = 0; r < rows; r++) judge_row(&s, r, 0);
  if (status) return status;
  sum_tallies(a, &s);
  note_shown(a, mask);
  return DIL_OK;
}

dil_status show_mask_make(arena *a, const pattern *p, int64_t head, int64_t N,
                          int64_t M, int32_t limit, const expr_point *point,
                          dil_threads *threads, show_mask *mask) {
  dil_status status = check_shown(p, head, N, M);
  *mask = (show_mask){.pattern = p, .head = head, .N = N, .M = M, .query = -1};
  return status ? status : fill_cells(a, limit, point, threads, mask);
}

dil_status show_grid_make(arena *a, const pattern *p, int64_t head,
                          int64_t query, int64_t M, int32_t limit,
                          const expr_point *point, dil_threads *threads,
                          show_mask *mask) {
  int64_t across = p->grid.extent[p->grid.axes - 1];
  dil_status status = check_shown(p, head, M, M);
  if (!status && (query < 0 || query >= M))
    status = dil_fail(DIL_USAGE, "the grid has cells 0..%lld, not %lld",
                      (long long)M - 1, (long long)query);
  *mask = (show_mask){.pattern = p, .head = head, .N = M / across, .M = across,
                      .query = query};
  return status ? status : fill_cells(a, limit, point, threads, mask);
}

/* ---- words and colours --------------------------------------------------- */

uint32_t show_colour(int32_t which) {
  static const uint32_t colours[] = {0x3B78D8, 0xF28E2B, 0x2BA363, 0xB455C6,
                                     0xE4505F, 0x12A5B8, 0xC79A00, 0x8A6BEA,
                                     0x9C6B4E, 0x6B8E23};
  if (which == SHOW_OVERLAP) return 0x1F2A44;
  return colours[which % (int32_t)(sizeof colours / sizeof *colours)];
}

/* One letter for each branch, no two the same: [branches] and a NUL. */
static char *letters_of(arena *a, const pattern *p) {
  static const char all[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789*+";
  char *letters = ARENA_ARRAY(a, char, p->branch_count + 1);
  for (int32_t b = 0; b < p->branch_count; b++) {
    const char *name = p->branch[b].name ? p->branch[b].name : "";
    while (*name && (!isalnum((unsigned char)*name) || strchr(letters, *name)))
      name++;
    const char *spare = all;
    while (strchr(letters, *spare)) spare++;
    letters[b] = *name ? *name : *spare;
  }
  return letters;
}

static char *window_text(arena *a, const branch *b) {
  if (b->left == DIL_ENDLESS && b->right == DIL_ENDLESS) return "";
  char *left = b->left == DIL_ENDLESS
                   ? "inf"
                   : arena_print(a, "%lld", (long long)b->left);
  char *right = b->right == DIL_ENDLESS
                    ? "inf"
                    : arena_print(a, "%lld", (long long)b->right);
  return arena_print(a, ", window %s, %s", left, right);
}

static char *phase_text(arena *a, const branch *b, int64_t head) {
  if (!branch_has_each(b)) return arena_print(a, "phase %d", b->phase[head]);
  if (!b->shift) return "phase each";
  return arena_print(a, "phase each - %lld", (long long)b->shift);
}

char *show_branch_text(arena *a, const pattern *p, int32_t index,
                       int64_t head) {
  const branch *b = &p->branch[index];
  bool masked = b->mask_count > b->reach.mask_count || b->keeps[0].count ||
                b->keeps[1].count;
  char *name = b->name ? arena_print(a, "%s", b->name)
                       : arena_print(a, "branch %d", index);
  if (p->grid.axes)
    return arena_print(a, "%s: %s%s", name, pattern_reach_text(a, p, index),
                       masked ? ", masked" : "");
  char *segment = b->segment
                      ? arena_print(a, "segment %lld", (long long)b->segment)
                      : "whole sequence";
  char *dilation = b->dilation > 1
                       ? arena_print(a, ", dilation %lld, %s",
                                     (long long)b->dilation,
                                     phase_text(a, b, head))
                       : "";
  return arena_print(a, "%s: %s%s%s%s%s", name, segment, dilation,
                     window_text(a, b), b->causal ? ", causal" : "",
                     masked ? ", masked" : "");
}

char *show_query_text(arena *a, const show_mask *m) {
  const grid *g = &m->pattern->grid;
  char *cell = "";
  int64_t rest = m->query;
  for (int32_t axis = 0; axis < g->axes; axis++) {
    int64_t stride = grid_stride(g, axis);
    cell = arena_print(a, "%s%s%lld", cell, axis ? ", " : "",
                       (long long)(rest / stride));
    rest %= stride;
  }
  return arena_print(a, "the keys of query (%s)", cell);
}

/* ---- text ---------------------------------------------------------------- */

static void print_cell(int32_t which, char letter, bool colours, FILE *out) {
  if (!colours) {
    fputc(letter, out);
    return;
  }
  if (which == SHOW_NONE)
    fprintf(out, "\033[90m%c", letter);
  else if (which == SHOW_OVERLAP)
    fprintf(out, "\033[0;1;7m%c\033[0m", letter);
  else {
    uint32_t c = show_colour(which);
    fprintf(out, "\033[0;38;2;%u;%u;%um%c", c >> 16, c >> 8 & 255, c & 255,
            letter);
  }
}

static void print_legend(arena *a, const show_mask *m, const char *letters,
                         bool colours, FILE *out) {
  static const char hidden[] = ", most of no character";
  for (int32_t b = 0; b < m->pattern->branch_count; b++) {
    if (!show_serves(m->pattern, b, m->head)) continue;
    fputs("  ", out);
    print_cell(b, m->shown[b] ? letters[b] : ' ', colours, out);
    fprintf(out, "%s  %s: %.3g %%%s\n", colours ? "\033[0m" : "",
            show_branch_text(a, m->pattern, b, m->head), 100 * m->share[b],
            m->shown[b] ? "" : hidden);
  }
  if (m->overlap > 0)
    fprintf(out, "  %c  two branches or more: %.3g %%%s\n",
            m->shown[SHOW_OVERLAP] ? '#' : ' ', 100 * m->overlap,
            m->shown[SHOW_OVERLAP] ? "" : hidden);
  /* sums of shares are exact but for the last digits of a double */
  fprintf(out, "  .  none: %.3g %%\n", fmax(0, 100 - 100 * m->reach - 1e-9));
}

void show_text(arena *a, const show_mask *m, bool colours, FILE *out) {
  const char *letters = letters_of(a, m->pattern);
  fprintf(out, "%s, head %lld: ", m->pattern->name, (long long)m->head);
  if (m->query < 0)
    fprintf(out, "%lld queries (down) by %lld keys (across)\n",
            (long long)m->N, (long long)m->M);
  else
    fprintf(out, "%s in a grid of %lld by %lld cells\n",
            show_query_text(a, m), (long long)m->N, (long long)m->M);
  for (int32_t r = 0; r < m->rows; r++) {
    fputs("  ", out);
    for (int32_t c = 0; c < m->columns; c++) {
      int32_t which = m->cell[(int64_t)r * m->columns + c].branch;
      char letter = which == SHOW_NONE      ? '.'
                    : which == SHOW_OVERLAP ? '#'
                                            : letters[which];
      print_cell(which, letter, colours, out);
    }
    fputs(colours ? "\033[0m\n" : "\n", out);
  }
  double high = (double)m->N / m->rows, wide = (double)m->M / m->columns;
  if (high > 1 || wide > 1)
    fprintf(out,
            "  a character is %.4g by %.4g %s%s; it names the branch with "
            "most of them\n",
            high, wide, m->query < 0 ? "pairs" : "cells",
            high > POINTS || wide > POINTS ? ", of which some are looked at"
                                           : "");
  print_legend(a, m, letters, colours, out);
}
