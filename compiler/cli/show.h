/* show.h - the attention mask as a picture: sampled by show.c, laid out by
 * show_layout.c on a canvas, which is a PNG or an SVG file. */
#ifndef DIL_COMPILER_CLI_SHOW_H
#define DIL_COMPILER_CLI_SHOW_H

#include "compiler/front/program.h"
#include "runtime/pool/threads.h"

/* ---- show.c: the mask as cells ------------------------------------------- */

enum { SHOW_POINTS = 8 }; /* a cell's rows, and columns, that are looked at */
enum { SHOW_NONE = 255, SHOW_OVERLAP = 254 }; /* other values: a branch */

typedef struct show_cell {
  float reach;    /* share of the cell's pairs that some branch reaches */
  uint8_t branch; /* the one with most of them, or one of the above: overlap
                     where it is most of what is reached */
} show_cell;

/* Of a pattern with a grid, the cells that one query sees: N is then rows of
 * the grid, planes one under the other, and M their cells. */
typedef struct show_mask {
  const pattern *pattern;
  int64_t head, N, M;
  int64_t query;         /* -1: all queries (down) by all keys (across) */
  int32_t rows, columns; /* cells; a cell is N / rows by M / columns pairs */
  show_cell *cell;       /* [rows][columns] */
  bool *shown;           /* by show_cell.branch: some cell has it */
  double *share;         /* [branches]: of all pairs */
  double reach, overlap; /* pairs reached by one or more, by two or more */
} show_mask;

/* At most `limit` cells a side. inputs() of the point may be NULL where no
 * mask reads one. NULL threads: alone. */
dil_status show_mask_make(arena *a, const pattern *p, int64_t head, int64_t N,
                          int64_t M, int32_t limit, const expr_point *point,
                          dil_threads *threads, show_mask *mask);
/* The same for the keys of one query in the grid of the pattern. */
dil_status show_grid_make(arena *a, const pattern *p, int64_t head,
                          int64_t query, int64_t M, int32_t limit,
                          const expr_point *point, dil_threads *threads,
                          show_mask *mask);
/* "the 168 keys of query (63, 64)", of a mask with a query. */
char *show_query_text(arena *a, const show_mask *mask);
/* "near: segment 2048, dilation 2, phase 1" */
char *show_branch_text(arena *a, const pattern *p, int32_t index, int64_t head);
bool show_serves(const pattern *p, int32_t index, int64_t head);
/* One character for each cell, and the meaning of the letters. */
void show_text(arena *a, const show_mask *mask, bool colours, FILE *out);
/* Red, green, blue of a branch or of SHOW_OVERLAP, 8 bits each. */
uint32_t show_colour(int32_t branch);

/* ---- show_layout.c: title, axes, cells, legend --------------------------- */

typedef enum show_anchor { SHOW_LEFT, SHOW_MIDDLE, SHOW_RIGHT } show_anchor;

/* Pictures are drawn on a canvas. Coordinates are pixels, y grows downward and
 * a text's y is its baseline. */
typedef struct show_canvas {
  void (*box)(struct show_canvas *canvas, double x, double y, double width,
              double height, uint32_t colour);
  /* `upward`: turned by 90 degrees, read from below */
  void (*text)(struct show_canvas *canvas, double x, double y, double size,
               show_anchor anchor, bool upward, uint32_t colour,
               const char *text);
} show_canvas;

typedef struct show_layout {
  const show_mask *mask;
  double scale;         /* pixels of a cell */
  double width, height; /* of the picture */
} show_layout;

/* Sizes for a plot of about `side` pixels. */
show_layout show_layout_make(const show_mask *mask, double side);
void show_layout_draw(arena *a, const show_layout *layout, show_canvas *canvas);

/* ---- show_svg.c, show_png.c ---------------------------------------------- */

dil_status show_svg(arena *a, const show_mask *mask, FILE *out);
dil_status show_png(arena *a, const show_mask *mask, FILE *out);

#endif
