/* show_png.c - a canvas that is a PNG file. Boxes are filled; letters are
 * drawn with a round pen along the dots of show_font.def, smoothed at their
 * edges. */
#include "show.h"
#include "runtime/base/status.h"
#include <math.h>
#include <png.h>
#include <string.h>

typedef struct png_canvas {
  show_canvas canvas; /* first: the canvas is the png_canvas */
  int32_t width, height;
  uint8_t *pixel; /* [height][width][3] */
} png_canvas;

enum { GLYPH_COLUMNS = 5, GLYPH_ROWS = 8, GLYPH_STEP = 6, GLYPH_BASE = 7 };

static const uint8_t glyphs[][GLYPH_COLUMNS] = {
#define GLYPH(a, b, c, d, e) {a, b, c, d, e},
#include "show_font.def"
#undef GLYPH
};

static void blend_pixel(png_canvas *p, int32_t x, int32_t y, uint32_t colour,
                        double weight) {
  if (x < 0 || y < 0 || x >= p->width || y >= p->height || weight <= 0) return;
  uint8_t *to = p->pixel + 3 * ((int64_t)y * p->width + x);
  for (int32_t i = 0; i < 3; i++) {
    double full = colour >> (16 - 8 * i) & 255;
    to[i] = (uint8_t)(to[i] + fmin(weight, 1) * (full - to[i]) + 0.5);
  }
}

static void png_paint_box(show_canvas *canvas, double x, double y, double width,
                          double height, uint32_t colour) {
  int32_t right = (int32_t)lround(x + width);
  int32_t bottom = (int32_t)lround(y + height);
  for (int32_t row = (int32_t)lround(y); row < bottom; row++)
    for (int32_t column = (int32_t)lround(x); column < right; column++)
      blend_pixel((png_canvas *)canvas, column, row, colour, 1);
}

/* ---- letters ------------------------------------------------------------- */

static bool has_dot(const uint8_t *glyph, int32_t column, int32_t row) {
  return column >= 0 && column < GLYPH_COLUMNS && row >= 0 &&
         row < GLYPH_ROWS && glyph[column] >> row & 1;
}

/* From (x, y) to the line between two points. */
static double line_distance(double x, double y, double x0, double y0, double x1,
                            double y1) {
  double dx = x1 - x0, dy = y1 - y0, length = dx * dx + dy * dy;
  double along = length > 0 ? ((x - x0) * dx + (y - y0) * dy) / length : 0;
  along = fmin(fmax(along, 0), 1);
  return hypot(x - x0 - along * dx, y - y0 - along * dy);
}

/* From (x, y) to the strokes that leave dot (column, row) rightward, downward
 * and along the diagonals that no straight pair of strokes already makes. */
static double dot_distance(const uint8_t *glyph, int32_t column, int32_t row,
                           double x, double y) {
  static const int32_t way[4][2] = {{1, 0}, {0, 1}, {1, 1}, {1, -1}};
  double least = line_distance(x, y, column, row, column, row);
  for (int32_t w = 0; w < 4; w++) {
    int32_t c = column + way[w][0], r = row + way[w][1];
    if (!has_dot(glyph, c, r)) continue;
    bool diagonal = w >= 2;
    if (diagonal && (has_dot(glyph, c, row) || has_dot(glyph, column, r)))
      continue;
    least = fmin(least, line_distance(x, y, column, row, c, r));
  }
  return least;
}

static double glyph_distance(const uint8_t *glyph, double x, double y) {
  double least = GLYPH_ROWS;
  for (int32_t c = (int32_t)x - 1; c <= (int32_t)x + 2; c++)
    for (int32_t r = (int32_t)y - 1; r <= (int32_t)y + 2; r++)
      if (has_dot(glyph, c, r))
        least = fmin(least, dot_distance(glyph, c, r, x, y));
  return least;
}

/* A glyph with its origin, left on the baseline, at (x, y); unit: pixels
 * between dots. */
static void draw_glyph(png_canvas *p, const uint8_t *glyph, double x, double y,
                       double unit, bool upward, uint32_t colour) {
  const double pen = 0.46; /* half the stroke's width, in units */
  int32_t reach = (int32_t)ceil(unit * (GLYPH_ROWS + 2));
  for (int32_t v = -reach; v <= reach; v++)
    for (int32_t u = -reach; u <= reach; u++) {
      double px = floor(x) + u + 0.5 - x, py = floor(y) + v + 0.5 - y;
      double gx = (upward ? -py : px) / unit;
      double gy = (upward ? px : py) / unit + GLYPH_BASE - 0.5;
      if (gx < -1 || gx > GLYPH_COLUMNS || gy < -1 || gy > GLYPH_ROWS) continue;
      double edge = (pen - glyph_distance(glyph, gx, gy)) * unit;
      blend_pixel(p, (int32_t)floor(x) + u, (int32_t)floor(y) + v, colour,
                  edge + 0.5);
    }
}

static void png_write_text(show_canvas *canvas, double x, double y, double size,
                           show_anchor anchor, bool upward, uint32_t colour,
                           const char *text) {
  double unit = size / 10, step = unit * GLYPH_STEP;
  double back = (double)strlen(text) * step * anchor / 2;
  if (upward)
    y += back;
  else
    x -= back;
  for (; *text; text++) {
    int32_t index = *text >= 32 && *text < 127 ? *text - 32 : '?' - 32;
    draw_glyph((png_canvas *)canvas, glyphs[index], x, y, unit, upward, colour);
    if (upward)
      y -= step;
    else
      x += step;
  }
}

/* ---- the file ------------------------------------------------------------ */

dil_status show_png(arena *a, const show_mask *mask, FILE *out) {
  show_layout layout = show_layout_make(mask, 1200);
  png_canvas p = {{png_paint_box, png_write_text},
                  (int32_t)layout.width,
                  (int32_t)layout.height,
                  NULL};
  p.pixel = ARENA_ARRAY(a, uint8_t, 3 * (int64_t)p.width * p.height);
  show_layout_draw(a, &layout, &p.canvas);
  png_image image = {.version = PNG_IMAGE_VERSION,
                     .width = (png_uint_32)p.width,
                     .height = (png_uint_32)p.height,
                     .format = PNG_FORMAT_RGB};
  if (!png_image_write_to_stdio(&image, out, 0, p.pixel, 0, NULL))
    return dil_fail(DIL_ENVIRONMENT, "cannot write the picture: %s",
                    image.message);
  return DIL_OK;
}
