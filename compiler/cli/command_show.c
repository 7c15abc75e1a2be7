/* command_show.c - `dil show FILE`: the attention mask in the terminal, or as
 * a picture in a file. */
#include "call_setup.h"
#include "show.h"
#include "compiler/library/library.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

typedef enum picture_form { FORM_TEXT, FORM_SVG, FORM_PNG } picture_form;

/* The kinds of file, and how many cells a side each draws at most. */
static const struct {
  const char *ending;
  picture_form form;
  int32_t limit;
} forms[] = {
    {".txt", FORM_TEXT, 128}, {".svg", FORM_SVG, 360}, {".png", FORM_PNG, 720}};

static int32_t find_form(const char *path) {
  size_t length = strlen(path);
  for (int32_t i = 0; i < 3; i++)
    if (length > 4 && !strcmp(path + length - 4, forms[i].ending)) return i;
  return -1;
}

/* Columns of the terminal less the margin; a pipe gets the limit of a file. */
static int32_t terminal_limit(void) {
  struct winsize size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || size.ws_col < 20)
    return forms[0].limit;
  return size.ws_col - 4;
}

static bool wants_colours(void) {
  const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
  bool dumb = !term || !strcmp(term, "dumb");
  return isatty(STDOUT_FILENO) && !dumb && !(no && *no);
}

/* Drawn in memory first: what cannot be drawn takes nothing's place. */
static dil_status write_picture(arena *a, const show_mask *mask,
                                const char *path, picture_form which) {
  char *picture = NULL;
  size_t size = 0;
  dil_status status = DIL_OK;
  FILE *out = open_memstream(&picture, &size);
  if (!out) return dil_fail(DIL_MEMORY, "no memory for the picture");
  if (which == FORM_TEXT)
    show_text(a, mask, false, out);
  else
    status =
        which == FORM_SVG ? show_svg(a, mask, out) : show_png(a, mask, out);
  bool bad = ferror(out) != 0;
  if ((fclose(out) || bad) && !status)
    status = dil_fail(DIL_MEMORY, "no memory for the picture");
  if (!status) status = library_file_write(path, picture, size);
  free(picture);
  return status;
}

/* Of a grid: --query, or the cell in the middle of every axis. */
static int64_t query_shown(const options *o, const call_setup *b) {
  const grid *g = &b->pattern->grid;
  int64_t query = 0;
  if (o->seen[OPTION_QUERY]) return o->query;
  for (int32_t axis = 0; axis < g->axes; axis++)
    query += grid_extent(g, axis, b->size[CALL_M]) / 2 * grid_stride(g, axis);
  return query;
}

static dil_status show_pattern(arena *a, const options *o, call_setup *b) {
  int32_t which = o->out ? find_form(o->out) : 0;
  if (which < 0)
    return dil_fail(DIL_USAGE, "a picture is .svg, .png or .txt, not '%s'",
                    o->out);
  show_mask mask;
  expr_point point = call_setup_point(b, 0);
  int32_t limit = o->out ? forms[which].limit : terminal_limit();
  int64_t M = b->size[CALL_M];
  dil_status status =
      b->pattern->grid.axes
          ? show_grid_make(a, b->pattern, o->head, query_shown(o, b), M, limit,
                           &point, b->threads, &mask)
          : show_mask_make(a, b->pattern, o->head, b->size[CALL_N], M, limit,
                           &point, b->threads, &mask);
  if (status) return status;
  if (o->out) return write_picture(a, &mask, o->out, forms[which].form);
  show_text(a, &mask, wants_colours(), stdout);
  return DIL_OK;
}

dil_status command_show(arena *a, const options *o) {
  compilation c = {.arena = a, .diag = diag_new(a)};
  driver_request r = command_request(o, 0);
  r.last = STAGE_pattern;
  dil_status status = driver_compile(&r, &c);
  if (status) return message_compiled(o, &c, status);
  call_setup b;
  status = call_setup_open(a, o, c.pattern, &b);
  if (!status) status = call_setup_shapes(&b, -1);
  if (!status) status = show_pattern(a, o, &b);
  call_setup_free(&b);
  return message_compiled(o, &c, status);
}
