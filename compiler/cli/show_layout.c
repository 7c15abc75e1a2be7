/* show_layout.c - a mask on a canvas: title, axes with round numbers, cells as
 * few boxes as possible, and a legend. The same drawing serves SVG and PNG. */
#include "show.h"
#include <math.h>
#include <string.h>

/* All in units of the text size, so that pictures of any size look alike. */
static const double TEXT_SHARE = 1.0 / 40; /* of the plot's side */
#define LEFT   5.0
#define TOP    5.2
#define BOTTOM 4.4
#define GAP    2.0
#define LEGEND 25.0
#define TITLE  45.0
#define ENTRY  3.2 /* a line of the legend */
#define INK    0x1F2937
#define FAINT  0x6B7280
#define PAPER  0xFFFFFF
#define GROUND 0xEEF1F5
#define FRAME  0x9AA3AF

static double text_size(const show_layout *l) {
  double side = fmax(l->mask->rows, l->mask->columns) * l->scale;
  return side * TEXT_SHARE;
}

/* Lines of the legend: the head's branches, the overlap, the cells. */
static int32_t count_entries(const show_mask *m) {
  int32_t count = 2;
  for (int32_t b = 0; b < m->pattern->branch_count; b++)
    count += show_serves(m->pattern, b, m->head);
  return count;
}

show_layout show_layout_make(const show_mask *mask, double side) {
  double most = fmax(mask->rows, mask->columns);
  show_layout l = {.mask = mask, .scale = fmax(1, floor(side / most))};
  double em = text_size(&l);
  double plot = fmax(mask->rows * l.scale, count_entries(mask) * ENTRY * em);
  double wide = mask->columns * l.scale + (GAP + LEGEND) * em;
  l.width = ceil(LEFT * em + fmax(wide, TITLE * em));
  l.height = ceil((TOP + BOTTOM) * em + plot);
  return l;
}

/* Between the ground and the full colour, faint cells still visible. */
static uint32_t cell_colour(show_cell cell) {
  if (cell.branch == SHOW_NONE) return GROUND;
  double weight = cell.reach >= 1 ? 1 : 0.22 + 0.78 * sqrt(cell.reach);
  uint32_t colour = show_colour(cell.branch), mixed = 0;
  for (int32_t shift = 0; shift < 24; shift += 8) {
    double full = colour >> shift & 255,
           empty = (uint32_t)GROUND >> shift & 255;
    mixed |= (uint32_t)(empty + weight * (full - empty) + 0.5) << shift;
  }
  return mixed;
}

/* Covers the cells with boxes of one colour, each as wide and then as tall as
 * it can be. */
static void draw_cells(arena *a, const show_layout *l, show_canvas *canvas,
                       double left, double top) {
  const show_mask *m = l->mask;
  int64_t count = (int64_t)m->rows * m->columns;
  uint32_t *colour = ARENA_ARRAY(a, uint32_t, count);
  for (int64_t i = 0; i < count; i++) colour[i] = cell_colour(m->cell[i]);
  for (int64_t i = 0; i < count; i++) {
    if (colour[i] == GROUND) continue;
    int64_t row = i / m->columns, column = i % m->columns;
    int64_t wide = 1, tall = 1;
    while (column + wide < m->columns && colour[i + wide] == colour[i]) wide++;
    for (bool same = true; same && row + tall < m->rows; tall += same)
      for (int64_t c = 0; c < wide; c++)
        same &= colour[i + tall * m->columns + c] == colour[i];
    canvas->box(canvas, left + (double)column * l->scale,
                top + (double)row * l->scale, (double)wide * l->scale,
                (double)tall * l->scale, colour[i]);
    uint32_t done = colour[i];
    for (int64_t r = 0; r < tall; r++)
      for (int64_t c = 0; c < wide; c++)
        if (colour[i + r * m->columns + c] == done)
          colour[i + r * m->columns + c] = GROUND;
  }
}

/* A round step (1, 2 or 5 times ten, or a power of two) that cuts `length`
 * into at most eight pieces. */
static int64_t tick_step(int64_t length) {
  static const int64_t tens[] = {1, 2, 5};
  bool binary = (length & (length - 1)) == 0;
  for (int32_t i = 0; i < 62; i++) {
    int64_t step =
        binary ? (int64_t)1 << i : tens[i % 3] * (int64_t)pow(10, i / 3);
    if (length / step <= 8) return step;
  }
  return length;
}

/* 131072 is 128Ki; a number that is no multiple of 1024 stays as it is. */
static const char *tick_text(arena *a, int64_t position) {
  if (position >= 1 << 20 && position % (1 << 20) == 0)
    return arena_print(a, "%lldMi", (long long)position >> 20);
  if (position >= 1 << 14 && position % (1 << 10) == 0)
    return arena_print(a, "%lldKi", (long long)position >> 10);
  return arena_print(a, "%lld", (long long)position);
}

static void draw_axis(arena *a, const show_layout *l, show_canvas *canvas,
                      double left, double top, bool keys) {
  const show_mask *m = l->mask;
  int64_t length = keys ? m->M : m->N;
  double side = (keys ? m->columns : m->rows) * l->scale, em = text_size(l);
  double line = fmax(1, floor(em / 12)), tick = em * 0.4;
  int64_t step = tick_step(length);
  while (side * (double)step < em * 2 * (double)length && step < length)
    step *= 2; /* thin plots: no tick over another */
  if (side < em * 2) step = length + 1;
  for (int64_t at = 0; at <= length; at += step) {
    double place = side * (double)at / (double)length;
    const char *text = tick_text(a, at);
    if (keys) {
      double bottom = top + m->rows * l->scale;
      canvas->box(canvas, left + place - line / 2, bottom, line, tick, FRAME);
      canvas->text(canvas, left + place, bottom + tick + em * 1.1, em * 0.85,
                   SHOW_MIDDLE, false, FAINT, text);
    } else {
      canvas->box(canvas, left - tick, top + place - line / 2, tick, line,
                  FRAME);
      canvas->text(canvas, left - tick - em * 0.3, top + place + em * 0.3,
                   em * 0.85, SHOW_RIGHT, false, FAINT, text);
    }
  }
}

static void draw_frame(const show_layout *l, show_canvas *canvas, double left,
                       double top) {
  bool cells = l->mask->query >= 0;
  double em = text_size(l), line = fmax(1, floor(em / 12));
  double width = l->mask->columns * l->scale, height = l->mask->rows * l->scale;
  canvas->box(canvas, left - line, top - line, width + 2 * line, line, FRAME);
  canvas->box(canvas, left - line, top + height, width + 2 * line, line, FRAME);
  canvas->box(canvas, left - line, top, line, height, FRAME);
  canvas->box(canvas, left + width, top, line, height, FRAME);
  canvas->text(canvas, left + width / 2, top + height + em * 3.4, em,
               SHOW_MIDDLE, false, INK, cells ? "x" : "key position");
  const char *rows = l->mask->N == l->mask->M ? "query position" : "query row";
  if (cells) rows = l->mask->pattern->grid.axes == 2 ? "y" : "z, y";
  if (height > em * 10)
    canvas->text(canvas, em * 1.5, top + height / 2, em, SHOW_MIDDLE, true,
                 INK, rows);
}

static void draw_title(arena *a, const show_layout *l, show_canvas *canvas,
                       double left) {
  static const char *const combine[] = {"softmax over", "union of", "mean of",
                                        "sum of"};
  const show_mask *m = l->mask;
  double em = text_size(l);
  canvas->text(canvas, left, em * 2.1, em * 1.6, SHOW_LEFT, false, INK,
               arena_print(a, "%s, head %lld of %lld", m->pattern->name,
                           (long long)m->head, (long long)m->pattern->heads));
  if (m->query >= 0) {
    canvas->text(canvas, left, em * 3.9, em, SHOW_LEFT, false, FAINT,
                 arena_print(a, "%s, %.3g %% of the grid",
                             show_query_text(a, m), 100 * m->reach));
    return;
  }
  canvas->text(
      canvas, left, em * 3.9, em, SHOW_LEFT, false, FAINT,
      arena_print(a,
                  "%lld quer%s by %lld key%s, %s %s, %.3g %% of all "
                  "pairs",
                  (long long)m->N, m->N == 1 ? "y" : "ies",
                  (long long)m->M, m->M == 1 ? "" : "s",
                  combine[m->pattern->combine],
                  m->pattern->branch_count == 1 ? "one branch" : "the branches",
                  100 * m->reach));
}

/* A swatch, where some cell has that colour; a name with its share; and under
 * it in small print what it is. */
static double draw_entry(arena *a, const show_layout *l, show_canvas *canvas,
                         double x, double y, int32_t which, const char *name,
                         double share, const char *note) {
  double em = text_size(l);
  bool shown = l->mask->shown[which];
  if (shown) canvas->box(canvas, x, y, em * 1.1, em * 1.1, show_colour(which));
  canvas->text(canvas, x + em * 1.8, y + em * 0.9, em, SHOW_LEFT, false,
               shown ? INK : FAINT,
               arena_print(a, "%s, %.3g %%%s", name, 100 * share,
                           shown ? "" : ", most of no cell"));
  canvas->text(canvas, x + em * 1.8, y + em * 2.2, em * 0.8, SHOW_LEFT, false,
               FAINT, note);
  return y + em * ENTRY;
}

static void draw_legend(arena *a, const show_layout *l, show_canvas *canvas,
                        double x, double y) {
  const show_mask *m = l->mask;
  double em = text_size(l);
  for (int32_t b = 0; b < m->pattern->branch_count; b++) {
    if (!show_serves(m->pattern, b, m->head)) continue;
    char *name = show_branch_text(a, m->pattern, b, m->head);
    char *note = strchr(name, ':');
    *note = 0;
    y = draw_entry(a, l, canvas, x, y, b, name, m->share[b], note + 2);
  }
  if (m->overlap > 0)
    y = draw_entry(a, l, canvas, x, y, SHOW_OVERLAP, "overlap", m->overlap,
                   "reached by two branches or more");
  double high = (double)m->N / m->rows, wide = (double)m->M / m->columns;
  if (high > 1 || wide > 1)
    canvas->text(canvas, x, y + em, em * 0.8, SHOW_LEFT, false, FAINT,
                 arena_print(a,
                             "a cell is %.4g x %.4g pairs; pale: few "
                             "of them",
                             high, wide));
  if (high > SHOW_POINTS || wide > SHOW_POINTS)
    canvas->text(canvas, x, y + em * 2.3, em * 0.8, SHOW_LEFT, false, FAINT,
                 "some are looked at: borders within cells waver");
}

void show_layout_draw(arena *a, const show_layout *l, show_canvas *canvas) {
  const show_mask *m = l->mask;
  double em = text_size(l), left = ceil(LEFT * em), top = ceil(TOP * em);
  double width = m->columns * l->scale, height = m->rows * l->scale;
  canvas->box(canvas, 0, 0, l->width, l->height, PAPER);
  canvas->box(canvas, left, top, width, height, GROUND);
  draw_title(a, l, canvas, left);
  draw_cells(a, l, canvas, left, top);
  draw_frame(l, canvas, left, top);
  draw_axis(a, l, canvas, left, top, true);
  draw_axis(a, l, canvas, left, top, false);
  draw_legend(a, l, canvas, left + width + GAP * em, top);
}
