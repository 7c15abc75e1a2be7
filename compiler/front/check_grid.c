/* check_grid.c - `grid 128 x 128;` and the statements of its axes: window,
 * neighborhood, dilation, causal and block. In: statements. Out: the grid of a
 * pattern, the reach of a branch, or errors: as many extents as axes, no
 * statement of one dimension beside a grid, none of axes without one. */
#include "checker.h"
#include "runtime/base/arithmetic.h"
#include <math.h>
#include <string.h>

static bool is_word(const scope *s, const term *t, const char *text) {
  return t->kind == TERM_NAME && strcmp(t->name, text) == 0 &&
         !symbol_find(s->c, SYMBOL_LET, t->name);
}

/* ---- the grid ------------------------------------------------------------ */

static bool check_extents(const scope *s, grid *g, const statement *given) {
  scope inner = scope_at(s, CONTEXT_CONSTANT, "an extent of a grid");
  bool good = true;
  int32_t axis = 0;
  for (const term *t = given->args.first; t; t = t->next, axis++) {
    if (axis == 0 && is_word(s, t, "any")) continue;
    g->extent[axis] = 1; /* where it is wrong */
    good &= check_count(&inner, t, 1, COUNT_MAX,
                        "`any` as the first extent takes what M leaves",
                        &g->extent[axis]);
  }
  return good;
}

static bool grid_fits(const grid *g) {
  int64_t cells = 1;
  for (int32_t a = 0; a < g->axes; a++) {
    if (g->extent[a]) cells *= g->extent[a];
    if (cells > COUNT_MAX) return false;
  }
  return true;
}

void check_grid(scope *s, pattern *p, const statement *given) {
  s->grid = NULL;
  if (!given) return;
  grid g = {.axes = given->args.count};
  s->grid = &p->grid;
  if (g.axes < 2 || g.axes > GRID_AXES) {
    p->grid = (grid){2, {1, 1, 1}};
    check_error(s->c, argument(given, 0)->at,
                "`grid 128 x 128;` or `grid 30 x 48 x 80;`, with blanks round "
                "the `x`", "a grid has 2 or 3 axes, got %d", g.axes);
    return;
  }
  if (check_extents(s, &g, given) && !grid_fits(&g))
    check_error(s->c, given->at, NULL, "a grid has at most %d cells",
                COUNT_MAX);
  p->grid = g;
}

/* ---- what goes with what ------------------------------------------------- */

/* Statements of one dimension. */
static bool is_linear(const statement *s) {
  switch (s->word) {
  case WORD_SEGMENT:
  case WORD_SEGMENTS:
  case WORD_DILATIONS:
  case WORD_PHASE: return true;
  case WORD_WINDOW:
  case WORD_DILATION:
  case WORD_CAUSAL: return s->choice != WORD_GRID;
  default: return false;
  }
}

static const char *linear_hint(word w) {
  switch (w) {
  case WORD_WINDOW: return "`window 6 x 6;` reaches as far on each axis";
  case WORD_DILATION: return "`dilation 2 x 2;` has a step for each axis";
  case WORD_CAUSAL:
    return "`causal y, x;` names axes; `mask j <= i;` is of positions";
  default: return "a mask over `iy`, `ix`, `jy` and `jx` may say it";
  }
}

static void check_beside(const scope *s, const statement *given) {
  const char *text = word_text(given->word);
  bool axes = given->choice == WORD_GRID && given->word != WORD_GRID;
  if (s->grid && is_linear(given))
    check_error(s->c, given->at, linear_hint(given->word),
                "'%s' of one dimension cannot stand beside a grid", text);
  else if (!s->grid && axes)
    check_error(s->c, given->at,
                "`grid 128 x 128;` in the pattern says that positions are "
                "cells", "'%s' of axes needs a grid", text);
  else if (axes && given->word != WORD_CAUSAL &&
           given->args.count != s->grid->axes)
    check_error(s->c, given->at, NULL,
                "the grid has %d axes, '%s' has %d extent%s", s->grid->axes,
                text, given->args.count, given->args.count == 1 ? "" : "s");
}

void check_beside_grid(const scope *s, const statement *block, bool above) {
  for (; block; block = block->next) {
    bool linear = block->word == WORD_DILATION && block->choice != WORD_GRID;
    if (above && linear)
      check_error(s->c, block->at, "`branch { dilation 2; }`: a branch has it",
                  "'dilation' of one dimension cannot stand in a pattern");
    else
      check_beside(s, block);
  }
}

/* ---- block --------------------------------------------------------------- */

static int64_t check_size(const scope *s, const term *t) {
  scope inner = scope_at(s, CONTEXT_CONSTANT, "block");
  int64_t size;
  return check_count(&inner, t, 1, COUNT_MAX, NULL, &size) ? size : SIZE_WRONG;
}

static void check_block_cells(scope *s, const statement *block) {
  int64_t size = 1;
  int32_t axis = 0;
  s->block = s->query_block = SIZE_WRONG;
  if (!s->grid || block->args.count != s->grid->axes) return; /* told */
  for (const term *t = block->args.first; t; t = t->next, axis++) {
    int64_t extent = check_size(s, t);
    if (extent == SIZE_WRONG) return;
    s->cell[axis] = extent;
    size = size > COUNT_MAX / extent ? COUNT_MAX : size * extent;
  }
  s->block = s->query_block = size;
}

void check_block(scope *s, const statement *block) {
  s->block = s->query_block = SIZE_UNKNOWN;
  memset(s->cell, 0, sizeof s->cell);
  if (!block) return;
  if (block->choice == WORD_GRID) {
    check_block_cells(s, block);
    return;
  }
  bool both = block->args.count > 1;
  s->block = check_size(s, argument(block, both));
  s->query_block = both ? check_size(s, argument(block, 0)) : s->block;
}

/* ---- the axes of a branch ------------------------------------------------ */

/* No grid has more cells. */
static int64_t bound_of(int64_t cells) {
  return cells < COUNT_MAX ? cells : DIL_ENDLESS;
}

static int64_t check_neighbors(const scope *s, const term *t) {
  scope inner = scope_at(s, CONTEXT_CONSTANT, "a size of a neighborhood");
  int64_t size = DIL_ENDLESS;
  operand o = check_term(&inner, t);
  if (!o.wrong && !(o.type == TYPE_F32 && o.real == INFINITY))
    check_count(&inner, t, 1, COUNT_MAX, "a query is its own neighbour", &size);
  return size;
}

static void take_kernels(const scope *s, const statement *given,
                         grid_reach *r) {
  if (!given) return;
  int32_t axis = 0;
  for (const term *t = given->args.first; t; t = t->next)
    r->kernel[axis++] = bound_of(check_neighbors(s, t));
}

static void take_dilations(const scope *s, const statement *given,
                           grid_reach *r) {
  if (!given) return;
  scope inner = scope_at(s, CONTEXT_CONSTANT, "dilation");
  int32_t axis = 0;
  for (const term *t = given->args.first; t; t = t->next)
    check_count(&inner, t, 1, COUNT_MAX, "`dilation 1 x 2;` has every row",
                &r->dilation[axis++]);
}

/* `6` is as far both ways, `(6, 0)` has a bound each. */
static void take_sides(const scope *s, const statement *given, grid_reach *r) {
  if (!given) return;
  int32_t axis = 0;
  for (const term *t = given->args.first; t; t = t->next, axis++) {
    bool pair = t->kind == TERM_PAIR;
    int64_t left = check_window_bound(s, pair ? t->first : t);
    int64_t right = pair ? check_window_bound(s, t->first->next) : left;
    r->left[axis] = minimum(r->left[axis], bound_of(left));
    r->right[axis] = minimum(r->right[axis], bound_of(right));
  }
}

static int32_t find_axis(const grid *g, const term *t) {
  for (int32_t a = 0; a < g->axes; a++)
    if (!strcmp(t->name, grid_axis_name(g, a))) return a;
  return -1;
}

static void take_causal(const scope *s, const statement *given, grid_reach *r) {
  if (!given) return;
  bool here[GRID_AXES] = {false};
  for (const term *t = given->args.first; t; t = t->next) {
    int32_t axis = find_axis(s->grid, t);
    if (axis < 0)
      check_error(s->c, t->at, NULL, "the grid has %d axes, none is '%s'",
                  s->grid->axes, t->name);
    else if (here[axis])
      check_error(s->c, t->at, NULL, "axis '%s' stands twice", t->name);
    else
      r->causal[axis] = here[axis] = true;
  }
}

static bool has_axes(const scope *s, const statement *given) {
  return !given || (given->choice == WORD_GRID &&
                    (given->word == WORD_CAUSAL ||
                     given->args.count == s->grid->axes));
}

bool check_reach(const scope *s, const clauses *over, const clauses *own,
                 branch *b) {
  static const word words[] = {WORD_WINDOW, WORD_NEIGHBORHOOD, WORD_DILATION,
                               WORD_CAUSAL};
  grid_reach *r = &b->reach;
  int before = diag_errors(s->c->diag);
  for (size_t k = 0; k < sizeof words / sizeof *words; k++)
    if (!has_axes(s, over->of[words[k]]) || !has_axes(s, own->of[words[k]]))
      return false; /* told already */
  for (int32_t a = 0; a < GRID_AXES; a++) {
    r->left[a] = r->right[a] = r->kernel[a] = DIL_ENDLESS;
    r->dilation[a] = 1;
  }
  const clauses *sized = own->of[WORD_NEIGHBORHOOD] ? own : over;
  const clauses *stepped = own->of[WORD_DILATION] ? own : over;
  take_kernels(s, sized->of[WORD_NEIGHBORHOOD], r);
  take_dilations(s, stepped->of[WORD_DILATION], r);
  take_sides(s, over->of[WORD_WINDOW], r);
  take_sides(s, own->of[WORD_WINDOW], r);
  take_causal(s, over->of[WORD_CAUSAL], r);
  take_causal(s, own->of[WORD_CAUSAL], r);
  return diag_errors(s->c->diag) == before;
}

/* ---- blocks in lists ------------------------------------------------------ */

void check_cells(const scope *s, dil_input *made, span at) {
  for (int32_t a = 0; s->grid && a < s->grid->axes && s->cell[0]; a++) {
    int64_t extent = s->grid->extent[a], size = s->cell[a];
    made->cell[a] = (int32_t)size;
    if (extent % size)
      check_error(s->c, at, "each axis of the grid is a multiple of the block's",
                  "blocks in lists must divide the grid, and %lld cells are no "
                  "multiple of %lld", (long long)extent, (long long)size);
  }
}
