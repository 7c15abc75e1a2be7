/* show_svg.c - a canvas that is an SVG file, written by hand. */
#include "show.h"

typedef struct svg {
  show_canvas canvas; /* first: the canvas is the svg */
  FILE *out;
} svg;

static void svg_paint_box(show_canvas *canvas, double x, double y, double width,
                          double height, uint32_t colour) {
  fprintf(((svg *)canvas)->out,
          "<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" "
          "fill=\"#%06x\"/>\n",
          x, y, width, height, colour);
}

static void write_escaped(const char *text, FILE *out) {
  for (; *text; text++) switch (*text) {
    case '<':
      fputs("&lt;", out);
      break;
    case '>':
      fputs("&gt;", out);
      break;
    case '&':
      fputs("&amp;", out);
      break;
    default:
      fputc(*text, out);
    }
}

static void svg_write_text(show_canvas *canvas, double x, double y, double size,
                           show_anchor anchor, bool upward, uint32_t colour,
                           const char *text) {
  static const char *const names[] = {"start", "middle", "end"};
  FILE *out = ((svg *)canvas)->out;
  fprintf(out,
          "<text x=\"%g\" y=\"%g\" font-size=\"%g\" text-anchor=\"%s\" "
          "fill=\"#%06x\"",
          x, y, size, names[anchor], colour);
  if (upward) fprintf(out, " transform=\"rotate(-90 %g %g)\"", x, y);
  fputc('>', out);
  write_escaped(text, out);
  fputs("</text>\n", out);
}

dil_status show_svg(arena *a, const show_mask *mask, FILE *out) {
  show_layout layout = show_layout_make(mask, 720);
  svg file = {{svg_paint_box, svg_write_text}, out};
  fprintf(out,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" "
          "height=\"%g\" viewBox=\"0 0 %g %g\" shape-rendering=\"crispEdges\" "
          "font-family=\"system-ui, Helvetica, Arial, sans-serif\">\n",
          layout.width, layout.height, layout.width, layout.height);
  show_layout_draw(a, &layout, &file.canvas);
  fputs("</svg>\n", out);
  return DIL_OK;
}
